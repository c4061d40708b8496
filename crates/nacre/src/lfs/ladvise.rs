//! `lfs ladvise`: gives advice about future access to data.

use super::getopt::{self, OptionSpec, Parsed, Takes, opt};
use super::number::parse_bytes;
use super::{Command, Failure, Outcome, Run, mounted};
use nacre_types::ioctl::Advise;

/// Text of `--help` and of a wrong call.
const USAGE: &str = "\
usage: lfs ladvise -a ADVICE [-s START] [-e END | -l LENGTH] [-m READ|WRITE] [-b] FILE...
  -a, --advice ADVICE   willread: the servers start to read the range into their memory
                        dontneed: they drop the range from memory
                        lockahead: this mount requests locks on exactly this range
                        (locknoexpand concerns an open file, and is not supported ahead of time)
  -m, --mode MODE       mode of the locks of lockahead: READ or WRITE
  -b, --background      lockahead without waiting for other mounts
  -s, --start START     first byte (default: beginning of the file)
  -e, --end END         byte after the range (default: end of the file)
  -l, --length LENGTH   length in bytes, instead of -e
  Sizes take the suffixes k M G T P E.
Example: lfs ladvise -a willread -s 0 -e 1G /mnt/nacre/file
";

const OPTIONS: &[OptionSpec] = &[
    opt('a', "advice", Takes::Value),
    opt('s', "start", Takes::Value),
    opt('e', "end", Takes::Value),
    opt('l', "length", Takes::Value),
    opt('m', "mode", Takes::Value),
    opt('b', "background", Takes::Nothing),
    opt('u', "unset", Takes::Nothing),
    getopt::HELP,
];

/// Lustre's words for advice; the position of each, from 1, is its number.
const ADVICE: [&str; 5] = ["willread", "dontneed", "locknoexpand", "lockahead", "ahead"];
const LOCKAHEAD: u16 = 4;

/// Entry of `lfs ladvise` in the table of commands.
pub const COMMAND: Command =
    Command { name: "ladvise", summary: "give I/O hints", usage: USAGE, run: Run::Parsed(OPTIONS, run) };

/// Runs the command.
fn run(parsed: &Parsed) -> Outcome {
    let wrong = |message: String| Failure::usage(format!("lfs: {message}"), USAGE);
    let valid = format!("Valid types: {}", ADVICE.join(" "));
    let Some(word) = parsed.value('a') else {
        return Err(wrong(format!("please specify the advice type\n{valid}")));
    };
    let advice = match ADVICE.iter().position(|known| *known == word) {
        Some(place) => place as u16 + 1,
        None => return Err(wrong(format!("invalid advice type '{word}'\n{valid}"))),
    };
    let bytes = |key: char, what: &str| match parsed.value(key) {
        None => Ok(None),
        Some(text) => parse_bytes(text).map(Some).ok_or_else(|| wrong(format!("bad {what} '{text}'"))),
    };
    let (start, end, length) =
        (bytes('s', "start offset")?, bytes('e', "end offset")?, bytes('l', "length")?);
    if end.is_some() && length.is_some() {
        return Err(wrong("can't set both of end offset and length".to_owned()));
    }
    if ADVICE[advice as usize - 1] == "locknoexpand" {
        let what = "Lock no expand advice is a per file descriptor advice, so when called from lfs, it does nothing.";
        return Err(wrong(what.to_owned()));
    }
    let start = start.unwrap_or(0);
    let end = length.map_or(end.unwrap_or(u64::MAX), |length| start.saturating_add(length));
    if end <= start {
        return Err(wrong(format!("range [{start}, {end}] is invalid")));
    }
    let mode = match (parsed.value('m'), advice == LOCKAHEAD) {
        (None, false) => 0,
        (Some("READ"), true) => 1,
        (Some("WRITE"), true) => 2,
        (None, true) => return Err(wrong("mode is required with lockahead".to_owned())),
        (Some("READ" | "WRITE"), false) => {
            return Err(wrong("mode is only valid with lockahead".to_owned()));
        }
        (Some(mode), _) => {
            return Err(wrong(format!("bad mode '{mode}', valid modes are READ or WRITE")));
        }
    };
    let flags = u32::from(parsed.has('b') && advice == LOCKAHEAD);
    if parsed.operands.is_empty() {
        return Err(wrong("please give one or more file names".to_owned()));
    }
    super::for_each(&parsed.operands, |path| {
        mounted::advise(path, &Advise { advice, mode, flags, start, end }).map_err(|error| {
            Failure::of(&error, format!("lfs: cannot give advice '{word}' to file '{}'", path.display()))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lfs::getopt::words_of;

    #[test]
    fn wrong_calls_are_told_as_lustre_does() {
        for (line, message) in [
            (
                "-a foo f1",
                "lfs: invalid advice type 'foo'\nValid types: willread dontneed locknoexpand lockahead ahead",
            ),
            (
                "f1",
                "lfs: please specify the advice type\nValid types: willread dontneed locknoexpand lockahead ahead",
            ),
            ("-a willread", "lfs: please give one or more file names"),
            ("-a willread -s x f", "lfs: bad start offset 'x'"),
            ("-a willread -e x f", "lfs: bad end offset 'x'"),
            ("-a willread -l x f", "lfs: bad length 'x'"),
            ("-a willread -e 1 -l 1 f", "lfs: can't set both of end offset and length"),
            ("-a willread -s 2k -e 1k f", "lfs: range [2048, 1024] is invalid"),
            ("-a willread -l 0 f", "lfs: range [0, 0] is invalid"),
            ("-a lockahead f", "lfs: mode is required with lockahead"),
            ("-a lockahead -m X f", "lfs: bad mode 'X', valid modes are READ or WRITE"),
            ("-a willread -m READ f", "lfs: mode is only valid with lockahead"),
            (
                "-a locknoexpand f",
                "lfs: Lock no expand advice is a per file descriptor advice, so when called from lfs, it does nothing.",
            ),
        ] {
            let failure = COMMAND.run(&words_of(line.as_bytes())).expect_err(line);
            assert_eq!((failure.exit, failure.message.as_str()), (4, message), "{line}");
        }
    }
}
