//! `nacre bench dne-scaling`: names on one, two, four and eight MDTs, as measured at LAD'17 and by Cray in
//! 2019.
//!
//! One file system per number of MDTs, with the same tasks and files on each. In unique directories, task i
//! works on MDT i modulo their number; in the shared layout, all tasks work in one directory that is striped
//! over all MDTs (left out with a note if the program cannot create one). Two measurements: the CPU time of
//! all processes of the file system per operation, which must not grow with MDTs, and the rate with a
//! **simulated** service time per operation of an MDT, much longer than its CPU time: all MDTs share the CPUs
//! of one machine here, so without simulation more MDTs cannot be faster.

mod apart;
mod task;

use std::ffi::OsStr;
use std::path::PathBuf;

use crate::chart::{self, Form, Panel};
use crate::error::Error;
use crate::instance::{Instance, InstanceOptions, NacreProgram};
use crate::machine::process_cpu_us;
use crate::options::{Common, word};
use crate::report::{Against, Report, Row, Target, Unit};
use crate::sample::Samples;
use crate::team::Span;
use crate::team::Team;
use crate::worker::Myself;
use task::{Order, Phase, Setup};

pub(crate) use task::serve;

/// Number of MDTs, and the target of the rate relative to one MDT, with simulated service times.
const TARGETS: [(usize, f64); 3] = [(2, 1.9), (4, 3.7), (8, 7.2)];
/// Limit of the CPU time of a create in the shared directory, relative to one MDT.
const CPU_RATIO: f64 = 1.15;

/// `nacre bench dne-scaling`
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: nacre bench dne-scaling --mdts 1,2,4,8 --runs 3 --html scaling.html")]
pub struct DneArguments {
    /// Directory in memory (tmpfs) or on a disk; needs 256 MiB for each MDT
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Numbers of MDTs; the first is the baseline
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8])]
    mdts: Vec<usize>,
    /// Everything in one process, one mount, instead of a process for each server
    #[arg(long)]
    one_process: bool,
    /// Mounts; each mount's kernel serialises the changes of a directory
    #[arg(long, default_value_t = 8)]
    mounts: usize,
    /// Processes that work, on all mounts together
    #[arg(long, default_value_t = 32)]
    tasks: usize,
    /// Files of each task without simulated service times
    #[arg(long, default_value_t = 200)]
    files: u64,
    /// Files of each task with them
    #[arg(long, default_value_t = 40)]
    simulated_files: u64,
    /// The simulated service time of an MDT
    #[arg(long, value_name = "SERVICE", default_value = "time=2ms:at_once=1")]
    service: String,
    /// Also creates on separate file systems of one MDT each, as many as the most MDTs: the cost that
    /// processes cause each other on these CPUs without a common name space
    #[arg(long, conflicts_with = "one_process")]
    apart: bool,
    /// Only directories of this kind
    #[arg(long)]
    layout: Option<Layout>,
    /// Content of files, and where it is stored
    #[arg(long, value_delimiter = ',', default_values_t = [Data::Empty])]
    data: Vec<Data>,
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

/// In which directories files are created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Layout {
    /// A directory for each task, assigned to MDTs round-robin.
    Unique,
    /// One directory for all tasks, striped over all MDTs.
    Shared,
}

impl Layout {
    const ALL: [Layout; 2] = [Layout::Unique, Layout::Shared];

    fn label(self) -> &'static str {
        match self {
            Layout::Unique => "unique directories",
            Layout::Shared => "shared directory",
        }
    }
}

/// Content of files, and where it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Data {
    /// Nothing; the layout is that of a new file system
    Empty,
    /// Nothing; the layout has no component on the MDT
    EmptyOst,
    /// Nothing; the layout has the first 64 KiB on the MDT
    EmptyMdt,
    /// 4 KiB on an OST
    Ost,
    /// 4 KiB on the MDT
    Mdt,
}

impl std::fmt::Display for Data {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&word(*self))
    }
}

impl Data {
    /// Returns the size of a file in bytes.
    fn bytes(self) -> usize {
        if matches!(self, Data::Ost | Data::Mdt) { 4096 } else { 0 }
    }

    /// Returns the arguments of `lfs setstripe` for the directories.
    fn striping(self) -> Option<&'static [&'static str]> {
        match self {
            Data::Empty => None,
            Data::EmptyOst | Data::Ost => Some(&["-c", "1"]),
            Data::EmptyMdt | Data::Mdt => Some(&["-E", "64K", "-L", "mdt", "-E", "-1", "-c", "1"]),
        }
    }
}

/// Kind of directories and kind of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Files {
    layout: Layout,
    data: Data,
}

impl Files {
    fn label(self) -> String {
        let what = match self.data {
            Data::Empty => "",
            Data::EmptyOst => ", empty files without DoM",
            Data::EmptyMdt => ", empty files with DoM 64K",
            Data::Ost => ", 4 KiB on an OST",
            Data::Mdt => ", 4 KiB on the MDT",
        };
        format!("{}{what}", self.layout.label())
    }
}

/// Subject of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Case {
    mdts: usize,
    files: Files,
    phase: Phase,
    simulated: bool,
}

/// All runs of one phase on one file system with one kind of files.
#[derive(Debug, Clone)]
struct Figure {
    case: Case,
    rates: Samples,
    /// CPU time of all processes of the file system per operation, in microseconds.
    cpu_us: Samples,
    /// Number of files created.
    files: u64,
}

/// Takes all figures.
///
/// # Errors
///
/// When a file system does not start or work on it fails; it is stopped first.
pub fn measure(arguments: &DneArguments, myself: &Myself) -> Result<Report, Error> {
    let mut run = DneRun { arguments, myself, figures: Vec::new(), notes: Vec::new(), rounds: 0 };
    for &mdts in &arguments.mdts {
        eprintln!("bench dne-scaling: {mdts} MDT(s)");
        run.file_system(mdts.max(1))?;
    }
    if arguments.apart {
        run.compare_apart()?;
    }
    let report = report_of(arguments, &run.figures, run.notes);
    chart::write(arguments.html.as_deref(), "Scaling over MDTs", &report, || {
        panels(arguments, &run.figures)
    })?;
    Ok(report)
}

struct DneRun<'a> {
    arguments: &'a DneArguments,
    myself: &'a Myself,
    figures: Vec<Figure>,
    notes: Vec<String>,
    /// Completed rounds over all phases.
    rounds: u64,
}

impl DneRun<'_> {
    fn file_system(&mut self, mdts: usize) -> Result<(), Error> {
        let arguments = self.arguments;
        let program = arguments.nacre.find()?;
        let options =
            InstanceOptions { osts: 1, mdts, separate: !arguments.one_process, ..InstanceOptions::default() };
        let mut instance = Instance::start(&program, &arguments.dir, "bench-dne", options)?;
        let mut mounts = vec![instance.mount().to_owned()];
        if !arguments.one_process {
            for _ in 1..arguments.mounts {
                mounts.push(instance.add_mount()?);
            }
        }
        let tasks = arguments.tasks.max(1);
        let setup = |rank| Setup { rank, mounts: mounts.clone() };
        let mut team = Team::start(self.myself, "dne", &(0..tasks).map(setup).collect::<Vec<_>>(), false)?;
        let service = format!("mdt.{}-MDT*.simulated_service", instance.fsname());
        for layout in Layout::ALL {
            if arguments.layout.is_some_and(|only| only != layout) {
                continue;
            }
            for &data in &arguments.data {
                let files = Files { layout, data };
                let Some(directories) = self.directories(&instance, files, mdts)? else { continue };
                self.warm_up(&mut team, &directories)?;
                for _ in 0..arguments.common.runs.max(1) {
                    for simulated in [false, true] {
                        let value = if simulated { &arguments.service } else { "off" };
                        instance.set_named_params(&[format!("{service}={value}")])?;
                        let case = Case { mdts, files, phase: Phase::Create, simulated };
                        self.phases(&instance, &mut team, &directories, case)?;
                    }
                }
                instance.set_named_params(&[format!("{service}=off")])?;
            }
        }
        drop(team);
        Ok(())
    }

    /// Creates the directory of each task afresh; `None` with a note if the program does not support them.
    fn directories(
        &mut self,
        instance: &Instance,
        Files { layout, data }: Files,
        mdts: usize,
    ) -> Result<Option<Vec<PathBuf>>, Error> {
        let tasks = self.arguments.tasks.max(1);
        let make = |name: &str, option: &str, value: usize| {
            let (path, value) = (instance.mount().join(name), value.to_string());
            instance.lfs(&["mkdir".as_ref(), option.as_ref(), OsStr::new(&value), path.as_os_str()])?;
            data.striping().map_or(Ok(()), |striping| instance.setstripe(&path, striping))
        };
        if layout == Layout::Unique {
            let names: Vec<String> = (0..tasks).map(|task| format!("{data}.{task}")).collect();
            names.iter().enumerate().try_for_each(|(task, name)| make(name, "-i", task % mdts))?;
            return Ok(Some(names.into_iter().map(PathBuf::from).collect()));
        }
        let name = format!("{data}.shared");
        let made = if mdts == 1 { make(&name, "-i", 0) } else { make(&name, "-c", mdts) };
        match made {
            Ok(()) => Ok(Some(vec![PathBuf::from(name); tasks])),
            Err(Error::Server { reason, .. }) => {
                let reason = reason.lines().next().unwrap_or_default();
                self.notes.push(format!("a directory striped over {mdts} MDTs is left out: {reason}"));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Creates and removes files once, so that connections from all CPUs to all MDTs exist: setting them up
    /// is not part of an operation.
    fn warm_up(&self, team: &mut Team, directories: &[PathBuf]) -> Result<(), Error> {
        for phase in [Phase::Create, Phase::Unlink] {
            let (directories, files) = (directories.to_vec(), self.arguments.files.max(1));
            let order = Order { phase, directories, distance: 1, round: 0, files, bytes: 0 };
            team.run::<Span>(&order)?;
        }
        Ok(())
    }

    /// Runs all phases of a case.
    fn phases(
        &mut self,
        instance: &Instance,
        team: &mut Team,
        directories: &[PathBuf],
        case: Case,
    ) -> Result<(), Error> {
        let arguments = self.arguments;
        let files = if case.simulated { arguments.simulated_files } else { arguments.files }.max(1);
        let processes = instance.processes()?;
        self.rounds += 1;
        for phase in Phase::ALL {
            let (directories, round) = (directories.to_vec(), self.rounds);
            let bytes = case.files.data.bytes();
            let order = Order { phase, directories, distance: 1, round, files, bytes };
            let (spans, cpu_us) = spent_on(team, &order, &processes)?;
            let items: u64 = spans.iter().map(|span| span.items).sum();
            let start = spans.iter().map(|span| span.start_ns).min().unwrap_or(0);
            let end = spans.iter().map(|span| span.end_ns).max().unwrap_or(0);
            let figure = self.figure(Case { phase, ..case });
            figure.rates.push(items as f64 / ((end - start).max(1) as f64 / 1e9));
            figure.cpu_us.push(cpu_us / items as f64);
            figure.files = items;
        }
        Ok(())
    }

    fn figure(&mut self, case: Case) -> &mut Figure {
        let at = self.figures.iter().position(|figure| figure.case == case).unwrap_or_else(|| {
            let (rates, cpu_us, files) = (Samples::new(), Samples::new(), 0);
            self.figures.push(Figure { case, rates, cpu_us, files });
            self.figures.len() - 1
        });
        &mut self.figures[at]
    }
}

/// Runs one phase. Returns the tasks' times, and the CPU time of all `processes` from the moment when all
/// tasks have opened their directories.
fn spent_on(team: &mut Team, order: &Order, processes: &[u32]) -> Result<(Vec<Span>, f64), Error> {
    let spent = || processes.iter().filter_map(|&pid| process_cpu_us(pid)).sum::<f64>();
    let mut before = 0.0;
    let spans = team.run_watched(order, || before = spent())?;
    Ok((spans, spent() - before))
}

fn find(figures: &[Figure], case: Case) -> Option<&Figure> {
    figures.iter().find(|figure| figure.case == case)
}

fn report_of(arguments: &DneArguments, figures: &[Figure], notes: Vec<String>) -> Report {
    let mut report = Report::new(format!(
        "Scaling over MDTs, {} tasks on {} mount(s), {}",
        arguments.tasks.max(1),
        if arguments.one_process { 1 } else { arguments.mounts.max(1) },
        if arguments.one_process { "one process" } else { "a process for each server" },
    ));
    let first = arguments.mdts.first().copied().unwrap_or(1).max(1);
    for figure in figures {
        let Case { mdts, files, phase, simulated } = figure.case;
        let label = if simulated { "simulated: " } else { "" };
        let name = format!("{label}{}, {}, {mdts} MDT(s)", phase.label(), files.label());
        let mut row = Row::new(name, Unit::OpsPerSecond, figure.rates.clone());
        row.daemon_us = figure.cpu_us.clone();
        if let Some(bound) = find(figures, Case { mdts: first, ..figure.case }).filter(|_| mdts != first) {
            let mut against = Row::new(String::new(), Unit::OpsPerSecond, bound.rates.clone());
            against.daemon_us = bound.cpu_us.clone();
            row.against = Some(Against::new(format!("{first} MDT(s)"), against));
            let aim = TARGETS.iter().find(|&&(count, _)| first == 1 && count == mdts && phase != Phase::Read);
            row.target = aim.filter(|_| simulated).map(|&(_, ratio)| Target::RatioAtLeast(ratio));
        }
        report.rows.push(row);
    }
    report.notes.push(format!(
        "simulated: each operation of an MDT takes {} beside its own time, so that MDTs that share this machine's CPUs can be \
         compared; 'of daemons' is the CPU time of all processes of the file system for one operation",
        arguments.service
    ));
    report.notes.extend(notes);
    report.notes.extend(cpu_ratios(figures, first));
    report.tables = tables(figures, first);
    report
}

/// Compares CPU time per operation with the most MDTs against the fewest.
fn cpu_ratios(figures: &[Figure], first: usize) -> Vec<String> {
    let most = figures.iter().map(|figure| figure.case.mdts).max().unwrap_or(first);
    let of = |figure: &Figure| {
        let Case { files, phase, .. } = figure.case;
        let one = find(figures, Case { mdts: first, ..figure.case })?;
        let ratio = figure.cpu_us.median() / one.cpu_us.median();
        let verdict = match (files.layout, phase) {
            (Layout::Shared, Phase::Create) if ratio <= CPU_RATIO => format!(" (at most {CPU_RATIO}: met)"),
            (Layout::Shared, Phase::Create) => format!(" (at most {CPU_RATIO}: MISSED)"),
            _ => String::new(),
        };
        let (phase, layout) = (phase.label(), files.label());
        Some(format!("CPU time of a {phase}, {layout}, {most} MDTs against {first}: {ratio:.2} x{verdict}"))
    };
    figures
        .iter()
        .filter(|figure| figure.case.mdts == most && most != first && !figure.case.simulated)
        .filter_map(of)
        .collect()
}

/// Returns the kinds of files that have figures, each once.
fn kinds(figures: &[Figure]) -> Vec<Files> {
    let mut kinds: Vec<Files> = Vec::new();
    for figure in figures {
        if !kinds.contains(&figure.case.files) {
            kinds.push(figure.case.files);
        }
    }
    kinds
}

/// Formats LAD'17's scaling, normalised to the first number of MDTs, and Cray's table.
fn tables(figures: &[Figure], first: usize) -> Vec<String> {
    let mut tables = Vec::new();
    let mut counts: Vec<usize> = figures.iter().map(|figure| figure.case.mdts).collect();
    counts.sort_unstable();
    counts.dedup();
    for simulated in [true, false] {
        let label = if simulated { "simulated service time" } else { "this machine's CPUs for all MDTs" };
        let head = |title: &str, first: &str, second: &str| {
            format!(
                "{title}, {label}\n\n| {first} | {second} | create | stat | read | unlink |\n{}|\n",
                "| --- ".repeat(6)
            )
        };
        let mut scaling = head(&format!("Rate normalised to {first} MDT(s)"), "MDTs", "directories");
        let mut rates = head("Operations per second", "case", "files per MDT");
        for files in kinds(figures) {
            for &mdts in &counts {
                let of = |phase| find(figures, Case { mdts, files, phase, simulated });
                let Some(create) = of(Phase::Create) else { continue };
                let cells = |value: &dyn Fn(&Figure) -> String| {
                    Phase::ALL.map(|phase| of(phase).map_or("-".to_owned(), value)).join(" | ")
                };
                let normalised = |figure: &Figure| {
                    let one = find(figures, Case { mdts: first, ..figure.case });
                    let one = one.map_or(f64::NAN, |one| one.rates.median());
                    format!("{:.2}", figure.rates.median() / one)
                };
                let name = files.label();
                scaling += &format!("| {mdts} | {name} | {} |\n", cells(&normalised));
                rates += &format!(
                    "| {name}, {mdts} MDT(s) | {} | {} |\n",
                    create.files / mdts as u64,
                    cells(&|figure: &Figure| format!("{:.0}", figure.rates.median()))
                );
            }
        }
        tables.extend([scaling, rates]);
    }
    tables
}

/// Returns the scaling chart, one line per phase and the ideal one, and the chart of CPU time per operation.
fn panels(arguments: &DneArguments, figures: &[Figure]) -> Vec<Panel> {
    let counts: Vec<usize> = arguments.mdts.iter().map(|&mdts| mdts.max(1)).collect();
    let first = counts.first().copied().unwrap_or(1);
    let mut panels = Vec::new();
    for files in kinds(figures) {
        let base = Case { mdts: first, files, phase: Phase::Create, simulated: true };
        if find(figures, base).is_none() {
            continue;
        }
        let line = |phase: Phase, simulated, value: &dyn Fn(&Figure, &Figure) -> f64| {
            let of = |&mdts: &usize| {
                let case = Case { mdts, files, phase, simulated };
                Some(value(find(figures, case)?, find(figures, Case { mdts: first, ..case })?))
            };
            (phase.label().to_owned(), counts.iter().map(|mdts| of(mdts).unwrap_or(0.0)).collect::<Vec<_>>())
        };
        let places: Vec<String> = counts.iter().map(|mdts| format!("{mdts} MDTs")).collect();
        let mut lines: Vec<_> = Phase::ALL
            .map(|phase| line(phase, true, &|figure, one| figure.rates.median() / one.rates.median()))
            .into();
        lines.push(("linear".to_owned(), counts.iter().map(|&mdts| mdts as f64 / first as f64).collect()));
        let title = format!("Rate against {first} MDT(s), {}, simulated service time", files.label());
        panels.push(Panel::new(title, "x", Form::Bars, places.clone(), lines));
        let title = format!("CPU time for an operation, {}", files.label());
        let lines = Phase::ALL.map(|phase| line(phase, false, &|figure, _| figure.cpu_us.median()));
        panels.push(Panel::new(title, "us", Form::Bars, places, lines.into()));
    }
    panels
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(mdts: usize, layout: Layout, phase: Phase, simulated: bool, rate: f64, cpu: f64) -> Figure {
        let (rates, cpu_us) = ([rate].into_iter().collect(), [cpu].into_iter().collect());
        let case = Case { mdts, files: Files { layout, data: Data::Empty }, phase, simulated };
        Figure { case, rates, cpu_us, files: 80 }
    }

    fn arguments() -> DneArguments {
        DneArguments {
            dir: PathBuf::new(),
            mdts: vec![1, 8],
            one_process: false,
            mounts: 8,
            tasks: 32,
            files: 1,
            simulated_files: 1,
            service: "time=2ms:at_once=1".to_owned(),
            layout: None,
            data: vec![Data::Empty],
            nacre: NacreProgram::default(),
            html: None,
            apart: false,
            common: Common { runs: 1, seconds: 1.0, json: false },
        }
    }

    #[test]
    fn rates_are_normalised_and_simulated_ones_are_labelled_and_judged() {
        let mut figures = Vec::new();
        for (mdts, rate, cpu) in [(1, 100.0, 50.0), (8, 750.0, 60.0)] {
            for phase in Phase::ALL {
                figures.push(figure(mdts, Layout::Unique, phase, true, rate, cpu));
                figures.push(figure(mdts, Layout::Shared, phase, false, 900.0, cpu));
            }
        }
        let report = report_of(&arguments(), &figures, Vec::new());
        let row =
            report.rows.iter().find(|row| row.name == "simulated: create, unique directories, 8 MDT(s)");
        let row = row.expect("a row");
        assert_eq!((row.ratio(), row.meets_target()), (Some(7.5), Some(true)));
        let text = report.table();
        assert!(text.contains("| 8 | unique directories | 7.50 | 7.50 | 7.50 | 7.50 |"), "{text}");
        assert!(text.contains("| unique directories, 8 MDT(s) | 10 | 750 | 750 | 750 | 750 |"), "{text}");
        assert!(
            text.contains(
                "CPU time of a create, shared directory, 8 MDTs against 1: 1.20 x (at most 1.15: MISSED)"
            ),
            "{text}"
        );
        assert!(
            report
                .rows
                .iter()
                .filter(|row| row.target.is_some())
                .all(|row| row.name.starts_with("simulated"))
        );
        let panels = panels(&arguments(), &figures);
        assert_eq!(panels.len(), 2);
        assert_eq!(panels[0].lines.last().expect("linear").1, [1.0, 8.0]);
    }
}
