//! `lfs setstripe`: makes a file with a layout, or sets the layout of an empty file or the default of a directory.
//!
//! Everything that can be judged from the command line is judged before anything is opened, so that a bad argument
//! leaves no file behind. Source: reference 2.1.

use super::getopt::{OptionSpec, Parsed, Takes, long, opt};
use super::mounted::{self, Mounted};
use super::number::{parse_signed, parse_stripe_size};
use super::view::LayoutView;
use super::{Failure, Outcome};
use nacre_layout::layout::STRIPE_COUNT_ALL;
use nacre_layout::{LayoutSpec, user};
use nacre_types::Fid;
use nacre_types::limits::{POOL_NAME_MAX, STRIPE_COUNT_MAX, STRIPE_SIZE_MIN, TARGET_INDEX_MAX};
use std::ffi::OsString;
use std::io;
use std::path::Path;

/// What `--help` and a wrong call print.
pub const USAGE: &str = "\
usage: lfs setstripe [-c COUNT] [-S SIZE] [-i INDEX] [--mode MODE] [--copy SOURCE] FILE|DIR...
       lfs setstripe -d DIR...
  -c, --stripe-count COUNT   OSTs to stripe over: 0 default, -1 all
  -S, --stripe-size SIZE     bytes on one OST before the next: 0 default, a multiple of 64 KiB below
                             4 GiB; suffixes k M G, numbers below 4096 are KiB
  -i, --stripe-index INDEX   OST of the first stripe: -1 lets the server choose
  -d, --delete               remove the default layout of a directory
      --mode MODE            permissions of a new file, octal
      --copy SOURCE          take the layout of SOURCE
Example: lfs setstripe -c 4 -S 1M /mnt/nacre/wide
";

const OPTIONS: &[OptionSpec] = &[
    opt('c', "stripe-count", Takes::Value),
    opt('S', "stripe-size", Takes::Value),
    opt('i', "stripe-index", Takes::Value),
    long('i', "stripe-offset", Takes::Value),
    opt('p', "pool", Takes::Value),
    opt('L', "layout", Takes::Value),
    opt('d', "delete", Takes::Nothing),
    opt('h', "help", Takes::Nothing),
    long('m', "mode", Takes::Value),
    long('Y', "copy", Takes::Value),
    // Known to Lustre, named in the refusal.
    opt('C', "overstripe-count", Takes::Value),
    opt('o', "ost", Takes::Value),
    long('o', "ost-list", Takes::Value),
    opt('E', "component-end", Takes::Value),
    opt('z', "extension-size", Takes::Value),
    long('z', "ext-size", Takes::Value),
    opt('N', "mirror-count", Takes::MaybeValue),
    opt('f', "file", Takes::Value),
    opt('I', "component-id", Takes::Value),
    opt('y', "yaml", Takes::Value),
    opt('x', "xattr", Takes::Value),
    long('1', "component-flags", Takes::Value),
    long('2', "component-add", Takes::Nothing),
    long('3', "component-del", Takes::Nothing),
    long('4', "component-set", Takes::Nothing),
    long('5', "foreign", Takes::MaybeValue),
    long('6', "flags", Takes::Value),
    long('7', "ec", Takes::Value),
    long('8', "ec-expert", Takes::Value),
];

/// Options of later kinds of layouts, and what they are for.
const UNSUPPORTED: &[(char, &str, &str)] = &[
    ('C', "-C", "overstriping"),
    ('o', "-o", "an exact list of OSTs"),
    ('E', "-E", "composite layouts"),
    ('z', "-z", "self-extending layouts"),
    ('N', "-N", "mirrors"),
    ('f', "-f", "mirrors"),
    ('I', "-I", "composite layouts"),
    ('y', "--yaml", "layout templates"),
    ('x', "--xattr", "foreign layouts"),
    ('1', "--component-flags", "composite layouts"),
    ('2', "--component-add", "composite layouts"),
    ('3', "--component-del", "composite layouts"),
    ('4', "--component-set", "composite layouts"),
    ('5', "--foreign", "foreign layouts"),
    ('6', "--flags", "foreign layouts"),
    ('7', "--ec", "parity"),
    ('8', "--ec-expert", "parity"),
];

const NAME: &str = "lfs setstripe";
const MODE_DEFAULT: u32 = 0o644;

/// What the command line asks for.
#[derive(Debug, PartialEq)]
pub struct Wish {
    spec: LayoutSpec,
    delete: bool,
    mode: u32,
    copy: Option<String>,
    paths: Vec<OsString>,
}

/// Runs the command.
pub fn run(args: &[OsString]) -> Outcome {
    let parsed = super::parse(NAME, args, OPTIONS, USAGE)?;
    if parsed.has('h') {
        return super::print_usage(USAGE);
    }
    let mut wish = plan(&parsed)?;
    if let Some(source) = &wish.copy {
        wish.spec = copied(source)?;
    }
    super::for_each(&wish.paths, |path| apply(&wish, path))
}

fn usage(message: impl std::fmt::Display) -> Failure {
    Failure::usage(format!("{NAME} setstripe: {message}"), USAGE)
}

/// Judges the command line.
fn plan(parsed: &Parsed) -> Result<Wish, Failure> {
    if let Some((_, name, what)) = UNSUPPORTED.iter().find(|(key, _, _)| parsed.has(*key)) {
        return Err(Failure::unsupported(NAME, &format!("option '{name}' ({what})")));
    }
    let mut spec = LayoutSpec::default();
    for (key, value) in &parsed.options {
        let value = value.as_deref().unwrap_or("");
        match key {
            'c' => spec.stripe_count = stripe_count(value)?,
            'S' => spec.stripe_size = stripe_size(value)?,
            'i' => spec.first_ost = stripe_index(value)?,
            'p' => check_pool(value)?,
            'L' => check_pattern(value)?,
            _ => {}
        }
    }
    let mode = match parsed.value('m') {
        None => MODE_DEFAULT,
        Some(text) => u32::from_str_radix(text, 8)
            .ok()
            .filter(|mode| *mode <= 0o7777)
            .ok_or_else(|| usage(format!("invalid mode '{text}'")))?,
    };
    let delete = parsed.has('d');
    if delete && parsed.options.len() > 1 {
        return Err(usage("cannot specify -d with other options"));
    }
    let striped = parsed.options.iter().any(|(key, _)| matches!(key, 'c' | 'S' | 'i' | 'p' | 'L'));
    if parsed.has('Y') && striped {
        return Err(usage("cannot specify --copy with stripe options"));
    }
    if parsed.operands.is_empty() {
        return Err(usage("FILE must be specified"));
    }
    let copy = parsed.value('Y').map(str::to_owned);
    Ok(Wish { spec, delete, mode, copy, paths: parsed.operands.clone() })
}

fn stripe_count(text: &str) -> Result<Option<u16>, Failure> {
    let invalid = || usage(format!("invalid stripe count '{text}'"));
    match parse_signed(text).ok_or_else(invalid)? {
        0 => Ok(None),
        -1 => Ok(Some(STRIPE_COUNT_ALL)),
        count @ 1.. if count <= i64::from(STRIPE_COUNT_MAX) => Ok(Some(count as u16)),
        _ => Err(invalid()),
    }
}

fn stripe_size(text: &str) -> Result<Option<u32>, Failure> {
    let invalid = || usage(format!("invalid stripe size '{text}'"));
    let bytes = parse_stripe_size(text).ok_or_else(invalid)?;
    if !bytes.is_multiple_of(u64::from(STRIPE_SIZE_MIN)) {
        return Err(invalid());
    }
    match u32::try_from(bytes) {
        Ok(0) => Ok(None),
        Ok(size) => Ok(Some(size)),
        Err(_) => Err(Failure::new(
            libc::EINVAL,
            format!("{NAME}: error: stripe size '{bytes}' over 4GB limit: Invalid argument (22)"),
        )),
    }
}

fn stripe_index(text: &str) -> Result<Option<u16>, Failure> {
    match parse_signed(text) {
        Some(-1) => Ok(None),
        Some(index @ 0..) if index < i64::from(TARGET_INDEX_MAX) => Ok(Some(index as u16)),
        _ => Err(usage(format!("invalid stripe offset '{text}'"))),
    }
}

/// There are no pools yet, so that only the words for "no pool" name one that exists.
fn check_pool(text: &str) -> Result<(), Failure> {
    if matches!(text, "" | "ignore" | "inherit" | "none") {
        return Ok(());
    }
    if text.len() > POOL_NAME_MAX {
        let message = format!("{NAME}: Invalid Poolname '{text}': Invalid argument (22)");
        return Err(Failure::new(libc::EINVAL, message));
    }
    let message = format!("{NAME}: pool '{text}' does not exist: No such file or directory (2)");
    Err(Failure::new(libc::EINVAL, message))
}

fn check_pattern(text: &str) -> Result<(), Failure> {
    match text {
        "raid0" => Ok(()),
        "mdt" => Err(Failure::new(
            libc::EINVAL,
            format!("{NAME}: Invalid pattern: '-L mdt', must be specified with -E: Invalid argument (22)"),
        )),
        other => Err(Failure::new(
            libc::EINVAL,
            format!("error: layout '{other}' is unknown, supported layouts are: 'mdt', 'raid0'"),
        )),
    }
}

/// The wishes that make a file like `source`.
fn copied(source: &str) -> Result<LayoutSpec, Failure> {
    let path = Path::new(source);
    let bytes = mounted::layout_of(path).map_err(|error| failed(path, &error))?;
    let Some(bytes) = bytes else {
        return Ok(LayoutSpec::default());
    };
    let what = |text: &str| {
        Failure::new(libc::EINVAL, format!("{NAME}: cannot copy the layout of '{source}': {text}"))
    };
    if !path.is_dir() {
        let view = LayoutView::decode(&bytes).map_err(what)?;
        let stripe_size = (view.stripe_size != 0).then_some(view.stripe_size);
        let stripe_count = (view.stripe_count != 0).then_some(view.stripe_count);
        return Ok(LayoutSpec { stripe_size, stripe_count, ..LayoutSpec::default() });
    }
    user::decode_spec(&bytes).map_err(|error| what(&error.to_string()))
}

fn apply(wish: &Wish, path: &Path) -> Outcome {
    let directory = path.is_dir();
    let place = match directory {
        true => path,
        false => mounted::directory_of(path),
    };
    // Asked first: on another file system nothing may be created.
    let mount = Mounted::open(place).map_err(|error| failed(path, &error))?;
    if wish.delete {
        if !directory {
            return Err(failed(path, &io::Error::from_raw_os_error(libc::ENOTDIR)));
        }
        return mounted::remove_layout(path).map_err(|error| failed(path, &error));
    }
    check_index(&mount, wish)?;
    let value = user::encode_spec(&Fid::ZERO, &wish.spec);
    let result = match directory {
        true => mounted::set_layout(path, &value),
        false => mounted::create_with_layout(path, wish.mode, &value),
    };
    result.map_err(|error| failed(path, &error))
}

/// The server would refuse an OST that does not exist; saying which there are helps more than its errno.
fn check_index(mount: &Mounted, wish: &Wish) -> Result<(), Failure> {
    let Some(index) = wish.spec.first_ost else {
        return Ok(());
    };
    let osts = mount.osts().map_err(|error| failed(mount.path(), &error))?;
    if osts.iter().any(|row| row.target.index == index) {
        return Ok(());
    }
    let fsname = mount.fsname();
    let last = osts.iter().map(|row| row.target.index).max().unwrap_or(0);
    Err(Failure::new(
        libc::EINVAL,
        format!(
            "{NAME}: OST index {index} does not exist in file system '{fsname}', the last one is {last}: Invalid argument (22)"
        ),
    ))
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    let errno = super::errno_of(error);
    let text = match errno {
        libc::EEXIST | libc::EALREADY => "stripe already set".to_owned(),
        libc::EREMOTEIO => "inactive OST among your specified N OST(s)".to_owned(),
        _ => super::error_text(errno),
    };
    Failure::new(errno, format!("{NAME}: setstripe error for '{}': {text}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lfs::getopt::{parse, words_of};

    fn wish(line: &str) -> Result<Wish, Failure> {
        plan(&parse(&words_of(line.as_bytes()), OPTIONS).expect(line))
    }

    fn refusal(line: &str) -> (i32, String) {
        let failure = wish(line).expect_err(line);
        (failure.exit, failure.message)
    }

    #[test]
    fn wishes_are_read_as_lustre_does() {
        let spec = wish("-c 4 -S 64 -i 0x1 f").expect("good").spec;
        assert_eq!((spec.stripe_count, spec.stripe_size, spec.first_ost), (Some(4), Some(65536), Some(1)));
        let spec = wish("-c -1 -S 1M -i -1 f").expect("good").spec;
        assert_eq!(
            (spec.stripe_count, spec.stripe_size, spec.first_ost),
            (Some(STRIPE_COUNT_ALL), Some(1 << 20), None)
        );
        assert!(wish("-c 0 -S 0 -i -1 f").expect("good").spec.is_empty());
        assert!(wish("-d d").expect("good").delete);
        assert_eq!(wish("--mode 600 a b").expect("good").mode, 0o600);
    }

    #[test]
    fn golden_refusals() {
        let usage_errors = [
            ("-c 5000 q1", "lfs setstripe setstripe: invalid stripe count '5000'"),
            ("-c -33 q1", "lfs setstripe setstripe: invalid stripe count '-33'"),
            ("-c abc q1", "lfs setstripe setstripe: invalid stripe count 'abc'"),
            ("-S 1000 q1", "lfs setstripe setstripe: invalid stripe size '1000'"),
            ("-S 100000 q1", "lfs setstripe setstripe: invalid stripe size '100000'"),
            ("-i -2 q1", "lfs setstripe setstripe: invalid stripe offset '-2'"),
            ("", "lfs setstripe setstripe: FILE must be specified"),
            ("-c 1", "lfs setstripe setstripe: FILE must be specified"),
        ];
        for (line, message) in usage_errors {
            assert_eq!(refusal(line), (4, message.to_owned()), "{line}");
        }
        let errors = [
            (
                "-S 5G q1",
                22,
                "lfs setstripe: error: stripe size '5368709120' over 4GB limit: Invalid argument (22)",
            ),
            (
                "-p toolongpoolname123 q1",
                22,
                "lfs setstripe: Invalid Poolname 'toolongpoolname123': Invalid argument (22)",
            ),
            (
                "-L mdt q2",
                22,
                "lfs setstripe: Invalid pattern: '-L mdt', must be specified with -E: Invalid argument (22)",
            ),
        ];
        for (line, exit, message) in errors {
            assert_eq!(refusal(line), (exit, message.to_owned()), "{line}");
        }
    }

    #[test]
    fn layouts_of_later_versions_are_refused_by_name() {
        for line in ["-E 4M f", "-N2 f", "--comp-add -E eof f", "-o 0,1 f", "-C 4 f"] {
            let (exit, message) = refusal(line);
            assert_eq!(exit, libc::EOPNOTSUPP, "{line}");
            assert!(message.contains("not supported yet"), "{message}");
        }
    }

    #[test]
    fn what_cannot_go_together_is_refused() {
        assert_eq!(refusal("-d -c 1 d").0, 4);
        assert_eq!(refusal("--copy a -c 1 d").0, 4);
        assert_eq!(refusal("--mode 9 d").0, 4);
    }
}
