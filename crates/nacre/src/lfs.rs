//! `lfs`: Lustre's user command, with its grammar, output and exit codes for the features of NacreFS.
//!
//! Exit codes: 0 success; an errno for a failure at run time; 4 for a wrong call (the reason is printed on
//! standard error); 1 for an unknown sub-command.
//!
//! `getopt` and `number` parse the command line; `mounted` talks to the mount (attributes and ioctls);
//! `view`, `render`, `table` and `template` format or parse text and have no side effects.

mod changelog;
mod data;
mod dirstripe;
mod fids;
mod find;
pub mod getopt;
mod getstripe;
pub mod identity;
mod json;
mod ladvise;
mod listing;
pub mod migrate;
pub mod mounted;
mod number;
mod pools;
mod project;
mod query;
mod quota;
pub mod relocate;
mod render;
mod setquota;
mod setstripe;
mod table;
mod template;
#[cfg(test)]
mod untrusted;
mod view;

pub use changelog::{access, row as change_row};

use crate::failure::error_text;
use getopt::{OptionSpec, Parsed};
use nacre_common::manual::{self, Page, Usage};
use rustix::io::Errno;
use std::ffi::OsString;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::Path;

/// Exit code of a wrong call.
const EXIT_USAGE: i32 = 4;
/// Exit code of an unknown sub-command.
const EXIT_UNKNOWN: i32 = 1;

/// Failure of a command.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    /// Exit code.
    exit: i32,
    /// Message for standard error; empty if it was already printed.
    message: String,
    /// Usage of the command, after a wrong call.
    usage: Option<&'static str>,
}

/// Result of a command.
type Outcome = Result<(), Failure>;

impl Failure {
    fn new(errno: Errno, message: String) -> Failure {
        Failure::exit(errno.raw_os_error(), message)
    }

    fn exit(exit: i32, message: String) -> Failure {
        Failure { exit, message, usage: None }
    }

    /// Returns the failure for an error at run time: what was tried, and the C library's text for it.
    fn of(error: &io::Error, what: impl std::fmt::Display) -> Failure {
        let errno = errno_of(error);
        Failure::new(errno, format!("{what}: {}", error_text(errno)))
    }

    /// Like [`Failure::of`], with the number of the errno.
    fn numbered(error: &io::Error, what: impl std::fmt::Display) -> Failure {
        let errno = errno_of(error);
        Failure::new(errno, format!("{what}: {} ({})", error_text(errno), errno.raw_os_error()))
    }

    fn usage(message: String, usage: &'static str) -> Failure {
        Failure { exit: EXIT_USAGE, message, usage: Some(usage) }
    }

    fn unsupported(command: &str, what: &str) -> Failure {
        let message = format!("{command}: {what} is not supported yet: Operation not supported (95)");
        Failure::new(Errno::OPNOTSUPP, message)
    }

    fn report(&self) {
        // The message comes last: usage text after it would hide it.
        if let Some(usage) = self.usage {
            eprintln!("See 'lfs {} --help'.", name_in(usage));
        }
        if !self.message.is_empty() {
            eprintln!("{}", self.message);
        }
    }
}

/// Returns the command that a usage is of: `usage: lfs NAME ...`, or the first of several.
fn name_in(usage: &str) -> &str {
    let word = usage.split_whitespace().nth(2).unwrap_or_default();
    word.split('|').next().unwrap_or(word)
}

/// A sub-command; its module documents it.
struct Command {
    name: &'static str,
    summary: &'static str,
    usage: &'static str,
    run: Run,
}

/// How a sub-command receives its arguments.
enum Run {
    /// As parsed options and operands; `--help` is answered for it.
    Parsed(&'static [OptionSpec], fn(&Parsed) -> Outcome),
    /// As raw words.
    Words(fn(&[OsString]) -> Outcome),
}

impl Command {
    fn run(&self, args: &[OsString]) -> Outcome {
        let (specs, run) = match self.run {
            Run::Parsed(specs, run) => (specs, run),
            Run::Words(run) => return run(args),
        };
        let parsed = parse(self.name, args, specs, self.usage)?;
        if parsed.has(getopt::HELP.key) { print_usage(self.usage) } else { run(&parsed) }
    }
}

const COMMANDS: &[Command] = &[
    setstripe::COMMAND,
    getstripe::COMMAND,
    find::COMMAND,
    query::CHECK,
    query::OSTS,
    query::MDTS,
    pools::POOL_LIST,
    query::DF,
    query::GETNAME,
    fids::FID2PATH,
    fids::PATH2FID,
    project::COMMAND,
    quota::COMMAND,
    setquota::COMMAND,
    fids::RMFID,
    fids::GETSOM,
    dirstripe::MKDIR,
    dirstripe::SETDIRSTRIPE,
    dirstripe::GETDIRSTRIPE,
    dirstripe::UNLINK_FOREIGN,
    ladvise::COMMAND,
    migrate::COMMAND,
    data::SWAP_LAYOUTS,
    data::DATA_VERSION,
    changelog::CHANGELOG,
    changelog::CLEAR,
];

/// Lustre's other sub-commands, which are reported as unsupported and not as misspelt.
const NOT_YET: &[&str] = &[
    "rm_entry",
    "rmentry",
    "flushctx",
    "hsm_state",
    "hsm_set",
    "hsm_clear",
    "hsm_action",
    "hsm_archive",
    "hsm_restore",
    "hsm_release",
    "hsm_remove",
    "hsm_cancel",
    "hsm",
    "mv",
    "mirror",
    "somsync",
    "heat_get",
    "heat_set",
    "pcc",
];

/// Returns the grammar for completions: the commands with their options.
pub fn grammar() -> clap::Command {
    let commands = COMMANDS.iter().map(|command| {
        let specs = match command.run {
            Run::Parsed(specs, _) => specs,
            Run::Words(_) => &[],
        };
        // A long name may have several entries, each with its key.
        let is_first = |at: usize| {
            let OptionSpec { short, long, .. } = specs[at];
            specs[..at].iter().all(|other| {
                (long.is_empty() || other.long != long) && (short.is_none() || other.short != short)
            })
        };
        let options =
            specs.iter().enumerate().filter(|(at, _)| is_first(*at)).map(|(_, spec)| spec.grammar());
        clap::Command::new(command.name)
            .about(command.summary)
            .disable_help_flag(true)
            .args(options)
            .arg(clap::Arg::new("path").num_args(0..).value_hint(clap::ValueHint::AnyPath))
    });
    clap::Command::new("lfs").disable_help_subcommand(true).subcommands(commands)
}

/// Returns the manual page.
pub fn manual() -> Page {
    let usages = COMMANDS.iter().map(|command| (command.name, command.usage.to_owned())).collect();
    let usage = Usage {
        name: "lfs",
        section: manual::USERS,
        about: "layouts and state of NacreFS file systems, with the grammar of Lustre's lfs",
        synopsis: "COMMAND [ARGUMENTS]",
        parts: vec![
            ("COMMANDS", usages),
            (
                "EXIT STATUS",
                vec![("", "0 success, errno of the failure, 4 wrong call, 1 unknown command".to_owned())],
            ),
        ],
        related: "nacre(8), lctl(8)",
    };
    usage.page()
}

/// Runs `lfs ARGS` and returns the exit code.
pub fn main(args: &[OsString]) -> i32 {
    let outcome = match args.split_first() {
        None => return interactive(),
        Some((name, rest)) => command(name, rest),
    };
    exit_code(outcome)
}

fn exit_code(outcome: Outcome) -> i32 {
    match outcome {
        Ok(()) => 0,
        Err(failure) => {
            failure.report();
            failure.exit
        }
    }
}

fn command(name: &OsString, args: &[OsString]) -> Outcome {
    let name = name.to_string_lossy();
    match name.as_ref() {
        "--version" | "-v" | "version" => {
            print(&format!("lfs {}_nacre\n", env!("CARGO_PKG_VERSION")));
            return Ok(());
        }
        "--list-commands" => {
            print(&list_commands());
            return Ok(());
        }
        "help" | "--help" | "-h" => return help(args),
        _ => {}
    }
    if let Some(command) = COMMANDS.iter().find(|command| command.name == name) {
        return command.run(args);
    }
    if NOT_YET.contains(&name.as_ref()) {
        return Err(Failure::unsupported("lfs", &format!("'{name}'")));
    }
    let message = format!("lfs: '{name}' is not a valid command. See 'lfs --list-commands'.");
    Err(Failure::exit(EXIT_UNKNOWN, message))
}

fn help(args: &[OsString]) -> Outcome {
    let Some(name) = args.first() else {
        print("Layouts and state of NacreFS file systems, with the grammar of Lustre's lfs.\n\n");
        print("usage: lfs COMMAND [ARGUMENTS]\n\n");
        for command in COMMANDS {
            print(&format!("  {:<12} {}\n", command.name, command.summary));
        }
        print("\n'lfs help COMMAND' and 'lfs COMMAND --help' describe a command.\n");
        print("Example: lfs setstripe -c 2 -S 1M /mnt/nacre/wide && lfs getstripe /mnt/nacre/wide\n");
        return Ok(());
    };
    match COMMANDS.iter().find(|command| Some(command.name) == name.to_str()) {
        Some(command) => print_usage(command.usage),
        None => command(name, &[]),
    }
}

/// Returns the names in columns, as Lustre prints them for shell completion.
fn list_commands() -> String {
    let names: Vec<&str> =
        COMMANDS.iter().map(|command| command.name).chain(["help", "exit", "quit"]).collect();
    names
        .chunks(4)
        .map(|row| row.iter().map(|name| format!("{name:<20}")).collect::<String>() + "\n")
        .collect()
}

/// Reads commands from standard input until its end, `exit` or `quit`; returns the last command's exit code.
fn interactive() -> i32 {
    let prompt = io::stdin().is_terminal();
    let mut code = 0;
    let mut line = Vec::new();
    let mut input = io::stdin().lock();
    loop {
        if prompt {
            print("lfs > ");
        }
        line.clear();
        match input.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return code,
            Ok(_) => {}
        }
        let words = getopt::words_of(&line);
        match words.split_first() {
            None => {}
            Some((name, _)) if name == "exit" || name == "quit" => return code,
            Some((name, rest)) => code = exit_code(command(name, rest)),
        }
    }
}

fn parse(
    name: &str,
    args: &[OsString],
    specs: &[OptionSpec],
    usage: &'static str,
) -> Result<Parsed, Failure> {
    getopt::parse(args, specs).map_err(|message| Failure::usage(format!("lfs {name}: {message}"), usage))
}

/// Refuses a call without operands, with the message `missing`.
fn check_operands(parsed: &Parsed, missing: &str, usage: &'static str) -> Outcome {
    match parsed.operands.is_empty() {
        true => Err(Failure::usage(missing.to_owned(), usage)),
        false => Ok(()),
    }
}

/// Runs `work` for each path, reports each failure, and returns the first one's code.
fn for_each(paths: &[OsString], mut work: impl FnMut(&Path) -> Outcome) -> Outcome {
    let mut first: Option<Failure> = None;
    for path in paths {
        if let Err(failure) = work(Path::new(path)) {
            failure.report();
            first.get_or_insert(Failure { message: String::new(), usage: None, ..failure });
        }
    }
    first.map_or(Ok(()), Err)
}

fn print_usage(usage: &str) -> Outcome {
    print(usage);
    Ok(())
}

/// Prints to standard output. A closed pipe (`| head`) is not reported.
fn print(text: &str) {
    let mut out = io::stdout().lock();
    if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

/// Raises the limit of open files: a walk keeps one directory open for each level.
fn allow_many_open_directories() {
    let resource = rustix::process::Resource::Nofile;
    let mut limit = rustix::process::getrlimit(resource);
    limit.current = limit.maximum;
    // If it fails, the default limit applies.
    let _ = rustix::process::setrlimit(resource, limit);
}

/// Returns the errno of an error, `EIO` where it has none.
fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_and_not_yet_supported_commands_are_told_apart() {
        let run = |name: &str| command(&OsString::from(name), &[]).expect_err(name);
        let unknown = run("foo");
        assert_eq!(unknown.exit, 1);
        assert_eq!(unknown.message, "lfs: 'foo' is not a valid command. See 'lfs --list-commands'.");
        assert_eq!(run("mirror").exit, Errno::OPNOTSUPP.raw_os_error());
    }

    #[test]
    fn every_usage_has_an_example() {
        for command in COMMANDS {
            assert!(command.usage.contains("Example: "), "{}", command.name);
            assert!(COMMANDS.iter().any(|known| known.name == name_in(command.usage)), "{}", command.name);
        }
    }

    #[test]
    fn errors_read_as_in_other_tools() {
        assert_eq!(error_text(Errno::NOTTY), "Inappropriate ioctl for device");
    }
}
