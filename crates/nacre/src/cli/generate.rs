//! `nacre generate`: manual pages and shell completions, for `make install`.

use crate::failure::{Failure, Result};
use crate::{lctl, lfs, mount_helper};
use clap::CommandFactory;
use clap_complete::Shell;
use nacre_common::manual::{Page, pages_of};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Kind of files to create.
#[derive(Debug, clap::Subcommand)]
pub enum GenerateCommand {
    /// Writes the manual pages of all commands to a directory
    Man {
        /// Existing directory
        dir: PathBuf,
    },
    /// Prints the completions of a command
    Completions {
        /// The shell
        shell: Shell,
        /// The command
        #[arg(default_value = "nacre")]
        program: Program,
    },
}

/// A command with completions.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Program {
    /// `nacre`
    Nacre,
    /// `lfs`
    Lfs,
    /// `lctl`
    Lctl,
}

/// Runs the command.
pub fn run(command: &GenerateCommand) -> Result<i32> {
    match command {
        GenerateCommand::Man { dir } => man(dir)?,
        GenerateCommand::Completions { shell, program } => {
            let mut text = Vec::new();
            let mut grammar = match program {
                Program::Nacre => grammar(),
                Program::Lfs => lfs::grammar(),
                Program::Lctl => lctl::grammar(),
            };
            let name = grammar.get_name().to_owned();
            clap_complete::generate(*shell, &mut grammar, name, &mut text);
            io::stdout().write_all(&text).map_err(Failure::because("write the completions"))?;
        }
    }
    Ok(0)
}

/// Returns the grammar of `nacre` without hidden commands, which completions would offer.
fn grammar() -> clap::Command {
    let all = super::Cli::command();
    let shown: Vec<_> = all.get_subcommands().filter(|command| !command.is_hide_set()).cloned().collect();
    clap::Command::new("nacre").version(env!("CARGO_PKG_VERSION")).subcommands(shown)
}

fn man(dir: &Path) -> Result<()> {
    for page in pages() {
        page.write(dir).map_err(Failure::because(format!("write a manual page to {}", dir.display())))?;
    }
    Ok(())
}

/// Returns all pages but those of `nacre bench` and `nacre paf`, which nacre-bench has.
fn pages() -> Vec<Page> {
    let is_of_bench = |command: &clap::Command| super::measure::knows(command.get_name().as_ref());
    let mut pages = pages_of(super::Cli::command(), &is_of_bench);
    pages.extend([lfs::manual(), lctl::manual(), mount_helper::manual()]);
    pages
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands_in(command: &clap::Command, prefix: &str, found: &mut Vec<String>) {
        let name = format!("{prefix}{}", command.get_name());
        for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
            commands_in(inner, &format!("{name}-"), found);
        }
        found.push(name);
    }

    #[test]
    fn every_command_has_a_page() {
        let mut commands = Vec::new();
        commands_in(&super::super::Cli::command(), "", &mut commands);
        commands.retain(|name| name != "nacre-bench" && name != "nacre-paf");
        commands.extend(["lfs", "lctl", "mount.nacre"].map(str::to_owned));
        let pages: Vec<String> = pages().into_iter().map(|page| page.name).collect();
        assert!(commands.len() > 20, "{commands:?}");
        assert_eq!(commands, pages);
    }

    #[test]
    fn completions_know_every_command_in_each_shell() {
        let grammars = [grammar(), lfs::grammar(), lctl::grammar()];
        for (grammar, word) in grammars.into_iter().zip(["rebalance", "setstripe", "pool_new"]) {
            for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
                let mut text = Vec::new();
                clap_complete::generate(shell, &mut grammar.clone(), grammar.get_name(), &mut text);
                let text = String::from_utf8(text).expect("text");
                assert!(text.contains(word) && !text.contains("generate"), "{shell}: {text}");
            }
        }
    }
}
