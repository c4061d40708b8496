//! Bandwidth of all repetitions, in IOR's form and as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use super::plan::Plan;
use super::task::{Access, Times};

const MIB: f64 = (1 << 20) as f64;

/// One phase of one repetition, all tasks together. Field names as in IOR's JSON.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Line {
    access: &'static str,
    #[serde(rename = "bwMiB")]
    bandwidth_mib: f64,
    #[serde(rename = "blockKiB")]
    block_kib: f64,
    #[serde(rename = "xferKiB")]
    transfer_kib: f64,
    iops: f64,
    latency: f64,
    open_time: f64,
    wr_rd_time: f64,
    close_time: f64,
    total_time: f64,
    #[serde(rename = "iter")]
    repetition: u64,
    bytes: u64,
    transfers: u64,
    /// Transfers whose data differed from what was written.
    errors: u64,
}

impl Line {
    /// Aggregates the tasks' times by IOR's definitions: bandwidth over the time from the first open to the
    /// last close, operations per second over the time of the transfers, latency of the task with the best
    /// mean.
    pub(super) fn new(access: Access, plan: &Plan, times: &[Times], repetition: u64) -> Line {
        let seconds = |of: fn(&Times) -> (u64, u64)| {
            let start = times.iter().map(|times| of(times).0).min().unwrap_or(0);
            let end = times.iter().map(|times| of(times).1).max().unwrap_or(0);
            (end - start) as f64 / 1e9
        };
        let transfers: u64 = times.iter().map(|times| times.transfers).sum();
        let bytes = transfers * plan.transfer;
        let (total_time, wr_rd_time) =
            (seconds(|times| (times.open_ns.0, times.close_ns.1)), seconds(|times| times.access_ns));
        let latencies = times
            .iter()
            .filter(|times| times.transfers > 0)
            .map(|times| (times.access_ns.1 - times.access_ns.0) as f64 / 1e9 / times.transfers as f64);
        Line {
            access: if access == Access::Write { "write" } else { "read" },
            bandwidth_mib: bytes as f64 / MIB / total_time.max(1e-9),
            block_kib: plan.block as f64 / 1024.0,
            transfer_kib: plan.transfer as f64 / 1024.0,
            iops: transfers as f64 / wr_rd_time.max(1e-9),
            latency: latencies.reduce(f64::min).unwrap_or(0.0),
            open_time: seconds(|times| times.open_ns),
            wr_rd_time,
            close_time: seconds(|times| times.close_ns),
            total_time,
            repetition,
            bytes,
            transfers,
            errors: times.iter().map(|times| times.errors).sum(),
        }
    }

    /// Returns `write` or `read`, and bytes per second.
    pub(super) fn bandwidth(&self) -> (&'static str, f64) {
        (self.access, self.bandwidth_mib * MIB)
    }

    /// Returns the number of transfers whose data differed from what was written.
    pub(super) fn errors(&self) -> u64 {
        self.errors
    }

    /// Returns the row of the table, with its line end.
    pub(super) fn row(&self) -> String {
        let mut text = format!("{:<10}", self.access);
        for value in [self.bandwidth_mib, self.iops] {
            let _ = write!(text, "{} ", number(value));
        }
        let _ = write!(text, "{}  ", number(self.latency));
        for value in [
            self.block_kib,
            self.transfer_kib,
            self.open_time,
            self.wr_rd_time,
            self.close_time,
            self.total_time,
        ] {
            let _ = write!(text, "{} ", number(value));
        }
        let _ = writeln!(text, "{:<4}", self.repetition);
        text
    }
}

/// Formats a number like IOR: ten characters, with as many decimals as its size allows.
fn number(value: f64) -> String {
    match value {
        value if value < 1.0 => format!("{value:<10.6}"),
        value if value < 3600.0 => format!("{value:<10.2}"),
        value => format!("{value:<10.0}"),
    }
}

/// Head of the table.
pub(super) const HEADING: &str = "\
access    bw(MiB/s)  IOPS       Latency(s)  block(KiB) xfer(KiB)  open(s)    wr/rd(s)   close(s)   total(s)   iter
------    ---------  ----       ----------  ---------- ---------  --------   --------   --------   --------   ----
";

/// All repetitions of one access.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Summary {
    operation: &'static str,
    #[serde(rename = "bwMaxMIB")]
    max_mib: f64,
    #[serde(rename = "bwMinMIB")]
    min_mib: f64,
    #[serde(rename = "bwMeanMIB")]
    mean_mib: f64,
    #[serde(rename = "bwStdMIB")]
    deviation_mib: f64,
    #[serde(rename = "MeanTime")]
    mean_time: f64,
    #[serde(skip)]
    per_transfer: f64,
}

impl Summary {
    /// Summarises the lines of `operation`; `None` if there are none.
    pub(super) fn new(operation: &'static str, plan: &Plan, lines: &[Line]) -> Option<Summary> {
        let of: Vec<&Line> = lines.iter().filter(|line| line.access == operation).collect();
        let bandwidths: Vec<f64> = of.iter().map(|line| line.bandwidth_mib).collect();
        let count = bandwidths.len() as f64;
        let mean_mib = bandwidths.iter().sum::<f64>() / count;
        let squares: f64 = bandwidths.iter().map(|value| (value - mean_mib).powi(2)).sum();
        Some(Summary {
            operation,
            max_mib: bandwidths.iter().copied().reduce(f64::max)?,
            min_mib: bandwidths.iter().copied().reduce(f64::min)?,
            mean_mib,
            // Deviation of the population rather than of a sample, as in IOR.
            deviation_mib: (squares / count).sqrt(),
            mean_time: of.iter().map(|line| line.total_time).sum::<f64>() / count,
            per_transfer: MIB / plan.transfer as f64,
        })
    }
}

/// Parameters of the run in the columns on the right.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shown {
    pub(super) repetitions: u64,
    pub(super) reorder: u8,
    pub(super) distance: u64,
    pub(super) reorder_random: u8,
    pub(super) seed: u64,
}

/// Returns the last table.
pub(super) fn summary(summaries: &[Summary], plan: &Plan, shown: Shown) -> String {
    let mut text = "\nSummary of all tests:\n\
        Operation   Max(MiB)   Min(MiB)  Mean(MiB)     StdDev   Max(OPs)   Min(OPs)  Mean(OPs)     StdDev    Mean(s) \
        Stonewall(s) Stonewall(MiB) Test# #Tasks tPN reps fPP reord reordoff reordrand seed segcnt   blksiz    xsize \
        aggs(MiB)   API RefNum\n"
        .to_owned();
    for one in summaries {
        let _ = write!(text, "{:<9} ", one.operation);
        let columns = [one.max_mib, one.min_mib, one.mean_mib, one.deviation_mib];
        for value in columns.into_iter().chain(columns.map(|value| value * one.per_transfer)) {
            let _ = write!(text, "{value:>10.2} ");
        }
        let _ = writeln!(
            text,
            "{:>10.5} {:>10} {:>13} {:>5} {:>6} {:>3} {:>4} {:>3} {:>5} {:>8} {:>9} {:>4} {:>6} {:>8} {:>8} {:>9.1} POSIX {:>6}",
            one.mean_time,
            "NA",
            "NA",
            0,
            plan.tasks,
            plan.tasks,
            shown.repetitions,
            u8::from(plan.file_per_task),
            shown.reorder,
            shown.distance,
            shown.reorder_random,
            shown.seed,
            plan.segments,
            plan.block,
            plan.transfer,
            plan.bytes() as f64 / MIB,
            0
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: Plan =
        Plan { transfer: 1 << 20, block: 4 << 20, segments: 4, tasks: 2, file_per_task: true, random: None };

    fn times(start: u64) -> Times {
        let ms = |from: u64, to: u64| (start + from * 1_000_000, start + to * 1_000_000);
        Times { open_ns: ms(0, 1), access_ns: ms(1, 9), close_ns: ms(9, 10), transfers: 16, errors: 0 }
    }

    #[test]
    fn bandwidth_is_from_the_first_open_to_the_last_close() {
        let line = Line::new(Access::Write, &PLAN, &[times(0), times(6_000_000)], 3);
        assert_eq!(line.bandwidth_mib, 32.0 / 0.016);
        assert_eq!(line.iops, 32.0 / 0.014);
        assert_eq!(line.latency, 0.0005);
        assert_eq!((line.open_time, line.close_time), (0.007, 0.007));
        assert_eq!(
            line.row(),
            "write     2000.00    2285.71    0.000500    4096       1024.00    0.007000   0.014000   0.007000   0.016000   3   \n"
        );
    }

    #[test]
    fn numbers_have_the_decimals_that_their_size_needs() {
        assert_eq!(number(0.028_007), "0.028007  ");
        assert_eq!(number(1140.447), "1140.45   ");
        assert_eq!(number(4096.0), "4096      ");
    }

    #[test]
    fn the_summary_has_iors_form() {
        let line = |bandwidth_mib, total_time| Line {
            bandwidth_mib,
            total_time,
            ..Line::new(Access::Write, &PLAN, &[times(0)], 0)
        };
        let lines = [line(1324.72, 0.024_156), line(1140.45, 0.028_059)];
        let summaries: Vec<Summary> =
            ["write", "read"].into_iter().filter_map(|name| Summary::new(name, &PLAN, &lines)).collect();
        let shown = Shown { repetitions: 2, reorder: 1, distance: 1, reorder_random: 0, seed: 0 };
        let text = summary(&summaries, &PLAN, shown);
        let golden = "
Summary of all tests:
Operation   Max(MiB)   Min(MiB)  Mean(MiB)     StdDev   Max(OPs)   Min(OPs)  Mean(OPs)     StdDev    Mean(s) Stonewall(s) Stonewall(MiB) Test# #Tasks tPN reps fPP reord reordoff reordrand seed segcnt   blksiz    xsize aggs(MiB)   API RefNum
write        1324.72    1140.45    1232.59      92.13    1324.72    1140.45    1232.59      92.13    0.02611         NA            NA     0      2   2    2   1     1        1         0    0      4  4194304  1048576      32.0 POSIX      0
";
        assert_eq!(text, golden);
    }
}
