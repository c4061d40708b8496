//! Speed of the metadata engine alone: no network, no FUSE. `mds_bench [DIR] [FILES] [THREADS]`.
//!
//! Each thread has a CPU, a directory and its part of the files. Prints operations per second over all
//! threads, and per second of CPU time, which other work on the machine disturbs less.

use nacre_env::clock::Instant;
use nacre_mds::{Mds, MdsConfig};
use nacre_rpc::{Call, ClientCallbacks, Export, MdsService};
use nacre_types::attr::FileKind;
use nacre_types::{ClientUuid, Cred, Fid, Nid};
use nacre_wire::mds::{LeaseGrant, LockRange, MdsReply, MdsRequest, NewFile};
use std::sync::Arc;

/// Passes over all files for requests so short that a single pass would mostly measure the start of the
/// threads.
const PASSES: usize = 10;

struct Silent;

impl ClientCallbacks for Silent {
    fn lease_changed(&self, _grant: LeaseGrant) {}
}

struct Worker {
    number: u8,
    mds: Arc<Mds>,
    export: Arc<Export>,
    cred: Cred,
    directory: Fid,
    sequence: u64,
    files: u32,
}

impl Worker {
    fn run(&self, request: &MdsRequest<'_>) -> MdsReply {
        match self.mds.handle(&self.export, &Call::new(&self.cred), request) {
            Ok(answer) => answer.reply,
            Err(status) => panic!("{request:?}: {status}"),
        }
    }

    fn create(&self, parent: Fid, name: &[u8], fid: Fid, new: NewFile<'_>, mode: u32) {
        let exclusive = true;
        self.run(&MdsRequest::Create { parent, name, fid, new, mode, umask: 0o022, open: None, exclusive });
    }

    fn fid(&self, number: u32) -> Fid {
        Fid::new(self.sequence, number + 2, 0)
    }
}

/// Writes a name without allocating.
fn name(buffer: &mut [u8; 16], number: u32) -> &[u8] {
    use std::io::Write;
    let mut rest = &mut buffer[..];
    write!(rest, "file.{number:08}").expect("the buffer is long enough");
    &buffer[..13]
}

/// Returns the CPU time of the calling thread in seconds.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn phase(title: &str, workers: &[Worker], work: impl Fn(&Worker) -> u64 + Sync) {
    let start = Instant::now();
    let timed = |worker: &Worker| {
        // A thread that cannot be pinned runs on any CPU.
        let cpus = nacre_env::online_cpus();
        if let Some(cpu) = cpus.get(usize::from(worker.number) % cpus.len().max(1)) {
            let _ = nacre_env::pin_to_cpu(*cpu);
        }
        let before = cpu_seconds();
        (work(worker), cpu_seconds() - before)
    };
    let (total, cpu) = nacre_env::thread::scope(|scope| {
        let threads: Vec<_> = workers.iter().map(|worker| scope.spawn(|| timed(worker))).collect();
        let results = threads.into_iter().map(|thread| thread.join().expect("no panic"));
        results.fold((0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    });
    let seconds = start.elapsed().as_secs_f64();
    println!("{title:<14} {:>10.0} /s {:>10.0} per CPU second", total as f64 / seconds, total as f64 / cpu);
}

fn each(worker: &Worker, work: impl Fn(u32, &[u8])) -> u64 {
    let mut buffer = [0u8; 16];
    for number in 0..worker.files {
        work(number, name(&mut buffer, number));
    }
    u64::from(worker.files)
}

fn start(dir: &std::path::Path, files: u32, threads: u8) -> Vec<Worker> {
    let config = MdsConfig::default();
    Mds::format(dir, &config).expect("formats");
    let mds = Mds::open(dir, config, Vec::new()).expect("starts");
    let export = Arc::new(Export::new(ClientUuid([1; 16]), Nid::Lo, None, Arc::new(Silent)));
    mds.connect(&export).expect("connects");
    let worker = |number: u8| {
        let mut worker = Worker {
            number,
            mds: mds.clone(),
            export: export.clone(),
            cred: Cred::new(0, 0),
            directory: Fid::ROOT,
            sequence: 0,
            files: files / u32::from(threads),
        };
        let MdsReply::Sequence(sequence) = worker.run(&MdsRequest::AllocateSequence) else {
            panic!("a sequence")
        };
        worker.sequence = sequence;
        worker.directory = Fid::new(sequence, 1, 0);
        let name = format!("dir{number}");
        worker.create(Fid::ROOT, name.as_bytes(), worker.directory, NewFile::Directory, 0o755);
        worker
    };
    (0..threads).map(worker).collect()
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let base = arguments.next().unwrap_or_else(|| std::env::temp_dir().display().to_string());
    let files = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(100_000);
    let threads = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(1);
    let dir = tempfile::tempdir_in(base).expect("a scratch directory");
    let workers = start(dir.path(), files, threads);
    let regular = FileKind::Regular.mode_bits() | 0o644;
    phase("create", &workers, |w| {
        each(w, |n, name| w.create(w.directory, name, w.fid(n), NewFile::Node { rdev: 0 }, regular))
    });
    phase("getattr", &workers, |w| each(w, |n, _| drop(w.run(&MdsRequest::GetAttr { fid: w.fid(n) }))));
    phase("lookup", &workers, |w| {
        let once = || each(w, |_, name| drop(w.run(&MdsRequest::Lookup { parent: w.directory, name })));
        (0..PASSES).map(|_| once()).sum()
    });
    phase("lookup none", &workers, |w| {
        each(w, |_, name| drop(w.run(&MdsRequest::Lookup { parent: w.directory, name: &name[1..] })))
    });
    phase("readdir plus", &workers, |w| {
        let (mut cookie, mut entries) = (0, 0);
        loop {
            let request = MdsRequest::ReadDir {
                fid: w.directory,
                cookie,
                max_bytes: 64 << 10,
                plus: true,
                locks: LockRange::default(),
            };
            let MdsReply::Directory(page) = w.run(&request) else { panic!("a page") };
            for entry in page.entries() {
                cookie = entry.cookie;
                entries += 1;
            }
            if page.end {
                return entries;
            }
        }
    });
    phase("unlink", &workers, |w| {
        each(w, |_, name| drop(w.run(&MdsRequest::Unlink { parent: w.directory, name, directory: false })))
    });
    workers[0].mds.stop().expect("stops");
}
