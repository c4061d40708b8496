//! `nacre rebalance`: its speed without a limit against a copy, and what foreground work loses with a limit.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::programs::seconds;
use super::{LayoutsRun, small_job};
use crate::error::Error;
use crate::instance::Instance;
use crate::machine;
use crate::report::{Against, Row, Target, Unit};
use crate::sample::Samples;
use crate::work::{Operation, Work};
use crate::worker::{Job, turns};

/// Number of files to move.
const FILES: usize = 8;
/// Target: bandwidth of moving without a limit, relative to a copy.
const COPY_RATIO: f64 = 0.8;
/// Target: share of its rate that foreground work keeps during a rebalance.
const FOREGROUND_RATIO: f64 = 0.8;

/// A rebalance in the background, killed on drop.
struct Background(Child);

impl Background {
    fn start(program: &Path, mount: &Path, rate: Option<u64>) -> Result<Background, Error> {
        let mut command = Command::new(program);
        command.arg("rebalance").arg(mount).args(["--drain", "0", "--json"]);
        if let Some(rate) = rate {
            command.args(["--rate", &rate.to_string()]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(Background).map_err(Error::io("start", program))
    }

    /// Returns false if there was nothing left to do.
    fn is_running(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // A file in the middle of its move keeps its old objects.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl LayoutsRun<'_> {
    /// Measures both, with servers in one process.
    pub(super) fn rebalance(&mut self) -> Result<(), Error> {
        let instance = self.instance(false, false)?;
        let directory = instance.work_directory("moved")?;
        instance.setstripe(&directory, &["-c", "1", "-i", "0"])?;
        let bytes = (self.arguments.size_mib.max(2) / 2) << 20;
        let files: Vec<PathBuf> = (0..FILES).map(|number| directory.join(format!("f{number}"))).collect();
        for file in &files {
            fs::write(file, vec![0x5a; bytes as usize]).map_err(Error::io("write", file))?;
        }
        self.moving_against_copying(&instance, &files, bytes)?;
        let rates = match self.arguments.rates.as_slice() {
            [] => vec![None],
            rates => rates.iter().copied().map(Some).collect(),
        };
        rates.into_iter().try_for_each(|rate| self.foreground(&instance, &files, rate))
    }

    /// Measures a stream and small files during a rebalance with this limit.
    fn foreground(&mut self, instance: &Instance, files: &[PathBuf], rate: Option<u64>) -> Result<(), Error> {
        let name = rate.map_or("foreground".to_owned(), |rate| format!("foreground{rate}"));
        let work = instance.work_directory(&name)?;
        let limit = rate.map_or(String::new(), |rate| format!(", {rate} MiB/s"));
        let label = |what: &str| format!("{what} during nacre rebalance{limit}");
        let file_bytes = self.arguments.size_mib.max(1) << 20;
        for operation in [Operation::SeqWrite, Operation::SeqRead] {
            let job = Job::new("", &Work::io(operation, &work, 1 << 20, file_bytes), 1);
            self.beside(instance, files, rate, label(operation.label()), &job)?;
        }
        let job = small_job(self.arguments, Operation::Create, &work, 4096, 1);
        self.beside(instance, files, rate, label("files of 4 KiB created"), &job)
    }

    /// Moves all files to the first OST.
    fn gather(&self, files: &[PathBuf]) -> Result<(), Error> {
        let words = ["lfs", "migrate", "-c", "1", "-i", "0"].map(OsStr::new);
        let words: Vec<&OsStr> = words.into_iter().chain(files.iter().map(|file| file.as_os_str())).collect();
        seconds(&self.program, &words).map(drop)
    }

    fn moving_against_copying(
        &mut self,
        instance: &Instance,
        files: &[PathBuf],
        bytes: u64,
    ) -> Result<(), Error> {
        let all = (bytes * files.len() as u64) as f64;
        let (mut moved, mut copied) = (Samples::new(), Samples::new());
        for round in 0..self.arguments.common.runs.max(1) {
            for moves in turns(round, 2).map(|turn| turn == 0) {
                self.gather(files)?;
                machine::drop_caches()?;
                if moves {
                    let words = ["rebalance", "--drain", "0", "--rate", "0"].map(OsStr::new);
                    let words: Vec<&OsStr> =
                        words.into_iter().chain([instance.mount().as_os_str()]).collect();
                    moved.push(all / seconds(&self.program, &words)?);
                    continue;
                }
                let mut taken = 0.0;
                for file in files {
                    let copy = file.with_extension("copy");
                    instance.setstripe(&copy, &["-c", "1", "-i", "1"])?;
                    let paths = [format!("if={}", file.display()), format!("of={}", copy.display())];
                    let words = ["bs=4M", "conv=fsync,notrunc", "status=none"].map(str::to_owned);
                    let words: Vec<String> = paths.into_iter().chain(words).collect();
                    let words: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
                    taken += seconds(Path::new("dd"), &words)?;
                    fs::remove_file(&copy).map_err(Error::io("remove", &copy))?;
                }
                copied.push(all / taken);
            }
        }
        let mut row = Row::new("nacre rebalance --rate 0", Unit::BytesPerSecond, moved);
        row.against = Some(Against::of("dd bs=4M, fsync", copied));
        row.target = Some(Target::RatioAtLeast(COPY_RATIO));
        self.report.rows.push(row);
        Ok(())
    }

    /// Compares `job` during a rebalance with this limit with `job` alone.
    fn beside(
        &mut self,
        instance: &Instance,
        files: &[PathBuf],
        rate: Option<u64>,
        label: String,
        job: &Job,
    ) -> Result<(), Error> {
        let work = &job.works[0];
        let (unit, factor) = match work.operation.counts_bytes() {
            true => (Unit::BytesPerSecond, work.block_bytes),
            false => (Unit::OpsPerSecond, 1),
        };
        let (mut beside, mut alone) = (Samples::new(), Samples::new());
        job.prepare(self.myself)?;
        let outcome: Result<(), Error> = (|| {
            for round in 0..self.arguments.common.runs.max(1) {
                for is_beside in turns(round, 2).map(|turn| turn == 0) {
                    self.gather(files)?;
                    let mut background = match is_beside {
                        true => Some(Background::start(&self.program, instance.mount(), rate)?),
                        false => None,
                    };
                    let done = job.run(self.myself)?.rate * factor as f64;
                    if background.as_mut().is_some_and(|background| !background.is_running()) {
                        self.report.notes.push(format!("{label}: the rebalance was over too early"));
                    }
                    if is_beside { beside.push(done) } else { alone.push(done) }
                }
            }
            Ok(())
        })();
        job.clean(self.myself)?;
        outcome?;
        let mut row = Row::new(label, unit, beside);
        row.against = Some(Against::of("alone", alone));
        row.target = Some(Target::RatioAtLeast(FOREGROUND_RATIO));
        self.report.rows.push(row);
        Ok(())
    }
}
