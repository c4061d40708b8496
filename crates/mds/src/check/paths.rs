//! Paths of files, for the report of a check.

use super::{DEPTH_MAX, looking};
use crate::config::MdsConfig;
use crate::error::MdsError;
use crate::records::store_path;
use crate::tables::INODES;
use nacre_ondisk::InodeRecord;
use nacre_store::MetaStore;
use nacre_types::Fid;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

/// Returns the first path of each file from the root of the file system, as far as the MDTs in these
/// directories know it. The MDTs must not be running.
///
/// # Errors
/// If a store cannot be opened or read.
pub fn paths_of(
    dirs: &[(PathBuf, u16)],
    config: &MdsConfig,
    files: &HashSet<Fid>,
) -> Result<HashMap<Fid, String>, MdsError> {
    let open =
        |(dir, index): &(PathBuf, u16)| Ok((*index, MetaStore::open(&store_path(dir), looking(config))?));
    let stores = dirs.iter().map(open).collect::<Result<HashMap<_, _>, MdsError>>()?;
    let mut paths = HashMap::new();
    for file in files {
        paths.extend(path_of(&stores, *file)?.map(|path| (*file, path)));
    }
    Ok(paths)
}

/// Returns the path of a file; `None` if a directory on it has no name, cannot be decoded, or is on another
/// MDT.
fn path_of(stores: &HashMap<u16, MetaStore>, file: Fid) -> Result<Option<String>, MdsError> {
    let (mut at, mut names) = (file, Vec::new());
    while at != Fid::ROOT {
        let Some(store) = stores.get(&at.mdt_index()).filter(|_| names.len() < DEPTH_MAX) else {
            return Ok(None);
        };
        let record = store.get(INODES, &at.to_key(), |value| InodeRecord::decode(at, value?).ok())?;
        let Some(record) = record.filter(|record| !record.name.is_empty()) else { return Ok(None) };
        names.push(String::from_utf8_lossy(&record.name).into_owned());
        at = record.parent;
    }
    let path = |path: String, name: &String| path + "/" + name.as_str();
    Ok(Some(names.iter().rev().fold(String::new(), path)))
}
