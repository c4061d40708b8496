//! What locks are taken on, and the words in which servers and clients talk about a lock.

use crate::bits::InodeBits;
use crate::extent::Extent;
use crate::mode::{Mode, ModeSet};
use nacre_types::{ClientUuid, Fid, Timestamp};
use std::fmt;
use std::hash::{Hash, Hasher};

/// Name of a resource inside one target: four words, as in Lustre. The first two are the FID, the third is free, the
/// fourth tells apart names in one directory (or, later, quota groups).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResourceId(pub [u64; 4]);

impl ResourceId {
    /// The resource of an inode or of an object.
    pub const fn of_fid(fid: &Fid) -> ResourceId {
        ResourceId([fid.seq, fid.oid as u64 | (fid.ver as u64) << 32, 0, 0])
    }

    /// The resource of one name (by its hash) in the directory of this resource.
    pub const fn with_name_hash(self, hash: u64) -> ResourceId {
        ResourceId([self.0[0], self.0[1], self.0[2], hash])
    }

    /// The FID that the resource was made from.
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
    /// Lustre's form: `[0x200000007:0x1:0x0].0x0`.
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

/// Name of a lock, chosen by its client before it asks: never 0, never used twice by one client for one target. So an
/// enqueue may be sent again, and a callback finds its lock even if it overtakes the grant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LockHandle(pub u64);

/// A client as one target knows it between a connect and its end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Peer {
    /// Which mount.
    pub client: ClientUuid,
    /// Chosen by the server at each connect that begins afresh: above every earlier one of this client. What an evicted
    /// client still sends carries an old one and is refused.
    pub generation: u64,
}

impl Peer {
    /// The target itself: locks that a service takes for the time of an operation. They are never called back and never
    /// evicted; the service releases them when the operation ends.
    pub const LOCAL: Peer = Peer { client: ClientUuid([0; 16]), generation: 0 };

    /// True for the target itself.
    pub fn is_local(&self) -> bool {
        *self == Peer::LOCAL
    }
}

/// The part of a resource that a lock covers; also says of which type the resource is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Policy {
    /// Bytes of an object.
    Extent(Extent),
    /// Parts of an inode.
    Bits(InodeBits),
}

impl Policy {
    /// True if both cover something in common. Policies of different types do not.
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

    /// What covers both: the union of bits, the hull of extents. The first one if the types differ.
    pub fn union(&self, other: &Policy) -> Policy {
        match (self, other) {
            (Policy::Extent(a), Policy::Extent(b)) => Policy::Extent(a.hull(b)),
            (Policy::Bits(a), Policy::Bits(b)) => Policy::Bits(a.union(*b)),
            _ => *self,
        }
    }
}

/// What somebody wants to do: the mode, the part, and the group of a group lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Need {
    /// How.
    pub mode: Mode,
    /// Where.
    pub policy: Policy,
    /// Group of a [`Mode::Group`] lock, never 0 there; 0 for all other modes.
    pub group: u64,
}

impl Need {
    /// A need for bytes of an object.
    pub const fn extent(mode: Mode, extent: Extent) -> Need {
        Need { mode, policy: Policy::Extent(extent), group: 0 }
    }

    /// A need for parts of an inode.
    pub const fn bits(mode: Mode, bits: InodeBits) -> Need {
        Need { mode, policy: Policy::Bits(bits), group: 0 }
    }

    /// A need for a whole object as a member of a group.
    pub const fn group(group: u64) -> Need {
        Need { mode: Mode::Group, policy: Policy::Extent(Extent::WHOLE), group }
    }

    /// True if the two cannot be held at the same time.
    pub fn conflicts_with(&self, other: &Need) -> bool {
        let modes_go = self.mode.compatible().contains(other.mode)
            && (self.mode != Mode::Group || other.mode != Mode::Group || self.group == other.group);
        !modes_go && self.policy.overlaps(&other.policy)
    }

    /// True if a lock with these properties may be used for `need`. A group lock is wanted for itself, so only one of
    /// the same group serves.
    pub fn serves(&self, need: &Need) -> bool {
        let modes_go = match need.mode {
            Mode::Group => self.mode == Mode::Group && self.group == need.group,
            mode => self.mode.serves(mode),
        };
        modes_go && self.policy.covers(&need.policy)
    }

    /// True if it can be asked for: something is covered, and exactly group locks name a group and cover bytes.
    pub fn is_valid(&self) -> bool {
        let covers = match self.policy {
            Policy::Extent(extent) => extent.start <= extent.last,
            Policy::Bits(bits) => !bits.is_empty() && self.mode != Mode::Group,
        };
        covers && (self.mode == Mode::Group) == (self.group != 0)
    }
}

/// What those who wait want from a holder; comes with a blocking callback, so that the holder can give up no more than is
/// needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Modes that are waited for.
    pub modes: ModeSet,
    /// The parts of all of them together.
    pub policy: Policy,
}

impl Wanted {
    /// What a single need wants.
    pub fn by(need: &Need) -> Wanted {
        Wanted { modes: ModeSet::only(need.mode), policy: need.policy }
    }

    /// Both together.
    pub fn union(&self, other: &Wanted) -> Wanted {
        Wanted { modes: self.modes.union(other.modes), policy: self.policy.union(&other.policy) }
    }

    /// True if a lock with this mode and policy stands in the way.
    pub fn conflicts_with(&self, mode: Mode, policy: &Policy) -> bool {
        !mode.compatible().contains_all(self.modes) && self.policy.overlaps(policy)
    }
}

/// Lock value block of an object: what its size and times are as far as the sender knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lvb {
    /// Size in bytes; at a client the known minimum size.
    pub size_bytes: u64,
    /// Space in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last modification.
    pub mtime: Timestamp,
    /// Last change.
    pub ctime: Timestamp,
}

impl Lvb {
    /// What two who each know a part know together: the greater of each value.
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
    /// The name that the client has chosen for the lock.
    pub handle: LockHandle,
    /// On what.
    pub resource: ResourceId,
    /// What is wanted.
    pub need: Need,
    /// Inode bits that are welcome in addition if nobody stands in the way; [`InodeBits::NONE`] for extents.
    pub optional: InodeBits,
    /// How to go about it.
    pub flags: EnqueueFlags,
}

/// How an enqueue is to be treated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EnqueueFlags {
    /// Do not grow the extent: the client knows its pattern (lock ahead). Such a lock is speculative: its holder need not
    /// have written anything.
    pub no_expansion: bool,
    /// Refuse rather than wait, and call nobody back for it.
    pub no_wait: bool,
    /// Only size and times are wanted: if the lock cannot be had at once, ask the writers for them.
    pub glimpse: bool,
    /// Refuse if the resource is fought over; the client will let the server do the locking.
    pub deny_on_contention: bool,
}

/// A lock as it was granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockGrant {
    /// Mode, part (grown or with optional bits) and group.
    pub need: Need,
    /// Size and times of the object at the time of the grant; `None` for inodes.
    pub lvb: Option<Lvb>,
}

/// Why a lock was not granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// It would have to wait, and `no_wait` was set. EAGAIN.
    WouldBlock,
    /// The resource is fought over: do the I/O under the server's own lock for this long.
    Contended {
        /// Until the server will think again.
        for_ms: u64,
    },
    /// The client holds or waits for as many locks as it may, or the server does. ENOLCK; cancel some.
    TooMany,
    /// The sender is not connected (any more) under this generation. ENOTCONN.
    Stale,
    /// The server is waiting for clients of its last run; ask again.
    Recovering,
    /// Replay after the time for it, or of a lock that conflicts with one that is held: the client has lost its locks.
    ReplayRefused,
    /// The request makes no sense: an empty part, a resource of another type, a handle that names something else. EINVAL.
    Invalid,
}

/// The answer to an enqueue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Here it is.
    Granted(LockGrant),
    /// A completion callback (or the result of the glimpse) will follow.
    Waiting,
    /// A glimpse that needed nobody, or came to its end: no lock, but this is what the servers and the writers know.
    Glimpsed(Lvb),
    /// No.
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
