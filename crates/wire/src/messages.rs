//! Encoding of the requests and replies of each service: the number of the variant in one byte, then its
//! fields.
//!
//! Numbers are never reused; `docs/protocol/messages.md` lists them.

use crate::codec::{
    Decode, DecodeError, DecodeResult, Encode, Reader, put_list, wire_code, wire_enum, wire_flags,
    wire_lists, wire_newtype, wire_struct,
};
use crate::mds::{
    CAPABILITIES_MAX, ClosingData, DataUpdate, FileCapabilities, FileLock, InodeKind, LeaseGrant, LeaseKind,
    LockFamily, LockMode, LockOwner, LockRange, MdsAnswer, MdsReply, MdsRequest, NewFile, OpenFlags,
    ProcessLock, REPLAYED_LOCKS_MAX, RenameFlags, Statfs, XattrFlags,
};
use crate::mgs::{
    CapabilityKey, FsConfig, Hidden, IssuedKey, MgsReply, MgsRequest, PoolChange, PoolConfig, TargetConfig,
};
use crate::oss::{
    Advice, Charge, FallocateKind, KnownObject, LoggedReply, ObjectAttr, OssCall, OssReply, OssRequest,
    OwnedObject, SeekKind,
};
use crate::quota::OWNED_MAX;
use crate::replay::REPLAYED_MAX;
use nacre_types::ioctl::MIGRATED_MAX;
use nacre_types::nodemap::{Change, NODEMAPS_MAX, Nodemaps};
use nacre_types::{CAPABILITY_TAG_BYTES, Capability, Fid, Identity, KeyId, Rights, Status};
use std::borrow::Borrow;
use std::sync::Arc;

/// Objects in one `Destroy`.
pub const DESTROY_MAX: usize = 4096;
/// Targets in one configuration: every index of MDTs and OSTs.
pub const TARGETS_MAX: usize = 2 * nacre_types::limits::TARGET_INDEX_MAX as usize;
/// NIDs of one target.
pub const NIDS_MAX: usize = 64;
/// Persistent parameters in one configuration.
pub const PARAMS_MAX: usize = 65536;
/// Pools in one configuration.
pub const POOLS_MAX: usize = 4096;

/// Revoked keys in one configuration.
pub const REVOKED_MAX: usize = 1 << 20;
/// Capability keys in one configuration.
pub const CAPABILITY_KEYS_MAX: usize = 16;
/// Keys in one reply that lists them.
pub const ISSUED_MAX: usize = 1 << 20;

/// Outcomes in one reply: of files that move, or of replayed changes.
const OUTCOMES_MAX: usize = if MIGRATED_MAX > REPLAYED_MAX { MIGRATED_MAX } else { REPLAYED_MAX };

/// Encoded [`ProcessLock`]: family, owner, mode, first and last byte, process id, process number.
const PROCESS_LOCK_BYTES: usize = 1 + 8 + 1 + 8 + 8 + 4 + 8;

wire_newtype!(LockOwner, KeyId, Hidden);
wire_flags!(OpenFlags, RenameFlags, XattrFlags, Rights);
wire_code!(LockMode { 0 = Read, 1 = Write, 2 = Unlock });
wire_code!(LeaseKind { 0 = None, 1 = Read, 2 = Write, 3 = Frozen });
wire_code!(LockFamily { 0 = Range, 1 = File });
wire_code!(SeekKind { 0 = Data, 1 = Hole });
wire_code!(Advice { 1 = WillRead, 2 = DontNeed });
wire_code!(FallocateKind {
    0 = Allocate,
    1 = AllocateKeepSize,
    2 = Punch,
    3 = Zero,
    4 = ZeroKeepSize,
});
wire_struct!(DataUpdate { size_blocks, mtime, atime, order, size_stamp });
wire_struct!(ClosingData<'a> { object, offset, bytes });
wire_struct!(FileLock { family, owner, mode, start, last, pid });
wire_struct!(ProcessLock { lock, process });
wire_struct!(LeaseGrant { exclusive, epoch });
wire_struct!(LockRange { first, count });
wire_struct!(Statfs { block_size, blocks, blocks_free, blocks_available, files, files_free, state });
wire_struct!(ObjectAttr { size, blocks, mtime });
wire_struct!(Charge { owners, is_exempt, place });
wire_struct!(OwnedObject { object, owners, place });
wire_struct!(KnownObject { object, attr, owners, place });
wire_struct!(Capability { rights, epoch, expires_s, tag });
wire_struct!(FileCapabilities { fid, rights, epoch, expires_s, life_s, objects });

wire_enum!(NewFile<'a> {
    0 = Node { rdev },
    1 = Directory,
    2 = Symlink { target },
    3 = Unnamed,
    4 = Striped { lmv, chosen },
    5 = ChosenDirectory { default },
});

wire_enum!(InodeKind {
    0 = Directories,
    1 = NamedOn(mdt),
});

wire_enum!(MdsRequest<'a> {
    1 = Statfs,
    2 = AllocateSequence,
    3 = Lookup { parent, name },
    4 = GetAttr { fid },
    5 = SetAttr { fid, set },
    6 = Create { parent, name, fid, new, mode, umask, open, exclusive },
    7 = Link { fid, parent, name },
    8 = Unlink { parent, name, directory },
    9 = Rename { from_parent, from_name, to_parent, to_name, flags },
    10 = Open { fid, handle, flags, lock },
    11 = Close { fid, handle, update, written },
    12 = UpdateData { fid, update, exact, written },
    13 = LayoutIntent { fid, start, end },
    14 = GetLayout { fid },
    15 = SetLayout { fid, requested },
    16 = GetDefaultLayout { fid },
    17 = ReadDir { fid, cookie, max_bytes, plus, locks },
    18 = ReadLink { fid },
    19 = GetXattr { fid, name },
    20 = ListXattr { fid },
    21 = SetXattr { fid, name, value, flags },
    22 = RemoveXattr { fid, name },
    23 = Access { fid, mask },
    24 = Commit { upto },
    25 = FidToLink { fid, index },
    26 = SetLock { fid, lock, wait },
    27 = GetLock { fid, lock },
    28 = Ping,
    29 = LeaseReleased { epoch },
    30 = Locks { request },
    31 = Intent { fid, name, handle },
    32 = LookupMany { parent, names, locks },
    33 = Scan { fid, cookie, max_bytes, layouts },
    34 = LayoutAccess { fid, range, lock, owners },
    35 = SwapLayouts { first, second, versions, keep_times, lease },
    36 = OpenLease { fid, handle, kind },
    37 = FilesOn { ost_index, after, count_max },
    38 = FidToPath { fid, index },
    39 = RemoveFid { fid },
    40 = CloseWrite { fid, handle, update, data },
    41 = Peer(request),
    42 = Restripe { fid, requested },
    43 = ListInodes { fids, layouts, locks },
    44 = Migrate { fid, to, lmv },
    45 = Inodes { after, count_max, kind },
    46 = ReplayFileLocks { fid, locks },
    47 = LockFile { fid, lock, wait, asked_ns },
    48 = RunStart,
    49 = MigrateFiles { moves },
    50 = Capabilities { fid, wanted },
    51 = Changelog(request),
    52 = Quota(request),
    53 = DirUse(request),
    54 = Replay { changes },
    55 = RecoveryDone,
    56 = DataChange { object, change },
    57 = LeaseBusy { epoch },
});

wire_enum!(MdsReply {
    0 = Done,
    1 = Statfs(statfs),
    2 = Sequence(sequence),
    3 = Attr(attr),
    4 = Entry { attr, public },
    5 = Created { attr, created, layout, parent },
    6 = Opened { attr, layout, data, lock },
    7 = Layout(layout),
    8 = DefaultLayout(spec),
    9 = Removed { fid, attr },
    10 = Directory(page),
    11 = Bytes(bytes),
    12 = Link { parent, name },
    13 = Lock(lock),
    14 = Lease(grant),
    15 = Locked(outcome),
    16 = Intent { attr, public, names, directory, inode },
    17 = LockedLayout { layout, lock },
    18 = OpenLease(kind),
    19 = Files { fids, next },
    20 = Path { top, path },
    21 = Peer(reply),
    22 = Remote { fid, public, names, directory },
    23 = Shard { page, version, moved },
    24 = RefusedLocks(locks),
    25 = RunStart(start),
    26 = Outcomes(outcomes),
    27 = Changelog(reply),
    28 = Quota(reply),
    29 = DirUse(reply),
});

wire_enum!(OssRequest {
    1 = Write { object, offset, sync, granted, lock, incarnation, written, charge },
    2 = Read { object, offset, len, ahead, lock, written },
    3 = GetAttr { object, glimpse },
    4 = Truncate { object, size, lock, written, charge },
    5 = Fallocate { object, kind, offset, len, lock, written, charge },
    6 = Seek { object, offset, kind, lock, written },
    7 = Sync { object },
    8 = Statfs,
    9 = Precreate { sequence, count },
    10 = DestroyOrphans { sequence, last_used },
    11 = Destroy { objects },
    12 = Ping,
    13 = Grant { client, held, want },
    14 = Locks { request },
    15 = Evict { client },
    16 = Advise { object, offset, len, advice },
    17 = DataVersion { object },
    18 = QuotaRound { round },
    19 = SetOwners { objects },
    20 = Examine { objects },
    21 = ListObjects { after, count },
});

wire_enum!(OssReply {
    0 = Done,
    1 = Written { bytes, is_near_quota },
    2 = Read(len),
    3 = Attr(attr),
    4 = Position(position),
    5 = Statfs(statfs),
    6 = Precreated { first, count },
    7 = Granted(total),
    8 = Locked(outcome),
    9 = Version { attr, version },
    10 = Quota(report),
    11 = Logged { transno, last_committed, reply },
    12 = Known(objects),
});
wire_enum!(LoggedReply {
    0 = Written { bytes, is_near_quota },
    1 = Attr(attr),
});

wire_enum!(MgsRequest {
    1 = GetConfig { fsname, newer_than, wait_ms },
    2 = RegisterTarget { fsname, fs_uuid, target },
    3 = SetParam { name, value },
    4 = Ping,
    5 = ChangePool { pool, change },
    6 = AddTarget { fsname, fs_uuid, target },
    7 = Enrol { token, secret, name, csr },
    8 = Renew { csr },
    9 = CreateToken { grants, expires_s, uses, lifetime_s },
    10 = ListKeys,
    11 = RevokeKey { id },
    20 = ChangeNodemap { name, change },
});

wire_enum!(PoolChange {
    0 = Create,
    1 = Destroy,
    2 = Add { ost },
    3 = Remove { ost },
});

wire_enum!(MgsReply {
    0 = Done,
    1 = Config { config, now_s },
    2 = Certificate { certificate, authority },
    3 = Token(text),
    4 = Keys(keys),
});

wire_struct!(CapabilityKey { epoch, made_s, secret });
wire_struct!(IssuedKey { identity, is_revoked });

/// Least size of an encoded object with its owners.
const OWNED_BYTES: usize = 16 + 12 + 1;
/// Least size of an encoded object as its OST knows it.
const KNOWN_BYTES: usize = 16 + 8 + 8 + 1 + 1 + 1;

wire_lists! {
    OwnedObject: OWNED_MAX, OWNED_BYTES, "objects with owners";
    KnownObject: OWNED_MAX, KNOWN_BYTES, "objects";
    Fid: DESTROY_MAX, nacre_types::fid::FID_BYTES, "objects";
    (Fid, Fid): MIGRATED_MAX, 2 * nacre_types::fid::FID_BYTES, "inodes";
    Option<Status>: OUTCOMES_MAX, 1, "outcomes";
    ProcessLock: REPLAYED_LOCKS_MAX, PROCESS_LOCK_BYTES, "file locks";
    IssuedKey: ISSUED_MAX, 5, "keys";
    (Fid, [u8; CAPABILITY_TAG_BYTES]): CAPABILITIES_MAX, nacre_types::fid::FID_BYTES + CAPABILITY_TAG_BYTES, "capabilities";
}

/// Appends a rare part to the end of a message, or nothing: messages without it do not grow.
fn put_last<T: Encode>(value: Option<&T>, out: &mut Vec<u8>) {
    if let Some(value) = value {
        value.encode(out);
    }
}

fn take_last<'a, T: Decode<'a>>(reader: &mut Reader<'a>) -> DecodeResult<Option<T>> {
    if reader.remaining() > 0 { T::decode(reader).map(Some) } else { Ok(None) }
}

impl Encode for MdsAnswer {
    fn encode(&self, out: &mut Vec<u8>) {
        self.transno.encode(out);
        self.last_committed.encode(out);
        self.reply.encode(out);
        put_last(self.capabilities.as_deref(), out);
    }
}

/// Reads to the end of the message.
impl Decode<'_> for MdsAnswer {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<MdsAnswer> {
        Ok(MdsAnswer {
            transno: Decode::decode(reader)?,
            last_committed: Decode::decode(reader)?,
            reply: Decode::decode(reader)?,
            capabilities: take_last(reader)?.map(Box::new),
        })
    }
}

impl<R: Borrow<OssRequest>> Encode for OssCall<R> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.request.borrow().encode(out);
        put_last(self.capability.as_ref(), out);
    }
}

/// Reads to the end of the message.
impl Decode<'_> for OssCall<OssRequest> {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<OssCall<OssRequest>> {
        Ok(OssCall { request: Decode::decode(reader)?, capability: take_last(reader)? })
    }
}

impl Encode for TargetConfig {
    fn encode(&self, out: &mut Vec<u8>) {
        self.target.encode(out);
        self.active.encode(out);
        put_list(out, &self.nids);
        self.key.encode(out);
    }
}

impl Decode<'_> for TargetConfig {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<TargetConfig> {
        let (target, active) = (Decode::decode(reader)?, Decode::decode(reader)?);
        let nids = reader.list(NIDS_MAX, 1, "NIDs")?;
        if nids.is_empty() {
            return Err(DecodeError::Invalid { what: "target without NIDs" });
        }
        Ok(TargetConfig { target, nids, active, key: Decode::decode(reader)? })
    }
}

impl Encode for PoolConfig {
    fn encode(&self, out: &mut Vec<u8>) {
        self.name.encode(out);
        put_list(out, &self.osts);
    }
}

impl Decode<'_> for PoolConfig {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<PoolConfig> {
        let osts_max = usize::from(nacre_types::limits::TARGET_INDEX_MAX);
        Ok(PoolConfig { name: Decode::decode(reader)?, osts: reader.list(osts_max, 2, "OSTs of a pool")? })
    }
}

impl Encode for FsConfig {
    fn encode(&self, out: &mut Vec<u8>) {
        self.version.encode(out);
        self.fsname.encode(out);
        self.fs_uuid.encode(out);
        put_list(out, &self.targets);
        put_list(out, &self.params);
        put_list(out, &self.pools);
        put_list(out, &self.revoked);
        put_list(out, &self.capability_keys);
        self.nodemaps.encode(out);
    }
}

impl Decode<'_> for FsConfig {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<FsConfig> {
        Ok(FsConfig {
            version: Decode::decode(reader)?,
            fsname: Decode::decode(reader)?,
            fs_uuid: Decode::decode(reader)?,
            targets: reader.list(TARGETS_MAX, 9, "targets")?,
            params: reader.list(PARAMS_MAX, 8, "parameters")?,
            pools: reader.list(POOLS_MAX, 9, "pools")?,
            revoked: reader.list(REVOKED_MAX, 8, "revoked keys")?,
            capability_keys: reader.list(CAPABILITY_KEYS_MAX, 44, "keys of capabilities")?,
            nodemaps: Decode::decode(reader)?,
        })
    }
}

/// Each nodemap is encoded as text, its stored form.
impl Encode for Nodemaps {
    fn encode(&self, out: &mut Vec<u8>) {
        self.active.encode(out);
        put_list(out, &self.maps.iter().map(ToString::to_string).collect::<Vec<String>>());
    }
}

impl Decode<'_> for Nodemaps {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<Nodemaps> {
        let active = Decode::decode(reader)?;
        let texts: Vec<String> = reader.list(NODEMAPS_MAX, 4, "nodemaps")?;
        let maps = texts.iter().map(|text| text.parse().map(Arc::new));
        let maps =
            maps.collect::<Result<Vec<_>, _>>().map_err(|_| DecodeError::Invalid { what: "nodemap" })?;
        Ok(Nodemaps { active, maps })
    }
}

/// Encoded as text.
impl Encode for Change {
    fn encode(&self, out: &mut Vec<u8>) {
        self.to_string().encode(out);
    }
}

impl Decode<'_> for Change {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<Change> {
        let text = String::decode(reader)?;
        text.parse().map_err(|_| DecodeError::Invalid { what: "change of a nodemap" })
    }
}

/// Encoded as text, its form in a certificate.
impl Encode for Identity {
    fn encode(&self, out: &mut Vec<u8>) {
        self.to_string().encode(out);
    }
}

impl Decode<'_> for Identity {
    fn decode(reader: &mut Reader<'_>) -> DecodeResult<Identity> {
        let text = String::decode(reader)?;
        text.parse().map_err(|_| DecodeError::Invalid { what: "identity" })
    }
}

#[cfg(test)]
mod tests;
