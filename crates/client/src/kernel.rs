//! The kernel as the client sees it.

/// What the kernel (or another front door) caches on the client's word.
pub trait KernelCaches: Send + Sync {
    /// Every cached name is to be looked up again before its next use.
    fn expire_names(&self);
    /// Attributes and data of an inode are to be dropped. Called from threads that serve no request. False if nobody knows the
    /// inode: an answer about it may still be on its way.
    fn drop_inode(&self, node: u64) -> bool;
    /// Attributes of an inode, but not its data, are to be asked for again. Called while a request for it is served. The answer
    /// is that of [`KernelCaches::drop_inode`].
    fn drop_attributes(&self, node: u64) -> bool;
    /// Cached data in a range of an inode is to be dropped. Called while a write around the cache is served; may have to
    /// wait for other requests.
    fn drop_data(&self, node: u64, offset: u64, len: u64);
}
