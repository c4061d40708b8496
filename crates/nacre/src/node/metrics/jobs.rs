//! Counts of jobs at targets.

use nacre_monitor::JobTotals;
use nacre_params::{Event, JobStats};
use nacre_types::JobId;
use std::collections::HashMap;

/// Most jobs that a process reports.
const REPORTED_MAX: usize = 1000;

/// Returns the counts of the jobs of an OST.
pub fn of_ost(stats: &JobStats) -> Vec<JobTotals> {
    totals(stats, |totals, event, (count, sum)| match event.name {
        "read_bytes" => (totals.reads, totals.read_bytes) = (count, sum),
        "write_bytes" => (totals.writes, totals.write_bytes) = (count, sum),
        // The same requests again, with their times.
        "read" | "write" => {}
        _ => totals.objects += count,
    })
}

/// Returns the counts of the jobs of an MDT.
pub fn of_mdt(stats: &JobStats) -> Vec<JobTotals> {
    totals(stats, |totals, event, (count, _)| {
        // Renames count in two rows.
        if !matches!(event.name, "samedir_rename" | "crossdir_rename") {
            totals.metadata += count;
        }
    })
}

fn totals(stats: &JobStats, add: impl Fn(&mut JobTotals, &Event, (u64, u64))) -> Vec<JobTotals> {
    let of = |(job, rows): (JobId, Vec<(u64, u64)>)| {
        let mut totals = JobTotals { job: label(&job), ..JobTotals::default() };
        stats.events().iter().zip(rows).for_each(|(event, row)| add(&mut totals, event, row));
        totals
    };
    stats.totals().into_iter().map(of).collect()
}

/// Returns a job's name in printable ASCII: it is shown in pages and terminals, and any user chooses it.
fn label(job: &JobId) -> String {
    job.as_bytes().escape_ascii().to_string()
}

/// Sums up the counts of each job at several targets, and leaves out all but the busiest.
pub fn bounded(all: Vec<JobTotals>) -> Vec<JobTotals> {
    let mut sums: HashMap<String, JobTotals> = HashMap::new();
    for totals in all {
        sums.entry(totals.job.clone()).and_modify(|sum| sum.add(&totals)).or_insert(totals);
    }
    let mut sums: Vec<JobTotals> = sums.into_values().collect();
    sums.sort_by_key(|totals| std::cmp::Reverse(totals.weight()));
    sums.truncate(REPORTED_MAX);
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_summed_up_by_kind_and_the_busiest_come_first() {
        const EVENTS: &[Event] = &[
            Event { name: "read_bytes", unit: "bytes" },
            Event { name: "read", unit: "usecs" },
            Event { name: "punch", unit: "usecs" },
        ];
        let (first, second) = (JobStats::new(EVENTS), JobStats::new(EVENTS));
        let job = |name: &[u8]| JobId::new(name).expect("a name");
        first.count(&job(b"dd.0"), &[(0, 4096), (1, 7), (2, 1)]);
        second.count(&job(b"dd.0"), &[(0, 100)]);
        second.count(&job(b"x\x80\""), &[(2, 1)]);
        let all = bounded([of_ost(&first), of_ost(&second)].concat());
        let expected = JobTotals {
            job: "dd.0".to_owned(),
            reads: 2,
            read_bytes: 4196,
            objects: 1,
            ..JobTotals::default()
        };
        assert_eq!(all[0], expected);
        assert_eq!((all[1].job.as_str(), all[1].objects), ("x\\x80\\\"", 1));
    }
}
