//! `lfs setquota`: sets limits and grace times.

use super::getopt::{OptionSpec, Parsed, Takes, long, opt};
use super::mounted::Mounted;
use super::quota::{kind_in, parse_id, pool_on, text};
use super::{Command, Failure, Outcome, Run, getopt, number, query};
use nacre_types::lustre::{QuotaCall, QuotaNumbers, QuotaTimes};
use nacre_types::{QuotaId, QuotaKind};
use rustix::io::Errno;
use std::ffi::OsString;
use std::io;
use std::path::Path;

const USAGE: &str = "\
usage: lfs setquota {-u|-g|-p} ID [-b SOFT] [-B HARD] [-i SOFT] [-I HARD] [--pool POOL] MNT
       lfs setquota {-U|-G|-P} [-b SOFT] [-B HARD] [-i SOFT] [-I HARD] [--pool POOL] MNT
       lfs setquota -t {-u|-g|-p} [-b GRACE] [-i GRACE] MNT
       lfs setquota {-u|-g|-p} ID {--default|--delete|--reset} [--pool POOL] MNT
  -u, -g, -p  user, group or project, by name or number
  -U, -G, -P  limits of users, groups or projects without their own
  -b, --block-softlimit SOFT  space; in KiB, or with k, M, G, T, P, E; 0: no limit
  -B, --block-hardlimit HARD
  -i, --inode-softlimit SOFT  number of inodes; 0: no limit
  -I, --inode-hardlimit HARD
  -t          grace times for soft limits: seconds, 1w4d, or notify (only reported)
  --default   the default limits apply to ID
  --delete    removes the limits and the record of ID
  --reset     distributes the limits of ID to the targets again
  --pool POOL limits in a pool of OSTs
Limits that are not given stay. For root of the file system.
Example: lfs setquota -u bob -b 9G -B 10G -I 100000 /mnt/nacre
";

const OPTIONS: &[OptionSpec] = &[
    opt('u', "user", Takes::MaybeValue),
    opt('g', "group", Takes::MaybeValue),
    opt('p', "projid", Takes::MaybeValue),
    opt('U', "default-usr", Takes::Nothing),
    opt('G', "default-grp", Takes::Nothing),
    opt('P', "default-prj", Takes::Nothing),
    opt('b', "block-softlimit", Takes::Value),
    opt('B', "block-hardlimit", Takes::Value),
    opt('i', "inode-softlimit", Takes::Value),
    opt('I', "inode-hardlimit", Takes::Value),
    long('b', "block-grace", Takes::Value),
    long('i', "inode-grace", Takes::Value),
    opt('t', "times", Takes::Nothing),
    long('D', "default", Takes::Nothing),
    long('d', "delete", Takes::Nothing),
    long('r', "reset", Takes::Nothing),
    long('O', "pool", Takes::Value),
    getopt::HELP,
];

/// Entry of `lfs setquota` in the table of commands.
pub const COMMAND: Command = Command {
    name: "setquota",
    summary: "set limits of users, groups and projects",
    usage: USAGE,
    run: Run::Parsed(OPTIONS, run),
};

/// New limits of one resource; `None` keeps one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Given {
    soft: Option<u64>,
    hard: Option<u64>,
}

/// What to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    /// Limits of an id: space in KiB, and inodes.
    Limits(QuotaId, [Given; 2]),
    /// Limits of ids without their own.
    Defaults(QuotaKind, [Given; 2]),
    /// Grace times in seconds.
    Times { kind: QuotaKind, space_s: Option<u64>, inodes_s: Option<u64> },
    /// A command that takes only an id.
    Whole(QuotaId, u32),
}

/// The parsed command line.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Task {
    change: Change,
    /// The id as it was given.
    name: String,
    pool: Option<String>,
    path: OsString,
}

fn wrong(message: &str) -> Failure {
    Failure::usage(format!("lfs setquota: {message}"), USAGE)
}

fn task_of(parsed: &Parsed) -> Result<Task, Failure> {
    let kind = kind_in(parsed, ['u', 'g', 'p']).map_err(|text| wrong(&text))?;
    let default = kind_in(parsed, ['U', 'G', 'P']).map_err(|text| wrong(&text))?;
    let mut operands = parsed.operands.iter();
    let mut name = String::new();
    let change = match (kind, default) {
        (None, None) => return Err(wrong("one of -u, -g, -p, -U, -G and -P is needed")),
        (Some(_), Some(_)) => return Err(wrong("-U, -G and -P take neither -u, -g nor -p")),
        (None, Some(_)) if parsed.has('t') => return Err(wrong("-t needs -u, -g or -p")),
        (Some(kind), None) if parsed.has('t') => times_in(kind, parsed)?,
        (None, Some(kind)) => {
            if command_in(parsed)?.is_some() {
                return Err(wrong("--default, --delete and --reset need -u, -g or -p with an ID"));
            }
            Change::Defaults(kind, limits_in(parsed)?)
        }
        (Some(kind), None) => {
            let letter = ['u', 'g', 'p'][kind as usize];
            name = match parsed.value(letter) {
                Some(attached) => attached.to_owned(),
                None => {
                    let word = operands.next().ok_or_else(|| wrong("the ID is missing"))?;
                    word.to_string_lossy().into_owned()
                }
            };
            let id = parse_id(kind, &name).ok_or_else(|| wrong(&format!("invalid id '{name}'")))?;
            match command_in(parsed)? {
                Some(command) => Change::Whole(id, command),
                None => Change::Limits(id, limits_in(parsed)?),
            }
        }
    };
    let path = operands.next().cloned().ok_or_else(|| wrong("MNT is missing"))?;
    if let Some(word) = operands.next() {
        return Err(wrong(&format!("unexpected operand '{}'", word.display())));
    }
    Ok(Task { change, name, pool: parsed.value('O').map(str::to_owned), path })
}

/// Returns the command that excludes limits, if one is given.
fn command_in(parsed: &Parsed) -> Result<Option<u32>, Failure> {
    let known = [('D', QuotaCall::SET_DEFAULT), ('d', QuotaCall::DELETE), ('r', QuotaCall::RESET)];
    let mut given = known.iter().filter(|(key, _)| parsed.has(*key));
    let first = given.next().map(|(_, command)| *command);
    let has_limits = ['b', 'B', 'i', 'I'].iter().any(|key| parsed.has(*key));
    match given.next().is_some() || first.is_some() && has_limits {
        true => Err(wrong("--default, --delete, --reset and limits exclude each other")),
        false => Ok(first),
    }
}

/// Returns the limits, of which at least one is given.
fn limits_in(parsed: &Parsed) -> Result<[Given; 2], Failure> {
    let limit = |key: char, parse: fn(&str) -> Option<u64>| match parsed.value(key) {
        None => Ok(None),
        Some(text) => {
            parse(text).map(Some).ok_or_else(|| wrong(&format!("invalid limit '{text}' of -{key}")))
        }
    };
    let space = Given { soft: limit('b', parse_kib)?, hard: limit('B', parse_kib)? };
    let inodes = Given { soft: limit('i', number::parse_bytes)?, hard: limit('I', number::parse_bytes)? };
    match [space, inodes] == [Given::default(); 2] {
        true => Err(wrong("a limit is needed: -b, -B, -i or -I")),
        false => Ok([space, inodes]),
    }
}

/// Parses a limit of space: KiB, or a number with a suffix.
fn parse_kib(text: &str) -> Option<u64> {
    let bytes = match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => text.parse::<u64>().ok()?.checked_mul(1024)?,
        false => number::parse_bytes(text)?,
    };
    Some(bytes.div_ceil(1024))
}

fn times_in(kind: QuotaKind, parsed: &Parsed) -> Result<Change, Failure> {
    if ['B', 'I', 'D', 'd', 'r', 'O'].iter().any(|key| parsed.has(*key)) {
        return Err(wrong("-t takes only -b and -i: grace times hold for the file system"));
    }
    let time = |key: char| match parsed.value(key) {
        None => Ok(None),
        Some(text) => text::parse_duration(text)
            .map(Some)
            .ok_or_else(|| wrong(&format!("invalid grace time '{text}' of -{key}"))),
    };
    let (space_s, inodes_s) = (time('b')?, time('i')?);
    match space_s.is_some() || inodes_s.is_some() {
        true => Ok(Change::Times { kind, space_s, inodes_s }),
        false => Err(wrong("a grace time is needed: -b or -i")),
    }
}

/// Runs the command.
fn run(parsed: &Parsed) -> Outcome {
    let task = task_of(parsed)?;
    let path = Path::new(&task.path);
    let mounts = query::chosen(Some(path), "setquota", |path| query::not_on_lustre("setquota", path))?;
    mounts.iter().try_for_each(|mount| apply(&task, &query::open(mount, "setquota")?))
}

fn apply(task: &Task, mount: &Mounted) -> Outcome {
    let pool = pool_on(mount, task.pool.as_deref(), "setquota")?;
    // A command of the file system, and of a pool.
    let pick = |(whole, of_pool): (u32, u32)| if pool.is_empty() { whole } else { of_pool };
    let call = |command, id: QuotaId| QuotaCall {
        command,
        kind: id.kind as u32,
        id: id.id,
        pool: pool.clone().into_bytes(),
        ..QuotaCall::default()
    };
    let send = |call: &QuotaCall| mount.quota(call).map_err(|error| failed(task, &error));
    const SET: (u32, u32) = (QuotaCall::SET_QUOTA, QuotaCall::SET_QUOTA_POOL);
    const SET_DEFAULT: (u32, u32) = (QuotaCall::SET_DEFAULT, QuotaCall::SET_DEFAULT_POOL);
    let (id, limits, get, set) = match task.change {
        Change::Limits(id, limits) => (id, limits, (QuotaCall::GET_QUOTA, QuotaCall::GET_QUOTA_POOL), SET),
        Change::Defaults(kind, limits) => {
            let get = (QuotaCall::GET_DEFAULT, QuotaCall::GET_DEFAULT_POOL);
            (QuotaId { kind, id: 0 }, limits, get, SET_DEFAULT)
        }
        Change::Times { kind, space_s, inodes_s } => {
            let times = times_of(space_s, inodes_s);
            let call = call(QuotaCall::SET_INFO, QuotaId { kind, id: 0 });
            return send(&QuotaCall { times, ..call }).map(drop);
        }
        Change::Whole(id, QuotaCall::SET_DEFAULT) => return send(&call(pick(SET_DEFAULT), id)).map(drop),
        Change::Whole(id, command) => return send(&call(command, id)).map(drop),
    };
    let is_partial = limits.iter().any(|given| given.soft.is_some() != given.hard.is_some());
    let known = if is_partial { send(&call(pick(get), id))?.numbers } else { QuotaNumbers::default() };
    let numbers = merged(&limits, &known).map_err(|reason| {
        let text = format!("lfs setquota: {}: {reason}: Invalid argument (22)", subject(task));
        Failure::new(Errno::INVAL, text)
    })?;
    send(&QuotaCall { numbers, ..call(pick(set), id) }).map(drop)
}

fn times_of(space_s: Option<u64>, inodes_s: Option<u64>) -> QuotaTimes {
    let bit = |time: Option<u64>, bit: u32| if time.is_some() { bit } else { 0 };
    QuotaTimes {
        space_s: space_s.unwrap_or(0),
        inodes_s: inodes_s.unwrap_or(0),
        valid: bit(space_s, QuotaTimes::SPACE) | bit(inodes_s, QuotaTimes::INODES),
    }
}

/// Returns the limits to send: of a resource with one new limit, the other is the known one.
///
/// # Errors
/// A phrase if a soft limit is above the hard one.
fn merged(limits: &[Given; 2], known: &QuotaNumbers) -> Result<QuotaNumbers, String> {
    let [space, inodes] = limits;
    let resource = |given: &Given, soft: u64, hard: u64, what: &str, unit: &str| {
        let (soft, hard) = (given.soft.unwrap_or(soft), given.hard.unwrap_or(hard));
        match hard != 0 && soft > hard && *given != Given::default() {
            true => Err(format!("{what} soft limit {soft}{unit} exceeds hard limit {hard}{unit}")),
            false => Ok((soft, hard)),
        }
    };
    let (space_soft_kib, space_hard_kib) =
        resource(space, known.space_soft_kib, known.space_hard_kib, "block", "k")?;
    let (inodes_soft, inodes_hard) = resource(inodes, known.inodes_soft, known.inodes_hard, "inode", "")?;
    let bit = |given: &Given, bit: u32| if *given == Given::default() { 0 } else { bit };
    Ok(QuotaNumbers {
        space_soft_kib,
        space_hard_kib,
        inodes_soft,
        inodes_hard,
        valid: bit(space, QuotaNumbers::SPACE_LIMITS) | bit(inodes, QuotaNumbers::INODES_LIMITS),
        ..QuotaNumbers::default()
    })
}

/// Returns the words for what is set.
fn subject(task: &Task) -> String {
    match task.change {
        Change::Limits(id, _) | Change::Whole(id, _) => format!("quota of {} {}", id.kind.name(), task.name),
        Change::Defaults(kind, _) => format!("default quota of {}", kind.name()),
        Change::Times { kind, .. } => format!("grace times of {}", kind.name()),
    }
}

fn failed(task: &Task, error: &io::Error) -> Failure {
    let text = format!("lfs setquota: {} on '{}'", subject(task), task.path.display());
    Failure::numbered(error, text)
}

/// Checks a command line alone.
#[cfg(test)]
pub(super) fn checked(parsed: &Parsed) -> Outcome {
    task_of(parsed).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lfs::getopt::{parse, words_of};

    fn task(line: &str) -> Result<Task, Failure> {
        task_of(&parse(&words_of(line.as_bytes()), OPTIONS).expect(line))
    }

    fn change(line: &str) -> Change {
        task(line).expect(line).change
    }

    const ROOT: QuotaId = QuotaId { kind: QuotaKind::User, id: 0 };

    #[test]
    fn limits_have_suffixes_and_space_counts_in_kib() {
        let space = Given { soft: Some(9 << 20), hard: Some(100) };
        let inodes = Given { soft: None, hard: Some(2048) };
        for line in [
            "-u root -b 9G -B 100 -I 2k /m",
            "-uroot -b 9G -B 100 -I 2k /m",
            "--user=root --block-softlimit 9G --block-hardlimit=100 --inode-hard 2048 /m",
        ] {
            assert_eq!(change(line), Change::Limits(ROOT, [space, inodes]), "{line}");
            assert_eq!(task(line).expect(line).path, "/m");
        }
        let project = QuotaId { kind: QuotaKind::Project, id: 7 };
        let soft = Given { soft: Some(0), hard: None };
        assert_eq!(change("-p 7 -b 0 /m"), Change::Limits(project, [soft, Given::default()]));
        assert_eq!(change("-G -b 0 /m"), Change::Defaults(QuotaKind::Group, [soft, Given::default()]));
        assert_eq!((parse_kib("1"), parse_kib("1025B"), parse_kib("1T")), (Some(1), Some(2), Some(1 << 30)));
        assert_eq!((parse_kib("18446744073709551615"), parse_kib("x"), parse_kib("-1")), (None, None, None));
    }

    #[test]
    fn grace_times_take_no_id() {
        let times = |space_s, inodes_s| Change::Times { kind: QuotaKind::User, space_s, inodes_s };
        assert_eq!(change("-t -u -b 1w4d -i notify /m"), times(Some(950_400), Some((1 << 48) - 1)));
        assert_eq!(change("-tu --block-grace 0 /m"), times(Some(0), None));
        let sent = times_of(Some(0), None);
        assert_eq!((sent.space_s, sent.valid), (0, QuotaTimes::SPACE), "a time of 0 is a time");
    }

    #[test]
    fn commands_on_whole_ids_take_no_limits() {
        assert_eq!(change("-u root --default /m"), Change::Whole(ROOT, QuotaCall::SET_DEFAULT));
        assert_eq!(change("-u root --delete /m"), Change::Whole(ROOT, QuotaCall::DELETE));
        assert_eq!(change("--reset -u root /m"), Change::Whole(ROOT, QuotaCall::RESET));
    }

    #[test]
    fn wrong_calls_are_named_and_exit_with_4() {
        for (line, message) in [
            ("-b 1 /m", "one of -u, -g, -p, -U, -G and -P is needed"),
            ("-u nosuchuser -b 1 /m", "invalid id 'nosuchuser'"),
            ("-u", "the ID is missing"),
            ("-u root -b 1", "MNT is missing"),
            ("-u root -b 1 /m /n", "unexpected operand '/n'"),
            ("-u root /m", "a limit is needed: -b, -B, -i or -I"),
            ("-u root -b x /m", "invalid limit 'x' of -b"),
            ("-u root -I 1Q /m", "invalid limit '1Q' of -I"),
            ("-u root -g root -b 1 /m", "-u, -g and -p exclude each other"),
            ("-u root -G -b 1 /m", "-U, -G and -P take neither -u, -g nor -p"),
            ("-u root --default -b 1 /m", "--default, --delete, --reset and limits exclude each other"),
            ("-u root --default --delete /m", "--default, --delete, --reset and limits exclude each other"),
            ("-U --delete /m", "--default, --delete and --reset need -u, -g or -p with an ID"),
            ("-t -U -b 1 /m", "-t needs -u, -g or -p"),
            ("-t -u /m", "a grace time is needed: -b or -i"),
            ("-t -u -b 1x /m", "invalid grace time '1x' of -b"),
            ("-t -u -B 1 /m", "-t takes only -b and -i: grace times hold for the file system"),
        ] {
            let failure = task(line).expect_err(line);
            assert_eq!((failure.exit, failure.message), (4, format!("lfs setquota: {message}")), "{line}");
        }
    }

    #[test]
    fn a_limit_that_is_not_given_stays_and_hard_limits_are_not_below_soft_ones() {
        let known = QuotaNumbers { space_soft_kib: 10, space_hard_kib: 20, ..QuotaNumbers::default() };
        let given = |soft, hard| [Given { soft, hard }, Given::default()];
        let sent = merged(&given(Some(15), None), &known).expect("fits");
        assert_eq!((sent.space_soft_kib, sent.space_hard_kib, sent.valid), (15, 20, 1));
        let sent = merged(&given(None, Some(0)), &known).expect("no hard limit");
        assert_eq!((sent.space_soft_kib, sent.space_hard_kib, sent.valid), (10, 0, 1));
        let refused = merged(&given(None, Some(5)), &known).expect_err("below the soft limit");
        assert_eq!(refused, "block soft limit 10k exceeds hard limit 5k");
        let inodes = [Given::default(), Given { soft: Some(2), hard: Some(1) }];
        let refused = merged(&inodes, &QuotaNumbers::default()).expect_err("below the soft limit");
        assert_eq!(refused, "inode soft limit 2 exceeds hard limit 1");
        let sent = merged(&[Given::default(), Given { soft: Some(1), hard: Some(1) }], &known);
        assert_eq!(sent.map(|sent| sent.valid), Ok(QuotaNumbers::INODES_LIMITS));
    }
}
