//! A POSIX name space as a model, written from the manual pages and not from the planner.

use super::{Id, Rights, Seen, Step};
use nacre_types::{Caps, Cred, FileKind, Status, StatusResult};
use nacre_wire::mds::RenameFlags;
use std::collections::BTreeMap;

pub(super) struct Node {
    pub seen: Seen,
    /// Entries of a directory.
    entries: BTreeMap<Vec<u8>, Id>,
    parent: Id,
    /// Access ACL, where the mode does not express it.
    pub acl: Option<Rights>,
    /// Default ACL of a directory.
    pub default_acl: Option<Rights>,
}

/// See the [module documentation](self).
pub(super) struct Posix {
    pub(super) nodes: Vec<Node>,
    pub(super) clock: i64,
}

pub(super) const WRITE: u32 = 0o2;
const SEARCH: u32 = 0o1;

impl Posix {
    pub fn new() -> Posix {
        let mut posix = Posix { nodes: Vec::new(), clock: 0 };
        let root = posix.node(FileKind::Directory, 0o777, (0, 0), 0);
        posix.nodes.push(root);
        posix.clock = 1;
        posix
    }

    fn node(&self, kind: FileKind, mode: u32, (uid, gid): (u32, u32), parent: Id) -> Node {
        let (size, atime, mtime, xattrs) = (0, self.clock, self.clock, BTreeMap::new());
        let seen = Seen { kind, mode, uid, gid, nlink: 1, size, atime, mtime, xattrs };
        Node { seen, entries: BTreeMap::new(), parent, acl: None, default_acl: None }
    }

    /// Returns the number of inodes that were ever created.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the existing directories.
    pub fn directories(&self) -> Vec<Id> {
        (0..self.nodes.len()).filter(|&id| self.is_dir(id) && self.exists(id)).collect()
    }

    /// Returns everything that has a name, by its path.
    pub fn tree(&self) -> BTreeMap<Vec<u8>, (Id, Seen)> {
        let mut found = BTreeMap::new();
        let mut pending = vec![(Vec::new(), 0)];
        while let Some((path, dir)) = pending.pop() {
            for (name, &id) in &self.nodes[dir].entries {
                let path = [&path[..], b"/", name].concat();
                found.insert(path.clone(), (id, self.seen(id)));
                if self.is_dir(id) {
                    pending.push((path, id));
                }
            }
        }
        found
    }

    /// Takes a step; returns its result.
    pub fn take(&mut self, cred: &Cred, step: &Step) -> StatusResult<()> {
        self.clock += 1;
        match step {
            Step::Make { dir, name, kind, mode, umask } => {
                self.make(cred, (*dir, name), *kind, (*mode, *umask))
            }
            Step::Link { id, dir, name } => self.link(cred, *id, (*dir, name)),
            Step::Remove { dir, name, as_directory } => self.remove(cred, (*dir, name), *as_directory),
            Step::Rename { from, to, flags } => self.rename(cred, (from.0, &from.1), (to.0, &to.1), *flags),
            Step::SetAttr { id, set } => self.set_attr(cred, *id, set),
            Step::SetXattr { id, name, value, flags } => self.set_xattr(cred, *id, name, value, *flags),
            Step::RemoveXattr { id, name } => self.remove_xattr(cred, *id, name),
            Step::SetAcl { id, is_default, acl } => self.set_acl(cred, *id, *is_default, *acl),
        }
    }

    pub(super) fn is_dir(&self, id: Id) -> bool {
        self.nodes[id].seen.kind == FileKind::Directory
    }

    fn seen(&self, id: Id) -> Seen {
        let subdirs = self.nodes[id].entries.values().filter(|child| self.is_dir(**child)).count();
        let mut seen = self.nodes[id].seen.clone();
        if self.is_dir(id) {
            seen.nlink = 2 + subdirs as u32;
        }
        let Node { acl, default_acl, .. } = &self.nodes[id];
        let acls = [("access", acl), ("default", default_acl)];
        let acls = acls.into_iter().filter_map(|(which, acl)| Some((which, acl.as_ref()?)));
        seen.xattrs.extend(
            acls.map(|(which, acl)| (format!("system.posix_acl_{which}").into_bytes(), acl.to_xattr())),
        );
        seen
    }

    /// Checks that an inode is an existing directory.
    fn directory(&self, id: Id) -> StatusResult<()> {
        match self.exists(id) {
            false => Err(Status::ENOENT),
            true if !self.is_dir(id) => Err(Status::ENOTDIR),
            true => Ok(()),
        }
    }

    pub(super) fn exists(&self, id: Id) -> bool {
        id == 0 || self.nodes[id].seen.nlink > 0
    }

    pub(super) fn in_group(cred: &Cred, gid: u32) -> bool {
        cred.gid == gid || cred.full.as_ref().is_some_and(|full| full.groups.contains(&gid))
    }

    pub(super) fn has(cred: &Cred, cap: Caps) -> bool {
        cred.full.as_ref().is_some_and(|full| full.caps.contains(cap))
    }

    pub(super) fn may(&self, cred: &Cred, id: Id, wanted: u32) -> StatusResult<()> {
        let Node { seen: Seen { mode, uid, gid, .. }, acl, .. } = &self.nodes[id];
        let user = acl.as_ref().and_then(|acl| acl.user);
        let mask = user.map_or(0o7, |(.., mask)| mask);
        let rights = match user {
            _ if cred.uid == *uid => mode >> 6,
            Some((named, rights, _)) if named == cred.uid => rights & mask,
            _ if Posix::in_group(cred, *gid) => acl.as_ref().map_or(mode >> 3, |acl| acl.group) & mask,
            _ => *mode,
        };
        let allowed = rights & wanted == wanted || Posix::has(cred, Caps::DAC_OVERRIDE);
        if allowed { Ok(()) } else { Err(Status::EACCES) }
    }

    /// Checks that `victim` may be removed from `dir`. Its kind has to match.
    fn may_take(&self, cred: &Cred, dir: Id, victim: Id, as_directory: bool) -> StatusResult<()> {
        self.may(cred, dir, WRITE)?;
        let (parent, child) = (&self.nodes[dir].seen, &self.nodes[victim].seen);
        let is_others = cred.uid != parent.uid && cred.uid != child.uid;
        if parent.mode & 0o1000 != 0 && is_others && !Posix::has(cred, Caps::FOWNER) {
            return Err(Status::EPERM);
        }
        match (as_directory, self.is_dir(victim)) {
            (true, false) => Err(Status::ENOTDIR),
            (false, true) => Err(Status::EISDIR),
            _ => Ok(()),
        }
    }

    fn make(
        &mut self,
        cred: &Cred,
        (dir, name): (Id, &[u8]),
        kind: FileKind,
        (mode, umask): (u32, u32),
    ) -> StatusResult<()> {
        self.directory(dir)?;
        self.may(cred, dir, SEARCH)?;
        if self.nodes[dir].entries.contains_key(name) {
            return Err(Status::EEXIST);
        }
        self.may(cred, dir, WRITE)?;
        let parent = self.nodes[dir].seen.clone();
        let mut mode = if kind == FileKind::Symlink { 0o777 } else { mode };
        let mut gid = cred.gid;
        if parent.mode & 0o2000 != 0 {
            gid = parent.gid;
            let may_keep = Posix::in_group(cred, gid) || Posix::has(cred, Caps::FSETID);
            match kind {
                FileKind::Directory => mode |= 0o2000,
                // Linux clears the bit on an executable of a group that the caller is not in.
                _ if mode & 0o2010 == 0o2010 && !may_keep => mode &= !0o2000,
                _ => {}
            }
        }
        let inherited = self.nodes[dir].default_acl.filter(|_| kind != FileKind::Symlink);
        if kind != FileKind::Symlink && inherited.is_none() {
            mode &= !umask;
        }
        let mut node = self.node(kind, mode, (cred.uid, gid), dir);
        if let Some(default) = inherited {
            node.inherit(default);
        }
        self.nodes.push(node);
        let id = self.nodes.len() - 1;
        self.nodes[dir].entries.insert(name.to_vec(), id);
        self.nodes[dir].seen.mtime = self.clock;
        Ok(())
    }

    fn link(&mut self, cred: &Cred, id: Id, (dir, name): (Id, &[u8])) -> StatusResult<()> {
        if !self.exists(id) {
            return Err(Status::ENOENT);
        }
        self.directory(dir)?;
        self.may(cred, dir, SEARCH)?;
        if self.nodes[dir].entries.contains_key(name) {
            return Err(Status::EEXIST);
        }
        self.may(cred, dir, WRITE)?;
        if self.is_dir(id) {
            return Err(Status::EPERM);
        }
        self.nodes[dir].entries.insert(name.to_vec(), id);
        self.nodes[id].seen.nlink += 1;
        self.nodes[dir].seen.mtime = self.clock;
        Ok(())
    }

    fn remove(&mut self, cred: &Cred, (dir, name): (Id, &[u8]), as_directory: bool) -> StatusResult<()> {
        self.directory(dir)?;
        self.may(cred, dir, SEARCH)?;
        let victim = *self.nodes[dir].entries.get(name).ok_or(Status::ENOENT)?;
        self.may_take(cred, dir, victim, as_directory)?;
        if !self.nodes[victim].entries.is_empty() {
            return Err(Status::ENOTEMPTY);
        }
        self.nodes[dir].entries.remove(name);
        self.nodes[victim].seen.nlink -= 1;
        self.nodes[dir].seen.mtime = self.clock;
        Ok(())
    }

    /// Returns true if `inner` is the directory `outer`, or is below it.
    fn is_inside(&self, inner: Id, outer: Id) -> bool {
        let mut at = inner;
        loop {
            if at == outer {
                return true;
            }
            if at == 0 {
                return false;
            }
            at = self.nodes[at].parent;
        }
    }

    fn rename(
        &mut self,
        cred: &Cred,
        (from_dir, from): (Id, &[u8]),
        (to_dir, to): (Id, &[u8]),
        flags: RenameFlags,
    ) -> StatusResult<()> {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        self.directory(from_dir)?;
        self.directory(to_dir)?;
        self.may(cred, from_dir, SEARCH)?;
        self.may(cred, to_dir, SEARCH)?;
        let source = *self.nodes[from_dir].entries.get(from).ok_or(Status::ENOENT)?;
        let target = self.nodes[to_dir].entries.get(to).copied();
        if target.is_some() && flags.contains(RenameFlags::NOREPLACE) {
            return Err(Status::EEXIST);
        }
        if target.is_none() && exchange {
            return Err(Status::ENOENT);
        }
        if self.is_dir(source) && self.is_inside(to_dir, source) {
            return Err(Status::EINVAL);
        }
        if let Some(target) = target
            && self.is_dir(target)
            && self.is_inside(from_dir, target)
        {
            return Err(if exchange { Status::EINVAL } else { Status::ENOTEMPTY });
        }
        if target == Some(source) {
            return Ok(());
        }
        self.may_take(cred, from_dir, source, self.is_dir(source))?;
        match target {
            None => self.may(cred, to_dir, WRITE)?,
            Some(target) => {
                let like = if exchange { target } else { source };
                self.may_take(cred, to_dir, target, self.is_dir(like))?;
            }
        }
        if from_dir != to_dir {
            for moved in [Some(source), target.filter(|_| exchange)].into_iter().flatten() {
                if self.is_dir(moved) {
                    self.may(cred, moved, WRITE)?;
                }
            }
        }
        if let Some(target) = target {
            if !exchange && !self.nodes[target].entries.is_empty() {
                return Err(Status::ENOTEMPTY);
            }
            match exchange {
                true => self.put(from_dir, from, target),
                false => self.nodes[target].seen.nlink -= 1,
            }
        }
        if !exchange {
            self.nodes[from_dir].entries.remove(from);
        }
        self.put(to_dir, to, source);
        self.nodes[from_dir].seen.mtime = self.clock;
        self.nodes[to_dir].seen.mtime = self.clock;
        Ok(())
    }

    fn put(&mut self, dir: Id, name: &[u8], id: Id) {
        self.nodes[dir].entries.insert(name.to_vec(), id);
        if self.is_dir(id) {
            self.nodes[id].parent = dir;
        }
    }
}
