//! Parameters that programs read under `/proc/fs/lustre`: pools, numbers of targets, default striping.
//! Lustre's kernel modules provide them there; a NacreFS mount provides them by ioctl.
//!
//! On a machine without Lustre, the library redirects a program that looks there to a directory of the
//! process. It is created by the first look and removed when the process exits; its content is the answers of
//! the mounts at the time of its creation. Paths in results are not translated: `glob(3)` gets callbacks that
//! redirect instead.

use crate::{mounts, next};
use nacre_types::TargetKind;
use nacre_types::ioctl::{LIST_MAX, MountInfo, POOLS_MAX, Payload, PoolList, PoolMembers, TargetList};
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Directory of the parameters of Lustre's modules.
const ROOT: &str = "/proc/fs/lustre";
/// Xattr with the default layout of a directory: size, count and first OST in `lov_user_md_v1` and `_v3`.
const LAYOUT: &CStr = c"lustre.lov";
const LAYOUT_MAGICS: [u32; 2] = [0x0BD1_0BD0, 0x0BD3_0BD0];
const LAYOUT_BYTES: usize = 32;
/// Lustre's default, for a directory without one.
const STRIPE_SIZE_DEFAULT: u32 = 4 << 20;

/// The directory of this process.
struct Tree {
    path: PathBuf,
    /// Process that created the directory: after a fork, the child must not remove it.
    pid: u32,
}

static TREE: OnceLock<Option<Tree>> = OnceLock::new();

/// Returns the directory, creating it at the first call; `None` if this machine has Lustre's own, or it
/// cannot be created.
fn tree() -> Option<&'static Path> {
    let tree = TREE.get_or_init(|| {
        if exists(c"/proc/fs/lustre") {
            return None;
        }
        let path = make_directory()?;
        fill_all(&path, mounts::points());
        // SAFETY: the function takes nothing and lives as long as the process, as this library is never
        // unloaded.
        unsafe { libc::atexit(remove) };
        Some(Tree { path, pid: std::process::id() })
    });
    tree.as_ref().map(|tree| tree.path.as_path())
}

/// Returns whether a path exists, according to the C library's function and not the one interposed here.
fn exists(path: &CStr) -> bool {
    let Some(real) = next::function::<Access>(c"access") else { return true };
    // SAFETY: the path is a string; the function has no other preconditions.
    unsafe { real(path.as_ptr(), libc::F_OK) == 0 }
}

extern "C" fn remove() {
    if let Some(Some(tree)) = TREE.get()
        && tree.pid == std::process::id()
    {
        let _ = fs::remove_dir_all(&tree.path);
    }
}

/// Where the directories are created, and the prefix of their names, followed by the process id.
const DIRECTORIES: &str = "/tmp";
const PREFIX: &str = "nacre-params-";

fn make_directory() -> Option<PathBuf> {
    remove_left();
    let mut name = format!("{DIRECTORIES}/{PREFIX}{}-XXXXXX\0", std::process::id()).into_bytes();
    // SAFETY: the template is a writable string that ends with the six letters that are replaced.
    let made = unsafe { libc::mkdtemp(name.as_mut_ptr().cast()) };
    let name = name.strip_suffix(b"\0")?;
    (!made.is_null()).then(|| PathBuf::from(OsStr::from_bytes(name)))
}

/// Removes directories of processes that were killed; those of other users stay.
fn remove_left() {
    let Ok(entries) = fs::read_dir(DIRECTORIES) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let process =
            name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok());
        let Some(process) = process.filter(|process| *process > 0) else { continue };
        // SAFETY: signal 0 only checks that the process exists.
        if unsafe { libc::kill(process, 0) } != 0 && next::errno() == libc::ESRCH {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Sends an ioctl to an open directory of a mount.
fn ask<T: Payload>(directory: &fs::File, payload: T) -> io::Result<T> {
    let mut bytes = payload.to_bytes();
    // SAFETY: the number encodes the length of `bytes`, which is all that the kernel reads and writes.
    let result = unsafe { libc::ioctl(directory.as_raw_fd(), T::COMMAND as libc::Ioctl, bytes.as_mut_ptr()) };
    match result {
        0.. => T::from_bytes(&bytes).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADMSG)),
        _ => Err(io::Error::last_os_error()),
    }
}

fn put(directory: &Path, name: &str, value: impl std::fmt::Display) -> io::Result<()> {
    fs::write(directory.join(name), format!("{value}\n"))
}

/// Timeout for all mounts together: one whose metadata server is unreachable does not answer, and the program
/// continues without its parameters.
const FILLED_WITHIN: Duration = Duration::from_secs(2);

/// Queries all mounts in parallel. A mount that misses the timeout has some of its parameters, or none.
fn fill_all(tree: &Path, mounts: Vec<PathBuf>) {
    let (done, answers) = mpsc::channel();
    let mut asked = 0;
    let signals = blocked_signals();
    for mount in mounts {
        let (tree, done) = (tree.to_owned(), done.clone());
        let ask = move || {
            let _ = fill(&tree, &mount);
            let _ = done.send(());
        };
        asked += usize::from(thread::Builder::new().spawn(ask).is_ok());
    }
    if let Some(signals) = signals {
        // SAFETY: the set was filled in by the call that blocked the signals.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const signals, std::ptr::null_mut()) };
    }
    let deadline = Instant::now() + FILLED_WITHIN;
    for _ in 0..asked {
        if answers.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_err() {
            return;
        }
    }
}

/// Blocks all signals of this thread, so that the threads it starts handle none of the program's signals.
/// Returns the former mask.
fn blocked_signals() -> Option<libc::sigset_t> {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: each call fills in the set that it is passed.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        let result = libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        (result == 0).then(|| before.assume_init())
    }
}

/// Writes the parameters of a mount into the tree.
fn fill(tree: &Path, mount: &Path) -> io::Result<()> {
    let directory = fs::File::open(mount)?;
    let MountInfo { fsname, instance } = ask(&directory, MountInfo::default())?;
    let place = tree.join("llite").join(format!("{fsname}-{instance}"));
    fs::create_dir_all(&place)?;
    put(&place, "uuid", &instance)?;
    put(&place, "fstype", "lustre")?;
    for (kind, side, word) in [(TargetKind::Mdt, "lmv", "MDT"), (TargetKind::Ost, "lov", "OST")] {
        let place = tree.join(side).join(format!("{fsname}-cli{side}-{instance}"));
        fs::create_dir_all(&place)?;
        let (mut targets, mut inactive, mut from) = (Vec::new(), Vec::new(), 0);
        loop {
            let list = TargetList { kind, from, indexes: Vec::new(), inactive: Vec::new() };
            let some = ask(&directory, list)?;
            let next = some.indexes.last().and_then(|last| last.checked_add(1));
            let is_full = some.indexes.len() == LIST_MAX;
            targets.extend(some.indexes);
            inactive.extend(some.inactive);
            match next.filter(|_| is_full) {
                Some(next) => from = next,
                None => break,
            }
        }
        put(&place, "numobd", targets.len())?;
        put(&place, "activeobd", targets.len() - inactive.len())?;
        put(&place, "desc_uuid", format_args!("{fsname}-cli{side}_UUID"))?;
        let line = |index: &u16| {
            let state = if inactive.contains(index) { "INACTIVE" } else { "ACTIVE" };
            format!("{index}: {fsname}-{word}{index:04x}_UUID {state}")
        };
        let lines: Vec<String> = targets.iter().map(line).collect();
        put(&place, "target_obd", lines.join("\n"))?;
        if kind == TargetKind::Ost {
            fill_pools(&place.join("pools"), &directory, &fsname)?;
            // Last, as it waits for a metadata server.
            fill_defaults(&place, &directory)?;
        }
    }
    Ok(())
}

/// Writes the default striping: that of the root directory.
fn fill_defaults(place: &Path, root: &fs::File) -> io::Result<()> {
    let mut layout = [0u8; LAYOUT_BYTES];
    let buffer = layout.as_mut_ptr().cast::<c_void>();
    // SAFETY: the name is a string, and the buffer has the length that is passed.
    let length = unsafe { libc::fgetxattr(root.as_raw_fd(), LAYOUT.as_ptr(), buffer, LAYOUT_BYTES) };
    let [m0, m1, m2, m3, ..] = layout;
    let is_plain =
        length == LAYOUT_BYTES as isize && LAYOUT_MAGICS.contains(&u32::from_le_bytes([m0, m1, m2, m3]));
    let mut values = (STRIPE_SIZE_DEFAULT, 1i16, -1i16);
    if is_plain {
        let size = u32::from_le_bytes([layout[24], layout[25], layout[26], layout[27]]);
        let count = i16::from_le_bytes([layout[28], layout[29]]);
        values.0 = if size == 0 { values.0 } else { size };
        values.1 = if count == 0 { values.1 } else { count };
        values.2 = i16::from_le_bytes([layout[30], layout[31]]);
    }
    put(place, "stripesize", values.0)?;
    put(place, "stripecount", values.1)?;
    put(place, "stripeoffset", values.2)?;
    put(place, "stripetype", 1)
}

/// Writes a file for each pool, with a line for each OST.
fn fill_pools(place: &Path, root: &fs::File, fsname: &str) -> io::Result<()> {
    fs::create_dir_all(place)?;
    let mut from = 0;
    loop {
        let names = ask(root, PoolList { from, names: Vec::new() })?.names;
        for name in &names {
            let osts = ask(root, PoolMembers { pool: name.clone(), from: 0, indexes: Vec::new() })?.indexes;
            let lines: String = osts.iter().map(|index| format!("{fsname}-OST{index:04x}_UUID\n")).collect();
            fs::write(place.join(name), lines)?;
        }
        if names.len() < POOLS_MAX || from as usize > LIST_MAX {
            return Ok(());
        }
        from += names.len() as u32;
    }
}

/// Returns the redirected path; `None` if `path` is not one of Lustre's parameters.
fn elsewhere(path: &[u8]) -> Option<CString> {
    let rest = path.strip_prefix(ROOT.as_bytes())?;
    if !rest.is_empty() && rest[0] != b'/' {
        return None;
    }
    let mut led = tree()?.as_os_str().to_owned().into_vec();
    led.extend_from_slice(rest);
    CString::new(led).ok()
}

/// Calls `real` with the path, redirected if it is one of Lustre's parameters.
///
/// # Safety
///
/// `path` must be null or a C string.
unsafe fn led<R>(path: *const c_char, real: impl FnOnce(*const c_char) -> R) -> R {
    // SAFETY: as the caller promises.
    let text = (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) });
    match text.and_then(|text| elsewhere(text.to_bytes())) {
        Some(other) => real(other.as_ptr()),
        None => real(path),
    }
}

type Open = unsafe extern "C" fn(*const c_char, c_int, libc::mode_t) -> c_int;
type Fopen = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut libc::FILE;
type Opendir = unsafe extern "C" fn(*const c_char) -> *mut libc::DIR;
type Access = unsafe extern "C" fn(*const c_char, c_int) -> c_int;
type Stat = unsafe extern "C" fn(*const c_char, *mut c_void) -> c_int;

macro_rules! led_functions {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty, $pointer:ty, $missing:expr;)*) => {
        $(
            /// Calls the C library's function, with the path redirected if it is one of Lustre's parameters.
            ///
            /// # Safety
            ///
            /// As for the C library's.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(path: *const c_char, $($argument: $kind),*) -> $result {
                const NAME: &[u8] = concat!(stringify!($name), "\0").as_bytes();
                let Ok(name) = CStr::from_bytes_with_nul(NAME) else { return $missing };
                let Some(real) = next::function::<$pointer>(name) else { return $missing };
                // SAFETY: as the caller promises; the other path is a string as well.
                unsafe { led(path, |path| real(path, $($argument),*)) }
            }
        )*
    };
}

led_functions! {
    open(flags: c_int, mode: libc::mode_t) -> c_int, Open, next::missing();
    open64(flags: c_int, mode: libc::mode_t) -> c_int, Open, next::missing();
    fopen(how: *const c_char) -> *mut libc::FILE, Fopen, std::ptr::null_mut();
    fopen64(how: *const c_char) -> *mut libc::FILE, Fopen, std::ptr::null_mut();
    opendir() -> *mut libc::DIR, Opendir, std::ptr::null_mut();
    access(mode: c_int) -> c_int, Access, next::missing();
    stat(answer: *mut c_void) -> c_int, Stat, next::missing();
    stat64(answer: *mut c_void) -> c_int, Stat, next::missing();
    lstat(answer: *mut c_void) -> c_int, Stat, next::missing();
    lstat64(answer: *mut c_void) -> c_int, Stat, next::missing();
}

/// `glob_t` of the GNU C library on 64-bit machines.
#[repr(C)]
pub struct Glob {
    _found: [usize; 3],
    _flags: c_int,
    closedir: Option<unsafe extern "C" fn(*mut c_void)>,
    readdir: Option<unsafe extern "C" fn(*mut c_void) -> *mut c_void>,
    opendir: Option<unsafe extern "C" fn(*const c_char) -> *mut c_void>,
    lstat: Option<Stat>,
    stat: Option<Stat>,
}

const _: () = assert!(size_of::<Glob>() == size_of::<libc::glob_t>());

/// The callbacks in `glob_t` are used (`GLOB_ALTDIRFUNC`).
const OWN_FUNCTIONS: c_int = 1 << 9;

unsafe extern "C" fn glob_opendir(path: *const c_char) -> *mut c_void {
    // SAFETY: glob(3) passes a path.
    unsafe { opendir(path) }.cast()
}

unsafe extern "C" fn glob_readdir(directory: *mut c_void) -> *mut c_void {
    // SAFETY: glob(3) passes the result of the function above.
    unsafe { libc::readdir(directory.cast()) }.cast()
}

unsafe extern "C" fn glob_closedir(directory: *mut c_void) {
    // SAFETY: as above; glob(3) does not use it afterwards.
    unsafe { libc::closedir(directory.cast()) };
}

type GlobFunction = unsafe extern "C" fn(*const c_char, c_int, *const c_void, *mut Glob) -> c_int;

/// # Safety
///
/// As for glob(3).
unsafe fn glob_by(
    name: &CStr,
    pattern: *const c_char,
    mut flags: c_int,
    on_error: *const c_void,
    found: *mut Glob,
) -> c_int {
    let Some(real) = next::function::<GlobFunction>(name) else { return next::missing() };
    // SAFETY: as the caller promises.
    let text = unsafe { CStr::from_ptr(pattern) }.to_bytes();
    let is_ours = text.windows(b"/fs/lustre".len()).any(|part| part == b"/fs/lustre");
    if is_ours && flags & OWN_FUNCTIONS == 0 {
        flags |= OWN_FUNCTIONS;
        // SAFETY: the caller has memory for the structure, and does not use these fields.
        unsafe {
            (&raw mut (*found).closedir).write(Some(glob_closedir));
            (&raw mut (*found).readdir).write(Some(glob_readdir));
            (&raw mut (*found).opendir).write(Some(glob_opendir));
            (&raw mut (*found).lstat).write(Some(lstat));
            (&raw mut (*found).stat).write(Some(stat));
        }
    }
    // SAFETY: as the caller promises.
    unsafe { real(pattern, flags, on_error, found) }
}

/// glob(3): finds Lustre's parameters.
///
/// # Safety
///
/// As for glob(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn glob(
    pattern: *const c_char,
    flags: c_int,
    on_error: *const c_void,
    found: *mut Glob,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { glob_by(c"glob", pattern, flags, on_error, found) }
}

/// glob64(3): as [`glob`].
///
/// # Safety
///
/// As for glob(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn glob64(
    pattern: *const c_char,
    flags: c_int,
    on_error: *const c_void,
    found: *mut Glob,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { glob_by(c"glob64", pattern, flags, on_error, found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lustres_parameters_are_elsewhere() {
        for path in ["/proc/fs/lustrex", "/proc/fs", "/proc/fs/lustre2/lov", "proc/fs/lustre", "/tmp", ""] {
            assert_eq!(elsewhere(path.as_bytes()), None, "{path}");
        }
    }
}
