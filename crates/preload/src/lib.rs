//! `libnacre_preload.so`: what a program has to be told so that it takes a NacreFS mount for a Lustre mount, where the kernel
//! lets no FUSE daemon say it.
//!
//! `LD_PRELOAD=libnacre_preload.so PROGRAM` puts these functions before those of the C library:
//!
//! - `getmntent`, `getmntent_r`: mounts of type `fuse.nacre` show the type `lustre`;
//! - `statfs` and its kin: the magic number of Lustre instead of FUSE's;
//! - `ioctl`: Lustre's calls that pass a number where others pass a pointer, which end in the kernel, go to the mount in a structure;
//! - `name_to_handle_at`, `open_by_handle_at`: handles are Lustre's, made of FIDs;
//! - `open`, `fopen`, `opendir`, `stat`, `access`, `glob` and their kin: parameters under `/proc/fs/lustre`.
//!
//! For everything that is not on a NacreFS mount, and all other calls, the C library answers unchanged. Nothing is done that the
//! program did not ask for, and nothing is kept but the parameters, while a program runs that has looked for them. Programs that
//! are linked statically, or call the kernel themselves, are not reached.
//!
//! The C library declares `ioctl` and others with a variable number of arguments. Here they have a fixed number: on x86-64 and
//! 64-bit ARM both are called alike.

mod handles;
mod mounts;
mod next;
mod params;
mod statfs;

use std::ffi::{c_int, c_ulong, c_void};

use nacre_types::ioctl::Payload;
use nacre_types::lustre::{self, ByValue};

/// Calls of Lustre that pass a number.
const BY_VALUE: &[u32] = &[
    lustre::GROUP_LOCK,
    lustre::GROUP_UNLOCK,
    lustre::FLUSHCTX,
    lustre::SET_LEASE_OLD,
    lustre::FLR_SET_MIRROR,
];

type Ioctl = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;

/// ioctl(2): calls that pass a number reach the mount; elsewhere, and all others, as they are.
///
/// # Safety
///
/// As for ioctl(2): what `argument` points to must be what `request` asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let Some(real) = next::function::<Ioctl>(c"ioctl") else { return next::missing() };
    let command = request as u32;
    if BY_VALUE.contains(&command) {
        let passed = ByValue { command, value: argument.addr() as u64 };
        let mut bytes = passed.to_bytes();
        // SAFETY: the number says how many bytes the kernel reads, which is the length of `bytes`.
        let result = unsafe { real(fd, c_ulong::from(ByValue::COMMAND), bytes.as_mut_ptr().cast()) };
        // Another file system does not know it; ours means what it says.
        let errno = next::errno();
        if result >= 0 || errno != libc::ENOTTY || mounts::is_ours_by_fd(fd) {
            next::set_errno(errno);
            return result;
        }
    }
    // SAFETY: as the caller promises.
    unsafe { real(fd, request, argument) }
}
