//! The values that parameters accept, as far as the rule is the same on every node.

use crate::value;
use nacre_types::limits::POOL_NAME_MAX;
use nacre_types::{Status, StatusResult};
use std::fmt;

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;
/// Largest size that can be written, in bytes.
pub(crate) const SIZE_MAX: u64 = 1 << 63;
/// Text for "unlimited".
pub(crate) const U64_MAX: &str = "18446744073709551615";
/// Longest name of an environment variable that contains a job id, in bytes.
const VARIABLE_MAX: usize = 64;

/// Longest format of job ids, in bytes.
const JOB_FORMAT_MAX: usize = 64;

/// Words of Lustre's `debug` for each level of the log, from the least to the most verbose.
pub const LOG_WORDS: [&[&str]; 5] = [
    &["error", "emerg", "0"],
    &["warn", "warning"],
    &["info", "ha", "config", "console"],
    &["debug", "neterror", "net", "inode", "super", "dlmtrace", "ioctl", "other"],
    &["trace", "vfstrace", "rpctrace", "malloc", "page", "-1"],
];

/// The values that a parameter accepts.
#[derive(Clone, Copy)]
pub(crate) enum Rule {
    /// Any text: only the node can check it.
    Anything,
    /// 0 or 1, in any of the accepted spellings.
    Truth,
    /// A whole number from the first to the second, inclusive.
    Number(i64, i64),
    /// The word, or a whole number from the first to the second, inclusive.
    NumberOr(&'static str, i64, i64),
    /// 0 to 100, with or without a percent sign.
    Percent,
    /// Seconds up to this bound, with or without `Sec`.
    Seconds(i64),
    /// A number of bytes; without a suffix in multiples of `unit`. Bounds and step are in bytes.
    Size { unit: u64, min: u64, max: u64, step: u64 },
    /// The word, or a number of bytes.
    SizeOr(&'static str, u64, u64),
    /// One of the words.
    Words(&'static [&'static str]),
    /// Texts that the function accepts, and a description of them.
    Form(fn(&str) -> bool, &'static str),
}

impl Rule {
    /// Checks a value.
    ///
    /// # Errors
    /// `EINVAL` for a malformed value, `ERANGE` for one out of range.
    pub(crate) fn check(self, text: &str) -> StatusResult<()> {
        let text = text.trim();
        match self {
            Rule::Anything => Ok(()),
            Rule::NumberOr(word, ..) | Rule::SizeOr(word, ..) if word == text => Ok(()),
            Rule::Truth => value::truth(text).map(drop),
            Rule::Number(min, max) | Rule::NumberOr(_, min, max) => value::integer(text, min, max).map(drop),
            Rule::Percent => value::integer(text.strip_suffix('%').unwrap_or(text), 0, 100).map(drop),
            Rule::Seconds(max) => value::integer(text.strip_suffix("Sec").unwrap_or(text), 0, max).map(drop),
            Rule::Size { unit, min, max, step } => match value::bytes(text, unit)? {
                bytes if !bytes.is_multiple_of(step) => Err(Status::EINVAL),
                bytes if (min..=max).contains(&bytes) => Ok(()),
                _ => Err(Status::ERANGE),
            },
            Rule::SizeOr(_, min, max) => Rule::Size { unit: 1, min, max, step: 1 }.check(text),
            Rule::Words(words) => words.contains(&text).then_some(()).ok_or(Status::EINVAL),
            Rule::Form(fits, _) => fits(text).then_some(()).ok_or(Status::EINVAL),
        }
    }
}

/// Formats a size in the largest unit that divides it.
fn size(bytes: u64) -> String {
    let units = [(60, "E"), (50, "P"), (40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let fits = units.iter().find(|(shift, _)| bytes != 0 && bytes.is_multiple_of(1 << shift));
    fits.map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Rule::Anything => f.write_str("anything"),
            Rule::Truth => f.write_str("0 or 1"),
            Rule::Number(min, i64::MAX) => write!(f, "a number from {min}"),
            Rule::Number(min, max) => write!(f, "a number from {min} to {max}"),
            Rule::NumberOr(word, min, max) => write!(f, "{word}, or a number from {min} to {max}"),
            Rule::Percent => f.write_str("percent from 0 to 100"),
            Rule::Seconds(max) => write!(f, "seconds from 0 to {max}"),
            Rule::Size { unit, min, max, step } => {
                match max {
                    SIZE_MAX => write!(f, "a size from {}", size(min))?,
                    max => write!(f, "a size from {} to {}", size(min), size(max))?,
                }
                if step > 1 {
                    write!(f, " in whole {}", size(step))?;
                }
                if unit > 1 {
                    write!(f, " (a number counts {})", size(unit))?;
                }
                Ok(())
            }
            Rule::SizeOr(word, min, SIZE_MAX) => write!(f, "{word}, or a size from {}", size(min)),
            Rule::SizeOr(word, min, max) => {
                write!(f, "{word}, or a size from {} to {}", size(min), size(max))
            }
            Rule::Words(words) => f.write_str(&words.join(", ")),
            Rule::Form(_, what) => f.write_str(what),
        }
    }
}

pub(crate) fn is_pool_or_none(text: &str) -> bool {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
    (1..=POOL_NAME_MAX).contains(&text.len()) && text.chars().all(fits)
}

pub(crate) const JOB_VARIABLES: &str = "disable, procname_uid, nodelocal, or the name of a variable";

pub(crate) fn is_job_variable(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=VARIABLE_MAX).contains(&text.len())
        && text.bytes().all(is_word)
        && !text.starts_with(|letter: char| letter.is_ascii_digit())
        && text != "session"
}

/// Returns whether this is a format of job ids (`jobid_name`): a text with the codes `%e`, `%u`, `%g`, `%p`,
/// `%h`, `%H`, `%j`, `%?` and `%%`.
pub fn is_job_format(text: &str) -> bool {
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter == '%' && !letters.next().is_some_and(|code| "eugphHj?%".contains(code)) {
            return false;
        }
    }
    (1..=JOB_FORMAT_MAX).contains(&text.len())
}

pub(crate) fn is_log_mask(text: &str) -> bool {
    let is_word = |word: &str| {
        let word = word.to_lowercase();
        let named = word.strip_prefix('+').or_else(|| word.strip_prefix('-').filter(|_| word != "-1"));
        LOG_WORDS.iter().any(|words| words.contains(&named.unwrap_or(&word)))
    };
    !text.trim().is_empty() && text.split_whitespace().all(is_word)
}

pub(crate) fn is_hold(text: &str) -> bool {
    match text.split_whitespace().collect::<Vec<_>>()[..] {
        ["none"] => true,
        ["before" | "locked" | "after", which] => which
            .parse::<u64>()
            .map_or_else(|_| which.bytes().all(|letter| letter.is_ascii_alphabetic()), |number| number > 0),
        _ => false,
    }
}

pub(crate) fn is_changelog_mask(text: &str) -> bool {
    nacre_types::ChangeMask::parse(text, nacre_types::ChangeMask::DEFAULT).is_ok()
}

pub(crate) fn is_service_time(text: &str) -> bool {
    let is_part = |part: &str| matches!(part.split_once('='), Some(("time" | "at_once", _)));
    matches!(text, "off" | "0") || text.split(':').all(is_part)
}

pub(crate) fn is_short_io(text: &str) -> bool {
    matches!(text, "0" | "-1") || Rule::SizeOr("0", 64, 64 * KIB).check(text).is_ok()
}
