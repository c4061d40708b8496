//! The coordinator of distributed transactions, on the MDT that the client asked.

use super::participate::{Holders, Participant, inode_of};
use super::state::{soon, wants_of};
use crate::changelog::events;
use crate::commit::Commits;
use crate::leaves::Leaves;
use crate::locks::{LongLock, Reach, unless_interrupted};
use crate::replay;
use crate::suspend::Caller;
use crate::tx::now;
use nacre_env::fault::{self, Point};
use nacre_ondisk::{DirentRecord, InodeRecord};
use nacre_rpc::{Export, Moment};
use nacre_types::{Fid, Status, StatusResult, Timestamp, TransNo};
use nacre_wire::Encode;
use nacre_wire::mds::{MdsAnswer, MdsReply};
use nacre_wire::peer::{
    Found, INODES_MAX, Name, Part, PeerReply, PeerRequest, RecordBytes, Transaction, TransactionId, Update,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Inodes and names of a transaction, locked on their MDTs. If this is dropped without
/// [`Coordinator::execute`], the transaction aborts.
pub(crate) struct Gathered<'a> {
    coordinator: &'a Coordinator,
    op: TransactionId,
    /// Other MDTs that have locked inodes or names.
    remote: BTreeSet<u16>,
    records: HashMap<Fid, Option<Arc<InodeRecord>>>,
    names: HashMap<(Fid, Vec<u8>), Option<DirentRecord>>,
    _kept: Option<LongLock>,
    is_decided: bool,
}

impl Gathered<'_> {
    /// Returns an inode that was gathered.
    ///
    /// # Errors
    /// `ENOENT` if it does not exist.
    pub fn inode(&self, fid: &Fid) -> StatusResult<Arc<InodeRecord>> {
        self.records.get(fid).cloned().flatten().ok_or(Status::ENOENT)
    }

    /// Returns the directory or shard in which a name is, or would be, stored.
    ///
    /// # Errors
    /// As [`Gathered::inode`]; `ENOTDIR`; `WRONG_SHARD` if the name belongs to another one.
    pub fn home(&self, fid: &Fid, name: &[u8]) -> StatusResult<Arc<InodeRecord>> {
        // An inode that does not exist may be a removed shard.
        let record = self.inode(fid).map_err(|_| Status::WRONG_SHARD)?;
        if !record.attr.is_dir() {
            return Err(Status::ENOTDIR);
        }
        self.coordinator.leaves.records.check_home(&record, name)?;
        Ok(record)
    }

    /// Returns true if the inode was gathered, whether it exists or not.
    pub fn has(&self, fid: &Fid) -> bool {
        self.records.contains_key(fid)
    }

    /// Returns the id of the transaction, which is undecided.
    pub fn op(&self) -> TransactionId {
        self.op
    }

    /// Returns the entry of a gathered name.
    pub fn name(&self, parent: &Fid, name: &[u8]) -> Option<DirentRecord> {
        self.names.get(&(*parent, name.to_vec())).copied().flatten()
    }
}

impl Drop for Gathered<'_> {
    fn drop(&mut self) {
        if !self.is_decided {
            for &mdt in &self.remote {
                self.coordinator.leaves.transactions.call_off(mdt, self.op);
            }
        }
        self.coordinator.leaves.transactions.decided(&self.op);
    }
}

/// Origin and time of a transaction.
struct Decided<'a> {
    client: nacre_types::ClientUuid,
    /// Client whose own locks are not revoked.
    export: Option<&'a Export>,
    now: Timestamp,
    /// True if the coordinator's part is made durable first.
    is_durable: bool,
}

/// See the [module documentation](self).
pub(crate) struct Coordinator {
    pub(super) leaves: Arc<Leaves>,
    commits: Arc<Commits>,
    participant: Arc<Participant>,
}

impl Coordinator {
    pub fn new(leaves: &Arc<Leaves>, commits: &Arc<Commits>, participant: &Arc<Participant>) -> Coordinator {
        Coordinator { leaves: leaves.clone(), commits: commits.clone(), participant: participant.clone() }
    }

    /// Locks inodes as a whole, and names in directories that do not change otherwise, on any MDT, in the
    /// order of MDTs; and reads them, including the directories.
    ///
    /// # Errors
    /// Those of other MDTs; `ENODEV` if no MDT has the index of a FID; `EINTR`, `ESHUTDOWN`.
    pub fn gather(&self, fids: &[Fid], names: &[(Fid, &[u8])]) -> StatusResult<Gathered<'_>> {
        self.gather_from(fids, names, &|mdt, request| self.leaves.transactions.ask(mdt, request))
    }

    /// As [`Coordinator::gather`], for inodes that could be on other MDTs as well.
    ///
    /// # Errors
    /// As [`Coordinator::gather`]; `ETIMEDOUT` if an MDT does not answer soon.
    pub fn gather_soon(&self, fids: &[Fid], names: &[(Fid, &[u8])]) -> StatusResult<Gathered<'_>> {
        self.gather_from(fids, names, &|mdt, request| soon(|| self.leaves.transactions.ask(mdt, request)))
    }

    fn gather_from(
        &self,
        fids: &[Fid],
        names: &[(Fid, &[u8])],
        ask: &dyn Fn(u16, PeerRequest) -> StatusResult<PeerReply>,
    ) -> StatusResult<Gathered<'_>> {
        let transactions = &self.leaves.transactions;
        let op = transactions.begin();
        let mut gathered = Gathered {
            coordinator: self,
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
            if mdt == self.leaves.index {
                if fids.len() > INODES_MAX {
                    log::error!("a transaction wants {} inodes: a list of shards is damaged", fids.len());
                    return Err(Status::EUCLEAN);
                }
                let wants = wants_of(&fids, names.clone().copied());
                gathered._kept = Some(self.leaves.locks.keep(&wants, Reach::Several, &unless_interrupted)?);
                self.leaves.records.sync_what_is_needed(&fids, names.clone().map(|(parent, _)| parent))?;
                for want in wants {
                    gathered.records.insert(*want.fid(), self.leaves.records.find_inode(want.fid())?);
                }
                for (parent, name) in names {
                    let found =
                        self.leaves.records.find_name(parent, self.leaves.records.hash(name), name)?;
                    gathered.names.insert((*parent, name.to_vec()), found);
                }
                continue;
            }
            let names: Vec<Name> =
                names.map(|(parent, name)| Name { parent: *parent, name: name.to_vec() }).collect();
            let request =
                PeerRequest::Prepare { op, fids, names: names.clone(), replays: replay::is_running() };
            // Without an answer that MDT may have locked them, and may not receive the abort either.
            let answer = ask(mdt, request).inspect_err(|_| transactions.post_abort(mdt, op))?;
            gathered.remote.insert(mdt);
            let PeerReply::Prepared { found, names: leads, clock } = answer else {
                return Err(Status::EPROTO);
            };
            transactions.see(clock);
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

    /// Executes the updates on what was gathered: the commit here decides the transaction for all MDTs.
    ///
    /// # Errors
    /// If the transaction aborts.
    pub fn execute(
        &self,
        caller: &Caller<'_>,
        gathered: Gathered<'_>,
        mut updates: Vec<Update>,
        now: Timestamp,
        reply: MdsReply,
    ) -> StatusResult<MdsAnswer> {
        replay::check_reply(&reply)?;
        let answer = MdsAnswer::from(reply);
        let wanted = self.leaves.changelog.wanted();
        if !wanted.is_empty() {
            let record = events::of_request(caller.request, wanted);
            updates.extend(record.and_then(|record| self.leaves.changelog.update(Some(caller), &record)));
        }
        updates.extend(caller.call.reply_slot.map(|slot| Update::KeepAnswer {
            client: slot.client,
            tag: slot.tag,
            xid: slot.xid,
            answer: RecordBytes(answer.to_bytes()),
        }));
        self.leaves.hold.pass(Moment::Locked, caller.request);
        let (client, export) = (caller.client, Some(caller.export));
        let decided = Decided { client, export, now, is_durable: false };
        let transno = self.decide(gathered, updates, decided)?;
        Ok(MdsAnswer { transno, last_committed: self.commits.committed(), ..answer })
    }

    /// Executes updates of the server itself. The part here is durable before any participant commits its
    /// part, or a reader sees it.
    ///
    /// # Errors
    /// As [`Coordinator::execute`].
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
        let parts = parts_of(updates, &gathered.remote, self.leaves.index);
        let stamp = self.leaves.transactions.tick();
        let Decided { client, export, now, is_durable } = decided;
        let transaction = Arc::new(Transaction { id, stamp, client, now, parts });
        let transactions = &self.leaves.transactions;
        let transno =
            self.participant.commit_part(&transaction, TransNo(0), Holders::AllBut(export), || {
                gathered.is_decided = true;
                // When other MDTs see this and ask, they get the decision.
                transactions.decided(&id);
            })?;
        fault::crash(Point::MdsDecided);
        if is_durable {
            self.leaves.records.sync(transno)?;
        }
        for mdt in gathered.remote.iter().copied() {
            // The transaction is decided: an MDT that is away commits its part when it is back.
            if let Err(status) = soon(|| self.apply_at(mdt, &transaction)) {
                log::warn!("MDT{mdt:04x} has not committed its part of {id} yet: {status}");
            }
        }
        Ok(transno)
    }

    /// Asks a participant to commit its part.
    ///
    /// # Errors
    /// If the participant has not acknowledged that.
    pub(super) fn apply_at(&self, mdt: u16, transaction: &Arc<Transaction>) -> StatusResult<()> {
        let transno = self.leaves.transactions.place_of(&transaction.id);
        let request = PeerRequest::Apply { transaction: Transaction::clone(transaction), transno };
        match self.leaves.transactions.ask(mdt, request)? {
            PeerReply::Applied { transno } => {
                self.leaves.transactions.note_applied(&transaction.id, mdt, transno);
                Ok(())
            }
            _ => Err(Status::EPROTO),
        }
    }
}

/// Sorts updates by MDT. MDTs that have locked something get a part in any case, which releases the locks.
fn parts_of(updates: Vec<Update>, remote: &BTreeSet<u16>, own: u16) -> Vec<Part> {
    let mut parts: BTreeMap<u16, Vec<Update>> = remote.iter().map(|&mdt| (mdt, Vec::new())).collect();
    parts.entry(own).or_default();
    for update in updates {
        // Updates that belong to no inode are for the coordinator.
        let mdt = inode_of(&update).map_or(own, Fid::mdt_index);
        debug_assert!(mdt == own || remote.contains(&mdt), "MDT{mdt:04x} has locked nothing of {update:?}");
        parts.entry(mdt).or_default().push(update);
    }
    parts.into_iter().map(|(mdt, updates)| Part { mdt, updates }).collect()
}
