//! Mounts, clients and deadlines for the tests.

use nacre_env::sync::mpsc;
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nacre_fuse::{Handler, Session, SessionConfig, TransportChoice};
use tempfile::TempDir;

/// Time limit for any step of a test, on a slow and busy machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Returns the transports that can be tested here. None without `/dev/fuse`, which fails where CI is set.
pub fn transports() -> Vec<TransportChoice> {
    if !Path::new("/dev/fuse").exists() || !is_root() {
        let message = "SKIPPED: this test needs /dev/fuse and root";
        assert!(std::env::var_os("CI").is_none(), "{message}");
        eprintln!("{message}");
        return Vec::new();
    }
    if !Path::new("/sys/module/fuse/parameters/enable_uring").exists() {
        eprintln!("SKIPPED for io_uring: this kernel has no FUSE over io_uring");
        return vec![TransportChoice::Dev];
    }
    vec![TransportChoice::Dev, TransportChoice::Uring]
}

pub fn is_root() -> bool {
    // SAFETY: geteuid takes no arguments and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// A mount on a directory of its own; unmounted, then removed, when dropped.
pub struct Mount {
    pub session: Session,
    directory: TempDir,
}

impl Mount {
    pub fn new(transport: TransportChoice, handler: impl Handler + 'static) -> Mount {
        Mount::with(transport, Arc::new(handler), |_| {})
    }

    pub fn with(
        transport: TransportChoice,
        handler: Arc<dyn Handler>,
        change: impl FnOnce(&mut SessionConfig),
    ) -> Mount {
        let directory = tempfile::tempdir().expect("scratch directory");
        let mut config = SessionConfig::new(directory.path());
        config.transport = transport;
        config.mount.subtype = "nacretest".into();
        change(&mut config);
        let session = Session::mount(config, handler).expect("mount");
        Mount { session, directory }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn root(&self) -> &Path {
        self.directory.path()
    }
}

/// Runs `work` on a separate thread and fails if it takes too long.
pub fn in_time<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, receive) = mpsc::channel();
    let thread = nacre_env::thread::spawn(move || {
        let _ = send.send(work());
    });
    match receive.recv_timeout(DEADLINE) {
        Ok(value) => value,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what} took longer than {DEADLINE:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(thread.join().expect_err("it sent nothing"))
        }
    }
}

pub fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no NUL in paths here")
}

/// Calls getxattr(2): the tests' way of sending a request that takes no lock and is never cached.
pub fn getxattr(path: &Path, name: &str) -> io::Result<Vec<u8>> {
    let (path, name) = (c_path(path), CString::new(name).expect("no NUL"));
    let mut value = vec![0u8; 256];
    // SAFETY: both strings end with NUL; `value` is valid for writes of its length.
    let n = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
    value.truncate(n);
    Ok(value)
}

/// Starts a client whose request may stay unanswered. It does not share this process's descriptors: otherwise
/// a killed test program could not end, because its own client would keep the FUSE descriptors open.
pub fn client<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> nacre_env::thread::JoinHandle<T> {
    const CLOSE_RANGE_UNSHARE: libc::c_uint = 1 << 1;
    nacre_env::thread::spawn(move || {
        // SAFETY: the flag gives this thread a table of its own; the descriptors of other threads stay open.
        unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, CLOSE_RANGE_UNSHARE) };
        work()
    })
}
