//! Types of records in the changelog of an MDT, and sets of them, as Lustre numbers and names them.

use std::fmt;

/// Largest number of bytes of a changelog user's name, as in Lustre.
pub const CHANGE_USER_NAME_MAX: usize = 30;

/// Type of a changelog record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum ChangeKind {
    /// Internal mark.
    Mark = 0,
    /// A regular file was created.
    Create = 1,
    /// A directory was created.
    Mkdir = 2,
    /// A name was added to an inode.
    HardLink = 3,
    /// A symbolic link was created.
    SoftLink = 4,
    /// A device, pipe or socket was created.
    Mknod = 5,
    /// A name of an inode that is not a directory was removed.
    Unlink = 6,
    /// A directory was removed.
    Rmdir = 7,
    /// A name was moved.
    Rename = 8,
    /// Second record of a rename; written by old versions of Lustre only.
    RenameTo = 9,
    /// A file was opened.
    Open = 10,
    /// A file that may have changed was closed.
    Close = 11,
    /// A layout was set or changed.
    Layout = 12,
    /// A file was truncated.
    Truncate = 13,
    /// Owner, group, rights or other attributes were changed.
    SetAttr = 14,
    /// An extended attribute was set or removed.
    SetXattr = 15,
    /// HSM state.
    Hsm = 16,
    /// Only times were changed, among them the time of the last modification.
    Mtime = 17,
    /// Only the change time was changed.
    Ctime = 18,
    /// Only the access time was changed.
    Atime = 19,
    /// An inode moved to another MDT.
    Migrate = 20,
    /// A mirrored file was written.
    FileWrite = 21,
    /// Mirrors were synchronised.
    Resync = 22,
    /// An extended attribute was read.
    GetXattr = 23,
    /// An open was refused.
    DeniedOpen = 24,
}

impl ChangeKind {
    /// All types, in the order of their numbers.
    pub const ALL: [ChangeKind; 25] = {
        use ChangeKind::*;
        [
            Mark, Create, Mkdir, HardLink, SoftLink, Mknod, Unlink, Rmdir, Rename, RenameTo, Open, Close,
            Layout, Truncate, SetAttr, SetXattr, Hsm, Mtime, Ctime, Atime, Migrate, FileWrite, Resync,
            GetXattr, DeniedOpen,
        ]
    };

    /// Returns the type with this number.
    pub fn from_number(number: u8) -> Option<ChangeKind> {
        ChangeKind::ALL.get(usize::from(number)).copied()
    }

    /// Returns the name of at most five letters in records and masks.
    pub fn name(self) -> &'static str {
        const NAMES: [&str; 25] = [
            "MARK", "CREAT", "MKDIR", "HLINK", "SLINK", "MKNOD", "UNLNK", "RMDIR", "RENME", "RNMTO", "OPEN",
            "CLOSE", "LYOUT", "TRUNC", "SATTR", "XATTR", "HSM", "MTIME", "CTIME", "ATIME", "MIGRT", "FLRW",
            "RESYNC", "GXATR", "NOPEN",
        ];
        NAMES.get(usize::from(self as u8)).copied().unwrap_or_default()
    }

    /// Returns the type with this name, in any case.
    pub fn from_name(name: &str) -> Option<ChangeKind> {
        ChangeKind::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name))
    }

    fn bit(self) -> u32 {
        1 << (self as u8)
    }
}

/// A word in the text of a mask is no type of record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no type of changelog record: use names like CREAT, UNLNK or CLOSE, or ALL")]
pub struct MaskError(pub String);

/// A set of types of records.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ChangeMask(u32);

impl ChangeMask {
    /// No types.
    pub const NONE: ChangeMask = ChangeMask(0);
    /// The type that is in every mask.
    pub const LEAST: ChangeMask = ChangeMask(1);
    /// All types.
    pub const ALL: ChangeMask = ChangeMask((1 << ChangeKind::ALL.len()) - 1);
    /// Types that are recorded unless an administrator chooses others: reads and opens would be too many.
    pub const DEFAULT: ChangeMask = ChangeMask(
        ChangeMask::ALL.0
            & !(1 << ChangeKind::Atime as u32
                | 1 << ChangeKind::Open as u32
                | 1 << ChangeKind::GetXattr as u32
                | 1 << ChangeKind::DeniedOpen as u32),
    );

    /// Returns the set with these bits, one for each number of a type; unknown bits are dropped.
    pub const fn from_bits(bits: u32) -> ChangeMask {
        ChangeMask(bits & ChangeMask::ALL.0)
    }

    /// Returns a bit for each number of a type.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns true if the set has the type.
    pub fn contains(self, kind: ChangeKind) -> bool {
        self.0 & kind.bit() != 0
    }

    /// Returns the types that are in either set.
    #[must_use]
    pub const fn union(self, other: ChangeMask) -> ChangeMask {
        ChangeMask(self.0 | other.0)
    }

    /// Returns the set with the type.
    #[must_use]
    pub fn with(self, kind: ChangeKind) -> ChangeMask {
        ChangeMask(self.0 | kind.bit())
    }

    /// Returns true for the empty set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Parses a mask as `lctl` takes it: names separated by spaces or commas, `ALL`, and with `+` and `-` in front
    /// changes of `old`, which holds from the first such word on if nothing precedes it.
    ///
    /// # Errors
    /// If a word is no type.
    pub fn parse(text: &str, old: ChangeMask) -> Result<ChangeMask, MaskError> {
        let mut mask = ChangeMask::NONE;
        let words = text.split([' ', ',', '|', '\t', '\n']).filter(|word| !word.is_empty());
        for (place, word) in words.enumerate() {
            let (is_removed, name) = match word.strip_prefix('-') {
                Some(name) => (true, name),
                None => (false, word.strip_prefix('+').unwrap_or(word)),
            };
            if place == 0 && name.len() < word.len() {
                mask = old;
            }
            let bits = match name.eq_ignore_ascii_case("ALL") {
                true => ChangeMask::ALL.0,
                false => ChangeKind::from_name(name).ok_or_else(|| MaskError(word.to_owned()))?.bit(),
            };
            mask.0 = if is_removed { mask.0 & !bits } else { mask.0 | bits };
        }
        Ok(mask.union(ChangeMask::LEAST))
    }

    /// Returns the names of the types, separated by `separator`.
    pub fn names(self, separator: &str) -> String {
        let names = ChangeKind::ALL.into_iter().filter(|kind| self.contains(*kind)).map(ChangeKind::name);
        names.collect::<Vec<_>>().join(separator)
    }
}

impl fmt::Display for ChangeMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names(" "))
    }
}

/// Returns the text for a changelog user, as `cl1` or `cl1-name`.
pub fn change_user(id: u32, name: &str) -> String {
    if name.is_empty() { format!("cl{id}") } else { format!("cl{id}-{name}") }
}

/// Parses `cl1` or `cl1-name`: the number, and the name if there is one.
pub fn parse_change_user(text: &str) -> Option<(u32, &str)> {
    let (id, name) = match text.split_once('-') {
        Some((id, name)) => (id, name),
        None => (text, ""),
    };
    Some((id.strip_prefix("cl")?.parse().ok().filter(|id| *id > 0)?, name))
}

/// Returns true for a name that a changelog user can have: letters, digits, `_`, `-` and `.`, beginning with a letter.
pub fn is_change_user_name(name: &str) -> bool {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    name.len() <= CHANGE_USER_NAME_MAX
        && name.bytes().next().is_some_and(|first| first.is_ascii_alphabetic())
        && name.bytes().all(is_good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_lustres() {
        for (number, kind) in ChangeKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, number);
            assert_eq!(ChangeKind::from_number(number as u8), Some(kind));
            assert_eq!(ChangeKind::from_name(kind.name()), Some(kind));
        }
        assert_eq!(ChangeKind::from_number(25), None);
        assert_eq!(ChangeKind::from_name("unlnk"), Some(ChangeKind::Unlink));
        assert_eq!(
            ChangeMask::DEFAULT.to_string(),
            "MARK CREAT MKDIR HLINK SLINK MKNOD UNLNK RMDIR RENME RNMTO CLOSE LYOUT TRUNC SATTR XATTR HSM MTIME CTIME \
             MIGRT FLRW RESYNC"
        );
    }

    #[test]
    fn masks_are_lists_or_changes_of_the_old_one() {
        let parse = |text| ChangeMask::parse(text, ChangeMask::DEFAULT).map(|mask| mask.names(","));
        assert_eq!(parse("UNLNK,CLOSE").as_deref(), Ok("MARK,UNLNK,CLOSE"));
        assert_eq!(parse(" hlink ").as_deref(), Ok("MARK,HLINK"));
        assert_eq!(parse("ALL"), Ok(ChangeMask::ALL.names(",")));
        assert_eq!(parse("+OPEN -CLOSE").map(|names| names.contains("CLOSE")), Ok(false));
        assert_eq!(parse("+OPEN").map(|names| names.contains("OPEN") && names.contains("CREAT")), Ok(true));
        assert_eq!(parse("-ALL +CREAT").as_deref(), Ok("MARK,CREAT"));
        assert_eq!(parse("ALL -ATIME").map(|names| names.contains("ATIME")), Ok(false));
        assert_eq!(parse("").as_deref(), Ok("MARK"));
        assert_eq!(parse("CREAT FOO"), Err(MaskError("FOO".to_owned())));
    }

    #[test]
    fn users_have_a_number_and_maybe_a_name() {
        assert_eq!(parse_change_user("cl12"), Some((12, "")));
        assert_eq!(parse_change_user("cl1-audit-x"), Some((1, "audit-x")));
        assert_eq!(
            (parse_change_user("cl0"), parse_change_user("audit"), parse_change_user("cl")),
            (None, None, None)
        );
        assert_eq!((change_user(3, ""), change_user(3, "robin")), ("cl3".to_owned(), "cl3-robin".to_owned()));
        assert!(is_change_user_name("audit-2.x") && !is_change_user_name("") && !is_change_user_name("1x"));
        assert!(!is_change_user_name("a b") && !is_change_user_name(&"a".repeat(31)));
    }
}
