//! The control socket of a running process: one line of JSON asks, one line answers.
//!
//! The socket is mode 0600 in a directory of mode 0700, and answers its owner and root alone ([`door`]); what everybody may is in
//! `public`.

mod door;

pub use door::Audience;

use crate::failure::{Failure, Result};
use crate::instance::if_there;
use crate::target_wishes::TargetWishes;
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

/// Longest line in bytes.
const LINE_MAX: u64 = 1 << 20;
/// Longest time that either side waits for the other.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for the state of a process: what takes longer is "not responding".
pub const STATUS_LIMIT: Duration = Duration::from_secs(3);

/// How long a trim goes on before it answers: others wait for their answers meanwhile.
pub const TRIM_TIME: Duration = Duration::from_millis(500);

/// What can be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// How are you? Answer: `status`.
    Status,
    /// Unmount and stop. Answer: `done` as soon as it is unmounted; an error while files are open.
    Stop {
        /// Unmount although files are open.
        force: bool,
    },
    /// Which parameters a pattern stands for. Answer: `params`.
    FindParams {
        /// The pattern.
        pattern: String,
        /// Also what lies below.
        recursive: bool,
    },
    /// The value of a parameter. Answer: `value`.
    ReadParam {
        /// Its whole name.
        name: String,
    },
    /// Sets a parameter of this process. Answer: `done`.
    WriteParam {
        /// Its whole name.
        name: String,
        /// Value.
        value: String,
    },
    /// Sets parameters of all nodes for good; an empty value takes that back. Answer: `done`.
    SetForGood {
        /// Name or pattern.
        name: String,
        /// Value.
        value: String,
    },
    /// What is set for good. Answer: `settings`.
    LastingParams,
    /// OST pools, and which OSTs there are. Answer: `pools`.
    Pools,
    /// Makes and starts a target more. Answer: `added`.
    AddTarget {
        /// Which kind.
        kind: NewTarget,
        /// Index that it is to have; otherwise the next one.
        index: Option<u16>,
        /// What an OST is to have.
        #[serde(default)]
        ost: TargetWishes,
    },
    /// Tells what is below an object target of free space, for about [`TRIM_TIME`]. Answer: `trimmed`.
    Trim {
        /// Index of the target.
        ost: u16,
        /// Where on the medium to go on, 0 at first.
        from: u64,
    },
    /// Nodemaps. Answer: `nodemaps`.
    Nodemaps,
    /// Changes a nodemap, or all. Answer: `done`.
    ChangeNodemap {
        /// Its name.
        name: String,
        /// What is to be done, as [`nacre_types::nodemap::Change`] writes it.
        change: String,
    },
    /// Changes an OST pool. Answer: `done`.
    ChangePool {
        /// Its name.
        pool: String,
        /// What is to be done.
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
    /// The kind.
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
    /// It is made.
    Create,
    /// It goes.
    Destroy,
    /// It gets an OST.
    Add {
        /// Which.
        ost: u16,
    },
    /// It loses an OST.
    Remove {
        /// Which.
        ost: u16,
    },
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// It is so.
    Done,
    /// State of the process.
    Status(Box<ProcessStatus>),
    /// Names.
    Params {
        /// Those that were found.
        params: Vec<ParamName>,
    },
    /// A value.
    Value {
        /// Text of the parameter.
        value: String,
    },
    /// Names or patterns, and values.
    Settings {
        /// In the order in which they count.
        settings: Vec<(String, String)>,
    },
    /// A target was added.
    Added {
        /// Its name.
        target: String,
    },
    /// Free space was told of.
    Trimmed {
        /// Bytes.
        bytes: u64,
        /// Pieces, where that is known.
        extents: Option<u64>,
        /// Where to go on, if there is more.
        next: Option<u64>,
    },
    /// OST pools.
    Pools {
        /// Names and members, in the order of names.
        pools: Vec<(String, Vec<u16>)>,
        /// OSTs of the file system.
        osts: Vec<u16>,
    },
    /// Nodemaps.
    Nodemaps {
        /// They count.
        active: bool,
        /// As [`nacre_types::Nodemap`] writes them, in the order of names.
        maps: Vec<String>,
    },
    /// It cannot be.
    Error {
        /// Errno.
        errno: i32,
        /// One sentence.
        message: String,
    },
}

impl Answer {
    /// What is refused.
    pub fn refusal(errno: Errno, message: impl Into<String>) -> Answer {
        Answer::Error { errno: errno.raw_os_error(), message: message.into() }
    }
}

/// A parameter, or what parameters lie below.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParamName {
    /// Name with dots.
    pub name: String,
    /// Others lie below it.
    pub directory: bool,
    /// It has a value.
    pub readable: bool,
    /// It can be set.
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
    /// Targets that it serves.
    pub targets: Vec<TargetStatus>,
    /// What it has mounted.
    pub mount: Option<MountStatus>,
    /// Its log, unless that is standard error.
    #[serde(default)]
    pub log: Option<PathBuf>,
    /// Frames to and from it whose checksum was wrong; what they carried was sent again.
    #[serde(default)]
    pub checksum_errors: u64,
    /// Addresses that it listens on.
    #[serde(default)]
    pub listening: Vec<ListeningStatus>,
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
    /// Where it is reached.
    pub nids: Vec<String>,
    /// Clients connected, where the target knows them.
    pub clients: Option<u64>,
    /// Space in bytes, where the target has some.
    pub space: Option<SpaceStatus>,
}

/// Space of a target in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceStatus {
    /// All.
    pub total_bytes: u64,
    /// In use.
    pub used_bytes: u64,
    /// Left for ordinary users.
    pub available_bytes: u64,
    /// Inodes or objects that can still be made.
    pub files_free: u64,
}

/// State of a mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountStatus {
    /// Where.
    pub mount_point: PathBuf,
    /// `NID[:NID..]:/FSNAME`.
    pub source: String,
    /// How requests travel between kernel and this process: `io_uring` or `/dev/fuse`.
    pub transport: String,
    /// Major and minor number of the file system in the kernel.
    #[serde(default)]
    pub device: Option<(u32, u32)>,
    /// Targets that it has lost the connection to, and not restored it yet.
    #[serde(default)]
    pub unreachable: Vec<String>,
}

/// Answers requests; any thread may call it.
pub trait Handler: Send + Sync {
    /// Answers one request. Must not block for long.
    fn handle(&self, request: &Request) -> Answer;
}

/// Serves `handler` on a socket at `path` in a thread of its own; the socket's file goes when this is dropped.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    /// The file, which another process may have removed and made again.
    file: Option<(u64, u64)>,
}

/// What tells the file of a socket from another one of its name.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

impl ControlSocket {
    /// Binds the socket, replacing a dead one: the caller holds the lock that says nobody else serves here.
    ///
    /// # Errors
    /// If the socket cannot be made.
    pub fn serve(path: &Path, handler: std::sync::Arc<dyn Handler>) -> Result<ControlSocket> {
        ControlSocket::serve_for(path, Audience::Owner, handler)
    }

    /// As [`ControlSocket::serve`], for other users too.
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
    /// Whether others can connect to it.
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

/// A name for a socket that is short enough for the kernel (107 bytes) however deep its directory lies: through the open
/// directory.
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

/// Connects to a socket; not for longer than `limit`, as one whose process is stopped accepts nothing once its queue is full.
fn connect_within(socket: &Path, limit: Duration) -> io::Result<UnixStream> {
    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt,
    };
    let short = ShortPath::of(socket)?;
    let way = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&way, sockopt::Timeout::Send, Some(limit))?;
    connect(&way, &SocketAddrUnix::new(&short.path)?)?;
    Ok(UnixStream::from(way))
}

/// True for a socket whose process has ended without taking it away.
pub fn is_dead(socket: &Path) -> bool {
    let refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    connect_within(socket, STATUS_LIMIT).is_err_and(|error| refused(&error))
}

/// True for a socket that a process takes requests at, also if it is slow to do so.
pub fn is_listening(socket: &Path) -> bool {
    let none = |error: &io::Error| {
        matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
    };
    !connect_within(socket, STATUS_LIMIT).is_err_and(|error| none(&error))
}

/// Asks the process behind `socket`.
///
/// # Errors
/// If nobody listens or the answer cannot be read. An [`Answer::Error`] is not an error here.
pub fn ask(socket: &Path, request: &Request) -> io::Result<Answer> {
    ask_for(socket, request, TIMEOUT)
}

/// As [`ask`], for what may take up to `limit`.
///
/// # Errors
/// As [`ask`].
pub fn ask_for(socket: &Path, request: &Request, limit: Duration) -> io::Result<Answer> {
    let stream = connect_within(socket, limit.min(TIMEOUT))?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit.min(TIMEOUT)))?;
    let mut line = String::new();
    match send(&stream, request) {
        // A process that refuses somebody answers without waiting for the question.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
        _ => BufReader::new((&stream).take(LINE_MAX)).read_line(&mut line)?,
    };
    Ok(serde_json::from_str(&line)?)
}

/// Asks several processes at the same time, so that those that are stopped take no longer than one; gives their answers in the same order.
pub fn ask_each(sockets: &[PathBuf], request: &Request) -> Vec<(PathBuf, io::Result<Answer>)> {
    let limit = if matches!(request, Request::Status) { STATUS_LIMIT } else { TIMEOUT };
    nacre_env::thread::scope(|scope| {
        let ask = |socket| scope.spawn(move || ask_for(socket, request, limit));
        let asked: Vec<_> = sockets.iter().map(|socket| (socket.clone(), ask(socket))).collect();
        let failed = |_| Err(io::Error::other("the question failed"));
        asked.into_iter().map(|(socket, thread)| (socket, thread.join().unwrap_or_else(failed))).collect()
    })
}

/// True if this is the error of a process that is there and did not answer in time.
pub fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// As [`ask`], for a process that was there a moment ago: `None` if it has ended since.
pub fn ask_if_there(socket: &Path, request: &Request) -> Option<io::Result<Answer>> {
    let answer = ask(socket, request);
    let has_ended = || ShortPath::of(socket).and_then(|short| UnixStream::connect(&short.path)).is_err();
    if answer.is_err() && has_ended() { None } else { Some(answer) }
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
}
