//! Command lines as `getopt_long` parses them, because scripts rely on its rules: options and operands in any
//! order, values attached or separate, long names abbreviated while they stay unique, `--` ends the options.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Whether an option takes a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Takes {
    /// Never takes a value.
    Nothing,
    /// Always takes a value: attached, after `=`, or the next word.
    Value,
    /// May take a value, attached or after `=`.
    MaybeValue,
}

/// An option. Several entries may share a `key`: aliases.
#[derive(Clone, Copy, Debug)]
pub struct OptionSpec {
    /// Key by which the program queries it; the short letter where there is one.
    pub key: char,
    /// One-letter form.
    pub short: Option<char>,
    /// Long form without dashes; empty if there is none.
    pub long: &'static str,
    /// Whether it takes a value.
    pub takes: Takes,
}

impl OptionSpec {
    /// Returns the option for the grammar of completions.
    pub fn grammar(&self) -> clap::Arg {
        /// Identifiers of options without a long name.
        const LETTERS: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
        let letter = self.short.and_then(|letter| LETTERS.find(letter)).map(|at| &LETTERS[at..=at]);
        let arg = clap::Arg::new(if self.long.is_empty() { letter.unwrap_or_default() } else { self.long });
        let arg = match self.takes {
            Takes::Nothing => arg.action(clap::ArgAction::SetTrue),
            Takes::Value => arg.num_args(1),
            Takes::MaybeValue => arg.num_args(0..=1),
        };
        let arg = self.short.into_iter().fold(arg, clap::Arg::short);
        if self.long.is_empty() { arg } else { arg.long(self.long) }
    }
}

/// Returns an option with a short letter that is also its key.
pub const fn opt(short: char, long: &'static str, takes: Takes) -> OptionSpec {
    OptionSpec { key: short, short: Some(short), long, takes }
}

/// Returns an option with a long name only.
pub const fn long(key: char, long: &'static str, takes: Takes) -> OptionSpec {
    OptionSpec { key, short: None, long, takes }
}

/// The help option of every command whose short letter is not taken.
pub const HELP: OptionSpec = OptionSpec { key: '?', ..opt('h', "help", Takes::Nothing) };

/// Parsed arguments: options in order with their values, then operands in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// Pairs of key and value in the order given.
    pub options: Vec<(char, Option<String>)>,
    /// Operands in the order given.
    pub operands: Vec<OsString>,
}

impl Parsed {
    /// Returns true if the option was given.
    pub fn has(&self, key: char) -> bool {
        self.options.iter().any(|(k, _)| *k == key)
    }

    /// Returns the value of the option's last occurrence.
    pub fn value(&self, key: char) -> Option<&str> {
        self.options.iter().rev().find(|(k, _)| *k == key).and_then(|(_, v)| v.as_deref())
    }
}

/// Parses `args`, which do not include the command's own name.
///
/// # Errors
/// The message that `getopt_long` prints after `PROGRAM: `.
pub fn parse(args: &[OsString], specs: &[OptionSpec]) -> Result<Parsed, String> {
    let mut parsed = Parsed::default();
    let mut words = args.iter();
    while let Some(word) = words.next() {
        match word.as_bytes() {
            b"--" => {
                parsed.operands.extend(words.by_ref().cloned());
            }
            [b'-', b'-', name @ ..] => {
                let (key, value) = parse_long(name, &mut words, specs)?;
                parsed.options.push((key, value));
            }
            [b'-', letters @ ..] if !letters.is_empty() => {
                parse_short(letters, &mut words, specs, &mut parsed.options)?;
            }
            _ => parsed.operands.push(word.clone()),
        }
    }
    Ok(parsed)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn parse_long<'a>(
    name: &[u8],
    words: &mut impl Iterator<Item = &'a OsString>,
    specs: &[OptionSpec],
) -> Result<(char, Option<String>), String> {
    let (name, value) = match name.iter().position(|&b| b == b'=') {
        Some(at) => (text(&name[..at]), Some(text(&name[at + 1..]))),
        None => (text(name), None),
    };
    let spec = find_long(&name, specs)?;
    let long = spec.long;
    match (spec.takes, value) {
        (Takes::Nothing, Some(_)) => Err(format!("option '--{long}' doesn't allow an argument")),
        (Takes::Value, None) => match words.next() {
            Some(word) => Ok((spec.key, Some(text(word.as_bytes())))),
            None => Err(format!("option '--{long}' requires an argument")),
        },
        (_, value) => Ok((spec.key, value)),
    }
}

/// Returns the option with this exact name, or the only one (by key) that starts with it.
fn find_long<'a>(name: &str, specs: &'a [OptionSpec]) -> Result<&'a OptionSpec, String> {
    // `--comp-x` and `--component-x` are aliases.
    let other = name.strip_prefix("comp-").map(|rest| format!("component-{rest}"));
    let is = |spec: &&OptionSpec, name: &str| !spec.long.is_empty() && spec.long == name;
    if let Some(spec) = specs.iter().find(|s| is(s, name) || other.as_deref().is_some_and(|o| is(s, o))) {
        return Ok(spec);
    }
    let begins = |spec: &&OptionSpec| {
        !spec.long.is_empty()
            && (spec.long.starts_with(name) || other.as_deref().is_some_and(|o| spec.long.starts_with(o)))
    };
    let mut matches = specs.iter().filter(begins);
    let Some(first) = matches.next() else {
        return Err(format!("unrecognized option '--{name}'"));
    };
    if matches.clone().all(|spec| spec.key == first.key) {
        return Ok(first);
    }
    let all: Vec<String> =
        std::iter::once(first).chain(matches).map(|spec| format!("'--{}'", spec.long)).collect();
    Err(format!("option '--{name}' is ambiguous; possibilities: {}", all.join(" ")))
}

fn parse_short<'a>(
    letters: &[u8],
    words: &mut impl Iterator<Item = &'a OsString>,
    specs: &[OptionSpec],
    options: &mut Vec<(char, Option<String>)>,
) -> Result<(), String> {
    for (index, &letter) in letters.iter().enumerate() {
        let letter = char::from(letter);
        let Some(spec) = specs.iter().find(|spec| spec.short == Some(letter)) else {
            return Err(format!("invalid option -- '{letter}'"));
        };
        let rest = &letters[index + 1..];
        let value = match spec.takes {
            Takes::Nothing => {
                options.push((spec.key, None));
                continue;
            }
            Takes::MaybeValue if rest.is_empty() => None,
            Takes::Value if rest.is_empty() => match words.next() {
                Some(word) => Some(text(word.as_bytes())),
                None => return Err(format!("option requires an argument -- '{letter}'")),
            },
            Takes::Value | Takes::MaybeValue => Some(text(rest)),
        };
        options.push((spec.key, value));
        return Ok(());
    }
    Ok(())
}

/// Splits a line into words at blanks, for the interactive mode.
pub fn words_of(line: &[u8]) -> Vec<OsString> {
    line.split(|b| b.is_ascii_whitespace())
        .filter(|word| !word.is_empty())
        .map(|word| OsString::from_vec(word.to_vec()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPECS: &[OptionSpec] = &[
        opt('c', "stripe-count", Takes::Value),
        opt('S', "stripe-size", Takes::Value),
        opt('N', "mirror-count", Takes::MaybeValue),
        opt('d', "delete", Takes::Nothing),
        opt('I', "component-id", Takes::Value),
        long('1', "component-flags", Takes::Value),
    ];

    fn run(line: &str) -> Result<Parsed, String> {
        parse(&words_of(line.as_bytes()), SPECS)
    }

    fn options(line: &str) -> Vec<(char, Option<String>)> {
        run(line).expect(line).options
    }

    fn with(key: char, value: &str) -> (char, Option<String>) {
        (key, Some(value.to_owned()))
    }

    #[test]
    fn values_are_glued_or_apart_and_may_begin_with_a_dash() {
        for line in ["-c -1 f", "-c-1 f", "--stripe-count=-1 f", "--stripe-count -1 f", "f -c -1"] {
            assert_eq!(options(line), [with('c', "-1")], "{line}");
            assert_eq!(run(line).expect(line).operands, ["f"], "{line}");
        }
        assert_eq!(options("-dc2"), [('d', None), with('c', "2")]);
        assert_eq!(options("-N2 -N x"), [with('N', "2"), ('N', None)]);
        assert_eq!(run("-c 1 -- -d").expect("operands").operands, ["-d"]);
        assert_eq!(run("-").expect("a dash is an operand").operands, ["-"]);
    }

    #[test]
    fn long_names_may_be_abbreviated_while_unique() {
        assert_eq!(options("--stripe-c 4"), [with('c', "4")]);
        assert_eq!(options("--del"), [('d', None)]);
        assert_eq!(options("--comp-flags init --comp-id=2"), [with('1', "init"), with('I', "2")]);
        let error = run("--stripe 4").expect_err("ambiguous");
        assert_eq!(error, "option '--stripe' is ambiguous; possibilities: '--stripe-count' '--stripe-size'");
    }

    #[test]
    fn errors_read_like_getopt() {
        assert_eq!(run("--bogus q1").expect_err("unknown"), "unrecognized option '--bogus'");
        assert_eq!(run("-X").expect_err("unknown"), "invalid option -- 'X'");
        assert_eq!(run("-c").expect_err("no value"), "option requires an argument -- 'c'");
        assert_eq!(
            run("--stripe-size").expect_err("no value"),
            "option '--stripe-size' requires an argument"
        );
        assert_eq!(run("--delete=1").expect_err("value"), "option '--delete' doesn't allow an argument");
    }
}
