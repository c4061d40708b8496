//! Figures of targets.

use nacre_dlm::LockService;
use nacre_mds::Mds;
use nacre_monitor::{Sample, Times};
use nacre_oss::{ObjectServer, Operation};
use nacre_params::EventStats;
use nacre_rpc::OssService;
use nacre_store::object::block::Core;
use nacre_store::object::nxd::Nxd;
use nacre_types::QuotaKind;
use nacre_wire::mds::Statfs;
use nacre_wire::quota::QuotaState;

/// Adds the figures of an OST.
pub fn put_ost(sample: &mut Sample, target: &str, server: &ObjectServer) {
    if let Ok(space) = server.space() {
        put_space(sample, target, &space);
    }
    let store = server.store().stats();
    sample.put("nacre_target_healthy", &[target], f64::from(store.sync_failures == 0));
    sample.put("nacre_target_clients", &[target], server.locks().exports().len() as f64);
    sample.put("nacre_target_requests_in_progress", &[target], server.requests_in_progress() as f64);
    put_times(sample, "nacre_request_duration_seconds", target, server.services());
    let failed: u64 = Operation::ALL.iter().map(|operation| server.failed(*operation)).sum();
    sample.put("nacre_request_failures", &[target], failed as f64);
    for (direction, operation) in [("read", Operation::Read), ("write", Operation::Write)] {
        let bytes = server.stats().row(operation as usize).sum;
        sample.put_kind("nacre_ost_transferred_bytes", target, direction, bytes as f64);
    }
    put_locks(sample, target, server.locks());
    let counts = [
        ("nacre_ost_granted_bytes", server.granted_bytes()),
        ("nacre_store_objects", store.objects),
        ("nacre_store_reads_waited", store.reads_waited),
        ("nacre_store_refused_full", store.refused_full),
        ("nacre_store_sync_failures", store.sync_failures),
        ("nacre_store_checksum_errors", store.checksum_errors),
        ("nacre_store_scrubbed_bytes", store.scrubbed_bytes),
    ];
    put_all(sample, target, &counts);
    if let Some(scrub) = server.scrub().map(|scrub| scrub.status()) {
        put_check(sample, target, scrub.damaged.max(scrub.last_damaged), scrub.passes);
    }
    let abilities = server.store().abilities();
    if let Some(device) = abilities.device_store {
        put_device(sample, target, device);
    }
    if let Some(cache) = abilities.small_write_cache {
        put_cache(sample, target, cache);
    }
}

/// Adds the figures of the largest owners.
fn put_owners(sample: &mut Sample, mds: &Mds) {
    for state in mds.largest_owners() {
        let kind = match state.id.kind {
            QuotaKind::User => "user",
            QuotaKind::Group => "group",
            QuotaKind::Project => "project",
        };
        let id = state.id.id.to_string();
        let QuotaState { space, inodes, .. } = state;
        sample.put("nacre_owner_used_bytes", &[kind, &id], space.used as f64);
        sample.put("nacre_owner_inodes", &[kind, &id], inodes.used as f64);
        for (name, limit) in [
            ("nacre_owner_soft_limit_bytes", space.limits.soft),
            ("nacre_owner_hard_limit_bytes", space.limits.hard),
            ("nacre_owner_soft_limit_inodes", inodes.limits.soft),
            ("nacre_owner_hard_limit_inodes", inodes.limits.hard),
        ] {
            if limit != 0 {
                sample.put(name, &[kind, &id], limit as f64);
            }
        }
        for (resource, ends_s) in [("bytes", space.grace_ends_s), ("inodes", inodes.grace_ends_s)] {
            // The largest time stands for none: the soft limit is only reported.
            if ends_s != 0 && ends_s != u64::MAX {
                let labels = [kind, &id, resource];
                sample.put("nacre_owner_grace_ends_timestamp_seconds", &labels, ends_s as f64);
            }
        }
    }
}

/// Adds the figures of an MDT.
pub fn put_mdt(sample: &mut Sample, target: &str, mds: &Mds) {
    put_space(sample, target, &mds.statfs());
    sample.put("nacre_target_healthy", &[target], f64::from(!mds.has_failed()));
    sample.put("nacre_target_clients", &[target], mds.mdlocks.exports().len() as f64);
    put_times(sample, "nacre_request_duration_seconds", target, mds.stats.services());
    let operations = mds.stats.operations();
    for (index, event) in operations.events().iter().enumerate() {
        let count = operations.row(index).samples;
        if count > 0 {
            sample.put_kind("nacre_mdt_operations", target, event.name, count as f64);
        }
    }
    put_locks(sample, target, &mds.mdlocks);
    put_owners(sample, mds);
    let check = mds.scrub.status();
    put_check(sample, target, check.left(), check.passes);
    sample.put("nacre_lock_waiters", &[target], mds.lock_waiters() as f64);
}

fn put_check(sample: &mut Sample, target: &str, problems: u64, passes: u64) {
    put_all(sample, target, &[("nacre_check_problems", problems), ("nacre_check_passes", passes)]);
}

fn put_all(sample: &mut Sample, target: &str, counts: &[(&'static str, u64)]) {
    counts.iter().for_each(|(name, count)| sample.put(name, &[target], *count as f64));
}

fn put_space(sample: &mut Sample, target: &str, space: &Statfs) {
    let bytes = |blocks: u64| blocks as f64 * f64::from(space.block_size);
    for (name, value) in [
        ("nacre_target_size_bytes", bytes(space.blocks)),
        ("nacre_target_free_bytes", bytes(space.blocks_free)),
        ("nacre_target_available_bytes", bytes(space.blocks_available)),
        ("nacre_target_inodes", space.files as f64),
        ("nacre_target_inodes_free", space.files_free as f64),
    ] {
        sample.put(name, &[target], value);
    }
}

/// Adds the histograms of the events that happened and are times.
pub fn put_times(sample: &mut Sample, family: &'static str, subject: &str, stats: &EventStats) {
    for (index, event) in stats.events().iter().enumerate() {
        let row = stats.row(index);
        if let Some(times) = stats.times(index).filter(|_| row.samples > 0) {
            sample.put_times(family, subject, event.name, Times::of(&times, row.sum));
        }
    }
}

fn put_locks(sample: &mut Sample, target: &str, locks: &LockService) {
    let stats = locks.stats();
    let counts = [
        ("nacre_target_recovering", u64::from(locks.is_recovering())),
        ("nacre_locks", locks.lock_count() as u64),
        ("nacre_lock_resources", locks.resource_count() as u64),
        ("nacre_lock_grants", stats.granted),
        ("nacre_lock_waits", stats.waited),
        ("nacre_lock_callbacks", stats.callbacks),
        ("nacre_lock_glimpses", stats.glimpses),
        ("nacre_lock_cancels", locks.cancels()),
        ("nacre_evictions", stats.evictions),
    ];
    put_all(sample, target, &counts);
}

fn put_device(sample: &mut Sample, target: &str, store: &Core) {
    let stats = store.device().stats();
    for (direction, bytes) in [("read", stats.read_bytes), ("write", stats.written_bytes)] {
        sample.put_kind("nacre_device_transferred_bytes", target, direction, bytes as f64);
    }
    let counts = [
        ("nacre_device_flushes", stats.flushes),
        ("nacre_store_defragmented_bytes", store.defrag_stats().bytes),
    ];
    put_all(sample, target, &counts);
}

fn put_cache(sample: &mut Sample, target: &str, cache: &Nxd) {
    let stats = cache.cache_stats();
    let counts = [
        ("nacre_write_cache_size_bytes", stats.size),
        ("nacre_write_cache_used_bytes", stats.used),
        ("nacre_write_cache_dirty_bytes", stats.dirty),
        ("nacre_write_cache_flushed_bytes", stats.flushed_bytes),
        ("nacre_write_cache_failures", stats.flush_failures.saturating_add(stats.sync_failures)),
    ];
    put_all(sample, target, &counts);
    let reads = [("hit", stats.read_hits), ("part", stats.read_parts), ("miss", stats.read_misses)];
    for (result, count) in reads {
        sample.put_kind("nacre_write_cache_reads", target, result, count as f64);
    }
    for (way, count) in [
        ("cached", stats.writes),
        ("large", stats.bypassed_large),
        ("stream", stats.bypassed_stream),
        ("full", stats.bypassed_full),
        ("other", stats.bypassed_other),
    ] {
        sample.put_kind("nacre_write_cache_writes", target, way, count as f64);
    }
}
