//! Records in memory, changed only by plans.

use super::super::*;
use super::{Id, Rights, Seen, Step};
use crate::shards::{named_in, shards_of};
use crate::tables::ACL_DEFAULT;
use nacre_layout::dir_hash::DirHash;
use nacre_layout::dir_layout::DirLayout;
use nacre_ondisk::DirentRecord;
use nacre_types::AttrFlags;
use nacre_wire::mds::XattrFlags;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Placement of inodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::plan) enum Shape {
    /// All on one MDT.
    OneMdt,
    /// On four MDTs, and every third directory has its names in three shards. Changes are sent between MDTs
    /// as messages.
    Spread,
}

const MDTS: u16 = 4;
const SHARDS: u32 = 3;

/// See the [module documentation](self).
pub(in crate::plan) struct World {
    shape: Shape,
    /// FIDs of inodes by number.
    fids: Vec<Fid>,
    inodes: HashMap<Fid, Arc<InodeRecord>>,
    names: BTreeMap<(Fid, Vec<u8>), DirentRecord>,
    /// Names beyond the first of each inode.
    links: BTreeSet<(Fid, Fid, Vec<u8>)>,
    xattrs: BTreeMap<(Fid, Vec<u8>), Vec<u8>>,
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
            xattrs: BTreeMap::new(),
            clock: 1,
        }
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Returns everything that has a name, by its path.
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

    /// Checks that an inode has a record of each of its names.
    fn check_names(&self, record: &InodeRecord, (dir, name): (&Fid, &[u8])) {
        let further = (record.attr.fid, *dir, name.to_vec());
        assert!(record.is_first_link(dir, name) || self.links.contains(&further), "{record:?} {name:?}");
    }

    fn seen(&self, record: &InodeRecord) -> Seen {
        let attr = &record.attr;
        let (mut nlink, mut atime, mut mtime) = (attr.nlink, attr.atime, attr.mtime);
        if attr.is_dir() {
            let homes: Vec<&Attr> =
                self.homes(&attr.fid).iter().map(|home| &self.inodes[home].attr).collect();
            nlink = 2 + homes.iter().map(|home| home.nlink - 2).sum::<u32>();
            atime = homes.iter().map(|home| home.atime).fold(atime, Timestamp::max);
            mtime = homes.iter().map(|home| home.mtime).fold(mtime, Timestamp::max);
        }
        let own = self.xattrs.range((attr.fid, Vec::new())..).take_while(|((fid, _), _)| *fid == attr.fid);
        let mut xattrs: BTreeMap<_, _> =
            own.map(|((_, name), value)| (name.clone(), value.clone())).collect();
        if !record.acl.is_empty() {
            xattrs.insert(ACL_ACCESS.to_vec(), record.acl.clone());
        }
        self.check_flags(record, &xattrs);
        Seen {
            kind: attr.kind(),
            mode: attr.mode & 0o7777,
            uid: attr.uid,
            gid: attr.gid,
            nlink,
            size: if attr.is_regular() { attr.size } else { 0 },
            atime: atime.sec,
            mtime: mtime.sec,
            xattrs,
        }
    }

    /// Checks that the flags of an inode match its extended attributes.
    fn check_flags(&self, record: &InodeRecord, xattrs: &BTreeMap<Vec<u8>, Vec<u8>>) {
        let classes: Vec<Class> = xattrs.keys().map(|name| Class::of(name)).collect();
        let is_plain = |class: &Class| matches!(class, Class::User | Class::Trusted | Class::Security);
        for (flag, is_there) in [
            (AttrFlags::HAS_ACL, classes.contains(&Class::Acl { default: false })),
            (AttrFlags::HAS_DEFAULT_ACL, classes.contains(&Class::Acl { default: true })),
            (AttrFlags::HAS_CAPABILITY, classes.contains(&Class::Capability)),
            (AttrFlags::HAS_XATTRS, classes.iter().any(is_plain)),
        ] {
            assert_eq!(record.attr.flags.contains(flag), is_there, "{flag:?} {record:?} {xattrs:?}");
        }
    }

    /// Returns the inodes that store the names of a directory.
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

    fn entry(&self, home: &InodeRecord, name: &[u8]) -> Option<Arc<InodeRecord>> {
        let lead = self.names.get(&(home.attr.fid, name.to_vec()))?;
        Some(self.inodes[&lead.fid].clone())
    }

    fn shards(&self, record: Option<&Arc<InodeRecord>>) -> Vec<Arc<InodeRecord>> {
        let layout = record.and_then(|record| shards_of(record).expect("sound"));
        layout.iter().flat_map(|layout| &layout.shards).map(|fid| self.inodes[fid].clone()).collect()
    }

    /// Takes a step; returns its result.
    pub fn take(&mut self, cred: &Cred, step: &Step) -> StatusResult<()> {
        self.clock += 1;
        let now = Timestamp { sec: self.clock as i64, nsec: 0 };
        match step {
            Step::Make { dir, name, kind, mode, umask } => {
                let home = self.home(*dir, name)?;
                check_access(&home, cred, perm::EXEC)?;
                if self.entry(&home, name).is_some() {
                    return Err(Status::EEXIST);
                }
                check_access(&home, cred, perm::WRITE)?;
                let wanted = self.wanted(*kind, *mode, *umask);
                let acl = self.xattrs.get(&(home.attr.fid, ACL_DEFAULT.to_vec()));
                let acl = acl.and_then(|acl| Acl::parse_xattr(acl).expect("sound"));
                let new = inode(cred, &home, &wanted, &Handed { acl, layout: false }, now)?;
                self.fids.push(wanted.fid);
                self.perform(make(&home, name, new, wanted.shards.as_ref(), now), now);
            }
            Step::Link { id, dir, name } => {
                let record = self.inodes.get(&self.fids[*id]).cloned().ok_or(Status::ENOENT)?;
                let home = self.home(*dir, name)?;
                let is_taken = self.entry(&home, name).is_some();
                let linking = Linking { record: &record, home: &home, name, is_taken };
                self.perform(link(cred, &linking, now)?, now);
            }
            Step::Remove { dir, name, as_directory } => {
                let home = self.home(*dir, name)?;
                let victim = self.entry(&home, name);
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
                let (source, target) = (self.entry(&from_home, &from.1), self.entry(&to_home, &to.1));
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
            Step::SetAttr { .. } | Step::SetXattr { .. } | Step::RemoveXattr { .. } | Step::SetAcl { .. } => {
                self.change(cred, step, now)?;
            }
        }
        Ok(())
    }

    /// Changes attributes of an inode.
    fn change(&mut self, cred: &Cred, step: &Step, now: Timestamp) -> StatusResult<()> {
        let found = |id: &Id| self.inodes.get(&self.fids[*id]).cloned().ok_or(Status::ENOENT);
        let plain = |record: &InodeRecord, name: &[u8]| {
            let of = self.xattrs.keys().filter(|(fid, _)| *fid == record.attr.fid).map(|(_, name)| name);
            let mut others = of.clone().filter(|other| *other != name).map(|other| Class::of(other));
            let is_plain = |class| matches!(class, Class::User | Class::Trusted | Class::Security);
            (of.clone().any(|other| other == name), others.any(is_plain))
        };
        match step {
            Step::SetAttr { id, set } => {
                let record = found(id)?;
                let shards = self.shards(Some(&record));
                let amended = Amended { record: &record, shards: &shards, end: 1 << 20, is_writer: false };
                if let Some(amendment) = set_attr(cred, &amended, set, now)? {
                    self.amend(amendment, &shards);
                }
            }
            Step::SetXattr { id, name, value, flags } => {
                let record = found(id)?;
                let plain = Plain { record: &record, name, exists: plain(&record, name).0 };
                self.amend(set_xattr(cred, &plain, value, *flags, now)?, &[]);
            }
            Step::RemoveXattr { id, name } => {
                let record = found(id)?;
                let (exists, has_others) = plain(&record, name);
                let plain = Plain { record: &record, name, exists };
                self.amend(remove_xattr(cred, &plain, has_others, now)?, &[]);
            }
            Step::SetAcl { id, is_default, acl } => {
                let record = found(id)?;
                let (shards, value) = (self.shards(Some(&record)), acl.map(Rights::to_xattr));
                let (is_default, flags) = (*is_default, XattrFlags::empty());
                let change = AclChange { is_default, value: value.as_deref(), flags };
                if let Some(amendment) = set_acl(cred, &record, &shards, change, now)? {
                    self.amend(amendment, &shards);
                }
            }
            _ => unreachable!("a change of names"),
        }
        Ok(())
    }

    /// Applies a plan to an inode; a directory's shards get the same as a message.
    fn amend(&mut self, amendment: Amendment<'_>, shards: &[Arc<InodeRecord>]) {
        let Amendment { record, xattrs, .. } = amendment;
        let fid = record.attr.fid;
        for shard in shards.iter().map(|shard| shard.attr.fid).filter(|shard| *shard != fid) {
            let master = InodeRecord::decode(shard, &encoded(&record).0).expect("what was encoded");
            self.with(shard, |shard| crate::staging::mirror(shard, master));
        }
        let fids = shards.iter().map(|shard| shard.attr.fid).filter(|shard| *shard != fid).chain([fid]);
        for (fid, change) in fids.flat_map(|fid| xattrs.iter().map(move |change| (fid, change))) {
            let key = (fid, change.name.to_vec());
            match &change.value {
                Some(value) => drop(self.xattrs.insert(key, value.to_vec())),
                None => drop(self.xattrs.remove(&key)),
            }
        }
        self.inodes.insert(fid, Arc::new(record));
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
        for NewInode { record, default_acl } in plan.inodes {
            if !default_acl.is_empty() {
                self.xattrs.insert((record.attr.fid, ACL_DEFAULT.to_vec()), default_acl);
            }
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
            Change::DropName { fid, at, .. } => self.drop_name(fid, at),
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
