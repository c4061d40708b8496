//! A control file next to the target, written and read in alternation with the measured one: the bandwidth of
//! the disk itself at that moment.
//!
//! The bandwidth of shared disks, virtual ones above all, varies from minute to minute, and the states of a
//! run are minutes or hours apart. The ratio of two figures taken within a second of each other shows the
//! change of the target.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::ground::{check, stamp};
use crate::buffer::{Buffer, O_DIRECT};
use crate::error::Error;
use crate::stop;
use nacre_common::place;
use rustix::io::Errno;

/// Prefix of the name of the file.
const NAME: &str = "nacre-paf-control-";
/// Size of one write in bytes while it is created.
const CHUNK: usize = 1 << 20;

/// The control file, written from start to end before any measurement, so that no write has to allocate. It
/// stays until the run has ended, also across interruptions: created again next to an aged target it would be
/// aged itself.
#[derive(Debug)]
pub(super) struct Control {
    path: PathBuf,
    file: File,
}

impl Control {
    /// Creates the file of the run `id` in `directory`, as large as the measured one, or reuses the one that
    /// an earlier process of the run has left.
    ///
    /// # Errors
    ///
    /// The directory does not exist, has too little free space, or its file system lacks O_DIRECT.
    pub(super) fn make(directory: &Path, id: &str, bytes: u64) -> Result<Control, Error> {
        let path = directory.join(format!("{NAME}{id}"));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).custom_flags(O_DIRECT);
        let file = options.open(&path).map_err(|error| {
            // A file system without O_DIRECT creates the file before it fails.
            let _ = fs::remove_file(&path);
            refused(directory, &path, error)
        })?;
        // It grows as it is written, so a file of this length is complete.
        let is_there = file.metadata().is_ok_and(|found| found.len() == bytes);
        let control = Control { path, file };
        if is_there {
            return Ok(control);
        }
        let mut buffer = Buffer::new(CHUNK);
        let written = control.file.set_len(0).map_err(Error::io("cut", &control.path));
        match written.and_then(|()| control.write_all(bytes, buffer.slice())) {
            Ok(()) => Ok(control),
            Err(error) => {
                control.remove();
                Err(match error {
                    Error::Io { source, path, .. } => refused(directory, &path, source),
                    other => other,
                })
            }
        }
    }

    /// Removes the file at the end of the run.
    pub(super) fn remove(self) {
        if let Err(error) = fs::remove_file(&self.path) {
            eprintln!("paf: remove {}: {error}", self.path.display());
        }
    }

    /// Writes the file in transfers of the buffer's size until it is durable; returns the seconds taken.
    pub(super) fn write(&self, bytes: u64, buffer: &mut Buffer) -> Result<f64, Error> {
        let start = Instant::now();
        self.write_all(bytes, buffer.slice())?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Reads the file likewise, and compares it with what was written.
    pub(super) fn read(&self, bytes: u64, buffer: &mut Buffer) -> Result<f64, Error> {
        let start = Instant::now();
        let block = buffer.slice();
        for offset in stop::transfers(bytes, block.len()) {
            let offset = offset?;
            self.file.read_exact_at(block, offset).map_err(Error::io("read", &self.path))?;
            check(block, offset, &self.path.display().to_string())?;
        }
        Ok(start.elapsed().as_secs_f64())
    }

    fn write_all(&self, bytes: u64, block: &mut [u8]) -> Result<(), Error> {
        for offset in stop::transfers(bytes, block.len()) {
            let offset = offset?;
            // On creation, the size of the file need not be a multiple of the chunk size.
            let part = (bytes - offset).min(block.len() as u64) as usize;
            stamp(block, offset);
            self.file.write_all_at(&block[..part], offset).map_err(Error::io("write", &self.path))?;
        }
        self.file.sync_data().map_err(Error::io("sync", &self.path))
    }
}

fn refused(directory: &Path, path: &Path, error: std::io::Error) -> Error {
    match Errno::from_io_error(&error) {
        Some(Errno::INVAL) => {
            let kind = place::file_system(directory).unwrap_or_else(|_| "unknown".to_owned());
            Error::Usage(format!(
                "--control {} is on a file system without O_DIRECT ({kind}): name a directory on the target's disk",
                directory.display()
            ))
        }
        Some(Errno::NOSPC) => Error::Usage(format!(
            "--control {} has no room for a file as large as the measured one: name another directory on the target's disk",
            directory.display()
        )),
        _ => Error::io("write", path)(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_there_while_it_is_measured_and_holds_what_was_written() {
        let scratch = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("a directory on a disk");
        let names = || fs::read_dir(scratch.path()).expect("there").count();
        let bytes = 3 << 19;
        let control = Control::make(scratch.path(), "7", bytes).expect("made");
        assert_eq!(fs::metadata(&control.path).expect("there").len(), bytes);
        let mut buffer = Buffer::new(512 << 10);
        assert!(control.write(bytes, &mut buffer).expect("written") > 0.0);
        buffer.slice().fill(0);
        assert!(control.read(bytes, &mut buffer).expect("what was written") > 0.0);
        control.file.write_all_at(&[9; 8], 512 << 10).expect_err("not a whole block");
        fs::write(&control.path, vec![9; bytes as usize]).expect("by somebody else");
        let read = control.read(bytes, &mut buffer).expect_err("other data").to_string();
        assert!(read.contains("other data at offset 0"), "{read}");
        drop(control);
        assert_eq!(names(), 1, "it stays when a run is broken off");
        let again = Control::make(scratch.path(), "7", bytes).expect("there");
        assert!(again.write(bytes, &mut buffer).is_ok() && again.read(bytes, &mut buffer).is_ok());
        again.remove();
        assert_eq!(names(), 0);
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let refused = Control::make(Path::new("/nonexistent"), "7", 4096).expect_err("refused").to_string();
        assert!(refused.contains("/nonexistent"), "{refused}");
    }
}
