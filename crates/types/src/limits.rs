//! Limits that all parts share. Lustre's values unless said otherwise.

/// Longest file name in bytes.
pub const NAME_MAX: usize = 255;
/// Longest symlink target in bytes.
pub const SYMLINK_MAX: usize = 4095;
/// Longest file system name in bytes.
pub const FSNAME_MAX: usize = 8;
/// Longest pool name in bytes.
pub const POOL_NAME_MAX: usize = 15;
/// Longest extended attribute name in bytes, the kernel's limit.
pub const XATTR_NAME_MAX: usize = 255;
/// Largest extended attribute value in bytes, the kernel's limit.
pub const XATTR_VALUE_MAX: usize = 65536;
/// Largest file size in bytes.
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;
/// Hard links to one file.
pub const LINK_MAX: u32 = 65000;
/// First invalid OST or MDT index.
pub const TARGET_INDEX_MAX: u16 = 0xffe0;
/// First invalid index of the data part of an MDT, which object requests name like an OST: from
/// [`TARGET_INDEX_MAX`] on, in the order of the MDTs.
pub const DATA_INDEX_MAX: u16 = 0xffff;
/// MDTs of one file system: as many as can store data of files.
pub const MDT_COUNT_MAX: u16 = DATA_INDEX_MAX - TARGET_INDEX_MAX;
/// Stripes of one component.
pub const STRIPE_COUNT_MAX: u16 = 2000;
/// Stripe sizes are multiples of this, and at least this.
pub const STRIPE_SIZE_MIN: u32 = 65536;
/// Default stripe size in bytes.
pub const STRIPE_SIZE_DEFAULT: u32 = 4 << 20;
/// Supplementary groups that one request may carry, the kernel's `NGROUPS_MAX`.
pub const GROUPS_MAX: usize = 65536;
/// Entries in one POSIX ACL.
pub const ACL_ENTRIES_MAX: usize = 8188;
/// Largest bulk data of one read or write request, in bytes (Lustre: 64 MiB; this value fits a FUSE request).
pub const BULK_MAX: usize = 4 << 20;
/// Data up to this size is sent inside the request or reply by default (short I/O), in bytes.
pub const SHORT_IO_BYTES: usize = 16 << 10;
/// Default TCP port of servers: an unprivileged port without a common use that ends like Lustre's 988.
pub const PORT_DEFAULT: u16 = 7988;

const _: () = assert!(STRIPE_SIZE_DEFAULT.is_multiple_of(STRIPE_SIZE_MIN));
