//! Commits: what a request changes, its answer, and what memory and clients hear of it.

use crate::leaves::Leaves;
use crate::mdlocks::ClientLocks;
use crate::tables::{REPLIES, reply_key};
use crate::turn::Caller;
use crate::tx::Tx;
use nacre_ondisk::{OpenedRecord, ReplyRecord};
use nacre_rpc::{Export, Moment, ReplySlot};
use nacre_types::{StatusResult, TransNo};
use nacre_wire::mds::{MdsAnswer, MdsReply};
use nacre_wire::{Decode, Encode};
use std::sync::Arc;

/// See the [module documentation](self).
pub(crate) struct Commits {
    leaves: Arc<Leaves>,
    client_locks: Arc<ClientLocks>,
    /// Newest transno when this run began: everything in stored replies is at most this.
    boot_transno: TransNo,
}

impl Commits {
    pub fn new(leaves: &Arc<Leaves>, boot_transno: TransNo, client_locks: &Arc<ClientLocks>) -> Commits {
        Commits { leaves: leaves.clone(), client_locks: client_locks.clone(), boot_transno }
    }

    /// An answer of a request that changed nothing.
    pub fn answer(&self, reply: MdsReply) -> MdsAnswer {
        MdsAnswer { last_committed: self.committed(), ..reply.into() }
    }

    /// Commits a transaction together with the answer to the request, and lets memory know.
    pub fn finish(&self, caller: &Caller<'_>, mut tx: Tx, reply: MdsReply) -> StatusResult<MdsAnswer> {
        let mut answer = MdsAnswer::from(reply);
        let may_stop = caller.turn.may_stop() && !tx.is_empty();
        if may_stop
            && (self.leaves.hold.is_wanted(Moment::Locked, caller.request)
                || !self.client_locks.call_back_at_once(&tx, caller.export)?)
        {
            return Err(caller.turn.stop(tx));
        }
        // A request that changed nothing may run again.
        if let Some(slot) = caller.call.reply_slot.as_ref().filter(|_| !tx.is_empty()) {
            let bytes = answer.to_bytes();
            let opened = tx.opened;
            let (scratch, batch) = tx.scratch();
            ReplyRecord { xid: slot.xid, opened, answer: &bytes }.encode(scratch);
            batch.put(REPLIES, reply_key(&slot.client, slot.tag).as_slice(), scratch);
        }
        answer.transno = match may_stop {
            true => self.commit_called_back(&mut tx)?,
            false => self.commit_as(Some(caller.export), &mut tx)?,
        };
        answer.last_committed = self.committed();
        Ok(answer)
    }

    /// Commits a transaction on the server's own account and lets memory know.
    pub fn commit(&self, tx: &mut Tx) -> StatusResult<TransNo> {
        self.commit_as(None, tx)
    }

    /// Up to here everything is durable, also what other MDTs have of it.
    pub fn committed(&self) -> TransNo {
        self.leaves.operations.committed(self.leaves.store.last_committed())
    }

    /// Commits a transaction for a client, whose own locks are not called back.
    pub fn commit_as(&self, export: Option<&Export>, tx: &mut Tx) -> StatusResult<TransNo> {
        if tx.is_empty() {
            return Ok(TransNo(0));
        }
        self.client_locks.call_back(tx, export)?;
        self.commit_called_back(tx)
    }

    /// Commits a transaction when clients have given up what they keep of what it changes ([`ClientLocks::call_back`]).
    pub fn commit_called_back(&self, tx: &mut Tx) -> StatusResult<TransNo> {
        let transno =
            self.leaves.store.commit(tx.batch()).map_err(|error| self.leaves.records.store_failed(&error))?;
        self.leaves.space.count_inodes(tx.inode_change());
        if tx.moves_names {
            self.leaves.moving.note_change();
        }
        for (fid, record) in tx.take_cached() {
            debug_assert!(
                record.as_ref().is_none_or(|record| record.attr.version <= transno.0),
                "{fid} has a version that no transaction has yet"
            );
            if let Some(record) = record.as_ref().filter(|record| record.attr.is_dir()) {
                self.leaves.moving.note_size(record);
            }
            self.leaves.records.note_committed(&fid, record);
        }
        if tx.moves_directory {
            // After the records in memory are what they are: what was found out before does not count any more.
            self.leaves.records.note_tree_moved();
        }
        for object in tx.take_destroyed_here() {
            // Somebody may have made it anew between the look and the commit; from now on nobody does.
            if let Err(error) = self.leaves.data.destroy_left(object) {
                log::error!(
                    "MDT{:04x}: object {object} of a file that is gone stays: {error}",
                    self.leaves.index
                );
            }
        }
        for (ost_index, object) in tx.take_destroyed() {
            self.leaves.osts.destroy_later(ost_index, transno, object);
        }
        Ok(transno)
    }

    /// The stored answer of an earlier life, and what its request opened.
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
