//! Requests about the changelog of an MDT. Only for root of the file system: records reveal names of all users.

use crate::codec::{Decode, DecodeError, DecodeResult, Encode, Reader, wire_enum, wire_lists, wire_struct};
use crate::peer::RecordBytes;
use nacre_types::{ChangeMask, Timestamp};

/// Users of one changelog.
pub const CHANGE_USERS_MAX: usize = 256;
/// Records in one reply.
pub const CHANGES_MAX: usize = 4096;
/// Bytes of the records in one reply.
pub const CHANGES_BYTES_MAX: u32 = 256 << 10;
/// Encoded [`ChangeUser`] without a name.
const USER_BYTES: usize = 4 + 4 + 4 + 8 + 8;
/// Encoded record without its bytes: index, and their number.
const RECORD_BYTES: usize = 8 + 4;

/// A request about the changelog.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChangelogRequest {
    /// Adds a user: changes are recorded from then on. Reply: `User`. `EEXIST` if one has the name.
    Register {
        /// Name; may be empty.
        name: String,
        /// Types of records that it wants; empty for those of the MDT.
        mask: ChangeMask,
    },
    /// Removes a user, and the records that no other needs. Reply: `User`; `ENOENT`.
    Deregister {
        /// `cl1`, `cl1-name` or the name.
        user: String,
    },
    /// Declares that a user needs no records up to an index. Reply: `User`; `ENOENT`, `EINVAL` beyond the newest.
    Clear {
        /// User as in `Deregister`.
        user: String,
        /// The last index; 0 for all records so far.
        upto: u64,
    },
    /// Returns records in the order of their indexes, which are durable then. Reply: `Changes`.
    Read {
        /// Index after which records are returned.
        after: u64,
        /// Limit of their bytes, at most [`CHANGES_BYTES_MAX`].
        bytes_max: u32,
    },
    /// Lists the users. Reply: `Users`.
    Users,
}

impl ChangelogRequest {
    /// True if the request changes something, so that a resend must not run twice.
    pub fn is_modifying(&self) -> bool {
        !matches!(self, ChangelogRequest::Read { .. } | ChangelogRequest::Users)
    }
}

/// A registered user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChangeUser {
    /// Number; never reused on its MDT.
    pub id: u32,
    /// Name; may be empty.
    pub name: String,
    /// Types of records that it wants; empty for those of the MDT.
    pub mask: ChangeMask,
    /// Index up to which it needs no records.
    pub cleared: u64,
    /// Seconds since its registration or last clear.
    pub idle_s: u64,
}

/// Reply to a [`ChangelogRequest`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChangelogReply {
    /// The user concerned.
    User(ChangeUser),
    /// All users.
    Users {
        /// Index of the newest record; 0 if there was none so far.
        current: u64,
        /// Users in the order of their numbers.
        users: Vec<ChangeUser>,
    },
    /// Records.
    Changes {
        /// Records with their indexes, in their form on disk.
        records: Vec<(u64, RecordBytes)>,
        /// Index up to which there are no other records.
        upto: u64,
        /// Time up to which the MDT has no other records, and will not have any.
        settled: Timestamp,
    },
}

impl Encode for ChangeMask {
    fn encode(&self, out: &mut Vec<u8>) {
        self.bits().encode(out);
    }
}

impl Decode<'_> for ChangeMask {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<ChangeMask> {
        let bits = u32::decode(reader)?;
        let mask = ChangeMask::from_bits(bits);
        if mask.bits() == bits { Ok(mask) } else { Err(DecodeError::Invalid { what: "changelog mask" }) }
    }
}

wire_struct!(ChangeUser { id, name, mask, cleared, idle_s });
wire_enum!(ChangelogRequest {
    1 = Register { name, mask },
    2 = Deregister { user },
    3 = Clear { user, upto },
    4 = Read { after, bytes_max },
    5 = Users,
});
wire_enum!(ChangelogReply {
    0 = User(user),
    1 = Users { current, users },
    2 = Changes { records, upto, settled },
});
wire_lists! {
    ChangeUser: CHANGE_USERS_MAX, USER_BYTES, "changelog users";
    (u64, RecordBytes): CHANGES_MAX, RECORD_BYTES, "changelog records";
}
