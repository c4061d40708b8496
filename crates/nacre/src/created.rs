//! What a service remembers of its file system, outside of the directory of the file system.
//!
//! The directory is empty while its disk is not mounted; a service must not create a new file system there then.
//! The service manager provides a place for the state of each service (`StateDirectory=` of the unit).

use crate::failure::{Failure, Result};
use crate::instance::{self, Instance};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// Variable in which the service manager names the directory for the state of the service.
const STATE_DIRECTORY: &str = "STATE_DIRECTORY";
/// File in that directory.
const FILE: &str = "file-system";

/// A file system that the service has started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Created {
    /// Directory, absolute.
    dir: PathBuf,
    fsname: String,
}

/// The place for the state of this service.
#[derive(Debug)]
pub struct ServiceState {
    dir: PathBuf,
}

impl ServiceState {
    /// Returns that of this process; `None` if no service manager has started it, or its unit has none.
    pub fn of_process() -> Option<ServiceState> {
        let value = std::env::var_os(STATE_DIRECTORY)?;
        // A unit may have several, separated by colons.
        let dir = std::env::split_paths(&value).next().filter(|dir| dir.is_absolute())?;
        Some(ServiceState { dir })
    }

    fn file(&self) -> PathBuf {
        self.dir.join(FILE)
    }

    /// Returns what was started last; a damaged record counts as none.
    fn last(&self) -> Option<Created> {
        serde_json::from_slice(&fs::read(self.file()).ok()?).ok()
    }

    /// Refuses to create a file system where the service has had one. `dir` is absolute.
    ///
    /// # Errors
    /// If `dir` has held a file system, which the caller has not found there.
    pub fn check_new(&self, dir: &Path) -> Result<()> {
        let Some(created) = self.last().filter(|created| created.dir == dir) else { return Ok(()) };
        Err(Failure::new(format!(
            "{} is empty, but this service has had the file system '{}' there: mount its disk first, or remove {} to create a \
             new file system",
            dir.display(),
            created.fsname,
            self.file().display()
        )))
    }

    /// Remembers the file system that the service has started.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub fn remember(&self, instance: &Instance) -> Result<()> {
        let created = Created { dir: instance.dir.clone(), fsname: instance.superblock.fsname.clone() };
        if self.last().as_ref() == Some(&created) {
            return Ok(());
        }
        let text = serde_json::to_vec(&created).map_err(Failure::because("describe the file system"))?;
        instance::write_durably(&self.dir, FILE, &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_directory_that_had_a_file_system_is_refused_and_damage_is_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let state = ServiceState { dir: dir.path().to_owned() };
        let (home, other) = (Path::new("/srv/home"), Path::new("/srv/other"));
        assert!(state.check_new(home).is_ok());
        let created = Created { dir: home.to_owned(), fsname: "home".to_owned() };
        fs::write(state.file(), serde_json::to_vec(&created).expect("JSON")).expect("written");
        let refusal = state.check_new(home).expect_err("it had one").message;
        assert!(refusal.starts_with("/srv/home is empty, but this service has had the file system 'home'"));
        assert!(refusal.contains(&state.file().display().to_string()), "{refusal}");
        assert!(state.check_new(other).is_ok());
        fs::write(state.file(), b"{").expect("written");
        assert!(state.check_new(home).is_ok());
    }
}
