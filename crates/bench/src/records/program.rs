//! The program that reads and writes: in Fortran, or an equivalent in C where gfortran is missing.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::error::Error;
use crate::stop;
use rustix::process::Signal;

/// Programming language of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Language {
    /// Built with gfortran.
    Fortran,
    /// Built with cc.
    C,
}

impl Language {
    fn compiler(self) -> &'static str {
        match self {
            Language::Fortran => "gfortran",
            Language::C => "cc",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Language::Fortran => "Fortran",
            Language::C => "C",
        }
    }

    /// Returns name and text of the source.
    fn source(self) -> (&'static str, &'static str) {
        match self {
            Language::Fortran => ("hycom.f90", include_str!("hycom.f90")),
            Language::C => ("hycom.c", include_str!("hycom.c")),
        }
    }

    /// Returns the first line of the compiler's version output; `None` if it is not installed.
    fn version(self) -> Option<String> {
        let output = Command::new(self.compiler()).arg("--version").stdin(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success().then(|| text.lines().next().unwrap_or_default().to_owned())
    }
}

/// A compiled program, removed on drop.
#[derive(Debug)]
pub(super) struct Program {
    language: Language,
    version: String,
    directory: tempfile::TempDir,
}

impl Program {
    /// Compiles the version in `requested`, or else the first one whose compiler is installed.
    pub(super) fn build(requested: Option<Language>) -> Result<Program, Error> {
        let languages = requested.map_or(vec![Language::Fortran, Language::C], |language| vec![language]);
        let found =
            languages.iter().find_map(|language| language.version().map(|version| (*language, version)));
        let Some((language, version)) = found else {
            let names: Vec<&str> = languages.into_iter().map(Language::compiler).collect();
            return Err(Error::Usage(format!("no compiler is there: install {}", names.join(" or "))));
        };
        let scratch = tempfile::Builder::new().prefix("nacre-records-").tempdir();
        let directory = scratch.map_err(Error::io("create a directory in", std::env::temp_dir()))?;
        let (name, text) = language.source();
        let source = directory.path().join(name);
        std::fs::write(&source, text).map_err(Error::io("write", &source))?;
        let program = Program { language, version, directory };
        let mut command = Command::new(language.compiler());
        command.arg("-O2").arg("-o").arg(program.path()).arg(&source).stdin(Stdio::null());
        let output = command.output().map_err(Error::io("start", language.compiler()))?;
        if !output.status.success() {
            return Err(failed(language.compiler(), &output));
        }
        Ok(program)
    }

    /// Returns language and compiler.
    pub(super) fn name(&self) -> String {
        format!("{}, built by {} -O2 ({})", self.language.name(), self.language.compiler(), self.version)
    }

    pub(super) fn path(&self) -> PathBuf {
        self.directory.path().join("hycom")
    }

    /// Runs the program. Settings of libgfortran's buffers are removed from its environment: the C version
    /// has no buffers.
    pub(super) fn run(&self, words: &[OsString]) -> Result<Timers, Error> {
        let mut command = Command::new(self.path());
        command.args(words).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"GFORTRAN_") {
                command.env_remove(&name);
            }
        }
        let output = command.output().map_err(Error::io("start", self.path()))?;
        if stop::asked() || output.status.signal() == Some(Signal::INT.as_raw()) {
            return Err(Error::Interrupted);
        }
        if !output.status.success() {
            let what = words.iter().map(OsString::as_os_str).collect::<Vec<_>>().join(OsStr::new(" "));
            return Err(failed(&format!("hycom {}", what.to_string_lossy()), &output));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Timers::parse(&text)
            .ok_or_else(|| Error::Worker(format!("the timers of hycom are not understood: {text:?}")))
    }
}

fn failed(what: &str, output: &std::process::Output) -> Error {
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let reason = if said.is_empty() { format!("ended with {}", output.status) } else { said };
    Error::Server { what: what.to_owned(), reason }
}

/// Calls of one routine: number and times.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Timer {
    pub(super) calls: u64,
    pub(super) total_s: f64,
    pub(super) longest_s: f64,
}

impl Timer {
    /// Returns the sum of both.
    pub(super) fn and(self, other: Timer) -> Timer {
        Timer {
            calls: self.calls + other.calls,
            total_s: self.total_s + other.total_s,
            longest_s: self.longest_s.max(other.longest_s),
        }
    }

    /// Parses the numbers after `calls =`, `time =` and `longest =`.
    fn parse(line: &str) -> Option<Timer> {
        let number = |name: &str| {
            let (_, after) = line.split_once(&format!("   {name} ="))?;
            after.split_whitespace().next()?.parse::<f64>().ok()
        };
        let (calls, total_s, longest_s) = (number("calls")?, number("time")?, number("longest")?);
        Some(Timer { calls: calls as u64, total_s, longest_s })
    }
}

/// Result of one run of the program.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Timers {
    pub(super) opens: Timer,
    /// Calls of zaiowr or zaiord.
    pub(super) records: Timer,
    /// Calls of zaiocl, which includes the fsync if requested.
    pub(super) closes: Timer,
}

impl Timers {
    pub(super) fn parse(text: &str) -> Option<Timers> {
        let of = |names: &[&str]| {
            let line = text.lines().find(|line| names.iter().any(|name| line.trim_start().starts_with(name)));
            Timer::parse(line?)
        };
        Some(Timers {
            opens: of(&["zaiopn"])?,
            records: of(&["zaiowr", "zaiord"])?,
            closes: of(&["zaiocl"])?,
        })
    }
}

/// Results of a run that writes and one that reads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Run {
    pub(super) write: Timers,
    pub(super) read: Timers,
}

impl Run {
    /// Returns the bandwidth in bytes per second of the writes, of the writes with the closes, and of the
    /// reads.
    pub(super) fn rates(&self, record_bytes: u64) -> [f64; 3] {
        let Timers { records, closes, .. } = self.write;
        let rate = |calls: u64, seconds: f64| (calls * record_bytes) as f64 / seconds;
        [
            rate(records.calls, records.total_s),
            rate(records.calls, records.total_s + closes.total_s),
            rate(self.read.records.calls, self.read.records.total_s),
        ]
    }

    /// Returns the timers of writes, closes after them, reads and all opens.
    pub(super) fn timers(&self) -> [Timer; 4] {
        let Run { write, read } = self;
        [write.records, write.closes, read.records, write.opens.and(read.opens)]
    }
}
