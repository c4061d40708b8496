//! Commit on sharing: a change is durable before another client learns of it or builds on it, unless the client that
//! asked for it is known to have its answer.
//!
//! Clients replay what they were answered after a power cut. A change that was lost together with its answer comes back
//! later, when its client sends the request again, or never. What others were answered meanwhile must not depend on it:
//! a file made under a name that an unanswered request had removed could not be replayed.
//!
//! The next request of a client shows which answers it has, so a busy client makes nobody wait. Only names and attributes
//! count; sizes and times of directories may go back.

use crate::cache::FidHasher;
use crate::leaves::Leaves;
use nacre_env::sync::Mutex;
use nacre_rpc::{Call, Export, ReplySlot};
use nacre_types::{ClientUuid, Fid, Nid, StatusResult, TransNo};
use nacre_wire::mds::{MdsAnswer, MdsReply, MdsRequest, NewFile};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Number of parts of the table, to keep threads out of each other's way.
const PARTS: usize = 64;
/// Values of `mdt.*.commit_on_sharing`.
const OFF: u8 = 0;
const ALL: u8 = 1;
const UNANSWERED: u8 = 2;
/// Number of entries of a part below which none is dropped.
const KEPT: usize = 256;

/// What a request changes or shows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Subject<'a> {
    Name(&'a Fid, &'a [u8]),
    Inode(&'a Fid),
    /// The names in a directory as a whole.
    Names(&'a Fid),
}

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

/// See the [module documentation](self).
pub(crate) struct Sharing {
    parts: Box<[Mutex<Part>]>,
    /// See [`Mds::commit_on_sharing`](crate::Mds::commit_on_sharing).
    mode: AtomicU8,
}

/// Subjects that a request changes, from its beginning to its end.
#[must_use]
pub(crate) struct Noted {
    by: ReplySlot,
    keys: Keys,
}

impl Sharing {
    pub(crate) fn new() -> Sharing {
        let parts = (0..PARTS).map(|_| Mutex::default()).collect();
        Sharing { parts, mode: AtomicU8::new(UNANSWERED) }
    }

    pub(crate) fn mode(&self) -> u8 {
        self.mode.load(Ordering::Relaxed)
    }

    pub(crate) fn set_mode(&self, mode: u8) {
        self.mode.store(mode, Ordering::Relaxed);
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

impl Leaves {
    /// Notes a request of a client before it is executed, if it may change what others see.
    pub(crate) fn begin_shared(
        &self,
        export: &Export,
        call: &Call<'_>,
        request: &MdsRequest<'_>,
    ) -> Option<Noted> {
        let by = call.reply_slot.filter(|_| self.shares(export))?;
        let keys: Keys = changed_by(request).iter().map(Subject::key).collect();
        let committed = self.store.last_committed();
        keys.iter().for_each(|key| self.sharing.begin(*key, by, committed, &|maker| self.has_answer(maker)));
        (!keys.is_empty()).then_some(Noted { by, keys })
    }

    /// Notes the end of the request.
    pub(crate) fn end_shared(&self, noted: Noted, answer: &StatusResult<MdsAnswer>) {
        let transno = answer.as_ref().map_or(TransNo(0), |answer| answer.transno);
        noted.keys.iter().for_each(|key| self.sharing.end(*key, noted.by, transno));
        if let Ok(MdsAnswer { reply: MdsReply::Removed { fid, attr: Some(_) }, .. }) = answer {
            let key = Subject::Inode(fid).key();
            self.sharing.begin(key, noted.by, self.store.last_committed(), &|maker| self.has_answer(maker));
            self.sharing.end(key, noted.by, transno);
        }
    }

    /// Makes durable what the answer to a client shows or depends on, if other clients have made it which may not have
    /// their answers yet.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) fn commit_shared(
        &self,
        export: &Export,
        request: &MdsRequest<'_>,
        answer: &StatusResult<MdsAnswer>,
    ) -> StatusResult<()> {
        if !self.shares(export) || self.store.last_transno() <= self.store.last_committed() {
            return Ok(());
        }
        let mut subjects = shown_by(request);
        if let Ok(MdsAnswer { reply: MdsReply::Removed { fid, .. }, .. }) = answer {
            subjects.extend([Subject::Inode(fid), Subject::Names(fid)]);
        }
        let has_answer = |maker: &ReplySlot| self.has_answer(maker);
        let needed = subjects
            .iter()
            .map(|subject| self.sharing.needed(subject.key(), &export.client, &has_answer))
            .max();
        self.records.sync(needed.unwrap_or_default().min(self.store.last_transno()))
    }

    /// Returns true if others may see what this client changes, and it may live longer than this host.
    fn shares(&self, export: &Export) -> bool {
        export.nid != Nid::Lo && self.clients.are_several() && self.sharing.mode() != OFF
    }

    fn has_answer(&self, maker: &ReplySlot) -> bool {
        let is_there = |export: Arc<Export>| export.has_answer_to(maker);
        self.sharing.mode() != ALL && self.clients.export_of(&maker.client).is_some_and(is_there)
    }
}

/// Returns what a request changes: names, and attributes by which others could notice that the change is missing.
fn changed_by<'a>(request: &'a MdsRequest<'_>) -> SmallVec<[Subject<'a>; 4]> {
    let mut subjects = names_in(request);
    match request {
        MdsRequest::Link { fid, .. }
        | MdsRequest::SetAttr { fid, .. }
        | MdsRequest::SetXattr { fid, .. }
        | MdsRequest::RemoveXattr { fid, .. }
        | MdsRequest::SetLayout { fid, .. }
        | MdsRequest::RemoveFid { fid } => subjects.push(Subject::Inode(fid)),
        MdsRequest::SwapLayouts { first, second, .. } => {
            subjects.extend([Subject::Inode(first), Subject::Inode(second)]);
        }
        MdsRequest::Create { .. } | MdsRequest::Unlink { .. } | MdsRequest::Rename { .. } => {}
        _ => subjects.clear(),
    }
    for index in 0..subjects.len() {
        if let Subject::Name(parent, _) = subjects[index] {
            subjects.push(Subject::Names(parent));
        }
    }
    subjects
}

/// Returns what the answer to a request shows.
fn shown_by<'a>(request: &'a MdsRequest<'_>) -> SmallVec<[Subject<'a>; 4]> {
    let mut subjects = names_in(request);
    match request {
        // Once for a listing: others may go on to change names.
        MdsRequest::ReadDir { fid, cookie: 0, .. } | MdsRequest::Scan { fid, cookie: 0, .. } => {
            subjects.push(Subject::Names(fid));
        }
        MdsRequest::LookupMany { parent, names, .. } => {
            let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
            subjects.extend(names.map(|name| Subject::Name(parent, name)));
        }
        MdsRequest::GetAttr { fid }
        | MdsRequest::Open { fid, .. }
        | MdsRequest::Intent { fid, name: None, .. }
        | MdsRequest::Link { fid, .. }
        | MdsRequest::SetAttr { fid, .. }
        | MdsRequest::GetXattr { fid, .. }
        | MdsRequest::ListXattr { fid }
        | MdsRequest::SetXattr { fid, .. }
        | MdsRequest::RemoveXattr { fid, .. }
        | MdsRequest::GetLayout { fid }
        | MdsRequest::SetLayout { fid, .. } => subjects.push(Subject::Inode(fid)),
        _ => {}
    }
    subjects
}

fn names_in<'a>(request: &'a MdsRequest<'_>) -> SmallVec<[Subject<'a>; 4]> {
    match request {
        MdsRequest::Create { new: NewFile::Unnamed, .. } => SmallVec::new(),
        MdsRequest::Create { parent, name, .. }
        | MdsRequest::Lookup { parent, name }
        | MdsRequest::Link { parent, name, .. }
        | MdsRequest::Unlink { parent, name, .. } => SmallVec::from_iter([Subject::Name(parent, name)]),
        MdsRequest::Intent { fid, name: Some(name), .. } => SmallVec::from_iter([Subject::Name(fid, name)]),
        MdsRequest::Rename { from_parent, from_name, to_parent, to_name, .. } => {
            SmallVec::from_iter([Subject::Name(from_parent, from_name), Subject::Name(to_parent, to_name)])
        }
        _ => SmallVec::new(),
    }
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
    fn changed(by: &[(u8, u64)]) -> Sharing {
        let sharing = Sharing::new();
        for (number, (client, transno)) in (1..).zip(by) {
            let by = maker(*client, number);
            sharing.begin(7, by, TransNo(0), &lacks);
            sharing.end(7, by, TransNo(*transno));
        }
        sharing
    }

    fn needed(sharing: &Sharing, client: u8) -> TransNo {
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
        let answered = Sharing::new();
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
        let sharing = Sharing::new();
        for number in 1..=100_000_u64 {
            let (key, by) = (number * PARTS as u64, maker(1, number));
            sharing.begin(key, by, TransNo(number.saturating_sub(10)), &lacks);
            sharing.end(key, by, TransNo(number));
        }
        let kept = sharing.part(0).lock().len();
        assert!((10..10 * KEPT).contains(&kept), "{kept} entries");
    }
}
