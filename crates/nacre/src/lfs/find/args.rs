//! Command line of `lfs find`.
//!
//! Long options may have one dash or two and may be abbreviated, as in `getopt_long_only`; `!` negates the
//! next one; paths are adjacent, before or after the options.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// Whether an option takes a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Takes {
    Nothing,
    Value,
    /// Only after `=`.
    Maybe,
}

/// An option with the key by which the program queries it.
struct Spec {
    key: Key,
    short: Option<u8>,
    long: &'static str,
    takes: Takes,
}

/// Meaning of an option; the table of options has the names of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    Age(u8),
    Attrs,
    Blocks,
    ComponentCount,
    ComponentEnd,
    ComponentFlags,
    ComponentStart,
    ExtensionSize,
    Foreign,
    Group,
    Help,
    Json,
    Layout,
    Lazy,
    Links,
    Ls,
    MaxDepth,
    MdtCount,
    MdtHash,
    MdtIndex,
    MinDepth,
    MirrorCount,
    MirrorState,
    Name,
    /// Letters after `newer`.
    Newer(u8, u8),
    Ost,
    Permissions,
    Pool,
    Print,
    Print0,
    Printf,
    Project,
    Size,
    Skip,
    StripeCount,
    StripeSize,
    Threads,
    Type,
    User,
    Xattr,
}

const fn valued(key: Key, short: u8, long: &'static str) -> Spec {
    Spec { key, short: if short == 0 { None } else { Some(short) }, long, takes: Takes::Value }
}

const fn plain(key: Key, short: u8, long: &'static str) -> Spec {
    Spec { takes: Takes::Nothing, ..valued(key, short, long) }
}

const SPECS: &[Spec] = &[
    valued(Key::Age(b'a'), b'A', "atime"),
    valued(Key::Attrs, 0, "attrs"),
    valued(Key::Blocks, b'b', "blocks"),
    valued(Key::Age(b'b'), b'B', "btime"),
    valued(Key::Age(b'b'), 0, "Btime"),
    valued(Key::Age(b'b'), 0, "crtime"),
    valued(Key::Age(b'c'), b'C', "ctime"),
    valued(Key::ComponentCount, 0, "component-count"),
    valued(Key::ComponentCount, 0, "comp-count"),
    valued(Key::ComponentEnd, b'E', "component-end"),
    valued(Key::ComponentEnd, 0, "comp-end"),
    valued(Key::ComponentFlags, 0, "component-flags"),
    valued(Key::ComponentFlags, 0, "comp-flags"),
    valued(Key::ComponentStart, 0, "component-start"),
    valued(Key::ComponentStart, 0, "comp-start"),
    valued(Key::ExtensionSize, b'z', "extension-size"),
    valued(Key::ExtensionSize, 0, "ext-size"),
    Spec { key: Key::Foreign, short: None, long: "foreign", takes: Takes::Maybe },
    valued(Key::Group, b'g', "gid"),
    valued(Key::Group, b'G', "group"),
    plain(Key::Help, b'h', "help"),
    plain(Key::Json, 0, "json"),
    valued(Key::Layout, b'L', "layout"),
    plain(Key::Lazy, b'l', "lazy"),
    valued(Key::Links, 0, "links"),
    plain(Key::Ls, 0, "ls"),
    valued(Key::MaxDepth, b'D', "maxdepth"),
    valued(Key::MdtIndex, b'm', "mdt"),
    valued(Key::MdtIndex, 0, "mdt-index"),
    valued(Key::MdtCount, b'T', "mdt-count"),
    valued(Key::MdtHash, b'H', "mdt-hash"),
    valued(Key::MinDepth, b'd', "mindepth"),
    valued(Key::MirrorCount, b'N', "mirror-count"),
    valued(Key::MirrorState, 0, "mirror-state"),
    valued(Key::Age(b'm'), b'M', "mtime"),
    valued(Key::Name, b'n', "name"),
    valued(Key::Ost, b'O', "ost"),
    valued(Key::Ost, b'o', "obd"),
    valued(Key::Ost, b'i', "stripe-index"),
    valued(Key::Permissions, 0, "perm"),
    valued(Key::Pool, 0, "pool"),
    plain(Key::Print, b'P', "print"),
    plain(Key::Print0, b'0', "print0"),
    valued(Key::Printf, 0, "printf"),
    valued(Key::Project, 0, "projid"),
    valued(Key::Size, b's', "size"),
    valued(Key::Skip, b'k', "skip"),
    valued(Key::StripeCount, b'c', "stripe-count"),
    valued(Key::StripeSize, b'S', "stripe-size"),
    valued(Key::Threads, 0, "threads"),
    valued(Key::Type, b't', "type"),
    valued(Key::User, b'u', "uid"),
    valued(Key::User, b'U', "user"),
    valued(Key::Xattr, 0, "xattr"),
];

/// An option of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// Meaning of the option.
    pub key: Key,
    /// The option follows `!`.
    pub negated: bool,
    /// Value of the option; empty if it has none.
    pub value: String,
}

/// A command line split into its parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandLine {
    /// Starting points of the search.
    pub paths: Vec<OsString>,
    /// Options in order.
    pub options: Vec<Given>,
}

/// Splits a command line into its parts.
///
/// # Errors
/// The error message, without the command's name.
pub fn parse(args: &[OsString]) -> Result<CommandLine, String> {
    let mut line = CommandLine::default();
    let mut words = args.iter();
    let (mut negated, mut paths_ended) = (false, false);
    while let Some(word) = words.next() {
        let bytes = word.as_bytes();
        if bytes == b"!" || bytes == b"-not" || bytes == b"--not" {
            negated = !negated;
            continue;
        }
        if bytes.len() < 2 || bytes[0] != b'-' {
            if negated {
                return Err(format!("'!' must be before an option, not '{}'", word.display()));
            }
            if paths_ended {
                return Err("filename|dirname must either precede options or follow options".to_owned());
            }
            line.paths.push(word.clone());
            continue;
        }
        paths_ended = !line.paths.is_empty();
        let (key, takes, glued) = option(word)?;
        let value = match (takes, glued) {
            (Takes::Value, None) => {
                let next = words
                    .next()
                    .ok_or_else(|| format!("option '{}' requires an argument", word.display()))?;
                text(next)
            }
            (Takes::Nothing, Some(_)) => {
                return Err(format!("option '{}' doesn't allow an argument", word.display()));
            }
            (_, glued) => glued.unwrap_or_default(),
        };
        line.options.push(Given { key, negated: std::mem::take(&mut negated), value });
    }
    if negated {
        return Err("'!' must be before an option".to_owned());
    }
    Ok(line)
}

fn text(word: &OsStr) -> String {
    word.to_string_lossy().into_owned()
}

/// Returns the option of a word, and the value that is part of the word.
fn option(word: &OsStr) -> Result<(Key, Takes, Option<String>), String> {
    let word = text(word);
    let double = word.starts_with("--");
    let name = word.trim_start_matches('-');
    let (name, value) = match name.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (name, None),
    };
    if let Some(key) = newer(name) {
        return Ok((key?, Takes::Value, value));
    }
    let short = |letter: u8| SPECS.iter().find(|spec| spec.short == Some(letter));
    if !double
        && name.len() == 1
        && let Some(spec) = short(name.as_bytes()[0])
    {
        return Ok((spec.key, spec.takes, value));
    }
    if let Some(spec) = SPECS.iter().find(|spec| spec.long == name) {
        return Ok((spec.key, spec.takes, value));
    }
    let mut begun = SPECS.iter().filter(|spec| !name.is_empty() && spec.long.starts_with(name));
    if let Some(first) = begun.next() {
        if begun.all(|spec| spec.key == first.key) {
            return Ok((first.key, first.takes, value));
        }
        if double {
            return Err(format!("option '{word}' is ambiguous"));
        }
    }
    // A letter with an attached value.
    let glued = word.as_bytes().get(1).filter(|_| !double).and_then(|letter| short(*letter));
    match glued {
        Some(spec) if spec.takes == Takes::Value => Ok((spec.key, spec.takes, Some(word[2..].to_owned()))),
        _ => Err(format!("unrecognized option '{word}'")),
    }
}

/// Parses `newer` and `newerXY`: X and Y are letters of times, Y may be `t` for a date.
fn newer(name: &str) -> Option<Result<Key, String>> {
    let letters = name.strip_prefix("newer")?.as_bytes();
    let is_time = |letter: u8| super::predicate::Stamp::from_letter(letter).is_some();
    Some(match letters {
        [] => Ok(Key::Newer(b'm', b'm')),
        [x, y] if is_time(*x) && (is_time(*y) || *y == b't') => Ok(Key::Newer(*x, *y)),
        _ => Err(format!("unrecognized option '--{name}'")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lfs::getopt::words_of;

    fn options(line: &str) -> Result<Vec<(Key, bool, String)>, String> {
        let parsed = parse(&words_of(line.as_bytes()))?;
        assert_eq!(parsed.paths, ["dir"], "{line}");
        Ok(parsed.options.into_iter().map(|given| (given.key, given.negated, given.value)).collect())
    }

    fn one(key: Key, negated: bool, value: &str) -> Result<Vec<(Key, bool, String)>, String> {
        Ok(vec![(key, negated, value.to_owned())])
    }

    #[test]
    fn options_have_one_dash_or_two_or_a_letter_and_may_be_cut_short() {
        for line in [
            "dir -name x",
            "dir --name x",
            "dir -n x",
            "dir --name=x",
            "dir -nx",
            "-name x dir",
            "dir --na x",
        ] {
            assert_eq!(options(line), one(Key::Name, false, "x"), "{line}");
        }
        for line in ["dir -stripe-count -1", "dir -c -1", "dir -c-1", "dir --stripe-c=-1"] {
            assert_eq!(options(line), one(Key::StripeCount, false, "-1"), "{line}");
        }
        assert_eq!(options("dir -print0"), one(Key::Print0, false, ""));
        assert_eq!(options("dir --foreign=symlink"), one(Key::Foreign, false, "symlink"));
        assert_eq!(options("dir --foreign"), one(Key::Foreign, false, ""));
        assert_eq!(options("dir --comp-end 4M"), one(Key::ComponentEnd, false, "4M"));
        assert_eq!(options("dir -newer ref"), one(Key::Newer(b'm', b'm'), false, "ref"));
        assert_eq!(options("dir -newerBt 2026-01-01"), one(Key::Newer(b'B', b't'), false, "2026-01-01"));
    }

    #[test]
    fn negation_is_for_the_next_option() {
        assert_eq!(options("dir ! -name x"), one(Key::Name, true, "x"));
        assert_eq!(options("dir -not -name x"), one(Key::Name, true, "x"));
        assert_eq!(options("dir ! ! -name x"), one(Key::Name, false, "x"));
        assert_eq!(
            options("dir ! -t f -n x").expect("two").iter().map(|o| o.1).collect::<Vec<_>>(),
            [true, false]
        );
    }

    #[test]
    fn wrong_lines_are_told() {
        for (line, message) in [
            ("dir --bogus", "unrecognized option '--bogus'"),
            ("dir -newerxy ref", "unrecognized option '--newerxy'"),
            ("dir -newertm ref", "unrecognized option '--newertm'"),
            ("dir --stripe 4", "option '--stripe' is ambiguous"),
            ("dir -name", "option '-name' requires an argument"),
            ("dir --lazy=1", "option '--lazy=1' doesn't allow an argument"),
            ("dir -t f other", "filename|dirname must either precede options or follow options"),
            ("! dir", "'!' must be before an option, not 'dir'"),
            ("dir !", "'!' must be before an option"),
        ] {
            assert_eq!(parse(&words_of(line.as_bytes())).expect_err(line), message);
        }
    }
}
