//! Parameters of a mount's data path: `llite.*`.

use super::rows;
use nacre_client::{Client, Tunables};
use nacre_fuse::front::Front;
use nacre_fuse::front::extents::ExtentsReport;
use nacre_params::{Entries, Tree, value};
use nacre_types::{Status, StatusResult};
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// Enters the parameters below `below`.
pub fn enter(tree: &Tree, below: &str, client: &Arc<Client>) {
    let mount = tree.of(below, client);
    enter_tunables(&tree.of(below, &client.tunables));
    mount.counters(
        "read_ahead_stats",
        |client| client.read_ahead.read_ahead_report(),
        |client| client.read_ahead.read_ahead_stats().clear(),
    );
    mount.show("statahead_stats", |client| client.statahead.statahead_report());
    // Its text has the data that is cached, too.
    mount.changing(
        "max_cached_mb",
        |client| Ok(client.write_back.cached_report()),
        |client, text| {
            // Accepts the form that is shown, or the number alone.
            let number = text.strip_prefix("max_cached_mb:").map_or(text, str::trim);
            client.write_back.set_max_cached_mb(value::bytes(number, MIB)? / MIB)
        },
    );
    mount.setting(
        "parallel_io",
        |client| client.tunables.parallel_io().name(),
        |client, text| {
            client.write_back.set_parallel_io(text.parse()?);
            Ok(())
        },
    );
    mount.show("parallel_io_stats", |client| rows(26, &[("divided", client.tunables.divided())]));
    enter_write_back(&mount);
}

/// Enters the parameters of read-ahead, and the size from which on a call is large.
fn enter_tunables(entries: &Entries<'_, Tunables>) {
    type Get<N> = fn(&Tunables) -> N;
    type Set<N> = fn(&Tunables, N) -> StatusResult<()>;
    // The unit is MiB unless a suffix says otherwise.
    let size = |leaf: &str, get: Get<u64>, set: Set<u64>| {
        entries.setting(leaf, get, move |tunables, text| set(tunables, value::bytes(text, MIB)? / MIB));
    };
    size("max_read_ahead_mb", Tunables::max_read_ahead_mb, Tunables::set_max_read_ahead_mb);
    size("max_read_ahead_per_file_mb", Tunables::max_read_ahead_per_file_mb, |tunables, mb| {
        tunables.set_max_read_ahead_per_file_mb(mb);
        Ok(())
    });
    size("max_read_ahead_whole_mb", Tunables::max_read_ahead_whole_mb, Tunables::set_max_read_ahead_whole_mb);
    let counts: [(&str, Get<u32>, Set<u32>); 3] = [
        (
            "max_read_ahead_async_active",
            Tunables::max_read_ahead_async_active,
            Tunables::set_max_read_ahead_async_active,
        ),
        ("statahead_max", Tunables::statahead_max, Tunables::set_statahead_max),
        ("statahead_batch_max", Tunables::statahead_batch_max, Tunables::set_statahead_batch_max),
    ];
    for (leaf, get, set) in counts {
        entries.setting(leaf, get, move |tunables, text| {
            let number = value::integer(text, 0, i64::MAX)?;
            set(tunables, u32::try_from(number).map_err(|_| Status::ERANGE)?)
        });
    }
    entries.flag("hybrid_io", Tunables::hybrid_io, Tunables::set_hybrid_io);
    let threshold = |leaf, get: Get<u64>, set: fn(&Tunables, u64)| {
        entries.setting(leaf, get, move |tunables, text| {
            set(tunables, value::bytes(text, 1)?);
            Ok(())
        });
    };
    threshold(
        "hybrid_io_write_threshold_bytes",
        Tunables::hybrid_io_write_threshold_bytes,
        Tunables::set_hybrid_io_write_threshold_bytes,
    );
    threshold(
        "hybrid_io_read_threshold_bytes",
        Tunables::hybrid_io_read_threshold_bytes,
        Tunables::set_hybrid_io_read_threshold_bytes,
    );
}

/// Enters the reports of reads and writes by size and position.
pub fn enter_extents(entries: &Entries<'_, Front>) {
    let reports = [
        ("extents_stats", ExtentsReport::All),
        ("extents_stats_per_process", ExtentsReport::PerProcess),
        ("offset_stats", ExtentsReport::Offsets),
    ];
    for (leaf, report) in reports {
        entries.changing(
            leaf,
            move |front| Ok(front.stats().extents().text(report)),
            move |front, text| {
                front.stats().extents().set(report, text);
                Ok(())
            },
        );
    }
}

/// Largest age of held-back writes, in milliseconds.
const AGE_MS_MAX: i64 = 600_000;
/// More than 100 percent of the CPUs: large writes are never held back.
const IDLE_NEVER: i64 = 101;

/// Enters the parameters of write-back: streams of writes that are gathered before they are sent.
fn enter_write_back(entries: &Entries<'_, Client>) {
    entries.flag(
        "write_back",
        |client| client.write_back.settings.is_enabled(),
        |client, on| client.write_back.settings.set_enabled(on),
    );
    entries.integer(
        "write_back_age_ms",
        1..=AGE_MS_MAX,
        |client| client.write_back.settings.age().as_millis(),
        |client, age_ms| client.write_back.settings.set_age(Duration::from_millis(age_ms as u64)),
    );
    entries.integer(
        "write_back_idle_percent",
        0..=IDLE_NEVER,
        |client| client.write_back.settings.idle_per_cent(),
        |client, per_cent| client.write_back.settings.set_idle_per_cent(per_cent as u32),
    );
    entries.show("write_back_stats", |client| {
        let stats = client.write_back.write_back_stats();
        rows(
            26,
            &[
                ("dirty_bytes", stats.dirty_bytes),
                ("buffer_bytes", stats.buffer_bytes),
                ("in_flight_bytes", stats.in_flight_bytes),
                ("grant_bytes", stats.grant_bytes),
                ("rpcs", stats.rpcs),
                ("full_rpcs", stats.full_rpcs),
                ("sent_bytes", stats.sent_bytes),
                ("waits", stats.waits),
                ("failures", stats.failures),
            ],
        )
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_count_in_mebibytes_and_ranges_are_checked() {
        let (tree, tunables) = (Tree::new(), Arc::new(Tunables::new(10_000, 2)));
        enter_tunables(&tree.of("llite.x", &tunables));
        let set = |leaf: &str, text: &str| {
            let name = format!("llite.x.{leaf}");
            tree.write(&name, text)
                .and_then(|()| tree.read(&name))
                .map(|text| text.parse().expect("a number"))
        };
        assert_eq!(set("max_read_ahead_mb", "1.5G"), Ok(1536));
        assert_eq!(set("max_read_ahead_mb", "64"), Ok(64));
        assert_eq!(set("max_read_ahead_mb", "10001"), Err(Status::ERANGE));
        assert_eq!(set("max_read_ahead_whole_mb", "65"), Err(Status::ERANGE));
        assert_eq!(set("statahead_max", "0"), Ok(0));
        assert_eq!(set("statahead_max", "4294967297"), Err(Status::ERANGE));
        assert_eq!(set("statahead_max", "many"), Err(Status::EINVAL));
        assert_eq!(set("max_read_ahead_async_active", "-1"), Err(Status::ERANGE));
    }
}
