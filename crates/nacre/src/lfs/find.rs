//! `lfs find`: lists files by attributes and layouts.
//!
//! `args` parses the command line, `query` builds conditions from it, `predicate` and `layout` test entries,
//! `format` prints them; all of them are pure. `walk` traverses the trees, one page of a directory per
//! request.

mod args;
mod format;
mod layout;
mod mode;
mod predicate;
mod query;
mod time;
mod walk;
mod xattr;

use super::listing::{self, Listed, Listing, OwnLayout};
use super::mounted::{self, Mounted};
use super::{Command, EXIT_UNKNOWN, Failure, Outcome, Run};
use layout::Defaults;
use nacre_layout::user;
use nacre_types::{AttrFlags, FileKind, TargetKind};
use query::{Query, Targets};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use walk::{Directory, Walk};

/// Text of `--help` and of a wrong call.
const USAGE: &str = "\
usage: lfs find DIR|FILE... [[!] PREDICATE]...
  All predicates must hold; '!' negates the next one. +N: more than N, -N: less, N: equal.
  -A -M -C -B, --atime --mtime --ctime --btime [+-]N[smhdwy]
                              age, in days without a unit
  --newer[XY] FILE|DATE       X of the file later than Y of FILE; a b c m, Y also t
  -n, --name GLOB             -t, --type b|c|d|f|l|p|s     --perm [/-]MODE
  --links [+-]N               -s, --size [+-]N[cbkMGTPE]   -b, --blocks [+-]N[cbkMGTPE]
  -u -U, --uid --user ID      -g -G, --gid --group ID      --projid ID
  -D, --maxdepth N            -d, --mindepth N             --xattr NAME[=VALUE]
  -O -i, --ost --stripe-index LIST                         -m, --mdt LIST
  -c, --stripe-count [+-]N    -S, --stripe-size [+-]N      -z, --ext-size [+-]N
  --pool NAME                 -L, --layout released,raid0,mdt
  --component-count [+-]N     --component-start [+-]N      -E, --component-end [+-]N
  --component-flags [^]F,...  -N, --mirror-count [+-]N     --mirror-state [^]ro|wp|sp
  -T, --mdt-count [+-]N       -H, --mdt-hash [^]TYPE,...   --foreign[=TYPE]
  --attrs [^]A,...            -l, --lazy                   -k, --skip PERCENT
  --threads N                 -P, --print   -0, --print0   --printf FORMAT   --ls
  --json                      one line of JSON with all attributes per entry
Example: lfs find /mnt/nacre -type f -size +1G --stripe-count 1
";

/// Entry of `lfs find` in the table of commands.
pub const COMMAND: Command = Command {
    name: "find",
    summary: "list files by attributes and layouts",
    usage: USAGE,
    run: Run::Words(run),
};

fn run(args: &[OsString]) -> Outcome {
    let wrong = |message: String| Failure::usage(format!("lfs find: {message}"), USAGE);
    let line = args::parse(args).map_err(wrong)?;
    if line.options.iter().any(|given| given.key == args::Key::Help) {
        return super::print_usage(USAGE);
    }
    if line.paths.is_empty() {
        return Err(Failure::usage("error: find: no filename|pathname".to_owned(), USAGE));
    }
    let targets = NamesOf(line.paths.clone());
    let query = Query::new(line, query::now(), &targets)
        .map_err(|message| Failure::exit(EXIT_UNKNOWN, format!("error: find: {message}")))?;
    super::allow_many_open_directories();
    super::for_each(&query.paths, |path| search(&query, path))
}

/// Returns the message and exit code for a path.
fn failure(path: &[u8], errno: Errno) -> Failure {
    let path = OsStr::from_bytes(path).display();
    Failure::new(errno, format!("lfs: failed for '{path}': {}", super::error_text(errno)))
}

/// Target names of the file system that contains the first path.
struct NamesOf(Vec<OsString>);

impl Targets for NamesOf {
    fn index_of(&self, kind: TargetKind, name: &str) -> Option<u32> {
        let path = Path::new(self.0.first()?);
        let place = if path.is_dir() { path } else { mounted::directory_of(path) };
        let mount = Mounted::open(place).ok()?;
        let fsname = mount.fsname();
        let rows = mount.targets().ok()?;
        let named = |row: &&mounted::TargetRow| {
            let target = row.target;
            target.kind == kind
                && (name == target.uuid(&fsname)
                    || name == target.to_string()
                    || name.strip_prefix(&fsname).and_then(|rest| rest.strip_prefix('-'))
                        == Some(&target.to_string()))
        };
        rows.iter().find(named).map(|row| u32::from(row.target.index))
    }
}

/// Searches one path of the command line.
fn search(query: &Query, path: &Path) -> Outcome {
    let bytes = path.as_os_str().as_bytes();
    let fail = |error: io::Error| failure(bytes, super::errno_of(&error));
    let root = Root::open(path).map_err(fail)?;
    let defaults = Defaults::of(&root.mount).map_err(fail)?;
    let walk = Walk::new(query, &defaults, query.threads.unwrap_or_else(|| default_threads(&root.mount)));
    let parent = Listing::of(root.parent, walk.wanted());
    let directory = match root.directory {
        None => None,
        Some(directory) => Some(Directory {
            path: bytes.to_vec(),
            listing: Listing::of(directory, walk.wanted()),
            depth: 0,
            layout: match &root.entry.layout {
                OwnLayout::Bytes(bytes) => Some(bytes.clone()),
                OwnLayout::None | OwnLayout::TooLong => None,
            },
        }),
    };
    walk.run(&parent, &root.entry, bytes, directory);
    match walk.failed() {
        Some(errno) => Err(Failure::new(errno, String::new())),
        None => Ok(()),
    }
}

/// Entry that a path of the command line names.
struct Root {
    mount: Mounted,
    /// Directory that contains it.
    parent: OwnedFd,
    entry: Listed,
    /// Open directory, if it is one, even through a symbolic link.
    directory: Option<OwnedFd>,
}

impl Root {
    fn open(path: &Path) -> io::Result<Root> {
        let is_dir = path.is_dir();
        let flags = if is_dir { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let found = rustix::fs::statx(rustix::fs::CWD, path, flags, mask)?;
        let mount = Mounted::open(if is_dir { path } else { mounted::directory_of(path) })?;
        let fid = mounted::fid_of(path, is_dir)?;
        let mut attr = listing::attr_of(&found, fid);
        let kind = FileKind::from_mode(attr.mode).unwrap_or(FileKind::Regular);
        let mut layout = OwnLayout::None;
        if matches!(kind, FileKind::Directory | FileKind::Regular) {
            attr.projid = mounted::project_of(path).map_or(0, |project| project.id);
            layout = mounted::layout_of(path)?.map_or(OwnLayout::None, OwnLayout::Bytes);
        }
        let is_spread = |bytes: Vec<u8>| !user::is_foreign_directory(&bytes);
        if is_dir && mounted::directory_layout(path)?.is_some_and(is_spread) {
            attr.flags |= AttrFlags::STRIPED;
        }
        let open = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = is_dir.then(|| rustix::fs::open(path, open, Mode::empty())).transpose()?;
        // A directory reached through a symbolic link, or by a path without a last component, stands for its
        // own parent.
        let named = path.file_name().filter(|_| !is_dir || !path.is_symlink());
        let place = if named.is_some() { mounted::directory_of(path) } else { path };
        let name = CString::new(named.map_or(&b"."[..], OsStr::as_bytes))?;
        let parent = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = rustix::fs::open(place, parent, Mode::empty())?;
        Ok(Root { mount, parent, entry: Listed { name, kind, attr: Some(attr), layout }, directory })
    }
}

/// Returns the default number of threads: four per MDT, up to half of the CPUs, as in Lustre.
fn default_threads(mount: &Mounted) -> usize {
    let mdts = mount
        .targets()
        .map_or(1, |rows| rows.iter().filter(|row| row.target.kind == TargetKind::Mdt).count());
    let cpus = nacre_env::thread::available_parallelism().map_or(1, usize::from);
    (4 * mdts).min(cpus / 2).max(1)
}

/// Checks a command line alone, on a file system without targets.
#[cfg(test)]
pub(super) fn checked(words: &[OsString]) -> Result<(), String> {
    Query::new(args::parse(words)?, 0, &NamesOf(Vec::new())).map(drop)
}
