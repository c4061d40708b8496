//! `nacre bench mdtest`: names and attributes over processes, with the options and the summary of mdtest.
//!
//! Every task creates, stats, reads and removes its items, one phase after the other, with a barrier between
//! phases. A rate is the operations of all tasks, divided by the time from the first task's start to the last
//! one's end. Works in any directory of any file system.

mod plan;
mod summary;
mod task;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::error::Error;
use crate::machine::{CpuTime, Machine};
use crate::options::from_words;
use crate::place;
use crate::team::Span;
use crate::team::Team;
use crate::worker::Myself;
use nacre_common::size;
use plan::{Kind, Plan};
use summary::Row;
use task::{Order, Phase, Setup};

pub(crate) use task::serve;

/// Size of a file in bytes, at most: each task has the content in memory.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// `nacre bench mdtest`
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Example: nacre bench mdtest -P 2 -i 3 -I 10000 -z 1 -b 1 -L -u -F -w 4096 -d /mnt/nacre/d"
)]
pub struct MdtestArguments {
    /// Directory to work in, created if it is missing; several with @ between them are assigned to tasks
    /// round-robin
    #[arg(short = 'd', value_name = "DIR[@DIR..]", default_value = "./out")]
    directory: OsString,
    /// Tasks: processes that work at the same time
    #[arg(short = 'P', long, value_name = "N", default_value_t = 1)]
    processes: u64,
    /// Iterations
    #[arg(short = 'i', value_name = "N", default_value_t = 1)]
    iterations: u64,
    /// Items of each task, spread over the directories of the tree
    #[arg(short = 'n', value_name = "N")]
    items: Option<u64>,
    /// Items of each task in each directory of the tree; -l is the same
    #[arg(short = 'I', short_alias = 'l', value_name = "N")]
    items_per_directory: Option<u64>,
    /// Levels of directories below the tree's root
    #[arg(short = 'z', value_name = "DEPTH", default_value_t = 0)]
    depth: u32,
    /// Directories in each directory of the tree
    #[arg(short = 'b', value_name = "N", default_value_t = 1)]
    branch: u64,
    /// Items in directories of the last level only
    #[arg(short = 'L')]
    leaf_only: bool,
    /// A tree for each task instead of one for all
    #[arg(short = 'u')]
    unique: bool,
    /// Files only
    #[arg(short = 'F', conflicts_with = "directories_only")]
    files_only: bool,
    /// Directories only
    #[arg(short = 'D')]
    directories_only: bool,
    /// Create; without any of -C -T -E -r all of them
    #[arg(short = 'C')]
    create: bool,
    /// Stat
    #[arg(short = 'T')]
    stat: bool,
    /// Read files
    #[arg(short = 'E')]
    read: bool,
    /// Remove
    #[arg(short = 'r')]
    remove: bool,
    /// Bytes written to each new file
    #[arg(short = 'w', value_name = "BYTES", default_value = "0", value_parser = size::parse)]
    write_bytes: u64,
    /// Bytes read from each file
    #[arg(short = 'e', value_name = "BYTES", default_value = "0", value_parser = size::parse)]
    read_bytes: u64,
    /// fsync each written file
    #[arg(short = 'y')]
    sync: bool,
    /// Stat what the task N ranks further on created, read what the one 2 N further on created, remove that
    /// of the one 3 N further on
    #[arg(short = 'N', value_name = "N", default_value_t = 0)]
    stride: u64,
    /// Stat in a random order
    #[arg(short = 'R')]
    random: bool,
    /// Seed of -R; otherwise one is taken from the clock and shown
    #[arg(long, value_name = "N")]
    random_seed: Option<u64>,
    /// Seconds to wait before each iteration
    #[arg(short = 'p', value_name = "SECONDS", default_value_t = 0)]
    pause: u64,
    /// Keep task i on the i-th CPU
    #[arg(long)]
    pin: bool,
    /// Print JSON with every iteration instead of the summary
    #[arg(long)]
    json: bool,
}

/// The result of a run.
#[derive(Debug, Serialize)]
struct Outcome {
    program: &'static str,
    command: String,
    machine: Machine,
    path: String,
    tasks: u64,
    items_per_task: u64,
    iterations: u64,
    random_seed: Option<u64>,
    operations: Vec<Row>,
}

impl MdtestArguments {
    fn kinds(&self) -> Vec<Kind> {
        match (self.directories_only, self.files_only) {
            (true, _) => vec![Kind::Directory],
            (_, true) => vec![Kind::File],
            _ => vec![Kind::Directory, Kind::File],
        }
    }

    /// Returns the phases of an iteration in order.
    fn phases(&self) -> Vec<Phase> {
        let all = !(self.create || self.stat || self.read || self.remove);
        let (create, remove) = (all || self.create, all || self.remove);
        let mut phases = Vec::new();
        phases.extend(create.then_some(Phase::TreeCreate));
        for kind in self.kinds() {
            phases.extend(create.then_some(Phase::Create(kind)));
            phases.extend((all || self.stat).then_some(Phase::Stat(kind)));
            phases.extend((kind == Kind::File && (all || self.read)).then_some(Phase::Read));
            phases.extend(remove.then_some(Phase::Remove(kind)));
        }
        phases.extend(remove.then_some(Phase::TreeRemove));
        phases
    }

    fn seed(&self) -> Option<u64> {
        let of_clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        self.random.then(|| self.random_seed.unwrap_or_else(of_clock))
    }

    fn plan(&self) -> Result<Plan, Error> {
        let directories = self.directory.as_bytes().split(|&byte| byte == b'@');
        let tree = Plan {
            directories: directories.map(|path| OsStr::from_bytes(path).into()).collect(),
            depth: self.depth,
            branch: self.branch,
            leaf_only: self.leaf_only,
            unique: self.unique,
            items_per_directory: 0,
        };
        tree.with_items(self.items, self.items_per_directory)
    }
}

/// Measures and prints.
///
/// # Errors
///
/// Options that make no sense, and errors of the file system. Items created until then stay.
pub(crate) fn run(arguments: &MdtestArguments, myself: &Myself) -> Result<(), Error> {
    if arguments.write_bytes.max(arguments.read_bytes) > FILE_BYTES_MAX {
        return Err(Error::Usage("a file of mdtest has at most 1g (-w, -e)".to_owned()));
    }
    let plan = arguments.plan()?;
    let tasks = arguments.processes.max(1);
    let made: Vec<&PathBuf> = plan.directories.iter().filter(|directory| !directory.exists()).collect();
    for directory in &plan.directories {
        std::fs::create_dir_all(directory).map_err(Error::io("create directory", directory))?;
    }
    let paths: Vec<String> = plan.directories.iter().map(|path| path.display().to_string()).collect();
    let paths = paths.join("@");
    let seed = arguments.seed();
    let head = format!(
        "nacre bench mdtest was launched with {tasks} total task(s) on 1 node(s)\nCommand line used: {}\n\
         Path                : {}\nFS                  : {}\n{}{tasks} tasks, {} {}\n",
        place::command_line(),
        paths,
        place::capacity(&plan.directories[0])?,
        seed.map_or(String::new(), |seed| format!("random seed: {seed}\n")),
        plan.items() * tasks,
        match arguments.kinds()[..] {
            [Kind::File] => "files",
            [Kind::Directory] => "directories",
            _ => "files/directories",
        },
    );
    if !arguments.json {
        println!("{head}");
    }
    let results = iterations(arguments, myself, &plan, tasks, seed)?;
    if arguments.phases().contains(&Phase::TreeRemove) {
        // Fails if another process has created something there.
        made.into_iter().for_each(|directory| drop(std::fs::remove_dir(directory)));
    }
    let operations = summary::rows(&arguments.kinds(), &results);
    if !arguments.json {
        print!("{}", summary::table(&operations, arguments.iterations));
        return Ok(());
    }
    let outcome = Outcome {
        program: "mdtest",
        command: place::command_line(),
        machine: Machine::look(),
        tasks,
        items_per_task: plan.items(),
        path: paths,
        iterations: arguments.iterations,
        random_seed: seed,
        operations,
    };
    println!("{}", serde_json::to_string(&outcome).map_err(Error::usage)?);
    Ok(())
}

/// Result of a phase on files, for other benches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figure {
    /// `create`, `stat`, `read` or `remove`.
    pub(crate) name: &'static str,
    /// Operations per second of all tasks.
    pub(crate) rate: f64,
    /// CPU time of the whole machine per operation, in microseconds.
    pub(crate) cpu_us: f64,
}

/// Runs the phases of a command line without printing, for other benches.
///
/// # Errors
///
/// Those of the command.
pub(crate) fn figures(words: &[OsString], myself: &Myself) -> Result<Vec<Figure>, Error> {
    let arguments: MdtestArguments = from_words("mdtest", words)?;
    let plan = arguments.plan()?;
    for directory in &plan.directories {
        // Without parents: if these are missing, another file system would be measured.
        std::fs::create_dir(directory).map_err(Error::io("create directory", directory))?;
    }
    let results = iterations(&arguments, myself, &plan, arguments.processes.max(1), arguments.seed())?;
    let figure = |(phase, result): (Phase, summary::Result)| {
        let name = match phase {
            Phase::Create(Kind::File) => "create",
            Phase::Stat(Kind::File) => "stat",
            Phase::Read => "read",
            Phase::Remove(Kind::File) => "remove",
            _ => return None,
        };
        let cpu_us = result.busy_us as f64 / result.items.max(1) as f64;
        Some(Figure { name, rate: result.rate(), cpu_us })
    };
    Ok(results.into_iter().filter_map(figure).collect())
}

/// Runs all phases of all iterations.
fn iterations(
    arguments: &MdtestArguments,
    myself: &Myself,
    plan: &Plan,
    tasks: u64,
    seed: Option<u64>,
) -> Result<Vec<(Phase, summary::Result)>, Error> {
    let setup = |rank| Setup {
        plan: plan.clone(),
        rank,
        tasks,
        stride: arguments.stride,
        seed,
        write_bytes: arguments.write_bytes as usize,
        read_bytes: arguments.read_bytes as usize,
        sync: arguments.sync,
    };
    let mut team = Team::start(myself, "mdtest", &(0..tasks).map(setup).collect::<Vec<_>>(), arguments.pin)?;
    let mut results = Vec::new();
    for iteration in 0..arguments.iterations {
        std::thread::sleep(Duration::from_secs(arguments.pause));
        for phase in arguments.phases() {
            if phase == Phase::TreeCreate {
                for top in plan.tops(iteration) {
                    std::fs::create_dir(&top).map_err(Error::io("create directory", &top))?;
                }
            }
            let before_us = CpuTime::now().busy_us;
            let spans: Vec<Span> = team.run(&Order { phase, iteration })?;
            let busy_us = CpuTime::now().busy_us - before_us;
            results.push((phase, summary::Result::of(&spans, busy_us)));
            if phase == Phase::TreeRemove {
                for top in plan.tops(iteration) {
                    std::fs::remove_dir(&top).map_err(Error::io("remove directory", &top))?;
                }
            }
        }
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        arguments: MdtestArguments,
    }

    fn parse(line: &str) -> MdtestArguments {
        Program::try_parse_from(line.split(' ')).map(|program| program.arguments).expect("understood")
    }

    #[test]
    fn the_command_lines_of_the_talks_are_understood() {
        let metadata = parse("mdtest -i 3 -l 10000 -F -C -T -r -u -d /d");
        assert_eq!((metadata.iterations, metadata.items_per_directory), (3, Some(10_000)));
        assert_eq!(
            metadata.phases(),
            [
                Phase::TreeCreate,
                Phase::Create(Kind::File),
                Phase::Stat(Kind::File),
                Phase::Remove(Kind::File),
                Phase::TreeRemove
            ]
        );
        let small = parse("mdtest -i 3 -l 10000 -z 1 -b 1 -L -u -F -w 4096 -d /d");
        assert_eq!(small.phases().len(), 6, "all phases without a choice");
        assert_eq!(small.plan().expect("a plan").items(), 10_000);
        assert_eq!(small.write_bytes, 4096);
    }

    #[test]
    fn directories_come_first_and_are_not_read() {
        let both = parse("mdtest -n 10").phases();
        assert_eq!(both.len(), 9);
        assert_eq!(both.iter().filter(|phase| **phase == Phase::Read).count(), 1);
        assert_eq!(both[1], Phase::Create(Kind::Directory));
        assert_eq!(parse("mdtest -n 10 -D -T").phases(), [Phase::Stat(Kind::Directory)]);
        assert!(Program::try_parse_from(["mdtest", "-D", "-F"]).is_err());
    }

    #[test]
    fn seeds_are_for_random_order_only() {
        assert_eq!(parse("mdtest --random-seed 7").seed(), None);
        assert_eq!(parse("mdtest -R --random-seed 7").seed(), Some(7));
        assert!(parse("mdtest -R").seed().is_some());
    }
}
