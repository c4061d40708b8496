//! Locks of programs on files while servers are killed: no lock is granted while a conflicting one is held,
//! on one mount or several.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use nacre_testkit::cluster::Options;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, Shape, Stopped, errno, program, wait};
use rustix::fs::{FlockOperation, flock};

/// Time limit for a call around a crash: resends, recovery window, and a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Increments counters, each under its lock: a process that finds one in use, or changed, exits with an
/// error. A file per process contains its number of increments.
const COUNTER: &str = r"
import fcntl, os, random, struct, sys
directory, kind, me, progress = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
random.seed(me)
done, names = 0, [f'flock{number}' for number in range(4)] if kind == 'flock' else ['fcntl'] * 4
registers = [os.open(f'{directory}/{name}', os.O_RDWR) for name in names]
def lock(number, how):
    if kind == 'flock':
        fcntl.flock(registers[number], how)
    else:
        fcntl.lockf(registers[number], how, 16, number * 16)
def locked(number):
    if random.randrange(2):
        lock(number, fcntl.LOCK_EX)
        return True
    try:
        if random.randrange(2):
            lock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
        lock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        lock(number, fcntl.LOCK_UN)
        return False
while not os.path.exists(progress + '.stop'):
    number = random.randrange(4)
    if not locked(number):
        continue
    file, at = registers[number], 0 if kind == 'flock' else number * 16
    count, holder = struct.unpack('<QQ', os.pread(file, 16, at))
    assert holder == 0, f'{kind} {number}: {me} and {holder}'
    os.pwrite(file, struct.pack('<QQ', count, me), at)
    # What the MDT is asked for makes it likely that it is killed in the middle.
    os.close(os.open(f'{directory}/journal{me}', os.O_CREAT | os.O_RDWR))
    os.unlink(f'{directory}/journal{me}')
    found = struct.unpack('<QQ', os.pread(file, 16, at))
    assert found == (count, me), f'{kind} {number}: {me} wrote {count} and found {found}'
    os.pwrite(file, struct.pack('<QQ', count + 1, 0), at)
    done += 1
    lock(number, fcntl.LOCK_UN)
    with open(progress, 'r+') as told:
        told.write(str(done))
";

/// Processes that increment counters under locks.
struct Counters {
    directory: PathBuf,
    workers: Vec<(Child, PathBuf)>,
}

impl Counters {
    /// Starts a process for each kind of lock on each of `mounts`, all in the same directory.
    fn start(cluster: &Cluster, mounts: &[PathBuf]) -> Counters {
        let progress = cluster.run().make("progress");
        for name in ["fcntl", "flock0", "flock1", "flock2", "flock3"] {
            fs::write(mounts[0].join(name), [0; 64]).expect("write");
        }
        let mut workers = Vec::new();
        for mount in mounts {
            for kind in ["flock", "fcntl"] {
                let me = workers.len() + 1;
                let told = progress.join(me.to_string());
                fs::write(&told, "0").expect("write");
                let mut command = cluster.run().command("python3");
                command.args(["-c", COUNTER]).arg(mount).arg(kind).arg(me.to_string()).arg(&told);
                let child = command.stderr(Stdio::piped()).spawn().expect("python3 starts");
                workers.push((child, told));
            }
        }
        Counters { directory: mounts[0].clone(), workers }
    }

    fn counted(told: &Path) -> u64 {
        fs::read_to_string(told).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    /// Waits until each process has made `count` further increments.
    fn wait_for(&mut self, count: u64) {
        for (child, told) in &mut self.workers {
            let goal = Counters::counted(told) + count;
            wait::until(LIMIT, "a worker counts", || {
                let ended = child.try_wait().expect("our child").is_some();
                (ended || Counters::counted(told) >= goal).then_some(())
            });
        }
    }

    /// Ends all processes and compares the counters with their numbers of increments.
    fn finish(self) {
        let mut said = 0;
        for (_, told) in &self.workers {
            fs::write(format!("{}.stop", told.display()), "").expect("write");
        }
        for (child, told) in self.workers {
            let ended =
                wait::deadline(LIMIT, "a worker ends", move || child.wait_with_output().expect("our child"));
            assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
            said += Counters::counted(&told);
        }
        let count = |name: &str, at: u64| {
            let mut bytes = [0; 8];
            let file = File::open(self.directory.join(name)).expect("open");
            file.read_exact_at(&mut bytes, at).expect("read");
            u64::from_le_bytes(bytes)
        };
        let ranges: u64 = (0..4).map(|number| count("fcntl", number * 16)).sum();
        let files: u64 = (0..4).map(|number| count(&format!("flock{number}"), 0)).sum();
        assert_eq!(ranges + files, said, "no increment is lost");
    }
}

fn start(shape: Shape, fsname: &str) -> Option<Cluster> {
    let fsname = fsname.to_owned();
    let options = Options { fsname, osts: 2, listen: shape == Shape::Embedded, ..Options::default() };
    let ready = have(&["/dev/fuse", "python3"]) && have_root();
    let cluster = ready.then(|| Cluster::start_with(shape, &options));
    cluster.filter(|cluster| !cluster.is_foreign())
}

/// Returns the number of rounds: the default, or the one in the environment.
fn rounds(usual: usize) -> usize {
    std::env::var("NACRE_LOCK_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

#[test]
fn three_mounts_exclude_each_other_while_each_server_is_killed() {
    let Some(mut cluster) = start(Shape::Separate, "locks3") else { return };
    let mut mounts = vec![cluster.directory("d")];
    mounts.extend((0..2).map(|_| cluster.add_mount().join("d")));
    let mut counters = Counters::start(&cluster, &mounts);
    for round in 0..rounds(4) {
        counters.wait_for(10);
        cluster.kill(["mdt0000", "ost0000", "mdt0000", "mgs", "ost0001"][round % 5]);
        cluster.start_all();
    }
    counters.wait_for(10);
    counters.finish();
    cluster.stop_and_check();
}

#[test]
fn one_mount_excludes_its_programs_while_its_mdt_is_killed() {
    let Some(mut cluster) = start(Shape::Separate, "locks1") else { return };
    let directory = cluster.directory("d");
    let mut counters = Counters::start(&cluster, &[directory.clone(), directory]);
    for _ in 0..rounds(2) {
        counters.wait_for(20);
        cluster.kill("mdt0000");
        cluster.start_all();
    }
    counters.wait_for(20);
    counters.finish();
    cluster.stop_and_check();
}

#[test]
fn mounts_of_an_embedded_file_system_exclude_each_other_while_its_process_is_killed() {
    let Some(mut cluster) = start(Shape::Embedded, "lockse") else { return };
    cluster.directory("d");
    // Programs on the embedded mount would end with the process.
    let mounts: Vec<PathBuf> = (0..2).map(|_| cluster.add_mount().join("d")).collect();
    let mut counters = Counters::start(&cluster, &mounts);
    let server = cluster.servers().remove(0);
    for _ in 0..rounds(2) {
        counters.wait_for(10);
        cluster.kill(&server);
        cluster.start_all();
        // A new request queues behind the waiting ones.
        let own = OpenOptions::new().write(true).open(cluster.mount().join("d/flock0")).expect("open");
        flock(&own, FlockOperation::LockExclusive).expect("its turn comes");
    }
    counters.wait_for(10);
    counters.finish();
    cluster.stop_and_check();
}

/// Four processes that each insert rows, one by one, and write how many were committed.
const WRITER: &str = r"
import os, sqlite3, sys
path, me, progress = sys.argv[1], int(sys.argv[2]), sys.argv[3]
base = sqlite3.connect(path, timeout=120, isolation_level=None)
base.execute('pragma journal_mode=delete')
done = 0
while not os.path.exists(progress + '.stop'):
    try:
        base.execute('begin immediate')
        base.execute('insert into rows values (?, ?)', (me, done))
        base.execute('update total set count = count + 1')
        base.execute('commit')
    except sqlite3.OperationalError as error:
        if 'locked' not in str(error):
            raise
        if base.in_transaction:
            base.execute('rollback')
        continue
    done += 1
    with open(progress, 'r+') as told:
        told.write(str(done))
";

/// Runs four writers of one database while its MDT is killed; `seconds` after each start, or once all have
/// made progress.
fn a_database_survives(cluster: &mut Cluster, directory: &Path, kills: usize, seconds: Option<f64>) {
    let name = directory.file_name().and_then(|name| name.to_str()).expect("a name");
    let progress = cluster.run().make(&format!("progress-{name}"));
    let path = directory.join("base");
    let sql = |text: &str| program::run("sqlite3", [path.as_os_str(), text.as_ref()]).success().stdout;
    sql(
        "pragma journal_mode=delete; create table rows (who, number); create table total (count); insert into total values (0);",
    );
    let mut workers = Vec::new();
    for me in 0..4 {
        let told = progress.join(me.to_string());
        fs::write(&told, "0").expect("write");
        let mut command = cluster.run().command("python3");
        command.args(["-c", WRITER]).arg(&path).arg(me.to_string()).arg(&told);
        workers.push((command.stderr(Stdio::piped()).spawn().expect("python3 starts"), told));
    }
    let mut counters = Counters { directory: path.clone(), workers };
    for _ in 0..kills {
        match seconds {
            Some(seconds) => std::thread::sleep(Duration::from_secs_f64(seconds)),
            None => counters.wait_for(1),
        }
        cluster.kill("mdt0000");
        cluster.start_all();
    }
    counters.wait_for(1);
    let mut said = Vec::new();
    counters
        .workers
        .iter()
        .for_each(|(_, told)| fs::write(format!("{}.stop", told.display()), "").expect("write"));
    for (child, told) in counters.workers {
        let ended =
            wait::deadline(LIMIT, "a writer ends", move || child.wait_with_output().expect("our child"));
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        said.push(Counters::counted(&told));
    }
    assert_eq!(sql("pragma integrity_check").trim(), "ok");
    let found = sql("select count(*) from rows group by who order by who");
    let found: Vec<u64> = found.lines().filter_map(|line| line.parse().ok()).collect();
    assert_eq!(found, said, "each commit that was acknowledged is there, once");
    assert_eq!(sql("select count from total").trim(), said.iter().sum::<u64>().to_string());
    println!("{} commits with {kills} kills", said.iter().sum::<u64>());
}

#[test]
fn a_database_with_four_writers_survives_kills_of_its_mdt() {
    let Some(mut cluster) = start(Shape::Separate, "sqlite") else { return };
    let directory = cluster.directory("d");
    // Optional longer runs: 50 s with a kill every 3.5 s.
    let runs = rounds(1);
    for run in 0..runs {
        let directory = directory.join(run.to_string());
        fs::create_dir(&directory).expect("mkdir");
        let (kills, seconds) = if runs > 1 { (14, Some(3.5)) } else { (2, None) };
        a_database_survives(&mut cluster, &directory, kills, seconds);
    }
    cluster.stop_and_check();
}

/// Tries to take a lock in a process of its own; returns the errno, or 0.
fn try_lock(path: &Path) -> i32 {
    let script = "import fcntl,sys\nf=open(sys.argv[1],'r+b')\ntry:\n fcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB)\nexcept OSError as e:\n sys.exit(e.errno)\n";
    program::run("python3", ["-c", script, path.to_str().expect("UTF-8")]).code()
}

#[test]
fn whoever_lost_a_lock_by_an_eviction_is_told_until_it_is_given_up() {
    let Some(mut cluster) = start(Shape::Separate, "lockev") else { return };
    cluster.lctl(&["set_param", "mdt.lockev-*.ldlm_timeout=1"]).success();
    let first = cluster.directory("d");
    fs::write(first.join("file"), [0; 100]).expect("write");
    let open = |name: &str| OpenOptions::new().read(true).write(true).open(first.join(name)).expect("open");
    let (second, (mut holder, beside, stopped)) = cluster.add_mount_after(|cluster| {
        let (holder, beside) = (open("file"), open("file"));
        flock(&holder, FlockOperation::LockExclusive).expect("lock");
        (holder, beside, Stopped::begin(cluster, cluster.pid("mount")))
    });
    let there = OpenOptions::new().write(true).open(second.join("d/file")).expect("open");
    wait::until(LIMIT, "the lock of the dead client is free", || {
        flock(&there, FlockOperation::NonBlockingLockExclusive).ok()
    });
    drop(stopped);
    // The mount does not learn of the loss before its next request to the MDT.
    fs::read_dir(&first).expect("directory").for_each(drop);
    wait::until(LIMIT, "it knows", || holder.write_all_at(b"mine", 0).is_err().then_some(()));
    for _ in 0..2 {
        assert_eq!(errno(holder.write_all(b"mine")), libc::EIO);
        assert_eq!(errno(flock(&holder, FlockOperation::NonBlockingLockShared)), libc::EIO);
    }
    beside.write_all_at(b"who has locked nothing writes", 50).expect("write");
    assert_eq!(errno(flock(&beside, FlockOperation::NonBlockingLockExclusive)), libc::EWOULDBLOCK);
    flock(&holder, FlockOperation::Unlock).expect("giving it up works");
    holder.write_all(b"without a lock").expect("write");
    flock(&there, FlockOperation::Unlock).expect("unlock");
    flock(&holder, FlockOperation::LockExclusive).expect("a new lock");
    holder.write_all(b"with it").expect("write");
    assert_eq!(errno(flock(&there, FlockOperation::NonBlockingLockShared)), libc::EWOULDBLOCK);
    drop((holder, beside, there));
    cluster.stop_and_check();
}

/// A deadlock across two mounts of one file system: each of two processes locks a byte through the first
/// mount, and waits for the other's byte through the second.
const CIRCLE: &str = r"
import errno, fcntl, os, signal, sys
first, second = (os.open(path, os.O_RDWR) for path in sys.argv[1:3])
ready, go = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    first, second = (os.open(path, os.O_RDWR) for path in sys.argv[1:3])
byte = 0 if child else 1
def lock(file, byte):
    fcntl.lockf(file, fcntl.LOCK_EX, 1, byte)
lock(first, byte)
if child:
    os.read(ready[0], 1)
    os.write(go[1], b'.')
else:
    os.write(ready[1], b'.')
    os.read(go[0], 1)
try:
    lock(second, 1 - byte)
    refused = 0
except OSError as error:
    assert error.errno == errno.EDEADLK, error
    refused = 1
    fcntl.lockf(first, fcntl.LOCK_UN)
    fcntl.lockf(second, fcntl.LOCK_UN)
if child:
    _, status = os.waitpid(child, 0)
    assert refused + os.waitstatus_to_exitcode(status) == 1, 'one of the two'
else:
    os._exit(refused)
";

#[test]
fn a_circle_of_waits_through_two_mounts_of_a_host_ends_with_an_error_for_one() {
    let Some(mut cluster) = start(Shape::Embedded, "circle") else { return };
    let first = cluster.directory("d").join("file");
    fs::write(&first, [0; 2]).expect("write");
    let second = cluster.add_mount().join("d/file");
    for (here, there) in [(&first, &second), (&second, &first), (&first, &first)] {
        let mut command = cluster.run().command("python3");
        command.args(["-c", CIRCLE]).arg(here).arg(there);
        program::run_command(command, LIMIT).success();
    }
    assert_eq!(try_lock(&first), 0, "nothing is left");
    cluster.stop_and_check();
}

/// Holds locks of all kinds in one process, controlled by its input. A separate process, as others have
/// copies of the files of this one.
const HOLDER: &str = r"
import fcntl, os, struct, sys
path = sys.argv[1]
whole, copied, record, description = (os.open(path + str(n), os.O_RDWR) for n in range(4))
fcntl.flock(whole, fcntl.LOCK_EX)
fcntl.flock(whole, fcntl.LOCK_SH)
fcntl.flock(copied, fcntl.LOCK_EX)
kept = os.dup(copied)
os.close(copied)
fcntl.lockf(record, fcntl.LOCK_EX)
fcntl.lockf(record, fcntl.LOCK_UN, 10, 10)
ofd = struct.pack('hhqqi4x', fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
fcntl.fcntl(description, fcntl.F_OFD_SETLK, ofd)
os.set_inheritable(description, True)
print('held', flush=True)
for line in sys.stdin:
    if line.strip() == 'fork':
        # The child has the open files, and none of the record locks.
        if os.fork():
            os._exit(0)
        print('forked', flush=True)
    if line.strip() == 'exec':
        for file in (whole, kept, record):
            os.set_inheritable(file, False)
        os.execvp('cat', ['cat'])
";

#[test]
fn locks_of_open_files_and_processes_outlive_the_mdt_as_the_kernel_keeps_them() {
    let Some(mut cluster) = start(Shape::Separate, "kinds") else { return };
    let path = cluster.directory("d").join("file");
    for number in 0..4 {
        fs::write(format!("{}{number}", path.display()), [0; 100]).expect("write");
    }
    let mut command = cluster.run().command("python3");
    command.args(["-c", HOLDER]).arg(&path).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = command.spawn().expect("python3 starts");
    let mut input = holder.stdin.take().expect("a pipe");
    let mut output = std::io::BufReader::new(holder.stdout.take().expect("a pipe"));
    let mut said = |word: &str| {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut output, &mut line).expect("it says something");
        assert_eq!(line.trim(), word);
    };
    said("held");
    let file = |number: usize| {
        let path = format!("{}{number}", path.display());
        OpenOptions::new().read(true).write(true).open(path).expect("open")
    };
    // Queries the locks that are held: a shared and an exclusive flock, a record lock on the range that was
    // not unlocked, and one of an open file description.
    let held = || {
        let flocks = [0, 1].map(|number| {
            let open = file(number);
            let shared = flock(&open, FlockOperation::NonBlockingLockShared).is_ok();
            (shared, shared && flock(&open, FlockOperation::NonBlockingLockExclusive).is_ok())
        });
        let record = |number: usize, at: u64, len: u64| {
            let script = "import fcntl,sys\nf=open(sys.argv[1],'r+b')\ntry:\n fcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB,int(sys.argv[3]),int(sys.argv[2]))\nexcept OSError as e:\n sys.exit(1)\n";
            let words = [format!("{}{number}", path.display()), at.to_string(), len.to_string()];
            let words = ["-c", script, &words[0], &words[1], &words[2]];
            program::run("python3", words).code() == 0
        };
        (flocks, record(2, 0, 10), record(2, 10, 10), record(3, 0, 0))
    };
    let mut crash = || {
        cluster.kill("mdt0000");
        cluster.start_all();
    };
    crash();
    assert_eq!(held(), ([(true, false), (false, false)], false, true, false));
    input.write_all(b"fork\n").expect("write");
    said("forked");
    crash();
    assert_eq!(
        held(),
        ([(true, false), (false, false)], true, true, false),
        "its record locks went with the parent"
    );
    input.write_all(b"exec\n").expect("write");
    wait::until(LIMIT, "files without a copy are closed", || {
        flock(file(1), FlockOperation::NonBlockingLockExclusive).ok()
    });
    crash();
    assert_eq!(held(), ([(true, true), (true, true)], true, true, false));
    drop(input);
    let lets_go = || (held() == ([(true, true), (true, true)], true, true, true)).then_some(());
    wait::until(LIMIT, "the last one lets go", lets_go);
    holder.wait().expect("our child");
    cluster.stop_and_check();
}
