//! Requests about changelogs on a control socket. Records travel as hexadecimal digits of their bytes on disk: names
//! in them are any bytes.

use nacre_types::{ChangeMask, Timestamp};
use nacre_wire::changelog::{ChangeUser, ChangelogReply, ChangelogRequest};
use nacre_wire::peer::RecordBytes;
use serde::{Deserialize, Serialize};

/// Largest page of records in bytes: as digits, and with its head, it fits into a line.
const PAGE_BYTES: u32 = 192 << 10;

/// What to do with a changelog.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum ChangelogStep {
    /// Registers a user.
    Register {
        /// Name; may be empty.
        name: String,
        /// Bits of the types; 0 for those of the MDT.
        mask: u32,
    },
    /// Removes a user.
    Deregister {
        /// Number or name.
        user: String,
    },
    /// Clears records.
    Clear {
        /// Number or name.
        user: String,
        /// Last index; 0 for all.
        upto: u64,
    },
    /// Reads records.
    Read {
        /// Index after which they are read.
        after: u64,
    },
    /// Lists users.
    Users,
}

/// A registered user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownUser {
    /// Number.
    pub id: u32,
    /// Name; may be empty.
    pub name: String,
    /// Bits of the types; 0 for those of the MDT.
    pub mask: u32,
    /// Index up to which it needs no records.
    pub cleared: u64,
}

/// Answer to a [`ChangelogStep`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ChangelogAnswer {
    /// The user concerned.
    User {
        /// The user.
        user: ShownUser,
    },
    /// All users.
    Users {
        /// Index of the newest record.
        current: u64,
        /// The users.
        users: Vec<ShownUser>,
    },
    /// Records.
    Changes {
        /// Indexes, and bytes in hexadecimal.
        records: Vec<(u64, String)>,
        /// Index up to which there are no others.
        upto: u64,
        /// Time up to which there are no others, in seconds and nanoseconds.
        settled: (i64, u32),
    },
}

impl From<ChangelogStep> for ChangelogRequest {
    fn from(step: ChangelogStep) -> ChangelogRequest {
        match step {
            ChangelogStep::Register { name, mask } => {
                ChangelogRequest::Register { name, mask: ChangeMask::from_bits(mask) }
            }
            ChangelogStep::Deregister { user } => ChangelogRequest::Deregister { user },
            ChangelogStep::Clear { user, upto } => ChangelogRequest::Clear { user, upto },
            ChangelogStep::Read { after } => ChangelogRequest::Read { after, bytes_max: PAGE_BYTES },
            ChangelogStep::Users => ChangelogRequest::Users,
        }
    }
}

fn shown(user: ChangeUser) -> ShownUser {
    ShownUser { id: user.id, name: user.name, mask: user.mask.bits(), cleared: user.cleared }
}

impl From<ChangelogReply> for ChangelogAnswer {
    fn from(reply: ChangelogReply) -> ChangelogAnswer {
        match reply {
            ChangelogReply::User(user) => ChangelogAnswer::User { user: shown(user) },
            ChangelogReply::Users { current, users } => {
                ChangelogAnswer::Users { current, users: users.into_iter().map(shown).collect() }
            }
            ChangelogReply::Changes { records, upto, settled: Timestamp { sec, nsec } } => {
                let records = records.into_iter().map(|(index, RecordBytes(bytes))| (index, digits(&bytes)));
                ChangelogAnswer::Changes { records: records.collect(), upto, settled: (sec, nsec) }
            }
        }
    }
}

/// Returns bytes as hexadecimal digits.
pub fn digits(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from(if value < 10 { b'0' + value } else { b'a' + value - 10 });
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Returns the bytes of hexadecimal digits; `None` for other text.
pub fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let value = |digit: &u8| char::from(*digit).to_digit(16).map(|value| value as u8);
    let pairs = digits.as_bytes().chunks(2);
    pairs
        .map(|pair| match pair {
            [high, low] => Some(value(high)? << 4 | value(low)?),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_as_digits() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(bytes_of(&digits(&bytes)), Some(bytes));
        assert_eq!((bytes_of("0"), bytes_of("0x"), bytes_of("")), (None, None, Some(Vec::new())));
    }
}
