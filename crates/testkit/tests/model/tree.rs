//! The expected state of a tree of files: names, inodes, contents.

use std::collections::BTreeMap;

/// Number of an inode of the model; never reused.
pub type Id = usize;

/// A name in a directory.
pub type Place = (Id, String);

/// The root of the tree.
pub const ROOT: Id = 0;

/// Flags of a rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flags {
    None,
    NoReplace,
    Exchange,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    Dir(BTreeMap<String, Id>),
    File(Vec<u8>),
    Link(String),
}

#[derive(Debug, Clone)]
pub struct Node {
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    /// Inode number from `stat`; 0 until the first `stat`.
    pub number: u64,
    pub attributes: BTreeMap<String, Vec<u8>>,
}

/// Expected outcome of an operation: success, or one of these errnos.
pub type Expected = Result<(), Vec<i32>>;

#[derive(Debug)]
pub struct Tree {
    nodes: Vec<Node>,
    /// Parent and name of each directory.
    parents: BTreeMap<Id, Place>,
}

impl Tree {
    pub fn new() -> Tree {
        let root = Node { kind: Kind::Dir(BTreeMap::new()), mode: 0, number: 0, attributes: BTreeMap::new() };
        Tree { nodes: vec![root], parents: BTreeMap::new() }
    }

    pub fn node(&self, id: Id) -> &Node {
        &self.nodes[id]
    }

    pub fn node_mut(&mut self, id: Id) -> &mut Node {
        &mut self.nodes[id]
    }

    pub fn is_dir(&self, id: Id) -> bool {
        matches!(self.nodes[id].kind, Kind::Dir(_))
    }

    pub fn names(&self, dir: Id) -> &BTreeMap<String, Id> {
        match &self.nodes[dir].kind {
            Kind::Dir(names) => names,
            other => panic!("{dir} is no directory but {other:?}"),
        }
    }

    fn names_mut(&mut self, dir: Id) -> &mut BTreeMap<String, Id> {
        match &mut self.nodes[dir].kind {
            Kind::Dir(names) => names,
            other => panic!("{dir} is no directory but {other:?}"),
        }
    }

    pub fn find(&self, at: &Place) -> Option<Id> {
        self.names(at.0).get(&at.1).copied()
    }

    /// Returns all directories that have a name, and the root.
    pub fn dirs(&self) -> Vec<Id> {
        [ROOT].into_iter().chain(self.parents.keys().copied()).collect()
    }

    /// Returns all names, in any order.
    pub fn places(&self) -> Vec<(Place, Id)> {
        let of_dir =
            |dir: Id| self.names(dir).iter().map(move |(name, id)| ((dir, name.clone()), *id)).collect();
        self.dirs().into_iter().flat_map(|dir| -> Vec<(Place, Id)> { of_dir(dir) }).collect()
    }

    /// Returns the link count that `stat` must show.
    pub fn links(&self, id: Id) -> u64 {
        match &self.nodes[id].kind {
            Kind::Dir(names) => 2 + names.values().filter(|child| self.is_dir(**child)).count() as u64,
            _ => self.places().iter().filter(|(_, other)| *other == id).count() as u64,
        }
    }

    /// Returns the names on the path from the root to a directory.
    pub fn path(&self, dir: Id) -> Vec<&str> {
        let (mut path, mut at) = (Vec::new(), dir);
        while let Some((parent, name)) = self.parents.get(&at) {
            path.push(name.as_str());
            at = *parent;
        }
        path.reverse();
        path
    }

    /// Returns whether directory `inner` is `outer` or below it.
    fn lies_in(&self, inner: Id, outer: Id) -> bool {
        let mut at = Some(inner);
        while let Some(dir) = at {
            if dir == outer {
                return true;
            }
            at = self.parents.get(&dir).map(|(parent, _)| *parent);
        }
        false
    }

    fn put(&mut self, at: &Place, id: Id) {
        self.names_mut(at.0).insert(at.1.clone(), id);
        if self.is_dir(id) {
            self.parents.insert(id, at.clone());
        }
    }

    fn take(&mut self, at: &Place) {
        let id = self.names_mut(at.0).remove(&at.1).expect("there");
        self.parents.remove(&id);
    }

    pub fn may_make(&self, at: &Place) -> Expected {
        if self.find(at).is_some() { Err(vec![libc::EEXIST]) } else { Ok(()) }
    }

    /// Adds an inode without a name.
    pub fn add(&mut self, kind: Kind) -> Id {
        self.nodes.push(Node { kind, mode: 0, number: 0, attributes: BTreeMap::new() });
        self.nodes.len() - 1
    }

    /// Links an inode to a free name.
    pub fn link(&mut self, id: Id, at: &Place) {
        self.put(at, id);
    }

    pub fn remove(&mut self, at: &Place, is_dir: bool) -> Expected {
        let id = self.find(at).ok_or(vec![libc::ENOENT])?;
        match (is_dir, &self.nodes[id].kind) {
            (true, Kind::Dir(names)) if !names.is_empty() => Err(vec![libc::ENOTEMPTY]),
            (true, Kind::File(_) | Kind::Link(_)) => Err(vec![libc::ENOTDIR]),
            (false, Kind::Dir(_)) => Err(vec![libc::EISDIR]),
            _ => {
                self.take(at);
                Ok(())
            }
        }
    }

    pub fn rename(&mut self, from: &Place, to: &Place, flags: Flags) -> Expected {
        let source = self.find(from).ok_or(vec![libc::ENOENT])?;
        let target = self.find(to);
        let exchange = flags == Flags::Exchange;
        let mut errors = Vec::new();
        if target.is_some() && flags == Flags::NoReplace {
            errors.push(libc::EEXIST);
        }
        if target.is_none() && exchange {
            errors.push(libc::ENOENT);
        }
        if self.is_dir(source) && self.lies_in(to.0, source) {
            errors.push(libc::EINVAL);
        }
        if let Some(target) = target {
            if self.is_dir(target) && self.lies_in(from.0, target) {
                errors.extend([libc::EINVAL, libc::ENOTEMPTY]);
            }
            if target == source && errors.is_empty() {
                return Ok(());
            }
            if !exchange {
                match (&self.nodes[source].kind, &self.nodes[target].kind) {
                    (Kind::Dir(_), Kind::Dir(names)) if !names.is_empty() => errors.push(libc::ENOTEMPTY),
                    (Kind::Dir(_), Kind::File(_) | Kind::Link(_)) => errors.push(libc::ENOTDIR),
                    (Kind::File(_) | Kind::Link(_), Kind::Dir(_)) => errors.push(libc::EISDIR),
                    _ => {}
                }
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        self.take(from);
        if let Some(target) = target {
            self.take(to);
            if exchange {
                self.put(from, target);
            }
        }
        self.put(to, source);
        Ok(())
    }
}
