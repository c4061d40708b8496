//! Servers in a directory of their own, and mounts of them that always end.

use nacre_client::{Client, ClientConfig, Lease};
use nacre_env::sync::mpsc;
use nacre_fuse::front::{Front, FrontOptions};
use nacre_fuse::{Session, SessionConfig};
use nacre_mds::{Mds, MdsConfig};
use nacre_oss::ObjectServer;
use nacre_rpc::{LoMds, LoOss, MdsEndpoint, OssEndpoint};
use nacre_store::object::{FileStore, FileStoreOptions};
use nacre_types::ClientUuid;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// Time limit for a step of a test, unless something hangs.
const DEADLINE: Duration = Duration::from_secs(60);

/// Returns true if this process may mount; prints a note otherwise.
fn can_mount() -> bool {
    // SAFETY: geteuid takes no arguments and touches no memory of this process.
    let root = unsafe { libc::geteuid() } == 0;
    let possible = root && Path::new("/dev/fuse").exists();
    if !possible {
        eprintln!("SKIPPED: needs root and /dev/fuse");
    }
    possible
}

/// Runs `work` on a separate thread; a test that hangs fails instead, since the mount ends with the process.
fn within_deadline<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, result) = mpsc::channel();
    let thread = nacre_env::thread::spawn(move || {
        let _ = done.send(work());
    });
    match result.recv_timeout(DEADLINE) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("not done after {DEADLINE:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(thread.join().expect_err("it ended without a result"))
        }
    }
}

/// Runs a test on one MDT and `osts` OSTs, if mounts are possible here.
pub fn on_servers(osts: u16, test: impl FnOnce(Servers) + Send + 'static) {
    if can_mount() {
        within_deadline(move || test(Servers::start(osts)));
    }
}

/// One MDT and some OSTs.
pub struct Servers {
    mds: Arc<Mds>,
    osts: BTreeMap<u16, Arc<ObjectServer>>,
    mounts: AtomicU8,
    dir: tempfile::TempDir,
}

/// A mount with a client of its own.
pub struct Mount {
    pub dir: PathBuf,
    pub client: Arc<Client>,
    session: Session,
}

impl Servers {
    /// Starts servers whose files get `stripe_count` stripes of 64 KiB.
    fn start(stripe_count: u16) -> Servers {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut osts: BTreeMap<u16, Arc<ObjectServer>> = BTreeMap::new();
        let mut targets = Vec::new();
        for index in 0..stripe_count {
            let path = dir.path().join(format!("ost{index}"));
            std::fs::create_dir(&path).expect("a fresh directory");
            let options = FileStoreOptions { create: true, ..FileStoreOptions::default() };
            let store = FileStore::open(&path, options).expect("an empty store");
            let server = Arc::new(ObjectServer::new(Arc::new(store), index));
            let of_mds = ClientUuid([0xff; 16]);
            let way = LoOss::connect(server.clone(), of_mds, Arc::new(nacre_rpc::NoCallbacks));
            let way: Arc<dyn OssEndpoint> = Arc::new(way.expect("an OST that lets clients in"));
            targets.push((index, way));
            osts.insert(index, server);
        }
        let mut config = MdsConfig::default();
        config.default_layout.stripe_count = Some(stripe_count);
        config.default_layout.stripe_size = Some(65536);
        let path = dir.path().join("mdt");
        Mds::format(&path, &config).expect("an empty MDT");
        let mds = Mds::open(&path, config, targets).expect("a formatted MDT");
        Servers { mds, osts, mounts: AtomicU8::new(0), dir }
    }

    /// Mounts with another client.
    pub fn mount(&self) -> Mount {
        self.mount_with(FrontOptions::default())
    }

    pub fn mount_with(&self, options: FrontOptions) -> Mount {
        self.mount_through(options, |mdt| mdt)
    }

    /// Mounts with a client whose way to the MDT goes through what `wrap` returns.
    pub fn mount_through(
        &self,
        options: FrontOptions,
        wrap: impl FnOnce(Arc<dyn MdsEndpoint>) -> Arc<dyn MdsEndpoint>,
    ) -> Mount {
        let number = self.mounts.fetch_add(1, Ordering::Relaxed);
        let uuid = ClientUuid([number + 1; 16]);
        let lease = Lease::new();
        let (mdt, _) = LoMds::connect(self.mds.clone(), uuid, lease.callbacks(0)).expect("connected");
        let mdts = vec![wrap(Arc::new(mdt))];
        let events = lease.locks().events();
        let way = |(index, server): (&u16, &Arc<ObjectServer>)| {
            let way = LoOss::with_events(server.clone(), uuid, events.events(*index));
            (*index, Arc::new(way.expect("an OST that lets clients in")) as Arc<dyn OssEndpoint>)
        };
        let osts = self.osts.iter().map(way).collect();
        let client =
            Client::new(ClientConfig::new("nacre", uuid), lease, mdts, osts).expect("the MDT answers");
        let dir = self.dir.path().join(format!("mnt{number}"));
        std::fs::create_dir(&dir).expect("a fresh directory");
        let front = Front::new(client.clone(), options);
        let mut config = SessionConfig::new(&dir);
        front.configure(&mut config);
        let session = Session::mount(config, Arc::new(front)).expect("mounted");
        Mount { dir, client, session }
    }
}

impl Servers {
    /// Returns how many files clients have open.
    pub fn open_files(&self) -> usize {
        let clients = 1..=self.mounts.load(Ordering::Relaxed);
        clients.map(|number| self.mds.open_files(&ClientUuid([number; 16])).len()).sum()
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        if let Err(error) = self.mds.stop() {
            eprintln!("the MDT did not stop: {error}");
        }
    }
}

impl Mount {
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Returns true while the session serves requests.
    pub fn is_served(&self) -> bool {
        !self.session.has_ended()
    }
}

/// Runs a shell command as another user without further groups; returns its exit code and output.
pub fn shell_as(uid: u32, groups: &[u32], dir: &Path, script: &str) -> (i32, String) {
    let list = groups.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let mut command = std::process::Command::new("setpriv");
    command.arg(format!("--reuid={uid}")).arg(format!("--regid={uid}"));
    if groups.is_empty() {
        command.arg("--clear-groups");
    } else {
        command.arg(format!("--groups={list}"));
    }
    let output =
        command.args(["sh", "-c", script]).current_dir(dir).output().expect("setpriv is part of util-linux");
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap_or(-1), text)
}

/// Copies a program in a separate process: a descriptor of this process that is open for writing would be
/// inherited by any process that another test is just starting, and the program could not be executed until
/// that ends.
pub fn copy_program(from: &str, to: &Path) {
    let status = std::process::Command::new("cp").arg(from).arg(to).status();
    assert!(status.expect("cp is there").success());
}
