//! Commits: a request's transaction, its answer, the update of records in memory, and the callbacks to
//! clients.

use crate::changelog::events;
use crate::leaves::Leaves;
use crate::mdlocks::ClientLocks;
use crate::replay;
use crate::suspend::Caller;
use crate::tables::{REPLIES, reply_key};
use crate::tx::Tx;
use nacre_env::clock::Instant;
use nacre_env::fault::{self, Point};
use nacre_layout::user;
use nacre_ondisk::{OpenedRecord, ReplyRecord};
use nacre_rpc::{Export, Moment, ReplySlot};
use nacre_types::{AttrFlags, Fid, Owners, Status, StatusResult, TransNo};
use nacre_wire::mds::{MdsAnswer, MdsReply};
use nacre_wire::peer::PeerRequest;
use nacre_wire::{Decode, Encode};
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for the quota master, for a file that gets another owner.
const MASTER_WAIT: Duration = Duration::from_secs(1);

/// See the [module documentation](self).
pub(crate) struct Commits {
    leaves: Arc<Leaves>,
    client_locks: Arc<ClientLocks>,
    /// Newest transno at the start of this run; transnos in stored replies are at most this.
    boot_transno: TransNo,
}

impl Commits {
    pub fn new(leaves: &Arc<Leaves>, boot_transno: TransNo, client_locks: &Arc<ClientLocks>) -> Commits {
        Commits { leaves: leaves.clone(), client_locks: client_locks.clone(), boot_transno }
    }

    /// Builds the answer of a request that changed nothing.
    pub fn answer(&self, reply: MdsReply) -> MdsAnswer {
        MdsAnswer { last_committed: self.committed(), ..reply.into() }
    }

    /// Commits a transaction together with the answer to the request, and updates the records in memory.
    pub fn finish(&self, caller: &Caller<'_>, mut tx: Tx, reply: MdsReply) -> StatusResult<MdsAnswer> {
        replay::check_reply(&reply)?;
        let is_replay = replay::is_running();
        let mut answer = MdsAnswer::from(reply);
        let wanted = self.leaves.changelog.wanted();
        if !wanted.is_empty()
            && !tx.is_empty()
            && let Some(record) = events::of_request(caller.request, wanted)
        {
            self.leaves.changelog.note(caller, &mut tx, &record);
        }
        if is_replay {
            replay::mark(tx.batch());
        } else {
            self.leaves.quotas.admit(caller, &tx, &self.leaves.records)?;
            self.admit_space(caller, &tx)?;
        }
        let may_stop = caller.suspended.may_stop() && !tx.is_empty();
        if may_stop
            && (self.leaves.hold.is_wanted(Moment::Locked, caller.request)
                || !self.client_locks.call_back_at_once(&tx, caller.export)?)
        {
            return Err(caller.suspended.stop(tx));
        }
        // A request that changed nothing may run again, so its answer needs no reply slot.
        if let Some(slot) = caller.call.reply_slot.as_ref().filter(|_| !tx.is_empty()) {
            let bytes = answer.to_bytes();
            let opened = tx.opened;
            let (scratch, batch) = tx.scratch();
            ReplyRecord { xid: slot.xid, opened, answer: &bytes }.encode(scratch);
            batch.put(REPLIES, reply_key(&slot.client, slot.tag).as_slice(), scratch);
        }
        if !tx.is_empty() {
            fault::fail(Point::MdsEnospc, Status::ENOSPC)?;
        }
        answer.transno = match may_stop {
            true => self.commit_called_back(&mut tx)?,
            false => self.commit_as(Some(caller.export), &mut tx)?,
        };
        answer.last_committed = self.committed();
        Ok(answer)
    }

    /// Admits the space of files that get other owners, by the limits of the whole file system. A quota master that does
    /// not answer admits.
    ///
    /// # Errors
    /// `EDQUOT`; those of the store.
    fn admit_space(&self, caller: &Caller<'_>, tx: &Tx) -> StatusResult<()> {
        let quotas = &self.leaves.quotas;
        for (id, bytes) in quotas.gains(caller, tx, &self.leaves.records)? {
            let ask = || self.leaves.transactions.ask(0, PeerRequest::AdmitSpace { id, bytes }).map(drop);
            let admitted = match quotas.ledger() {
                Some(_) => quotas.admit_space_here(id, bytes),
                None => nacre_env::until(Instant::now() + MASTER_WAIT, ask),
            };
            match admitted {
                Err(Status::EDQUOT) => return Err(Status::EDQUOT),
                Err(_) if nacre_env::interrupted() => return Err(Status::EINTR),
                Err(status) => log::debug!("space of a file for {id} is admitted without MDT0000: {status}"),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Commits a transaction of the server itself and updates the records in memory.
    pub fn commit(&self, tx: &mut Tx) -> StatusResult<TransNo> {
        self.commit_as(None, tx)
    }

    /// Returns the transno up to which everything is durable, on this MDT and on all participants of its
    /// transactions.
    pub fn committed(&self) -> TransNo {
        self.leaves.transactions.committed(self.leaves.store.last_committed())
    }

    /// Commits a transaction for a client, whose own locks are not revoked.
    pub fn commit_as(&self, export: Option<&Export>, tx: &mut Tx) -> StatusResult<TransNo> {
        if tx.is_empty() {
            return Ok(TransNo(0));
        }
        self.client_locks.call_back(tx, export)?;
        self.commit_called_back(tx)
    }

    /// Commits a transaction after clients have released their locks on what it changes
    /// ([`ClientLocks::call_back`]).
    pub fn commit_called_back(&self, tx: &mut Tx) -> StatusResult<TransNo> {
        fault::delay(Point::MdsCommitDelay);
        fault::fail(Point::MdsBeforeCommit, Status::EIO)?;
        fault::crash(Point::MdsBeforeCommitCrash);
        let transno = self.commit_counted(tx)?;
        fault::crash(Point::MdsAfterCommitCrash);
        Ok(transno)
    }

    fn commit_counted(&self, tx: &mut Tx) -> StatusResult<TransNo> {
        let counted = self.leaves.counting.begin(tx, &self.leaves.records);
        for (fid, owners) in counted.moved() {
            self.log_owners(tx, &fid, owners)?;
        }
        let assigned = self.leaves.changelog.assign(tx);
        let transno =
            self.leaves.store.commit(tx.batch()).map_err(|error| self.leaves.records.store_failed(&error))?;
        if let Some(assigned) = assigned {
            assigned.committed();
        }
        counted.commit();
        self.leaves.space.count_inodes(tx.inode_change());
        if tx.moves_names {
            self.leaves.moving.note_change();
        }
        let (has_peers, new) = (self.leaves.transactions.has_peers(), tx.take_new());
        for (fid, record) in tx.take_cached() {
            debug_assert!(
                record.as_ref().is_none_or(|record| record.attr.version <= transno.0),
                "{fid} has a version that no transaction has yet"
            );
            if let Some(record) = record.as_ref().filter(|record| record.attr.is_dir()) {
                self.leaves.moving.note_size(record);
            }
            if has_peers && record.is_some() {
                self.leaves.records.note_undurable(&fid, transno, new.contains(&fid));
            }
            self.leaves.records.note_committed(&fid, record);
        }
        if tx.moves_directory {
            // Only after the records in memory are updated: this invalidates results that were found before.
            self.leaves.records.note_tree_moved();
        }
        for object in tx.take_destroyed_here() {
            // A late write may have recreated the object between the check and the commit; after the commit
            // none does.
            if let Err(error) = self.leaves.data.destroy_left(object) {
                log::error!(
                    "MDT{:04x}: object {object} of a removed file remains: {error}",
                    self.leaves.index
                );
            }
        }
        for (ost_index, owned) in tx.take_owned() {
            self.leaves.osts.set_owners_later(ost_index, transno, owned);
        }
        for (ost_index, object) in tx.take_destroyed() {
            self.leaves.osts.destroy_later(ost_index, transno, object);
        }
        Ok(transno)
    }

    /// Logs the objects on OSTs of a file that gets other owners, or other objects.
    pub fn log_owners(&self, tx: &mut Tx, fid: &Fid, owners: Owners) -> StatusResult<()> {
        let Some(record) = tx.stored(fid).filter(|record| record.attr.flags.contains(AttrFlags::HAS_OBJECTS))
        else {
            return Ok(());
        };
        let layout = user::decode_layout(&record.body).map_err(|error| {
            log::error!("layout of {fid}: {error}");
            Status::EUCLEAN
        })?;
        tx.log_owners(*fid, &layout, owners);
        Ok(())
    }

    /// Returns the stored answer of an earlier run, and the handle that its request opened.
    pub fn find_stored_answer(&self, slot: &ReplySlot) -> Option<(MdsAnswer, Option<OpenedRecord>)> {
        let key = reply_key(&slot.client, slot.tag);
        let found = self.leaves.store.get(REPLIES, key.as_slice(), |value| {
            let record = ReplyRecord::decode(value?).ok().filter(|record| record.xid == slot.xid)?;
            Some((MdsAnswer::from_bytes(record.answer).ok()?, record.opened))
        });
        let (mut answer, opened) = found.ok().flatten()?;
        answer.transno = self.boot_transno.max(TransNo(1));
        answer.last_committed = self.committed();
        Some((answer, opened))
    }
}
