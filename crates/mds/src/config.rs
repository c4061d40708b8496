//! Settings of a metadata server.

use nacre_layout::LayoutSpec;
use nacre_store::MetaStoreOptions;
use std::time::Duration;

/// Largest component on an MDT in bytes unless set otherwise. Source: reference 4.10.
pub const DOM_STRIPE_BYTES: u64 = 1 << 20;

/// Settings of an [`crate::Mds`]; all may differ from one start to the next.
#[derive(Clone, Debug)]
pub struct MdsConfig {
    /// Index of this MDT; must be the one it was formatted with.
    pub index: u16,
    /// Striping of files where neither they nor their directories nor the root say anything.
    pub default_layout: LayoutSpec,
    /// How long a client has to drop its caches when it is called back; can be changed later (`ldlm_timeout`). Guess: enough
    /// to write out what a mount holds back.
    pub release_timeout: Duration,
    /// How long clients of an earlier run may take to come back before their open files are closed.
    pub recovery_window: Duration,
    /// Inode records kept in memory, at about 300 bytes each.
    pub cached_inodes: usize,
    /// Creates are refused when the MDT's file system has less than this many bytes left. Guess: leaves room for the log
    /// and one move to the base.
    pub reserve_bytes: u64,
    /// Writes of data to this MDT are refused when its file system has less than this many bytes left. Guess: twice what
    /// creates leave, so that a file system that is full of data still takes names.
    pub data_reserve_bytes: u64,
    /// Largest size in bytes of components on the MDT in new layouts (`lod.*.dom_stripesize`); 0 for none.
    pub dom_stripe_bytes: u64,
    /// Difference in free space in percent up to which OSTs are used in turn (Lustre: `qos_threshold_rr`, 17).
    pub even_within_percent: u8,
    /// How long a first write waits for object ids when no OST has any ready.
    pub object_wait: Duration,
    /// The store's settings.
    pub store: MetaStoreOptions,
}

impl Default for MdsConfig {
    fn default() -> MdsConfig {
        MdsConfig {
            index: 0,
            default_layout: LayoutSpec::default(),
            release_timeout: Duration::from_secs(10),
            recovery_window: Duration::from_secs(30),
            cached_inodes: 256 << 10,
            reserve_bytes: 64 << 20,
            data_reserve_bytes: 128 << 20,
            dom_stripe_bytes: DOM_STRIPE_BYTES,
            even_within_percent: 17,
            object_wait: Duration::from_secs(20),
            store: MetaStoreOptions::default(),
        }
    }
}
