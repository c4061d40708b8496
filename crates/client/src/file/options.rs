//! How a write is done.

use crate::file::OpenFile;
use crate::file::folios::Pages;
use crate::file::group::Who;
use nacre_wire::mds::LockOwner;

/// How a write is done, in addition to where.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriteOptions {
    /// The data goes to the end of the file at that moment; the offset does not count.
    pub append: bool,
    /// The data is durable when the write returns.
    pub sync: bool,
    /// The write drops set-id bits and capabilities.
    pub kill_priv: bool,
    /// The kernel writes back a page of its cache.
    pub from_cache: bool,
    /// The kernel has put the data into its cache, whose pages it keeps locked until the reply.
    pub through_cache: bool,
    /// The write bypasses all caches (`O_DIRECT`): the data is on its OSTs when the write returns.
    pub direct: bool,
    /// The write fails with `EAGAIN` rather than wait for a group of this mount that has the file
    /// (`O_NONBLOCK`).
    pub hurried: bool,
    /// Owner of the writer's `fcntl` locks, if the kernel names it.
    pub owner: Option<LockOwner>,
    /// No quota applies to the writer: root. Set by the write itself.
    pub is_exempt: bool,
}

impl WriteOptions {
    /// Returns the origin of the write, for groups.
    pub(crate) fn who(&self, open: &OpenFile) -> Who {
        if self.from_cache { Who::Pages } else { Who::of(open.handle, self.hurried) }
    }

    /// Returns which pages the kernel keeps locked until the reply.
    pub(crate) fn pages(&self) -> Option<Pages> {
        match (self.from_cache, self.through_cache) {
            (true, _) => Some(Pages::WrittenBack),
            (_, true) => Some(Pages::PerhapsLast),
            _ => None,
        }
    }
}
