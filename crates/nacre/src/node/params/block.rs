//! Parameters of the store of an object target: its counters, and if it has a device for itself, what it does by itself there and how
//! things lie.

use nacre_common::frag::{self, Unit};
use nacre_oss::ObjectServer;
use nacre_params::{Tree, value};
use nacre_store::object::ObjectStoreStats;
use nacre_store::object::block::device::{BlockDevice, Engine, FETCH_BYTES, FETCH_PARTS};
use nacre_store::object::block::{Core, DefragSettings, DefragStats};
use nacre_types::{Status, StatusResult};
use std::sync::Arc;

/// How a setting of the defragmenter is read and shown.
struct Setting {
    leaf: &'static str,
    show: fn(&DefragSettings) -> String,
    set: fn(&mut DefragSettings, &str) -> StatusResult<()>,
}

fn number(text: &str) -> StatusResult<u64> {
    text.trim().parse().map_err(|_| Status::EINVAL)
}

const SETTINGS: [Setting; 5] = [
    Setting {
        leaf: "defrag_enable",
        show: |settings| u8::from(settings.is_on).to_string(),
        set: |settings, text| value::truth(text).map(|is_on| settings.is_on = is_on),
    },
    Setting {
        leaf: "defrag_bytes_per_second",
        show: |settings| settings.bytes_per_second.to_string(),
        set: |settings, text| value::bytes(text, 1).map(|bytes| settings.bytes_per_second = bytes),
    },
    Setting {
        leaf: "defrag_threshold_percent",
        show: |settings| settings.threshold_percent.to_string(),
        set: |settings, text| match u8::try_from(number(text)?) {
            Ok(percent) if percent <= 100 => {
                settings.threshold_percent = percent;
                Ok(())
            }
            _ => Err(Status::ERANGE),
        },
    },
    Setting {
        leaf: "defrag_rest_seconds",
        show: |settings| settings.rest_seconds.to_string(),
        set: |settings, text| number(text).map(|seconds| settings.rest_seconds = seconds),
    },
    Setting {
        leaf: "defrag_idle_ms",
        show: |settings| settings.idle_ms.to_string(),
        set: |settings, text| number(text).map(|ms| settings.idle_ms = ms),
    },
];

/// Least memory for what is read ahead, if it is not none: that of one stream.
const READ_AHEAD_MIN: u64 = (FETCH_PARTS * FETCH_BYTES) as u64;
/// Most of it: the kernel keeps it in memory, and cannot give it to others.
const READ_AHEAD_MAX: u64 = 1 << 30;

fn read_ahead_bytes(text: &str) -> StatusResult<u64> {
    match value::bytes(text, 1)? {
        bytes @ (0 | READ_AHEAD_MIN..=READ_AHEAD_MAX) => Ok(bytes),
        _ => Err(Status::ERANGE),
    }
}

/// Counters as `name value` lines.
fn lines(rows: &[(&str, u64)]) -> String {
    rows.iter().map(|(name, count)| format!("{name:<28}{count}\n")).collect()
}

fn defrag_counters(stats: &DefragStats) -> String {
    lines(&[
        ("passes", stats.passes),
        ("objects", stats.objects),
        ("parts", stats.parts),
        ("bytes", stats.bytes),
        ("extents_before", stats.extents_before),
        ("extents_after", stats.extents_after),
        ("disturbed", stats.disturbed),
        ("no_room", stats.no_room),
        ("failed", stats.failed),
        ("pauses", stats.pauses),
    ])
}

fn store_counters(stats: &ObjectStoreStats) -> String {
    lines(&[
        ("objects", stats.objects),
        ("created", stats.created),
        ("destroyed", stats.destroyed),
        ("files_made", stats.files_made),
        ("files_free", stats.files_free),
        ("files_pending", stats.files_pending),
        ("opens", stats.opens),
        ("open_now", stats.open_now),
        ("reads_waited", stats.reads_waited),
        ("reads_direct", stats.reads_direct),
        ("writes_direct", stats.writes_direct),
        ("refused_full", stats.refused_full),
        ("sync_failures", stats.sync_failures),
        ("recovered_files", stats.recovered_files),
        ("read_ahead", stats.read_ahead),
        ("read_ahead_used", stats.read_ahead_used),
        ("flushes", stats.flushes),
        ("checksum_errors", stats.checksum_errors),
        ("scrubbed_bytes", stats.scrubbed_bytes),
        ("recovered_blocks", stats.recovered_blocks),
    ])
}

/// What a device is and did.
pub(super) fn device_text(device: &dyn BlockDevice) -> String {
    let (info, stats) = (device.info(), device.stats());
    let engine = match info.engine {
        Engine::IoUring => "io_uring",
        Engine::SystemCalls => "system calls",
        Engine::Memory => "memory",
    };
    let words = [("device", info.name.as_str()), ("engine", engine)];
    let words: String = words.iter().map(|(name, word)| format!("{name:<28}{word}\n")).collect();
    let rows = [
        ("size_bytes", device.size()),
        ("raw", u64::from(info.is_raw)),
        ("nonrotational", u64::from(info.is_flash)),
        ("reads", stats.reads),
        ("read_bytes", stats.read_bytes),
        ("writes", stats.writes),
        ("written_bytes", stats.written_bytes),
        ("flushes", stats.flushes),
        ("discarded_bytes", stats.discarded_bytes),
        ("ring_batches", stats.ring_batches),
        ("ring_enters", stats.ring_enters),
        ("call_batches", stats.call_batches),
        ("copied_reads", stats.copied_reads),
        ("short_transfers", stats.short),
    ];
    words + &lines(&rows)
}

/// A value that the store on the device of a target tells.
fn of_device_store(
    server: &Arc<ObjectServer>,
    show: fn(&Core) -> String,
) -> impl Fn() -> StatusResult<String> + Send + Sync + use<> {
    let server = server.clone();
    move || server.store().abilities().device_store.map(show).ok_or(Status::ENODEV)
}

/// How objects and free space lie, as JSON: what `nacre frag` shows.
fn fragmentation(server: &ObjectServer, name: &str) -> StatusResult<String> {
    let store = server.store();
    let dir = store.abilities().device_store.ok_or(Status::ENODEV)?.dir();
    let unit = Unit { bytes: Unit::USUAL };
    let report = frag::report_of(&**store, name, dir, unit).map_err(|error| {
        log::error!("{name}: how its objects lie cannot be told: {error}");
        Status::EIO
    })?;
    serde_json::to_string_pretty(&report).map(|text| text + "\n").map_err(|_| Status::EIO)
}

/// Enters those of the target `name`, whose parameters lie `below`.
pub fn enter(tree: &Tree, name: &str, below: &str, server: &Arc<ObjectServer>) {
    let kind = if server.store().abilities().device_store.is_some() { "block" } else { "file" };
    tree.add_read(&format!("{below}.fstype"), move || Ok(kind.to_owned()));
    let stats = server.clone();
    tree.add_read(&format!("{below}.store_stats"), move || Ok(store_counters(&stats.store().stats())));
    if server.store().abilities().device_store.is_none() {
        return;
    }
    for Setting { leaf, show, set } in &SETTINGS {
        let (get, change) = (server.clone(), server.clone());
        tree.add_both(
            &format!("{below}.{leaf}"),
            move || {
                let store = get.store().abilities().device_store.ok_or(Status::ENODEV)?;
                Ok(show(&store.defrag_settings()))
            },
            move |text| {
                let store = change.store().abilities().device_store.ok_or(Status::ENODEV)?;
                let mut settings = store.defrag_settings();
                set(&mut settings, text)?;
                store.set_defrag_settings(settings);
                Ok(())
            },
        );
    }
    type Size = (&'static str, fn(&str) -> StatusResult<u64>, fn(&Core) -> u64, fn(&Core, u64));
    let sizes: [Size; 2] = [
        ("scrub_bytes_per_second", |text| value::bytes(text, 1), Core::scrub_rate, Core::set_scrub_rate),
        ("read_ahead_bytes", read_ahead_bytes, Core::read_ahead, Core::set_read_ahead),
    ];
    for (leaf, parse, show, set) in sizes {
        let (get, change) = (server.clone(), server.clone());
        tree.add_both(
            &format!("{below}.{leaf}"),
            move || {
                let store = get.store().abilities().device_store.ok_or(Status::ENODEV)?;
                Ok(show(store).to_string())
            },
            move |text| {
                let store = change.store().abilities().device_store.ok_or(Status::ENODEV)?;
                set(store, parse(text)?);
                Ok(())
            },
        );
    }
    let add = |leaf: &str, show: fn(&Core) -> String| {
        tree.add_read(&format!("{below}.{leaf}"), of_device_store(server, show));
    };
    add("defrag_stats", |store| defrag_counters(&store.defrag_stats()));
    add("device_stats", |store| device_text(store.device()));
    let (lying, name) = (server.clone(), name.to_owned());
    tree.add_read(&format!("{below}.fragmentation"), move || fragmentation(&lying, &name));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_shown() {
        let mut settings = DefragSettings::USUAL;
        let mut set = |leaf: &str, text: &str| {
            let setting = SETTINGS.iter().find(|setting| setting.leaf == leaf).expect("in the table");
            (setting.set)(&mut settings, text).map(|()| (setting.show)(&settings))
        };
        assert_eq!(set("defrag_enable", "0").as_deref(), Ok("0"));
        assert_eq!(set("defrag_enable", "maybe"), Err(Status::EINVAL));
        assert_eq!(set("defrag_bytes_per_second", "64M").as_deref(), Ok("67108864"));
        assert_eq!(set("defrag_threshold_percent", "100").as_deref(), Ok("100"));
        assert_eq!(set("defrag_threshold_percent", "101"), Err(Status::ERANGE));
        assert_eq!(set("defrag_threshold_percent", "half"), Err(Status::EINVAL));
        assert_eq!(set("defrag_rest_seconds", "0").as_deref(), Ok("0"));
        assert_eq!(set("defrag_idle_ms", "-1"), Err(Status::EINVAL));
        assert!(!settings.is_on);
    }

    #[test]
    fn memory_for_reading_ahead_is_none_or_enough_for_a_stream_and_bounded() {
        assert_eq!(read_ahead_bytes("0"), Ok(0));
        assert_eq!(read_ahead_bytes("2M"), Ok(2 << 20));
        assert_eq!(read_ahead_bytes("1G"), Ok(1 << 30));
        for outside in ["1", "2097151", "1073741825", "1T"] {
            assert_eq!(read_ahead_bytes(outside), Err(Status::ERANGE), "{outside}");
        }
        assert_eq!(read_ahead_bytes("much"), Err(Status::EINVAL));
    }
}
