//! The mount table.

use rustix::mount::{MountFlags, UnmountFlags};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A line of the mount table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Device number, `MAJOR:MINOR`; the minor number is the number of a FUSE connection.
    pub device: String,
    /// Mount point.
    pub point: PathBuf,
    /// File system type, e.g. `fuse.nacre`.
    pub kind: String,
    /// Mounted source, e.g. `0@lo:/nacre`.
    pub source: String,
    /// Options of the mount and of the file system, e.g. `rw`, `nosuid`.
    pub options: Vec<String>,
}

/// Returns all mounts in this process's namespace, in the order of their creation.
///
/// # Panics
///
/// Without /proc.
pub fn all() -> Vec<Entry> {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted");
    table.lines().filter_map(parse).collect()
}

/// Returns the topmost mount on `point`, if there is one.
pub fn at(point: &Path) -> Option<Entry> {
    all().into_iter().rfind(|entry| entry.point == point)
}

/// Returns the mounts on `directory` or below.
pub fn below(directory: &Path) -> Vec<Entry> {
    all().into_iter().filter(|entry| entry.point.starts_with(directory)).collect()
}

/// Detaches a mount at once, even if it is in use.
///
/// # Errors
///
/// EINVAL if nothing is mounted there; EPERM without privilege.
pub fn detach(point: &Path) -> io::Result<()> {
    Ok(rustix::mount::unmount(point, UnmountFlags::DETACH)?)
}

/// Aborts FUSE connections, as if their servers had closed them: every request on them fails, which ends the
/// wait of processes that cannot be killed otherwise. `scratch` is an existing empty directory. Has no effect
/// unless run by root.
pub fn abort(entries: &[Entry], scratch: &Path) {
    if rustix::mount::mount("none", scratch, "fusectl", MountFlags::empty(), None).is_err() {
        return;
    }
    for entry in entries.iter().filter(|entry| entry.kind.starts_with("fuse.")) {
        let connection = entry.device.rsplit(':').next().unwrap_or_default();
        // A connection that has ended already is not an error.
        let _ = fs::write(scratch.join(connection).join("abort"), "1");
    }
    let _ = detach(scratch);
}

/// Parses a line: `36 35 98:0 /root /point rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn parse(line: &str) -> Option<Entry> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut words = mount.split(' ').skip(2);
    let device = words.next()?.to_owned();
    let mut words = words.skip(1);
    let point = unescape(words.next()?);
    let mount_options = words.next()?;
    let mut words = file_system.split(' ');
    let kind = words.next()?.to_owned();
    let source = unescape(words.next()?).to_string_lossy().into_owned();
    let options = mount_options.split(',').chain(words.next()?.split(',')).map(str::to_owned).collect();
    Some(Entry { device, point, kind, source, options })
}

/// Decodes blanks, tabs, newlines and backslashes, which are a backslash and three octal digits.
fn unescape(word: &str) -> PathBuf {
    let bytes = word.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&byte, tail)) = rest.split_first() {
        let code = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(escaped) if byte == b'\\' => {
                plain.push(escaped);
                rest = &tail[3..];
            }
            _ => {
                plain.push(byte);
                rest = tail;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_mount_table_are_understood() {
        let line =
            r"36 35 0:44 / /mnt/with\040blank rw,nosuid shared:1 - fuse.nacre 0@lo:/nacre rw,user_id=0";
        let entry = parse(line).expect("a line as the kernel writes it");
        assert_eq!((entry.point.as_path(), entry.device.as_str()), (Path::new("/mnt/with blank"), "0:44"));
        assert_eq!((entry.kind.as_str(), entry.source.as_str()), ("fuse.nacre", "0@lo:/nacre"));
        assert!(
            entry.options.contains(&"nosuid".to_owned()) && entry.options.contains(&"user_id=0".to_owned())
        );
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(at(Path::new("/")).is_some());
        assert!(at(Path::new("/no/such/place")).is_none());
        assert!(detach(Path::new("/no/such/place")).is_err());
    }
}
