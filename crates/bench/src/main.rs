//! Measures the file system and its baselines on this machine.
//!
//! An absolute figure of a file system says little: on a virtual machine the same program is two to four
//! times slower from one hour to the next. So every figure here is the median of several runs with their
//! spread, comes with the CPU time that the whole machine spent per operation, and can be taken against a
//! second path in alternating runs (`--against`), which gives ratios that are stable when the machine is not.
//!
//! Users call this program as `nacre bench` and `nacre paf`: `nacre` passes its arguments on. It starts file
//! systems by calling `nacre`.
//!
//! - [`cli`]: the sub-commands of `nacre bench`.
//! - [`work`]: the workload: operations on metadata and data of any mounted path.
//! - [`worker`]: processes that do the work; they start together and return counts and times.
//! - [`team`]: processes that run phases together, with barriers; [`mdtest`] and [`ior`] use them.
//! - [`sample`], [`report`], [`machine`]: medians and spreads; tables and JSON; properties and load of the
//!   machine.
//! - [`limits`]: ceilings of the machine without any NacreFS file system.
//! - [`null`]: file systems that do nothing, over NacreFS's FUSE channel and others: the ceiling of any FUSE
//!   file system.
//! - [`programs`]: tar, find, rm and git on any mounted path.
//! - [`peers`]: the same work on several mounted paths in alternating runs, NacreFS and other file systems.
//! - [`client`]: the client's I/O engine: every combination of its features, on loopback and on a simulated
//!   fabric.
//! - [`records`]: fields of an ocean model as records of a Fortran direct-access file.
//! - [`mdt`]: the engine of an MDT without network and FUSE, its memory and opening times.
//! - [`dne`]: names on several MDTs.
//! - [`split`]: a directory whose names move to more MDTs.
//! - [`restart`]: how long programs wait for servers that were killed.
//! - [`backends`]: names and small files by back end of the targets.
//! - [`noisy`]: a stream next to small random writes, on simulated disks.
//! - [`small`]: random writes of 4 KiB by the location of the data.
//! - [`layouts`]: progressive files, data on the MDT, files of many components, `lfs` over many files.
//! - [`paf`]: a file system that is filled and fragmented by degrees.
//! - [`survey`]: bandwidth of objects by layer.
//! - [`talks`]: the experiments of five talks in one run, with one report.
//! - [`history`]: comparison of the results of several versions.
//! - [`stats`]: confidence intervals of medians, and claims about them.
//! - [`slice`]: the combined run behind `docs/performance.md`.

mod backends;
mod bar;
mod buffer;
mod chart;
mod cli;
mod client;
mod dne;
mod error;
mod group;
mod heat;
mod history;
mod image;
mod instance;
mod ior;
mod layouts;
mod limits;
mod machine;
mod mdt;
mod mdtest;
mod medium;
mod noisy;
mod null;
mod options;
mod paf;
mod pattern;
mod peers;
mod piped;
mod place;
mod programs;
mod records;
mod report;
mod restart;
mod sample;
mod slice;
mod small;
mod split;
mod stats;
mod stop;
mod striping;
mod survey;
mod talks;
mod team;
mod trim;
mod work;
mod worker;

use clap::{CommandFactory, Parser};

#[derive(Parser)]
#[command(
    name = "nacre-bench",
    version,
    about = "What 'nacre bench' and 'nacre paf' run",
    max_term_width = 100
)]
struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Measures this machine, and file systems on it
    #[command(after_help = "Example: nacre bench io --help")]
    Bench {
        #[command(subcommand)]
        command: cli::Command,
    },
    /// Measures a file system while it is filled and fragmented by degrees (populate and fragment)
    #[command(after_help = "Example: nacre paf run --help")]
    Paf {
        #[command(subcommand)]
        command: paf::PafCommand,
    },
    /// Creates manual pages (used by 'make install')
    #[command(hide = true)]
    Generate {
        #[command(subcommand)]
        command: Generate,
    },
}

#[derive(clap::Subcommand)]
enum Generate {
    /// Writes the manual pages of all commands to a directory
    Man {
        /// Existing directory
        dir: std::path::PathBuf,
    },
}

impl Generate {
    /// Runs the command and returns the exit code.
    fn run(&self) -> i32 {
        let Generate::Man { dir } = self;
        match pages().iter().try_for_each(|page| page.write(dir)) {
            Ok(()) => 0,
            Err(error) => {
                eprintln!("nacre-bench: cannot write a manual page to {}: {error}", dir.display());
                1
            }
        }
    }
}

/// Returns the pages of the commands, which users call as those of `nacre`.
fn pages() -> Vec<nacre_common::manual::Page> {
    let mut pages = nacre_common::manual::pages_of(Program::command().name("nacre"), &|_| false);
    // That of `nacre` itself is its own.
    pages.retain(|page| page.name != "nacre");
    pages
}

fn main() {
    let code = match Program::try_parse().map(|program| program.command) {
        Ok(Command::Bench { command }) => cli::run(command),
        Ok(Command::Paf { command }) => paf::run(&command),
        Ok(Command::Generate { command }) => command.run(),
        Err(error) => nacre_common::call::answer(&error),
    };
    std::process::exit(code);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_is_consistent_and_its_commands_have_examples() {
        let mut program = Program::command();
        program.clone().debug_assert();
        for command in program.get_subcommands_mut().filter(|command| !command.is_hide_set()) {
            let help = command.render_long_help().to_string();
            assert!(help.contains("Example: nacre "), "{help}");
        }
    }

    #[test]
    fn every_command_has_a_page_under_the_name_that_users_call() {
        let names: Vec<String> = pages().into_iter().map(|page| page.name).collect();
        for name in ["nacre-bench", "nacre-bench-meta", "nacre-bench-io", "nacre-paf", "nacre-paf-run"] {
            assert!(names.iter().any(|known| known == name), "{name} is not in {names:?}");
        }
        assert!(names.iter().all(|name| name.starts_with("nacre-bench") || name.starts_with("nacre-paf")));
    }
}
