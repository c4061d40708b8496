//! `lfs mkdir`, `lfs setdirstripe`, `lfs getdirstripe` and `lfs unlink_foreign`. Every directory is whole, on one MDT, except
//! foreign ones, whose entries another store has. Source: reference 2.3 and 2.12.

use super::getopt::{OptionSpec, Parsed, Takes, long, opt};
use super::mounted;
use super::number::{parse_signed, parse_unsigned};
use super::render;
use super::setstripe::foreign_of_options;
use super::{Failure, Outcome};
use nacre_layout::user::{self, Foreign};
use nacre_types::ioctl::MakeDirectory;
use rustix::fs::Mode;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

/// What `--help` and a wrong call of `lfs mkdir` print.
pub const MKDIR_USAGE: &str = "\
usage: lfs mkdir [-c COUNT] [-i INDEX] [-H HASH] [-o MODE] DIR...
       lfs mkdir --foreign[=TYPE] [--flags HEX] --xattr TEXT [-o MODE] DIR...
  -c, -T, --mdt-count COUNT  MDTs to spread over, as far as they are there: -1 all
  -C, --mdt-overcount COUNT  the same, more than one part on an MDT if need be
  -i, --mdt-index INDEX      the MDT, or -1 for any; another one than the parent's needs an administrator
                             or mdt.*.enable_remote_dir_gid
  -H, --mdt-hash HASH        all_char, fnv_1a_64, crush or crush2, for directories on several MDTs
  -o, --mode MODE            permissions, octal; the umask does not count
      --foreign TYPE         a text for another store in place of entries: none, posix, pccrw, pccro, s3, symlink or a number
  -x, --xattr TEXT           the text
      --flags HEX            flags for the store
Example: lfs mkdir --foreign=symlink --xattr=elsewhere/dir /mnt/nacre/dir
";
/// What `--help` and a wrong call of `lfs getdirstripe` print.
pub const SHOW_USAGE: &str = "\
usage: lfs getdirstripe [-c|-H|-i|-F|-X|--max-inherit-rr] [-D] [-v|-y] DIR...
  -c, --mdt-count   how many MDTs it is spread over: 0 for a directory that is whole
  -i, -m, --mdt-index
                    the first of them
  -H, --mdt-hash    how names are spread
  -F, --fid         the directory's FID
  -D, --default     what new directories in it get
  -X, --max-inherit with -D: for how many levels
      --max-inherit-rr  with -D: for how many levels in turn
  -v, --verbose     with FID and magic      -y, --yaml  a line for each field
Example: lfs getdirstripe /mnt/nacre/dir
";
/// What `--help` and a wrong call of `lfs unlink_foreign` print.
pub const UNLINK_USAGE: &str = "\
usage: lfs unlink_foreign FILE|DIR...
Removes files and directories with a foreign layout, and no others.
Example: lfs unlink_foreign /mnt/nacre/foreign
";

const CREATE_OPTIONS: &[OptionSpec] = &[
    opt('c', "mdt-count", Takes::Value),
    opt('T', "", Takes::Value),
    opt('C', "mdt-overcount", Takes::Value),
    opt('i', "mdt-index", Takes::Value),
    long('i', "mdt", Takes::Value),
    opt('H', "mdt-hash", Takes::Value),
    opt('o', "mode", Takes::Value),
    long('o', "m", Takes::Value),
    opt('D', "default", Takes::Nothing),
    opt('X', "max-inherit", Takes::Value),
    long('R', "max-inherit-rr", Takes::Value),
    opt('d', "delete", Takes::Nothing),
    opt('x', "xattr", Takes::Value),
    long('5', "foreign", Takes::MaybeValue),
    long('6', "flags", Takes::Value),
    opt('h', "help", Takes::Nothing),
];
const SHOW_OPTIONS: &[OptionSpec] = &[
    opt('c', "mdt-count", Takes::Nothing),
    long('c', "count", Takes::Nothing),
    opt('T', "", Takes::Nothing),
    opt('i', "mdt-index", Takes::Nothing),
    long('i', "index", Takes::Nothing),
    opt('m', "", Takes::Nothing),
    opt('H', "mdt-hash", Takes::Nothing),
    opt('F', "fid", Takes::Nothing),
    opt('D', "default", Takes::Nothing),
    opt('X', "max-inherit", Takes::Nothing),
    long('R', "max-inherit-rr", Takes::Nothing),
    opt('v', "verbose", Takes::Nothing),
    opt('y', "yaml", Takes::Nothing),
    opt('O', "obd", Takes::Value),
    opt('r', "recursive", Takes::Nothing),
    opt('h', "help", Takes::Nothing),
];
const HASHES: [&str; 4] = ["all_char", "fnv_1a_64", "crush", "crush2"];
/// MDTs in a directory, and parts on each of them, at most.
const COUNT_MAX: i64 = 2000;
const PARTS_MAX: i64 = 5;
const MODE_DEFAULT: u32 = 0o777;

/// What `lfs mkdir` was asked for.
#[derive(Debug, PartialEq)]
struct Plan {
    foreign: Option<Foreign>,
    /// As given, without the umask.
    mode: Option<u32>,
    first: i64,
    /// MDTs to spread names over, if there are several; negative: all.
    count: i32,
    /// Number of the hash; 0: as usual.
    hash: u32,
    /// As they were given.
    mdts: Vec<u16>,
    paths: Vec<OsString>,
}

fn create_usage(message: String) -> Failure {
    Failure::usage(format!("lfs mkdir: {message}"), MKDIR_USAGE)
}

/// Runs `lfs mkdir` and `lfs setdirstripe`, which are the same.
pub fn create(args: &[OsString]) -> Outcome {
    let parsed = super::parse("lfs mkdir", args, CREATE_OPTIONS, MKDIR_USAGE)?;
    if parsed.has('h') {
        return super::print_usage(MKDIR_USAGE);
    }
    let plan = plan(&parsed)?;
    super::for_each(&plan.paths, |path| {
        make(path, &plan).map_err(|error| {
            let errno = super::errno_of(&error);
            let text = super::error_text(errno);
            let reason = match errno {
                libc::EEXIST => "stripe already set",
                libc::ENOTTY => "not on a Lustre filesystem",
                _ => &text,
            };
            let path = path.display();
            let message = format!(
                "lfs mkdir: dirstripe error on '{path}': {reason}\nlfs setdirstripe: cannot create dir '{path}': {text}"
            );
            Failure::new(errno, message)
        })
    })
}

fn plan(parsed: &Parsed) -> Result<Plan, Failure> {
    const WITH_FOREIGN: [char; 4] = ['5', '6', 'x', 'o'];
    let foreign = foreign_of_options(parsed, "lfs mkdir", create_usage, &WITH_FOREIGN)?;
    if parsed.has('D') || parsed.has('d') {
        return Err(Failure::unsupported("lfs setdirstripe", "a default for directories"));
    }
    if parsed.has('X') || parsed.has('R') {
        return Err(create_usage(
            "--max-inherit and --max-inherit-rr are only for the default (-D)".to_owned(),
        ));
    }
    let bounded = |key: char, from: i64, to: i64| match parsed.value(key) {
        Some(text) => match parse_signed(text).filter(|count| (from..=to).contains(count)) {
            Some(_) => Ok(()),
            None => Err(create_usage(format!("invalid stripe count '{text}'"))),
        },
        None => Ok(()),
    };
    bounded('c', -1, COUNT_MAX)?;
    bounded('T', -1, COUNT_MAX)?;
    bounded('C', -PARTS_MAX, COUNT_MAX)?;
    if let Some(hash) = parsed.value('H')
        && !HASHES.contains(&hash)
        && !parse_unsigned(hash).is_some_and(|number| (1..=HASHES.len() as u64).contains(&number))
    {
        return Err(create_usage(format!("bad directory hash type '{hash}'")));
    }
    let mode = match parsed.value('o') {
        None => None,
        Some(text) => match u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777) {
            Some(mode) => Some(mode),
            None => return Err(create_usage(format!("bad MODE '{text}'"))),
        },
    };
    let (first, mdts) = first_of(parsed.value('i'))?;
    let count = ['c', 'T', 'C'].into_iter().find_map(|key| parsed.value(key)).and_then(parse_signed);
    let count = count.map_or(mdts.len() as i32, |count| count as i32);
    let hash = parsed.value('H').map_or(0, |hash| match HASHES.iter().position(|name| *name == hash) {
        Some(place) => place as u32 + 1,
        None => parse_unsigned(hash).unwrap_or(0) as u32,
    });
    if parsed.operands.is_empty() {
        return Err(create_usage("DIR must be specified".to_owned()));
    }
    Ok(Plan { foreign, mode, first, count, hash, mdts, paths: parsed.operands.clone() })
}

/// The first MDT of a list like `0,2-4`, or -1, and all of them.
fn first_of(text: Option<&str>) -> Result<(i64, Vec<u16>), Failure> {
    let Some(text) = text else { return Ok((-1, Vec::new())) };
    let wrong = || create_usage(format!("invalid MDT target(s) '{text}'"));
    if text == "-1" {
        return Ok((-1, Vec::new()));
    }
    let mut listed = Vec::new();
    for word in text.split(',') {
        let (from, to) = word.split_once('-').unwrap_or((word, word));
        let (from, to) = parse_unsigned(from).zip(parse_unsigned(to)).ok_or_else(wrong)?;
        if from > to || to >= nacre_types::limits::TARGET_INDEX_MAX.into() {
            return Err(wrong());
        }
        listed.extend(from as u16..=to as u16);
    }
    listed.first().map(|first| (i64::from(*first), listed.clone())).ok_or_else(wrong)
}

fn make(path: &Path, plan: &Plan) -> io::Result<()> {
    let parent = mounted::Mounted::open(mounted::directory_of(path))?;
    let is_there = |row: &mounted::TargetRow| row.target == nacre_types::TargetId::mdt(plan.first as u16);
    if plan.first >= 0 && !parent.targets()?.iter().any(is_there) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    match plan.mdts.is_empty() && (0..=1).contains(&plan.count) {
        false => make_on(&parent, path, plan)?,
        true => fs::DirBuilder::new().mode(plan.mode.unwrap_or(MODE_DEFAULT)).create(path)?,
    }
    let finish = || {
        if let Some(mode) = plan.mode {
            fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        }
        match &plan.foreign {
            Some(foreign) => mounted::set_directory_layout(path, &user::encode_foreign_directory(foreign)),
            None => Ok(()),
        }
    };
    finish().inspect_err(|_| drop(fs::remove_dir(path)))
}

/// Makes a directory on certain MDTs, or on several.
fn make_on(parent: &mounted::Mounted, path: &Path, plan: &Plan) -> io::Result<()> {
    let name = path.file_name().ok_or(io::Error::from_raw_os_error(libc::EEXIST))?;
    let umask = match plan.mode {
        Some(_) => 0,
        None => umask(),
    };
    parent.make_directory(&MakeDirectory {
        name: name.as_bytes().to_vec(),
        mode: plan.mode.unwrap_or(MODE_DEFAULT),
        umask,
        count: plan.count,
        hash: plan.hash,
        mdts: plan.mdts.clone(),
    })
}

/// The umask of this process, which has one thread.
fn umask() -> u32 {
    let mask = rustix::process::umask(Mode::empty());
    rustix::process::umask(mask);
    mask.bits()
}

/// What of a directory is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shown {
    Whole { verbose: bool, yaml: bool },
    Count,
    Index,
    Hash,
    Fid,
    Inherit,
    InheritInTurn,
}

/// Runs `lfs getdirstripe`.
pub fn show(args: &[OsString]) -> Outcome {
    const NAME: &str = "lfs getdirstripe";
    let parsed = super::parse(NAME, args, SHOW_OPTIONS, SHOW_USAGE)?;
    if parsed.has('h') {
        return super::print_usage(SHOW_USAGE);
    }
    for (key, what) in [('O', "-O"), ('r', "-r")] {
        if parsed.has(key) {
            return Err(Failure::unsupported(NAME, what));
        }
    }
    if parsed.operands.is_empty() {
        return Err(Failure::usage(format!("{NAME}: DIR must be specified"), SHOW_USAGE));
    }
    let fields = [
        ('c', Shown::Count),
        ('T', Shown::Count),
        ('i', Shown::Index),
        ('m', Shown::Index),
        ('H', Shown::Hash),
        ('F', Shown::Fid),
        ('X', Shown::Inherit),
        ('R', Shown::InheritInTurn),
    ];
    let whole = Shown::Whole { verbose: parsed.has('v'), yaml: parsed.has('y') };
    let shown = fields.iter().find(|(key, _)| parsed.has(*key)).map_or(whole, |(_, shown)| *shown);
    super::for_each(&parsed.operands, |path| {
        let text = show_one(path, shown, parsed.has('D')).map_err(|error| {
            let errno = super::errno_of(&error);
            let text = super::error_text(errno);
            Failure::new(errno, format!("lfs: getdirstripe for '{}' failed: {text}", path.display()))
        })?;
        super::print(&text);
        Ok(())
    })
}

fn show_one(path: &Path, shown: Shown, default: bool) -> io::Result<String> {
    let fid = mounted::fid_of(path, false)?;
    if !fs::symlink_metadata(path)?.is_dir() {
        return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
    }
    if let Some(bytes) = mounted::directory_layout(path)?.filter(|_| !default)
        && let Ok(foreign) = user::decode_foreign_directory(&bytes)
    {
        let verbose = matches!(shown, Shown::Whole { verbose: true, .. });
        return Ok(render::foreign(&foreign, user::MAGIC_FOREIGN_DIRECTORY, verbose));
    }
    Ok(text_of(shown, &fid, default))
}

/// A directory that is whole; or what new directories in it get, which is nothing in particular.
fn text_of(shown: Shown, fid: &nacre_types::Fid, default: bool) -> String {
    let index = if default { -1 } else { i32::from(fid.mdt_index()) };
    match shown {
        Shown::Count => "0\n".to_owned(),
        Shown::Index => format!("{index}\n"),
        Shown::Hash => "none\n".to_owned(),
        Shown::Fid => format!("{fid}\n"),
        Shown::Inherit => "-1\n".to_owned(),
        Shown::InheritInTurn => "0\n".to_owned(),
        Shown::Whole { yaml: true, .. } => {
            let more = if default { "lmv_max_inherit: -1\nlmv_max_inherit_rr: 0\n" } else { "" };
            format!("lmv_stripe_count:  0\nlmv_stripe_offset: {index}\nlmv_hash_type:     none\n{more}")
        }
        Shown::Whole { verbose, .. } => {
            let more = if default { " lmv_max_inherit: -1 lmv_max_inherit_rr: 0" } else { "" };
            let before = match verbose {
                true => {
                    format!("lmv_fid: {:#x}:{:#x}:{:#x} lmv_magic: 0xcd20cd0 ", fid.seq, fid.oid, fid.ver)
                }
                false => String::new(),
            };
            format!("{before}lmv_stripe_count: 0 lmv_stripe_offset: {index} lmv_hash_type: none{more}\n")
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lfs::getopt::{parse, words_of};

    #[test]
    fn wrong_calls_are_told_as_lustre_does() {
        for (line, message) in [
            ("", "DIR must be specified"),
            ("-c 1", "DIR must be specified"),
            ("-H foo zz", "bad directory hash type 'foo'"),
            ("-H 5 zz", "bad directory hash type '5'"),
            ("-c x zz", "invalid stripe count 'x'"),
            ("-c 2001 zz", "invalid stripe count '2001'"),
            ("-c -2 zz", "invalid stripe count '-2'"),
            ("-C -6 zz", "invalid stripe count '-6'"),
            ("-i x zz", "invalid MDT target(s) 'x'"),
            ("-i 3-1 zz", "invalid MDT target(s) '3-1'"),
            ("-o 8 zz", "bad MODE '8'"),
            ("--foreign zz", "xattr must be provided in foreign mode"),
            ("--foreign=q -x t zz", "unrecognized foreign type 'q'"),
            ("--foreign -x t -c 1 zz", "only --xattr/--flags/--mode options are valid with --foreign"),
        ] {
            let failure = create(&words_of(line.as_bytes())).expect_err(line);
            assert_eq!((failure.exit, failure.message), (4, format!("lfs mkdir: {message}")), "{line}");
        }
    }

    #[test]
    fn wishes_are_read() {
        let read = |line: &str| {
            let parsed = parse(&words_of(line.as_bytes()), CREATE_OPTIONS).expect(line);
            plan(&parsed).expect(line)
        };
        let plain = read("-c 2000 -i 0 -H crush zz");
        assert_eq!((plain.first, plain.mode, plain.foreign), (0, None, None));
        assert_eq!((read("-i -1 zz").first, read("-i 2-4,1 -T -1 -H 3 zz").first), (-1, 2));
        let foreign = read("--foreign=symlink --flags 0xda08 -x text -o 750 zz");
        assert_eq!(foreign.mode, Some(0o750));
        let expected = Foreign { kind: 0xda05, flags: 0xda08, text: b"text".to_vec() };
        assert_eq!(foreign.foreign, Some(expected));
    }

    #[test]
    fn golden_directories() {
        let fid = nacre_types::Fid::new(0x2_0000_0401, 3, 0);
        let whole = |verbose, yaml| Shown::Whole { verbose, yaml };
        let plain = "lmv_stripe_count: 0 lmv_stripe_offset: 0 lmv_hash_type: none\n";
        assert_eq!(text_of(whole(false, false), &fid, false), plain);
        let verbose = format!("lmv_fid: 0x200000401:0x3:0x0 lmv_magic: 0xcd20cd0 {plain}");
        assert_eq!(text_of(whole(true, false), &fid, false), verbose);
        assert_eq!(
            text_of(whole(false, true), &fid, false),
            "lmv_stripe_count:  0\nlmv_stripe_offset: 0\nlmv_hash_type:     none\n"
        );
        assert_eq!(
            text_of(whole(false, false), &fid, true),
            "lmv_stripe_count: 0 lmv_stripe_offset: -1 lmv_hash_type: none lmv_max_inherit: -1 lmv_max_inherit_rr: 0\n"
        );
    }
}
