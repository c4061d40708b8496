//! Size and use of the file system under a figure, as mdtest and IOR show them.

use std::path::Path;

use nacre_common::place::binary;

use crate::error::Error;

/// Formats size and use of the file system of `path`: `23.5 GiB   Used FS: 0.0%   Inodes: 2.9 Mi   Used
/// Inodes: 0.0%`.
///
/// # Errors
///
/// Errors of the file system.
pub(crate) fn capacity(path: &Path) -> Result<String, Error> {
    let found = rustix::fs::statvfs(path).map_err(Error::io("statvfs", path))?;
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

/// Returns this process's command line, with the program's name without its directory.
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
    fn how_full_it_is_is_said_of_every_file_system() {
        assert_eq!(used(0, 0), 0.0);
        assert!(capacity(Path::new("/")).expect("the root").contains("Used FS: "));
    }
}
