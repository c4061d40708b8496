//! Resources that locks are taken on, and the types with which servers and clients describe a lock.

use crate::bits::InodeBits;
use crate::extent::Extent;
use crate::mode::{Mode, ModeSet};
use nacre_types::{ClientUuid, Fid, Timestamp};
use std::fmt;
use std::hash::{Hash, Hasher};

/// Name of a resource on one target: four words, as in Lustre. The first two are the FID, the third is
/// unused, the fourth distinguishes names in one directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResourceId(pub [u64; 4]);

impl ResourceId {
    /// Returns the resource of an inode or of an object.
    pub const fn of_fid(fid: &Fid) -> ResourceId {
        ResourceId([fid.seq, fid.oid as u64 | (fid.ver as u64) << 32, 0, 0])
    }

    /// Returns the resource of one name (by its hash) in the directory of this resource.
    pub const fn with_name_hash(self, hash: u64) -> ResourceId {
        ResourceId([self.0[0], self.0[1], self.0[2], hash])
    }

    /// Returns the FID that the resource was derived from.
    pub const fn fid(&self) -> Fid {
        Fid::new(self.0[0], self.0[1] as u32, (self.0[1] >> 32) as u32)
    }
}

impl Hash for ResourceId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for word in self.0 {
            state.write_u64(word);
        }
    }
}

impl fmt::Display for ResourceId {
    /// Writes Lustre's form: `[0x200000007:0x1:0x0].0x0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = self.0;
        write!(f, "[{a:#x}:{b:#x}:{c:#x}].{d:#x}")
    }
}

impl fmt::Debug for ResourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Name of a lock, chosen by its client before it asks: never 0, never used twice by one client for one
/// target. So an enqueue may be resent, and a callback finds its lock even if it overtakes the grant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LockHandle(pub u64);

/// A client as one target knows it, from a connect to its disconnect or eviction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Peer {
    /// The mount.
    pub client: ClientUuid,
    /// Generation, chosen by the server at each new connect: above all earlier ones of this client. Fencing:
    /// requests of an evicted client carry an old generation and are refused.
    pub generation: u64,
}

impl Peer {
    /// The target itself: locks that a service takes for the duration of an operation. They are never revoked
    /// and their holder is never evicted; the service releases them when the operation ends.
    pub const LOCAL: Peer = Peer { client: ClientUuid([0; 16]), generation: 0 };

    /// True for the target itself.
    pub fn is_local(&self) -> bool {
        *self == Peer::LOCAL
    }
}

/// The part of a resource that a lock covers; its variant is the type of the resource.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Policy {
    /// Bytes of an object.
    Extent(Extent),
    /// Parts of an inode.
    Bits(InodeBits),
}

impl Policy {
    /// True if the two have a part in common. Policies of different types do not.
    pub fn overlaps(&self, other: &Policy) -> bool {
        match (self, other) {
            (Policy::Extent(a), Policy::Extent(b)) => a.overlaps(b),
            (Policy::Bits(a), Policy::Bits(b)) => a.overlaps(*b),
            _ => false,
        }
    }

    /// True if all of `other` is covered.
    pub fn covers(&self, other: &Policy) -> bool {
        match (self, other) {
            (Policy::Extent(a), Policy::Extent(b)) => a.contains(b),
            (Policy::Bits(a), Policy::Bits(b)) => a.contains(*b),
            _ => false,
        }
    }

    /// Returns the smallest policy that covers both: the union of bits, the hull of extents. The first one if
    /// the types differ.
    pub fn union(&self, other: &Policy) -> Policy {
        match (self, other) {
            (Policy::Extent(a), Policy::Extent(b)) => Policy::Extent(a.hull(b)),
            (Policy::Bits(a), Policy::Bits(b)) => Policy::Bits(a.union(*b)),
            _ => *self,
        }
    }
}

/// Purpose of a lock: mode, part, and group of a group lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Need {
    /// Mode of the lock.
    pub mode: Mode,
    /// Part of the resource.
    pub policy: Policy,
    /// Group of a [`Mode::Group`] lock, never 0 there; 0 for all other modes.
    pub group: u64,
}

impl Need {
    /// Creates a need for bytes of an object in `mode`.
    pub const fn extent(mode: Mode, extent: Extent) -> Need {
        Need { mode, policy: Policy::Extent(extent), group: 0 }
    }

    /// Creates a need for parts of an inode in `mode`.
    pub const fn bits(mode: Mode, bits: InodeBits) -> Need {
        Need { mode, policy: Policy::Bits(bits), group: 0 }
    }

    /// Creates a need for a whole object as a member of a group.
    pub const fn group(group: u64) -> Need {
        Need { mode: Mode::Group, policy: Policy::Extent(Extent::WHOLE), group }
    }

    /// True if the two cannot be held at the same time.
    pub fn conflicts_with(&self, other: &Need) -> bool {
        let modes_go = self.mode.compatible().contains(other.mode)
            && (self.mode != Mode::Group || other.mode != Mode::Group || self.group == other.group);
        !modes_go && self.policy.overlaps(&other.policy)
    }

    /// True if a lock with these properties allows `need`. A group lock is needed for its membership, so only
    /// a lock of the same group serves.
    pub fn serves(&self, need: &Need) -> bool {
        let modes_go = match need.mode {
            Mode::Group => self.mode == Mode::Group && self.group == need.group,
            mode => self.mode.serves(mode),
        };
        modes_go && self.policy.covers(&need.policy)
    }

    /// True if a client can request it: it covers something, and exactly group locks name a group and cover
    /// bytes.
    pub fn is_valid(&self) -> bool {
        let covers = match self.policy {
            Policy::Extent(extent) => extent.start <= extent.last,
            Policy::Bits(bits) => !bits.is_empty() && self.mode != Mode::Group,
        };
        covers && (self.mode == Mode::Group) == (self.group != 0)
    }
}

/// Needs of waiting requests that conflict with a holder; part of a blocking callback, so that the holder can
/// give up no more than is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Modes of the waiting requests.
    pub modes: ModeSet,
    /// Union of the parts of all waiting requests.
    pub policy: Policy,
}

impl Wanted {
    /// Creates the value for a single need.
    pub fn by(need: &Need) -> Wanted {
        Wanted { modes: ModeSet::only(need.mode), policy: need.policy }
    }

    /// Returns the union of both.
    pub fn union(&self, other: &Wanted) -> Wanted {
        Wanted { modes: self.modes.union(other.modes), policy: self.policy.union(&other.policy) }
    }

    /// True if a lock with this mode and policy conflicts with a waiting request.
    pub fn conflicts_with(&self, mode: Mode, policy: &Policy) -> bool {
        !mode.compatible().contains_all(self.modes) && self.policy.overlaps(policy)
    }
}

/// Lock value block of an object: its size and times as far as the sender knows them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lvb {
    /// Size in bytes; at a client the known minimum size.
    pub size_bytes: u64,
    /// Allocated space in units of 512 bytes.
    pub blocks: u64,
    /// Time of the last access.
    pub atime: Timestamp,
    /// Time of the last modification of the data.
    pub mtime: Timestamp,
    /// Time of the last change of data or attributes.
    pub ctime: Timestamp,
}

impl Lvb {
    /// Merges the knowledge of two sides that each know a part: the greater of each value.
    pub fn merged(&self, other: &Lvb) -> Lvb {
        Lvb {
            size_bytes: self.size_bytes.max(other.size_bytes),
            blocks: self.blocks.max(other.blocks),
            atime: self.atime.max(other.atime),
            mtime: self.mtime.max(other.mtime),
            ctime: self.ctime.max(other.ctime),
        }
    }
}

/// A request for a lock, as a client sends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Enqueue {
    /// Name that the client has chosen for the lock.
    pub handle: LockHandle,
    /// Resource to lock.
    pub resource: ResourceId,
    /// Mode, part and group of the requested lock.
    pub need: Need,
    /// Inode bits to grant in addition if nothing conflicts with them; [`InodeBits::NONE`] for extents.
    pub optional: InodeBits,
    /// Options of the request.
    pub flags: EnqueueFlags,
}

/// Options of an enqueue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EnqueueFlags {
    /// Do not widen the extent: the client knows its pattern (lock ahead). Such a lock is speculative: its
    /// holder may not have written anything.
    pub no_expansion: bool,
    /// Refuse rather than wait, and revoke no lock for it.
    pub no_wait: bool,
    /// Only size and times are needed: if the lock cannot be granted at once, ask the writers for them.
    pub glimpse: bool,
    /// Refuse if the resource is contended; the client then leaves the locking to the server.
    pub deny_on_contention: bool,
}

/// A granted lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockGrant {
    /// Mode, part (widened, or with optional bits) and group.
    pub need: Need,
    /// Size and times of the object at the time of the grant; `None` for inodes.
    pub lvb: Option<Lvb>,
}

/// Reason why a lock was not granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The request would have to wait, and `no_wait` was set. `EAGAIN`.
    WouldBlock,
    /// The resource is contended: the client does its I/O under the server's own lock for this long.
    Contended {
        /// Time until the server grants locks again, in milliseconds.
        for_ms: u64,
    },
    /// The client, or the server, is at its limit of locks and waiting requests. `ENOLCK`; cancel some.
    TooMany,
    /// The sender is not, or not any more, connected under this generation. `ENOTCONN`.
    Stale,
    /// The server is in its recovery window, waiting for clients of its last run; ask again.
    Recovering,
    /// Replay after the recovery window, or of a lock that conflicts with a held one: the client has lost its
    /// locks.
    ReplayRefused,
    /// Invalid request: an empty part, a resource of another type, a handle that names another lock.
    /// `EINVAL`.
    Invalid,
}

/// The answer to an enqueue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The lock is granted.
    Granted(LockGrant),
    /// The request waits: a completion callback (or the result of the glimpse) will follow.
    Waiting,
    /// Result of a glimpse without writers to ask, or of a complete one: no lock, but size and times as the
    /// server and the writers know them.
    Glimpsed(Lvb),
    /// The lock is refused.
    Refused(Refusal),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_named_by_the_words_of_the_fid() {
        let fid = Fid::new(0x200000007, 1, 2);
        let id = ResourceId::of_fid(&fid);
        assert_eq!(id.to_string(), "[0x200000007:0x200000001:0x0].0x0");
        assert_eq!(id.fid(), fid);
        assert_ne!(id.with_name_hash(9), id);
        assert_eq!(id.with_name_hash(9).fid(), fid);
    }

    #[test]
    fn groups_share_inside_and_conflict_outside() {
        assert!(!Need::group(1).conflicts_with(&Need::group(1)));
        assert!(Need::group(1).conflicts_with(&Need::group(2)));
        assert!(Need::group(1).conflicts_with(&Need::extent(Mode::Cr, Extent { start: 7, last: 7 })));
        assert!(Need::group(1).serves(&Need::group(1)));
        assert!(!Need::extent(Mode::Ex, Extent::WHOLE).serves(&Need::group(1)));
    }

    #[test]
    fn locks_on_different_parts_do_not_conflict() {
        let low = Need::extent(Mode::Pw, Extent { start: 0, last: 9 });
        let high = Need::extent(Mode::Pw, Extent { start: 10, last: Extent::EOF });
        assert!(!low.conflicts_with(&high));
        assert!(low.conflicts_with(&Need::extent(Mode::Pr, Extent { start: 9, last: 10 })));
        assert!(
            !Need::bits(Mode::Ex, InodeBits::PERM).conflicts_with(&Need::bits(Mode::Ex, InodeBits::LOOKUP))
        );
    }

    #[test]
    fn needs_that_make_no_sense_are_told_apart() {
        assert!(Need::group(1).is_valid());
        assert!(!Need::group(0).is_valid());
        assert!(!Need { group: 3, ..Need::extent(Mode::Pr, Extent::WHOLE) }.is_valid());
        assert!(!Need::bits(Mode::Pr, InodeBits::NONE).is_valid());
        assert!(!Need { mode: Mode::Group, group: 3, ..Need::bits(Mode::Pr, InodeBits::DOM) }.is_valid());
        assert!(!Need::extent(Mode::Pr, Extent { start: 1, last: 0 }).is_valid());
    }
}
