//! `lfs mkdir`, `lfs setdirstripe`, `lfs getdirstripe` and `lfs unlink_foreign`.

mod make;
mod show;

use super::getopt::{self, Parsed};
use super::mounted;
use super::{Command, Failure, Outcome, Run};
use nacre_layout::user;
use rustix::io::Errno;
use std::fs;
use std::io;
use std::path::Path;

#[cfg(test)]
pub use make::checked;
pub use make::{MKDIR, SETDIRSTRIPE};
pub use show::{GETDIRSTRIPE, show};

/// Text of `--help` and of a wrong call of `lfs unlink_foreign`.
const UNLINK_USAGE: &str = "\
usage: lfs unlink_foreign FILE|DIR...
Removes files and directories with a foreign layout, and no others.
Example: lfs unlink_foreign /mnt/nacre/foreign
";

/// Entry of `lfs unlink_foreign` in the table of commands.
pub const UNLINK_FOREIGN: Command = Command {
    name: "unlink_foreign",
    summary: "remove files and directories with foreign layouts",
    usage: UNLINK_USAGE,
    run: Run::Parsed(&[getopt::HELP], unlink_foreign),
};

/// Runs `lfs unlink_foreign`.
fn unlink_foreign(parsed: &Parsed) -> Outcome {
    const NAME: &str = "lfs unlink_foreign";
    super::check_operands(parsed, &format!("{NAME}: FILE must be specified"), UNLINK_USAGE)?;
    super::for_each(&parsed.operands, |path| {
        let failed = |error| Failure::numbered(&error, format!("{NAME}: cannot remove '{}'", path.display()));
        unlink(path).map_err(failed)
    })
}

fn unlink(path: &Path) -> io::Result<()> {
    let is_dir = fs::symlink_metadata(path)?.is_dir();
    let is_foreign = match is_dir {
        true => mounted::directory_layout(path)?.is_some_and(|bytes| user::is_foreign_directory(&bytes)),
        false => mounted::layout_bytes(path)?.is_some_and(|bytes| user::is_foreign(&bytes)),
    };
    match (is_foreign, is_dir) {
        (false, _) => Err(io::Error::from(Errno::OPNOTSUPP)),
        (true, true) => fs::remove_dir(path),
        (true, false) => fs::remove_file(path),
    }
}
