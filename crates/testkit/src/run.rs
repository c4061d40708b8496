//! Everything that a test creates on the machine belongs to a [`Run`], and is removed with it.
//!
//! A run is a directory whose name identifies the process that owns it. Processes of a run have its directory
//! in their environment, even indirect descendants; mounts of a run are below its directory. So the directory
//! is all that is needed to end a run: the value does it when dropped (also on a panic), a thread of the test
//! program does it on a signal, and the next test program does it if the owner was killed. Nothing else on
//! the machine is touched.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, Once, PoisonError, mpsc};
use std::time::Duration;

use crate::program::{self, shell};
use crate::{binary, mounts, wait};
use rustix::process::Signal;

/// Environment variable that marks the processes of a run.
pub const MARK: &str = "NACRE_TEST_RUN";

static LIVE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static START: Once = Once::new();

/// A directory, the processes that are marked with it, and the mounts below it.
#[derive(Debug)]
pub struct Run {
    directory: PathBuf,
}

impl Run {
    /// Creates a run. The first one of a program removes runs that killed programs have left behind, and
    /// installs the handlers that end the runs on a signal.
    ///
    /// # Panics
    ///
    /// If the directory for temporary files is not writable.
    pub fn new() -> Run {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        START.call_once(|| {
            sweep(&base());
            end_on_signals();
        });
        let me = std::process::id();
        let start = start_time(me).expect("/proc is mounted");
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = base().join(format!("{me}.{start}.{number}"));
        // Other users must be able to reach the mounts below.
        let made = fs::DirBuilder::new().mode(0o755).recursive(true).create(&directory);
        made.unwrap_or_else(|error| panic!("create {}: {error}", directory.display()));
        LIVE.lock().unwrap_or_else(PoisonError::into_inner).push(directory.clone());
        Run { directory }
    }

    /// Returns its directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Creates a subdirectory.
    ///
    /// # Panics
    ///
    /// If it exists already, or the disk is full.
    pub fn make(&self, name: &str) -> PathBuf {
        let path = self.directory.join(name);
        let made = fs::DirBuilder::new().mode(0o755).create(&path);
        made.unwrap_or_else(|error| panic!("create {}: {error}", path.display()));
        path
    }

    /// Creates a disk of `mib` MiB with a file system of its own, mounted on a new directory.
    ///
    /// # Panics
    ///
    /// If that fails; tests require `mkfs.ext4` and root first.
    pub fn small_disk(&self, mib: u64) -> PathBuf {
        let disk = self.make("disk");
        let script = r#"truncate -s "$3" "$1/image"; mkfs.ext4 -q "$1/image"; mount -o loop "$1/image" "$2""#;
        let size = PathBuf::from(format!("{mib}M"));
        shell(Path::new("/"), script, [self.directory(), &disk, &size]).success();
        disk
    }

    /// Returns a command whose process, with all its descendants, ends with the run.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env(MARK, &self.directory).env("NACRE_LOG_DIR", &self.directory);
        command
    }

    /// Returns a command for which mount(8) finds the mount helpers of NacreFS, as after an installation. It
    /// searches /sbin only, so the command gets a mount namespace with another /sbin. For root.
    pub fn command_with_mount_helpers(&self, program: impl AsRef<OsStr>) -> Command {
        let helpers = self.directory.join("helpers");
        if !helpers.exists() {
            self.make("helpers");
            for name in ["mount.nacre", "mount.fuse.nacre"] {
                symlink(binary::nacre(), helpers.join(name)).expect("a fresh directory of ours");
            }
        }
        // Unmounts copies of other tests' mounts, which would keep these busy. Their paths are not resolved:
        // that would block on one that hangs.
        let script = r#"
            { findmnt -rn -t fuse.nacre -o TARGET | grep -v "^$2/" | xargs -r umount -lc; } || true
            mount -t overlay nacre-test -o "lowerdir=$1:$(realpath /sbin)" /sbin
            shift 2
            exec "$@"
        "#;
        let mut command = self.command("unshare");
        command.args(["--mount", "bash", "-euo", "pipefail", "-c", script, "bash"]);
        command.arg(helpers).arg(&self.directory).arg(program);
        command
    }

    /// Returns the processes of this run with their command lines, ordered by process id.
    pub fn processes(&self) -> Vec<(u32, Vec<String>)> {
        marked(&self.directory)
    }
}

impl Default for Run {
    fn default() -> Run {
        Run::new()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if std::thread::panicking() {
            show_logs(&self.directory);
            if std::env::var_os("NACRE_TEST_KEEP").is_some() {
                eprintln!("kept: {}", self.directory.display());
                end_processes(&self.directory);
                end_mounts(&self.directory);
                LIVE.lock().unwrap_or_else(PoisonError::into_inner).retain(|run| *run != self.directory);
                return;
            }
        }
        let left = end(&self.directory);
        LIVE.lock().unwrap_or_else(PoisonError::into_inner).retain(|run| *run != self.directory);
        if let (Err(message), false) = (left, std::thread::panicking()) {
            panic!("{message}");
        }
    }
}

/// Returns the directory of all runs of this user.
fn base() -> PathBuf {
    std::env::temp_dir().join(format!("nacre-test-{}", rustix::process::getuid().as_raw()))
}

/// Ends runs whose owner has ended.
fn sweep(base: &Path) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let path = entry.path();
        if let Some((pid, start)) = owner(&path)
            && start_time(pid) != Some(start)
        {
            eprintln!("taking away what an earlier run has left: {}", path.display());
            if let Err(message) = end(&path) {
                eprintln!("{message}");
            }
        }
    }
}

/// Returns process id and start time from the name of a run.
fn owner(path: &Path) -> Option<(u32, u64)> {
    let mut words = path.file_name()?.to_str()?.split('.');
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

/// Returns the start time of a process, in ticks since boot: together with the process id it is unique until
/// a reboot.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name may contain blanks and parentheses; the start time is the 20th word after it.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Kills the processes of a run, detaches its mounts, and removes its directory.
fn end(directory: &Path) -> Result<(), String> {
    end_processes(directory);
    end_mounts(directory);
    let left = mounts::below(directory);
    if !left.is_empty() {
        return Err(format!("still mounted, so {} stays: {left:?}", directory.display()));
    }
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("remove {}: {error}", directory.display()))
        }
        _ => Ok(()),
    }
}

/// Kills the processes of a run, and aborts its FUSE connections: a process that waits for a killed server
/// could not end otherwise, and while it is in exec, every reader of its files in /proc blocks.
fn end_processes(directory: &Path) {
    const TIMEOUT: Duration = Duration::from_secs(20);
    kill_all(directory);
    let scratch = directory.join("fusectl");
    if fs::create_dir(&scratch).is_ok() {
        mounts::abort(&mounts::below(directory), &scratch);
        let _ = fs::remove_dir(&scratch);
    }
    // Repeated, as a process may have started another one after the scan.
    let over = wait::within(TIMEOUT, || (kill_all(directory) == 0).then_some(()));
    if over.is_none() {
        eprintln!("processes do not end: {:?}", marked(directory));
    }
}

/// Kills all processes of a run and returns how many there were.
fn kill_all(directory: &Path) -> usize {
    let processes = marked(directory);
    for (pid, _) in &processes {
        // The mark in its environment proves that the process belongs to a run.
        program::signal(*pid, Signal::KILL);
    }
    processes.len()
}

fn end_mounts(directory: &Path) {
    for entry in mounts::below(directory).iter().rev() {
        if mounts::detach(&entry.point).is_err() {
            // Users without privilege unmount FUSE file systems through a set-user-id program.
            let _ = Command::new("fusermount3").arg("-uz").arg(&entry.point).status();
        }
    }
}

/// Returns the processes with the mark of a run (zombies have no environment).
fn marked(directory: &Path) -> Vec<(u32, Vec<String>)> {
    let mark = [MARK.as_bytes(), b"=", directory.as_os_str().as_bytes()].concat();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut found =
        look_at_all(numbers.collect(), Duration::from_secs(1), move |pid| command_with(&mark, pid));
    found.sort();
    found
}

/// Processes that block in exec, so that a read of their files in /proc blocks too.
static HELD_UP: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Returns the results of `look` for processes. A process in exec closes its copies of this program's files,
/// which may wait for a server that only the caller can restart; a look at it blocks meanwhile. After
/// `timeout` such a process is skipped, until the look returns.
fn look_at_all<R: Send + 'static>(
    mut numbers: Vec<u32>,
    timeout: Duration,
    look: impl Fn(u32) -> Option<R> + Clone + Send + 'static,
) -> Vec<(u32, R)> {
    let held_up = || HELD_UP.lock().unwrap_or_else(PoisonError::into_inner);
    let mut found = Vec::new();
    numbers.retain(|pid| !held_up().contains(pid));
    while !numbers.is_empty() {
        let (sender, receiver) = mpsc::channel();
        let (asked, look) = (numbers.clone(), look.clone());
        std::thread::spawn(move || {
            for pid in asked {
                let seen = look(pid);
                let mut held_up = held_up();
                held_up.remove(&pid);
                if sender.send(seen).is_err() {
                    return;
                }
            }
        });
        let mut done = 0;
        for &pid in &numbers {
            let seen = receiver.recv_timeout(timeout).or_else(|_| {
                let mut held_up = held_up();
                let late = receiver.try_recv();
                if late.is_err() {
                    held_up.insert(pid);
                }
                late
            });
            done += 1;
            match seen {
                Ok(seen) => found.extend(seen.map(|seen| (pid, seen))),
                Err(_) => break,
            }
        }
        numbers.drain(..done);
    }
    found
}

/// Returns the command line of a process that has `mark` in its environment.
fn command_with(mark: &[u8], pid: u32) -> Option<Vec<String>> {
    let process = Path::new("/proc").join(pid.to_string());
    let environment = fs::read(process.join("environ")).ok()?;
    if !environment.split(|&byte| byte == 0).any(|variable| variable == mark) {
        return None;
    }
    let line = fs::read(process.join("cmdline")).unwrap_or_default();
    let words = line.split(|&byte| byte == 0).filter(|word| !word.is_empty());
    Some(words.map(|word| String::from_utf8_lossy(word).into_owned()).collect())
}

/// Prints the ends of all logs, as the context of a failure.
fn show_logs(directory: &Path) {
    const LINES: usize = 40;
    let logs = [directory.to_owned(), directory.join("data/run")];
    for entry in logs.iter().flat_map(fs::read_dir).flatten().flatten() {
        let path = entry.path();
        if path.extension() != Some(OsStr::new("log")) {
            continue;
        }
        let text = String::from_utf8_lossy(&fs::read(&path).unwrap_or_default()).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        let skipped = lines.len().saturating_sub(LINES);
        eprintln!("--- {} ---\n{}", path.display(), lines[skipped..].join("\n"));
    }
}

static SIGNAL_PIPE: AtomicI32 = AtomicI32::new(-1);

extern "C" fn on_signal(signal: libc::c_int) {
    let byte = [signal as u8];
    // SAFETY: write is allowed in signal handlers; the descriptor is never closed, `byte` lives across the
    // call.
    unsafe { libc::write(SIGNAL_PIPE.load(Ordering::Relaxed), byte.as_ptr().cast(), 1) };
}

/// Ends all runs when the program is interrupted. In a thread, as few calls are allowed in a signal handler.
fn end_on_signals() {
    let (mut reader, writer) = std::io::pipe().expect("a pipe can be made");
    SIGNAL_PIPE.store(std::os::fd::IntoRawFd::into_raw_fd(writer), Ordering::Relaxed);
    std::thread::spawn(move || {
        let mut byte = [0u8];
        if reader.read_exact(&mut byte).is_err() {
            return;
        }
        let runs = LIVE.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for run in runs {
            let _ = end(&run);
        }
        let _ = writeln!(std::io::stderr(), "interrupted by signal {}: all runs were ended", byte[0]);
        std::process::exit(128 + i32::from(byte[0]));
    });
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: `on_signal` has the signature that signal() requires and only calls write.
        unsafe { libc::signal(signal, on_signal as *const () as libc::sighandler_t) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_with_its_processes_and_files() {
        let run = Run::new();
        let directory = run.directory().to_owned();
        let mut command = run.command("sh");
        let mut child = command.args(["-c", "sleep 1000 & sleep 1000"]).spawn().expect("sh starts");
        wait::until(wait::SOON, "both sleeps run", || (run.processes().len() >= 3).then_some(()));
        drop(run);
        assert!(!directory.exists());
        assert!(marked(&directory).iter().all(|(pid, _)| *pid == child.id()));
        assert!(!child.wait().expect("our child").success());
    }

    #[test]
    fn a_process_that_nobody_can_look_at_hides_no_others() {
        // Process ids that no process has.
        let [first, stuck, last] = [1 << 30, (1 << 30) + 1, (1 << 30) + 2];
        let (release, released) = mpsc::channel::<()>();
        let released = std::sync::Arc::new(Mutex::new(released));
        let look = move |pid| {
            if pid == stuck {
                let _ = released.lock().expect("nobody panics").recv();
            }
            Some(pid - first)
        };
        let all = vec![first, stuck, last];
        let seen = || look_at_all(all.clone(), Duration::from_millis(50), look.clone());
        assert_eq!(seen(), [(first, 0), (last, 2)]);
        let began = std::time::Instant::now();
        for _ in 0..20 {
            assert_eq!(seen(), [(first, 0), (last, 2)]);
        }
        assert!(began.elapsed() < wait::SOON, "it is not waited for each time");
        drop(release);
        wait::until(wait::SOON, "it can be looked at", || (seen().len() == 3).then_some(()));
    }

    #[test]
    fn a_run_whose_owner_is_gone_is_swept_and_others_are_left() {
        let outer = Run::new();
        let base = outer.make("base");
        let gone = base.join("4194304.1.0");
        let alive =
            base.join(format!("{0}.{1}.0", std::process::id(), start_time(std::process::id()).expect("us")));
        let foreign = base.join("not-ours");
        for directory in [&gone, &alive, &foreign] {
            fs::create_dir(directory).expect("create");
        }
        let mut child = Command::new("sleep").arg("1000").env(MARK, &gone).spawn().expect("sleep starts");
        wait::until(wait::SOON, "sleep is marked", || (!marked(&gone).is_empty()).then_some(()));
        sweep(&base);
        assert!(!child.wait().expect("our child").success(), "its process was killed");
        assert!(!gone.exists() && alive.exists() && foreign.exists());
    }
}
