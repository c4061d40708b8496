//! The fio program.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::error::Error;
use crate::machine::{self, CpuTime};
use crate::report::Unit;

/// Sizes of the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Sizes {
    /// Number of concurrent jobs of random work.
    pub(super) tasks: u64,
    /// Size of the file in MiB.
    pub(super) size_mib: u64,
    /// Duration of random work in seconds.
    pub(super) seconds: u64,
}

/// A run of fio on the file that the first one writes.
struct Run {
    name: &'static str,
    /// `read` or `write`, as in fio's results.
    side: &'static str,
    is_random: bool,
    words: &'static str,
}

const RUNS: [Run; 4] = [
    Run {
        name: "fio write 1 MiB, fsync",
        side: "write",
        is_random: false,
        words: "--rw=write --bs=1M --end_fsync=1",
    },
    Run { name: "fio read 1 MiB, cold", side: "read", is_random: false, words: "--rw=read --bs=1M" },
    Run {
        name: "fio random read 4 KiB, O_DIRECT",
        side: "read",
        is_random: true,
        words: "--rw=randread --bs=4k --direct=1",
    },
    Run {
        name: "fio random write 4 KiB, O_DIRECT",
        side: "write",
        is_random: true,
        words: "--rw=randwrite --bs=4k --direct=1",
    },
];

/// Returns whether fio is installed.
pub(super) fn is_there() -> bool {
    let mut command = Command::new("fio");
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Runs everything in `work`; `push` as in [`super::parts::Context::perform`].
pub(super) fn round_on(
    work: &Path,
    sizes: Sizes,
    mut push: impl FnMut(&str, Unit, f64, Option<f64>),
) -> Result<(), Error> {
    for run in &RUNS {
        machine::drop_caches()?;
        let before_us = CpuTime::now().busy_us;
        let text = call(work, run, sizes)?;
        let busy_us = CpuTime::now().busy_us - before_us;
        let found = figure(&text, run.side).map_err(|why| wrong(run.name, &why))?;
        match run.is_random {
            true => {
                let cpu_us = busy_us as f64 / found.operations.max(1.0);
                push(run.name, Unit::OpsPerSecond, found.operations_per_second, Some(cpu_us));
            }
            // The program's own start dominates the CPU time of a short run.
            false => push(run.name, Unit::BytesPerSecond, found.bytes_per_second, None),
        }
    }
    Ok(())
}

fn wrong(what: &str, reason: &str) -> Error {
    Error::Server { what: what.to_owned(), reason: reason.to_owned() }
}

fn call(work: &Path, run: &Run, sizes: Sizes) -> Result<String, Error> {
    let mut command = Command::new("fio");
    command
        .arg(format!("--filename={}", work.join("fio").display()))
        .arg(format!("--size={}M", sizes.size_mib))
        .args("--name=peers --ioengine=psync --output-format=json --group_reporting".split(' '))
        .args(run.words.split(' '));
    if run.is_random {
        command.args([format!("--numjobs={}", sizes.tasks), format!("--runtime={}", sizes.seconds)]);
        command.arg("--time_based");
    }
    // fio leaves state files in its working directory.
    command.current_dir(work).stdin(Stdio::null());
    let output = command.output().map_err(Error::io("start", "fio"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let last = said.lines().last().unwrap_or("fio failed without a word").to_owned();
    Err(wrong(run.name, &last))
}

/// A result of fio.
#[derive(Debug, PartialEq)]
struct Found {
    bytes_per_second: f64,
    operations_per_second: f64,
    operations: f64,
}

/// Parses fio's JSON, which notes may precede.
fn figure(text: &str, side: &str) -> Result<Found, String> {
    let json = text.find('{').map_or("", |start| &text[start..]);
    let value: Value = serde_json::from_str(json).map_err(|error| format!("fio's results: {error}"))?;
    let job = &value["jobs"][0];
    if job["error"].as_i64() != Some(0) {
        return Err(format!("fio ended with error {}", job["error"]));
    }
    let of = |name: &str| {
        job[side][name].as_f64().filter(|value| *value > 0.0).ok_or(format!("fio's results have no {name}"))
    };
    Ok(Found {
        bytes_per_second: of("bw_bytes")?,
        operations_per_second: of("iops")?,
        operations: of("total_ios")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_fio_are_found_behind_its_notes() {
        let text = r#"fio: this is a note
            {"jobs":[{"error":0,"read":{"bw_bytes":4096,"iops":1.5,"total_ios":3},"write":{"bw_bytes":0}}]}"#;
        let found = Found { bytes_per_second: 4096.0, operations_per_second: 1.5, operations: 3.0 };
        assert_eq!(figure(text, "read"), Ok(found));
        assert!(figure(text, "write").expect_err("nothing written").contains("bw_bytes"));
        assert!(figure(r#"{"jobs":[{"error":5}]}"#, "read").expect_err("failed").contains("error 5"));
        assert!(figure("nonsense", "read").is_err() && figure("{}", "read").is_err());
    }
}
