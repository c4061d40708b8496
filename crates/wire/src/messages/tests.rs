//! Golden bytes and round trips of every message.

mod changelog;
mod dir_use;
mod peer;
mod quota;
mod replay;
mod roles;

use super::*;
use crate::connect::{Connect, ConnectFlags, Connected, Refusal};
use crate::lock::{IoLock, LockMessage, LockRequest, ServerMessage};
use crate::mds::{ClosingData, DirEntry, DirPage, ListedLayout, LockRange};
use crate::peer::PeerReply;
use nacre_layout::{
    Component, ComponentFlags, ComponentSpec, Extent, Layout, LayoutForm, LayoutRequest, LayoutSpec, Pattern,
    PoolName, StripeObject,
};
use nacre_lock::{
    Enqueue, EnqueueFlags, InodeBits, LockGrant, LockHandle, Lvb, Mode, Need, Outcome, ResourceId, Wanted,
};
use nacre_types::{
    Attr, AttrFlags, Caps, ClientUuid, Cred, FileKind, FullCred, OpenHandle, ProcessIdentity, SetAttr,
    SetAttrValid, SizeSource, TargetId, Timestamp, TransNo,
};
use proptest::prelude::*;
use std::fmt::{Debug, Write as _};
use std::sync::Arc;

fn fid(oid: u32) -> Fid {
    Fid::new(0x2_0000_0403, oid, 0)
}

fn attr() -> Attr {
    Attr {
        fid: fid(1),
        mode: FileKind::Regular.mode_bits() | 0o644,
        uid: 1000,
        gid: 100,
        projid: 7,
        nlink: 2,
        rdev: 0x0801,
        size_stamp: 11,
        size: 123_456_789,
        blocks: 241_128,
        atime: Timestamp::new(1, 2),
        mtime: Timestamp::new(-3, 999_999_999),
        ctime: Timestamp::new(5, 6),
        btime: Timestamp::new(7, 8),
        flags: AttrFlags::HAS_LAYOUT | AttrFlags::HAS_OBJECTS,
        size_source: SizeSource::Objects,
        version: 99,
    }
}

fn layout() -> Arc<Layout> {
    Arc::new(Layout {
        form: LayoutForm::Plain,
        generation: 3,
        components: vec![Component {
            id: 0,
            extent: Extent::WHOLE,
            flags: ComponentFlags::INIT,
            pattern: Pattern::Raid0,
            stripe_size: 1 << 20,
            stripe_count: 2,
            first_ost: Some(1),
            pool: PoolName::new(b"flash"),
            osts: Vec::new(),
            generation: 4,
            objects: (0..2).map(|i| StripeObject::new(i, Fid::ost_object(i, 9))).collect(),
        }],
    })
}

/// A stored layout without objects.
fn wanted_layout() -> Layout {
    let mut layout = layout().as_ref().clone();
    let component = &mut layout.components[0];
    component.flags = ComponentFlags::default();
    (component.osts, component.objects) = (vec![3, 1], Vec::new());
    layout
}

/// A requested layout of two components, of which the first has `spec`.
fn composite_request(spec: LayoutSpec) -> LayoutRequest {
    let flags = ComponentFlags::PREFER_READ;
    LayoutRequest::Composite(vec![
        ComponentSpec { extent: Extent { start: 0, end: 1 << 20 }, flags, spec },
        ComponentSpec {
            extent: Extent { start: 1 << 20, end: Extent::EOF },
            flags: ComponentFlags::default(),
            spec: LayoutSpec::default(),
        },
    ])
}

/// The same on four listed OSTs.
fn listed(spec: LayoutSpec) -> LayoutSpec {
    LayoutSpec { osts: vec![3, 1, 0x102, 3], pattern: Pattern::Overstriped, ..spec }
}

fn file_lock() -> FileLock {
    FileLock {
        family: LockFamily::Range,
        owner: LockOwner(0xabcd),
        mode: LockMode::Write,
        start: 10,
        last: u64::MAX,
        pid: 4321,
    }
}

fn process_lock() -> ProcessLock {
    ProcessLock { lock: file_lock(), process: 0x1234_5678_9abc }
}

fn data_update() -> DataUpdate {
    DataUpdate {
        size_blocks: Some((4096, 8)),
        mtime: Some(Timestamp::new(11, 12)),
        atime: None,
        order: 3,
        size_stamp: 9,
    }
}

fn mds_requests() -> Vec<MdsRequest<'static>> {
    let update = data_update();
    let spec = LayoutSpec {
        stripe_size: Some(1 << 20),
        stripe_count: Some(4),
        pool: PoolName::new(b"disk"),
        ..LayoutSpec::default()
    };
    let valid = SetAttrValid::MODE | SetAttrValid::SIZE;
    let set = SetAttr { valid, mode: 0o600, size: 5, ..SetAttr::default() };
    let create = |new| MdsRequest::Create {
        parent: Fid::ROOT,
        name: b"new",
        fid: fid(2),
        new,
        mode: 0o100644,
        umask: 0o022,
        open: Some((OpenHandle(77), OpenFlags::READ | OpenFlags::WRITE)),
        exclusive: true,
    };
    let mut requests = vec![
        MdsRequest::Statfs,
        MdsRequest::AllocateSequence,
        MdsRequest::Lookup { parent: Fid::ROOT, name: b"name" },
        MdsRequest::GetAttr { fid: fid(1) },
        MdsRequest::SetAttr { fid: fid(1), set },
        create(NewFile::Node { rdev: 0x0103 }),
        create(NewFile::Directory),
        create(NewFile::Symlink { target: b"../else" }),
        create(NewFile::Unnamed),
        create(NewFile::Striped { lmv: &[1, 2, 3], chosen: true }),
        create(NewFile::ChosenDirectory { default: b"lmv" }),
        MdsRequest::Link { fid: fid(1), parent: Fid::ROOT, name: b"l" },
        MdsRequest::Unlink { parent: Fid::ROOT, name: b"u", directory: true },
        MdsRequest::Rename {
            from_parent: Fid::ROOT,
            from_name: b"a",
            to_parent: fid(3),
            to_name: b"b",
            flags: RenameFlags::EXCHANGE,
        },
        MdsRequest::Open {
            fid: fid(1),
            handle: OpenHandle(78),
            flags: OpenFlags::REPLAY,
            lock: LockHandle(7),
        },
        MdsRequest::Close {
            fid: fid(1),
            handle: OpenHandle(78),
            update,
            written: vec![Fid::ost_object(1, 9)],
        },
        MdsRequest::UpdateData { fid: fid(1), update, exact: true, written: Vec::new() },
    ];
    requests.extend(layout_requests(spec));
    requests.extend(later_requests());
    requests
}

fn layout_requests(spec: LayoutSpec) -> Vec<MdsRequest<'static>> {
    vec![
        MdsRequest::LayoutIntent { fid: fid(1), start: 0, end: 1 << 20 },
        MdsRequest::GetLayout { fid: fid(1) },
        MdsRequest::SetLayout { fid: fid(1), requested: LayoutRequest::Plain(spec.clone()) },
        MdsRequest::SetLayout { fid: fid(1), requested: composite_request(spec.clone()) },
        MdsRequest::SetLayout { fid: fid(1), requested: composite_request(listed(spec)) },
        MdsRequest::GetDefaultLayout { fid: fid(1) },
        MdsRequest::ReadDir { fid: Fid::ROOT, cookie: 4, max_bytes: 65536, plus: true, locks: lock_range() },
        MdsRequest::ReadLink { fid: fid(1) },
        MdsRequest::GetXattr { fid: fid(1), name: b"user.a" },
        MdsRequest::ListXattr { fid: fid(1) },
        MdsRequest::SetXattr { fid: fid(1), name: b"user.a", value: b"v", flags: XattrFlags::CREATE },
        MdsRequest::RemoveXattr { fid: fid(1), name: b"user.a" },
        MdsRequest::Access { fid: fid(1), mask: 5 },
        MdsRequest::Commit { upto: TransNo(u64::MAX) },
        MdsRequest::FidToLink { fid: fid(1), index: 2 },
        MdsRequest::SetLock { fid: fid(1), lock: file_lock(), wait: true },
        MdsRequest::GetLock { fid: fid(1), lock: file_lock() },
    ]
}

fn later_requests() -> Vec<MdsRequest<'static>> {
    vec![
        MdsRequest::Ping,
        MdsRequest::LeaseReleased { epoch: 6 },
        MdsRequest::LeaseBusy { epoch: 6 },
        MdsRequest::Locks { request: LockRequest::ReplayDone },
        MdsRequest::Intent { fid: Fid::ROOT, name: Some(b"n"), handle: LockHandle(8) },
        MdsRequest::Intent { fid: fid(1), name: None, handle: LockHandle(9) },
        MdsRequest::LookupMany { parent: Fid::ROOT, names: b"a\0b\0", locks: lock_range() },
        MdsRequest::Scan { fid: Fid::ROOT, cookie: 4, max_bytes: 16000, layouts: true },
        MdsRequest::LayoutAccess { fid: fid(1), range: None, lock: LockHandle(9), owners: OWNERS },
        MdsRequest::LayoutAccess {
            fid: fid(1),
            range: Some((1, 1 << 20)),
            lock: LockHandle(10),
            owners: OWNERS,
        },
        MdsRequest::SwapLayouts {
            first: fid(1),
            second: fid(2),
            versions: (Some(5), None),
            keep_times: true,
            lease: Some(OpenHandle(78)),
        },
        MdsRequest::OpenLease { fid: fid(1), handle: OpenHandle(78), kind: Some(LeaseKind::Frozen) },
        MdsRequest::Capabilities { fid: fid(1), wanted: Rights::WRITE },
        MdsRequest::FilesOn { ost_index: 3, after: fid(1), count_max: 100 },
        MdsRequest::FidToPath { fid: fid(1), index: 2 },
        MdsRequest::RemoveFid { fid: fid(1) },
        MdsRequest::CloseWrite {
            fid: fid(1),
            handle: OpenHandle(78),
            update: DataUpdate {
                size_blocks: Some((9, 8)),
                mtime: None,
                atime: None,
                order: 4,
                size_stamp: 0,
            },
            data: ClosingData { object: fid(1), offset: 5, bytes: b"bytes" },
        },
        MdsRequest::Peer(peer::requests().remove(0)),
        MdsRequest::Restripe { fid: fid(1), requested: b"lum" },
        MdsRequest::ListInodes { fids: vec![fid(1), fid(2)], layouts: true, locks: LockRange::default() },
        MdsRequest::Migrate { fid: fid(1), to: fid(2), lmv: b"lmv" },
        MdsRequest::Inodes { after: fid(1), count_max: 100, kind: InodeKind::NamedOn(3) },
        MdsRequest::ReplayFileLocks { fid: fid(1), locks: vec![process_lock()] },
        MdsRequest::LockFile { fid: fid(1), lock: process_lock(), wait: true, asked_ns: 17 },
        MdsRequest::RunStart,
        MdsRequest::MigrateFiles { moves: vec![(fid(1), fid(2))] },
    ]
}

fn lock_range() -> LockRange {
    LockRange { first: LockHandle(40), count: 9 }
}

fn mds_replies() -> Vec<MdsReply> {
    let mut page = DirPage { end: true, public: true, ..DirPage::default() };
    let listed = ListedLayout::None;
    let entry = DirEntry {
        cookie: 5,
        fid: fid(1),
        kind: FileKind::Regular,
        name: b"entry",
        attr: Some(attr()),
        lock: LockHandle(0),
        layout: listed,
    };
    assert!(page.push(&entry, 4096));
    page.lock = LockHandle(40);
    assert!(page.push(&DirEntry { lock: LockHandle(41), ..entry }, 4096));
    let mut scanned = DirPage { end: false, ..DirPage::default() };
    assert!(scanned.push(&DirEntry { layout: ListedLayout::Bytes(b"lov"), ..entry }, 4096));
    assert!(scanned.push(&DirEntry { layout: ListedLayout::TooLong, ..entry }, 4096));
    let spec = LayoutSpec { stripe_count: Some(2), ..LayoutSpec::default() };
    let last = DirPage { end: true, ..DirPage::default() };
    vec![
        MdsReply::Done,
        MdsReply::Statfs(statfs()),
        MdsReply::Sequence(0x2_0000_0500),
        MdsReply::Attr(attr()),
        MdsReply::Entry { attr: Some(attr()), public: true },
        MdsReply::Entry { attr: None, public: false },
        MdsReply::Created { attr: attr(), created: true, layout: Some(layout()), parent: attr() },
        MdsReply::Opened { attr: attr(), layout: None, data: Some(b"small".to_vec()), lock: LockHandle(7) },
        MdsReply::Layout(Some(layout())),
        MdsReply::DefaultLayout(Some(LayoutRequest::Plain(spec))),
        MdsReply::Removed { fid: fid(1), attr: None },
        MdsReply::Directory(page),
        MdsReply::Directory(scanned),
        MdsReply::Bytes(b"value".to_vec()),
        MdsReply::Link { parent: Fid::ROOT, name: b"n".to_vec() },
        MdsReply::Lock(Some(file_lock())),
        MdsReply::Lease(LeaseGrant { exclusive: true, epoch: 12 }),
        MdsReply::Locked(Outcome::Waiting),
        MdsReply::Intent {
            attr: Some(attr()),
            public: true,
            names: Some(3),
            directory: LockHandle(8),
            inode: LockHandle(0),
        },
        MdsReply::LockedLayout { layout: Some(layout()), lock: LockHandle(10) },
        MdsReply::OpenLease(LeaseKind::Read),
        MdsReply::Files { fids: vec![fid(1)], next: Some(fid(1)) },
        MdsReply::Outcomes(vec![None, Some(Status::EBUSY)]),
        MdsReply::Path { top: fid(1), path: b"a/b".to_vec() },
        MdsReply::Peer(PeerReply::Done),
        MdsReply::Remote { fid: fid(1), public: true, names: Some(3), directory: LockHandle(4) },
        MdsReply::Shard { page: last, version: 3, moved: 77 },
        MdsReply::RefusedLocks(vec![process_lock()]),
    ]
}

fn statfs() -> Statfs {
    Statfs {
        block_size: 4096,
        blocks: 1,
        blocks_free: 2,
        blocks_available: 3,
        files: 4,
        files_free: 5,
        state: 0x20,
    }
}

fn oss_requests() -> Vec<OssRequest> {
    let object = Fid::ost_object(1, 2);
    vec![
        OssRequest::Write {
            object,
            offset: 4096,
            sync: true,
            granted: false,
            lock: IoLock::Lease,
            incarnation: 0,
            written: true,
            charge: Charge::ROOT,
        },
        OssRequest::Read {
            object,
            offset: 1 << 40,
            len: 1 << 20,
            ahead: 4 << 20,
            lock: IoLock::Lease,
            written: false,
        },
        OssRequest::GetAttr { object, glimpse: false },
        OssRequest::Truncate { object, size: 77, lock: IoLock::Lease, written: false, charge: Charge::ROOT },
        OssRequest::Truncate {
            object,
            size: 78,
            lock: IoLock::Replay(TransNo(9)),
            written: false,
            charge: Charge::ROOT,
        },
        OssRequest::Fallocate {
            object,
            kind: FallocateKind::Punch,
            offset: 1,
            len: 2,
            lock: IoLock::Lease,
            written: true,
            charge: Charge::ROOT,
        },
        OssRequest::Seek { object, offset: 3, kind: SeekKind::Hole, lock: IoLock::Lease, written: true },
        OssRequest::Sync { object: Some(object) },
        OssRequest::Sync { object: None },
        OssRequest::Statfs,
        OssRequest::Precreate { sequence: object.seq, count: 32 },
        OssRequest::DestroyOrphans { sequence: object.seq, last_used: 9 },
        OssRequest::Destroy { objects: vec![object, Fid::ost_object(1, 3)] },
        OssRequest::Ping,
        OssRequest::Grant { client: 5, held: 6, want: 7 },
        OssRequest::Locks { request: LockRequest::ReplayDone },
        OssRequest::Evict { client: ClientUuid([7; 16]) },
        OssRequest::Advise { object: fid(4), offset: 4096, len: 1 << 20, advice: Advice::DontNeed },
        OssRequest::DataVersion { object },
    ]
}

fn need() -> Need {
    Need::extent(Mode::Pw, nacre_lock::Extent { start: 4096, last: 8191 })
}

fn lvb() -> Lvb {
    let (atime, mtime, ctime) = (Timestamp::new(1, 2), Timestamp::new(3, 4), Timestamp::new(5, 6));
    Lvb { size_bytes: 9, blocks: 8, atime, mtime, ctime }
}

fn lock_requests() -> Vec<LockRequest> {
    let (handle, resource) = (LockHandle(3), ResourceId::of_fid(&fid(9)));
    let flags = EnqueueFlags { no_wait: true, deny_on_contention: true, ..EnqueueFlags::default() };
    let request = Enqueue { handle, resource, need: need(), optional: InodeBits::NONE, flags };
    let inode = Enqueue {
        need: Need::bits(Mode::Pr, InodeBits::LOOKUP),
        optional: InodeBits::UPDATE.union(InodeBits::PERM),
        flags: EnqueueFlags { no_expansion: true, glimpse: true, ..EnqueueFlags::default() },
        ..request
    };
    vec![
        LockRequest::Enqueue { request, cancels: vec![LockHandle(1), LockHandle(2)] },
        LockRequest::Enqueue { request: inode, cancels: Vec::new() },
        LockRequest::Cancel { handles: vec![handle] },
        LockRequest::Convert { handle, mode: Mode::Pr, policy: need().policy },
        LockRequest::GlimpseAnswer { glimpse: 4, handle, lvb: Some(lvb()) },
        LockRequest::Replay { handle, resource, need: need() },
        LockRequest::ReplayDone,
        LockRequest::Busy { handle },
    ]
}

fn outcomes() -> Vec<Outcome> {
    let refusals = [
        nacre_lock::Refusal::WouldBlock,
        nacre_lock::Refusal::Contended { for_ms: 5 },
        nacre_lock::Refusal::TooMany,
        nacre_lock::Refusal::Stale,
        nacre_lock::Refusal::Recovering,
        nacre_lock::Refusal::ReplayRefused,
        nacre_lock::Refusal::Invalid,
    ];
    [
        Outcome::Granted(LockGrant { need: need(), lvb: Some(lvb()) }),
        Outcome::Waiting,
        Outcome::Glimpsed(lvb()),
    ]
    .into_iter()
    .chain(refusals.map(Outcome::Refused))
    .collect()
}

fn server_messages() -> Vec<ServerMessage> {
    let handle = LockHandle(3);
    let locks = [
        LockMessage::Completion { handle, outcome: Outcome::Waiting },
        LockMessage::Blocking { handle, wanted: Wanted::by(&need()) },
        LockMessage::Glimpse { glimpse: 4, handle },
    ];
    let lease = ServerMessage::Lease(LeaseGrant { exclusive: true, epoch: 2 });
    std::iter::once(lease).chain(locks.map(ServerMessage::Lock)).collect()
}

fn oss_replies() -> Vec<OssReply> {
    vec![
        OssReply::Done,
        OssReply::written(5),
        OssReply::Read(6),
        OssReply::Attr(ObjectAttr { size: 1, blocks: 2, mtime: Some(Timestamp::new(3, 4)) }),
        OssReply::Position(8),
        OssReply::Statfs(statfs()),
        OssReply::Precreated { first: 10, count: 32 },
        OssReply::Granted(11),
        OssReply::Locked(Outcome::Waiting),
        OssReply::Version { attr: ObjectAttr { size: 1, blocks: 8, mtime: None }, version: 9 },
    ]
}

fn target() -> TargetConfig {
    let nids = ["10.0.0.1@tcp", "[::1]:9000@tcp", "0@lo"].map(|text| text.parse().expect("a NID")).to_vec();
    TargetConfig { target: TargetId::ost(3), nids, active: true, key: Some(KeyId(0xab)) }
}

fn identity() -> Identity {
    let text = "nacre://nacre/00000000000000ab?roles=client&until=1790000000&uid=1000&root=/a&ro&name=h";
    text.parse().expect("an identity")
}

fn pool() -> PoolName {
    PoolName::new(b"flash").expect("a name")
}

fn mgs_requests() -> Vec<MgsRequest> {
    vec![
        MgsRequest::GetConfig { fsname: "nacre".into(), newer_than: 4, wait_ms: 60_000 },
        MgsRequest::RegisterTarget { fsname: "nacre".into(), fs_uuid: [9; 16], target: target() },
        MgsRequest::SetParam { name: "lov.stripesize".into(), value: "4M".into() },
        MgsRequest::Ping,
        MgsRequest::ChangePool { pool: pool(), change: PoolChange::Create },
        MgsRequest::ChangePool { pool: pool(), change: PoolChange::Destroy },
        MgsRequest::ChangePool { pool: pool(), change: PoolChange::Add { ost: 7 } },
        MgsRequest::ChangePool { pool: pool(), change: PoolChange::Remove { ost: 7 } },
        MgsRequest::AddTarget { fsname: "nacre".into(), fs_uuid: [9; 16], target: target() },
        MgsRequest::Enrol {
            token: 5,
            secret: Hidden(vec![1; 16]),
            name: "host".into(),
            csr: vec![0x30, 0x82],
        },
        MgsRequest::Renew { csr: vec![0x30, 0x82] },
        MgsRequest::CreateToken { grants: identity(), expires_s: 3600, uses: 1, lifetime_s: 0 },
        MgsRequest::ListKeys,
        MgsRequest::RevokeKey { id: KeyId(0xab) },
        MgsRequest::ChangeNodemap {
            name: "remote".to_owned(),
            change: "add uid=1:2".parse().expect("a change"),
        },
        MgsRequest::ChangeNodemap {
            name: String::new(),
            change: nacre_types::nodemap::Change::Activate(true),
        },
    ]
}

fn mgs_replies() -> Vec<MgsReply> {
    let config = FsConfig {
        version: 5,
        fsname: "nacre".into(),
        fs_uuid: [9; 16],
        targets: vec![target()],
        params: vec![("a.b".into(), "c".into())],
        pools: vec![PoolConfig { name: pool(), osts: vec![3, 0] }],
        revoked: vec![KeyId(3), KeyId(0xab)],
        capability_keys: vec![CapabilityKey { epoch: 2, made_s: 1_790_000_000, secret: [7; 32] }],
        nodemaps: nacre_types::Nodemaps {
            active: true,
            maps: vec![Arc::new("remote admin=1 range=10.0.0.0/8@tcp".parse().expect("a nodemap"))],
        },
    };
    vec![
        MgsReply::Done,
        MgsReply::Config { config, now_s: 1_790_000_000 },
        MgsReply::Certificate { certificate: vec![1, 2], authority: vec![3] },
        MgsReply::Token(Hidden(b"nacre1-x".to_vec())),
        MgsReply::Keys(vec![IssuedKey { identity: identity(), is_revoked: true }]),
    ]
}

fn connect() -> Connect {
    Connect {
        version_min: 1,
        version_max: 2,
        features: 3,
        flags: ConnectFlags::CONTROL,
        client: ClientUuid([4; 16]),
        fsname: "nacre".into(),
        process: ProcessIdentity { machine: [3; 16], boot: [5; 16], namespaces: 11, pid: 12, started: 13 },
        cpu: 6,
        instance: 7,
    }
}

fn connected() -> Connected {
    Connected {
        version: 1,
        features: 1,
        instance: 8,
        boot_id: [9; 16],
        known: true,
        generation: 14,
        in_flight_max: 32,
        lease: Some(LeaseGrant { exclusive: false, epoch: 10 }),
    }
}

fn cred() -> Cred {
    Cred {
        uid: 1000,
        gid: 100,
        full: Some(FullCred { groups: vec![4, 27], caps: Caps::CHOWN | Caps::SYS_ADMIN }),
    }
}

/// A reply without and one with capabilities.
const OWNERS: nacre_types::Owners = nacre_types::Owners { uid: 1, gid: 2, projid: 3 };

fn mds_answers() -> [MdsAnswer; 2] {
    let answer = MdsAnswer { transno: TransNo(2), last_committed: TransNo(1), ..MdsReply::Done.into() };
    let capabilities = FileCapabilities {
        fid: fid(1),
        rights: Rights::ATTRIBUTES | Rights::READ,
        epoch: 7,
        expires_s: 1_790_000_600,
        life_s: 600,
        objects: (0..2).map(|i| (Fid::ost_object(i, 9), [0x5a; CAPABILITY_TAG_BYTES])).collect(),
    };
    [answer.clone(), MdsAnswer { capabilities: Some(Box::new(capabilities)), ..answer }]
}

fn oss_call() -> OssCall<OssRequest> {
    let capability = Capability {
        rights: Rights::all(),
        epoch: 7,
        expires_s: 1_790_000_600,
        tag: [0x5a; CAPABILITY_TAG_BYTES],
    };
    let request = OssRequest::plain_read(Fid::ost_object(3, 9), 4096, 8192);
    OssCall { request, capability: Some(capability) }
}

/// Appends one line for each value: kind, name of the variant, and its bytes in hexadecimal.
fn golden_lines<T: Encode + Debug>(kind: &str, values: &[T], out: &mut String) {
    for value in values {
        let text = format!("{value:?}");
        let name: String = text.chars().take_while(char::is_ascii_alphanumeric).collect();
        write!(out, "{kind} {name} ").expect("strings grow");
        for byte in value.to_bytes() {
            write!(out, "{byte:02x}").expect("strings grow");
        }
        out.push('\n');
    }
}

fn golden_text() -> String {
    let mut out = String::new();
    golden_lines("value", &[cred()], &mut out);
    golden_lines("value", &[attr()], &mut out);
    golden_lines("value", &[layout().as_ref().clone(), wanted_layout()], &mut out);
    golden_lines("connect", &[connect()], &mut out);
    golden_lines("connect", &[connected()], &mut out);
    golden_lines("connect", &[Refusal { version_min: 1, version_max: 2 }], &mut out);
    golden_lines("mds-request", &mds_requests(), &mut out);
    golden_lines("mds-reply", &mds_replies(), &mut out);
    golden_lines("mds-answer", &mds_answers(), &mut out);
    golden_lines("peer-request", &peer::requests(), &mut out);
    golden_lines("peer-reply", &peer::replies(), &mut out);
    golden_lines("oss-request", &oss_requests(), &mut out);
    golden_lines("oss-call", &[oss_call()], &mut out);
    golden_lines("oss-reply", &oss_replies(), &mut out);
    golden_lines("lock-request", &lock_requests(), &mut out);
    golden_lines("lock-outcome", &outcomes(), &mut out);
    golden_lines("server-message", &server_messages(), &mut out);
    golden_lines("mgs-request", &mgs_requests(), &mut out);
    golden_lines("mgs-reply", &mgs_replies(), &mut out);
    golden_lines("mds-request", &changelog::requests(), &mut out);
    golden_lines("mds-reply", &changelog::replies(), &mut out);
    golden_lines("mds-request", &quota::requests(), &mut out);
    golden_lines("mds-reply", &quota::replies(), &mut out);
    golden_lines("oss-request", &quota::oss_requests(), &mut out);
    golden_lines("oss-reply", &quota::oss_replies(), &mut out);
    replay::golden_lines_of_all(&mut out);
    golden_lines("mds-request", &dir_use::requests(), &mut out);
    golden_lines("mds-reply", &dir_use::replies(), &mut out);
    out
}

#[test]
fn every_message_has_its_golden_bytes() {
    let found = golden_text();
    let expected = include_str!("../../golden/version-4.txt");
    for (found, expected) in found.lines().zip(expected.lines()) {
        assert_eq!(
            found, expected,
            "a message changed its bytes: that needs a new protocol version (connect.rs)"
        );
    }
    assert_eq!(found.lines().count(), expected.lines().count(), "messages were added or removed:\n{found}");
}

fn round_trip<'a, T: Encode + Decode<'a> + PartialEq + Debug>(values: &[T], buffers: &'a [Vec<u8>]) {
    for (value, bytes) in values.iter().zip(buffers) {
        assert_eq!(T::from_bytes(bytes).as_ref(), Ok(value));
        for len in 0..bytes.len() {
            assert!(T::from_bytes(&bytes[..len]).is_err(), "{value:?} cut to {len} bytes");
        }
    }
}

fn encoded<T: Encode>(values: &[T]) -> Vec<Vec<u8>> {
    values.iter().map(Encode::to_bytes).collect()
}

#[test]
fn every_message_survives_the_journey_and_no_cut_one_does() {
    round_trip(&[wanted_layout()], &encoded(&[wanted_layout()]));
    round_trip(&mds_requests(), &encoded(&mds_requests()));
    round_trip(&mds_replies(), &encoded(&mds_replies()));
    round_trip(&oss_requests(), &encoded(&oss_requests()));
    round_trip(&oss_replies(), &encoded(&oss_replies()));
    // The optional end of a message may be missing as a whole.
    let [plain, signed] = mds_answers();
    let (bytes, plain_len) = (signed.to_bytes(), plain.to_bytes().len());
    assert_eq!(MdsAnswer::from_bytes(&bytes[..plain_len]), Ok(plain));
    assert_eq!(MdsAnswer::from_bytes(&bytes), Ok(signed));
    let call = oss_call();
    let (bytes, plain_len) = (call.to_bytes(), call.request.to_bytes().len());
    assert_eq!(OssCall::from_bytes(&bytes[..plain_len]), Ok(OssCall { capability: None, ..call.clone() }));
    assert_eq!(OssCall::from_bytes(&bytes), Ok(call));
    let cut = (plain_len + 1..bytes.len()).find(|len| OssCall::from_bytes(&bytes[..*len]).is_ok());
    assert_eq!(cut, None, "a capability is there as a whole");
    round_trip(&lock_requests(), &encoded(&lock_requests()));
    round_trip(&outcomes(), &encoded(&outcomes()));
    round_trip(&server_messages(), &encoded(&server_messages()));
    round_trip(&mgs_requests(), &encoded(&mgs_requests()));
    round_trip(&mgs_replies(), &encoded(&mgs_replies()));
    round_trip(&[cred()], &encoded(&[cred()]));
    round_trip(&[connect()], &encoded(&[connect()]));
    round_trip(&[connected()], &encoded(&[connected()]));
}

#[test]
fn counts_are_checked_before_memory_is_taken() {
    // A list with a count of 2^32 - 1 objects in nine bytes.
    let mut bytes = vec![11];
    bytes.extend_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(OssRequest::from_bytes(&bytes), Err(DecodeError::TooLong { .. })));
    let mut bytes = vec![11];
    bytes.extend_from_slice(&4096u32.to_le_bytes());
    assert!(matches!(OssRequest::from_bytes(&bytes), Err(DecodeError::Truncated { .. })));
}

#[test]
fn values_that_arithmetic_could_not_bear_are_refused() {
    let broken = |change: fn(&mut Component)| {
        let mut layout = layout().as_ref().clone();
        change(&mut layout.components[0]);
        Layout::from_bytes(&layout.to_bytes())
    };
    assert!(broken(|_| ()).is_ok());
    assert!(broken(|c| c.stripe_size = 0).is_err());
    assert!(broken(|c| c.stripe_size = 1000).is_err());
    assert!(broken(|c| c.objects.clear()).is_err());
    assert!(broken(|c| c.extent.start = 5).is_err());
    assert!(Timestamp::from_bytes(&[0xff; 12]).is_err());
}

proptest! {
    #[test]
    fn random_requests_survive_the_journey(
        seq in any::<u64>(), oid in any::<u32>(), name in prop::collection::vec(any::<u8>(), 0..300),
        value in prop::collection::vec(any::<u8>(), 0..2000), number in any::<u64>(), flags in 0u32..8,
    ) {
        let fid = Fid::new(seq, oid, 0);
        let requests = [
            MdsRequest::SetXattr { fid, name: &name, value: &value, flags: XattrFlags::from_bits_truncate(flags) },
            MdsRequest::ReadDir {
                fid, cookie: number, max_bytes: oid, plus: number % 2 == 0,
                locks: LockRange { first: LockHandle(seq), count: oid },
            },
            MdsRequest::Create {
                parent: fid, name: &name, fid, new: NewFile::Symlink { target: &value }, mode: oid, umask: flags,
                open: (number % 3 == 0).then_some((OpenHandle(number), OpenFlags::from_bits_truncate(flags))),
                exclusive: number % 5 == 0,
            },
        ];
        for request in requests {
            let bytes = request.to_bytes();
            prop_assert_eq!(MdsRequest::from_bytes(&bytes), Ok(request));
        }
    }
}
