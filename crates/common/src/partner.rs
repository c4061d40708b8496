//! Users see one command `nacre`, which is two programs: one serves, mounts and administers, the other
//! measures. Each finds the other here.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Name of the program that serves, mounts and administers.
pub const NACRE: &str = "nacre";
/// Name of the program that measures.
pub const NACRE_BENCH: &str = "nacre-bench";

/// Finds the program `name`: in the directory of the running program, with which it was built or installed,
/// or else in PATH.
///
/// # Errors
///
/// A sentence that names the program and the places searched.
pub fn find(name: &str) -> Result<PathBuf, String> {
    // Without /proc, only PATH is searched.
    let running = std::env::current_exe().unwrap_or_default();
    let beside = running.parent().unwrap_or(Path::new(""));
    let path = std::env::var_os("PATH").unwrap_or_default();
    find_in(name, beside, &path).ok_or_else(|| {
        format!(
            "the program {name} is missing: it is neither in {} nor in PATH; build it with 'cargo build --release --bin {name}', \
             or install it with 'make build' and 'make install'",
            beside.display()
        )
    })
}

fn find_in(name: &str, beside: &Path, path: &OsStr) -> Option<PathBuf> {
    let places = std::iter::once(beside.to_owned()).chain(std::env::split_paths(path));
    places.filter(|place| place.is_absolute()).map(|place| place.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_that_was_built_with_this_one_comes_before_those_in_the_path() {
        let scratch = tempfile::tempdir().expect("a directory");
        let places = ["beside", "first", "second"].map(|name| scratch.path().join(name));
        for place in &places {
            std::fs::create_dir(place).expect("made");
        }
        let [beside, first, second] = &places;
        let path = std::env::join_paths([Path::new("relative"), first, second]).expect("no colons");
        let found = || find_in(NACRE, beside, &path);
        // A directory with the name of the program is not the program.
        std::fs::create_dir(first.join(NACRE)).expect("made");
        assert_eq!(found(), None);
        std::fs::write(second.join(NACRE), "").expect("written");
        assert_eq!(found(), Some(second.join(NACRE)));
        std::fs::write(beside.join(NACRE), "").expect("written");
        assert_eq!(found(), Some(beside.join(NACRE)));
        assert!(find("nacre-none").expect_err("missing").starts_with("the program nacre-none is missing: "));
    }
}
