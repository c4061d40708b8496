//! Conditions on entries, and their evaluation.

use super::layout::{Part, Shape};
use super::mode::ModeTest;
use super::xattr::XattrTest;
use nacre_types::{Attr, FileKind, Timestamp};
use std::ffi::{CStr, CString};

/// Comparison in `+N`, `N` or `-N`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sign {
    /// Greater than.
    Over,
    /// Equal.
    Is,
    /// Less than.
    Under,
}

impl Sign {
    /// Splits the sign off a number.
    pub fn split(text: &str) -> (Sign, &str) {
        match text.as_bytes().first() {
            Some(b'+') => (Sign::Over, &text[1..]),
            Some(b'-') => (Sign::Under, &text[1..]),
            _ => (Sign::Is, text),
        }
    }
}

/// A number to compare with, in units: a value is rounded up to whole units, as in find(1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Measure {
    /// Comparison.
    pub sign: Sign,
    /// Number of units.
    pub value: u64,
    /// Size of a unit; 1 for plain numbers.
    pub unit: u64,
}

impl Measure {
    /// Returns whether `found` passes.
    pub fn passes(self, found: u64) -> bool {
        let next = found.saturating_add(self.unit);
        match self.sign {
            Sign::Over => found > self.value,
            Sign::Under => next <= self.value,
            Sign::Is => found <= self.value && (next > self.value || found == self.value),
        }
    }
}

/// One of an inode's times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stamp {
    /// Last access (atime).
    Access,
    /// Creation (btime).
    Birth,
    /// Last change of attributes (ctime).
    Change,
    /// Last change of data (mtime).
    Modification,
}

impl Stamp {
    /// Returns the time for a letter of `-newerXY` and `--Xtime`.
    pub fn from_letter(letter: u8) -> Option<Stamp> {
        Some(match letter {
            b'a' => Stamp::Access,
            b'b' | b'B' => Stamp::Birth,
            b'c' => Stamp::Change,
            b'm' => Stamp::Modification,
            _ => return None,
        })
    }

    /// Returns this time of an inode.
    pub fn of(self, attr: &Attr) -> Timestamp {
        match self {
            Stamp::Access => attr.atime,
            Stamp::Birth => attr.btime,
            Stamp::Change => attr.ctime,
            Stamp::Modification => attr.mtime,
        }
    }
}

/// Condition on the hash of a directory: types (0 for unstriped directories) and flags.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Hash {
    /// Accepted types; empty accepts any.
    pub types: Vec<u16>,
    /// Excluded types.
    pub other_types: Vec<u16>,
    /// Flags of which one must be set; 0 accepts any.
    pub flags: u32,
    /// Flags that must be clear.
    pub other_flags: u32,
}

impl Hash {
    fn passes(&self, hash: u32) -> bool {
        let (kind, flags) = (hash as u16, hash & !0xffff);
        let wanted =
            self.types.is_empty() && self.flags == 0 || self.types.contains(&kind) || self.flags & flags != 0;
        wanted && !self.other_types.contains(&kind) && self.other_flags & flags == 0
    }
}

/// Distribution of a directory's names over MDTs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Spread {
    /// MDT of each shard; empty for an unstriped directory.
    pub mdts: Vec<u32>,
    /// Number of the hash, with flags.
    pub hash: u32,
}

/// A condition, without its negation.
#[derive(Debug)]
pub enum What {
    /// Pattern of glob(7) that the last component of the path matches.
    Name(CString),
    /// Kind of file; `None` for a kind that NacreFS does not have.
    Kind(Option<FileKind>),
    /// Test of permissions.
    Mode(ModeTest),
    /// Number of hard links.
    Links(Measure),
    /// Size in bytes.
    Size(Measure),
    /// Space used, in bytes.
    Blocks(Measure),
    /// Numeric id of the owner.
    Uid(u32),
    /// Numeric id of the group.
    Gid(u32),
    /// Number of the project.
    Project(u32),
    /// Age: a time, with the tolerance of "equal".
    Age {
        /// Time of the inode to compare.
        stamp: Stamp,
        /// Older (`Over`), of that age, or younger.
        sign: Sign,
        /// Time of that age, in seconds since 1970.
        moment: i64,
        /// Tolerance in seconds.
        margin: i64,
    },
    /// A time of the inode is later than this one.
    Newer(Stamp, Timestamp),
    /// The inode is on one of these MDTs.
    Mdt(Vec<u32>),
    /// Directories with this number of shards; unstriped ones have none.
    MdtCount(Measure),
    /// Directories with this hash.
    MdtHash(Hash),
    /// Inode attributes that must be set.
    Attrs(u64),
    /// At least one object is on one of these OSTs.
    Osts(Vec<u32>),
    /// Stripe count of the main component.
    StripeCount(Measure),
    /// Stripe size of the main component in bytes.
    StripeSize(Measure),
    /// Growth step of an extendable component in bytes.
    ExtensionSize(Measure),
    /// Pool of a component.
    Pool(String),
    /// Pattern bits of a component.
    Pattern(u32),
    /// Number of components.
    ComponentCount(Measure),
    /// Number of mirrors.
    MirrorCount(Measure),
    /// State of the mirrors; true for "any but this".
    MirrorState(bool, u16),
    /// A foreign layout, of this type if one is given.
    Foreign(Option<u32>),
    /// Extended attribute with a matching name and value.
    Xattr(XattrTest),
}

/// A condition on a single component; one component must meet all of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PartTest {
    /// Start of its extent.
    Start(Measure),
    /// End of its extent.
    End(Measure),
    /// Flags that are set, and flags that are clear.
    Flags(u32, u32),
}

impl PartTest {
    fn passes(self, part: &Part<'_>) -> bool {
        match self {
            PartTest::Start(measure) => measure.passes(part.start),
            PartTest::End(measure) => measure.passes(part.end),
            PartTest::Flags(set, clear) => part.flags & set == set && part.flags & clear == 0,
        }
    }
}

/// Data that a condition needs, in order of cost.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Needs {
    /// Name and attributes as the MDT has them.
    Listing,
    /// Size, space or times of data, of which writers have the newest values.
    Data,
    /// Layout of the entry.
    Layout,
    /// Extended attributes of the entry.
    Xattrs,
}

/// A condition, possibly negated.
#[derive(Debug)]
pub struct Test {
    /// The condition is negated (`!`).
    pub negated: bool,
    /// Condition to test.
    pub what: What,
}

/// Known data of an entry.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Last component of its path.
    pub name: &'a CStr,
    /// Attributes of the entry.
    pub attr: &'a Attr,
}

impl Test {
    /// Returns the data that the condition needs.
    pub fn needs(&self) -> Needs {
        match self.what {
            What::Size(_) | What::Blocks(_) => Needs::Data,
            What::Age { stamp, .. } | What::Newer(stamp, _) => match stamp {
                Stamp::Modification | Stamp::Change | Stamp::Access => Needs::Data,
                Stamp::Birth => Needs::Listing,
            },
            What::Osts(_)
            | What::StripeCount(_)
            | What::StripeSize(_)
            | What::ExtensionSize(_)
            | What::Pool(_)
            | What::Pattern(_)
            | What::ComponentCount(_)
            | What::MirrorCount(_)
            | What::MirrorState(..)
            | What::Foreign(_) => Needs::Layout,
            What::Xattr(_) | What::MdtCount(_) | What::MdtHash(_) => Needs::Xattrs,
            _ => Needs::Listing,
        }
    }

    /// Returns whether an entry passes a condition on its name and attributes.
    pub fn passes_attr(&self, subject: &Subject<'_>) -> bool {
        let attr = subject.attr;
        let holds = match &self.what {
            What::Name(pattern) => matches_glob(pattern, subject.name),
            What::Kind(kind) => *kind == Some(attr.kind()),
            What::Mode(test) => test.passes(attr.mode),
            What::Links(measure) => measure.passes(u64::from(attr.nlink)),
            What::Size(measure) => measure.passes(attr.size),
            What::Blocks(measure) => measure.passes(attr.blocks.saturating_mul(512)),
            What::Uid(uid) => attr.uid == *uid,
            What::Gid(gid) => attr.gid == *gid,
            What::Project(project) => attr.projid == *project,
            What::Age { stamp, sign, moment, margin } => {
                is_of_age(stamp.of(attr).sec, *sign, *moment, *margin)
            }
            What::Newer(stamp, moment) => stamp.of(attr) > *moment,
            What::Mdt(indexes) => indexes.contains(&u32::from(attr.fid.mdt_index())),
            // Files have no attributes that a condition can name.
            What::Attrs(set) => *set == 0,
            _ => return true,
        };
        holds != self.negated
    }

    /// Returns true for conditions on the distribution of a directory's names, which match directories only,
    /// with or without negation.
    pub fn is_about_spread(&self) -> bool {
        matches!(self.what, What::MdtCount(_) | What::MdtHash(_))
    }

    /// Returns whether a directory passes such a condition.
    pub fn passes_spread(&self, spread: &Spread) -> bool {
        let holds = match &self.what {
            What::MdtCount(measure) => measure.passes(spread.mdts.len() as u64),
            What::MdtHash(hash) => hash.passes(spread.hash),
            _ => return true,
        };
        holds != self.negated
    }

    /// Returns whether an entry passes a condition on its layout. An entry without a layout passes none.
    pub fn passes_layout(&self, shape: &Shape) -> bool {
        let compare =
            |measure: &Measure, value: Option<u64>| value.is_some_and(|value| measure.passes(value));
        let holds = match &self.what {
            What::Osts(wanted) => shape.osts().any(|ost| wanted.contains(&ost)),
            What::StripeCount(measure) => measure.passes(shape.stripe_count()),
            What::StripeSize(measure) => compare(measure, shape.stripe_size()),
            What::ExtensionSize(measure) => shape.extension_sizes().any(|size| measure.passes(size)),
            What::Pool(pool) => shape.has_pool(pool),
            What::Pattern(bits) => shape.has_pattern(*bits),
            // As in Lustre: a foreign layout has no number of components, so a negated test does not match
            // either.
            What::ComponentCount(_) if matches!(shape, Shape::Foreign(_)) => return false,
            What::ComponentCount(measure) => measure.passes(shape.component_count()),
            What::MirrorCount(measure) => compare(measure, shape.mirror_count().map(u64::from)),
            What::MirrorState(other, state) => {
                shape.mirror_state() != 0 && (shape.mirror_state() == *state) != *other
            }
            What::Foreign(wanted) => match shape {
                Shape::Foreign(kind) => wanted.is_none_or(|wanted| wanted == *kind),
                Shape::None | Shape::Striped(_) => false,
            },
            _ => return true,
        };
        holds != self.negated
    }
}

/// Returns true if one component passes all tests; the flag of each negates it.
pub fn some_part_passes(tests: &[(bool, PartTest)], shape: &Shape) -> bool {
    tests.is_empty()
        || shape.parts().iter().any(|part| tests.iter().all(|(negated, test)| test.passes(part) != *negated))
}

fn is_of_age(time: i64, sign: Sign, moment: i64, margin: i64) -> bool {
    let end = time.saturating_add(margin);
    match sign {
        Sign::Over => end <= moment,
        Sign::Is => time <= moment && end > moment,
        Sign::Under => time > moment,
    }
}

fn matches_glob(pattern: &CStr, name: &CStr) -> bool {
    // SAFETY: both are NUL-terminated strings.
    unsafe { libc::fnmatch(pattern.as_ptr(), name.as_ptr(), 0) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn measure(sign: Sign, value: u64, unit: u64) -> Measure {
        Measure { sign, value, unit }
    }

    proptest! {
        /// find(1) rounds sizes up to units before it compares.
        #[test]
        fn sizes_compare_as_in_find(found in 0u64..1 << 40, count in 0u64..1 << 20, shift in 0u32..30) {
            let unit = 1 << shift;
            let rounded = found.div_ceil(unit);
            let test = |sign| measure(sign, count * unit, unit).passes(found);
            prop_assert_eq!(test(Sign::Over), rounded > count);
            prop_assert_eq!(test(Sign::Is), rounded == count);
            prop_assert_eq!(test(Sign::Under), rounded < count);
        }

        /// find(1) rounds ages down to days before it compares.
        #[test]
        fn ages_compare_as_in_find(time in -1i64 << 40..1 << 40, now in 0i64..1 << 40, count in 0i64..1 << 20, margin in 1i64..100_000) {
            let rounded = (now - time).div_euclid(margin);
            let test = |sign| is_of_age(time, sign, now - count * margin, margin);
            prop_assert_eq!(test(Sign::Over), rounded > count);
            prop_assert_eq!(test(Sign::Is), rounded == count);
            prop_assert_eq!(test(Sign::Under), rounded < count);
        }
    }

    #[test]
    fn the_end_of_the_file_is_a_number_like_others() {
        assert!(measure(Sign::Is, u64::MAX, 1).passes(u64::MAX));
        assert!(!measure(Sign::Is, u64::MAX, 1).passes(u64::MAX - 2));
        assert!(measure(Sign::Over, 1 << 60, 1).passes(u64::MAX));
        assert!(!measure(Sign::Under, 1 << 60, 1).passes(u64::MAX));
    }

    #[test]
    fn directories_are_chosen_by_how_their_names_are_spread() {
        let whole = Spread::default();
        let striped = Spread { mdts: vec![0, 1, 2, 3], hash: 0x8000_0003 };
        for negated in [false, true] {
            let test = Test { negated, what: What::MdtCount(measure(Sign::Over, 2, 1)) };
            assert!(test.is_about_spread() && test.needs() == Needs::Xattrs);
            assert_eq!((test.passes_spread(&striped), test.passes_spread(&whole)), (!negated, negated));
        }
        let passes = |hash: Hash| {
            let test = Test { negated: false, what: What::MdtHash(hash) };
            [&whole, &striped].map(|spread| test.passes_spread(spread))
        };
        let of_types = |types: &[u16]| Hash { types: types.to_vec(), ..Hash::default() };
        assert_eq!(passes(of_types(&[3, 4])), [false, true]);
        assert_eq!(passes(of_types(&[0])), [true, false]);
        assert_eq!(passes(of_types(&[1])), [false, false]);
        assert_eq!(passes(Hash { other_types: vec![3], ..Hash::default() }), [true, false]);
        assert_eq!(passes(Hash { flags: 0x8000_0000, ..Hash::default() }), [false, true]);
        assert_eq!(passes(Hash { other_flags: 0x8000_0000, ..of_types(&[3]) }), [false, false]);
    }
}
