//! The file system that a figure was taken on, as mdtest and IOR show it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::error::Error;

/// How large and how full the file system of `path` is: `23.5 GiB   Used FS: 0.0%   Inodes: 2.9 Mi   Used Inodes: 0.0%`.
///
/// # Errors
///
/// What the file system says.
pub(crate) fn capacity(path: &Path) -> Result<String, Error> {
    let found = rustix::fs::statvfs(path).map_err(|errno| Error::io("statvfs", path)(errno.into()))?;
    let total = found.f_blocks.saturating_mul(found.f_frsize);
    Ok(format!(
        "{}   Used FS: {:.1}%   Inodes: {}   Used Inodes: {:.1}%",
        binary(total, "B"),
        used(found.f_blocks, found.f_bfree),
        binary(found.f_files, ""),
        used(found.f_files, found.f_ffree)
    ))
}

/// Type of the file system of `path`, such as `ext4`, as the table of mounts has it.
///
/// # Errors
///
/// If there is nothing.
pub(crate) fn file_system(path: &Path) -> Result<String, Error> {
    let path = std::fs::canonicalize(path).map_err(Error::io("find", path))?;
    let device = std::fs::metadata(&path).map_err(Error::io("look at", &path))?.dev();
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    Ok(type_in(&table, (rustix::fs::major(device), rustix::fs::minor(device)), &path).to_owned())
}

/// The type of the mount of this device whose point is nearest above `path`; devices of some file systems have other numbers
/// in the table than their files, so that only the point counts then.
fn type_in<'a>(table: &'a str, (major, minor): (u32, u32), path: &Path) -> &'a str {
    let device = format!("{major}:{minor}");
    let mounts = table.lines().filter_map(|line| {
        let (mount, system) = line.split_once(" - ")?;
        let mut words = mount.split(' ').skip(2);
        let (number, point) = (words.next()?, words.nth(1)?);
        let above = path.starts_with(point.replace("\\040", " "));
        above.then_some(((number == device, point.len()), system.split(' ').next()?))
    });
    // Of several on one point the last one is seen.
    mounts.max_by_key(|(key, _)| *key).map_or("unknown", |(_, kind)| kind)
}

fn used(all: u64, free: u64) -> f64 {
    100.0 * all.saturating_sub(free) as f64 / all.max(1) as f64
}

/// With the largest unit that leaves a number of at least 1.
pub(crate) fn binary(value: u64, unit: &str) -> String {
    let units = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let step = (value.max(1).ilog2() / 10) as usize;
    let scaled = value as f64 / (1u64 << (10 * step)) as f64;
    format!("{scaled:.1} {}{unit}", units[step])
}

/// The words of this process's command line, the program's without its directory.
pub(crate) fn command_line() -> String {
    let mut words = std::env::args();
    let program = words.next().unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or_default().to_owned();
    std::iter::once(program).chain(words).collect::<Vec<_>>().join(" ")
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
        for (device, path, kind) in [
            ((8, 1), "/etc", "ext4"),
            ((7, 0), "/mnt/a disk/file", "xfs"),
            ((0, 40), "/mnt/a disk/deep/er", "fuse.nacre"),
            ((0, 99), "/mnt/a disk/volume", "xfs"),
        ] {
            assert_eq!(type_in(table, device, Path::new(path)), kind, "{path}");
        }
        assert_eq!(type_in("", (1, 1), Path::new("/")), "unknown");
        assert_ne!(file_system(Path::new("/")).expect("the root"), "");
    }

    #[test]
    fn sizes_have_the_largest_unit_that_fits() {
        assert_eq!(binary(0, "B"), "0.0 B");
        assert_eq!(binary(1023, "B"), "1023.0 B");
        assert_eq!(binary(25_232_932_864, "B"), "23.5 GiB");
        assert_eq!(binary(u64::MAX, ""), "16.0 Ei");
        assert_eq!(used(0, 0), 0.0);
        assert!(capacity(Path::new("/")).expect("the root").contains("Used FS: "));
    }
}
