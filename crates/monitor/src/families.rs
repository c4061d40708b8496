//! The families of metrics: names, meanings, labels. `docs/operations/metrics.md` lists them for users.

/// Kind of a family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Grows until the process ends; its name gets the suffix `_total` in the text.
    Counter,
    /// Rises and falls.
    Gauge,
    /// Times in seconds.
    Times,
}

/// Metrics with one name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Family {
    /// Name, without the suffix `_total` of counters.
    pub name: &'static str,
    /// Kind of its values.
    pub kind: Kind,
    /// Labels of each row, after `process`.
    pub labels: &'static [&'static str],
    /// Meaning, one sentence without its full stop.
    pub help: &'static str,
}

const fn family(
    name: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
    help: &'static str,
) -> Family {
    Family { name, kind, labels, help }
}

use Kind::{Counter, Gauge, Times};

const TARGET: &[&str] = &["target"];
const MOUNT: &[&str] = &["mount"];
const OWNER: &[&str] = &["kind", "id"];

/// All families, in the order of the text.
pub const FAMILIES: &[Family] = &[
    // Processes.
    family("nacre_build_info", Gauge, &["version"], "Version of the program; the value is 1"),
    family(
        "nacre_process_up",
        Gauge,
        &[],
        "1 if the process answers, 0 if it should run and does not answer",
    ),
    family("nacre_process_uptime_seconds", Gauge, &[], "Time since the start of the process"),
    family("nacre_process_resident_memory_bytes", Gauge, &[], "Memory of the process"),
    family("nacre_process_threads", Gauge, &[], "Threads of the process"),
    family("nacre_process_open_files", Gauge, &[], "Open file descriptors of the process"),
    family("nacre_process_cpu_seconds", Counter, &[], "CPU time of the process"),
    family(
        "nacre_frames_damaged",
        Counter,
        &[],
        "Frames over the network with a wrong checksum, which were resent",
    ),
    family("nacre_key_expires_timestamp_seconds", Gauge, &[], "End of validity of the key of the process"),
    family("nacre_log_messages", Counter, &["level"], "Messages in the log of the process"),
    // Targets.
    family("nacre_target_up", Gauge, TARGET, "1 if the process of the target answers"),
    family("nacre_target_healthy", Gauge, TARGET, "0 if the target loses new changes, or may"),
    family("nacre_target_recovering", Gauge, TARGET, "1 while clients of the previous run reconnect"),
    family("nacre_target_clients", Gauge, TARGET, "Connected clients, servers among them"),
    family("nacre_target_size_bytes", Gauge, TARGET, "Size of the target"),
    family("nacre_target_free_bytes", Gauge, TARGET, "Free space, including what is reserved for root"),
    family("nacre_target_available_bytes", Gauge, TARGET, "Free space for ordinary users"),
    family("nacre_target_inodes", Gauge, TARGET, "Inodes or objects, used and free"),
    family("nacre_target_inodes_free", Gauge, TARGET, "Inodes or objects that can be created"),
    family("nacre_target_requests_in_progress", Gauge, TARGET, "Requests that the target works on"),
    family(
        "nacre_request_duration_seconds",
        Times,
        &["target", "operation"],
        "Time of requests in the target, with Lustre's names of requests",
    ),
    family("nacre_request_failures", Counter, TARGET, "Requests that an OST failed"),
    family(
        "nacre_ost_transferred_bytes",
        Counter,
        &["target", "direction"],
        "Data that clients read from or wrote to an OST",
    ),
    family(
        "nacre_mdt_operations",
        Counter,
        &["target", "operation"],
        "Successful metadata operations, with Lustre's names of md_stats",
    ),
    family("nacre_pool_member", Gauge, &["pool", "target"], "1 for each OST of a pool"),
    // Locks of targets.
    family("nacre_locks", Gauge, TARGET, "Locks and lock requests"),
    family("nacre_lock_resources", Gauge, TARGET, "Objects or inodes with locks"),
    family("nacre_lock_waiters", Gauge, TARGET, "Operations of the MDT that wait for a lock"),
    family("nacre_lock_grants", Counter, TARGET, "Locks granted, at once or after waiting"),
    family("nacre_lock_waits", Counter, TARGET, "Lock requests that had to wait"),
    family("nacre_lock_callbacks", Counter, TARGET, "Blocking callbacks to clients"),
    family("nacre_lock_glimpses", Counter, TARGET, "Glimpse callbacks to clients"),
    family("nacre_lock_cancels", Counter, TARGET, "Requests in which clients released locks"),
    family("nacre_evictions", Counter, TARGET, "Clients evicted because they missed a deadline"),
    // Stores of objects.
    family("nacre_ost_granted_bytes", Gauge, TARGET, "Space granted to clients for data that they hold back"),
    family("nacre_store_objects", Gauge, TARGET, "Objects"),
    family(
        "nacre_store_reads_waited",
        Counter,
        TARGET,
        "Reads that waited for the medium: misses of the page cache",
    ),
    family("nacre_store_refused_full", Counter, TARGET, "Writes refused because only the reserve was left"),
    family("nacre_store_sync_failures", Counter, TARGET, "Syncs that failed"),
    family("nacre_store_checksum_errors", Counter, TARGET, "Blocks whose checksum did not match"),
    family("nacre_check_problems", Gauge, TARGET, "Damage that the check in use has found and not repaired"),
    family("nacre_check_passes", Counter, TARGET, "Walks that the check in use has completed"),
    family("nacre_store_scrubbed_bytes", Counter, TARGET, "Data that the scrub has read"),
    family("nacre_store_defragmented_bytes", Counter, TARGET, "Data that defragmentation has moved"),
    family(
        "nacre_device_transferred_bytes",
        Counter,
        &["target", "direction"],
        "Data read from or written to the device of a target",
    ),
    family("nacre_device_flushes", Counter, TARGET, "Flushes of the device of a target"),
    // Caches of small writes.
    family("nacre_write_cache_size_bytes", Gauge, TARGET, "Size of the cache of small writes"),
    family("nacre_write_cache_used_bytes", Gauge, TARGET, "Space of the cache in use"),
    family("nacre_write_cache_dirty_bytes", Gauge, TARGET, "Data that only the cache has"),
    family(
        "nacre_write_cache_reads",
        Counter,
        &["target", "result"],
        "Reads by what the cache had: hit (all), part or miss",
    ),
    family(
        "nacre_write_cache_writes",
        Counter,
        &["target", "result"],
        "Writes by their way: cached, or past the cache (large, stream, full, other)",
    ),
    family("nacre_write_cache_flushed_bytes", Counter, TARGET, "Data written back from the cache"),
    family(
        "nacre_write_cache_failures",
        Counter,
        TARGET,
        "Failed rounds of write-back, and failed flushes of the cache",
    ),
    // Mounts.
    family(
        "nacre_mount_operation_duration_seconds",
        Times,
        &["mount", "operation"],
        "Time of the requests of programs in the mount, with Lustre's names of llite stats",
    ),
    family(
        "nacre_mount_transferred_bytes",
        Counter,
        &["mount", "direction"],
        "Data that programs read or wrote",
    ),
    family("nacre_mount_dirty_bytes", Gauge, MOUNT, "Held-back data that was not sent yet"),
    family("nacre_mount_write_back_waits", Counter, MOUNT, "Writes that waited for memory or a grant"),
    family("nacre_mount_write_back_failures", Counter, MOUNT, "Windows of held-back data that were lost"),
    family(
        "nacre_mount_lock_requests",
        Counter,
        &["mount", "result"],
        "Uses of locks: cached, or enqueued at a target",
    ),
    family("nacre_mount_locks", Gauge, MOUNT, "Locks that the mount holds"),
    family(
        "nacre_mount_read_ahead_pages",
        Counter,
        &["mount", "result"],
        "Pages read, by what read-ahead had: hit or miss",
    ),
    family(
        "nacre_connection_up",
        Gauge,
        &["mount", "target"],
        "1 if the connection of the mount to the target works",
    ),
    family(
        "nacre_connection_requests_in_flight",
        Gauge,
        &["mount", "target"],
        "Requests of the mount that wait for the target",
    ),
    family(
        "nacre_connection_resends",
        Counter,
        &["mount", "target"],
        "Requests sent again after a lost connection",
    ),
    family(
        "nacre_connection_recoveries",
        Counter,
        &["mount", "target"],
        "Restarts or evictions by the target that the mount saw",
    ),
    // Jobs.
    family(
        "nacre_job_operations",
        Counter,
        &["jobid", "operation"],
        "Requests of a job by kind: metadata, read, write or object",
    ),
    family("nacre_job_transferred_bytes", Counter, &["jobid", "direction"], "Data that a job read or wrote"),
    // Owners.
    family("nacre_owner_used_bytes", Gauge, OWNER, "Space that files of the owner use"),
    family("nacre_owner_soft_limit_bytes", Gauge, OWNER, "Soft limit of the owner's space"),
    family("nacre_owner_hard_limit_bytes", Gauge, OWNER, "Hard limit of the owner's space"),
    family("nacre_owner_inodes", Gauge, OWNER, "Inodes of the owner"),
    family("nacre_owner_soft_limit_inodes", Gauge, OWNER, "Soft limit of the owner's inodes"),
    family("nacre_owner_hard_limit_inodes", Gauge, OWNER, "Hard limit of the owner's inodes"),
    family(
        "nacre_owner_grace_ends_timestamp_seconds",
        Gauge,
        &["kind", "id", "resource"],
        "Time from which on the soft limit that the owner exceeds acts as a hard one: bytes or inodes",
    ),
    // The gathering itself.
    family("nacre_gather_duration_seconds", Gauge, &[], "Time to gather these figures from all processes"),
];

/// Returns the family with this name.
pub fn find(name: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_follow_the_conventions_of_prometheus() {
        for (index, family) in FAMILIES.iter().enumerate() {
            assert!(!FAMILIES[..index].iter().any(|other| other.name == family.name), "{}", family.name);
            assert!(family.name.starts_with("nacre_") && !family.name.ends_with("_total"), "{}", family.name);
            assert!(!family.help.ends_with('.') && !family.help.is_empty(), "{}", family.name);
            assert_eq!(
                family.kind == Kind::Times,
                family.name.ends_with("_duration_seconds") && family.labels.len() == 2,
                "{}",
                family.name
            );
        }
    }

    #[test]
    fn the_documentation_has_every_family_and_no_other() {
        let text = include_str!("../../../docs/operations/metrics.md");
        let rows = text.lines().filter_map(|line| line.strip_prefix("| `nacre_")?.split('`').next());
        let mut documented: Vec<String> = rows.map(|name| format!("nacre_{name}")).collect();
        let suffix = |family: &Family| if family.kind == Kind::Counter { "_total" } else { "" };
        let mut known: Vec<String> =
            FAMILIES.iter().map(|family| format!("{}{}", family.name, suffix(family))).collect();
        documented.sort();
        known.sort();
        assert_eq!(documented, known);
    }
}
