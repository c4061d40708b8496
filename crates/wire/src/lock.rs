//! Lock messages between clients and targets. The types are those of `nacre_lock`.
//!
//! Messages may be repeated, lost or overtaken by others of the same client; `docs/design/locks.md` explains
//! why that is harmless.

use crate::codec::{
    Decode, DecodeError, DecodeResult, Encode, Reader, put_list, wire_enum, wire_newtype, wire_struct,
};
use crate::mds::LeaseGrant;
use nacre_lock::{
    Enqueue, EnqueueFlags, Extent, InodeBits, LockGrant, LockHandle, Lvb, Mode, ModeSet, Need, Outcome,
    Policy, Refusal, ResourceId, Wanted,
};
use nacre_types::TransNo;

/// Request of a client to the lock server of a target. Reply: a lock outcome for `Enqueue` and `Replay`,
/// otherwise `Done`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LockRequest {
    /// Requests a lock. The outcome may be "waiting": then a [`LockMessage::Completion`] follows.
    Enqueue {
        /// Request for the lock.
        request: Enqueue,
        /// Locks that the client has given up, to be cancelled first.
        cancels: Vec<LockHandle>,
    },
    /// Cancels locks or requests; unknown handles are skipped.
    Cancel {
        /// Locks to cancel, at most [`HANDLES_MAX`].
        handles: Vec<LockHandle>,
    },
    /// Converts a lock: keeps a part of it.
    Convert {
        /// Lock to convert.
        handle: LockHandle,
        /// Mode that stays.
        mode: Mode,
        /// Part that stays covered.
        policy: Policy,
    },
    /// Answers [`LockMessage::Glimpse`].
    GlimpseAnswer {
        /// Number of the glimpse.
        glimpse: u64,
        /// Lock that the glimpse named.
        handle: LockHandle,
        /// Size and times as the holder knows them; `None` if it has no such lock.
        lvb: Option<Lvb>,
    },
    /// Replays a lock to a target that has restarted.
    Replay {
        /// Lock to replay.
        handle: LockHandle,
        /// Resource of the lock.
        resource: ResourceId,
        /// The lock as it was granted.
        need: Need,
    },
    /// The client has replayed all its locks.
    ReplayDone,
    /// Answers a repeated [`LockMessage::Blocking`]: the client still uses the lock, or writes out what it covers.
    /// Extends the deadline, up to the bound of the target.
    Busy {
        /// Lock that is revoked.
        handle: LockHandle,
    },
}

/// Lock handles in one message.
pub const HANDLES_MAX: usize = 4096;

/// Message of a target to a client that has locks. Lost ones are resent, or recovered by the client's resend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockMessage {
    /// Completion callback: a waiting request has its outcome.
    Completion {
        /// Handle of the request.
        handle: LockHandle,
        /// Outcome of the request.
        outcome: Outcome,
    },
    /// Blocking callback: a request conflicts with a lock of the client.
    Blocking {
        /// Lock to give up, in part or as a whole.
        handle: LockHandle,
        /// Needs of the conflicting requests.
        wanted: Wanted,
    },
    /// Glimpse callback: asks for the size that the client knows; it keeps the lock.
    Glimpse {
        /// Number that the answer carries.
        glimpse: u64,
        /// Lock that makes the client a possible writer.
        handle: LockHandle,
    },
}

/// Message that a target sends a client without a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServerMessage {
    /// The lease has changed (metadata targets only).
    Lease(LeaseGrant),
    /// A message about a lock.
    Lock(LockMessage),
}

/// Protection of the bytes that a request reads or changes against other clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IoLock {
    /// The client is the only one of its file system, or coherence does not matter.
    #[default]
    Lease,
    /// The client holds a lock that covers the bytes. If it has lost that lock, the request is refused with
    /// `EIO`: other clients may have changed the bytes.
    Held,
    /// The target locks for the duration of the request: other clients write out and drop what they cache
    /// there.
    Server,
    /// The change is the one that the target acknowledged with this number and lost with its host: changes are replayed
    /// in the order of their numbers, before any other request. A change that the target still has is not repeated.
    Replay(TransNo),
}

wire_newtype!(LockHandle);
wire_struct!(Need { mode, policy, group });
wire_struct!(Wanted { modes, policy });
wire_struct!(Lvb { size_bytes, blocks, atime, mtime, ctime });
wire_struct!(LockGrant { need, lvb });
wire_struct!(Enqueue { handle, resource, need, optional, flags });
wire_enum!(IoLock { 0 = Lease, 1 = Held, 2 = Server, 3 = Replay(number) });

wire_enum!(Policy {
    0 = Extent(extent),
    1 = Bits(bits),
});

wire_enum!(Refusal {
    0 = WouldBlock,
    1 = Contended { for_ms },
    2 = TooMany,
    3 = Stale,
    4 = Recovering,
    5 = ReplayRefused,
    6 = Invalid,
});

wire_enum!(Outcome {
    0 = Granted(grant),
    1 = Waiting,
    2 = Glimpsed(lvb),
    3 = Refused(refusal),
});

wire_enum!(LockRequest {
    0 = Enqueue { request, cancels },
    1 = Cancel { handles },
    2 = Convert { handle, mode, policy },
    3 = GlimpseAnswer { glimpse, handle, lvb },
    4 = Replay { handle, resource, need },
    5 = ReplayDone,
    6 = Busy { handle },
});

wire_enum!(LockMessage {
    0 = Completion { handle, outcome },
    1 = Blocking { handle, wanted },
    2 = Glimpse { glimpse, handle },
});

wire_enum!(ServerMessage {
    0 = Lease(grant),
    1 = Lock(message),
});

impl Encode for ResourceId {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.iter().for_each(|word| word.encode(out));
    }
}

impl Decode<'_> for ResourceId {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<ResourceId> {
        let mut words = [0u64; 4];
        for word in &mut words {
            *word = Decode::decode(reader)?;
        }
        Ok(ResourceId(words))
    }
}

impl Encode for Extent {
    fn encode(&self, out: &mut Vec<u8>) {
        self.start.encode(out);
        self.last.encode(out);
    }
}

impl Decode<'_> for Extent {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<Extent> {
        let (start, last) = (Decode::decode(reader)?, Decode::decode(reader)?);
        Extent::new(start, last).ok_or(DecodeError::Invalid { what: "extent that ends before it begins" })
    }
}

impl Encode for Mode {
    fn encode(&self, out: &mut Vec<u8>) {
        self.bits().encode(out);
    }
}

impl Decode<'_> for Mode {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<Mode> {
        let bits: u8 = Decode::decode(reader)?;
        Mode::from_bits(bits).ok_or(DecodeError::Unknown { what: "lock mode", value: bits.into() })
    }
}

impl Encode for ModeSet {
    fn encode(&self, out: &mut Vec<u8>) {
        self.bits().encode(out);
    }
}

impl Decode<'_> for ModeSet {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<ModeSet> {
        let bits: u8 = Decode::decode(reader)?;
        let set = ModeSet::from_bits(bits);
        if set.bits() == bits {
            Ok(set)
        } else {
            Err(DecodeError::Unknown { what: "lock modes", value: bits.into() })
        }
    }
}

impl Encode for InodeBits {
    fn encode(&self, out: &mut Vec<u8>) {
        self.bits().encode(out);
    }
}

impl Decode<'_> for InodeBits {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<InodeBits> {
        let bits: u8 = Decode::decode(reader)?;
        InodeBits::from_bits(bits).ok_or(DecodeError::Unknown { what: "inode bits", value: bits.into() })
    }
}

const NO_EXPANSION: u8 = 1;
const NO_WAIT: u8 = 2;
const GLIMPSE: u8 = 4;
const DENY_ON_CONTENTION: u8 = 8;

impl Encode for EnqueueFlags {
    fn encode(&self, out: &mut Vec<u8>) {
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        let bits = bit(self.no_expansion, NO_EXPANSION)
            | bit(self.no_wait, NO_WAIT)
            | bit(self.glimpse, GLIMPSE)
            | bit(self.deny_on_contention, DENY_ON_CONTENTION);
        bits.encode(out);
    }
}

impl Decode<'_> for EnqueueFlags {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<EnqueueFlags> {
        let bits: u8 = Decode::decode(reader)?;
        if bits & !(NO_EXPANSION | NO_WAIT | GLIMPSE | DENY_ON_CONTENTION) != 0 {
            return Err(DecodeError::Unknown { what: "enqueue flags", value: bits.into() });
        }
        Ok(EnqueueFlags {
            no_expansion: bits & NO_EXPANSION != 0,
            no_wait: bits & NO_WAIT != 0,
            glimpse: bits & GLIMPSE != 0,
            deny_on_contention: bits & DENY_ON_CONTENTION != 0,
        })
    }
}

impl Encode for Vec<LockHandle> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_list(out, self);
    }
}

impl Decode<'_> for Vec<LockHandle> {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<Vec<LockHandle>> {
        reader.list(HANDLES_MAX, 8, "lock handles")
    }
}
