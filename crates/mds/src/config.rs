//! Settings of a metadata server.

use crate::osts::Qos;
use nacre_layout::dir_hash::DirHash;
use nacre_layout::{ComponentFlags, ComponentSpec, Extent, LayoutSpec, PoolName, Wish};
use nacre_store::MetaStoreOptions;
use nacre_types::User;
use std::io;
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
    /// How names are spread over MDTs where nobody says how.
    pub default_hash: DirHash,
    /// Default of the root that [`crate::Mds::format`] gives a new file system: what is asked for nothing else gets it. Empty for none.
    pub root_layout: Wish,
    /// How long a client has to drop its caches when it is called back; can be changed later (`ldlm_timeout`). Guess: enough
    /// to write out what a mount holds back.
    pub release_timeout: Duration,
    /// How long clients of an earlier run may take to come back before their open files are closed.
    pub recovery_window: Duration,
    /// Inode records kept in memory, at about 300 bytes each.
    pub cached_inodes: usize,
    /// Creates are refused when the MDT's file system has less than this many bytes left. `None`: 64 MiB; of a small file system
    /// a 24th, but at least 16 MiB where that is no more than a 16th. Guess: leaves room for the log and one move to the base.
    pub reserve_bytes: Option<u64>,
    /// Writes of data to this MDT are refused when its file system has less than this many bytes left. `None`: twice what creates
    /// leave.
    /// Guess: so that a file system that is full of data still takes names.
    pub data_reserve_bytes: Option<u64>,
    /// Largest size in bytes of components on the MDT in new layouts (`lod.*.dom_stripesize`); 0 for none.
    pub dom_stripe_bytes: u64,
    /// An MDT that is made keeps data of files in an object store of its own ([`crate::Mds::open_with`]), not in its metadata store.
    pub data_apart: bool,
    /// How OSTs are chosen; can be changed later. Lustre's defaults.
    pub qos: Qos,
    /// How long a first write waits for object ids when no OST has any ready.
    pub object_wait: Duration,
    /// Asks the user database: whose groups are whose, for clients whose word does not count.
    pub find_user: fn(u32) -> io::Result<Option<User>>,
    /// The store's settings.
    pub store: MetaStoreOptions,
}

/// What files get that are made with `O_APPEND`, whatever their directory says: mostly logs, which do not gain from many
/// stripes. Source: reference 1.1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AppendLayout {
    /// Stripes, or [`STRIPE_COUNT_ALL`](nacre_layout::layout::STRIPE_COUNT_ALL); `None` lets the directory decide all (`mdd.*.append_stripe_count`).
    pub stripe_count: Option<u16>,
    /// Pool; `None` is that of the directory (`mdd.*.append_pool`).
    pub pool: Option<PoolName>,
}

impl Default for AppendLayout {
    fn default() -> AppendLayout {
        AppendLayout { stripe_count: Some(1), pool: None }
    }
}

impl AppendLayout {
    /// The wish of a new file in a directory with the wish `directory`; `None` if that is as it is.
    pub fn wish(&self, directory: &Wish) -> Option<Wish> {
        let stripe_count = self.stripe_count?;
        let inherited = directory.inherited();
        let pool = self.pool.or(inherited.pool);
        Some(Wish::Plain(LayoutSpec { stripe_count: Some(stripe_count), pool, ..inherited }))
    }
}

/// The default layout of a new file system: the first 64 KiB on the MDT if a file's first data is small, as many OSTs as the file
/// system says (`lov.stripecount`, one unless set) up to 1 GiB, and four behind that. Source of the numbers: measured, decision 0011.
pub fn first_layout() -> Wish {
    let part = |start, end, spec| ComponentSpec {
        extent: Extent { start, end },
        flags: ComponentFlags::default(),
        spec,
    };
    Wish::Composite(vec![
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
            root_layout: Wish::default(),
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
            store: MetaStoreOptions::default(),
        }
    }
}
