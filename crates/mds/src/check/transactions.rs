//! Distributed transactions that some participants have committed and others have not. Recovery finishes them
//! when the servers start; a repair does the same to one MDT after the other.

use super::{Kind, Problem, Targets, changing};
use crate::config::MdsConfig;
use crate::error::MdsError;
use crate::mds::Mds;
use crate::osts::Osts;
use crate::records::{read_record, store_path};
use crate::tables::{FINISHED, META, META_KEY, PREPARED, TRANSACTIONS, decode_op_key, op_key};
use crate::transactions::state::{decode_finished, decode_transaction};
use nacre_ondisk::MdtRecord;
use nacre_store::{Batch, MetaStore};
use nacre_types::limits::MDT_COUNT_MAX;
use nacre_types::{Fid, TransNo};
use nacre_wire::peer::{Transaction, TransactionId};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::{Bound, ControlFlow};
use std::path::Path;

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

/// Returns the committed transactions that MDTs among these have not applied, with these MDTs.
///
/// # Errors
/// If a store cannot be read.
pub fn unfinished(stores: &[(&MetaStore, u16)]) -> Result<Vec<(Transaction, u16)>, MdsError> {
    let mut transactions: BTreeMap<TransactionId, Transaction> = BTreeMap::new();
    let mut known: HashMap<u16, Known> = HashMap::new();
    for (store, index) in stores {
        let known = known.entry(*index).or_default();
        store.scan(TRANSACTIONS, &[], Bound::Unbounded, &mut |_, value| {
            if let Some(transaction) = decode_transaction(value) {
                known.done.insert(transaction.id);
                transactions.insert(transaction.id, transaction);
            }
            ControlFlow::Continue(())
        })?;
        store.scan(FINISHED, &[], Bound::Unbounded, &mut |_, value| {
            known.finished.extend(decode_finished(value).map(|below| (below.mdt, below)));
            ControlFlow::Continue(())
        })?;
    }
    let lack = |transaction: &Transaction| -> Vec<(Transaction, u16)> {
        let lacks = |mdt: &u16| known.get(mdt).is_some_and(|known| !known.has(&transaction.id));
        let mdts = transaction.parts.iter().map(|part| part.mdt).filter(lacks);
        mdts.map(|mdt| (transaction.clone(), mdt)).collect()
    };
    let mut left: Vec<(Transaction, u16)> = transactions.values().flat_map(lack).collect();
    left.sort_by_key(|(transaction, mdt)| (transaction.stamp, transaction.id, *mdt));
    Ok(left)
}

/// Describes a transaction that an MDT has not applied.
pub fn problem_of((transaction, mdt): &(Transaction, u16)) -> Problem {
    Problem {
        fid: Fid::ZERO,
        mdt: *mdt,
        kind: Kind::Transaction,
        text: format!(
            "transaction {} is not finished on MDT{mdt:04x}: a repair or the next start finishes it, after which more can be checked",
            transaction.id
        ),
        repairable: true,
    }
}

/// Applies transactions to the MDTs that lack them, in the order in which they were carried out. Each MDT runs for that
/// time without clients, OSTs and other MDTs.
///
/// # Errors
/// If an MDT cannot be opened or a transaction not applied.
pub fn finish(targets: &Targets<'_>, unfinished: &[(Transaction, u16)]) -> Result<(), MdsError> {
    for (dir, index) in targets.dirs {
        let own: Vec<&Transaction> =
            unfinished.iter().filter(|(_, mdt)| mdt == index).map(|(transaction, _)| transaction).collect();
        if own.is_empty() {
            continue;
        }
        let was_clean = set_clean(targets, dir, None)?;
        let config = MdsConfig { index: *index, ..targets.config.clone() };
        let mds = match Mds::open(dir, config, Osts::default()) {
            // The next start has the store for data of files, and finishes it.
            Err(MdsError::DataPlace(_)) => continue,
            opened => opened?,
        };
        let applied = own
            .iter()
            .try_for_each(|transaction| mds.core.participant.apply(transaction, TransNo(0)).map(drop));
        mds.stop()?;
        drop(mds);
        // Clients of the last run are still expected.
        set_clean(targets, dir, Some(was_clean))?;
        applied.map_err(|status| MdsError::Status { action: "finish a distributed transaction", status })?;
    }
    Ok(())
}

/// Returns whether an MDT was stopped in order, and changes that if requested.
fn set_clean(targets: &Targets<'_>, dir: &Path, clean: Option<bool>) -> Result<bool, MdsError> {
    let store = MetaStore::open(&store_path(dir), changing(targets.config))?;
    let record = read_record(&store, dir)?;
    if let Some(clean) = clean {
        let mut batch = Batch::new();
        batch.put(META, META_KEY, &MdtRecord { clean, ..record }.encode());
        store.sync(store.commit(&batch)?)?;
    }
    store.close()?;
    Ok(record.clean)
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
            match decode_transaction(value) {
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
