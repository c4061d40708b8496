//! Leases: what a client may cache of an MDT, and what the owner of an open file may rely on.

/// Right of a client to cache, see the `lock` crate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseGrant {
    /// True if the client is the only one, so that it may cache everything until the lease is revoked.
    pub exclusive: bool,
    /// Grows with every change of `exclusive` at this server.
    pub epoch: u64,
}

/// Guarantee for the owner of an open file while its lease holds. A lease ends without a notification when
/// another client does what it excludes; its owner learns of that when it queries, returns or uses the lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum LeaseKind {
    /// No lease.
    #[default]
    None = 0,
    /// No other client has opened the file for writing.
    Read = 1,
    /// No other client has opened the file.
    Write = 2,
    /// No other client reads or writes the data: they wait. Cannot be broken, ends with the handle.
    Frozen = 3,
}
