//! Random writes of 4 KiB by the location of the data: pools of disks and of flash, each with and without a
//! cache of small writes, and with the first part of the file on the MDT, on flash, or with the rest. The
//! sizes of the files are those of Cray's talk of 2019.
//!
//! The media are simulated; the data and the caches are in memory. A write counts when fdatasync has
//! returned.

use std::path::{Path, PathBuf};

use crate::client::size_label;
use crate::error::Error;
use crate::instance::{Instance, InstanceOptions, NacreProgram};
use crate::limits::row_of;
use crate::medium::Media;
use crate::options::Common;
use crate::report::{Against, Report};
use crate::work::{Operation, Work};
use crate::worker::{Job, Myself, interleave};

/// Size of a write in bytes.
const WRITE_BYTES: usize = 4096;
/// Size of the first part of a file that is stored on the MDT, or in a pool of flash.
const MDT_HEAD: &str = "64K";
const FLASH_HEAD: &str = "1M";
/// Size of a cache.
const CACHE: &str = "256M";

/// `nacre bench small-io`
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: nacre bench small-io --sizes-kib 32,8192 --runs 5")]
pub struct SmallArguments {
    /// Directory in memory (tmpfs), so that only the simulated media bound the figures; needs 2 GiB
    #[arg(long, default_value = "/dev/shm")]
    memory_dir: PathBuf,
    /// Sizes of the files in KiB
    #[arg(long, value_delimiter = ',', default_values_t = [32, 256, 1024, 8192])]
    sizes_kib: Vec<u64>,
    /// Processes that write, each into a file of its own
    #[arg(long, default_value_t = 4)]
    writers: usize,
    /// Simulated media of the disks and the flash.
    #[command(flatten)]
    media: Media,
    /// The program that starts file systems.
    #[command(flatten)]
    nacre: NacreProgram,
    /// How the figures are taken and printed.
    #[command(flatten)]
    pub common: Common,
}

/// The OSTs by index, each alone in a pool: its medium, and whether it has a cache of small writes.
const OSTS: [(&str, bool); 4] = [("disk", false), ("disk", true), ("flash", false), ("flash", true)];

/// Location of the first part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Head {
    /// The same as of the rest.
    None,
    /// On the MDT.
    Mdt,
    /// In the pool of flash with the same cache as the rest.
    Flash,
}

/// Location of the data of a file.
#[derive(Debug, Clone, Copy)]
struct Place {
    ost: usize,
    head: Head,
}

impl Place {
    /// Returns all locations; the first is the plain disk.
    fn all() -> impl Iterator<Item = Place> {
        let heads = [Head::None, Head::Mdt, Head::Flash];
        let all = (0..OSTS.len()).flat_map(move |ost| heads.map(|head| Place { ost, head }));
        // With the first part and the rest on flash, it is a plain file.
        all.filter(|place| OSTS[place.ost].0 == "disk" || place.head != Head::Flash)
    }

    fn name(self) -> String {
        let (medium, has_cache) = OSTS[self.ost];
        let cache = if has_cache { ", cache" } else { "" };
        let head = match self.head {
            Head::None => "",
            Head::Mdt => ", head on MDT",
            Head::Flash => ", head on flash",
        };
        format!("{medium}{cache}{head}")
    }

    fn layout(self) -> Vec<String> {
        let pool = pool_of(self.ost);
        let flash = pool_of(self.ost + 2);
        let words: &[&str] = match self.head {
            Head::Mdt => &["-E", MDT_HEAD, "-L", "mdt", "-E", "-1", "-c", "1", "-p", &pool],
            Head::Flash => &["-E", FLASH_HEAD, "-c", "1", "-p", &flash, "-E", "-1", "-c", "1", "-p", &pool],
            Head::None => &["-c", "1", "-p", &pool],
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }
}

/// Returns the name of an OST's pool.
fn pool_of(ost: usize) -> String {
    let (medium, has_cache) = OSTS[ost % OSTS.len()];
    format!("{medium}{}", if has_cache { "-cache" } else { "" })
}

/// Takes all figures.
///
/// # Errors
///
/// When the file system does not start or work on it fails; it is stopped first.
pub fn measure(arguments: &SmallArguments, myself: &Myself) -> Result<Report, Error> {
    let program = arguments.nacre.find()?;
    let caches = tempfile::Builder::new()
        .prefix("nacre-small-")
        .tempdir_in(&arguments.memory_dir)
        .map_err(Error::io("create a directory in", &arguments.memory_dir))?;
    let cache = |index: usize| match OSTS[index].1 {
        true => format!("{},size={CACHE}", caches.path().join(format!("cache{index}")).display()),
        false => "none".to_owned(),
    };
    let options = InstanceOptions {
        osts: OSTS.len(),
        ost_caches: (0..OSTS.len()).map(cache).collect(),
        ..InstanceOptions::default()
    };
    let instance = Instance::start(&program, &arguments.memory_dir, "bench-small", options)?;
    let fsname = instance.fsname();
    let medium = |index: usize| {
        let medium = if OSTS[index].0 == "disk" { &arguments.media.disk } else { &arguments.media.flash };
        format!("osd-file.{fsname}-OST{index:04x}.simulated_medium={medium}")
    };
    instance.set_named_params(&(0..OSTS.len()).map(medium).collect::<Vec<_>>())?;
    for ost in 0..OSTS.len() {
        let pool = format!("{fsname}.{}", pool_of(ost));
        instance.lctl(&["pool_new", &pool])?;
        instance.lctl(&["pool_add", &pool, &format!("{fsname}-OST{ost:04x}")])?;
    }
    let mut report = Report::new(format!(
        "Random writes of 4 KiB by {} processes, each durable, on simulated media",
        arguments.writers.max(1)
    ));
    report.notes.push(format!(
        "service times are simulated: a disk is {}, flash {}; data and caches are in memory; heads on the MDT are the first {MDT_HEAD} of a file, on flash the first {FLASH_HEAD}",
        arguments.media.disk, arguments.media.flash
    ));
    for &size_kib in &arguments.sizes_kib {
        one_size(arguments, myself, &instance, size_kib.max(4), &mut report)?;
    }
    Ok(report)
}

fn one_size(
    arguments: &SmallArguments,
    myself: &Myself,
    instance: &Instance,
    size_kib: u64,
    report: &mut Report,
) -> Result<(), Error> {
    let places: Vec<Place> = Place::all().collect();
    let jobs = places.iter().map(|place| {
        let directory =
            instance.work_directory(&format!("{size_kib}-{}", place.name().replace(", ", "-")))?;
        let layout = place.layout();
        instance.setstripe(&directory, &layout.iter().map(String::as_str).collect::<Vec<_>>())?;
        Ok(job(arguments, &directory, size_kib, place.name()))
    });
    let jobs = jobs.collect::<Result<Vec<Job>, Error>>()?;
    let results = interleave(myself, &jobs, arguments.common.runs)?;
    for (index, (job, series)) in jobs.iter().zip(&results).enumerate() {
        let mut row = row_of(job, series);
        if index > 0 {
            row.against = Some(Against::new("plain disk", row_of(&jobs[0], &results[0])));
        }
        report.rows.push(row);
    }
    Ok(())
}

fn job(arguments: &SmallArguments, directory: &Path, size_kib: u64, name: String) -> Job {
    let mut work = Work::io(Operation::RandWrite, directory, WRITE_BYTES, size_kib << 10);
    work.seconds = arguments.common.seconds;
    work.each_durable = true;
    Job::new(format!("simulated: {}, {name}", size_label(size_kib as usize)), &work, arguments.writers.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_has_a_name_and_a_layout_of_its_own() {
        let mut names: Vec<String> = Place::all().map(Place::name).collect();
        assert_eq!(names[0], "disk");
        assert!(names.contains(&"flash, cache, head on MDT".to_owned()));
        assert!(names.contains(&"disk, cache, head on flash".to_owned()));
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 10);
        let mut layouts: Vec<String> = Place::all().map(|place| place.layout().join(" ")).collect();
        layouts.sort();
        layouts.dedup();
        assert_eq!(layouts.len(), 10);
    }
}
