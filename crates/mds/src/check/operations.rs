//! Operations over several MDTs that were committed by some of them and not by others: servers that start finish them.

use super::Problem;
use crate::error::MdsError;
use crate::operations::decode_record;
use crate::tables::{FINISHED, OPERATIONS};
use nacre_store::MetaStore;
use nacre_types::Fid;
use nacre_wire::peer::{OpId, Operation};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::{Bound, ControlFlow};

/// What an MDT knows of operations.
#[derive(Default)]
struct Known {
    done: HashSet<OpId>,
    /// For each coordinator, the first operation that may not be durable everywhere.
    finished: HashMap<u16, OpId>,
}

impl Known {
    fn has(&self, op: &OpId) -> bool {
        self.done.contains(op) || self.finished.get(&op.mdt).is_some_and(|below| op < below)
    }
}

/// One problem for each operation that an MDT among these has not done.
///
/// # Errors
/// If a store cannot be read.
pub fn unfinished(stores: &[(&MetaStore, u16)]) -> Result<Vec<Problem>, MdsError> {
    let mut operations: BTreeMap<OpId, Operation> = BTreeMap::new();
    let mut known: HashMap<u16, Known> = HashMap::new();
    for (store, index) in stores {
        let known = known.entry(*index).or_default();
        store.scan(OPERATIONS, &[], Bound::Unbounded, &mut |_, value| {
            if let Some(operation) = decode_record::<Operation>(value) {
                known.done.insert(operation.id);
                operations.insert(operation.id, operation);
            }
            ControlFlow::Continue(())
        })?;
        store.scan(FINISHED, &[], Bound::Unbounded, &mut |_, value| {
            known.finished.extend(decode_record::<OpId>(value).map(|below| (below.mdt, below)));
            ControlFlow::Continue(())
        })?;
    }
    let lacks = |operation: &Operation| {
        let lacks = |mdt: &u16| known.get(mdt).is_some_and(|known| !known.has(&operation.id));
        operation.parts.iter().map(|part| part.mdt).find(lacks)
    };
    let problem = |(id, mdt): (OpId, u16)| Problem {
        fid: Fid::ZERO,
        text: format!(
            "operation {id} is not finished on MDT{mdt:04x}: start the file system, which does that, and check it again"
        ),
        repairable: false,
    };
    Ok(operations
        .values()
        .filter_map(|operation| lacks(operation).map(|mdt| (operation.id, mdt)))
        .map(problem)
        .collect())
}
