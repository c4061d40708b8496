//! Options of a client.

use nacre_types::ClientUuid;

/// Options that a client gets when it starts.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Name of the file system, up to 8 characters.
    pub fsname: String,
    /// Identity of this mount; random.
    pub instance: ClientUuid,
    /// Bytes beyond a sequential read that an OST is asked to have ready, at most. 0 switches the hint off.
    pub read_ahead_bytes_max: u32,
    /// Access times are stored when a file is read for the first time after a change, or after a day
    /// (Linux `relatime`); false: never.
    pub relatime: bool,
}

impl ClientConfig {
    /// Returns the defaults for the file system `fsname` and the mount `instance`.
    pub fn new(fsname: &str, instance: ClientUuid) -> ClientConfig {
        ClientConfig { fsname: fsname.to_owned(), instance, read_ahead_bytes_max: 8 << 20, relatime: true }
    }

    /// Returns which file system is mounted, and which mount this is.
    pub fn mount_info(&self) -> MountInfo {
        let instance = self.instance.0.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        MountInfo { fsname: self.fsname.clone(), instance }
    }
}

/// Which file system is mounted, and which mount this is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountInfo {
    /// Name of the file system.
    pub fsname: String,
    /// Identity of the mount in hexadecimal, as in names like `lov.nacre-clilov-<instance>`.
    pub instance: String,
}
