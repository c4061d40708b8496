//! File handles: Lustre's contain the FIDs of the file and its parent, FUSE's the node ids and generations.

use crate::{mounts, next};
use nacre_types::Fid;
use std::ffi::{CStr, c_char, c_int, c_void};

/// Types of handles: FUSE's without a parent, FUSE's with one, and Lustre's.
const FUSE: c_int = 0x81;
const FUSE_WITH_PARENT: c_int = 0x82;
const LUSTRE: c_int = 0x97;
/// Bytes of FUSE's handle without a parent: the node id in two halves, the upper one first, and the
/// generation.
const FUSE_BYTES: usize = 12;
/// Bytes of Lustre's handle: the FIDs of file and parent.
const LUSTRE_BYTES: usize = 32;
/// Bytes before the payload of a handle: its length and type.
const HEADER_BYTES: usize = 8;

type NameToHandle = unsafe extern "C" fn(c_int, *const c_char, *mut c_void, *mut c_int, c_int) -> c_int;
type OpenByHandle = unsafe extern "C" fn(c_int, *mut c_void, c_int) -> c_int;

fn node_at(handle: &[u8]) -> Option<u64> {
    let half = |at: usize| Some(u64::from(u32::from_ne_bytes(*handle.get(at..)?.first_chunk()?)));
    Some(half(0)? << 32 | half(4)?)
}

/// Returns the FID of a node id; zero for an id that stands for no FID.
fn fid_of(node: u64) -> Fid {
    if node == Fid::ROOT.inode_number() {
        return Fid::ROOT;
    }
    let fid = Fid::new(node >> 24, (node & 0xff_ffff) as u32, 0);
    if fid.inode_number() == node { fid } else { Fid::ZERO }
}

/// Converts FUSE's handle to Lustre's; `None` if it is too short.
fn to_lustre(handle: &[u8]) -> Option<[u8; LUSTRE_BYTES]> {
    let fid = fid_of(node_at(handle)?);
    let parent = handle.get(FUSE_BYTES..).and_then(node_at).map_or(Fid::ZERO, fid_of);
    let mut out = [0; LUSTRE_BYTES];
    out[..16].copy_from_slice(&fid.to_le_bytes());
    out[16..].copy_from_slice(&parent.to_le_bytes());
    (!fid.is_zero()).then_some(out)
}

/// Converts Lustre's handle to FUSE's.
fn to_fuse(handle: &[u8; LUSTRE_BYTES]) -> [u8; FUSE_BYTES] {
    let [fid, _] = handle.as_chunks::<16>().0 else { return [0; FUSE_BYTES] };
    node_handle(Fid::from_le_bytes(fid).inode_number())
}

/// Returns FUSE's handle of a node.
fn node_handle(node: u64) -> [u8; FUSE_BYTES] {
    let mut out = [0; FUSE_BYTES];
    out[..4].copy_from_slice(&((node >> 32) as u32).to_ne_bytes());
    out[4..8].copy_from_slice(&(node as u32).to_ne_bytes());
    out
}

/// name_to_handle_at(2): on NacreFS mounts handles are Lustre's, if the buffer is large enough.
///
/// # Safety
///
/// As for name_to_handle_at(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn name_to_handle_at(
    directory: c_int,
    path: *const c_char,
    handle: *mut c_void,
    mount_id: *mut c_int,
    flags: c_int,
) -> c_int {
    let Some(real) = next::function::<NameToHandle>(c"name_to_handle_at") else { return next::missing() };
    // SAFETY: a handle begins with its length and type; the kernel refuses a null one.
    let room = if handle.is_null() { 0 } else { u32::from_ne_bytes(unsafe { mounts::bytes_at(handle) }) };
    // SAFETY: as the caller promises.
    let result = unsafe { real(directory, path, handle, mount_id, flags) };
    if result != 0 || (room as usize) < LUSTRE_BYTES {
        return result;
    }
    // SAFETY: the call has filled in the header, and the buffer has `room` bytes after it.
    let (head, bytes): ([u8; HEADER_BYTES], [u8; LUSTRE_BYTES]) =
        unsafe { (mounts::bytes_at(handle), mounts::bytes_at(handle.byte_add(HEADER_BYTES))) };
    let [l0, l1, l2, l3, k0, k1, k2, k3] = head;
    let (length, kind) = (u32::from_ne_bytes([l0, l1, l2, l3]), c_int::from_ne_bytes([k0, k1, k2, k3]));
    if kind != FUSE && kind != FUSE_WITH_PARENT {
        return result;
    }
    let look = (flags & libc::AT_EMPTY_PATH)
        | if flags & libc::AT_SYMLINK_FOLLOW != 0 { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
    // SAFETY: the kernel has accepted the path.
    if !unsafe { mounts::device_at(directory, path, look) }.is_some_and(mounts::is_ours) {
        return result;
    }
    if let Some(converted) = to_lustre(&bytes[..(length as usize).min(LUSTRE_BYTES)]) {
        let head = [(LUSTRE_BYTES as u32).to_ne_bytes(), LUSTRE.to_ne_bytes()];
        // SAFETY: the buffer has the header and `room` bytes, which is at least this much.
        unsafe {
            handle.cast::<[[u8; 4]; 2]>().write_unaligned(head);
            handle.byte_add(HEADER_BYTES).cast::<[u8; LUSTRE_BYTES]>().write_unaligned(converted);
        }
    }
    result
}

/// Directories that no listing contains, with their path below the root: the kernel opens a directory by its
/// handle only if it finds it in the listing of its parent.
const HIDDEN: [(Fid, &CStr); 2] =
    [(Fid::new(0x2_0000_0002, 1, 0), c".lustre"), (Fid::new(0x2_0000_0002, 2, 0), c".lustre/fid")];

/// Opens the inode of one of FUSE's handles.
fn open_node(real: OpenByHandle, mount: c_int, node: &[u8; FUSE_BYTES], flags: c_int) -> c_int {
    // Aligned like the kernel's structure.
    #[repr(C, align(4))]
    struct Handle([u8; HEADER_BYTES + FUSE_BYTES]);
    let mut own = Handle([0; HEADER_BYTES + FUSE_BYTES]);
    own.0[..4].copy_from_slice(&(FUSE_BYTES as u32).to_ne_bytes());
    own.0[4..HEADER_BYTES].copy_from_slice(&FUSE.to_ne_bytes());
    own.0[HEADER_BYTES..].copy_from_slice(node);
    // SAFETY: the handle is complete and lives for the call.
    unsafe { real(mount, (&raw mut own).cast(), flags) }
}

/// Opens a path below the root of the file system that `mount` is on.
fn open_below_root(real: OpenByHandle, mount: c_int, path: &CStr, flags: c_int) -> c_int {
    let root = open_node(real, mount, &node_handle(Fid::ROOT.inode_number()), libc::O_PATH | libc::O_CLOEXEC);
    if root < 0 {
        return root;
    }
    // SAFETY: the path ends with NUL and lives for the call; the descriptor is this function's own.
    let opened = unsafe { libc::openat(root, path.as_ptr(), flags) };
    let error = std::io::Error::last_os_error();
    // SAFETY: the descriptor is owned by this function.
    unsafe { libc::close(root) };
    if opened < 0 {
        // SAFETY: the errno of the calling thread, which close(2) may have changed.
        unsafe { *libc::__errno_location() = error.raw_os_error().unwrap_or(libc::EIO) };
    }
    opened
}

/// open_by_handle_at(2): accepts Lustre's handles for files on NacreFS mounts.
///
/// # Safety
///
/// As for open_by_handle_at(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open_by_handle_at(mount: c_int, handle: *mut c_void, flags: c_int) -> c_int {
    let Some(real) = next::function::<OpenByHandle>(c"open_by_handle_at") else { return next::missing() };
    let lustre: [u8; HEADER_BYTES] = {
        let head = [(LUSTRE_BYTES as u32).to_ne_bytes(), LUSTRE.to_ne_bytes()];
        let mut out = [0; HEADER_BYTES];
        out[..4].copy_from_slice(&head[0]);
        out[4..].copy_from_slice(&head[1]);
        out
    };
    // SAFETY: a handle begins with its length and type.
    let is_lustres = !handle.is_null() && unsafe { mounts::bytes_at::<HEADER_BYTES>(handle) } == lustre;
    if is_lustres && mounts::is_ours_by_fd(mount) {
        // SAFETY: the header says that this many bytes follow.
        let bytes: [u8; LUSTRE_BYTES] = unsafe { mounts::bytes_at(handle.byte_add(HEADER_BYTES)) };
        let fid = bytes.first_chunk().map(Fid::from_le_bytes);
        return match HIDDEN.iter().find(|(hidden, _)| fid == Some(*hidden)) {
            Some((_, path)) => open_below_root(real, mount, path, flags),
            None => open_node(real, mount, &to_fuse(&bytes), flags),
        };
    }
    // SAFETY: as the caller promises.
    unsafe { real(mount, handle, flags) }
}
