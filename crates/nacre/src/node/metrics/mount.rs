//! Figures of a mount.

use super::super::Mounted;
use super::targets::put_times;
use nacre_client::Counter;
use nacre_monitor::Sample;
use nacre_rpc::LinkState;

/// Adds the figures of a mount and of its connections.
pub fn put(sample: &mut Sample, mounted: &Mounted) {
    let (client, front) = mounted.parts();
    let mount = &*mounted.mount_point().to_string_lossy();
    let events = front.stats().events();
    put_times(sample, "nacre_mount_operation_duration_seconds", mount, events);
    for (index, event) in events.events().iter().enumerate() {
        let direction = match event.name {
            "read_bytes" => "read",
            "write_bytes" => "write",
            _ => continue,
        };
        sample.put_kind("nacre_mount_transferred_bytes", mount, direction, events.row(index).sum as f64);
    }
    let write_back = client.write_back.write_back_stats();
    let (mut held, mut matched, mut enqueued) = (0, 0, 0);
    for target in client.requests.targets() {
        let counts = client.lease.locks().counts(target);
        held += counts.locks;
        matched += counts.matched;
        enqueued += counts.enqueued;
    }
    for (name, count) in [
        ("nacre_mount_dirty_bytes", write_back.dirty_bytes),
        ("nacre_mount_write_back_waits", write_back.waits),
        ("nacre_mount_write_back_failures", write_back.failures),
        ("nacre_mount_locks", held as u64),
    ] {
        sample.put(name, &[mount], count as f64);
    }
    for (result, count) in [("cached", matched), ("enqueued", enqueued)] {
        sample.put_kind("nacre_mount_lock_requests", mount, result, count as f64);
    }
    let ahead = client.read_ahead.read_ahead_stats();
    for (result, counter) in [("hit", Counter::Hits), ("miss", Counter::Misses)] {
        sample.put_kind("nacre_mount_read_ahead_pages", mount, result, ahead.get(counter) as f64);
    }
    for (target, import) in mounted.imports() {
        let target = target.to_string();
        let labels: [&str; 2] = [mount, &target];
        let is_up = matches!(import.state, LinkState::Full | LinkState::Idle | LinkState::New);
        sample.put("nacre_connection_up", &labels, f64::from(is_up));
        sample.put("nacre_connection_requests_in_flight", &labels, import.in_flight as f64);
        sample.put("nacre_connection_resends", &labels, import.timeouts as f64);
        sample.put("nacre_connection_recoveries", &labels, import.generation as f64);
    }
}
