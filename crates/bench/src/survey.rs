//! Bandwidth of objects by layer: object store, OST over the network, client. The counterpart of Lustre's
//! `obdfilter-survey`.
//!
//! Every layer gets the same work: numbers of objects and of threads, and records of one size, which are
//! written, overwritten, and read. Each layer includes the one before it, so the difference of their times
//! per MiB is the cost of the upper one.

mod continuous;
mod fake;
mod layer;
mod null_store;
mod plan;
mod policies;

use std::path::PathBuf;
use std::sync::Barrier;
use std::time::Instant;

use serde::Serialize;

use crate::buffer::Buffer;
use crate::chart::{self, Form, Panel};
use crate::error::Error;
use crate::instance::{Instance, InstanceOptions, NacreProgram};
use crate::machine;
use crate::options::Common;
use crate::report::{Report, Row, Unit};
use crate::sample::Samples;
use crate::worker::Myself;
use crate::{medium, stop};
use layer::{Backend, FileObjects, Objects, OstObjects, StoreObjects};
use nacre_common::size;
use nacre_store::object::simulated::AnyMedium;
use plan::Case;
use tempfile::TempDir;

pub use fake::{Feature, ServeOstArguments, serve_ost};
pub use layer::Layer;
pub use policies::TrimPolicy;

/// Size of a record in bytes, at most: the most that a request to an OST carries.
const RECORD_MAX: u64 = 16 << 20;
/// Unit of records in bytes.
const RECORD_UNIT: u64 = 4096;
/// Number of threads, and of objects, at most.
const MANY: u32 = 1024;

/// `nacre bench survey`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example: nacre bench survey --dir /srv/disk --objects 1,4 --threads 1,4 --record 64k,1M
         nacre bench survey --dir /srv/disk --layer store --continuous --for 1h --trim-every 10m --html decay.html
         nacre bench survey --dir /srv/disk --backend block --fake-io --objects 4 --threads 1,8,32 --record 4k --size 256M")]
pub struct SurveyArguments {
    /// Existing directory on the disk to measure; all files are created in a new directory there and removed
    /// again
    #[arg(long)]
    dir: PathBuf,
    /// Layers, all by default; their runs alternate
    #[arg(long = "layer", value_delimiter = ',')]
    layers: Vec<Layer>,
    /// Back end of the objects
    #[arg(long, default_value = "file")]
    backend: Backend,
    /// Size of the device of a block store; half of what is available by default
    #[arg(long, value_parser = size::parse)]
    device_size: Option<u64>,
    /// Service times of a simulated medium, below every layer: seek=8ms:bandwidth=150M, or with --backend
    /// block disk:..., flash:..., throttle:... in the syntax of osd-file.*.simulated_medium
    #[arg(long, value_name = "SPEC", value_parser = medium::parse)]
    simulated_medium: Option<AnyMedium>,
    /// Objects
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4], value_parser = clap::value_parser!(u32).range(1..=i64::from(MANY)))]
    objects: Vec<u32>,
    /// Threads in all; those of one object share its records round-robin
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4], value_parser = clap::value_parser!(u32).range(1..=i64::from(MANY)))]
    threads: Vec<u32>,
    /// Sizes of records
    #[arg(long, value_delimiter = ',', default_values = ["1M"], value_parser = record)]
    record: Vec<u64>,
    /// Size of each object
    #[arg(long, default_value = "64M", value_parser = size::parse)]
    size: u64,
    /// Write continuously, removing an object now and then, and show the bandwidth over time; of the first
    /// layer and first of each list
    #[arg(long)]
    continuous: bool,
    /// Read at random from an OST, in alternation with one whose store does no I/O (fake); the ratio is the
    /// cost of the store
    #[arg(long, conflicts_with_all = ["continuous", "layers", "html", "simulated_medium"])]
    fake_io: bool,
    /// Also features of the I/O path, each against its absence
    #[arg(long = "feature", value_delimiter = ',', requires = "fake_io")]
    features: Vec<Feature>,
    /// Duration with --continuous: 90s, 10m, 1h
    #[arg(long = "for", default_value = "1m", value_parser = continuous::duration, requires = "continuous")]
    duration: std::time::Duration,
    /// Time between two figures, with --continuous
    #[arg(long, default_value = "1s", value_parser = continuous::duration, requires = "continuous")]
    sample: std::time::Duration,
    /// Time between two trims of the local file system, with --continuous; none otherwise
    #[arg(long, value_parser = continuous::duration, requires = "continuous")]
    trim_every: Option<std::time::Duration>,
    /// Pause of all writers between bursts, with --continuous; none by default
    #[arg(long, value_parser = continuous::duration, requires = "continuous")]
    rest: Option<std::time::Duration>,
    /// Length of a burst, with --rest
    #[arg(long, default_value = "4s", value_parser = continuous::duration)]
    burst: std::time::Duration,
    /// Trim policies of the OST: bandwidth in bursts with each, with --rest
    #[arg(long = "trim-policy", value_delimiter = ',', requires = "rest", conflicts_with = "trim_every")]
    policies: Vec<TrimPolicy>,
    /// The program that starts file systems.
    #[command(flatten)]
    nacre: NacreProgram,
    /// Also write a page with charts there
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// How figures are taken and printed.
    #[command(flatten)]
    pub common: Common,
}

fn record(text: &str) -> Result<u64, String> {
    match size::parse(text)? {
        bytes @ RECORD_UNIT..=RECORD_MAX if bytes.is_multiple_of(RECORD_UNIT) => Ok(bytes),
        _ => Err(format!("a record of {text} is no multiple of {RECORD_UNIT} bytes up to 16 MiB")),
    }
}

/// Operation on all objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Phase {
    Write,
    Rewrite,
    Read,
}

const PHASES: [Phase; 3] = [Phase::Write, Phase::Rewrite, Phase::Read];

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Phase::Write => "write",
            Phase::Rewrite => "rewrite",
            Phase::Read => "read",
        }
    }
}

/// The selected layers and their resources.
struct Bench {
    layers: Vec<(Layer, Box<dyn Objects>)>,
    // After the layers, which use it: fields are dropped in this order.
    instance: Option<Instance>,
    directory: TempDir,
}

/// Creates a directory in the given one.
fn scratch_in(arguments: &SurveyArguments) -> Result<TempDir, Error> {
    if !arguments.dir.is_dir() {
        return Err(Error::Usage(format!("{} is no directory: name one", arguments.dir.display())));
    }
    let dir = std::fs::canonicalize(&arguments.dir).map_err(Error::io("find", &arguments.dir))?;
    let made = tempfile::Builder::new().prefix("nacre-survey-").tempdir_in(&dir);
    made.map_err(Error::io("create a directory in", &dir))
}

impl Bench {
    fn start(arguments: &SurveyArguments, layers: &[Layer]) -> Result<Bench, Error> {
        let directory = scratch_in(arguments)?;
        let mut layers = match layers {
            [] => vec![Layer::Store, Layer::Ost, Layer::Client],
            some => some.to_vec(),
        };
        layers.sort_unstable();
        layers.dedup();
        let ost_backend = match arguments.backend {
            Backend::File => None,
            Backend::Block => {
                Some(format!("block,size={}", layer::device_bytes(directory.path(), arguments.device_size)?))
            }
        };
        let simulated = medium::some(arguments.simulated_medium);
        if let (Backend::File, Some(medium @ AnyMedium::Device(_))) = (arguments.backend, simulated) {
            return Err(Error::Usage(format!("{medium} is simulated of a device: give --backend block too")));
        }
        let options = InstanceOptions {
            osts: 1,
            separate: true,
            is_open: true,
            ost_backend,
            ..InstanceOptions::default()
        };
        let instance = match layers.iter().any(|layer| *layer != Layer::Store) {
            true => Some(Instance::start(&arguments.nacre.find()?, directory.path(), "fs", options)?),
            false => None,
        };
        if let (Some(instance), Some(medium)) = (&instance, simulated) {
            instance.set_params(&[("osd-file", "simulated_medium", medium.to_string())])?;
        }
        let open = |layer: &Layer| -> Result<(Layer, Box<dyn Objects>), Error> {
            let objects: Box<dyn Objects> = match (layer, &instance) {
                (Layer::Ost, Some(instance)) => Box::new(OstObjects::connect(instance)?),
                (Layer::Client, Some(instance)) => {
                    Box::new(FileObjects::new(instance.mount().join("survey")))
                }
                _ => {
                    let device = layer::device_bytes(directory.path(), arguments.device_size)?;
                    Box::new(StoreObjects::open(
                        &directory.path().join("store"),
                        arguments.backend,
                        device,
                        simulated,
                    )?)
                }
            };
            Ok((*layer, objects))
        };
        let layers = layers.iter().map(open).collect::<Result<Vec<_>, Error>>()?;
        Ok(Bench { layers, instance, directory })
    }
}

/// One phase of one case: bandwidth of all threads together, and of the slowest and the fastest thread, in
/// bytes per second.
#[derive(Debug, Clone, Copy)]
struct Rates {
    all: f64,
    least: f64,
    most: f64,
}

/// All runs of one phase of one case on one layer.
#[derive(Debug, Clone, Serialize)]
struct Figure {
    layer: Layer,
    objects: u32,
    threads: u32,
    record: u64,
    phase: Phase,
    /// Bandwidth of each run in bytes per second.
    samples: Samples,
    /// Lowest bandwidth of a single thread over all runs, in bytes per second.
    least: f64,
    most: f64,
}

/// Runs the requested survey.
///
/// # Errors
///
/// If a layer does not start, or the disk is full.
pub fn measure(arguments: &SurveyArguments, myself: &Myself) -> Result<Report, Error> {
    let cases = cases(arguments)?;
    // Ctrl-C ends the work, and created files are removed as usual.
    stop::listen();
    if arguments.fake_io {
        return fake::measure(arguments, &scratch_in(arguments)?, &cases, myself);
    }
    if !arguments.policies.is_empty() {
        return policies::measure(arguments, cases[0]);
    }
    let mut bench = Bench::start(arguments, &arguments.layers)?;
    if arguments.continuous {
        return continuous::measure(arguments, &mut bench, cases[0]);
    }
    let mut report = Report::new(format!(
        "Survey of {} with objects of {}{}",
        arguments.dir.display(),
        size::show(arguments.size),
        simulated(arguments)
    ));
    report.notes.extend(medium::some(arguments.simulated_medium).map(medium::note));
    let mut figures = Vec::new();
    let mut cold = true;
    for case in &cases {
        figures.extend(survey(case, &mut bench, arguments.common.runs.max(1), &mut cold)?);
    }
    report.rows = figures.iter().map(row).collect();
    if arguments.backend == Backend::Block {
        report.notes.push(
            "objects are kept in a store that has a sparse file on the file system for itself".to_owned(),
        );
    }
    report.notes.push("writes are durable before the clock stops; spreads are those of runs".to_owned());
    report.notes.push(match cold {
        true => "the kernel's caches were emptied before each read".to_owned(),
        false => "the kernel's caches could not be emptied before reads: only root can".to_owned(),
    });
    report.tables.push(table(&cases, &figures));
    if bench.layers.len() > 1 {
        report.tables.push(added(&cases, &figures, &bench.layers));
    }
    chart::write(arguments.html.as_deref(), &report.title, &report, || panels(&cases, &figures))?;
    Ok(report)
}

/// Returns the remark in the title for a simulated medium.
fn simulated(arguments: &SurveyArguments) -> String {
    let medium = medium::some(arguments.simulated_medium);
    medium.map_or_else(String::new, |medium| format!(", simulated {medium}"))
}

fn cases(arguments: &SurveyArguments) -> Result<Vec<Case>, Error> {
    let mut cases = Vec::new();
    for &record in &arguments.record {
        for &objects in &arguments.objects {
            for &threads in &arguments.threads {
                let case = Case { objects, threads, record, size: arguments.size };
                if case.records() == 0 || !case.size.is_multiple_of(record) {
                    let (size, record) = (size::show(case.size), size::show(record));
                    return Err(Error::Usage(format!(
                        "objects of {size} are no whole number of records of {record}"
                    )));
                }
                cases.push(case);
            }
        }
    }
    Ok(cases)
}

fn survey(case: &Case, bench: &mut Bench, runs: usize, cold: &mut bool) -> Result<Vec<Figure>, Error> {
    let new = |layer: Layer, phase| Figure {
        layer,
        objects: case.objects,
        threads: case.threads,
        record: case.record,
        phase,
        samples: Samples::new(),
        least: f64::MAX,
        most: 0.0,
    };
    let mut figures: Vec<Figure> =
        bench.layers.iter().flat_map(|(layer, _)| PHASES.map(|phase| new(*layer, phase))).collect();
    for _ in 0..runs {
        for (index, (_, objects)) in bench.layers.iter_mut().enumerate() {
            objects.make(case.objects)?;
            for (number, phase) in PHASES.into_iter().enumerate() {
                if phase == Phase::Read {
                    *cold = machine::drop_caches().is_ok();
                }
                let rates = pass(&**objects, case, phase)?;
                let figure = &mut figures[index * PHASES.len() + number];
                figure.samples.push(rates.all);
                figure.least = figure.least.min(rates.least);
                figure.most = figure.most.max(rates.most);
            }
            (0..case.objects).try_for_each(|object| objects.destroy(object))?;
        }
    }
    Ok(figures)
}

/// Runs one phase on all threads.
fn pass(objects: &dyn Objects, case: &Case, phase: Phase) -> Result<Rates, Error> {
    let line = Barrier::new(case.threads as usize);
    let work = |thread: u32| -> Result<(Instant, Instant, u64), Error> {
        let mut buffer = Buffer::new(case.record as usize);
        line.wait();
        let start = Instant::now();
        let bytes = transfer(objects, case, phase, thread, buffer.slice())?;
        Ok((start, Instant::now(), bytes))
    };
    let work = &work;
    let spans = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..case.threads).map(|thread| scope.spawn(move || work(thread))).collect();
        let joined =
            threads.into_iter().map(|thread| thread.join().expect("threads of a survey do not panic"));
        joined.collect::<Result<Vec<_>, Error>>()
    })?;
    let spans: Vec<(Instant, Instant, u64)> = spans.into_iter().filter(|(_, _, bytes)| *bytes > 0).collect();
    let first = spans.iter().map(|span| span.0).min();
    let last = spans.iter().map(|span| span.1).max();
    let elapsed = first.zip(last).map_or(0.0, |(first, last)| last.duration_since(first).as_secs_f64());
    let each = spans
        .iter()
        .map(|(start, end, bytes)| *bytes as f64 / end.duration_since(*start).as_secs_f64().max(1e-9));
    let (least, most) = each.fold((f64::MAX, 0.0), |(least, most), rate| (rate.min(least), rate.max(most)));
    Ok(Rates { all: case.bytes() as f64 / elapsed.max(1e-9), least, most })
}

/// Runs one thread's part of a phase and makes it durable; returns its bytes.
fn transfer(
    objects: &dyn Objects,
    case: &Case,
    phase: Phase,
    thread: u32,
    buffer: &mut [u8],
) -> Result<u64, Error> {
    let mut bytes = 0;
    let mut touched: Vec<u32> = Vec::new();
    for (object, offset) in case.work(thread) {
        if stop::asked() {
            return Err(Error::Interrupted);
        }
        match phase {
            Phase::Read => {
                objects.read(object, offset, buffer)?;
                check(buffer, object, offset)?;
            }
            Phase::Write | Phase::Rewrite => {
                stamp(buffer, object, offset);
                objects.write(object, offset, buffer)?;
                if !touched.contains(&object) {
                    touched.push(object);
                }
            }
        }
        bytes += case.record;
    }
    touched.into_iter().try_for_each(|object| objects.sync(object))?;
    Ok(bytes)
}

fn mark(object: u32, offset: u64) -> [u8; 8] {
    (offset ^ (u64::from(object) << 48) ^ 0x5375_7276_6579_0000).to_le_bytes()
}

/// Writes the object and offset of a record into it.
fn stamp(record: &mut [u8], object: u32, offset: u64) {
    record[..8].copy_from_slice(&mark(object, offset));
}

fn check(record: &[u8], object: u32, offset: u64) -> Result<(), Error> {
    if record[..8] == mark(object, offset) {
        return Ok(());
    }
    let reason = format!("object {object} has other data at offset {offset} than was written");
    Err(Error::Server { what: "the survey".to_owned(), reason })
}

fn name(figure: &Figure) -> String {
    let (layer, phase) = (figure.layer.name(), figure.phase.name());
    format!("{layer} {phase}, obj {} thr {} rsz {}", figure.objects, figure.threads, shown(figure.record))
}

fn row(figure: &Figure) -> Row {
    Row::new(name(figure), Unit::BytesPerSecond, figure.samples.clone())
}

/// Formats a size: `64K`, `1M`.
fn shown(bytes: u64) -> String {
    match bytes {
        bytes if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        bytes => format!("{}K", bytes >> 10),
    }
}

fn of<'a>(figures: &'a [Figure], case: &Case, layer: Layer, phase: Phase) -> Option<&'a Figure> {
    figures.iter().find(|figure| {
        (figure.objects, figure.threads, figure.record) == (case.objects, case.threads, case.record)
            && (figure.layer, figure.phase) == (layer, phase)
    })
}

const LAYERS: [Layer; 3] = [Layer::Store, Layer::Ost, Layer::Client];

/// Formats one line for each case and layer, with the bandwidth of single threads.
fn table(cases: &[Case], figures: &[Figure]) -> String {
    let mut text =
        "Bandwidth of all threads, and [slowest thread, fastest thread], MB/s (10^6)\n\n".to_owned();
    text.push_str("| layer | obj | thr | rsz | write | rewrite | read |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n");
    for case in cases {
        for layer in LAYERS {
            let cells = PHASES.map(|phase| {
                of(figures, case, layer, phase).map(|figure| {
                    let mb = |rate: f64| format!("{:.0}", rate / 1e6);
                    let (all, least, most) = (mb(figure.samples.median()), mb(figure.least), mb(figure.most));
                    format!("{all} [{least}, {most}]")
                })
            });
            if let [Some(write), Some(rewrite), Some(read)] = cells {
                let (objects, threads, record) = (case.objects, case.threads, shown(case.record));
                text.push_str(&format!(
                    "| {} | {objects} | {threads} | {record} | {write} | {rewrite} | {read} |\n",
                    layer.name()
                ));
            }
        }
    }
    text
}

/// Formats the time that each layer adds to the one below, per MiB.
fn added(cases: &[Case], figures: &[Figure], layers: &[(Layer, Box<dyn Objects>)]) -> String {
    let mut text = "Time for a MiB, microseconds: of the lowest layer, and what each one above adds\n\n| obj | thr | rsz | phase |".to_owned();
    for (index, (layer, _)) in layers.iter().enumerate() {
        text.push_str(&format!(" {}{} |", if index == 0 { "" } else { "+ " }, layer.name()));
    }
    text.push_str(&format!("\n| ---: | ---: | ---: | --- |{}\n", " ---: |".repeat(layers.len())));
    for case in cases {
        for phase in PHASES {
            let (objects, threads, record) = (case.objects, case.threads, shown(case.record));
            text.push_str(&format!("| {objects} | {threads} | {record} | {} |", phase.name()));
            let mut below = 0.0;
            for (layer, _) in layers {
                let rate = of(figures, case, *layer, phase).map_or(0.0, |figure| figure.samples.median());
                let time = f64::from(1 << 20) / rate.max(1.0) * 1e6;
                text.push_str(&format!(" {:.0} |", time - below));
                below = time;
            }
            text.push('\n');
        }
    }
    text
}

fn panels(cases: &[Case], figures: &[Figure]) -> Vec<Panel> {
    let panel = |phase: Phase| {
        let places =
            cases.iter().map(|case| format!("{}/{}/{}", case.objects, case.threads, shown(case.record)));
        let line = |layer: &Layer| {
            let value =
                |case: &Case| of(figures, case, *layer, phase).map(|figure| figure.samples.median() / 1e6);
            let values: Option<Vec<f64>> = cases.iter().map(value).collect();
            values.map(|values| (layer.name(), values))
        };
        let title = format!("{} by objects/threads/record", phase.name());
        let lines = LAYERS.iter().filter_map(line).collect();
        Panel::new(title, "MB/s", Form::Bars, places.collect(), lines)
    };
    PHASES.map(panel).to_vec()
}

#[cfg(test)]
mod tests;
