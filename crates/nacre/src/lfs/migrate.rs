//! `lfs migrate`: moves the data of files to other objects.

mod auto;
pub mod directory;

use super::fids::parse_fid;
use super::getopt::{OptionSpec, Parsed, Takes, long, opt};
use super::relocate::{Manner, Order, relocate};
use super::setstripe::{check_targets, request_of_options};
use super::{Command, Failure, Outcome, Run, getopt, mounted};
use auto::Auto;
use mounted::Mounted;
use nacre_env::clock::Instant;
use nacre_layout::{LayoutRequest, user};
use nacre_types::Fid;
use rustix::io::Errno;
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Text of `--help` and of a wrong call.
const USAGE: &str = "\
usage: lfs migrate [LAYOUT OPTIONS] [-b | -n] [-v] [-W RATE] [--stats] [--stats-interval SECONDS] FILE...
       lfs migrate [OPTIONS] --files-from LIST | -0
       lfs migrate -m MDT[,MDT...] [-c COUNT | -C COUNT] [-H HASH] [-d] [--clear-fixed] [-v] DIR...
LAYOUT OPTIONS are those of 'lfs setstripe'; without them the file keeps its layout on new objects.
  -A, --auto-stripe          choose the stripe count by size: 1 + sqrt(size in GiB), more if objects
                             would take too much of an OST
  -K, --cap PART             with -A: objects of at most 1/PART of the smallest OST's free space (100)
  -M, --min-free KIB         with -A: ignore OSTs with less free space (262144)
  -X, --max-free KIB         with -A: count at most this free space of an OST
      --restripe             use the layout of a new file in the same directory
  -b, --block                programs that write meanwhile wait (the default)
  -n, --non-block            fail if a program writes to the file or has it open for writing
  -D, --non-direct           accepted without effect
  -W, --bandwidth-limit RATE limit of the copy rate in MiB per second; suffixes k M G
      --stats                print progress every 5 seconds
      --stats-interval S     print progress every S seconds
      --files-from LIST      read names from LIST, one per line; '-' for standard input
  -0, --null                 read names from standard input, each ended by NUL
      --fid                  FILEs are FIDs
      --lustre-dir DIR       with --fid: a directory of the file system (default: the current directory)
  -v, --verbose              print each moved file
  -m, --mdt-index MDT        move directories with their contents to these MDTs, except open files
  -c, -C COUNT               with -m: spread names over COUNT MDTs; -C: more than one shard per MDT
  -H, --mdt-hash HASH        with -m: hash of names: all_char, fnv_1a_64, crush, crush2
  -d, --directory            with -m: only the directories themselves, not their contents
      --clear-fixed          with -m: permit automatic splitting again
Example: lfs migrate -c 4 /mnt/nacre/file
";

const NAME: &str = "lfs migrate";
const OPTIONS: &[OptionSpec] = &[
    opt('c', "stripe-count", Takes::Value),
    opt('S', "stripe-size", Takes::Value),
    opt('i', "stripe-index", Takes::Value),
    long('i', "stripe-offset", Takes::Value),
    opt('p', "pool", Takes::Value),
    opt('L', "layout", Takes::Value),
    opt('E', "component-end", Takes::Value),
    opt('z', "extension-size", Takes::Value),
    long('z', "ext-size", Takes::Value),
    long('1', "component-flags", Takes::Value),
    long('Y', "copy", Takes::Value),
    opt('y', "yaml", Takes::Value),
    opt('b', "block", Takes::Nothing),
    opt('n', "non-block", Takes::Nothing),
    OptionSpec { key: 'B', ..opt('D', "non-direct", Takes::Nothing) },
    opt('W', "bandwidth-limit", Takes::Value),
    long('7', "stats", Takes::Nothing),
    long('8', "stats-interval", Takes::Value),
    long('R', "restripe", Takes::Nothing),
    long('F', "files-from", Takes::Value),
    opt('0', "null", Takes::Nothing),
    opt('v', "verbose", Takes::Nothing),
    getopt::HELP,
    opt('C', "overstripe-count", Takes::Value),
    opt('o', "ost", Takes::Value),
    long('o', "ost-list", Takes::Value),
    opt('A', "auto-stripe", Takes::Nothing),
    opt('K', "cap", Takes::Value),
    opt('M', "min-free", Takes::Value),
    opt('X', "max-free", Takes::Value),
    long('f', "fid", Takes::Nothing),
    long('D', "lustre-dir", Takes::Value),
    opt('m', "mdt-index", Takes::Value),
    long('m', "mdt", Takes::Value),
    opt('H', "mdt-hash", Takes::Value),
    opt('d', "directory", Takes::Nothing),
    long('Z', "clear-fixed", Takes::Nothing),
    // Options of Lustre that are refused by name.
    opt('N', "mirror-count", Takes::MaybeValue),
    opt('x', "xattr", Takes::Value),
    long('5', "foreign", Takes::MaybeValue),
];

/// Default interval between two lines of `--stats`.
const STATS_EVERY: Duration = Duration::from_secs(5);

/// Source of the new layout.
enum Source {
    Options(LayoutRequest),
    /// Layout of the file itself, on other OSTs.
    Itself,
    Directory,
    /// Stripe count that follows the size of the file.
    Size(Auto),
}

struct Plan {
    source: Source,
    /// File systems in the names of pools.
    pool_owners: Vec<String>,
    manner: Manner,
    bytes_per_second: Option<u64>,
    stats_every: Option<Duration>,
    verbose: bool,
}

/// Entry of `lfs migrate` in the table of commands.
pub(super) const COMMAND: Command = Command {
    name: "migrate",
    summary: "move the data of files to other objects",
    usage: USAGE,
    run: Run::Parsed(OPTIONS, run),
};

/// Runs the command.
fn run(parsed: &Parsed) -> Outcome {
    if let Some(requested) = directory::of_options(parsed)? {
        let paths = files(parsed)?;
        return super::for_each(&paths, |path| directory::migrate(&requested, path));
    }
    let plan = plan(parsed)?;
    let files = files(parsed)?;
    let by_fid = match parsed.has('f') {
        true => Some(place_of_fids(parsed)?),
        false => None,
    };
    super::for_each(&files, |path| match &by_fid {
        Some(mount) => migrate(&plan, path, &path_of(mount, path)?),
        None => migrate(&plan, path, path),
    })
}

fn wrong(message: &str) -> Failure {
    Failure::usage(format!("{NAME} migrate: {message}"), USAGE)
}

fn plan(parsed: &Parsed) -> Result<Plan, Failure> {
    if parsed.has('N') {
        return Err(Failure::unsupported(NAME, "option '-N' (mirrors)"));
    }
    if parsed.has('5') || parsed.has('x') {
        return Err(wrong("cannot migrate to a foreign layout"));
    }
    if auto::is_missing(parsed) {
        return Err(wrong("-K, -M and -X must be specified with --auto-stripe"));
    }
    if parsed.has('D') && !parsed.has('f') {
        return Err(wrong("--lustre-dir must be specified with --fid"));
    }
    if parsed.has('b') && parsed.has('n') {
        return Err(wrong("cannot specify --non-block and --block at the same time"));
    }
    let source = match (request_of_options(parsed).map_err(as_own)?, parsed.has('R')) {
        (requested, _) if parsed.has('A') => Source::Size(auto::of_options(parsed, requested)?),
        (Some(_), true) => return Err(wrong("cannot specify --restripe with layout options")),
        (Some(requested), false) => Source::Options(requested),
        (None, true) => Source::Directory,
        (None, false) => Source::Itself,
    };
    let rate = |text: &str| rate_of(text).ok_or_else(|| wrong(&format!("invalid bandwidth limit '{text}'")));
    let seconds = |text: &str| {
        let found = text.parse().ok().filter(|seconds| *seconds > 0).map(Duration::from_secs);
        found.ok_or_else(|| wrong(&format!("invalid stats interval '{text}'")))
    };
    let interval = parsed.value('8').map(seconds).transpose()?;
    Ok(Plan {
        source,
        pool_owners: super::pools::owners(parsed),
        manner: if parsed.has('n') { Manner::GiveUp } else { Manner::Block },
        bytes_per_second: parsed.value('W').map(rate).transpose()?,
        stats_every: interval.or(parsed.has('7').then_some(STATS_EVERY)),
        verbose: parsed.has('v'),
    })
}

/// Turns a failure of an option of `lfs setstripe` into one of this command.
fn as_own(failure: Failure) -> Failure {
    let message = failure.message.replace("lfs setstripe setstripe:", "lfs migrate migrate:");
    let message = message.replace("lfs setstripe:", "lfs migrate:");
    Failure { message, usage: failure.usage.map(|_| USAGE), ..failure }
}

/// Parses a rate in MiB per second, or with a suffix; returns bytes per second.
fn rate_of(text: &str) -> Option<u64> {
    let (digits, unit) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1 << 10),
        None => match text.strip_suffix(['g', 'G']) {
            Some(digits) => (digits, 1 << 30),
            None => (text.strip_suffix(['m', 'M']).unwrap_or(text), 1u64 << 20),
        },
    };
    digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).filter(|rate| *rate > 0)
}

fn files(parsed: &Parsed) -> Result<Vec<OsString>, Failure> {
    let list = parsed.value('F').or(parsed.has('0').then_some("-"));
    let Some(list) = list else {
        if parsed.operands.is_empty() {
            return Err(wrong("at least one of FILE/--null/--files-from=LIST_FILE must be specified"));
        }
        return Ok(parsed.operands.clone());
    };
    let mut bytes = Vec::new();
    let read = match list {
        "-" => std::io::stdin().read_to_end(&mut bytes).map(drop),
        path => std::fs::read(path).map(|found| bytes = found),
    };
    read.map_err(|error| Failure::of(&error, format!("{NAME}: cannot read '{list}'")))?;
    let end = if parsed.has('0') { 0 } else { b'\n' };
    let names = bytes.split(|byte| *byte == end).filter(|name| !name.is_empty());
    Ok(parsed.operands.iter().cloned().chain(names.map(|name| OsString::from_vec(name.to_vec()))).collect())
}

/// Opens the file system whose files the arguments name by FID.
fn place_of_fids(parsed: &Parsed) -> Result<Mounted, Failure> {
    let place = Path::new(parsed.value('D').unwrap_or("."));
    Mounted::open(place)
        .map_err(|error| Failure::of(&error, format!("{NAME}: cannot use '{}'", place.display())))
}

/// Returns a path of the file with this FID.
fn path_of(mount: &Mounted, word: &Path) -> Result<PathBuf, Failure> {
    let fid = parse_fid(word, "migrate")?;
    let found = mount.paths_of(&fid, Some(0)).and_then(|paths| {
        let path = paths.first().ok_or(std::io::Error::from(Errno::NOENT))?;
        Ok(mount.root()?.join(path))
    });
    found.map_err(|error| Failure::of(&error, format!("{NAME}: cannot find '{fid}'")))
}

fn tell(verbose: bool, name: &Path) {
    if verbose {
        super::print(&format!("{}\n", name.display()));
    }
}

/// Moves the file at `path`, which the user called `name`.
fn migrate(plan: &Plan, name: &Path, path: &Path) -> Outcome {
    let failed = |action: &str, error: &std::io::Error| {
        Failure::of(error, format!("error: {NAME}: {}: cannot {action}", name.display()))
    };
    if let Source::Options(requested) = &plan.source {
        let mount = Mounted::open(mounted::directory_of(path)).map_err(|error| failed("open", &error))?;
        super::pools::check_owners(NAME, &mount, &plan.pool_owners)?;
        check_targets(NAME, &mount, requested)?;
    }
    let layout = layout_for(plan, path).map_err(|error| failed("get the layout", &error))?;
    let (began, mut shown) = (Instant::now(), Instant::now());
    let mut progress = |copied: u64, size: u64| {
        if plan.stats_every.is_some_and(|every| shown.elapsed() >= every || copied == size) {
            shown = Instant::now();
            super::print(&stats_line(began.elapsed(), copied, size));
        }
    };
    let mut order = Order {
        directory: None,
        layout: &layout,
        manner: plan.manner,
        bytes_per_second: plan.bytes_per_second,
        progress: &mut progress,
        accept: &|_| true,
    };
    relocate(path, &mut order).map_err(|stopped| failed(stopped.action, &stopped.error))?;
    tell(plan.verbose, name);
    Ok(())
}

/// Returns the new layout of a file, in its binary form.
fn layout_for(plan: &Plan, path: &Path) -> std::io::Result<Vec<u8>> {
    match &plan.source {
        Source::Options(requested) => Ok(user::encode_request(&Fid::ZERO, requested)),
        Source::Itself => own_shape(path, None),
        Source::Directory => {
            let directory = mounted::directory_of(path);
            match mounted::layout_of(directory)? {
                Some(own) => Ok(own),
                None => Mounted::open(directory)?.default_layout(),
            }
        }
        Source::Size(auto) => {
            let mount = Mounted::open(mounted::directory_of(path))?;
            let bytes = path.symlink_metadata()?.blocks() * 512;
            Ok(user::encode_request(&Fid::ZERO, &auto.requested(&mount, bytes)?))
        }
    }
}

/// Returns the layout of a file without its objects, with another first OST.
///
/// # Errors
/// Those of getxattr(2).
pub fn own_shape(path: &Path, first_ost: Option<u16>) -> std::io::Result<Vec<u8>> {
    let bytes = mounted::layout_of(path)?.unwrap_or_default();
    let mut requested = user::decode_request(&bytes).unwrap_or_default();
    match &mut requested {
        LayoutRequest::Plain(spec) => spec.first_ost = first_ost,
        LayoutRequest::Composite(components) => {
            components.iter_mut().for_each(|part| part.spec.first_ost = first_ost)
        }
    }
    Ok(user::encode_request(&Fid::ZERO, &requested))
}

fn stats_line(took: Duration, copied: u64, size: u64) -> String {
    let rate = copied as f64 / (1 << 20) as f64 / took.as_secs_f64().max(0.001);
    let percent = (copied * 100).checked_div(size).unwrap_or(100);
    let seconds = took.as_secs();
    format!(
        "- {{ seconds: {seconds}, rmbps: {rate:.2}, wmbps: {rate:.2}, copied: {copied}, size: {size}, pct: {percent}% }}\n"
    )
}

/// Checks a command line alone.
#[cfg(test)]
pub(super) fn checked(parsed: &Parsed) -> Outcome {
    directory::of_options(parsed)?;
    plan(parsed).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lfs::getopt::{parse, words_of};

    fn refusal(line: &str) -> (i32, String) {
        let failure = COMMAND.run(&words_of(line.as_bytes())).expect_err(line);
        (failure.exit, failure.message)
    }

    #[test]
    fn wrong_calls_are_refused_before_anything_is_opened() {
        let nothing =
            "lfs migrate migrate: at least one of FILE/--null/--files-from=LIST_FILE must be specified";
        assert_eq!(refusal(""), (4, nothing.to_owned()));
        assert_eq!(refusal("-b -n f").0, 4);
        assert_eq!(refusal("-W x f").0, 4);
        assert_eq!(refusal("-W 0 f").0, 4);
        assert_eq!(refusal("--stats-interval 0 f").0, 4);
        assert_eq!(refusal("--restripe -c 1 f").0, 4);
        let count = "lfs migrate migrate: invalid stripe count '5000'";
        assert_eq!(refusal("-c 5000 f"), (4, count.to_owned()));
        for line in [
            "-A -c 2 f",
            "-A --restripe f",
            "-A -K 0 f",
            "-M 5 f",
            "--lustre-dir / f",
            "-d f",
            "-H crush f",
            "-m x d",
            "-m 0 -S 1M d",
            "-m 0 -H foo d",
            "-m 0,1 -c 3 d",
            "--foreign f",
            "-o 0,1 -c 3 f",
            "--bogus f",
        ] {
            assert_eq!(refusal(line).0, 4, "{line}");
        }
        assert_eq!(refusal("-N2 f").0, Errno::OPNOTSUPP.raw_os_error());
        assert_eq!(
            refusal("--fid /tmp f").0,
            Errno::NOTTY.raw_os_error(),
            "the current directory is on another file system"
        );
        assert_eq!(refusal("-m 0 /etc/passwd").0, Errno::NOTTY.raw_os_error());
    }

    #[test]
    fn limits_are_in_mib_unless_they_say_otherwise() {
        assert_eq!(rate_of("10"), Some(10 << 20));
        assert_eq!(rate_of("512k"), Some(512 << 10));
        assert_eq!(rate_of("2G"), Some(2 << 30));
        assert_eq!(rate_of("-1"), None);
        let plan = plan(&parse(&words_of(b"-n -W 5M --stats f"), OPTIONS).expect("options")).expect("a plan");
        assert_eq!((plan.manner, plan.bytes_per_second), (Manner::GiveUp, Some(5 << 20)));
        assert_eq!(plan.stats_every, Some(STATS_EVERY));
    }

    #[test]
    fn progress_is_one_line_of_yaml() {
        let line = stats_line(Duration::from_secs(2), 10 << 20, 20 << 20);
        let wanted =
            "- { seconds: 2, rmbps: 5.00, wmbps: 5.00, copied: 10485760, size: 20971520, pct: 50% }\n";
        assert_eq!(line, wanted);
    }
}
