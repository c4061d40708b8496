//! Background processes: list them, start one and wait until it is ready, stop one.
//!
//! A process holds a lock on `NAME.pid` in its run directory for its whole life; the kernel releases it
//! however the process ends. So the lock alone decides whether a process runs, and the pid in the file cannot
//! be that of an unrelated process.

use crate::control;
use crate::failure::{Failure, Result};
use crate::progress::Progress;
use crate::{instance, logger, service};
use nacre_env::clock::Instant;
use nacre_env::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Poll interval of a wait for the end of a process.
const STOP_POLL: Duration = Duration::from_millis(20);

/// Poll interval of a wait for a process's socket.
const SOCKET_POLL: Duration = Duration::from_millis(50);
/// Timeout for a process to accept requests after another command has started it.
pub const BEGUN_LIMIT: Duration = Duration::from_secs(10);

/// Longest time that a dying process may hold its lock, and the poll interval.
const DYING_LIMIT: Duration = Duration::from_secs(5);
const DYING_POLL: Duration = Duration::from_millis(5);

/// Returns true for a process that is exiting and not yet reaped, from `/proc/PID/stat`: unlike its command
/// line, this is readable for a process that hangs.
fn is_dying(pid: i32) -> bool {
    /// `PF_EXITING` of the kernel.
    const EXITING: u64 = 4;
    let Ok(text) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The name in parentheses may contain any character. The state follows it and, six fields later, the
    // flags.
    let mut fields = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_ascii_whitespace();
    let state = fields.next();
    let flags: u64 = fields.nth(5).and_then(|flags| flags.parse().ok()).unwrap_or(0);
    state == Some("Z") || flags & EXITING != 0
}

/// Returns the state of a process as `/proc/PID/stat` shows it.
fn state_of(pid: i32) -> Option<char> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Returns true for a process that a signal has stopped, until it is continued.
pub fn is_stopped(pid: i32) -> bool {
    matches!(state_of(pid), Some('T' | 't'))
}

/// Returns the likely reason why a running process does not answer, and a remedy: half a sentence.
pub fn why_silent(pid: i32) -> String {
    match state_of(pid) {
        Some('T' | 't') => format!("it is stopped by a signal: continue it with 'kill -CONT {pid}'"),
        Some('D') => "it waits for a device: look at the kernel's log".to_owned(),
        _ => format!(
            "it hangs or is overloaded: see its log, or end it with 'kill -9 {pid}' and start it again"
        ),
    }
}

/// A directory with the pid files, control sockets and logs of processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDir {
    /// The directory, mode 0700.
    pub path: PathBuf,
    /// Path of the log of its only process, if it is in another directory.
    log: Option<PathBuf>,
}

/// Lock that marks a process as running; released on drop.
#[derive(Debug)]
pub struct RunLock {
    file: File,
}

impl Drop for RunLock {
    fn drop(&mut self) {
        // An explicit unlock: a close alone would not release it while a concurrent fork has a copy of the
        // descriptor.
        let unlock = libc::flock { l_type: libc::F_UNLCK as libc::c_short, ..whole_file() };
        // SAFETY: the descriptor is open and `unlock` lives across the call.
        unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_SETLK, &unlock) };
    }
}

impl RunDir {
    /// Names a run directory, which need not exist.
    pub fn new(path: PathBuf) -> RunDir {
        RunDir { path, log: None }
    }

    /// Sets the log of its only process to another path.
    pub fn with_log(self, log: PathBuf) -> RunDir {
        RunDir { log: Some(log), ..self }
    }

    /// Returns the path of process `name`'s control socket.
    pub fn socket(&self, name: &str) -> PathBuf {
        match name {
            NODE => self.path.join("control.sock"),
            name => self.path.join(format!("{name}.sock")),
        }
    }

    /// Returns the path of process `name`'s socket for questions about its state.
    pub fn debug_socket(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.debug.sock"))
    }

    /// Returns the path of process `name`'s saved events.
    pub fn events(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.events"))
    }

    /// Returns the path of process `name`'s log.
    pub fn log(&self, name: &str) -> PathBuf {
        self.log.clone().unwrap_or_else(|| self.path.join(format!("{name}.log")))
    }

    fn pid_file(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.pid"))
    }

    /// Takes the lock of process `name` for this process.
    ///
    /// # Errors
    /// If another process has it, or the file cannot be written.
    pub fn lock(&self, name: &str) -> Result<RunLock> {
        instance::make_dir(&self.path, 0o700)?;
        let path = self.pid_file(name);
        let fail = || Failure::because(format!("write {}", path.display()));
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .write(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(fail())?;
        if !take_lock(&file) {
            let pid = self.pid(name).map_or_else(String::new, |pid| format!(" (pid {pid})"));
            return Err(Failure::new(format!("'{name}' of {} is already running{pid}", self.path.display())));
        }
        file.set_len(0).and_then(|()| file.rewind()).map_err(fail())?;
        writeln!(file, "{}", std::process::id()).map_err(fail())?;
        Ok(RunLock { file })
    }

    /// Returns whether `lock` is still on the file that other processes see: runtime directories are cleaned
    /// now and then.
    pub fn is_held(&self, name: &str, lock: &RunLock) -> bool {
        use std::os::unix::fs::MetadataExt;
        let found = fs::symlink_metadata(self.pid_file(name)).map(|found| (found.dev(), found.ino()));
        let held = lock.file.metadata().map(|held| (held.dev(), held.ino()));
        matches!((found, held), (Ok(found), Ok(held)) if found == held)
    }

    /// Returns the process id of `name` if it runs. Waits for a process that is exiting after a kill, so that
    /// it does not count as alive.
    pub fn pid(&self, name: &str) -> Option<i32> {
        let mut file = File::open(self.pid_file(name)).ok()?;
        let deadline = Instant::now() + DYING_LIMIT;
        loop {
            if !is_locked(&file) {
                return None;
            }
            let mut text = String::new();
            file.rewind().ok()?;
            file.read_to_string(&mut text).ok()?;
            let pid = text.trim().parse().ok()?;
            if !is_dying(pid) || Instant::now() >= deadline {
                return Some(pid);
            }
            nacre_env::thread::sleep(DYING_POLL);
        }
    }

    /// Returns the names of all processes that run here.
    pub fn running(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(&self.path) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter_map(|name| name.strip_suffix(".pid").map(str::to_owned))
            .filter(|name| self.pid(name).is_some())
            .collect();
        names.sort();
        names
    }

    /// Returns true if `name` runs and was started with this option.
    pub fn has_option(&self, name: &str, option: &str) -> bool {
        let command = self.pid(name).and_then(|pid| fs::read(format!("/proc/{pid}/cmdline")).ok());
        command.is_some_and(|words| words.split(|byte| *byte == 0).any(|word| word == option.as_bytes()))
    }

    /// Waits until `name` has ended; returns false if it has not after `limit`.
    pub fn wait_stopped(&self, name: &str, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while self.pid(name).is_some() {
            if Instant::now() >= deadline {
                return false;
            }
            nacre_env::thread::sleep(STOP_POLL);
        }
        true
    }

    /// Returns whether `name` runs. Waits for a process that is starting or exiting: until it accepts
    /// requests, has ended, or `limit` is over.
    pub fn runs(&self, name: &str, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while let Some(process) = self.watch(name) {
            if control::is_listening(&self.socket(name)) || Instant::now() >= deadline {
                return true;
            }
            // The wait ends with the process; its socket is polled.
            process.wait_ended(SOCKET_POLL);
        }
        self.pid(name).is_some()
    }

    /// Opens process `name` to watch for its end; `None` if it does not run.
    pub fn watch(&self, name: &str) -> Option<Watched> {
        let pid = self.pid(name).and_then(rustix::process::Pid::from_raw)?;
        rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok().map(Watched)
    }

    /// Asks `name` to stop by SIGTERM, for an unresponsive control socket.
    pub fn terminate(&self, name: &str) {
        if let Some(pid) = self.pid(name).and_then(rustix::process::Pid::from_raw) {
            // It may have ended meanwhile, which is the purpose.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }
}

/// A pidfd: the kernel reports the end of the process, with all its threads and all its files closed.
pub struct Watched(OwnedFd);

impl Watched {
    /// Waits for its end; returns false if it still runs after `limit`.
    pub fn wait_ended(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            let mut fds = [rustix::event::PollFd::new(&self.0, rustix::event::PollFlags::IN)];
            let left = deadline.saturating_duration_since(Instant::now());
            let wait = rustix::event::Timespec::try_from(left).ok();
            match rustix::event::poll(&mut fds, wait.as_ref()) {
                Err(rustix::io::Errno::INTR) => {}
                ended => return ended.is_ok_and(|count| count > 0),
            }
        }
    }
}

/// Name of the process with all parts.
pub const NODE: &str = "node";
/// Name of the process with the mount when servers have processes of their own.
pub const MOUNT: &str = "mount";

/// Sets the name that `ps`, `top` and `pgrep` show to the role of the process: the name of its executable
/// says nothing about it.
pub fn show_as(role: &str) {
    let name: String = format!("nacre-{role}").chars().filter(|&char| char != '\0').collect();
    if let Ok(name) = std::ffi::CString::new(name) {
        // The kernel truncates it to 15 bytes; nothing depends on it.
        let _ = rustix::thread::set_name(&name);
    }
}

/// Starts this program in the background with `args` and waits until it reports that it is ready.
///
/// # Errors
/// The failure that the new process reports, with its exit code.
pub fn start<S: AsRef<OsStr>>(args: &[S], log: &Path, progress: &mut Progress) -> Result<Child> {
    let (log_file, _) = logger::open(log).map_err(Failure::because(format!("open {}", log.display())))?;
    // `/proc/self/exe`: the file of the program may have been replaced.
    let mut child = Command::new("/proc/self/exe")
        .arg0("nacre")
        .args(args)
        .env_remove(service::NOTIFY_SOCKET)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log_file)
        .spawn()
        .map_err(Failure::because("start a background process"))?;
    let output = child.stdout.take().expect("the output was asked to be a pipe");
    for line in BufReader::new(output).lines() {
        let line = line.map_err(Failure::because("hear from the background process"))?;
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("ready", _) => return Ok(child),
            ("progress", text) => progress.show(text),
            ("slow", text) => progress.tell(text),
            ("error", rest) => {
                let (exit, message) = rest.split_once(' ').unwrap_or(("1", rest));
                // Reaped so that no zombie remains; its exit code is the same.
                let _ = child.wait();
                return Err(Failure { exit: exit.parse().unwrap_or(1), message: message.to_owned() });
            }
            _ => {}
        }
    }
    let status = child.wait().map_err(Failure::because("wait for the background process"))?;
    Err(Failure::new(format!(
        "the background process ended before it was ready ({status}): see {}",
        log.display()
    )))
}

/// Counterpart of [`start`]: a background process reports to the command that started it.
pub struct Herald {
    background: bool,
}

impl Herald {
    /// In a background process, detaches from the terminal that it was started from.
    ///
    /// # Errors
    /// If the working directory cannot be changed.
    pub fn new(background: bool) -> Result<Herald> {
        if background {
            leave_terminal();
            std::env::set_current_dir("/").map_err(Failure::because("change to /"))?;
        }
        Ok(Herald { background })
    }

    /// Returns a herald for a process that fails before it starts.
    pub fn only_to_fail(background: bool) -> Herald {
        Herald { background }
    }

    /// Reports the progress of the start.
    pub fn progress(&self, text: &str) {
        self.say(&format!("progress {text}"));
        self.to_manager(text);
    }

    /// Reports, and logs, the reason for a delay of the start.
    pub fn slow(&self, text: &str) {
        log::info!("{text}");
        self.say(&format!("slow {text}"));
        self.to_manager(text);
    }

    /// Reports that everything runs, and releases the waiting command. Returns false if no command waits any
    /// more: the start was cancelled.
    #[must_use]
    pub fn ready(&self) -> bool {
        let heard = self.say("ready");
        if self.background
            && let Ok(null) = OpenOptions::new().write(true).open("/dev/null")
        {
            // The command that started this process must not wait for the end of its output.
            let _ = rustix::stdio::dup2_stdout(&null);
        }
        heard
    }

    /// Reports the failure of the start.
    pub fn failed(&self, failure: &Failure) {
        if self.background {
            self.say(&format!("error {} {}", failure.exit, failure.message.replace('\n', " ")));
        } else {
            service::status(&failure.message);
            eprintln!("{}nacre: {failure}", logger::error_prefix());
        }
    }

    /// Reports a step of the start to the service manager of a process in the foreground.
    fn to_manager(&self, text: &str) {
        if !self.background {
            service::status(text);
        }
    }

    /// Writes a line; returns false if no process reads it.
    fn say(&self, line: &str) -> bool {
        !self.background || writeln!(io::stdout(), "{line}").is_ok()
    }
}

/// Leaves the process group that Ctrl-C and a hang-up reach, and the controlling terminal, but not the
/// session: the scheduler groups processes by session (autogroup), and on idle CPUs moves a caller to another
/// CPU and back for each request if the process that answers is in another group. Measured on two virtual
/// CPUs: 31,000 uncached stats a second with a session of its own, 110,000 without.
fn leave_terminal() {
    // Fails only for the leader of a session, which has no group to leave.
    let _ = rustix::process::setpgid(None, None);
    if let Ok(terminal) = File::open("/dev/tty") {
        // SAFETY: the request takes no argument.
        unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCNOTTY) };
    }
}

/// Signals that end a process: immediately during the start, cleanly afterwards.
pub struct StopSignals {
    is_ready: Arc<AtomicBool>,
    received: Receiver<()>,
}

impl StopSignals {
    /// Blocks SIGTERM, SIGINT and SIGHUP for this thread and all that it starts from then on; a dedicated
    /// thread waits for them. To be called before any thread is started.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn take() -> Result<StopSignals> {
        // SAFETY: a zeroed set is valid storage that sigemptyset initialises; the signals are valid;
        // pthread_sigmask only reads the set.
        let set = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                libc::sigaddset(&mut set, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            set
        };
        let is_ready = Arc::new(AtomicBool::new(false));
        let (sender, received) = channel();
        let ready = is_ready.clone();
        nacre_env::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                loop {
                    let mut signal = 0;
                    // SAFETY: the set was initialised above; `signal` is valid for writing.
                    while unsafe { libc::sigwait(&set, &mut signal) } != 0 {}
                    if !ready.load(Ordering::SeqCst) {
                        // No promise has been made to any peer yet, and all stores survive a crash.
                        std::process::exit(128 + signal);
                    }
                    if sender.send(()).is_err() {
                        return;
                    }
                }
            })
            .map_err(Failure::because("start a thread"))?;
        Ok(StopSignals { is_ready, received })
    }

    /// Makes a signal request a clean stop from then on.
    pub fn set_ready(&self) {
        self.is_ready.store(true, Ordering::SeqCst);
    }

    /// Waits for a signal.
    pub fn wait(&self) {
        // The sender lives as long as the process.
        let _ = self.received.recv();
    }

    /// Waits for a signal, for at most `time`.
    ///
    /// # Errors
    /// `Timeout` without a signal.
    pub fn wait_for(&self, time: Duration) -> std::result::Result<(), RecvTimeoutError> {
        self.received.recv_timeout(time)
    }
}

/// Makes [`StopSignals::wait`] of this process return.
pub fn request_stop() {
    // A process can always signal itself.
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM);
}

/// Returns a lock on the whole of a file, for `F_OFD_SETLK` and `F_OFD_GETLK`.
fn whole_file() -> libc::flock {
    // SAFETY: all fields are numbers, for which zero is a value; zero length means up to the end.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock
}

/// Locks a file until it is closed; returns false if another descriptor holds the lock.
fn take_lock(file: &File) -> bool {
    let lock = whole_file();
    // SAFETY: the descriptor is open and `lock` lives across the call.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) == 0 }
}

/// Returns whether another descriptor holds a lock on a file. A query only: taking the lock, however briefly,
/// could keep a starting process from taking it.
fn is_locked(file: &File) -> bool {
    let mut lock = whole_file();
    // SAFETY: the descriptor is open and `lock` is valid for writes across the call.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) };
    asked != 0 || lock.l_type != libc::F_UNLCK as libc::c_short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_tells_who_runs_and_goes_with_its_holder() {
        let scratch = tempfile::tempdir().expect("a directory");
        let run = RunDir::new(scratch.path().join("run"));
        assert_eq!(run.pid("ost0000"), None);
        let lock = run.lock("ost0000").expect("free");
        assert_eq!(run.pid("ost0000"), Some(std::process::id() as i32));
        assert_eq!(run.running(), ["ost0000"]);
        let failure = run.lock("ost0000").expect_err("taken");
        assert!(failure.message.contains("already running (pid "), "{failure}");
        drop(lock);
        assert_eq!(run.pid("ost0000"), None);
        assert!(run.running().is_empty());
        assert!(run.wait_stopped("ost0000", Duration::ZERO));
    }

    #[test]
    fn a_process_that_was_just_begun_is_waited_for_until_it_takes_requests_or_has_ended() {
        let scratch = tempfile::tempdir().expect("a directory");
        let run = RunDir::new(scratch.path().to_path_buf());
        let long = Duration::from_secs(60);
        assert!(!run.runs("ost0000", long), "it was never begun");
        let lock = run.lock("ost0000").expect("free");
        assert!(run.runs("ost0000", Duration::ZERO), "it runs, whatever it does");
        let socket = run.socket("ost0000");
        let waits = || {
            nacre_env::thread::scope(|scope| {
                let waiter = scope.spawn(|| (run.runs("ost0000", long), socket.exists()));
                let listener = std::os::unix::net::UnixListener::bind(&socket).expect("bound");
                (waiter.join().expect("no panic"), listener)
            })
        };
        let (seen, listener) = waits();
        assert_eq!(seen, (true, true), "it has a socket when the wait ends");
        // As a kill leaves it: the file stays.
        drop(listener);
        nacre_env::thread::scope(|scope| {
            let waiter = scope.spawn(|| run.runs("ost0000", long));
            drop(lock);
            assert!(!waiter.join().expect("no panic"), "it has ended");
        });
    }

    #[test]
    fn a_lock_whose_file_was_cleaned_away_is_taken_again() {
        let scratch = tempfile::tempdir().expect("a directory");
        let run = RunDir::new(scratch.path().join("run"));
        let lock = run.lock(MOUNT).expect("free");
        assert!(run.is_held(MOUNT, &lock));
        fs::remove_dir_all(&run.path).expect("cleaned");
        assert!(!run.is_held(MOUNT, &lock) && run.pid(MOUNT).is_none());
        let again = run.lock(MOUNT).expect("nobody has it");
        assert!(run.is_held(MOUNT, &again) && !run.is_held(MOUNT, &lock));
    }

    #[test]
    fn a_copy_of_the_descriptor_in_a_process_that_starts_keeps_no_lock() {
        let scratch = tempfile::tempdir().expect("a directory");
        let run = RunDir::new(scratch.path().to_path_buf());
        let lock = run.lock(NODE).expect("free");
        let copy = lock.file.try_clone().expect("a descriptor");
        drop(lock);
        assert_eq!(run.pid(NODE), None);
        drop(run.lock(NODE).expect("free again"));
        drop(copy);
    }

    #[test]
    fn who_was_killed_is_dying_until_it_is_gone() {
        assert!(!is_dying(std::process::id() as i32));
        let mut child = Command::new("sleep").arg("100").spawn().expect("sleep starts");
        let pid = child.id() as i32;
        assert!(!is_dying(pid));
        child.kill().expect("kill");
        let deadline = Instant::now() + Duration::from_secs(10);
        while !is_dying(pid) {
            assert!(Instant::now() < deadline, "it is not waited for, so it stays");
            nacre_env::thread::yield_now();
        }
        child.wait().expect("wait");
        assert!(!is_dying(pid), "gone");
    }

    #[test]
    fn looking_whether_a_process_runs_does_not_keep_it_from_starting() {
        let scratch = tempfile::tempdir().expect("a directory");
        let run = RunDir::new(scratch.path().to_path_buf());
        fs::write(run.pid_file(NODE), "").expect("write");
        let look = File::open(run.pid_file(NODE)).expect("there");
        assert!(!is_locked(&look));
        let lock = run.lock(NODE).expect("the look, which lasts, holds nothing");
        assert!(is_locked(&look));
        drop(lock);
    }

    #[test]
    fn a_stale_pid_file_is_nobody() {
        let scratch = tempfile::tempdir().expect("a directory");
        let run = RunDir::new(scratch.path().to_path_buf());
        fs::write(run.pid_file(NODE), "1\n").expect("write");
        assert_eq!(run.pid(NODE), None);
        run.terminate(NODE);
        run.lock(NODE).expect("free to take");
    }
}
