//! Open handles: which clients have a file open, and whose update of its size is authoritative at the last
//! close.
//!
//! Calls for one file are made under its inode lock; the table's own locks are held for short times only.

use crate::cache::{FidMap, shard_of};
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_types::{ClientUuid, Fid, OpenHandle, Rights, Status, StatusResult};
use nacre_wire::mds::{LeaseKind, OpenFlags};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const SHARDS: usize = 64;
/// Maximum number of recorded closes without an open: those of requests that were interrupted in transit, of
/// which a client has 512 at most.
const EARLY_MAX: usize = 4096;
/// Maximum number of open handles of one client, at about 300 bytes each.
pub const OPENS_PER_CLIENT_MAX: usize = 512 << 10;
/// Lifetime of such a record: longer than a request is in transit, including all retries of the client.
/// Estimate.
const EARLY_FOR: Duration = Duration::from_secs(600);

#[derive(Clone, Copy)]
struct Entry {
    client: ClientUuid,
    handle: OpenHandle,
    flags: OpenFlags,
    lease: LeaseKind,
    /// Its client was removed ([`OpenTable::abandon`]).
    is_abandoned: bool,
}

impl Entry {
    /// Returns true if the lease excludes an open with these flags.
    fn is_broken_by(&self, flags: OpenFlags) -> bool {
        match self.lease {
            LeaseKind::Write => true,
            LeaseKind::Read => flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE),
            LeaseKind::None | LeaseKind::Frozen => false,
        }
    }
}

/// A period in which a file is open for writing without interruption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteSession {
    /// True if the size was exact at its beginning.
    pub began_exact: bool,
    /// True if it began with the creation of the file.
    pub is_first: bool,
    /// Client that opened the file for writing first.
    pub client: ClientUuid,
    /// True if another client has written too, so that no single one knows the size.
    pub shared: bool,
    /// [`DataUpdate::order`] of the client's newest update with size and blocks; 0 if there was none.
    ///
    /// [`DataUpdate::order`]: nacre_wire::mds::DataUpdate::order
    pub reported: u64,
}

#[derive(Default)]
struct OpenFile {
    entries: Vec<Entry>,
    session: Option<WriteSession>,
}

impl OpenFile {
    /// Returns the place of a handle, and the outcome of its removal.
    fn closing(&self, client: &ClientUuid, handle: OpenHandle) -> Option<(usize, Closed)> {
        let place = self.entries.iter().position(|e| e.client == *client && e.handle == handle)?;
        let others =
            || self.entries.iter().enumerate().filter(|(at, _)| *at != place).map(|(_, entry)| entry);
        let writes = |e: &Entry| e.flags.contains(OpenFlags::WRITE);
        let ends = writes(&self.entries[place]) && !others().any(writes);
        let closed = Closed {
            flags: self.entries[place].flags,
            last: self.entries.len() == 1,
            last_of_client: !others().any(|entry| entry.client == *client),
            ended: self.session.filter(|_| ends),
        };
        Some((place, closed))
    }
}

/// Outcome of a close.
#[derive(Clone, Copy, Debug)]
pub struct Closed {
    /// Access mode and options of the handle.
    pub flags: OpenFlags,
    /// True if no client has the file open any more.
    pub last: bool,
    /// True if the client has no other handle of the file.
    pub last_of_client: bool,
    /// The write session that ended, if this was its last writer.
    pub ended: Option<WriteSession>,
}

/// Handles that were closed before they were opened. Numbers of handles are never reused.
#[derive(Default)]
struct EarlyCloses {
    known: HashSet<(ClientUuid, OpenHandle)>,
    /// The same with their times, the oldest first.
    order: VecDeque<(ClientUuid, OpenHandle, Instant)>,
}

impl EarlyCloses {
    /// Drops the oldest records while there are too many, or they are too old for their opens to arrive.
    fn forget_old(&mut self) {
        let is_old = |at: &Instant| at.elapsed() > EARLY_FOR;
        while self.order.len() > EARLY_MAX || self.order.front().is_some_and(|(_, _, at)| is_old(at)) {
            if let Some((client, handle, _)) = self.order.pop_front() {
                self.known.remove(&(client, handle));
            }
        }
    }
}

/// See the [module documentation](self).
pub struct OpenTable {
    shards: Box<[Mutex<FidMap<OpenFile>>]>,
    /// Number of handles of each client with any.
    counts: Mutex<HashMap<ClientUuid, usize>>,
    early: Mutex<EarlyCloses>,
    /// Number of early closes, which is mostly 0.
    early_count: AtomicUsize,
}

impl OpenTable {
    /// Builds a table without handles.
    pub fn new() -> OpenTable {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        OpenTable {
            shards,
            counts: Mutex::default(),
            early: Mutex::default(),
            early_count: AtomicUsize::new(0),
        }
    }

    fn shard(&self, fid: &Fid) -> &Mutex<FidMap<OpenFile>> {
        &self.shards[shard_of(fid, SHARDS)]
    }

    /// Adds a handle; the same handle replaces itself (a resend). `exact`: the stored size is exact at this
    /// moment. Returns false if the handle has been closed already, and does not open it.
    pub fn add(
        &self,
        fid: Fid,
        client: ClientUuid,
        handle: OpenHandle,
        flags: OpenFlags,
        exact: bool,
    ) -> bool {
        let mut shard = self.shard(&fid).lock();
        if self.was_closed_early(&client, handle) {
            return false;
        }
        let file = shard.entry(fid).or_default();
        let before = file.entries.len();
        file.entries.retain(|e| !(e.client == client && e.handle == handle));
        if file.entries.len() == before {
            *self.counts.lock().entry(client).or_default() += 1;
        }
        for entry in file.entries.iter_mut().filter(|entry| entry.is_broken_by(flags)) {
            entry.lease = LeaseKind::None;
        }
        file.entries.push(Entry { client, handle, flags, lease: LeaseKind::None, is_abandoned: false });
        if flags.contains(OpenFlags::WRITE) {
            let session = file.session.get_or_insert(WriteSession {
                began_exact: exact,
                is_first: false,
                client,
                shared: false,
                reported: 0,
            });
            session.shared |= session.client != client;
        }
        true
    }

    /// Returns true unless a client has its maximum number of handles.
    pub fn has_room(&self, client: &ClientUuid) -> bool {
        self.counts.lock().get(client).is_none_or(|count| *count < OPENS_PER_CLIENT_MAX)
    }

    fn count_closed(&self, client: &ClientUuid) {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(client) {
            *count -= 1;
            if *count == 0 {
                counts.remove(client);
            }
        }
    }

    /// Closes a handle that is not open for the FID that its client has. Either the close overtook the open,
    /// which will find the handle closed; or the open found another file under the name, whose FID is
    /// returned.
    pub fn close_early(&self, client: &ClientUuid, handle: OpenHandle) -> Option<Fid> {
        {
            let mut early = self.early.lock();
            if early.known.insert((*client, handle)) {
                early.order.push_back((*client, handle, Instant::now()));
            }
            early.forget_old();
            self.early_count.store(early.order.len(), Ordering::Release);
        }
        // A later open sees the record above, with the lock of the shard.
        let is_it = |entry: &Entry| entry.client == *client && entry.handle == handle;
        self.shards.iter().find_map(|shard| {
            let shard = shard.lock();
            shard.iter().find(|(_, file)| file.entries.iter().any(is_it)).map(|(fid, _)| *fid)
        })
    }

    /// Returns true if [`OpenTable::close_early`] has recorded this handle.
    pub fn was_closed_early(&self, client: &ClientUuid, handle: OpenHandle) -> bool {
        if self.early_count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut early = self.early.lock();
        early.forget_old();
        self.early_count.store(early.order.len(), Ordering::Release);
        early.known.contains(&(*client, handle))
    }

    /// Drops the records of a removed client, from which no more requests arrive.
    pub fn forget_early_closes(&self, client: &ClientUuid) {
        let mut early = self.early.lock();
        early.known.retain(|(of, _)| of != client);
        early.order.retain(|(of, _, _)| of != client);
        self.early_count.store(early.order.len(), Ordering::Release);
    }

    /// Records that the handle just added created the file.
    pub fn note_made(&self, fid: &Fid) {
        if let Some(session) = self.shard(fid).lock().get_mut(fid).and_then(|file| file.session.as_mut()) {
            session.is_first = true;
        }
    }

    /// Removes a handle; returns `None` if it is unknown.
    pub fn remove(&self, fid: &Fid, client: &ClientUuid, handle: OpenHandle) -> Option<Closed> {
        let mut shard = self.shard(fid).lock();
        let file = shard.get_mut(fid)?;
        let (place, closed) = file.closing(client, handle)?;
        file.entries.swap_remove(place);
        self.count_closed(client);
        if closed.ended.is_some() {
            file.session = None;
        }
        if closed.last {
            shard.remove(fid);
        }
        Some(closed)
    }

    /// Returns the handles of a removed client, which are to be closed one by one
    /// ([`OpenTable::remove_abandoned`]). Until then the files count as open, without leases. Needs no inode
    /// lock.
    pub fn abandon(&self, client: &ClientUuid) -> Vec<(Fid, OpenHandle)> {
        let mut handles = Vec::new();
        for shard in &self.shards {
            for (fid, file) in shard.lock().iter_mut() {
                for entry in file.entries.iter_mut().filter(|entry| entry.client == *client) {
                    (entry.is_abandoned, entry.lease) = (true, LeaseKind::None);
                    handles.push((*fid, entry.handle));
                }
            }
        }
        handles
    }

    /// Removes an abandoned handle; returns `None` if its client has reconnected and reopened it since.
    pub fn remove_abandoned(&self, fid: &Fid, client: &ClientUuid, handle: OpenHandle) -> Option<Closed> {
        let is_it = |e: &Entry| e.client == *client && e.handle == handle && e.is_abandoned;
        let is_abandoned = self.shard(fid).lock().get(fid)?.entries.iter().any(is_it);
        // Handles are reopened only under the inode lock, which the caller holds.
        if is_abandoned { self.remove(fid, client, handle) } else { None }
    }

    /// Returns what the outcome of removing a handle would be.
    pub fn closing(&self, fid: &Fid, client: &ClientUuid, handle: OpenHandle) -> Option<Closed> {
        let shard = self.shard(fid).lock();
        shard.get(fid)?.closing(client, handle).map(|(_, closed)| closed)
    }

    /// Returns the rights to the data of a file that the opens of a client imply.
    pub fn rights(&self, fid: &Fid, client: &ClientUuid) -> Rights {
        const READS: OpenFlags = OpenFlags::READ.union(OpenFlags::EXEC);
        const WRITES: OpenFlags = OpenFlags::WRITE.union(OpenFlags::TRUNCATE);
        let shard = self.shard(fid).lock();
        let entries = shard.get(fid).into_iter().flat_map(|file| &file.entries);
        entries.filter(|entry| entry.client == *client && !entry.is_abandoned).fold(
            Rights::empty(),
            |mut rights, entry| {
                rights.set(Rights::READ, rights.contains(Rights::READ) || entry.flags.intersects(READS));
                rights.set(Rights::WRITE, rights.contains(Rights::WRITE) || entry.flags.intersects(WRITES));
                rights
            },
        )
    }

    /// Returns true if any client has the file open.
    pub fn is_open(&self, fid: &Fid) -> bool {
        self.shard(fid).lock().contains_key(fid)
    }

    /// Returns the flags with which a client has opened a file, by all its handles or by the given one.
    pub fn flags_of(&self, fid: &Fid, client: &ClientUuid, handle: Option<OpenHandle>) -> Option<OpenFlags> {
        let shard = self.shard(fid).lock();
        let is_own =
            |entry: &&Entry| entry.client == *client && handle.is_none_or(|handle| entry.handle == handle);
        let flags = shard.get(fid)?.entries.iter().filter(is_own).map(|entry| entry.flags);
        flags.reduce(|all, flags| all | flags)
    }

    /// Returns true if a client other than `client` has the file open.
    pub fn is_open_elsewhere(&self, fid: &Fid, client: &ClientUuid) -> bool {
        let shard = self.shard(fid).lock();
        shard.get(fid).is_some_and(|file| file.entries.iter().any(|entry| entry.client != *client))
    }

    /// Returns the lease of a handle.
    pub fn lease(&self, fid: &Fid, client: &ClientUuid, handle: OpenHandle) -> LeaseKind {
        let shard = self.shard(fid).lock();
        let mut entries = shard.get(fid).into_iter().flat_map(|file| &file.entries);
        let own = entries.find(|entry| entry.client == *client && entry.handle == handle);
        own.map_or(LeaseKind::None, |entry| entry.lease)
    }

    /// Changes the lease of a handle.
    ///
    /// # Errors
    /// `EBADF` if the handle is unknown; `EBUSY` if other handles are open in a way that the lease excludes.
    pub fn set_lease(
        &self,
        fid: &Fid,
        client: &ClientUuid,
        handle: OpenHandle,
        kind: LeaseKind,
    ) -> StatusResult<()> {
        let mut shard = self.shard(fid).lock();
        let file = shard.get_mut(fid).ok_or(Status::EBADF)?;
        let place = file.entries.iter().position(|e| e.client == *client && e.handle == handle);
        let wanted = Entry { lease: kind, ..file.entries[place.ok_or(Status::EBADF)?] };
        let is_other = |entry: &&Entry| entry.client != *client || entry.handle != handle;
        if file.entries.iter().filter(is_other).any(|other| wanted.is_broken_by(other.flags)) {
            return Err(Status::EBUSY);
        }
        file.entries
            .iter_mut()
            .filter(|e| e.client == *client && e.handle == handle)
            .for_each(|e| *e = wanted);
        Ok(())
    }

    /// Returns the client and handle that have frozen a file.
    pub fn frozen_by(&self, fid: &Fid) -> Option<(ClientUuid, OpenHandle)> {
        let shard = self.shard(fid).lock();
        let frozen = shard.get(fid)?.entries.iter().find(|entry| entry.lease == LeaseKind::Frozen)?;
        Some((frozen.client, frozen.handle))
    }

    /// Breaks the leases on a file whose data a client without a handle changes.
    pub fn break_leases(&self, fid: &Fid) {
        if let Some(file) = self.shard(fid).lock().get_mut(fid) {
            for entry in file.entries.iter_mut().filter(|entry| entry.is_broken_by(OpenFlags::WRITE)) {
                entry.lease = LeaseKind::None;
            }
        }
    }

    /// Returns the write session of a file.
    pub fn session(&self, fid: &Fid) -> Option<WriteSession> {
        self.shard(fid).lock().get(fid)?.session
    }

    /// Records an update of the size by the writing client.
    pub fn note_report(&self, fid: &Fid, order: u64) {
        if let Some(session) = self.shard(fid).lock().get_mut(fid).and_then(|file| file.session.as_mut()) {
            session.reported = session.reported.max(order);
        }
    }

    /// Records that the stored size is not exact, nor the one reported last: a client is about to truncate the
    /// objects.
    pub fn note_unsure(&self, fid: &Fid) {
        if let Some(session) = self.shard(fid).lock().get_mut(fid).and_then(|file| file.session.as_mut()) {
            (session.began_exact, session.reported) = (false, 0);
        }
    }

    /// Records that the stored size is exact at this moment, whichever clients write.
    pub fn note_exact(&self, fid: &Fid) {
        if let Some(session) = self.shard(fid).lock().get_mut(fid).and_then(|file| file.session.as_mut()) {
            session.began_exact = true;
        }
    }

    /// Returns all handles of a connected client.
    pub fn handles_of(&self, client: &ClientUuid) -> Vec<(Fid, OpenHandle)> {
        let mut handles = Vec::new();
        for shard in &self.shards {
            for (fid, file) in shard.lock().iter() {
                let mine = file.entries.iter().filter(|e| e.client == *client && !e.is_abandoned);
                handles.extend(mine.map(|e| (*fid, e.handle)));
            }
        }
        handles
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Fid = Fid::new(1, 1, 0);

    #[test]
    fn a_session_lasts_from_the_first_writer_to_the_last_and_knows_whether_it_was_shared() {
        let table = OpenTable::new();
        let (a, b) = (ClientUuid([1; 16]), ClientUuid([2; 16]));
        table.add(FILE, a, OpenHandle(1), OpenFlags::READ, true);
        assert_eq!(table.session(&FILE), None);
        table.add(FILE, a, OpenHandle(2), OpenFlags::WRITE, true);
        table.add(FILE, a, OpenHandle(2), OpenFlags::WRITE, true);
        table.add(FILE, b, OpenHandle(1), OpenFlags::WRITE, false);
        table.note_report(&FILE, 7);
        table.note_report(&FILE, 3);
        assert!(table.remove(&FILE, &a, OpenHandle(2)).is_some_and(|c| c.ended.is_none() && !c.last));
        assert!(table.remove(&FILE, &a, OpenHandle(2)).is_none());
        let closed = table.remove(&FILE, &b, OpenHandle(1)).expect("open");
        let session = closed.ended.expect("the last writer");
        assert!(session.shared && session.began_exact && session.reported == 7 && !closed.last);
        assert!(table.remove(&FILE, &a, OpenHandle(1)).is_some_and(|c| c.last && c.last_of_client));
        assert!(!table.is_open(&FILE));
    }

    #[test]
    fn what_one_client_has_open_is_bounded_and_others_go_on() {
        let table = OpenTable::new();
        let (a, b) = (ClientUuid([1; 16]), ClientUuid([2; 16]));
        let file = |number: usize| Fid::new(1, u32::try_from(number).expect("few"), 0);
        for number in 0..OPENS_PER_CLIENT_MAX {
            assert!(table.has_room(&a));
            // The second one is a resend.
            table.add(file(number), a, OpenHandle(1), OpenFlags::READ, true);
            table.add(file(number), a, OpenHandle(1), OpenFlags::READ, true);
        }
        assert!(!table.has_room(&a) && table.has_room(&b));
        assert!(table.remove(&file(5), &a, OpenHandle(1)).is_some());
        assert!(table.remove(&file(5), &a, OpenHandle(1)).is_none());
        assert!(table.has_room(&a));
        for (fid, handle) in table.abandon(&a) {
            table.remove_abandoned(&fid, &a, handle);
        }
        assert!(table.counts.lock().is_empty());
    }

    #[test]
    fn closes_that_come_before_their_opens_are_remembered_and_the_oldest_forgotten() {
        let table = OpenTable::new();
        let (a, b) = (ClientUuid([1; 16]), ClientUuid([2; 16]));
        table.add(FILE, a, OpenHandle(1), OpenFlags::READ, true);
        assert_eq!(table.close_early(&a, OpenHandle(1)), Some(FILE), "by another name");
        assert_eq!(table.close_early(&b, OpenHandle(2)), None);
        assert_eq!(table.close_early(&b, OpenHandle(2)), None);
        assert!(!table.add(FILE, b, OpenHandle(2), OpenFlags::READ, true));
        assert!(table.add(FILE, a, OpenHandle(2), OpenFlags::READ, true), "a handle of somebody else");
        for number in 0..EARLY_MAX as u64 {
            assert_eq!(table.close_early(&b, OpenHandle(10 + number)), None);
        }
        assert!(!table.was_closed_early(&b, OpenHandle(2)) && table.was_closed_early(&b, OpenHandle(10)));
        table.close_early(&a, OpenHandle(3));
        table.forget_early_closes(&b);
        assert!(!table.was_closed_early(&b, OpenHandle(10)) && table.was_closed_early(&a, OpenHandle(3)));
    }

    #[test]
    fn a_lease_ends_when_somebody_opens_the_file_in_a_way_that_it_excludes() {
        let table = OpenTable::new();
        let (a, b) = (ClientUuid([1; 16]), ClientUuid([2; 16]));
        let own = OpenHandle(1);
        table.add(FILE, a, own, OpenFlags::READ, true);
        assert_eq!(table.set_lease(&FILE, &b, own, LeaseKind::Read), Err(Status::EBADF));
        assert_eq!(table.set_lease(&FILE, &a, own, LeaseKind::Read), Ok(()));
        table.add(FILE, b, OpenHandle(1), OpenFlags::READ, true);
        assert_eq!(table.lease(&FILE, &a, own), LeaseKind::Read, "readers may share");
        assert_eq!(table.set_lease(&FILE, &a, own, LeaseKind::Write), Err(Status::EBUSY));
        table.add(FILE, b, OpenHandle(2), OpenFlags::WRITE, true);
        assert_eq!(table.lease(&FILE, &a, own), LeaseKind::None);
        assert_eq!(table.set_lease(&FILE, &a, own, LeaseKind::Read), Err(Status::EBUSY));
        assert_eq!(table.set_lease(&FILE, &a, own, LeaseKind::Frozen), Ok(()));
        table.add(FILE, b, OpenHandle(3), OpenFlags::WRITE, true);
        assert_eq!(table.frozen_by(&FILE), Some((a, own)), "others wait");
        table.remove(&FILE, &a, own);
        assert_eq!(table.frozen_by(&FILE), None);
    }
}
