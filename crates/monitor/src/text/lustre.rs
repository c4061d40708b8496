//! Names of lustre_exporter for figures that have an equivalent: `lustre_*` with the labels `component` and
//! `target`. Targets have their full names (`nacre-OST0000`), as Lustre's.

use super::{View, write};
use crate::families::{self, Family, Kind};
use crate::jobs::JobTotals;
use crate::sample::{Row, Value};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use std::fmt;

/// The same figures by the names of lustre_exporter.
#[derive(Debug)]
pub(super) struct Lustre(pub(super) View);

/// Source of a family's rows.
enum Source {
    /// Rows of this family, divided by a number: bytes to kilobytes.
    Rows(&'static str, f64),
    /// Rows of this family whose last label is `read` or `write`.
    Direction(&'static str, &'static str),
    /// Numbers of events in the rows of a histogram or counter, by operation.
    Operations(&'static [&'static str]),
    /// Numbers of events in the rows of one operation.
    Operation(&'static str, &'static str),
    /// Counts of jobs.
    Jobs(fn(&JobTotals) -> u64),
    /// Uses of owners, divided by a number.
    Uses(&'static str, f64),
    /// Limits of owners: of space, divided by 1024, and of inodes.
    Limits(&'static str, &'static str),
}

use Source::{Direction, Jobs, Limits, Operation, Operations, Rows, Uses};

/// Names, kinds, meanings and sources.
const FAMILIES: &[(&str, Kind, &str, Source)] = &[
    ("lustre_capacity_kilobytes", Kind::Gauge, "Size of the target", Rows("nacre_target_size_bytes", 1024.0)),
    ("lustre_free_kilobytes", Kind::Gauge, "Free space", Rows("nacre_target_free_bytes", 1024.0)),
    (
        "lustre_available_kilobytes",
        Kind::Gauge,
        "Free space for ordinary users",
        Rows("nacre_target_available_bytes", 1024.0),
    ),
    (
        "lustre_inodes_maximum",
        Kind::Gauge,
        "Inodes or objects, used and free",
        Rows("nacre_target_inodes", 1.0),
    ),
    ("lustre_inodes_free", Kind::Gauge, "Free inodes or objects", Rows("nacre_target_inodes_free", 1.0)),
    ("lustre_exports", Kind::Counter, "Connected clients", Rows("nacre_target_clients", 1.0)),
    ("lustre_exports_granted", Kind::Counter, "Granted bytes", Rows("nacre_ost_granted_bytes", 1.0)),
    ("lustre_health_check", Kind::Gauge, "1 for a healthy target", Rows("nacre_target_healthy", 1.0)),
    ("lustre_lock_count", Kind::Counter, "Locks", Rows("nacre_locks", 1.0)),
    ("lustre_lock_timeout", Kind::Counter, "Lock timeouts", Rows("nacre_evictions", 1.0)),
    ("lustre_locks_grant", Kind::Counter, "Granted locks", Rows("nacre_lock_grants", 1.0)),
    ("lustre_lock_cancel", Kind::Counter, "Cancelled locks", Rows("nacre_lock_cancels", 1.0)),
    ("lustre_read_bytes", Kind::Counter, "Bytes read", Direction("nacre_ost_transferred_bytes", "read")),
    ("lustre_write_bytes", Kind::Counter, "Bytes written", Direction("nacre_ost_transferred_bytes", "write")),
    ("lustre_read_samples", Kind::Counter, "Reads", Operation("nacre_request_duration_seconds", "ost_read")),
    (
        "lustre_write_samples",
        Kind::Counter,
        "Writes",
        Operation("nacre_request_duration_seconds", "ost_write"),
    ),
    (
        "lustre_stats",
        Kind::Counter,
        "Operations",
        Operations(&["nacre_mdt_operations", "nacre_mount_operation_duration_seconds"]),
    ),
    ("lustre_job_read_bytes", Kind::Counter, "Bytes read by jobs", Jobs(|job| job.read_bytes)),
    ("lustre_job_write_bytes", Kind::Counter, "Bytes written by jobs", Jobs(|job| job.write_bytes)),
    ("lustre_job_read_samples", Kind::Counter, "Reads by jobs", Jobs(|job| job.reads)),
    ("lustre_job_write_samples", Kind::Counter, "Writes by jobs", Jobs(|job| job.writes)),
    ("lustre_quota_used_kbytes", Kind::Gauge, "Space of owners", Uses("nacre_owner_used_bytes", 1024.0)),
    ("lustre_quota_used_inodes", Kind::Gauge, "Inodes of owners", Uses("nacre_owner_inodes", 1.0)),
    (
        "lustre_quota_soft",
        Kind::Gauge,
        "Soft limits of owners",
        Limits("nacre_owner_soft_limit_bytes", "nacre_owner_soft_limit_inodes"),
    ),
    (
        "lustre_quota_hard",
        Kind::Gauge,
        "Hard limits of owners",
        Limits("nacre_owner_hard_limit_bytes", "nacre_owner_hard_limit_inodes"),
    ),
];

impl Collector for Lustre {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (name, kind, help, source) in FAMILIES {
            let metric = if *kind == Kind::Counter { MetricType::Counter } else { MetricType::Gauge };
            let mut encoder = encoder.encode_descriptor(name, &format!("{help}."), None, metric)?;
            let family = Family { name, kind: *kind, labels: &[], help };
            self.rows(&family, source, &mut encoder)?;
        }
        Ok(())
    }
}

impl Lustre {
    fn rows(&self, family: &Family, source: &Source, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        match source {
            Rows(of, unit) => {
                self.each(of, |row, value| self.write(encoder, family, &row.0[0], None, value / unit))
            }
            Direction(of, wanted) | Operation(of, wanted) => {
                self.each(of, |row, value| match row.0[1] == *wanted {
                    true => self.write(encoder, family, &row.0[0], None, value),
                    false => Ok(()),
                })
            }
            Operations(all) => all.iter().try_for_each(|of| {
                self.each(of, |row, value| self.write(encoder, family, &row.0[0], Some(&row.0[1]), value))
            }),
            Jobs(count) if self.0.process.is_none() => self.0.snapshot.jobs.iter().try_for_each(|job| {
                let labels = [("component", "ost"), ("jobid", job.job.as_str())];
                write(encoder, family, &labels, &Value::Number(count(job) as f64))
            }),
            Jobs(_) => Ok(()),
            Uses(of, unit) => self.each(of, |row, value| {
                self.owner(encoder, family, row, &[("component", "mdt")], value / unit)
            }),
            Limits(space, inodes) => {
                let managers = [(space, "dt", 1024.0), (inodes, "md", 1.0)];
                managers.into_iter().try_for_each(|(of, manager, unit)| {
                    let more = [("manager", manager), ("pool", "")];
                    self.each(of, |row, value| self.owner(encoder, family, row, &more, value / unit))
                })
            }
        }
    }

    /// Passes each row of a family with its number; of a histogram, with its number of events.
    fn each(&self, of: &str, mut work: impl FnMut(&Row, f64) -> fmt::Result) -> fmt::Result {
        let Some(family) = families::find(of) else { return Ok(()) };
        for row in self.0.processes().flat_map(|process| process.sample.rows(family)) {
            let number = match &row.1 {
                Value::Number(number) => *number,
                Value::Times(times) => times.count() as f64,
            };
            work(row, number)?;
        }
        Ok(())
    }

    /// Writes a figure of an owner, of the whole file system: the target is the quota master.
    fn owner(
        &self,
        encoder: &mut MetricEncoder<'_>,
        family: &Family,
        row: &Row,
        more: &[(&str, &str)],
        value: f64,
    ) -> fmt::Result {
        let target = format!("{}-QMT0000", self.0.snapshot.fsname);
        let mut labels = vec![("target", target.as_str()), ("accounting", &row.0[0]), ("id", &row.0[1])];
        labels.extend(more);
        write(encoder, family, &labels, &Value::Number(value))
    }

    fn write(
        &self,
        encoder: &mut MetricEncoder<'_>,
        family: &Family,
        subject: &str,
        operation: Option<&str>,
        value: f64,
    ) -> fmt::Result {
        let component = match subject.get(..3) {
            Some("OST") => "ost",
            Some("MDT") => "mdt",
            Some("MGT") => "mgs",
            _ => "client",
        };
        let target = match component {
            "client" => subject.to_owned(),
            _ => format!("{}-{subject}", self.0.snapshot.fsname),
        };
        let mut labels = vec![("component", component), ("target", target.as_str())];
        labels.extend(operation.map(|operation| ("operation", operation)));
        write(encoder, family, &labels, &Value::Number(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_a_source_with_the_labels_that_it_reads() {
        for (name, _, _, source) in FAMILIES {
            let (of, labels) = match source {
                Rows(of, _) => (vec![*of], 1),
                Direction(of, _) | Operation(of, _) => (vec![*of], 2),
                Operations(all) => (all.to_vec(), 2),
                Uses(of, _) => (vec![*of], 2),
                Limits(space, inodes) => (vec![*space, *inodes], 2),
                Jobs(_) => continue,
            };
            for of in of {
                let family = families::find(of).unwrap_or_else(|| panic!("{name} reads {of}"));
                assert_eq!(family.labels.len(), labels, "{name}");
            }
        }
    }
}
