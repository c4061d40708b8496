//! Parameters of the store of an object target: its counters, and for a store on a device its background work
//! and fragmentation.

use super::rows;
use nacre_common::frag::{self, Unit};
use nacre_oss::ObjectServer;
use nacre_params::{Entries, Field, Form, value};
use nacre_store::object::ObjectStoreStats;
use nacre_store::object::block::device::{BlockDevice, Engine, FETCH_BYTES, FETCH_PARTS};
use nacre_store::object::block::{Core, DefragSettings, DefragStats};
use nacre_types::{Status, StatusResult};

const SETTINGS: &[Field<DefragSettings>] = &[
    ("defrag_enable", Form::Flag(|settings| &mut settings.is_on)),
    ("defrag_bytes_per_second", Form::Bytes(|settings| &mut settings.bytes_per_second)),
    (
        "defrag_threshold_percent",
        Form::Other {
            show: |settings| settings.threshold_percent.to_string(),
            set: |settings, text| {
                settings.threshold_percent = value::up_to(value::number(text)?, 100)? as u8;
                Ok(())
            },
        },
    ),
    ("defrag_rest_seconds", Form::Number(|settings| &mut settings.rest_seconds)),
    ("defrag_idle_ms", Form::Number(|settings| &mut settings.idle_ms)),
];

/// Least memory for read-ahead, if it is not off: that of one stream, in bytes.
const READ_AHEAD_MIN: u64 = (FETCH_PARTS * FETCH_BYTES) as u64;
/// Most memory for read-ahead, in bytes: it is locked in memory, and unavailable to other processes.
const READ_AHEAD_MAX: u64 = 1 << 30;

fn read_ahead_bytes(text: &str) -> StatusResult<u64> {
    match value::bytes(text, 1)? {
        bytes @ (0 | READ_AHEAD_MIN..=READ_AHEAD_MAX) => Ok(bytes),
        _ => Err(Status::ERANGE),
    }
}

fn defrag_counters(stats: &DefragStats) -> String {
    rows(
        28,
        &[
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
        ],
    )
}

fn store_counters(stats: &ObjectStoreStats) -> String {
    rows(
        28,
        &[
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
        ],
    )
}

/// Returns the description and counters of a device.
pub(super) fn device_text(device: &dyn BlockDevice) -> String {
    let (info, stats) = (device.info(), device.stats());
    let engine = match info.engine {
        Engine::IoUring => "io_uring",
        Engine::SystemCalls => "system calls",
        Engine::Memory => "memory",
    };
    let words = [("device", info.name.as_str()), ("engine", engine)];
    let words: String = words.iter().map(|(name, word)| format!("{name:<28}{word}\n")).collect();
    let counts = [
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
    words + &rows(28, &counts)
}

/// Returns the store on the device of a target.
fn device_store(server: &ObjectServer) -> StatusResult<&Core> {
    server.store().abilities().device_store.ok_or(Status::ENODEV)
}

/// Returns the back end of a target.
pub(super) fn store_kind(server: &ObjectServer) -> &'static str {
    if server.store().abilities().device_store.is_some() { "block" } else { "file" }
}

/// Returns the fragmentation of objects and free space as JSON, as `nacre frag` shows it.
fn fragmentation(server: &ObjectServer, name: &str) -> StatusResult<String> {
    let store = server.store();
    let dir = device_store(server)?.dir();
    let unit = Unit { bytes: Unit::USUAL };
    let report = frag::report_of(&**store, name, dir, unit).map_err(|error| {
        log::error!("{name}: the extents of its objects cannot be read: {error}");
        Status::EIO
    })?;
    serde_json::to_string_pretty(&report).map(|text| text + "\n").map_err(|_| Status::EIO)
}

/// Enters the parameters of the target `name`.
pub fn enter(target: &Entries<'_, ObjectServer>, name: &str) {
    target.show("fstype", store_kind);
    target.show("store_stats", |server| store_counters(&server.store().stats()));
    if !target.has(|server| device_store(server).is_ok()) {
        return;
    }
    target.fields(
        SETTINGS,
        |server| Ok(device_store(server)?.defrag_settings()),
        |server, settings| {
            device_store(server)?.set_defrag_settings(settings);
            Ok(())
        },
    );
    target.both(
        "scrub_bytes_per_second",
        |server| device_store(server).map(Core::scrub_rate),
        |server, text| {
            device_store(server)?.set_scrub_rate(value::bytes(text, 1)?);
            Ok(())
        },
    );
    target.both(
        "read_ahead_bytes",
        |server| device_store(server).map(Core::read_ahead),
        |server, text| {
            device_store(server)?.set_read_ahead(read_ahead_bytes(text)?);
            Ok(())
        },
    );
    target.read("defrag_stats", |server| Ok(defrag_counters(&device_store(server)?.defrag_stats())));
    target.read("device_stats", |server| Ok(device_text(device_store(server)?.device())));
    let name = name.to_owned();
    target.read("fragmentation", move |server| fragmentation(server, &name));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_shown() {
        let mut settings = DefragSettings::USUAL;
        let mut set = |leaf: &str, text: &str| {
            let (_, form) = SETTINGS.iter().find(|(known, _)| *known == leaf).expect("in the table");
            form.set(&mut settings, text).map(|()| form.show(&mut settings))
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
