//! Discards the free blocks of a local file system on its device.

use crate::error::Error;
use nacre_store::object::file::trim_range;
use std::fs::File;
use std::path::Path;

/// Discards all free space of the file system of `directory`, and returns the number of bytes.
///
/// # Errors
///
/// Where the file system or its device lacks discard, and unless root.
pub(crate) fn trim(directory: &Path) -> Result<u64, Error> {
    let file = File::open(directory).map_err(Error::io("open", directory))?;
    trim_range(&file, 0, u64::MAX).map_err(Error::io("trim the file system of", directory))
}
