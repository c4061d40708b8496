//! FUSE file systems that do nothing: only the kernel, the transport and the wake-ups remain, the ceiling of
//! every file system on the same transport.
//!
//! Each is served by a process of its own, another instance of this program. The same null file system on the
//! `fuser` crate is an example of this package (`fuser_null`), so that no binary depends on the crate; it is
//! measured if it was built.

mod echo;
mod server;

use std::path::PathBuf;

pub use echo::{EchoServer, serve_echo};
pub use server::{Flavour, NullMount, ServeArguments, serve};

use crate::error::Error;
use crate::limits::row_of;
use crate::options::{Common, pin};
use crate::report::{Against, Report};
use crate::work::{Operation, Work};
use crate::worker::{Job, Myself, interleave};

/// `nacre bench fuse-null`
#[derive(Debug, clap::Args)]
pub struct NullArguments {
    /// Transports to compare
    #[arg(long, value_delimiter = ',', default_values_t = [Flavour::Dev, Flavour::Uring, Flavour::Fuser])]
    transport: Vec<Flavour>,
    /// The fuser_null example; by default next to this executable, where `cargo build --examples` puts it
    #[arg(long, value_name = "PROGRAM")]
    fuser: Option<PathBuf>,
    /// Worker processes
    #[arg(short = 'n', long, default_value_t = 1)]
    processes: usize,
    /// Keep worker i on the i-th CPU
    #[arg(long)]
    pin: bool,
    /// Also one blocking loopback TCP round trip per request
    #[arg(long)]
    rpc: bool,
    /// How the figures are taken and printed.
    #[command(flatten)]
    pub common: Common,
}

/// Measures metadata and data on every available transport in alternating runs; ratios are to the last
/// transport in the list.
///
/// # Errors
///
/// When no transport can be mounted, or work on one fails.
pub fn measure(arguments: &NullArguments, myself: &Myself) -> Result<Report, Error> {
    let mut report = Report::new(format!("FUSE without a file system, {} process(es)", arguments.processes));
    let echo = if arguments.rpc { Some(EchoServer::start(myself)?) } else { None };
    let scratch = Scratch::new()?;
    let mut mounts = Vec::new();
    for &flavour in &arguments.transport {
        let point = scratch.directory(&flavour.to_string())?;
        let rpc = echo.as_ref().map(EchoServer::address);
        match NullMount::start(myself, flavour, &point, rpc, arguments.fuser.as_deref()) {
            Ok(mount) => mounts.push(mount),
            Err(error) => report.notes.push(format!("{flavour} left out: {error}")),
        }
    }
    if mounts.is_empty() {
        let reason = report.notes.join("; ");
        return Err(Error::Server { what: "null file systems".to_owned(), reason });
    }
    for work in works(arguments.common.seconds) {
        // The example lists a directory in quadratic time, which is no property of its channel.
        let lists =
            |mount: &&NullMount| work.operation != Operation::List || mount.flavour() != Flavour::Fuser;
        let measured: Vec<&NullMount> = mounts.iter().filter(lists).collect();
        let jobs: Vec<Job> = measured.iter().map(|mount| job(&work, mount, arguments)).collect();
        let results = interleave(myself, &jobs, arguments.common.runs)?;
        let rows: Vec<_> = jobs.iter().zip(&results).map(|(job, result)| row_of(job, result)).collect();
        let last = rows.last().map(|row| row.samples.clone()).unwrap_or_default();
        let count = rows.len();
        for (index, mut row) in rows.into_iter().enumerate() {
            if index + 1 < count {
                let label = measured.last().map(|mount| mount.flavour().to_string()).unwrap_or_default();
                row.against = Some(Against::of(label, last.clone()));
            }
            report.rows.push(row);
        }
    }
    Ok(report)
}

fn works(seconds: f64) -> Vec<Work> {
    let meta = [Operation::StatUncached, Operation::Open, Operation::Create, Operation::Unlink];
    let mut works: Vec<Work> = meta.into_iter().map(|operation| Work::meta(operation, "")).collect();
    let mut list = Work::meta(Operation::List, "");
    list.files = 20_000;
    works.push(list);
    let file_bytes = 1 << 30;
    works.push(Work::io(Operation::RandRead, "", 4096, file_bytes));
    works.push(Work::io(Operation::SeqRead, "", 1 << 20, file_bytes));
    works.push(Work::io(Operation::SeqWrite, "", 1 << 20, file_bytes));
    works.iter_mut().for_each(|work| work.seconds = seconds);
    // Enough files that creating and removing them takes the whole run.
    works.iter_mut().filter(|work| work.files == 2_000).for_each(|work| work.files = 20_000);
    works
}

fn job(work: &Work, mount: &NullMount, arguments: &NullArguments) -> Job {
    let label = format!("{}, {}", work.operation.label(), mount.flavour());
    let work = Work { path: mount.point().to_owned(), ..work.clone() };
    let mut job = Job::new(label, &work, arguments.processes);
    job.daemons = vec![mount.process()];
    if arguments.pin {
        pin(&mut job);
    }
    job
}

/// A directory for mount points, removed on drop after the mounts.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Result<Scratch, Error> {
        let path = std::env::temp_dir().join(format!("nacre-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(Error::io("create directory", &path))?;
        Ok(Scratch(path))
    }

    pub(crate) fn directory(&self, name: &str) -> Result<PathBuf, Error> {
        let path = self.0.join(name);
        std::fs::create_dir_all(&path).map_err(Error::io("create directory", &path))?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Removes only empty directories of its own: the content of a remaining mount must not be removed.
        for entry in std::fs::read_dir(&self.0).into_iter().flatten().flatten() {
            let _ = std::fs::remove_dir(entry.path());
        }
        let _ = std::fs::remove_dir(&self.0);
    }
}
