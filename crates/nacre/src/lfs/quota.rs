//! `lfs quota`: limits and use of users, groups and projects, with Lustre's output.

pub mod text;

use super::getopt::{OptionSpec, Parsed, Takes, long, opt};
use super::identity::{self, Kind};
use super::mounted::{self, Mounted};
use super::{Command, Failure, Outcome, Run, number, pools, query};
use nacre_types::lustre::{QuotaCall, QuotaNumbers};
use nacre_types::{QuotaId, QuotaKind, TargetId, TargetKind};
use rustix::io::Errno;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;
use text::{Columns, Style};

const USAGE: &str = "\
usage: lfs quota [-q] [-v] [-h] [-u|-g|-p ID] [-o OST|-m MDT] [--pool POOL] [MNT...]
       lfs quota [-q] [-h] -U|-G|-P [--pool POOL] [MNT...]               defaults
       lfs quota [-q] [-h] -a -u|-g|-p [-s ID] [-e ID] [--pool POOL] [MNT...]
       lfs quota -t -u|-g|-p [MNT...]                                    grace times
Without an ID: of the calling user, its group, and the project of MNT. Without MNT: on all mounts.
  -u, -g, -p       user, group or project, by name or number
  -U, -G, -P       limits of users, groups or projects without their own
  -a, --all        all ids with use or limits, from -s (--start) to -e (--end)
  -m, --mdt MDT    use and share at one MDT: its index, name or UUID
  -o, --ost OST    the same at one OST
      --pool POOL  limits and use in a pool of OSTs
  -q, --quiet      only rows with values
  -v, --verbose    also a row for each target
  -h, --human-readable  sizes with suffixes, powers of 1024
Example: lfs quota -h -u bob /mnt/nacre
";

const OPTIONS: &[OptionSpec] = &[
    opt('u', "user", Takes::Nothing),
    opt('g', "group", Takes::Nothing),
    opt('p', "projid", Takes::Nothing),
    opt('U', "default-usr", Takes::Nothing),
    opt('G', "default-grp", Takes::Nothing),
    opt('P', "default-prj", Takes::Nothing),
    opt('a', "all", Takes::Nothing),
    opt('s', "start", Takes::Value),
    opt('e', "end", Takes::Value),
    opt('t', "times", Takes::Nothing),
    opt('m', "mdt", Takes::Value),
    opt('o', "ost", Takes::Value),
    opt('q', "quiet", Takes::Nothing),
    opt('v', "verbose", Takes::Nothing),
    opt('h', "human-readable", Takes::Nothing),
    long('O', "pool", Takes::Value),
    query::HELP,
];

/// Entry of `lfs quota` in the table of commands.
pub const COMMAND: Command = Command {
    name: "quota",
    summary: "limits and use of users, groups and projects",
    usage: USAGE,
    run: Run::Parsed(OPTIONS, run),
};

/// What to show.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Subject {
    /// The calling user, its group and a project.
    Caller,
    /// One id, with its name as it was given.
    Id(QuotaId, String),
    /// Limits of ids without their own.
    Default(QuotaKind),
    /// All ids in a range.
    All { kind: QuotaKind, start: u32, end: u32 },
    /// Grace times.
    Times(QuotaKind),
}

/// The parsed command line.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Task {
    subject: Subject,
    /// Name of a target as it was given.
    target: Option<(TargetKind, String)>,
    pool: Option<String>,
    is_quiet: bool,
    is_verbose: bool,
    is_human: bool,
    paths: Vec<OsString>,
}

/// A mount with the name for its rows.
struct Place {
    name: String,
    mounted: Mounted,
}

fn wrong(message: &str) -> Failure {
    Failure::usage(format!("lfs quota: {message}"), USAGE)
}

/// Returns the kind whose option was given; `None` without any.
///
/// # Errors
/// A message if there are several.
pub fn kind_in(parsed: &Parsed, letters: [char; 3]) -> Result<Option<QuotaKind>, String> {
    let mut kinds = letters.into_iter().zip(QuotaKind::ALL).filter(|(letter, _)| parsed.has(*letter));
    let first = kinds.next().map(|(_, kind)| kind);
    match kinds.next() {
        None => Ok(first),
        Some(_) => Err(format!("-{}, -{} and -{} exclude each other", letters[0], letters[1], letters[2])),
    }
}

/// Parses a user, group or project, by name or number. The largest number is reserved.
pub fn parse_id(kind: QuotaKind, text: &str) -> Option<QuotaId> {
    let id = match kind {
        QuotaKind::User => identity::id_of(Kind::User, text),
        QuotaKind::Group => identity::id_of(Kind::Group, text),
        QuotaKind::Project => identity::project_of(text),
    };
    id.filter(|id| *id != u32::MAX).map(|id| QuotaId { kind, id })
}

fn task_of(parsed: &Parsed) -> Result<Task, Failure> {
    let kind = kind_in(parsed, ['u', 'g', 'p']).map_err(|text| wrong(&text))?;
    let default = kind_in(parsed, ['U', 'G', 'P']).map_err(|text| wrong(&text))?;
    let needed = |letter: char| kind.ok_or_else(|| wrong(&format!("-{letter} needs -u, -g or -p")));
    if [parsed.has('t'), parsed.has('a'), default.is_some()].iter().filter(|given| **given).count() > 1 {
        return Err(wrong("-t, -a and -U, -G, -P exclude each other"));
    }
    if default.is_some() && kind.is_some() {
        return Err(wrong("-U, -G and -P take neither -u, -g nor -p"));
    }
    if !parsed.has('a') && (parsed.has('s') || parsed.has('e')) {
        return Err(wrong("-s and -e are only for -a"));
    }
    let mut operands = parsed.operands.iter();
    let subject = match (default, kind) {
        (Some(kind), _) => Subject::Default(kind),
        _ if parsed.has('t') => Subject::Times(needed('t')?),
        _ if parsed.has('a') => range_in(needed('a')?, parsed)?,
        (None, Some(kind)) => {
            let word = operands.next().ok_or_else(|| wrong("the ID is missing"))?.to_string_lossy();
            let id = parse_id(kind, &word).ok_or_else(|| wrong(&format!("invalid id '{word}'")))?;
            Subject::Id(id, word.into_owned())
        }
        (None, None) => Subject::Caller,
    };
    let target = match (parsed.value('m'), parsed.value('o')) {
        (Some(_), Some(_)) => return Err(wrong("-m and -o exclude each other")),
        (Some(name), None) => Some((TargetKind::Mdt, name.to_owned())),
        (None, Some(name)) => Some((TargetKind::Ost, name.to_owned())),
        (None, None) => None,
    };
    let is_of_ids = matches!(subject, Subject::Caller | Subject::Id(..));
    if !is_of_ids && (target.is_some() || parsed.has('v')) {
        return Err(wrong("-m, -o and -v are only for ids"));
    }
    if parsed.has('O') && (target.is_some() || parsed.has('t')) {
        return Err(wrong("--pool excludes -m, -o and -t"));
    }
    Ok(Task {
        subject,
        target,
        pool: parsed.value('O').map(str::to_owned),
        is_quiet: parsed.has('q'),
        is_verbose: parsed.has('v'),
        is_human: parsed.has('h'),
        paths: operands.cloned().collect(),
    })
}

/// Returns the range of `-a`.
fn range_in(kind: QuotaKind, parsed: &Parsed) -> Result<Subject, Failure> {
    let limit = |key: char, otherwise: u32| match parsed.value(key) {
        None => Ok(otherwise),
        Some(text) => number::parse_unsigned(text)
            .and_then(|id| u32::try_from(id).ok())
            .ok_or_else(|| wrong(&format!("invalid id '{text}'"))),
    };
    let (start, end) = (limit('s', 0)?, limit('e', u32::MAX)?);
    match start <= end {
        true => Ok(Subject::All { kind, start, end }),
        false => Err(wrong(&format!("the range from {start} to {end} is empty"))),
    }
}

/// Runs the command.
fn run(parsed: &Parsed) -> Outcome {
    let task = task_of(parsed)?;
    let places = places(&task.paths)?;
    match &task.subject {
        Subject::Times(kind) => places.iter().try_for_each(|place| show_times(place, *kind)),
        Subject::Default(kind) => show_defaults(&task, &places, *kind),
        Subject::All { kind, start, end } => {
            places.iter().try_for_each(|place| show_all(&task, place, *kind, *start..=*end))
        }
        Subject::Id(id, name) => show_id(&task, &places, *id, name),
        Subject::Caller => {
            let ids = ids_of_caller(&task.paths)?;
            first_failure(ids.into_iter().map(|(id, name)| show_id(&task, &places, id, &name)))
        }
    }
}

/// Returns the mounts of these paths, or without any path all mounts.
fn places(paths: &[OsString]) -> Result<Vec<Place>, Failure> {
    let chosen = |path: Option<&Path>| -> Result<Vec<Place>, Failure> {
        let mounts = query::chosen(path, "quota", |path| query::not_on_lustre("quota", path))?;
        let place = |mount: crate::mounts::MountEntry| {
            let name = path.unwrap_or(&mount.mount_point).display().to_string();
            Ok(Place { name, mounted: query::open(&mount, "quota")? })
        };
        mounts.into_iter().map(place).collect()
    };
    if paths.is_empty() {
        return chosen(None);
    }
    let found: Result<Vec<Vec<Place>>, Failure> =
        paths.iter().map(|path| chosen(Some(Path::new(path)))).collect();
    Ok(found?.into_iter().flatten().collect())
}

/// Returns the calling user, its group and, of a single path, the project, each with its name.
fn ids_of_caller(paths: &[OsString]) -> Result<Vec<(QuotaId, String)>, Failure> {
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    let mut ids =
        vec![QuotaId { kind: QuotaKind::User, id: uid }, QuotaId { kind: QuotaKind::Group, id: gid }];
    if let [path] = paths {
        let path = PathBuf::from(path);
        let project = mounted::project_of(&path).map_err(|error| query::failed("quota", &path, &error))?.id;
        // Project 0 stands for files without one.
        if project != 0 {
            ids.push(QuotaId { kind: QuotaKind::Project, id: project });
        }
    }
    let mut names = identity::Names::default();
    Ok(ids.into_iter().map(|id| (id, name_of(&mut names, id))).collect())
}

/// Returns the name of an id, or its number if it has none.
fn name_of(names: &mut identity::Names, id: QuotaId) -> String {
    match id.kind {
        QuotaKind::User => names.of(Kind::User, id.id).to_owned(),
        QuotaKind::Group => names.of(Kind::Group, id.id).to_owned(),
        QuotaKind::Project => identity::project_name(id.id),
    }
}

/// Returns the first failure; reports it and the others where they occur.
fn first_failure(outcomes: impl Iterator<Item = Outcome>) -> Outcome {
    let mut first = Ok(());
    for failure in outcomes.filter_map(Result::err) {
        failure.report();
        first = first.and(Err(Failure { message: String::new(), usage: None, ..failure }));
    }
    first
}

impl Task {
    fn style(&self, columns: Columns) -> Style {
        let now = nacre_env::clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default();
        Style { columns, is_human: self.is_human, now_s: now.as_secs() }
    }

    /// Returns a request with the pool, which has to exist.
    fn call(&self, place: &Place, commands: (u32, u32), id: QuotaId) -> Result<QuotaCall, Failure> {
        let pool = pool_on(&place.mounted, self.pool.as_deref(), "quota")?;
        let command = if pool.is_empty() { commands.0 } else { commands.1 };
        Ok(QuotaCall {
            command,
            kind: id.kind as u32,
            id: id.id,
            pool: pool.into_bytes(),
            ..QuotaCall::default()
        })
    }
}

/// Returns the name of a pool without that of the file system, empty if none is given.
///
/// # Errors
/// If there is no such pool.
pub fn pool_on(mount: &Mounted, word: Option<&str>, command: &str) -> Result<String, Failure> {
    let Some(word) = word else { return Ok(String::new()) };
    let fsname = mount.fsname();
    let pool = pools::name_in(word, &fsname);
    pools::members_of(mount, pool, command)?;
    Ok(pool.to_owned())
}

fn failed(place: &Place, what: impl std::fmt::Display, error: &io::Error) -> Failure {
    Failure::numbered(error, format!("lfs quota: {what} on '{}'", place.name))
}

/// Shows one id on each mount.
fn show_id(task: &Task, places: &[Place], id: QuotaId, name: &str) -> Outcome {
    if !task.is_quiet {
        super::print(&(text::title(id, name) + &text::header("Filesystem", &task.style(Columns::All))));
    }
    first_failure(places.iter().map(|place| match &task.target {
        None => show_row(task, place, id),
        Some((kind, word)) => {
            let fsname = place.mounted.fsname();
            let example = TargetId { kind: *kind, index: 0 }.uuid(&fsname);
            let target = target_of(*kind, word, &fsname).ok_or_else(|| {
                let label = kind.label();
                wrong(&format!("'{word}' is no {label}: use an index or a name like {example}"))
            })?;
            show_target(task, place, id, target).map(drop)
        }
    }))
}

/// Shows an id on one mount, with its targets on request.
fn show_row(task: &Task, place: &Place, id: QuotaId) -> Outcome {
    let call = task.call(place, (QuotaCall::GET_QUOTA, QuotaCall::GET_QUOTA_POOL), id)?;
    let found =
        place.mounted.quota(&call).map_err(|error| failed(place, format!("quota of {id}"), &error))?;
    let numbers = &found.numbers;
    super::print(&text::row(&place.name, numbers, &task.style(Columns::All)));
    let outcome = match task.is_verbose {
        true => show_targets(task, place, id, call.pool.is_empty()),
        false => Ok(()),
    };
    if !task.is_quiet {
        super::print(&text::notes(id, numbers));
    }
    outcome
}

/// Shows the targets that take part: those of a pool are its OSTs.
fn show_targets(task: &Task, place: &Place, id: QuotaId, has_all: bool) -> Outcome {
    let targets = |error: io::Error| failed(place, "targets", &error);
    let rows = place.mounted.targets().map_err(targets)?;
    let members = match &task.pool {
        Some(pool) if !has_all => {
            let pool = pools::name_in(pool, &place.mounted.fsname()).to_owned();
            Some(pools::members_of(&place.mounted, &pool, "quota")?)
        }
        _ => None,
    };
    let takes_part = |target: &TargetId| {
        let is_member = |members: &Vec<u16>| members.contains(&target.index);
        members.as_ref().is_none_or(|members| target.kind == TargetKind::Ost && is_member(members))
    };
    let targets = rows.iter().map(|row| row.target).filter(takes_part);
    let (mut inodes, mut space_kib) = (0u64, 0u64);
    let outcome = first_failure(targets.map(|target| {
        let numbers = show_target(task, place, id, target)?;
        match target.kind {
            TargetKind::Mdt => inodes = inodes.saturating_add(numbers.inodes_hard),
            _ => space_kib = space_kib.saturating_add(numbers.space_hard_kib),
        }
        Ok(())
    }));
    super::print(&text::totals(inodes, space_kib, task.is_human));
    outcome
}

/// Shows use and share of an id at a target, and returns them.
fn show_target(task: &Task, place: &Place, id: QuotaId, target: TargetId) -> Result<QuotaNumbers, Failure> {
    let is_mdt = target.kind == TargetKind::Mdt;
    let call = QuotaCall {
        command: QuotaCall::GET_QUOTA,
        kind: id.kind as u32,
        id: id.id,
        place: if is_mdt { QuotaCall::OF_MDT } else { QuotaCall::OF_OST },
        index: target.index.into(),
        ..QuotaCall::default()
    };
    let what = || format!("quota of {id} at {target}");
    let found = place.mounted.quota(&call).map_err(|error| failed(place, what(), &error))?;
    let columns = if is_mdt { Columns::Mdt } else { Columns::Ost };
    let uuid = target.uuid(&place.mounted.fsname());
    super::print(&text::row(&uuid, &found.numbers, &task.style(columns)));
    Ok(found.numbers)
}

/// Returns the target with this index, name or UUID.
fn target_of(kind: TargetKind, word: &str, fsname: &str) -> Option<TargetId> {
    if let Some(index) = number::parse_unsigned(word).filter(|_| !word.is_empty()) {
        return u16::try_from(index).ok().map(|index| TargetId { kind, index });
    }
    let name = word.strip_suffix("_UUID").unwrap_or(word);
    let name = name.strip_prefix(fsname).and_then(|rest| rest.strip_prefix('-')).unwrap_or(name);
    name.parse().ok().filter(|target: &TargetId| target.kind == kind)
}

/// Shows the limits of ids without their own.
fn show_defaults(task: &Task, places: &[Place], kind: QuotaKind) -> Outcome {
    let style = task.style(Columns::Limits);
    if !task.is_quiet {
        super::print(&format!("Disk default {} quota:\n{}", kind.name(), text::header("Filesystem", &style)));
    }
    first_failure(places.iter().map(|place| {
        let commands = (QuotaCall::GET_DEFAULT, QuotaCall::GET_DEFAULT_POOL);
        let call = task.call(place, commands, QuotaId { kind, id: 0 })?;
        let what = format!("default quota of {}", kind.name());
        let found = place.mounted.quota(&call).map_err(|error| failed(place, what, &error))?;
        super::print(&text::row(&place.name, &found.numbers, &style));
        Ok(())
    }))
}

/// Shows all ids of a kind in a range on one mount.
fn show_all(task: &Task, place: &Place, kind: QuotaKind, range: std::ops::RangeInclusive<u32>) -> Outcome {
    let style = task.style(Columns::All);
    if !task.is_quiet {
        let head = text::header(kind.name(), &style);
        super::print(&format!("Disk quotas of all {} ids on {}:\n{head}", kind.name(), place.name));
    }
    let mut names = identity::Names::default();
    let first = QuotaId { kind, id: *range.start() };
    let mut call = task.call(place, (QuotaCall::NEXT, QuotaCall::NEXT), first)?;
    loop {
        let found = match place.mounted.quota(&call) {
            Ok(found) => found,
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(failed(place, format!("quotas of all {} ids", kind.name()), &error)),
        };
        // An id below the one that was asked for would make the loop endless.
        if found.id < call.id {
            return Err(failed(place, "list of ids", &io::Error::from(Errno::PROTO)));
        }
        if !range.contains(&found.id) {
            return Ok(());
        }
        let name = name_of(&mut names, QuotaId { kind, id: found.id });
        super::print(&text::row(&name, &found.numbers, &style));
        match found.id.checked_add(1) {
            Some(next) => call.id = next,
            None => return Ok(()),
        }
    }
}

/// Shows the grace times on one mount.
fn show_times(place: &Place, kind: QuotaKind) -> Outcome {
    let call = QuotaCall { command: QuotaCall::GET_INFO, kind: kind as u32, ..QuotaCall::default() };
    let what = format!("grace times of {}", kind.name());
    let times = place.mounted.quota(&call).map_err(|error| failed(place, what, &error))?.times;
    super::print(&text::times(times.space_s, times.inodes_s));
    Ok(())
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

    fn subject(line: &str) -> Subject {
        task(line).expect(line).subject
    }

    const ROOT: QuotaId = QuotaId { kind: QuotaKind::User, id: 0 };

    #[test]
    fn the_id_comes_before_the_mounts() {
        for line in ["-u root /mnt", "-u -v root /mnt", "-vu root /mnt", "--user root /mnt"] {
            let task = task(line).expect(line);
            assert_eq!(task.subject, Subject::Id(ROOT, "root".to_owned()), "{line}");
            assert_eq!(task.paths, ["/mnt"], "{line}");
        }
        let group = QuotaId { kind: QuotaKind::Group, id: 12 };
        assert_eq!(subject("-g 12"), Subject::Id(group, "12".to_owned()));
        let project = QuotaId { kind: QuotaKind::Project, id: 0 };
        assert_eq!(subject("-p u:root a b"), Subject::Id(project, "u:root".to_owned()));
        assert_eq!((subject(""), task("/a /b").expect("paths").paths.len()), (Subject::Caller, 2));
    }

    #[test]
    fn other_subjects_take_no_id() {
        assert_eq!(subject("-t -u /mnt"), Subject::Times(QuotaKind::User));
        assert_eq!(subject("-G /mnt"), Subject::Default(QuotaKind::Group));
        let all = |start, end| Subject::All { kind: QuotaKind::Project, start, end };
        assert_eq!(subject("-a -p"), all(0, u32::MAX));
        assert_eq!(subject("-ap -s 10 --end 0x10 /mnt"), all(10, 16));
    }

    #[test]
    fn wrong_calls_are_named_and_exit_with_4() {
        for (line, message) in [
            ("-u nosuchuser .", "invalid id 'nosuchuser'"),
            ("-u 4294967295 .", "invalid id '4294967295'"),
            ("-u", "the ID is missing"),
            ("-u -g 1", "-u, -g and -p exclude each other"),
            ("-U -P", "-U, -G and -P exclude each other"),
            ("-U -u 1", "-U, -G and -P take neither -u, -g nor -p"),
            ("-t", "-t needs -u, -g or -p"),
            ("-a", "-a needs -u, -g or -p"),
            ("-t -a -u", "-t, -a and -U, -G, -P exclude each other"),
            ("-s 1", "-s and -e are only for -a"),
            ("-a -u -s 9 -e 8", "the range from 9 to 8 is empty"),
            ("-a -u -s x", "invalid id 'x'"),
            ("-u 1 -m 0 -o 0", "-m and -o exclude each other"),
            ("-a -u -v", "-m, -o and -v are only for ids"),
            ("-U -m 0", "-m, -o and -v are only for ids"),
            ("-t -u --pool p", "--pool excludes -m, -o and -t"),
            ("-u 1 -o 0 --pool p", "--pool excludes -m, -o and -t"),
        ] {
            let failure = task(line).expect_err(line);
            assert_eq!((failure.exit, failure.message), (4, format!("lfs quota: {message}")), "{line}");
        }
    }

    #[test]
    fn targets_are_indexes_names_or_uuids() {
        let mdt = |word| target_of(TargetKind::Mdt, word, "nacre").map(|target| target.index);
        for word in ["2", "0x2", "MDT0002", "nacre-MDT0002", "nacre-MDT0002_UUID"] {
            assert_eq!(mdt(word), Some(2), "{word}");
        }
        for word in ["", "OST0002", "other-MDT0002", "70000", "MDT2"] {
            assert_eq!(mdt(word), None, "{word}");
        }
    }
}
