//! Inode bits: the parts of an inode that a lock covers.

use std::fmt;

/// A set of parts of an inode; the numbers are Lustre's, except that of the last one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct InodeBits(u8);

/// Number of parts.
pub(crate) const INODE_BITS: usize = 8;

impl InodeBits {
    /// The empty set.
    pub const NONE: InodeBits = InodeBits(0);
    /// The names that lead to the inode.
    pub const LOOKUP: InodeBits = InodeBits(1);
    /// Link count and times; for a directory, its entries, too.
    pub const UPDATE: InodeBits = InodeBits(2);
    /// The right to open and close again without a request to the MDT.
    pub const OPEN: InodeBits = InodeBits(4);
    /// The objects that the layout names: they stay the file's, at their offsets.
    pub const LAYOUT: InodeBits = InodeBits(8);
    /// Mode, owner, group, ACL.
    pub const PERM: InodeBits = InodeBits(0x10);
    /// Extended attributes.
    pub const XATTR: InodeBits = InodeBits(0x20);
    /// Data that is stored on the MDT, with the size.
    pub const DOM: InodeBits = InodeBits(0x40);
    /// The components that the layout does not name and those without objects: none is added, none gets
    /// objects. Lustre has no bit for this.
    pub const COMPONENTS: InodeBits = InodeBits(0x80);
    /// Everything.
    pub const ALL: InodeBits = InodeBits(0xff);

    /// Returns the set with these bits; every bit has a meaning.
    pub const fn from_bits(bits: u8) -> Option<InodeBits> {
        Some(InodeBits(bits))
    }

    /// Returns the bits of the set.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// True if the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// True if the sets have a part in common.
    pub const fn overlaps(self, other: InodeBits) -> bool {
        self.0 & other.0 != 0
    }

    /// True if all of `other` is in this set.
    pub const fn contains(self, other: InodeBits) -> bool {
        other.0 & !self.0 == 0
    }

    /// Returns the union of both sets.
    pub const fn union(self, other: InodeBits) -> InodeBits {
        InodeBits(self.0 | other.0)
    }

    /// Returns the intersection of both sets.
    pub const fn intersection(self, other: InodeBits) -> InodeBits {
        InodeBits(self.0 & other.0)
    }

    /// Returns this set without `other`.
    pub const fn without(self, other: InodeBits) -> InodeBits {
        InodeBits(self.0 & !other.0)
    }

    /// Numbers of the parts in the set, from 0.
    pub(crate) fn indices(self) -> impl Iterator<Item = usize> {
        (0..INODE_BITS).filter(move |index| self.0 & (1 << index) != 0)
    }

    /// Returns the set of the part with number `index`, below [`INODE_BITS`].
    pub(crate) const fn of_index(index: usize) -> InodeBits {
        InodeBits(1 << index)
    }
}

impl fmt::Debug for InodeBits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for InodeBits {
    /// Writes `LOOKUP|UPDATE`, `NONE`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; INODE_BITS] =
            ["LOOKUP", "UPDATE", "OPEN", "LAYOUT", "PERM", "XATTR", "DOM", "COMPONENTS"];
        if self.is_empty() {
            return f.write_str("NONE");
        }
        for (place, index) in self.indices().enumerate() {
            if place > 0 {
                f.write_str("|")?;
            }
            f.write_str(NAMES[index])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_have_lustres_numbers_and_names() {
        assert_eq!(InodeBits::ALL.to_string(), "LOOKUP|UPDATE|OPEN|LAYOUT|PERM|XATTR|DOM|COMPONENTS");
        assert_eq!(
            InodeBits::from_bits(0x43),
            Some(InodeBits::LOOKUP.union(InodeBits::UPDATE).union(InodeBits::DOM))
        );
        assert_eq!(InodeBits::from_bits(0x80), Some(InodeBits::COMPONENTS));
        assert_eq!(InodeBits::NONE.to_string(), "NONE");
        assert!(!InodeBits::PERM.overlaps(InodeBits::LOOKUP));
    }
}
