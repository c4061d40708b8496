use std::path::Path;
use std::process::Command;

use super::program::{Language, Program, Timers};
use super::*;

/// Returns the system calls of a program on the archives under strace, as `NAME FLAGS-OR-OFFSET LENGTH`.
fn calls_of(program: &Program, words: &[std::ffi::OsString], log: &Path) -> Vec<String> {
    let mut command = Command::new("strace");
    command.args(["-y", "-s", "0", "-e", "trace=%desc,%file", "-o"]).arg(log);
    let output = command.arg(program.path()).args(words).output().expect("strace runs: scripts/test-deps");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut position = 0;
    let text = std::fs::read_to_string(log).expect("a log");
    // Without the execve of the program, whose arguments name the directory.
    let lines = text.lines().filter(|line| line.contains("/archv") && !line.starts_with("execve"));
    lines.map(|line| normal(line, &mut position)).collect()
}

fn normal(line: &str, position: &mut i64) -> String {
    let (name, after) = line.split_once('(').expect("a call");
    let (arguments, result) = after.rsplit_once(" = ").expect("a result");
    let result: i64 = result.split(['<', ' ']).next().and_then(|word| word.parse().ok()).expect("a number");
    match name {
        "openat" => {
            *position = 0;
            let (_, flags) = arguments.split_once("/archv").expect("the archive");
            format!("openat {}", flags.trim_end_matches([' ', ')']))
        }
        "read" | "write" => {
            let asked = arguments.rsplit(", ").next().expect("a length").trim_end_matches([' ', ')']);
            let line = format!("{name} {position} {asked} {result}");
            *position += result;
            line
        }
        "lseek" => {
            *position = result;
            format!("lseek {result}")
        }
        _ => name.to_owned(),
    }
}

fn small() -> RecordsArguments {
    RecordsArguments {
        path: None,
        against: None,
        idm: 250,
        jdm: 130,
        writes: 9,
        reads: 5,
        fields: 3,
        fsync: true,
        cold: false,
        language: None,
        memory_dir: PathBuf::new(),
        parallel: Parallel::On,
        endpoints: 4,
        nacre: NacreProgram::default(),
        common: Common { runs: 1, seconds: 0.0, json: false },
    }
}

#[test]
fn the_twin_in_c_makes_the_system_calls_of_the_fortran_program() {
    let directory = tempfile::tempdir().expect("a directory");
    let fortran = Program::build(Some(Language::Fortran)).expect("gfortran builds: scripts/test-deps");
    let twin = Program::build(Some(Language::C)).expect("cc builds");
    for (arguments, is_write) in [
        (small(), true),
        (small(), false),
        (RecordsArguments { fsync: false, idm: 1500, jdm: 1100, ..small() }, true),
        (RecordsArguments { fsync: false, idm: 1500, jdm: 1100, ..small() }, false),
    ] {
        let words = arguments.words(is_write, directory.path());
        let log = directory.path().join("log");
        let expected = calls_of(&fortran, &words, &log);
        assert_eq!(calls_of(&twin, &words, &log), expected);
        let count = |name: &str| expected.iter().filter(|call| call.starts_with(name)).count();
        let (reads, writes) = if is_write { (0, 9) } else { (5, 0) };
        assert_eq!((count("read "), count("write ")), (reads, writes), "{expected:?}");
        // The fourth read returns to the first record.
        assert_eq!(count("lseek 0"), usize::from(!is_write), "{expected:?}");
        assert_eq!(count("fsync"), if is_write && arguments.fsync { 3 } else { 0 });
        let bytes = arguments.record_bytes();
        assert!(expected.iter().any(|call| call.ends_with(&format!(" {bytes} {bytes}"))), "{expected:?}");
    }
}

#[test]
fn either_program_reads_what_the_other_one_wrote_and_sees_damage() {
    let directory = tempfile::tempdir().expect("a directory");
    let fortran = Program::build(Some(Language::Fortran)).expect("gfortran builds: scripts/test-deps");
    let twin = Program::build(Some(Language::C)).expect("cc builds");
    let arguments = small();
    let archive = directory.path().join("archv1.a");
    for (writer, reader) in [(&fortran, &twin), (&twin, &fortran)] {
        let written = writer.run(&arguments.words(true, directory.path())).expect("written");
        assert_eq!((written.opens.calls, written.records.calls, written.closes.calls), (3, 9, 3));
        let bytes = std::fs::read(&archive).expect("an archive");
        assert_eq!(bytes.len() as u64, 3 * arguments.record_bytes());
        let read = reader.run(&arguments.words(false, directory.path())).expect("read");
        assert_eq!((read.opens.calls, read.records.calls, read.closes.calls), (1, 5, 1));
        assert!(read.records.longest_s <= read.records.total_s);
        let mut damaged = bytes;
        damaged[100] ^= 1;
        std::fs::write(&archive, damaged).expect("damaged");
        let said = reader.run(&arguments.words(false, directory.path())).expect_err("damage").to_string();
        assert!(said.contains("not what was written"), "{said}");
    }
}

#[test]
fn timers_have_the_form_of_the_models_report() {
    let text = "     zaiopn   calls =        6   time =    0.60000000   time/call =    0.10000000   longest =    0.20000000\n     \
                zaiowr   calls =      726   time =   65.80000000   time/call =    0.09063361   longest =    0.50000000\n     \
                zaiocl   calls =        6   time =    0.30000000   time/call =    0.05000000   longest =    0.10000000\n";
    let timers = Timers::parse(text).expect("timers");
    assert_eq!((timers.records.calls, timers.records.total_s, timers.records.longest_s), (726, 65.8, 0.5));
    assert_eq!(Timers::parse("     zaiowr   calls =  ****"), None);
    let mut figures = Figures::default();
    figures.push(Run { write: timers, read: timers });
    let table = super::timers(&[("x", &figures)]);
    assert!(table.contains("| x | zaiowr | 726 | 65.8000 | 0.090634 | 0.500000 |"), "{table}");
    let rows = figures.rows(Some("parallel on"), 1000, Some(("parallel off", &figures)));
    assert_eq!(rows[0].name, "simulated: write, parallel on");
    assert_eq!(
        (rows[1].ratio(), rows[1].samples.median().round()),
        (Some(1.0), (726_000.0f64 / 66.1).round())
    );
}

#[test]
fn sizes_and_counts_that_cannot_be_measured_are_refused() {
    assert!(small().check().is_ok());
    assert_eq!(small().record_bytes(), 128 << 10);
    assert_eq!(RecordsArguments { idm: 1500, jdm: 1100, ..small() }.record_bytes(), 6_602_752);
    for wrong in [
        RecordsArguments { idm: 100, jdm: 100, ..small() },
        RecordsArguments { idm: u64::MAX, ..small() },
        RecordsArguments { writes: 10, ..small() },
        RecordsArguments { reads: 0, ..small() },
        RecordsArguments { fields: 0, ..small() },
    ] {
        let said = wrong.check().expect_err("refused").to_string();
        assert!(said.contains("choose"), "{said}");
    }
}
