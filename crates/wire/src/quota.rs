//! Requests about quotas: those of administrators and users to the quota master, which is MDT0000, and the rounds in
//! which the master and the targets exchange limits for usage.

use crate::codec::{Decode, DecodeResult, Encode, Reader, wire_code, wire_enum, wire_lists, wire_struct};
use nacre_types::{ObjectPlace, Owners, QuotaId, QuotaKind, QuotaLimits, QuotaResource};

/// Entries in one message of a round.
pub const QUOTA_ENTRIES_MAX: usize = 4096;
/// Objects in one request that sets owners.
pub const OWNED_MAX: usize = 4096;
/// Encoded [`QuotaSlice`].
const SLICE_BYTES: usize = 5 + 1 + 8;
/// Encoded [`QuotaUse`].
const USE_BYTES: usize = 5 + 1 + 8 + 1;

/// A request to the quota master.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum QuotaRequest {
    /// Returns limits and usage of an id. Reply: `State`. Users may ask for their own ids and for projects.
    Get {
        /// The id; its number is ignored for defaults.
        id: QuotaId,
        /// Pool of OSTs; empty for the whole file system.
        pool: String,
        /// True for the limits of ids that have none of their own.
        is_default: bool,
    },
    /// Returns the state of the smallest id at or above one that has usage or limits. Reply: `State`; `ENOENT`. Only
    /// for root of the file system.
    Next {
        /// Where the search starts.
        from: QuotaId,
        /// Pool of OSTs; empty for the whole file system.
        pool: String,
    },
    /// Returns usage and granted share of an id at one target. Reply: `State` with the share as hard limit, `u64::MAX` for none; `ENODEV`.
    Target {
        /// The id.
        id: QuotaId,
        /// True for an MDT.
        is_mdt: bool,
        /// Index of the target.
        index: u16,
    },
    /// Changes limits. Reply: `State`. Only for root of the file system, as all further requests.
    Set {
        /// The id; its number is ignored for defaults.
        id: QuotaId,
        /// Pool of OSTs; empty for the whole file system.
        pool: String,
        /// True for the limits of ids that have none of their own.
        is_default: bool,
        /// The change.
        change: QuotaChange,
    },
    /// Returns the grace times. Reply: `Grace`. For all users.
    Grace {
        /// Kind of ids.
        kind: QuotaKind,
    },
    /// Changes grace times. Reply: `Grace`.
    SetGrace {
        /// Kind of ids.
        kind: QuotaKind,
        /// For space, in seconds; `None` to keep it.
        space_s: Option<u64>,
        /// For inodes, in seconds; `None` to keep it.
        inodes_s: Option<u64>,
    },
}

impl QuotaRequest {
    /// True if the request changes something, so that a resend must not run twice.
    pub fn is_modifying(&self) -> bool {
        matches!(self, QuotaRequest::Set { .. } | QuotaRequest::SetGrace { .. })
    }
}

/// A change of limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QuotaChange {
    /// Sets limits; `None` to keep those of a resource.
    Limits {
        /// Space in bytes.
        space: Option<QuotaLimits>,
        /// Number of inodes.
        inodes: Option<QuotaLimits>,
    },
    /// Makes the defaults apply to the id.
    UseDefault,
    /// Removes the limits, so that the id has none, and its record.
    Delete,
}

/// Use and limits of one resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QuotaResourceState {
    /// Use: bytes, or inodes.
    pub used: u64,
    /// Limits.
    pub limits: QuotaLimits,
    /// Time in seconds since the epoch at which the grace for the soft limit ends; 0 if it is not exceeded.
    pub grace_ends_s: u64,
}

/// Use and limits of an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuotaState {
    /// The id.
    pub id: QuotaId,
    /// Space in bytes.
    pub space: QuotaResourceState,
    /// Number of inodes.
    pub inodes: QuotaResourceState,
    /// True if the limits are the defaults.
    pub is_default: bool,
    /// True if all targets have answered, and have counted all that they store.
    pub is_complete: bool,
}

/// Reply to a [`QuotaRequest`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum QuotaReply {
    /// Use and limits.
    State(QuotaState),
    /// Grace times in seconds.
    Grace {
        /// For space.
        space_s: u64,
        /// For inodes.
        inodes_s: u64,
    },
}

/// How much of a resource a target may let an id use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuotaSlice {
    /// The id.
    pub id: QuotaId,
    /// The resource.
    pub resource: QuotaResource,
    /// Total use at the target up to which it admits more; `u64::MAX` for no limit.
    pub limit: u64,
}

/// Use of a resource at a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuotaUse {
    /// The id.
    pub id: QuotaId,
    /// The resource.
    pub resource: QuotaResource,
    /// Use: bytes, or inodes.
    pub used: u64,
    /// True if the target needs a larger slice.
    pub wants: bool,
}

/// From the quota master to a target: new slices, and a request for a report. May be repeated.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct QuotaRound {
    /// Number of the newest report from this run of the target that the master has; 0 for none.
    pub seen: u64,
    /// Run of the target that `seen` and `slices` refer to; 0 if none is known. A target ignores slices for another
    /// run.
    pub run: u64,
    /// Slices that have changed.
    pub slices: Vec<QuotaSlice>,
    /// Slices of ids that the target has no slice for, by resource and kind; `u64::MAX` for no limit.
    pub defaults: [[u64; 3]; 2],
}

/// Report of a target to the quota master.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct QuotaReport {
    /// Run of the target: differs after each of its starts.
    pub run: u64,
    /// Number of the report.
    pub number: u64,
    /// False while the target counts what it stores: the real use may be higher.
    pub is_complete: bool,
    /// True if there is more than fits in this report.
    pub has_more: bool,
    /// Uses that have changed since the report that the master has seen.
    pub uses: Vec<QuotaUse>,
}

impl Encode for [[u64; 3]; 2] {
    fn encode(&self, out: &mut Vec<u8>) {
        self.iter().flatten().for_each(|limit| limit.encode(out));
    }
}

impl Decode<'_> for [[u64; 3]; 2] {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<[[u64; 3]; 2]> {
        let mut limits = [[0; 3]; 2];
        for limit in limits.iter_mut().flatten() {
            *limit = u64::decode(reader)?;
        }
        Ok(limits)
    }
}

wire_code!(QuotaKind { 0 = User, 1 = Group, 2 = Project });
wire_code!(QuotaResource { 0 = Space, 1 = Inodes });
wire_struct!(QuotaId { kind, id });
wire_struct!(Owners { uid, gid, projid });
wire_struct!(ObjectPlace { file, component, start, end, stripe_size, stripe_count, stripe });
wire_struct!(QuotaLimits { soft, hard });
wire_struct!(QuotaResourceState { used, limits, grace_ends_s });
wire_struct!(QuotaState { id, space, inodes, is_default, is_complete });
wire_struct!(QuotaSlice { id, resource, limit });
wire_struct!(QuotaUse { id, resource, used, wants });
wire_struct!(QuotaRound { seen, run, slices, defaults });
wire_struct!(QuotaReport { run, number, is_complete, has_more, uses });
wire_enum!(QuotaChange {
    0 = Limits { space, inodes },
    1 = UseDefault,
    2 = Delete,
});
wire_enum!(QuotaRequest {
    1 = Get { id, pool, is_default },
    2 = Next { from, pool },
    3 = Target { id, is_mdt, index },
    4 = Set { id, pool, is_default, change },
    5 = Grace { kind },
    6 = SetGrace { kind, space_s, inodes_s },
});
wire_enum!(QuotaReply {
    0 = State(state),
    1 = Grace { space_s, inodes_s },
});
wire_lists! {
    QuotaSlice: QUOTA_ENTRIES_MAX, SLICE_BYTES, "quota slices";
    QuotaUse: QUOTA_ENTRIES_MAX, USE_BYTES, "quota uses";
}
