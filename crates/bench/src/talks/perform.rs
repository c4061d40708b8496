//! Running experiments: each in a process and process group of its own, in directories that are emptied
//! afterwards.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::catalogue::Experiment;
use super::load::{MARK, Watch};
use super::outcome::{Outcome, of_paf};
use super::scale::{Sized, Supply};
use crate::error::Error;
use crate::report::Report;
use crate::{group, machine, stop};

/// Timeout of an experiment: this multiple of its expected run time, plus this duration.
const TIMEOUT: (u32, Duration) = (6, Duration::from_secs(120));

/// Directories of a run.
#[derive(Debug)]
pub(super) struct Ground {
    /// The nacre program.
    pub(super) program: PathBuf,
    /// Directory in memory, for experiments that no disk should bound.
    pub(super) memory: PathBuf,
    /// Directory on the disk, next to the results.
    pub(super) disk: PathBuf,
}

impl Ground {
    /// Returns the directory on the disk for an experiment's files.
    fn work(&self) -> PathBuf {
        self.disk.join("work")
    }
}

impl Ground {
    /// Returns the resources that experiments may use.
    pub(super) fn supply(&self) -> Supply {
        let memory = self.memory.parent().unwrap_or(Path::new("/"));
        Supply {
            cpus: nacre_env::cpu_count() as u64,
            memory_mib: machine::available_mib().min(free_mib(memory)),
            disk_mib: free_mib(&self.disk),
        }
    }

    /// Returns the reason why an experiment cannot run here, if there is one.
    pub(super) fn obstacle(&self, experiment: &Experiment, sized: &Sized) -> Option<String> {
        if experiment.needs.is_root && !rustix::process::geteuid().is_root() {
            return Some("it needs root: it mounts, or empties the kernel's caches".to_owned());
        }
        let (needed, available) = (sized.memory_mib, machine::available_mib());
        if available < needed {
            return Some(format!("it needs {needed} MiB of memory, and {available} MiB are available"));
        }
        let memory = self.memory.parent().unwrap_or(Path::new("/"));
        [(memory, needed), (&self.disk, sized.disk_mib)].into_iter().find_map(|(dir, needed)| {
            let free = free_mib(dir);
            (free < needed)
                .then(|| format!("it needs {needed} MiB in {}, where {free} MiB are free", dir.display()))
        })
    }
}

/// Returns the free space for users in the file system of an existing or future directory, in MiB.
fn free_mib(dir: &Path) -> u64 {
    let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let found = dir.ancestors().find_map(|dir| rustix::fs::statvfs(dir).ok());
    found.map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize)) >> 20
}

/// Runs an experiment and removes its files, however it ended.
///
/// # Errors
///
/// `Interrupted`. Any other failure is the reason why the outcome has no figures.
pub(super) fn perform(experiment: &Experiment, run: &Sized, ground: &Ground) -> Result<Outcome, Error> {
    let began = Instant::now();
    let words: Vec<String> = run.words.split_whitespace().map(|word| filled(word, ground)).collect();
    let mut watch = Watch::begin(&format!("{}-{}", experiment.name, std::process::id()));
    let result = in_directories(experiment, run, ground, &words, &mut watch);
    clear(ground);
    let load = Some(watch.end());
    let (report, skipped) = match result {
        Ok(report) => (Some(report), None),
        Err(Error::Interrupted) => return Err(Error::Interrupted),
        Err(error) => (None, Some(error.to_string())),
    };
    let seconds = began.elapsed().as_secs_f64();
    // Without the directories of this run, which mean nothing to readers of its results.
    let command = run.words.split_whitespace().map(str::to_owned).collect();
    Ok(Outcome { experiment: experiment.name.to_owned(), command, seconds, load, report, skipped })
}

fn filled(word: &str, ground: &Ground) -> String {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    word.replace("{dir}", &text(&ground.memory)).replace("{disk}", &text(&ground.work()))
}

fn in_directories(
    experiment: &Experiment,
    run: &Sized,
    ground: &Ground,
    words: &[String],
    watch: &mut Watch,
) -> Result<Report, Error> {
    for dir in [&ground.memory, &ground.work()] {
        fs::create_dir_all(dir).map_err(Error::io("create directory", dir))?;
    }
    let (times, more) = TIMEOUT;
    let limit = Duration::from_secs(run.seconds) * times + more;
    // Directories of this machine mean nothing to readers of the results.
    let mut text = call(experiment.name, ground, words, limit, watch)?;
    for (path, name) in [(&ground.memory, "{dir}"), (&ground.work(), "{disk}"), (&ground.disk, "{disk}")] {
        text = text.replace(&*path.to_string_lossy(), name);
    }
    let wrong = |reason: String| Error::Server {
        what: experiment.name.to_owned(),
        reason: format!("its output: {reason}"),
    };
    match run.words.starts_with("paf ") {
        true => of_paf(&text).map_err(wrong),
        false => serde_json::from_str(&text).map_err(|error| wrong(error.to_string())),
    }
}

/// Runs the program in a process group of its own; returns its output.
fn call(
    name: &str,
    ground: &Ground,
    words: &[String],
    limit: Duration,
    watch: &mut Watch,
) -> Result<String, Error> {
    let failed = |reason: String| Error::Server { what: name.to_owned(), reason };
    let log = ground.work().join("errors");
    let errors = fs::File::create(&log).map_err(Error::io("create", &log))?;
    let mut command = Command::new(&ground.program);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors);
    command.env(MARK, watch.value());
    let mut child = group::start(&mut command).map_err(Error::io("start", &ground.program))?;
    let mut output = child.stdout.take().ok_or_else(|| failed("it has no output".to_owned()))?;
    // Read concurrently: long output would otherwise block the process.
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        output.read_to_string(&mut text).map(|_| text)
    });
    let deadline = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(Error::io("wait for", &ground.program))? {
            break status;
        }
        watch.look();
        if stop::asked() {
            group::end(&mut child);
            return Err(Error::Interrupted);
        }
        if Instant::now() >= deadline {
            group::end(&mut child);
            return Err(failed(format!("it was abandoned after {} s", limit.as_secs())));
        }
        std::thread::sleep(group::LOOK);
    };
    let text = reader.join().map_err(|_| failed("its output could not be read".to_owned()))?;
    let text = text.map_err(Error::io("read", &ground.program))?;
    if status.success() {
        return Ok(text);
    }
    let said = fs::read_to_string(&log).unwrap_or_default();
    Err(failed(said.lines().last().unwrap_or("it failed without a word").to_owned()))
}

/// Stops file systems that an experiment has left, and removes its directories.
fn clear(ground: &Ground) {
    for dir in [&ground.memory, &ground.work()] {
        // Mounts of a killed experiment; the kernel frees their loop devices.
        for point in mounts_below(dir) {
            let down = Command::new("umount").arg("-l").arg(&point).stdin(Stdio::null()).status();
            if !down.is_ok_and(|status| status.success()) {
                eprintln!("bench talks: unmount {} by hand", point.display());
            }
        }
        for data in file_systems_in(dir, 3) {
            let mut down = Command::new(&ground.program);
            down.args(["down".as_ref(), data.as_os_str(), "--force".as_ref()]);
            let _ = down.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
        if let Err(error) = fs::remove_dir_all(dir)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            eprintln!("bench talks: remove {}: {error}", dir.display());
        }
    }
}

/// Returns the mount points of loop devices below a directory, the innermost first.
fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let of = |line: &str| {
        let mut words = line.split(' ');
        let (device, point) = (words.next()?, PathBuf::from(words.next()?.replace("\\040", " ")));
        (device.starts_with("/dev/loop") && point.starts_with(dir)).then_some(point)
    };
    let mut points: Vec<PathBuf> = table.lines().filter_map(of).collect();
    points.reverse();
    points
}

/// Returns directories of file systems down to this many levels, recognised by a superblock. Mounts are not
/// entered.
fn file_systems_in(dir: &Path, levels: usize) -> Vec<PathBuf> {
    if dir.join("superblock").exists() {
        return vec![dir.to_owned()];
    }
    if levels == 0 {
        return Vec::new();
    }
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let below = entries.filter(|entry| entry.file_name() != "mnt" && entry.path().is_dir());
    below.flat_map(|entry| file_systems_in(&entry.path(), levels - 1)).collect()
}
