//! Capabilities: what a metadata target signs so that object targets let a client at an object of a file.

use crate::Fid;
use bitflags::bitflags;
use std::fmt;

/// Bytes of the tag of a capability: HMAC-SHA256, cut to 128 bits.
pub const CAPABILITY_TAG_BYTES: usize = 16;

bitflags! {
    /// What may be done with an object.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Rights: u8 {
        /// Its size, space and times.
        const ATTRIBUTES = 1;
        /// Its data may be read.
        const READ = 2;
        /// Its data may be changed.
        const WRITE = 4;
    }
}

/// A signed right to an object of one client's key. Which object and which key is said elsewhere: by the request that it goes with, and
/// by the certificate of the connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Capability {
    /// What it allows.
    pub rights: Rights,
    /// Number of the key that signed it.
    pub epoch: u32,
    /// When it ends, in seconds since 1970 by the clock of the metadata server.
    pub expires_s: u64,
    /// The signature.
    pub tag: [u8; CAPABILITY_TAG_BYTES],
}

/// The tag is of use to others, so no log shows it.
impl fmt::Debug for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Capability { rights, epoch, expires_s, .. } = self;
        write!(f, "Capability({rights:?}, epoch {epoch}, until {expires_s})")
    }
}

/// What a request to an object target needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectNeed {
    /// The object.
    pub object: Fid,
    /// One of these rights will do.
    pub any_of: Rights,
}

impl Capability {
    /// One that allows nothing: what a request without any was sent with.
    pub const NONE: Capability =
        Capability { rights: Rights::empty(), epoch: 0, expires_s: 0, tag: [0; CAPABILITY_TAG_BYTES] };

    /// True if it has a right that will do.
    pub const fn allows(&self, any_of: Rights) -> bool {
        self.rights.intersects(any_of)
    }
}
