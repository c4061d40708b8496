//! Keys as the overlay's maps hold them: in the tree's nodes, without a pointer to follow, unless they are long.

use std::borrow::Borrow;
use std::cmp::Ordering;

/// Longest full key kept in the node: table, FID and a name of 21 bytes, which most are shorter than.
const INLINE_LEN: usize = 38;

/// A full key (table byte first).
pub(crate) enum Key {
    Inline { len: u8, bytes: [u8; INLINE_LEN] },
    Long(Box<[u8]>),
}

const _: () = assert!(size_of::<Key>() == 40, "eleven keys of a tree node lie on seven cache lines");

impl Key {
    /// Bytes that a key takes outside the node.
    pub(crate) fn heap_len(key: &[u8]) -> usize {
        if key.len() > INLINE_LEN { key.len() } else { 0 }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Key::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Key::Long(bytes) => bytes,
        }
    }
}

impl From<&[u8]> for Key {
    fn from(key: &[u8]) -> Self {
        if key.len() > INLINE_LEN {
            return Key::Long(Box::from(key));
        }
        let mut bytes = [0; INLINE_LEN];
        bytes[..key.len()].copy_from_slice(key);
        Key::Inline { len: key.len() as u8, bytes }
    }
}

// Order and equality are those of the bytes, as `Borrow` demands.
impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        self.as_slice()
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_slice().cmp(other.as_slice())
    }
}
