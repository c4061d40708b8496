//! Lock modes and their compatibility, as Lustre defines both.

/// Access that a lock allows its holder. The numbers are Lustre's, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Mode {
    /// Exclusive: no other holder, not even a reader.
    Ex = 1,
    /// Protective write: one writer, together with holders that only need the resource to exist (CR).
    Pw = 2,
    /// Protective read: readers share, no writers.
    Pr = 4,
    /// Concurrent write: writers that order themselves by other means.
    Cw = 8,
    /// Concurrent read: reads next to any holder but an exclusive one.
    Cr = 16,
    /// Null: keeps the resource in memory and conflicts with nothing.
    Nl = 32,
    /// Group: all members of the same group share, as writers; all other requests wait.
    Group = 64,
}

/// Number of modes.
pub const MODES: usize = 7;

impl Mode {
    /// All modes, strongest first.
    pub const ALL: [Mode; MODES] = [Mode::Ex, Mode::Pw, Mode::Pr, Mode::Cw, Mode::Cr, Mode::Nl, Mode::Group];

    /// Returns the mode with Lustre's number; `None` for any other number.
    pub const fn from_bits(bits: u8) -> Option<Mode> {
        match bits {
            1 => Some(Mode::Ex),
            2 => Some(Mode::Pw),
            4 => Some(Mode::Pr),
            8 => Some(Mode::Cw),
            16 => Some(Mode::Cr),
            32 => Some(Mode::Nl),
            64 => Some(Mode::Group),
            _ => None,
        }
    }

    /// Returns Lustre's number of the mode.
    pub const fn bits(self) -> u8 {
        self as u8
    }

    /// Returns the index in [`Mode::ALL`].
    pub(crate) const fn index(self) -> usize {
        self.bits().trailing_zeros() as usize
    }

    /// Modes that other holders may have on the same part at the same time. Two group locks are compatible
    /// only if they name the same group, which [`Need::conflicts_with`](crate::Need::conflicts_with) checks.
    pub const fn compatible(self) -> ModeSet {
        let bits = match self {
            Mode::Ex => Mode::Nl.bits(),
            Mode::Pw => Mode::Cr.bits() | Mode::Nl.bits(),
            Mode::Pr => Mode::Pr.bits() | Mode::Cr.bits() | Mode::Nl.bits(),
            Mode::Cw => Mode::Cw.bits() | Mode::Cr.bits() | Mode::Nl.bits(),
            Mode::Cr => {
                Mode::Pw.bits() | Mode::Pr.bits() | Mode::Cw.bits() | Mode::Cr.bits() | Mode::Nl.bits()
            }
            Mode::Nl => ModeSet::ALL.0,
            Mode::Group => Mode::Group.bits() | Mode::Nl.bits(),
        };
        ModeSet(bits)
    }

    /// True if this mode allows all that `need` allows: every mode that conflicts with `need` conflicts with
    /// this one, too.
    pub const fn serves(self, need: Mode) -> bool {
        self.compatible().0 & !need.compatible().0 == 0
    }

    /// True if the holder may have dirty data under the lock.
    pub const fn writes(self) -> bool {
        matches!(self, Mode::Ex | Mode::Pw | Mode::Cw | Mode::Group)
    }
}

/// A set of modes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ModeSet(u8);

impl ModeSet {
    /// Every mode.
    pub const ALL: ModeSet = ModeSet(127);

    /// Returns the set of one mode.
    pub const fn only(mode: Mode) -> ModeSet {
        ModeSet(mode.bits())
    }

    /// Returns the set with these bits; bits that no mode has are dropped.
    pub const fn from_bits(bits: u8) -> ModeSet {
        ModeSet(bits & ModeSet::ALL.0)
    }

    /// Returns the modes' numbers, or-ed.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// True if the mode is in the set.
    pub const fn contains(self, mode: Mode) -> bool {
        self.0 & mode.bits() != 0
    }

    /// True if all of `other` is in the set.
    pub const fn contains_all(self, other: ModeSet) -> bool {
        other.0 & !self.0 == 0
    }

    /// Returns the union of both sets.
    pub const fn union(self, other: ModeSet) -> ModeSet {
        ModeSet(self.0 | other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table as Lustre's documents print it: rows are requested, columns are held, in the order of
    /// [`Mode::ALL`].
    const TABLE: [[u8; MODES]; MODES] = [
        // EX PW PR CW CR NL GROUP
        [0, 0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 1, 1, 0],
        [0, 0, 1, 0, 1, 1, 0],
        [0, 0, 0, 1, 1, 1, 0],
        [0, 1, 1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1, 1, 1],
        [0, 0, 0, 0, 0, 1, 1],
    ];

    #[test]
    fn modes_go_together_as_in_the_table() {
        for (row, requested) in Mode::ALL.into_iter().enumerate() {
            for (column, held) in Mode::ALL.into_iter().enumerate() {
                let expected = TABLE[row][column] == 1;
                assert_eq!(requested.compatible().contains(held), expected, "{requested:?} beside {held:?}");
            }
        }
    }

    #[test]
    fn compatibility_is_symmetric_and_numbers_are_lustres() {
        for (index, a) in Mode::ALL.into_iter().enumerate() {
            for b in Mode::ALL {
                assert_eq!(a.compatible().contains(b), b.compatible().contains(a), "{a:?} {b:?}");
            }
            assert_eq!(Mode::from_bits(a.bits()), Some(a));
            assert_eq!(a.index(), index);
        }
        assert_eq!(Mode::from_bits(0), None);
        assert_eq!(Mode::from_bits(3), None);
        assert_eq!(Mode::from_bits(128), None);
    }

    #[test]
    fn a_stronger_mode_serves_a_weaker_need() {
        let served = |mode: Mode| Mode::ALL.into_iter().filter(|need| mode.serves(*need)).collect::<Vec<_>>();
        use Mode::{Cr, Cw, Ex, Group, Nl, Pr, Pw};
        assert_eq!(served(Ex), [Ex, Pw, Pr, Cw, Cr, Nl, Group]);
        assert_eq!(served(Pw), [Pw, Pr, Cw, Cr, Nl]);
        assert_eq!(served(Pr), [Pr, Cr, Nl]);
        assert_eq!(served(Cw), [Cw, Cr, Nl]);
        assert_eq!(served(Cr), [Cr, Nl]);
        assert_eq!(served(Nl), [Nl]);
        assert_eq!(served(Group), [Nl, Group]);
    }
}
