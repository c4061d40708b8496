//! Which process of which host somebody is.

/// A process, told apart from all others that ever ran: so that another process of the same host can say for certain
/// whether it has ended. All zero for one that is not known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ProcessIdentity {
    /// The host over all its boots (`/etc/machine-id`); zero if it has none.
    pub machine: [u8; 16],
    /// The host's running kernel (`boot_id`), another one after each boot; zero if it is not known.
    pub boot: [u8; 16],
    /// Inode numbers of the process's PID namespace (high half) and time namespace (low half), in which the next two are
    /// meant; 0 if they are not known.
    pub namespaces: u64,
    /// Process id.
    pub pid: u32,
    /// When it was started, in clock ticks since the boot: a later process with this id has another one.
    pub started: u64,
}

impl ProcessIdentity {
    /// A number of process `pid` of the same PID namespace that all processes there find alike; 0 if the host or the process
    /// is not known.
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
