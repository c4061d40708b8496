//! One open of a directory.

pub(crate) mod ahead;
pub(crate) mod merge;
pub(crate) mod origin;

use crate::caller::Caller;
use crate::open_dir::ahead::PageAhead;
use crate::open_dir::merge::Merge;
use nacre_env::sync::Mutex;
use nacre_types::Fid;
use std::sync::atomic::{AtomicBool, Ordering};

/// An open directory.
pub(crate) struct OpenDir {
    /// Version of the list of shards that it is in, if it is a shard.
    pub version: Option<u32>,
    pub fid: Fid,
    /// Credentials of the open; an MDT that does not trust this client checks them again for each page.
    pub opener: Caller,
    pub ahead: PageAhead,
    /// Merged listing of a directory with shards.
    pub merge: Mutex<Option<Merge>>,
    /// True if the permission to list it is not checked yet.
    pub unchecked: AtomicBool,
}

impl OpenDir {
    pub fn new(fid: Fid, version: Option<u32>, opener: Caller) -> OpenDir {
        let (ahead, merge) = (PageAhead::default(), Mutex::new(None));
        OpenDir { fid, version, opener, ahead, merge, unchecked: AtomicBool::new(false) }
    }

    pub fn is_unchecked(&self) -> bool {
        self.unchecked.load(Ordering::Acquire)
    }

    pub fn was_checked(&self) {
        self.unchecked.store(false, Ordering::Release);
    }
}
