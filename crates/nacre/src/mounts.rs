//! The kernel's mount table: which NacreFS file systems are mounted, and where.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// File system type of our mounts.
pub const FS_TYPE: &str = "fuse.nacre";

/// One mount of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// `NID[:NID..]:/FSNAME`.
    pub source: String,
    /// Where it is mounted.
    pub mount_point: PathBuf,
}

impl MountEntry {
    /// The file system's name: what follows the last `:/` of the source.
    pub fn fsname(&self) -> &str {
        self.source.rsplit_once(":/").map_or("", |(_, name)| name)
    }
}

/// True if `path` is a mount whose daemon has died. If it is just dying, its end is waited for.
pub fn is_dead_mount_point(path: &Path) -> bool {
    // Not stat(2): the kernel answers that from its cache even when nobody serves the mount any more.
    rustix::fs::statfs(path).err().is_some_and(|error| says_dead(error.raw_os_error()))
}

/// Is this what the kernel says of a mount whose daemon is dead? One that dies while it is asked breaks the connection
/// off, and while its queues of io_uring are taken apart requests are cancelled; both have errors of their own.
pub fn says_dead(errno: i32) -> bool {
    matches!(errno, libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED)
}

/// All NacreFS mounts that this process can see, in the order in which they were mounted.
///
/// # Errors
/// If `/proc` is not there.
pub fn nacre_mounts() -> io::Result<Vec<MountEntry>> {
    Ok(parse(&fs::read("/proc/self/mountinfo")?))
}

/// The NacreFS mount that `path` (absolute, no symbolic links) lies in.
pub fn mount_of(path: &Path) -> io::Result<Option<MountEntry>> {
    let mounts = nacre_mounts()?;
    Ok(mounts
        .into_iter()
        .filter(|mount| path.starts_with(&mount.mount_point))
        .max_by_key(|mount| mount.mount_point.as_os_str().len()))
}

/// The NacreFS mount exactly on `path`: the last one, if several are stacked.
pub fn mounted_on(path: &Path) -> io::Result<Option<MountEntry>> {
    Ok(nacre_mounts()?.into_iter().rfind(|mount| mount.mount_point == path))
}

/// True if anything at all is mounted exactly on `path`.
pub fn is_mount_point(path: &Path) -> io::Result<bool> {
    let table = fs::read("/proc/self/mountinfo")?;
    let mut points = table.split(|&b| b == b'\n').filter_map(|line| line.split(|&b| b == b' ').nth(4));
    Ok(points.any(|point| Path::new(&unescape(point)) == path))
}

/// Lines of `mountinfo`: fields, a lone dash, then type, source and options. Source: proc_pid_mountinfo(5).
fn parse(table: &[u8]) -> Vec<MountEntry> {
    table.split(|&b| b == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&b| b == b' ');
    let mount_point = fields.nth(4)?;
    let mut tail = fields.skip_while(|field| *field != b"-").skip(1);
    if tail.next()? != FS_TYPE.as_bytes() {
        return None;
    }
    let source = unescape(tail.next()?);
    Some(MountEntry {
        source: String::from_utf8_lossy(source.as_bytes()).into_owned(),
        mount_point: PathBuf::from(unescape(mount_point)),
    })
}

/// Blanks, tabs, newlines and backslashes stand as three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = (byte == b'\\').then(|| after.first_chunk::<3>()).flatten();
        match octal.map(|digits| digits.map(|d| d.wrapping_sub(b'0'))) {
            Some([a @ 0..=3, b @ 0..=7, c @ 0..=7]) => {
                out.push(a << 6 | b << 3 | c);
                rest = &after[3..];
            }
            _ => {
                out.push(byte);
                rest = after;
            }
        }
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_mounts_are_listed_and_escapes_are_undone() {
        let table = b"25 1 0:22 / / rw - ext4 /dev/vda rw\n\
            40 25 0:39 / /mnt/a\\040b rw,nosuid shared:1 - fuse.nacre 127.0.0.1:7990@tcp:/nacre rw,user_id=0\n\
            41 25 0:40 / /mnt/c rw - fuse.other x rw\n\
            garbage\n";
        let mounts = parse(table);
        assert_eq!(mounts.len(), 1);
        assert_eq!(mounts[0].mount_point, Path::new("/mnt/a b"));
        assert_eq!(mounts[0].fsname(), "nacre");
    }

    #[test]
    fn strange_escapes_stay_as_they_are() {
        assert_eq!(unescape(b"a\\134b\\9\\"), OsString::from("a\\b\\9\\"));
        assert_eq!(unescape(b"\\777"), OsString::from("\\777"));
    }
}
