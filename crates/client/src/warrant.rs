//! Warrants: what says that something is still true.

use nacre_lock::LockHandle;

/// What says that something which was learned is still true, see [`crate::Lease::is_in_force`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Warrant {
    /// Nothing.
    #[default]
    None,
    /// The exclusive lease with this number.
    Lease(u64),
    /// A lock on the inode.
    Lock(LockHandle),
}

impl From<u64> for Warrant {
    /// The number of a lease, 0 for none.
    fn from(lease: u64) -> Warrant {
        if lease == 0 { Warrant::None } else { Warrant::Lease(lease) }
    }
}
