//! Parameters of the cache of small writes of an object target: `nxd.*`.

use super::block::device_text;
use super::rows;
use nacre_oss::ObjectServer;
use nacre_params::{Field, Form, Tree, value};
use nacre_store::object::nxd::Nxd;
use nacre_store::object::{NxdSettings, NxdStats};
use nacre_types::{Status, StatusResult};
use std::sync::Arc;

const FIELDS: &[Field<NxdSettings>] = &[
    (
        "mode",
        Form::Other {
            show: |settings| settings.mode.to_string(),
            set: |settings, text| {
                settings.mode = text.trim().parse().map_err(|()| Status::EINVAL)?;
                Ok(())
            },
        },
    ),
    (
        "threshold",
        Form::Other {
            show: |settings| settings.threshold.to_string(),
            set: |settings, text| {
                settings.threshold = value::up_to(value::bytes(text, 1)?, NxdSettings::THRESHOLD_MAX)?;
                Ok(())
            },
        },
    ),
    ("stream_writes", Form::Count(|settings| &mut settings.stream_writes, u32::MAX)),
    ("high_percent", Form::Count(|settings| &mut settings.high_percent, 95)),
    ("low_percent", Form::Count(|settings| &mut settings.low_percent, 95)),
    ("idle_ms", Form::Number(|settings| &mut settings.idle_ms)),
    ("idle_bytes_per_second", Form::Bytes(|settings| &mut settings.idle_bytes_per_second)),
    ("full_wait_ms", Form::Number(|settings| &mut settings.full_wait_ms)),
];

/// Formats the counters as `name value` lines.
fn counters(stats: &NxdStats) -> String {
    let counts = [
        ("size_bytes", stats.size),
        ("used_bytes", stats.used),
        ("dirty_bytes", stats.dirty),
        ("needed", u64::from(stats.is_needed)),
        ("read_hits", stats.read_hits),
        ("read_parts", stats.read_parts),
        ("read_misses", stats.read_misses),
        ("read_hit_bytes", stats.read_hit_bytes),
        ("writes", stats.writes),
        ("write_bytes", stats.write_bytes),
        ("bypassed_large", stats.bypassed_large),
        ("bypassed_stream", stats.bypassed_stream),
        ("bypassed_full", stats.bypassed_full),
        ("bypassed_other", stats.bypassed_other),
        ("settled", stats.settled),
        ("flushed_bytes", stats.flushed_bytes),
        ("flush_writes", stats.flush_writes),
        ("flush_rate_bytes_per_second", stats.flush_rate),
        ("flush_failures", stats.flush_failures),
        ("log_batches", stats.batches),
        ("log_flushes", stats.flushes),
        ("log_replayed", stats.replayed),
        ("sync_failures", stats.sync_failures),
    ];
    rows(28, &counts)
}

fn cache(server: &ObjectServer) -> StatusResult<&Nxd> {
    server.store().abilities().small_write_cache.ok_or(Status::ENODEV)
}

/// Enters the parameters of the target `name`, if it has a cache.
pub fn enter(tree: &Tree, name: &str, server: &Arc<ObjectServer>) {
    if cache(server).is_err() {
        return;
    }
    let entries = tree.of(&format!("nxd.{name}"), server);
    entries.fields(
        FIELDS,
        |server| Ok(cache(server)?.settings()),
        |server, settings| {
            cache(server)?.set_settings(settings);
            Ok(())
        },
    );
    entries.read("stats", |server| Ok(counters(&cache(server)?.cache_stats())));
    entries.read("device_stats", |server| Ok(device_text(cache(server)?.device())));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_shown() {
        let mut settings = NxdSettings::default();
        let mut set = |leaf: &str, text: &str| {
            let (_, form) = FIELDS.iter().find(|(known, _)| *known == leaf).expect("in the table");
            form.set(&mut settings, text).map(|()| form.show(&mut settings))
        };
        assert_eq!(set("mode", "drain").as_deref(), Ok("drain"));
        assert_eq!(set("mode", "half"), Err(Status::EINVAL));
        assert_eq!(set("threshold", "64K").as_deref(), Ok("65536"));
        assert_eq!(set("threshold", "1M"), Err(Status::ERANGE));
        assert_eq!(set("high_percent", "96"), Err(Status::ERANGE));
        assert_eq!(set("idle_ms", "20").as_deref(), Ok("20"));
        assert_eq!(set("idle_ms", "soon"), Err(Status::EINVAL));
        assert_eq!(set("stream_writes", "3").as_deref(), Ok("3"));
        assert_eq!(set("stream_writes", "4294967296"), Err(Status::ERANGE));
        assert_eq!(set("idle_bytes_per_second", "1.5M").as_deref(), Ok("1572864"));
    }
}
