//! Commands about FIDs: `path2fid`, `fid2path`, `rmfid`; and `getsom`.

use super::getopt::{self, Parsed, Takes, long, opt};
use super::mounted::{self, Mounted};
use super::query::{by_name_or_path, open};
use super::{Command, Failure, Outcome, Run};
use nacre_types::{Fid, SizeSource};
use rustix::io::Errno;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// Usage of `lfs path2fid`.
const PATH2FID_USAGE: &str = "\
usage: lfs path2fid [--parents] PATH...
  --parents   FID of the directory of each name, and the name
Example: lfs path2fid /mnt/nacre/file
";
/// Usage of `lfs fid2path`.
const FID2PATH_USAGE: &str = "\
usage: lfs fid2path [-0] [-c] [-f] [-n] [-l LINK] FSNAME|MOUNT_POINT FID...
  -0, --print0        end each path with NUL
  -c, --print-link    print the number of the next link before each path; for the last, its own
  -f, --print-fid     print the FID before each path
  -n, --name          print only the last component of the path
  -l, --link LINK     only this hard link, counted from 0
Example: lfs fid2path /mnt/nacre '[0x200000401:0x1:0x0]'
";
/// Usage of `lfs rmfid`.
const RMFID_USAGE: &str = "\
usage: lfs rmfid FSNAME|MOUNT_POINT FID...
Removes all names of each file. For administrators.
Example: lfs rmfid /mnt/nacre '[0x200000401:0x1:0x0]'
";
/// Usage of `lfs getsom`.
const GETSOM_USAGE: &str = "\
usage: lfs getsom [-s] [-b] [-f] FILE...
  Size as stored on the MDT; OSTs are not asked.
  -s  only the size    -b  only the 512-byte blocks    -f  only the flags (1 exact, 4 possibly outdated)
Example: lfs getsom /mnt/nacre/file
";

/// The MDT's size is exact: no client has written since.
const SOM_STRICT: u32 = 1;
/// The MDT's size is the last one that a client reported.
const SOM_LAZY: u32 = 4;

/// Entry of `lfs path2fid` in the table of commands.
pub const PATH2FID: Command = Command {
    name: "path2fid",
    summary: "FID of a path",
    usage: PATH2FID_USAGE,
    run: Run::Parsed(&[getopt::HELP, long('p', "parents", Takes::Nothing)], path2fid),
};

/// `lfs path2fid`.
fn path2fid(parsed: &Parsed) -> Outcome {
    super::check_operands(parsed, "lfs path2fid: PATH must be specified", PATH2FID_USAGE)?;
    let several = parsed.operands.len() > 1;
    super::for_each(&parsed.operands, |path| {
        let fail = |error: io::Error| {
            Failure::of(&error, format!("lfs path2fid: can't get FID for '{}'", path.display()))
        };
        let fid = mounted::fid_of(path, false).map_err(fail)?;
        let text = match parsed.has('p') {
            true => parents_of(path, &fid).map_err(fail)?,
            false => fid.to_string(),
        };
        match several {
            true => super::print(&format!("{}: {text}\n", path.display())),
            false => super::print(&format!("{text}\n")),
        }
        Ok(())
    })
}

/// Returns `[FID]/name` for each name of a file, separated by tabs.
fn parents_of(path: &Path, fid: &Fid) -> io::Result<String> {
    let place = if path.is_dir() { path } else { mounted::directory_of(path) };
    let mount = Mounted::open(place)?;
    let root = mount.root()?;
    let mut names = Vec::new();
    for path in mount.paths_of(fid, None)? {
        let parent = mounted::fid_of(&root.join(path.parent().unwrap_or(Path::new(""))), true)?;
        let name = path.file_name().unwrap_or_default();
        names.push(format!("{parent}/{}", name.display()));
    }
    Ok(names.join("\t"))
}

/// Entry of `lfs fid2path` in the table of commands.
pub const FID2PATH: Command = Command {
    name: "fid2path",
    summary: "paths of a FID",
    usage: FID2PATH_USAGE,
    run: Run::Parsed(
        &[
            opt('0', "print0", Takes::Nothing),
            opt('f', "print-fid", Takes::Nothing),
            opt('c', "print-link", Takes::Nothing),
            long('c', "current", Takes::Nothing),
            opt('n', "name", Takes::Nothing),
            opt('l', "link", Takes::Value),
            opt('r', "rec", Takes::Value),
            getopt::HELP,
        ],
        fid2path,
    ),
};

/// `lfs fid2path`.
fn fid2path(parsed: &Parsed) -> Outcome {
    let (device, fids) = device_and_fids(&parsed.operands, "fid2path", FID2PATH_USAGE)?;
    let number = |key: char, what: &str| match parsed.value(key).map(str::parse::<u32>) {
        None => Ok(None),
        Some(Ok(number)) => Ok(Some(number)),
        Some(Err(_)) => {
            let text = parsed.value(key).unwrap_or_default();
            Err(Failure::usage(format!("lfs fid2path: invalid {what} number '{text}'"), FID2PATH_USAGE))
        }
    };
    // The record number selects a time in a changelog; NacreFS has only the current names.
    number('r', "record")?;
    let only = number('l', "link")?;
    let mount = by_name_or_path(device, "fid2path")?;
    let opened = open(&mount, "fid2path")?;
    let end = if parsed.has('0') { "\0" } else { "\n" };
    super::for_each(fids, |word| {
        let fid = parse_fid(word, "fid2path")?;
        let paths = opened
            .paths_of(&fid, only)
            .map_err(|error| Failure::of(&error, format!("lfs fid2path: cannot find '{fid}'")))?;
        // Lustre prints the number of the following link, and for the last link its own.
        let last = only.unwrap_or(0) + (paths.len() as u32).saturating_sub(1);
        for (next, path) in (only.unwrap_or(0) + 1..).zip(paths) {
            let link = next.min(last);
            let shown = match parsed.has('n') {
                true => path.file_name().map_or_else(PathBuf::new, PathBuf::from),
                false => mount.mount_point.join(&path),
            };
            let mut prefix = if parsed.has('f') { format!("{fid} ") } else { String::new() };
            if parsed.has('c') {
                prefix.push_str(&format!("{link} "));
            }
            super::print(&format!("{prefix}{}{end}", shown.display()));
        }
        Ok(())
    })
}

/// Entry of `lfs rmfid` in the table of commands.
pub const RMFID: Command = Command {
    name: "rmfid",
    summary: "remove files by FID",
    usage: RMFID_USAGE,
    run: Run::Parsed(&[getopt::HELP], rmfid),
};

/// `lfs rmfid`.
fn rmfid(parsed: &Parsed) -> Outcome {
    let (device, fids) = device_and_fids(&parsed.operands, "rmfid", RMFID_USAGE)?;
    let mount = by_name_or_path(device, "rmfid")?;
    let opened = open(&mount, "rmfid")?;
    super::for_each(fids, |word| {
        let fid = parse_fid(word, "rmfid")?;
        opened.remove_fid(fid).map_err(|error| Failure::of(&error, format!("lfs rmfid: cannot remove {fid}")))
    })
}

fn device_and_fids<'a>(
    operands: &'a [OsString],
    command: &str,
    usage: &'static str,
) -> Result<(&'a Path, &'a [OsString]), Failure> {
    match operands {
        [] => Err(Failure::usage(format!("lfs {command}: FSNAME or mount point missing"), usage)),
        [_] => Err(Failure::usage(format!("lfs {command}: FID missing"), usage)),
        [device, fids @ ..] => Ok((Path::new(device), fids)),
    }
}

/// Parses a FID from a word of the command line.
///
/// # Errors
/// `EINVAL` if it is not a FID.
pub fn parse_fid(word: &Path, command: &str) -> Result<Fid, Failure> {
    // Paths of the form `.lustre/fid/[..]` name a FID as well.
    let text = word.file_name().and_then(|name| name.to_str()).unwrap_or("");
    text.parse().map_err(|_| {
        let message = format!("lfs {command}: bad FID format '{}', should be [seq:oid:ver]", word.display());
        Failure::new(Errno::INVAL, message)
    })
}

/// Entry of `lfs getsom` in the table of commands.
pub const GETSOM: Command = Command {
    name: "getsom",
    summary: "sizes as stored on the MDT",
    usage: GETSOM_USAGE,
    run: Run::Parsed(
        &[
            opt('s', "size", Takes::Nothing),
            opt('b', "blocks", Takes::Nothing),
            opt('f', "flags", Takes::Nothing),
            getopt::HELP,
        ],
        getsom,
    ),
};

/// `lfs getsom`.
fn getsom(parsed: &Parsed) -> Outcome {
    super::check_operands(parsed, "lfs getsom: FILE must be specified", GETSOM_USAGE)?;
    super::for_each(&parsed.operands, |path| {
        let som = mounted::size_on_mdt(path).map_err(|error| {
            Failure::of(&error, format!("lfs getsom: cannot get size of '{}'", path.display()))
        })?;
        let flags = if som.source == SizeSource::Exact { SOM_STRICT } else { SOM_LAZY };
        let (size, blocks) = (som.size, som.blocks);
        let text = match (parsed.has('s'), parsed.has('b'), parsed.has('f')) {
            (true, _, _) => format!("{size}\n"),
            (_, true, _) => format!("{blocks}\n"),
            (_, _, true) => format!("{flags}\n"),
            _ => format!("file: {} size: {size} blocks: {blocks} flags: {flags}\n", path.display()),
        };
        super::print(&text);
        Ok(())
    })
}
