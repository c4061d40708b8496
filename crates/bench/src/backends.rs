//! Metadata by back end: LAD'17 compares ldiskfs and ZFS this way.
//!
//! One NacreFS file system per back end, its targets on a local file system of their own in an image file on
//! the same disk. The metadata store alone creates empty files, whatever its local file system; files of 4
//! KiB also have an object. The runs of all back ends alternate.

use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::image::{Image, Kind};
use crate::instance::{Instance, InstanceOptions, NacreProgram};
use crate::limits::row_of;
use crate::options::Common;
use crate::report::{Against, Report};
use crate::work::{Operation, Work};
use crate::worker::{Job, Myself, interleave};

/// Size of a file with data in bytes.
const BYTES: usize = 4096;
/// Size of an image in bytes. It is sparse.
const IMAGE_BYTES: u64 = 8 << 30;
/// Option for a block store, with the size of its file in the image.
const DEVICE: &str = "block,size=4G";

/// `nacre bench backends`
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: nacre bench backends --dir /srv/disk --runs 5")]
pub struct BackendsArguments {
    /// Existing directory on the disk; images with local file systems are created there, and removed again
    #[arg(long)]
    dir: PathBuf,
    /// Files of each process
    #[arg(long, default_value_t = 2000)]
    files: u64,
    /// Processes
    #[arg(long, default_value_t = 2)]
    processes: usize,
    /// The program that starts file systems.
    #[command(flatten)]
    nacre: NacreProgram,
    /// How the figures are taken and printed.
    #[command(flatten)]
    pub common: Common,
}

/// Back end under the targets.
#[derive(Debug, Clone, Copy)]
struct Backend {
    below: Kind,
    is_block: bool,
}

impl Backend {
    /// All back ends; the first stands for ldiskfs and is the baseline.
    const ALL: [Backend; 4] = [
        Backend { below: Kind::Ext4, is_block: false },
        Backend { below: Kind::Xfs, is_block: false },
        Backend { below: Kind::Btrfs, is_block: false },
        Backend { below: Kind::Ext4, is_block: true },
    ];

    fn name(self, has_data: bool) -> String {
        match (has_data, self.is_block) {
            (true, true) => "block".to_owned(),
            (true, false) => format!("file on {}", self.below.name()),
            (false, _) => format!("metadata store on {}", self.below.name()),
        }
    }
}

/// A NacreFS file system on an image.
struct Subject {
    backend: Backend,
    instance: Instance,
    // After the file system on it: fields are dropped in this order.
    _image: Image,
    _directory: tempfile::TempDir,
}

impl Subject {
    fn start(arguments: &BackendsArguments, backend: Backend) -> Result<Subject, Error> {
        let directory = tempfile::Builder::new().prefix("nacre-backends-").tempdir_in(&arguments.dir);
        let directory = directory.map_err(Error::io("make a directory in", &arguments.dir))?;
        let image = Image::mount(directory.path(), backend.below, IMAGE_BYTES)?;
        let ost_backend = backend.is_block.then(|| DEVICE.to_owned());
        let options = InstanceOptions { osts: 1, ost_backend, ..InstanceOptions::default() };
        let program = arguments.nacre.find()?;
        let instance = Instance::start(&program, image.path(), "fs", options)?;
        Ok(Subject { backend, instance, _image: image, _directory: directory })
    }
}

/// Takes all figures.
///
/// # Errors
///
/// When a file system does not start or work on it fails; all are stopped first. A back end that the machine
/// lacks is left out with a note.
pub fn measure(arguments: &BackendsArguments, myself: &Myself) -> Result<Report, Error> {
    let processes = arguments.processes.max(1);
    let mut report =
        Report::new(format!("Metadata by back end, {processes} process(es), everything in one process"));
    let mut subjects = Vec::new();
    for backend in Backend::ALL {
        match Subject::start(arguments, backend) {
            Ok(subject) => subjects.push(subject),
            Err(Error::Usage(why)) => report.notes.push(format!("{} is left out: {why}", backend.name(true))),
            Err(error) => return Err(error),
        }
    }
    if subjects.is_empty() {
        return Err(Error::Usage(report.notes.join("; ")));
    }
    for has_data in [false, true] {
        for shared in [false, true] {
            compare(arguments, myself, &subjects, &mut report, has_data, shared)?;
        }
    }
    report.notes.push(
        "local file systems are in sparse files on one disk; empty files take the metadata store alone, those of 4 KiB have an object; nothing is durable when the clock stops"
            .to_owned(),
    );
    Ok(report)
}

fn compare(
    arguments: &BackendsArguments,
    myself: &Myself,
    subjects: &[Subject],
    report: &mut Report,
    has_data: bool,
    shared: bool,
) -> Result<(), Error> {
    // Without objects, a block store makes no difference.
    let subjects: Vec<&Subject> = subjects.iter().filter(|one| has_data || !one.backend.is_block).collect();
    let directory =
        format!("{}-{}", if has_data { "data" } else { "empty" }, if shared { "shared" } else { "unique" });
    let mut paths = Vec::new();
    for subject in &subjects {
        let path = subject.instance.work_directory(&directory)?;
        subject.instance.setstripe(&path, &["-c", "1"])?;
        paths.push(path);
    }
    let place = if shared { "shared directory" } else { "unique directories" };
    for (operation, what) in [
        (Operation::Create, "create"),
        (Operation::StatUncached, "stat"),
        (Operation::Open, "read"),
        (Operation::Unlink, "remove"),
    ] {
        let jobs: Vec<Job> =
            paths.iter().map(|path| job(arguments, operation, path, has_data, shared)).collect();
        let results = interleave(myself, &jobs, arguments.common.runs)?;
        for (index, (job, series)) in jobs.iter().zip(&results).enumerate() {
            let mut row = row_of(job, series);
            row.name = format!("{}, {place}, {what}", subjects[index].backend.name(has_data));
            if index > 0 {
                let base = subjects[0].backend.name(has_data);
                row.against = Some(Against::new(base, row_of(&jobs[0], &results[0])));
            }
            report.rows.push(row);
        }
    }
    Ok(())
}

fn job(
    arguments: &BackendsArguments,
    operation: Operation,
    path: &Path,
    has_data: bool,
    shared: bool,
) -> Job {
    let mut work = Work::meta(operation, path);
    work.files = arguments.files.max(1);
    work.seconds = arguments.common.seconds;
    work.block_bytes = if has_data { BYTES } else { 0 };
    work.shared = shared;
    Job::new("", &work, arguments.processes.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_ends_are_called_by_what_holds_the_files() {
        let names = |has_data| Backend::ALL.map(|backend| backend.name(has_data));
        assert_eq!(names(true), ["file on ext4", "file on xfs", "file on btrfs", "block"]);
        assert_eq!(
            names(false)[..3],
            ["metadata store on ext4", "metadata store on xfs", "metadata store on btrfs"]
        );
    }
}
