//! One run after the other over stores and file systems that this program creates: each on an image of the
//! same size in memory, with the service times of the same simulated disk. Everything is removed afterwards,
//! also after a failure and Ctrl-C.

use std::path::{Path, PathBuf};

use nacre_store::object::simulated::AnyMedium;
use nacre_store::object::{BlockStore, BlockStoreOptions, FileStore, FileStoreOptions, ObjectStore};

use super::engine::Engine;
use super::state::{Output, Settings};
use super::{Matrix, computed, show};
use crate::error::Error;
use crate::image::{Image, Kind};
use crate::options::word;
use crate::{machine, medium, stop};
use nacre_common::size;

/// `nacre paf backends`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Root only: ext4, xfs and btrfs are made on images and mounted. A line whose mkfs is missing is left out with the reason.
Example: nacre paf backends --size 1G --capacity 0,10,60 --fragment 0,10,30 --xfer 1M,16M --iterations 3")]
pub struct BackendsArguments {
    /// Directory in memory (tmpfs) for the images, of which one exists at a time
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Stores and file systems to run over
    #[arg(long, value_delimiter = ',', value_enum, default_value = "block,file,ext4,xfs,btrfs")]
    lines: Vec<Line>,
    /// Size of each image
    #[arg(long, value_parser = size::parse, default_value = "1G")]
    size: u64,
    /// States and transfers to measure.
    #[command(flatten)]
    matrix: Matrix,
    /// The disk: the store on a device waits for it; for the others its time is computed from the extents of
    /// the measured file
    #[arg(long, value_name = "SPEC", value_parser = medium::parse, default_value = "disk:seek=8ms:bandwidth=150M")]
    simulated_medium: AnyMedium,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
}

/// A store or file system that holds the files or objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Line {
    /// An object store that has a device for itself
    Block,
    /// An object store with a file for each object, on ext4
    File,
    /// ext4 itself
    Ext4,
    /// xfs itself
    Xfs,
    /// btrfs itself
    Btrfs,
}

impl Line {
    fn name(self) -> String {
        word(self)
    }

    /// Returns the local file system that it requires.
    fn below(self) -> Option<Kind> {
        match self {
            Line::Block => None,
            Line::File | Line::Ext4 => Some(Kind::Ext4),
            Line::Xfs => Some(Kind::Xfs),
            Line::Btrfs => Some(Kind::Btrfs),
        }
    }
}

/// Resources of one run.
struct Place {
    /// Target of the run.
    target: PathBuf,
    // Before its directory: fields are dropped in this order.
    _image: Option<Image>,
    /// Directory of everything: image, mount point, results.
    root: tempfile::TempDir,
}

impl Place {
    fn make(line: Line, dir: &Path, bytes: u64) -> Result<Place, Error> {
        let root = tempfile::Builder::new().prefix(&format!("nacre-paf-{}-", line.name())).tempdir_in(dir);
        let root = root.map_err(Error::io("make a directory in", dir))?;
        let image = line.below().map(|kind| Image::mount(root.path(), kind, bytes)).transpose()?;
        let mut target =
            image.as_ref().map_or_else(|| root.path().join("store"), |image| image.path().into());
        match line {
            Line::Block => {
                let options = BlockStoreOptions { create: true, size: bytes, ..BlockStoreOptions::default() };
                BlockStore::open(&target, options)?.close()?;
            }
            Line::File => {
                target = target.join("store");
                FileStore::open(&target, FileStoreOptions::create())?.close()?;
            }
            Line::Ext4 | Line::Xfs | Line::Btrfs => {}
        }
        Ok(Place { target, _image: image, root })
    }
}

/// Result of a line, as JSON and as a table.
struct Measured {
    json: serde_json::Value,
    table: String,
}

fn measure(line: Line, arguments: &BackendsArguments, dir: &Path) -> Result<Measured, Error> {
    let place = Place::make(line, dir, arguments.size)?;
    let settings = Settings {
        // Measured transfers bypass the caches, and their time is the model's.
        keep_caches: true,
        simulated_medium: Some(arguments.simulated_medium.to_string()),
        ..arguments.matrix.settings(place.target.clone())
    };
    let (output, state) = Output::open(&place.root.path().join("out"), &settings)?;
    let mut engine = Engine::open(output, state, false, Vec::new())?;
    engine.run()?;
    let wrong = |error: serde_json::Error| Error::Usage(error.to_string());
    let json = serde_json::from_str(&show::json(engine.state())).map_err(wrong)?;
    let table = show::table(engine.state());
    // A file system can be unmounted when no file in it is open.
    drop(engine);
    Ok(Measured { json, table })
}

/// Runs all lines.
pub(super) fn run(arguments: &BackendsArguments) -> Result<(), Error> {
    if computed::disk_of(arguments.simulated_medium).is_none() {
        let message = "only the time of a disk can be computed for all: give --simulated-medium disk:...";
        return Err(Error::Usage(message.to_owned()));
    }
    if !rustix::process::geteuid().is_root() {
        return Err(Error::Usage("file systems are mounted: only root can do that".to_owned()));
    }
    stop::listen();
    std::fs::create_dir_all(&arguments.dir).map_err(Error::io("create directory", &arguments.dir))?;
    let dir = std::fs::canonicalize(&arguments.dir).map_err(Error::io("find", &arguments.dir))?;
    let mut lines = Vec::new();
    for &line in &arguments.lines {
        let name = line.name();
        let result = measure(line, arguments, &dir);
        if stop::asked() {
            return Err(Error::Interrupted);
        }
        lines.push(match result {
            Ok(Measured { json, table }) => {
                if !arguments.json {
                    println!("{name}\n\n{table}");
                }
                serde_json::json!({ "name": name, "results": json })
            }
            Err(error) => {
                eprintln!("paf: {name} is left out: {error}");
                serde_json::json!({ "name": name, "left_out": error.to_string() })
            }
        });
    }
    if arguments.json {
        let medium = arguments.simulated_medium;
        let notes = [
            format!(
                "SIMULATED disk below all lines ({medium}): block waits for it, of the others its time is computed from the extents of the measured file"
            ),
            format!(
                "images of {} in memory; what is free on each when it is new counts as its capacity",
                size::show(arguments.size)
            ),
        ];
        let title = "Populate and fragment (PaF) by back end, simulated disk";
        let machine = machine::Machine::look();
        println!(
            "{:#}",
            serde_json::json!({ "title": title, "machine": machine, "notes": notes, "lines": lines })
        );
    }
    Ok(())
}
