//! Execution of plans: locks and reads the records that an operation needs, and carries its plan out.

mod alike;
mod working_set;

pub(crate) use alike::Held;
pub(crate) use working_set::At;

use crate::commit::Commits;
use crate::leaves::Leaves;
use crate::staging::Staging;
use crate::transactions::Coordinator;
use std::sync::Arc;

/// Carries out plans. See the [module documentation](self).
pub(crate) struct Performer {
    leaves: Arc<Leaves>,
    staging: Arc<Staging>,
    commits: Arc<Commits>,
    coordinator: Arc<Coordinator>,
}

impl Performer {
    pub fn new(
        leaves: &Arc<Leaves>,
        staging: &Arc<Staging>,
        commits: &Arc<Commits>,
        coordinator: &Arc<Coordinator>,
    ) -> Performer {
        Performer {
            leaves: leaves.clone(),
            staging: staging.clone(),
            commits: commits.clone(),
            coordinator: coordinator.clone(),
        }
    }
}
