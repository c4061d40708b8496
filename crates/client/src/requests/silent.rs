//! Unresponsive OSTs.

use crate::requests::targets::OstTable;
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_layout::Layout;
use nacre_types::Status;
use nacre_wire::oss::OssRequest;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long an OST may take to respond.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// The same for an OST that was unresponsive lately: a directory may be full of files on it.
const ANSWER_SOON: Duration = Duration::from_millis(20);
/// How long ago "lately" is at most.
const SILENT_AGE: Duration = Duration::from_secs(5);

/// Unresponsive OSTs, and when the last wait for each timed out.
#[derive(Default)]
pub(crate) struct Silent(Mutex<BTreeMap<u16, Instant>>);

impl Silent {
    /// True if some OST did not respond lately.
    pub fn has_any(&self) -> bool {
        !self.0.lock().is_empty()
    }

    /// True if this OST did not respond lately.
    pub fn has(&self, ost_index: u16) -> bool {
        self.0.lock().contains_key(&ost_index)
    }

    /// Checks whether the OSTs of a layout respond. True if one does not.
    pub fn has_one_of(&self, layout: &Layout, osts: &OstTable) -> bool {
        let mut all: Vec<u16> = layout.objects().map(|stripe| stripe.ost_index).collect();
        all.sort_unstable();
        all.dedup();
        // Every OST is checked, so that the state of all is known.
        all.into_iter().filter(|ost_index| self.ask(*ost_index, osts)).count() > 0
    }

    fn ask(&self, ost_index: u16, osts: &OstTable) -> bool {
        let Some(endpoint) = osts.get(ost_index).filter(|endpoint| endpoint.is_active()) else {
            return false;
        };
        let lately = self.0.lock().get(&ost_index).is_some_and(|at| at.elapsed() < SILENT_AGE);
        let limit = if lately { ANSWER_SOON } else { ANSWER_MAX };
        let asked = endpoint.call_within(&OssRequest::Ping, limit);
        let is_silent = asked.is_err_and(|status| status != Status::EINTR);
        let mut known = self.0.lock();
        match is_silent {
            false => drop(known.remove(&ost_index)),
            true if !lately => drop(known.insert(ost_index, Instant::now())),
            true => {}
        }
        is_silent
    }
}
