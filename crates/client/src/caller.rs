//! The caller of an operation, and its credentials.

use nacre_types::limits::GROUPS_MAX;
use nacre_types::{Caps, Cred, FullCred};

/// The program on whose behalf an operation runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    /// File system user id.
    pub uid: u32,
    /// File system group id.
    pub gid: u32,
    /// Thread id; 0 if the thread has none in the pid namespace of this process.
    pub pid: u32,
}

impl Caller {
    /// Returns the credentials that are known without reading `/proc`.
    pub fn cred(&self) -> Cred {
        Cred::new(self.uid, self.gid)
    }

    /// Returns credentials with the current groups and capabilities. They are not cached: a program may
    /// change them at any time, and a stale copy would be a security hole.
    ///
    /// A caller whose `/proc` entry cannot be read (it has ended, or it runs in a pid namespace that this
    /// process cannot see) has no groups and no capabilities, whatever its user: user 0 may have dropped
    /// them, or have them only in a user namespace of its own. Such a caller has the rights of an owner and
    /// those that everybody has.
    pub fn full_cred(&self) -> Cred {
        let full = if self.pid == 0 { None } else { read_process(self) };
        let full = full.unwrap_or_default();
        Cred { uid: self.uid, gid: self.gid, full: Some(full) }
    }

    /// True if the caller may read and search everything, and so may learn where a FID is.
    pub fn may_search_all(&self) -> bool {
        let full = self.full_cred().full.unwrap_or_default();
        full.caps.contains(Caps::DAC_READ_SEARCH)
    }
}

fn read_process(caller: &Caller) -> Option<FullCred> {
    let pid = caller.pid;
    let status = ProcessStatus::parse(&std::fs::read(format!("/proc/{pid}/status")).ok()?);
    // Capabilities count only in the user namespace they were given in; in a user namespace of its own any
    // user has all.
    let theirs = std::fs::read_link(format!("/proc/{pid}/ns/user"));
    let ours = std::fs::read_link("/proc/self/ns/user");
    let caps = match (theirs, ours) {
        (Ok(theirs), Ok(ours)) if theirs == ours => status.caps_as(caller.uid),
        _ => Caps::empty(),
    };
    Some(FullCred { groups: status.groups, caps })
}

/// Credentials in `/proc/<pid>/status` of a thread.
#[derive(Debug, Default, PartialEq, Eq)]
struct ProcessStatus {
    /// User id for file system access.
    fs_uid: Option<u32>,
    groups: Vec<u32>,
    permitted: Caps,
    effective: Caps,
}

impl ProcessStatus {
    /// Parses the file; missing or damaged lines count as empty.
    fn parse(status: &[u8]) -> ProcessStatus {
        let mut parsed = ProcessStatus::default();
        for line in status.split(|&byte| byte == b'\n') {
            if let Some(list) = line.strip_prefix(b"Uid:") {
                parsed.fs_uid = numbers(list).nth(3);
            } else if let Some(list) = line.strip_prefix(b"Groups:") {
                parsed.groups = numbers(list).take(GROUPS_MAX).collect();
            } else if let Some(hex) = line.strip_prefix(b"CapPrm:") {
                parsed.permitted = caps(hex);
            } else if let Some(hex) = line.strip_prefix(b"CapEff:") {
                parsed.effective = caps(hex);
                break;
            }
        }
        parsed
    }

    /// Returns the capabilities of the thread when it acts for `uid`. That differs from its own user during
    /// access(2), which checks for the real user: root then has all permitted capabilities, any other user
    /// none.
    fn caps_as(&self, uid: u32) -> Caps {
        match self.fs_uid {
            Some(own) if own == uid => self.effective,
            _ if uid == 0 => self.permitted,
            _ => Caps::empty(),
        }
    }
}

fn caps(hex: &[u8]) -> Caps {
    let text = std::str::from_utf8(hex).unwrap_or_default().trim();
    Caps::from_bits_truncate(u64::from_str_radix(text, 16).unwrap_or(0))
}

fn numbers(list: &[u8]) -> impl Iterator<Item = u32> + '_ {
    list.split(|byte| byte.is_ascii_whitespace()).filter_map(number)
}

fn number(word: &[u8]) -> Option<u32> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_capabilities_are_read_from_the_status_file() {
        let text = b"Name:\tsh\nUid:\t1\t2\t3\t1000\nGid:\t5\t6\t7\t8\nGroups:\t4 20 1000 \nNSpid:\t1\nCapPrm:\t02\n\
            CapEff:\t000001ffffffffff\nX:\t1\n";
        let status = ProcessStatus::parse(text);
        assert_eq!(status.groups, vec![4, 20, 1000]);
        assert_eq!((status.fs_uid, status.permitted), (Some(1000), Caps::DAC_OVERRIDE));
        assert!(status.caps_as(1000).contains(Caps::DAC_OVERRIDE));
        assert_eq!(ProcessStatus::parse(b"CapEff:\tzz\nGroups: x\nUid: 4"), ProcessStatus::default());
    }

    #[test]
    fn access_is_asked_in_the_name_of_the_real_user() {
        let set_uid_root = ProcessStatus {
            fs_uid: Some(0),
            permitted: Caps::all(),
            effective: Caps::all(),
            groups: Vec::new(),
        };
        assert_eq!(set_uid_root.caps_as(1000), Caps::empty(), "root by a set-id bit, asking for the user");
        assert_eq!(set_uid_root.caps_as(0), Caps::all());
        let root_as_user =
            ProcessStatus { fs_uid: Some(500), permitted: Caps::all(), ..ProcessStatus::default() };
        assert_eq!(root_as_user.caps_as(0), Caps::all(), "root that has put its rights away for a while");
        assert_eq!(root_as_user.caps_as(500), Caps::empty());
    }

    #[test]
    fn the_callers_own_thread_can_be_looked_at() {
        let own = Caller { uid: 0, gid: 0, pid: std::process::id() };
        assert!(own.full_cred().full.is_some());
        let foreign = Caller { uid: 0, gid: 0, pid: 0 };
        assert_eq!(foreign.full_cred().full, Some(FullCred::default()), "nothing that cannot be verified");
        let gone = Caller { uid: 0, gid: 0, pid: u32::MAX - 1 };
        assert_eq!(gone.full_cred().full, Some(FullCred::default()), "a vanished caller has no rights left");
    }
}
