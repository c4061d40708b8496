//! Meaning of the options of `lfs getstripe`.

use super::{NAME, USAGE};
use crate::lfs::Failure;
use crate::lfs::getopt::Parsed;
use crate::lfs::number::{parse_bytes, parse_unsigned};
use crate::lfs::render::{Fields, Filter, Relation, Style};
use crate::lfs::view::parse_flags;
use std::ffi::OsString;

/// Moves `!` from its place before an option to the option's value; only options of mirrors can be negated.
pub fn with_negations(args: &[OsString]) -> Vec<OsString> {
    let mut words = Vec::with_capacity(args.len());
    let mut args = args.iter();
    while let Some(word) = args.next() {
        if word != "!" {
            words.push(word.clone());
            if word == "--" {
                words.extend(args.by_ref().cloned());
            }
            continue;
        }
        let Some(option) = args.next() else { break };
        let text = option.to_string_lossy();
        match text.split_once('=').filter(|(name, _)| name.starts_with("--mirror-i")) {
            Some((name, value)) => words.push(format!("{name}=!{value}").into()),
            None => {
                words.push(option.clone());
                if text.starts_with("--mirror-i")
                    && let Some(value) = args.next()
                {
                    words.push(format!("!{}", value.to_string_lossy()).into());
                }
            }
        }
    }
    words
}

/// Depth of the output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// The named path itself.
    Itself,
    /// Also the entries of a directory: the files, and the directories themselves.
    Files,
    /// The whole tree.
    Tree,
}

/// Returns the style. Options apply in the order in which they are given: `-v` selects all fields, after
/// which single ones cannot be chosen.
pub fn style_of(parsed: &Parsed) -> (Style, Level) {
    let mut fields = Fields::default();
    let mut level = Level::Files;
    for (key, value) in &parsed.options {
        let field = match key {
            'c' | 'C' => Fields::COUNT,
            'S' => Fields::SIZE,
            'i' => Fields::OFFSET,
            'L' => Fields::PATTERN,
            'g' => Fields::GENERATION,
            'p' => Fields::POOL,
            'F' => Fields::FID,
            'N' => Fields::MIRROR_COUNT,
            'z' => Fields::EXTENSION_SIZE,
            'm' | 'M' => Fields::MDT_INDEX,
            '1' => Fields::COMPONENT_COUNT,
            // With a value, these options select components and not fields.
            'I' if value.is_none() => Fields::COMPONENT_ID,
            '2' if value.is_none() => Fields::COMPONENT_FLAGS,
            '3' if value.is_none() => Fields::COMPONENT_START,
            'E' if value.is_none() => Fields::COMPONENT_END,
            'v' => {
                fields = Fields::ALL.with(Fields::DETAIL);
                continue;
            }
            _ => continue,
        };
        if !fields.has(Fields::DETAIL) || field == Fields::MDT_INDEX {
            fields = fields.with(field);
        }
        level = Level::Itself;
    }
    if fields.has(Fields::DETAIL) {
        level = Level::Files;
    }
    if parsed.has('q') {
        fields = Fields::OBJECTS;
    }
    if fields.is_empty() {
        fields = Fields::ALL;
    }
    if parsed.has('d') {
        level = Level::Itself;
    }
    if parsed.has('r') {
        level = Level::Tree;
    }
    let style = Style {
        fields,
        path: level != Level::Itself || fields.has(Fields::DETAIL),
        yaml: parsed.has('y'),
        hex_index: parsed.has('H'),
        raw: parsed.has('R'),
        ost: None,
    };
    (style, level)
}

/// Returns the filter of the options with values.
pub fn filter_of(parsed: &Parsed) -> Result<Filter, Failure> {
    fn given<T>(
        text: Option<&str>,
        read: impl Fn(&str) -> Option<T>,
        failure: impl Fn(&str) -> Failure,
    ) -> Result<Option<T>, Failure> {
        text.map(|text| read(text).ok_or_else(|| failure(text))).transpose()
    }
    let bare = |text: &str| text.trim_start_matches('!').trim_start_matches(['+', '-']).to_owned();
    let bad = |what: &str, text: &str, end: &str| {
        Failure::usage(format!("error: getstripe bad component {what} '{text}'{end}"), USAGE)
    };
    let id = |text: &str| {
        parse_unsigned(text).and_then(|id| u32::try_from(id).ok()).filter(|id| (1..=ID_MAX).contains(id))
    };
    if parsed.has('4') && parsed.has('5') {
        let message = format!("{NAME}: can't specify both mirror index and mirror ID");
        return Err(Failure::usage(message, USAGE));
    }
    let invalid = |what: &'static str| {
        move |text: &str| Failure::usage(format!("{NAME}: invalid mirror {what} '{}'", bare(text)), USAGE)
    };
    Ok(Filter {
        id: given(parsed.value('I'), id, |text| bad("id", text, ""))?,
        flags: given(parsed.value('2'), parse_flags, |text| bad("flags", text, "."))?,
        start: given(
            parsed.value('3'),
            |text| relation(text, size_and_unit),
            |text| bad("start", &bare(text), "."),
        )?,
        end: given(
            parsed.value('E'),
            |text| relation(text, end_and_unit),
            |text| bad("end", &bare(text), "."),
        )?,
        mirror_index: given(parsed.value('4'), mirror, invalid("index"))?,
        mirror_id: given(parsed.value('5'), mirror, invalid("ID"))?,
    })
}

/// Largest id of a component.
const ID_MAX: u32 = 0xffff;

/// Parses a size in bytes; returns it with the unit of the suffix.
fn size_and_unit(text: &str) -> Option<(u64, u64)> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic() && !text.starts_with("0x"));
    let number = parse_unsigned(digits)?;
    let bytes = parse_bytes(text)?;
    Some((bytes, bytes.checked_div(number).unwrap_or(1).max(1)))
}

/// Parses the end of an extent likewise; small numbers are KiB, and the end of files is a number too.
fn end_and_unit(text: &str) -> Option<(u64, u64)> {
    if matches!(text, "-1" | "eof" | "EOF") {
        return Some((u64::MAX, 1));
    }
    let (bytes, unit) = size_and_unit(text)?;
    Some((if bytes < 4096 { bytes << 10 } else { bytes }, unit))
}

/// Parses a number after `+` for more or `-` for less.
fn relation(text: &str, read: impl Fn(&str) -> Option<(u64, u64)>) -> Option<Relation> {
    // The end of files may be written as -1.
    if let Some((u64::MAX, unit)) = read(text) {
        return Some(Relation::Is(u64::MAX, unit));
    }
    match text.split_at_checked(1)? {
        ("+", rest) => read(rest).map(|(value, _)| Relation::Over(value)),
        ("-", rest) => read(rest).map(|(value, unit)| Relation::Under(value, unit)),
        _ => read(text).map(|(value, unit)| Relation::Is(value, unit)),
    }
}

/// Parses the number of a mirror, from 1; `!` excludes it.
fn mirror(text: &str) -> Option<(bool, Relation)> {
    let (not, rest) = text.strip_prefix('!').map_or((false, text), |rest| (true, rest));
    let number = |text: &str| parse_unsigned(text).filter(|n| *n <= u64::from(u16::MAX)).map(|n| (n, 1));
    match relation(rest, number)? {
        Relation::Is(0, _) if !not => None,
        relation => Some((not, relation)),
    }
}

#[cfg(test)]
mod tests;
