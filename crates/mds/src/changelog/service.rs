//! Requests about the changelog, its purge, and the deregistration of idle users.

use super::Changelog;
use crate::core::Core;
use crate::leaves::Leaves;
use crate::suspend::Caller;
use crate::tables::{CHANGE_USERS, CHANGES, CHANGES_HEAD_KEY, META, change_key};
use crate::tx::{Tx, now};
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_ondisk::changelog::CHANGE_LEN_MAX;
use nacre_ondisk::{ChangeRecord, ChangeUserRecord, ChangesHeadRecord};
use nacre_types::changelog::{change_user, is_change_user_name, parse_change_user};
use nacre_types::{Caps, ChangeMask, Status, StatusResult, perm};
use nacre_wire::changelog::{
    CHANGE_USERS_MAX, CHANGES_BYTES_MAX, CHANGES_MAX, ChangeUser, ChangelogReply, ChangelogRequest,
};
use nacre_wire::mds::{MdsAnswer, MdsReply};
use nacre_wire::peer::RecordBytes;
use std::sync::Arc;
use std::time::Duration;

/// Records that one transaction purges.
const PURGED_MAX: u64 = 1024;
/// Longest purge in a request that clears, and in a tick.
const PURGE_TIME: Duration = Duration::from_millis(100);
/// The log may take the MDT's space divided by this number, unless an administrator says otherwise.
const SPACE_PART: u64 = 4;

/// See the [module documentation](self).
pub(crate) struct ChangelogService {
    leaves: Arc<Leaves>,
    core: Arc<Core>,
    /// Time of the last check for idle users.
    checked: Mutex<Option<Instant>>,
}

fn seconds_now() -> u64 {
    now().nanoseconds() / 1_000_000_000
}

fn shown(id: u32, user: &ChangeUserRecord) -> ChangeUser {
    let ChangeUserRecord { ref name, mask, cleared, active_s } = *user;
    ChangeUser { id, name: name.clone(), mask, cleared, idle_s: seconds_now().saturating_sub(active_s) }
}

impl Changelog {
    /// Returns the registered users, and the index of the newest record.
    pub fn users(&self) -> (u64, Vec<ChangeUser>) {
        let state = self.state.lock();
        (state.next - 1, state.users.iter().map(|(id, user)| shown(*id, user)).collect())
    }

    /// Returns the user that a text names: `cl1`, `cl1-name`, or the name alone.
    ///
    /// # Errors
    /// `ENOENT`.
    fn find_user(&self, text: &str) -> StatusResult<(u32, ChangeUserRecord)> {
        let state = self.state.lock();
        let by_id = parse_change_user(text).and_then(|(id, name)| {
            let user = state.users.get(&id)?;
            (name.is_empty() || name == user.name).then_some((id, user))
        });
        let by_name = || {
            let mut named = state.users.iter().filter(|(_, user)| !text.is_empty() && user.name == text);
            named.next().map(|(id, user)| (*id, user))
        };
        by_id.or_else(by_name).map(|(id, user)| (id, user.clone())).ok_or(Status::ENOENT)
    }
}

impl ChangelogService {
    pub fn new(leaves: &Arc<Leaves>, core: &Arc<Core>) -> ChangelogService {
        ChangelogService { leaves: leaves.clone(), core: core.clone(), checked: Mutex::new(None) }
    }

    fn log(&self) -> &Changelog {
        &self.leaves.changelog
    }

    /// Serves a client.
    ///
    /// # Errors
    /// `EPERM` for clients and users that do not administrate the file system; those of [`ChangelogRequest`].
    pub fn serve(&self, caller: &Caller<'_>, request: &ChangelogRequest) -> StatusResult<MdsAnswer> {
        perm::capable(caller.cred(), Caps::SYS_ADMIN).or(Status::EPERM)?;
        // Records have names from the whole file system, and its ids.
        if caller.is_bounded() || caller.standing.is_some_and(|standing| standing.root().is_some()) {
            return Err(Status::EPERM);
        }
        self.run(Some(caller), request)
    }

    /// Serves a client, or without a caller the owner of this process.
    ///
    /// # Errors
    /// As [`ChangelogService::serve`].
    pub fn run(&self, caller: Option<&Caller<'_>>, request: &ChangelogRequest) -> StatusResult<MdsAnswer> {
        match request {
            ChangelogRequest::Register { name, mask } => self.register(caller, name, *mask),
            ChangelogRequest::Deregister { user } => self.deregister(caller, user),
            ChangelogRequest::Clear { user, upto } => self.clear(caller, user, *upto),
            ChangelogRequest::Read { after, bytes_max } => self.read(*after, *bytes_max),
            ChangelogRequest::Users => {
                let (current, users) = self.log().users();
                Ok(self.answer(ChangelogReply::Users { current, users }))
            }
        }
    }

    fn answer(&self, reply: ChangelogReply) -> MdsAnswer {
        self.core.commits.answer(MdsReply::Changelog(reply))
    }

    fn conclude(
        &self,
        caller: Option<&Caller<'_>>,
        mut tx: Tx,
        reply: ChangelogReply,
    ) -> StatusResult<MdsAnswer> {
        match caller {
            Some(caller) => self.core.commits.finish(caller, tx, MdsReply::Changelog(reply)),
            None => {
                let transno = self.core.commits.commit(&mut tx)?;
                Ok(MdsAnswer { transno, ..self.answer(reply) })
            }
        }
    }

    fn register(&self, caller: Option<&Caller<'_>>, name: &str, mask: ChangeMask) -> StatusResult<MdsAnswer> {
        if !name.is_empty() && !is_change_user_name(name) {
            return Err(Status::EINVAL);
        }
        let log = self.log();
        let mut head = log.head.lock();
        let cleared = {
            let state = log.state.lock();
            if state.users.len() >= CHANGE_USERS_MAX {
                return Err(Status::ENOSPC);
            }
            if !name.is_empty() && state.users.values().any(|user| user.name == name) {
                return Err(Status::EEXIST);
            }
            state.next - 1
        };
        let next =
            ChangesHeadRecord { last_user: head.last_user.checked_add(1).ok_or(Status::ENOSPC)?, ..*head };
        let user = ChangeUserRecord { name: name.to_owned(), mask, cleared, active_s: seconds_now() };
        let mut tx = self.leaves.records.begin();
        tx.batch().put(META, CHANGES_HEAD_KEY, &next.encode());
        tx.batch().put(CHANGE_USERS, &next.last_user.to_be_bytes(), &user.encode());
        let reply = ChangelogReply::User(shown(next.last_user, &user));
        let answer = self.conclude(caller, tx, reply)?;
        *head = next;
        log.change_users(|users| drop(users.insert(next.last_user, user)));
        log::info!(
            "MDT{:04x}: changelog user {} registered",
            self.leaves.index,
            change_user(next.last_user, name)
        );
        self.leaves.records.sync(answer.transno)?;
        Ok(answer)
    }

    fn deregister(&self, caller: Option<&Caller<'_>>, user: &str) -> StatusResult<MdsAnswer> {
        let log = self.log();
        let head = log.head.lock();
        let (id, user) = log.find_user(user)?;
        let mut tx = self.removal_of(id);
        tx.batch().set_releasing(true);
        let reply = ChangelogReply::User(shown(id, &user));
        let answer = self.conclude(caller, tx, reply)?;
        log.change_users(|users| drop(users.remove(&id)));
        drop(head);
        log::info!(
            "MDT{:04x}: changelog user {} deregistered",
            self.leaves.index,
            change_user(id, &user.name)
        );
        self.purge(PURGE_TIME)?;
        Ok(answer)
    }

    fn removal_of(&self, id: u32) -> Tx {
        let mut tx = self.leaves.records.begin();
        tx.batch().set_releasing(true);
        tx.batch().delete(CHANGE_USERS, &id.to_be_bytes());
        tx
    }

    fn clear(&self, caller: Option<&Caller<'_>>, user: &str, upto: u64) -> StatusResult<MdsAnswer> {
        let log = self.log();
        let head = log.head.lock();
        let (id, mut user) = log.find_user(user)?;
        let newest = log.state.lock().next - 1;
        if upto > newest {
            return Err(Status::EINVAL);
        }
        user.cleared = user.cleared.max(if upto == 0 { newest } else { upto });
        user.active_s = seconds_now();
        let mut tx = self.leaves.records.begin();
        tx.batch().set_releasing(true);
        tx.batch().put(CHANGE_USERS, &id.to_be_bytes(), &user.encode());
        let reply = ChangelogReply::User(shown(id, &user));
        let answer = self.conclude(caller, tx, reply)?;
        log.change_users(|users| drop(users.insert(id, user)));
        drop(head);
        self.purge(PURGE_TIME)?;
        Ok(answer)
    }

    fn read(&self, after: u64, bytes_max: u32) -> StatusResult<MdsAnswer> {
        let visible = self.log().state.lock().visible();
        let bytes_max = bytes_max.min(CHANGES_BYTES_MAX) as usize;
        let (mut records, mut bytes) = (Vec::new(), 0);
        let (mut upto, mut settled) = (visible.newest.max(after), visible.settled);
        for index in after.saturating_add(1).max(visible.first)..=visible.newest {
            let found = self.leaves.store.get(CHANGES, &change_key(index), |value| value.map(<[u8]>::to_vec));
            let Some(record) = found.map_err(|error| self.leaves.records.store_failed(&error))? else {
                // A commit that failed, or a purge meanwhile.
                continue;
            };
            let is_full = records.len() == CHANGES_MAX || bytes + record.len() > bytes_max;
            if is_full && !records.is_empty() {
                (upto, settled) = last_of(&records).unwrap_or((upto, settled));
                break;
            }
            bytes += record.len();
            records.push((index, RecordBytes(record)));
        }
        if !records.is_empty() {
            self.leaves.records.sync_all()?;
        }
        Ok(self.answer(ChangelogReply::Changes { records, upto, settled }))
    }

    /// Purges records that no user needs, for about `limit`.
    ///
    /// # Errors
    /// Those of the store.
    pub fn purge(&self, limit: Duration) -> StatusResult<()> {
        let start = Instant::now();
        while self.purge_some()? && start.elapsed() < limit && !self.leaves.signal.is_stopping() {}
        Ok(())
    }

    /// Purges up to [`PURGED_MAX`] records; returns true if more are left.
    fn purge_some(&self) -> StatusResult<bool> {
        let log = self.log();
        let mut head = log.head.lock();
        let (first, needless, next) = {
            let mut state = log.state.lock();
            // A commit under way may have a lower index than the newest.
            let needless = state.needless().min(state.visible().newest);
            (state.first, needless, state.next)
        };
        if first > needless {
            return Ok(false);
        }
        let end = (needless + 1).min(first + PURGED_MAX);
        let mut tx = self.leaves.records.begin();
        tx.batch().set_releasing(true);
        for index in first..end {
            tx.batch().delete(CHANGES, &change_key(index));
        }
        let stored = ChangesHeadRecord { first: end, ..*head };
        tx.batch().put(META, CHANGES_HEAD_KEY, &stored.encode());
        self.core.commits.commit(&mut tx)?;
        *head = stored;
        let failed = |error| self.leaves.records.store_failed(&error);
        let before = log.bytes_before(end, next).map_err(failed)?;
        let mut state = log.state.lock();
        state.first = end;
        // Records that came meanwhile count as long as one is left.
        state.purged_bytes =
            before.unwrap_or(if state.next == next { state.bytes } else { state.purged_bytes });
        Ok(end <= needless)
    }

    /// Regular work: deregisters idle users, and purges.
    pub fn tick(&self) {
        let outcome = self.collect().and_then(|()| self.purge(PURGE_TIME));
        if let Err(status) = outcome
            && !matches!(status, Status::ESHUTDOWN)
        {
            log::warn!("MDT{:04x}: the changelog is not purged: {status}", self.leaves.index);
        }
    }

    /// Deregisters users that exceed a limit.
    fn collect(&self) -> StatusResult<()> {
        let settings = &self.log().settings;
        let (current, users) = self.log().users();
        if !settings.collects() || users.is_empty() {
            return Ok(());
        }
        // Without space, and for a log that is too large, the user that is furthest behind.
        let size = self.log().size();
        let space = if self.leaves.space.is_full() { Some("the MDT has no free space") } else { None };
        let too_large = (size > self.size_max()).then_some("the changelog is too large");
        let behind = users.iter().filter(|user| user.cleared < current).min_by_key(|user| user.cleared);
        if let (Some(why), Some(user)) = (space.or(too_large), behind) {
            return self.expel(user, why);
        }
        let interval = Duration::from_secs(settings.min_gc_interval_s());
        {
            let mut checked = self.checked.lock();
            if checked.is_some_and(|at| at.elapsed() < interval) {
                return Ok(());
            }
            *checked = Some(Instant::now());
        }
        for user in &users {
            let records = current.saturating_sub(user.cleared);
            if user.idle_s > settings.max_idle_time_s() {
                self.expel(user, "it has cleared nothing for too long (changelog_max_idle_time)")?;
            } else if records > settings.max_idle_indexes() {
                self.expel(user, "it has too many records to clear (changelog_max_idle_indexes)")?;
            }
        }
        Ok(())
    }

    /// Returns the largest size of all records in bytes.
    fn size_max(&self) -> u64 {
        match self.log().settings.max_mb() {
            0 => {
                let space = self.leaves.space.statfs();
                space.blocks.saturating_mul(space.block_size.into()) / SPACE_PART
            }
            max => max << 20,
        }
    }

    fn expel(&self, user: &ChangeUser, why: &str) -> StatusResult<()> {
        let log = self.log();
        let _head = log.head.lock();
        if log.find_user(&change_user(user.id, "")).is_err() {
            return Ok(());
        }
        self.core.commits.commit(&mut self.removal_of(user.id))?;
        log.change_users(|users| drop(users.remove(&user.id)));
        log::warn!(
            "MDT{:04x}: changelog user {} is deregistered: {why}; idle for {} s, cleared up to {}",
            self.leaves.index,
            change_user(user.id, &user.name),
            user.idle_s,
            user.cleared
        );
        Ok(())
    }
}

/// Returns index and time of the last record of a page.
fn last_of(records: &[(u64, RecordBytes)]) -> Option<(u64, nacre_types::Timestamp)> {
    let (index, bytes) = records.last()?;
    Some((*index, ChangeRecord::decode(&bytes.0).ok()?.time))
}

// A page has at least one record.
const _: () = assert!(CHANGE_LEN_MAX < CHANGES_BYTES_MAX as usize);
