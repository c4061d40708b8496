//! `nacre bench peers`: the same work on several mounted paths in turns, set side by side.
//!
//! A round takes every part of the work ([`parts`]) on one path after the other, every other round in the opposite order, so
//! that the n-th figures of all paths saw the same machine. The first path is the subject: ratios are its figures against
//! each other path's ([`table`]). Whether an fsync is durable is counted at the block device below ([`flushes`]).

mod fio;
mod flushes;
mod options;
mod parts;
mod table;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::Error;
use crate::machine;
use crate::report::{Report, Unit};
use crate::stop;
use crate::talks::{Outcome, Results};
use crate::worker::Myself;
use flushes::Counter;
use parts::{Context, Part};
use table::Figures;

pub use options::PeersArguments;

/// What the results of this bench are called in a file of results.
pub(crate) const EXPERIMENT: &str = "peers";

/// One mounted path.
#[derive(Debug)]
pub(crate) struct Peer {
    /// For tables.
    pub(crate) name: String,
    /// Where it is mounted.
    pub(crate) path: PathBuf,
    /// Name and version as given by `--version`.
    pub(crate) version: Option<String>,
    /// Processes that serve it.
    pub(crate) pids: Vec<u32>,
    /// It is not one that the subject competes with.
    pub(crate) is_bound: bool,
    /// Device below it and what it counted, or why nothing is counted.
    pub(crate) counter: Result<Counter, String>,
}

impl Peer {
    fn identity(&self) -> Option<(u64, u64)> {
        std::fs::metadata(&self.path).ok().map(|found| (found.dev(), found.ino()))
    }
}

/// A peer at work.
struct Place {
    peer: Peer,
    /// Device and inode of the path at the start: others mean that it is no longer mounted.
    identity: Option<(u64, u64)>,
    /// Everything is made in here, and removed with it.
    work: tempfile::TempDir,
    /// It disappeared.
    is_gone: bool,
    /// Parts that failed here: they are not tried again, so that the n-th figures of all paths belong together.
    failed: Vec<Part>,
}

impl Place {
    fn new(peer: Peer) -> Result<Place, Error> {
        let work = tempfile::Builder::new()
            .prefix("bench-peers-")
            .tempdir_in(&peer.path)
            .map_err(Error::io("make a directory in", &peer.path))?;
        Ok(Place { identity: peer.identity(), peer, work, is_gone: false, failed: Vec::new() })
    }

    /// Whether the path is no longer what it was.
    fn has_changed(&self) -> bool {
        self.peer.identity() != self.identity
    }

    /// Notes what became of `part`, which has ended with `error`; the sentence for the reader.
    fn fail(&mut self, part: Part, error: &Error) -> String {
        if self.has_changed() {
            return self.lose(part);
        }
        self.failed.push(part);
        let name = &self.peer.name;
        format!("{name}: '{}' failed and is left out from there on: {error}", part.label())
    }

    /// Notes that the path disappeared; the sentence for the reader.
    fn lose(&mut self, part: Part) -> String {
        self.is_gone = true;
        let (name, path, part) = (&self.peer.name, self.peer.path.display(), part.label());
        format!("{name}: {path} disappeared before the end of '{part}': its remaining rows are left out")
    }
}

/// Measures and prints.
///
/// # Errors
///
/// Wishes that make no sense, a path that does not exist, and Ctrl-C; what fails on one path is a note.
pub(crate) fn run(arguments: &PeersArguments, myself: &Myself) -> Result<(), Error> {
    let report = measure(arguments, myself)?;
    if let Some(path) = &arguments.out {
        write(path, report.clone())?;
    }
    if arguments.json {
        println!("{}", report.json());
        return Ok(());
    }
    // The tables have what the rows have, side by side.
    let shown = Report { rows: Vec::new(), ..report };
    print!("{}", shown.table());
    Ok(())
}

/// Runs all rounds on all paths.
///
/// # Errors
///
/// As [`run`].
fn measure(arguments: &PeersArguments, myself: &Myself) -> Result<Report, Error> {
    let peers = arguments.peers()?;
    if !rustix::process::geteuid().is_root() {
        return Err(Error::Usage("peers needs root: it empties the kernel's caches".to_owned()));
    }
    let names: Vec<String> = peers.iter().map(|peer| peer.name.clone()).collect();
    let bounds: Vec<bool> = peers.iter().map(|peer| peer.is_bound).collect();
    let mut report = Report::new(format!("{} against {}", names[0], names[1..].join(", ")));
    if names.len() == 1 {
        report.title = format!("{} alone", names[0]);
    }
    for peer in peers.iter().filter(|peer| !is_mount_point(&peer.path)) {
        let (name, path) = (&peer.name, peer.path.display());
        let note = format!(
            "{name}: {path} is not a mount point, so figures are those of the file system that it is in"
        );
        eprintln!("bench peers: {note}");
        report.notes.push(note);
    }
    let mut parts = arguments.parts();
    if parts.contains(&Part::Fio) && !fio::is_there() {
        parts.retain(|part| *part != Part::Fio);
        report.notes.push("the rows of fio are left out: fio is not installed".to_owned());
    }
    stop::listen();
    let context = Context::new(arguments, myself, &parts)?;
    let mut places = peers.into_iter().map(Place::new).collect::<Result<Vec<Place>, Error>>()?;
    let mut figures = Figures::new(&names, &bounds);
    for round in 0..arguments.runs.max(1) {
        eprintln!("bench peers: round {} of {}", round + 1, arguments.runs.max(1));
        for (number, part) in parts.iter().enumerate() {
            for turn in 0..places.len() {
                // Neither a round nor a part always begins with the same path.
                let is_forward = (round + number).is_multiple_of(2);
                let index = if is_forward { turn } else { places.len() - 1 - turn };
                on(&context, *part, &mut places[index], index, (&mut figures, &mut report))?;
            }
        }
    }
    for (index, place) in places.iter().enumerate() {
        let sizes = place.peer.pids.iter().filter_map(|&pid| machine::resident_bytes(pid));
        let bytes: u64 = sizes.sum();
        if bytes > 0 {
            figures.push("memory of its processes", Unit::Bytes, index, bytes as f64, None);
        }
    }
    let peers: Vec<&Peer> = places.iter().map(|place| &place.peer).collect();
    report.rows = figures.rows();
    report.tables = vec![figures.table(), table::description(&peers)];
    report.notes.extend(table::LEGEND.iter().map(|line| (*line).to_owned()));
    Ok(report)
}

/// One part on one path.
fn on(
    context: &Context<'_>,
    part: Part,
    place: &mut Place,
    index: usize,
    (figures, report): (&mut Figures, &mut Report),
) -> Result<(), Error> {
    if stop::asked() {
        return Err(Error::Interrupted);
    }
    if place.is_gone || place.failed.contains(&part) {
        return Ok(());
    }
    let mut say = |note: String| {
        eprintln!("bench peers: {note}");
        report.notes.push(note);
    };
    // What is below a mount point must not be measured in its place.
    if place.has_changed() {
        say(place.lose(part));
        return Ok(());
    }
    let work = place.work.path().to_owned();
    let done = context.perform(part, &work, &mut place.peer.counter, |name, unit, value, cpu_us| {
        figures.push(name, unit, index, value, cpu_us);
    });
    // What a failed part has left would be in the way of the next one.
    parts::clear(&work);
    if stop::asked() {
        // A program that Ctrl-C ended has failed for no other reason.
        return Err(Error::Interrupted);
    }
    if let Err(error) = done {
        say(place.fail(part, &error));
    }
    Ok(())
}

/// Writes a file that `talks --peers`, `compare` and `history` read, in one piece.
fn write(path: &Path, report: Report) -> Result<(), Error> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut results = Results::new(format!("{}Z", nacre_env::utc(now)), EXPERIMENT);
    let command = vec!["bench".to_owned(), EXPERIMENT.to_owned()];
    let experiment = EXPERIMENT.to_owned();
    results.put(Outcome {
        experiment,
        command,
        seconds: 0.0,
        report: Some(report),
        load: None,
        skipped: None,
    });
    let json = serde_json::to_string_pretty(&results).map_err(|error| Error::Usage(error.to_string()))?;
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    std::fs::write(&new, json).map_err(Error::io("write", &new))?;
    std::fs::rename(&new, path).map_err(Error::io("rename", &new))
}

/// A mount has another device than the directory that it is in.
fn is_mount_point(path: &Path) -> bool {
    let device = |path: &Path| std::fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    match (device(path), device(&path.join(".."))) {
        (Some(own), Some(above)) => own.0 != above.0 || own.1 == above.1,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_told_from_directories() {
        assert!(is_mount_point(Path::new("/")) && is_mount_point(Path::new("/proc")));
        let dir = tempfile::tempdir().expect("a directory");
        assert!(!is_mount_point(dir.path()) && !is_mount_point(&dir.path().join("none")));
    }

    #[test]
    fn a_path_that_went_away_is_told_from_work_that_failed() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("mount");
        std::fs::create_dir(&path).expect("made");
        let counter = Err("no".to_owned());
        let peer = Peer {
            is_bound: false,
            name: "p".to_owned(),
            path: path.clone(),
            version: None,
            pids: Vec::new(),
            counter,
        };
        let mut place = Place::new(peer).expect("it is there");
        let error = Error::Usage("a reason".to_owned());
        let said = place.fail(Part::Fio, &error);
        assert!(said.contains("p: 'fio' failed") && said.ends_with("a reason"), "{said}");
        assert!(place.failed == [Part::Fio] && !place.is_gone);
        std::fs::rename(&path, dir.path().join("elsewhere")).expect("moved");
        let said = place.fail(Part::IorEasy, &error);
        assert!(said.contains("disappeared before the end of 'IOR easy'") && place.is_gone, "{said}");
    }

    #[test]
    fn a_file_of_results_is_read_by_compare() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("peers.json");
        let mut figures = Figures::new(&["a".to_owned(), "b".to_owned()], &[false; 2]);
        figures.push("untar", Unit::Seconds, 0, 1.0, None);
        figures.push("untar", Unit::Seconds, 1, 3.0, None);
        let mut report = Report::new("t");
        report.rows = figures.rows();
        write(&path, report).expect("written");
        let back = Results::load(&path).expect("read");
        let report = back.of(EXPERIMENT).and_then(|outcome| outcome.report.as_ref()).expect("there");
        assert_eq!(report.rows[0].samples.median(), 1.0);
        assert_eq!(report.rows[0].against.as_ref().expect("against b").samples.median(), 3.0);
    }
}
