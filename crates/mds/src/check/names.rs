//! Repair of names: each ends in the directory or shard where a look-up finds it, and names an inode of its kind.

use super::collect::Dirent;
use super::is_rooted;
use super::repair::Repair;
use crate::error::MdsError;
use crate::shards::{is_former, is_shard, may_have, named_in, shards_of};
use crate::tables::{DIRENTS, dirent_key};
use nacre_ondisk::DirentRecord;
use nacre_types::name::name_hash;
use nacre_types::{Fid, FileKind};
use std::collections::{HashMap, HashSet};

/// What becomes of a name.
enum Fate {
    /// It stays as it is.
    Stays,
    /// Its record changes.
    Is(Fid, FileKind),
    /// It moves to this directory or shard, to the position of its hash.
    MovesTo(Fid),
    /// It is removed.
    Goes,
}

impl Repair<'_> {
    /// Repairs all names, and connects them with inodes again.
    pub(super) fn names(&mut self) -> Result<(), MdsError> {
        let claims = self.claims();
        let mut taken: HashSet<(Fid, Vec<u8>)> = HashSet::new();
        if self.inventory.dirents.iter().any(|name| !self.is_in_place(name)) {
            let placed = self.inventory.dirents.iter().filter(|name| self.is_in_place(name));
            taken.extend(placed.map(|name| (name.parent, name.name.clone())));
        }
        for mut name in std::mem::take(&mut self.inventory.dirents) {
            // The place of a name decides before its inode.
            if let Fate::MovesTo(home) = self.place_of(&name, &taken) {
                self.move_name(&mut name, home);
                taken.insert((home, name.name.clone()));
            }
            match self.fate_of(&name, &claims) {
                Fate::Goes => self.remove_name(&name)?,
                Fate::Is(fid, kind) => {
                    name.to = Some((fid, kind));
                    self.put_name(&name)?;
                    self.inventory.dirents.push(name);
                }
                Fate::Stays | Fate::MovesTo(_) => self.inventory.dirents.push(name),
            }
        }
        self.inventory.connect();
        self.second_names()?;
        self.cut_loops()
    }

    /// Inodes by the names that they say they have, if there are names whose inodes are unknown.
    fn claims(&self) -> HashMap<(Fid, Vec<u8>), Fid> {
        let mut claims = HashMap::new();
        if self.inventory.dirents.iter().all(|name| name.to.is_some()) {
            return claims;
        }
        for (fid, inode) in &self.inventory.inodes {
            claims.insert((inode.record.parent, inode.record.name.clone()), *fid);
        }
        for (fid, parent, name) in &self.inventory.links {
            claims.insert((*parent, name.clone()), *fid);
        }
        claims
    }

    fn is_in_place(&self, name: &Dirent) -> bool {
        let parent = self.inventory.inodes.get(&name.parent);
        name.hash_is_right && parent.is_none_or(|it| may_have(&it.record, &name.name, name.position))
    }

    /// Decides where a name belongs.
    fn place_of(&self, name: &Dirent, taken: &HashSet<(Fid, Vec<u8>)>) -> Fate {
        let Some(parent) = self.inventory.inodes.get(&name.parent).filter(|_| !self.is_in_place(name)) else {
            return Fate::Stays;
        };
        let position = name_hash(self.seed_of(&name.parent), &name.name);
        let home = match may_have(&parent.record, &name.name, position) {
            true => Some(name.parent),
            false => {
                let master = self.inventory.inodes.get(&named_in(&parent.record));
                let layout = master.and_then(|master| shards_of(&master.record).ok().flatten());
                let shard = layout.and_then(|layout| {
                    layout.shard_of(&name.name).and_then(|place| layout.shards.get(place).copied())
                });
                shard.filter(|shard| self.inventory.inodes.contains_key(shard))
            }
        };
        match home {
            Some(home) if !taken.contains(&(home, name.name.clone())) => Fate::MovesTo(home),
            _ => Fate::Stays,
        }
    }

    /// Decides what a name leads to.
    fn fate_of(&self, name: &Dirent, claims: &HashMap<(Fid, Vec<u8>), Fid>) -> Fate {
        let inventory = &self.inventory;
        let parent = match inventory.inodes.get(&name.parent) {
            Some(parent) if parent.record.attr.is_dir() => parent,
            None if !inventory.covers(&name.parent) => return Fate::Stays,
            _ => return Fate::Goes,
        };
        // Another one has its place.
        if !self.is_in_place(name) {
            return Fate::Goes;
        }
        let (fid, kind) = match name.to {
            Some(to) => to,
            None => match claims.get(&(named_in(&parent.record), name.name.clone())) {
                Some(fid) => (*fid, FileKind::Regular),
                None => return Fate::Goes,
            },
        };
        match inventory.inodes.get(&fid) {
            None if inventory.covers(&fid) => Fate::Goes,
            None => Fate::Stays,
            Some(inode) if is_rooted(&fid) || is_shard(&inode.record) || is_former(&inode.record) => {
                Fate::Goes
            }
            Some(inode) if inode.record.attr.kind() != kind || name.to.is_none() => {
                Fate::Is(fid, inode.record.attr.kind())
            }
            Some(_) => Fate::Stays,
        }
    }

    fn move_name(&mut self, name: &mut Dirent, home: Fid) {
        let key = dirent_key(&name.parent, name.position, &name.name);
        self.tx_of(&name.parent).batch().delete(DIRENTS, key.as_slice());
        (name.parent, name.hash_is_right) = (home, true);
        name.position = name_hash(self.seed_of(&home), &name.name);
        if let Some((fid, kind)) = name.to {
            let (position, bytes) = (name.position, name.name.clone());
            self.tx_of(&home).put_dirent(&home, position, &bytes, fid, kind);
        }
    }

    fn put_name(&mut self, name: &Dirent) -> Result<(), MdsError> {
        let Some((fid, kind)) = name.to else { return Ok(()) };
        let key = dirent_key(&name.parent, name.position, &name.name);
        let value = DirentRecord { fid, kind }.encode();
        self.tx_of(&name.parent).batch().put(DIRENTS, key.as_slice(), &value);
        self.commit_if_full()
    }

    fn remove_name(&mut self, name: &Dirent) -> Result<(), MdsError> {
        let key = dirent_key(&name.parent, name.position, &name.name);
        self.tx_of(&name.parent).batch().delete(DIRENTS, key.as_slice());
        self.commit_if_full()
    }

    /// Removes names of directories beyond one: the one that the directory knows, if it is there.
    fn second_names(&mut self) -> Result<(), MdsError> {
        let several = self
            .inventory
            .inodes
            .iter()
            .filter(|(_, inode)| inode.record.attr.is_dir() && inode.names.len() > 1);
        let kept: HashMap<Fid, (Fid, Vec<u8>)> = several
            .map(|(fid, inode)| {
                let first = (inode.record.parent, inode.record.name.clone());
                (*fid, if inode.names.contains(&first) { first } else { inode.names[0].clone() })
            })
            .collect();
        if kept.is_empty() {
            return Ok(());
        }
        let directory = |name: &Dirent, repair: &Repair<'_>| match repair.inventory.inodes.get(&name.parent) {
            Some(parent) => named_in(&parent.record),
            None => name.parent,
        };
        let mut seen = HashSet::new();
        self.drop_names(|repair, name| {
            let Some((fid, kept)) = name.to.and_then(|(fid, _)| kept.get_key_value(&fid)) else {
                return false;
            };
            let is_kept = directory(name, repair) == kept.0 && name.name == kept.1;
            !is_kept || !seen.insert(*fid)
        })
    }

    /// Removes one name of each cycle of directories; the directory goes to `lost+found`.
    fn cut_loops(&mut self) -> Result<(), MdsError> {
        while let Some(first) = self.inventory.loops().first().copied() {
            let above = |fid: &Fid| Some(self.inventory.inodes.get(fid)?.names.first()?.0);
            let (mut seen, mut at) = (Vec::new(), first);
            while !seen.contains(&at) {
                seen.push(at);
                let Some(parent) = above(&at) else { return Ok(()) };
                at = parent;
            }
            let Some(cut) = seen.iter().skip_while(|fid| **fid != at).min().copied() else { return Ok(()) };
            self.drop_names(|_, name| name.to.is_some_and(|(fid, _)| fid == cut))?;
        }
        Ok(())
    }

    /// Removes names, and connects the others with inodes again.
    fn drop_names(&mut self, mut is_to_go: impl FnMut(&Self, &Dirent) -> bool) -> Result<(), MdsError> {
        let (mut kept, mut gone) = (Vec::new(), Vec::new());
        for name in std::mem::take(&mut self.inventory.dirents) {
            if is_to_go(self, &name) { gone.push(name) } else { kept.push(name) }
        }
        self.inventory.dirents = kept;
        gone.iter().try_for_each(|name| self.remove_name(name))?;
        self.inventory.connect();
        Ok(())
    }
}
