//! `nacre frag`: how fragmented files, objects and free space are.

use super::FragArgs;
use crate::failure::{Failure, Result};
use crate::instance::{Instance, MDT_DATA, canonical};
use crate::lctl::params::{names_of, values_in};
use crate::output::print_json;
use crate::{mounts, node, registry};
use nacre_common::frag::{self, Report, Subject, Unit};
use nacre_ondisk::block::BlockLabel;
use nacre_store::object::ObjectError;
use nacre_store::object::block::is_block_store;
use std::path::{Path, PathBuf};

/// Directory of the slot files of a file store; see `docs/formats/ost.md`.
const OBJECTS: &str = "objects";

/// Runs the command.
pub fn run(args: &FragArgs) -> Result<i32> {
    let unit = Unit::parse(&args.unit).map_err(|why| Failure::usage(format!("--unit: {why}")))?;
    let subjects = subjects(&args.path)?;
    let reports: Vec<Report> = subjects.iter().map(|subject| look(subject, unit)).collect::<Result<_>>()?;
    if args.json {
        print_json(&reports)?;
    } else {
        let texts: Vec<String> = reports.iter().map(frag::text).collect();
        print!("{}", texts.join("\n"));
    }
    Ok(0)
}

/// Measures one subject. A store with a device of its own is measured by the process that has it open, if one
/// has.
fn look(subject: &Subject, unit: Unit) -> Result<Report> {
    let failed = |error: frag::Error| Failure::new(error.to_string());
    match frag::look(subject, unit) {
        Err(frag::Error::Objects(ObjectError::InUse { dir })) if is_block_store(&dir) => {
            told_by_process(&dir, unit)?.ok_or_else(|| failed(ObjectError::InUse { dir }.into()))
        }
        other => other.map_err(failed),
    }
}

/// Returns the report of the running target of a directory, if it runs on this host and can be asked.
fn told_by_process(dir: &Path, unit: Unit) -> Result<Option<Report>> {
    let bytes = std::fs::read(dir.join("superblock")).unwrap_or_default();
    let Ok(label) = BlockLabel::decode(&bytes) else { return Ok(None) };
    let pattern = format!("obdfilter.{}.fragmentation", label.label);
    // Other file systems on this host may have a target of that name: the process of this one has its sockets
    // next to the target.
    let is_data_of_mdt = dir.file_name().is_some_and(|name| name == MDT_DATA);
    let target = if is_data_of_mdt { dir.parent().unwrap_or(dir) } else { dir };
    let is_ours = |socket: &Path| target.parent().is_some_and(|instance| socket.starts_with(instance));
    let Some((socket, _)) = names_of(&pattern).into_iter().find(|(socket, _)| is_ours(socket)) else {
        return Ok(None);
    };
    if unit.bytes != Unit::USUAL {
        return Err(Failure::usage(format!(
            "--unit: {} is in use, and its process reports only units of 1M; 'nacre down' stops it",
            label.label
        )));
    }
    let value = values_in(&socket, &pattern).into_iter().next().map(|(_, value)| value);
    Ok(value.and_then(|text| serde_json::from_str(&text).ok()))
}

/// Returns the OSTs of a file system directory or of a mount of it, a single store, or files of any file
/// system.
fn subjects(path: &Path) -> Result<Vec<Subject>> {
    let path = canonical(path)?;
    if let Some(mount) = mounts::mount_of(&path).map_err(Failure::because("read the mount table"))? {
        return osts_of(&behind(&mount.mount_point, &path)?);
    }
    for dir in [path.clone(), path.join(MDT_DATA)] {
        if is_block_store(&dir) && dir.join("superblock").is_file() {
            return Ok(vec![store(&dir)]);
        }
    }
    if path.join(OBJECTS).is_dir() && path.join("index").is_dir() && path.join("superblock").is_file() {
        return Ok(vec![store(&path)]);
    }
    if path.join("superblock").is_file()
        && let Some(instance) = Instance::open(&path)?
    {
        return osts_of(&instance);
    }
    let name = path.file_name().map_or_else(|| "/".to_owned(), |name| name.to_string_lossy().into_owned());
    Ok(vec![Subject { name, path, kind: "file" }])
}

fn store(dir: &Path) -> Subject {
    let name_of = |dir: &Path| dir.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
    let name = match dir.parent().filter(|_| dir.ends_with(MDT_DATA)) {
        Some(mdt) => format!("{}-data", name_of(mdt)),
        None => name_of(dir),
    };
    let path = if is_block_store(dir) { dir.to_owned() } else { dir.join(OBJECTS) };
    Subject { name, path, kind: "object" }
}

fn osts_of(instance: &Instance) -> Result<Vec<Subject>> {
    let targets = instance.object_targets()?;
    Ok(targets.into_iter().map(|target| store(&instance.objects_dir(target))).collect())
}

/// Returns the directory of the file system behind a mount, if its servers are on this host.
pub(super) fn behind(mount_point: &Path, path: &Path) -> Result<Instance> {
    let shown = mount_point.display();
    if path != mount_point {
        return Err(Failure::new(format!(
            "{} is on the mount {shown}: only the OSTs know where the objects of a file are; name {shown} for all of them",
            path.display()
        )));
    }
    let ours = |run: &crate::process::RunDir| {
        node::recorded_mount_point(run).is_some_and(|recorded| recorded == mount_point)
    };
    let run = registry::running().into_iter().find(ours);
    let dir: Option<PathBuf> = run.and_then(|run| run.path.parent().map(Path::to_owned));
    let instance = dir.map(|dir| Instance::open(&dir)).transpose()?.flatten();
    instance.ok_or_else(|| {
        Failure::new(format!(
            "the OSTs of {shown} are elsewhere: ask for the directory of each on its host, as 'nacre frag /srv/fs/ost0000'"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_store::object::{FileStore, FileStoreOptions, ObjectStore};

    #[test]
    fn directories_of_stores_are_told_from_those_of_files() {
        let scratch = tempfile::tempdir().expect("a directory");
        let dir = scratch.path().join("ost0003");
        let options = FileStoreOptions { reserve_bytes: Some(0), ..FileStoreOptions::create() };
        let store = FileStore::open(&dir, options).expect("made");
        let found = subjects(&dir).expect("a store, although it is in use");
        assert_eq!((found.len(), found[0].name.as_str(), found[0].kind), (1, "OST0003", "object"));
        store.close().expect("closed");
        let files = subjects(scratch.path()).expect("a directory");
        assert_eq!((files.len(), files[0].kind), (1, "file"));
        assert!(subjects(&scratch.path().join("none")).expect_err("missing").message.contains("look at"));
    }
}
