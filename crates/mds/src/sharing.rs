//! Commit on sharing: a change is durable before another client learns of it or builds on it, unless the client that
//! asked for it is known to have its answer.
//!
//! Clients replay what they were answered after a power cut. A change that was lost together with its answer comes back
//! later, when its client sends the request again, or never. What others were answered meanwhile must not depend on it:
//! a file made under a name that an unanswered request had removed could not be replayed.
//!
//! The next changes of a client show which answers it has, so a busy client makes nobody wait. Only names and attributes
//! count; sizes and times of directories may go back.

use crate::cache::FidHasher;
use crate::clients::Clients;
use crate::filesets::fids_of;
use crate::moving::names_in;
use crate::records::Records;
use nacre_env::sync::Mutex;
use nacre_rpc::{Call, Export, ReplySlot};
use nacre_store::MetaStore;
use nacre_types::{ClientUuid, Fid, Nid, StatusResult, TransNo};
use nacre_wire::mds::{MdsAnswer, MdsReply, MdsRequest};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Values of `mdt.*.commit_on_sharing`.
const OFF: u8 = 0;
const ALL: u8 = 1;
const UNANSWERED: u8 = 2;
/// Number of parts of the table, to keep threads out of each other's way.
const PARTS: usize = 64;
/// Number of entries of a part below which none is dropped.
const KEPT: usize = 256;

/// What a request changes or shows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Subject<'a> {
    Name(Fid, &'a [u8]),
    Inode(Fid),
    /// The names in a directory as a whole.
    Names(Fid),
}

type Subjects<'a> = SmallVec<[Subject<'a>; 4]>;
type Keys = SmallVec<[u64; 4]>;
type Part = HashMap<u64, Changes, BuildHasherDefault<FidHasher>>;

impl Subject<'_> {
    /// Returns the key of the subject. Two subjects with one key cost a needless flush of the log.
    fn key(&self) -> u64 {
        BuildHasherDefault::<DefaultHasher>::default().hash_one(self)
    }
}

/// Changes of a subject that may not be durable.
#[derive(Clone, Copy, Debug)]
struct Changes {
    /// Newest request.
    by: ReplySlot,
    /// Newest transaction of its client.
    transno: TransNo,
    /// Newest transaction of clients that had no answer when the next one came.
    others: TransNo,
    /// Requests that run.
    running: u32,
    /// True if those are of several clients.
    is_mixed: bool,
}

/// Changes by subject.
struct Table {
    parts: Box<[Mutex<Part>]>,
}

impl Table {
    fn new() -> Table {
        Table { parts: (0..PARTS).map(|_| Mutex::default()).collect() }
    }

    fn part(&self, key: u64) -> &Mutex<Part> {
        &self.parts[key as usize % PARTS]
    }

    /// Notes that a request begins which changes a subject.
    fn begin(&self, key: u64, by: ReplySlot, committed: TransNo, has_answer: &dyn Fn(&ReplySlot) -> bool) {
        let mut part = self.part(key).lock();
        if part.len() >= KEPT && part.len() == part.capacity() {
            part.retain(|_, changes| changes.running > 0 || changes.transno.max(changes.others) > committed);
        }
        let (none, running, is_mixed) = (TransNo(0), 0, false);
        let changes =
            part.entry(key).or_insert(Changes { by, transno: none, others: none, running, is_mixed });
        if changes.by.client != by.client {
            if changes.transno > committed && !has_answer(&changes.by) {
                changes.others = changes.others.max(changes.transno);
            }
            (changes.by, changes.transno, changes.is_mixed) = (by, none, changes.running > 0);
        }
        if by.xid > changes.by.xid {
            changes.by = by;
        }
        changes.running += 1;
    }

    /// Notes that it has ended, with its transaction; 0 for none.
    fn end(&self, key: u64, by: ReplySlot, transno: TransNo) {
        if let Some(changes) = self.part(key).lock().get_mut(&key) {
            let newest = match changes.is_mixed {
                true => &mut changes.others,
                false => &mut changes.transno,
            };
            *newest = transno.max(*newest);
            debug_assert!(changes.running > 0 && (changes.is_mixed || changes.by.client == by.client));
            changes.running = changes.running.saturating_sub(1);
            changes.is_mixed &= changes.running > 0;
        }
    }

    /// Returns the transaction that has to be durable before a client learns of a subject.
    fn needed(&self, key: u64, client: &ClientUuid, has_answer: &dyn Fn(&ReplySlot) -> bool) -> TransNo {
        let Some(changes) = self.part(key).lock().get(&key).copied() else { return TransNo(0) };
        let newest = match changes.running {
            _ if changes.is_mixed => TransNo(u64::MAX),
            _ if changes.by.client == *client => TransNo(0),
            0 if has_answer(&changes.by) => TransNo(0),
            0 => changes.transno,
            _ => TransNo(u64::MAX),
        };
        newest.max(changes.others)
    }
}

/// See the [module documentation](self).
pub(crate) struct Sharing {
    clients: Arc<Clients>,
    records: Arc<Records>,
    store: Arc<MetaStore>,
    table: Table,
    /// See [`Mds::commit_on_sharing`](crate::Mds::commit_on_sharing).
    mode: AtomicU8,
    /// Syncs of the log that were needed.
    commits: AtomicU64,
}

impl Sharing {
    pub(crate) fn new(clients: &Arc<Clients>, records: &Arc<Records>, store: &Arc<MetaStore>) -> Sharing {
        let (clients, records, store) = (clients.clone(), records.clone(), store.clone());
        let (mode, commits) = (AtomicU8::new(UNANSWERED), AtomicU64::new(0));
        Sharing { clients, records, store, table: Table::new(), mode, commits }
    }

    pub(crate) fn mode(&self) -> u8 {
        self.mode.load(Ordering::Relaxed)
    }

    pub(crate) fn set_mode(&self, mode: u8) {
        self.mode.store(mode, Ordering::Relaxed);
    }

    /// Returns the number of syncs of the log that were needed.
    pub(crate) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Runs a request of a client, and makes durable what its answer shows or depends on, if other clients have made
    /// that and may not have their answers yet.
    ///
    /// # Errors
    /// Those of the request and of the store.
    pub(crate) fn run(
        &self,
        export: &Export,
        call: &Call<'_>,
        request: &MdsRequest<'_>,
        run: impl FnOnce() -> StatusResult<MdsAnswer>,
    ) -> StatusResult<MdsAnswer> {
        // What a client of this process makes ends with this host.
        if export.nid == Nid::Lo || !self.clients.are_several() || self.mode() == OFF {
            return run();
        }
        let mut under_way = call.reply_slot.map(|by| UnderWay::new(self, by));
        if let Some(noted) = &mut under_way {
            noted.begin(&changed_by(request));
        }
        let answer = run();
        if let (Some(noted), Ok(answer)) = (&mut under_way, &answer) {
            noted.transno = answer.transno;
            // Not known before: a request for this inode that comes in between does not wait for the log.
            if let MdsReply::Removed { fid, attr: Some(_) } = answer.reply {
                noted.begin(&[Subject::Inode(fid)]);
            }
        }
        drop(under_way);
        self.commit(&export.client, request, &answer)?;
        answer
    }

    fn commit(
        &self,
        client: &ClientUuid,
        request: &MdsRequest<'_>,
        answer: &StatusResult<MdsAnswer>,
    ) -> StatusResult<()> {
        let committed = self.store.last_committed();
        if self.store.last_transno() <= committed {
            return Ok(());
        }
        let needed =
            |subject: &Subject<'_>| self.table.needed(subject.key(), client, &|maker| self.has_answer(maker));
        let needed = shown_by(request, answer).iter().map(needed).max().unwrap_or_default();
        if needed > committed {
            self.commits.fetch_add(1, Ordering::Relaxed);
            self.records.sync(needed.min(self.store.last_transno()))?;
        }
        Ok(())
    }

    fn has_answer(&self, maker: &ReplySlot) -> bool {
        let is_there = |export: Arc<Export>| export.has_answer_to(maker);
        self.mode() != ALL && self.clients.export_of(&maker.client).is_some_and(is_there)
    }
}

/// A request under way, from before its first effect to after its last.
struct UnderWay<'a> {
    sharing: &'a Sharing,
    by: ReplySlot,
    keys: Keys,
    transno: TransNo,
}

impl UnderWay<'_> {
    fn new(sharing: &Sharing, by: ReplySlot) -> UnderWay<'_> {
        UnderWay { sharing, by, keys: SmallVec::new(), transno: TransNo(0) }
    }

    /// Notes what the request changes.
    fn begin(&mut self, subjects: &[Subject<'_>]) {
        let committed = self.sharing.store.last_committed();
        for key in subjects.iter().map(Subject::key) {
            self.sharing.table.begin(key, self.by, committed, &|maker| self.sharing.has_answer(maker));
            self.keys.push(key);
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.keys.iter().for_each(|key| self.sharing.table.end(*key, self.by, self.transno));
    }
}

/// Returns the names in a request.
fn named<'a>(request: &MdsRequest<'a>) -> Subjects<'a> {
    let names = names_in(request).into_iter().filter(|(_, name)| !name.is_empty());
    names.map(|(parent, name)| Subject::Name(parent, name)).collect()
}

/// Returns what a request changes: names, and attributes by which others could notice that the change is missing.
fn changed_by<'a>(request: &MdsRequest<'a>) -> Subjects<'a> {
    let inode = |fid: &Fid| Subject::Inode(*fid);
    match request {
        MdsRequest::Create { .. }
        | MdsRequest::Link { .. }
        | MdsRequest::Unlink { .. }
        | MdsRequest::Rename { .. } => {
            let mut subjects = named(request);
            for index in 0..subjects.len() {
                if let Subject::Name(parent, _) = subjects[index] {
                    subjects.push(Subject::Names(parent));
                }
            }
            if let MdsRequest::Link { fid, .. } = request {
                subjects.push(inode(fid));
            }
            subjects
        }
        MdsRequest::SetAttr { .. }
        | MdsRequest::SetXattr { .. }
        | MdsRequest::RemoveXattr { .. }
        | MdsRequest::SetLayout { .. }
        | MdsRequest::SwapLayouts { .. }
        | MdsRequest::RemoveFid { .. } => fids_of(request).into_iter().flatten().map(inode).collect(),
        _ => SmallVec::new(),
    }
}

/// Returns what the answer to a request shows.
fn shown_by<'a>(request: &MdsRequest<'a>, answer: &StatusResult<MdsAnswer>) -> Subjects<'a> {
    let mut subjects = named(request);
    subjects.extend(fids_of(request).into_iter().flatten().map(|fid| Subject::Inode(*fid)));
    match request {
        // Once for a listing: others may go on to change names.
        MdsRequest::ReadDir { fid, cookie: 0, .. } | MdsRequest::Scan { fid, cookie: 0, .. } => {
            subjects.push(Subject::Names(*fid));
        }
        _ => {}
    }
    if let Ok(MdsAnswer { reply: MdsReply::Removed { fid, attr: Some(_) }, .. }) = answer {
        subjects.extend([Subject::Inode(*fid), Subject::Names(*fid)]);
    }
    subjects
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::Xid;

    const EVERYTHING: TransNo = TransNo(u64::MAX);

    fn maker(client: u8, xid: u64) -> ReplySlot {
        ReplySlot { client: ClientUuid([client; 16]), tag: 0, xid: Xid(xid) }
    }

    fn lacks(_: &ReplySlot) -> bool {
        false
    }

    /// Requests of a client and their transactions, all about one subject; nothing is durable.
    fn changed(by: &[(u8, u64)]) -> Table {
        let sharing = Table::new();
        for (number, (client, transno)) in (1..).zip(by) {
            let by = maker(*client, number);
            sharing.begin(7, by, TransNo(0), &lacks);
            sharing.end(7, by, TransNo(*transno));
        }
        sharing
    }

    fn needed(sharing: &Table, client: u8) -> TransNo {
        sharing.needed(7, &ClientUuid([client; 16]), &lacks)
    }

    #[test]
    fn a_change_is_durable_before_others_learn_of_it_unless_its_client_has_the_answer() {
        let sharing = changed(&[(1, 5), (1, 6), (1, 0)]);
        assert_eq!((needed(&sharing, 1), needed(&sharing, 2)), (TransNo(0), TransNo(6)));
        let has_answer_to = |xid| move |maker: &ReplySlot| maker.xid < Xid(xid);
        assert_eq!(sharing.needed(7, &ClientUuid([2; 16]), &has_answer_to(3)), TransNo(6));
        assert_eq!(sharing.needed(7, &ClientUuid([2; 16]), &has_answer_to(4)), TransNo(0));
        assert_eq!(sharing.needed(8, &ClientUuid([2; 16]), &lacks), TransNo(0), "another subject");
    }

    #[test]
    fn a_client_that_builds_on_the_change_of_another_one_awaits_that_change() {
        let sharing = changed(&[(1, 5), (2, 6)]);
        assert_eq!((needed(&sharing, 2), needed(&sharing, 3)), (TransNo(5), TransNo(6)));
        let answered = Table::new();
        for (client, transno) in [(1, 5), (2, 6)] {
            answered.begin(7, maker(client, 1), TransNo(0), &|_| true);
            answered.end(7, maker(client, 1), TransNo(transno));
        }
        assert_eq!(needed(&answered, 2), TransNo(0), "the first one had its answer");
    }

    #[test]
    fn everything_is_awaited_while_a_request_of_another_client_runs() {
        let sharing = changed(&[(1, 5)]);
        sharing.begin(7, maker(1, 2), TransNo(5), &lacks);
        assert_eq!((needed(&sharing, 1), needed(&sharing, 2)), (TransNo(0), EVERYTHING));
        sharing.begin(7, maker(2, 1), TransNo(5), &lacks);
        sharing.end(7, maker(2, 1), TransNo(7));
        assert_eq!(needed(&sharing, 2), EVERYTHING, "the first one still runs");
        sharing.end(7, maker(1, 2), TransNo(8));
        assert_eq!((needed(&sharing, 2), needed(&sharing, 3)), (TransNo(8), TransNo(8)));
    }

    #[test]
    fn what_is_durable_is_forgotten() {
        let sharing = Table::new();
        for number in 1..=100_000_u64 {
            let (key, by) = (number * PARTS as u64, maker(1, number));
            sharing.begin(key, by, TransNo(number.saturating_sub(10)), &lacks);
            sharing.end(key, by, TransNo(number));
        }
        let kept = sharing.part(0).lock().len();
        assert!((10..10 * KEPT).contains(&kept), "{kept} entries");
    }
}
