//! The default layout for new directories in a directory, in Lustre's binary form (`lmv_user_md`,
//! `trusted.dmv`).
//!
//! ```text
//!  0 magic u32      4 count i32            8 index u32 (all ones: by space)   12 hash u16     14 flags u16
//! 16 type, zeros    20 levels u8           21 levels round-robin u8           22 zeros
//! 32 pool, zeros    48 with a list of MDTs, 24 bytes for each: 20 of no meaning, MDT u32
//! ```

use crate::dir_hash::DirHash;
use crate::dir_layout::{DirError, DirFlags, MAGIC_SHARD, SHARDS_MAX, USER_HEADER, USER_ROW, u32_at};
use nacre_types::limits::TARGET_INDEX_MAX;

/// Magic of a default layout, and of a requested layout.
pub const MAGIC_DEFAULT: u32 = 0x0CD3_0CD0;
/// Magic of a default layout with a list of MDTs.
pub const MAGIC_DEFAULT_LIST: u32 = MAGIC_SHARD;
/// Largest number of shards on one MDT.
pub const PER_MDT_MAX: i32 = 5;

const INDEX_ANY: u32 = u32::MAX;

/// Number of levels below for which new directories inherit a default, in Lustre's encoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inherit(pub u8);

impl Inherit {
    /// All levels.
    pub const UNLIMITED: Inherit = Inherit(0);
    /// The last level: new directories use it as their layout, and do not inherit it as their default.
    pub const END: Inherit = Inherit(1);
    /// Largest number of levels.
    pub const MAX: u8 = 250;
    /// No level: new directories do not use it either.
    pub const NONE: Inherit = Inherit(255);

    /// Returns Lustre's number for a default that gives none: few levels if each directory is on many MDTs.
    pub fn usual(count: i32, is_overstriped: bool) -> Inherit {
        match count {
            _ if is_overstriped => Inherit(2),
            0 | 1 => Inherit::UNLIMITED,
            _ => Inherit(3),
        }
    }

    /// Returns the number one level below; `None` if nothing is inherited there.
    pub fn next(self) -> Option<Inherit> {
        match self {
            Inherit::UNLIMITED => Some(self),
            Inherit(levels) if levels > Inherit::END.0 && levels <= Inherit::MAX => Some(Inherit(levels - 1)),
            _ => None,
        }
    }

    /// Returns the number as users write it: -1 for all levels, 0 for none.
    pub fn shown(self) -> i32 {
        match self {
            Inherit::UNLIMITED => -1,
            Inherit::NONE => 0,
            Inherit(levels) => levels.into(),
        }
    }

    /// Parses the number as users write it; `None` if it is out of range.
    pub fn read(shown: i64) -> Option<Inherit> {
        match shown {
            -1 => Some(Inherit::UNLIMITED),
            0 => Some(Inherit::NONE),
            levels => u8::try_from(levels).ok().filter(|levels| *levels <= Inherit::MAX).map(Inherit),
        }
    }

    const fn is_known(self) -> bool {
        self.0 <= Inherit::MAX || self.0 == Inherit::NONE.0
    }
}

/// Number of levels below for which new directories are placed round-robin, regardless of space, in Lustre's
/// encoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InheritRoundRobin(pub u8);

impl InheritRoundRobin {
    /// No level.
    pub const NONE: InheritRoundRobin = InheritRoundRobin(0);
    /// All levels.
    pub const UNLIMITED: InheritRoundRobin = InheritRoundRobin(255);

    /// Returns the number one level below. Lustre counts down to 0, which is none.
    pub fn next(self) -> InheritRoundRobin {
        match self {
            InheritRoundRobin(levels) if levels > 0 && levels <= Inherit::MAX => {
                InheritRoundRobin(levels - 1)
            }
            _ => self,
        }
    }

    /// Returns the number as users write it: -1 for all levels, 0 for none.
    pub fn shown(self) -> i32 {
        if self == InheritRoundRobin::UNLIMITED { -1 } else { self.0.into() }
    }

    /// Parses the number as users write it; `None` if it is out of range.
    pub fn read(shown: i64) -> Option<InheritRoundRobin> {
        match shown {
            -1 => Some(InheritRoundRobin::UNLIMITED),
            levels => {
                u8::try_from(levels).ok().filter(|levels| *levels <= Inherit::MAX).map(InheritRoundRobin)
            }
        }
    }

    const fn is_known(self) -> bool {
        self.0 <= Inherit::MAX || self.0 == InheritRoundRobin::UNLIMITED.0
    }
}

/// The default layout for new directories in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirDefault {
    /// Number of MDTs: -1 for all; with [`DirFlags::OVERSTRIPED`] down to -[`PER_MDT_MAX`], the number of
    /// shards on each. 0 and 1: one.
    pub count: i32,
    /// Index of the first MDT; -1 selects the MDT with the most free space.
    pub index: i32,
    /// Hash of names; `None` for the usual one.
    pub hash: Option<DirHash>,
    /// Flags, at most `OVERSTRIPED` and `FIXED`.
    pub flags: DirFlags,
    /// Number of levels that inherit it.
    pub max_inherit: Inherit,
    /// Number of levels with round-robin placement.
    pub max_inherit_rr: InheritRoundRobin,
    /// MDTs, as many as `count`; empty selects them by `index`.
    pub mdts: Vec<u16>,
}

impl Default for DirDefault {
    fn default() -> DirDefault {
        DirDefault {
            count: 1,
            index: -1,
            hash: None,
            flags: DirFlags::empty(),
            max_inherit: Inherit::UNLIMITED,
            max_inherit_rr: InheritRoundRobin::NONE,
            mdts: Vec::new(),
        }
    }
}

impl DirDefault {
    /// Returns the default at the root of a new file system with several MDTs: each directory on one MDT with
    /// free space, those of the upper levels round-robin.
    pub fn of_root() -> DirDefault {
        DirDefault { max_inherit_rr: InheritRoundRobin(3), ..DirDefault::default() }
    }

    /// Returns the default that a new directory inherits; `None` for none.
    pub fn inherited(&self) -> Option<DirDefault> {
        let max_inherit = self.max_inherit.next()?;
        Some(DirDefault { max_inherit, max_inherit_rr: self.max_inherit_rr.next(), ..self.clone() })
    }

    /// Returns the default that a directory `levels` below inherits; `None` for none.
    pub fn inherited_by(&self, levels: u32) -> Option<DirDefault> {
        // Beyond that many levels nothing changes.
        let levels = levels.min(u32::from(Inherit::MAX) + 1);
        (0..levels).try_fold(self.clone(), |default, _| default.inherited())
    }

    /// Returns true if it places new directories at all.
    pub fn places(&self) -> bool {
        self.max_inherit != Inherit::NONE
    }

    /// Returns true for Lustre's encoding of "remove the default".
    pub fn is_removal(&self) -> bool {
        self.count == 0 && self.index == -1 && self.mdts.is_empty()
    }

    /// Encodes the default.
    pub fn encode(&self) -> Vec<u8> {
        let magic = if self.mdts.is_empty() { MAGIC_DEFAULT } else { MAGIC_DEFAULT_LIST };
        let hash = self.hash.map_or(0, |hash| u32::from(hash.number())) | self.flags.bits();
        let mut out = Vec::with_capacity(USER_HEADER + USER_ROW * self.mdts.len());
        for field in [magic, self.count as u32, self.index as u32, hash, 0] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.extend_from_slice(&[self.max_inherit.0, self.max_inherit_rr.0]);
        out.resize(USER_HEADER, 0);
        for mdt in &self.mdts {
            out.extend_from_slice(&[0; USER_ROW - 4]);
            out.extend_from_slice(&u32::from(*mdt).to_le_bytes());
        }
        out
    }

    /// Decodes the default.
    pub fn decode(bytes: &[u8]) -> Result<DirDefault, DirError> {
        let header: &[u8; USER_HEADER] = bytes.first_chunk().ok_or(DirError::Length(bytes.len()))?;
        let field = |at: usize| u32_at(header, at);
        let is_list = match field(0) {
            MAGIC_DEFAULT => false,
            MAGIC_DEFAULT_LIST => true,
            other => return Err(DirError::Magic(other)),
        };
        let (max_inherit, max_inherit_rr) = (Inherit(header[20]), InheritRoundRobin(header[21]));
        if !max_inherit.is_known() || !max_inherit_rr.is_known() {
            return Err(DirError::Field("levels"));
        }
        if header[16..20].iter().chain(&header[22..]).any(|byte| *byte != 0) {
            return Err(DirError::Field("padding"));
        }
        let (hash, flags) = hash_and_flags(field(12))?;
        let count = field(4) as i32;
        let least = if flags.contains(DirFlags::OVERSTRIPED) { -PER_MDT_MAX } else { -1 };
        if count < least || count > SHARDS_MAX as i32 {
            return Err(DirError::Field("count"));
        }
        let index = match field(8) {
            INDEX_ANY => -1,
            index if index < TARGET_INDEX_MAX.into() => index as i32,
            _ => return Err(DirError::Field("index")),
        };
        let mdts = rows(bytes, if is_list { count } else { 0 })?;
        Ok(DirDefault { count, index, hash, flags, max_inherit, max_inherit_rr, mdts })
    }
}

fn hash_and_flags(field: u32) -> Result<(Option<DirHash>, DirFlags), DirError> {
    let flags = DirFlags::from_bits(field & !0xffff)
        .filter(|flags| (DirFlags::OVERSTRIPED | DirFlags::FIXED).contains(*flags))
        .ok_or(DirError::Field("flags"))?;
    match field as u16 {
        0 => Ok((None, flags)),
        number => Ok((Some(DirHash::from_number(number).ok_or(DirError::Field("hash"))?), flags)),
    }
}

/// Reads the MDTs of a list, which has at least one; without a list there are none.
fn rows(bytes: &[u8], count: i32) -> Result<Vec<u16>, DirError> {
    let is_list = u32_at(bytes, 0) == MAGIC_DEFAULT_LIST;
    if is_list && count < 1 {
        return Err(DirError::Field("count"));
    }
    let rows = &bytes[USER_HEADER..];
    if rows.len() != USER_ROW * count.max(0) as usize {
        return Err(DirError::Length(bytes.len()));
    }
    let index = |row: &[u8; USER_ROW]| {
        let index = u16::try_from(u32_at(row, USER_ROW - 4)).ok();
        index.filter(|index| *index < TARGET_INDEX_MAX).ok_or(DirError::Field("index"))
    };
    rows.as_chunks().0.iter().map(index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn striped() -> DirDefault {
        DirDefault {
            count: 2,
            hash: Some(DirHash::Crush),
            max_inherit: Inherit::usual(2, false),
            ..DirDefault::default()
        }
    }

    fn listed() -> DirDefault {
        let flags = DirFlags::OVERSTRIPED | DirFlags::FIXED;
        DirDefault { index: 1, count: 3, flags, mdts: vec![1, 1, 0], ..striped() }
    }

    #[test]
    fn golden_default_of_two_mdts() {
        let mut expected = vec![0; 48];
        expected[..4].copy_from_slice(&[0xd0, 0x0c, 0xd3, 0x0c]);
        expected[4] = 2;
        expected[8..12].fill(0xff);
        expected[12] = 3;
        expected[20] = 3;
        assert_eq!(striped().encode(), expected);
        let root = DirDefault::of_root().encode();
        assert_eq!((root[4], &root[8..13], &root[20..22]), (1, &[255, 255, 255, 255, 0][..], &[0, 3][..]));
        let list = listed().encode();
        assert_eq!((&list[..4], list.len()), (&[0xd0, 0x0c, 0xd4, 0x0c][..], 48 + 3 * 24));
        assert_eq!((list[48 + 20], list[72 + 20], list[96 + 20]), (1, 1, 0));
    }

    #[test]
    fn what_is_stored_is_read_back() {
        let removal = DirDefault { count: 0, ..DirDefault::default() };
        let all = DirDefault { count: -1, ..striped() };
        let over = DirDefault { count: -5, flags: DirFlags::OVERSTRIPED, ..striped() };
        for default in [DirDefault::default(), DirDefault::of_root(), striped(), listed(), removal, all, over]
        {
            assert_eq!(DirDefault::decode(&default.encode()), Ok(default));
        }
    }

    #[test]
    fn removal_is_what_lustre_says_it_is() {
        assert!(DirDefault { count: 0, ..DirDefault::default() }.is_removal());
        assert!(!DirDefault::default().is_removal());
        assert!(!DirDefault { count: 0, index: 0, ..DirDefault::default() }.is_removal());
    }

    #[test]
    fn levels_count_down_and_end() {
        let with = |max_inherit| DirDefault { max_inherit: Inherit(max_inherit), ..striped() };
        let next = |max_inherit| with(max_inherit).inherited().map(|default| default.max_inherit.0);
        assert_eq!([0, 1, 2, 3, 250, 255].map(next), [Some(0), None, Some(1), Some(2), Some(249), None]);
        let turn = |levels| InheritRoundRobin(levels).next().0;
        assert_eq!([0, 1, 3, 250, 255].map(turn), [0, 0, 2, 249, 255]);
        assert_eq!(with(3).inherited_by(0), Some(with(3)));
        assert_eq!(with(3).inherited_by(2), Some(with(1)));
        assert_eq!(with(3).inherited_by(3), None);
        let root = DirDefault::of_root();
        let below = |levels| root.inherited_by(levels).map(|default| default.max_inherit_rr.0);
        assert_eq!([1, 3, u32::MAX].map(below), [Some(2), Some(0), Some(0)]);
    }

    #[test]
    fn levels_are_written_as_lustre_users_do() {
        for (shown, number) in [(-1, 0), (0, 255), (1, 1), (3, 3), (250, 250)] {
            assert_eq!(Inherit::read(shown), Some(Inherit(number)));
            assert_eq!(i64::from(Inherit(number).shown()), shown);
        }
        for (shown, number) in [(-1, 255), (0, 0), (1, 1), (250, 250)] {
            assert_eq!(InheritRoundRobin::read(shown), Some(InheritRoundRobin(number)));
            assert_eq!(i64::from(InheritRoundRobin(number).shown()), shown);
        }
        assert_eq!([-2, 251, 256].map(Inherit::read), [None; 3]);
        assert_eq!([-2, 251, 255].map(InheritRoundRobin::read), [None; 3]);
        let usual = [(0, false), (1, false), (2, false), (-1, false), (1, true)];
        assert_eq!(usual.map(|(count, over)| Inherit::usual(count, over).0), [0, 0, 3, 3, 2]);
    }

    #[test]
    fn impossible_defaults_are_refused() {
        let with = |at: usize, value: u8| {
            let mut bytes = striped().encode();
            bytes[at] = value;
            DirDefault::decode(&bytes)
        };
        assert_eq!(with(0, 0), Err(DirError::Magic(0x0cd3_0c00)));
        // -254, 2^24 + 2.
        assert_eq!(with(7, 0xff), Err(DirError::Field("count")));
        assert_eq!(with(7, 1), Err(DirError::Field("count")));
        assert_eq!(with(8, 0), Err(DirError::Field("index")));
        assert_eq!(with(12, 5), Err(DirError::Field("hash")));
        assert_eq!(
            [with(15, 0x80), with(14, 1)],
            [Err(DirError::Field("flags")), Err(DirError::Field("flags"))]
        );
        assert_eq!(
            [with(16, 1), with(22, 1), with(40, 1)],
            [(); 3].map(|()| Err(DirError::Field("padding")))
        );
        assert_eq!([with(20, 251), with(21, 254)], [(); 2].map(|()| Err(DirError::Field("levels"))));
        assert_eq!(with(3, 0x0d), Err(DirError::Magic(0x0dd3_0cd0)));
        let mut bytes = listed().encode();
        assert_eq!(DirDefault::decode(&bytes[..96]), Err(DirError::Length(96)));
        bytes[48 + 22] = 1;
        assert_eq!(DirDefault::decode(&bytes), Err(DirError::Field("index")));
        bytes[4] = 0;
        assert_eq!(DirDefault::decode(&bytes), Err(DirError::Field("count")));
        assert_eq!(DirDefault::decode(&[]), Err(DirError::Length(0)));
    }
}
