//! State of distributed transactions: those prepared here, and those committed here but not yet on all
//! participants.

use crate::error::MdsError;
use crate::locks::{LockTable, LongLock, Want};
use crate::replay;
use crate::tables::{FINISHED, PREPARED, TRANSACTIONS, decode_op_key};
use nacre_env::activity::Cause;
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex, RwLock};
use nacre_rpc::MdsEndpoint;
use nacre_store::MetaStore;
use nacre_types::limits::MDT_COUNT_MAX;
use nacre_types::{Cred, Fid, Status, StatusResult, TransNo};
use nacre_wire::mds::{MdsReply, MdsRequest};
use nacre_wire::peer::{Name, PeerReply, PeerRequest, TRANSACTIONS_MAX, Transaction, TransactionId};
use nacre_wire::{Decode, Encode, Reader};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Version of the records of transactions; see `docs/formats/mdt.md`.
const RECORD_VERSION: u8 = 1;
/// Version of the records with the locks of prepared transactions; version 1 had no names.
const PREPARED_VERSION: u8 = 2;
/// Version of the record of a committed transaction.
const TRANSACTION_VERSION: u8 = 2;

/// Time after which a coordinator that has not decided is asked. Estimate: far longer than an undisturbed
/// transaction takes.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);

/// Interval at which the root's defaults for the whole file system are read.
pub(super) const ROOT_AGE: Duration = Duration::from_millis(1000);

/// How long clients wait after a restart for other MDTs to answer which transactions are to be redone.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// Time in which an MDT answers if the operation can do without the answer.
const ANSWER_MAX: Duration = Duration::from_millis(800);
/// Interval of checks during a wait.
pub(super) const TICK: Duration = Duration::from_millis(250);
/// Approximate limit for transactions in one answer to a greeting, in bytes; one always fits.
const GREETING_BYTES: usize = 256 << 10;

/// Returns the cause of waits for a transaction.
pub(super) fn cause_of(op: &TransactionId) -> Cause {
    Cause::Transaction { coordinator: op.mdt, number: op.number }
}

/// A transaction over several MDTs, as this one sees it.
#[derive(Clone, Debug)]
pub struct TransactionReport {
    /// The transaction.
    pub id: TransactionId,
    /// True for a part that another MDT is about to decide; false for one coordinated here.
    pub is_prepared: bool,
    /// Ticket of the entries that it keeps here, 0 for none.
    pub ticket: u64,
    /// Time since it was prepared.
    pub age: Duration,
}

/// Other MDTs, by index.
pub type Peers = BTreeMap<u16, Arc<dyn MdsEndpoint>>;

/// Looks up an unknown MDT, which may have joined, and adds it ([`crate::Mds::set_peers`]). Returns whether
/// the file system has such an MDT; an error if that cannot be determined.
pub type Newcomers = dyn Fn(u16) -> StatusResult<bool> + Send + Sync;

/// A transaction that another MDT is about to decide.
pub(super) struct Prepared {
    /// The entries that it locks here.
    pub(super) kept: LongLock,
    pub(super) since: Instant,
}

/// A transaction whose part here is committed, until all parts are durable.
pub(super) struct Open {
    pub(super) transaction: Arc<Transaction>,
    /// Transno of the part here.
    pub(super) transno: TransNo,
    /// On the coordinator: the participants that have committed their parts, with their transnos there.
    pub(super) applied: BTreeMap<u16, TransNo>,
    /// Transno of the part here, if it was committed in this run; 0 otherwise.
    pub(super) place: TransNo,
    /// On a participant: the transno of the coordinator's part in its store, 0 if unknown.
    pub(super) coordinated: TransNo,
    /// All parts are durable; the record stays until the coordinator reports that no MDT needs it.
    pub(super) is_durable: bool,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) prepared: HashMap<TransactionId, Prepared>,
    /// Aborted transactions, which must stop waiting for their locks.
    pub(super) called_off: HashSet<TransactionId>,
    /// Transactions that a thread is preparing or applying.
    pub(super) under_way: HashSet<TransactionId>,
    /// Tickets of transactions that are about to be applied here.
    pub(super) leaving: HashSet<u64>,
    /// Undecided transactions coordinated here.
    pub(super) undecided: HashSet<TransactionId>,
    /// Committed transactions, changed by [`State::open`], [`State::close`] and [`State::settle`] alone.
    pub(super) open: BTreeMap<TransactionId, Open>,
    /// Those in `open` that are not durable on all participants, in the order of their transnos.
    pub(super) unsettled: BTreeSet<(TransNo, TransactionId)>,
    /// For each coordinator, the first transaction that may not be durable on all participants: no earlier
    /// one is applied again.
    pub(super) finished: BTreeMap<u16, TransactionId>,
    /// Number of the next transaction.
    pub(super) next: u64,
    /// Logical clock: stamp of the last transaction applied here.
    pub(super) clock: u64,
    /// MDTs that have answered which transactions are to be redone.
    pub(super) greeted: BTreeSet<u16>,
    /// Time at which an MDT other than the root's last read the root.
    pub(super) root_seen: Option<Instant>,
    /// True if MDT 0 has sent the seed for the hash of names.
    pub(super) seed_learned: bool,
}

/// See the [module documentation](self).
pub(crate) struct Transactions {
    pub(super) index: u16,
    pub(super) boot: u64,
    /// True if the last run ended with everything durable, so that nothing is to be redone.
    pub(super) has_all: bool,
    pub(super) began: Instant,
    pub(super) peers: RwLock<Peers>,
    /// Lookup for unknown MDTs.
    pub(super) newcomers: OnceLock<Box<Newcomers>>,
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
    /// Length of [`State::unsettled`].
    pub(super) unsettled: AtomicUsize,
    /// Held while finished transactions are recorded, so that the store gets the records in order.
    pub(super) noting: Mutex<()>,
    #[cfg(test)]
    pub(super) bug: Mutex<Option<Bug>>,
}

/// Bugs that tests plant, to verify that they are found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    /// A participant applies a transaction a second time.
    AppliesTwice,
    /// A coordinator commits its part without the record of the transaction.
    ForgetsWhatItDecides,
    /// An MDT does not redo transactions lost in a power loss.
    DoesNothingAgain,
    /// Names move to a directory that replaces theirs, and their inodes are not updated.
    TellsNoInodes,
}

impl State {
    /// Records that a transaction is committed here with a transno, or about to be.
    pub(super) fn open(&mut self, transaction: &Arc<Transaction>, transno: TransNo, coordinated: TransNo) {
        self.close(&transaction.id);
        let open = Open {
            transaction: transaction.clone(),
            transno,
            applied: BTreeMap::new(),
            place: TransNo(0),
            coordinated,
            is_durable: false,
        };
        self.open.insert(transaction.id, open);
        self.unsettled.insert((transno, transaction.id));
    }

    /// Forgets a transaction.
    pub(super) fn close(&mut self, op: &TransactionId) {
        if let Some(open) = self.open.remove(op) {
            self.unsettled.remove(&(open.transno, *op));
        }
    }

    /// Records that all parts of a transaction are durable.
    pub(super) fn settle(&mut self, op: &TransactionId) {
        if let Some(open) = self.open.get_mut(op) {
            open.is_durable = true;
            self.unsettled.remove(&(open.transno, *op));
        }
    }

    /// Returns true if a transaction is durable on all participants, or aborted.
    pub(super) fn is_finished(&self, op: &TransactionId) -> bool {
        self.finished.get(&op.mdt).is_some_and(|below| op < below)
    }

    /// Returns the first transaction coordinated by MDT `index` in start `boot` that may not be durable,
    /// assuming that those in `leaving` are.
    pub(super) fn first_unfinished(
        &self,
        index: u16,
        boot: u64,
        leaving: &BTreeSet<TransactionId>,
    ) -> TransactionId {
        let open = self.open.keys().filter(|op| op.mdt == index && !leaving.contains(op));
        let next = TransactionId { mdt: index, boot, number: self.next };
        open.chain(&self.undecided).min().copied().unwrap_or(next)
    }
}

impl Transactions {
    /// Reads the transactions of an earlier run, and restores the locks of prepared ones. `was_clean`: that
    /// run ended cleanly.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn open(
        store: &MetaStore,
        locks: &Arc<LockTable>,
        index: u16,
        boot: u64,
        was_clean: bool,
    ) -> Result<Transactions, MdsError> {
        let mut state = State { next: 1, ..State::default() };
        store.scan(PREPARED, &[], Bound::Unbounded, &mut |key, value| {
            match (decode_op_key(key), decode_prepared(value)) {
                (Some(op), Some((fids, names))) => {
                    let kept = locks.keep_again(&wants_of(&fids, names.iter().map(named)));
                    let prepared = Prepared { kept, since: Instant::now() };
                    state.prepared.insert(op, prepared);
                }
                _ => log::error!("MDT{index:04x}: the record of a prepared transaction is damaged"),
            }
            ControlFlow::Continue(())
        })?;
        let last = store.last_transno();
        store.scan(TRANSACTIONS, &[], Bound::Unbounded, &mut |_, value| {
            match decode_placed(value) {
                Some((transaction, coordinated)) => {
                    state.clock = state.clock.max(transaction.stamp);
                    state.open(&Arc::new(transaction), last, coordinated);
                }
                None => log::error!("MDT{index:04x}: the record of a transaction is damaged"),
            }
            ControlFlow::Continue(())
        })?;
        store.scan(FINISHED, &[], Bound::Unbounded, &mut |_, value| {
            match decode_finished(value) {
                Some(below) => drop(state.finished.insert(below.mdt, below)),
                None => log::error!("MDT{index:04x}: the record of finished transactions is damaged"),
            }
            ControlFlow::Continue(())
        })?;
        Ok(Transactions {
            index,
            boot,
            has_all: was_clean,
            began: Instant::now(),
            peers: RwLock::default(),
            newcomers: OnceLock::new(),
            unsettled: AtomicUsize::new(state.unsettled.len()),
            noting: Mutex::new(()),
            #[cfg(test)]
            bug: Mutex::new(None),
            state: Mutex::new(state),
            changed: Condvar::new(),
        })
    }

    /// Sets the other MDTs.
    pub fn set_peers(&self, peers: Peers) {
        *self.peers.write() = peers;
        self.changed.notify_all();
    }

    /// Wakes all threads that wait here.
    pub fn wake(&self) {
        let _state = self.state.lock();
        self.changed.notify_all();
    }

    /// Plants a bug, or removes it.
    #[cfg(test)]
    pub fn plant(&self, bug: Option<Bug>) {
        *self.bug.lock() = bug;
    }

    #[cfg(test)]
    pub(crate) fn has(&self, bug: Bug) -> bool {
        *self.bug.lock() == Some(bug)
    }

    #[cfg(not(test))]
    pub(crate) const fn has(&self, _: Bug) -> bool {
        false
    }

    /// Returns true if there are other MDTs.
    pub fn has_peers(&self) -> bool {
        !self.peers.read().is_empty()
    }

    /// Returns the indexes of all MDTs.
    pub fn all_mdts(&self) -> Vec<u16> {
        self.peers.read().keys().copied().chain([self.index]).collect()
    }

    /// Begins a transaction, which is undecided.
    pub(super) fn begin(&self) -> TransactionId {
        let mut state = self.state.lock();
        let op = TransactionId { mdt: self.index, boot: self.boot, number: state.next };
        state.next += 1;
        state.undecided.insert(op);
        op
    }

    /// Returns the highest transno that may be reported committed: `synced`, capped below the first
    /// distributed transaction that is not durable on all participants.
    pub fn committed(&self, synced: TransNo) -> TransNo {
        if self.unsettled.load(Ordering::Acquire) == 0 {
            return synced;
        }
        let state = self.state.lock();
        state.unsettled.first().map_or(synced, |(first, _)| synced.min(TransNo(first.0.saturating_sub(1))))
    }

    /// Changes the state.
    pub(super) fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        self.unsettled.store(state.unsettled.len(), Ordering::Release);
    }

    /// Sets the lookup for unknown MDTs. Only the first call has an effect.
    pub fn set_newcomers(&self, newcomers: Box<Newcomers>) {
        let _ = self.newcomers.set(newcomers);
    }

    /// Returns the endpoint of another MDT, also if it has just joined.
    pub(super) fn peer(&self, mdt: u16) -> Option<Arc<dyn MdsEndpoint>> {
        let known = || self.peers.read().get(&mdt).cloned();
        known().or_else(|| {
            let newcomers = self.newcomers.get().filter(|_| mdt < MDT_COUNT_MAX && mdt != self.index)?;
            // After a failure the MDT stays unknown, which is the result.
            let _ = nacre_env::blocking(|| newcomers(mdt));
            known()
        })
    }

    /// Returns true if certainly no other MDT of the file system has this index; an MDT that is merely
    /// unreachable has it.
    pub(super) fn is_no_other(&self, mdt: u16) -> bool {
        if mdt >= MDT_COUNT_MAX || mdt == self.index {
            return true;
        }
        let is_known = self.peers.read().contains_key(&mdt);
        let asked = self.newcomers.get().filter(|_| !is_known);
        asked.is_some_and(|newcomers| nacre_env::blocking(|| newcomers(mdt)) == Ok(false))
    }

    /// Returns true if transactions are prepared here.
    pub(crate) fn has_prepared(&self) -> bool {
        !self.state.lock().prepared.is_empty()
    }

    /// Sends a request to another MDT.
    ///
    /// # Errors
    /// `ENODEV` without such an MDT; `EPROTO`; those of that MDT.
    pub(crate) fn ask(&self, mdt: u16, request: PeerRequest) -> StatusResult<PeerReply> {
        let peer = self.peer(mdt).ok_or(Status::ENODEV)?;
        let answer = nacre_env::blocking(|| peer.call(&Cred::system(), &MdsRequest::Peer(request)))?;
        match answer.reply {
            MdsReply::Peer(reply) => Ok(reply),
            _ => Err(Status::EPROTO),
        }
    }
}

/// Runs requests to another MDT with a short time-out, but for a change that is replayed.
///
/// # Errors
/// `ETIMEDOUT` after the time-out; those of `work`.
pub(super) fn soon<R>(work: impl FnOnce() -> StatusResult<R>) -> StatusResult<R> {
    if replay::is_running() {
        return work();
    }
    match nacre_env::until(Instant::now() + ANSWER_MAX, work) {
        Err(Status::EINTR) if !nacre_env::interrupted() => Err(Status::ETIMEDOUT),
        result => result,
    }
}

/// Returns what a transaction locks on an MDT: inodes as a whole, and names.
pub(super) fn wants_of<'a>(fids: &[Fid], names: impl Iterator<Item = (Fid, &'a [u8])>) -> Vec<Want<'a>> {
    let names = names.map(|(parent, name)| Want::Name(parent, name));
    fids.iter().map(|fid| Want::Whole(*fid)).chain(names).collect()
}

pub(super) fn named(name: &Name) -> (Fid, &[u8]) {
    (name.parent, &name.name)
}

/// Encodes the record with the locks of a prepared transaction.
pub(super) fn encode_prepared(fids: &[Fid], names: &[Name]) -> Vec<u8> {
    let mut bytes = vec![PREPARED_VERSION];
    fids.to_vec().encode(&mut bytes);
    names.to_vec().encode(&mut bytes);
    bytes
}

pub(crate) fn decode_prepared(bytes: &[u8]) -> Option<(Vec<Fid>, Vec<Name>)> {
    let (version, rest) = bytes.split_first()?;
    match *version {
        // Version 1 locked directories as a whole.
        RECORD_VERSION => Vec::<Fid>::from_bytes(rest).ok().map(|fids| (fids, Vec::new())),
        PREPARED_VERSION => {
            let mut reader = Reader::new(rest);
            let (fids, names) = (Vec::decode(&mut reader).ok()?, Vec::decode(&mut reader).ok()?);
            reader.finish().ok().map(|()| (fids, names))
        }
        _ => None,
    }
}

/// Encodes the record of the first transaction of a coordinator that may not be finished.
pub(super) fn encode_finished(below: &TransactionId) -> Vec<u8> {
    let mut bytes = vec![RECORD_VERSION];
    below.encode(&mut bytes);
    bytes
}

pub(crate) fn decode_finished(bytes: &[u8]) -> Option<TransactionId> {
    let (&RECORD_VERSION, rest) = bytes.split_first()? else { return None };
    TransactionId::from_bytes(rest).ok()
}

/// Encodes the record of a committed transaction. `coordinated`: transno of the coordinator's part in its store, which
/// is where that part belongs if the coordinator loses it; 0 on the coordinator, and if it is not known.
pub(crate) fn encode_transaction(transaction: &Transaction, coordinated: TransNo) -> Vec<u8> {
    let mut bytes = vec![TRANSACTION_VERSION];
    coordinated.0.encode(&mut bytes);
    transaction.encode(&mut bytes);
    bytes
}

/// Returns a committed transaction and the transno of its coordinator's part.
fn decode_placed(bytes: &[u8]) -> Option<(Transaction, TransNo)> {
    let (version, rest) = bytes.split_first()?;
    match *version {
        // Version 1 had no transno.
        RECORD_VERSION => Transaction::from_bytes(rest).ok().map(|transaction| (transaction, TransNo(0))),
        TRANSACTION_VERSION => {
            let mut reader = Reader::new(rest);
            let (transno, transaction) =
                (u64::decode(&mut reader).ok()?, Transaction::decode(&mut reader).ok()?);
            reader.finish().ok().map(|()| (transaction, TransNo(transno)))
        }
        _ => None,
    }
}

/// Decodes the record of a committed transaction.
pub(crate) fn decode_transaction(bytes: &[u8]) -> Option<Transaction> {
    decode_placed(bytes).map(|(transaction, _)| transaction)
}

impl Transactions {
    /// Notifies another MDT that a transaction is aborted. If the message is lost, that MDT asks on its own.
    pub(super) fn call_off(&self, mdt: u16, op: TransactionId) {
        if nacre_env::interrupted() {
            // The program must continue.
            self.post_abort(mdt, op);
        } else if let Err(status) = self.ask(mdt, PeerRequest::Abort { op }) {
            log::debug!("MDT{mdt:04x} did not receive the abort of {op}: {status}");
        }
    }

    /// As [`Transactions::call_off`], and does not wait for the answer.
    pub(super) fn post_abort(&self, mdt: u16, op: TransactionId) {
        let request = MdsRequest::Peer(PeerRequest::Abort { op });
        if let Some(peer) = self.peer(mdt) {
            // Out of time from the beginning: without a connection the message is sent by the next one.
            nacre_env::until(Instant::now(), || peer.post(&Cred::system(), &request));
        }
    }

    /// Advances the clock past the stamp of a transaction on another MDT.
    pub(super) fn see(&self, stamp: u64) {
        let mut state = self.state.lock();
        state.clock = state.clock.max(stamp);
    }

    /// Returns a stamp larger than all seen.
    pub(super) fn tick(&self) -> u64 {
        let mut state = self.state.lock();
        state.clock += 1;
        state.clock
    }

    /// Records that a transaction is committed here, or about to be.
    pub(super) fn note_open(&self, transaction: &Arc<Transaction>, transno: TransNo, coordinated: TransNo) {
        self.change(|state| state.open(transaction, transno, coordinated));
    }

    pub(super) fn note_applied(&self, op: &TransactionId, mdt: u16, transno: TransNo) {
        if let Some(open) = self.state.lock().open.get_mut(op) {
            open.applied.insert(mdt, transno);
        }
    }

    /// Records the transno of the part here of a transaction.
    pub(super) fn note_place(&self, op: &TransactionId, transno: TransNo) {
        if let Some(open) = self.state.lock().open.get_mut(op) {
            open.place = transno;
        }
    }

    /// Returns the transno of the part here of a transaction; 0 if it is not known.
    pub(super) fn place_of(&self, op: &TransactionId) -> TransNo {
        self.state.lock().open.get(op).map_or(TransNo(0), |open| open.place)
    }

    /// Records that a transaction is decided, and wakes the threads that wait for that.
    pub(super) fn decided(&self, op: &TransactionId) {
        self.state.lock().undecided.remove(op);
        self.changed.notify_all();
    }

    /// Records that the commit of a transaction failed.
    pub(super) fn retract(&self, op: &TransactionId) {
        self.change(|state| state.close(op));
    }

    /// Returns the transactions with a part on an MDT that are not durable on all participants, as many as
    /// fit a message.
    pub fn transactions_of(&self, mdt: u16, after: Option<&TransactionId>) -> PeerReply {
        let state = self.state.lock();
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        // A transaction that waits for its commit may still abort.
        let decided =
            state.open.range((from, Bound::Unbounded)).filter(|(id, _)| !state.undecided.contains(id));
        let mut room = GREETING_BYTES;
        let fits = |(_, open): &(&TransactionId, &Open)| {
            let is_first = room == GREETING_BYTES;
            let left = room.checked_sub(open.transaction.to_bytes().len());
            room = left.unwrap_or(0);
            is_first || left.is_some()
        };
        let theirs = decided.filter(|(_, open)| open.transaction.part(mdt).is_some());
        let (transactions, transnos) = theirs
            .take(TRANSACTIONS_MAX)
            .take_while(fits)
            .map(|(id, open)| {
                let applied = open.applied.get(&mdt).copied().unwrap_or_default();
                let transno = if id.mdt == mdt { open.coordinated } else { applied };
                (Transaction::clone(&open.transaction), transno)
            })
            .unzip();
        PeerReply::Greeting { transactions, transnos, finished: state.finished.values().copied().collect() }
    }

    /// Returns the outcome of a transaction that another MDT has prepared.
    ///
    /// # Errors
    /// `EAGAIN` while it is undecided.
    pub fn outcome(&self, op: &TransactionId) -> StatusResult<PeerReply> {
        let state = self.state.lock();
        if state.undecided.contains(op) {
            return Err(Status::EAGAIN);
        }
        let found = state.open.get(op).map(|open| Transaction::clone(&open.transaction));
        Ok(PeerReply::Transactions(found.into_iter().collect()))
    }

    /// Returns the undecided transactions, at most `max`, and the number of committed ones that are not durable.
    pub fn report(&self, now: Instant, max: usize) -> (Vec<TransactionReport>, usize) {
        let state = self.state.lock();
        let prepared = state.prepared.iter().map(|(id, prepared)| TransactionReport {
            id: *id,
            is_prepared: true,
            ticket: prepared.kept.ticket(),
            age: now.saturating_duration_since(prepared.since),
        });
        let undecided = state.undecided.iter().map(|id| TransactionReport {
            id: *id,
            is_prepared: false,
            ticket: 0,
            age: Duration::ZERO,
        });
        (prepared.chain(undecided).take(max).collect(), state.unsettled.len())
    }

    /// Returns true if there may be transactions to redo for which other MDTs have not been asked.
    pub(super) fn may_lack_parts(&self) -> bool {
        !self.has_all && self.began.elapsed() < GREETING_TIMEOUT
    }

    /// Returns true if every other MDT has answered which transactions are to be redone.
    pub(super) fn has_greeted_all(&self) -> bool {
        let peers = self.peers.read();
        let state = self.state.lock();
        peers.keys().all(|mdt| state.greeted.contains(mdt))
    }

    /// Returns true if no transaction is to be redone that another MDT has not returned yet.
    pub fn has_all_parts(&self) -> bool {
        self.has_all || self.has_greeted_all()
    }

    /// Waits until every other MDT was asked which transactions are to be redone, for a limited time after
    /// the start: an unreachable MDT may have none, and must not block all clients. Returns at once after a
    /// clean stop, which leaves nothing to redo.
    pub fn await_greetings(&self) {
        if !self.may_lack_parts() {
            return;
        }
        let deadline = self.began + GREETING_TIMEOUT;
        let peers: Vec<u16> = self.peers.read().keys().copied().collect();
        let mut state = self.state.lock();
        while !peers.iter().all(|mdt| state.greeted.contains(mdt)) && Instant::now() < deadline {
            nacre_env::blocking(|| self.changed.wait_for(&mut state, TICK));
        }
    }

    /// Records a transaction as [`super::Coordinator::execute`] does before the commit, which may take long.
    #[cfg(test)]
    pub fn be_about_to_commit(&self, parts: Vec<nacre_wire::peer::Part>) -> Transaction {
        let (id, stamp) = (self.begin(), self.tick());
        let transaction = Transaction {
            id,
            stamp,
            client: nacre_types::ClientUuid([7; 16]),
            now: nacre_types::Timestamp::default(),
            parts,
        };
        self.note_open(&Arc::new(transaction.clone()), TransNo(0), TransNo(0));
        transaction
    }

    /// Lets the commit of such a transaction fail.
    #[cfg(test)]
    pub fn let_fail(&self, op: &TransactionId) {
        self.retract(op);
        self.decided(op);
    }
}
