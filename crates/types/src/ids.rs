//! Small identifiers, each with a type of its own so that they cannot be mixed up.

use crate::identity::Roles;
use crate::limits::{DATA_INDEX_MAX, TARGET_INDEX_MAX};
use std::fmt;
use std::str::FromStr;

/// Transaction number: grows with every change that one target applies; 0 means "no change".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct TransNo(pub u64);

/// Request id: unique per client and target for the life of the client; a resend keeps its xid.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Xid(pub u64);

/// Identity of one mount (not of a host): random, chosen when the client starts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ClientUuid(pub [u8; 16]);

impl fmt::Display for ClientUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for ClientUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An open file at its MDT; unique per MDT and client, never 0.
///
/// The client chooses the number, so that it can re-open the same handle after the MDT restarted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct OpenHandle(pub u64);

/// Kind of a target.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum TargetKind {
    /// Management: configuration of the file system.
    Mgt,
    /// Metadata: names, attributes, layouts.
    Mdt,
    /// Objects: file data.
    Ost,
}

impl TargetKind {
    /// Returns Lustre's short name: `MGT`, `MDT` or `OST`.
    pub const fn label(self) -> &'static str {
        match self {
            TargetKind::Mgt => "MGT",
            TargetKind::Mdt => "MDT",
            TargetKind::Ost => "OST",
        }
    }
}

/// One target of a file system, printed `MDT0000`, `OST001f`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TargetId {
    /// Kind of the target.
    pub kind: TargetKind,
    /// Index from 0 within its kind, below [`crate::limits::TARGET_INDEX_MAX`].
    pub index: u16,
}

impl TargetId {
    /// Returns the metadata target with this index.
    pub const fn mdt(index: u16) -> TargetId {
        TargetId { kind: TargetKind::Mdt, index }
    }

    /// Returns the object target with this index.
    pub const fn ost(index: u16) -> TargetId {
        TargetId { kind: TargetKind::Ost, index }
    }

    /// Returns the data part of the metadata target with this index, where it stores data of files. `None`
    /// for indexes of MDTs that cannot have one.
    pub const fn mdt_data(mdt_index: u16) -> Option<TargetId> {
        match TARGET_INDEX_MAX.checked_add(mdt_index) {
            Some(index) if index < DATA_INDEX_MAX => Some(TargetId::ost(index)),
            _ => None,
        }
    }

    /// Returns the management target; a file system has one.
    pub const fn mgt() -> TargetId {
        TargetId { kind: TargetKind::Mgt, index: 0 }
    }

    /// Returns Lustre's target UUID, for example `testfs-OST0000_UUID`.
    pub fn uuid(&self, fsname: &str) -> String {
        format!("{fsname}-{self}_UUID")
    }
}

impl TargetId {
    /// Returns the role of the target's server.
    pub fn role(self) -> Roles {
        match self.kind {
            TargetKind::Mgt => Roles::MGS,
            TargetKind::Mdt => Roles::MDS,
            // The data part of an MDT is served by the MDS.
            TargetKind::Ost if self.index >= TARGET_INDEX_MAX => Roles::MDS,
            TargetKind::Ost => Roles::OSS,
        }
    }
}

impl fmt::Display for TargetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            TargetKind::Mgt => f.write_str("MGT"),
            TargetKind::Ost if self.index >= TARGET_INDEX_MAX => {
                write!(f, "MDT{:04x}-data", self.index - TARGET_INDEX_MAX)
            }
            kind => write!(f, "{}{:04x}", kind.label(), self.index),
        }
    }
}

/// The text is not the name of a target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a target: write MGT, MDT0000 or OST0000 (four hexadecimal digits)")]
pub struct ParseTargetError(String);

impl FromStr for TargetId {
    type Err = ParseTargetError;

    fn from_str(text: &str) -> Result<TargetId, ParseTargetError> {
        let fail = || ParseTargetError(text.to_owned());
        if text == "MGT" {
            return Ok(TargetId::mgt());
        }
        let (kind, digits) = match text.split_at_checked(3) {
            Some(("MDT", digits)) => (TargetKind::Mdt, digits),
            Some(("OST", digits)) => (TargetKind::Ost, digits),
            _ => return Err(fail()),
        };
        if digits.len() != 4 {
            return Err(fail());
        }
        let index = u16::from_str_radix(digits, 16).map_err(|_| fail())?;
        Ok(TargetId { kind, index })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_print_with_four_hexadecimal_digits_and_parse_back() {
        assert_eq!(TargetId::ost(31).to_string(), "OST001f");
        assert_eq!(TargetId::mdt(0).uuid("testfs"), "testfs-MDT0000_UUID");
        assert_eq!(TargetId::mdt_data(1).map(|data| data.to_string()), Some("MDT0001-data".to_owned()));
        assert_eq!(TargetId::mdt_data(31), None);
        for target in [TargetId::mgt(), TargetId::mdt(0), TargetId::ost(0xffdf)] {
            assert_eq!(target.to_string().parse(), Ok(target));
        }
        for bad in ["", "OST", "OST0", "OSTzzzz", "MGT0000", "\u{e9}\u{e9}0000"] {
            assert!(bad.parse::<TargetId>().is_err(), "{bad}");
        }
    }
}
