//! `lfs mkdir`, `lfs setdirstripe`, `lfs getdirstripe` and `lfs unlink_foreign`. Source: reference 2.3 and 2.12.

mod make;
mod show;

use super::getopt::{OptionSpec, Takes, opt};
use super::mounted;
use super::{Failure, Outcome};
use nacre_layout::user;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;

pub use make::{MKDIR_USAGE, make, set};
pub use show::{SHOW_USAGE, show};

/// What `--help` and a wrong call of `lfs unlink_foreign` print.
pub const UNLINK_USAGE: &str = "\
usage: lfs unlink_foreign FILE|DIR...
Removes files and directories with a foreign layout, and no others.
Example: lfs unlink_foreign /mnt/nacre/foreign
";

/// Runs `lfs unlink_foreign`.
pub fn unlink_foreign(args: &[OsString]) -> Outcome {
    const NAME: &str = "lfs unlink_foreign";
    const OPTIONS: &[OptionSpec] = &[opt('h', "help", Takes::Nothing)];
    let parsed = super::parse(NAME, args, OPTIONS, UNLINK_USAGE)?;
    if parsed.has('h') {
        return super::print_usage(UNLINK_USAGE);
    }
    if parsed.operands.is_empty() {
        return Err(Failure::usage(format!("{NAME}: FILE must be specified"), UNLINK_USAGE));
    }
    super::for_each(&parsed.operands, |path| {
        unlink(path).map_err(|error| {
            let errno = super::errno_of(&error);
            let text = super::error_text(errno);
            Failure::new(errno, format!("{NAME}: cannot remove '{}': {text} ({errno})", path.display()))
        })
    })
}

fn unlink(path: &Path) -> io::Result<()> {
    let is_dir = fs::symlink_metadata(path)?.is_dir();
    let is_foreign = match is_dir {
        true => mounted::directory_layout(path)?.is_some_and(|bytes| user::is_foreign_directory(&bytes)),
        false => mounted::layout_bytes(path)?.is_some_and(|bytes| user::is_foreign(&bytes)),
    };
    match (is_foreign, is_dir) {
        (false, _) => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
        (true, true) => fs::remove_dir(path),
        (true, false) => fs::remove_file(path),
    }
}
