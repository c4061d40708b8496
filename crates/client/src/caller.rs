//! Who asks, and what can be found out about them.

use nacre_types::limits::GROUPS_MAX;
use nacre_types::{Caps, Cred, FullCred};
use std::path::Path;

/// The program on whose behalf an operation runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    /// File system user id.
    pub uid: u32,
    /// File system group id.
    pub gid: u32,
    /// Thread id, 0 if it has none here (kernel threads, foreign pid namespaces).
    pub pid: u32,
}

impl Caller {
    /// Credentials as far as they are known without looking anything up.
    pub fn cred(&self) -> Cred {
        Cred::new(self.uid, self.gid)
    }

    /// Credentials with groups and capabilities as they are now. Nothing is kept: a program may change them at any
    /// time, and a stale copy would be a hole.
    ///
    /// A caller that cannot be looked at has no groups; root among them keeps its capabilities, as the kernel's own
    /// threads need them.
    pub fn full_cred(&self) -> Cred {
        let full = if self.pid == 0 { None } else { read_process(self.pid) };
        let full = full.unwrap_or_else(|| FullCred {
            groups: Vec::new(),
            caps: if self.uid == 0 && self.pid == 0 { Caps::all() } else { Caps::empty() },
        });
        Cred { uid: self.uid, gid: self.gid, full: Some(full) }
    }
}

fn read_process(pid: u32) -> Option<FullCred> {
    let status = std::fs::read(format!("/proc/{pid}/status")).ok()?;
    let mut full = parse_status(&status);
    // Capabilities count only in the user namespace they were given in; inside a namespace of its own anybody has all.
    let theirs = std::fs::read_link(format!("/proc/{pid}/ns/user")).ok();
    let ours = std::fs::read_link(Path::new("/proc/self/ns/user")).ok();
    if theirs != ours {
        full.caps = Caps::empty();
    }
    Some(full)
}

/// Reads the lines `Groups:` and `CapEff:` of a `/proc/<pid>/status`; what is missing or damaged counts as empty.
fn parse_status(status: &[u8]) -> FullCred {
    let mut full = FullCred::default();
    for line in status.split(|&byte| byte == b'\n') {
        if let Some(list) = line.strip_prefix(b"Groups:") {
            let words = list.split(|byte| byte.is_ascii_whitespace());
            full.groups = words.filter_map(number).take(GROUPS_MAX).collect();
        } else if let Some(hex) = line.strip_prefix(b"CapEff:") {
            let text = std::str::from_utf8(hex).unwrap_or_default().trim();
            full.caps = Caps::from_bits_truncate(u64::from_str_radix(text, 16).unwrap_or(0));
            break;
        }
    }
    full
}

fn number(word: &[u8]) -> Option<u32> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_capabilities_are_read_from_the_status_file() {
        let text =
            b"Name:\tsh\nGroups:\t4 20 1000 \nNSpid:\t1\nCapPrm:\t00\nCapEff:\t000001ffffffffff\nX:\t1\n";
        let full = parse_status(text);
        assert_eq!(full.groups, vec![4, 20, 1000]);
        assert!(full.caps.contains(Caps::DAC_OVERRIDE));
        assert_eq!(parse_status(b"CapEff:\tzz\nGroups: x"), FullCred::default());
    }

    #[test]
    fn the_callers_own_thread_can_be_looked_at() {
        let own = Caller { uid: 0, gid: 0, pid: std::process::id() };
        assert!(own.full_cred().full.is_some());
        let gone = Caller { uid: 0, gid: 0, pid: u32::MAX - 1 };
        assert_eq!(gone.full_cred().full, Some(FullCred::default()), "a vanished caller has no rights left");
    }
}
