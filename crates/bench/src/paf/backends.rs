//! One run after the other over stores and file systems that this program makes for it: each on an image of the same size in memory, with
//! the time of the same simulated disk. What was made is gone afterwards, also after a failure and Ctrl-C.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nacre_store::object::simulated::AnyMedium;
use nacre_store::object::{BlockStore, BlockStoreOptions, FileStore, FileStoreOptions, ObjectStore};

use super::engine::Engine;
use super::state::{Output, Settings};
use super::{Matrix, computed, show};
use crate::error::Error;
use crate::{machine, medium, size, stop};

/// `nacre paf backends`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Root only: ext4, xfs and btrfs are made on images and mounted. A line whose mkfs is missing is left out with the reason.
Example: nacre paf backends --size 1G --capacity 0,10,60 --fragment 0,10,30 --xfer 1M,16M --iterations 3")]
pub struct BackendsArguments {
    /// Directory in memory (tmpfs) for the images, of which one is there at a time
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// What is run over
    #[arg(long, value_delimiter = ',', value_enum, default_value = "block,file,ext4,xfs,btrfs")]
    lines: Vec<Line>,
    /// Size of each image
    #[arg(long, value_parser = size::parse, default_value = "1G")]
    size: u64,
    /// What is measured.
    #[command(flatten)]
    matrix: Matrix,
    /// The disk: the store on a device waits for it, of the others its time is computed from where the measured file lies
    #[arg(long, value_name = "SPEC", value_parser = medium::parse, default_value = "disk:seek=8ms:bandwidth=150M")]
    simulated_medium: AnyMedium,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
}

/// Something that files or objects are kept by.
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
    fn name(self) -> &'static str {
        match self {
            Line::Block => "block",
            Line::File => "file",
            Line::Ext4 => "ext4",
            Line::Xfs => "xfs",
            Line::Btrfs => "btrfs",
        }
    }

    /// The words that make its file system, without the device; `None` if it has none.
    fn mkfs(self) -> Option<&'static [&'static str]> {
        // Space that is kept for root would be capacity that nobody fills; tables are written at once, not while it is measured.
        const EXT4: &[&str] =
            &["mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0"];
        match self {
            Line::Block => None,
            Line::File | Line::Ext4 => Some(EXT4),
            Line::Xfs => Some(&["mkfs.xfs", "-q", "-f"]),
            Line::Btrfs => Some(&["mkfs.btrfs", "-q", "-f"]),
        }
    }
}

/// A place for one run, and what was made for it.
struct Place {
    /// Everything of it: image, mount point, results.
    root: PathBuf,
    /// Where the run goes.
    target: PathBuf,
    mounted: Option<PathBuf>,
}

impl Place {
    fn make(line: Line, dir: &Path, bytes: u64) -> Result<Place, Error> {
        let root = dir.join(format!("nacre-paf-{}-{}", std::process::id(), line.name()));
        std::fs::create_dir_all(&root).map_err(Error::io("create directory", &root))?;
        let target = root.join("target");
        let mut place = Place { root, target, mounted: None };
        std::fs::create_dir(&place.target).map_err(Error::io("create directory", &place.target))?;
        if let Some(mkfs) = line.mkfs() {
            place.mount(mkfs, bytes)?;
        }
        match line {
            Line::Block => {
                let options = BlockStoreOptions { create: true, size: bytes, ..BlockStoreOptions::default() };
                BlockStore::open(&place.target, options)?.close()?;
            }
            Line::File => {
                place.target = place.target.join("store");
                FileStore::open(&place.target, FileStoreOptions::create())?.close()?;
            }
            Line::Ext4 | Line::Xfs | Line::Btrfs => {}
        }
        Ok(place)
    }

    /// Makes a file system on an image, and mounts it.
    fn mount(&mut self, mkfs: &[&str], bytes: u64) -> Result<(), Error> {
        let image = self.root.join("image");
        let file = std::fs::File::create_new(&image).map_err(Error::io("create", &image))?;
        file.set_len(bytes).map_err(Error::io("give a size to", &image))?;
        let words: Vec<&OsStr> = mkfs.iter().map(OsStr::new).chain([image.as_os_str()]).collect();
        call(&words)?;
        let target = self.target.clone();
        let words = ["mount", "-o", "loop"].map(OsStr::new);
        // Taken down even if the program fails after it has mounted.
        self.mounted = Some(target.clone());
        call(&[&words[..], &[image.as_os_str(), target.as_os_str()]].concat())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(point) =
            self.mounted.take().and_then(|point| CString::new(point.as_os_str().as_bytes()).ok())
        {
            // SAFETY: takes a string that lives across the call. The loop device goes with its last mount.
            unsafe { libc::umount2(point.as_ptr(), libc::MNT_DETACH) };
        }
        if let Err(error) = std::fs::remove_dir_all(&self.root) {
            eprintln!("paf: remove {}: {error}", self.root.display());
        }
    }
}

/// Runs a program of the administrator; its last words are the error.
fn call(words: &[&OsStr]) -> Result<(), Error> {
    let [program, rest @ ..] = words else { return Ok(()) };
    let path = std::env::var("PATH").unwrap_or_default();
    // Such programs are often outside of the PATH of others than root.
    let mut command = Command::new(program);
    command.args(rest).env("PATH", format!("{path}:/usr/sbin:/sbin")).stdin(Stdio::null());
    let name = program.to_string_lossy();
    let failed = |reason: String| Error::Server { what: name.to_string(), reason };
    let output = command.output().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => failed("the program is not installed".to_owned()),
        _ => failed(error.to_string()),
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(failed(said.lines().last().unwrap_or("it failed without a word").to_owned()))
}

/// What a line gave: results as JSON and as a table.
struct Measured {
    json: serde_json::Value,
    table: String,
}

fn measure(line: Line, arguments: &BackendsArguments, dir: &Path) -> Result<Measured, Error> {
    let place = Place::make(line, dir, arguments.size)?;
    let matrix = &arguments.matrix;
    let settings = Settings {
        target: place.target.clone(),
        control: None,
        capacity: matrix.capacity.0.clone(),
        fragment: matrix.fragment.0.clone(),
        xfer: matrix.xfer.0.clone(),
        iterations: matrix.iterations,
        seed: matrix.seed,
        writers: matrix.writers,
        size: None,
        file_size: matrix.file_size,
        // What is measured goes around them, and its time is that of the model.
        keep_caches: true,
        simulated_medium: Some(arguments.simulated_medium.to_string()),
    };
    let (output, state) = Output::open(&place.root.join("out"), &settings)?;
    let mut engine = Engine::open(output, state, false, Vec::new())?;
    engine.run()?;
    let wrong = |error: serde_json::Error| Error::Usage(error.to_string());
    let json = serde_json::from_str(&show::json(engine.state())).map_err(wrong)?;
    let table = show::table(engine.state());
    // A file system can be taken down when nothing in it is open.
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
