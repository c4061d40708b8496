//! Policy for objects' data in the server's page cache.

use std::sync::atomic::{AtomicU64, Ordering};

/// The policy; fields are parameters of Lustre's back ends with the same names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CachePolicy {
    /// `read_cache_enable`: reads go through the cache.
    pub read: bool,
    /// `writethrough_cache_enable`: writes go through the cache.
    pub write: bool,
    /// `readcache_max_io_mb`, in bytes: reads of this size or more bypass it.
    pub read_max_bytes: u64,
    /// `writethrough_max_io_mb`, in bytes: writes of this size or more bypass it.
    pub write_max_bytes: u64,
    /// `readcache_max_filesize`, in bytes: transfers that end beyond this offset bypass it.
    pub file_max_bytes: u64,
}

impl CachePolicy {
    /// All transfers go through the cache.
    pub const ALL: CachePolicy = CachePolicy {
        read: true,
        write: true,
        read_max_bytes: u64::MAX,
        write_max_bytes: u64::MAX,
        file_max_bytes: u64::MAX,
    };
    /// All transfers bypass the cache.
    pub const NONE: CachePolicy = CachePolicy { read: false, write: false, ..CachePolicy::ALL };
}

/// The policy in force, which may be changed during transfers.
#[derive(Debug)]
pub struct PolicyCell {
    read: AtomicU64,
    write: AtomicU64,
    read_max_bytes: AtomicU64,
    write_max_bytes: AtomicU64,
    file_max_bytes: AtomicU64,
}

impl PolicyCell {
    pub(super) fn new(policy: CachePolicy) -> PolicyCell {
        let cell = PolicyCell {
            read: AtomicU64::new(0),
            write: AtomicU64::new(0),
            read_max_bytes: AtomicU64::new(0),
            write_max_bytes: AtomicU64::new(0),
            file_max_bytes: AtomicU64::new(0),
        };
        cell.set(policy);
        cell
    }

    /// Changes the policy for transfers that begin from now on; cached data stays. Transfers whose offset,
    /// length or memory does not have the medium's alignment cannot bypass the cache.
    pub fn set(&self, policy: CachePolicy) {
        self.read.store(policy.read.into(), Ordering::Relaxed);
        self.write.store(policy.write.into(), Ordering::Relaxed);
        self.read_max_bytes.store(policy.read_max_bytes, Ordering::Relaxed);
        self.write_max_bytes.store(policy.write_max_bytes, Ordering::Relaxed);
        self.file_max_bytes.store(policy.file_max_bytes, Ordering::Relaxed);
    }

    /// Returns the policy.
    pub fn get(&self) -> CachePolicy {
        CachePolicy {
            read: self.read.load(Ordering::Relaxed) != 0,
            write: self.write.load(Ordering::Relaxed) != 0,
            read_max_bytes: self.read_max_bytes.load(Ordering::Relaxed),
            write_max_bytes: self.write_max_bytes.load(Ordering::Relaxed),
            file_max_bytes: self.file_max_bytes.load(Ordering::Relaxed),
        }
    }

    /// Whether a transfer bypasses the cache, if it can.
    pub(super) fn goes_around(&self, is_write: bool, offset: u64, len: u64) -> bool {
        let (enabled, max_bytes) = match is_write {
            true => (&self.write, &self.write_max_bytes),
            false => (&self.read, &self.read_max_bytes),
        };
        enabled.load(Ordering::Relaxed) == 0
            || len >= max_bytes.load(Ordering::Relaxed)
            || offset.saturating_add(len) > self.file_max_bytes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_go_around_the_cache_as_the_rule_says() {
        let policy = CachePolicy { write_max_bytes: 4096, file_max_bytes: 1 << 20, ..CachePolicy::ALL };
        let cell = PolicyCell::new(policy);
        assert_eq!(cell.get(), policy);
        assert!(!cell.goes_around(true, 0, 4095) && cell.goes_around(true, 0, 4096));
        assert!(!cell.goes_around(false, 0, 1 << 20) && cell.goes_around(false, 1, 1 << 20));
        cell.set(CachePolicy { read: false, ..policy });
        assert!(cell.goes_around(false, 0, 1) && !cell.goes_around(true, 0, 1));
    }
}
