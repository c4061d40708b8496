//! Plan of a rebalance: OSTs with too much data, and OSTs that take it. Pure: no access to a file system.

use crate::failure::{Failure, Result};

/// Space of an OST.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Use {
    /// Index of the OST.
    pub index: u16,
    /// Used space, in bytes.
    pub used: u64,
    /// Total usable space, in bytes.
    pub room: u64,
    /// The OST takes no new objects.
    pub is_closed: bool,
}

impl Use {
    /// Returns the used share in parts per million.
    fn ppm(&self) -> u64 {
        let parts = u128::from(self.used) * 1_000_000 / u128::from(self.room.max(1));
        u64::try_from(parts).unwrap_or(u64::MAX)
    }
}

/// See the [module documentation](self).
#[derive(Debug)]
pub struct Plan {
    osts: Vec<Use>,
    drained: Vec<u16>,
    /// Tolerance above the mean of all OSTs, in parts per million.
    within_ppm: u64,
}

impl Plan {
    /// Creates a plan for these OSTs.
    ///
    /// # Errors
    /// If no OST can take the data, or an OST that is to be emptied does not exist.
    pub fn new(osts: Vec<Use>, drained: &[u16], within_percent: u8) -> Result<Plan> {
        if let Some(index) = drained.iter().find(|index| !osts.iter().any(|ost| ost.index == **index)) {
            return Err(Failure::usage(format!("there is no OST with index {index}, or it does not answer")));
        }
        let plan = Plan { osts, drained: drained.to_vec(), within_ppm: u64::from(within_percent) * 10_000 };
        if plan.receivers().next().is_none() {
            return Err(Failure::usage("no OST is left that could take what the others have"));
        }
        Ok(plan)
    }

    /// Returns the OSTs that stay in use.
    fn staying(&self) -> impl Iterator<Item = &Use> {
        self.osts.iter().filter(|ost| !self.is_drained(ost.index))
    }

    fn receivers(&self) -> impl Iterator<Item = &Use> {
        self.staying().filter(|ost| !ost.is_closed)
    }

    /// Returns the OSTs that are to be emptied.
    pub fn drained(&self) -> Vec<u16> {
        self.drained.clone()
    }

    /// Returns true if the OST is to be emptied.
    pub fn is_drained(&self, index: u16) -> bool {
        self.drained.contains(&index)
    }

    /// Returns the used share of all OSTs that stay in use, in parts per million.
    fn mean_ppm(&self) -> u64 {
        let none = Use { index: 0, used: 0, room: 0, is_closed: false };
        let all = self.staying().fold(none, |sum, ost| Use {
            used: sum.used.saturating_add(ost.used),
            room: sum.room.saturating_add(ost.room),
            ..sum
        });
        all.ppm()
    }

    /// Returns true while data is to be moved off the OST.
    pub fn has_too_much(&self, index: u16) -> bool {
        let limit = self.mean_ppm().saturating_add(self.within_ppm);
        let is_over = |ost: &Use| ost.index == index && ost.ppm() > limit;
        self.is_drained(index) || self.osts.iter().any(is_over)
    }

    /// Returns the OSTs with too much: those to be emptied, then the others from the fullest on.
    pub fn sources(&self) -> Vec<u16> {
        let mut full: Vec<&Use> = self.staying().filter(|ost| self.has_too_much(ost.index)).collect();
        full.sort_by_key(|ost| std::cmp::Reverse(ost.ppm()));
        self.drained.iter().copied().chain(full.iter().map(|ost| ost.index)).collect()
    }

    /// Returns the OST for `bytes` from `source`: the emptiest one with enough free space.
    pub fn target_for(&self, source: u16, bytes: u64) -> Option<u16> {
        let fits = |ost: &&Use| ost.index != source && ost.room.saturating_sub(ost.used) > bytes;
        self.receivers().filter(fits).min_by_key(|ost| ost.ppm()).map(|ost| ost.index)
    }

    /// Accounts for `bytes` that were moved.
    pub fn moved(&mut self, from: u16, to: Option<u16>, bytes: u64) {
        for ost in &mut self.osts {
            if ost.index == from {
                ost.used = ost.used.saturating_sub(bytes);
            } else if Some(ost.index) == to {
                ost.used = ost.used.saturating_add(bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn osts(used: &[u64]) -> Vec<Use> {
        used.iter().zip(0..).map(|(&used, index)| Use { index, used, room: 1000, is_closed: false }).collect()
    }

    #[test]
    fn full_osts_give_to_the_emptiest_until_they_are_close_to_the_mean() {
        let mut plan = Plan::new(osts(&[900, 100, 200, 500]), &[], 5).expect("a plan");
        assert_eq!(plan.sources(), [0, 3]);
        let mut moved = 0;
        while plan.has_too_much(0) {
            let target = plan.target_for(0, 10).expect("there is room");
            assert_ne!(target, 0);
            plan.moved(0, Some(target), 10);
            moved += 10;
        }
        assert_eq!(moved, 430, "to 5 % above the mean of 42.5 %");
        assert!(Plan::new(osts(&[410, 400, 420]), &[], 5).expect("a plan").sources().is_empty());
    }

    #[test]
    fn an_ost_that_is_to_be_emptied_gives_everything_and_takes_nothing() {
        let mut plan = Plan::new(osts(&[10, 500, 500]), &[0], 50).expect("a plan");
        assert_eq!(plan.sources(), [0]);
        plan.moved(0, plan.target_for(0, 10), 10);
        assert!(plan.has_too_much(0), "until nothing is found on it");
        assert_ne!(plan.target_for(1, 10), Some(0));
        assert!(Plan::new(osts(&[10]), &[0], 5).is_err());
        assert!(Plan::new(osts(&[10, 10]), &[7], 5).is_err());
    }

    #[test]
    fn an_ost_that_takes_no_new_objects_gets_none_and_gives_away_what_is_too_much() {
        let mut closed = osts(&[900, 100, 500]);
        closed[1].is_closed = true;
        closed[0].is_closed = true;
        let plan = Plan::new(closed.clone(), &[], 5).expect("a plan");
        assert_eq!((plan.sources(), plan.target_for(0, 10)), (vec![0], Some(2)));
        closed[2].is_closed = true;
        assert!(Plan::new(closed, &[0], 5).is_err(), "nobody could take it");
    }

    #[test]
    fn what_has_room_nowhere_has_no_target() {
        let plan = Plan::new(osts(&[900, 990, 995]), &[], 0).expect("a plan");
        assert_eq!(plan.target_for(1, 5), Some(0));
        assert_eq!(plan.target_for(0, 50), None);
    }
}
