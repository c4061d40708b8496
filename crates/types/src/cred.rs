//! Credentials of users.

use bitflags::bitflags;

bitflags! {
    /// Linux capabilities that matter to a file system, by their kernel bit numbers.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Caps: u64 {
        /// May change owners.
        const CHOWN = 1 << 0;
        /// May read, write and search everything, and execute files with any execute bit.
        const DAC_OVERRIDE = 1 << 1;
        /// May read any file and search any directory.
        const DAC_READ_SEARCH = 1 << 2;
        /// Counts as the owner of everything.
        const FOWNER = 1 << 3;
        /// Set-id bits survive changes.
        const FSETID = 1 << 4;
        /// May change the immutable and append-only flags.
        const LINUX_IMMUTABLE = 1 << 9;
        /// May administer: `trusted.*` and `security.*` attributes.
        const SYS_ADMIN = 1 << 21;
        /// May use reserved space.
        const SYS_RESOURCE = 1 << 24;
        /// May create device files.
        const MKNOD = 1 << 27;
        /// May set file capabilities.
        const SETFCAP = 1 << 31;
    }
}

/// The part of a caller's credentials that has to be read from `/proc`; fetched only when it decides.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FullCred {
    /// Supplementary groups, at most [`crate::limits::GROUPS_MAX`].
    pub groups: Vec<u32>,
    /// Effective capabilities.
    pub caps: Caps,
}

/// A user's entry in the user database of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    /// Primary group id.
    pub gid: u32,
    /// Ids of all groups, at most [`crate::limits::GROUPS_MAX`].
    pub groups: Vec<u32>,
}

impl User {
    /// True if the user is in the group.
    pub fn has(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// Credentials of the caller of one request.
///
/// `full` is `None` at first: owner and primary group nearly always decide. When they do not, the server
/// answers [`crate::Status::NEED_CREDENTIALS`] and the client repeats the request with groups and
/// capabilities.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cred {
    /// File system user id.
    pub uid: u32,
    /// File system group id.
    pub gid: u32,
    /// Groups and capabilities, if they were fetched.
    pub full: Option<FullCred>,
}

impl Cred {
    /// Returns the credentials of the system itself: root with all capabilities, for internal work.
    pub fn system() -> Cred {
        Cred { uid: 0, gid: 0, full: Some(FullCred { groups: Vec::new(), caps: Caps::all() }) }
    }

    /// Creates credentials without groups and capabilities.
    pub fn new(uid: u32, gid: u32) -> Cred {
        Cred { uid, gid, full: None }
    }
}
