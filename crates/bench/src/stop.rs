//! Ctrl-C, for work that has something to put down first.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Error;
use rustix::process::Signal;

/// Exit code of a command that Ctrl-C stops, as shells show it.
pub(crate) const CODE: i32 = 128 + Signal::INT.as_raw();

static ASKED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_: libc::c_int) {
    ASKED.store(true, Ordering::Relaxed);
}

/// From now on SIGINT and SIGTERM are only noted, once: the second one ends the process as usual.
pub(crate) fn listen() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: all zero is a value of this structure of numbers and pointers: no flags, an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = note as *const () as usize;
        // System calls go on: the flag is looked at between them.
        action.sa_flags = libc::SA_RESTART | libc::SA_RESETHAND;
        // SAFETY: `action` lives across the call, and its handler does nothing but store into an atomic.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    }
}

/// Where the transfers of so many bytes, each of `len`, begin, until Ctrl-C.
pub(crate) fn transfers(bytes: u64, len: usize) -> impl Iterator<Item = Result<u64, Error>> {
    (0..bytes).step_by(len.max(1)).map(|offset| if asked() { Err(Error::Interrupted) } else { Ok(offset) })
}

/// Whether one has come.
pub(crate) fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}
