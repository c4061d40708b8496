//! Cost of work: CPU time, context switches, and transfers of the disk.

use nacre_env::clock::Instant;
use std::os::linux::fs::MetadataExt;
use std::path::Path;

/// Counters of this process and of a disk at one moment.
#[derive(Clone, Copy)]
struct Counters {
    user_us: f64,
    system_us: f64,
    switches: f64,
    preemptions: f64,
    writes: f64,
    sectors: f64,
    flushes: f64,
}

/// Measures the cost of work on the disk of a directory.
pub struct Costs {
    /// Major and minor number of the disk, as `/proc/diskstats` has them.
    disk: [String; 2],
}

/// Cost of one piece of work, as a mean.
#[derive(Clone, Copy, Default)]
pub struct Cost {
    pub per_second: f64,
    /// CPU time of all threads of the process, in us.
    pub user_us: f64,
    pub system_us: f64,
    /// Voluntary and involuntary context switches.
    pub switches: f64,
    pub preemptions: f64,
    /// Writes to the disk by any process, KiB of them, and flushes.
    pub writes: f64,
    pub kib: f64,
    pub flushes: f64,
}

impl Costs {
    pub fn new(dir: &Path) -> Costs {
        let device = std::fs::metadata(dir).expect("there").st_dev();
        let numbers = [rustix::fs::major(device), rustix::fs::minor(device)];
        Costs { disk: numbers.map(|number| number.to_string()) }
    }

    fn now(&self) -> Counters {
        // SAFETY: `rusage` is plain numbers, and the call fills them.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &mut usage);
            usage
        };
        let us = |time: libc::timeval| time.tv_sec as f64 * 1e6 + time.tv_usec as f64;
        let text = std::fs::read_to_string("/proc/diskstats").unwrap_or_default();
        let fields: Vec<&str> = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .find(|fields| fields.len() > 2 && fields[..2] == self.disk)
            .unwrap_or_default();
        let field = |at: usize| fields.get(at).and_then(|text| text.parse().ok()).unwrap_or(0.0);
        Counters {
            user_us: us(usage.ru_utime),
            system_us: us(usage.ru_stime),
            switches: usage.ru_nvcsw as f64,
            preemptions: usage.ru_nivcsw as f64,
            writes: field(7),
            sectors: field(9),
            flushes: field(18),
        }
    }

    /// Does `work`, which consists of `pieces`, and returns the cost of each.
    pub fn of(&self, pieces: u32, work: impl FnOnce()) -> Cost {
        let (before, start) = (self.now(), Instant::now());
        work();
        let (seconds, after) = (start.elapsed().as_secs_f64(), self.now());
        let each = |field: fn(&Counters) -> f64| (field(&after) - field(&before)) / f64::from(pieces);
        Cost {
            per_second: f64::from(pieces) / seconds,
            user_us: each(|counters| counters.user_us),
            system_us: each(|counters| counters.system_us),
            switches: each(|counters| counters.switches),
            preemptions: each(|counters| counters.preemptions),
            writes: each(|counters| counters.writes),
            kib: each(|counters| counters.sectors) / 2.0,
            flushes: each(|counters| counters.flushes),
        }
    }
}

impl Cost {
    /// Returns the median of each figure.
    pub fn median(all: &[Cost]) -> Cost {
        let of = |field: fn(&Cost) -> f64| {
            let mut values: Vec<f64> = all.iter().map(field).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or(0.0)
        };
        Cost {
            per_second: of(|cost| cost.per_second),
            user_us: of(|cost| cost.user_us),
            system_us: of(|cost| cost.system_us),
            switches: of(|cost| cost.switches),
            preemptions: of(|cost| cost.preemptions),
            writes: of(|cost| cost.writes),
            kib: of(|cost| cost.kib),
            flushes: of(|cost| cost.flushes),
        }
    }
}

impl std::fmt::Display for Cost {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "CPU {:.1} us in the program and {:.1} in the kernel, {:.2} sleeps and {:.2} preemptions, {:.2} writes of the disk of {:.1} KiB \
             in all, {:.2} flushes",
            self.user_us,
            self.system_us,
            self.switches,
            self.preemptions,
            self.writes,
            self.kib,
            self.flushes
        )
    }
}
