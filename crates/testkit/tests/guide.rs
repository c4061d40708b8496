//! The transcripts of the guide (`docs/guide`) and of the README: every command is run, and its output
//! compared.
//!
//! A chapter is a session of one shell in a directory of its own, `/home/me` in the guide. A block that
//! begins with "```console" has commands (`$ `, continued with `> `) and their output. Figures that differ
//! between runs count as equal: numbers with a unit, a fraction or at least three digits, and hexadecimal
//! ones. A line of `...` stands for any lines, `...` at the end of a line for the rest of it.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use nacre_testkit::program::run_command;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::run::Run;
use nacre_testkit::{binary, text};

/// Separates the outputs of commands.
const SEPARATOR: char = '\u{1e}';
/// Time limit for a chapter.
const CHAPTER_MAX: Duration = Duration::from_secs(240);
/// The directory of a session in the guide.
const HOME: &str = "/home/me";
/// Units that may directly follow a figure.
const UNITS: [&str; 22] = [
    "%", "s", "ms", "us", "ns", "op/s", "K", "M", "G", "T", "KiB", "MiB", "GiB", "TiB", "B", "KB", "MB",
    "GB", "MiB/s", "GiB/s", "MB/s", "GB/s",
];

/// A command and its output in the guide.
struct Step {
    command: String,
    expected: Vec<String>,
}

/// Returns the commands of a chapter.
fn steps_of(chapter: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut is_console = false;
    for line in chapter.lines() {
        match (line.strip_prefix("```"), is_console) {
            (Some(kind), false) => is_console = kind == "console",
            (Some(_), true) => is_console = false,
            (None, false) => {}
            (None, true) => match (line.strip_prefix("$ "), line.strip_prefix("> "), steps.last_mut()) {
                (Some(command), ..) => {
                    steps.push(Step { command: command.to_owned(), expected: Vec::new() });
                }
                (None, Some(more), Some(step)) => step.command += &format!("\n{more}"),
                (None, None, Some(step)) => step.expected.push(line.to_owned()),
                (None, _, None) => panic!("a block begins with a command: {line}"),
            },
        }
    }
    steps
}

/// Returns the end of a number with its fraction, or of an address.
fn end_of_number(text: &str) -> usize {
    let mut end = 0;
    loop {
        let digits = text[end..].find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len() - end);
        end += digits;
        match text[end..].strip_prefix('.') {
            Some(after) if after.starts_with(|c: char| c.is_ascii_digit()) => end += 1,
            _ => return end,
        }
    }
}

/// Returns a line without the parts that differ between runs.
fn loosened(line: &str) -> String {
    let words = line.split_whitespace().map(|word| {
        let mut loose = String::new();
        let mut rest = word;
        while let Some(first) = rest.chars().next() {
            let is_start = !loose.ends_with(|c: char| c.is_ascii_alphanumeric());
            let digits = rest.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(rest.len());
            if is_start && digits >= 8 && !rest[digits..].starts_with(|c: char| c.is_ascii_alphanumeric()) {
                loose.push('#');
                rest = &rest[digits..];
                continue;
            }
            let is_number = first.is_ascii_digit() && is_start;
            let end = match is_number {
                true => end_of_number(rest),
                false => first.len_utf8(),
            };
            let (piece, after) = rest.split_at(end);
            let hexadecimal = after.strip_prefix('x').filter(|_| is_number && piece == "0");
            let letters =
                after.find(|c: char| !c.is_ascii_alphabetic() && c != '%' && c != '/').unwrap_or(after.len());
            let has_unit = is_number && UNITS.contains(&&after[..letters]);
            rest = after;
            if let Some(digits) = hexadecimal {
                loose.push('#');
                rest = digits.trim_start_matches(|c: char| c.is_ascii_hexdigit());
            } else if has_unit {
                loose.push('#');
                rest = &after[letters..];
            } else if is_number && (piece.len() > 2 || piece.contains('.')) {
                loose.push('#');
            } else {
                loose.push_str(piece);
            }
        }
        loose
    });
    let mut line = words.collect::<Vec<_>>().join(" ");
    // Rules of tables are as wide as their figures, and a chart may be of any length.
    while line.contains("--") {
        line = line.replace("--", "-");
    }
    line.trim_end_matches('#').trim_end().to_owned()
}

/// Returns whether the output matches the guide.
fn agree(expected: &[String], printed: &[&str]) -> bool {
    match (expected.split_first(), printed.split_first()) {
        (None, None) => true,
        (Some((first, rest)), _) if first == "..." => {
            (0..=printed.len()).any(|skipped| agree(rest, &printed[skipped..]))
        }
        (Some((first, rest)), Some((line, others))) => {
            let is_same = match first.strip_suffix("...") {
                Some(begin) => loosened(line).starts_with(&loosened(begin)),
                None => loosened(first) == loosened(line),
            };
            is_same && agree(rest, others)
        }
        (None, Some(_)) | (Some(_), None) => false,
    }
}

/// Runs the commands of a chapter in one shell; returns the output of each.
fn perform(run: &Run, steps: &[Step]) -> Vec<String> {
    let home = run.make("home");
    let programs = run.make("bin");
    for name in ["nacre", "lfs", "lctl"] {
        symlink(binary::nacre_with_bench(), programs.join(name)).expect("a fresh directory of ours");
    }
    let mut script = format!("ip link set lo up; exec 2>&1 </dev/null; cd {}\n", text(&home));
    for step in steps {
        script += &format!("printf '{SEPARATOR}'\n{}\n", step.command);
    }
    // Namespaces hide the file systems of other tests, and their ports: names and addresses of the guide are
    // free.
    let mut command = run.command_with_mount_helpers("unshare");
    command.args([
        "--net",
        "bash",
        "-c",
        "mkdir -p /run/nacre; mount -t tmpfs -o mode=700 none /run/nacre; exec bash -c \"$0\"",
    ]);
    command.arg(script).env("HOME", &home).env("NACRE_KEYS", run.make("keys"));
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", text(&programs)));
    let outcome = run_command(command, CHAPTER_MAX);
    let printed = outcome.stdout.replace(text(&home), HOME);
    let all: Vec<String> = printed.split(SEPARATOR).skip(1).map(str::to_owned).collect();
    assert_eq!(all.len(), steps.len(), "the shell ran all commands: {outcome}");
    all
}

fn follow(chapter: &str) {
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    let path = binary::workspace().join("docs/guide").join(chapter);
    let steps =
        steps_of(&fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())));
    assert!(!steps.is_empty(), "{chapter} has commands");
    let run = Run::new();
    let printed = perform(&run, &steps);
    for (step, printed) in steps.iter().zip(&printed) {
        let mut expected = step.expected.clone();
        while expected.last().is_some_and(String::is_empty) {
            expected.pop();
        }
        let lines: Vec<&str> = printed.trim_end().lines().collect();
        let Step { command, .. } = step;
        assert!(
            agree(&expected, &lines),
            "{chapter}: $ {command}\nprinted:\n{printed}\nthe guide has:\n{}",
            expected.join("\n")
        );
    }
}

macro_rules! chapters {
    ($($name:ident: $file:literal,)*) => {
        $(#[test] fn $name() { follow($file); })*

        #[test]
        fn every_chapter_with_commands_is_followed() {
            let mut followed = vec![$($file.to_owned()),*];
            followed.retain(|file: &String| !file.contains('/'));
            followed.sort();
            let directory = binary::workspace().join("docs/guide");
            let names = fs::read_dir(&directory).expect("listed").map(|entry| entry.expect("listed").path());
            let has_commands = |path: &std::path::PathBuf| fs::read_to_string(path).expect("read").contains("```console");
            let mut all: Vec<String> = names
                .filter(has_commands)
                .map(|path| path.file_name().expect("a file").to_string_lossy().into_owned())
                .collect();
            all.sort();
            assert_eq!(all, followed);
        }
    };
}

chapters! {
    the_guide_to_trying_holds: "try.md",
    the_guide_to_mounting_holds: "mount.md",
    the_guide_to_layouts_holds: "layouts.md",
    the_guide_to_metadata_servers_holds: "metadata-servers.md",
    the_guide_to_devices_and_caches_holds: "devices-and-caches.md",
    the_guide_to_observing_holds: "observe.md",
    the_guide_to_repairing_holds: "repair.md",
    the_guide_to_measuring_holds: "measure.md",
    the_readme_holds: "../../README.md",
}

#[test]
fn figures_that_differ_count_as_equal_and_others_do_not() {
    let same = [
        ("node         12292        0s  MGT", "node 812 1.5s MGT"),
        ("nacre-OST0000_UUID  63.0G  42%", "nacre-OST0000_UUID  9.1T  3%"),
        ("l_fid: 0x100000000:0x1:0x0", "l_fid: 0x2:0xff:0x0"),
        ("nacre-OST0000-osc-2ff8b1892eb34e86: active.", "nacre-OST0000-osc-f0a8b1892eb34e87: active."),
        ("moved 1 files, 16 MiB in 0.3 s", "moved 1 files, 16 MiB in 2.5 s"),
    ];
    for (guide, printed) in same {
        assert_eq!(loosened(guide), loosened(printed));
    }
    let other = [
        ("OST0000", "OST0001"),
        ("lmm_stripe_count: 4", "lmm_stripe_count: 3"),
        ("0 left", "1 left"),
        ("on", "off"),
    ];
    for (guide, printed) in other {
        assert!(loosened(guide) != loosened(printed), "{guide} / {printed}");
    }
    let line = |text: &str| text.to_owned();
    assert!(agree(&[line("a"), line("..."), line("z")], &["a", "b", "c", "z"]));
    assert!(!agree(&[line("a"), line("..."), line("z")], &["a", "b", "c"]));
}
