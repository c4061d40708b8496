//! Names: their values, and the calls that change them.

use super::{DURABLE_AFTER, Entry, Inode, Model, Value, Verdict, fails, is_done, wrong};
use crate::history::{Call, Event, Reply};
use nacre_types::{Fid, Status};
use std::sync::Arc;
use std::time::Duration;

impl Entry {
    /// Returns what the name leads to, if that is known.
    pub(crate) fn now(&self) -> Option<Fid> {
        self.values.last().and_then(|value| value.fid)
    }

    /// Returns the values that an answer may show.
    fn possible(&self) -> Vec<Option<Fid>> {
        match self.is_open {
            true => self.values.iter().map(|value| value.fid).collect(),
            false => vec![self.now()],
        }
    }

    fn set(&mut self, fid: Option<Fid>, event: &Event) {
        if self.values.is_empty() {
            self.values.push(Value { fid: None, time: Duration::ZERO, worker: usize::MAX, is_synced: false });
        }
        self.is_open = false;
        self.values.push(Value { fid, time: event.times[1], worker: event.worker, is_synced: false });
    }

    /// Makes the changes of a program durable.
    pub(super) fn sync(&mut self, worker: usize) {
        if let Some(last) = self.values.iter().rposition(|value| value.worker == worker) {
            self.values.drain(..last);
            self.values[0].is_synced = true;
        }
    }

    /// Loses what was not durable at `time`.
    pub(super) fn lose(&mut self, time: Duration) {
        if let Some(last) = self.values.iter().rposition(|value| value.time + DURABLE_AFTER <= time) {
            self.values.drain(..last);
        }
        self.is_open |= self.values.len() > 1;
    }

    /// Returns true if its value was durable at `cut` and has not changed since.
    pub(super) fn is_durable(&self, cut: Duration) -> bool {
        let [value] = &self.values[..] else { return false };
        !self.is_open && (value.is_synced || value.time + DURABLE_AFTER <= cut)
    }

    /// Makes its value unknown.
    pub(super) fn doubt(&mut self) {
        self.values.push(Value { fid: self.now(), time: NEVER, worker: usize::MAX, is_synced: false });
        self.is_open = true;
    }

    /// Shrinks what is possible to an answer; false if it is not possible.
    fn settle(&mut self, found: Option<Fid>) -> bool {
        if !self.possible().contains(&found) {
            return false;
        }
        if self.is_open {
            let time = self.values.last().map_or(Duration::ZERO, |value| value.time);
            self.values = vec![Value { fid: found, time, worker: usize::MAX, is_synced: false }];
            self.is_open = false;
        }
        true
    }
}

/// Later than any time of a run.
const NEVER: Duration = Duration::from_secs(1 << 32);

/// Statuses of calls in a directory that was removed.
const GONE: [Status; 3] = [Status::ENOENT, Status::ESTALE, Status::ENOTDIR];

impl Model {
    /// Returns what a name leads to; `None` if the directory is not there.
    fn entry(&self, parent: Fid, name: &[u8]) -> Option<Option<Fid>> {
        let directory = self.inode(parent).filter(|inode| inode.directory && inode.nlink > 0)?;
        Some(directory.entries.get(name).and_then(Entry::now))
    }

    /// Removes the uncertainty about a name according to the answer of a call that found `found` there.
    fn settle(&mut self, parent: Fid, name: &[u8], found: Option<Fid>) {
        let Some(directory) = self.inode_mut(parent) else { return };
        if let Some(entry) = directory.entries.get_mut(name).filter(|entry| entry.is_open)
            && entry.settle(found)
        {
            self.count_links();
        }
    }

    /// Counts names of inodes again, after the uncertainty about a name has ended.
    fn count_links(&mut self) {
        let mut counts = std::collections::BTreeMap::<Fid, u32>::new();
        for inode in self.inodes.values() {
            for fid in inode.entries.values().filter_map(Entry::now) {
                *counts.entry(fid).or_default() += 1;
            }
        }
        for (fid, inode) in self.inodes.iter_mut().filter(|(_, inode)| inode.is_unsure) {
            let (inode, count) = (Arc::make_mut(inode), counts.get(fid).copied().unwrap_or(0));
            if !inode.directory {
                inode.nlink = count;
            } else if count > 0 && inode.nlink == 0 {
                // Its removal was lost.
                (inode.nlink, inode.is_recounted) = (2, true);
            }
        }
    }

    /// Returns true if a power cut left several possibilities for a name.
    fn is_open(&self, parent: Fid, name: &[u8]) -> bool {
        let is_unsure = self.inode(parent).is_none_or(|inode| inode.is_unsure);
        let entry = self.inode(parent).and_then(|inode| inode.entries.get(name));
        is_unsure || entry.is_some_and(|entry| entry.is_open)
    }

    fn set(&mut self, parent: Fid, name: &[u8], fid: Option<Fid>, event: &Event) {
        if let Some(directory) = self.inode_mut(parent) {
            directory.entries.entry(name.to_vec()).or_default().set(fid, event);
        }
    }

    fn has_names(&self, directory: &Inode) -> bool {
        directory.entries.values().any(|entry| entry.now().is_some())
    }

    /// Returns true if a name leads to an inode.
    pub(super) fn leads(&self, parent: Fid, name: &[u8]) -> bool {
        matches!(self.entry(parent, name), Some(Some(_)))
    }

    pub(super) fn lookup(&mut self, event: &Event, parent: Fid, name: &[u8]) -> Verdict {
        let found = match &event.result {
            Ok(Reply::Found { fid, .. }) => Some(*fid),
            Ok(Reply::Absent) => None,
            _ => return self.fails_without_directory(event, parent),
        };
        self.settle(parent, name, found);
        match self.entry(parent, name) {
            Some(expected) if expected == found => {
                let kind = found.and_then(|fid| self.inode(fid)).map(|inode| inode.directory);
                match &event.result {
                    Ok(Reply::Found { directory, .. }) if Some(*directory) != kind => wrong(kind),
                    _ => Ok(()),
                }
            }
            Some(_) if self.may_be_outdated(event) => Ok(()),
            Some(expected) => wrong(expected),
            // A removed directory is empty.
            None if found.is_none() => Ok(()),
            None => wrong(GONE),
        }
    }

    /// Checks that a call failed because its directory is not there.
    fn fails_without_directory(&self, event: &Event, parent: Fid) -> Verdict {
        match self.inode(parent) {
            Some(inode) if inode.directory && !inode.is_removed() => wrong("a directory"),
            _ => fails(event, &GONE),
        }
    }

    pub(super) fn open(&mut self, event: &Event, parent: Fid, name: &[u8], exclusive: bool) -> Verdict {
        match event.result {
            Ok(Reply::Opened { fid, created }) => self.settle(parent, name, (!created).then_some(fid)),
            Err(Status::EEXIST | Status::EISDIR) => self.settle_as_found(parent, name),
            _ => {}
        }
        let Some(there) = self.entry(parent, name) else {
            return self.fails_without_directory(event, parent);
        };
        match (there, &event.result) {
            (Some(there), Ok(Reply::Opened { fid, created: false })) if there == *fid && !exclusive => {
                let Some(inode) = self.inode_mut(there).filter(|inode| !inode.directory) else {
                    return wrong(Status::EISDIR);
                };
                inode.opens.add(event.worker);
                Ok(())
            }
            (Some(there), _) => {
                let is_dir = self.inode(there).is_some_and(|inode| inode.directory);
                let status = if exclusive { Status::EEXIST } else { Status::EISDIR };
                let is_elsewhere = there.mdt_index() != parent.mdt_index()
                    || self.moved.contains(&there)
                    || self.inode(parent).is_some_and(|parent| parent.striped);
                // The kernel looks the name up again after ESTALE.
                match event.result {
                    Err(Status::ESTALE) if is_elsewhere => Ok(()),
                    _ if is_dir || exclusive => fails(event, &[status, Status::ESTALE]),
                    _ => wrong(there),
                }
            }
            (None, Ok(Reply::Opened { fid, created: true })) => {
                let mut inode = Inode::new(false, parent, event.times[1]);
                inode.opens.add(event.worker);
                self.make(*fid, inode, parent, name, event)
            }
            (None, _) => wrong("a new file"),
        }
    }

    /// Settles a name of which a call has found that it leads somewhere.
    pub(super) fn settle_as_found(&mut self, parent: Fid, name: &[u8]) {
        let entry = self.inode(parent).and_then(|inode| inode.entries.get(name));
        let possible = entry.filter(|entry| entry.is_open).map(Entry::possible).unwrap_or_default();
        if let Some(found) = possible.into_iter().rfind(Option::is_some) {
            self.settle(parent, name, found);
        }
    }

    fn make(&mut self, fid: Fid, inode: Inode, parent: Fid, name: &[u8], event: &Event) -> Verdict {
        if self.inodes.contains_key(&fid) {
            return wrong("a FID that was never used");
        }
        if inode.directory
            && let Some(parent) = self.inode_mut(parent)
        {
            parent.nlink += 1;
        }
        self.inodes.insert(fid, Arc::new(inode));
        self.set(parent, name, Some(fid), event);
        Ok(())
    }

    pub(super) fn mkdir(&mut self, event: &Event, parent: Fid, name: &[u8], striped: bool) -> Verdict {
        match event.result {
            Ok(_) => self.settle(parent, name, None),
            Err(Status::EEXIST) => self.settle_as_found(parent, name),
            _ => {}
        }
        match (self.entry(parent, name), &event.result) {
            (Some(None), Ok(Reply::Found { fid, directory: true })) => {
                let inode = Inode { striped, ..Inode::new(true, parent, event.times[1]) };
                self.make(*fid, inode, parent, name, event)
            }
            (Some(Some(_)), _) => fails(event, &[Status::EEXIST]),
            (Some(None), _) => wrong("a new directory"),
            (None, _) => self.fails_without_directory(event, parent),
        }
    }

    /// Removes a name from the count of its inode.
    fn drop_link(&mut self, fid: Fid, event: &Event) {
        let Some(inode) = self.inode_mut(fid) else { return };
        inode.changed = event.times[1];
        if inode.directory {
            inode.nlink = 0;
            let parent = inode.parent;
            if let Some(parent) = self.inode_mut(parent) {
                parent.nlink = parent.nlink.saturating_sub(1);
            }
        } else {
            inode.nlink = inode.nlink.saturating_sub(1);
        }
    }

    pub(super) fn unlink(&mut self, event: &Event, parent: Fid, name: &[u8], directory: bool) -> Verdict {
        match event.result {
            Ok(_) | Err(Status::EISDIR | Status::ENOTDIR | Status::ENOTEMPTY) => {
                self.settle_as_found(parent, name);
            }
            Err(Status::ENOENT) => self.settle(parent, name, None),
            _ => {}
        }
        match self.entry(parent, name) {
            None => self.fails_without_directory(event, parent),
            Some(None) => fails(event, &[Status::ENOENT]),
            Some(Some(fid)) => {
                let Some(inode) = self.inode(fid) else { return wrong("a known inode") };
                match (inode.directory, directory) {
                    (true, false) => return fails(event, &[Status::EISDIR, Status::EPERM]),
                    (false, true) => return fails(event, &[Status::ENOTDIR]),
                    // Names in it may have been lost.
                    (true, true) if inode.is_recounted && event.result == Err(Status::ENOTEMPTY) => {
                        return Ok(());
                    }
                    (true, true) if inode.is_recounted => {}
                    (true, true) if self.has_names(inode) => {
                        return fails(event, &[Status::ENOTEMPTY, Status::EEXIST]);
                    }
                    _ => {}
                }
                is_done(event)?;
                self.set(parent, name, None, event);
                self.drop_link(fid, event);
                Ok(())
            }
        }
    }

    pub(super) fn link(&mut self, event: &Event, fid: Fid, parent: Fid, name: &[u8]) -> Verdict {
        match event.result {
            Ok(_) => self.settle(parent, name, None),
            Err(Status::EEXIST) => self.settle_as_found(parent, name),
            _ => {}
        }
        let is_gone = self.inode(fid).is_none_or(Inode::is_removed);
        match self.entry(parent, name) {
            None if is_gone => fails(event, &GONE),
            None => self.fails_without_directory(event, parent),
            Some(Some(_)) if is_gone => fails(event, &[Status::EEXIST, Status::ENOENT, Status::ESTALE]),
            Some(Some(_)) => fails(event, &[Status::EEXIST]),
            Some(None) if is_gone && event.result.is_err() => fails(event, &[Status::ENOENT, Status::ESTALE]),
            Some(None) => {
                is_done(event)?;
                self.set(parent, name, Some(fid), event);
                let Some(inode) = self.inode_mut(fid) else { return wrong("a known inode") };
                (inode.nlink, inode.changed) = (inode.nlink + 1, event.times[1]);
                Ok(())
            }
        }
    }

    /// Returns true if `fid` is `above` or below it.
    fn is_below(&self, mut fid: Fid, above: Fid) -> bool {
        for _ in 0..=self.inodes.len() {
            match self.inode(fid) {
                _ if fid == above => return true,
                Some(inode) if fid != Fid::ROOT => fid = inode.parent,
                _ => return false,
            }
        }
        false
    }

    pub(super) fn rename(&mut self, event: &Event) -> Verdict {
        let Call::Rename { from, to } = &event.call else { return wrong("a rename") };
        let is_open = self.is_open(from.0, &from.1) || self.is_open(to.0, &to.1);
        if is_open {
            return self.rename_open(event);
        }
        let (source, target) = (self.entry(from.0, &from.1), self.entry(to.0, &to.1));
        let (Some(source), Some(target)) = (source, target) else { return fails(event, &GONE) };
        let Some(fid) = source else { return fails(event, &[Status::ENOENT]) };
        if target == Some(fid) {
            return is_done(event);
        }
        let Some(inode) = self.inode(fid) else { return wrong("a known inode") };
        let mut errors = Vec::new();
        if inode.directory && self.is_below(to.0, fid) {
            errors.push(Status::EINVAL);
        }
        if let Some(other) = target.and_then(|target| self.inode(target)) {
            match (inode.directory, other.directory) {
                (true, false) => errors.push(Status::ENOTDIR),
                (false, true) => errors.push(Status::EISDIR),
                (true, true) if self.has_names(other) => {
                    errors.extend([Status::ENOTEMPTY, Status::EEXIST]);
                }
                _ => {}
            }
            if target.is_some_and(|target| self.is_below(from.0, target)) {
                errors.extend([Status::ENOTEMPTY, Status::EEXIST]);
            }
        }
        if !errors.is_empty() {
            return fails(event, &errors);
        }
        is_done(event)?;
        self.do_rename(event, fid, target);
        Ok(())
    }

    fn do_rename(&mut self, event: &Event, fid: Fid, target: Option<Fid>) {
        let Call::Rename { from, to } = &event.call else { return };
        if let Some(target) = target {
            self.drop_link(target, event);
        }
        self.set(from.0, &from.1, None, event);
        self.set(to.0, &to.1, Some(fid), event);
        let Some(inode) = self.inode_mut(fid) else { return };
        inode.changed = event.times[1];
        if inode.directory {
            inode.parent = to.0;
            if from.0 != to.0 {
                self.inode_mut(from.0)
                    .into_iter()
                    .for_each(|inode| inode.nlink = inode.nlink.saturating_sub(1));
                self.inode_mut(to.0).into_iter().for_each(|inode| inode.nlink += 1);
            }
        }
    }

    /// Renames a name about which a power cut has left several possibilities.
    fn rename_open(&mut self, event: &Event) -> Verdict {
        let Call::Rename { from, to } = &event.call else { return wrong("a rename") };
        if event.result.is_err() {
            return Ok(());
        }
        self.settle_as_found(from.0, &from.1);
        let (Some(Some(fid)), Some(target)) = (self.entry(from.0, &from.1), self.entry(to.0, &to.1)) else {
            return Ok(());
        };
        if target != Some(fid) {
            self.do_rename(event, fid, target);
        }
        Ok(())
    }

    pub(super) fn list(&mut self, event: &Event, fid: Fid, is_alone: bool) -> Verdict {
        let Ok(Reply::Names(found)) = &event.result else { return self.fails_without_directory(event, fid) };
        let Some(directory) = self.inode(fid).filter(|inode| inode.directory) else {
            return wrong(Status::ENOTDIR);
        };
        if directory.nlink == 0 || directory.is_unsure {
            return Ok(());
        }
        // A name that is added or removed meanwhile may be listed or not.
        if !is_alone {
            return Ok(());
        }
        let number_of = |entry: &Entry| entry.now().map(|fid| fid.inode_number());
        for (name, entry) in &directory.entries {
            let is_possible = |number: Option<u64>| {
                entry.possible().iter().any(|fid| fid.map(|fid| fid.inode_number()) == number)
            };
            if !is_possible(found.get(name).copied()) {
                return Err(format!("name {} should lead to {:?}", name.escape_ascii(), number_of(entry)));
            }
        }
        match found.keys().find(|name| !directory.entries.contains_key(*name)) {
            Some(name) => Err(format!("name {} should not be there", name.escape_ascii())),
            None => Ok(()),
        }
    }
}
