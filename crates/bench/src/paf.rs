//! Populate and fragment: how bandwidth changes as a file system fills and ages.
//!
//! A state is written PaF:AA.BB: AA percent of the capacity are populated, BB percent of that were removed
//! and rewritten ([`ageing`] has the rules). In each state a file is written and read with each transfer
//! size, several times. The run is saved to disk ([`state`]) after each of these, so that it can be
//! interrupted at any time.
//!
//! [`ground`] is the store or directory under test; only files of the run itself are ever removed from it.
//! The procedure is that of the talk on fragmentation of 2017.

mod ageing;
mod backends;
mod below;
mod computed;
mod control;
mod engine;
mod ground;
mod ranges;
mod show;
mod state;

use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::{medium, stop};
use backends::BackendsArguments;
use engine::Engine;
use nacre_common::size;
use nacre_store::object::simulated::AnyMedium;
use state::{Output, Settings};

/// `nacre paf`
#[derive(Debug, clap::Subcommand)]
pub enum PafCommand {
    /// Fills, fragments and measures; the same command again continues an interrupted run
    Run(Box<RunArguments>),
    /// Runs over stores and file systems that it creates in memory, each on the same simulated disk
    Backends(Box<BackendsArguments>),
    /// Shows the results of a run, also while it is in progress
    Report(ReportArguments),
}

/// `nacre paf run`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The whole matrix is 8 x 8 states, 7 transfer sizes and 5 iterations, and the empty file system to compare with.
Example: nacre paf run --target /mnt/disk --output /root/paf --capacity 0,10,40,80 --fragment 0,30,70 --xfer 1M,4M,16M
         nacre paf run --target /srv/fs/ost0000 --output /root/paf-store      the object store of a stopped OST
         nacre paf run --target /srv/fs/ost0000 --output /root/paf-disk --simulated-medium disk:seek=8ms:bandwidth=150M")]
pub struct RunArguments {
    /// Empty directory of any file system, or the directory of an object store without objects
    #[arg(long, value_name = "DIR")]
    target: PathBuf,
    /// Directory for results and the state of the run: new, empty, or that of this run; not in the target
    #[arg(long, value_name = "DIR")]
    output: PathBuf,
    /// Size that counts as the capacity, such as 10G; by default all free space
    #[arg(long, value_parser = size::parse)]
    size: Option<u64>,
    /// States and transfers to measure.
    #[command(flatten)]
    matrix: Matrix,
    /// Service times of a simulated medium below an object store: seek=8ms:bandwidth=150M, or of its device
    /// disk:..., flash:..., throttle:... in the syntax of osd-file.*.simulated_medium
    #[arg(long, value_name = "SPEC", value_parser = medium::parse)]
    simulated_medium: Option<AnyMedium>,
    /// Directory on the target's disk, for a control file that is written and read in alternation with the
    /// measured one: the table then has ratios to it, which cancel other load on the disk
    #[arg(long, value_name = "DIR")]
    control: Option<PathBuf>,
    /// Keep the kernel's caches, instead of dropping them before each read (which only root can)
    #[arg(long)]
    keep_caches: bool,
    /// If the files differ from those that the run has left, create them again
    #[arg(long)]
    repopulate: bool,
    /// Print JSON instead of the table
    #[arg(long)]
    json: bool,
}

/// `nacre paf report`
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: nacre paf report /root/paf")]
pub struct ReportArguments {
    /// The --output of a run
    output: PathBuf,
    /// Print JSON instead of the table
    #[arg(long)]
    json: bool,
}

/// States and transfers to measure.
#[derive(Debug, clap::Args)]
pub struct Matrix {
    /// Levels to fill to, in percent of the capacity: 0 to 90
    #[arg(long, default_value = "0,10..80", value_parser = percents_of_capacity)]
    capacity: Percents,
    /// Shares of that to remove and rewrite, in percent: 0 to 90 in tens
    #[arg(long, default_value = "0..70", value_parser = percents_of_fragment)]
    fragment: Percents,
    /// Transfer sizes; a range doubles
    #[arg(long, default_value = "1M..64M", value_parser = sizes)]
    xfer: Sizes,
    /// Measurements of each transfer size in each state
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    iterations: u32,
    /// Seed of the sizes and choices of files
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Size of the measured file; by default a twentieth of the capacity, up to 4 GiB
    #[arg(long, value_parser = size::parse)]
    file_size: Option<u64>,
    /// Files that are written concurrently while populating
    #[arg(long, default_value_t = 4, value_parser = writers)]
    writers: usize,
}

impl Matrix {
    /// Returns the settings of a run on `target`, with caches dropped, over its real medium.
    fn settings(&self, target: PathBuf) -> Settings {
        Settings {
            target,
            control: None,
            capacity: self.capacity.0.clone(),
            fragment: self.fragment.0.clone(),
            xfer: self.xfer.0.clone(),
            iterations: self.iterations,
            seed: self.seed,
            writers: self.writers,
            size: None,
            file_size: self.file_size,
            keep_caches: false,
            simulated_medium: None,
        }
    }
}

/// A list of percentages.
#[derive(Debug, Clone)]
struct Percents(Vec<u8>);

/// A list of sizes in bytes.
#[derive(Debug, Clone)]
struct Sizes(Vec<u64>);

fn percents_of_capacity(text: &str) -> Result<Percents, String> {
    ranges::capacities(text).map(Percents)
}

fn percents_of_fragment(text: &str) -> Result<Percents, String> {
    ranges::fragments(text).map(Percents)
}

fn sizes(text: &str) -> Result<Sizes, String> {
    ranges::sizes(text).map(Sizes)
}

fn writers(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=256) => Ok(count),
        _ => Err(format!("'{text}' is no number of writers from 1 to 256")),
    }
}

/// Executes `command` and returns the exit code: 0, 1 with a message on standard error, or 130 after Ctrl-C.
pub fn run(command: &PafCommand) -> i32 {
    let result = match command {
        PafCommand::Run(arguments) => measure(arguments),
        PafCommand::Backends(arguments) => backends::run(arguments),
        PafCommand::Report(arguments) => report(arguments),
    };
    match result {
        Ok(()) => 0,
        Err(Error::Interrupted) => stop::CODE,
        Err(error) => {
            eprintln!("nacre: {error}");
            1
        }
    }
}

fn measure(arguments: &RunArguments) -> Result<(), Error> {
    let settings = settings(arguments)?;
    // Absolute, since it is stored with the files of the run, which may be resumed from any directory.
    let path = std::path::absolute(&arguments.output).map_err(Error::io("find", &arguments.output))?;
    let (output, state) = Output::open(&path, &settings)?;
    stop::listen();
    let mut engine = Engine::open(output, state, arguments.repopulate, below::objects_of(&settings.target)?)?;
    let ran = engine.run().map(drop);
    show::write(engine.output(), engine.state())?;
    match &ran {
        Ok(()) => print(engine.state(), arguments.json),
        Err(error) => {
            let all = settings.states().len() * settings.cells().len();
            let why = if matches!(error, Error::Interrupted) { "interrupted" } else { "broken off" };
            eprintln!(
                "nacre: {why}: {} of {all} pairs are measured and kept in {}; the same command continues with the files in {}",
                engine.state().cells.len(),
                engine.output().display(),
                settings.target.display()
            );
        }
    }
    ran
}

fn settings(arguments: &RunArguments) -> Result<Settings, Error> {
    let target = std::fs::canonicalize(&arguments.target).map_err(Error::io("find", &arguments.target))?;
    let output = std::path::absolute(&arguments.output).map_err(Error::io("find", &arguments.output))?;
    if nearest(&output).starts_with(&target) {
        let message = format!("--output {} is in the target: name a directory elsewhere", output.display());
        return Err(Error::Usage(message));
    }
    let wrong = arguments.matrix.file_size.filter(|bytes| !bytes.is_multiple_of(ranges::UNIT));
    if let Some(bytes) = wrong {
        return Err(Error::Usage(format!("--file-size {bytes} is no multiple of {} bytes", ranges::UNIT)));
    }
    Ok(Settings {
        control: control(arguments, &target)?,
        size: arguments.size,
        keep_caches: arguments.keep_caches,
        simulated_medium: medium::some(arguments.simulated_medium).map(|medium| medium.to_string()),
        ..arguments.matrix.settings(target)
    })
}

/// Returns the directory of the control, if there is one.
fn control(arguments: &RunArguments, target: &Path) -> Result<Option<PathBuf>, Error> {
    let Some(directory) = &arguments.control else { return Ok(None) };
    if medium::some(arguments.simulated_medium).is_some() {
        let message = "--control is a file on a real disk, which says nothing of a simulated one: leave one of the two out";
        return Err(Error::Usage(message.to_owned()));
    }
    let control = std::fs::canonicalize(directory).map_err(Error::io("find", directory))?;
    if !control.is_dir() {
        return Err(Error::Usage(format!("--control {} is no directory: name one", control.display())));
    }
    if control.starts_with(target) {
        let shown = control.display();
        return Err(Error::Usage(format!(
            "--control {shown} is in the target: name a directory elsewhere on its disk"
        )));
    }
    Ok(Some(control))
}

/// Returns a path that may not exist yet, with links resolved in the part that exists.
fn nearest(path: &Path) -> PathBuf {
    let there = path.ancestors().find_map(|above| Some((above, std::fs::canonicalize(above).ok()?)));
    match there {
        Some((above, real)) => real.join(path.strip_prefix(above).unwrap_or(Path::new(""))),
        None => path.to_owned(),
    }
}

fn print(state: &state::State, json: bool) {
    match json {
        true => println!("{}", show::json(state)),
        false => print!("{}", show::table(state)),
    }
}

fn report(arguments: &ReportArguments) -> Result<(), Error> {
    let shown = arguments.output.display();
    let state = state::read(&arguments.output)?
        .ok_or_else(|| Error::Usage(format!("there is no run in {shown}: name the --output of one")))?;
    show::write(&arguments.output, &state)?;
    print(&state, arguments.json);
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(subcommand)]
        command: PafCommand,
    }

    fn parse(words: &str) -> Result<RunArguments, String> {
        let words =
            ["paf", "run", "--target", "/tmp", "--output", "/x"].into_iter().chain(words.split_whitespace());
        match Program::try_parse_from(words).map_err(|error| error.to_string())?.command {
            PafCommand::Run(arguments) => Ok(*arguments),
            PafCommand::Backends(_) | PafCommand::Report(_) => Err("another command".to_owned()),
        }
    }

    #[test]
    fn the_matrix_of_the_talk_is_the_default_with_the_empty_state_before_it() {
        let settings = settings(&parse("").expect("defaults")).expect("usable");
        assert_eq!(settings.states().len() - 1, 8 * 8);
        assert_eq!((settings.states().len() - 1) * settings.cells().len(), 2240);
    }

    #[test]
    fn arguments_out_of_range_are_refused() {
        for wrong in [
            "--capacity 95",
            "--fragment 15",
            "--xfer 1000",
            "--iterations 0",
            "--writers 0",
            "--size big",
            "--file-size 1.5G",
            "--simulated-medium tape",
        ] {
            let said = parse(wrong).err().unwrap_or_else(|| panic!("{wrong} is taken"));
            assert!(said.starts_with("error:"), "{said}");
        }
    }

    #[test]
    fn results_are_not_put_where_it_is_measured() {
        let scratch = tempfile::tempdir().expect("a directory");
        let inside = scratch.path().join("deep/out");
        let mut arguments = parse("").expect("defaults");
        arguments.target = scratch.path().to_owned();
        arguments.output = inside;
        assert!(settings(&arguments).expect_err("inside").to_string().contains("is in the target"));
        arguments.output = scratch.path().with_extension("out");
        assert!(settings(&arguments).is_ok());
    }
}
