//! statfs(2) and its variants: the type of NacreFS mounts.

use crate::{mounts, next};
use std::ffi::{CStr, c_char, c_int};

/// `f_type` of FUSE mounts, and of Lustre.
const FUSE_MAGIC: u64 = 0x6573_5546;
const LUSTRE_MAGIC: u32 = 0x0BD0_0BD0;

type ByPath<T> = unsafe extern "C" fn(*const c_char, *mut T) -> c_int;
type ByFd<T> = unsafe extern "C" fn(c_int, *mut T) -> c_int;

/// The two structures of results, which are equal on 64-bit machines.
trait Answer {
    fn magic(&mut self) -> &mut libc::__fsword_t;
}

impl Answer for libc::statfs {
    fn magic(&mut self) -> &mut libc::__fsword_t {
        &mut self.f_type
    }
}

impl Answer for libc::statfs64 {
    fn magic(&mut self) -> &mut libc::__fsword_t {
        &mut self.f_type
    }
}

/// Calls `ask`, and replaces FUSE's magic number if `is_ours` returns true. Only results with FUSE's number
/// are checked.
///
/// # Safety
///
/// `answer` must have memory for the structure, which `ask` fills in when it returns 0.
unsafe fn answered<T: Answer>(
    answer: *mut T,
    ask: impl FnOnce() -> c_int,
    is_ours: impl FnOnce() -> bool,
) -> c_int {
    let result = ask();
    if result == 0 {
        // SAFETY: filled in, and not shared.
        let magic = unsafe { &mut *answer }.magic();
        if *magic as u64 == FUSE_MAGIC && is_ours() {
            *magic = libc::__fsword_t::from(LUSTRE_MAGIC);
        }
    }
    result
}

/// # Safety
///
/// As for statfs(2), and `T` is the structure of the function `name`.
unsafe fn by_path<T: Answer>(name: &CStr, path: *const c_char, answer: *mut T) -> c_int {
    let Some(real) = next::function::<ByPath<T>>(name) else { return next::missing() };
    // SAFETY: as the caller promises; the kernel has accepted the path before it is used again.
    unsafe {
        answered(
            answer,
            || real(path, answer),
            || mounts::device_at(libc::AT_FDCWD, path, 0).is_some_and(mounts::is_ours),
        )
    }
}

/// # Safety
///
/// As for fstatfs(2), and `T` is the structure of the function `name`.
unsafe fn by_fd<T: Answer>(name: &CStr, fd: c_int, answer: *mut T) -> c_int {
    let Some(real) = next::function::<ByFd<T>>(name) else { return next::missing() };
    // SAFETY: as the caller promises.
    unsafe { answered(answer, || real(fd, answer), || mounts::is_ours_by_fd(fd)) }
}

/// statfs(2): NacreFS mounts have Lustre's magic number.
///
/// # Safety
///
/// As for statfs(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn statfs(path: *const c_char, answer: *mut libc::statfs) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { by_path(c"statfs", path, answer) }
}

/// statfs64(2): as [`statfs`].
///
/// # Safety
///
/// As for statfs(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn statfs64(path: *const c_char, answer: *mut libc::statfs64) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { by_path(c"statfs64", path, answer) }
}

/// fstatfs(2): as [`statfs`].
///
/// # Safety
///
/// As for fstatfs(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fstatfs(fd: c_int, answer: *mut libc::statfs) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { by_fd(c"fstatfs", fd, answer) }
}

/// fstatfs64(2): as [`statfs`].
///
/// # Safety
///
/// As for fstatfs(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fstatfs64(fd: c_int, answer: *mut libc::statfs64) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { by_fd(c"fstatfs64", fd, answer) }
}
