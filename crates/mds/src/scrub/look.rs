//! Looks at inodes: their names, counts and attributes.

use super::Scrub;
use crate::check::contents::{correct, faults_of, layout_of};
use crate::check::{Kind, is_rooted};
use crate::locks::Want;
use crate::shards::{holds_names, is_former, is_shard, is_striped, may_have, named_in, shards_of};
use crate::tables::{DIRENTS, INODES, LINKS, ORPHANS, XATTRS, link_key, split_dirent_key, split_link_key};
use crate::transactions::ShardLists;
use nacre_layout::Layout;
use nacre_ondisk::{DecodeError, DirentRecord, InodeRecord};
use nacre_store::Table;
use nacre_types::{AttrFlags, Fid, FileKind, Status, StatusResult};
use nacre_wire::peer::{Name, PeerReply, PeerRequest};
use std::ops::{Bound, ControlFlow};

/// Names of a directory that are read at a time.
const NAMES_AT_ONCE: usize = 1024;
/// Most repairs of one inode in one walk.
const REPAIRS_MAX: usize = 1000;
/// Advice for problems that cannot be repaired in use.
pub(super) const OFFLINE: &str = ": stop the file system and run 'nacre check --repair'";

/// A problem that one look shows.
pub(super) struct Suspicion {
    kind: Kind,
    text: String,
    fix: Fix,
}

/// Repair of a problem under the lock of the inode.
enum Fix {
    /// The file system has to be stopped.
    Offline,
    /// The record is corrected, with these numbers of links and, of a directory, entries.
    Record { nlink: u32, entries: u64 },
    /// A name in the directory is removed.
    RemoveName { position: u64, name: Vec<u8>, kind: FileKind },
    /// A name in the directory gets another kind.
    SetKind { position: u64, name: Vec<u8>, fid: Fid, kind: FileKind },
}

/// What the names in a directory add up to.
#[derive(Default)]
struct Tally {
    entries: u64,
    subdirs: u32,
}

/// A file with objects, for a look at these.
pub(super) struct File {
    pub fid: Fid,
    pub record: InodeRecord,
    pub layout: Layout,
}

impl Scrub {
    /// Looks at an inode, and reports what is wrong with it. Returns the number of names looked at.
    pub(super) fn examine(
        &self,
        fid: Fid,
        value: &[u8],
        repair: bool,
        files: &mut Vec<File>,
    ) -> StatusResult<u64> {
        let Ok(record) = InodeRecord::decode(fid, value) else {
            self.report_damaged(fid)?;
            return Ok(0);
        };
        let (suspicions, names) = match self.look(&fid, &record) {
            Ok(looked) => looked,
            Err(status @ (Status::ESHUTDOWN | Status::EINTR)) => return Err(status),
            Err(status) => {
                self.skip(status);
                return Ok(0);
            }
        };
        if !suspicions.is_empty() {
            self.confirm(fid, repair)?;
        }
        if let Some(layout) = layout_of(&record) {
            files.push(File { fid, record, layout });
        }
        Ok(names)
    }

    fn report_damaged(&self, fid: Fid) -> StatusResult<()> {
        let _locked = self.leaves.locks.lock(&[Want::Whole(fid)])?;
        if let Some(Err(error)) = self.stored(&fid)? {
            let text = format!("its record is damaged: {error}{OFFLINE}");
            self.report(Kind::DamagedInode, fid, text, false);
        }
        Ok(())
    }

    /// Returns the record of an inode as it is stored.
    pub(super) fn stored(&self, fid: &Fid) -> StatusResult<Option<Result<InodeRecord, DecodeError>>> {
        let found = self
            .leaves
            .store
            .get(INODES, &fid.to_key(), |value| value.map(|value| InodeRecord::decode(*fid, value)));
        found.map_err(|error| self.leaves.records.store_failed(&error))
    }

    /// Looks again under the lock of the inode, which excludes changes; reports what is still wrong, and repairs it.
    fn confirm(&self, fid: Fid, repair: bool) -> StatusResult<()> {
        let _locked = self.leaves.locks.lock(&[Want::Whole(fid)])?;
        // A repair changes what the others are compared with: one at a time.
        for _ in 0..REPAIRS_MAX {
            let Some(Ok(mut record)) = self.stored(&fid)? else { return Ok(()) };
            let mut suspicions = match self.look(&fid, &record) {
                Ok((suspicions, _)) => suspicions,
                Err(status) => {
                    self.skip(status);
                    return Ok(());
                }
            };
            let first = suspicions.iter().position(|it| repair && !matches!(it.fix, Fix::Offline));
            let Some(first) = first else {
                for Suspicion { kind, text, fix } in suspicions {
                    let advice = if matches!(fix, Fix::Offline) { OFFLINE } else { "" };
                    self.report(kind, fid, format!("{text}{advice}"), false);
                }
                return Ok(());
            };
            let Suspicion { kind, text, fix } = suspicions.swap_remove(first);
            self.fix(&mut record, fix)?;
            self.report(kind, fid, text, true);
        }
        Ok(())
    }

    /// Repairs one problem of a locked inode.
    fn fix(&self, record: &mut InodeRecord, fix: Fix) -> StatusResult<()> {
        let fid = record.attr.fid;
        let mut tx = self.leaves.records.begin();
        match fix {
            Fix::Offline => return Ok(()),
            Fix::Record { nlink, entries } => {
                correct(record, None);
                record.attr.nlink = nlink;
                if !record.name.is_empty() {
                    record.attr.flags -= AttrFlags::ORPHAN;
                }
                if record.attr.is_dir() {
                    record.attr.size = entries;
                }
            }
            Fix::RemoveName { position, name, kind } => {
                tx.delete_dirent(&fid, position, &name);
                record.attr.size = record.attr.size.saturating_sub(1);
                record.attr.nlink -= u32::from(kind == FileKind::Directory && record.attr.nlink > 2);
            }
            Fix::SetKind { position, name, fid: child, kind } => {
                tx.put_dirent(&fid, position, &name, child, kind);
            }
        }
        tx.put_inode(record.clone());
        self.core.commits.commit(&mut tx)?;
        Ok(())
    }

    /// Looks at an inode without changing anything; returns what may be wrong, and the number of names looked at.
    fn look(&self, fid: &Fid, record: &InodeRecord) -> StatusResult<(Vec<Suspicion>, u64)> {
        let (mut found, mut tally) = (Vec::new(), Tally::default());
        if holds_names(record) {
            self.look_at_names(fid, record, &mut tally, &mut found)?;
        }
        let (mut nlink, entries) = (2 + tally.subdirs, tally.entries);
        if !is_rooted(fid) && !is_shard(record) && !is_former(record) {
            let links = self.links_of(fid, record)?;
            if !record.attr.is_dir() {
                nlink = links.len() as u32;
            }
            self.look_at_links(fid, record, &links, (nlink, entries), &mut found)?;
        }
        let mut add = |kind, text, fix| found.push(Suspicion { kind, text, fix });
        if record.attr.nlink != nlink {
            let text = format!("has {} links, should have {nlink}", record.attr.nlink);
            add(Kind::LinkCount, text, Fix::Record { nlink, entries });
        }
        if record.attr.is_dir() && record.entries() != entries {
            let text = format!("says {} entries, has {entries}", record.entries());
            add(Kind::EntryCount, text, Fix::Record { nlink, entries });
        }
        for (kind, text) in faults_of(record) {
            let is_small = kind == Kind::Attributes;
            add(kind, text, if is_small { Fix::Record { nlink, entries } } else { Fix::Offline });
        }
        if is_shard(record) || is_striped(record) && !is_former(record) {
            self.look_at_shards(fid, record, &mut found)?;
        }
        Ok((found, tally.entries))
    }

    /// Looks at the names that an inode says it has.
    fn look_at_links(
        &self,
        fid: &Fid,
        record: &InodeRecord,
        links: &[(Fid, Vec<u8>)],
        (nlink, entries): (u32, u64),
        found: &mut Vec<Suspicion>,
    ) -> StatusResult<()> {
        let mut add = |kind, text, fix| found.push(Suspicion { kind, text, fix });
        let is_orphan = record.attr.flags.contains(AttrFlags::ORPHAN);
        let listed = self.leaves.records.orphan_kind(fid)?.is_some();
        if record.name.is_empty() {
            if !is_orphan || !listed {
                let text = format!("has lost its name ({:?})", record.attr.kind());
                add(Kind::LostInode, text, Fix::Offline);
            }
        } else if is_orphan || listed {
            let text = "is on the list of inodes without names but has one".to_owned();
            let fix = if listed { Fix::Offline } else { Fix::Record { nlink, entries } };
            add(Kind::OrphanList, text, fix);
        }
        let mut lists = ShardLists::new();
        for (parent, name) in links {
            if !self.within(|| self.leads_to(parent, name, fid, &mut lists))? {
                let shown = String::from_utf8_lossy(name);
                add(Kind::Links, format!("says that {parent} has its name '{shown}'"), Fix::Offline);
            }
        }
        Ok(())
    }

    /// Returns all names that an inode says it has.
    fn links_of(&self, fid: &Fid, record: &InodeRecord) -> StatusResult<Vec<(Fid, Vec<u8>)>> {
        let mut links = Vec::new();
        if !record.name.is_empty() {
            links.push((record.parent, record.name.clone()));
        }
        let scanned = self.leaves.store.scan(LINKS, &fid.to_key(), Bound::Unbounded, &mut |key, _| {
            links.extend(split_link_key(key).map(|(_, parent, name)| (parent, name.to_vec())));
            ControlFlow::Continue(())
        });
        scanned.map_err(|error| self.leaves.records.store_failed(&error))?;
        Ok(links)
    }

    /// Returns whether a name leads to an inode, on whatever MDT the name is.
    fn leads_to(&self, parent: &Fid, name: &[u8], fid: &Fid, lists: &mut ShardLists) -> StatusResult<bool> {
        for home in self.core.coordinator.homes_of(parent, name, lists)? {
            let found = match home.mdt_index() == self.leaves.index {
                true => self.leaves.records.resolve_local(&home, name),
                false => {
                    let at = Name { parent: home, name: name.to_vec() };
                    match self.leaves.transactions.ask(home.mdt_index(), PeerRequest::ResolveName { at }) {
                        Ok(PeerReply::Fid(found)) => Ok(found),
                        Ok(_) => Err(Status::EPROTO),
                        Err(status) => Err(status),
                    }
                }
            };
            match found {
                Ok(found) if found == *fid => return Ok(true),
                Ok(_) | Err(Status::ENOENT) => {}
                Err(status) => return Err(status),
            }
        }
        Ok(false)
    }

    /// Looks at the names in a directory or shard.
    fn look_at_names(
        &self,
        fid: &Fid,
        record: &InodeRecord,
        tally: &mut Tally,
        found: &mut Vec<Suspicion>,
    ) -> StatusResult<()> {
        let prefix = fid.to_key();
        let mut after: Vec<u8> = Vec::new();
        loop {
            let mut some = Vec::new();
            let from = if after.is_empty() { Bound::Unbounded } else { Bound::Excluded(&after[..]) };
            let scanned = self.leaves.store.scan(DIRENTS, &prefix, from, &mut |key, value| {
                some.push((key.to_vec(), DirentRecord::decode(value).ok()));
                if some.len() < NAMES_AT_ONCE { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            scanned.map_err(|error| self.leaves.records.store_failed(&error))?;
            for (key, to) in &some {
                let Some((_, position, name)) = split_dirent_key(key) else { continue };
                tally.entries += 1;
                let to = to.map(|to| (to.fid, to.kind));
                tally.subdirs += u32::from(matches!(to, Some((_, FileKind::Directory))));
                self.look_at_name(record, position, name, to, found)?;
            }
            match some.pop() {
                Some((key, _)) if some.len() + 1 == NAMES_AT_ONCE => after = key,
                _ => return Ok(()),
            }
        }
    }

    fn look_at_name(
        &self,
        directory: &InodeRecord,
        position: u64,
        name: &[u8],
        to: Option<(Fid, FileKind)>,
        found: &mut Vec<Suspicion>,
    ) -> StatusResult<()> {
        let shown = String::from_utf8_lossy(name);
        let mut add = |kind, text: String, fix| found.push(Suspicion { kind, text, fix });
        let Some((fid, kind)) = to else {
            add(Kind::DamagedName, format!("the record of name '{shown}' in it is damaged"), Fix::Offline);
            return Ok(());
        };
        if self.leaves.records.hash(name) != position || !may_have(directory, name, position) {
            add(
                Kind::MisplacedName,
                format!("its name '{shown}' is not where it is looked up"),
                Fix::Offline,
            );
            return Ok(());
        }
        let is_here = fid.mdt_index() == self.leaves.index;
        let child = match is_here {
            true => match self.stored(&fid)? {
                // The walk reports it as an inode.
                Some(Err(_)) => return Ok(()),
                Some(Ok(child)) => Some(child),
                None => None,
            },
            false => self.within(|| self.core.coordinator.inode_elsewhere(&fid))?,
        };
        let (name, right) = (name.to_vec(), child.as_ref().map(|child| child.attr.kind()));
        match (child, right) {
            (Some(child), Some(right)) if right == kind => {
                let parent = named_in(directory);
                let is_known = child.is_first_link(&parent, &name) || is_former(directory);
                if is_here && !is_known && !self.has_link(&fid, &parent, &name)? {
                    let text = format!("its name '{shown}' is not known to the inode {fid}");
                    add(Kind::Links, text, Fix::Offline);
                }
            }
            (_, Some(right)) => {
                let text = format!("its name '{shown}' says {kind:?}, not {right:?}");
                let is_counted = FileKind::Directory == kind || FileKind::Directory == right;
                let fix = Fix::SetKind { position, name, fid, kind: right };
                add(Kind::WrongKind, text, if is_counted { Fix::Offline } else { fix });
            }
            (_, None) => {
                let text = format!("its name '{shown}' is of inode {fid}, which does not exist");
                let fix = if is_here { Fix::RemoveName { position, name, kind } } else { Fix::Offline };
                add(Kind::DanglingName, text, fix);
            }
        }
        Ok(())
    }

    fn has_link(&self, fid: &Fid, parent: &Fid, name: &[u8]) -> StatusResult<bool> {
        let found = self.leaves.store.get(LINKS, link_key(fid, parent, name).as_slice(), |it| it.is_some());
        found.map_err(|error| self.leaves.records.store_failed(&error))
    }

    fn look_at_shards(
        &self,
        fid: &Fid,
        record: &InodeRecord,
        found: &mut Vec<Suspicion>,
    ) -> StatusResult<()> {
        let mut add = |kind, text| found.push(Suspicion { kind, text, fix: Fix::Offline });
        if is_shard(record) {
            let master = self.within(|| self.core.coordinator.record_anywhere(&record.parent))?;
            let list = master.and_then(|master| shards_of(&master).ok().flatten());
            if !list.is_some_and(|list| list.shards.contains(fid)) {
                add(Kind::Shard, format!("is no shard of {}, as it says", record.parent));
            }
            return Ok(());
        }
        let Ok(Some(layout)) = shards_of(record) else {
            add(Kind::ShardList, "its list of shards is damaged".to_owned());
            return Ok(());
        };
        for shard in layout.shards.iter().filter(|shard| *shard != fid) {
            if self.within(|| self.core.coordinator.record_anywhere(shard))?.is_none() {
                add(Kind::ShardList, format!("has lost its shard {shard}"));
            }
        }
        Ok(())
    }

    /// Looks at a record that belongs to an inode.
    pub(super) fn examine_leftover(&self, table: Table, key: &[u8], repair: bool) -> StatusResult<()> {
        let Some(fid) = key.first_chunk::<16>().map(Fid::from_key) else { return Ok(()) };
        if self.stored(&fid)?.is_some() {
            return Ok(());
        }
        let _locked = self.leaves.locks.lock(&[Want::Whole(fid)])?;
        let is_there = self.leaves.store.get(table, key, |value| value.is_some());
        let is_there = is_there.map_err(|error| self.leaves.records.store_failed(&error))?;
        if !is_there || self.stored(&fid)?.is_some() {
            return Ok(());
        }
        let what = match table {
            XATTRS => "an extended attribute",
            ORPHANS => "an entry on the list of inodes without names",
            _ => "a link",
        };
        if repair {
            let mut tx = self.leaves.records.begin();
            tx.batch().delete(table, key);
            self.core.commits.commit(&mut tx)?;
        }
        self.report(Kind::Leftover, fid, format!("does not exist but has {what}"), repair);
        Ok(())
    }
}
