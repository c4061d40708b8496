//! Moves of files and other inodes without names in them to another MDT. Many move in one distributed
//! transaction, which shares the costs of its messages, its records and its sync. Each inode moves or stays
//! independently of the others.

use super::Moves;
use super::inode::{ATTEMPTS, Leaving, OPERATION_MAX, check_coming, retarget};
use crate::plan::encoded;
use crate::shards::holds_names;
use crate::suspend::Caller;
use crate::transactions::Gathered;
use nacre_layout::{StripeObject, user};
use nacre_ondisk::InodeRecord;
use nacre_types::{AttrFlags, Fid, Status, StatusResult};
use nacre_wire::Encode;
use nacre_wire::mds::{MdsAnswer, MdsReply};
use nacre_wire::peer::{PeerRequest, RecordBytes, UPDATES_MAX, Update};
use std::collections::{BTreeMap, BTreeSet};

/// Size of the pieces in which data is sent to the other MDT, in bytes.
const PIECE: usize = 64 << 10;

/// An inode that is about to move.
struct Departure {
    updates: Vec<Update>,
    /// Its object with data on this MDT.
    object: Option<Fid>,
    to: Fid,
}

impl Departure {
    /// Returns the bytes of its updates in the record of the transaction.
    fn bytes(&self) -> usize {
        self.updates.iter().map(|update| update.to_bytes().len()).sum()
    }
}

impl Moves {
    /// Gives inodes that are not directories other FIDs, and thereby other MDTs; the answer has the outcome
    /// of each: `EISDIR` for a directory, `EINVAL` for a FID that occurs twice, otherwise as
    /// [`Moves::migrate`].
    ///
    /// # Errors
    /// `EPERM` without the right to choose MDTs.
    pub fn migrate_files(&self, caller: &Caller<'_>, moves: &[(Fid, Fid)]) -> StatusResult<MdsAnswer> {
        self.core.placement.may_choose_mdts(caller)?;
        let mut asked: BTreeMap<u16, StatusResult<()>> = BTreeMap::new();
        let mut named = BTreeSet::new();
        let mut check = |(fid, to): &(Fid, Fid)| {
            if !named.insert(*fid) || !named.insert(*to) {
                return Err(Status::EINVAL);
            }
            // One request to the other MDT covers all.
            check_coming(to)?;
            (*asked.entry(to.mdt_index()).or_insert_with(|| self.check_future(to)))?;
            match self.seen_to_leave(caller, fid, to)? {
                Some(seen) if holds_names(&seen) => Err(Status::EISDIR),
                seen => Ok(seen.is_some()),
            }
        };
        let mut outcomes: Vec<StatusResult<bool>> = moves.iter().map(&mut check).collect();
        if outcomes.contains(&Err(Status::NEED_CREDENTIALS)) {
            return Err(Status::NEED_CREDENTIALS);
        }
        let is_to_move = |outcome: &StatusResult<bool>| *outcome == Ok(true);
        let to_move = moves.iter().zip(&outcomes).filter(|(_, outcome)| is_to_move(outcome));
        let moved = self.move_files(&to_move.map(|(pair, _)| *pair).collect::<Vec<(Fid, Fid)>>());
        let to_move = outcomes.iter_mut().filter(|outcome| is_to_move(outcome));
        to_move.zip(moved).for_each(|(outcome, moved)| *outcome = moved.map(|()| false));
        Ok(self.core.commits.answer(MdsReply::Outcomes(outcomes.into_iter().map(Result::err).collect())))
    }

    /// Moves inodes that are not directories, in as few transactions as they fit into.
    pub(super) fn move_files(&self, moves: &[(Fid, Fid)]) -> Vec<StatusResult<()>> {
        let mut outcomes = vec![Err(Status::EAGAIN); moves.len()];
        for _ in 0..ATTEMPTS {
            let left: Vec<usize> =
                (0..moves.len()).filter(|&index| outcomes[index] == Err(Status::EAGAIN)).collect();
            if left.is_empty() {
                break;
            }
            let together: Vec<(Fid, Fid)> = left.iter().map(|&index| moves[index]).collect();
            match self.move_group(&together) {
                Ok(done) => left.iter().zip(done).for_each(|(&index, outcome)| outcomes[index] = outcome),
                Err(status) => {
                    left.iter().for_each(|&index| outcomes[index] = Err(status));
                    break;
                }
            }
        }
        outcomes
    }

    /// Moves the inodes that fit into one transaction; returns `EAGAIN` for the others.
    fn move_group(&self, moves: &[(Fid, Fid)]) -> StatusResult<Vec<StatusResult<()>>> {
        let (fids, targets): (Vec<Fid>, Vec<Fid>) = moves.iter().copied().unzip();
        let (gathered, found) = self.gather_to_move(&fids, &targets)?;
        let (mut updates, mut bytes) = (Vec::new(), 0);
        let mut add = |leaving: StatusResult<Leaving>, to: Fid| {
            let departure = self.departure(&gathered, leaving?, to)?;
            let (count, more) = (departure.updates.len(), departure.bytes());
            if more > OPERATION_MAX {
                return Err(Status::E2BIG);
            }
            if bytes + more > OPERATION_MAX || updates.len() + count > UPDATES_MAX {
                return Err(Status::EAGAIN);
            }
            if let Some(object) = departure.object {
                self.send_data(&gathered, object, departure.to)?;
            }
            bytes += more;
            updates.extend(departure.updates);
            Ok(())
        };
        let outcomes: Vec<StatusResult<()>> =
            found.into_iter().zip(targets).map(|(leaving, to)| add(leaving, to)).collect();
        // Recently allocated objects count as used only once this MDT has that on disk; so its part is
        // committed first.
        if outcomes.iter().any(Result::is_ok) {
            self.core.coordinator.execute_own(gathered, updates)?;
        }
        Ok(outcomes)
    }

    /// Returns the updates that move an inode.
    fn departure(&self, gathered: &Gathered<'_>, leaving: Leaving, to: Fid) -> StatusResult<Departure> {
        let Leaving { record, names } = leaving;
        let fid = record.attr.fid;
        if to.mdt_index() == self.leaves.index {
            return Err(Status::EALREADY);
        }
        if gathered.inode(&to).is_ok() {
            return Err(Status::EEXIST);
        }
        let is_file = record.attr.is_regular();
        if self.leaves.opens.is_open(&fid) || (is_file && self.leaves.recovery.is_awaiting_clients()) {
            return Err(Status::EBUSY);
        }
        if is_file {
            // After this no client reads or writes the file, and all its data is in its objects.
            self.core.client_locks.call_back_layout(&fid, true, None)?;
        }
        let mut moved = InodeRecord::clone(&*self.core.layouts.settled(&record)?);
        moved.attr.fid = to;
        moved.data_generation = 0;
        let object = carry_layout(&record, &mut moved)?;
        let links = names.iter().skip(1).map(|(name, _)| name.clone()).collect();
        let kind = moved.attr.kind();
        let xattrs = self.xattrs_of(&record)?;
        let mut updates = vec![Update::InodeIn { fid: to, record: encoded(&moved), xattrs, links }];
        updates.extend(self.logged(&record, to));
        updates.extend(names.into_iter().map(|(name, home)| retarget(&home, name, to, kind)));
        updates.push(Update::InodeOut { fid });
        Ok(Departure { updates, object, to })
    }

    /// Copies an object here to the object of a file that is to be on another MDT.
    fn send_data(&self, gathered: &Gathered<'_>, object: Fid, to: Fid) -> StatusResult<()> {
        let failed = |error| self.leaves.data.failed(&error);
        let attr = self.leaves.data.store.attr(object).map_err(failed)?;
        if attr.mtime.is_none() {
            return Ok(());
        }
        let mut piece = vec![0; PIECE];
        let mut offset = 0;
        loop {
            let wanted = PIECE.min(usize::try_from(attr.size - offset).unwrap_or(PIECE));
            let mut done = 0;
            while done < wanted {
                let read =
                    self.leaves.data.store.read(object, offset + done as u64, &mut piece[done..wanted], 0);
                match read.map_err(failed)? {
                    0 => break,
                    read => done += read,
                }
            }
            if done < wanted {
                log::error!("object {object} ends before its size: run a check");
                return Err(Status::EUCLEAN);
            }
            let end = offset + wanted as u64;
            let size = (end >= attr.size).then_some(attr.size);
            let is_hole = piece[..wanted].iter().all(|byte| *byte == 0);
            if size.is_some() || !is_hole {
                let bytes = RecordBytes(if is_hole { Vec::new() } else { piece[..wanted].to_vec() });
                let request = PeerRequest::PutData { op: gathered.op(), fid: to, offset, bytes, size };
                self.leaves.transactions.ask(to.mdt_index(), request)?;
            }
            if size.is_some() {
                return Ok(());
            }
            offset = end;
        }
    }
}

/// Changes the FID of a file in its layout; returns its object on this MDT, if it has one. No client writes
/// to the file.
fn carry_layout(record: &InodeRecord, moved: &mut InodeRecord) -> StatusResult<Option<Fid>> {
    let to = moved.attr.fid;
    let flags = record.attr.flags;
    if !record.attr.is_regular() || !flags.contains(AttrFlags::HAS_LAYOUT) || user::is_foreign(&record.body) {
        return Ok(None);
    }
    if !flags.contains(AttrFlags::HAS_OBJECTS) {
        let requested = user::decode_request(&record.body).map_err(|_| Status::EUCLEAN)?;
        moved.body = user::encode_request(&to, &requested);
        return Ok(None);
    }
    let mut layout = user::decode_layout(&record.body).map_err(|error| {
        log::error!("layout of {}: {error}", record.attr.fid);
        Status::EUCLEAN
    })?;
    let object = layout.object_on_mdt().map(|own| own.object);
    if object.is_some() {
        let own = layout.components.first_mut().and_then(|component| component.objects.first_mut());
        if let Some(own) = own {
            *own = StripeObject::on_mdt(to);
        }
    }
    moved.body = user::encode_layout(&to, &layout);
    Ok(object)
}
