//! The mount table of this process.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A line of `/proc/self/mountinfo`, with the fields used here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountEntry {
    /// Mount point.
    pub path: PathBuf,
    /// File system type, e.g. `fuse.nacre`.
    pub kind: String,
    /// First column of `mount`.
    pub source: String,
}

impl MountEntry {
    /// Returns the topmost mount on `path`, if it is a mount point.
    pub fn at(path: &Path) -> Option<MountEntry> {
        let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
        table.lines().filter_map(parse_line).rfind(|entry| entry.path == path)
    }
}

/// Parses `36 35 98:0 /root /mnt opts opt:1 - type source superopts`.
fn parse_line(line: &str) -> Option<MountEntry> {
    let (left, right) = line.split_once(" - ")?;
    let path = unescape(left.split(' ').nth(4)?);
    let mut right = right.split(' ');
    let kind = right.next()?.to_owned();
    let source = String::from_utf8_lossy(&unescape(right.next()?)).into_owned();
    Some(MountEntry { path: PathBuf::from(OsString::from_vec(path)), kind, source })
}

/// Decodes the kernel's escapes: backslash and three octal digits.
fn unescape(field: &str) -> Vec<u8> {
    let bytes = field.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let digits = bytes.get(at + 1..at + 4).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(value) if byte == b'\\' => {
                out.push(value);
                at += 4;
            }
            _ => {
                out.push(byte);
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_escapes_is_understood() {
        let line = r"40 29 0:34 / /mnt/a\040b rw,relatime shared:5 - fuse.nacre 0@lo:/nacre rw,user_id=0";
        let entry = parse_line(line).expect("a good line");
        assert_eq!(entry.path, Path::new("/mnt/a b"));
        assert_eq!((entry.kind.as_str(), entry.source.as_str()), ("fuse.nacre", "0@lo:/nacre"));
        assert_eq!(parse_line("nonsense"), None);
        assert_eq!(unescape(r"a\13"), br"a\13");
    }

    #[test]
    fn the_root_is_a_mount_point() {
        assert!(MountEntry::at(Path::new("/")).is_some());
        assert!(MountEntry::at(Path::new("/proc/self/status")).is_none());
    }
}
