//! `nacre bench peers`: the same work on several mounted paths in alternating runs, compared.
//!
//! A round runs every part of the work ([`parts`]) on one path after the other, every other round in reverse
//! order, so that the n-th figures of all paths saw the same machine. The first path is the subject: ratios
//! are its figures against each other path's ([`table`]). Whether an fsync is durable is counted at the block
//! device below ([`flushes`]).

mod fio;
mod flushes;
mod options;
mod part_process;
mod parts;
mod table;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::Error;
use crate::programs::Source;
use crate::report::{Report, Unit};
use crate::talks::{Outcome, Results};
use crate::worker::Myself;
use crate::{machine, stop};
use flushes::{Counter, Flushes};
use nacre_common::place;
use part_process::End;
use parts::{Identity, Order, Part};
use table::Figures;

pub use options::PeersArguments;
pub(crate) use part_process::serve;

/// Name of this bench in a file of results.
pub(crate) const EXPERIMENT: &str = "peers";
/// Timeout of the removal of files on a path that responds.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(120);
/// Timeout of the removal on an unresponsive path.
const GONE_TIMEOUT: Duration = Duration::from_secs(2);

/// One mounted path.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Name in tables.
    pub(crate) name: String,
    /// Mount point.
    pub(crate) path: PathBuf,
    /// Type of its file system.
    pub(crate) file_system: String,
    /// Name and version as given by `--version`.
    pub(crate) version: Option<String>,
    /// Processes that serve it.
    pub(crate) pids: Vec<u32>,
    /// The path is not one of the subject's competitors.
    pub(crate) is_bound: bool,
    /// Device below it, or the reason why nothing is counted.
    pub(crate) counter: Result<Counter, String>,
    /// Flushes counted there.
    pub(crate) flushes: Flushes,
}

impl Peer {
    fn new(name: &str, path: &Path) -> Peer {
        Peer {
            name: name.to_owned(),
            path: path.to_owned(),
            file_system: place::file_system(path).unwrap_or_else(|_| "unknown".to_owned()),
            version: None,
            pids: Vec::new(),
            is_bound: false,
            counter: Err("its device is not known".to_owned()),
            flushes: Flushes::default(),
        }
    }
}

/// A peer with the state of its work.
struct Place {
    peer: Peer,
    /// Identity of the path at the start.
    identity: Option<Identity>,
    /// Directory of all files, removed with them.
    work: PathBuf,
    /// The path disappeared, or is unresponsive.
    is_gone: bool,
    /// Parts that failed here: they are not tried again, so that the n-th figures of all paths belong
    /// together.
    failed: Vec<Part>,
}

impl Place {
    fn new(peer: Peer) -> Result<Place, Error> {
        // Before the directory below it exists, so that a path that disappears from then on is noticed.
        let identity = Identity::of(&peer.path);
        let work = tempfile::Builder::new()
            .prefix("bench-peers-")
            .tempdir_in(&peer.path)
            .map_err(Error::io("make a directory in", &peer.path))?
            .keep();
        Ok(Place { identity, peer, work, is_gone: false, failed: Vec::new() })
    }

    /// Records how `part` ended; returns the sentence for the reader, if it did not end well.
    fn note(&mut self, part: Part, end: End, limit: Duration) -> Option<String> {
        let (name, path, label) = (&self.peer.name, self.peer.path.display(), part.label());
        let sentence = match end {
            End::Done => return None,
            End::Gone => {
                format!(
                    "{name}: {path} disappeared before the end of '{label}': its remaining rows are left out"
                )
            }
            End::Hung => format!(
                "{name}: '{label}' took longer than {} s (--limit): its remaining rows are left out",
                limit.as_secs()
            ),
            End::Failed(why) => {
                self.failed.push(part);
                return Some(format!("{name}: '{label}' failed and is left out from there on: {why}"));
            }
        };
        self.is_gone = true;
        Some(sentence)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let limit = if self.is_gone { GONE_TIMEOUT } else { REMOVE_TIMEOUT };
        if !part_process::remove(&self.work, limit) {
            eprintln!("bench peers: {}: remove {} by hand", self.peer.name, self.work.display());
        }
    }
}

/// Measures and prints.
///
/// # Errors
///
/// Options that make no sense, a path that does not exist, and Ctrl-C; a failure on one path is a note.
pub(crate) fn run(arguments: &PeersArguments, myself: &Myself) -> Result<(), Error> {
    let report = measure(arguments, myself)?;
    if let Some(path) = &arguments.out {
        write(path, report.clone())?;
    }
    if arguments.json {
        println!("{}", report.json());
        return Ok(());
    }
    // The tables have the content of the rows, next to each other.
    let shown = Report { rows: Vec::new(), ..report };
    print!("{}", shown.table());
    Ok(())
}

/// Runs all rounds on all paths.
///
/// # Errors
///
/// Those of [`run`].
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
    let source = parts.contains(&Part::Programs).then(Source::make).transpose()?;
    let work = Work { arguments, myself, source };
    let mut places = peers.into_iter().map(Place::new).collect::<Result<Vec<Place>, Error>>()?;
    let mut figures = Figures::new(&names, &bounds);
    for round in 0..arguments.runs.max(1) {
        eprintln!("bench peers: round {} of {}", round + 1, arguments.runs.max(1));
        for (number, part) in parts.iter().enumerate() {
            for turn in 0..places.len() {
                // The first path varies over rounds and over parts.
                let is_forward = (round + number).is_multiple_of(2);
                let index = if is_forward { turn } else { places.len() - 1 - turn };
                on(&work, *part, &mut places[index], index, &mut figures, &mut report)?;
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

/// Runs one part on one path.
fn on(
    work: &Work<'_>,
    part: Part,
    place: &mut Place,
    index: usize,
    figures: &mut Figures,
    report: &mut Report,
) -> Result<(), Error> {
    if stop::asked() {
        return Err(Error::Interrupted);
    }
    if place.is_gone || place.failed.contains(&part) {
        return Ok(());
    }
    let order = work.order(part, place);
    let end = part_process::take(&order, work.myself, work.limit(), &mut place.peer.flushes, |figure| {
        figures.push(&figure.name, figure.unit, index, figure.value, figure.cpu_us);
    })?;
    if let Some(note) = place.note(part, end, work.limit()) {
        eprintln!("bench peers: {note}");
        report.notes.push(note);
    }
    Ok(())
}

/// What all turns share.
struct Work<'a> {
    arguments: &'a PeersArguments,
    myself: &'a Myself,
    /// Source tree of the programs, if their part is selected.
    source: Option<Source>,
}

impl Work<'_> {
    fn limit(&self) -> Duration {
        Duration::from_secs(self.arguments.limit)
    }

    fn order(&self, part: Part, place: &Place) -> Order {
        let PeersArguments { tasks, files, size_mib, seconds, .. } = *self.arguments;
        Order {
            part,
            path: place.peer.path.clone(),
            identity: place.identity,
            work: place.work.clone(),
            files,
            sizes: fio::Sizes { tasks, size_mib, seconds },
            source: self.source.as_ref().map(|source| source.path().to_owned()),
            counter: place.peer.counter.clone().ok(),
        }
    }
}

/// Writes a file for `talks --peers`, `compare` and `history`, atomically.
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
    let json = serde_json::to_string_pretty(&results).map_err(Error::usage)?;
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    std::fs::write(&new, json).map_err(Error::io("write", &new))?;
    std::fs::rename(&new, path).map_err(Error::io("rename", &new))
}

/// Returns whether the path is a mount point, which has another device than its parent directory.
fn is_mount_point(path: &Path) -> bool {
    match (Identity::of(path), Identity::of(&path.join(".."))) {
        (Some(own), Some(above)) => own.device != above.device || own.inode == above.inode,
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
    fn a_path_that_went_away_or_hangs_gets_no_more_work_and_one_that_failed_no_more_of_that_part() {
        let dir = tempfile::tempdir().expect("a directory");
        let limit = Duration::from_secs(7);
        let mut place = Place::new(Peer::new("p", dir.path())).expect("it is there");
        let said = place.note(Part::Fio, End::Failed("a reason".to_owned()), limit).expect("a sentence");
        assert!(said.contains("p: 'fio' failed") && said.ends_with("a reason"), "{said}");
        assert!(place.failed == [Part::Fio] && !place.is_gone);
        assert!(place.note(Part::IorEasy, End::Done, limit).is_none());
        for (end, says) in
            [(End::Gone, "disappeared before the end of 'IOR easy'"), (End::Hung, "longer than 7 s")]
        {
            place.is_gone = false;
            let said = place.note(Part::IorEasy, end, limit).expect("a sentence");
            assert!(said.contains(says) && place.is_gone, "{said}");
        }
        drop(place);
        assert_eq!(std::fs::read_dir(dir.path()).expect("there").count(), 0, "what it made is removed");
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
