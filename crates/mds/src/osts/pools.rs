//! The pools in which files are placed, from the configuration, and where they spill over when they are full.

use nacre_env::sync::RwLock;
use nacre_layout::PoolName;
use nacre_types::{Status, StatusResult};
use nacre_wire::mgs::PoolConfig;
use std::sync::atomic::{AtomicU64, Ordering};

struct Pool {
    config: PoolConfig,
    /// Pool for new files while this one is fuller than `threshold_pct`.
    spill_target: Option<PoolName>,
    /// Used space in percent from which it spills; 0 for never.
    spill_threshold_pct: u8,
    /// Number of allocations that spilled.
    spill_hits: AtomicU64,
}

/// See the [module documentation](self).
#[derive(Default)]
pub struct Pools {
    pools: RwLock<Vec<Pool>>,
}

impl Pools {
    /// Sets the pools. Existing ones keep their spill rules.
    pub fn set(&self, configs: &[PoolConfig]) {
        let mut pools = self.pools.write();
        let mut known = std::mem::take(&mut *pools);
        *pools = configs
            .iter()
            .map(|config| match known.iter().position(|pool| pool.config.name == config.name) {
                Some(at) => Pool { config: config.clone(), ..known.swap_remove(at) },
                None => Pool {
                    config: config.clone(),
                    spill_target: None,
                    spill_threshold_pct: 0,
                    spill_hits: AtomicU64::new(0),
                },
            })
            .collect();
    }

    /// Returns all pools.
    pub fn all(&self) -> Vec<PoolConfig> {
        self.pools.read().iter().map(|pool| pool.config.clone()).collect()
    }

    /// Returns the OSTs for a specification with `pool`; `None` for all: without a pool, and for a pool that
    /// was removed or has no OSTs, so that directories that still name it stay usable.
    pub fn members(&self, pool: Option<PoolName>) -> Option<Vec<u16>> {
        let pools = self.pools.read();
        let found = pools.iter().find(|known| Some(known.config.name) == pool)?;
        (!found.config.osts.is_empty()).then(|| found.config.osts.clone())
    }

    /// Returns the pool for a file that requests `pool`: as long as a pool is fuller than its threshold, the
    /// next. `used_pct` returns the used space of these OSTs in percent. Counts spilled allocations.
    pub fn spill(&self, pool: PoolName, used_pct: impl Fn(&[u16]) -> u8) -> PoolName {
        self.followed(pool, used_pct, |known| {
            known.spill_hits.fetch_add(1, Ordering::Relaxed);
        })
    }

    /// Returns the same without counting it.
    pub fn spills_to(&self, pool: PoolName, used_pct: impl Fn(&[u16]) -> u8) -> PoolName {
        self.followed(pool, used_pct, |_| {})
    }

    fn followed(&self, pool: PoolName, used_pct: impl Fn(&[u16]) -> u8, note: impl Fn(&Pool)) -> PoolName {
        let pools = self.pools.read();
        let mut now = pool;
        // Loops are refused when targets are set, but a pool may have been removed and recreated since.
        for _ in 0..pools.len() {
            let Some(known) = pools.iter().find(|known| known.config.name == now) else { break };
            let Some(target) = known.spills(&used_pct) else { break };
            if !pools.iter().any(|other| other.config.name == target) {
                break;
            }
            note(known);
            now = target;
        }
        now
    }

    fn with<R>(&self, pool: &str, read: impl FnOnce(&Pool) -> R) -> StatusResult<R> {
        let pools = self.pools.read();
        pools.iter().find(|known| known.config.name.as_str() == pool).map(read).ok_or(Status::ENOENT)
    }

    /// Returns the pool that a pool spills to.
    ///
    /// # Errors
    /// `ENOENT` without the pool.
    pub fn spill_target(&self, pool: &str) -> StatusResult<Option<PoolName>> {
        self.with(pool, |pool| pool.spill_target)
    }

    /// Returns the used space in percent from which a pool spills.
    ///
    /// # Errors
    /// `ENOENT` without the pool.
    pub fn spill_threshold_pct(&self, pool: &str) -> StatusResult<u8> {
        self.with(pool, |pool| pool.spill_threshold_pct)
    }

    /// Returns the number of allocations that spilled.
    ///
    /// # Errors
    /// `ENOENT` without the pool.
    pub fn spill_hits(&self, pool: &str) -> StatusResult<u64> {
        self.with(pool, |pool| pool.spill_hits.load(Ordering::Relaxed))
    }

    /// Returns true if a pool spills at present.
    ///
    /// # Errors
    /// `ENOENT` without the pool.
    pub fn spill_is_active(&self, pool: &str, used_pct: impl Fn(&[u16]) -> u8) -> StatusResult<bool> {
        self.with(pool, |pool| pool.spills(&used_pct).is_some())
    }

    /// Sets the pool that a pool spills to, or none.
    ///
    /// # Errors
    /// `ENOENT` without one of the pools, `ELOOP` if the targets would form a loop.
    pub fn set_spill_target(&self, pool: &str, target: Option<&str>) -> StatusResult<()> {
        let mut pools = self.pools.write();
        let at = |pools: &[Pool], name: &str| {
            pools.iter().position(|known| known.config.name.as_str() == name).ok_or(Status::ENOENT)
        };
        let place = at(&pools, pool)?;
        let target = match target {
            None => None,
            Some(target) => {
                let mut next = at(&pools, target)?;
                let name = pools[next].config.name;
                for _ in 0..pools.len() {
                    if next == place {
                        return Err(Status::ELOOP);
                    }
                    let Some(Ok(after)) = pools[next].spill_target.map(|name| at(&pools, name.as_str()))
                    else {
                        break;
                    };
                    next = after;
                }
                Some(name)
            }
        };
        pools[place].spill_target = target;
        Ok(())
    }

    /// Sets the used space in percent from which a pool spills; 0 for never.
    ///
    /// # Errors
    /// `ENOENT` without the pool, `ERANGE` beyond 100.
    pub fn set_spill_threshold_pct(&self, pool: &str, percent: u8) -> StatusResult<()> {
        if percent > 100 {
            return Err(Status::ERANGE);
        }
        let mut pools = self.pools.write();
        let known = pools.iter_mut().find(|known| known.config.name.as_str() == pool);
        known.ok_or(Status::ENOENT)?.spill_threshold_pct = percent;
        Ok(())
    }
}

impl Pool {
    fn spills(&self, used_pct: &impl Fn(&[u16]) -> u8) -> Option<PoolName> {
        let threshold = self.spill_threshold_pct;
        self.spill_target.filter(|_| threshold > 0 && used_pct(&self.config.osts) >= threshold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> PoolName {
        PoolName::for_pool(text).expect("a name")
    }

    fn pool(text: &str, osts: &[u16]) -> PoolConfig {
        PoolConfig { name: name(text), osts: osts.to_vec() }
    }

    #[test]
    fn a_pool_that_is_gone_or_empty_means_all_osts() {
        let pools = Pools::default();
        assert_eq!(pools.members(Some(name("flash"))), None);
        pools.set(&[pool("flash", &[2, 0]), pool("empty", &[])]);
        assert_eq!(pools.members(Some(name("flash"))), Some(vec![2, 0]));
        assert_eq!(pools.members(Some(name("empty"))), None);
        assert_eq!(pools.members(None), None);
    }

    #[test]
    fn full_pools_spill_along_their_chain_and_count_it() {
        let pools = Pools::default();
        pools.set(&[pool("a", &[0]), pool("b", &[1]), pool("c", &[2])]);
        let used = |osts: &[u16]| if osts == [2] { 10 } else { 80 };
        assert_eq!(pools.spill(name("a"), used), name("a"));
        for (from, to) in [("a", "b"), ("b", "c")] {
            pools.set_spill_target(from, Some(to)).expect("set");
            assert_eq!(pools.spill(name("a"), used), name("a"), "no threshold, no spilling");
        }
        for from in ["a", "b", "c"] {
            pools.set_spill_threshold_pct(from, 80).expect("set");
        }
        assert_eq!(pools.spill(name("a"), used), name("c"));
        assert_eq!(pools.spill(name("b"), used), name("c"));
        let hits = |pool| pools.spill_hits(pool).expect("there");
        assert_eq!((hits("a"), hits("b"), hits("c")), (1, 2, 0));
        assert_eq!(
            (pools.spill_is_active("a", used), pools.spill_is_active("a", |_| 79)),
            (Ok(true), Ok(false))
        );
        assert_eq!(pools.spill(name("x"), used), name("x"));
        // Known pools keep their rules when the configuration changes; a removed target is no target.
        pools.set(&[pool("a", &[0, 3]), pool("b", &[1])]);
        assert_eq!((pools.spill_target("a"), pools.spill_threshold_pct("a")), (Ok(Some(name("b"))), Ok(80)));
        assert_eq!(pools.spill(name("a"), |_| 99), name("b"));
        pools.set_spill_target("a", None).expect("taken back");
        assert_eq!(pools.spill(name("a"), |_| 99), name("a"));
    }

    #[test]
    fn loops_and_pools_that_are_not_there_are_refused() {
        let pools = Pools::default();
        pools.set(&[pool("a", &[]), pool("b", &[]), pool("c", &[])]);
        let set = |from, to| pools.set_spill_target(from, Some(to));
        assert_eq!(set("a", "a"), Err(Status::ELOOP));
        assert_eq!((set("a", "b"), set("b", "c")), (Ok(()), Ok(())));
        assert_eq!(set("c", "a"), Err(Status::ELOOP));
        assert_eq!((set("c", "x"), set("x", "c")), (Err(Status::ENOENT), Err(Status::ENOENT)));
        assert_eq!(pools.set_spill_threshold_pct("a", 101), Err(Status::ERANGE));
        assert_eq!(pools.set_spill_threshold_pct("x", 1), Err(Status::ENOENT));
    }
}
