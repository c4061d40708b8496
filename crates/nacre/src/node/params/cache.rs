//! Parameters of what is below an object target: its page cache, `osd-file.*` and under the same names `obdfilter.*`; service
//! times of a medium that is not there, for measurements.

use nacre_oss::ObjectServer;
use nacre_params::stats::{now_ns, time_line};
use nacre_params::{Tree, value};
use nacre_store::object::block::Core;
use nacre_store::object::block::device::model::SimulatedDevice;
use nacre_store::object::file::AheadBook;
use nacre_store::object::simulated::AnyMedium;
use nacre_store::object::{CachePolicy, PolicyCell};
use nacre_types::{Status, StatusResult};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
/// Largest bound of a transfer that can be set, in bytes.
const IO_MAX_BYTES: u64 = 64 * MIB;

/// Most that can be reserved ahead of a stream, in bytes.
const AHEAD_MAX_BYTES: u64 = 1 << 30;

/// How a part of the rule is written.
#[derive(Clone, Copy)]
enum Part {
    /// 0 or 1.
    Flag(fn(&mut CachePolicy) -> &mut bool),
    /// MiB, with decimals if need be.
    Megabytes(fn(&mut CachePolicy) -> &mut u64),
    /// Bytes.
    Bytes(fn(&mut CachePolicy) -> &mut u64),
}

const PARTS: &[(&str, Part)] = &[
    ("read_cache_enable", Part::Flag(|policy| &mut policy.read)),
    ("readcache_max_filesize", Part::Bytes(|policy| &mut policy.file_max_bytes)),
    ("readcache_max_io_mb", Part::Megabytes(|policy| &mut policy.read_max_bytes)),
    ("writethrough_cache_enable", Part::Flag(|policy| &mut policy.write)),
    ("writethrough_max_io_mb", Part::Megabytes(|policy| &mut policy.write_max_bytes)),
];

impl Part {
    fn show(self, mut policy: CachePolicy) -> String {
        match self {
            Part::Flag(part) => u8::from(*part(&mut policy)).to_string(),
            Part::Bytes(part) => part(&mut policy).to_string(),
            Part::Megabytes(part) => match *part(&mut policy) {
                bytes if bytes.is_multiple_of(MIB) => (bytes / MIB).to_string(),
                bytes => (bytes as f64 / MIB as f64).to_string(),
            },
        }
    }

    fn set(self, policy: &mut CachePolicy, text: &str) -> StatusResult<()> {
        match self {
            Part::Flag(part) => *part(policy) = value::truth(text)?,
            Part::Bytes(part) if text.trim() == u64::MAX.to_string() => *part(policy) = u64::MAX,
            Part::Bytes(part) => *part(policy) = value::bytes(text, 1)?,
            Part::Megabytes(part) => {
                let bytes = value::bytes(text, MIB)?;
                if bytes > IO_MAX_BYTES {
                    return Err(Status::ERANGE);
                }
                *part(policy) = bytes;
            }
        }
        Ok(())
    }
}

/// Enters the parameters of the target `name`.
pub fn enter(tree: &Tree, name: &str, server: &Arc<ObjectServer>) {
    for below in [format!("osd-file.{name}"), format!("obdfilter.{name}")] {
        for &(leaf, part) in PARTS {
            let (get, set) = (server.clone(), server.clone());
            tree.add_both(
                &format!("{below}.{leaf}"),
                move || {
                    let cache = get.store().abilities().page_cache;
                    Ok(part.show(cache.map_or(CachePolicy::NONE, PolicyCell::get)))
                },
                move |text| {
                    let cache = set.store().abilities().page_cache;
                    let mut policy = cache.map_or(CachePolicy::NONE, PolicyCell::get);
                    part.set(&mut policy, text)?;
                    if let Some(cache) = cache {
                        cache.set(policy);
                    }
                    Ok(())
                },
            );
        }
    }
    enter_simulation(tree, name, server);
    enter_ahead(tree, name, server);
    let stats = server.clone();
    tree.add_read(&format!("osd-file.{name}.stats"), move || {
        let stats = stats.store().stats();
        let rows = [
            ("cache_miss", stats.reads_waited - stats.reads_direct.min(stats.reads_waited)),
            ("direct_read", stats.reads_direct),
            ("direct_write", stats.writes_direct),
        ];
        let rows = rows.iter().map(|(name, count)| format!("{name:<25} {count} samples [reqs]\n"));
        Ok(rows.fold(time_line("snapshot_time", now_ns()), |text, row| text + &row))
    });
}

/// How much is reserved ahead of a stream, where that is of use.
fn enter_ahead(tree: &Tree, name: &str, server: &Arc<ObjectServer>) {
    if server.store().abilities().write_ahead.is_none() {
        return;
    }
    let (get, set) = (server.clone(), server.clone());
    tree.add_both(
        &format!("osd-file.{name}.reserve_ahead_max_mb"),
        move || {
            let ahead = get.store().abilities().write_ahead;
            Ok((ahead.map_or(0, AheadBook::max_bytes) / MIB).to_string())
        },
        move |text| {
            let bytes = value::bytes(text, MIB)?;
            if bytes > AHEAD_MAX_BYTES || !bytes.is_multiple_of(MIB) {
                return Err(Status::ERANGE);
            }
            if let Some(ahead) = set.store().abilities().write_ahead {
                ahead.set_max_bytes(bytes);
            }
            Ok(())
        },
    );
}

fn enter_simulation(tree: &Tree, name: &str, server: &Arc<ObjectServer>) {
    let (get, set, label) = (server.clone(), server.clone(), name.to_owned());
    tree.add_both(
        &format!("osd-file.{name}.simulated_medium"),
        move || Ok(AnyMedium::of(&**get.store()).to_string()),
        move |text| {
            let simulated: AnyMedium = text.parse().map_err(|()| Status::EINVAL)?;
            simulated.set(&**set.store()).map_err(|error| Status::from_io(&error))?;
            match simulated {
                AnyMedium::Nothing => log::info!("{label}: service times are the device's"),
                medium => log::warn!("{label}: service times are simulated ({medium}), not the device's"),
            }
            Ok(())
        },
    );
    let pages = server.clone();
    tree.add_read(&format!("osd-file.{name}.simulated_flash"), move || {
        let device = pages.store().abilities().device_store.map(Core::simulated_device);
        let stats = device.and_then(SimulatedDevice::flash_stats).unwrap_or_default();
        let rows = [
            ("pages_written", stats.written),
            ("pages_copied", stats.copied),
            ("blocks_erased", stats.erased),
            ("pages_discarded", stats.discarded),
            ("pages_used", stats.used),
        ];
        Ok(rows.iter().map(|(name, count)| format!("{name:<20}{count}\n")).collect())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read_and_shown_in_their_units() {
        let mut policy = CachePolicy { write_max_bytes: MIB / 2, ..CachePolicy::ALL };
        let mut set = |leaf: &str, text: &str| {
            let (_, part) = PARTS.iter().find(|(name, _)| *name == leaf).expect("in the table");
            part.set(&mut policy, text).map(|()| part.show(policy))
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
