//! Admission to a control socket: permitted users, and limits of connections, time and bytes.

use super::{Answer, Handler, Request, TIMEOUT, send};
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Length of the socket's queue of connections.
const BACKLOG: i32 = 128;
/// Pause after a failed accept, for example for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Timeout for the write of a refusal; it fits into the buffer of a new connection.
const REFUSAL_LIMIT: Duration = Duration::from_millis(100);

/// Longest request in bytes, and longest time for its arrival.
#[derive(Clone, Copy, Debug)]
struct Limits {
    bytes: u64,
    time: Duration,
}

const OWNERS: Limits = Limits { bytes: super::LINE_MAX, time: TIMEOUT };
const EVERYBODYS: Limits = Limits { bytes: 8 << 10, time: Duration::from_secs(2) };
/// Parallel requests of all users, and of one user.
const CROWD_MAX: usize = 32;
const USER_MAX: usize = 8;

/// Users that a socket serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// The user of this process, and root. One request at a time.
    Owner,
    /// All users of this host, within limits of connections, bytes and time.
    Everybody,
}

impl Audience {
    fn mode(self) -> u32 {
        match self {
            Audience::Owner => 0o600,
            Audience::Everybody => 0o666,
        }
    }
}

/// Binds a socket that has the mode of its audience from its creation on. `short` is a name for `path` that
/// fits the kernel's limit.
pub(super) fn listen(path: &Path, short: &Path, audience: Audience) -> io::Result<UnixListener> {
    let kind = (AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(kind.0, kind.1, kind.2, None)?;
    // The new file gets the mode of the socket, less the umask.
    rustix::fs::fchmod(&socket, audience.mode().into())?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(short)?)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(audience.mode()))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

/// Serves connections until the process ends.
pub(super) fn keep(listener: &UnixListener, audience: Audience, handler: &Arc<dyn Handler>) {
    let crowd = Crowd::default();
    loop {
        let served = listener.accept().and_then(|(stream, _)| match audience {
            Audience::Owner => serve_owner(&stream, &**handler),
            Audience::Everybody => serve_one_of(&crowd, stream, handler),
        });
        match served {
            Ok(()) => {}
            Err(error) => {
                log::debug!("control connection: {error}");
                if matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM)) {
                    nacre_env::thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }
}

/// Serves a peer after a check of its user: the modes of directory and socket keep others out, but an
/// administrator may have loosened them.
fn serve_owner(stream: &UnixStream, handler: &dyn Handler) -> io::Result<()> {
    let peer = sockopt::socket_peercred(stream)?;
    if peer.uid.is_root() || peer.uid == rustix::process::geteuid() {
        return answer(stream, handler, OWNERS);
    }
    let (uid, pid) = (peer.uid.as_raw(), peer.pid.as_raw_nonzero());
    log::warn!(peer:% = uid; "control connection of user {uid} (pid {pid}) refused: it is for the owner of this process and root");
    let owner = rustix::process::geteuid().as_raw();
    refuse(
        stream,
        Errno::PERM,
        &format!(
            "only user {owner}, the owner of this process, and root may ask it: run the command as one of them"
        ),
    )
}

fn serve_one_of(crowd: &Crowd, stream: UnixStream, handler: &Arc<dyn Handler>) -> io::Result<()> {
    let uid = sockopt::socket_peercred(&stream)?.uid.as_raw();
    let Some(place) = crowd.admit(uid) else {
        log::warn!(peer:% = uid; "a question of user {uid} was refused: too many at the same time");
        return refuse(&stream, Errno::BUSY, "too many questions at the same time: ask again in a moment");
    };
    let handler = handler.clone();
    let answers = move || {
        if let Err(error) = answer(&stream, &*handler, EVERYBODYS) {
            log::debug!("question of user {uid}: {error}");
        }
        drop(place);
    };
    nacre_env::thread::Builder::new().name("public".into()).spawn(answers).map(drop)
}

/// Number of requests of each user that are being answered.
#[derive(Clone, Default)]
struct Crowd(Arc<Mutex<HashMap<u32, usize>>>);

/// A request in that count; released on drop.
struct Place {
    crowd: Crowd,
    uid: u32,
}

impl Crowd {
    fn admit(&self, uid: u32) -> Option<Place> {
        let mut users = self.0.lock();
        let all: usize = users.values().sum();
        let own = users.get(&uid).copied().unwrap_or(0);
        if all >= CROWD_MAX || own >= USER_MAX {
            return None;
        }
        users.insert(uid, own + 1);
        Some(Place { crowd: self.clone(), uid })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut users = self.crowd.0.lock();
        if let Some(count) = users.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                users.remove(&self.uid);
            }
        }
    }
}

fn refuse(stream: &UnixStream, errno: Errno, message: &str) -> io::Result<()> {
    stream.set_write_timeout(Some(REFUSAL_LIMIT))?;
    send(stream, &Answer::refusal(errno, message))
}

fn answer(stream: &UnixStream, handler: &dyn Handler, limits: Limits) -> io::Result<()> {
    let mut line = String::new();
    let question = Timed { stream, end: Instant::now() + limits.time };
    BufReader::new(question.take(limits.bytes)).read_line(&mut line)?;
    let answer = match serde_json::from_str::<Request>(&line) {
        Ok(request) => handler.handle(&request),
        Err(error) => Answer::refusal(Errno::INVAL, format!("request not understood: {error}")),
    };
    send(Timed { stream, end: Instant::now() + limits.time }, &answer)
}

/// A connection with a deadline, however slowly bytes arrive or leave.
struct Timed<'a> {
    stream: &'a UnixStream,
    end: Instant,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.end.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(bytes)
    }
}

impl io::Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ControlSocket, ask};
    use super::*;
    use std::io::Write;

    struct Done;
    impl Handler for Done {
        fn handle(&self, _: &Request) -> Answer {
            Answer::Done
        }
    }

    /// Runs `work` on a thread with another user id; `None` if this process may not change it.
    fn as_user<T: Send>(uid: u32, work: impl FnOnce() -> T + Send) -> Option<T> {
        nacre_env::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let uid = libc::c_long::from(uid);
                // SAFETY: the system call, unlike the C library's function, changes this thread alone; it
                // touches no memory.
                (unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) } == 0).then(work)
            });
            thread.join().expect("no panic")
        })
    }

    fn socket(audience: Audience) -> (tempfile::TempDir, std::path::PathBuf, ControlSocket) {
        let scratch = tempfile::tempdir().expect("a directory");
        std::fs::set_permissions(scratch.path(), std::fs::Permissions::from_mode(0o755)).expect("chmod");
        let path = scratch.path().join("x.sock");
        let socket = ControlSocket::serve_for(&path, audience, Arc::new(Done)).expect("serve");
        (scratch, path, socket)
    }

    #[test]
    fn others_get_one_sentence_even_when_the_mode_of_the_socket_lets_them_in() {
        let (_scratch, path, _socket) = socket(Audience::Owner);
        let stop = Request::Stop { force: true };
        assert_eq!(ask(&path, &stop).expect("an answer"), Answer::Done);
        let closed = as_user(20_001, || UnixStream::connect(&path).map_err(|error| error.kind()).err());
        let Some(closed) = closed else { return };
        assert_eq!(closed, Some(io::ErrorKind::PermissionDenied));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).expect("chmod");
        for _ in 0..20 {
            let answer = as_user(20_001, || ask(&path, &stop).expect("an answer"));
            let Some(Answer::Error { errno: libc::EPERM, message }) = answer else { panic!("{answer:?}") };
            assert!(message.contains("root may ask it"), "{message}");
        }
        assert_eq!(ask(&path, &stop).expect("an answer"), Answer::Done);
    }

    #[test]
    fn silent_connections_of_one_user_keep_nobody_else_from_asking() {
        let (_scratch, path, _socket) = socket(Audience::Everybody);
        let silent: Vec<UnixStream> =
            (0..USER_MAX).map(|_| UnixStream::connect(&path).expect("connect")).collect();
        let own = ask(&path, &Request::Status).expect("an answer");
        assert!(matches!(own, Answer::Error { errno: libc::EBUSY, .. }), "{own:?}");
        if let Some(answer) = as_user(20_001, || ask(&path, &Request::Status).expect("an answer")) {
            assert_eq!(answer, Answer::Done);
        }
        // They are closed at their deadline, including the connection that keeps sending.
        let start = Instant::now();
        while (&silent[0]).write_all(b"x").is_ok() && start.elapsed() < TIMEOUT {
            nacre_env::thread::sleep(Duration::from_millis(20));
        }
        assert!(start.elapsed() < EVERYBODYS.time * 2, "{:?}", start.elapsed());
        drop(silent);
        while ask(&path, &Request::Status).expect("an answer") != Answer::Done {
            assert!(start.elapsed() < TIMEOUT, "places are free again");
        }
    }

    #[test]
    fn questions_of_everybody_are_short() {
        let (_scratch, path, _socket) = socket(Audience::Everybody);
        let long = Request::ReadParam { name: "x".repeat(EVERYBODYS.bytes as usize) };
        let answer = ask(&path, &long).expect("an answer");
        assert!(matches!(answer, Answer::Error { errno: libc::EINVAL, .. }), "{answer:?}");
    }

    #[test]
    fn places_are_counted_by_user_and_in_all() {
        let crowd = Crowd::default();
        let mut places: Vec<Place> = (0..USER_MAX).map(|_| crowd.admit(1).expect("a place")).collect();
        assert!(crowd.admit(1).is_none());
        places.extend((USER_MAX..CROWD_MAX).map(|user| crowd.admit(1 + user as u32).expect("a place")));
        assert!(crowd.admit(0).is_none());
        drop(places);
        assert!(crowd.0.lock().is_empty() && crowd.admit(1).is_some());
    }
}
