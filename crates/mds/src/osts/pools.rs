//! The pools that files are placed in, as the configuration says.

use nacre_layout::PoolName;
use nacre_wire::mgs::PoolConfig;
use parking_lot::RwLock;

/// See the [module documentation](self).
#[derive(Default)]
pub struct Pools {
    pools: RwLock<Vec<PoolConfig>>,
}

impl Pools {
    /// Uses these pools from now on.
    pub fn set(&self, pools: &[PoolConfig]) {
        *self.pools.write() = pools.to_vec();
    }

    /// All pools.
    pub fn all(&self) -> Vec<PoolConfig> {
        self.pools.read().clone()
    }

    /// The OSTs that a wish for `pool` means; `None` for all: for no pool, and for one that is gone or has no OSTs, so that
    /// directories that still name it stay usable. Source: reference 2.8.
    pub fn members(&self, pool: Option<PoolName>) -> Option<Vec<u16>> {
        let pools = self.pools.read();
        let found = pools.iter().find(|known| Some(known.name) == pool)?;
        (!found.osts.is_empty()).then(|| found.osts.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_that_is_gone_or_empty_means_all_osts() {
        let name = |text: &str| PoolName::for_pool(text).expect("a name");
        let pools = Pools::default();
        assert_eq!(pools.members(Some(name("flash"))), None);
        pools.set(&[
            PoolConfig { name: name("flash"), osts: vec![2, 0] },
            PoolConfig { name: name("empty"), osts: Vec::new() },
        ]);
        assert_eq!(pools.members(Some(name("flash"))), Some(vec![2, 0]));
        assert_eq!(pools.members(Some(name("empty"))), None);
        assert_eq!(pools.members(None), None);
    }
}
