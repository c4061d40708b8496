//! Parameters of a mount that concern reading ahead: `llite.*`.

use nacre_client::{Client, Tunables};
use nacre_fuse::front::Front;
use nacre_fuse::front::extents::ExtentsReport;
use nacre_params::{Tree, value};
use nacre_types::{Status, StatusResult};
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// A parameter that is a number.
struct Number {
    leaf: &'static str,
    get: fn(&Tunables) -> u64,
    set: fn(&Tunables, u64) -> StatusResult<()>,
    /// It is a size, counted in MiB unless a suffix says otherwise.
    is_size: bool,
}

/// The numbers, by name.
const NUMBERS: &[Number] = &[
    Number {
        leaf: "max_read_ahead_mb",
        get: Tunables::max_read_ahead_mb,
        set: Tunables::set_max_read_ahead_mb,
        is_size: true,
    },
    Number {
        leaf: "max_read_ahead_per_file_mb",
        get: Tunables::max_read_ahead_per_file_mb,
        set: |tunables, mb| {
            tunables.set_max_read_ahead_per_file_mb(mb);
            Ok(())
        },
        is_size: true,
    },
    Number {
        leaf: "max_read_ahead_whole_mb",
        get: Tunables::max_read_ahead_whole_mb,
        set: Tunables::set_max_read_ahead_whole_mb,
        is_size: true,
    },
    Number {
        leaf: "max_read_ahead_async_active",
        get: |tunables| tunables.max_read_ahead_async_active().into(),
        set: |tunables, number| tunables.set_max_read_ahead_async_active(narrow(number)?),
        is_size: false,
    },
    Number {
        leaf: "statahead_max",
        get: |tunables| tunables.statahead_max().into(),
        set: |tunables, number| tunables.set_statahead_max(narrow(number)?),
        is_size: false,
    },
    Number {
        leaf: "statahead_batch_max",
        get: |tunables| tunables.statahead_batch_max().into(),
        set: |tunables, number| tunables.set_statahead_batch_max(narrow(number)?),
        is_size: false,
    },
];

type Threshold = (&'static str, fn(&Tunables) -> u64, fn(&Tunables, u64));

/// From which size on a call is large.
const HYBRID_THRESHOLDS: [Threshold; 2] = [
    (
        "hybrid_io_write_threshold_bytes",
        Tunables::hybrid_io_write_threshold_bytes,
        Tunables::set_hybrid_io_write_threshold_bytes,
    ),
    (
        "hybrid_io_read_threshold_bytes",
        Tunables::hybrid_io_read_threshold_bytes,
        Tunables::set_hybrid_io_read_threshold_bytes,
    ),
];

/// Enters the parameters below `below`.
pub fn enter(tree: &Tree, below: &str, client: &Arc<Client>) {
    for number in NUMBERS {
        let (get, set) = (client.clone(), client.clone());
        tree.add_both(
            &format!("{below}.{}", number.leaf),
            move || Ok((number.get)(&get.tunables).to_string()),
            move |text| set_number(&set.tunables, number, text),
        );
    }
    let (get, clear) = (client.clone(), client.clone());
    tree.add_both(
        &format!("{below}.read_ahead_stats"),
        move || Ok(get.read_ahead.read_ahead_report()),
        move |_| {
            clear.read_ahead.read_ahead_stats().clear();
            Ok(())
        },
    );
    let get = client.clone();
    tree.add_read(&format!("{below}.statahead_stats"), move || Ok(get.statahead.statahead_report()));
    let (get, set) = (client.clone(), client.clone());
    tree.add_both(
        &format!("{below}.max_cached_mb"),
        move || Ok(get.write_back.cached_report()),
        move |text| {
            // As it is shown, or the number alone.
            let number = text.strip_prefix("max_cached_mb:").map_or(text, str::trim);
            set.write_back.set_max_cached_mb(value::bytes(number, MIB)? / MIB)
        },
    );
    let (get, set) = (client.clone(), client.clone());
    tree.add_both(
        &format!("{below}.parallel_io"),
        move || Ok(get.tunables.parallel_io().name().to_owned()),
        move |text| {
            set.write_back.set_parallel_io(text.parse()?);
            Ok(())
        },
    );
    let (get, set) = (client.clone(), client.clone());
    tree.add_both(
        &format!("{below}.hybrid_io"),
        move || Ok(u8::from(get.tunables.hybrid_io()).to_string()),
        move |text| {
            set.tunables.set_hybrid_io(value::truth(text)?);
            Ok(())
        },
    );
    for (leaf, get, set) in HYBRID_THRESHOLDS {
        let (reader, writer) = (client.clone(), client.clone());
        tree.add_both(
            &format!("{below}.{leaf}"),
            move || Ok(get(&reader.tunables).to_string()),
            move |text| {
                set(&writer.tunables, value::bytes(text, 1)?);
                Ok(())
            },
        );
    }
    let get = client.clone();
    tree.add_read(&format!("{below}.parallel_io_stats"), move || {
        Ok(format!("divided                   {}\n", get.tunables.divided()))
    });
    enter_write_back(tree, below, client);
}

/// Enters the reports of reads and writes by size and position below `below`.
pub fn enter_extents(tree: &Tree, below: &str, front: &Arc<Front>) {
    let reports = [
        ("extents_stats", ExtentsReport::All),
        ("extents_stats_per_process", ExtentsReport::PerProcess),
        ("offset_stats", ExtentsReport::Offsets),
    ];
    for (leaf, report) in reports {
        let (get, set) = (front.clone(), front.clone());
        tree.add_both(
            &format!("{below}.{leaf}"),
            move || Ok(get.stats().extents().text(report)),
            move |text| {
                set.stats().extents().set(report, text);
                Ok(())
            },
        );
    }
}

/// Longest time that a write is held back, in milliseconds.
const AGE_MS_MAX: i64 = 600_000;
/// More than all CPUs: large writes are never held back.
const IDLE_NEVER: i64 = 101;

/// Streams of writes that are gathered before they are sent.
fn enter_write_back(tree: &Tree, below: &str, client: &Arc<Client>) {
    let (get, set) = (client.clone(), client.clone());
    tree.add_both(
        &format!("{below}.write_back"),
        move || Ok(u8::from(get.write_back.settings.is_enabled()).to_string()),
        move |text| {
            set.write_back.settings.set_enabled(value::truth(text)?);
            Ok(())
        },
    );
    let (get, set) = (client.clone(), client.clone());
    tree.add_both(
        &format!("{below}.write_back_age_ms"),
        move || Ok(get.write_back.settings.age().as_millis().to_string()),
        move |text| {
            let age_ms = value::integer(text, 1, AGE_MS_MAX)?;
            set.write_back.settings.set_age(Duration::from_millis(age_ms as u64));
            Ok(())
        },
    );
    let (get, set) = (client.clone(), client.clone());
    tree.add_both(
        &format!("{below}.write_back_idle_percent"),
        move || Ok(get.write_back.settings.idle_per_cent().to_string()),
        move |text| {
            let per_cent = value::integer(text, 0, IDLE_NEVER)?;
            set.write_back.settings.set_idle_per_cent(per_cent as u32);
            Ok(())
        },
    );
    let get = client.clone();
    tree.add_read(&format!("{below}.write_back_stats"), move || {
        let stats = get.write_back.write_back_stats();
        let rows = [
            ("dirty_bytes", stats.dirty_bytes),
            ("buffer_bytes", stats.buffer_bytes),
            ("in_flight_bytes", stats.in_flight_bytes),
            ("grant_bytes", stats.grant_bytes),
            ("rpcs", stats.rpcs),
            ("full_rpcs", stats.full_rpcs),
            ("sent_bytes", stats.sent_bytes),
            ("waits", stats.waits),
            ("failures", stats.failures),
        ];
        Ok(rows.iter().map(|(name, value)| format!("{name:<25} {value}\n")).collect())
    });
}

fn narrow(number: u64) -> StatusResult<u32> {
    u32::try_from(number).map_err(|_| Status::ERANGE)
}

fn set_number(tunables: &Tunables, number: &Number, text: &str) -> StatusResult<()> {
    let parsed = match number.is_size {
        true => value::bytes(text, MIB)? / MIB,
        false => value::integer(text, 0, i64::MAX)? as u64,
    };
    (number.set)(tunables, parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_count_in_mebibytes_and_ranges_are_checked() {
        let tunables = Tunables::new(10_000, 2);
        let set = |leaf: &str, text: &str| {
            let number = NUMBERS.iter().find(|number| number.leaf == leaf).expect("in the table");
            set_number(&tunables, number, text).map(|()| (number.get)(&tunables))
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
