//! `nacre du`: inodes and space below directories, as the MDTs have counted them.

use super::status::size;
use crate::failure::{EXIT_FAILURE, Failure, Result};
use crate::lfs::mounted;
use nacre_types::ioctl::DirUse;
use rustix::io::Errno;
use serde_json::{Value, json};
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

/// Unit of allocated space in bytes.
const BLOCK_BYTES: u64 = 512;
const KIB: u64 = 1024;

/// Shows space, files and directories below directories of a mount, without searching them.
///
/// The metadata servers count these while files and directories change, so the time does not depend on the number
/// of files. The space is in KiB, as 'du -s' shows it, but without that of directories themselves. A file with several names counts at its
/// first one; a file that a host writes to counts with the size of the last report of that host. The directory
/// itself has to be readable and searchable, those below it need not be.
#[derive(Debug, clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Exit code 0 if all directories were summed up, 1 otherwise.
Example: nacre du /mnt/nacre/projects
         nacre du -h /mnt/nacre/home/*
         nacre du --json /mnt/nacre | jq .files"
)]
pub struct DuArgs {
    /// Directories of a mounted file system
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Show space with suffixes, powers of 1024
    #[arg(short = 'h', long)]
    human: bool,
    /// Show the sum of file sizes, in bytes, instead of the allocated space
    #[arg(short = 'b', long)]
    bytes: bool,
    /// Print a line of JSON for each directory
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// Runs the command.
pub fn run(args: &DuArgs) -> Result<i32> {
    let mut exit = 0;
    let mut has_head = args.json || !io::stdout().is_terminal();
    for dir in &args.dirs {
        let found = match mounted::dir_use(dir) {
            Ok(found) => found,
            Err(error) => {
                exit = super::report(&refusal(dir, &error));
                continue;
            }
        };
        if !std::mem::replace(&mut has_head, true) {
            println!("{}", head(args));
        }
        if args.json {
            let line =
                serde_json::to_string(&as_json(dir, &found)).map_err(Failure::because("write JSON"))?;
            println!("{line}");
        } else {
            println!("{}", line(args, dir, &found));
        }
        if !found.is_complete {
            eprintln!(
                "nacre: {}: a metadata server has not counted everything since its start: repeat the command",
                dir.display()
            );
        }
    }
    Ok(exit)
}

/// Returns why a directory has no sums.
fn refusal(dir: &Path, error: &io::Error) -> Failure {
    let shown = dir.display();
    let errno = Errno::from_io_error(error);
    let message = match errno {
        Some(Errno::NOTTY | Errno::INVAL | Errno::NOSYS) => {
            format!("{shown} is not on a mounted NacreFS: 'du -s' searches other file systems")
        }
        Some(Errno::NOTDIR) => format!("{shown} is not a directory"),
        Some(Errno::OPNOTSUPP) => format!(
            "{shown}: the metadata servers do not count: 'lctl set_param mdt.*.dir_use=1' on their hosts begins it"
        ),
        Some(Errno::AGAIN) => {
            format!("{shown}: a metadata server does not answer: 'lfs check mdts' names it")
        }
        Some(errno) => format!("cannot sum up {shown}: {}", crate::failure::error_text(errno)),
        None => format!("cannot sum up {shown}: {error}"),
    };
    Failure { exit: EXIT_FAILURE, message }
}

fn head(args: &DuArgs) -> String {
    let space = match (args.bytes, args.human) {
        (true, true) => "SIZE",
        (true, false) => "BYTES",
        (false, true) => "SPACE",
        (false, false) => "KIB",
    };
    format!("{space:>14} {:>12} {:>12} DIRECTORY", "FILES", "DIRECTORIES")
}

fn line(args: &DuArgs, dir: &Path, found: &DirUse) -> String {
    let counts = &found.counts;
    let bytes = if args.bytes { counts.bytes } else { counts.blocks.saturating_mul(BLOCK_BYTES) };
    let space = match (args.human, args.bytes) {
        (true, _) => size(bytes),
        (false, true) => bytes.to_string(),
        (false, false) => bytes.div_ceil(KIB).to_string(),
    };
    format!("{space:>14} {:>12} {:>12} {}", counts.files, counts.directories, dir.display())
}

fn as_json(dir: &Path, found: &DirUse) -> Value {
    let counts = &found.counts;
    json!({
        "directory": dir.to_string_lossy(),
        "space": counts.blocks.saturating_mul(BLOCK_BYTES),
        "size": counts.bytes,
        "files": counts.files,
        "directories": counts.directories,
        "others": counts.others,
        "is_complete": found.is_complete,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::DirCounts;

    fn args() -> DuArgs {
        DuArgs { dirs: Vec::new(), human: false, bytes: false, json: false, help: None }
    }

    fn found() -> DirUse {
        let counts = DirCounts { files: 3, directories: 2, others: 1, bytes: 5000, blocks: 11 };
        DirUse { counts, is_complete: true }
    }

    #[test]
    fn space_is_in_kib_and_sizes_are_in_bytes() {
        let line = |args: &DuArgs| line(args, Path::new("/mnt/a"), &found());
        let words = |args: &DuArgs| line(args).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&args()), ["6", "3", "2", "/mnt/a"]);
        assert_eq!(words(&DuArgs { bytes: true, ..args() })[0], "5000");
        assert_eq!(words(&DuArgs { human: true, ..args() })[0], "5.5KiB");
        assert_eq!(words(&DuArgs { human: true, bytes: true, ..args() })[0], "4.9KiB");
        assert_eq!(head(&args()).len(), "             6            3            2 DIRECTORY".len());
    }

    #[test]
    fn json_has_all_sums() {
        let json = as_json(Path::new("/mnt/a"), &found());
        let expected = json!({
            "directory": "/mnt/a", "space": 5632, "size": 5000, "files": 3, "directories": 2, "others": 1,
            "is_complete": true,
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn each_refusal_names_the_directory() {
        for errno in [Errno::NOTTY, Errno::NOTDIR, Errno::OPNOTSUPP, Errno::AGAIN, Errno::ACCESS] {
            let failure = refusal(Path::new("/mnt/a"), &io::Error::from(errno));
            assert!(failure.message.contains("/mnt/a") && !failure.message.contains('\n'), "{failure}");
        }
    }
}
