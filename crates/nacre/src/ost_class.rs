//! Class of an OST: flash or disk. Given with `nacre up --flash`, `--disk` and then stored in the target's
//! directory, else detected from the OST's own device, or the one below its directory.

use crate::failure::{Failure, Result};
use crate::instance::{Instance, write_private};
use crate::ost_list;
use nacre_store::object::CLASS;
use nacre_store::object::block::device_of;
use nacre_types::{TargetId, TargetKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

const FLASH: &str = "flash";
const DISK: &str = "disk";

/// Requested classes of OSTs: index, and true for flash.
pub struct OstClasses(Vec<(u16, bool)>);

impl OstClasses {
    /// Parses lists of OSTs: those of `flash` are on flash, those of `disk` are not.
    ///
    /// # Errors
    /// If a list cannot be parsed, or names an OST that is not among `targets` or in both lists.
    pub fn parse(targets: &[TargetId], flash: Option<&str>, disk: Option<&str>) -> Result<OstClasses> {
        let read = |option: &str, list: Option<&str>| -> Result<Vec<u16>> {
            let Some(list) = list else { return Ok(Vec::new()) };
            let indexes = ost_list::indexes(list, 10)
                .ok_or_else(|| Failure::usage(format!("{option} {list} is no list of OSTs such as 0-3,8")))?;
            match indexes.iter().find(|index| !targets.contains(&TargetId::ost(**index))) {
                Some(index) => Err(Failure::usage(format!(
                    "{option}: there is no OST {index}, the last one is {}",
                    targets
                        .iter()
                        .filter(|known| known.kind == TargetKind::Ost)
                        .map(|ost| ost.index)
                        .max()
                        .unwrap_or(0)
                ))),
                None => Ok(indexes),
            }
        };
        let (flash, disk) = (read("--flash", flash)?, read("--disk", disk)?);
        if let Some(both) = flash.iter().find(|index| disk.contains(index)) {
            return Err(Failure::usage(format!("OST {both} cannot be on flash and on disk")));
        }
        let all =
            flash.into_iter().map(|index| (index, true)).chain(disk.into_iter().map(|index| (index, false)));
        Ok(OstClasses(all.collect()))
    }

    /// Stores the classes.
    ///
    /// # Errors
    /// If one cannot be written.
    pub fn keep(&self, instance: &Instance) -> Result<()> {
        let keep =
            |&(index, is_flash): &(u16, bool)| keep_for(&instance.target_dir(TargetId::ost(index)), is_flash);
        self.0.iter().try_for_each(keep)
    }
}

/// Stores the class of the OST in a directory.
///
/// # Errors
/// If it cannot be written.
pub fn keep_for(dir: &Path, is_flash: bool) -> Result<()> {
    let class = if is_flash { FLASH } else { DISK };
    write_private(&dir.join(CLASS), format!("{class}\n").as_bytes())
}

/// Returns whether the OST in a directory is on flash; an unknown class counts as disk.
pub fn is_flash(dir: &Path) -> bool {
    match std::fs::read_to_string(dir.join(CLASS)) {
        Ok(text) if text.trim() == FLASH => true,
        Ok(text) if text.trim() == DISK => false,
        _ => device_of(dir)
            .and_then(|device| is_on_flash(&device))
            .or_else(|| is_on_flash(dir))
            .unwrap_or(false),
    }
}

/// Returns the kernel's class of a device, or of the one below a file or directory; memory counts as flash.
/// `None` if no device is known.
fn is_on_flash(path: &Path) -> Option<bool> {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    let found = std::fs::metadata(path).ok()?;
    let is_device = found.file_type().is_block_device();
    // Device nodes are in memory (devtmpfs), too.
    if !is_device && rustix::fs::statfs(path).ok()?.f_type as u64 == TMPFS_MAGIC {
        return Some(true);
    }
    let device = if is_device { found.rdev() } else { found.dev() };
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let block = Path::new("/sys/dev/block").join(format!("{major}:{minor}"));
    // A partition has no queue of its own; its disk is the parent directory.
    let rotational = ["queue/rotational", "../queue/rotational"]
        .iter()
        .find_map(|queue| std::fs::read_to_string(block.join(queue)).ok())?;
    match rotational.trim() {
        "0" => Some(true),
        "1" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_counts_more_than_the_device() {
        let dir = tempfile::tempdir().expect("a directory");
        for (text, is) in [("flash\n", true), ("disk\n", false)] {
            std::fs::write(dir.path().join(CLASS), text).expect("written");
            assert_eq!(is_flash(dir.path()), is);
        }
        std::fs::write(dir.path().join(CLASS), "what").expect("written");
        assert_eq!(is_flash(dir.path()), is_on_flash(dir.path()).unwrap_or(false));
    }

    #[test]
    fn the_class_of_a_store_with_a_device_is_that_of_the_device() {
        let memory = tempfile::tempdir_in("/dev/shm").expect("memory");
        let disk = tempfile::tempdir_in("/var/tmp").expect("a directory");
        let device = memory.path().join("device");
        std::fs::write(&device, "data").expect("written");
        assert_eq!(is_on_flash(&device), Some(true));
        // Path of a device, as a store records it.
        std::fs::write(disk.path().join("device"), device.as_os_str().as_encoded_bytes()).expect("written");
        assert!(is_flash(disk.path()), "a file in memory, from a directory that may be on a disk");
        let other = disk.path().join("data");
        std::fs::write(&other, "data").expect("written");
        std::fs::write(memory.path().join("device"), other.as_os_str().as_encoded_bytes()).expect("written");
        assert_eq!(is_flash(memory.path()), is_on_flash(&other).unwrap_or(true), "the other way round");
        // A given class takes precedence.
        keep_for(disk.path(), false).expect("kept");
        assert!(!is_flash(disk.path()));
        // A missing device has no class.
        std::fs::write(memory.path().join("device"), "/nowhere").expect("written");
        assert!(is_flash(memory.path()), "that of the directory");
    }
}
