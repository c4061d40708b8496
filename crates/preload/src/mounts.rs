//! Which mounts are ours, and how the table of mounts shows them.

use crate::next;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// The type of our mounts in the kernel's table.
const OURS: &CStr = c"fuse.nacre";
/// The type that programs look for. Not longer than ours, in whose place it is written.
const SHOWN: &CStr = c"lustre";
const _: () = assert!(SHOWN.to_bytes_with_nul().len() <= OURS.to_bytes_with_nul().len());

/// True if a file system with this device number is one of ours.
pub fn is_ours(device: libc::dev_t) -> bool {
    let Ok(table) = std::fs::read("/proc/self/mountinfo") else { return false };
    let wanted = format!("{}:{}", libc::major(device), libc::minor(device));
    table.split(|&byte| byte == b'\n').any(|line| is_line_of(line, wanted.as_bytes()))
}

/// True if a line of `mountinfo` is about our mount with this device number: the third field, and the first after a lone dash.
fn is_line_of(line: &[u8], device: &[u8]) -> bool {
    let mut fields = line.split(|&byte| byte == b' ');
    fields.nth(2) == Some(device) && fields.skip_while(|field| *field != b"-").nth(1) == Some(OURS.to_bytes())
}

/// Where our mounts are.
pub fn points() -> Vec<PathBuf> {
    let Ok(table) = std::fs::read("/proc/self/mountinfo") else { return Vec::new() };
    table.split(|&byte| byte == b'\n').filter_map(point_of).collect()
}

/// The fifth field of a line of `mountinfo` that is about one of our mounts; blanks and the like are written as octal numbers there.
fn point_of(line: &[u8]) -> Option<PathBuf> {
    let mut fields = line.split(|&byte| byte == b' ');
    let point = fields.nth(4)?;
    let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
    if kind != OURS.to_bytes() {
        return None;
    }
    let (mut out, mut rest) = (Vec::new(), point);
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| byte == b'\\') {
            Some(value) => {
                out.push(value);
                rest = &after[3..];
            }
            None => {
                out.push(byte);
                rest = after;
            }
        }
    }
    Some(PathBuf::from(std::ffi::OsString::from_vec(out)))
}

/// Changes the type of an entry that is ours.
///
/// # Safety
///
/// The entry must be null or as getmntent(3) gives it: its type is a string that may be written to.
unsafe fn show(entry: *mut libc::mntent) -> *mut libc::mntent {
    if entry.is_null() {
        return entry;
    }
    // SAFETY: not null, and valid as the caller promises.
    let kind: *mut c_char = unsafe { (*entry).mnt_type };
    // SAFETY: the type is a string; the one that is written is not longer than the one that is there.
    unsafe {
        if !kind.is_null() && CStr::from_ptr(kind) == OURS {
            kind.copy_from_nonoverlapping(SHOWN.as_ptr(), SHOWN.to_bytes_with_nul().len());
        }
    }
    entry
}

type Getmntent = unsafe extern "C" fn(*mut libc::FILE) -> *mut libc::mntent;
type GetmntentR =
    unsafe extern "C" fn(*mut libc::FILE, *mut libc::mntent, *mut c_char, c_int) -> *mut libc::mntent;

/// getmntent(3): our mounts have Lustre's type.
///
/// # Safety
///
/// As for getmntent(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getmntent(file: *mut libc::FILE) -> *mut libc::mntent {
    let Some(real) = next::function::<Getmntent>(c"getmntent") else { return std::ptr::null_mut() };
    // SAFETY: as the caller promises; the answer is what `show` wants.
    unsafe { show(real(file)) }
}

/// getmntent_r(3): our mounts have Lustre's type.
///
/// # Safety
///
/// As for getmntent_r(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getmntent_r(
    file: *mut libc::FILE,
    entry: *mut libc::mntent,
    buffer: *mut c_char,
    length: c_int,
) -> *mut libc::mntent {
    let Some(real) = next::function::<GetmntentR>(c"getmntent_r") else { return std::ptr::null_mut() };
    // SAFETY: as the caller promises; the answer is what `show` wants.
    unsafe { show(real(file, entry, buffer, length)) }
}

/// Device number of what a path or a descriptor leads to, as fstatat(2) finds it.
///
/// # Safety
///
/// `path` must be a C string.
pub unsafe fn device_at(fd: c_int, path: *const c_char, flags: c_int) -> Option<libc::dev_t> {
    let mut found = std::mem::MaybeUninit::<libc::stat64>::uninit();
    // SAFETY: the path is a string as the caller promises, and there is room for the answer.
    let result = unsafe { libc::fstatat64(fd, path, found.as_mut_ptr(), flags) };
    // SAFETY: the call has filled it in.
    (result == 0).then(|| unsafe { found.assume_init() }.st_dev)
}

/// True if the open file is on one of our mounts.
pub fn is_ours_by_fd(fd: c_int) -> bool {
    // SAFETY: the path is an empty string.
    unsafe { device_at(fd, c"".as_ptr(), libc::AT_EMPTY_PATH) }.is_some_and(is_ours)
}

/// Bytes at a place that has no alignment.
///
/// # Safety
///
/// There must be `N` bytes that may be read.
pub unsafe fn bytes_at<const N: usize>(place: *const c_void) -> [u8; N] {
    // SAFETY: as the caller promises; arrays of bytes have no alignment.
    unsafe { place.cast::<[u8; N]>().read() }
}
