//! The service of an OST.

use crate::arguments::{check_bulk, check_count, check_object, check_objects, check_range, check_sequence};
use crate::capabilities::Capabilities;
use crate::changes::Changes;
use crate::clients::LockClients;
use crate::describe::{described, make_faults, operation_of, seek};
use crate::destroyed::Destroyed;
use crate::examine::{examine, list};
use crate::locks::Target;
use crate::outcome::{Outcome, Refusal};
use crate::quota::{Charged, Quota, charge_in_fs};
use crate::replay::{Replays, number_of};
use crate::room::Room;
use crate::scrub::DataScrub;
use crate::seldom::{Seldom, is_expected};
use crate::stats::{BrwStats, Counters, JOB_EVENTS, Operation, PeerStats, Transfer, job_rows};
use crate::stop::StopError;
use crate::tenants::check_standing;
use crate::versions::Versions;
use nacre_dlm::{Expected, LockService, Timer};
use nacre_env::activity;
use nacre_env::clock::Instant;
use nacre_env::fault::{self, Point};
use nacre_env::sync::{Mutex, RwLock};
use nacre_keys::CapabilityKeys;
use nacre_lock::Extent;
use nacre_lock::server::ServerConfig;
use nacre_params::{EventStats, JobStats};
use nacre_quota::{Book, Owned};
use nacre_rpc::{Call, Direction, Export, Exports, Hold, Moment, OssService, ReadCall};
use nacre_store::object::trim::Trimmer;
use nacre_store::object::{ObjectAttr, ObjectError, ObjectStore};
use nacre_types::limits::TARGET_INDEX_MAX;
use nacre_types::nodemap::Nodemaps;
use nacre_types::{Capability, ClientUuid, Fid, JobId, Nid, Status, StatusResult, TargetId};
use nacre_wire::lock::{IoLock, LockRequest};
use nacre_wire::oss::{self, Advice, Bulk, Charge, OssReply, OssRequest, OwnedObject, Statfs};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Most objects that one request destroys.
pub const DESTROY_MAX: usize = 4096;
/// Most ids that one request reserves, as in Lustre (`OST_MAX_PRECREATE`).
pub const PRECREATE_MAX: u32 = 20_000;
/// Most bytes of read-ahead for one read; larger requests are truncated.
pub const AHEAD_MAX: u32 = 32 << 20;

/// Timeouts and limits of an object server.
#[derive(Clone, Copy, Debug)]
pub struct OssConfig {
    /// Those of its lock server.
    pub locks: ServerConfig,
    /// Longest wait after a restart for clients of the last run.
    pub recovery_window: Duration,
}

impl Default for OssConfig {
    fn default() -> OssConfig {
        OssConfig { locks: ServerConfig::default(), recovery_window: Duration::from_secs(30) }
    }
}

/// One OST. See the [crate documentation](crate).
pub struct ObjectServer {
    pub(crate) target: Arc<Target>,
    pub(crate) locks: Arc<LockService>,
    pub(crate) versions: Versions,
    capabilities: Capabilities,
    destroyed: Destroyed,
    /// Numbers of changes; `None` if clients have nothing to keep: the store has no index, or is that of an MDT.
    pub(crate) changes: Option<Changes>,
    pub(crate) replays: Replays,
    /// Thread of the locks, started with the first client.
    timer: Mutex<Option<Timer>>,
    pub(crate) counters: Counters,
    pub(crate) brw: Arc<BrwStats>,
    jobs: JobStats,
    exports: Exports<PeerStats>,
    /// Restrictions of clients.
    pub(crate) nodemaps: RwLock<Arc<Nodemaps>>,
    /// Reads per batch that the store prefers.
    reads_at_once: usize,
    room: Room,
    hold: Hold,
    pub(crate) trimmer: OnceLock<Trimmer>,
    pub(crate) scrub: OnceLock<DataScrub>,
    pub(crate) lead: OnceLock<Box<Lead>>,
    pub(crate) quota: Quota,
    failures: Seldom,
}

/// Waits until the metadata server whose data this is has replayed what it had lost.
///
/// # Errors
/// `EINTR`, `ESHUTDOWN`.
pub type Lead = dyn Fn() -> StatusResult<()> + Send + Sync;

impl ObjectServer {
    /// Creates a service for the OST with this index. It does not store the list of clients with locks.
    pub fn new(store: Arc<dyn ObjectStore>, index: u16) -> ObjectServer {
        ObjectServer::with(store, index, None, Expected::new(), &OssConfig::default())
    }

    /// Creates a service that stores the list of clients with locks in `dir`, the target's directory, and
    /// waits for those of the last run to replay them, and what the host has lost.
    ///
    /// # Errors
    /// If the directory or the store cannot be read, or a thread cannot be started.
    pub fn open(
        store: Arc<dyn ObjectStore>,
        index: u16,
        dir: &Path,
        config: &OssConfig,
    ) -> io::Result<ObjectServer> {
        let (clients, expected) = LockClients::open(dir)?;
        let awaited = expected.len();
        let server = ObjectServer::with(store, index, Some(clients), expected, config);
        let is_numbered = index < TARGET_INDEX_MAX && server.target.store.abilities().index.is_some();
        let changes = if is_numbered { Some(Changes::begin(&server.target.store)?) } else { None };
        let server = ObjectServer { quota: Quota::open(&server.target)?, changes, ..server };
        if awaited > 0 {
            let window = config.recovery_window.as_secs();
            log::info!("{}: recovery of {awaited} clients, for {window} s at most", TargetId::ost(index));
            server.start_timer()?;
        }
        Ok(server)
    }

    fn with(
        store: Arc<dyn ObjectStore>,
        index: u16,
        clients: Option<LockClients>,
        expected: Expected,
        config: &OssConfig,
    ) -> ObjectServer {
        let name = TargetId::ost(index).to_string();
        let reads_at_once = store.abilities().reads_at_once;
        let target = Arc::new(Target {
            store,
            index,
            grants: Mutex::default(),
            granted_bytes: AtomicU64::new(0),
            clients,
        });
        ObjectServer {
            reads_at_once,
            quota: Quota::none(&target),
            target,
            locks: Arc::new(LockService::new(name, config.locks, expected, config.recovery_window)),
            versions: Versions::default(),
            capabilities: Capabilities::default(),
            destroyed: Destroyed::default(),
            changes: None,
            replays: Replays::default(),
            timer: Mutex::new(None),
            counters: Counters::default(),
            brw: Arc::default(),
            jobs: JobStats::new(JOB_EVENTS),
            exports: Exports::default(),
            nodemaps: RwLock::default(),
            room: Room::default(),
            hold: Hold::default(),
            trimmer: OnceLock::new(),
            scrub: OnceLock::new(),
            lead: OnceLock::new(),
            failures: Seldom::default(),
        }
    }

    /// Sets what requests for data wait for: on a metadata target it is lost and replayed together with the files. Only
    /// the first call has an effect.
    pub fn follow(&self, lead: Box<Lead>) {
        // A metadata target has one metadata server.
        let _ = self.lead.set(lead);
    }

    /// Postpones the recovery window to [`ObjectServer::on_listening`]: clients cannot connect yet.
    pub fn await_listening(&self) {
        self.locks.await_listening();
    }

    /// Starts the recovery window: clients can connect.
    pub fn on_listening(&self) {
        self.locks.on_listening();
    }

    fn start_timer(&self) -> io::Result<()> {
        let mut timer = self.timer.lock();
        if timer.is_none() {
            let owner: Weak<Target> = Arc::downgrade(&self.target);
            *timer = Some(Timer::start(self.locks.clone(), owner)?);
        }
        Ok(())
    }

    /// Returns the lock server for this target's objects.
    pub fn locks(&self) -> &Arc<LockService> {
        &self.locks
    }

    /// Returns the object store.
    pub fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.target.store
    }

    /// Returns the counts of successful requests, by [`Operation`]; `obdfilter.*.stats`.
    pub fn stats(&self) -> &EventStats {
        &self.counters.succeeded
    }

    /// Returns the times of all requests, under their names in Lustre; see [`crate::SERVICES`].
    pub fn services(&self) -> &EventStats {
        &self.counters.services
    }

    /// Returns the number of requests in progress.
    pub fn requests_in_progress(&self) -> u64 {
        self.counters.in_progress()
    }

    /// Returns the number of failed requests of a kind since the service was created.
    pub fn failed(&self, operation: Operation) -> u64 {
        self.counters.failed(operation)
    }

    /// Returns reads and writes by size, time and number in progress: the text of `obdfilter.*.brw_stats`.
    pub fn brw_stats(&self) -> String {
        self.brw.text()
    }

    /// Clears the counts of [`ObjectServer::brw_stats`].
    pub fn clear_brw_stats(&self) {
        self.brw.clear();
    }

    /// Returns the counts of requests by job; `obdfilter.*.job_stats`.
    pub fn job_stats(&self) -> &JobStats {
        &self.jobs
    }

    /// Returns the counts of requests by client address; `obdfilter.*.exports.*`.
    pub fn exports(&self) -> &Exports<PeerStats> {
        &self.exports
    }

    /// Counts a successful request for its client, and for its job if it has one.
    pub(crate) fn count_for(
        &self,
        export: &Export,
        job: Option<(JobId, Instant)>,
        request: &OssRequest,
        operation: Operation,
        amount: u64,
    ) {
        if let Some(peer) = export.counters::<PeerStats>() {
            peer.stats.count(operation as usize, amount);
            if let OssRequest::Locks { request } = request {
                peer.count_lock(request);
            }
        }
        let Some(((job, start), (time, bytes))) = job.zip(job_rows(operation)) else { return };
        let took_us = start.elapsed().as_micros() as u64;
        match bytes {
            Some(bytes) => self.jobs.count(&job, &[(time, took_us), (bytes, amount)]),
            None => self.jobs.count(&job, &[(time, took_us)]),
        }
    }

    /// Returns a number that changes whenever data that was written but not synced may have been lost.
    pub fn durability_epoch(&self) -> u64 {
        self.target.store.durability_epoch()
    }

    /// Sets the state bits by which MDTs prefer other targets (`obdfilter.*.degraded`) or create no objects
    /// here (`obdfilter.*.no_create`).
    pub fn set_state(&self, is_degraded: bool, is_no_create: bool) {
        self.room.set_state(is_degraded, is_no_create);
    }

    /// Returns whether the target is on flash (`osd-*.*.nonrotational`), which statfs reports.
    pub fn is_nonrotational(&self) -> bool {
        self.room.is_nonrotational()
    }

    /// Sets whether the target is on flash.
    pub fn set_nonrotational(&self, is_nonrotational: bool) {
        self.room.set_nonrotational(is_nonrotational);
    }

    /// Sets the use by owner by which writes of data on an MDT are admitted. Only the first call counts.
    pub fn admit_by(&self, book: Arc<Book>) {
        self.quota.admit_by(book);
    }

    /// Returns the hold with which tests stop requests.
    pub fn hold(&self) -> &Hold {
        &self.hold
    }

    /// Refuses new requests (`ESHUTDOWN`), waits for those in progress, and makes everything durable.
    ///
    /// # Errors
    /// [`StopError::InProgress`] if requests are still running after `timeout`: the call may be repeated.
    pub fn stop(&self, timeout: Duration) -> Result<(), StopError> {
        self.hold.release();
        self.locks.stop();
        self.counters.stop(timeout).map_err(StopError::InProgress)?;
        if let Some(trimmer) = self.trimmer.get() {
            trimmer.stop();
        }
        if let Some(scrub) = self.scrub.get() {
            scrub.end();
        }
        self.quota.stop();
        self.changes.as_ref().map_or(Ok(()), Changes::end).map_err(StopError::Store)?;
        self.target.store.close().map_err(StopError::Store)
    }

    /// Adds to the reply to a change of data in the log of a metadata target what a remote client needs to keep the
    /// change until it is durable; transno 0 if the request changed nothing.
    fn logged(&self, export: &Export, request: &OssRequest, reply: OssReply) -> OssReply {
        let is_change = matches!(
            request,
            OssRequest::Write { .. } | OssRequest::Truncate { .. } | OssRequest::Fallocate { .. }
        );
        if !is_change || export.nid == Nid::Lo {
            return reply;
        }
        match self.target.store.last_change() {
            Some((transno, last_committed)) => reply.logged(transno, last_committed),
            None => reply,
        }
    }

    /// Runs a request; each kind has a method of its own.
    fn run(&self, export: &Export, request: &OssRequest, bulk: Bulk<'_>) -> Outcome {
        make_faults(request)?;
        let outcome = match number_of(request) {
            Some(number) => self.replay(export, request, number, bulk),
            None => self.run_request(export, request, bulk),
        };
        if matches!(request, OssRequest::Write { .. }) {
            fault::crash(Point::OstWrittenCrash);
        }
        outcome
    }

    pub(crate) fn run_request(&self, export: &Export, request: &OssRequest, bulk: Bulk<'_>) -> Outcome {
        match request {
            OssRequest::Write { object, offset, sync, granted, lock, written, charge, .. } => {
                let (sync, granted, lock) = (*sync, *granted, *lock);
                let charge = &charge_in_fs(export, charge);
                let how = WriteHow { sync, granted, lock, written: *written, charge };
                self.write(export, *object, *offset, &how, bulk)
            }
            OssRequest::Read { object, offset, len, ahead, lock, written } => {
                let how = ReadHow { ahead: *ahead, lock: *lock, written: *written };
                self.read(export, *object, *offset, *len, &how, bulk)
            }
            OssRequest::GetAttr { object, glimpse } => self.getattr(export, *object, *glimpse),
            OssRequest::DataVersion { object } => self.data_version(*object),
            OssRequest::Truncate { object, size, lock, written, charge } => {
                self.truncate(export, *lock, (*object, *written), *size, &charge_in_fs(export, charge))
            }
            OssRequest::Fallocate { object, kind, offset, len, lock, written, charge } => {
                let (object, written, offset, len) = (*object, *written, *offset, *len);
                let charge = &charge_in_fs(export, charge);
                let charged = Charged { object, charge, written, offset, len, granted: false };
                self.fallocate(export, *lock, *kind, &charged)
            }
            OssRequest::Seek { object, offset, kind, lock, written } => {
                check_object(*object, self.target.index)?;
                self.check_there(*object, *written)?;
                let _lock = self.lock_read(export, *lock, *object, Extent::new(*offset, Extent::EOF))?;
                Ok((OssReply::Position(self.target.store.seek(*object, *offset, seek(*kind))?), 0))
            }
            OssRequest::Sync { object } => self.sync(*object),
            OssRequest::Advise { object, offset, len, advice } => {
                self.advise(*object, *offset, *len, *advice)
            }
            OssRequest::Statfs => Ok((OssReply::Statfs(self.room.statfs(&*self.target.store)?), 0)),
            OssRequest::Precreate { sequence, count } => self.precreate(*sequence, *count),
            OssRequest::DestroyOrphans { sequence, last_used } => self.destroy_orphans(*sequence, *last_used),
            OssRequest::Destroy { objects } => self.destroy(objects),
            OssRequest::Ping => Ok((OssReply::Done, 0)),
            OssRequest::Grant { client, held, want } => {
                Ok((OssReply::Granted(self.grant(export.client, *client, *held, *want)?), 0))
            }
            OssRequest::Locks { request } => {
                self.check_lock_request(request)?;
                let outcome = self.locks.handle(&*self.target, export, request)?;
                if matches!(request, LockRequest::ReplayDone) {
                    self.replays.wake();
                }
                Ok((outcome.map_or(OssReply::Done, OssReply::Locked), 0))
            }
            OssRequest::Evict { client } => {
                self.evict(client);
                Ok((OssReply::Done, 0))
            }
            OssRequest::QuotaRound { round } => {
                let accounts = self.quota.accounts().ok_or(Status::EOPNOTSUPP)?;
                Ok((OssReply::Quota(accounts.book().round(round)), 0))
            }
            OssRequest::Examine { .. } | OssRequest::ListObjects { .. } => self.known(request),
            OssRequest::SetOwners { objects } => {
                objects.iter().try_for_each(|it| check_object(it.object, self.target.index))?;
                if let Some(accounts) = self.quota.accounts() {
                    let owned = |it: &OwnedObject| Owned { owners: it.owners, place: it.place };
                    accounts.set_owners(objects.iter().map(|it| (it.object, owned(it))))?;
                }
                Ok((OssReply::Done, 0))
            }
        }
    }

    /// Returns what is known of objects.
    fn known(&self, request: &OssRequest) -> Outcome {
        let (store, accounts) = (&*self.target.store, self.quota.accounts().map(|accounts| &**accounts));
        let known = match request {
            OssRequest::Examine { objects } => {
                check_objects(objects, self.target.index)?;
                examine(store, accounts, objects)?
            }
            OssRequest::ListObjects { after, count } => {
                check_sequence(after.seq, self.target.index)?;
                examine(store, accounts, &list(store, *after, (*count as usize).min(DESTROY_MAX))?)?
            }
            _ => return Err(Status::EPROTO.into()),
        };
        Ok((OssReply::Known(known), 0))
    }

    fn getattr(&self, export: &Export, object: Fid, glimpse: bool) -> Outcome {
        check_object(object, self.target.index)?;
        let known = match glimpse {
            true => self.glimpse(export, object)?,
            false => attr(self.target.store.attr(object)?),
        };
        Ok((OssReply::Attr(known), 0))
    }

    fn data_version(&self, object: Fid) -> Outcome {
        check_object(object, self.target.index)?;
        self.versions.watch(object);
        let found = self.target.store.attr(object)?;
        let version = self.target.store.abilities().version_in(&found);
        let version = version.unwrap_or_else(|| self.versions.of(object, found.mtime));
        Ok((OssReply::Version { attr: attr(found), version }, 0))
    }

    /// Destroys an object once more that a late change has created again.
    ///
    /// # Errors
    /// `ENOENT` for such an object.
    pub(crate) fn refuse_destroyed(&self, object: Fid) -> Result<(), Refusal> {
        if !self.destroyed.contains(&object) {
            return Ok(());
        }
        self.target.store.destroy(&[object])?;
        self.quota.count_destroyed(|accounts| accounts.destroyed(&[object]));
        self.object_changed(object);
        Err(Status::ENOENT.into())
    }

    fn sync(&self, object: Option<Fid>) -> Outcome {
        match object {
            Some(object) => {
                check_object(object, self.target.index)?;
                self.sync_object(object)?;
            }
            None => match &self.changes {
                Some(changes) => changes.sync_all()?,
                None => self.target.store.sync_all()?,
            },
        }
        Ok((OssReply::Done, 0))
    }

    fn advise(&self, object: Fid, offset: u64, len: u64, advice: Advice) -> Outcome {
        check_object(object, self.target.index)?;
        check_range(offset, len)?;
        let advice = match advice {
            Advice::WillRead => nacre_store::object::Advice::WillRead,
            Advice::DontNeed => nacre_store::object::Advice::DontNeed,
        };
        if let Some(able) = self.target.store.abilities().advise {
            able.advise(object, offset, len, advice)?;
        }
        Ok((OssReply::Done, 0))
    }

    fn precreate(&self, sequence: u64, count: u32) -> Outcome {
        check_sequence(sequence, self.target.index)?;
        check_count(count)?;
        let ids = self.target.store.abilities().ids_of(sequence)?.reserve(sequence, count)?;
        let count = ids.end - ids.start;
        self.destroyed.forget(sequence, ids.clone());
        Ok((OssReply::Precreated { first: ids.start, count }, u64::from(count)))
    }

    fn destroy_orphans(&self, sequence: u64, last_used: u32) -> Outcome {
        check_sequence(sequence, self.target.index)?;
        if let Some(changes) = &self.changes {
            changes.note_destroyed(&changes.changed_above(sequence, last_used))?;
        }
        let first = self.target.store.abilities().ids_of(sequence)?.destroy_orphans(sequence, last_used)?;
        self.quota.count_destroyed(|accounts| accounts.destroyed_above(sequence, last_used));
        self.room.look_again();
        Ok((OssReply::Precreated { first, count: 0 }, 0))
    }

    fn destroy(&self, objects: &[Fid]) -> Outcome {
        check_objects(objects, self.target.index)?;
        // Before: a change that creates an object again finds it noted.
        self.destroyed.note(objects);
        if let Some(changes) = &self.changes {
            changes.note_destroyed(objects)?;
        }
        let count = self.target.store.destroy(objects)?;
        self.quota.count_destroyed(|accounts| accounts.destroyed(objects));
        objects.iter().for_each(|object| self.object_changed(*object));
        self.room.look_again();
        Ok((OssReply::Done, count))
    }

    fn write(
        &self,
        export: &Export,
        object: Fid,
        offset: u64,
        how: &WriteHow<'_>,
        bulk: Bulk<'_>,
    ) -> Outcome {
        check_object(object, self.target.index)?;
        let Bulk::Send(data) = bulk else { return Err(Status::EPROTO.into()) };
        check_bulk(data.len())?;
        check_range(offset, data.len() as u64)?;
        let change = self.lock_change(export, how.lock, object, extent(offset, data.len() as u64))?;
        self.check_there(object, how.written)?;
        let WriteHow { charge, written, .. } = *how;
        // A replayed change had its space before.
        let granted = how.granted || change.replayed.is_some();
        let len = data.len() as u64;
        let charged =
            self.quota.charge(export, &Charged { object, charge, written, offset, len, granted })?;
        let transfer = self.begin_transfer(export, Direction::Write, offset, len);
        let written = match granted {
            true => self.target.store.write_promised(object, offset, data),
            false => self.target.store.write(object, offset, data),
        };
        drop(transfer);
        let is_near_quota = self.quota.charged(charged);
        // A write that failed may have written a part.
        self.object_changed(object);
        let written = written?;
        self.refuse_destroyed(object)?;
        assert!(written <= data.len(), "the range was checked, and no more than that is written");
        // No truncation: `check_bulk` limits the length.
        let reply = OssReply::Written { bytes: written as u32, is_near_quota };
        let reply = self.numbered(export, object, &change, reply);
        if how.sync {
            self.sync_object(object)?;
        }
        Ok((reply, written as u64))
    }

    fn read(
        &self,
        export: &Export,
        object: Fid,
        offset: u64,
        len: u32,
        how: &ReadHow,
        bulk: Bulk<'_>,
    ) -> Outcome {
        check_object(object, self.target.index)?;
        let Bulk::Receive(buffer) = bulk else { return Err(Status::EPROTO.into()) };
        check_bulk(len as usize)?;
        let Some(buffer) = buffer.get_mut(..len as usize) else { return Err(Status::EINVAL.into()) };
        let _lock = self.lock_read(export, how.lock, object, extent(offset, u64::from(len)))?;
        let _transfer = self.begin_transfer(export, Direction::Read, offset, buffer.len() as u64);
        let read = self.target.store.read(object, offset, buffer, how.ahead.min(AHEAD_MAX))?;
        assert!(read <= buffer.len(), "the length was checked, and no more than that is read");
        self.check_there(object, how.written && read < buffer.len())?;
        Ok((OssReply::Read(read as u32), read as u64))
    }

    /// Checks that an object to which data was `written` before still exists.
    pub(crate) fn check_there(&self, object: Fid, written: bool) -> Result<(), ObjectError> {
        match written && !self.target.store.exists(object)? {
            true => Err(ObjectError::Lost(object)),
            false => Ok(()),
        }
    }

    /// Counts the start of a transfer, for the target and for the client's address.
    pub(crate) fn begin_transfer<'a>(
        &'a self,
        export: &'a Export,
        direction: Direction,
        offset: u64,
        bytes: u64,
    ) -> (Transfer<'a>, Option<Transfer<'a>>) {
        let peer = export.counters::<PeerStats>();
        (self.brw.begin(direction, offset, bytes), peer.map(|peer| peer.brw.begin(direction, offset, bytes)))
    }

    fn grant(&self, owner: ClientUuid, client: u64, held: u64, want: u64) -> Result<u64, Refusal> {
        // Held across the call of the store, so that two clients are not promised the same space.
        let mut grants = self.target.grants.lock();
        let space = self.target.store.space()?;
        let room = if space.available > 0 && !space.is_read_only { space.promisable } else { 0 };
        let bytes = grants.ask(client, held, want, room, Instant::now());
        grants.note_owner(client, owner);
        self.target.note_grants(&grants);
        Ok(bytes)
    }

    /// Returns the bytes granted to clients.
    pub fn granted_bytes(&self) -> u64 {
        self.target.granted_bytes.load(Ordering::Relaxed)
    }

    /// Returns the status for a failure that the client receives, and logs the failure if needed.
    pub(crate) fn refused(&self, request: &OssRequest, refusal: Refusal) -> Status {
        match refusal {
            Refusal::Argument(status) => status,
            Refusal::Store(error) => {
                let status = error.status();
                // A broken disk fails every request.
                if !is_expected(status)
                    && let Some(unlogged) = self.failures.pass()
                {
                    let operation = operation_of(request).row().name;
                    log::error!(
                        "{}: {operation} failed: {error} ({unlogged} failures before not shown)",
                        self.target_id()
                    );
                }
                status
            }
        }
    }

    pub(crate) fn target_id(&self) -> TargetId {
        TargetId::ost(self.target.index)
    }

    /// Requires capabilities signed with these keys from clients, as soon as there are some. Only the first
    /// call counts.
    pub fn ask_for_capabilities(&self, keys: Arc<CapabilityKeys>) {
        self.capabilities.set_keys(keys);
    }

    /// Whether the sender may do this.
    ///
    /// # Errors
    /// [`Status::NO_CAPABILITY`].
    pub(crate) fn check_capability(
        &self,
        export: &Export,
        request: &OssRequest,
        capability: Option<&Capability>,
    ) -> StatusResult<()> {
        self.capabilities.check(self.target_id(), export, request, capability)
    }
}

/// Options of a write.
struct WriteHow<'a> {
    sync: bool,
    granted: bool,
    lock: IoLock,
    /// The object has been written to before, so it must exist.
    written: bool,
    charge: &'a Charge,
}

/// Options of a read.
struct ReadHow {
    ahead: u32,
    lock: IoLock,
    /// The object has been written to before, so it must exist.
    written: bool,
}

/// Returns the byte range of a request; `None` if it is empty.
pub(crate) fn extent(offset: u64, len: u64) -> Option<Extent> {
    Extent::new(offset, offset.saturating_add(len.checked_sub(1)?))
}

impl OssService for ObjectServer {
    fn space(&self) -> StatusResult<Statfs> {
        self.room.statfs(&*self.target.store).map_err(|error| error.status())
    }

    fn connect(&self, export: &Arc<Export>) -> StatusResult<()> {
        self.admit(export)?;
        self.start_timer().map_err(|error| {
            log::error!("{}: the thread of the locks: {error}", self.target_id());
            Status::EAGAIN
        })?;
        self.locks.connect(export)?;
        self.exports.join(export, PeerStats::new);
        // Repeated, as the nodemaps may have changed before the client was connected.
        self.admit(export).inspect_err(|_| self.disconnect_client(export))
    }

    fn disconnect(&self, export: &Export) {
        self.disconnect_client(export);
    }

    fn handle(
        &self,
        export: &Export,
        call: &Call<'_>,
        request: &OssRequest,
        bulk: Bulk<'_>,
    ) -> StatusResult<OssReply> {
        let running = activity::begin(described(self.target_id(), export, call, request));
        let reply = self.serve(export, call, request, bulk);
        running.ended(&reply);
        reply
    }

    fn reads_at_once(&self) -> usize {
        // Tests hold single requests, so a hold disables batches.
        if self.hold.is_armed() { 1 } else { self.reads_at_once.max(1) }
    }

    fn handle_reads(&self, export: &Export, reads: &mut [ReadCall<'_>]) {
        self.read_batch(export, reads);
    }
}

impl ObjectServer {
    fn serve(
        &self,
        export: &Export,
        call: &Call<'_>,
        request: &OssRequest,
        bulk: Bulk<'_>,
    ) -> StatusResult<OssReply> {
        let Some(in_progress) = self.counters.enter() else { return Err(Status::ESHUTDOWN) };
        if export.has_ended() {
            return Err(Status::EVICTED);
        }
        if let Some(standing) = export.standing() {
            check_standing(&standing, request)?;
        }
        self.await_replay(export, request)?;
        let operation = operation_of(request);
        let job = call.job.map(|job| (job, Instant::now()));
        self.hold.pass(Moment::Before, request);
        let allowed = self.check_capability(export, request, call.capability.as_ref());
        match allowed.map_err(Refusal::from).and_then(|()| self.run(export, request, bulk)) {
            Ok((reply, amount)) => {
                self.hold.pass(Moment::After, request);
                in_progress.count(operation, Some(amount));
                self.count_for(export, job, request, operation, amount);
                if matches!(request, OssRequest::Write { sync: true, .. }) {
                    self.counters.succeeded.count(Operation::Sync as usize, 0);
                }
                Ok(self.logged(export, request, reply))
            }
            Err(refusal) => {
                in_progress.count(operation, None);
                Err(self.refused(request, refusal))
            }
        }
    }
}

pub(crate) fn attr(attr: ObjectAttr) -> oss::ObjectAttr {
    oss::ObjectAttr { size: attr.size, blocks: attr.blocks, mtime: attr.mtime }
}

#[cfg(test)]
mod tests;
