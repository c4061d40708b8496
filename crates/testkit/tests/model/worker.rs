//! Random operations in a worker's own tree, each compared with the model.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use fastrand::Rng;
use nacre_testkit::exerciser::fill;
use nacre_testkit::wait;
use rustix::fs::{AtFlags, CWD, RenameFlags, XattrFlags};

use super::dirs::{Maker, Striping};
use super::tree::{Expected, Flags, Id, Kind, Place, ROOT, Tree};

const NAMES: usize = 7;
const DIRS_MAX: usize = 16;
const HELD_MAX: usize = 4;
const SIZE_MAX: usize = 200_000;
const HISTORY: usize = 40;
const ATTRIBUTES: [&str; 3] = ["user.a", "user.b", "trusted.c"];

/// Result of a comparison; the error is the mismatch with the model.
pub type Outcome<T = ()> = Result<T, String>;

pub struct Worker {
    /// Path of the tree through the worker's own mount first, then through the others.
    views: Vec<PathBuf>,
    pub tree: Tree,
    random: Rng,
    maker: Maker,
    held: Vec<(File, Id)>,
    pub history: VecDeque<String>,
}

pub fn flags_of(flags: Flags) -> RenameFlags {
    match flags {
        Flags::None => RenameFlags::empty(),
        Flags::NoReplace => RenameFlags::NOREPLACE,
        Flags::Exchange => RenameFlags::EXCHANGE,
    }
}

/// Returns the flags of a rename; mostly a plain one.
pub fn roll_flags(random: &mut Rng) -> Flags {
    [Flags::NoReplace, Flags::Exchange, Flags::None, Flags::None][random.usize(..4)]
}

/// Returns the value if both sides succeed, `None` if both fail, otherwise the mismatch.
fn compare<T>(what: &str, found: io::Result<T>, expected: &Expected) -> Outcome<Option<T>> {
    match (found, expected) {
        (Ok(value), Ok(())) => Ok(Some(value)),
        (Err(error), Err(allowed))
            if error.raw_os_error().is_some_and(|number| allowed.contains(&number)) =>
        {
            Ok(None)
        }
        (Ok(_), Err(allowed)) => Err(format!("{what} worked instead of failing with {allowed:?}")),
        (Err(error), expected) => Err(format!("{what}: {error}, expected {expected:?}")),
    }
}

fn must<T>(what: &str, found: io::Result<T>) -> Outcome<T> {
    found.map_err(|error| format!("{what}: {error}"))
}

impl Worker {
    pub fn new(views: Vec<PathBuf>, seed: u64, maker: Maker) -> Worker {
        let history = VecDeque::new();
        Worker { views, tree: Tree::new(), random: Rng::with_seed(seed), maker, held: Vec::new(), history }
    }

    fn path_in(&self, view: usize, dir: Id) -> PathBuf {
        self.tree.path(dir).iter().fold(self.views[view].clone(), |path, name| path.join(name))
    }

    fn path_of(&self, at: &Place) -> PathBuf {
        self.path_in(0, at.0).join(&at.1)
    }

    fn note(&mut self, text: String) {
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(text);
    }

    /// Records an operation that the worker ran in the shared tree.
    pub fn told(&mut self, (text, outcome): (String, Outcome)) -> Outcome {
        self.note(text);
        outcome
    }

    fn dir(&mut self) -> Id {
        let dirs = self.tree.dirs();
        dirs[self.random.usize(..dirs.len())]
    }

    fn place(&mut self) -> Place {
        let dir = self.dir();
        (dir, format!("n{}", self.random.usize(..NAMES)))
    }

    /// Returns an existing name whose kind satisfies `wanted`.
    fn existing(&mut self, wanted: impl Fn(&Kind) -> bool) -> Option<(Place, Id)> {
        let mut places = self.tree.places();
        places.retain(|(_, id)| wanted(&self.tree.node(*id).kind));
        (!places.is_empty()).then(|| places.swap_remove(self.random.usize(..places.len())))
    }

    fn file(&mut self) -> Option<(Place, Id)> {
        self.existing(|kind| matches!(kind, Kind::File(_)))
    }

    /// Runs one operation.
    pub fn step(&mut self) -> Outcome {
        match self.random.usize(..32) {
            0..4 => self.make_file(),
            4..7 => self.make_dir(),
            7 => self.make_symlink(),
            8 => self.make_unnamed(),
            9..11 => self.link(),
            11..13 => self.remove(false),
            13 => self.remove(true),
            14..19 => self.rename(),
            19..21 => self.write(),
            21 => self.truncate(),
            22 => self.attribute(),
            23 => self.chmod(),
            24 => self.hold(),
            25 => self.use_held(),
            26 => self.let_go(),
            27 => self.sync(),
            28 => self.look(),
            29 if self.maker.restripes => self.restripe(),
            30 if self.maker.migrates => self.migrate(),
            _ => self.list(),
        }
    }

    /// Stores the attributes of a new inode in the model.
    fn learn(&mut self, id: Id, found: &fs::Metadata) {
        let node = self.tree.node_mut(id);
        (node.mode, node.number) = (found.mode() & 0o7777, found.ino());
    }

    fn make_file(&mut self) -> Outcome {
        let at = self.place();
        let content = self.content();
        self.note(format!("create {at:?} of {} bytes", content.len()));
        let opened = OpenOptions::new().write(true).create_new(true).open(self.path_of(&at));
        let Some(file) = compare("create", opened, &self.tree.may_make(&at))? else { return Ok(()) };
        must("write", file.write_all_at(&content, 0))?;
        let id = self.tree.add(Kind::File(content));
        self.tree.link(id, &at);
        self.learn(id, &must("fstat", file.metadata())?);
        Ok(())
    }

    fn content(&mut self) -> Vec<u8> {
        let most = if self.random.usize(..8) == 0 { SIZE_MAX } else { 3000 };
        let mut content = vec![0; self.random.usize(..most)];
        fill(&mut self.random, &mut content);
        content
    }

    fn make_dir(&mut self) -> Outcome {
        if self.tree.dirs().len() > DIRS_MAX {
            return self.remove(true);
        }
        let at = self.place();
        let requested = Striping::roll(&mut self.random, self.maker.mdts);
        self.note(format!("mkdir {at:?} {requested:?}"));
        let made = self.maker.make(&self.path_in(0, at.0), &at.1, requested);
        let there = self.tree.find(&at).map(|id| &self.tree.node(id).kind);
        if self.maker.restripes
            && matches!(
                (there, requested),
                (Some(Kind::Dir(_)), Striping::Spread(..) | Striping::Overspread(_))
            )
        {
            // An existing directory is restriped, as in Lustre; or its names are still moving.
            return match made {
                Err(error)
                    if !matches!(error.raw_os_error(), Some(libc::EALREADY | libc::EEXIST | libc::EBUSY)) =>
                {
                    Err(format!("spread anew: {error}"))
                }
                _ => Ok(()),
            };
        }
        if compare("mkdir", made, &self.tree.may_make(&at))?.is_some() {
            let id = self.tree.add(Kind::Dir(BTreeMap::new()));
            self.tree.link(id, &at);
            self.learn(id, &must("stat", fs::symlink_metadata(self.path_of(&at)))?);
        }
        Ok(())
    }

    fn make_symlink(&mut self) -> Outcome {
        let at = self.place();
        let target = format!("nowhere/{}", self.random.usize(..1000));
        self.note(format!("symlink {at:?} to {target}"));
        let made = symlink(&target, self.path_of(&at));
        if compare("symlink", made, &self.tree.may_make(&at))?.is_some() {
            let id = self.tree.add(Kind::Link(target));
            self.tree.link(id, &at);
            self.learn(id, &must("stat", fs::symlink_metadata(self.path_of(&at)))?);
        }
        Ok(())
    }

    /// Creates a file that gets its name after its content.
    fn make_unnamed(&mut self) -> Outcome {
        let (dir, at) = (self.dir(), self.place());
        let content = self.content();
        self.note(format!("O_TMPFILE in {dir}, then linked at {at:?}"));
        let mut options = OpenOptions::new();
        let opened = options.write(true).custom_flags(libc::O_TMPFILE).open(self.path_in(0, dir));
        let file = must("O_TMPFILE", opened)?;
        must("write", file.write_all_at(&content, 0))?;
        let own = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let linked = rustix::fs::linkat(CWD, &own, CWD, self.path_of(&at), AtFlags::SYMLINK_FOLLOW);
        if compare("linkat", linked.map_err(io::Error::from), &self.tree.may_make(&at))?.is_some() {
            let id = self.tree.add(Kind::File(content));
            self.tree.link(id, &at);
            self.learn(id, &must("fstat", file.metadata())?);
        }
        Ok(())
    }

    fn link(&mut self) -> Outcome {
        let Some((from, id)) = self.file() else { return Ok(()) };
        let to = self.place();
        self.note(format!("link {from:?} to {to:?}"));
        let linked = fs::hard_link(self.path_of(&from), self.path_of(&to));
        if compare("link", linked, &self.tree.may_make(&to))?.is_some() {
            self.tree.link(id, &to);
        }
        Ok(())
    }

    fn remove(&mut self, is_dir: bool) -> Outcome {
        let at = self.place();
        let what = if is_dir { "rmdir" } else { "unlink" };
        self.note(format!("{what} {at:?}"));
        let path = self.path_of(&at);
        let removed = if is_dir { fs::remove_dir(path) } else { fs::remove_file(path) };
        let expected = self.tree.remove(&at, is_dir);
        compare(what, removed, &expected).map(drop)
    }

    fn rename(&mut self) -> Outcome {
        // Usually an existing name.
        let from = match self.random.usize(..5) {
            0 => self.place(),
            _ => match self.existing(|_| true) {
                Some((from, _)) => from,
                None => return Ok(()),
            },
        };
        let (to, flags) = (self.place(), roll_flags(&mut self.random));
        self.note(format!("rename {from:?} to {to:?} {flags:?}"));
        let (old, new) = (self.path_of(&from), self.path_of(&to));
        let renamed = rustix::fs::renameat_with(CWD, old, CWD, new, flags_of(flags));
        let expected = self.tree.rename(&from, &to, flags);
        compare("rename", renamed.map_err(io::Error::from), &expected).map(drop)
    }

    /// Applies a write to a file of the model.
    fn store(&mut self, id: Id, offset: usize, bytes: &[u8]) {
        let Kind::File(content) = &mut self.tree.node_mut(id).kind else { unreachable!("a file") };
        let end = offset + bytes.len();
        if content.len() < end && !bytes.is_empty() {
            content.resize(end, 0);
        }
        if !bytes.is_empty() {
            content[offset..end].copy_from_slice(bytes);
        }
    }

    fn write(&mut self) -> Outcome {
        let Some((at, id)) = self.file() else { return Ok(()) };
        let (offset, bytes) = (self.random.usize(..SIZE_MAX), self.content());
        self.note(format!("write {at:?} {} bytes at {offset}", bytes.len()));
        let file = must("open", OpenOptions::new().write(true).open(self.path_of(&at)))?;
        must("write", file.write_all_at(&bytes, offset as u64))?;
        self.store(id, offset, &bytes);
        Ok(())
    }

    fn truncate(&mut self) -> Outcome {
        let Some((at, id)) = self.file() else { return Ok(()) };
        let size = self.random.usize(..SIZE_MAX);
        self.note(format!("truncate {at:?} to {size}"));
        let file = must("open", OpenOptions::new().write(true).open(self.path_of(&at)))?;
        must("truncate", file.set_len(size as u64))?;
        let Kind::File(content) = &mut self.tree.node_mut(id).kind else { unreachable!("a file") };
        content.resize(size, 0);
        Ok(())
    }

    fn attribute(&mut self) -> Outcome {
        let Some((at, id)) = self.existing(|kind| !matches!(kind, Kind::Link(_))) else { return Ok(()) };
        let (path, name) = (self.path_of(&at), ATTRIBUTES[self.random.usize(..ATTRIBUTES.len())]);
        if self.random.usize(..3) == 0 {
            self.note(format!("removexattr {at:?} {name}"));
            let removed = rustix::fs::removexattr(&path, name).map_err(io::Error::from);
            let was_there = self.tree.node_mut(id).attributes.remove(name).is_some();
            let expected = if was_there { Ok(()) } else { Err(vec![libc::ENODATA]) };
            return compare("removexattr", removed, &expected).map(drop);
        }
        let mut value = vec![0; 1 + self.random.usize(..600)];
        fill(&mut self.random, &mut value);
        self.note(format!("setxattr {at:?} {name} {} bytes", value.len()));
        must(
            "setxattr",
            rustix::fs::setxattr(&path, name, &value, XattrFlags::empty()).map_err(io::Error::from),
        )?;
        self.tree.node_mut(id).attributes.insert(name.to_owned(), value);
        Ok(())
    }

    fn chmod(&mut self) -> Outcome {
        let Some((at, id)) = self.existing(|kind| !matches!(kind, Kind::Link(_))) else { return Ok(()) };
        let mode = 0o600 | self.random.usize(..0o200) as u32 | if self.tree.is_dir(id) { 0o100 } else { 0 };
        self.note(format!("chmod {at:?} {mode:o}"));
        must("chmod", fs::set_permissions(self.path_of(&at), fs::Permissions::from_mode(mode)))?;
        self.tree.node_mut(id).mode = mode;
        Ok(())
    }

    fn hold(&mut self) -> Outcome {
        if self.held.len() == HELD_MAX {
            return self.let_go();
        }
        let Some((at, id)) = self.file() else { return Ok(()) };
        self.note(format!("open {at:?}, to stay open"));
        let file = must("open", OpenOptions::new().read(true).write(true).open(self.path_of(&at)))?;
        self.held.push((file, id));
        // Half of them lose that name at once.
        if self.random.bool() {
            self.note(format!("unlink {at:?}"));
            must("unlink", fs::remove_file(self.path_of(&at)))?;
            self.tree.remove(&at, false).map_err(|error| format!("the model: {error:?}"))?;
        }
        Ok(())
    }

    fn use_held(&mut self) -> Outcome {
        if self.held.is_empty() {
            return Ok(());
        }
        let at = self.random.usize(..self.held.len());
        let (offset, bytes) = (self.random.usize(..SIZE_MAX), self.content());
        let id = self.held[at].1;
        self.note(format!("write inode {id}, which is held open, {} bytes at {offset}", bytes.len()));
        must("write", self.held[at].0.write_all_at(&bytes, offset as u64))?;
        self.store(id, offset, &bytes);
        self.check_held(at)
    }

    fn check_held(&mut self, at: usize) -> Outcome {
        let (file, id) = &self.held[at];
        let found = must("fstat", file.metadata())?;
        self.check_stat(*id, &found, "the open file")?;
        let mut content = vec![0; found.len() as usize];
        must("read", file.read_exact_at(&mut content, 0))?;
        self.check_content(*id, &content, "the open file")
    }

    fn let_go(&mut self) -> Outcome {
        if self.held.is_empty() {
            return Ok(());
        }
        let at = self.random.usize(..self.held.len());
        self.note(format!("close inode {}", self.held[at].1));
        self.check_held(at)?;
        self.held.swap_remove(at);
        Ok(())
    }

    fn sync(&mut self) -> Outcome {
        let path = match self.file() {
            Some((at, _)) if self.random.bool() => self.path_of(&at),
            _ => {
                let dir = self.dir();
                self.path_in(0, dir)
            }
        };
        self.note(format!("fsync {}", path.display()));
        must("fsync", File::open(path).and_then(|file| file.sync_all()))
    }

    /// Checks one name through any mount.
    fn look(&mut self) -> Outcome {
        let Some((at, id)) = self.existing(|_| true) else { return Ok(()) };
        let view = self.random.usize(..self.views.len());
        self.note(format!("look at {at:?} through mount {view}"));
        self.check_node(view, &at, id)
    }

    /// Checks the listing of one directory through any mount.
    fn list(&mut self) -> Outcome {
        let (dir, view) = (self.dir(), self.random.usize(..self.views.len()));
        self.note(format!("list {dir} through mount {view}"));
        self.check_listing(view, dir)
    }

    fn restripe(&mut self) -> Outcome {
        let dir = self.dir();
        let count = 1 + self.random.usize(..self.maker.mdts);
        self.note(format!("spread {dir} over {count}"));
        self.maker.restripe(&self.path_in(0, dir), count)
    }

    fn migrate(&mut self) -> Outcome {
        let Some((at, id)) = self.existing(|_| true) else { return Ok(()) };
        let first = self.random.usize(..self.maker.mdts);
        let mdts = match matches!(self.tree.node(id).kind, Kind::Dir(_)) && self.random.bool() {
            true => format!("{first},{}", (first + 1) % self.maker.mdts),
            false => first.to_string(),
        };
        self.note(format!("migrate {at:?} to {mdts}"));
        let path = self.path_of(&at);
        self.maker.migrate(&path, &mdts)?;
        // The inode number changes with the MDT.
        self.learn(id, &must("stat", fs::symlink_metadata(path))?);
        Ok(())
    }

    fn check_stat(&self, id: Id, found: &fs::Metadata, what: &str) -> Outcome {
        let node = self.tree.node(id);
        let size = match &node.kind {
            Kind::File(content) => content.len() as u64,
            Kind::Link(target) => target.len() as u64,
            Kind::Dir(_) => found.len(),
        };
        let kind = match &node.kind {
            Kind::File(_) => found.is_file(),
            Kind::Link(_) => found.is_symlink(),
            Kind::Dir(_) => found.is_dir(),
        };
        let expected = (true, self.tree.links(id), size);
        if (kind, found.nlink(), found.len()) != expected {
            let found = (kind, found.nlink(), found.len());
            return Err(format!("{what}: kind, links and size are {found:?} instead of {expected:?}"));
        }
        // The worker did not create the root.
        let same = (found.mode() & 0o7777, found.ino()) == (node.mode, node.number);
        if id != ROOT && !same {
            let (mode, number) = (found.mode() & 0o7777, found.ino());
            let expected = (node.mode, node.number);
            return Err(format!("{what}: mode {mode:o} and inode {number} instead of {expected:?}"));
        }
        Ok(())
    }

    fn check_content(&self, id: Id, found: &[u8], what: &str) -> Outcome {
        let Kind::File(content) = &self.tree.node(id).kind else { unreachable!("a file") };
        let differs = found.iter().zip(content).position(|(found, expected)| found != expected);
        if let Some(at) = differs {
            return Err(format!("{what}: byte {at} of {} is wrong", content.len()));
        }
        match found.len() == content.len() {
            true => Ok(()),
            false => Err(format!("{what}: {} bytes instead of {}", found.len(), content.len())),
        }
    }

    /// Waits until a directory is found: during a rename on this mount, which may be another worker's and
    /// wait for an MDT, the kernel does not find a directory in a new place (SEMANTICS).
    fn wait_for(&self, view: usize, dir: Id) -> Outcome {
        let path = self.path_in(view, dir);
        let is_found = || match fs::metadata(&path) {
            Err(error) if error.raw_os_error() == Some(libc::ESTALE) => None,
            found => Some(found.map(drop)),
        };
        let found = wait::within(wait::SOON, is_found);
        must(&path.display().to_string(), found.unwrap_or(Err(io::Error::from_raw_os_error(libc::ESTALE))))
    }

    fn check_node(&self, view: usize, at: &Place, id: Id) -> Outcome {
        self.wait_for(view, if self.tree.is_dir(id) { id } else { at.0 })?;
        let path = self.path_in(view, at.0).join(&at.1);
        let what = path.display().to_string();
        let found = must(&what, fs::symlink_metadata(&path))?;
        self.check_stat(id, &found, &what)?;
        let node = self.tree.node(id);
        match &node.kind {
            Kind::Link(target) => {
                let read = must(&what, fs::read_link(&path))?;
                return if read == Path::new(target) {
                    Ok(())
                } else {
                    Err(format!("{what} leads to {read:?}"))
                };
            }
            Kind::File(_) => self.check_content(id, &must(&what, fs::read(&path))?, &what)?,
            Kind::Dir(_) => {}
        }
        for name in ATTRIBUTES {
            let mut value = vec![0; 1024];
            let found = match rustix::fs::getxattr(&path, name, &mut value[..]) {
                Ok(length) => Some(&value[..length]),
                Err(rustix::io::Errno::NODATA) => None,
                Err(error) => return Err(format!("{what}: {name}: {error}")),
            };
            if found != node.attributes.get(name).map(Vec::as_slice) {
                return Err(format!("{what}: {name} has another value"));
            }
        }
        Ok(())
    }

    fn check_listing(&self, view: usize, dir: Id) -> Outcome {
        self.wait_for(view, dir)?;
        let path = self.path_in(view, dir);
        let what = path.display().to_string();
        let mut found = BTreeMap::new();
        for entry in must(&what, fs::read_dir(&path))? {
            let entry = must(&what, entry)?;
            let name = entry.file_name().into_string().map_err(|name| format!("{what} has {name:?}"))?;
            let kind = must(&what, entry.file_type())?;
            if found.insert(name.clone(), (entry_number(&entry), kind.is_dir())).is_some() {
                return Err(format!("{what}: {name} is listed twice"));
            }
        }
        let names = self.tree.names(dir).iter();
        let expected: BTreeMap<String, (u64, bool)> = names
            .map(|(name, id)| (name.clone(), (self.tree.node(*id).number, self.tree.is_dir(*id))))
            .collect();
        if found != expected {
            return Err(format!("{what} lists {found:?} instead of {expected:?}"));
        }
        self.check_stat(dir, &must(&what, fs::metadata(&path))?, &what)
    }

    /// Compares the whole tree with the model, through every mount.
    pub fn check_all(&mut self) -> Outcome {
        for view in 0..self.views.len() {
            self.note(format!("everything through mount {view}"));
            for dir in self.tree.dirs() {
                self.check_listing(view, dir)?;
            }
            for (at, id) in self.tree.places() {
                self.check_node(view, &at, id)?;
            }
        }
        (0..self.held.len()).try_for_each(|at| self.check_held(at))
    }
}

fn entry_number(entry: &fs::DirEntry) -> u64 {
    use std::os::unix::fs::DirEntryExt;
    entry.ino()
}
