//! What an MDT gives a client that lets it at the objects of a file.

use nacre_types::{CAPABILITY_TAG_BYTES, Fid, Rights};

/// Objects in one [`FileCapabilities`]: more than a layout can have that is stored.
pub const CAPABILITIES_MAX: usize = 1 << 14;

/// Capabilities for the objects of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileCapabilities {
    /// The file.
    pub fid: Fid,
    /// What they allow.
    pub rights: Rights,
    /// Number of the key that signed them.
    pub epoch: u32,
    /// When they end, in seconds since 1970 by the clock of the MDT.
    pub expires_s: u64,
    /// How long that is from now on, in seconds: clocks of clients may be wrong.
    pub life_s: u32,
    /// The objects and the tags for them, at most [`CAPABILITIES_MAX`].
    pub objects: Vec<(Fid, [u8; CAPABILITY_TAG_BYTES])>,
}
