//! Detection of NacreFS mounts, and their entries in the table of mounts.

use crate::next;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// Type of NacreFS mounts in the kernel's table.
const OURS: &CStr = c"fuse.nacre";
/// Type that programs look for. It is written over the other in place, so it must not be longer.
const SHOWN: &CStr = c"lustre";
const _: () = assert!(SHOWN.to_bytes_with_nul().len() <= OURS.to_bytes_with_nul().len());

/// Returns whether the file system with this device number is a NacreFS mount.
pub fn is_ours(device: libc::dev_t) -> bool {
    let Ok(table) = std::fs::read("/proc/self/mountinfo") else { return false };
    let wanted = format!("{}:{}", libc::major(device), libc::minor(device));
    table.split(|&byte| byte == b'\n').any(|line| is_line_of(line, wanted.as_bytes()))
}

/// Returns whether a line of `mountinfo` is about a NacreFS mount with this device number: the third field,
/// and the first one after a lone dash.
fn is_line_of(line: &[u8], device: &[u8]) -> bool {
    let mut fields = line.split(|&byte| byte == b' ');
    fields.nth(2) == Some(device) && fields.skip_while(|field| *field != b"-").nth(1) == Some(OURS.to_bytes())
}

/// Returns the mount points of NacreFS.
pub fn points() -> Vec<PathBuf> {
    let Ok(table) = std::fs::read("/proc/self/mountinfo") else { return Vec::new() };
    table.split(|&byte| byte == b'\n').filter_map(point_of).collect()
}

/// Returns the fifth field of a line of `mountinfo` that is about a NacreFS mount. Blanks and other special
/// characters are octal escapes there.
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

/// Replaces the type in the entry of a NacreFS mount.
///
/// # Safety
///
/// The entry must be null or as getmntent(3) returns it: its type is a writable string.
unsafe fn show(entry: *mut libc::mntent) -> *mut libc::mntent {
    if entry.is_null() {
        return entry;
    }
    // SAFETY: not null, and valid as the caller promises.
    let kind: *mut c_char = unsafe { (*entry).mnt_type };
    // SAFETY: the type is a string; its replacement is not longer.
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

/// getmntent(3): NacreFS mounts have Lustre's type.
///
/// # Safety
///
/// As for getmntent(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getmntent(file: *mut libc::FILE) -> *mut libc::mntent {
    let Some(real) = next::function::<Getmntent>(c"getmntent") else { return std::ptr::null_mut() };
    // SAFETY: as the caller promises; the result is an entry as `show` requires.
    unsafe { show(real(file)) }
}

/// getmntent_r(3): NacreFS mounts have Lustre's type.
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
    // SAFETY: as the caller promises; the result is an entry as `show` requires.
    unsafe { show(real(file, entry, buffer, length)) }
}

/// Returns the device number of the file that fstatat(2) finds for a path or a descriptor.
///
/// # Safety
///
/// `path` must be a C string.
pub unsafe fn device_at(fd: c_int, path: *const c_char, flags: c_int) -> Option<libc::dev_t> {
    let mut found = std::mem::MaybeUninit::<libc::stat64>::uninit();
    // SAFETY: the path is a string as the caller promises, and the buffer has the size of the result.
    let result = unsafe { libc::fstatat64(fd, path, found.as_mut_ptr(), flags) };
    // SAFETY: the call has filled it in.
    (result == 0).then(|| unsafe { found.assume_init() }.st_dev)
}

/// Returns whether an open file is on a NacreFS mount.
pub fn is_ours_by_fd(fd: c_int) -> bool {
    // SAFETY: the path is an empty string.
    unsafe { device_at(fd, c"".as_ptr(), libc::AT_EMPTY_PATH) }.is_some_and(is_ours)
}

/// Reads bytes at an unaligned address.
///
/// # Safety
///
/// `N` bytes must be readable there.
pub unsafe fn bytes_at<const N: usize>(place: *const c_void) -> [u8; N] {
    // SAFETY: as the caller promises; arrays of bytes need no alignment.
    unsafe { place.cast::<[u8; N]>().read() }
}
