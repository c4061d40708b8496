//! `lfs project`: shows, sets, checks and clears projects of files.

use super::getopt::{OptionSpec, Parsed, Takes, opt};
use super::mounted::{self, Project};
use super::{Command, Failure, Outcome, Run, getopt, identity};
use std::fs;
use std::io;
use std::path::Path;

/// Text of `--help` and of a wrong call.
const USAGE: &str = "\
usage: lfs project [-d|-r] FILE|DIR...                  list; for a directory its entries
       lfs project {-p ID | -s} [-r] FILE|DIR...        set
       lfs project -c [-d|-r] [-p ID] [-0] FILE|DIR...  check, print differences
       lfs project -C [-k] [-r] FILE|DIR...             clear
  -p ID  number or name of the project (default with -c: that of the first directory)
  -s     new entries of directories inherit the project
  -r     the whole tree         -d  a directory itself
  -0     print only paths, each ended by NUL
  -k     keep the number, clear only the inheritance
Example: lfs project -p 42 -s -r /mnt/nacre/dir
";

const OPTIONS: &[OptionSpec] = &[
    opt('p', "", Takes::Value),
    opt('s', "", Takes::Nothing),
    opt('r', "", Takes::Nothing),
    opt('d', "", Takes::Nothing),
    opt('c', "", Takes::Nothing),
    opt('C', "", Takes::Nothing),
    opt('k', "", Takes::Nothing),
    opt('0', "", Takes::Nothing),
    getopt::HELP,
];

/// Deepest level of directories that `-r` follows; a deeper path would exceed the kernel's limit anyway.
const DEPTH_MAX: usize = 2048;

/// Action on each file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Task {
    List,
    Set {
        id: u32,
        inherited: bool,
    },
    Check {
        id: u32,
        /// Print only paths, terminated by NUL.
        bare: bool,
    },
    Clear {
        keep: bool,
    },
}

/// Entry of `lfs project` in the table of commands.
pub const COMMAND: Command = Command {
    name: "project",
    summary: "projects of files: list, set, check, clear",
    usage: USAGE,
    run: Run::Parsed(OPTIONS, run),
};

/// Runs the command.
fn run(parsed: &Parsed) -> Outcome {
    check_options(parsed)?;
    let task_of = |path: &Path| task_of(parsed, path);
    let (recursive, itself) = (parsed.has('r') && !parsed.has('d'), parsed.has('d'));
    super::for_each(&parsed.operands, |path| {
        let task = task_of(path)?;
        let is_dir = fs::symlink_metadata(path).map_err(|error| failed("open", path, &error))?.is_dir();
        let changes = matches!(task, Task::Set { .. } | Task::Clear { .. });
        // A list shows the entries of a directory; every other action starts with the directory.
        if !is_dir || itself || task != Task::List {
            apply(task, path, is_dir)?;
        }
        match is_dir && !itself && (recursive || !changes) {
            true => below(task, path, recursive, 0),
            false => Ok(()),
        }
    })
}

fn check_options(parsed: &Parsed) -> Outcome {
    let wrong = |message: &str| Err(Failure::usage(format!("lfs project: {message}"), USAGE));
    if parsed.has('C') && (parsed.has('c') || parsed.has('p') || parsed.has('s')) {
        return wrong("cannot specify '-C' with '-c', '-p' or '-s'");
    }
    if parsed.has('c') && parsed.has('s') {
        return wrong("cannot specify '-c' with '-s'");
    }
    if parsed.has('0') && !parsed.has('c') {
        return wrong("'-0' is only for '-c'");
    }
    if parsed.has('k') && !parsed.has('C') {
        return wrong("'-k' is only for '-C'");
    }
    if parsed.operands.is_empty() {
        return wrong("missing file or directory target(s)");
    }
    Ok(())
}

/// Returns the requested action. Without a number it uses the project of the path itself.
fn task_of(parsed: &Parsed, path: &Path) -> Result<Task, Failure> {
    let given = match parsed.value('p') {
        None => None,
        Some(text) => Some(
            identity::project_of(text)
                .ok_or_else(|| Failure::usage(format!("lfs project: invalid project ID '{text}'"), USAGE))?,
        ),
    };
    let id = || match given {
        Some(id) => Ok(id),
        None => mounted::project_of(path).map(|project| project.id).map_err(|e| failed("open", path, &e)),
    };
    Ok(if parsed.has('C') {
        Task::Clear { keep: parsed.has('k') }
    } else if parsed.has('c') {
        Task::Check { id: id()?, bare: parsed.has('0') }
    } else if parsed.has('p') || parsed.has('s') {
        Task::Set { id: id()?, inherited: parsed.has('s') }
    } else {
        Task::List
    })
}

fn below(task: Task, directory: &Path, recursive: bool, depth: usize) -> Outcome {
    let mut first = Ok(());
    for entry in fs::read_dir(directory).map_err(|error| failed("open", directory, &error))? {
        let entry = entry.map_err(|error| failed("open", directory, &error))?;
        let path = entry.path();
        let kind = entry.file_type().map_err(|error| failed("open", &path, &error))?;
        let mut done = apply(task, &path, kind.is_dir());
        if kind.is_dir() && recursive && depth < DEPTH_MAX {
            done = done.and_then(|()| below(task, &path, recursive, depth + 1));
        }
        if let Err(failure) = done {
            failure.report();
            first = first.and(Err(Failure { message: String::new(), usage: None, ..failure }));
        }
    }
    first
}

fn apply(task: Task, path: &Path, is_dir: bool) -> Outcome {
    let found = mounted::project_of(path).map_err(|error| failed("open", path, &error))?;
    let set = |project: Project| {
        mounted::set_project(path, project).map_err(|error| failed("set xattr for", path, &error))
    };
    match task {
        Task::List => super::print(&listed(path, found)),
        Task::Set { id, inherited } => {
            set(Project { id, inherited: is_dir && (inherited || found.inherited) })?
        }
        Task::Clear { keep } => set(Project { id: if keep { found.id } else { 0 }, inherited: false })?,
        Task::Check { id, bare } => super::print(&differences(path, found, id, is_dir, bare)),
    }
    Ok(())
}

fn listed(path: &Path, project: Project) -> String {
    let flag = if project.inherited { 'P' } else { '-' };
    format!("{:>5} {flag} {}\n", project.id, path.display())
}

fn differences(path: &Path, found: Project, id: u32, is_dir: bool, bare: bool) -> String {
    let (no_flag, other_id) = (is_dir && !found.inherited, found.id != id);
    let path = path.display();
    match bare {
        true if no_flag || other_id => format!("{path}\0"),
        true => String::new(),
        false => {
            let mut text = String::new();
            if no_flag {
                text.push_str(&format!("{path} - project inheritance flag is not set\n"));
            }
            if other_id {
                let found = found.id;
                text.push_str(&format!(
                    "{path} - project identifier is not set (inode={found}, tree={id})\n"
                ));
            }
            text
        }
    }
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::of(error, format!("lfs: failed to {what} '{}'", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lfs::getopt::{parse, words_of};

    #[test]
    fn golden_list() {
        assert_eq!(listed(Path::new("f1"), Project { id: 42, inherited: true }), "   42 P f1\n");
        assert_eq!(listed(Path::new("f"), Project { id: 123456, inherited: false }), "123456 - f\n");
    }

    #[test]
    fn differences_are_told_in_words_or_as_bare_paths() {
        let path = Path::new("d");
        let right = Project { id: 7, inherited: true };
        assert_eq!(differences(path, right, 7, true, false), "");
        let wrong = Project { id: 1, inherited: false };
        assert_eq!(
            differences(path, wrong, 7, true, false),
            "d - project inheritance flag is not set\nd - project identifier is not set (inode=1, tree=7)\n"
        );
        assert_eq!(differences(path, wrong, 7, true, true), "d\0");
        assert_eq!(differences(path, Project { id: 7, ..wrong }, 7, false, false), "", "files have no flag");
    }

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        for line in ["-C -p 1 f", "-C -s f", "-c -C f", "-c -s f", "-0 f", "-k f", "", "-s"] {
            let parsed = parse(&words_of(line.as_bytes()), OPTIONS).expect(line);
            assert_eq!(check_options(&parsed).expect_err(line).exit, 4, "{line}");
        }
    }
}
