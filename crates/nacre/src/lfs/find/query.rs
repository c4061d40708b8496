//! Translation of options into conditions.

use super::args::{CommandLine, Given, Key};
use super::format::{Format, LS};
use super::layout::pattern_bits;
use super::mode::ModeTest;
use super::predicate::{Hash, Measure, Needs, PartTest, Sign, Stamp, Test, What};
use super::time;
use super::xattr::XattrTest;
use crate::lfs::identity::{self, Kind};
use crate::lfs::view::parse_flags;
use nacre_layout::{DirFlags, DirHash};
use nacre_types::limits::POOL_NAME_MAX;
use nacre_types::size::suffix_factor;
use nacre_types::{FileKind, TargetKind, Timestamp};
use std::ffi::{CString, OsString};
use std::path::Path;
use std::time::UNIX_EPOCH;

/// Types of foreign layouts with a name (`LU_FOREIGN_TYPE_*`).
const FOREIGN_TYPES: [(&str, u32); 2] = [("none", 0), ("symlink", 0xda05)];
/// Attributes of inodes with their letters and bits (`STATX_ATTR_*`).
const ATTRS: [(&str, &str, u64); 6] = [
    ("compressed", "c", 0x4),
    ("immutable", "i", 0x10),
    ("append_only", "a", 0x20),
    ("no_dump", "d", 0x40),
    ("encrypted", "E", 0x800),
    ("automount", "M", 0x1000),
];
const HASH_FLAGS: [(&str, DirFlags); 5] = [
    ("overstriped", DirFlags::OVERSTRIPED),
    ("migrating", DirFlags::MIGRATION),
    ("bad_type", DirFlags::BAD_TYPE),
    ("fixed", DirFlags::FIXED),
    ("lost_lmv", DirFlags::LOST_LMV),
];
/// Largest index of a target.
const INDEX_MAX: u32 = 0xffff;
/// Largest number of threads.
const THREADS_MAX: usize = 256;

/// Output of matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Path, followed by this byte.
    Path(u8),
    /// Output by a format.
    Format(Format),
    /// A line of JSON with all known values.
    Json,
}

/// A complete search.
#[derive(Debug)]
pub struct Query {
    /// Starting points of the search.
    pub paths: Vec<OsString>,
    /// Conditions, cheapest first.
    pub tests: Vec<Test>,
    /// Conditions on single components.
    pub part_tests: Vec<(bool, PartTest)>,
    /// Output of matches.
    pub output: Output,
    /// Deepest level that is searched.
    pub max_depth: usize,
    /// Shallowest level that is printed.
    pub min_depth: usize,
    /// Sizes come from the MDT alone.
    pub lazy: bool,
    /// Percentage of the matches to leave out.
    pub skip_percent: u64,
    /// Number of threads, if given.
    pub threads: Option<usize>,
}

/// Names of a file system's targets.
pub trait Targets {
    /// Returns the index of the target with this name or UUID.
    fn index_of(&self, kind: TargetKind, name: &str) -> Option<u32>;
}

/// Returns the current time in seconds since 1970.
pub fn now() -> i64 {
    nacre_env::clock::wall().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

impl Query {
    /// Translates the options.
    ///
    /// # Errors
    /// The fault of an option.
    pub fn new(line: CommandLine, now: i64, targets: &dyn Targets) -> Result<Query, String> {
        let mut query = Query {
            paths: line.paths,
            tests: Vec::new(),
            part_tests: Vec::new(),
            output: Output::Path(b'\n'),
            max_depth: usize::MAX,
            min_depth: 0,
            lazy: false,
            skip_percent: 0,
            threads: None,
        };
        for given in &line.options {
            if !query.take_setting(given)? && !query.take_part_test(given)? {
                let what = what_of(given, now, targets)?;
                query.tests.push(Test { negated: given.negated, what });
            }
        }
        query.tests.sort_by_key(Test::needs);
        Ok(query)
    }

    /// Takes an option that is not a condition; returns false for others.
    fn take_setting(&mut self, given: &Given) -> Result<bool, String> {
        let text = given.value.as_str();
        match given.key {
            Key::Lazy => self.lazy = true,
            Key::Print => {}
            Key::Print0 => self.output = Output::Path(0),
            Key::Printf => self.output = Output::Format(Format::parse(text)),
            Key::Json => self.output = Output::Json,
            Key::Ls => self.output = Output::Format(Format::parse(LS)),
            Key::MaxDepth => self.max_depth = text.parse().map_err(|_| bad("maxdepth", text))?,
            Key::MinDepth => self.min_depth = text.parse().map_err(|_| bad("mindepth", text))?,
            Key::Skip => {
                let percent = text.trim_end_matches('%').parse().ok().filter(|percent| *percent <= 100);
                self.skip_percent = percent.ok_or_else(|| bad("skip percent", text))?;
            }
            Key::Threads => {
                let threads = text.parse().ok().filter(|threads| (1..=THREADS_MAX).contains(threads));
                self.threads = Some(threads.ok_or_else(|| bad("thread count", text))?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn take_part_test(&mut self, given: &Given) -> Result<bool, String> {
        let text = given.value.as_str();
        let test = match given.key {
            Key::ComponentStart => PartTest::Start(place(text).ok_or_else(|| bad("component start", text))?),
            Key::ComponentEnd => PartTest::End(place(text).ok_or_else(|| bad("component end", text))?),
            Key::ComponentFlags => {
                let (set, clear) = parse_flags(text).ok_or_else(|| bad("component flags", text))?;
                PartTest::Flags(set, clear)
            }
            _ => return Ok(false),
        };
        self.part_tests.push((given.negated, test));
        Ok(true)
    }

    fn asks(&self, needs: Needs) -> bool {
        self.tests.iter().any(|test| test.needs() == needs)
    }

    fn prints(&self, which: impl Fn(&Format) -> bool) -> bool {
        match &self.output {
            Output::Path(_) => false,
            Output::Format(format) => which(format),
            Output::Json => true,
        }
    }

    /// Returns true if the output needs the distribution of directories' names.
    pub fn prints_spread(&self) -> bool {
        self.prints(Format::needs_spread)
    }

    /// Returns true if layouts are needed.
    pub fn needs_layout(&self) -> bool {
        self.prints(Format::needs_layout) || !self.part_tests.is_empty() || self.asks(Needs::Layout)
    }

    /// Returns true if attributes are needed of which writers, and not the MDT, have the newest values.
    pub fn needs_data(&self) -> bool {
        !self.lazy && (self.prints(Format::needs_data) || self.asks(Needs::Data))
    }
}

fn bad(what: &str, text: &str) -> String {
    format!("bad {what} '{text}'")
}

fn what_of(given: &Given, now: i64, targets: &dyn Targets) -> Result<What, String> {
    let text = given.value.as_str();
    let some = |found: Option<What>, what: &str| found.ok_or_else(|| bad(what, text));
    let user = |kind: Kind| {
        identity::id_of(kind, text).ok_or_else(|| format!("Group/User: {text} cannot be found."))
    };
    match given.key {
        Key::Age(letter) => some(age(letter, text, now), "time"),
        Key::Newer(x, y) => newer(x, y, text, now),
        Key::Name => some(CString::new(text).ok().map(What::Name), "name"),
        Key::Type => some(kind_of(text).map(What::Kind), "type"),
        Key::Permissions => some(ModeTest::parse(text).map(What::Mode), "mode"),
        Key::Links => some(count(text).map(What::Links), "links"),
        Key::Size => some(size(text, 512).map(What::Size), "size"),
        Key::Blocks => some(size(text, 512).map(What::Blocks), "blocks size"),
        Key::User => Ok(What::Uid(user(Kind::User)?)),
        Key::Group => Ok(What::Gid(user(Kind::Group)?)),
        Key::Project => match identity::project_of(text) {
            Some(project) => Ok(What::Project(project)),
            None => Err(format!("Invalid project ID: {text}")),
        },
        Key::MdtIndex => Ok(What::Mdt(indexes(TargetKind::Mdt, text, targets)?)),
        Key::Ost => Ok(What::Osts(indexes(TargetKind::Ost, text, targets)?)),
        Key::MdtCount => some(count(text).map(What::MdtCount), "mdt-count"),
        Key::MdtHash => some(hash(text).map(What::MdtHash), "hash type"),
        Key::Attrs => some(attrs(text), "attrs"),
        Key::StripeCount => some(count(text).map(What::StripeCount), "stripe_count"),
        Key::StripeSize => some(size(text, 1).map(What::StripeSize), "stripe_size"),
        Key::ExtensionSize => some(size(text, 1).map(What::ExtensionSize), "ext-size"),
        Key::Pool if text.len() > POOL_NAME_MAX => {
            Err(format!("Pool name {text} is too long (max is {POOL_NAME_MAX})"))
        }
        Key::Pool => Ok(What::Pool(text.to_owned())),
        Key::Layout => some(layout(text).map(What::Pattern), "layout"),
        Key::ComponentCount => some(count(text).map(What::ComponentCount), "component count"),
        Key::MirrorCount => some(count(text).map(What::MirrorCount), "mirror count"),
        Key::MirrorState => some(mirror_state(text), "mirror state"),
        Key::Foreign => some(foreign(text).map(What::Foreign), "foreign type"),
        Key::Xattr => some(XattrTest::parse(text).map(What::Xattr), "xattr expression"),
        _ => Err(bad("option", text)),
    }
}

fn age(letter: u8, text: &str, now: i64) -> Option<What> {
    let (sign, rest) = Sign::split(text);
    let age = time::parse_age(rest)?;
    let moment = now.checked_sub(age.seconds).filter(|moment| *moment >= 0)?;
    Some(What::Age { stamp: Stamp::from_letter(letter)?, sign, moment, margin: age.margin })
}

fn newer(x: u8, y: u8, text: &str, now: i64) -> Result<What, String> {
    let stamp = Stamp::from_letter(x).ok_or_else(|| bad("time", text))?;
    if y == b't' {
        let sec = time::parse_date(text, now).ok_or_else(|| bad("time", text))?;
        return Ok(What::Newer(stamp, Timestamp { sec, nsec: 0 }));
    }
    let failed = |why: &str| format!("cannot stat file '{text}': {why}");
    let flags = rustix::fs::AtFlags::empty();
    let mask = rustix::fs::StatxFlags::ALL;
    let found = rustix::fs::statx(rustix::fs::CWD, Path::new(text), flags, mask)
        .map_err(|error| failed(&crate::lfs::error_text(error)))?;
    let has_birth = found.stx_mask & rustix::fs::StatxFlags::BTIME.bits() != 0;
    let time = match Stamp::from_letter(y) {
        Some(Stamp::Access) => found.stx_atime,
        Some(Stamp::Birth) if !has_birth => return Err(failed("it has no time of creation")),
        Some(Stamp::Birth) => found.stx_btime,
        Some(Stamp::Change) => found.stx_ctime,
        _ => found.stx_mtime,
    };
    Ok(What::Newer(stamp, Timestamp { sec: time.tv_sec, nsec: time.tv_nsec }))
}

fn kind_of(text: &str) -> Option<Option<FileKind>> {
    Some(Some(match text {
        "b" => FileKind::BlockDevice,
        "c" => FileKind::CharDevice,
        "d" => FileKind::Directory,
        "f" => FileKind::Regular,
        "l" => FileKind::Symlink,
        "p" => FileKind::Fifo,
        "s" => FileKind::Socket,
        // Doors, a kind of file of Solaris.
        "D" => return Some(None),
        _ => return None,
    }))
}

/// Parses `[+-]N`.
fn count(text: &str) -> Option<Measure> {
    let (sign, rest) = Sign::split(text);
    let digits = rest.bytes().all(|byte| byte.is_ascii_digit());
    let value = rest.parse().ok().filter(|_| digits)?;
    Some(Measure { sign, value, unit: 1 })
}

/// Parses `[+-]N[cbkMGTPE]`, without a suffix in units of `unit` bytes.
fn size(text: &str, unit: u64) -> Option<Measure> {
    let (sign, rest) = Sign::split(text);
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let unit = match &rest[end..] {
        "" => unit,
        "c" => 1,
        "b" => 512,
        suffix => suffix_factor(suffix)?,
    };
    let value = rest[..end].parse::<u64>().ok()?.checked_mul(unit)?;
    Some(Measure { sign, value, unit })
}

/// Parses an offset in a file; `eof` and `-1` are its end.
fn place(text: &str) -> Option<Measure> {
    match text {
        "-1" | "eof" | "EOF" => Some(Measure { sign: Sign::Is, value: u64::MAX, unit: 1 }),
        _ => size(text, 1),
    }
}

/// Parses a list of indexes, ranges of them, names and UUIDs of targets.
fn indexes(kind: TargetKind, text: &str, targets: &dyn Targets) -> Result<Vec<u32>, String> {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse::<u32>().ok(),
    };
    let mut found = Vec::new();
    for word in text.split(',').filter(|word| !word.is_empty()) {
        let range = word.split_once('-').and_then(|(first, last)| Some((number(first)?, number(last)?)));
        match (range, number(word)) {
            (Some((first, last)), _) if first <= last && last <= INDEX_MAX => found.extend(first..=last),
            (None, Some(index)) if index <= INDEX_MAX => found.push(index),
            (None, None) => match targets.index_of(kind, word) {
                Some(index) => found.push(index),
                None => return Err(format!("unknown {} '{word}'", kind.label())),
            },
            _ => return Err(format!("bad {} index '{word}'", kind.label())),
        }
    }
    if found.is_empty() { Err(format!("bad {} index '{text}'", kind.label())) } else { Ok(found) }
}

fn hash(text: &str) -> Option<Hash> {
    let mut hash = Hash::default();
    for word in text.split(',') {
        let (other, name) = match word.strip_prefix('^') {
            Some(name) => (true, name),
            None => (false, word),
        };
        let kind = DirHash::from_name(name).map(DirHash::number).or((name == "none").then_some(0));
        let flag = HASH_FLAGS.iter().find(|(known, _)| *known == name).map_or(0, |(_, flag)| flag.bits());
        if kind.is_none() && flag == 0 {
            return None;
        }
        let (types, flags) = match other {
            true => (&mut hash.other_types, &mut hash.other_flags),
            false => (&mut hash.types, &mut hash.flags),
        };
        types.extend(kind);
        *flags |= flag;
    }
    Some(hash)
}

/// Parses attributes by name or letter. No file has any, so those that must be clear (`^`) are always met.
fn attrs(text: &str) -> Option<What> {
    let mut set = 0;
    for word in text.split(',') {
        let (wanted, name) = match word.strip_prefix('^') {
            Some(name) => (false, name),
            None => (true, word),
        };
        let known =
            ATTRS.iter().find(|(long, short, _)| long.eq_ignore_ascii_case(name) || *short == name)?;
        set |= if wanted { known.2 } else { 0 };
    }
    Some(What::Attrs(set))
}

fn layout(text: &str) -> Option<u32> {
    text.split(',').try_fold(0, |bits, word| Some(bits | pattern_bits(word)?))
}

fn mirror_state(text: &str) -> Option<What> {
    let (other, name) = match text.strip_prefix('^') {
        Some(name) => (true, name),
        None => (false, text),
    };
    let state = ["ro", "wp", "sp"].iter().position(|known| *known == name)?;
    Some(What::MirrorState(other, state as u16 + 1))
}

fn foreign(text: &str) -> Option<Option<u32>> {
    if text.is_empty() {
        return Some(None);
    }
    if let Some((_, kind)) = FOREIGN_TYPES.iter().find(|(name, _)| *name == text) {
        return Some(Some(*kind));
    }
    let number = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    number.ok().map(Some)
}

#[cfg(test)]
mod tests;
