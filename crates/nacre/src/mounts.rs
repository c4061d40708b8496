//! The kernel's mount table: which NacreFS file systems are mounted, and where.

use nacre_env::sync::mpsc;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

/// File system type of our mounts.
pub const FS_TYPE: &str = "fuse.nacre";

/// How long the servers of a mount are waited for to follow symbolic links in it.
const PATIENCE: Duration = Duration::from_secs(2);
/// Symbolic links on a path, as the kernel follows at most.
const LINKS_MAX: usize = 40;

/// One mount of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// `NID[:NID..]:/FSNAME[/DIRECTORY]`.
    pub source: String,
    /// Where it is mounted.
    pub mount_point: PathBuf,
}

impl MountEntry {
    /// The file system's name: what follows the first `:/` of the source.
    pub fn fsname(&self) -> &str {
        let below = self.source.split_once(":/").map_or("", |(_, below)| below);
        below.split('/').next().unwrap_or_default()
    }
}

/// True if `path` is a mount whose daemon has died. If it is just dying, its end is waited for.
pub fn is_dead_mount_point(path: &Path) -> bool {
    // Not stat(2): the kernel answers that from its cache even when nobody serves the mount any more.
    rustix::fs::statfs(path).err().is_some_and(says_dead)
}

/// Is this what the kernel says of a mount whose daemon is dead? One that dies while it is asked breaks the connection
/// off, and while its queues of io_uring are taken apart requests are cancelled; both have errors of their own.
pub fn says_dead(errno: Errno) -> bool {
    matches!(errno, Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED)
}

/// All NacreFS mounts that this process can see, in the order in which they were mounted.
///
/// # Errors
/// If `/proc` is not there.
pub fn nacre_mounts() -> io::Result<Vec<MountEntry>> {
    Ok(parse(&fs::read("/proc/self/mountinfo")?))
}

/// The NacreFS mount that a path lies in, all symbolic links followed; `None` if it is in none, or on something that is mounted
/// below. Of a mount nothing is asked to find the mount itself. What lies deeper is looked for in it; while that is waited for in vain,
/// the path counts as it is written.
///
/// # Errors
/// Those of looking at what is not there or may not be looked at; of reading the mount table.
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
    // It ends with this process, as it may never get an answer.
    nacre_env::thread::Builder::new().spawn(move || sender.send(written.canonicalize()))?;
    let real = match found.recv_timeout(PATIENCE) {
        Ok(real) => real?,
        Err(_) => plain,
    };
    Ok(innermost(&table, &real).and_then(|mount| mount.entry.clone()))
}

/// Whether a path (absolute) is `mount_point`, a mount of ours, when symbolic links are followed; the mount is not asked.
pub fn is_same_place(path: &Path, mount_point: &Path) -> bool {
    let plain = |table: &[AnyMount]| without_links(path, |path| is_ours(table, path)).ok();
    let table = fs::read("/proc/self/mountinfo").map(|table| parse_all(&table)).unwrap_or_default();
    plain(&table).is_some_and(|plain| plain == mount_point)
}

fn is_ours(table: &[AnyMount], path: &Path) -> bool {
    innermost(table, path).is_some_and(|mount| mount.entry.is_some())
}

/// What is mounted where a path (absolute, no symbolic links) lies.
fn innermost<'a>(table: &'a [AnyMount], path: &Path) -> Option<&'a AnyMount> {
    let around = table.iter().filter(|mount| path.starts_with(&mount.mount_point));
    around.max_by_key(|mount| mount.mount_point.as_os_str().len())
}

/// A path (absolute) with symbolic links replaced by where they lead, but for what lies in places that are not to be asked.
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
            // It is no link.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => plain = next,
            Err(error) => return Err(error),
        }
    }
    Ok(plain)
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

/// Whether a process sees a mount of this device, major and minor number; `None` if that cannot be read.
pub fn has_device(pid: u32, major: u32, minor: u32) -> Option<bool> {
    let table = fs::read(format!("/proc/{pid}/mountinfo")).ok()?;
    let wanted = format!("{major}:{minor}");
    let mut devices = table.split(|&b| b == b'\n').filter_map(|line| line.split(|&b| b == b' ').nth(2));
    Some(devices.any(|device| device == wanted.as_bytes()))
}

/// True if anything at all is mounted exactly on `path`.
pub fn is_mount_point(path: &Path) -> io::Result<bool> {
    let table = fs::read("/proc/self/mountinfo")?;
    let mut points = table.split(|&b| b == b'\n').filter_map(|line| line.split(|&b| b == b' ').nth(4));
    Ok(points.any(|point| Path::new(&unescape(point)) == path))
}

/// A mount of any kind.
#[derive(Debug)]
struct AnyMount {
    mount_point: PathBuf,
    /// If it is ours.
    entry: Option<MountEntry>,
}

/// All lines, in order.
fn parse_all(table: &[u8]) -> Vec<AnyMount> {
    let line = |line: &[u8]| {
        let mount_point = line.split(|&b| b == b' ').nth(4)?;
        Some(AnyMount { mount_point: PathBuf::from(unescape(mount_point)), entry: parse_line(line) })
    };
    table.split(|&b| b == b'\n').filter_map(line).collect()
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
