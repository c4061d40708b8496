//! Run times of common programs on a mounted path: tar, find, rm, git.
//!
//! The tree that they work on follows from a fixed seed, so that every run and every file system gets the
//! same one: 3,000 files in 120 directories, most of them small, 36 MiB in all.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::error::Error;
use crate::machine;
use crate::options::Common;
use crate::report::{Against, Report, Row, Unit};
use crate::sample::Samples;
use crate::worker::turns;

const FILES: u64 = 3_000;
const DIRECTORIES: u64 = 120;

/// `nacre bench programs`
#[derive(Debug, clap::Args)]
pub struct ProgramsArguments {
    /// Directory to work in
    path: PathBuf,
    /// Take every figure also on this directory, in alternating runs, and show the ratio to it
    #[arg(long, value_name = "PATH")]
    against: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// A run of one program; each step depends on earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Untar,
    FindWarm,
    FindCold,
    TarCold,
    Clone,
    Status,
    Remove,
}

impl Step {
    const ALL: [Step; 7] =
        [Step::Untar, Step::FindWarm, Step::FindCold, Step::TarCold, Step::Clone, Step::Status, Step::Remove];

    fn label(self) -> &'static str {
        match self {
            Step::Untar => "tar -x, 3,000 files",
            Step::FindWarm => "find -size, warm",
            Step::FindCold => "find -size, cold",
            Step::TarCold => "tar -c, cold",
            Step::Clone => "git clone",
            Step::Status => "git status",
            Step::Remove => "rm -rf",
        }
    }

    fn cold(self) -> bool {
        matches!(self, Step::FindCold | Step::TarCold)
    }

    /// Returns the script, which runs in the directory `work`. Printing sizes makes find request attributes;
    /// with output to /dev/null itself tar would read nothing. CephFS changes the times of directories while
    /// they are read, which tar reports as a difference (exit code 1).
    fn script(self) -> &'static str {
        match self {
            Step::Untar => r#"tar -xmf "$SOURCE/tree.tar""#,
            Step::FindWarm | Step::FindCold => "find tree -size +1000M",
            Step::TarCold => "{ tar --warning=no-file-changed -cf - tree || [ $? = 1 ]; } | cat >/dev/null",
            Step::Clone => r#"git clone --quiet --no-hardlinks "$SOURCE/repository" clone"#,
            Step::Status => "git -C clone status --porcelain",
            Step::Remove => "rm -rf tree clone",
        }
    }
}

/// The tree as an archive and as a repository, in memory if possible.
#[derive(Debug)]
pub(crate) struct Source {
    directory: tempfile::TempDir,
}

impl Source {
    /// Returns its directory.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn make() -> Result<Source, Error> {
        let memory = Path::new("/dev/shm");
        let directory = match memory.is_dir() {
            true => tempfile::tempdir_in(memory),
            false => tempfile::tempdir(),
        }
        .map_err(Error::io("make a directory in", memory))?;
        let tree = directory.path().join("tree");
        grow(&tree)?;
        let script = r#"
            tar -cf tree.tar tree
            git init --quiet repository
            cp -r tree repository/tree
            cd repository
            git add .
            git -c user.name=bench -c user.email=bench@localhost -c gc.auto=0 commit --quiet -m tree
        "#;
        run(directory.path(), script, directory.path())?;
        Ok(Source { directory })
    }
}

/// Creates files of 0 to 128 KiB, small ones more often.
fn grow(tree: &Path) -> Result<(), Error> {
    let mut random = fastrand::Rng::with_seed(1);
    for number in 0..FILES {
        let directory = tree.join(format!("d{}/e{}", number % DIRECTORIES / 12, number % DIRECTORIES % 12));
        fs::create_dir_all(&directory).map_err(Error::io("create directory", &directory))?;
        let shift = random.u32(..18);
        let length = random.usize(..1 << shift);
        let bytes: Vec<u8> = (0..length).map(|_| b"abcdefgh \n"[random.usize(..10)]).collect();
        let path = directory.join(format!("file{number}.txt"));
        fs::write(&path, bytes).map_err(Error::io("write", &path))?;
    }
    Ok(())
}

/// Runs a script and returns its run time in seconds.
fn run(directory: &Path, script: &str, source: &Path) -> Result<f64, Error> {
    let start = Instant::now();
    let status = Command::new("bash")
        .args(["-euo", "pipefail", "-c", script])
        .current_dir(directory)
        .env("SOURCE", source)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        // The source may belong to another user than that of the bench.
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", "safe.directory")
        .env("GIT_CONFIG_VALUE_0", "*")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .map_err(Error::io("start bash in", directory))?;
    match status.success() {
        true => Ok(start.elapsed().as_secs_f64()),
        false => {
            Err(Error::Worker(format!("`{}` ended with {status}, see its message above", script.trim())))
        }
    }
}

/// Runs all programs on the paths in alternation.
///
/// # Errors
///
/// A program that is missing or fails; dropping caches requires root.
pub fn measure(arguments: &ProgramsArguments) -> Result<Report, Error> {
    let source = Source::make()?;
    let paths: Vec<&PathBuf> = std::iter::once(&arguments.path).chain(&arguments.against).collect();
    let mut samples = vec![[(); Step::ALL.len()].map(|()| Samples::new()); paths.len()];
    for round in 0..arguments.common.runs.max(1) {
        for index in turns(round, paths.len()) {
            let mut samples = samples[index].iter_mut();
            round_on(paths[index], source.path(), |_, seconds| {
                if let Some(samples) = samples.next() {
                    samples.push(seconds);
                }
            })?;
        }
    }
    let mut report = Report::new(format!("Programs on {}", arguments.path.display()));
    for (number, step) in Step::ALL.into_iter().enumerate() {
        let row_of = |index: usize| Row::new(step.label(), Unit::Seconds, samples[index][number].clone());
        let mut row = row_of(0);
        row.against = paths.get(1).map(|path| Against::new(path.display().to_string(), row_of(1)));
        report.rows.push(row);
    }
    Ok(report)
}

/// Runs all programs once on the [`Source`] at `source`, in a directory of their own in `path`; calls `each`
/// with the label and the seconds of each.
///
/// # Errors
///
/// Those of [`measure`].
pub(crate) fn round_on(
    path: &Path,
    source: &Path,
    mut each: impl FnMut(&'static str, f64),
) -> Result<(), Error> {
    let work = tempfile::Builder::new()
        .prefix("bench-programs-")
        .tempdir_in(path)
        .map_err(Error::io("make a directory in", path))?;
    for step in Step::ALL {
        if step.cold() {
            machine::drop_caches()?;
        }
        each(step.label(), run(work.path(), step.script(), source)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_always_the_same() {
        let sum = |tree: &Path| {
            let mut files = 0;
            let mut bytes = 0;
            let mut pending = vec![tree.to_owned()];
            while let Some(directory) = pending.pop() {
                for entry in fs::read_dir(directory).expect("a directory") {
                    let entry = entry.expect("an entry");
                    match entry.file_type().expect("a type").is_dir() {
                        true => pending.push(entry.path()),
                        false => {
                            files += 1;
                            bytes += entry.metadata().expect("a file").len();
                        }
                    }
                }
            }
            (files, bytes)
        };
        let scratch = tempfile::tempdir().expect("a directory");
        let (one, two) = (scratch.path().join("one"), scratch.path().join("two"));
        grow(&one).expect("made");
        grow(&two).expect("made");
        let (files, bytes) = sum(&one);
        assert_eq!((files, bytes), sum(&two));
        assert_eq!(files, FILES);
        assert!(bytes > 20 << 20 && bytes < 60 << 20, "{bytes}");
    }
}
