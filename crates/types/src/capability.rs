//! Capabilities: signed by a metadata target, they grant a client access to an object on an object target.

use crate::Fid;
use bitflags::bitflags;
use std::fmt;

/// Bytes of the tag of a capability: HMAC-SHA256, cut to 128 bits.
pub const CAPABILITY_TAG_BYTES: usize = 16;

bitflags! {
    /// Rights on an object.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Rights: u8 {
        /// Read its size, space and times.
        const ATTRIBUTES = 1;
        /// Read its data.
        const READ = 2;
        /// Change its data.
        const WRITE = 4;
    }
}

/// A signed right of one client's key to an object. The object comes from the request that carries the
/// capability, the key from the certificate of the connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Capability {
    /// Rights on the object.
    pub rights: Rights,
    /// Number of the key that signed it.
    pub epoch: u32,
    /// Time of expiry, in seconds since 1970 by the clock of the metadata server.
    pub expires_s: u64,
    /// Signature over object, key, rights and expiry.
    pub tag: [u8; CAPABILITY_TAG_BYTES],
}

/// The tag would let others use the capability, so logs do not show it.
impl fmt::Debug for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Capability { rights, epoch, expires_s, .. } = self;
        write!(f, "Capability({rights:?}, epoch {epoch}, until {expires_s})")
    }
}

/// Access that a request to an object target needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectNeed {
    /// Object of the request.
    pub object: Fid,
    /// Rights of which one is enough.
    pub any_of: Rights,
}

impl Capability {
    /// A capability without rights, for requests that carry none.
    pub const NONE: Capability =
        Capability { rights: Rights::empty(), epoch: 0, expires_s: 0, tag: [0; CAPABILITY_TAG_BYTES] };

    /// True if it has at least one of the rights.
    pub const fn allows(&self, any_of: Rights) -> bool {
        self.rights.intersects(any_of)
    }
}
