//! Space of a target, in requests to metadata and object servers.

/// Space and inodes of a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statfs {
    /// Unit of the block counts in bytes.
    pub block_size: u32,
    /// Blocks of the target.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks for unprivileged users, without the reserve.
    pub blocks_available: u64,
    /// Inodes or objects that the target can have.
    pub files: u64,
    /// Free inodes or objects.
    pub files_free: u64,
    /// State bits (`OS_STATFS_*`: 1 degraded, 2 read-only, 4 no-create, 0x20 no space, 0x40 no inodes).
    pub state: u32,
}
