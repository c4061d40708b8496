//! Capabilities on real mounts: object servers serve an object to holders of a capability for it, as long as
//! the file is open.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use nacre_keys::{Authority, ClientTls, LIFETIME};
use nacre_lock::{Enqueue, EnqueueFlags, Extent, InodeBits, LockHandle, Mode, Need, Policy, ResourceId};
use nacre_mgs::record;
use nacre_rpc::tcp::{ClientIdentity, TcpMds, TcpOss};
use nacre_rpc::{ClientCallbacks, ClientConfig, MdsEndpoint, NoCallbacks, OssEndpoint, OssEvents, Recovery};
use nacre_testkit::cluster::Options;
use nacre_testkit::identity::Identity as User;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, Shape, text, wait};
use nacre_types::{
    Capability, ClientUuid, Cred, Fid, FullCred, Identity, KeyId, Nid, ObjectNeed, OpenHandle, Rights, Roles,
    Status, StatusResult, TargetId,
};
use nacre_wire::lock::{IoLock, LockRequest};
use nacre_wire::mds::{FileCapabilities, LeaseGrant, MdsAnswer, MdsRequest, OpenFlags};
use nacre_wire::mgs::CapabilityKey;
use nacre_wire::oss::{Bulk, Charge, OssReply, OssRequest};

/// A user without any rights other than those given in the test.
const SOMEBODY: u32 = 1000;
/// Shortest lifetime of capabilities.
const EXPIRY: Duration = Duration::from_secs(30);

/// Starts a cluster whose servers require keys; `None` if that is not possible.
fn with_keys(fsname: &str) -> Option<Cluster> {
    if !have(&["/dev/fuse"]) || !have_root() {
        return None;
    }
    let options = Options { osts: 2, fsname: fsname.to_owned(), ..Options::default() };
    let cluster = Cluster::start_with(Shape::Separate, &options);
    (!cluster.is_foreign()).then_some(cluster)
}

/// Returns the address of a server.
fn address(cluster: &Cluster, target: TargetId) -> SocketAddr {
    let shown = cluster.nacre(&["status", "--json", text(cluster.data())]).stdout;
    let (_, after) = shown.split_once(&format!("\"{target}\"")).expect("it is shown");
    let nid = after.split('"').find_map(|word| word.strip_suffix("@tcp")).expect("an address");
    nid.parse().expect("host and port")
}

/// A client that implements the protocol itself, with a key of its own.
struct Stranger {
    identity: ClientIdentity,
    config: ClientConfig,
    mds: TcpMds,
    ost: SocketAddr,
    cred: Cred,
}

/// Sends its capability with every request, whether or not it fits.
struct Holding(Option<Capability>);

impl ClientCallbacks for Holding {
    fn lease_changed(&self, _: LeaseGrant) {}
}

impl OssEvents for Holding {
    fn reconnected(&self, _: &dyn OssEndpoint, _: Recovery) -> StatusResult<()> {
        Ok(())
    }

    fn capability(&self, _: &ObjectNeed, refused: Option<&Capability>) -> StatusResult<Option<Capability>> {
        Ok(self.0.filter(|_| refused.is_none()))
    }
}

impl Stranger {
    fn new(cluster: &Cluster, number: u8) -> Stranger {
        let authority =
            Authority::load(&cluster.data().join("keys"), cluster.fsname()).expect("there is one");
        let (fsname, id) = (cluster.fsname(), KeyId(0x5000 + u64::from(number)));
        let key = authority.make_key(&Identity::new(fsname, id, Roles::CLIENT, "stranger"), LIFETIME);
        let tls = ClientTls::new(fsname, &[key.expect("a key")]).expect("settings");
        let config = ClientConfig { tls: Some(tls), ..ClientConfig::default() };
        let identity =
            ClientIdentity { client: ClientUuid([number; 16]), fsname: fsname.to_owned(), is_server: false };
        let nids = [Nid::Tcp(address(cluster, TargetId::mdt(0)))];
        let mds = TcpMds::new(0, &nids, &identity, &config, Arc::new(NoCallbacks)).expect("an endpoint");
        let ost = address(cluster, TargetId::ost(0));
        let cred = Cred { uid: SOMEBODY, gid: SOMEBODY, full: Some(FullCred::default()) };
        Stranger { identity, config, mds, ost, cred }
    }

    fn ask(&self, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        self.mds.call(&self.cred, request)
    }

    /// Returns the capabilities that the MDT issues for a file, with or without an open handle.
    fn given(&self, request: &MdsRequest<'_>) -> StatusResult<FileCapabilities> {
        Ok(*self.ask(request)?.capabilities.expect("it has objects"))
    }

    fn run(&self, capability: Option<Capability>, request: &OssRequest) -> StatusResult<OssReply> {
        let events = Arc::new(Holding(capability));
        let oss = TcpOss::with_events(0, &[Nid::Tcp(self.ost)], &self.identity, &self.config, events);
        let mut buffer = [0; 8];
        let bulk = match request {
            OssRequest::Write { .. } => Bulk::Send(b"intruded"),
            OssRequest::Read { .. } => Bulk::Receive(&mut buffer),
            _ => Bulk::None,
        };
        let result = oss.expect("an endpoint").call(request, bulk);
        assert!(result != Ok(OssReply::Read(8)) || &buffer == b"untouche", "{buffer:?}");
        result
    }
}

fn capability_of(given: &FileCapabilities) -> (Fid, Capability) {
    let (object, tag) = given.objects[0];
    let FileCapabilities { rights, epoch, expires_s, .. } = *given;
    (object, Capability { rights, epoch, expires_s, tag })
}

fn fid_of(cluster: &Cluster, path: &Path) -> Fid {
    let said = cluster.lfs(&["path2fid", text(path)]).success().stdout;
    said.trim().parse().expect("a FID")
}

/// Returns requests that read an object, and requests that change it.
fn requests(object: Fid) -> (Vec<OssRequest>, Vec<OssRequest>) {
    let lock = IoLock::Lease;
    let enqueue = |mode, number| {
        let need = Need { mode, policy: Policy::Extent(Extent::WHOLE), group: 0 };
        let request = Enqueue {
            handle: LockHandle(number),
            resource: ResourceId::of_fid(&object),
            need,
            optional: InodeBits::NONE,
            flags: EnqueueFlags::default(),
        };
        OssRequest::Locks { request: LockRequest::Enqueue { request, cancels: Vec::new() } }
    };
    let reads = vec![OssRequest::plain_read(object, 0, 8), enqueue(Mode::Pr, 1)];
    let writes = vec![
        OssRequest::plain_write(object, 0),
        OssRequest::Truncate { object, size: 0, lock, written: false, charge: Charge::ROOT },
        enqueue(Mode::Pw, 2),
    ];
    (reads, writes)
}

#[test]
fn a_client_that_talks_to_osts_itself_gets_at_nothing_that_it_has_not_opened() {
    let Some(mut cluster) = with_keys("capa") else { return };
    let dir = cluster.directory("d");
    let (public, secret) = (dir.join("public"), dir.join("secret"));
    for (path, mode) in [(&public, 0o644), (&secret, 0o600)] {
        cluster.lfs(&["setstripe", "-i", "0", text(path)]).success();
        fs::write(path, "untouched").expect("written");
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
        File::open(path).expect("there").sync_all().expect("synced");
    }
    let [public_fid, secret_fid] = [&public, &secret].map(|path| fid_of(&cluster, path));
    let (stranger, other) = (Stranger::new(&cluster, 1), Stranger::new(&cluster, 2));
    let open = |fid, flags| MdsRequest::Open { fid, handle: OpenHandle(1), flags, lock: LockHandle(0) };
    // It can read this object but not change it; and its capability is of no use to another client.
    let given = stranger.given(&open(public_fid, OpenFlags::READ)).expect("opened");
    assert_eq!(given.rights, Rights::ATTRIBUTES | Rights::READ);
    let (object, capability) = capability_of(&given);
    let (reads, writes) = requests(object);
    for request in &reads {
        assert!(stranger.run(Some(capability), request).is_ok(), "{request:?}");
        assert_eq!(stranger.run(None, request), Err(Status::NO_CAPABILITY), "{request:?}");
        assert_eq!(other.run(Some(capability), request), Err(Status::NO_CAPABILITY), "{request:?}");
    }
    for request in &writes {
        for with in [Some(capability), None, Some(Capability { rights: Rights::all(), ..capability })] {
            assert_eq!(stranger.run(with, request), Err(Status::NO_CAPABILITY), "{request:?} {with:?}");
        }
    }
    // It may not open the other file, and the capability that comes with the layout only permits querying its
    // size.
    for flags in [OpenFlags::READ, OpenFlags::WRITE] {
        assert_eq!(stranger.ask(&open(secret_fid, flags)).err(), Some(Status::EACCES));
    }
    let wanted = MdsRequest::Capabilities { fid: secret_fid, wanted: Rights::READ | Rights::WRITE };
    for request in [MdsRequest::GetLayout { fid: secret_fid }, wanted] {
        let given = stranger.given(&request).expect("answered");
        assert_eq!(given.rights, Rights::ATTRIBUTES);
        let (object, capability) = capability_of(&given);
        let (reads, writes) = requests(object);
        for request in reads.iter().chain(&writes) {
            let result = stranger.run(Some(capability), request);
            assert_eq!(result, Err(Status::NO_CAPABILITY), "{request:?}");
        }
        let size = stranger.run(Some(capability), &OssRequest::GetAttr { object, glimpse: false });
        assert!(matches!(size, Ok(OssReply::Attr(attr)) if attr.size == 9), "{size:?}");
    }
    drop((stranger, other));
    for path in [&public, &secret] {
        assert_eq!(fs::read(path).expect("read"), b"untouched");
    }
    cluster.stop_and_check();
}

/// Returns a byte of a file from its OST.
fn byte_of(file: &File, at: u64) -> u8 {
    let mut room = vec![0_u8; 8192];
    let aligned = room.as_ptr().align_offset(4096);
    let page = &mut room[aligned..aligned + 4096];
    file.read_exact_at(page, at / 4096 * 4096).expect("read past all caches");
    page[(at % 4096) as usize]
}

/// Rotates the key of capabilities, with a time in the past. The servers are down.
fn rotate_key(cluster: &Cluster) {
    let path = cluster.data().join("mgs/config");
    let stored = fs::read_to_string(&path).expect("the configuration");
    let mut config = record::decode(&stored).expect("as it was written");
    let now_s = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
    let epoch = config.capability_keys.first().expect("there is one").epoch + 1;
    config.capability_keys.insert(0, CapabilityKey { epoch, made_s: now_s - 100, secret: [0x77; 32] });
    config.version += 1;
    fs::write(&path, record::encode(&config)).expect("written");
}

#[test]
fn open_files_stay_usable_for_longer_than_capabilities_last_whichever_server_restarts() {
    let Some(mut cluster) = with_keys("capb") else { return };
    let expiry = format!("mdt.*.capability_expire_s={}", EXPIRY.as_secs());
    let set =
        |words: &[&str]| cluster.lctl(&[&["--fs", text(cluster.data()), "set_param", "-P"], words].concat());
    set(&[&expiry]).success();
    set(&["mdt.*.capability_expire_s=29"]).fails_with(34);
    let dir = cluster.directory("d");
    let opened = Instant::now();
    let wide = dir.join("wide");
    cluster.lfs(&["setstripe", "-c", "2", "-S", "64k", text(&wide)]).success();
    let data: Vec<u8> = (0..1_u32 << 20).map(|byte| (byte / 7) as u8).collect();
    fs::write(&wide, &data).expect("written");
    let reader = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&wide).expect("opened");
    let head = dir.join("head");
    cluster.lfs(&["setstripe", "-E", "64k", "-L", "mdt", "-E", "-1", text(&head)]).success();
    let mut both = OpenOptions::new().read(true).write(true).open(&head).expect("opened");
    both.write_all(&data[..100_000]).expect("written");
    // Idle for a while: the next write finds only expired capabilities.
    let mut idle = File::create(dir.join("idle")).expect("made");
    idle.write_all(b"first").expect("written");
    idle.sync_all().expect("synced");
    // Opened while that was permitted.
    let kept = dir.join("kept");
    fs::write(&kept, "kept").expect("written");
    chown(&kept, Some(SOMEBODY), Some(SOMEBODY)).expect("given away");
    let users =
        User::user(SOMEBODY).act(|| OpenOptions::new().read(true).write(true).open(&kept)).expect("opened");
    fs::set_permissions(&kept, fs::Permissions::from_mode(0o0)).expect("chmod");
    assert!(User::user(SOMEBODY).act(|| File::open(&kept)).is_err(), "nor is it any more");
    // Locks and capabilities are replayed to servers that know the key from another time.
    let second = cluster.add_mount().join("d");
    assert!(fs::read(second.join("wide")).expect("read") == data);
    let servers = cluster.servers();
    servers.iter().for_each(|role| cluster.kill(role));
    rotate_key(&cluster);
    cluster.start_all();
    assert!(fs::read(second.join("wide")).expect("read") == data);
    let mut at = 0;
    wait::until(3 * EXPIRY, "all that was given in the beginning has ended", || {
        at = (at + 77_777) % data.len() as u64;
        assert_eq!(byte_of(&reader, at), data[at as usize], "byte {at}");
        both.write_at(b"x", at).expect("written");
        both.sync_all().expect("synced");
        (opened.elapsed() > EXPIRY + EXPIRY / 2).then_some(())
    });
    idle.write_all(b" second").expect("written");
    idle.sync_all().expect("synced");
    assert_eq!(fs::read(dir.join("idle")).expect("read"), b"first second");
    users.write_all_at(b"held", 0).expect("written");
    users.sync_all().expect("synced");
    assert_eq!(fs::read(second.join("kept")).expect("read"), b"held");
    for role in ["ost0000", "mdt0000"] {
        cluster.kill(role);
        cluster.start_all();
        assert_eq!(byte_of(&reader, 5000), data[5000], "{role}");
        idle.write_all(b"!").expect("written");
        idle.sync_all().expect("synced");
    }
    drop((reader, both, idle, users));
    cluster.stop_and_check();
}

#[test]
fn what_is_done_by_name_needs_no_open_file() {
    let Some(mut cluster) = with_keys("capc") else { return };
    let dir = cluster.directory("d");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).expect("chmod");
    let second = cluster.add_mount().join("d");
    let (own, others) = (dir.join("own"), dir.join("others"));
    for path in [&own, &others] {
        cluster.lfs(&["setstripe", "-c", "2", "-S", "64k", text(path)]).success();
        fs::write(path, vec![7; 300_000]).expect("written");
    }
    chown(&own, Some(SOMEBODY), Some(SOMEBODY)).expect("given away");
    let cut = |path: &Path, size: i64| {
        let path = std::ffi::CString::new(text(path)).expect("no NUL");
        // SAFETY: the path ends with NUL and lives as long as the call.
        let result = User::user(SOMEBODY).act(|| match unsafe { libc::truncate(path.as_ptr(), size) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error().raw_os_error()),
        });
        (
            result,
            fs::metadata(second.join(Path::new(path.to_str().expect("text")).file_name().expect("named"))),
        )
    };
    for size in [200_000, 70_000, 500_000, 0] {
        let (result, seen) = cut(&own, size);
        assert_eq!((result, seen.expect("there").size()), (Ok(()), size as u64));
    }
    let (result, seen) = cut(&others, 1);
    assert_eq!((result, seen.expect("there").size()), (Err(Some(libc::EACCES)), 300_000));
    // Sizes of files that are being written, as another mount sees them; and all operations of `lfs`.
    let mut writer = OpenOptions::new().append(true).open(&others).expect("opened");
    writer.write_all(&[8; 1000]).expect("written");
    assert_eq!(fs::metadata(second.join("others")).expect("there").size(), 301_000);
    let others_there = second.join("others");
    for command in [
        &["data_version", text(&others_there)][..],
        &["ladvise", "-a", "willread", text(&others_there)],
        &["migrate", "-c", "1", text(&own)],
        &["getstripe", text(&own)],
    ] {
        cluster.lfs(command).success();
    }
    drop(writer);
    cluster.lfs(&["migrate", "-c", "1", text(&others_there)]).success();
    assert_eq!(fs::read(&others).expect("read").len(), 301_000);
    fs::remove_file(&others).expect("removed");
    cluster.stop_and_check();
}

#[test]
fn what_a_close_has_written_at_the_mdt_is_synced_and_read_by_the_next_open() {
    let Some(mut cluster) = with_keys("capd") else { return };
    let dir = cluster.directory("d");
    for number in 0..100 {
        let path = dir.join(format!("f{number}"));
        fs::write(&path, text(&path)).expect("written");
        // A read through the kernel's page cache would not reach the server.
        let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path).expect("opened");
        direct.sync_all().expect("synced");
        let mut page = vec![0; 4096];
        assert_eq!(direct.read_at(&mut page, 0).expect("read"), text(&path).len(), "{number}");
        fs::rename(&path, dir.join("replaced")).expect("renamed");
        assert_eq!(direct.read_at(&mut page, 0).expect("read without its name"), text(&path).len());
    }
    // Data beyond the head moves the file off the MDT, which then stores none of it.
    let mut grown = File::create(dir.join("grown")).expect("created");
    (0..1024).for_each(|_| grown.write_all(&[7; 4096]).expect("written"));
    grown.sync_all().expect("synced");
    drop(grown);
    assert_eq!(fs::metadata(dir.join("grown")).expect("there").len(), 1024 * 4096);
    cluster.stop_and_check();
}
