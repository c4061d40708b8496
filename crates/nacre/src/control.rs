//! Control socket of a running process: a request is one line of JSON, and so is its answer.
//!
//! The socket has mode 0600 in a directory of mode 0700, and answers only its owner and root ([`door`]);
//! `public` serves the parameters that every user may read.

mod changelog;
mod door;

pub use changelog::{ChangelogAnswer, ChangelogStep, ShownUser, bytes_of, digits};
pub use door::Audience;

use crate::debug::{DebugState, Question, SlowShot};
use crate::failure::{Failure, Result};
use crate::instance::if_there;
use crate::process::is_stopped;
use crate::target_options::TargetOptions;
use nacre_env::clock::Instant;
use nacre_monitor::ProcessSample;
use nacre_types::TargetKind;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest request, in bytes.
const LINE_MAX: u64 = 1 << 20;
/// Longest answer, in bytes: figures of a process with hundreds of targets are several MiB.
const ANSWER_MAX: u64 = 64 << 20;
/// Timeout of a request for either side.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of checks whether a process that has not answered yet is stopped.
const ANSWER_TICK: Duration = Duration::from_millis(250);
/// Timeout of a request for the state of a process, which is "not responding" after it.
pub const STATUS_LIMIT: Duration = Duration::from_secs(3);

/// Longest run of one trim request: a handler that is busy delays other requests.
pub const TRIM_TIME: Duration = Duration::from_millis(500);

/// A request of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// Reads the state of the process. Answer: `status`.
    Status,
    /// Unmounts and stops. Answer: `done` as soon as it is unmounted; an error while files are open.
    Stop {
        /// Unmount although files are open.
        force: bool,
    },
    /// Lists the parameters that match a pattern. Answer: `params`.
    FindParams {
        /// Pattern as `lctl get_param` takes it.
        pattern: String,
        /// Includes everything below the matches.
        recursive: bool,
    },
    /// Reads the value of a parameter. Answer: `value`.
    ReadParam {
        /// Full name of the parameter.
        name: String,
    },
    /// Lists the settings that differ from their defaults. Answer: `changed`.
    ChangedParams,
    /// Sets a parameter of this process. Answer: `done`.
    WriteParam {
        /// Full name of the parameter.
        name: String,
        /// Value as users write it.
        value: String,
    },
    /// Sets parameters of all nodes persistently (`set_param -P`); an empty value removes the setting.
    /// Answer: `done`.
    SetForGood {
        /// Name or pattern.
        name: String,
        /// Value as users write it, or empty.
        value: String,
    },
    /// Lists the persistent settings. Answer: `settings`.
    LastingParams,
    /// Lists the OST pools, and the OSTs of the file system. Answer: `pools`.
    Pools,
    /// Creates and starts a further target. Answer: `added`.
    AddTarget {
        /// Kind of the target.
        kind: NewTarget,
        /// Requested index; otherwise the next free one.
        index: Option<u16>,
        /// Options of the target.
        #[serde(default)]
        ost: TargetOptions,
    },
    /// Reports free space of an object target to its medium, for about [`TRIM_TIME`]. Answer: `trimmed`.
    Trim {
        /// Index of the target.
        ost: u16,
        /// Position on the medium to continue from, 0 at first.
        from: u64,
    },
    /// Lists the nodemaps. Answer: `nodemaps`.
    Nodemaps,
    /// Changes a nodemap, or all of them. Answer: `done`.
    ChangeNodemap {
        /// Name of the nodemap.
        name: String,
        /// The change, as [`nacre_types::nodemap::Change`] writes it.
        change: String,
    },
    /// Request about the changelog of an MDT. Answer: `changelog`.
    Changelog {
        /// Index of the MDT.
        mdt: u16,
        /// What to do.
        step: ChangelogStep,
    },
    /// Reads the figures of the process. Answer: `metrics`.
    Metrics,
    /// Asks for the state of the process, on its socket for that.
    Debug {
        /// The question.
        question: Question,
    },
    /// Changes an OST pool. Answer: `done`.
    ChangePool {
        /// Name of the pool.
        pool: String,
        /// Change to make.
        step: PoolStep,
    },
}

/// Kind of a target that can be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum NewTarget {
    /// A metadata target
    Mdt,
    /// An object target
    Ost,
}

impl NewTarget {
    /// Returns the kind of target.
    pub fn kind(self) -> TargetKind {
        match self {
            NewTarget::Mdt => TargetKind::Mdt,
            NewTarget::Ost => TargetKind::Ost,
        }
    }
}

/// A change of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum PoolStep {
    /// Creates the pool.
    Create,
    /// Removes the pool.
    Destroy,
    /// Adds an OST.
    Add {
        /// Index of the OST.
        ost: u16,
    },
    /// Removes an OST.
    Remove {
        /// Index of the OST.
        ost: u16,
    },
}

/// Answer to a [`Request`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// The request succeeded.
    Done,
    /// State of the process.
    Status(Box<ProcessStatus>),
    /// Names of parameters.
    Params {
        /// Parameters that match the pattern.
        params: Vec<ParamName>,
    },
    /// Value of a parameter.
    Value {
        /// Text of the value.
        value: String,
    },
    /// Settings that differ from their defaults.
    Changed {
        /// Name, value and default of each.
        params: Vec<(String, String, String)>,
    },
    /// Persistent settings: names or patterns, and values.
    Settings {
        /// Settings in the order in which they apply.
        settings: Vec<(String, String)>,
    },
    /// A target was added.
    Added {
        /// Name of the target.
        target: String,
    },
    /// Free space was reported to the medium.
    Trimmed {
        /// Reported free space, in bytes.
        bytes: u64,
        /// Number of extents, where it is known.
        extents: Option<u64>,
        /// Position to continue from, if free space is left to report.
        next: Option<u64>,
    },
    /// Figures of the process.
    Metrics(Box<ProcessSample>),
    /// State of the process.
    Debug(Box<DebugState>),
    /// Operations that took long.
    Slow {
        /// The operations, the oldest first.
        operations: Vec<SlowShot>,
    },
    /// Recent events.
    Events {
        /// One event each, the oldest first.
        lines: Vec<String>,
    },
    /// Recent events were saved.
    Saved {
        /// File with the events.
        path: PathBuf,
    },
    /// OST pools.
    Pools {
        /// Names and members, in the order of names.
        pools: Vec<(String, Vec<u16>)>,
        /// Indexes of the OSTs of the file system.
        osts: Vec<u16>,
    },
    /// Nodemaps.
    Nodemaps {
        /// Nodemaps are in force.
        active: bool,
        /// Maps as [`nacre_types::Nodemap`] writes them, in the order of names.
        maps: Vec<String>,
    },
    /// Answer about a changelog.
    Changelog(ChangelogAnswer),
    /// The request failed.
    Error {
        /// Errno of the failure.
        errno: i32,
        /// One sentence for people.
        message: String,
    },
}

impl Answer {
    /// Returns the answer to a request that is refused.
    pub fn refusal(errno: Errno, message: impl Into<String>) -> Answer {
        Answer::Error { errno: errno.raw_os_error(), message: message.into() }
    }
}

/// Name of a parameter, or of a directory of parameters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParamName {
    /// Full name with dots.
    pub name: String,
    /// Parameters exist below this name.
    pub directory: bool,
    /// The parameter has a value to read.
    pub readable: bool,
    /// The parameter can be set.
    pub writable: bool,
}

/// State of one process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// `node`, `mgs`, `mdt0000`, `ost0000`, `mount`.
    pub name: String,
    /// Process id.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_seconds: u64,
    /// File system name.
    pub fsname: String,
    /// Targets that the process serves.
    pub targets: Vec<TargetStatus>,
    /// The mount of the process, if it has one.
    pub mount: Option<MountStatus>,
    /// Path of its log, unless that is standard error.
    #[serde(default)]
    pub log: Option<PathBuf>,
    /// Frames to and from the process with a wrong checksum; their messages were resent.
    #[serde(default)]
    pub checksum_errors: u64,
    /// Addresses that the process listens on.
    #[serde(default)]
    pub listening: Vec<ListeningStatus>,
    /// Clocks of the servers that the mount of the process is connected to.
    #[serde(default)]
    pub clocks: Vec<ClockStatus>,
}

/// Clock of a server, compared with that of this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockStatus {
    /// Target of the server.
    pub target: String,
    /// Address of the server.
    pub nid: String,
    /// Microseconds that its clock is ahead; negative if it is behind.
    pub ahead_us: i64,
    /// Largest error of it in microseconds.
    pub within_us: u64,
}

/// An address that a process listens on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListeningStatus {
    /// Address and port.
    pub address: String,
    /// Protection of its connections: `encrypt`, `authenticate` or `open`.
    pub security: String,
}

/// State of one target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TargetStatus {
    /// `MGT`, `MDT0000`, `OST0000`.
    pub target: String,
    /// NIDs of the target.
    pub nids: Vec<String>,
    /// Clients connected, where the target knows them.
    pub clients: Option<u64>,
    /// Space in bytes, where the target has some.
    pub space: Option<SpaceStatus>,
    /// Problems that the check in use has found and not repaired.
    #[serde(default)]
    pub problems: u64,
}

/// Space of a target in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceStatus {
    /// Size of the target.
    pub total_bytes: u64,
    /// Space in use.
    pub used_bytes: u64,
    /// Free space for ordinary users.
    pub available_bytes: u64,
    /// Number of inodes or objects that can still be created.
    pub files_free: u64,
}

/// State of a mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountStatus {
    /// Directory of the mount.
    pub mount_point: PathBuf,
    /// `NID[:NID..]:/FSNAME`.
    pub source: String,
    /// Transport between kernel and process: `io_uring` or `/dev/fuse`.
    pub transport: String,
    /// Major and minor number of the file system in the kernel.
    #[serde(default)]
    pub device: Option<(u32, u32)>,
    /// Targets whose connection is broken and not yet restored.
    #[serde(default)]
    pub unreachable: Vec<String>,
}

/// Answers requests; any thread may call it.
pub trait Handler: Send + Sync {
    /// Answers one request. Must not block for long.
    fn handle(&self, request: &Request) -> Answer;
}

/// Serves `handler` on a socket at `path` in a thread of its own; the file of the socket is removed on drop.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    /// Device and inode of the file, which another process may have replaced.
    file: Option<(u64, u64)>,
}

/// Returns the identity of a socket's file: it tells the file from a later one of the same name.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

impl ControlSocket {
    /// Binds the socket, replacing a dead one: the caller holds the process lock, so no other process serves
    /// here.
    ///
    /// # Errors
    /// If the socket cannot be created.
    pub fn serve(path: &Path, handler: std::sync::Arc<dyn Handler>) -> Result<ControlSocket> {
        ControlSocket::serve_for(path, Audience::Owner, handler)
    }

    /// Like [`ControlSocket::serve`], with an audience that includes other users.
    ///
    /// # Errors
    /// As [`ControlSocket::serve`].
    pub fn serve_for(
        path: &Path,
        audience: Audience,
        handler: std::sync::Arc<dyn Handler>,
    ) -> Result<ControlSocket> {
        let fail = || Failure::because(format!("listen on {}", path.display()));
        if_there(fs::remove_file(path)).map_err(fail())?;
        let short = ShortPath::of(path).map_err(fail())?;
        let listener = door::listen(path, &short.path, audience).map_err(fail())?;
        nacre_env::thread::Builder::new()
            .name("control".into())
            .spawn(move || door::keep(&listener, audience, &handler))
            .map_err(fail())?;
        Ok(ControlSocket { path: path.to_path_buf(), file: identity(path) })
    }
}

impl ControlSocket {
    /// Returns true while clients can connect to the socket.
    pub fn is_there(&self) -> bool {
        self.file.is_some() && identity(&self.path) == self.file
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        if self.is_there() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A name for a socket that fits the kernel's limit (107 bytes) at any depth of its directory: a path through
/// the open directory's descriptor.
struct ShortPath {
    path: PathBuf,
    _directory: File,
}

impl ShortPath {
    fn of(path: &Path) -> io::Result<ShortPath> {
        let directory = File::open(path.parent().unwrap_or(Path::new("/")))?;
        let name = path.file_name().unwrap_or_default();
        let path = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name);
        Ok(ShortPath { path, _directory: directory })
    }
}

fn send(mut stream: impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_string(message)?;
    line.push('\n');
    stream.write_all(line.as_bytes())
}

/// Connects to a socket within `limit`: the socket of a stopped process accepts nothing once its queue is
/// full. Without a limit, a full queue is [`io::ErrorKind::WouldBlock`] at once.
fn connect_within(socket: &Path, limit: Option<Duration>) -> io::Result<UnixStream> {
    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt,
    };
    let short = ShortPath::of(socket)?;
    let flags = match limit {
        Some(_) => SocketFlags::CLOEXEC,
        None => SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
    };
    let way = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_timeout(&way, sockopt::Timeout::Send, limit)?;
    connect(&way, &SocketAddrUnix::new(&short.path)?)?;
    Ok(UnixStream::from(way))
}

/// Returns true for a socket whose process ended without removing it.
pub fn is_dead(socket: &Path) -> bool {
    let refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    connect_within(socket, None).is_err_and(|error| refused(&error))
}

/// Returns true for a socket on which a process accepts requests, however slowly.
pub fn is_listening(socket: &Path) -> bool {
    let none = |error: &io::Error| {
        matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
    };
    !connect_within(socket, None).is_err_and(|error| none(&error))
}

/// Sends a request to the process that serves `socket`, and returns its answer.
///
/// # Errors
/// If no process listens or the answer cannot be read. An [`Answer::Error`] is not an error here.
pub fn ask(socket: &Path, request: &Request) -> io::Result<Answer> {
    ask_for(socket, request, TIMEOUT)
}

/// Reads one line within `limit`, rounded up to ticks. A process that a signal has stopped is not awaited.
fn read_answer(stream: &UnixStream, limit: Duration) -> io::Result<String> {
    let listener = rustix::net::sockopt::socket_peercred(stream)?.pid.as_raw_nonzero().get();
    stream.set_read_timeout(Some(limit.min(ANSWER_TICK)))?;
    let (mut reader, mut line, began) = (BufReader::new(stream.take(ANSWER_MAX)), Vec::new(), Instant::now());
    loop {
        match reader.read_until(b'\n', &mut line) {
            Err(error) if is_silence(&error) && began.elapsed() < limit && !is_stopped(listener) => {}
            read => {
                read?;
                return String::from_utf8(line).map_err(io::Error::other);
            }
        }
    }
}

/// Like [`ask`], for requests that may take up to `limit`.
///
/// # Errors
/// As [`ask`].
pub fn ask_for(socket: &Path, request: &Request, limit: Duration) -> io::Result<Answer> {
    let stream = connect_within(socket, Some(limit.min(TIMEOUT)))?;
    stream.set_write_timeout(Some(limit.min(TIMEOUT)))?;
    match send(&stream, request) {
        // A process that refuses the peer answers without reading the request.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(serde_json::from_str(&read_answer(&stream, limit)?)?),
    }
}

/// Sends a request to several processes in parallel, so that stopped ones cost one timeout together; returns
/// the answers in the order of the sockets.
pub fn ask_each(sockets: &[PathBuf], request: &Request) -> Vec<(PathBuf, io::Result<Answer>)> {
    let is_state = matches!(request, Request::Status | Request::Metrics | Request::Debug { .. });
    let limit = if is_state { STATUS_LIMIT } else { TIMEOUT };
    nacre_env::thread::scope(|scope| {
        let ask = |socket| scope.spawn(move || ask_for(socket, request, limit));
        let asked: Vec<_> = sockets.iter().map(|socket| (socket.clone(), ask(socket))).collect();
        let failed = |_| Err(io::Error::other("the question failed"));
        asked.into_iter().map(|(socket, thread)| (socket, thread.join().unwrap_or_else(failed))).collect()
    })
}

/// Returns true for the error of a process that runs and did not answer in time.
pub fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Like [`ask`], for a process that may end meanwhile: `None` if it has ended.
pub fn ask_if_there(socket: &Path, request: &Request) -> Option<io::Result<Answer>> {
    let answer = ask(socket, request);
    if answer.is_err() && !is_listening(socket) { None } else { Some(answer) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;
    use std::sync::Arc;

    struct Echo;
    impl Handler for Echo {
        fn handle(&self, request: &Request) -> Answer {
            match request {
                Request::ReadParam { name } => Answer::Value { value: name.clone() },
                _ => Answer::Done,
            }
        }
    }

    #[test]
    fn questions_are_answered_and_nonsense_is_refused() {
        let scratch = tempfile::tempdir().expect("a directory");
        let deep = scratch.path().join("d".repeat(200));
        fs::create_dir(&deep).expect("a directory with a long name");
        let path = deep.join("control.sock");
        let socket = ControlSocket::serve(&path, Arc::new(Echo)).expect("serve");
        assert_eq!(ask(&path, &Request::Stop { force: false }).expect("answer"), Answer::Done);
        let read = Request::ReadParam { name: "a".into() };
        assert_eq!(ask(&path, &read).expect("answer"), Answer::Value { value: "a".into() });

        let short = ShortPath::of(&path).expect("a short name");
        let mut stream = UnixStream::connect(&short.path).expect("connect");
        stream.write_all(b"what?\n").expect("write");
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).expect("read");
        assert!(line.contains("\"errno\":22"), "{line}");

        let mode = fs::metadata(&path).expect("socket").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(matches!(ask_if_there(&path, &read), Some(Ok(Answer::Value { .. }))));
        fs::remove_file(&path).expect("cleaned away");
        assert!(!socket.is_there());
        let again = ControlSocket::serve(&path, Arc::new(Echo)).expect("serve again");
        drop(socket);
        assert!(again.is_there() && ask(&path, &read).is_ok(), "the one before takes nothing with it");
        drop(again);
        assert!(ask(&path, &Request::Stop { force: false }).is_err());
        assert!(ask_if_there(&path, &read).is_none(), "it has ended");
    }

    #[test]
    fn who_is_there_and_does_not_answer_has_not_ended() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("control.sock");
        let listener = UnixListener::bind(&path).expect("listen");
        let hangs_up = nacre_env::thread::spawn(move || listener.accept().map(|_| listener));
        let answer = ask_if_there(&path, &Request::Stop { force: false });
        assert!(matches!(answer, Some(Err(_))), "{answer:?}");
        drop(hangs_up);
    }

    #[test]
    fn a_process_that_accepts_nothing_is_there_and_holds_nobody_up() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("control.sock");
        let listener = UnixListener::bind(&path).expect("listen");
        let queue: Vec<_> = std::iter::from_fn(|| connect_within(&path, None).ok()).collect();
        assert!(!queue.is_empty());
        let began = Instant::now();
        assert!(is_listening(&path) && !is_dead(&path));
        assert!(began.elapsed() < STATUS_LIMIT, "{:?}", began.elapsed());
        drop(listener);
        assert!(!is_listening(&path) && is_dead(&path));
    }
}
