//! Owners that are near a limit: their data is not held back, so that a write itself fails with `EDQUOT`.
//!
//! An OST reports it with each write. So an owner stays here until an OST has answered that it is far from its limits.

use nacre_env::sync::Mutex;
use nacre_types::{Owners, Status, StatusResult};
use nacre_wire::oss::OssReply;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most owners that are kept.
const OWNERS_MAX: usize = 4096;

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct Quotas {
    /// Owners, each with the OSTs at which it is near a limit.
    near: Mutex<HashMap<Owners, Vec<u16>>>,
    /// True if there are any, so that most writes need not look.
    is_any: AtomicBool,
}

impl Quotas {
    /// Returns how much an OST has written, and notes whether the owners are near a limit there.
    ///
    /// # Errors
    /// `EPROTO` if the OST answered with something else.
    pub fn written(&self, ost_index: u16, owners: Owners, reply: OssReply) -> StatusResult<usize> {
        let OssReply::Written { bytes, is_near_quota } = reply else { return Err(Status::EPROTO) };
        if is_near_quota || self.is_any.load(Ordering::Relaxed) {
            self.note(ost_index, owners, is_near_quota);
        }
        Ok(bytes as usize)
    }

    fn note(&self, ost_index: u16, owners: Owners, is_near: bool) {
        let mut near = self.near.lock();
        if is_near {
            if near.len() >= OWNERS_MAX {
                near.clear();
            }
            let osts = near.entry(owners).or_default();
            if !osts.contains(&ost_index) {
                osts.push(ost_index);
            }
        } else if let Some(osts) = near.get_mut(&owners) {
            osts.retain(|known| *known != ost_index);
            if osts.is_empty() {
                near.remove(&owners);
            }
        }
        self.is_any.store(!near.is_empty(), Ordering::Relaxed);
    }

    /// Returns true if these owners are near a limit.
    pub fn is_near(&self, owners: Owners) -> bool {
        self.is_any.load(Ordering::Relaxed) && self.near.lock().contains_key(&owners)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_near_a_limit_until_each_ost_that_said_so_has_taken_it_back() {
        let (quotas, mine) = (Quotas::default(), Owners { uid: 7, ..Owners::default() });
        let near = OssReply::Written { bytes: 5, is_near_quota: true };
        assert_eq!(quotas.written(1, mine, near.clone()), Ok(5));
        assert_eq!(quotas.written(2, mine, near), Ok(5));
        assert!(quotas.is_near(mine) && !quotas.is_near(Owners::default()));
        assert_eq!(quotas.written(1, mine, OssReply::written(5)), Ok(5));
        assert!(quotas.is_near(mine));
        assert_eq!(quotas.written(2, mine, OssReply::written(5)), Ok(5));
        assert!(!quotas.is_near(mine) && !quotas.is_any.load(Ordering::Relaxed));
        assert_eq!(quotas.written(2, mine, OssReply::Done), Err(Status::EPROTO));
    }
}
