//! The local file system of a path, and the format of its sizes.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Returns the type of the file system of `path`, such as `ext4`, from the table of mounts.
///
/// # Errors
///
/// If `path` does not exist.
pub fn file_system(path: &Path) -> io::Result<String> {
    let path = std::fs::canonicalize(path)?;
    let device = std::fs::metadata(&path)?.dev();
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    Ok(type_in(&table, rustix::fs::major(device), rustix::fs::minor(device), &path).to_owned())
}

/// Returns the type of the mount of this device whose mount point is the nearest above `path`. On some file
/// systems (btrfs), files have another device number than the mount; then only the mount point counts.
fn type_in<'a>(table: &'a str, major: u32, minor: u32, path: &Path) -> &'a str {
    let device = format!("{major}:{minor}");
    let mounts = table.lines().filter_map(|line| {
        let (mount, system) = line.split_once(" - ")?;
        let mut words = mount.split(' ').skip(2);
        let (number, point) = (words.next()?, words.nth(1)?);
        let above = path.starts_with(point.replace("\\040", " "));
        above.then_some(((number == device, point.len()), system.split(' ').next()?))
    });
    // Of several mounts on one point the last one is visible.
    mounts.max_by_key(|(key, _)| *key).map_or("unknown", |(_, kind)| kind)
}

/// Formats `value` with the largest binary unit that leaves a number of at least 1.
pub fn binary(value: u64, unit: &str) -> String {
    let units = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let step = (value.max(1).ilog2() / 10) as usize;
    let scaled = value as f64 / (1u64 << (10 * step)) as f64;
    format!("{scaled:.1} {}{unit}", units[step])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_mount_of_the_device_says_the_type() {
        let table = "\
            21 1 8:1 / / rw - ext4 /dev/root rw\n\
            22 21 0:5 / /proc rw shared:1 - proc proc rw\n\
            23 21 7:0 / /mnt/a\\040disk rw,noatime shared:2 master:1 - xfs /dev/loop0 rw\n\
            24 23 0:40 / /mnt/a\\040disk/deep rw - fuse.nacre nacre rw\n";
        for ((major, minor), path, kind) in [
            ((8, 1), "/etc", "ext4"),
            ((7, 0), "/mnt/a disk/file", "xfs"),
            ((0, 40), "/mnt/a disk/deep/er", "fuse.nacre"),
            ((0, 99), "/mnt/a disk/volume", "xfs"),
        ] {
            assert_eq!(type_in(table, major, minor, Path::new(path)), kind, "{path}");
        }
        assert_eq!(type_in("", 1, 1, Path::new("/")), "unknown");
        assert_ne!(file_system(Path::new("/")).expect("the root"), "");
    }

    #[test]
    fn sizes_have_the_largest_unit_that_fits() {
        assert_eq!(binary(0, "B"), "0.0 B");
        assert_eq!(binary(1023, "B"), "1023.0 B");
        assert_eq!(binary(25_232_932_864, "B"), "23.5 GiB");
        assert_eq!(binary(u64::MAX, ""), "16.0 Ei");
    }
}
