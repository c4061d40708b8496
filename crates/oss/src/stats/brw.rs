//! Reads and writes by size and time: `brw_stats`.

use nacre_env::clock::Instant;
use nacre_params::stats::{now_ns, times};
use nacre_rpc::stats::{Direction, Histograms, ROWS, Rows, TIMES, percent, power_row};
use nacre_store::object::transfers;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes per page.
const PAGE_BYTES: u64 = 4096;
/// Indices of the histograms, in the order of the text.
const PAGES: usize = 0;
const DISCONTIGUOUS: usize = 1;
const DISCONTIGUOUS_BLOCKS: usize = 2;
const FRAGMENTED: usize = 3;
const IN_FLIGHT: usize = 4;
const TIME_MS: usize = 5;
const SIZE: usize = 6;

/// A table of counts of reads and writes.
struct Table {
    title: &'static str,
    /// Unit of the counts.
    unit: &'static str,
    /// Rows are powers of two.
    is_power: bool,
}

const TABLES: [Table; 7] = [
    Table { title: "pages per bulk r/w", unit: "rpcs", is_power: true },
    Table { title: "discontiguous pages", unit: "rpcs", is_power: false },
    // For stores that know the location of objects on the device: discontinuities between the blocks of a
    // request, and the resulting I/Os.
    Table { title: "discontiguous blocks", unit: "rpcs", is_power: false },
    Table { title: "disk fragmented I/Os", unit: "ios", is_power: false },
    Table { title: "disk I/Os in flight", unit: "ios", is_power: false },
    Table { title: "I/O time (1/1000s)", unit: "ios", is_power: true },
    Table { title: "disk I/O size", unit: "ios", is_power: true },
];

/// Counters of reads and writes of one target.
#[derive(Debug)]
pub(crate) struct BrwStats {
    histograms: Histograms<7>,
    in_flight: [AtomicU64; 2],
    ended: AtomicU64,
    started_ns: AtomicU64,
}

impl Default for BrwStats {
    fn default() -> BrwStats {
        BrwStats {
            histograms: Histograms::default(),
            in_flight: Default::default(),
            ended: AtomicU64::new(0),
            started_ns: AtomicU64::new(now_ns()),
        }
    }
}

/// A transfer to or from the store; counted until it is dropped.
pub(crate) struct Transfer<'a> {
    stats: &'a BrwStats,
    direction: Direction,
    started: Instant,
}

impl BrwStats {
    /// Counts the start of a transfer by this thread. A transfer is one range of an object, so its pages are
    /// contiguous.
    pub(crate) fn begin(&self, direction: Direction, offset: u64, bytes: u64) -> Transfer<'_> {
        transfers::begin();
        let number = self.in_flight[direction as usize].fetch_add(1, Ordering::Relaxed) + 1;
        let pages = (offset % PAGE_BYTES).saturating_add(bytes).div_ceil(PAGE_BYTES);
        self.histograms.count(PAGES, direction, power_row(pages));
        self.histograms.count(DISCONTIGUOUS, direction, 0);
        self.histograms.count(IN_FLIGHT, direction, usize::try_from(number).unwrap_or(ROWS));
        self.histograms.count(SIZE, direction, power_row(bytes));
        Transfer { stats: self, direction, started: Instant::now() }
    }

    /// Returns the transfers in progress, and the number of completed ones, which `clear` does not reset.
    pub(crate) fn transfers(&self) -> (u64, u64) {
        let in_flight = self.in_flight.iter().map(|number| number.load(Ordering::Relaxed)).sum();
        (in_flight, self.ended.load(Ordering::Relaxed))
    }

    /// Resets the counts; transfers in progress stay counted as such.
    pub(crate) fn clear(&self) {
        self.histograms.clear();
        self.started_ns.store(now_ns(), Ordering::Relaxed);
    }

    pub(crate) fn text(&self) -> String {
        self.text_at(now_ns(), self.started_ns.load(Ordering::Relaxed))
    }

    fn text_at(&self, now_ns: u64, started_ns: u64) -> String {
        let mut out = times(TIMES, now_ns, started_ns);
        for (index, table) in TABLES.iter().enumerate() {
            table.write(&mut out, &self.histograms.rows(index));
        }
        out
    }
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        let ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.stats.in_flight[self.direction as usize].fetch_sub(1, Ordering::Relaxed);
        self.stats.ended.fetch_add(1, Ordering::Relaxed);
        self.stats.histograms.count(TIME_MS, self.direction, power_row(ms));
        let noted = transfers::noted();
        let pieces = match self.direction {
            Direction::Read => noted.reads,
            Direction::Write => noted.writes,
        } as usize;
        if pieces > 0 {
            self.stats.histograms.count(DISCONTIGUOUS_BLOCKS, self.direction, pieces - 1);
            self.stats.histograms.count(FRAGMENTED, self.direction, pieces);
        }
    }
}

/// Returns the label of a row: 1, 2, .. 512, 1K, .. 512K, 1M, .. for powers of two.
fn label(row: usize, is_power: bool) -> String {
    match row {
        row if !is_power => row.to_string(),
        0..10 => (1 << row).to_string(),
        10..20 => format!("{}K", 1 << (row - 10)),
        _ => format!("{}M", 1u64 << (row - 20)),
    }
}

impl Table {
    /// Writes the table with its rows, without the empty ones before the first and after the last count.
    fn write(&self, out: &mut String, rows: &Rows) {
        let Table { title, unit, is_power } = *self;
        let [read, write] = rows;
        let totals = [read.iter().sum::<u64>(), write.iter().sum::<u64>()];
        let mut cumulative = [0, 0];
        // Writing to a String does not fail.
        let _ = writeln!(out, "\n{:>26} read      |     write", " ");
        let _ = writeln!(out, "{title:<22} {unit:<5} % cum % |  {unit:<11} % cum %");
        if totals == [0, 0] {
            return;
        }
        for row in 0..ROWS {
            let counts = [read[row], write[row]];
            cumulative[0] += counts[0];
            cumulative[1] += counts[1];
            if cumulative == [0, 0] {
                continue;
            }
            let part =
                |side: usize| (percent(counts[side], totals[side]), percent(cumulative[side], totals[side]));
            let ((r, r_sum), (w, w_sum)) = (part(0), part(1));
            let _ = writeln!(
                out,
                "{}:\t\t{:>10} {r:>3} {r_sum:>3}   | {:>4} {w:>3} {w_sum:>3}",
                label(row, is_power),
                counts[0],
                counts[1]
            );
            if cumulative == totals {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(stats: &BrwStats) -> String {
        stats.text_at(200_000_000_005, 100_000_000_005)
    }

    #[test]
    fn brw_stats_has_the_text_form_of_lustre() {
        let mut expected = "snapshot_time:            200.000000005 secs.nsecs\n\
                            start_time:               100.000000005 secs.nsecs\n\
                            elapsed_time:             100.000000000 secs.nsecs\n"
            .to_owned();
        for title in [
            "pages per bulk r/w     rpcs  % cum % |  rpcs        % cum %",
            "discontiguous pages    rpcs  % cum % |  rpcs        % cum %",
            "discontiguous blocks   rpcs  % cum % |  rpcs        % cum %",
            "disk fragmented I/Os   ios   % cum % |  ios         % cum %",
            "disk I/Os in flight    ios   % cum % |  ios         % cum %",
            "I/O time (1/1000s)     ios   % cum % |  ios         % cum %",
            "disk I/O size          ios   % cum % |  ios         % cum %",
        ] {
            expected += &format!("\n{}read      |     write\n{title}\n", " ".repeat(27));
        }
        assert_eq!(text(&BrwStats::default()), expected);
    }

    #[test]
    fn transfers_are_counted_by_size_and_direction() {
        let stats = BrwStats::default();
        for bytes in [4096, 4096, 1 << 20] {
            drop(stats.begin(Direction::Read, 0, bytes));
        }
        let held = stats.begin(Direction::Write, 4095, 2);
        let shown = text(&stats);
        for table in [
            "% cum %\n1:\t\t         2  66  66   |    0   0   0\n\
             2:\t\t         0   0  66   |    1 100 100\n\
             4:\t\t         0   0  66   |    0   0 100\n",
            "256:\t\t         1  33 100   |    0   0 100\n\n",
            "discontiguous pages    rpcs  % cum % |  rpcs        % cum %\n\
             0:\t\t         3 100 100   |    1 100 100\n\n",
            "disk I/Os in flight    ios   % cum % |  ios         % cum %\n\
             1:\t\t         3 100 100   |    1 100 100\n\n",
            "4K:\t\t         2  66  66   |    0   0 100\n",
            "1M:\t\t         1  33 100   |    0   0 100\n",
        ] {
            assert!(shown.contains(table), "{table:?} is not in\n{shown}");
        }
        drop(held);
        stats.clear();
        assert_eq!(text(&stats), text(&BrwStats::default()));
    }

    #[test]
    fn rows_are_named_up_to_the_last() {
        let labels: Vec<String> = [0, 9, 10, 19, 20, 31].map(|row| label(row, true)).into();
        assert_eq!(labels, ["1", "512", "1K", "512K", "1M", "2048M"]);
        assert_eq!(label(10, false), "10");
    }
}
