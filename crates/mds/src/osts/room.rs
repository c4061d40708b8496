//! Free space on OSTs for components that grow: whether there is enough for another step.

use super::OstSet;
use super::choose::Candidate;
use super::ost::LOOKED_AGE;
use nacre_env::clock::Instant;
use nacre_layout::layout::stripes_per_ost;
use nacre_layout::{Component, PoolName, Space, StripeObject};
use std::time::Duration;

/// Longest wait for new figures of OSTs; after that the known ones are used.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Returns true for an OST that may store more of a file: one that is neither slow, nor unresponsive, nor
/// closed for new objects.
fn is_fit(candidate: &Candidate, bytes: u64) -> bool {
    candidate.has_free(bytes) && !candidate.degraded && !candidate.away
}

impl OstSet {
    /// Applies `fits` to the OSTs, and again with new figures where old ones give `None`.
    fn judge<R>(&self, fits: impl Fn(&[Candidate]) -> Option<R>) -> Option<R> {
        let all = self.usable();
        let age = self.qos.lock().statfs_age;
        let look = |age: Duration| {
            let now = Instant::now();
            let since = now.checked_sub(age).unwrap_or(now);
            nacre_env::blocking(|| all.iter().for_each(|ost| ost.wait_fresh(since, now + TIMEOUT)));
            all.iter().map(|ost| ost.candidate(Duration::MAX)).collect::<Vec<_>>()
        };
        fits(&look(age)).or_else(|| fits(&look(age.min(LOOKED_AGE))))
    }

    /// Returns the pool that objects for `pool` would come from, without counting an allocation.
    fn pool_of(&self, pool: Option<PoolName>) -> Option<PoolName> {
        pool.map(|pool| self.pools.spills_to(pool, |osts| self.used_pct(osts)))
    }
}

impl Space for &OstSet {
    fn has_room(&mut self, component: &Component, bytes: u64) -> bool {
        let share = bytes.div_ceil((component.objects.len() as u64).max(1));
        let wanted = |index: u16| {
            let on_it = |object: &&StripeObject| object.ost_index == index;
            share.saturating_mul(component.objects.iter().filter(on_it).count() as u64)
        };
        let fits = |candidates: &[Candidate]| {
            let concerned =
                |c: &&Candidate| component.objects.iter().any(|object| object.ost_index == c.index);
            candidates.iter().filter(concerned).all(|c| is_fit(c, wanted(c.index))).then_some(())
        };
        self.judge(fits).is_some()
    }

    fn finds_room(&mut self, component: &Component, bytes: u64) -> Option<u64> {
        let members = self.pools.members(self.pool_of(component.pool));
        self.judge(|candidates| {
            let may = |c: &&Candidate| match component.osts.as_slice() {
                [] => members.as_ref().is_none_or(|members| members.contains(&c.index)),
                listed => listed.contains(&c.index),
            };
            let may: Vec<&Candidate> = candidates.iter().filter(may).collect();
            let up = may.iter().filter(|c| !c.full && !c.down).count().max(1);
            let (is_listed, count) = (!component.osts.is_empty(), component.stripe_count);
            let used = match stripes_per_ost(count) {
                _ if is_listed => may.len().max(1),
                None => usize::from(count.max(1)).min(up),
                Some(_) => up,
            };
            let share = bytes.div_ceil(used as u64);
            let mut fits = may.iter().map(|c| is_fit(c, share));
            let is_enough = if is_listed { fits.all(|fits| fits) } else { fits.any(|fits| fits) };
            is_enough.then_some(share)
        })
    }
}
