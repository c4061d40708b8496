//! Ctrl-C, for work that has to clean up first.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Error;
use rustix::process::Signal;

/// Exit code of a command that Ctrl-C stops, as in shells.
pub(crate) const CODE: i32 = 128 + Signal::INT.as_raw();

static ASKED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_: libc::c_int) {
    ASKED.store(true, Ordering::Relaxed);
}

/// Installs handlers that only record the first SIGINT or SIGTERM; the second one ends the process as usual.
pub(crate) fn listen() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: all zeros is a valid value of this structure of numbers and pointers: no flags, an empty
        // mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = note as *const () as usize;
        // System calls are restarted: the flag is checked between them.
        action.sa_flags = libc::SA_RESTART | libc::SA_RESETHAND;
        // SAFETY: `action` outlives the call, and its handler only stores into an atomic.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    }
}

/// Returns the offsets of the transfers of `bytes` bytes, each of `len`, until Ctrl-C.
pub(crate) fn transfers(bytes: u64, len: usize) -> impl Iterator<Item = Result<u64, Error>> {
    (0..bytes).step_by(len.max(1)).map(|offset| if asked() { Err(Error::Interrupted) } else { Ok(offset) })
}

/// Returns whether a signal has arrived.
pub(crate) fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}
