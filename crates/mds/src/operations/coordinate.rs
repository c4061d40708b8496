//! The side that is asked by a client.

use super::{Bug, encode_record, wants_of};
use crate::locks::{Kept, Reach, unless_interrupted};
use crate::mds::Mds;
use crate::service::Caller;
use crate::tables::{OPERATIONS, op_key};
use nacre_env::sync::MutexGuard;
use nacre_ondisk::{DirentRecord, InodeRecord};
use nacre_rpc::{Export, Moment};
use nacre_types::{Cred, Fid, Status, StatusResult, Timestamp, TransNo};
use nacre_wire::Encode;
use nacre_wire::mds::{MdsAnswer, MdsReply, MdsRequest};
use nacre_wire::peer::{
    Found, INODES_MAX, Name, OpId, Operation, Part, PeerReply, PeerRequest, RecordBytes, Update,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Time between two looks for an interrupt.
const POLL: Duration = Duration::from_millis(50);

/// Inodes and names of an operation, locked wherever they lie. Dropped without [`Mds::execute`], the operation does not happen.
pub(crate) struct Gathered<'a> {
    mds: &'a Mds,
    op: OpId,
    /// Other MDTs that have locked something, or may have.
    remote: BTreeSet<u16>,
    records: HashMap<Fid, Option<Arc<InodeRecord>>>,
    names: HashMap<(Fid, Vec<u8>), Option<DirentRecord>>,
    _kept: Option<Kept>,
    is_decided: bool,
}

impl Gathered<'_> {
    /// An inode that was asked for.
    ///
    /// # Errors
    /// `ENOENT` if there is none.
    pub fn inode(&self, fid: &Fid) -> StatusResult<Arc<InodeRecord>> {
        self.records.get(fid).cloned().flatten().ok_or(Status::ENOENT)
    }

    /// The same for a directory or shard that a name is, or would be, stored with.
    ///
    /// # Errors
    /// As [`Gathered::inode`]; `ENOTDIR`; `WRONG_SHARD` if it is with another one.
    pub fn home(&self, fid: &Fid, name: &[u8]) -> StatusResult<Arc<InodeRecord>> {
        // One that is not there may be a shard that was given up.
        let record = self.inode(fid).map_err(|_| Status::WRONG_SHARD)?;
        if !record.attr.is_dir() {
            return Err(Status::ENOTDIR);
        }
        self.mds.check_home(&record, name)?;
        Ok(record)
    }

    /// True if it was asked for, whether it is there or not.
    pub fn has(&self, fid: &Fid) -> bool {
        self.records.contains_key(fid)
    }

    /// The operation, which is not decided.
    pub fn op(&self) -> OpId {
        self.op
    }

    /// What a name that was asked for stands for.
    pub fn name(&self, parent: &Fid, name: &[u8]) -> Option<DirentRecord> {
        self.names.get(&(*parent, name.to_vec())).copied().flatten()
    }
}

impl Drop for Gathered<'_> {
    fn drop(&mut self) {
        if !self.is_decided {
            for &mdt in &self.remote {
                self.mds.operations.call_off(mdt, self.op);
            }
        }
        self.mds.operations.decided(&self.op);
    }
}

/// On whose behalf an operation happens, and when.
struct Decided<'a> {
    client: nacre_types::ClientUuid,
    /// Its locks are not called back.
    export: Option<&'a Export>,
    now: Timestamp,
    /// The part of the coordinator is made durable first.
    is_durable: bool,
}

/// See [`Mds::still_tree`].
pub(crate) struct StillTree<'a> {
    mds: &'a Mds,
    op: Option<OpId>,
    _own: MutexGuard<'a, ()>,
}

impl Drop for StillTree<'_> {
    fn drop(&mut self) {
        let Some(op) = self.op else { return };
        self.mds.operations.decided(&op);
        if self.mds.index == 0 {
            self.mds.unlock_tree(&op);
        } else if let Err(status) = self.mds.operations.ask(0, PeerRequest::UnlockTree { op }) {
            log::warn!("MDT0000 was not told that no directory moves any more: {status}");
        }
    }
}

impl Mds {
    /// Locks inodes as a whole, and names in directories that stay what they are otherwise, on any MDT, in the order of MDTs; and reads
    /// them, the directories too.
    ///
    /// # Errors
    /// What another MDT answers; `ENODEV` if there is none with the index of a FID; `EINTR`, `ESHUTDOWN`.
    pub(crate) fn gather(&self, fids: &[Fid], names: &[(Fid, &[u8])]) -> StatusResult<Gathered<'_>> {
        let operations = &self.operations;
        let op = operations.begin();
        let mut gathered = Gathered {
            mds: self,
            op,
            remote: BTreeSet::new(),
            records: HashMap::new(),
            names: HashMap::new(),
            _kept: None,
            is_decided: false,
        };
        let parents = names.iter().map(|(parent, _)| parent);
        let mdts: BTreeSet<u16> = fids.iter().chain(parents).map(Fid::mdt_index).collect();
        for mdt in mdts {
            let mut fids: Vec<Fid> = fids.iter().copied().filter(|fid| fid.mdt_index() == mdt).collect();
            fids.sort_unstable();
            fids.dedup();
            let names = names.iter().filter(|(parent, _)| parent.mdt_index() == mdt);
            if mdt == self.index {
                if fids.len() > INODES_MAX {
                    log::error!("an operation wants {} inodes: a list of shards is damaged", fids.len());
                    return Err(Status::EUCLEAN);
                }
                let wants = wants_of(&fids, names.clone().copied());
                gathered._kept = Some(self.locks.keep(&wants, Reach::Several, &unless_interrupted)?);
                for want in wants {
                    gathered.records.insert(*want.fid(), self.find_inode(want.fid())?);
                }
                for (parent, name) in names {
                    let found = self.find_name(parent, self.hash(name), name)?;
                    gathered.names.insert((*parent, name.to_vec()), found);
                }
                continue;
            }
            let names: Vec<Name> =
                names.map(|(parent, name)| Name { parent: *parent, name: name.to_vec() }).collect();
            // Whatever comes of it, it may have been locked there.
            gathered.remote.insert(mdt);
            let request = PeerRequest::Prepare { op, fids, names: names.clone() };
            let PeerReply::Prepared { found, names: leads, clock } = operations.ask(mdt, request)? else {
                return Err(Status::EPROTO);
            };
            operations.see(clock);
            for Found { fid, record } in found {
                let record = record.map(|bytes| InodeRecord::decode(fid, &bytes.0)).transpose();
                gathered.records.insert(fid, record.map_err(|_| Status::EPROTO)?.map(Arc::new));
            }
            for (name, lead) in names.into_iter().zip(leads) {
                let lead = lead.map(|(fid, kind)| DirentRecord { fid, kind });
                gathered.names.insert((name.parent, name.name), lead);
            }
        }
        Ok(gathered)
    }

    /// Does what was decided on what was gathered: from the commit here on it happens, on all MDTs.
    ///
    /// # Errors
    /// If it does not happen.
    pub(crate) fn execute(
        &self,
        caller: &Caller<'_>,
        gathered: Gathered<'_>,
        mut updates: Vec<Update>,
        (now, reply): (Timestamp, MdsReply),
    ) -> StatusResult<MdsAnswer> {
        let answer = MdsAnswer::from(reply);
        updates.extend(caller.call.reply_slot.map(|slot| Update::KeepAnswer {
            client: slot.client,
            tag: slot.tag,
            xid: slot.xid,
            answer: RecordBytes(answer.to_bytes()),
        }));
        self.hold.pass(Moment::Locked, caller.request);
        let (client, export) = (caller.client, Some(caller.export));
        let decided = Decided { client, export, now, is_durable: false };
        let transno = self.decide(gathered, updates, decided)?;
        Ok(MdsAnswer { transno, last_committed: self.committed(), ..answer })
    }

    /// The same on the server's own account. The part here is durable before anybody else does his, or sees it.
    ///
    /// # Errors
    /// As [`Mds::execute`].
    pub(crate) fn execute_own(&self, gathered: Gathered<'_>, updates: Vec<Update>) -> StatusResult<()> {
        let client = nacre_types::ClientUuid([0; 16]);
        let decided = Decided { client, export: None, now: self.now(), is_durable: true };
        self.decide(gathered, updates, decided).map(drop)
    }

    fn decide(
        &self,
        mut gathered: Gathered<'_>,
        updates: Vec<Update>,
        decided: Decided<'_>,
    ) -> StatusResult<TransNo> {
        let id = gathered.op;
        let parts = parts_of(updates, &gathered.remote, self.index);
        let stamp = self.operations.tick();
        let Decided { client, export, now, is_durable } = decided;
        let operation = Arc::new(Operation { id, stamp, client, now, parts });
        let part = operation.part(self.index);
        // May take long; who wants everything durable waits for what is noted.
        part.map_or(Ok(()), |part| self.call_back_for(part, now, export, false))?;
        // Directories change by other operations too, until here.
        let latched =
            self.locks.latch_all(part.iter().flat_map(|part| part.updates.iter().filter_map(inode_of)));
        let mut tx = self.begin();
        part.map_or(Ok(()), |part| self.stage(&mut tx, part, now))?;
        if !self.operations.has(Bug::ForgetsWhatItDecides) {
            tx.batch().put(OPERATIONS, op_key(&id).as_slice(), &encode_record(&*operation));
        }
        // Before it is committed, so that nobody takes it for durable in between.
        let transno = TransNo(self.store.last_transno().0 + 1);
        self.operations.note_open(&operation, transno);
        let transno = self.commit_called_back(&mut tx).inspect_err(|_| self.operations.retract(&id))?;
        gathered.is_decided = true;
        // A request that sees here what has happened comes after the latches: by then other MDTs that ask get the decision.
        self.operations.decided(&id);
        drop(latched);
        self.operations.note_open(&operation, transno);
        if is_durable {
            self.sync_store(transno)?;
        }
        for mdt in gathered.remote.iter().copied() {
            if let Err(status) = self.apply_at(mdt, &operation) {
                log::warn!("MDT{mdt:04x} has not committed its part of {id} yet: {status}");
            }
        }
        Ok(transno)
    }

    /// Has clients give up what they keep of what a part changes. They get nothing of it anew: it is locked.
    ///
    /// # Errors
    /// As for [`Mds::call_back`].
    pub(super) fn call_back_for(
        &self,
        part: &Part,
        now: Timestamp,
        export: Option<&Export>,
        is_replay: bool,
    ) -> StatusResult<()> {
        if is_replay || !self.mdlocks.has_locks() {
            return Ok(());
        }
        let mut tx = self.begin();
        self.stage(&mut tx, part, now)?;
        self.call_back(&tx, export)
    }

    /// Has another MDT commit its part.
    ///
    /// # Errors
    /// If that is not known to have happened.
    pub(super) fn apply_at(&self, mdt: u16, operation: &Arc<Operation>) -> StatusResult<()> {
        let request = PeerRequest::Apply { operation: Operation::clone(operation) };
        match self.operations.ask(mdt, request)? {
            PeerReply::Done => {
                self.operations.note_applied(&operation.id, mdt);
                Ok(())
            }
            _ => Err(Status::EPROTO),
        }
    }

    /// Keeps directories from getting other parents, on all MDTs, until the guard is dropped.
    ///
    /// # Errors
    /// What MDT 0 answers.
    pub(crate) fn still_tree(&self) -> StatusResult<StillTree<'_>> {
        let own = self.move_directory_alone()?;
        // MDT 0 has the lock also while it is alone: others may join and ask for it meanwhile.
        if self.index != 0 && !self.operations.has_peers() {
            return Ok(StillTree { mds: self, op: None, _own: own });
        }
        // MDT 0 may ask whether it is still needed.
        let op = self.operations.begin();
        let still = StillTree { mds: self, op: Some(op), _own: own };
        match self.index {
            0 => drop(self.lock_tree(op)?),
            _ => drop(self.operations.ask(0, PeerRequest::LockTree { op })?),
        }
        Ok(still)
    }

    /// Waits until no other directory gets another parent by this MDT: one may be waiting for others.
    fn move_directory_alone(&self) -> StatusResult<MutexGuard<'_, ()>> {
        loop {
            if let Some(own) = self.move_directory.try_lock() {
                return Ok(own);
            }
            unless_interrupted()?;
            if self.stopping.load(Ordering::Acquire) {
                return Err(Status::ESHUTDOWN);
            }
            if let Some(own) = nacre_env::blocking(|| self.move_directory.try_lock_for(POLL)) {
                return Ok(own);
            }
        }
    }

    /// The directory above another one, wherever it lies.
    ///
    /// # Errors
    /// As [`Mds::directory`]; what another MDT answers.
    pub(crate) fn parent_of(&self, fid: &Fid) -> StatusResult<Fid> {
        if fid.mdt_index() == self.index {
            return Ok(self.directory(fid)?.parent);
        }
        self.inode_elsewhere(fid)?.map(|record| record.parent).ok_or(Status::ENOENT)
    }

    /// An inode of another MDT as it is now; `None` if there is none.
    ///
    /// # Errors
    /// What that MDT answers; `EPROTO`.
    pub(crate) fn inode_elsewhere(&self, fid: &Fid) -> StatusResult<Option<InodeRecord>> {
        match self.operations.ask(fid.mdt_index(), PeerRequest::Record { fid: *fid })? {
            PeerReply::Record(Found { record, .. }) => {
                let record = record.map(|bytes| InodeRecord::decode(*fid, &bytes.0)).transpose();
                record.map_err(|_| Status::EPROTO)
            }
            _ => Err(Status::EPROTO),
        }
    }
}

/// The inode that an update changes, or whose names; `None` if it is none.
pub(super) fn inode_of(update: &Update) -> Option<&Fid> {
    Some(match update {
        Update::PutName { at, .. } | Update::DeleteName { at } | Update::Relead { at, .. } => &at.parent,
        Update::Directory { fid, .. }
        | Update::NewInode { fid, .. }
        | Update::AddName { fid, .. }
        | Update::MoveName { fid, .. }
        | Update::DropName { fid, .. }
        | Update::DropShard { fid }
        | Update::Mirror { fid, .. }
        | Update::SetShards { fid, .. }
        | Update::NamesOut { fid, .. }
        | Update::NamesIn { fid, .. }
        | Update::InodeIn { fid, .. }
        | Update::InodeOut { fid }
        | Update::NewParent { fid, .. }
        | Update::Replaced { fid, .. } => fid,
        Update::KeepAnswer { .. } => return None,
    })
}

/// Sorts updates by MDT. Those that have locked something get a part in any case, which ends that.
fn parts_of(updates: Vec<Update>, remote: &BTreeSet<u16>, own: u16) -> Vec<Part> {
    let mut parts: BTreeMap<u16, Vec<Update>> = remote.iter().map(|&mdt| (mdt, Vec::new())).collect();
    parts.entry(own).or_default();
    for update in updates {
        // What is no inode's is the coordinator's.
        let mdt = inode_of(&update).map_or(own, Fid::mdt_index);
        parts.entry(mdt).or_default().push(update);
    }
    parts.into_iter().map(|(mdt, updates)| Part { mdt, updates }).collect()
}

impl super::Operations {
    /// Tells another MDT that an operation does not happen. It asks by itself, if that is not heard.
    fn call_off(&self, mdt: u16, op: OpId) {
        let request = PeerRequest::Abort { op };
        if nacre_env::interrupted() {
            // Nobody waits for the answer: the program is to go on.
            if let Some(peer) = self.peer(mdt) {
                peer.post(&Cred::system(), &MdsRequest::Peer(request));
            }
        } else if let Err(status) = self.ask(mdt, request) {
            log::debug!("MDT{mdt:04x} was not told that {op} does not happen: {status}");
        }
    }

    /// An operation with this stamp was done elsewhere.
    pub(super) fn see(&self, stamp: u64) {
        let mut state = self.state.lock();
        state.clock = state.clock.max(stamp);
    }

    /// A stamp larger than all seen.
    fn tick(&self) -> u64 {
        let mut state = self.state.lock();
        state.clock += 1;
        state.clock
    }

    /// An operation is committed here, or about to be.
    pub(super) fn note_open(&self, operation: &Arc<Operation>, transno: TransNo) {
        self.change(|state| state.open(operation, transno));
    }

    fn note_applied(&self, op: &OpId, mdt: u16) {
        if let Some(open) = self.state.lock().open.get_mut(op) {
            open.applied.insert(mdt);
        }
    }

    /// An operation happens or does not: who waits for that goes on.
    pub(super) fn decided(&self, op: &OpId) {
        self.state.lock().undecided.remove(op);
        self.changed.notify_all();
    }

    /// The commit of an operation failed.
    pub(super) fn retract(&self, op: &OpId) {
        self.change(|state| state.close(op));
    }

    /// Notes an operation as [`Mds::execute`] does before the commit, which may wait for long.
    #[cfg(test)]
    pub fn be_about_to_commit(&self, parts: Vec<Part>) -> Operation {
        let (id, stamp) = (self.begin(), self.tick());
        let operation = Operation {
            id,
            stamp,
            client: nacre_types::ClientUuid([7; 16]),
            now: Timestamp::default(),
            parts,
        };
        self.note_open(&Arc::new(operation.clone()), TransNo(0));
        operation
    }

    /// The commit of such an operation fails.
    #[cfg(test)]
    pub fn let_fail(&self, op: &OpId) {
        self.retract(op);
        self.decided(op);
    }
}
