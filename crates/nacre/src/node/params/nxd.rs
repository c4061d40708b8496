//! Parameters of the cache of small writes of an object target: `nxd.*`.

use nacre_oss::ObjectServer;
use nacre_params::{Tree, value};
use nacre_store::object::{NxdMode, NxdSettings, NxdStats};
use nacre_types::{Status, StatusResult};
use std::sync::Arc;

/// How a setting is written.
#[derive(Clone, Copy)]
enum Part {
    /// `on`, `off` or `drain`.
    Mode(fn(&mut NxdSettings) -> &mut NxdMode),
    /// How many.
    Count(fn(&mut NxdSettings) -> &mut u32),
    /// Up to 95.
    Percent(fn(&mut NxdSettings) -> &mut u32),
    Milliseconds(fn(&mut NxdSettings) -> &mut u64),
    /// Bytes of a write.
    Threshold(fn(&mut NxdSettings) -> &mut u32),
    Bytes(fn(&mut NxdSettings) -> &mut u64),
}

const PARTS: &[(&str, Part)] = &[
    ("mode", Part::Mode(|settings| &mut settings.mode)),
    ("threshold", Part::Threshold(|settings| &mut settings.threshold)),
    ("stream_writes", Part::Count(|settings| &mut settings.stream_writes)),
    ("high_percent", Part::Percent(|settings| &mut settings.high_percent)),
    ("low_percent", Part::Percent(|settings| &mut settings.low_percent)),
    ("idle_ms", Part::Milliseconds(|settings| &mut settings.idle_ms)),
    ("idle_bytes_per_second", Part::Bytes(|settings| &mut settings.idle_bytes_per_second)),
    ("full_wait_ms", Part::Milliseconds(|settings| &mut settings.full_wait_ms)),
];

fn number(text: &str) -> StatusResult<u64> {
    text.trim().parse().map_err(|_| Status::EINVAL)
}

/// A number that is at most `most`.
fn up_to(number: u64, most: u32) -> StatusResult<u32> {
    u32::try_from(number).ok().filter(|number| *number <= most).ok_or(Status::ERANGE)
}

impl Part {
    fn show(self, mut settings: NxdSettings) -> String {
        match self {
            Part::Mode(part) => part(&mut settings).to_string(),
            Part::Count(part) | Part::Percent(part) | Part::Threshold(part) => {
                part(&mut settings).to_string()
            }
            Part::Milliseconds(part) | Part::Bytes(part) => part(&mut settings).to_string(),
        }
    }

    fn set(self, settings: &mut NxdSettings, text: &str) -> StatusResult<()> {
        match self {
            Part::Mode(part) => *part(settings) = text.trim().parse().map_err(|()| Status::EINVAL)?,
            Part::Count(part) => *part(settings) = up_to(number(text)?, u32::MAX)?,
            Part::Percent(part) => *part(settings) = up_to(number(text)?, 95)?,
            Part::Milliseconds(part) => *part(settings) = number(text)?,
            Part::Threshold(part) => {
                *part(settings) = up_to(value::bytes(text, 1)?, NxdSettings::THRESHOLD_MAX)?;
            }
            Part::Bytes(part) => *part(settings) = value::bytes(text, 1)?,
        }
        Ok(())
    }
}

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
        ("sync_failures", stats.sync_failures),
    ];
    rows.iter().map(|(name, count)| format!("{name:<28}{count}\n")).collect()
}

/// Enters those of the target `name`, if it has a cache.
pub fn enter(tree: &Tree, name: &str, server: &Arc<ObjectServer>) {
    if server.store().abilities().small_write_cache.is_none() {
        return;
    }
    for &(leaf, part) in PARTS {
        let (get, change) = (server.clone(), server.clone());
        tree.add_both(
            &format!("nxd.{name}.{leaf}"),
            move || {
                let cache = get.store().abilities().small_write_cache.ok_or(Status::ENODEV)?;
                Ok(part.show(cache.settings()))
            },
            move |text| {
                let cache = change.store().abilities().small_write_cache.ok_or(Status::ENODEV)?;
                let mut settings = cache.settings();
                part.set(&mut settings, text)?;
                cache.set_settings(settings);
                Ok(())
            },
        );
    }
    let stats = server.clone();
    tree.add_read(&format!("nxd.{name}.stats"), move || {
        let cache = stats.store().abilities().small_write_cache.ok_or(Status::ENODEV)?;
        Ok(counters(&cache.cache_stats()))
    });
    let device = server.clone();
    tree.add_read(&format!("nxd.{name}.device_stats"), move || {
        let cache = device.store().abilities().small_write_cache.ok_or(Status::ENODEV)?;
        Ok(super::block::device_text(cache.device()))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_shown() {
        let mut settings = NxdSettings::default();
        let mut set = |leaf: &str, text: &str| {
            let (_, part) = PARTS.iter().find(|(name, _)| *name == leaf).expect("in the table");
            part.set(&mut settings, text).map(|()| part.show(settings))
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
