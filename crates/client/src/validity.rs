//! Validity: proof that cached information is valid.

use nacre_lock::LockHandle;

/// Proof that information from a server is still true, see [`crate::Lease::is_in_force`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Validity {
    /// No proof: the information may be outdated.
    #[default]
    None,
    /// The exclusive lease with this number.
    Lease(u64),
    /// A lock on the inode.
    Lock(LockHandle),
}

impl From<u64> for Validity {
    /// Converts the number of a lease, 0 for none.
    fn from(lease: u64) -> Validity {
        if lease == 0 { Validity::None } else { Validity::Lease(lease) }
    }
}
