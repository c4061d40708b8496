//! How a write is done.

use crate::file::OpenFile;
use crate::file::folios::Pages;
use crate::file::group::Who;
use nacre_wire::mds::LockOwner;

/// How a write is done, beside where.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriteOptions {
    /// At the end of the file, wherever that is; the offset does not count.
    pub append: bool,
    /// Durable when it returns.
    pub sync: bool,
    /// Set-id bits and capabilities are to be dropped.
    pub kill_priv: bool,
    /// The kernel writes back a page of its cache.
    pub from_cache: bool,
    /// The kernel has put it into its cache, whose pages it keeps locked until the answer.
    pub through_cache: bool,
    /// Around all caches (`O_DIRECT`): on its OSTs when it returns.
    pub direct: bool,
    /// `EAGAIN` rather than wait for a group of this mount that has the file (`O_NONBLOCK`).
    pub hurried: bool,
    /// Owner of `fcntl` locks of the writer, if the kernel names it.
    pub owner: Option<LockOwner>,
}

impl WriteOptions {
    /// The writer.
    pub(crate) fn who(&self, open: &OpenFile) -> Who {
        if self.from_cache { Who::Pages } else { Who::of(open.handle, self.hurried) }
    }

    /// What the kernel has locked until the answer.
    pub(crate) fn pages(&self) -> Option<Pages> {
        match (self.from_cache, self.through_cache) {
            (true, _) => Some(Pages::WrittenBack),
            (_, true) => Some(Pages::PerhapsLast),
            _ => None,
        }
    }
}
