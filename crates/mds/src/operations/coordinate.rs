//! The side that is asked by a client.

use super::Distributed;
use super::state::{Bug, encode_record, wants_of};
use crate::locks::{Kept, Reach, unless_interrupted};
use crate::tables::{OPERATIONS, op_key};
use crate::turn::Caller;
use crate::tx::now;
use nacre_env::sync::MutexGuard;
use nacre_ondisk::{DirentRecord, InodeRecord};
use nacre_rpc::{Export, Moment};
use nacre_types::{Fid, Status, StatusResult, Timestamp, TransNo};
use nacre_wire::Encode;
use nacre_wire::mds::{MdsAnswer, MdsReply};
use nacre_wire::peer::{
    Found, INODES_MAX, Name, OpId, Operation, Part, PeerReply, PeerRequest, RecordBytes, Update,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// Time between two looks for an interrupt.
const POLL: Duration = Duration::from_millis(50);

/// Inodes and names of an operation, locked wherever they lie. Dropped without [`Distributed::execute`], the operation does not happen.
pub(crate) struct Gathered<'a> {
    distributed: &'a Distributed,
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
        self.distributed.records.check_home(&record, name)?;
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
                self.distributed.operations.call_off(mdt, self.op);
            }
        }
        self.distributed.operations.decided(&self.op);
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

/// See [`Distributed::still_tree`].
pub(crate) struct StillTree<'a> {
    distributed: &'a Distributed,
    op: Option<OpId>,
    _own: MutexGuard<'a, ()>,
}

impl Drop for StillTree<'_> {
    fn drop(&mut self) {
        let Some(op) = self.op else { return };
        self.distributed.operations.decided(&op);
        if self.distributed.index == 0 {
            self.distributed.unlock_tree(&op);
        } else if let Err(status) = self.distributed.operations.ask(0, PeerRequest::UnlockTree { op }) {
            log::warn!("MDT0000 was not told that no directory moves any more: {status}");
        }
    }
}

impl Distributed {
    /// Locks inodes as a whole, and names in directories that stay what they are otherwise, on any MDT, in the order of MDTs; and reads
    /// them, the directories too.
    ///
    /// # Errors
    /// What another MDT answers; `ENODEV` if there is none with the index of a FID; `EINTR`, `ESHUTDOWN`.
    pub fn gather(&self, fids: &[Fid], names: &[(Fid, &[u8])]) -> StatusResult<Gathered<'_>> {
        let operations = &self.operations;
        let op = operations.begin();
        let mut gathered = Gathered {
            distributed: self,
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
                    gathered.records.insert(*want.fid(), self.records.find_inode(want.fid())?);
                }
                for (parent, name) in names {
                    let found = self.records.find_name(parent, self.records.hash(name), name)?;
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
    pub fn execute(
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
        Ok(MdsAnswer { transno, last_committed: self.commits.committed(), ..answer })
    }

    /// The same on the server's own account. The part here is durable before anybody else does his, or sees it.
    ///
    /// # Errors
    /// As [`Distributed::execute`].
    pub fn execute_own(&self, gathered: Gathered<'_>, updates: Vec<Update>) -> StatusResult<()> {
        let client = nacre_types::ClientUuid([0; 16]);
        let decided = Decided { client, export: None, now: now(), is_durable: true };
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
        let mut tx = self.records.begin();
        part.map_or(Ok(()), |part| self.staging.stage(&mut tx, part, now))?;
        if !self.operations.has(Bug::ForgetsWhatItDecides) {
            tx.batch().put(OPERATIONS, op_key(&id).as_slice(), &encode_record(&*operation));
        }
        // Before it is committed, so that nobody takes it for durable in between.
        let transno = TransNo(self.store.last_transno().0 + 1);
        self.operations.note_open(&operation, transno);
        let transno =
            self.commits.commit_called_back(&mut tx).inspect_err(|_| self.operations.retract(&id))?;
        gathered.is_decided = true;
        // A request that sees here what has happened comes after the latches: by then other MDTs that ask get the decision.
        self.operations.decided(&id);
        drop(latched);
        self.operations.note_open(&operation, transno);
        if is_durable {
            self.records.sync(transno)?;
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
    /// As for [`crate::mdlocks::ClientLocks::call_back`].
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
        let mut tx = self.records.begin();
        self.staging.stage(&mut tx, part, now)?;
        self.client_locks.call_back(&tx, export)
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
    pub fn still_tree(&self) -> StatusResult<StillTree<'_>> {
        let own = self.move_directory_alone()?;
        // MDT 0 has the lock also while it is alone: others may join and ask for it meanwhile.
        if self.index != 0 && !self.operations.has_peers() {
            return Ok(StillTree { distributed: self, op: None, _own: own });
        }
        // MDT 0 may ask whether it is still needed.
        let op = self.operations.begin();
        let still = StillTree { distributed: self, op: Some(op), _own: own };
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
            if self.signal.is_stopping() {
                return Err(Status::ESHUTDOWN);
            }
            if let Some(own) = nacre_env::blocking(|| self.move_directory.try_lock_for(POLL)) {
                return Ok(own);
            }
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
