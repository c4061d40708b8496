//! Files of a directory tree, on one file system.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{Error, Extents};
use crate::extents::{self, Extent};
use rustix::fs::OFlags;

/// A file, or a directory with everything below it.
pub(super) struct Tree {
    path: PathBuf,
    device: u64,
}

impl Tree {
    pub(super) fn open(path: &Path) -> Result<Tree, Error> {
        let found = fs::metadata(path).map_err(Error::io("look at", path))?;
        if !found.is_dir() && !found.is_file() {
            let message = format!("{} is neither a file nor a directory: name one", path.display());
            return Err(Error::Usage(message));
        }
        Ok(Tree { path: path.to_owned(), device: found.dev() })
    }

    fn file(&self, path: &Path, visit: &mut dyn FnMut(&str, &[Extent])) -> Result<(), Error> {
        let options = || {
            let mut options = OpenOptions::new();
            options.read(true).custom_flags(OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits() as i32);
            options
        };
        let file = match options().open(path) {
            Ok(file) => file,
            // Removed since its name was read.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(Error::io("open", path)(error)),
        };
        let extents = extents::of_file(&file).map_err(Error::io("look for the extents of", path))?;
        visit(&path.strip_prefix(&self.path).unwrap_or(path).to_string_lossy(), &extents);
        Ok(())
    }
}

impl Extents for Tree {
    fn files(&self, visit: &mut dyn FnMut(&str, &[Extent])) -> Result<(), Error> {
        if self.path.is_file() {
            return self.file(&self.path, visit);
        }
        let mut linked = HashSet::new();
        let mut directories = vec![self.path.clone()];
        while let Some(directory) = directories.pop() {
            let entries = match fs::read_dir(&directory) {
                Ok(entries) => entries,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(Error::io("read", &directory)(error)),
            };
            for entry in entries {
                let path = entry.map_err(Error::io("read", &directory))?.path();
                let Ok(found) = fs::symlink_metadata(&path) else { continue };
                // Another file system has a device and free space of its own.
                if found.dev() != self.device {
                    continue;
                }
                if found.is_dir() {
                    directories.push(path);
                } else if found.is_file()
                    && found.blocks() > 0
                    && (found.nlink() == 1 || linked.insert(found.ino()))
                {
                    self.file(&path, visit)?;
                }
            }
        }
        Ok(())
    }

    fn free(&self) -> Result<Vec<Extent>, Error> {
        let file = File::open(&self.path).map_err(Error::io("open", &self.path))?;
        extents::free(&file).map_err(Error::io("look for the free space of", &self.path))
    }
}
