//! Identities of processes.

/// Identity of a process that no other process ever has: so another process of the same host can determine
/// reliably whether it has ended. All zero if unknown.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ProcessIdentity {
    /// Host over all its boots (`/etc/machine-id`); zero if it has none.
    pub machine: [u8; 16],
    /// Boot of the host's kernel (`boot_id`), new at each boot; zero if unknown.
    pub boot: [u8; 16],
    /// Inode numbers of the process's PID namespace (high half) and time namespace (low half), to which the
    /// next two fields relate; 0 if unknown.
    pub namespaces: u64,
    /// Process id.
    pub pid: u32,
    /// Start time, in clock ticks since the boot: a later process with this id has another one.
    pub started: u64,
}

impl ProcessIdentity {
    /// Returns a number for process `pid` of the same PID namespace that is the same on all mounts there; 0
    /// if the host or the process is unknown.
    pub fn number_of(&self, pid: u32) -> u64 {
        if self.boot == [0; 16] || pid == 0 {
            return 0;
        }
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&self.boot);
        bytes[16..20].copy_from_slice(&((self.namespaces >> 32) as u32).to_le_bytes());
        bytes[20..].copy_from_slice(&pid.to_le_bytes());
        xxhash_rust::xxh3::xxh3_64(&bytes).max(1)
    }

    /// True if both run, or ran, under the same boot of the same host.
    pub fn shares_boot(&self, other: &ProcessIdentity) -> bool {
        self.boot == other.boot && self.boot != [0; 16]
    }
}
