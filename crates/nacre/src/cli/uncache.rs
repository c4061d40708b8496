//! `nacre target uncache`: removes the cache of small writes from a stopped OST.

use super::TargetUncacheArgs;
use crate::failure::{Failure, Result};
use crate::instance::{Instance, target_name};
use crate::node;
use crate::ost_cache::open_device;
use crate::process::{NODE, RunDir, RunLock};
use nacre_store::object::block::device::DirectDevice;
use nacre_store::object::nxd::{Nxd, NxdOptions, cache_of, check_without, remove, survey_in};
use nacre_store::object::{ObjectError, ObjectStore};
use nacre_types::TargetId;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Most extents that cannot be written back to list.
const NAMED_MAX: u64 = 100;

/// Runs the command.
pub fn run(args: &TargetUncacheArgs) -> Result<()> {
    let instance = Instance::open_existing(&args.dir)?;
    let target = ost_of(&args.ost)?;
    if !instance.targets().contains(&target) {
        return Err(Failure::new(format!("{} has no {target}", args.dir.display())));
    }
    let _locks = stopped(&instance, target)?;
    let dir = instance.target_dir(target);
    let found = cache_of(&dir).map_err(failed(target))?;
    let path = found.ok_or_else(|| Failure::new(format!("{target} has no cache of small writes")))?;
    let needed = check_without(&dir).err();
    if let Some(needed) = needed.as_ref().filter(|_| !args.drain && !args.force) {
        return Err(Failure::new(format!(
            "{target} keeps its cache: {needed}; let it be written back first, with 'lctl set_param nxd.{}-{target}.mode=drain' while it runs or with --drain now, or give it up with --force",
            instance.superblock.fsname
        )));
    }
    // The locks keep other processes from opening the objects.
    let store: Arc<dyn ObjectStore> =
        Arc::from(node::open_uncached(&instance, target).map_err(failed(target))?);
    let device = open_cache(&path, target, needed.is_some() && !args.force)?;
    let cache = Cache { target, dir: &dir, device };
    match needed {
        Some(needed) => cache.relieve(&store, &needed, args.force)?,
        None => store.close().map_err(failed(target))?,
    }
    drop(store);
    let device = cache.device.as_deref().map(|device| device as _);
    let is_wiped = remove(&dir, device, args.force).map_err(failed(target))?;
    let now = if is_wiped { "belongs to nobody" } else { "was left as it is" };
    println!("{target} has no cache any more; {} {now}", path.display());
    Ok(())
}

fn failed<E: std::fmt::Display>(target: TargetId) -> impl FnOnce(E) -> Failure {
    Failure::because(format!("remove the cache of {target}"))
}

fn ost_of(text: &str) -> Result<TargetId> {
    let name = text.rsplit_once('-').map_or(text, |(_, name)| name);
    let found = name.parse().ok().filter(|target: &TargetId| target.kind == nacre_types::TargetKind::Ost);
    found.or_else(|| text.parse().ok().map(TargetId::ost)).ok_or_else(|| {
        Failure::usage(format!("'{text}' is no OST: give its name, as in OST0001, or its index"))
    })
}

/// Takes the locks that keep the OST from starting; other processes of the file system may run.
fn stopped(instance: &Instance, target: TargetId) -> Result<Vec<RunLock>> {
    let run = RunDir::new(instance.run_dir());
    let lock = |name: String| {
        run.lock(&name).map_err(|_| {
            let dir = instance.dir.display();
            Failure::new(format!(
                "'{name}' of {dir} is running: stop it first, for instance with 'nacre down {dir}'"
            ))
        })
    };
    [NODE.to_owned(), target_name(target)].into_iter().map(lock).collect()
}

/// Opens the device; `None` if it cannot be opened and is not needed.
fn open_cache(path: &Path, target: TargetId, is_needed: bool) -> Result<Option<Arc<DirectDevice>>> {
    match open_device(path, None) {
        Ok(device) => Ok(Some(Arc::new(device))),
        Err(source) if is_needed => {
            let path = path.to_owned();
            Err(failed(target)(ObjectError::Path { action: "open the cache", path, source }))
        }
        Err(error) => {
            eprintln!("nacre: {}: {error}: it stays as it is", path.display());
            Ok(None)
        }
    }
}

struct Cache<'a> {
    target: TargetId,
    dir: &'a Path,
    device: Option<Arc<DirectDevice>>,
}

impl Cache<'_> {
    /// Writes back data that only the cache holds. With `force`, data that cannot be written back is listed
    /// and discarded.
    fn relieve(&self, store: &Arc<dyn ObjectStore>, needed: &ObjectError, force: bool) -> Result<()> {
        let result = match &self.device {
            Some(device) => self.write_back(store, device, force),
            None => Err(Failure::new("it cannot be opened".to_owned())),
        };
        match result {
            Err(error) if force => {
                eprintln!("nacre: {}: discarded as requested: {needed} ({})", self.target, error.message);
                store.close().map_err(failed(self.target))
            }
            result => result,
        }
    }

    fn write_back(
        &self,
        store: &Arc<dyn ObjectStore>,
        device: &Arc<DirectDevice>,
        force: bool,
    ) -> Result<()> {
        let target = self.target;
        let survey = survey_in(self.dir, &**device).map_err(failed(target))?;
        let damage = survey
            .iter()
            .flat_map(|survey| survey.damage.iter().map(ToString::to_string).chain(survey.hidden_text()));
        for damage in damage {
            eprintln!("nacre: {target}: {damage}");
        }
        if survey.is_some_and(|survey| survey.is_refused()) && force {
            eprintln!(
                "nacre: {target}: discarded as requested: what the damaged blocks of the log held; bytes that were replaced there may be the older ones"
            );
        }
        // No force: a device that is not the cache of this store is refused.
        let options = NxdOptions { salvage: force, ..NxdOptions::default() };
        let cache = Nxd::open(self.dir, store.clone(), device.clone(), &options).map_err(failed(target))?;
        let flushed = if force { self.write_what_can_be(&cache) } else { cache.flush_now() };
        flushed.map_err(failed(target))?;
        cache.close().map_err(failed(target))
    }

    fn write_what_can_be(&self, cache: &Nxd) -> nacre_store::object::Result<()> {
        let mut failures = 0;
        let result = cache.flush_what_can_be(&mut |object, bytes, error| {
            failures += 1;
            if failures <= NAMED_MAX {
                let (target, Range { start, end }) = (self.target, bytes);
                eprintln!("nacre: {target}: discarded as requested: object {object} {start}..{end}: {error}");
            }
        });
        if failures > NAMED_MAX {
            eprintln!("nacre: {}: discarded as requested: {} more pieces", self.target, failures - NAMED_MAX);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ost_is_named_as_everywhere() {
        for text in ["OST0011", "nacre-OST0011", "a-b-OST0011", "17"] {
            assert_eq!(ost_of(text).expect("read"), TargetId::ost(17));
        }
        for text in ["MDT0001", "OST", "", "-1", "70000"] {
            assert!(ost_of(text).is_err(), "{text}");
        }
    }
}
