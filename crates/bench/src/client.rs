//! The client's I/O engine: sequential reads and writes with each of its features off and on.
//!
//! The matrix of the talk on client I/O parallelization (LUG 2017): transfer sizes, one thread and two,
//! parallel tasks, asynchronous I/O, endpoints per server; over plain loopback, and over a simulated fabric
//! whose endpoints are slower than the machine, where several endpoints pay.
//!
//! Asynchronous I/O is read-ahead for reads and write-back for writes. Without it each call of the program
//! waits for its request. The kernel's read-ahead is then disabled, too: for each file, since the setting of
//! a whole mount can only be lowered to single pages.

use std::path::PathBuf;

use crate::chart::{self, Form, Panel};
use crate::error::Error;
use crate::instance::{Instance, InstanceOptions, NacreProgram};
use crate::limits::row_of;
use crate::options::{Common, word};
use crate::report::{Against, Report};
use crate::work::{Operation, Work};
use crate::worker::{Job, Myself, Series, turns};

/// Size of one file in bytes, at most; a multiple of all transfer sizes.
const FILE_BYTES: u64 = 64 << 20;
/// Calls of one run, after which it ends: small transfers need no whole file.
const CALLS_MAX: u64 = 4096;
/// Number of object targets.
pub(crate) const OSTS: usize = 4;
/// The simulated fabric as a mount option. Two CPUs move 1.0 to 1.1 GB/s over loopback; an endpoint gets a
/// quarter of that, so that the fabric, not the CPUs, bounds one endpoint.
pub(crate) const SIMULATE: &str = "simulate=bandwidth=250M:latency=200us";
/// Description of the simulated fabric for people.
pub(crate) const FABRIC: &str = "simulated fabric of 250 MB/s and 0.2 ms each way per endpoint";

/// `nacre bench client`
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: nacre bench client --runs 3 --html client.html")]
pub struct ClientArguments {
    /// Directory in memory (tmpfs), so that no disk bounds the figures; needs 1 GiB
    #[arg(long, default_value = "/dev/shm")]
    memory_dir: PathBuf,
    /// Transfer sizes in KiB
    #[arg(long, value_delimiter = ',', default_values_t = [4, 64, 1024, 4096, 16384, 65536])]
    sizes_kib: Vec<usize>,
    /// Worker processes
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    threads: Vec<usize>,
    /// Endpoints per server
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4])]
    endpoints: Vec<usize>,
    /// Settings of parallel I/O
    #[arg(long, value_delimiter = ',', default_values = ["off", "auto", "on"])]
    parallel: Vec<Parallel>,
    /// Fabrics; both by default
    #[arg(long, value_delimiter = ',')]
    fabric: Vec<Fabric>,
    /// The program that starts file systems.
    #[command(flatten)]
    nacre: NacreProgram,
    /// Also write a page with charts there
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// How the figures are taken and printed.
    #[command(flatten)]
    pub common: Common,
}

/// Whether one request is processed on several CPUs (`llite.*.parallel_io`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Parallel {
    /// Never.
    Off,
    /// Depending on size and idle CPUs.
    Auto,
    /// For every request that is large enough.
    On,
}

impl Parallel {
    pub(crate) fn name(self) -> String {
        word(self)
    }
}

/// Fabric between client and servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Fabric {
    /// Plain loopback.
    Loopback,
    /// Loopback with the latency and bandwidth of a slow network added to each endpoint.
    Simulated,
}

impl Fabric {
    fn label(self) -> &'static str {
        match self {
            Fabric::Loopback => "loopback",
            Fabric::Simulated => FABRIC,
        }
    }
}

/// Features of the client, on or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Features {
    pub(crate) parallel: Parallel,
    pub(crate) asynchronous: bool,
    pub(crate) endpoints: usize,
}

impl Features {
    pub(crate) fn label(self) -> String {
        let asynchronous = if self.asynchronous { "on" } else { "off" };
        format!("parallel {}, async {asynchronous}, {} endpoint(s)", self.parallel.name(), self.endpoints)
    }

    /// Returns every combination; the first has everything off.
    fn all(parallel: &[Parallel], endpoints: &[usize]) -> Vec<Features> {
        let mut all = Vec::new();
        for &endpoints in endpoints {
            for asynchronous in [false, true] {
                all.extend(parallel.iter().map(|&parallel| Features { parallel, asynchronous, endpoints }));
            }
        }
        all
    }

    pub(crate) fn apply(self, instance: &Instance) -> Result<(), Error> {
        let (ahead_mb, write_back) = if self.asynchronous { ("64", "1") } else { ("0", "0") };
        instance.set_params(&[
            ("llite", "parallel_io", self.parallel.name()),
            ("llite", "max_read_ahead_mb", ahead_mb.to_owned()),
            // Lowering the limit above lowers this one, too, so it is set again.
            ("llite", "max_read_ahead_per_file_mb", ahead_mb.to_owned()),
            ("llite", "write_back", write_back.to_owned()),
            ("osc", "conns_per_peer", self.endpoints.to_string()),
        ])
    }
}

/// One group of figures: all parameters but the features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cell {
    operation: Operation,
    threads: usize,
    size_kib: usize,
}

/// Takes all figures.
///
/// # Errors
///
/// When a file system does not start or work on it fails; it is stopped first.
pub fn measure(arguments: &ClientArguments, myself: &Myself) -> Result<Report, Error> {
    let chosen = match arguments.fabric.is_empty() {
        true => vec![Fabric::Loopback, Fabric::Simulated],
        false => arguments.fabric.clone(),
    };
    let mut report = Report::new("The client's I/O engine, separate processes, 4 OSTs in memory");
    let mut panels = Vec::new();
    for fabric in chosen {
        eprintln!("bench client: {}", fabric.label());
        one_fabric(arguments, myself, fabric, &mut report, &mut panels)?;
    }
    if let Some(path) = &arguments.html {
        let notes = [
            "Sequential reads and writes of one file over TCP, data in memory on the servers; medians."
                .to_owned(),
            "Off means: each call is a request that is waited for. Asynchronous is read-ahead for reads and write-back \
             for writes."
                .to_owned(),
            format!("\"Simulated\" figures are over loopback with a {FABRIC}."),
        ];
        let page = chart::page("The client's I/O engine", &notes, &panels, &report.table());
        std::fs::write(path, page).map_err(Error::io("write", path))?;
    }
    Ok(report)
}

fn one_fabric(
    arguments: &ClientArguments,
    myself: &Myself,
    fabric: Fabric,
    report: &mut Report,
    panels: &mut Vec<Panel>,
) -> Result<(), Error> {
    let program = arguments.nacre.find()?;
    let options = InstanceOptions {
        osts: OSTS,
        separate: true,
        mount_options: (fabric == Fabric::Simulated).then(|| SIMULATE.to_owned()).into_iter().collect(),
        ..InstanceOptions::default()
    };
    let instance = Instance::start(&program, &arguments.memory_dir, "bench-client", options)?;
    let directory = instance.work_directory("d")?;
    instance.stripe(&directory, OSTS)?;
    let features = Features::all(&arguments.parallel, &arguments.endpoints);
    for operation in [Operation::SeqRead, Operation::SeqWrite] {
        for &threads in &arguments.threads {
            let mut lines: Vec<(String, Vec<f64>)> =
                features.iter().map(|features| (features.label(), Vec::new())).collect();
            for &size_kib in &arguments.sizes_kib {
                let cell = Cell { operation, threads, size_kib };
                let results = one_cell(arguments, myself, &instance, &directory, cell, &features)?;
                add_rows(report, fabric, cell, &features, &results, &mut lines);
            }
            let title = format!("{}, {threads} thread(s), {}", operation.label(), fabric.label());
            let places = arguments.sizes_kib.iter().map(|kib| size_label(*kib)).collect();
            panels.push(Panel::new(title, "MB/s", Form::Lines, places, lines));
        }
    }
    Ok(())
}

/// Measures all combinations of features in rounds, every other round in reverse order.
fn one_cell(
    arguments: &ClientArguments,
    myself: &Myself,
    instance: &Instance,
    directory: &std::path::Path,
    cell: Cell,
    features: &[Features],
) -> Result<Vec<(Job, Series)>, Error> {
    let block_bytes = cell.size_kib << 10;
    let file_bytes = FILE_BYTES.min(block_bytes as u64 * CALLS_MAX).max(block_bytes as u64);
    let mut work = Work::io(cell.operation, directory, block_bytes, file_bytes);
    work.over = true;
    // Data still held back in the client does not count as written.
    work.sync = cell.operation == Operation::SeqWrite;
    let mut job = Job::new(cell.operation.label(), &work, cell.threads);
    // Otherwise reads would hit the kernel's page cache of the mount; the servers' memory is unaffected.
    job.cold = cell.operation == Operation::SeqRead;
    job.prepare(myself)?;
    let mut results: Vec<(Job, Series)> = features.iter().map(|_| (job.clone(), Series::default())).collect();
    let outcome: Result<(), Error> = (0..arguments.common.runs.max(1)).try_for_each(|round| {
        turns(round, features.len()).try_for_each(|index| {
            features[index].apply(instance)?;
            let (job, series) = &mut results[index];
            for work in &mut job.works {
                work.no_read_ahead = !features[index].asynchronous;
            }
            let measured = job.run(myself)?;
            series.push(job, measured);
            Ok(())
        })
    });
    let cleaned = job.clean(myself);
    outcome?;
    cleaned?;
    Ok(results)
}

fn add_rows(
    report: &mut Report,
    fabric: Fabric,
    cell: Cell,
    features: &[Features],
    results: &[(Job, Series)],
    lines: &mut [(String, Vec<f64>)],
) {
    let Some((base_job, base)) = results.first() else { return };
    for (((job, series), features), line) in results.iter().zip(features).zip(lines) {
        let mut row = row_of(job, series);
        row.name = format!(
            "{}, {}, {} thread(s), {}, {}",
            if fabric == Fabric::Simulated { "simulated" } else { "loopback" },
            cell.operation.label(),
            cell.threads,
            size_label(cell.size_kib),
            features.label()
        );
        line.1.push(row.samples.median() / 1e6);
        row.against = Some(Against::new("all off", row_of(base_job, base)));
        report.rows.push(row);
    }
}

/// Formats a transfer size: `64K`, `4M`.
pub(crate) fn size_label(kib: usize) -> String {
    if kib.is_multiple_of(1024) { format!("{}M", kib / 1024) } else { format!("{kib}K") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_combination_has_everything_off_and_all_are_there() {
        let all = Features::all(&[Parallel::Off, Parallel::Auto, Parallel::On], &[1, 2, 4]);
        assert_eq!(all.len(), 18);
        assert_eq!(all[0], Features { parallel: Parallel::Off, asynchronous: false, endpoints: 1 });
        assert!(all.iter().enumerate().all(|(at, one)| !all[..at].contains(one)));
        assert_eq!((size_label(64), size_label(4096)), ("64K".to_owned(), "4M".to_owned()));
    }
}
