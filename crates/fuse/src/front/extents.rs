//! Reads and writes by size and by position: `llite.*.extents_stats`, `extents_stats_per_process` and
//! `offset_stats`.
//!
//! While any of them is enabled, requests of the kernel are counted: a program's calls that the kernel split,
//! merged or answered from its page cache appear in that form. Disabled, the cost is one read of a flag per
//! request.

use nacre_env::sync::Mutex;
use nacre_params::stats::{now_ns, times};
use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};

/// Programs that are distinguished, and rows of past runs; Lustre's numbers.
const PROCESSES: usize = 10;
const OFFSETS: usize = 100;
/// Rows of a histogram: below 4 KiB, then doubling, the last one unbounded.
const ROWS: usize = 28;
/// Upper bound of the first row, as a power of two in bytes.
const FIRST_ROW_BITS: u32 = 12;
const TIMES: [&str; 3] = ["snapshot_time:", "start_time:", "elapsed_time:"];
const DISABLED: &str = "disabled\n  set it to 1 to count, to 0 or 'disabled' to stop\n";

/// Direction of data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    Read = 0,
    Write = 1,
}

/// Requests by size, separately for reads and writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sizes([[u64; ROWS]; 2]);

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes([[0; ROWS]; 2])
    }
}

/// Returns the row of a size: sizes below 4 KiB are in the first, a power of two begins a row.
fn row_of(bytes: u64) -> usize {
    let bits = u64::BITS - bytes.leading_zeros();
    (bits.saturating_sub(FIRST_ROW_BITS) as usize).min(ROWS - 1)
}

/// A run of consecutive requests of one program in one file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    way: Way,
    pid: u32,
    file: u64,
    start: u64,
    end: u64,
    smallest: u64,
    largest: u64,
    /// Distance from the end of the previous run to the start of this one, in bytes.
    jump: i64,
}

#[derive(Default)]
struct Counted {
    all: Sizes,
    all_since_ns: u64,
    /// Least recently seen programs in front.
    processes: VecDeque<(u32, Sizes)>,
    processes_since_ns: u64,
    /// Finished runs, oldest first.
    ended: VecDeque<Run>,
    /// Current run of each program, least recently seen in front.
    current: VecDeque<Run>,
    offsets_since_ns: u64,
}

/// Selects one of the three reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtentsReport {
    /// `extents_stats`.
    All,
    /// `extents_stats_per_process`.
    PerProcess,
    /// `offset_stats`.
    Offsets,
}

/// See the [module documentation](self).
#[derive(Default)]
pub struct ExtentsStats {
    is_on: AtomicBool,
    counted: Mutex<Counted>,
}

impl ExtentsStats {
    /// Counts a request, if counting is enabled.
    pub(super) fn count(&self, way: Way, pid: u32, file: u64, offset: u64, bytes: u64) {
        if self.is_on.load(Ordering::Relaxed) && bytes > 0 {
            self.counted.lock().count(way, pid, file, offset, bytes);
        }
    }

    /// Handles a write to a report: `0` and `disabled` disable all three, any other text enables them; that
    /// report restarts from zero.
    pub fn set(&self, report: ExtentsReport, text: &str) {
        let on = !matches!(text.trim(), "0" | "disable" | "disabled" | "Disable" | "Disabled");
        let mut counted = self.counted.lock();
        if !self.is_on.swap(on, Ordering::Relaxed) && on {
            *counted = Counted::default();
            let now = now_ns();
            (counted.all_since_ns, counted.processes_since_ns, counted.offsets_since_ns) = (now, now, now);
        }
        match report {
            ExtentsReport::All => (counted.all, counted.all_since_ns) = (Sizes::default(), now_ns()),
            ExtentsReport::PerProcess => {
                counted.processes.clear();
                counted.processes_since_ns = now_ns();
            }
            ExtentsReport::Offsets => {
                counted.ended.clear();
                counted.current.clear();
                counted.offsets_since_ns = now_ns();
            }
        }
    }

    /// Returns the text of a report.
    pub fn text(&self, report: ExtentsReport) -> String {
        if !self.is_on.load(Ordering::Relaxed) {
            return DISABLED.to_owned();
        }
        self.counted.lock().text(report, now_ns())
    }
}

impl Counted {
    fn count(&mut self, way: Way, pid: u32, file: u64, offset: u64, bytes: u64) {
        let row = row_of(bytes);
        self.all.0[way as usize][row] += 1;
        let mut process = match self.processes.iter().position(|(known, _)| *known == pid) {
            Some(at) => self.processes.remove(at).unwrap_or_default(),
            None => {
                if self.processes.len() == PROCESSES {
                    self.processes.pop_front();
                }
                (pid, Sizes::default())
            }
        };
        process.1.0[way as usize][row] += 1;
        self.processes.push_back(process);
        self.count_run(way, pid, file, offset, bytes);
    }

    fn count_run(&mut self, way: Way, pid: u32, file: u64, offset: u64, bytes: u64) {
        let known = self.current.iter().position(|run| run.pid == pid);
        let before = known.and_then(|at| self.current.remove(at));
        let next = match before {
            Some(run) if run.way == way && run.file == file && run.end == offset => Run {
                end: offset.saturating_add(bytes),
                smallest: run.smallest.min(bytes),
                largest: run.largest.max(bytes),
                ..run
            },
            before => {
                let from = before.filter(|run| run.file == file).map_or(0, |run| run.end);
                if let Some(run) = before {
                    self.end(run);
                } else if self.current.len() == PROCESSES
                    && let Some(run) = self.current.pop_front()
                {
                    self.end(run);
                }
                let jump = offset.wrapping_sub(from).cast_signed();
                Run {
                    way,
                    pid,
                    file,
                    start: offset,
                    end: offset.saturating_add(bytes),
                    smallest: bytes,
                    largest: bytes,
                    jump,
                }
            }
        };
        self.current.push_back(next);
    }

    fn end(&mut self, run: Run) {
        if self.ended.len() == OFFSETS {
            self.ended.pop_front();
        }
        self.ended.push_back(run);
    }

    fn text(&self, report: ExtentsReport, now_ns: u64) -> String {
        // Writing to a String does not fail.
        match report {
            ExtentsReport::All => {
                let mut out = times(TIMES, now_ns, self.all_since_ns);
                write_head(&mut out);
                write_sizes(&mut out, &self.all);
                out
            }
            ExtentsReport::PerProcess => {
                let mut out = times(TIMES, now_ns, self.processes_since_ns);
                write_head(&mut out);
                for (pid, sizes) in &self.processes {
                    let _ = writeln!(out, "\nPID: {pid}");
                    write_sizes(&mut out, sizes);
                }
                out
            }
            ExtentsReport::Offsets => {
                let mut out = times(TIMES, now_ns, self.offsets_since_ns);
                let _ = writeln!(
                    out,
                    "{:>3} {:>10} {:>14} {:>14} {:>17} {:>17} {:>14}",
                    "R/W", "PID", "RANGE START", "RANGE END", "SMALLEST EXTENT", "LARGEST EXTENT", "OFFSET"
                );
                for run in self.ended.iter().chain(&self.current) {
                    let way = if run.way == Way::Read { 'R' } else { 'W' };
                    let Run { pid, start, end, smallest, largest, jump, .. } = run;
                    let _ = writeln!(
                        out,
                        "{way:>3} {pid:>10} {start:>14} {end:>14} {smallest:>17} {largest:>17} {jump:>14}"
                    );
                }
                out
            }
        }
    }
}

fn write_head(out: &mut String) {
    let _ = writeln!(out, "{:>15} {:>19}       | {:>20}", " ", "read", "write");
    let _ = writeln!(
        out,
        "{:>13}   {:>14} {:>4} {:>4}  | {:>14} {:>4} {:>4}",
        "extents", "calls", "%", "cum%", "calls", "%", "cum%"
    );
}

/// Writes the rows up to the last with a count.
fn write_sizes(out: &mut String, Sizes(rows): &Sizes) {
    let totals = rows.map(|row| row.iter().sum::<u64>());
    let percent = |count: u64, side: usize| (count * 100).checked_div(totals[side]).unwrap_or(0);
    let mut sums = [0, 0];
    for (row, counts) in rows[0].iter().zip(&rows[1]).map(|(read, write)| [*read, *write]).enumerate() {
        sums = [sums[0] + counts[0], sums[1] + counts[1]];
        let (start, end) = (if row == 0 { (0, 'K') } else { edge(row as u32 - 1) }, edge(row as u32));
        let more = if row == ROWS - 1 { '+' } else { ' ' };
        // A row that begins at 1 M ends at 2 M; one that ends at 1 M began at 512 K.
        let _ = writeln!(
            out,
            "{:>4}{} - {:>4}{}{more}: {:>14} {:>4} {:>4}  | {:>14} {:>4} {:>4}",
            start.0,
            start.1,
            end.0,
            end.1,
            counts[0],
            percent(counts[0], 0),
            percent(sums[0], 0),
            counts[1],
            percent(counts[1], 1),
            percent(sums[1], 1)
        );
        if sums == totals {
            break;
        }
    }
}

/// Returns the end of a row, as a number and its unit.
fn edge(row: u32) -> (u64, char) {
    let bits = row + FIRST_ROW_BITS;
    let units = ['K', 'M', 'G', 'T'];
    let unit = (bits / 10 - 1).min(3);
    (1 << (bits - 10 * (unit + 1)), units[unit as usize])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text_of(counted: &Counted, report: ExtentsReport) -> String {
        counted.text(report, 0).lines().skip(3).map(|line| format!("{line}\n")).collect()
    }

    #[test]
    fn sizes_have_the_text_form_of_lustre() {
        let mut counted = Counted::default();
        for (way, bytes) in [(Way::Read, 100), (Way::Read, 4096), (Way::Read, 1 << 20), (Way::Write, 4095)] {
            counted.count(way, 7, 1, 0, bytes);
        }
        let text = text_of(&counted, ExtentsReport::All);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "                               read       |                write");
        assert_eq!(lines[1], "      extents            calls    % cum%  |          calls    % cum%");
        assert_eq!(lines[2], "   0K -    4K :              1   33   33  |              1  100  100");
        assert_eq!(lines[3], "   4K -    8K :              1   33   66  |              0    0  100");
        assert_eq!(lines[9], " 256K -  512K :              0    0   66  |              0    0  100");
        assert_eq!(lines[10], " 512K -    1M :              0    0   66  |              0    0  100");
        assert_eq!(lines[11], "   1M -    2M :              1   33  100  |              0    0  100");
        assert_eq!(lines.len(), 12);
        assert!(text_of(&counted, ExtentsReport::PerProcess).contains("\nPID: 7\n   0K -    4K :"));
    }

    #[test]
    fn runs_end_where_a_program_goes_elsewhere() {
        let mut counted = Counted::default();
        for (way, offset, bytes) in
            [(Way::Write, 0, 10), (Way::Write, 10, 30), (Way::Write, 100, 5), (Way::Read, 0, 7)]
        {
            counted.count(way, 7, 1, offset, bytes);
        }
        counted.count(Way::Read, 8, 1, 50, 1);
        let text = text_of(&counted, ExtentsReport::Offsets);
        let rows: Vec<Vec<&str>> =
            text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            rows,
            [
                ["W", "7", "0", "40", "10", "30", "0"],
                ["W", "7", "100", "105", "5", "5", "60"],
                ["R", "7", "0", "7", "7", "7", "-105"],
                ["R", "8", "50", "51", "1", "1", "50"],
            ]
        );
    }

    #[test]
    fn nothing_is_counted_until_it_is_switched_on_and_after_it_is_switched_off() {
        let stats = ExtentsStats::default();
        stats.count(Way::Read, 1, 1, 0, 4096);
        assert!(stats.text(ExtentsReport::All).starts_with("disabled\n"));
        stats.set(ExtentsReport::PerProcess, "1");
        stats.count(Way::Read, 1, 1, 0, 4096);
        for report in [ExtentsReport::All, ExtentsReport::PerProcess] {
            assert!(stats.text(report).contains("   4K -    8K :              1  100  100"), "{report:?}");
        }
        stats.set(ExtentsReport::All, "clear");
        assert!(stats.text(ExtentsReport::All).contains("   0K -    4K :              0    0    0"));
        assert!(stats.text(ExtentsReport::PerProcess).contains("PID: 1\n"), "only the one that was set");
        stats.set(ExtentsReport::Offsets, "0");
        assert!(stats.text(ExtentsReport::Offsets).starts_with("disabled\n"));
    }

    proptest! {
        #[test]
        fn memory_is_bounded_whatever_is_counted(
            requests in prop::collection::vec((any::<bool>(), 0u32..30, 0u64..3, any::<u64>(), any::<u64>()), 0..400)
        ) {
            let mut counted = Counted::default();
            for (read, pid, file, offset, bytes) in requests {
                counted.count(if read { Way::Read } else { Way::Write }, pid, file, offset, bytes);
            }
            prop_assert!(counted.processes.len() <= PROCESSES && counted.current.len() <= PROCESSES);
            prop_assert!(counted.ended.len() <= OFFSETS);
            for report in [ExtentsReport::All, ExtentsReport::PerProcess, ExtentsReport::Offsets] {
                counted.text(report, 1);
            }
        }
    }
}
