//! Records in memory, changed by plans alone.

use super::super::*;
use super::{Id, Seen, Step};
use crate::shards::{named_in, shards_of};
use nacre_layout::dir_hash::DirHash;
use nacre_layout::dir_layout::DirLayout;
use nacre_ondisk::DirentRecord;
use nacre_types::AttrFlags;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Where inodes lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::plan) enum Shape {
    /// All on one MDT.
    OneMdt,
    /// On four, and every third directory has its names in three shards. Changes go from MDT to MDT as messages.
    Spread,
}

const MDTS: u16 = 4;
const SHARDS: u32 = 3;

/// See the [module documentation](self).
pub(in crate::plan) struct World {
    shape: Shape,
    /// FIDs by number.
    fids: Vec<Fid>,
    inodes: HashMap<Fid, Arc<InodeRecord>>,
    names: BTreeMap<(Fid, Vec<u8>), DirentRecord>,
    /// Names beyond the first.
    links: BTreeSet<(Fid, Fid, Vec<u8>)>,
    clock: u64,
}

impl World {
    pub fn new(shape: Shape) -> World {
        let attr = Attr {
            fid: Fid::ROOT,
            mode: FileKind::Directory.mode_bits() | 0o777,
            nlink: 2,
            ..Attr::default()
        };
        let root = Arc::new(InodeRecord { attr, ..InodeRecord::default() });
        World {
            shape,
            fids: vec![Fid::ROOT],
            inodes: HashMap::from([(Fid::ROOT, root)]),
            names: BTreeMap::new(),
            links: BTreeSet::new(),
            clock: 1,
        }
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Everything that has a name, by its path.
    pub fn tree(&self) -> BTreeMap<Vec<u8>, (Id, Seen)> {
        let mut found = BTreeMap::new();
        let mut pending = vec![(Vec::new(), Fid::ROOT)];
        while let Some((path, dir)) = pending.pop() {
            for home in self.homes(&dir) {
                let names = self.names.range((home, Vec::new())..).take_while(|((at, _), _)| *at == home);
                for ((_, name), lead) in names {
                    let path = [&path[..], b"/", name].concat();
                    let id = self.fids.iter().position(|fid| *fid == lead.fid).expect("it was made");
                    let record = &self.inodes[&lead.fid];
                    self.check_names(record, (&dir, name));
                    found.insert(path.clone(), (id, self.seen(record)));
                    if record.attr.is_dir() {
                        pending.push((path, lead.fid));
                    }
                }
            }
        }
        found
    }

    /// An inode knows each of its names.
    fn check_names(&self, record: &InodeRecord, (dir, name): (&Fid, &[u8])) {
        let further = (record.attr.fid, *dir, name.to_vec());
        assert!(record.is_first_link(dir, name) || self.links.contains(&further), "{record:?} {name:?}");
    }

    fn seen(&self, record: &InodeRecord) -> Seen {
        let attr = &record.attr;
        let mut nlink = attr.nlink;
        if attr.is_dir() {
            let homes = self.homes(&attr.fid);
            let subdirs = homes.iter().map(|home| self.inodes[home].attr.nlink - 2);
            nlink = 2 + subdirs.sum::<u32>();
        }
        Seen { kind: attr.kind(), mode: attr.mode & 0o7777, uid: attr.uid, gid: attr.gid, nlink }
    }

    /// What the names of a directory are stored with.
    fn homes(&self, dir: &Fid) -> Vec<Fid> {
        let layout = shards_of(&self.inodes[dir]).expect("sound");
        layout.map_or_else(|| vec![*dir], |layout| layout.shards)
    }

    fn home(&self, dir: Id, name: &[u8]) -> StatusResult<Arc<InodeRecord>> {
        let record = self.inodes.get(&self.fids[dir]).ok_or(Status::ENOENT)?;
        if !record.attr.is_dir() {
            return Err(Status::ENOTDIR);
        }
        let layout = shards_of(record)?;
        let shard = layout.and_then(|layout| Some(layout.shards[layout.shard_of(name)?]));
        Ok(shard.map_or_else(|| record.clone(), |shard| self.inodes[&shard].clone()))
    }

    fn lead(&self, home: &InodeRecord, name: &[u8]) -> Option<Arc<InodeRecord>> {
        let lead = self.names.get(&(home.attr.fid, name.to_vec()))?;
        Some(self.inodes[&lead.fid].clone())
    }

    fn shards(&self, record: Option<&Arc<InodeRecord>>) -> Vec<Arc<InodeRecord>> {
        let layout = record.and_then(|record| shards_of(record).expect("sound"));
        layout.iter().flat_map(|layout| &layout.shards).map(|fid| self.inodes[fid].clone()).collect()
    }

    /// Does a step; what it says.
    pub fn take(&mut self, cred: &Cred, step: &Step) -> StatusResult<()> {
        self.clock += 1;
        let now = Timestamp { sec: self.clock as i64, nsec: 0 };
        match step {
            Step::Make { dir, name, kind, mode, umask } => {
                let home = self.home(*dir, name)?;
                check_access(&home, cred, perm::EXEC)?;
                if self.lead(&home, name).is_some() {
                    return Err(Status::EEXIST);
                }
                check_access(&home, cred, perm::WRITE)?;
                let wanted = self.wanted(*kind, *mode, *umask);
                let new = inode(cred, &home, &wanted, &Handed::default(), now)?;
                self.fids.push(wanted.fid);
                self.perform(make(&home, name, new, wanted.shards.as_ref(), now), now);
            }
            Step::Link { id, dir, name } => {
                let record = self.inodes.get(&self.fids[*id]).cloned().ok_or(Status::ENOENT)?;
                let home = self.home(*dir, name)?;
                let is_taken = self.lead(&home, name).is_some();
                let linking = Linking { record: &record, home: &home, name, is_taken };
                self.perform(link(cred, &linking, now)?, now);
            }
            Step::Remove { dir, name, as_directory } => {
                let home = self.home(*dir, name)?;
                let victim = self.lead(&home, name);
                let shards = self.shards(victim.as_ref());
                let removal = Removal {
                    home: &home,
                    name,
                    victim: victim.as_deref(),
                    shards: &shards,
                    as_directory: *as_directory,
                };
                self.perform(remove(cred, &removal, now)?, now);
            }
            Step::Rename { from, to, flags } => {
                let (from_home, to_home) = (self.home(from.0, &from.1)?, self.home(to.0, &to.1)?);
                let (source, target) = (self.lead(&from_home, &from.1), self.lead(&to_home, &to.1));
                let shards = self.shards(target.as_ref());
                let m = Move {
                    from_home: &from_home,
                    from_name: &from.1,
                    to_home: &to_home,
                    to_name: &to.1,
                    source: source.as_deref(),
                    target: target.as_deref(),
                    shards: &shards,
                    flags: *flags,
                };
                let cycles = Cycles {
                    target_in_source: self.is_inside(&to_home, source.as_deref()),
                    source_in_target: self.is_inside(&from_home, target.as_deref()),
                };
                if let Some(plan) = rename(cred, &m, cycles, now)? {
                    self.perform(plan, now);
                }
            }
        }
        Ok(())
    }

    fn wanted(&self, kind: FileKind, mode: u32, umask: u32) -> Creation<'static> {
        let number = self.fids.len() as u32;
        let fid_at = |mdt: u16, oid: u32| Fid { seq: Fid::first_sequence_of_mdt(mdt), oid, ver: 0 };
        let fid = match self.shape {
            Shape::OneMdt => fid_at(0, number * 10),
            Shape::Spread => fid_at((number % u32::from(MDTS)) as u16, number * 10),
        };
        let is_striped =
            self.shape == Shape::Spread && kind == FileKind::Directory && number.is_multiple_of(3);
        let shard = |place: u32| fid_at(((number + place) % u32::from(MDTS)) as u16, number * 10 + 1 + place);
        let shards = is_striped
            .then(|| DirLayout::new(DirHash::Fnv1a64, fid.mdt_index(), (0..SHARDS).map(shard).collect()));
        let target = if kind == FileKind::Symlink { &b"target"[..] } else { b"" };
        let mode = if kind == FileKind::Symlink { 0o777 } else { mode };
        Creation { fid, kind, mode, umask, rdev: 0, target, shards, default: None }
    }

    fn is_inside(&self, inner: &InodeRecord, outer: Option<&InodeRecord>) -> bool {
        let Some(outer) = outer.filter(|outer| outer.attr.is_dir()) else { return false };
        let mut at = named_in(inner);
        while at != outer.attr.fid && at != Fid::ROOT {
            at = self.inodes[&at].parent;
        }
        at == outer.attr.fid
    }

    fn perform(&mut self, plan: Plan<'_>, now: Timestamp) {
        match self.shape {
            Shape::OneMdt => plan.changes.iter().for_each(|change| self.apply(*change, now)),
            Shape::Spread => {
                let updates = plan.updates();
                updates.iter().filter_map(Change::of).for_each(|change| self.apply(change, now));
            }
        }
        for NewInode { record, .. } in plan.inodes {
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            let stored = InodeRecord::decode(record.attr.fid, &bytes).expect("what was encoded");
            assert!(self.inodes.insert(record.attr.fid, Arc::new(stored)).is_none(), "{record:?}");
        }
    }

    fn with(&mut self, fid: Fid, change: impl FnOnce(&mut InodeRecord)) {
        change(Arc::make_mut(self.inodes.get_mut(&fid).expect("it is there")));
    }

    fn apply(&mut self, change: Change<'_>, now: Timestamp) {
        match change {
            Change::PutName { home, name, fid, kind } => {
                self.names.insert((home, name.to_vec()), DirentRecord { fid, kind });
            }
            Change::DeleteName { home, name } => {
                assert!(self.names.remove(&(home, name.to_vec())).is_some(), "{name:?}");
            }
            Change::Directory { fid, entries, subdirs } => self.with(fid, |record| {
                record.attr.mtime = now;
                record.attr.size = record.attr.size.checked_add_signed(entries).expect("a count");
                record.attr.nlink = record.attr.nlink.checked_add_signed(subdirs as i32).expect("a count");
            }),
            Change::AddName { fid, at } => {
                self.links.insert((fid, at.parent, at.name.to_vec()));
                self.with(fid, |record| record.attr.nlink += 1);
            }
            Change::MoveName { fid, from, to } => {
                if self.links.remove(&(fid, from.parent, from.name.to_vec())) {
                    self.links.insert((fid, to.parent, to.name.to_vec()));
                } else {
                    self.with(fid, |record| {
                        assert!(record.is_first_link(&from.parent, from.name));
                        (record.parent, record.name) = (to.parent, to.name.to_vec());
                    });
                }
            }
            Change::DropName { fid, at } => self.drop_name(fid, at),
            Change::DropShard { fid } => drop(self.inodes.remove(&fid).expect("it is there")),
        }
    }

    fn drop_name(&mut self, fid: Fid, at: Place<'_>) {
        let record = self.inodes[&fid].clone();
        if record.attr.is_dir() || record.attr.nlink == 1 {
            self.inodes.remove(&fid);
            return;
        }
        if !self.links.remove(&(fid, at.parent, at.name.to_vec())) {
            let next = self.links.range((fid, Fid::ZERO, Vec::new())..).next().cloned();
            let next = next.filter(|(of, ..)| *of == fid).expect("another name");
            self.links.remove(&next);
            self.with(fid, |record| (record.parent, record.name) = (next.1, next.2));
        }
        self.with(fid, |record| record.attr.nlink -= 1);
        assert!(!record.attr.flags.contains(AttrFlags::ORPHAN));
    }
}
