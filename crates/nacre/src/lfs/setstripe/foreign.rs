//! `--foreign` of `lfs setstripe` and `lfs mkdir`: a file or directory whose layout is a text for another
//! store.

use crate::lfs::Failure;
use crate::lfs::getopt::Parsed;
use nacre_layout::user::{FOREIGN_TYPES, Foreign};
use nacre_types::limits::XATTR_VALUE_MAX;
use rustix::io::Errno;

/// Size of a foreign layout's header before the text, in bytes.
const HEADER: usize = 16;
/// Options of `lfs setstripe` that go with `--foreign`.
pub const WITH: [char; 4] = ['5', '6', 'x', 'm'];

/// Returns the failure of a wrong call.
type Usage = fn(String) -> Failure;

/// Parses the foreign layout of command `name`, if it has one; only the options `with` may be combined with
/// it.
pub fn of_options(
    parsed: &Parsed,
    name: &str,
    usage: Usage,
    with: &[char],
) -> Result<Option<Foreign>, Failure> {
    let usage = |message: &str| usage(message.to_owned());
    let flags = match parsed.value('6') {
        None => 0,
        Some(text) => hex(text).ok_or_else(|| usage(&format!("invalid hex flags '{text}'")))?,
    };
    if !parsed.has('5') {
        if parsed.has('6') {
            return Err(usage("hex flags must be specified with --foreign option"));
        }
        if parsed.has('x') {
            // A warning only, as in Lustre.
            eprintln!("{name}: xattr has been specified for non-foreign layout");
        }
        return Ok(None);
    }
    let kind = parsed.value('5').map_or(Ok(0), |text| kind_of(text, usage))?;
    let text = parsed.value('x').ok_or_else(|| usage("xattr must be provided in foreign mode"))?;
    if parsed.options.iter().any(|(key, _)| !with.contains(key)) {
        return Err(usage("only --xattr/--flags/--mode options are valid with --foreign"));
    }
    if text.is_empty() || text.len() > XATTR_VALUE_MAX - HEADER {
        return Err(Failure::new(Errno::INVAL, format!("{name}: invalid LOV EA length {}", text.len())));
    }
    Ok(Some(Foreign { kind, flags, text: text.as_bytes().to_vec() }))
}

fn hex(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    u32::from_str_radix(digits, 16).ok().filter(|flags| *flags != u32::MAX)
}

/// Parses a type: a number, or one of the names.
fn kind_of(text: &str, usage: impl Fn(&str) -> Failure) -> Result<u32, Failure> {
    let number = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse::<u64>().ok(),
    };
    match number {
        Some(number) => u32::try_from(number)
            .ok()
            .filter(|kind| *kind != u32::MAX)
            .ok_or_else(|| usage(&format!("invalid foreign type '{text}'"))),
        None => FOREIGN_TYPES
            .iter()
            .find(|(name, _)| *name == text)
            .map(|(_, kind)| *kind)
            .ok_or_else(|| usage(&format!("unrecognized foreign type '{text}'"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lfs::getopt::{parse, words_of};

    fn read(line: &str) -> Result<Option<Foreign>, (i32, String)> {
        let parsed = parse(&words_of(line.as_bytes()), super::super::OPTIONS).expect(line);
        of_options(&parsed, "lfs setstripe setstripe", super::super::usage, &WITH)
            .map_err(|failure| (failure.exit, failure.message))
    }

    #[test]
    fn foreign_layouts_are_read_as_lustre_does() {
        let foreign = |kind, flags| Ok(Some(Foreign { kind, flags, text: b"PUUID:CUUID".to_vec() }));
        assert_eq!(read("--foreign=symlink --flags 0xda08 --xattr PUUID:CUUID f"), foreign(0xda05, 0xda08));
        assert_eq!(read("--foreign --flags da08 -x PUUID:CUUID --mode 600 f"), foreign(0, 0xda08));
        assert_eq!(read("--foreign=0xda05 -x PUUID:CUUID f"), foreign(0xda05, 0));
        assert_eq!(read("--foreign=77 -x PUUID:CUUID f"), foreign(77, 0));
        assert_eq!(read("-c 1 f"), Ok(None));
        assert_eq!(read("-x text f"), Ok(None), "only a warning");
        let refusals = [
            ("--foreign f", "xattr must be provided in foreign mode"),
            ("--foreign=q -x t f", "unrecognized foreign type 'q'"),
            ("--foreign=0xffffffff -x t f", "invalid foreign type '0xffffffff'"),
            ("--foreign --flags zz -x t f", "invalid hex flags 'zz'"),
            ("--flags 1 f", "hex flags must be specified with --foreign option"),
            ("--foreign -x t -c 2 f", "only --xattr/--flags/--mode options are valid with --foreign"),
            ("--foreign -x t -d f", "only --xattr/--flags/--mode options are valid with --foreign"),
        ];
        for (line, message) in refusals {
            assert_eq!(read(line), Err((4, format!("lfs setstripe setstripe: {message}"))), "{line}");
        }
    }
}
