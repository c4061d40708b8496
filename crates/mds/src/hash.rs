//! Positions of names in their directories: a hash with a seed that nobody outside can foresee, the same on all MDTs of a file
//! system, so that a name keeps its position when it moves to another one.

use crate::mds::Mds;
use crate::tables::{DIRENTS, META, META_KEY};
use nacre_ondisk::MdtRecord;
use nacre_types::StatusResult;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::Ordering;

impl Mds {
    /// What names are hashed with.
    pub(crate) fn hash_seed(&self) -> u64 {
        self.hash_seed.load(Ordering::Relaxed)
    }

    /// Somebody may put a name here from now on.
    pub(crate) fn begin_names(&self) {
        *self.has_names.lock() = true;
    }

    /// Hashes names with this seed, if there are none yet.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) fn adopt_seed(&self, seed: u64) -> StatusResult<()> {
        let mut has_names = self.has_names.lock();
        if *has_names || seed == self.hash_seed() {
            return Ok(());
        }
        self.store
            .scan(DIRENTS, &[], Bound::Unbounded, &mut |_, _| {
                *has_names = true;
                ControlFlow::Break(())
            })
            .map_err(|error| self.store_failed(&error))?;
        if *has_names {
            return Ok(());
        }
        let mut record = self.record.lock();
        let next = MdtRecord { hash_seed: seed, ..*record };
        let mut tx = self.begin();
        tx.batch().put(META, META_KEY, &next.encode());
        let transno = self.commit(&mut tx)?;
        self.sync_store(transno)?;
        *record = next;
        self.hash_seed.store(seed, Ordering::Relaxed);
        Ok(())
    }

    /// Position of a name in its directory.
    pub(crate) fn hash(&self, name: &[u8]) -> u64 {
        nacre_types::name::name_hash(self.hash_seed(), name)
    }
}
