//! `libnacre_preload.so`: makes a NacreFS mount look like a Lustre mount to a program, where the kernel does
//! not let a FUSE daemon do it.
//!
//! `LD_PRELOAD=libnacre_preload.so PROGRAM` interposes these functions of the C library:
//!
//! - `getmntent`, `getmntent_r`: mounts of type `fuse.nacre` have the type `lustre`;
//! - `statfs` and its variants: the magic number of Lustre instead of FUSE's;
//! - `ioctl`: Lustre's calls that pass a number instead of a pointer, which the kernel would answer itself,
//!   are sent to the mount in a structure;
//! - `name_to_handle_at`, `open_by_handle_at`: handles are Lustre's, which contain FIDs;
//! - `open`, `fopen`, `opendir`, `stat`, `access`, `glob` and their variants: parameters under
//!   `/proc/fs/lustre`.
//!
//! All other calls, and all files that are not on a NacreFS mount, are left to the C library. The library
//! does nothing unless the program calls one of these functions, and its only state is the parameters, as
//! long as a program that has looked for them runs. It does not reach programs that are linked statically or
//! make system calls directly.
//!
//! The C library declares `ioctl` and others as variadic. Here they have a fixed number of arguments: on
//! x86-64 and 64-bit ARM the calling convention is the same for both.

mod handles;
mod mounts;
mod next;
mod params;
mod statfs;

use std::ffi::{c_int, c_ulong, c_void};

use nacre_types::ioctl::Payload;
use nacre_types::lustre::{self, ByValue};

/// Lustre's calls that pass a number.
const BY_VALUE: &[u32] = &[
    lustre::GROUP_LOCK,
    lustre::GROUP_UNLOCK,
    lustre::FLUSHCTX,
    lustre::SET_LEASE_OLD,
    lustre::FLR_SET_MIRROR,
];

type Ioctl = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;

/// ioctl(2): Lustre's calls with a number reach NacreFS mounts; all other calls pass unchanged.
///
/// # Safety
///
/// As for ioctl(2): `argument` must be valid for `request`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let Some(real) = next::function::<Ioctl>(c"ioctl") else { return next::missing() };
    let command = request as u32;
    if BY_VALUE.contains(&command) {
        let passed = ByValue { command, value: argument.addr() as u64 };
        let mut bytes = passed.to_bytes();
        // SAFETY: the number encodes how many bytes the kernel reads, which is the length of `bytes`.
        let result = unsafe { real(fd, c_ulong::from(ByValue::COMMAND), bytes.as_mut_ptr().cast()) };
        // Another file system does not know the command; from a NacreFS mount the errno is the result.
        let errno = next::errno();
        if result >= 0 || errno != libc::ENOTTY || mounts::is_ours_by_fd(fd) {
            next::set_errno(errno);
            return result;
        }
    }
    // SAFETY: as the caller promises.
    unsafe { real(fd, request, argument) }
}
