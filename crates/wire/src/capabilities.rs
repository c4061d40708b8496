//! Capabilities: an MDT's proof to OSTs that a client may access the objects of a file.

use nacre_types::{CAPABILITY_TAG_BYTES, Fid, Rights};

/// Objects in one [`FileCapabilities`]: above the most that a stored layout can have.
pub const CAPABILITIES_MAX: usize = 1 << 14;

/// Capabilities for the objects of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileCapabilities {
    /// File that the objects belong to.
    pub fid: Fid,
    /// Rights on the objects.
    pub rights: Rights,
    /// Number of the key that signed the tags.
    pub epoch: u32,
    /// Time of expiry, in seconds since 1970 by the clock of the MDT.
    pub expires_s: u64,
    /// Remaining life at the time of sending, in seconds: clocks of clients may be wrong.
    pub life_s: u32,
    /// Objects with their tags, at most [`CAPABILITIES_MAX`].
    pub objects: Vec<(Fid, [u8; CAPABILITY_TAG_BYTES])>,
}
