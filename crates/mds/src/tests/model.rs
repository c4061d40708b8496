//! Random operations against a simple tree in memory, with restarts in between.

use super::*;
use fastrand::Rng;
use nacre_wire::mds::RenameFlags;
use std::collections::{BTreeMap, HashMap};

#[derive(Clone)]
struct Node {
    /// Entries of a directory; `None` for a file.
    entries: Option<BTreeMap<String, Fid>>,
}

/// Expected state of the file system.
#[derive(Default)]
struct Tree {
    nodes: HashMap<Fid, Node>,
}

impl Tree {
    fn new() -> Tree {
        let root = Node { entries: Some(BTreeMap::new()) };
        Tree { nodes: HashMap::from([(Fid::ROOT, root)]) }
    }

    fn entries(&self, dir: Fid) -> StatusResult<&BTreeMap<String, Fid>> {
        let node = self.nodes.get(&dir).ok_or(Status::ENOENT)?;
        node.entries.as_ref().ok_or(Status::ENOTDIR)
    }

    fn is_dir(&self, fid: Fid) -> bool {
        self.nodes.get(&fid).is_some_and(|node| node.entries.is_some())
    }

    fn put(&mut self, dir: Fid, name: &str, fid: Fid) {
        let entries = self.nodes.get_mut(&dir).and_then(|node| node.entries.as_mut()).expect("a directory");
        entries.insert(name.to_owned(), fid);
    }

    fn take(&mut self, dir: Fid, name: &str) {
        let entries = self.nodes.get_mut(&dir).and_then(|node| node.entries.as_mut()).expect("a directory");
        entries.remove(name);
    }

    fn create(&mut self, dir: Fid, name: &str, fid: Fid, is_dir: bool) -> StatusResult<()> {
        if self.entries(dir)?.contains_key(name) {
            return Err(Status::EEXIST);
        }
        self.nodes.insert(fid, Node { entries: is_dir.then(BTreeMap::new) });
        self.put(dir, name, fid);
        Ok(())
    }

    fn links(&self, fid: Fid) -> usize {
        let directories = self.nodes.values().filter_map(|node| node.entries.as_ref());
        directories.map(|entries| entries.values().filter(|other| **other == fid).count()).sum()
    }

    fn drop_if_nameless(&mut self, fid: Fid) {
        if self.links(fid) == 0 {
            self.nodes.remove(&fid);
        }
    }

    fn remove(&mut self, dir: Fid, name: &str, as_dir: bool) -> StatusResult<()> {
        let fid = *self.entries(dir)?.get(name).ok_or(Status::ENOENT)?;
        match (as_dir, self.is_dir(fid)) {
            (true, false) => return Err(Status::ENOTDIR),
            (false, true) => return Err(Status::EISDIR),
            (true, true) if !self.entries(fid)?.is_empty() => return Err(Status::ENOTEMPTY),
            _ => {}
        }
        self.take(dir, name);
        self.drop_if_nameless(fid);
        Ok(())
    }

    fn link(&mut self, fid: Fid, dir: Fid, name: &str) -> StatusResult<()> {
        if self.entries(dir)?.contains_key(name) {
            return Err(Status::EEXIST);
        }
        if self.is_dir(fid) {
            return Err(Status::EPERM);
        }
        self.put(dir, name, fid);
        Ok(())
    }

    fn is_inside(&self, inner: Fid, outer: Fid) -> bool {
        inner == outer
            || self.entries(outer).is_ok_and(|entries| {
                entries.values().any(|fid| self.is_dir(*fid) && self.is_inside(inner, *fid))
            })
    }

    fn rename(&mut self, from: (Fid, &str), to: (Fid, &str)) -> StatusResult<()> {
        let (from_entries, to_entries) = (self.entries(from.0)?, self.entries(to.0)?);
        let source = *from_entries.get(from.1).ok_or(Status::ENOENT)?;
        let target = to_entries.get(to.1).copied();
        if self.is_dir(source) && self.is_inside(to.0, source) {
            return Err(Status::EINVAL);
        }
        if let Some(target) = target {
            if self.is_dir(target) && self.is_inside(from.0, target) {
                return Err(Status::ENOTEMPTY);
            }
            if target == source {
                return Ok(());
            }
            match (self.is_dir(source), self.is_dir(target)) {
                (true, false) => return Err(Status::ENOTDIR),
                (false, true) => return Err(Status::EISDIR),
                (true, true) if !self.entries(target)?.is_empty() => return Err(Status::ENOTEMPTY),
                _ => {}
            }
        }
        self.take(from.0, from.1);
        self.put(to.0, to.1, source);
        if let Some(target) = target {
            self.drop_if_nameless(target);
        }
        Ok(())
    }

    /// Compares the whole tree with the server.
    fn compare(&self, f: &Fixture) {
        for (fid, node) in &self.nodes {
            let attr = f.stat(*fid).expect("the model has it");
            let Some(entries) = &node.entries else {
                assert_eq!(attr.nlink as usize, self.links(*fid));
                continue;
            };
            let mut names = f.names(*fid, 1000);
            names.sort();
            assert_eq!(names, entries.keys().cloned().collect::<Vec<_>>());
            for (name, child) in entries {
                assert_eq!(f.lookup(*fid, name).map(|a| a.map(|a| a.fid)), Ok(Some(*child)));
            }
            let subdirs = entries.values().filter(|fid| self.is_dir(**fid)).count();
            assert_eq!(attr.nlink as usize, 2 + subdirs);
        }
    }
}

fn step(f: &Fixture, tree: &mut Tree, dice: &mut Rng, ever: &mut Vec<Fid>) {
    let pick = |dice: &mut Rng, ever: &[Fid]| ever[dice.usize(..ever.len())];
    let (dir, other) = (pick(dice, ever), pick(dice, ever));
    let (name, to) = (format!("n{}", dice.u64(..5)), format!("n{}", dice.u64(..5)));
    let done = |result: StatusResult<MdsReply>| result.map(|_| ());
    let (real, model) = match dice.u64(..7) {
        kind @ 0..=2 => {
            let fid = f.fid();
            let new = if kind == 0 { NewFile::Directory } else { NewFile::Node { rdev: 0 } };
            let request = MdsRequest::Create {
                parent: dir,
                name: name.as_bytes(),
                fid,
                new,
                mode: 0o755,
                umask: 0,
                open: None,
                exclusive: true,
            };
            ever.push(fid);
            (done(f.run(&request)), tree.create(dir, &name, fid, kind == 0))
        }
        kind @ 3..=4 => {
            let request = MdsRequest::Unlink { parent: dir, name: name.as_bytes(), directory: kind == 4 };
            (done(f.run(&request)), tree.remove(dir, &name, kind == 4))
        }
        5 if tree.nodes.contains_key(&other) => {
            let request = MdsRequest::Link { fid: other, parent: dir, name: name.as_bytes() };
            (done(f.run(&request)), tree.link(other, dir, &name))
        }
        _ => {
            let request = MdsRequest::Rename {
                from_parent: dir,
                from_name: name.as_bytes(),
                to_parent: other,
                to_name: to.as_bytes(),
                flags: RenameFlags::empty(),
            };
            (done(f.run(&request)), tree.rename((dir, &name), (other, &to)))
        }
    };
    // A removed directory might have been a shard: clients find out.
    let real = real.map_err(|status| if status == Status::WRONG_SHARD { Status::ENOENT } else { status });
    // A replaced file stays for a moment, and is no directory.
    let is_replaced = real == Err(Status::ENOTDIR) && model == Err(Status::ENOENT);
    let real = if is_replaced { model } else { real };
    assert_eq!(real, model);
}

#[test]
fn random_operations_agree_with_a_simple_tree_across_restarts() {
    for seed in 0..6 {
        let mut dice = Rng::with_seed(seed);
        let mut f = Fixture::new();
        let (mut tree, mut ever) = (Tree::new(), vec![Fid::ROOT]);
        for _ in 0..4 {
            for _ in 0..400 {
                step(&f, &mut tree, &mut dice, &mut ever);
                // Removed inodes stay on the list for a while, to be refused.
                if ever.len() > 40 {
                    ever.retain(|fid| tree.nodes.contains_key(fid));
                }
            }
            tree.compare(&f);
            f = f.restart();
            tree.compare(&f);
        }
        f.check();
    }
}
