//! The calls, one by one.

use super::locks::Holder;
use super::{Excuse, Model, Rules, Verdict, fails, is_done, wrong};
use crate::history::{Call, Event, Reply};
use nacre_types::{Fid, Status};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Statuses of calls by FID on an inode without names.
const REMOVED: [Status; 2] = [Status::ESTALE, Status::ENOENT];

impl Model {
    /// Checks the answer to a call in this state, and applies its changes. `is_alone`: no other call ran at the
    /// same time.
    ///
    /// # Errors
    /// Why the answer is wrong.
    pub(crate) fn apply(&mut self, event: &Event, is_alone: bool) -> Verdict {
        // The MDT has evicted the client and was started again: it does not know whether it has executed the call.
        let is_unknown = event.result == Err(Status::EIO) && self.is_evicting && self.is_mdt_restarted;
        if is_unknown && self.doubt_names_of(event) {
            self.cut.get_or_insert(event.times[1]);
            return Ok(());
        }
        let verdict = self.apply_strictly(event, is_alone);
        self.accept_after_cut(event, verdict)
    }

    /// Applies the effect of a call whose client died before the answer.
    ///
    /// # Errors
    /// If the call can have no effect in this state.
    pub(crate) fn apply_unanswered(&mut self, event: &Event) -> Verdict {
        let answered = |reply| Event { result: Ok(reply), ..event.clone() };
        let verdict = match (&event.call, event.made) {
            (Call::Open { .. }, Some(_)) => self.apply_partly(event),
            (Call::Mkdir { .. }, Some(fid)) => {
                self.apply_strictly(&answered(Reply::Found { fid, directory: true }), false)
            }
            (
                Call::Unlink { .. }
                | Call::Link { .. }
                | Call::Rename { .. }
                | Call::SetXattr { .. }
                | Call::Restripe { .. },
                _,
            ) => self.apply_strictly(&answered(Reply::Done), false),
            (
                Call::Write { .. }
                | Call::Append { .. }
                | Call::Truncate { .. }
                | Call::OpenFid { truncate: true, .. }
                | Call::Lock { .. }
                | Call::Close { .. },
                _,
            ) => self.apply_partly(event),
            _ => return wrong("a call that changes something"),
        };
        self.accept_after_cut(event, verdict)
    }

    fn apply_strictly(&mut self, event: &Event, is_alone: bool) -> Verdict {
        if let Err(status) = event.result {
            match self.rules.excuse(event, status) {
                Excuse::None => {}
                Excuse::NoEffect => return Ok(()),
                Excuse::Partial => return self.apply_partly(event),
            }
        }
        // The kernel looks the name up once more, after ENOENT of a call by FID too.
        let is_stale = matches!(event.result, Err(Status::ESTALE))
            || matches!(event.result, Err(Status::ENOENT)) && event.call.is_by_fid();
        if is_stale && self.names_moved(&event.call) {
            return Ok(());
        }
        match &event.call {
            Call::Lookup { parent, name } => self.lookup(event, *parent, name),
            Call::Open { parent, name, exclusive } => self.open(event, *parent, name, *exclusive),
            Call::Mkdir { parent, name, striped } => self.mkdir(event, *parent, name, *striped),
            Call::Unlink { parent, name, directory } => self.unlink(event, *parent, name, *directory),
            Call::Link { fid, parent, name } => self.link(event, *fid, *parent, name),
            Call::Rename { .. } => self.rename(event),
            Call::List { fid } => self.list(event, *fid, is_alone),
            Call::Stat { fid } => self.stat(event, *fid, is_alone),
            Call::SetXattr { fid, .. } | Call::GetXattr { fid, .. } => self.xattr(event, *fid),
            Call::FsyncDir { fid } => self.sync_directory(event, *fid),
            Call::OpenFid { fid, truncate } => self.open_fid(event, *fid, *truncate),
            Call::Lock { fid, handle, .. } => self.lock(event, *fid, *handle),
            Call::Relocate { fid } => self.relocate(event, *fid, is_alone),
            Call::Restripe { fid } => self.restripe(event, *fid),
            Call::Migrate { parent, name } => self.migrate(event, *parent, name, is_alone),
            Call::Close { fid, .. }
            | Call::Write { fid, .. }
            | Call::Append { fid, .. }
            | Call::Read { fid, .. }
            | Call::Truncate { fid, .. }
            | Call::Fsync { fid } => self.data(event, *fid),
        }
    }

    /// Applies a call that failed because of a fault and may have had a part of its effect.
    fn apply_partly(&mut self, event: &Event) -> Verdict {
        if let (Call::Open { parent, name, exclusive }, Some(fid)) = (&event.call, event.made) {
            let result = Ok(Reply::Opened { fid, created: true });
            self.open(&Event { result, ..event.clone() }, *parent, name, *exclusive)?;
            // The MDT has closed the handle of the evicted client.
            self.inode_mut(fid).into_iter().for_each(|inode| inode.opens.remove(event.worker));
            return Ok(());
        }
        let (Call::Write { fid, .. }
        | Call::Append { fid, .. }
        | Call::Truncate { fid, .. }
        | Call::OpenFid { fid, truncate: true }
        | Call::Lock { fid, .. }
        | Call::Close { fid, .. }) = event.call
        else {
            return Ok(());
        };
        let Some(inode) = self.inode_mut(fid) else { return Ok(()) };
        match event.call {
            Call::Write { offset, len, byte, .. } => {
                inode.content.maybe(|content| content.write(offset, len.into(), byte));
            }
            Call::Append { len, byte, .. } => inode.content.maybe(|content| content.append(len.into(), byte)),
            Call::Truncate { size, .. } => inode.content.maybe(|content| content.resize(size)),
            Call::OpenFid { .. } => inode.content.maybe(|content| content.resize(0)),
            Call::Lock { handle, region, mode, .. } => {
                inode.locks.set_perhaps(Holder { worker: event.worker, handle }, region, mode);
            }
            Call::Close { handle, .. } => {
                inode.opens.remove(event.worker);
                inode.content.lose();
                inode.locks.close_perhaps(Holder { worker: event.worker, handle });
            }
            _ => {}
        }
        Ok(())
    }

    fn open_fid(&mut self, event: &Event, fid: Fid, truncate: bool) -> Verdict {
        let Some(inode) = self.inode_mut(fid) else { return wrong("a known inode") };
        if inode.is_removed() && event.result.is_err() {
            return fails(event, &REMOVED);
        }
        is_done(event)?;
        inode.opens.add(event.worker);
        if truncate {
            inode.content.resize(0);
        }
        Ok(())
    }

    /// Nothing changes for programs. The move gives up if another one writes.
    fn relocate(&mut self, event: &Event, fid: Fid, is_alone: bool) -> Verdict {
        let Some(inode) = self.inode(fid) else { return wrong("a known inode") };
        let is_rewritten = self.rewritten.is_some_and(|time| time >= event.times[0]);
        match event.result {
            Err(Status::EAGAIN | Status::EBUSY) if !is_alone => Ok(()),
            // The data version counts what was written again.
            Err(Status::EAGAIN) if is_rewritten => Ok(()),
            Err(_) if inode.is_removed() => fails(event, &[Status::ESTALE, Status::ENOENT, Status::EIO]),
            _ => is_done(event),
        }
    }

    /// Names keep what they lead to. While they move, one may be counted in two shards or in none.
    fn restripe(&mut self, event: &Event, fid: Fid) -> Verdict {
        let Some(inode) = self.inode_mut(fid) else { return wrong("a known inode") };
        (inode.striped, inode.is_spreading) = (true, true);
        if inode.is_removed() && event.result.is_err() {
            return fails(event, &REMOVED);
        }
        match event.result {
            // It has so many, the last move has not ended, or no other MDT is reachable.
            Err(_) => fails(event, &[Status::EALREADY, Status::EBUSY, Status::EAGAIN]),
            Ok(_) => is_done(event),
        }
    }

    /// Returns true if a call names an inode that may have moved.
    fn names_moved(&self, call: &Call) -> bool {
        !self.moved.is_empty() && call.clone().fids().iter().any(|fid| self.moved.contains(fid))
    }

    /// Names keep what they lead to.
    fn migrate(&mut self, event: &Event, parent: Fid, name: &[u8], is_alone: bool) -> Verdict {
        match event.result {
            Ok(_) => {
                self.settle_as_found(parent, name);
                if self.leads(parent, name) { is_done(event) } else { wrong(Status::ENOENT) }
            }
            // It lies there; it is open, or moves; there are no such MDTs at present.
            Err(Status::EALREADY | Status::EBUSY | Status::EAGAIN) => Ok(()),
            Err(_) if !is_alone || !self.leads(parent, name) => {
                fails(event, &[Status::ENOENT, Status::ESTALE, Status::ENOTDIR])
            }
            Err(_) => wrong(Reply::Done),
        }
    }

    fn lock(&mut self, event: &Event, fid: Fid, handle: u64) -> Verdict {
        let is_sure = !self.is_evicting;
        let Some(inode) = self.inode_mut(fid) else { return wrong("a known inode") };
        let Call::Lock { region, mode, .. } = event.call else { return wrong("a lock") };
        let holder = Holder { worker: event.worker, handle };
        let result = event.result.as_ref().map(drop).map_err(|status| *status);
        inode.locks.apply(holder, region, mode, result, is_sure)
    }

    /// Applies calls on open files, and truncation.
    fn data(&mut self, event: &Event, fid: Fid) -> Verdict {
        let rules = self.rules;
        let Some(inode) = self.inode_mut(fid) else { return wrong("a known inode") };
        if event.result.is_err() && (inode.is_unsure || inode.nlink == 0 && inode.opens.counts.is_empty()) {
            return fails(event, &[Status::ESTALE, Status::ENOENT, Status::EIO]);
        }
        match &event.call {
            // O_SYNC makes the bytes of this write durable, and no others.
            Call::Write { offset, len, byte, .. } => {
                let len = written(event, *len, &rules)?;
                inode.content.write(*offset, len.into(), *byte);
                Ok(())
            }
            Call::Append { len, byte, .. } => {
                let len = written(event, *len, &rules)?;
                inode.content.append(len.into(), *byte);
                Ok(())
            }
            Call::Read { offset, len, .. } => match &event.result {
                Ok(Reply::Bytes(found)) => inode.content.read(*offset, (*len).into(), found),
                _ => wrong("bytes"),
            },
            Call::Truncate { size, .. } => {
                is_done(event)?;
                inode.content.resize(*size);
                Ok(())
            }
            Call::Fsync { .. } => {
                is_done(event)?;
                inode.content.sync();
                self.sync_names_to(fid, event.worker);
                Ok(())
            }
            Call::Close { handle, .. } => {
                inode.opens.remove(event.worker);
                inode.locks.close(Holder { worker: event.worker, handle: *handle });
                is_done(event)
            }
            _ => wrong("a call on data"),
        }
    }

    /// Makes the names by which a file is reached durable, as far as the program that syncs has set them.
    fn sync_names_to(&mut self, file: Fid, worker: usize) {
        let mut wanted = vec![file];
        let mut seen = BTreeSet::new();
        while let Some(fid) = wanted.pop() {
            for (parent, inode) in &mut self.inodes {
                let leads = inode.entries.iter().any(|(_, entry)| entry.now() == Some(fid));
                if leads && seen.insert((*parent, fid)) {
                    let entries = Arc::make_mut(inode).entries.values_mut();
                    entries.filter(|entry| entry.now() == Some(fid)).for_each(|entry| entry.sync(worker));
                    wanted.push(*parent);
                }
            }
        }
    }

    fn sync_directory(&mut self, event: &Event, fid: Fid) -> Verdict {
        let Some(inode) = self.inode_mut(fid) else { return wrong("a known directory") };
        if inode.is_removed() && event.result.is_err() {
            return fails(event, &REMOVED);
        }
        is_done(event)?;
        inode.entries.values_mut().for_each(|entry| entry.sync(event.worker));
        Ok(())
    }

    fn stat(&mut self, event: &Event, fid: Fid, is_alone: bool) -> Verdict {
        let (rules, is_moved) = (self.rules, self.moved.contains(&fid));
        let Some(inode) = self.inode_mut(fid) else { return fails(event, &REMOVED) };
        let Ok(Reply::Attributes { directory, size, nlink }) = event.result else {
            return if inode.is_removed() { fails(event, &REMOVED) } else { wrong("attributes") };
        };
        if inode.is_unsure {
            return Ok(());
        }
        if directory != inode.directory {
            return wrong(inode.directory);
        }
        // The count of links of a removed directory is not specified, shards are counted one after the other, and the
        // root has its last known attributes while its MDT is away.
        let is_of_several_moments = inode.striped && !is_alone || fid == Fid::ROOT && rules.downtime;
        let is_uncounted =
            inode.nlink == 0 || inode.is_recounted || inode.is_spreading || is_moved || is_of_several_moments;
        if nlink != inode.nlink && !(directory && is_uncounted) {
            return Err(format!("{} links expected", inode.nlink));
        }
        // A size is given without the parts of it that an unreachable OST has, and with the parts of a write that
        // is under way.
        if directory || rules.downtime || !is_alone { Ok(()) } else { inode.content.check_size(size) }
    }

    fn xattr(&mut self, event: &Event, fid: Fid) -> Verdict {
        let Some(inode) = self.inode_mut(fid) else { return wrong("a known inode") };
        if inode.is_removed() && event.result.is_err() {
            return fails(event, &[Status::ESTALE, Status::ENOENT, Status::ENODATA]);
        }
        if inode.is_unsure {
            return Ok(());
        }
        match &event.call {
            Call::SetXattr { name, value, .. } => {
                is_done(event)?;
                inode.xattrs.insert(*name, *value);
                inode.changed = event.times[1];
                Ok(())
            }
            Call::GetXattr { name, .. } => match inode.xattrs.get(name) {
                None => fails(event, &[Status::ENODATA]),
                Some(value) if event.result == Ok(Reply::Xattr(*value)) => Ok(()),
                Some(value) => wrong(value),
            },
            _ => wrong("an attribute"),
        }
    }
}

/// Returns the number of written bytes: all, unless the rest may fail after a part.
fn written(event: &Event, len: u32, rules: &Rules) -> Result<u32, String> {
    let may_fail = |status| rules.excuse(event, status) == Excuse::Partial;
    let is_excused = may_fail(Status::EIO) || may_fail(Status::ENOSPC);
    match event.result {
        Ok(Reply::Written(count)) if count == len => Ok(count),
        Ok(Reply::Written(count)) if is_excused && (1..len).contains(&count) => Ok(count),
        _ => Err(format!("{len} written bytes expected")),
    }
}
