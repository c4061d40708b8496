//! The file system that a figure was taken on, as mdtest and IOR show it.

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

fn used(all: u64, free: u64) -> f64 {
    100.0 * all.saturating_sub(free) as f64 / all.max(1) as f64
}

/// With the largest unit that leaves a number of at least 1.
fn binary(value: u64, unit: &str) -> String {
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
    fn sizes_have_the_largest_unit_that_fits() {
        assert_eq!(binary(0, "B"), "0.0 B");
        assert_eq!(binary(1023, "B"), "1023.0 B");
        assert_eq!(binary(25_232_932_864, "B"), "23.5 GiB");
        assert_eq!(binary(u64::MAX, ""), "16.0 Ei");
        assert_eq!(used(0, 0), 0.0);
        assert!(capacity(Path::new("/")).expect("the root").contains("Used FS: "));
    }
}
