//! `lfs data_version` and `lfs swap_layouts`. Source: reference 2.12.

use super::getopt::{OptionSpec, Takes, opt};
use super::mounted::{self, ask_file};
use super::{Failure, Outcome};
use nacre_types::Fid;
use nacre_types::ioctl::{FileCall, FileOperation};
use rustix::fs::{Mode, OFlags};
use std::ffi::OsString;
use std::io;
use std::path::Path;

/// What `--help` and a wrong call print.
pub const VERSION_USAGE: &str = "\
usage: lfs data_version [-n | -r | -w] FILE
  -n  the version of what is on the OSTs, without writing out anything
  -r  write out what clients hold back first (the default)
  -w  write it out, and have clients drop all that they cache of the file
Example: lfs data_version /mnt/nacre/file
";

/// What `--help` and a wrong call print.
pub const SWAP_USAGE: &str = "\
usage: lfs swap_layouts [-n] FILE1 FILE2
  -n  even if the data of a file changes meanwhile
Example: lfs swap_layouts /mnt/nacre/a /mnt/nacre/b
";

/// Runs `lfs data_version`.
pub fn data_version(args: &[OsString]) -> Outcome {
    const NAME: &str = "lfs data_version";
    const OPTIONS: &[OptionSpec] = &[
        opt('n', "", Takes::Nothing),
        opt('r', "", Takes::Nothing),
        opt('w', "", Takes::Nothing),
        opt('h', "help", Takes::Nothing),
    ];
    let parsed = super::parse(NAME, args, OPTIONS, VERSION_USAGE)?;
    if parsed.has('h') {
        return super::print_usage(VERSION_USAGE);
    }
    let flags = match parsed.options.last().map(|(key, _)| *key) {
        Some('n') => 0,
        Some('w') => 2,
        _ => 1,
    };
    let [path] = parsed.operands.as_slice() else {
        return Err(Failure::usage(format!("{NAME}: FILE must be specified"), VERSION_USAGE));
    };
    let path = Path::new(path);
    let version = open(path, OFlags::RDONLY).and_then(|file| version_of(&file, flags)).map_err(|error| {
        let errno = super::errno_of(&error);
        Failure::new(
            errno,
            format!("{NAME}: can't get version for '{}': {}", path.display(), super::error_text(errno)),
        )
    })?;
    super::print(&format!("{version}\n"));
    Ok(())
}

/// Runs `lfs swap_layouts`.
pub fn swap_layouts(args: &[OsString]) -> Outcome {
    const NAME: &str = "lfs swap_layouts";
    const OPTIONS: &[OptionSpec] = &[opt('n', "", Takes::Nothing), opt('h', "help", Takes::Nothing)];
    let parsed = super::parse(NAME, args, OPTIONS, SWAP_USAGE)?;
    if parsed.has('h') {
        return super::print_usage(SWAP_USAGE);
    }
    let [first, second] = parsed.operands.as_slice() else {
        return Err(Failure::usage(format!("{NAME}: two files must be specified"), SWAP_USAGE));
    };
    let (first, second) = (Path::new(first), Path::new(second));
    exchange(first, second, !parsed.has('n')).map_err(|error| {
        let errno = super::errno_of(&error);
        let (first, second) = (first.display(), second.display());
        let text = super::error_text(errno);
        Failure::new(
            errno,
            format!("error: {NAME}: cannot swap layout between '{first}' and '{second}': {text}"),
        )
    })
}

fn exchange(first: &Path, second: &Path, checked: bool) -> io::Result<()> {
    let other = mounted::fid_of(second, false)?;
    let (one, two) = (open(first, OFlags::RDWR)?, open(second, OFlags::RDWR)?);
    let (flags, values) = match checked {
        true => (FileCall::FIRST | FileCall::SECOND, [version_of(&one, 1)?, version_of(&two, 1)?]),
        false => (0, [0; 2]),
    };
    ask_file(&one, &FileCall { operation: FileOperation::Swap, flags, other, values }).map(drop)
}

fn open(path: &Path, how: OFlags) -> io::Result<std::os::fd::OwnedFd> {
    let flags = how | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

fn version_of(file: &std::os::fd::OwnedFd, flags: u32) -> io::Result<u64> {
    let operation = FileOperation::DataVersion;
    Ok(ask_file(file, &FileCall { operation, flags, other: Fid::ZERO, values: [0; 2] })?.values[0])
}
