//! `lfs data_version` and `lfs swap_layouts`.

use super::getopt::{self, Parsed, Takes, opt};
use super::mounted::{self, ask_file};
use super::{Command, Failure, Outcome, Run};
use nacre_types::Fid;
use nacre_types::ioctl::{FileCall, FileOperation};
use rustix::fs::{Mode, OFlags};
use std::io;
use std::path::Path;

/// Text of `--help` and of a wrong call of `lfs data_version`.
const VERSION_USAGE: &str = "\
usage: lfs data_version [-n | -r | -w] FILE
  -n  version of the data on the OSTs, without write-back
  -r  write back the data that clients hold first (the default)
  -w  write back, and have clients drop their caches of the file
Example: lfs data_version /mnt/nacre/file
";

/// Text of `--help` and of a wrong call of `lfs swap_layouts`.
const SWAP_USAGE: &str = "\
usage: lfs swap_layouts [-n] FILE1 FILE2
  -n  also if the data of a file changes meanwhile
Example: lfs swap_layouts /mnt/nacre/a /mnt/nacre/b
";

/// Entry of `lfs data_version` in the table of commands.
pub const DATA_VERSION: Command = Command {
    name: "data_version",
    summary: "version of the data of a file",
    usage: VERSION_USAGE,
    run: Run::Parsed(
        &[
            opt('n', "", Takes::Nothing),
            opt('r', "", Takes::Nothing),
            opt('w', "", Takes::Nothing),
            getopt::HELP,
        ],
        data_version,
    ),
};

/// Runs `lfs data_version`.
fn data_version(parsed: &Parsed) -> Outcome {
    const NAME: &str = "lfs data_version";
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
        Failure::of(&error, format!("{NAME}: can't get version for '{}'", path.display()))
    })?;
    super::print(&format!("{version}\n"));
    Ok(())
}

/// Entry of `lfs swap_layouts` in the table of commands.
pub const SWAP_LAYOUTS: Command = Command {
    name: "swap_layouts",
    summary: "exchange the data of two files",
    usage: SWAP_USAGE,
    run: Run::Parsed(&[opt('n', "", Takes::Nothing), getopt::HELP], swap_layouts),
};

/// Runs `lfs swap_layouts`.
fn swap_layouts(parsed: &Parsed) -> Outcome {
    const NAME: &str = "lfs swap_layouts";
    let [first, second] = parsed.operands.as_slice() else {
        return Err(Failure::usage(format!("{NAME}: two files must be specified"), SWAP_USAGE));
    };
    let (first, second) = (Path::new(first), Path::new(second));
    exchange(first, second, !parsed.has('n')).map_err(|error| {
        let (first, second) = (first.display(), second.display());
        Failure::of(&error, format!("error: {NAME}: cannot swap layout between '{first}' and '{second}'"))
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
