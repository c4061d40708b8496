//! `lfs mkdir` and `lfs setdirstripe`: directories on chosen MDTs, and defaults of new directories.

use crate::lfs::getopt::{self, OptionSpec, Parsed, Takes, long, opt};
use crate::lfs::mounted::{self, Mounted};
use crate::lfs::number::{parse_signed, parse_unsigned};
use crate::lfs::setstripe::foreign_of_options;
use crate::lfs::{Command, Failure, Outcome, Run, errno_of, error_text, for_each};
use nacre_layout::dir_default::PER_MDT_MAX;
use nacre_layout::dir_layout::SHARDS_MAX;
use nacre_layout::user::{self, Foreign};
use nacre_layout::{DirDefault, DirFlags, DirHash, Inherit, InheritRoundRobin};
use nacre_types::ioctl::MakeDirectory;
use nacre_types::limits::TARGET_INDEX_MAX;
use nacre_types::{TargetId, TargetKind};
use rustix::fs::Mode;
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

/// Text of `--help` and of a wrong call of `lfs mkdir`.
const MKDIR_USAGE: &str = "\
usage: lfs mkdir [-c COUNT|-C COUNT] [-i INDEX[,INDEX|-INDEX...]] [-H HASH] [-o MODE] [-X LEVELS] DIR...
       lfs mkdir --foreign[=TYPE] [--flags HEX] --xattr TEXT [-o MODE] DIR...
       lfs setdirstripe -c COUNT|-C COUNT [-i INDEX...] [-H HASH] DIR...
       lfs setdirstripe -D [-c COUNT|-C COUNT] [-i INDEX...] [-H HASH] [-X LEVELS] [--max-inherit-rr LEVELS] DIR...
       lfs setdirstripe -d DIR...
  -c, -T, --mdt-count COUNT  number of MDTs to spread names over: -1 all; an existing DIR is restriped; 1: not striped
  -C, --mdt-overcount COUNT  number of shards, also more than MDTs: up to 5 per MDT; -5: 5 on each
  -i, --mdt-index INDEX      MDTs, or -1 for one with free space; needs root or mdt.*.enable_remote_dir_gid
  -H, --mdt-hash HASH        hash of names: all_char, fnv_1a_64, crush or crush2
  -o, --mode MODE            permissions, octal; the umask is ignored
  -D, --default              set the default of new directories in DIR
  -d, --delete               remove the default
  -X, --max-inherit LEVELS   levels that inherit the default: -1 all, 0 none
      --max-inherit-rr LEVELS  with -D -i -1: levels with round-robin placement
      --foreign TYPE         foreign directory: a reference to another store; none, posix, pccrw, pccro, s3, symlink or a number
  -x, --xattr TEXT           content of the foreign layout
      --flags HEX            flags of the foreign layout
Example: lfs setdirstripe -D -c 1 -i -1 --max-inherit-rr 2 /mnt/nacre/projects
";

pub(super) const CREATE_OPTIONS: &[OptionSpec] = &[
    opt('c', "mdt-count", Takes::Value),
    long('c', "count", Takes::Value),
    opt('T', "", Takes::Value),
    opt('C', "mdt-overcount", Takes::Value),
    opt('i', "mdt-index", Takes::Value),
    long('i', "mdt", Takes::Value),
    long('i', "index", Takes::Value),
    opt('m', "", Takes::Value),
    opt('H', "mdt-hash", Takes::Value),
    long('H', "hash-type", Takes::Value),
    opt('t', "", Takes::Value),
    opt('o', "mode", Takes::Value),
    opt('D', "default", Takes::Nothing),
    long('D', "default_stripe", Takes::Nothing),
    opt('X', "max-inherit", Takes::Value),
    long('R', "max-inherit-rr", Takes::Value),
    opt('d', "delete", Takes::Nothing),
    opt('x', "xattr", Takes::Value),
    long('5', "foreign", Takes::MaybeValue),
    long('6', "flags", Takes::Value),
    getopt::HELP,
];
const MODE_DEFAULT: u32 = 0o777;

/// Action on each directory.
#[derive(Debug, PartialEq)]
enum Action {
    Make(DirDefault),
    MakeForeign(Foreign),
    SetDefault(DirDefault),
    RemoveDefault,
}

/// Parsed command line.
#[derive(Debug, PartialEq)]
struct Plan {
    action: Action,
    /// Mode as given, before the umask.
    mode: Option<u32>,
    /// A shard count was given: existing directories are restriped to it.
    restripes: bool,
    paths: Vec<OsString>,
}

/// Entry of `lfs mkdir` in the table of commands.
pub const MKDIR: Command = Command {
    name: "mkdir",
    summary: "create a directory, on chosen MDTs or foreign",
    usage: MKDIR_USAGE,
    run: Run::Parsed(CREATE_OPTIONS, |parsed| run("lfs mkdir", parsed)),
};
/// Entry of `lfs setdirstripe` in the table of commands.
pub const SETDIRSTRIPE: Command = Command {
    name: "setdirstripe",
    summary: "create or restripe a directory, or set its default",
    usage: MKDIR_USAGE,
    run: Run::Parsed(CREATE_OPTIONS, |parsed| run("lfs setdirstripe", parsed)),
};

fn run(name: &str, parsed: &Parsed) -> Outcome {
    let plan = Reader { name, parsed }.plan()?;
    for_each(&plan.paths, |path| match &plan.action {
        Action::SetDefault(default) => {
            check_mdts(name, path, default)?;
            set_default(name, path, &default.encode())
        }
        Action::RemoveDefault => set_default(name, path, &[]),
        Action::Make(_) | Action::MakeForeign(_) => {
            make_one(path, &plan).map_err(|error| not_made(name, path, &error))
        }
    })
}

fn not_made(name: &str, path: &Path, error: &io::Error) -> Failure {
    // A directory that has the requested shards exists already, like any other.
    let errno = match errno_of(error) {
        Errno::ALREADY => Errno::EXIST,
        errno => errno,
    };
    let text = error_text(errno);
    let reason = match errno {
        Errno::EXIST => "stripe already set",
        Errno::NOTTY => "not on a Lustre filesystem",
        _ => &text,
    };
    let path = path.display();
    let message = format!(
        "{name}: dirstripe error on '{path}': {reason}\nlfs setdirstripe: cannot create dir '{path}': {text}{}",
        who_may(errno)
    );
    Failure::new(errno, message)
}

/// Options while the plan is being built.
struct Reader<'a> {
    name: &'a str,
    parsed: &'a Parsed,
}

impl Reader<'_> {
    fn wrong(&self, message: String) -> Failure {
        Failure::usage(format!("{}: {message}", self.name), MKDIR_USAGE)
    }

    fn value(&self, keys: [char; 2]) -> Option<&str> {
        keys.into_iter().find_map(|key| self.parsed.value(key))
    }

    fn plan(&self) -> Result<Plan, Failure> {
        const WITH_FOREIGN: [char; 4] = ['5', '6', 'x', 'o'];
        let usage = |message| Failure::usage(format!("lfs mkdir: {message}"), MKDIR_USAGE);
        let foreign = foreign_of_options(self.parsed, self.name, usage, &WITH_FOREIGN)?;
        let count = self.count()?;
        let mdts = self.mdts()?;
        let hash = self.hash()?;
        let max_inherit = self.max_inherit()?;
        let in_turn = self.in_turn()?;
        let mode = match self.parsed.value('o') {
            None => None,
            Some(text) => match u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777) {
                Some(mode) => Some(mode),
                None => return Err(self.wrong(format!("bad MODE '{text}'"))),
            },
        };
        if self.parsed.operands.is_empty() {
            return Err(self.wrong("DIR must be specified".to_owned()));
        }
        let deletes = self.parsed.has('d');
        if deletes && (count.is_some() || mdts.is_some()) {
            return Err(self.wrong("cannot specify -d with -c or -i options".to_owned()));
        }
        let paths = self.parsed.operands.clone();
        if let Some(foreign) = foreign {
            if paths.len() > 1 {
                return Err(self.wrong("cannot specify multiple foreign dirs".to_owned()));
            }
            return Ok(Plan { action: Action::MakeForeign(foreign), mode, restripes: false, paths });
        }
        if deletes {
            return Ok(Plan { action: Action::RemoveDefault, mode, restripes: false, paths });
        }
        let is_default = self.parsed.has('D');
        self.check_default(is_default, count, mdts.as_deref(), in_turn)?;
        let requested =
            self.requested(is_default, count, mdts.unwrap_or_default(), hash, max_inherit, in_turn)?;
        let action = if is_default { Action::SetDefault(requested) } else { Action::Make(requested) };
        Ok(Plan { action, mode, restripes: count.is_some(), paths })
    }

    fn count(&self) -> Result<Option<i32>, Failure> {
        let over = self.parsed.value('C').map(|text| (text, -i64::from(PER_MDT_MAX)));
        let plain = self.value(['c', 'T']).map(|text| (text, -1));
        let mut count = None;
        for (text, least) in plain.into_iter().chain(over) {
            let read = parse_signed(text).filter(|count| (least..=SHARDS_MAX as i64).contains(count));
            let Some(read) = read else { return Err(self.wrong(format!("invalid stripe count '{text}'"))) };
            count = Some(read as i32);
        }
        Ok(count)
    }

    /// Parses the MDTs of a list like `0,2-4`; an empty one for -1.
    fn mdts(&self) -> Result<Option<Vec<u16>>, Failure> {
        let Some(text) = self.value(['i', 'm']) else { return Ok(None) };
        if text == "-1" {
            return Ok(Some(Vec::new()));
        }
        let wrong = || self.wrong(format!("invalid MDT target(s) '{text}'"));
        let mut mdts = Vec::new();
        for word in text.split(',') {
            let (from, to) = word.split_once('-').unwrap_or((word, word));
            let (from, to) = parse_unsigned(from).zip(parse_unsigned(to)).ok_or_else(wrong)?;
            if from > to
                || to >= TARGET_INDEX_MAX.into()
                || mdts.len() as u64 + (to - from) >= SHARDS_MAX as u64
            {
                return Err(wrong());
            }
            mdts.extend((from..=to).map(|mdt| mdt as u16));
        }
        Ok(Some(mdts))
    }

    fn hash(&self) -> Result<Option<DirHash>, Failure> {
        let Some(text) = self.value(['H', 't']) else { return Ok(None) };
        let number = parse_unsigned(text).and_then(|number| u16::try_from(number).ok());
        let known = DirHash::from_name(text).or_else(|| DirHash::from_number(number?));
        known.map(Some).ok_or_else(|| self.wrong(format!("bad directory hash type '{text}'")))
    }

    fn max_inherit(&self) -> Result<Option<Inherit>, Failure> {
        let Some(text) = self.parsed.value('X') else { return Ok(None) };
        let levels = self.levels(text, "max-inherit")?;
        Ok(Inherit::read(levels))
    }

    fn in_turn(&self) -> Result<Option<InheritRoundRobin>, Failure> {
        let Some(text) = self.parsed.value('R') else { return Ok(None) };
        if !self.parsed.has('D') {
            return Err(self.wrong("'--max-inherit-rr' must be specified with '-D'".to_owned()));
        }
        let levels = self.levels(text, "max-inherit-rr")?;
        Ok(InheritRoundRobin::read(levels))
    }

    fn levels(&self, text: &str, what: &str) -> Result<i64, Failure> {
        match parse_signed(text) {
            Some(levels) if levels > Inherit::MAX.into() => {
                Err(self.wrong(format!("{what} {levels} exceeds maximum {}", Inherit::MAX)))
            }
            Some(levels) if levels >= -1 => Ok(levels),
            _ => Err(self.wrong(format!("invalid {what} '{text}'"))),
        }
    }

    fn check_default(
        &self,
        is_default: bool,
        count: Option<i32>,
        mdts: Option<&[u16]>,
        in_turn: Option<InheritRoundRobin>,
    ) -> Result<(), Failure> {
        let mdts = mdts.unwrap_or_default();
        if is_default && mdts.len() > 1 && count.is_none() {
            let message = "trying to create unrecommended default striped directory layout,\n\
                           \t'-D -i x,y,z' will stripe every new directory across all MDTs,\n\
                           \tadd -c with the number of MDTs to do this anyway";
            return Err(self.wrong(message.to_owned()));
        }
        if let (Some(_), Some(first)) = (in_turn, mdts.first()) {
            return Err(self.wrong(format!("max-inherit-rr needs mdt-index=-1, not {first}")));
        }
        if let Some(count) = count.filter(|count| mdts.len() > 1 && *count > 0 && *count != mdts.len() as i32)
        {
            let listed = mdts.len();
            let message = format!("stripe count {count} doesn't match the number of MDTs: {listed}");
            return Err(self.wrong(message));
        }
        Ok(())
    }

    /// Returns the requested placement. Without an MDT and count it is one MDT with free space.
    fn requested(
        &self,
        is_default: bool,
        count: Option<i32>,
        mdts: Vec<u16>,
        hash: Option<DirHash>,
        max_inherit: Option<Inherit>,
        in_turn: Option<InheritRoundRobin>,
    ) -> Result<DirDefault, Failure> {
        let is_unsaid = count.is_none() && self.value(['i', 'm']).is_none();
        let by_space = is_default && mdts.is_empty() && count.unwrap_or(0) == 0;
        let count = match count {
            _ if mdts.len() > 1 => mdts.len() as i32,
            None | Some(0) if is_unsaid || by_space => 1,
            count => count.unwrap_or(0),
        };
        let has_twice = (1..mdts.len()).any(|at| mdts[..at].contains(&mdts[at]));
        let is_over = self.parsed.has('C') || has_twice;
        let max_inherit = max_inherit.unwrap_or(Inherit::usual(count, is_over));
        if is_default && !(0..=1).contains(&count) && max_inherit == Inherit::UNLIMITED {
            eprintln!("{}: unrecommended max-inherit=-1 when default stripe-count={count}", self.name);
        }
        Ok(DirDefault {
            count,
            index: mdts.first().map_or(-1, |mdt| i32::from(*mdt)),
            hash,
            flags: if is_over { DirFlags::OVERSTRIPED } else { DirFlags::empty() },
            max_inherit,
            max_inherit_rr: in_turn.unwrap_or(InheritRoundRobin::NONE),
            mdts: if mdts.len() > 1 { mdts } else { Vec::new() },
        })
    }
}

/// Returns the hint about the parameter that lets users other than administrators choose MDTs.
fn who_may(errno: Errno) -> &'static str {
    match errno {
        Errno::PERM => {
            ": to choose MDTs is for administrators, and for the group that mdt.*.enable_remote_dir_gid names \
             (lctl set_param -P mdt.*.enable_remote_dir_gid=GID, -1 for everybody)"
        }
        _ => "",
    }
}

/// Refuses a default that names a missing MDT: no directory could be created under it.
fn check_mdts(name: &str, path: &Path, default: &DirDefault) -> Outcome {
    let named = u16::try_from(default.index).ok().into_iter().chain(default.mdts.iter().copied());
    let mut named = named.peekable();
    if named.peek().is_none() {
        return Ok(());
    }
    // If the targets cannot be read, the next request reports the error.
    let Ok(rows) = Mounted::open(path).and_then(|mount| mount.targets()) else { return Ok(()) };
    match named.find(|mdt| !rows.iter().any(|row| row.target == TargetId::mdt(*mdt))) {
        None => Ok(()),
        Some(mdt) => {
            let path = path.display();
            let text = format!(
                "{name}: there is no MDT {mdt} in the file system of '{path}': Invalid argument (22)"
            );
            Err(Failure::new(Errno::INVAL, text))
        }
    }
}

fn set_default(name: &str, path: &Path, value: &[u8]) -> Outcome {
    mounted::set_dir_default(path, value).map_err(|(is_open, error)| {
        let errno = errno_of(&error);
        let text = error_text(errno);
        let path = path.display();
        let first = match is_open {
            true => format!("default dirstripe error on '{path}': {text}"),
            false => format!("unable to open '{path}': {text} ({})", errno.raw_os_error()),
        };
        let message = format!(
            "{name}: {first}\nlfs setdirstripe: cannot set default stripe on dir '{path}': {text}{}",
            who_may(errno)
        );
        Failure::new(errno, message)
    })
}

fn make_one(path: &Path, plan: &Plan) -> io::Result<()> {
    let parent = Mounted::open(mounted::directory_of(path))?;
    let foreign = match &plan.action {
        Action::MakeForeign(foreign) => Some(foreign),
        _ => None,
    };
    match &plan.action {
        Action::Make(requested) if plan.restripes && path.is_dir() => {
            // An existing directory keeps its mode.
            return make_on(&parent, path, plan, requested);
        }
        Action::Make(requested) if is_about_mdts(&parent, requested)? => {
            make_on(&parent, path, plan, requested)?
        }
        _ => fs::DirBuilder::new().mode(plan.mode.unwrap_or(MODE_DEFAULT)).create(path)?,
    }
    let finish = || {
        if let Some(mode) = plan.mode {
            fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        }
        match foreign {
            Some(foreign) => mounted::set_directory_layout(path, &user::encode_foreign_directory(foreign)),
            None => Ok(()),
        }
    };
    finish().inspect_err(|_| drop(fs::remove_dir(path)))
}

/// Returns whether there is a choice of MDTs. The mount decides whether an MDT exists: it may just have
/// joined.
fn is_about_mdts(parent: &Mounted, requested: &DirDefault) -> io::Result<bool> {
    let rows = parent.targets()?;
    let is_there = |mdt: u16| rows.iter().any(|row| row.target == TargetId::mdt(mdt));
    let named = u16::try_from(requested.index).ok();
    if !requested.mdts.iter().copied().chain(named).all(is_there) {
        return Ok(true);
    }
    Ok(rows.iter().filter(|row| row.target.kind == TargetKind::Mdt).count() > 1)
}

/// Creates a directory on the chosen MDTs.
fn make_on(parent: &Mounted, path: &Path, plan: &Plan, requested: &DirDefault) -> io::Result<()> {
    let name = path.file_name().ok_or(io::Error::from(Errno::EXIST))?;
    let mode = plan.mode;
    let umask = match mode {
        Some(_) => 0,
        None => umask(),
    };
    let named = u16::try_from(requested.index).ok();
    let mdts = if requested.mdts.is_empty() { named.into_iter().collect() } else { requested.mdts.clone() };
    parent.make_directory(&MakeDirectory {
        name: name.as_bytes().to_vec(),
        mode: mode.unwrap_or(MODE_DEFAULT),
        umask,
        count: requested.count,
        hash: requested.hash.map_or(0, |hash| hash.number().into()) | requested.flags.bits(),
        max_inherit: requested.max_inherit.0,
        restripes: plan.restripes,
        migrates: false,
        mdts,
    })
}

/// Returns the umask of this process, which has one thread.
fn umask() -> u32 {
    let mask = rustix::process::umask(Mode::empty());
    rustix::process::umask(mask);
    mask.bits()
}

/// Checks a command line alone.
#[cfg(test)]
pub fn checked(parsed: &Parsed) -> Outcome {
    Reader { name: "lfs mkdir", parsed }.plan().map(drop)
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
            ("-i 0-2000 zz", "invalid MDT target(s) '0-2000'"),
            ("-o 8 zz", "bad MODE '8'"),
            ("-X x zz", "invalid max-inherit 'x'"),
            ("-D -X -2 zz", "invalid max-inherit '-2'"),
            ("-D -X 251 zz", "max-inherit 251 exceeds maximum 250"),
            ("--max-inherit-rr 3 zz", "'--max-inherit-rr' must be specified with '-D'"),
            ("-D -i -1 --max-inherit-rr 300 zz", "max-inherit-rr 300 exceeds maximum 250"),
            ("-D -i 2 --max-inherit-rr 3 zz", "max-inherit-rr needs mdt-index=-1, not 2"),
            ("-d -c 1 zz", "cannot specify -d with -c or -i options"),
            ("-d -i 1 zz", "cannot specify -d with -c or -i options"),
            ("-i 0,1 -c 3 zz", "stripe count 3 doesn't match the number of MDTs: 2"),
            ("--foreign zz", "xattr must be provided in foreign mode"),
            ("--foreign=q -x t zz", "unrecognized foreign type 'q'"),
            ("--foreign -x t -c 1 zz", "only --xattr/--flags/--mode options are valid with --foreign"),
            ("--foreign -x t zz yy", "cannot specify multiple foreign dirs"),
        ] {
            let failure = MKDIR.run(&words_of(line.as_bytes())).expect_err(line);
            assert_eq!((failure.exit, failure.message), (4, format!("lfs mkdir: {message}")), "{line}");
        }
        let failure = SETDIRSTRIPE.run(&words_of(b"-D -i 0,1 zz")).expect_err("needs -c");
        let told = "lfs setdirstripe: trying to create unrecommended default striped directory layout,";
        assert!(failure.exit == 4 && failure.message.starts_with(told), "{failure:?}");
    }

    fn read(line: &str) -> Plan {
        let parsed = parse(&words_of(line.as_bytes()), CREATE_OPTIONS).expect(line);
        Reader { name: "lfs mkdir", parsed: &parsed }.plan().expect(line)
    }

    fn made(line: &str) -> DirDefault {
        match read(line).action {
            Action::Make(requested) => requested,
            other => panic!("{line}: {other:?}"),
        }
    }

    fn default(line: &str) -> DirDefault {
        match read(line).action {
            Action::SetDefault(requested) => requested,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn wishes_are_read() {
        assert_eq!(made("zz"), DirDefault::default());
        assert_eq!(made("-i 1 zz"), DirDefault { count: 0, index: 1, ..DirDefault::default() });
        assert_eq!(made("-i -1 zz"), DirDefault { count: 0, ..DirDefault::default() });
        let many = made("-c 2000 -i 0 -H crush zz");
        assert_eq!(
            (many.count, many.index, many.hash, many.max_inherit),
            (2000, 0, Some(DirHash::Crush), Inherit(3))
        );
        assert_eq!(made("-T -1 -H 4 zz").hash, Some(DirHash::Crush2));
        let listed = made("-i 2-4,1 zz");
        assert_eq!((listed.count, listed.index, &listed.mdts[..]), (4, 2, &[2, 3, 4, 1][..]));
        assert!(listed.flags.is_empty());
        let over = made("-C -2 zz");
        assert_eq!((over.count, over.flags, over.max_inherit), (-2, DirFlags::OVERSTRIPED, Inherit(2)));
        assert_eq!(made("-i 0,1,0 zz").flags, DirFlags::OVERSTRIPED);
        assert_eq!(made("-i 1 -X 0 zz").max_inherit, Inherit::NONE);
    }

    #[test]
    fn defaults_are_read() {
        let root = default("-D -c 1 -i -1 -X -1 --max-inherit-rr 3 zz");
        assert_eq!(root, DirDefault::of_root());
        assert_eq!(default("-D zz"), DirDefault::default());
        assert_eq!(default("-D -i -1 zz").count, 1);
        assert_eq!(default("-D -c 0 -i -1 zz").count, 1);
        assert_eq!(default("-D -c 2 -i 1 zz").max_inherit, Inherit(3));
        assert_eq!(default("-D -i 0,1 -c 2 zz").mdts, [0, 1]);
        assert_eq!(default("-D -i -1 --max-inherit-rr -1 zz").max_inherit_rr, InheritRoundRobin::UNLIMITED);
        assert_eq!(read("-d zz").action, Action::RemoveDefault);
        assert_eq!(read("-D -d zz").action, Action::RemoveDefault);
    }

    #[test]
    fn foreign_directories_are_read() {
        let plan = read("--foreign=symlink --flags 0xda08 -x text -o 750 zz");
        assert_eq!(plan.mode, Some(0o750));
        let expected = Foreign { kind: 0xda05, flags: 0xda08, text: b"text".to_vec() };
        assert_eq!(plan.action, Action::MakeForeign(expected));
    }
}
