//! Settings of a metadata server.

use crate::osts::Qos;
use nacre_layout::dir_hash::DirHash;
use nacre_layout::{ComponentFlags, ComponentSpec, Extent, LayoutRequest, LayoutSpec, PoolName};
use nacre_store::MetaStoreOptions;
use nacre_types::User;
use std::io;
use std::time::Duration;

/// Largest component on an MDT in bytes, unless configured.
pub const DOM_STRIPE_BYTES: u64 = 1 << 20;

/// Settings of an [`crate::Mds`]; all may differ from one start to the next.
#[derive(Clone, Debug)]
pub struct MdsConfig {
    /// Index of this MDT; must match the index it was formatted with.
    pub index: u16,
    /// Striping of files for which neither they nor their directories nor the root specify any.
    pub default_layout: LayoutSpec,
    /// Hash of names in striped directories for which none is specified.
    pub default_hash: DirHash,
    /// Default layout of the root that [`crate::Mds::format`] gives a new file system: files without another
    /// specification get it. Empty for none.
    pub root_layout: LayoutRequest,
    /// Time for a client to drop its caches after a blocking callback; can be changed later (`ldlm_timeout`).
    /// Estimate: enough to write out what a mount holds back.
    pub release_timeout: Duration,
    /// Recovery window: time for clients of an earlier run to reconnect before their open files are closed.
    pub recovery_window: Duration,
    /// Number of inode records cached in memory, at about 300 bytes each.
    pub cached_inodes: usize,
    /// Free bytes of the MDT's file system below which creates are refused. `None`: 64 MiB; of a small file
    /// system a 24th, but at least 16 MiB where that is no more than a 16th. Estimate: leaves space for the
    /// log and one checkpoint.
    pub reserve_bytes: Option<u64>,
    /// Free bytes of the MDT's file system below which writes of data to this MDT are refused. `None`: twice
    /// the reserve for creates. Estimate: a file system full of data must still accept names.
    pub data_reserve_bytes: Option<u64>,
    /// Largest size in bytes of components on the MDT in new layouts (`lod.*.dom_stripesize`); 0 for none.
    pub dom_stripe_bytes: u64,
    /// True to format an MDT with an object store of its own for data of files ([`crate::Mds::open_with`]),
    /// instead of its metadata store.
    pub data_apart: bool,
    /// Parameters for the choice of OSTs; can be changed later. The defaults are Lustre's.
    pub qos: Qos,
    /// How long a first write waits for object ids when no OST has any available.
    pub object_wait: Duration,
    /// Looks up a user and its groups in the user database, for clients whose own credentials are not
    /// trusted.
    pub find_user: fn(u32) -> io::Result<Option<User>>,
    /// Rate of the continuous check in use, in inodes per second (`mdd.*.lfsck_speed_limit`); 0 for none.
    pub scrub_rate: u64,
    /// Settings of the metadata store.
    pub store: MetaStoreOptions,
}

/// Usual rate of the continuous check in use: a percent or less of what an MDT can do, a million inodes in three
/// hours.
pub const SCRUB_RATE: u64 = 100;

/// Layout of files created with `O_APPEND`, regardless of their directory: mostly logs, which gain nothing
/// from many stripes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AppendLayout {
    /// Stripe count, or [`STRIPE_COUNT_ALL`](nacre_layout::layout::STRIPE_COUNT_ALL); with `None` the
    /// directory's layout applies (`mdd.*.append_stripe_count`).
    pub stripe_count: Option<u16>,
    /// Pool; with `None` the directory's (`mdd.*.append_pool`).
    pub pool: Option<PoolName>,
}

impl Default for AppendLayout {
    fn default() -> AppendLayout {
        AppendLayout { stripe_count: Some(1), pool: None }
    }
}

impl AppendLayout {
    /// Returns the specification for a new file in a directory with the specification `directory`; `None` if
    /// the directory's applies unchanged.
    pub fn requested(&self, directory: &LayoutRequest) -> Option<LayoutRequest> {
        let stripe_count = self.stripe_count?;
        let inherited = directory.inherited();
        let pool = self.pool.or(inherited.pool);
        Some(LayoutRequest::Plain(LayoutSpec { stripe_count: Some(stripe_count), pool, ..inherited }))
    }
}

/// Returns the default layout of a new file system: the first 64 KiB on the MDT if a file's first data is
/// small, then up to 1 GiB the default number of stripes (`lov.stripecount`, one unless set), and four
/// stripes beyond. Decision 0011 has the measurements behind the numbers.
pub fn first_layout() -> LayoutRequest {
    let part = |start, end, spec| ComponentSpec {
        extent: Extent { start, end },
        flags: ComponentFlags::default(),
        spec,
    };
    LayoutRequest::Composite(vec![
        part(0, 64 << 10, LayoutSpec::ON_MDT),
        part(64 << 10, 1 << 30, LayoutSpec::default()),
        part(1 << 30, Extent::EOF, LayoutSpec { stripe_count: Some(4), ..LayoutSpec::default() }),
    ])
}

impl Default for MdsConfig {
    fn default() -> MdsConfig {
        MdsConfig {
            index: 0,
            default_layout: LayoutSpec::default(),
            default_hash: DirHash::default(),
            root_layout: LayoutRequest::default(),
            release_timeout: Duration::from_secs(10),
            recovery_window: Duration::from_secs(30),
            cached_inodes: 256 << 10,
            reserve_bytes: None,
            data_reserve_bytes: None,
            dom_stripe_bytes: DOM_STRIPE_BYTES,
            data_apart: false,
            qos: Qos { threshold_rr_pct: 17, statfs_age: Duration::from_secs(5), prio_free_pct: 90 },
            object_wait: Duration::from_secs(20),
            find_user: nacre_env::users::find_user,
            scrub_rate: 0,
            store: MetaStoreOptions::default(),
        }
    }
}
