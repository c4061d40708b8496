//! Parameters of the medium below an object target: its page cache, `osd-file.*` and under the same names
//! `obdfilter.*`; service times of a simulated medium, for measurements.

use super::rows;
use nacre_oss::ObjectServer;
use nacre_params::stats::{now_ns, time_line};
use nacre_params::{Entries, Field, Form, Tree, value};
use nacre_store::object::block::Core;
use nacre_store::object::block::device::model::SimulatedDevice;
use nacre_store::object::file::AheadBook;
use nacre_store::object::simulated::AnyMedium;
use nacre_store::object::{CachePolicy, PolicyCell};
use nacre_types::{Status, StatusResult};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
/// Upper limit of the bound of a transfer, in bytes.
const IO_MAX_BYTES: u64 = 64 * MIB;

/// Most space that can be reserved ahead of a stream, in bytes.
const AHEAD_MAX_BYTES: u64 = 1 << 30;

const FIELDS: &[Field<CachePolicy>] = &[
    ("read_cache_enable", Form::Flag(|policy| &mut policy.read)),
    (
        "readcache_max_filesize",
        Form::Other {
            show: |policy| policy.file_max_bytes.to_string(),
            set: |policy, text| {
                let is_all = text.trim() == u64::MAX.to_string();
                policy.file_max_bytes = if is_all { u64::MAX } else { value::bytes(text, 1)? };
                Ok(())
            },
        },
    ),
    (
        "readcache_max_io_mb",
        Form::Other {
            show: |policy| megabytes(policy.read_max_bytes),
            set: |policy, text| io_bytes(text).map(|bytes| policy.read_max_bytes = bytes),
        },
    ),
    ("writethrough_cache_enable", Form::Flag(|policy| &mut policy.write)),
    (
        "writethrough_max_io_mb",
        Form::Other {
            show: |policy| megabytes(policy.write_max_bytes),
            set: |policy, text| io_bytes(text).map(|bytes| policy.write_max_bytes = bytes),
        },
    ),
];

/// Formats bytes as MiB, with decimals if necessary.
fn megabytes(bytes: u64) -> String {
    (bytes as f64 / MIB as f64).to_string()
}

/// Parses the bound of a transfer in MiB; returns bytes.
fn io_bytes(text: &str) -> StatusResult<u64> {
    let bytes = value::bytes(text, MIB)?;
    if bytes <= IO_MAX_BYTES { Ok(bytes) } else { Err(Status::ERANGE) }
}

/// Enters the parameters of the target `name`.
pub fn enter(tree: &Tree, name: &str, server: &Arc<ObjectServer>) {
    let osd = format!("osd-file.{name}");
    for below in [&osd, &format!("obdfilter.{name}")] {
        tree.of(below, server).fields(
            FIELDS,
            |server| Ok(server.store().abilities().page_cache.map_or(CachePolicy::NONE, PolicyCell::get)),
            |server, policy| {
                if let Some(cache) = server.store().abilities().page_cache {
                    cache.set(policy);
                }
                Ok(())
            },
        );
    }
    let entries = tree.of(&osd, server);
    enter_simulation(&entries, name);
    if server.store().abilities().write_ahead.is_some() {
        enter_ahead(&entries);
    }
    entries.show("stats", |server| {
        let stats = server.store().stats();
        let rows = [
            ("cache_miss", stats.reads_waited - stats.reads_direct.min(stats.reads_waited)),
            ("direct_read", stats.reads_direct),
            ("direct_write", stats.writes_direct),
        ];
        let rows = rows.iter().map(|(name, count)| format!("{name:<25} {count} samples [reqs]\n"));
        rows.fold(time_line("snapshot_time", now_ns()), |text, row| text + &row)
    });
}

/// Enters the space that is reserved ahead of a stream.
fn enter_ahead(entries: &Entries<'_, ObjectServer>) {
    entries.setting(
        "reserve_ahead_max_mb",
        |server| server.store().abilities().write_ahead.map_or(0, AheadBook::max_bytes) / MIB,
        |server, text| {
            let bytes = value::bytes(text, MIB)?;
            if bytes > AHEAD_MAX_BYTES || !bytes.is_multiple_of(MIB) {
                return Err(Status::ERANGE);
            }
            if let Some(ahead) = server.store().abilities().write_ahead {
                ahead.set_max_bytes(bytes);
            }
            Ok(())
        },
    );
}

fn enter_simulation(entries: &Entries<'_, ObjectServer>, name: &str) {
    let label = name.to_owned();
    entries.setting(
        "simulated_medium",
        |server| AnyMedium::of(&**server.store()),
        move |server, text| {
            let simulated: AnyMedium = text.parse().map_err(|()| Status::EINVAL)?;
            simulated.set(&**server.store()).map_err(|error| Status::from_io(&error))?;
            match simulated {
                AnyMedium::Nothing => log::info!("{label}: service times are the device's"),
                medium => log::warn!("{label}: service times are simulated ({medium}), not the device's"),
            }
            Ok(())
        },
    );
    entries.show("simulated_flash", |server| {
        let device = server.store().abilities().device_store.map(Core::simulated_device);
        let stats = device.and_then(SimulatedDevice::flash_stats).unwrap_or_default();
        let counts = [
            ("pages_written", stats.written),
            ("pages_copied", stats.copied),
            ("blocks_erased", stats.erased),
            ("pages_discarded", stats.discarded),
            ("pages_used", stats.used),
        ];
        rows(20, &counts)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read_and_shown_in_their_units() {
        let mut policy = CachePolicy { write_max_bytes: MIB / 2, ..CachePolicy::ALL };
        let mut set = |leaf: &str, text: &str| {
            let (_, form) = FIELDS.iter().find(|(known, _)| *known == leaf).expect("in the table");
            form.set(&mut policy, text).map(|()| form.show(&mut policy))
        };
        assert_eq!(set("read_cache_enable", "0").as_deref(), Ok("0"));
        assert_eq!(set("writethrough_max_io_mb", "0.5").as_deref(), Ok("0.5"));
        assert_eq!(set("readcache_max_io_mb", "8").as_deref(), Ok("8"));
        assert_eq!(set("readcache_max_io_mb", "65"), Err(Status::ERANGE));
        assert_eq!(set("readcache_max_filesize", "1M").as_deref(), Ok("1048576"));
        assert_eq!(
            set("readcache_max_filesize", "18446744073709551615").as_deref(),
            Ok("18446744073709551615")
        );
        assert_eq!(set("read_cache_enable", "maybe"), Err(Status::EINVAL));
    }
}
