//! Cost of an object store for the OST above it: random reads of an OST over its store, in alternation with
//! those of an OST over a store that does no I/O. Lustre's `obdfilter-survey` has fake I/O for the same
//! comparison.
//!
//! Each OST is a process of its own with the service and the server of a real one, but belongs to no file
//! system. This is the only way to create one, so that a store without data cannot be taken for a real one.
//!
//! A feature of the I/O path ([`Feature`]) is measured the same way: an OST with it, and one without it.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use fastrand::Rng;
use nacre_oss::ObjectServer;
use nacre_rpc::tcp::{Server, Targets};
use nacre_rpc::{ServerConfig, Tunable};
use nacre_store::object::{CachePolicy, ObjectStore};

use super::layer::{Backend, Objects, OstObjects, device_bytes, open_store};
use super::null_store::{self, NullStore};
use super::plan::Case;
use super::{SurveyArguments, check, shown, stamp};
use crate::buffer::Buffer;
use crate::error::Error;
use crate::machine;
use crate::options::word;
use crate::piped::Piped;
use crate::report::{Against, Report, Row, Target, Unit};
use crate::sample::Samples;
use crate::stop;
use crate::worker::{Myself, turns};
use nacre_common::size;
use tempfile::TempDir;

/// Target: reads over the real store relative to the null store, with records of [`SMALL`].
const BOUND: f64 = 0.9;
/// Record size in bytes that the target is for.
const SMALL: u64 = 4096;
/// Size in bytes of the pieces in which objects are filled.
const FILL: u64 = 1 << 20;
/// Timeout of running requests when an OST stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// Object store of an OST of a survey.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum MemoryStore {
    /// A file for each
    File,
    /// One sparse file for all
    Block,
    /// FAKE: no data is stored
    Null,
}

impl MemoryStore {
    fn of(backend: Backend) -> MemoryStore {
        match backend {
            Backend::File => MemoryStore::File,
            Backend::Block => MemoryStore::Block,
        }
    }

    fn name(self) -> String {
        word(self)
    }
}

/// Features of the I/O path for small transfers and for flash, each measured against its absence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Feature {
    /// Short I/O: the client receives the data together with its header
    ShortIo,
    /// The threads of the server keep their buffers for the next request
    Reuse,
    /// Reads of objects bypass the page cache of the server (file back end)
    CacheBypass,
}

impl Feature {
    fn label(self) -> &'static str {
        match self {
            Feature::ShortIo => "short I/O",
            Feature::Reuse => "buffers used again",
            Feature::CacheBypass => "page cache bypassed",
        }
    }

    /// Returns whether an OST has the feature by default.
    fn is_default(self) -> bool {
        self != Feature::CacheBypass
    }
}

/// `nacre bench survey-ost`
#[derive(Debug, clap::Args)]
pub struct ServeOstArguments {
    /// New directory for a store that needs one
    #[arg(long)]
    dir: PathBuf,
    /// Object store
    #[arg(long)]
    kept: MemoryStore,
    /// Reads that the null store asks the server to batch
    #[arg(long, default_value = "0")]
    reads_at_once: usize,
    /// A feature that is inverted relative to an OST of a file system
    #[arg(long)]
    without: Option<Feature>,
}

/// Serves one OST on a loopback port until standard input ends. Prints its address, and the number of reads
/// that its store batches.
///
/// # Errors
///
/// If the store cannot be created, or the port cannot be opened.
pub fn serve_ost(arguments: &ServeOstArguments) -> Result<(), Error> {
    let dir = &arguments.dir;
    let size = device_bytes(dir.parent().unwrap_or(dir), None)?;
    let store: Arc<dyn ObjectStore> = match arguments.kept {
        MemoryStore::File => Arc::from(open_store(dir, Backend::File, size)?),
        MemoryStore::Block => Arc::from(open_store(dir, Backend::Block, size)?),
        MemoryStore::Null => Arc::new(NullStore::in_place_of(arguments.reads_at_once)),
    };
    if arguments.without == Some(Feature::CacheBypass)
        && let Some(cache) = store.abilities().page_cache
    {
        cache.set(CachePolicy { read: false, ..cache.get() });
    }
    let reads_at_once = store.abilities().reads_at_once;
    let service = Arc::new(ObjectServer::new(store, 0));
    let targets = Targets::new().with_ost(0, service.clone());
    let local = "127.0.0.1:0".parse().expect("an address");
    let reuses_buffers = arguments.without != Some(Feature::Reuse);
    let server = Server::bind(&[local], targets, ServerConfig { reuses_buffers, ..ServerConfig::default() })
        .map_err(Error::io("listen on", "127.0.0.1"))?;
    println!("{}@tcp {reads_at_once}", server.addrs()[0]);
    // The parent process has ended when the input ends.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    server.stop();
    let stopped = service.stop(STOP_TIMEOUT);
    stopped.map_err(|error| Error::Server { what: "OST0000".to_owned(), reason: error.to_string() })
}

/// An OST in a process of its own.
struct Ost {
    kept: MemoryStore,
    reads_at_once: usize,
    // Before the process, from which it disconnects: fields are dropped in this order.
    objects: OstObjects,
    process: Process,
}

struct Process(Piped);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.hang_up();
        if let Err(error) = self.0.wait() {
            eprintln!("bench: {error}");
        }
    }
}

impl Ost {
    fn start(myself: &Myself, dir: &Path, side: Side, reads_at_once: usize) -> Result<Ost, Error> {
        let mut command = myself.command("survey-ost");
        command.arg("--dir").arg(dir.join(side.directory())).args(["--kept", &side.kept.name()]);
        command.args(["--reads-at-once", &reads_at_once.to_string()]);
        if let Some(feature) = side.without {
            command.args(["--without", &word(feature)]);
        }
        let mut process = Process(Piped::start(&mut command)?);
        let line = process.0.line()?;
        let said = line.split_once(' ').and_then(|(address, count)| Some((address, count.parse().ok()?)));
        let Some((address, reads_at_once)) = said else {
            return Err(Error::Server { what: "OST0000".to_owned(), reason: format!("it said '{line}'") });
        };
        let objects = OstObjects::at(address)?;
        if side.without == Some(Feature::ShortIo) {
            objects.set(Tunable::ShortIoBytes, 0)?;
        }
        Ok(Ost { kept: side.kept, reads_at_once, objects, process })
    }

    /// Creates the objects of a case and fills them.
    fn fill(&mut self, case: &Case) -> Result<(), Error> {
        self.objects.make(case.objects)?;
        let piece = case.record * (FILL / case.record).max(1);
        let mut buffer = Buffer::new(piece as usize);
        for object in 0..case.objects {
            let mut at = 0;
            while at < case.size {
                let len = piece.min(case.size - at);
                let data = &mut buffer.slice()[..len as usize];
                for (record, offset) in
                    data.chunks_mut(case.record as usize).zip((at..).step_by(case.record as usize))
                {
                    stamp(record, object, offset);
                }
                self.objects.write(object, at, data)?;
                at += len;
            }
            self.objects.sync(object)?;
        }
        Ok(())
    }

    /// Reads at random for `time` on all threads; all data is checked, except with a null store.
    fn read(&self, case: &Case, time: Duration, seed: u64) -> Result<Round, Error> {
        let line = Barrier::new(case.threads as usize + 1);
        let work = |thread: u32| -> Result<u64, Error> {
            let mut random = Rng::with_seed(seed << 32 | u64::from(thread));
            let mut buffer = Buffer::new(case.record as usize);
            line.wait();
            let (start, mut reads) = (Instant::now(), 0);
            while start.elapsed() < time {
                if stop::asked() {
                    return Err(Error::Interrupted);
                }
                let object = random.u32(..case.objects);
                let offset = random.u64(..case.records()) * case.record;
                self.objects.read(object, offset, buffer.slice())?;
                if self.kept != MemoryStore::Null {
                    check(buffer.slice(), object, offset)?;
                }
                reads += 1;
            }
            Ok(reads)
        };
        let cpu_us = || machine::process_cpu_us(self.process.0.id()).unwrap_or(f64::NAN);
        std::thread::scope(|scope| {
            let work = &work;
            let threads: Vec<_> = (0..case.threads).map(|thread| scope.spawn(move || work(thread))).collect();
            line.wait();
            let (start, cpu) = (Instant::now(), cpu_us());
            let joined =
                threads.into_iter().map(|thread| thread.join().expect("threads of a survey do not panic"));
            let reads: u64 = joined.collect::<Result<Vec<u64>, Error>>()?.iter().sum();
            let (elapsed, cpu) = (start.elapsed().as_secs_f64(), cpu_us() - cpu);
            Ok(Round { rate: reads as f64 / elapsed, cpu_us: cpu / (reads as f64) })
        })
    }
}

/// Result of one turn: reads per second, and CPU time of the OST per read in microseconds.
#[derive(Debug, Clone, Copy)]
struct Round {
    rate: f64,
    cpu_us: f64,
}

#[derive(Default)]
struct Rounds {
    rates: Samples,
    cpu_us: Samples,
}

impl Rounds {
    fn push(&mut self, turn: Round) {
        self.rates.push(turn.rate);
        self.cpu_us.push(turn.cpu_us);
    }
}

/// One OST of a comparison.
#[derive(Debug, Clone, Copy)]
struct Side {
    kept: MemoryStore,
    /// The inverted feature.
    without: Option<Feature>,
}

impl Side {
    fn directory(self) -> String {
        let without = self.without.map_or_else(String::new, |feature| format!("-{feature:?}"));
        format!("{}{without}", self.kept.name())
    }
}

/// Measures random reads of all OSTs in alternation.
///
/// # Errors
///
/// If an OST does not start, the disk is full, or data is wrong.
pub(super) fn measure(
    arguments: &SurveyArguments,
    directory: &TempDir,
    cases: &[Case],
    myself: &Myself,
) -> Result<Report, Error> {
    let common = &arguments.common;
    let time = Duration::try_from_secs_f64(common.seconds)
        .map_err(|_| Error::Usage(format!("{} is no number of seconds", common.seconds)))?;
    let kept = MemoryStore::of(arguments.backend);
    if arguments.features.contains(&Feature::CacheBypass) && kept != MemoryStore::File {
        return Err(Error::Usage(
            "only the file back end goes through a page cache: give --backend file with cache-bypass"
                .to_owned(),
        ));
    }
    let real = Ost::start(myself, directory.path(), Side { kept, without: None }, 1)?;
    // Requests take the same path in both.
    let fake = Side { kept: MemoryStore::Null, without: None };
    let fake = Ost::start(myself, directory.path(), fake, real.reads_at_once)?;
    let mut osts = vec![real, fake];
    for feature in &arguments.features {
        osts.push(Ost::start(myself, directory.path(), Side { kept, without: Some(*feature) }, 1)?);
    }
    let (dir, bytes) = (arguments.dir.display(), size::show(arguments.size));
    let mut report = Report::new(format!("An OST on {dir} next to one with FAKE I/O, objects of {bytes}"));
    let mut cold = true;
    for case in cases {
        for ost in &mut osts {
            ost.fill(case)?;
        }
        let mut taken: Vec<Rounds> = osts.iter().map(|_| Rounds::default()).collect();
        for run in 0..common.runs.max(1) {
            cold &= machine::drop_caches().is_ok();
            for index in turns(run, osts.len()) {
                taken[index].push(osts[index].read(case, time, run as u64 + 1)?);
            }
        }
        report.rows.push(row(case, kept, &taken[0], &taken[1]));
        let features = arguments.features.iter().zip(&taken[2..]);
        report
            .rows
            .extend(features.map(|(feature, other)| feature_row(case, *feature, kept, &taken[0], other)));
        for ost in osts.iter().filter(|ost| ost.kept != MemoryStore::Null) {
            (0..case.objects).try_for_each(|object| ost.objects.destroy(object))?;
        }
    }
    report.notes.push(format!("{} is FAKE: sizes are kept, data is not, reads give zeros", null_store::NAME));
    report.notes.push(
        "CPU time is that of the OST's process alone; what lies between both is the store's".to_owned(),
    );
    report.notes.push(match cold {
        true => "the kernel's caches were emptied before each round of turns".to_owned(),
        false => "the kernel's caches could not be emptied: only root can".to_owned(),
    });
    Ok(report)
}

fn case_name(case: &Case, kept: MemoryStore) -> String {
    let (objects, threads, record) = (case.objects, case.threads, shown(case.record));
    format!("ost, {}, random read, obj {objects} thr {threads} rsz {record}", kept.name())
}

fn row(case: &Case, kept: MemoryStore, real: &Rounds, fake: &Rounds) -> Row {
    let mut row = compared(case_name(case, kept), real, null_store::NAME, fake);
    row.target = (case.record == SMALL).then_some(Target::RatioAtLeast(BOUND));
    row
}

/// Returns the row of a feature, with it against without it, whichever is the default of an OST.
fn feature_row(case: &Case, feature: Feature, kept: MemoryStore, usual: &Rounds, other: &Rounds) -> Row {
    let (with, without) = if feature.is_default() { (usual, other) } else { (other, usual) };
    let name = format!("{}: {}", feature.label(), case_name(case, kept));
    compared(name, with, "without", without)
}

fn compared(name: String, ours: &Rounds, label: &str, theirs: &Rounds) -> Row {
    let mut row = Row::new(name, Unit::OpsPerSecond, ours.rates.clone());
    row.daemon_us = ours.cpu_us.clone();
    let (samples, daemon_us) = (theirs.rates.clone(), theirs.cpu_us.clone());
    row.against = Some(Against { label: label.to_owned(), samples, daemon_us });
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_of_runs_that_alternate_and_what_is_fake_is_called_so() {
        let turns = |rates: [f64; 3], cpu: f64| {
            let mut turns = Rounds::default();
            rates.into_iter().for_each(|rate| turns.push(Round { rate, cpu_us: cpu }));
            turns
        };
        let case = |record| Case { objects: 2, threads: 8, record, size: 1 << 20 };
        let (real, fake) = (turns([80.0, 190.0, 95.0], 12.0), turns([100.0, 200.0, 100.0], 9.0));
        let row = row(&case(4096), MemoryStore::Block, &real, &fake);
        assert_eq!(row.ratio(), Some(0.95));
        assert_eq!(row.meets_target(), Some(true));
        let mut report = Report::new("x");
        report.rows.push(row);
        let text = report.table();
        assert!(text.contains("ost, block, random read, obj 2 thr 8 rsz 4K"), "{text}");
        assert!(text.contains("FAKE null store (no I/O) 100 op/s") && text.contains("12.0 / 9.0"), "{text}");
        let (one, two) = (turns([1.0; 3], 1.0), turns([2.0; 3], 1.0));
        let large = super::row(&case(1 << 20), MemoryStore::File, &one, &two);
        assert_eq!((large.ratio(), large.meets_target()), (Some(0.5), None));
        for (feature, ratio) in [(Feature::ShortIo, 0.5), (Feature::Reuse, 0.5), (Feature::CacheBypass, 2.0)]
        {
            let row = feature_row(&case(4096), feature, MemoryStore::File, &one, &two);
            assert_eq!(row.ratio(), Some(ratio), "{feature:?}: with it against without");
        }
    }
}
