//! Slot files in memory, of which a power cut loses unsynced data, and which fail on request, for tests.
//!
//! A file records its content after each change since its last sync; a cut leaves one of its sizes and, for
//! each of its pages, any version. Unsynced names and directories may be lost.

use crate::object::file::local::FileStat;
use nacre_env::sync::Mutex;
use nacre_types::Timestamp;
use rustix::fs::{FallocateFlags, OFlags, SeekFrom, StatVfs, StatVfsMountFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const PAGE: u64 = 4096;
/// Blocks of the file system.
const BLOCKS: u64 = 1 << 20;

type Result<T> = std::result::Result<T, Errno>;
type Page = Arc<[u8; PAGE as usize]>;

fn zeros() -> Page {
    Arc::new([0; PAGE as usize])
}

/// Content of a file: missing pages are holes.
#[derive(Clone, Default)]
struct Content {
    size: u64,
    pages: BTreeMap<u64, Page>,
    /// Time of the last change.
    mtime: Timestamp,
}

impl Content {
    /// Visits the pages of a range, and in each the part that the range covers.
    fn each(offset: u64, len: u64, mut visit: impl FnMut(u64, std::ops::Range<usize>)) {
        let end = offset + len;
        for page in offset / PAGE..end.div_ceil(PAGE) {
            let from = offset.max(page * PAGE) - page * PAGE;
            let to = end.min((page + 1) * PAGE) - page * PAGE;
            visit(page, from as usize..to as usize);
        }
    }

    fn zero(&mut self, offset: u64, len: u64, frees: bool) {
        Content::each(offset, len, |page, part| {
            if frees && part.len() as u64 == PAGE {
                self.pages.remove(&page);
            } else if let Some(bytes) = self.pages.get_mut(&page) {
                Arc::make_mut(bytes)[part].fill(0);
            }
        });
    }

    fn set_size(&mut self, size: u64) {
        self.size = size;
        self.pages.retain(|page, _| page * PAGE < size);
        if let Some(bytes) = self.pages.get_mut(&(size / PAGE)) {
            Arc::make_mut(bytes)[(size % PAGE) as usize..].fill(0);
        }
    }
}

/// A file: its content at the last sync, and after each change since.
#[derive(Clone)]
struct Versions(Vec<Content>);

impl Versions {
    fn now(&self) -> &Content {
        self.0.last().expect("there is always one")
    }

    fn sync(&mut self) {
        self.0.drain(..self.0.len() - 1);
    }

    fn after_cut(&self, choose: Choice<'_>) -> Versions {
        let mut any = || self.0.get(choose(self.0.len())).unwrap_or(self.now());
        let mut left = Content { size: any().size, mtime: any().mtime, ..Content::default() };
        for version in &self.0 {
            for page in version.pages.keys() {
                match any().pages.get(page) {
                    Some(bytes) => drop(left.pages.insert(*page, bytes.clone())),
                    None => drop(left.pages.remove(page)),
                }
            }
        }
        let size = left.size;
        for (page, bytes) in &mut left.pages {
            let inside = size.saturating_sub(page * PAGE).min(PAGE);
            Arc::make_mut(bytes)[inside as usize..].fill(0);
        }
        Versions(vec![left])
    }
}

#[derive(Clone)]
struct Name {
    file: usize,
    is_durable: bool,
}

#[derive(Clone, Default)]
struct State {
    files: Vec<Versions>,
    names: BTreeMap<String, Name>,
    /// Directories by name, with whether they are durable.
    directories: BTreeMap<String, bool>,
    limits: Limits,
}

/// Faults of the medium, which end when others are set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Pages that are in use at most; further ones fail with ENOSPC. `None`: 4 GiB.
    pub pages_max: Option<u64>,
    /// Writes and syncs fail with EIO.
    pub fails: bool,
}

impl State {
    fn used_pages(&self) -> u64 {
        self.files.iter().map(|file| file.now().pages.len() as u64).sum()
    }

    fn sync_names(&mut self, directory: &str) {
        for (path, name) in &mut self.names {
            name.is_durable |= path.split('/').next() == Some(directory);
        }
    }
}

/// Called once, under the lock of the state, so that no file changes meanwhile.
type Look = Box<dyn FnOnce(&Tree) + Send>;

/// Chooses one of so many versions.
type Choice<'a> = &'a mut dyn FnMut(usize) -> usize;

/// See the [module documentation](self).
#[derive(Default)]
pub struct Tree {
    /// The state, and a number of changes and syncs before a call of a function. One lock, so that no thread
    /// of a simulation is stopped between two.
    state: Mutex<(State, Option<(u64, Look)>)>,
    /// A sync of a file does nothing, to verify that the tests detect that.
    pub(super) forgets: AtomicBool,
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("slot files in memory")
    }
}

impl Tree {
    /// Calls `look` with the state that a power cut leaves after `steps` more changes and syncs of files.
    #[cfg(test)]
    pub(super) fn cut_after(&self, steps: u64, look: impl FnOnce(&Tree) + Send + 'static) {
        self.state.lock().1 = Some((steps, Box::new(look)));
    }

    /// Returns the files as a power cut at this moment may leave them: for each unsynced page, size and name
    /// `choose` picks one of so many versions, the first of which is the durable one.
    pub fn after_power_cut(&self, choose: Choice<'_>) -> Tree {
        Tree::after_cut(&self.state.lock().0, choose)
    }

    /// Returns a copy, which shares nothing with this one.
    pub fn copy(&self) -> Tree {
        Tree { state: Mutex::new((self.state.lock().0.clone(), None)), ..Tree::default() }
    }

    /// Replaces the faults of the medium.
    pub fn limit(&self, limits: Limits) {
        self.state.lock().0.limits = limits;
    }

    /// Makes syncs of files do nothing, to verify that tests detect that.
    pub fn forget_syncs(&self, forgets: bool) {
        self.forgets.store(forgets, Ordering::Relaxed);
    }

    /// Returns the number of allocated pages of 4 KiB.
    pub fn used_pages(&self) -> u64 {
        self.state.lock().0.used_pages()
    }

    fn after_cut(state: &State, choose: Choice<'_>) -> Tree {
        let mut left = State {
            files: state.files.iter().map(|file| file.after_cut(choose)).collect(),
            ..State::default()
        };
        for (name, is_durable) in &state.directories {
            if *is_durable || choose(2) == 1 {
                left.directories.insert(name.clone(), true);
            }
        }
        for (path, name) in &state.names {
            let is_there = path.split('/').next().is_some_and(|top| left.directories.contains_key(top));
            if is_there && (name.is_durable || choose(2) == 1) {
                left.names.insert(path.clone(), Name { file: name.file, is_durable: true });
            }
        }
        Tree { state: Mutex::new((left, None)), ..Tree::default() }
    }

    /// Changes or syncs something.
    fn step<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let (state, look) = &mut *self.state.lock();
        if let Some((left, _)) = look {
            *left = left.saturating_sub(1);
            if *left == 0
                && let Some((_, look)) = look.take()
            {
                let seed: u64 = state.files.iter().map(|file| file.0.len() as u64).sum();
                let mut random = seed;
                // Knuth's multiplicative generator: only that all versions occur matters.
                let mut choose = |count: usize| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (random >> 33) as usize % count.max(1)
                };
                look(&Tree::after_cut(state, &mut choose));
            }
        }
        change(state)
    }

    pub(super) fn open_file(self: &Arc<Self>, path: &str, flags: OFlags) -> Result<File> {
        let known = self.state.lock().0.names.get(path).map(|name| name.file);
        let number = match known {
            Some(_) if flags.contains(OFlags::EXCL) => return Err(Errno::EXIST),
            Some(number) => number,
            None if !flags.contains(OFlags::CREATE) => return Err(Errno::NOENT),
            None => self.step(|state| {
                if !state.directories.contains_key(path.split('/').next().unwrap_or("")) {
                    return Err(Errno::NOENT);
                }
                let name = Name { file: state.files.len(), is_durable: false };
                let mtime = nacre_env::clock::wall().into();
                state.files.push(Versions(vec![Content { mtime, ..Content::default() }]));
                state.names.insert(path.to_owned(), name);
                Ok(state.files.len() - 1)
            })?,
        };
        Ok(File { tree: self.clone(), number })
    }

    pub(super) fn make_directory(&self, name: &str) -> Result<()> {
        self.step(|state| *state.directories.entry(name.to_owned()).or_insert(false));
        Ok(())
    }

    pub(super) fn names(&self, directory: &str) -> Option<Vec<Vec<u8>>> {
        let state = &self.state.lock().0;
        state.directories.get(directory)?;
        let of = |path: &String| path.strip_prefix(directory)?.strip_prefix('/').map(|name| name.into());
        Some(state.names.keys().filter_map(of).collect())
    }

    pub(super) fn sync_directory(&self, name: &str) -> Result<()> {
        self.step(|state| state.sync_names(name));
        Ok(())
    }

    pub(super) fn sync_top(&self) -> Result<()> {
        self.step(|state| state.directories.values_mut().for_each(|is_durable| *is_durable = true));
        Ok(())
    }

    pub(super) fn sync_all(&self) -> Result<()> {
        self.step(|state| {
            state.directories.values_mut().for_each(|is_durable| *is_durable = true);
            state.names.values_mut().for_each(|name| name.is_durable = true);
            state.files.iter_mut().for_each(Versions::sync);
        });
        Ok(())
    }

    pub(super) fn space(&self) -> StatVfs {
        let state = &self.state.lock().0;
        let most = state.limits.pages_max.unwrap_or(BLOCKS);
        let free = most.saturating_sub(state.used_pages());
        StatVfs {
            f_bsize: PAGE,
            f_frsize: PAGE,
            f_blocks: BLOCKS,
            f_bfree: free,
            f_bavail: free,
            f_files: BLOCKS,
            f_ffree: BLOCKS,
            f_favail: BLOCKS,
            f_fsid: 0,
            f_flag: StatVfsMountFlags::empty(),
            f_namemax: 255,
        }
    }
}

/// An open file.
pub(super) struct File {
    tree: Arc<Tree>,
    number: usize,
}

impl File {
    fn look<R>(&self, look: impl FnOnce(&Content) -> R) -> R {
        look(self.tree.state.lock().0.files[self.number].now())
    }

    fn change(&self, change: impl FnOnce(&mut Content)) -> Result<()> {
        self.tree.step(|state| {
            if state.limits.fails {
                return Err(Errno::IO);
            }
            let used = state.limits.pages_max.map(|most| (most, state.used_pages()));
            let versions = &mut state.files[self.number];
            let mut content = versions.now().clone();
            content.mtime = nacre_env::clock::wall().into();
            change(&mut content);
            if let Some((most, used)) = used
                && content.pages.len() > versions.now().pages.len()
                && used + (content.pages.len() - versions.now().pages.len()) as u64 > most
            {
                return Err(Errno::NOSPC);
            }
            versions.0.push(content);
            Ok(())
        })
    }

    pub(super) fn write(&self, offset: u64, data: &[u8]) -> Result<usize> {
        self.change(|content| {
            let mut rest = data;
            Content::each(offset, data.len() as u64, |page, part| {
                let (now, later) = rest.split_at(part.len());
                let bytes = content.pages.entry(page).or_insert_with(zeros);
                Arc::make_mut(bytes)[part].copy_from_slice(now);
                rest = later;
            });
            content.size = content.size.max(offset + data.len() as u64);
        })?;
        Ok(data.len())
    }

    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        self.look(|content| {
            let len = content.size.saturating_sub(offset).min(buffer.len() as u64);
            let mut done = 0;
            Content::each(offset, len, |page, part| {
                let to = &mut buffer[done..done + part.len()];
                done += part.len();
                match content.pages.get(&page) {
                    Some(bytes) => to.copy_from_slice(&bytes[part]),
                    None => to.fill(0),
                }
            });
            len as usize
        })
    }

    pub(super) fn stat(&self) -> FileStat {
        self.look(|content| FileStat {
            size: content.size,
            blocks: content.pages.len() as u64 * PAGE / 512,
            mtime: content.mtime,
            is_file: true,
        })
    }

    pub(super) fn set_mtime(&self, mtime: Timestamp) -> Result<()> {
        self.change(|content| content.mtime = mtime)
    }

    pub(super) fn set_size(&self, size: u64) -> Result<()> {
        self.change(|content| content.set_size(size))
    }

    pub(super) fn allocate(&self, how: FallocateFlags, offset: u64, len: u64) -> Result<()> {
        self.change(|content| {
            let frees = how.contains(FallocateFlags::PUNCH_HOLE);
            if frees || how.contains(FallocateFlags::ZERO_RANGE) {
                content.zero(offset, len, frees);
            }
            if !frees {
                Content::each(offset, len, |page, _| {
                    content.pages.entry(page).or_insert_with(zeros);
                });
            }
            if !how.contains(FallocateFlags::KEEP_SIZE) {
                content.size = content.size.max(offset + len);
            }
        })
    }

    pub(super) fn sync(&self) -> Result<()> {
        let forgets = self.tree.forgets.load(Ordering::Relaxed);
        self.tree.step(|state| {
            if state.limits.fails {
                return Err(Errno::IO);
            }
            if !forgets {
                state.files[self.number].sync();
            }
            Ok(())
        })
    }

    pub(super) fn seek(&self, from: SeekFrom) -> Result<u64> {
        let (SeekFrom::Data(offset) | SeekFrom::Hole(offset)) = from else { return Err(Errno::INVAL) };
        self.look(|content| {
            if offset >= content.size {
                return Err(Errno::NXIO);
            }
            let is_data = matches!(from, SeekFrom::Data(_));
            let found = (offset / PAGE..content.size.div_ceil(PAGE))
                .find(|page| content.pages.contains_key(page) == is_data);
            match found {
                Some(page) => Ok(offset.max(page * PAGE)),
                None if is_data => Err(Errno::NXIO),
                None => Ok(content.size),
            }
        })
    }
}
