//! Distributed transactions that some participants have committed and others have not. Recovery finishes them
//! when the servers start.

use super::Problem;
use crate::error::MdsError;
use crate::tables::{FINISHED, PREPARED, TRANSACTIONS, decode_op_key, op_key};
use crate::transactions::state::decode_record;
use nacre_store::{Batch, MetaStore};
use nacre_types::Fid;
use nacre_types::limits::MDT_COUNT_MAX;
use nacre_wire::peer::{Transaction, TransactionId};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::{Bound, ControlFlow};

/// An MDT's records of distributed transactions.
#[derive(Default)]
struct Known {
    done: HashSet<TransactionId>,
    /// For each coordinator, the first transaction that may not be durable on all participants.
    finished: HashMap<u16, TransactionId>,
}

impl Known {
    fn has(&self, op: &TransactionId) -> bool {
        self.done.contains(op) || self.finished.get(&op.mdt).is_some_and(|below| op < below)
    }
}

/// Returns one problem for each committed transaction that an MDT among these has not applied.
///
/// # Errors
/// If a store cannot be read.
pub fn unfinished(stores: &[(&MetaStore, u16)]) -> Result<Vec<Problem>, MdsError> {
    let mut transactions: BTreeMap<TransactionId, Transaction> = BTreeMap::new();
    let mut known: HashMap<u16, Known> = HashMap::new();
    for (store, index) in stores {
        let known = known.entry(*index).or_default();
        store.scan(TRANSACTIONS, &[], Bound::Unbounded, &mut |_, value| {
            if let Some(transaction) = decode_record::<Transaction>(value) {
                known.done.insert(transaction.id);
                transactions.insert(transaction.id, transaction);
            }
            ControlFlow::Continue(())
        })?;
        store.scan(FINISHED, &[], Bound::Unbounded, &mut |_, value| {
            known.finished.extend(decode_record::<TransactionId>(value).map(|below| (below.mdt, below)));
            ControlFlow::Continue(())
        })?;
    }
    let lacks = |transaction: &Transaction| {
        let lacks = |mdt: &u16| known.get(mdt).is_some_and(|known| !known.has(&transaction.id));
        transaction.parts.iter().map(|part| part.mdt).find(lacks)
    };
    let problem = |(id, mdt): (TransactionId, u16)| Problem {
        fid: Fid::ZERO,
        text: format!(
            "transaction {id} is not finished on MDT{mdt:04x}: start the file system, which does that, and check it again"
        ),
        repairable: false,
    };
    Ok(transactions
        .values()
        .filter_map(|transaction| lacks(transaction).map(|mdt| (transaction.id, mdt)))
        .map(problem)
        .collect())
}

/// Returns transactions that are prepared on these MDTs, by index, and will never be decided: their
/// coordinator does not exist, or has forgotten them. `all` are the indexes of all MDTs of the file system,
/// if they are known; without them, only transactions that no MDT can have coordinated are returned.
/// Transactions whose decision a damaged store may have lost are not returned.
///
/// # Errors
/// If a store cannot be read.
pub fn abandoned(
    stores: &[(&MetaStore, u16)],
    all: Option<&[u16]>,
) -> Result<Vec<(u16, TransactionId)>, MdsError> {
    let mut committed = HashSet::new();
    let mut prepared = Vec::new();
    let mut is_damaged = false;
    for (store, index) in stores {
        store.scan(TRANSACTIONS, &[], Bound::Unbounded, &mut |_, value| {
            match decode_record::<Transaction>(value) {
                Some(transaction) => drop(committed.insert(transaction.id)),
                None => is_damaged = true,
            }
            ControlFlow::Continue(())
        })?;
        store.scan(PREPARED, &[], Bound::Unbounded, &mut |key, _| {
            prepared.extend(decode_op_key(key).map(|op| (*index, op)));
            ControlFlow::Continue(())
        })?;
        is_damaged |= store.is_partial();
    }
    let here: BTreeSet<u16> = stores.iter().map(|(_, index)| *index).collect();
    let are_all_here = all.is_some_and(|all| all.iter().all(|index| here.contains(index)));
    let is_abandoned = |(index, op): &(u16, TransactionId)| match here.contains(&op.mdt) {
        _ if op.mdt == *index || op.mdt >= MDT_COUNT_MAX => true,
        // A participant that has committed the transaction reports it to the coordinator, so all MDTs must be
        // here.
        true => are_all_here && !is_damaged && !committed.contains(op),
        false => all.is_some_and(|all| !all.contains(&op.mdt)),
    };
    Ok(prepared.into_iter().filter(is_abandoned).collect())
}

/// Removes the records of prepared transactions.
///
/// # Errors
/// Those of the store.
pub fn forget(store: &MetaStore, ops: &[TransactionId]) -> Result<(), MdsError> {
    let mut batch = Batch::new();
    batch.set_releasing(true);
    ops.iter().for_each(|op| batch.delete(PREPARED, op_key(op).as_slice()));
    let transno = store.commit(&batch)?;
    Ok(store.sync(transno)?)
}
