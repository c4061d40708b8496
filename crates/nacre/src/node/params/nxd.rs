//! Parameters of the cache of small writes of an object target: `nxd.*`.

use nacre_oss::ObjectServer;
use nacre_params::{Tree, value};
use nacre_store::object::{NxdSettings, NxdStats};
use nacre_types::{Status, StatusResult};
use std::sync::Arc;

/// How a setting is read and shown.
struct Setting {
    leaf: &'static str,
    show: fn(&NxdSettings) -> String,
    set: fn(&mut NxdSettings, &str) -> StatusResult<()>,
}

fn number<T: TryFrom<u64>>(text: &str) -> StatusResult<T> {
    let number = text.trim().parse::<u64>().map_err(|_| Status::EINVAL)?;
    T::try_from(number).map_err(|_| Status::ERANGE)
}

fn percent(text: &str) -> StatusResult<u32> {
    match number::<u32>(text)? {
        percent if percent <= 95 => Ok(percent),
        _ => Err(Status::ERANGE),
    }
}

fn threshold(text: &str) -> StatusResult<u32> {
    match u32::try_from(value::bytes(text, 1)?) {
        Ok(bytes) if bytes <= NxdSettings::THRESHOLD_MAX => Ok(bytes),
        _ => Err(Status::ERANGE),
    }
}

const SETTINGS: [Setting; 8] = [
    Setting {
        leaf: "mode",
        show: |settings| settings.mode.to_string(),
        set: |settings, text| {
            text.trim().parse().map(|mode| settings.mode = mode).map_err(|()| Status::EINVAL)
        },
    },
    Setting {
        leaf: "threshold",
        show: |settings| settings.threshold.to_string(),
        set: |settings, text| threshold(text).map(|bytes| settings.threshold = bytes),
    },
    Setting {
        leaf: "stream_writes",
        show: |settings| settings.stream_writes.to_string(),
        set: |settings, text| number(text).map(|writes| settings.stream_writes = writes),
    },
    Setting {
        leaf: "high_percent",
        show: |settings| settings.high_percent.to_string(),
        set: |settings, text| percent(text).map(|percent| settings.high_percent = percent),
    },
    Setting {
        leaf: "low_percent",
        show: |settings| settings.low_percent.to_string(),
        set: |settings, text| percent(text).map(|percent| settings.low_percent = percent),
    },
    Setting {
        leaf: "idle_ms",
        show: |settings| settings.idle_ms.to_string(),
        set: |settings, text| number(text).map(|ms| settings.idle_ms = ms),
    },
    Setting {
        leaf: "idle_bytes_per_second",
        show: |settings| settings.idle_bytes_per_second.to_string(),
        set: |settings, text| value::bytes(text, 1).map(|bytes| settings.idle_bytes_per_second = bytes),
    },
    Setting {
        leaf: "full_wait_ms",
        show: |settings| settings.full_wait_ms.to_string(),
        set: |settings, text| number(text).map(|ms| settings.full_wait_ms = ms),
    },
];

/// The counters as `name value` lines.
fn counters(stats: &NxdStats) -> String {
    let rows = [
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
    ];
    rows.iter().map(|(name, count)| format!("{name:<28}{count}\n")).collect()
}

/// Enters those of the target `name`, if it has a cache.
pub fn enter(tree: &Tree, name: &str, server: &Arc<ObjectServer>) {
    if server.store().small_write_cache().is_none() {
        return;
    }
    for Setting { leaf, show, set } in &SETTINGS {
        let (get, change) = (server.clone(), server.clone());
        tree.add_both(
            &format!("nxd.{name}.{leaf}"),
            move || {
                let cache = get.store().small_write_cache().ok_or(Status::ENODEV)?;
                Ok(show(&cache.settings()))
            },
            move |text| {
                let cache = change.store().small_write_cache().ok_or(Status::ENODEV)?;
                let mut settings = cache.settings();
                set(&mut settings, text)?;
                cache.set_settings(settings);
                Ok(())
            },
        );
    }
    let stats = server.clone();
    tree.add_read(&format!("nxd.{name}.stats"), move || {
        let cache = stats.store().small_write_cache().ok_or(Status::ENODEV)?;
        Ok(counters(&cache.cache_stats()))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_shown() {
        let mut settings = NxdSettings::default();
        let mut set = |leaf: &str, text: &str| {
            let setting = SETTINGS.iter().find(|setting| setting.leaf == leaf).expect("in the table");
            (setting.set)(&mut settings, text).map(|()| (setting.show)(&settings))
        };
        assert_eq!(set("mode", "drain").as_deref(), Ok("drain"));
        assert_eq!(set("mode", "half"), Err(Status::EINVAL));
        assert_eq!(set("threshold", "64K").as_deref(), Ok("65536"));
        assert_eq!(set("threshold", "1M"), Err(Status::ERANGE));
        assert_eq!(set("high_percent", "96"), Err(Status::ERANGE));
        assert_eq!(set("idle_ms", "20").as_deref(), Ok("20"));
        assert_eq!(set("idle_ms", "soon"), Err(Status::EINVAL));
    }
}
