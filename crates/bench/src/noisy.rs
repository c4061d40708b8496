//! `nacre bench noisy`: a streaming job next to jobs that write 4 KiB at random, on OSTs with the service
//! times of disks.
//!
//! The file system is created for the run: some OSTs are disks and one is flash, all simulated
//! (`osd-file.*.simulated_medium`), so the figures do not depend on the disk of the machine; all output says
//! so. The stream runs alone on the disks, then next to small writers on the same disks, then next to small
//! writers that are directed to the flash OST: by the pool of their directory, or by one progressive layout
//! over both pools that both jobs have.

mod task;

use std::path::PathBuf;

use crate::chart::{self, Form, Panel};
use crate::error::Error;
use crate::instance::{Instance, InstanceOptions, NacreProgram};
use crate::medium::Media;
use crate::options::Common;
use crate::report::{Against, Report, Row, Target, Unit};
use crate::sample::Samples;
use crate::team::Team;
use crate::worker::{Myself, turns};
use task::{Done, Order, Role};

pub(crate) use task::serve;

/// Target: share of its bandwidth alone that the stream keeps next to small writers on other OSTs (Cray's
/// aim, 2019).
const SEPARATED_RATIO: f64 = 0.9;

/// `nacre bench noisy`
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: nacre bench noisy --runs 3 --seconds 2 --html noisy.html")]
pub struct NoisyArguments {
    /// Directory in memory (tmpfs), so that only the simulated media bound the figures; needs 2 GiB
    #[arg(long, default_value = "/dev/shm")]
    memory_dir: PathBuf,
    /// OSTs that are simulated disks
    #[arg(long, default_value_t = 2)]
    disks: usize,
    /// Processes that write 4 KiB at random
    #[arg(long, default_value_t = 2)]
    writers: u64,
    /// Simulated media of the disks and the flash.
    #[command(flatten)]
    media: Media,
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

/// Which jobs run, and on which OSTs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scene {
    Alone,
    Shared,
    Separated,
    Progressive,
}

impl Scene {
    const ALL: [Scene; 4] = [Scene::Alone, Scene::Shared, Scene::Separated, Scene::Progressive];

    fn label(self) -> &'static str {
        match self {
            Scene::Alone => "stream alone",
            Scene::Shared => "all on the disks",
            Scene::Separated => "writers on flash",
            Scene::Progressive => "one PFL for both",
        }
    }

    /// Returns the directories of the stream and of the small writers.
    fn places(self) -> (&'static str, &'static str) {
        match self {
            Scene::Alone | Scene::Shared => ("disks", "disks"),
            Scene::Separated => ("disks", "flash"),
            Scene::Progressive => ("progressive", "progressive"),
        }
    }
}

/// Figures of one scene, one value per run.
#[derive(Debug, Clone, Default)]
struct Figures {
    /// Bandwidth of the stream in bytes per second.
    stream: Samples,
    /// Small writes per second, all writers together.
    small: Samples,
    /// Median latency of small writes in milliseconds.
    p50_ms: Samples,
    /// 99th percentile of the latency of small writes in milliseconds.
    p99_ms: Samples,
}

impl Figures {
    fn push(&mut self, done: &[Done]) {
        let rate = |count: f64, done: &Done| count / (done.elapsed_ns.max(1) as f64 / 1e9);
        let Some((stream, small)) = done.split_first() else { return };
        self.stream.push(rate(stream.bytes as f64, stream));
        let mut latencies: Vec<u32> =
            small.iter().flat_map(|done| done.latencies_us.iter().copied()).collect();
        if latencies.is_empty() {
            return;
        }
        latencies.sort_unstable();
        self.small.push(small.iter().map(|done| rate(done.latencies_us.len() as f64, done)).sum());
        self.p50_ms.push(f64::from(percentile(&latencies, 50)) / 1e3);
        self.p99_ms.push(f64::from(percentile(&latencies, 99)) / 1e3);
    }
}

/// Returns the percentile of sorted values by nearest rank; 0 without values.
fn percentile(sorted: &[u32], hundredths: usize) -> u32 {
    let rank = (sorted.len() * hundredths).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0)
}

/// Takes all figures.
///
/// # Errors
///
/// When the file system does not start or work on it fails; it is stopped first.
pub fn measure(arguments: &NoisyArguments, myself: &Myself) -> Result<Report, Error> {
    let disks = arguments.disks.max(1);
    let program = arguments.nacre.find()?;
    let options = InstanceOptions { osts: disks + 1, ..InstanceOptions::default() };
    let instance = Instance::start(&program, &arguments.memory_dir, "bench-noisy", options)?;
    make_directories(&instance, disks)?;
    let fsname = instance.fsname();
    let medium =
        |index: usize, medium: &str| format!("osd-file.{fsname}-OST{index:04x}.simulated_medium={medium}");
    let mut media: Vec<String> = (0..disks).map(|index| medium(index, &arguments.media.disk)).collect();
    media.push(medium(disks, &arguments.media.flash));
    instance.set_named_params(&media)?;
    let mut roles = vec![Role::Stream];
    roles.extend((0..arguments.writers.max(1)).map(|seed| Role::Small { seed }));
    let mut team = Team::start(myself, "noisy", &roles, false)?;
    let mut figures = vec![Figures::default(); Scene::ALL.len()];
    for round in 0..arguments.common.runs.max(1) {
        for index in turns(round, Scene::ALL.len()) {
            let (stream, small) = Scene::ALL[index].places();
            let order = Order {
                stream: instance.mount().join(stream),
                small: instance.mount().join(small),
                with_small: Scene::ALL[index] != Scene::Alone,
                seconds: arguments.common.seconds.clamp(0.1, 600.0),
            };
            figures[index].push(&team.run::<Done>(&order)?);
        }
    }
    drop(team);
    let report = report_of(arguments, disks, &figures);
    let title = "Noisy neighbours, simulated media";
    chart::write(arguments.html.as_deref(), title, &report, || panels(&figures))?;
    Ok(report)
}

/// Creates directories and pools. Disks have the first OST indexes, flash the last; each kind is a pool.
fn make_directories(instance: &Instance, disks: usize) -> Result<(), Error> {
    let members = [("disk", (0..disks).collect::<Vec<_>>()), ("flash", vec![disks])];
    for (pool, osts) in members {
        let pool = format!("{}.{pool}", instance.fsname());
        instance.lctl(&["pool_new", &pool])?;
        let osts: Vec<String> = osts.iter().map(|index| format!("OST{index:04x}")).collect();
        instance.lctl(
            &["pool_add", &pool].into_iter().chain(osts.iter().map(String::as_str)).collect::<Vec<_>>(),
        )?;
    }
    let (on_disks, on_flash) = (["-p", "disk", "-c", "-1"], ["-p", "flash", "-c", "1"]);
    let progressive: Vec<&str> =
        ["-E", "1M"].iter().chain(&on_flash).chain(&["-E", "-1"]).chain(&on_disks).copied().collect();
    for (name, options) in [("disks", &on_disks[..]), ("flash", &on_flash), ("progressive", &progressive)] {
        let directory = instance.work_directory(name)?;
        instance.setstripe(&directory, options)?;
    }
    Ok(())
}

fn report_of(arguments: &NoisyArguments, disks: usize, figures: &[Figures]) -> Report {
    let mut report = Report::new(format!(
        "A stream with {} writer(s) of 4 KiB at random, {disks} disk OST(s) and one of flash, all simulated",
        arguments.writers.max(1)
    ));
    let row = |name: String, unit, samples: &Samples| Row::new(name, unit, samples.clone());
    let alone = &figures[0];
    for (scene, found) in Scene::ALL.into_iter().zip(figures) {
        let mut stream =
            row(format!("simulated: {}, stream", scene.label()), Unit::BytesPerSecond, &found.stream);
        stream.against = (scene != Scene::Alone).then(|| Against::of("alone", alone.stream.clone()));
        if matches!(scene, Scene::Separated | Scene::Progressive) {
            stream.target = Some(Target::RatioAtLeast(SEPARATED_RATIO));
        }
        report.rows.push(stream);
        if scene != Scene::Alone {
            for (what, unit, samples) in [
                ("4 KiB writes", Unit::OpsPerSecond, &found.small),
                ("4 KiB write, median", Unit::Milliseconds, &found.p50_ms),
                ("4 KiB write, 99 %", Unit::Milliseconds, &found.p99_ms),
            ] {
                report.rows.push(row(format!("simulated: {}, {what}", scene.label()), unit, samples));
            }
        }
    }
    report.notes.push(format!(
        "service times are simulated: a disk is {}, the flash OST {}; the data is in memory",
        arguments.media.disk, arguments.media.flash
    ));
    report
}

/// One figure of a scene.
type Figure = fn(&Figures) -> f64;

fn panels(figures: &[Figures]) -> Vec<Panel> {
    let panel = |title: &str, unit, from: usize, lines: &[(&str, Figure)]| {
        let places = Scene::ALL[from..].iter().map(|scene| scene.label().to_owned()).collect();
        let line =
            |(name, of): &(&str, Figure)| ((*name).to_owned(), figures[from..].iter().map(of).collect());
        Panel::new(title.to_owned(), unit, Form::Bars, places, lines.iter().map(line).collect())
    };
    // The stream alone has no small writers.
    vec![
        panel("The stream", "MB/s", 0, &[("bandwidth", |found| found.stream.median() / 1e6)]),
        panel(
            "Writes of 4 KiB",
            "ms",
            1,
            &[
                ("median", |found| found.p50_ms.median()),
                ("99 of 100 take no longer", |found| found.p99_ms.median()),
            ],
        ),
        panel("Writes of 4 KiB, all writers", "1/s", 1, &[("rate", |found| found.small.median())]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<u32> = (1..=200).collect();
        assert_eq!(percentile(&values, 50), 100);
        assert_eq!(percentile(&values, 99), 198);
        assert_eq!(percentile(&[7], 99), 7);
        assert_eq!(percentile(&[], 50), 0);
    }

    #[test]
    fn a_stream_alone_has_no_small_figures() {
        let mut figures = Figures::default();
        let stream = Done { bytes: 50_000_000, elapsed_ns: 500_000_000, latencies_us: Vec::new() };
        figures.push(&[stream.clone(), Done::default()]);
        assert_eq!(figures.stream.median(), 1e8);
        assert_eq!((figures.small.count(), figures.p50_ms.count()), (0, 0));
        let small = Done { bytes: 0, elapsed_ns: 1_000_000_000, latencies_us: vec![3000, 1000, 2000] };
        figures.push(&[stream, small.clone(), small]);
        assert_eq!(
            (figures.small.median(), figures.p50_ms.median(), figures.p99_ms.median()),
            (6.0, 2.0, 3.0)
        );
    }

    #[test]
    fn every_figure_is_labelled_simulated_and_only_separated_streams_have_a_target() {
        let mut figures = vec![Figures::default(); 4];
        let done = |bytes| Done { bytes, elapsed_ns: 1_000_000_000, latencies_us: vec![1000] };
        for (scene, bytes) in figures.iter_mut().zip([200_000_000, 50_000_000, 190_000_000, 100_000_000]) {
            scene.push(&[done(bytes), done(4096)]);
        }
        let arguments = NoisyArguments {
            memory_dir: PathBuf::new(),
            disks: 2,
            writers: 1,
            media: Media { disk: "seek=8ms:bandwidth=100M".to_owned(), flash: "bandwidth=1G".to_owned() },
            nacre: NacreProgram::default(),
            html: None,
            common: Common { runs: 1, seconds: 1.0, json: false },
        };
        let report = report_of(&arguments, 2, &figures);
        assert!(report.title.contains("simulated"));
        assert!(report.rows.iter().all(|row| row.name.starts_with("simulated: ")));
        let verdicts: Vec<Option<bool>> =
            report.rows.iter().map(Row::meets_target).filter(Option::is_some).collect();
        assert_eq!(verdicts, [Some(true), Some(false)]);
        assert_eq!(report.rows[1].ratio(), Some(0.25));
    }
}
