//! The kernel as the client sees it.

/// Caches in the kernel (or another front door) that the client has to invalidate.
pub trait KernelCaches: Send + Sync {
    /// Makes every cached name be looked up again before its next use.
    fn expire_names(&self);
    /// Drops attributes and data of an inode. Called from threads that serve no request. False if the kernel
    /// does not know the inode: a reply with it may still be on its way.
    fn drop_inode(&self, node: u64) -> bool;
    /// Drops attributes of an inode, but not its data. Called while a request for the inode is served.
    /// Returns the same as [`KernelCaches::drop_inode`].
    fn drop_attributes(&self, node: u64) -> bool;
    /// Drops cached data in a range of an inode. Called while a write around the cache is served; may have to
    /// wait for other requests.
    fn drop_data(&self, node: u64, offset: u64, len: u64);
}
