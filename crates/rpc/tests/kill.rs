//! A server process that is killed repeatedly while clients work.

use nacre_env::clock::Instant;
use nacre_rpc::tcp::{ClientIdentity, MdsEvents, Server, Targets, TcpMds};
use nacre_rpc::{
    Call, ClientCallbacks, ClientConfig, Export, MdsEndpoint, MdsService, MdsWelcome, Recovery, ReplySlot,
    ServerConfig,
};
use nacre_types::{ClientUuid, Cred, Fid, Nid, Status, StatusResult, TransNo};
use nacre_wire::mds::{LeaseGrant, MdsAnswer, MdsReply, MdsRequest, NewFile};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const ADDR: &str = "NACRE_RPC_TEST_ADDR";
const LOG: &str = "NACRE_RPC_TEST_LOG";
const KILLS: usize = 12;

/// A store in one file: a line per create, in a single write, that also serves as the stored answer.
struct LogMds {
    file: Mutex<File>,
    stored: Mutex<HashMap<(ClientUuid, u16), u64>>,
}

impl LogMds {
    fn open(path: &Path) -> LogMds {
        let mut stored = HashMap::new();
        for line in std::fs::read_to_string(path).unwrap_or_default().lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let number = |index: usize| fields[index].parse::<u64>().expect("a number");
            stored.insert((ClientUuid([number(1) as u8; 16]), number(2) as u16), number(3));
        }
        let file = OpenOptions::new().append(true).create(true).open(path).expect("log");
        LogMds { file: Mutex::new(file), stored: Mutex::new(stored) }
    }
}

fn done() -> StatusResult<MdsAnswer> {
    Ok(MdsAnswer { transno: TransNo(1), ..MdsReply::Done.into() })
}

impl MdsService for LogMds {
    fn connect(&self, _export: &Arc<Export>) -> StatusResult<MdsWelcome> {
        Ok(MdsWelcome { lease: LeaseGrant { exclusive: true, epoch: 1 }, is_remembered: true })
    }
    fn disconnect(&self, _client: ClientUuid) {}
    fn handle(&self, export: &Export, call: &Call<'_>, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        if let (MdsRequest::Create { name, .. }, Some(slot)) = (request, call.reply_slot) {
            let name = std::str::from_utf8(name).map_err(|_| Status::EINVAL)?;
            let line = format!("{name} {} {} {}\n", export.client.0[0], slot.tag, slot.xid.0);
            self.file.lock().unwrap().write_all(line.as_bytes()).map_err(|error| Status::from_io(&error))?;
        }
        done()
    }
    fn stored_answer(
        &self,
        _: &Export,
        _: &MdsRequest<'_>,
        slot: &ReplySlot,
    ) -> Option<StatusResult<MdsAnswer>> {
        let stored = self.stored.lock().unwrap();
        (stored.get(&(slot.client, slot.tag)) == Some(&slot.xid.0)).then(done)
    }
}

/// Not a test of its own: the process that the test below starts and kills.
#[test]
fn server_process() {
    let (Ok(addr), Ok(log)) = (std::env::var(ADDR), std::env::var(LOG)) else { return };
    let addr: SocketAddr = addr.parse().expect("an address");
    let targets = Targets::new().with_mdt(0, Arc::new(LogMds::open(Path::new(&log))));
    let _server = Server::bind(&[addr], targets, ServerConfig::default()).expect("the port is free again");
    // The parent holds the other end; the process ends with it at the latest.
    let mut end = String::new();
    let _ = std::io::stdin().read_line(&mut end);
}

struct Process(Child);

impl Process {
    fn start(addr: SocketAddr, log: &Path) -> Process {
        let child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "server_process"])
            .env(ADDR, addr.to_string())
            .env(LOG, log)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("a process");
        let deadline = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(addr).is_err() {
            assert!(Instant::now() < deadline, "the server does not come up");
            nacre_env::thread::yield_now();
        }
        Process(child)
    }
}

impl Process {
    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

struct Quiet;

impl ClientCallbacks for Quiet {
    fn lease_changed(&self, _grant: LeaseGrant) {}
}

impl MdsEvents for Quiet {
    fn reconnected(&self, endpoint: &dyn MdsEndpoint, recovery: Recovery, _: LeaseGrant) -> StatusResult<()> {
        assert_eq!(recovery, Recovery::ServerRestarted);
        endpoint.call(&Cred::system(), &MdsRequest::Ping).map(|_| ())
    }
}

struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn create_until(mds: &TcpMds, worker: usize, stop: &AtomicBool, created: &AtomicU64) -> u64 {
    let mut count = 0;
    while !stop.load(Ordering::SeqCst) {
        let name = format!("{worker}-{count}");
        let request = MdsRequest::Create {
            parent: Fid::ROOT,
            name: name.as_bytes(),
            fid: Fid::ROOT,
            new: NewFile::Directory,
            mode: 0o40755,
            umask: 0,
            open: None,
            exclusive: true,
        };
        assert!(mds.call(&Cred::new(0, 0), &request).is_ok());
        count += 1;
        created.fetch_add(1, Ordering::SeqCst);
    }
    count
}

#[test]
fn requests_run_exactly_once_although_their_server_is_killed() {
    let log = Scratch(std::env::temp_dir().join(format!("nacre-rpc-kill-{}", std::process::id())));
    let _ = std::fs::remove_file(&log.0);
    let addr = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port");
    let server = Mutex::new(Process::start(addr, &log.0));
    let config = ClientConfig {
        backoff_min: Duration::from_millis(2),
        backoff_max: Duration::from_millis(20),
        ..ClientConfig::default()
    };
    let identity = ClientIdentity { client: ClientUuid([3; 16]), fsname: String::new(), is_server: false };
    let (mds, _) =
        TcpMds::connect(0, &[Nid::Tcp(addr)], &identity, &config, Arc::new(Quiet)).expect("connect");
    let (stop, created) = (AtomicBool::new(false), AtomicU64::new(0));
    let expected: Vec<u64> = nacre_env::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|worker| {
                let (mds, stop, created) = (&mds, &stop, &created);
                scope.spawn(move || create_until(mds, worker, stop, created))
            })
            .collect();
        for kill in 0..KILLS {
            let goal = created.load(Ordering::SeqCst) + 50 + 37 * kill as u64;
            let deadline = Instant::now() + Duration::from_secs(60);
            while created.load(Ordering::SeqCst) < goal {
                assert!(Instant::now() < deadline, "clients do not get on after kill {kill}");
                nacre_env::thread::yield_now();
            }
            server.lock().unwrap().kill();
            *server.lock().unwrap() = Process::start(addr, &log.0);
        }
        stop.store(true, Ordering::SeqCst);
        workers.into_iter().map(|worker| worker.join().expect("worker")).collect()
    });
    assert!(mds.stats().recoveries >= KILLS as u64);
    drop(mds);
    let mut times: HashMap<String, u32> = HashMap::new();
    for line in std::fs::read_to_string(&log.0).expect("log").lines() {
        *times.entry(line.split(' ').next().expect("a name").to_owned()).or_default() += 1;
    }
    assert_eq!(times.len() as u64, expected.iter().sum::<u64>());
    assert!(times.values().all(|&count| count == 1), "a request ran twice");
    drop(server);
}
