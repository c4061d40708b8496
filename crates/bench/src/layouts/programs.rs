//! Figures of programs: `lfs` over many files, and a migration against a copy.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use super::LayoutsRun;
use crate::error::Error;
use crate::machine;
use crate::report::{Against, Row, Target, Unit};
use crate::sample::Samples;
use crate::worker::turns;

/// Target: entries per second that `lfs` visits with one process.
const ENTRIES_PER_SECOND: f64 = 100_000.0;
/// Number of files per directory.
const PER_DIRECTORY: u64 = 1_000;
/// Target: bandwidth of a migration relative to a copy.
const MIGRATE_RATIO: f64 = 0.8;

impl LayoutsRun<'_> {
    /// Measures entries per second of `lfs getstripe -r` and `lfs find`, with the kernel's caches warm and
    /// cold.
    pub(super) fn list(&mut self) -> Result<(), Error> {
        let instance = self.instance(false, false)?;
        let directory = instance.work_directory("many")?;
        let entries = grow(&directory, self.arguments.files.max(1))?;
        for (what, words) in [
            ("lfs getstripe -r", &["lfs", "getstripe", "-r"][..]),
            ("lfs find -size +1M", &["lfs", "find", "-size", "+1M"]),
            ("lfs find -stripe-count 1", &["lfs", "find", "-stripe-count", "1"]),
        ] {
            let mut samples = Samples::new();
            for _ in 0..self.arguments.common.runs.max(1) {
                machine::drop_caches()?;
                // The path precedes the conditions of `find`, and is the last argument of `getstripe`.
                let mut words: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
                words.insert(if words[1] == "find" { 2 } else { words.len() }, directory.as_os_str());
                samples.push(entries as f64 / seconds(&self.program, &words)?);
            }
            let mut row = Row::new(format!("{what}, {entries} entries"), Unit::OpsPerSecond, samples);
            row.target = Some(Target::AtLeast(ENTRIES_PER_SECOND));
            self.report.rows.push(row);
        }
        Ok(())
    }

    /// Compares migrating a file of one stripe to two with copying it to a file of two, both within the
    /// servers' memory.
    pub(super) fn migrate(&mut self) -> Result<(), Error> {
        let instance = self.instance(false, false)?;
        let directory = instance.work_directory("migrate")?;
        let file = directory.join("file");
        let bytes = (self.arguments.size_mib.max(1) * 2) << 20;
        let (mut migrated, mut copied) = (Samples::new(), Samples::new());
        for round in 0..self.arguments.common.runs.max(1) {
            fs::write(&file, vec![0x5a; bytes as usize]).map_err(Error::io("write", &file))?;
            let copy = directory.join("copy");
            instance.setstripe(&copy, &["-c", "2"])?;
            for migrates in turns(round, 2).map(|turn| turn == 0) {
                machine::drop_caches()?;
                if migrates {
                    let words = ["lfs", "migrate", "-c", "2"].map(OsStr::new);
                    let words: Vec<&OsStr> = words.into_iter().chain([file.as_os_str()]).collect();
                    match seconds(&self.program, &words) {
                        Ok(taken) => migrated.push(bytes as f64 / taken),
                        Err(error) => {
                            self.report.notes.push(format!("migration is left out: {error}"));
                            return Ok(());
                        }
                    }
                } else {
                    let dd = ["bs=4M", "conv=fsync,notrunc", "status=none"].map(str::to_owned);
                    let paths = [format!("if={}", file.display()), format!("of={}", copy.display())];
                    let words: Vec<String> = paths.into_iter().chain(dd).collect();
                    let words: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
                    copied.push(bytes as f64 / seconds(Path::new("dd"), &words)?);
                }
            }
            for path in [&file, &copy] {
                fs::remove_file(path).map_err(Error::io("remove", path))?;
            }
        }
        let mut row = Row::new("lfs migrate, one stripe to two", Unit::BytesPerSecond, migrated);
        row.against = Some(Against::of("dd bs=4M, fsync", copied));
        row.target = Some(Target::RatioAtLeast(MIGRATE_RATIO));
        self.report.rows.push(row);
        Ok(())
    }
}

/// Creates empty files, a thousand per directory; returns the number of entries, directories included.
fn grow(directory: &Path, files: u64) -> Result<u64, Error> {
    for number in 0..files {
        let below = directory.join(format!("d{}", number / PER_DIRECTORY));
        if number % PER_DIRECTORY == 0 {
            fs::create_dir(&below).map_err(Error::io("create directory", &below))?;
        }
        let path = below.join(format!("f{number}"));
        fs::File::create(&path).map_err(Error::io("create", &path))?;
    }
    Ok(files + files.div_ceil(PER_DIRECTORY) + 1)
}

/// Returns the run time of a program in seconds; its output is discarded.
pub(super) fn seconds(program: &Path, words: &[&OsStr]) -> Result<f64, Error> {
    let start = Instant::now();
    let output = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .map_err(Error::io("start", program))?;
    if output.status.success() {
        return Ok(start.elapsed().as_secs_f64());
    }
    let what = words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::Server { what, reason })
}
