//! Requirements of tests on the machine.

use std::path::{Path, PathBuf};

/// Returns whether a missing requirement is a failure.
pub fn in_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| value == "true")
}

/// Returns whether this process is root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns whether all of `needs`, names of programs or paths, exist. Reports missing ones on standard error
/// with the name of the test; a test that gets `false` returns.
///
/// # Panics
///
/// In CI, if one is missing.
#[track_caller]
pub fn have(needs: &[&str]) -> bool {
    let missing: Vec<&str> = needs.iter().copied().filter(|need| !is_there(need)).collect();
    report(&missing)
}

/// Returns whether this process is root; otherwise as [`have`].
///
/// # Panics
///
/// In CI, if it is not.
#[track_caller]
pub fn have_root() -> bool {
    report(if is_root() { &[] } else { &["the privileges of root"] })
}

#[track_caller]
fn report(missing: &[&str]) -> bool {
    if missing.is_empty() {
        return true;
    }
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test").to_owned();
    let list = missing.join(", ");
    assert!(!in_ci(), "{test} needs {list}; see scripts/test-deps");
    // Past the capture of test output, so that users see which tests are skipped.
    let line =
        format!("\n*** SKIPPED {test}: missing {list} (scripts/test-deps installs what tests need) ***\n");
    let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
    false
}

fn is_there(need: &str) -> bool {
    if need.starts_with('/') { Path::new(need).exists() } else { find_program(need).is_some() }
}

/// Searches for `name` in PATH and in the directories of administrators, which the PATH of other users lacks.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|directory| directory.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_paths_are_found() {
        assert!(have(&["sh", "/proc"]));
        assert!(find_program("no-such-program").is_none());
        assert!(!is_there("/no/such/path"));
    }
}
