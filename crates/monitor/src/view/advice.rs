//! What goes on in the background, and what needs an administrator: the conditions of
//! `monitoring/alerts.yml` that a moment shows.

use super::{Alert, OwnerView, Rates};
use crate::families;
use crate::sample::{Row, Snapshot, Value};

/// Share of space that is left from which on a target is nearly full.
const NEARLY_FULL: f64 = 0.05;
/// Share of inodes, likewise.
const FEW_INODES: f64 = 0.02;
/// Time before the end of a key from which on it is reported, in seconds.
const KEY_S: f64 = 7.0 * 86400.0;

/// Returns sentences about background work.
pub(super) fn moving(now: &Snapshot, rates: &Rates<'_>) -> Vec<String> {
    let mut all = Vec::new();
    each(now, "nacre_target_recovering", |_, target, value| {
        if value > 0.0 {
            all.push(format!("{target} waits for clients of its previous run to reconnect"));
        }
    });
    for (family, what) in [
        ("nacre_store_defragmented_bytes", "defragments objects"),
        ("nacre_write_cache_flushed_bytes", "writes back from its cache"),
        ("nacre_store_scrubbed_bytes", "reads its data to check it (scrub)"),
    ] {
        each(now, family, |process, target, _| {
            let found = now.processes.iter().find(|found| found.name == process);
            let moved = found.map_or(0.0, |found| rates.growth(found, family, &[target]));
            if moved > 0.0 {
                let rate = rates.per_second(moved) / f64::from(1 << 20);
                all.push(format!("{target} {what}: {rate:.1} MiB/s"));
            }
        });
    }
    all
}

/// Returns what needs an administrator, the critical first.
pub(super) fn alerts(now: &Snapshot, rates: &Rates<'_>, owners: &[OwnerView]) -> Vec<Alert> {
    let mut all = Vec::new();
    for (process, targets) in &now.missing {
        let of = if targets.is_empty() { String::new() } else { format!(" ({})", targets.join(", ")) };
        all.push(critical(
            format!("{process}{of} does not answer"),
            "Operations that need it wait. Read its log; 'nacre up DIR' starts it again.",
        ));
    }
    each(now, "nacre_target_healthy", |_, target, value| {
        if value == 0.0 {
            all.push(critical(
                format!("{target} loses new changes, or may"),
                "Its disk failed to make data durable: read its log, check the disk, then run 'nacre check'.",
            ));
        }
    });
    each(now, "nacre_check_problems", |_, target, value| {
        if value > 0.0 {
            all.push(critical(
                format!("{target} is damaged in {value} places"),
                "'nacre status' names them; 'nacre check DIR --repair' repairs what it can.",
            ));
        }
    });
    space(now, &mut all);
    grown(now, rates, &mut all);
    each_of_two(now, "nacre_connection_up", |mount, target, value| {
        if value == 0.0 {
            all.push(warning(
                format!("The mount {mount} has lost {target}"),
                "Its operations wait: check the server and the network ('lfs check all').",
            ));
        }
    });
    for process in &now.processes {
        let end_s = process.sample.number("nacre_key_expires_timestamp_seconds", &[]);
        if let Some(left_s) =
            end_s.map(|end_s| end_s - now.at_ms as f64 / 1e3).filter(|left_s| *left_s < KEY_S)
        {
            all.push(warning(
                format!("The key of {} expires in {:.0} hours", process.name, left_s / 3600.0),
                "Keys are renewed while the MGS is reachable: check that, or enrol a new one ('nacre key token').",
            ));
        }
    }
    for owner in owners.iter().filter(|owner| owner.is_over()) {
        all.push(warning(
            format!("The {} {} is above a soft limit", owner.kind, owner.name),
            "After the grace time ('lfs quota') its writes are refused: remove files, or raise it ('lfs setquota').",
        ));
    }
    all.sort_by_key(|alert| alert.severity);
    all
}

fn space(now: &Snapshot, all: &mut Vec<Alert>) {
    for process in &now.processes {
        for target in &process.targets {
            let number = |name: &str| process.sample.number(name, &[target]);
            let share =
                |part: &str, whole: &str| Some(number(part)? / number(whole).filter(|whole| *whole > 0.0)?);
            let space = share("nacre_target_available_bytes", "nacre_target_size_bytes");
            if let Some(left) = space.filter(|left| *left < NEARLY_FULL) {
                all.push(warning(
                    format!("{target} has {:.1} % of its space left", left * 100.0),
                    "Remove files, add a target ('nacre target add'), or move data to others ('nacre rebalance').",
                ));
            }
            let inodes = share("nacre_target_inodes_free", "nacre_target_inodes");
            if let Some(left) = inodes.filter(|left| *left < FEW_INODES) {
                all.push(warning(
                    format!("{target} has {:.1} % of its inodes left", left * 100.0),
                    "Remove files, or add a target of this kind ('nacre target add').",
                ));
            }
        }
    }
}

/// Adds alerts about counters that should not grow.
fn grown(now: &Snapshot, rates: &Rates<'_>, all: &mut Vec<Alert>) {
    type Make = fn(String, &'static str) -> Alert;
    const COUNTERS: &[(&str, Make, &str, &str)] = &[
        (
            "nacre_store_checksum_errors",
            critical,
            "has blocks with wrong checksums",
            "Its log names the objects: restore the files, and check the device.",
        ),
        (
            "nacre_store_sync_failures",
            critical,
            "cannot make data durable",
            "Check the disk (dmesg, smartctl), and the log of the target.",
        ),
        (
            "nacre_store_refused_full",
            critical,
            "refuses writes: it is full",
            "Remove files, or move data to other OSTs ('nacre rebalance').",
        ),
        (
            "nacre_mount_write_back_failures",
            critical,
            "lost data that it held back",
            "Programs got EIO; the log of the mount names the files: write them again.",
        ),
        (
            "nacre_evictions",
            warning,
            "evicted a client",
            "The client did not answer in time: its log and that of the target name the reason.",
        ),
        ("nacre_request_failures", warning, "fails requests", "Its log names files, clients and reasons."),
    ];
    for (family, make, text, action) in COUNTERS {
        each(now, family, |process, subject, _| {
            let found = now.processes.iter().find(|found| found.name == process);
            if found.is_some_and(|found| rates.growth(found, family, &[subject]) > 0.0) {
                all.push(make(format!("{subject} {text}"), action));
            }
        });
    }
    for process in &now.processes {
        if rates.growth(process, "nacre_log_messages", &["error"]) > 0.0 {
            all.push(warning(
                format!("The log of {} has new errors", process.name),
                "An error means that an administrator has to act: read DIR/run/NAME.log.",
            ));
        }
    }
}

fn critical(text: String, action: &'static str) -> Alert {
    Alert { severity: "critical", text, action: action.to_owned() }
}

fn warning(text: String, action: &'static str) -> Alert {
    Alert { severity: "warning", text, action: action.to_owned() }
}

/// Passes the process, the label and the number of each row of a family with one label.
fn each(now: &Snapshot, name: &str, mut work: impl FnMut(&str, &str, f64)) {
    let Some(family) = families::find(name) else { return };
    for process in &now.processes {
        for row in process.sample.rows(family) {
            if let Row(labels, Value::Number(number)) = row
                && let [label] = labels.as_slice()
            {
                work(&process.name, label, *number);
            }
        }
    }
}

fn each_of_two(now: &Snapshot, name: &str, mut work: impl FnMut(&str, &str, f64)) {
    let Some(family) = families::find(name) else { return };
    for row in now.processes.iter().flat_map(|process| process.sample.rows(family)) {
        if let Row(labels, Value::Number(number)) = row
            && let [one, other] = labels.as_slice()
        {
            work(one, other, *number);
        }
    }
}
