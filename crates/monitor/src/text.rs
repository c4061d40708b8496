//! The OpenMetrics text of a snapshot.

use crate::families::{FAMILIES, Family, Kind};
use crate::jobs::JobTotals;
use crate::sample::{ProcessSample, Row, Snapshot, TIME_BOUNDS_S, Times, Value};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;

mod lustre;

/// Names of the metrics in the text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Names {
    /// Those of this program.
    Own,
    /// In addition those of lustre_exporter, where there is an equivalent.
    Lustre,
}

/// Returns the text of a snapshot: of all processes, or of the one with this name.
///
/// # Errors
/// Never: writing to a string cannot fail.
pub fn render(snapshot: &Arc<Snapshot>, process: Option<&str>, names: Names) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    let view = View { snapshot: snapshot.clone(), process: process.map(str::to_owned) };
    if names == Names::Lustre {
        registry.register_collector(Box::new(lustre::Lustre(view.clone())));
    }
    registry.register_collector(Box::new(view));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}

/// Processes of a snapshot.
#[derive(Clone, Debug)]
struct View {
    snapshot: Arc<Snapshot>,
    /// The only process to show.
    process: Option<String>,
}

impl View {
    fn processes(&self) -> impl Iterator<Item = &ProcessSample> {
        self.snapshot.processes.iter().filter(|process| self.shows(&process.name))
    }

    fn shows(&self, name: &str) -> bool {
        self.process.as_ref().is_none_or(|only| only == name)
    }

    /// Writes the rows of a family that processes have, and those about the processes.
    fn rows(&self, family: &'static Family, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        for process in self.processes() {
            for Row(values, value) in process.sample.rows(family) {
                let mut labels: Vec<(&str, &str)> = vec![("process", process.name.as_str())];
                labels.extend(family.labels.iter().copied().zip(values.iter().map(AsRef::as_ref)));
                write(encoder, family, &labels, value)?;
            }
        }
        match family.name {
            "nacre_process_up" | "nacre_target_up" => self.presence(family, encoder),
            "nacre_job_operations" => self.jobs(family, encoder, |job| {
                [
                    ("metadata", job.metadata),
                    ("read", job.reads),
                    ("write", job.writes),
                    ("object", job.objects),
                ]
            }),
            "nacre_job_transferred_bytes" => {
                self.jobs(family, encoder, |job| [("read", job.read_bytes), ("write", job.write_bytes)])
            }
            "nacre_gather_duration_seconds" if self.process.is_none() => {
                encoder.encode_gauge(&self.snapshot.took_s)
            }
            _ => Ok(()),
        }
    }

    fn presence(&self, family: &'static Family, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        let there = self.processes().map(|process| (&process.name, &process.targets, 1.0));
        let missing = self.snapshot.missing.iter().filter(|(name, _)| self.shows(name));
        for (name, targets, value) in there.chain(missing.map(|(name, targets)| (name, targets, 0.0))) {
            match family.labels {
                [] => write(encoder, family, &[("process", name)], &Value::Number(value))?,
                _ => targets.iter().try_for_each(|target| {
                    write(encoder, family, &[("process", name), ("target", target)], &Value::Number(value))
                })?,
            }
        }
        Ok(())
    }

    fn jobs<const N: usize>(
        &self,
        family: &'static Family,
        encoder: &mut MetricEncoder<'_>,
        counts: impl Fn(&JobTotals) -> [(&'static str, u64); N],
    ) -> fmt::Result {
        if self.process.is_some() {
            return Ok(());
        }
        self.snapshot.jobs.iter().try_for_each(|job| {
            counts(job).into_iter().try_for_each(|(kind, count)| {
                let labels = [("jobid", job.job.as_str()), (family.labels[1], kind)];
                write(encoder, family, &labels, &Value::Number(count as f64))
            })
        })
    }
}

impl Collector for View {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in FAMILIES {
            let kind = match family.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Times => MetricType::Histogram,
            };
            let mut encoder =
                encoder.encode_descriptor(family.name, &format!("{}.", family.help), None, kind)?;
            self.rows(family, &mut encoder)?;
        }
        Ok(())
    }
}

fn write(
    encoder: &mut MetricEncoder<'_>,
    family: &Family,
    labels: &[(&str, &str)],
    value: &Value,
) -> fmt::Result {
    let mut encoder = encoder.encode_family(&labels)?;
    match (family.kind, value) {
        (Kind::Counter, Value::Number(number)) => encoder.encode_counter::<NoLabelSet, _, f64>(number, None),
        (Kind::Gauge, Value::Number(number)) => encoder.encode_gauge(number),
        (Kind::Times, Value::Times(times)) => write_times(&mut encoder, times),
        // Of another version.
        _ => Ok(()),
    }
}

fn write_times(encoder: &mut MetricEncoder<'_>, times: &Times) -> fmt::Result {
    let bounds = TIME_BOUNDS_S.into_iter().chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(times.counts.iter().copied()).collect();
    encoder.encode_histogram::<NoLabelSet>(times.sum_s, times.count(), &buckets, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn snapshot(jobs: Vec<JobTotals>) -> Arc<Snapshot> {
        let mut ost = ProcessSample {
            name: "ost0000".to_owned(),
            targets: vec!["OST0000".to_owned()],
            ..ProcessSample::default()
        };
        ost.sample.put("nacre_target_size_bytes", &["OST0000"], 4096.0);
        ost.sample.put_kind("nacre_ost_transferred_bytes", "OST0000", "read", 7.0);
        let mut counts = vec![0; TIME_BOUNDS_S.len() + 1];
        (counts[0], counts[11]) = (2, 1);
        ost.sample.put_times(
            "nacre_request_duration_seconds",
            "OST0000",
            "ost_read",
            Times { counts, sum_s: 0.25 },
        );
        Arc::new(Snapshot {
            fsname: "nacre".to_owned(),
            processes: vec![ost],
            missing: vec![("mdt0000".to_owned(), vec!["MDT0000".to_owned()])],
            jobs,
            ..Snapshot::default()
        })
    }

    #[test]
    fn the_text_has_rows_of_all_processes_and_of_those_that_are_missing() {
        let job = JobTotals { job: "a\"b".to_owned(), reads: 3, ..JobTotals::default() };
        let text = render(&snapshot(vec![job]), None, Names::Own).expect("text");
        for line in [
            "nacre_target_size_bytes{process=\"ost0000\",target=\"OST0000\"} 4096.0",
            "nacre_ost_transferred_bytes_total{process=\"ost0000\",target=\"OST0000\",direction=\"read\"} 7.0",
            "nacre_target_up{process=\"ost0000\",target=\"OST0000\"} 1.0",
            "nacre_target_up{process=\"mdt0000\",target=\"MDT0000\"} 0.0",
            "nacre_process_up{process=\"mdt0000\"} 0.0",
            "nacre_job_operations_total{jobid=\"a\\\"b\",operation=\"read\"} 3.0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
        let bucket = |bound: &str, count: u64| {
            let row = "nacre_request_duration_seconds_bucket{le=\"";
            let line = format!(
                "{row}{bound}\",process=\"ost0000\",target=\"OST0000\",operation=\"ost_read\"}} {count}"
            );
            assert!(text.contains(&line), "{line} in\n{text}");
        };
        bucket("0.000016", 2);
        bucket("16.777216", 2);
        bucket("+Inf", 3);
        assert!(text.ends_with("# EOF\n") && !text.contains("lustre_"));
        let one = render(&snapshot(Vec::new()), Some("mdt0000"), Names::Own).expect("text");
        assert!(
            one.contains("nacre_process_up{process=\"mdt0000\"} 0.0") && !one.contains("OST0000"),
            "{one}"
        );
    }

    proptest! {
        #[test]
        fn no_name_of_a_job_breaks_a_line(name in "\\PC{0,40}|[\\x00-\\x7f]{0,40}") {
            let job = JobTotals { job: name, reads: 3, ..JobTotals::default() };
            let text = render(&snapshot(vec![job]), None, Names::Lustre).expect("text");
            let plain = render(&snapshot(vec![JobTotals { job: "x".to_owned(), ..JobTotals::default() }]), None, Names::Lustre).expect("text");
            prop_assert_eq!(text.lines().count(), plain.lines().count());
        }
    }
}
