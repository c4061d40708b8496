//! Mounted NacreFS file systems, from the kernel's mount table.

use nacre_env::sync::mpsc;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

/// File system type of NacreFS mounts.
pub const FS_TYPE: &str = "fuse.nacre";

/// Timeout for the servers of a mount while symbolic links in it are resolved.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Most symbolic links in one path, the kernel's own limit.
const LINKS_MAX: usize = 40;

/// A NacreFS mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// `NID[:NID..]:/FSNAME[/DIRECTORY]`.
    pub source: String,
    /// Directory of the mount.
    pub mount_point: PathBuf,
}

impl MountEntry {
    /// Returns the file system's name: the part after the first `:/` of the source.
    pub fn fsname(&self) -> &str {
        let below = self.source.split_once(":/").map_or("", |(_, below)| below);
        below.split('/').next().unwrap_or_default()
    }
}

/// Returns true if `path` is a mount whose daemon has died. If the daemon is exiting, waits for its end.
pub fn is_dead_mount_point(path: &Path) -> bool {
    // Not stat(2): the kernel answers that from its cache even after the daemon has ended.
    rustix::fs::statfs(path).err().is_some_and(says_dead)
}

/// Returns true for an errno that the kernel returns for a mount whose daemon is dead. A daemon that dies
/// during the request breaks the connection, and the teardown of its io_uring queues cancels requests; both
/// have errnos of their own.
pub fn says_dead(errno: Errno) -> bool {
    matches!(errno, Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED)
}

/// Returns all NacreFS mounts that this process sees, in the order in which they were mounted.
///
/// # Errors
/// If `/proc` is not available.
pub fn nacre_mounts() -> io::Result<Vec<MountEntry>> {
    Ok(parse(&fs::read("/proc/self/mountinfo")?))
}

/// Returns the NacreFS mount that contains a path, all symbolic links resolved; `None` if there is none, or
/// another file system is mounted further down the path. The mount itself is found without a request to it.
/// Links below its root are resolved through it, with a timeout, after which the path counts as written.
///
/// # Errors
/// Those of a path that does not exist or may not be read; those of the mount table.
pub fn find_mount(path: &Path) -> io::Result<Option<MountEntry>> {
    let table = parse_all(&fs::read("/proc/self/mountinfo")?);
    if path.as_os_str().is_empty() {
        return Err(io::Error::from(Errno::NOENT));
    }
    let written = std::path::absolute(path)?;
    let plain = without_links(&written, |path| is_ours(&table, path))?;
    let Some(mount) = innermost(&table, &plain).and_then(|mount| mount.entry.clone()) else {
        return Ok(None);
    };
    if plain == mount.mount_point {
        return Ok(Some(mount));
    }
    let (sender, found) = mpsc::channel();
    // The thread may never get an answer; it ends with the process.
    nacre_env::thread::Builder::new().spawn(move || sender.send(written.canonicalize()))?;
    let real = match found.recv_timeout(TIMEOUT) {
        Ok(real) => real?,
        Err(_) => plain,
    };
    Ok(innermost(&table, &real).and_then(|mount| mount.entry.clone()))
}

/// Returns true if a path (absolute) resolves to `mount_point`, a NacreFS mount; without a request to the
/// mount.
pub fn is_same_place(path: &Path, mount_point: &Path) -> bool {
    let plain = |table: &[AnyMount]| without_links(path, |path| is_ours(table, path)).ok();
    let table = fs::read("/proc/self/mountinfo").map(|table| parse_all(&table)).unwrap_or_default();
    plain(&table).is_some_and(|plain| plain == mount_point)
}

fn is_ours(table: &[AnyMount], path: &Path) -> bool {
    innermost(table, path).is_some_and(|mount| mount.entry.is_some())
}

/// Returns the mount that contains a path (absolute, no symbolic links).
fn innermost<'a>(table: &'a [AnyMount], path: &Path) -> Option<&'a AnyMount> {
    let around = table.iter().filter(|mount| path.starts_with(&mount.mount_point));
    around.max_by_key(|mount| mount.mount_point.as_os_str().len())
}

/// Resolves the symbolic links of a path (absolute), except below directories that must not be accessed.
fn without_links(path: &Path, is_left: impl Fn(&Path) -> bool) -> io::Result<PathBuf> {
    let parts = |path: &Path| -> Vec<OsString> {
        let wanted = |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
        path.components().filter(wanted).map(|part| part.as_os_str().to_owned()).collect()
    };
    let (mut plain, mut links) = (PathBuf::from("/"), 0);
    let mut rest = VecDeque::from(parts(path));
    while let Some(part) = rest.pop_front() {
        if part == ".." {
            plain.pop();
            continue;
        }
        let next = plain.join(&part);
        if is_left(&next) {
            plain = next;
            continue;
        }
        match fs::read_link(&next) {
            Ok(target) => {
                links += 1;
                if links > LINKS_MAX {
                    return Err(io::Error::from(Errno::LOOP));
                }
                if target.is_absolute() {
                    plain = PathBuf::from("/");
                }
                parts(&target).into_iter().rev().for_each(|part| rest.push_front(part));
            }
            // Not a symbolic link.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => plain = next,
            Err(error) => return Err(error),
        }
    }
    Ok(plain)
}

/// Returns the NacreFS mount that contains `path` (absolute, no symbolic links).
pub fn mount_of(path: &Path) -> io::Result<Option<MountEntry>> {
    let mounts = nacre_mounts()?;
    Ok(mounts
        .into_iter()
        .filter(|mount| path.starts_with(&mount.mount_point))
        .max_by_key(|mount| mount.mount_point.as_os_str().len()))
}

/// Returns the NacreFS mount exactly on `path`: the last one, if several are stacked.
pub fn mounted_on(path: &Path) -> io::Result<Option<MountEntry>> {
    Ok(nacre_mounts()?.into_iter().rfind(|mount| mount.mount_point == path))
}

/// Returns whether a process sees a mount of this device, major and minor number; `None` if that cannot be
/// read.
pub fn has_device(pid: u32, major: u32, minor: u32) -> Option<bool> {
    let table = fs::read(format!("/proc/{pid}/mountinfo")).ok()?;
    let wanted = format!("{major}:{minor}");
    let mut devices = table.split(|&b| b == b'\n').filter_map(|line| line.split(|&b| b == b' ').nth(2));
    Some(devices.any(|device| device == wanted.as_bytes()))
}

/// Returns true if any file system is mounted exactly on `path`.
pub fn is_mount_point(path: &Path) -> io::Result<bool> {
    let table = fs::read("/proc/self/mountinfo")?;
    let mut points = table.split(|&b| b == b'\n').filter_map(|line| line.split(|&b| b == b' ').nth(4));
    Ok(points.any(|point| Path::new(&unescape(point)) == path))
}

/// A mount of any file system.
#[derive(Debug)]
struct AnyMount {
    mount_point: PathBuf,
    /// The entry, if it is a NacreFS mount.
    entry: Option<MountEntry>,
}

/// Parses all lines, in order.
fn parse_all(table: &[u8]) -> Vec<AnyMount> {
    let line = |line: &[u8]| {
        let mount_point = line.split(|&b| b == b' ').nth(4)?;
        Some(AnyMount { mount_point: PathBuf::from(unescape(mount_point)), entry: parse_line(line) })
    };
    table.split(|&b| b == b'\n').filter_map(line).collect()
}

/// Parses lines of `mountinfo`: fields, a lone dash, then type, source and options.
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

/// Decodes blanks, tabs, newlines and backslashes, which are written as three octal digits.
pub(crate) fn unescape(field: &[u8]) -> OsString {
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
    fn links_are_followed_up_to_our_mounts_and_not_in_them() {
        let directory = std::env::temp_dir().join(format!("nacre-mounts-{}", std::process::id()));
        let real = directory.join("real");
        fs::create_dir_all(real.join("mnt")).expect("made");
        let link = |target: &Path, name: &str| {
            std::os::unix::fs::symlink(target, directory.join(name)).expect("linked");
        };
        link(Path::new("real"), "link");
        link(&real.join("mnt"), "absolute");
        link(Path::new("loop"), "loop");
        let top = directory.canonicalize().expect("there");
        let mount = top.join("real/mnt");
        let plain = |path: &str| without_links(&top.join(path), |path| path.starts_with(&mount));
        for (path, expected) in [
            ("link/mnt", "real/mnt"),
            ("link/../link/./mnt/no/such", "real/mnt/no/such"),
            ("absolute/a/../..", "real"),
            ("real", "real"),
        ] {
            assert_eq!(plain(path).expect(path), top.join(expected), "{path}");
        }
        assert_eq!(plain("loop/x").expect_err("a loop").raw_os_error(), Some(Errno::LOOP.raw_os_error()));
        assert_eq!(
            plain("nothing/mnt").expect_err("not there").raw_os_error(),
            Some(Errno::NOENT.raw_os_error())
        );
        fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn what_is_mounted_below_a_mount_of_ours_is_not_ours() {
        let table = parse_all(
            b"25 1 0:22 / / rw - ext4 /dev/vda rw\n\
            40 25 0:39 / /mnt rw - fuse.nacre 127.0.0.1:7990@tcp:/nacre rw\n\
            41 40 0:40 / /mnt/c rw - tmpfs x rw\n\
            42 41 0:41 / /mnt/c/d rw - fuse.nacre 127.0.0.1:7990@tcp:/other rw\n",
        );
        let found = |path: &str| {
            innermost(&table, Path::new(path)).and_then(|mount| mount.entry.as_ref()).map(MountEntry::fsname)
        };
        assert_eq!(
            ["/mnt", "/mnt/cc/x", "/mnt/c/d/e"].map(found),
            [Some("nacre"), Some("nacre"), Some("other")]
        );
        assert_eq!(["/", "/mnt/c", "/mnt/c/x", "/other"].map(found), [None; 4]);
    }

    #[test]
    fn strange_escapes_stay_as_they_are() {
        assert_eq!(unescape(b"a\\134b\\9\\"), OsString::from("a\\b\\9\\"));
        assert_eq!(unescape(b"\\777"), OsString::from("\\777"));
    }
}
