//! `lfs migrate`: moves the data of files to other objects. Source: reference 2.4.

use super::getopt::{OptionSpec, Parsed, Takes, long, opt};
use super::relocate::{Manner, Order, relocate};
use super::setstripe::wish_of_options;
use super::{Failure, Outcome, mounted};
use nacre_layout::{Wish, user};
use nacre_types::Fid;
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// What `--help` and a wrong call print.
pub const USAGE: &str = "\
usage: lfs migrate [LAYOUT OPTIONS] [-b | -n] [-v] [-W RATE] [--stats] [--stats-interval SECONDS] FILE...
       lfs migrate [OPTIONS] --files-from LIST | -0
LAYOUT OPTIONS are those of 'lfs setstripe'; without any the file keeps its layout and gets other objects
      --restripe             the layout that a new file in the same directory would get
  -b, --block                others wait if they write meanwhile (the default)
  -n, --non-block            give up if somebody writes to the file or has it open for writing
  -D, --non-direct           accepted, makes no difference
  -W, --bandwidth-limit RATE MiB per second at most; suffixes k M G
      --stats                print progress every 5 seconds
      --stats-interval S     print progress every S seconds
      --files-from LIST      take names from a file, one per line; '-' for standard input
  -0, --null                 take names from standard input, each ended by NUL
  -v, --verbose              print each file that was moved
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
    opt('D', "non-direct", Takes::Nothing),
    opt('W', "bandwidth-limit", Takes::Value),
    long('7', "stats", Takes::Nothing),
    long('8', "stats-interval", Takes::Value),
    long('R', "restripe", Takes::Nothing),
    long('F', "files-from", Takes::Value),
    opt('0', "null", Takes::Nothing),
    opt('v', "verbose", Takes::Nothing),
    opt('h', "help", Takes::Nothing),
    // Known to Lustre, named in the refusal.
    opt('m', "mdt-index", Takes::Value),
    opt('C', "overstripe-count", Takes::Value),
    opt('o', "ost", Takes::Value),
    long('o', "ost-list", Takes::Value),
    opt('A', "auto-stripe", Takes::Nothing),
    long('f', "fid", Takes::Nothing),
];
const UNSUPPORTED: &[(char, &str, &str)] = &[
    ('m', "-m", "moving directories between MDTs"),
    ('C', "-C", "overstriping"),
    ('o', "-o", "an exact list of OSTs"),
    ('A', "-A", "a stripe count by size"),
    ('f', "--fid", "names that are FIDs"),
];

/// Time between two lines of `--stats` unless another one is wanted.
const STATS_EVERY: Duration = Duration::from_secs(5);

/// Where the new layout comes from.
enum Source {
    Options(Wish),
    /// The file itself, on other OSTs.
    Itself,
    Directory,
}

struct Plan {
    source: Source,
    manner: Manner,
    bytes_per_second: Option<u64>,
    stats_every: Option<Duration>,
    verbose: bool,
}

/// Runs the command.
pub fn run(args: &[OsString]) -> Outcome {
    let parsed = super::parse(NAME, args, OPTIONS, USAGE)?;
    if parsed.has('h') {
        return super::print_usage(USAGE);
    }
    let plan = plan(&parsed)?;
    let files = files(&parsed)?;
    super::for_each(&files, |path| migrate(&plan, path))
}

fn wrong(message: &str) -> Failure {
    Failure::usage(format!("{NAME} migrate: {message}"), USAGE)
}

fn plan(parsed: &Parsed) -> Result<Plan, Failure> {
    if let Some((_, name, what)) = UNSUPPORTED.iter().find(|(key, _, _)| parsed.has(*key)) {
        return Err(Failure::unsupported(NAME, &format!("option '{name}' ({what})")));
    }
    if parsed.has('b') && parsed.has('n') {
        return Err(wrong("cannot specify --non-block and --block at the same time"));
    }
    let source = match (wish_of_options(parsed)?, parsed.has('R')) {
        (Some(_), true) => return Err(wrong("cannot specify --restripe with layout options")),
        (Some(wish), false) => Source::Options(wish),
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
        manner: if parsed.has('n') { Manner::GiveUp } else { Manner::Block },
        bytes_per_second: parsed.value('W').map(rate).transpose()?,
        stats_every: interval.or(parsed.has('7').then_some(STATS_EVERY)),
        verbose: parsed.has('v'),
    })
}

/// Bytes per second: MiB, or with a suffix.
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
    read.map_err(|error| {
        let errno = super::errno_of(&error);
        Failure::new(errno, format!("{NAME}: cannot read '{list}': {}", super::error_text(errno)))
    })?;
    let end = if parsed.has('0') { 0 } else { b'\n' };
    let names = bytes.split(|byte| *byte == end).filter(|name| !name.is_empty());
    Ok(parsed.operands.iter().cloned().chain(names.map(|name| OsString::from_vec(name.to_vec()))).collect())
}

fn migrate(plan: &Plan, path: &Path) -> Outcome {
    let failed = |action: &str, error: &std::io::Error| {
        let errno = super::errno_of(error);
        let text = super::error_text(errno);
        Failure::new(errno, format!("error: {NAME}: {}: cannot {action}: {text}", path.display()))
    };
    let layout = layout_for(plan, path).map_err(|error| failed("get the layout", &error))?;
    let (began, mut shown) = (Instant::now(), Instant::now());
    let mut progress = |copied: u64, size: u64| {
        if plan.stats_every.is_some_and(|every| shown.elapsed() >= every || copied == size) {
            shown = Instant::now();
            super::print(&stats_line(began.elapsed(), copied, size));
        }
    };
    let mut order = Order {
        layout: &layout,
        manner: plan.manner,
        bytes_per_second: plan.bytes_per_second,
        progress: &mut progress,
        accept: &|_| true,
    };
    relocate(path, &mut order).map_err(|stopped| failed(stopped.action, &stopped.error))?;
    if plan.verbose {
        super::print(&format!("{}\n", path.display()));
    }
    Ok(())
}

/// The layout that a file is to get, in its binary form.
fn layout_for(plan: &Plan, path: &Path) -> std::io::Result<Vec<u8>> {
    match &plan.source {
        Source::Options(wish) => Ok(user::encode_wish(&Fid::ZERO, wish)),
        Source::Itself => own_shape(path, None),
        Source::Directory => {
            let directory = mounted::directory_of(path);
            match mounted::layout_of(directory)? {
                Some(own) => Ok(own),
                None => mounted::Mounted::open(directory)?.default_layout(),
            }
        }
    }
}

/// The layout of a file without its objects, with another first OST.
///
/// # Errors
/// Those of getxattr(2).
pub fn own_shape(path: &Path, first_ost: Option<u16>) -> std::io::Result<Vec<u8>> {
    let bytes = mounted::layout_of(path)?.unwrap_or_default();
    let mut wish = user::decode_wish(&bytes).unwrap_or_default();
    match &mut wish {
        Wish::Plain(spec) => spec.first_ost = first_ost,
        Wish::Composite(components) => components.iter_mut().for_each(|part| part.spec.first_ost = first_ost),
    }
    Ok(user::encode_wish(&Fid::ZERO, &wish))
}

fn stats_line(took: Duration, copied: u64, size: u64) -> String {
    let rate = copied as f64 / (1 << 20) as f64 / took.as_secs_f64().max(0.001);
    let percent = (copied * 100).checked_div(size).unwrap_or(100);
    let seconds = took.as_secs();
    format!(
        "- {{ seconds: {seconds}, rmbps: {rate:.2}, wmbps: {rate:.2}, copied: {copied}, size: {size}, pct: {percent}% }}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lfs::getopt::{parse, words_of};

    fn refusal(line: &str) -> (i32, String) {
        let failure = run(&words_of(line.as_bytes())).expect_err(line);
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
        assert_eq!(refusal("-c 5000 f").0, 4);
        assert_eq!(refusal("-m 1 d").0, libc::EOPNOTSUPP);
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
