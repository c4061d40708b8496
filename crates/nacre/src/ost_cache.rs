//! Caches of small writes of OSTs: a log on a flash device in front of the objects (`docs/formats/nxd.md`).
//!
//! A mark in the directory of a target names its cache, so that the target never runs without it.

use crate::device_words::DeviceWords;
use crate::failure::{Failure, Result};
use crate::instance;
use nacre_store::object::block::device::shadow::ShadowDevice;
use nacre_store::object::block::device::{BlockDevice, DirectDevice, DirectDeviceOptions};
use nacre_store::object::nxd::{
    LogSurvey, Nxd, NxdOptions, cache_of, check_unused, check_without, survey_in,
};
use nacre_store::object::simulated::Simulated;
use nacre_store::object::{ObjectError, ObjectStore};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Smallest cache that is created, in bytes.
const SIZE_MIN: u64 = 1 << 20;

/// Timeout for a device that a killed process had open: the kernel tears its rings down after its end.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Opens the device of a cache exclusively.
///
/// # Errors
/// Those of the system; `EBUSY` if a target uses it.
pub fn open_device(path: &Path, create_bytes: Option<u64>) -> io::Result<DirectDevice> {
    let options = DirectDeviceOptions { create_bytes, timeout: TIMEOUT, ..DirectDeviceOptions::default() };
    DirectDevice::open(path, &options)
}

/// Specification of a target's cache, written `PATH[,size=BYTES][,force]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OstCache {
    path: PathBuf,
    /// With `force`, data in the target's previous cache is discarded too.
    words: DeviceWords,
}

impl OstCache {
    fn parse(text: &str) -> Result<Option<OstCache>> {
        let wrong = |why: &str| {
            Failure::usage(format!("--ost-cache {text}: {why}; write none, /dev/sdx or PATH,size=10G"))
        };
        let mut parts = text.split(',');
        let path = parts.next().unwrap_or("");
        let words = DeviceWords::parse(parts, wrong)?;
        match path {
            "" => Err(wrong("the path is empty")),
            "none" if words.is_empty() => Ok(None),
            "none" => Err(wrong("none has no settings")),
            _ if words.size.is_some_and(|size| size < SIZE_MIN) => Err(wrong("the size is less than 1M")),
            path => Ok(Some(OstCache { path: instance::absolute(Path::new(path))?, words })),
        }
    }

    fn open(&self) -> Result<DirectDevice> {
        open_device(&self.path, self.words.size).map_err(Failure::because(self.use_it()))
    }

    fn use_it(&self) -> String {
        format!("use {} as a cache", self.path.display())
    }

    /// Attaches the cache to a target in `dir`, whose objects are `store`. Returns a description of discarded
    /// data, if any.
    ///
    /// # Errors
    /// If the device cannot be opened, holds foreign data, or is another target's.
    pub fn attach(&self, dir: &Path, store: Box<dyn ObjectStore>) -> Result<Option<String>> {
        let store: Arc<dyn ObjectStore> = Arc::from(store);
        let missed = self.relieve(dir, &store).map_err(Failure::because(self.use_it()))?;
        let device = self.open()?;
        let options = NxdOptions { force: self.words.force, ..NxdOptions::default() };
        let cache = Nxd::open(dir, store, Arc::new(device), &options);
        cache.and_then(|cache| cache.close()).map_err(Failure::because(self.use_it()))?;
        Ok(missed)
    }

    /// Drains the target's present cache if this one replaces it. If it holds data and cannot be used,
    /// returns the reason.
    fn relieve(
        &self,
        dir: &Path,
        store: &Arc<dyn ObjectStore>,
    ) -> nacre_store::object::Result<Option<String>> {
        let Some(path) = cache_of(dir)? else { return Ok(None) };
        let is_same_path = path == self.path;
        if is_same_path && !self.words.force {
            return Ok(None);
        }
        let Err(needed) = check_without(dir) else { return Ok(None) };
        let opened = match open_device(&path, None) {
            // Without force: a cache of another target is an error.
            Ok(device) => Nxd::open(dir, store.clone(), Arc::new(device), &NxdOptions::default()),
            Err(source) => Err(ObjectError::Path { action: "open the cache", path, source }),
        };
        let relieved = opened.and_then(|cache| if is_same_path { Ok(()) } else { cache.flush_now() });
        Ok(relieved.err().map(|error| format!("{needed} ({error})")))
    }

    /// Returns whether the target in `dir` has this cache already, judged by its path.
    pub fn is_of(&self, dir: &Path) -> bool {
        cache_of(dir).is_ok_and(|path| path.as_ref() == Some(&self.path))
    }
}

impl fmt::Display for OstCache {
    /// Writes the command-line form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.path.display(), self.words)
    }
}

/// Requested caches of OSTs, by index.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OstCaches(Vec<Option<OstCache>>);

impl OstCaches {
    /// Parses the given caches: none, or one for each OST in their order.
    ///
    /// # Errors
    /// If one cannot be parsed, there are more than OSTs, or a device is given to several.
    pub fn parse(given: &[String], osts: u16) -> Result<OstCaches> {
        let caches = given.iter().map(|text| OstCache::parse(text)).collect::<Result<Vec<_>>>()?;
        if caches.len() > usize::from(osts) {
            let count = caches.len();
            return Err(Failure::usage(format!("--ost-cache was given {count} times for {osts} OSTs")));
        }
        let paths: Vec<&PathBuf> = caches.iter().flatten().map(|cache| &cache.path).collect();
        if let Some((_, path)) = paths.iter().enumerate().find(|(at, path)| paths[..*at].contains(path)) {
            return Err(Failure::usage(format!("{} cannot be the cache of several OSTs", path.display())));
        }
        Ok(OstCaches(caches))
    }

    /// Returns the caches for OSTs from `index` on, in the same order.
    pub fn moved_to(self, index: u16) -> OstCaches {
        OstCaches((0..index).map(|_| None).chain(self.0).collect())
    }

    /// Returns the cache of an OST.
    pub fn of(&self, index: u16) -> Option<&OstCache> {
        self.0.get(usize::from(index))?.as_ref()
    }

    /// Checks the devices before the OSTs are created.
    ///
    /// # Errors
    /// If a device cannot be opened, or holds foreign data and is not forced.
    pub fn check_new(&self) -> Result<()> {
        for cache in self.0.iter().flatten() {
            let device = cache.open()?;
            if !cache.words.force {
                check_unused(&device).map_err(Failure::because(cache.use_it()))?;
            }
        }
        Ok(())
    }

    /// Returns the indexes of OSTs that get a cache.
    pub fn indexes(&self) -> impl Iterator<Item = u16> + '_ {
        (0..).zip(&self.0).filter(|(_, cache)| cache.is_some()).map(|(index, _)| index)
    }
}

/// Opens the objects of the target in `dir`, with its cache in front if it has one. Service times can be
/// simulated below the cache.
///
/// # Errors
/// [`ObjectError::Cache`] if the cache is missing and holds data that the objects lack, or is another
/// target's.
pub fn with_cache(
    dir: &Path,
    store: Box<dyn ObjectStore>,
) -> nacre_store::object::Result<Box<dyn ObjectStore>> {
    let store = Simulated::new(store);
    let Some(path) = cache_of(dir)? else { return Ok(Box::new(store)) };
    match open_device(&path, None) {
        Ok(device) => {
            let device: Arc<dyn BlockDevice> = Arc::new(device);
            Ok(Box::new(Nxd::open(dir, Arc::new(store), device, &NxdOptions::default())?))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            check_without(dir)?;
            log::warn!("{}: its cache {} is not there; all data is", dir.display(), path.display());
            Ok(Box::new(store))
        }
        Err(source) => Err(ObjectError::Path { action: "open the cache", path, source }),
    }
}

/// Like [`with_cache`], read-only on both devices.
///
/// # Errors
/// As [`with_cache`].
pub fn look_with_cache(
    dir: &Path,
    store: Box<dyn ObjectStore>,
) -> nacre_store::object::Result<Box<dyn ObjectStore>> {
    let Some(path) = cache_of(dir)? else { return Ok(store) };
    match ShadowDevice::open(&path) {
        Ok(device) => {
            let options = NxdOptions { read_only: true, ..NxdOptions::default() };
            Ok(Box::new(Nxd::open(dir, Arc::from(store), Arc::new(device), &options)?))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => check_without(dir).map(|()| store),
        Err(source) => Err(ObjectError::Path { action: "open the cache", path, source }),
    }
}

/// Surveys the log of the cache of the target in `dir`; `None` if it has no cache, or its device is missing
/// or another target's.
///
/// # Errors
/// If it cannot be read.
pub fn survey(dir: &Path) -> nacre_store::object::Result<Option<LogSurvey>> {
    let Some(path) = cache_of(dir)? else { return Ok(None) };
    match ShadowDevice::open(&path) {
        Ok(device) => survey_in(dir, &device),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ObjectError::Path { action: "open the cache", path, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(given: &[&str], osts: u16) -> Result<OstCaches> {
        OstCaches::parse(&given.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>(), osts)
    }

    #[test]
    fn caches_are_read_in_the_order_of_the_osts() {
        let caches = parse(&["none", "/dev/x", "/srv/c,size=2M,force"], 4).expect("read");
        let cache =
            |path: &str, size, force| OstCache { path: path.into(), words: DeviceWords { size, force } };
        assert_eq!(caches.of(0), None);
        assert_eq!(caches.of(1), Some(&cache("/dev/x", None, false)));
        assert_eq!(caches.of(2), Some(&cache("/srv/c", Some(2 << 20), true)));
        assert_eq!(caches.of(3), None);
        assert_eq!(caches.indexes().collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for given in [
            &[""][..],
            &["none,force"],
            &["/dev/x,what"],
            &["/dev/x,size=1"],
            &["/dev/x,force,force"],
            &["/dev/x", "/dev/x"],
            &["none", "none", "/dev/x"],
        ] {
            parse(given, 2).expect_err("refused");
        }
    }
}
