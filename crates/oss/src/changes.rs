//! Numbers of the changes of objects, and which of them are durable.
//!
//! A write, truncation or allocation is answered when the store has it, which survives the end of this process and not
//! that of the host. Clients on other hosts keep such changes until they are durable, and replay them after a power loss
//! ([`replay`](crate::replay)). For that each change has a number, in the order in which conflicting ones are
//! applied. What is durable is known
//!
//! - of the whole target after a sync of all: its number is stored after the data;
//! - of one object after its sync. The client that asked for it forgets its changes, so nothing is stored if it alone has
//!   changed the object since the last sync of all. Otherwise the number is stored as the object's mark, so that an older
//!   change of another client is not replayed over what is durable. The destruction of an object sets its mark as well.
//!
//! Without clients on other hosts nothing is numbered.

use nacre_env::sync::Mutex;
use nacre_ondisk::{DataMarkRecord, DataRunRecord};
use nacre_rpc::Export;
use nacre_store::object::{DATA_MARKS, DATA_REPLAYED, DATA_RUN, ObjectError, ObjectStore};
use nacre_store::{Batch, MetaStore};
use nacre_types::{ClientUuid, Fid, Nid, TransNo};
use nacre_wire::connect::RUN_GAP;
use std::collections::HashMap;
use std::io;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Key of the one record in [`DATA_RUN`].
const RUN_KEY: &[u8] = b"run";
/// Changed objects from which on all is synced without a request; about 10 MiB. Reached if clients on other hosts have
/// left, and others create many files.
const CHANGED_MAX: usize = 1 << 17;

/// An object that has changed since the last sync of all.
struct Changed {
    /// The client that changed it first.
    by: ClientUuid,
    /// True if another one has changed it too.
    is_shared: bool,
    /// Number of its newest change.
    newest: u64,
}

/// Syncs of all: a caller is served by one that begins after its call.
#[derive(Default)]
struct Commits {
    /// Number of those that have ended.
    ended: u64,
    run: DataRunRecord,
}

/// See the [module documentation](self).
pub(crate) struct Changes {
    store: Arc<dyn ObjectStore>,
    /// Number of the newest change.
    last: AtomicU64,
    /// Number up to which all changes are durable.
    committed: AtomicU64,
    /// `first` of the run that waits for the replay of changes, 0 for none.
    lacking: AtomicU64,
    /// True once a client on another host has changed something.
    has_keepers: AtomicBool,
    changed: Mutex<HashMap<Fid, Changed>>,
    /// Marks of objects, as in the index.
    marks: Mutex<HashMap<Fid, u64>>,
    /// Progress of the replay of clients, as in the index.
    replayed: Mutex<HashMap<ClientUuid, u64>>,
    /// Syncs of all that have begun.
    begun: AtomicU64,
    commits: Mutex<Commits>,
}

/// True for a client that keeps its changes: the host of this target can lose power while it lives.
fn keeps(export: &Export) -> bool {
    export.nid != Nid::Lo && export.process.is_none()
}

fn index_of(store: &dyn ObjectStore) -> io::Result<&MetaStore> {
    store.abilities().index.ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))
}

/// Reads the marks in a table of the index, by keys of 16 bytes. A damaged one counts as none.
fn marks_in(index: &MetaStore, table: nacre_store::Table) -> io::Result<Vec<([u8; 16], DataMarkRecord)>> {
    let mut found = Vec::new();
    let scanned = index.scan(table, &[], Bound::Unbounded, &mut |key, value| {
        if let (Ok(key), Ok(mark)) = (<[u8; 16]>::try_from(key), DataMarkRecord::decode(value)) {
            found.push((key, mark));
        }
        ControlFlow::Continue(())
    });
    scanned.map_err(io::Error::other)?;
    Ok(found)
}

impl Changes {
    /// Begins a run of the target. Changes of clients that keep them are made durable, unless the host was booted since:
    /// then clients replay them.
    ///
    /// # Errors
    /// If the store cannot be read or synced.
    pub fn begin(store: &Arc<dyn ObjectStore>) -> io::Result<Changes> {
        let index = index_of(&**store)?;
        let found = index.get(DATA_RUN, RUN_KEY, |value| value.map(DataRunRecord::decode));
        let last = found.map_err(io::Error::other)?.transpose().map_err(io::Error::other)?;
        let boot_id = nacre_env::own_process().boot;
        let mut run = last.unwrap_or(DataRunRecord { clean: true, ..DataRunRecord::default() });
        let (is_booted, was_clean) = (run.boot_id != boot_id, run.clean);
        // More than one run can use: so no number is used twice, also if the last one is not known.
        let first = run.first + RUN_GAP;
        if is_booted && (run.lacking != 0 || !was_clean) {
            run.lacking = first;
        } else if run.lacking == 0 {
            // Which objects they concern is not known any more. Without such clients a start does not wait for the disk.
            if run.has_keepers && !was_clean {
                store.sync_all().map_err(io::Error::other)?;
            }
            run.committed = first;
        }
        let has_keepers = run.lacking != 0;
        run = DataRunRecord { clean: false, has_keepers, boot_id, first, ..run };
        let changes = Changes {
            store: store.clone(),
            last: AtomicU64::new(first),
            committed: AtomicU64::new(run.committed),
            lacking: AtomicU64::new(run.lacking),
            has_keepers: AtomicBool::new(has_keepers),
            changed: Mutex::default(),
            marks: Mutex::default(),
            replayed: Mutex::default(),
            begun: AtomicU64::new(0),
            commits: Mutex::new(Commits { ended: 0, run }),
        };
        let marks = marks_in(index, DATA_MARKS)?;
        *changes.marks.lock() =
            marks.into_iter().map(|(key, mark)| (Fid::from_key(&key), mark.number)).collect();
        let replayed =
            marks_in(index, DATA_REPLAYED)?.into_iter().filter(|(_, mark)| mark.run == run.lacking);
        *changes.replayed.lock() = replayed.map(|(key, mark)| (ClientUuid(key), mark.number)).collect();
        changes.save(&run, true).map_err(io::Error::other)?;
        Ok(changes)
    }

    fn index(&self) -> Result<&MetaStore, ObjectError> {
        self.store.abilities().index.ok_or(ObjectError::Closed)
    }

    /// Stores the state of the run; `durably`, or so that it survives the end of the process.
    fn save(&self, run: &DataRunRecord, durably: bool) -> Result<(), ObjectError> {
        let index = self.index()?;
        let mut batch = Batch::new();
        batch.set_releasing(true);
        batch.put(DATA_RUN, RUN_KEY, &run.encode());
        let transno = index.commit(&batch)?;
        if durably { Ok(index.sync(transno)?) } else { Ok(()) }
    }

    /// Notes, before it changes something, a client that keeps its changes. Returns false for other ones.
    pub fn note_keeper(&self, export: &Export) -> bool {
        let keeps = keeps(export);
        if keeps && !self.has_keepers.load(Ordering::SeqCst) {
            let mut commits = self.commits.lock();
            commits.run.has_keepers = true;
            // The next run reads it if only this process ends.
            if let Err(error) = self.save(&commits.run, false) {
                log::error!("a client that keeps its changes cannot be noted: {error}");
            }
            self.has_keepers.store(true, Ordering::SeqCst);
        }
        keeps
    }

    /// Numbers a change of an object that the store has, under the lock that excludes conflicting ones. `replayed`: its
    /// number in the run that acknowledged it. Returns its number and that of the newest durable change.
    pub fn note(
        &self,
        client: ClientUuid,
        object: Fid,
        replayed: Option<TransNo>,
    ) -> Option<(TransNo, TransNo)> {
        if !self.has_keepers.load(Ordering::SeqCst) {
            return None;
        }
        let mut changed = self.changed.lock();
        // Under the mutex, so that the newest number of an object is the largest.
        let number = match replayed {
            Some(number) => number.0,
            None => self.last.fetch_add(1, Ordering::SeqCst) + 1,
        };
        let known = changed.entry(object).or_insert(Changed { by: client, is_shared: false, newest: number });
        known.is_shared |= known.by != client;
        known.newest = known.newest.max(number);
        Some((TransNo(number), TransNo(self.committed.load(Ordering::Acquire))))
    }

    /// True if too many objects have changed since the last sync of all.
    pub fn is_crowded(&self) -> bool {
        self.has_keepers.load(Ordering::Relaxed)
            && !self.is_lacking()
            && self.changed.lock().len() > CHANGED_MAX
    }

    /// Makes the changes of an object durable, in such a way that older ones are not replayed.
    ///
    /// # Errors
    /// Those of the store.
    pub fn sync(&self, object: Fid) -> Result<(), ObjectError> {
        let upto = self.last.load(Ordering::SeqCst);
        self.store.sync(object)?;
        if self.changed.lock().get(&object).is_some_and(|known| known.is_shared) {
            let transno = self.mark(&[object], upto)?;
            let index = self.index()?;
            nacre_env::blocking(|| index.sync(transno))?;
        }
        Ok(())
    }

    /// Stores marks of objects that are about to be destroyed. The destruction makes them durable.
    ///
    /// # Errors
    /// Those of the index.
    pub fn note_destroyed(&self, objects: &[Fid]) -> Result<(), ObjectError> {
        if !self.has_keepers.load(Ordering::SeqCst) {
            return Ok(());
        }
        let changed = self.changed.lock();
        // Before the replay is over any object may have changes that are not known yet.
        let may_be_replayed = |object: &&Fid| self.is_lacking() || changed.contains_key(*object);
        let marked: Vec<Fid> = objects.iter().filter(may_be_replayed).copied().collect();
        drop(changed);
        if marked.is_empty() {
            Ok(())
        } else {
            self.mark(&marked, self.last.load(Ordering::SeqCst)).map(drop)
        }
    }

    /// Returns the objects of a sequence above an id that have changed since the last sync of all.
    pub fn changed_above(&self, sequence: u64, id: u32) -> Vec<Fid> {
        let is_above = |object: &&Fid| object.seq == sequence && object.oid > id;
        self.changed.lock().keys().filter(is_above).copied().collect()
    }

    fn mark(&self, objects: &[Fid], upto: u64) -> Result<TransNo, ObjectError> {
        let mut batch = Batch::new();
        batch.set_releasing(true);
        let mut marks = self.marks.lock();
        for object in objects {
            let known = marks.get(object).copied().unwrap_or(0);
            let mark = DataMarkRecord { run: 0, number: known.max(upto) };
            batch.put(DATA_MARKS, &object.to_key(), &mark.encode());
        }
        let transno = self.index()?.commit(&batch)?;
        for object in objects {
            let known = marks.entry(*object).or_default();
            *known = upto.max(*known);
        }
        Ok(transno)
    }

    /// Makes all changes durable. Concurrent callers share a sync.
    ///
    /// # Errors
    /// Those of the store.
    pub fn sync_all(&self) -> Result<(), ObjectError> {
        let served_by = self.begun.load(Ordering::SeqCst) + 1;
        nacre_env::blocking(|| {
            let mut commits = self.commits.lock();
            if commits.ended >= served_by {
                return Ok(());
            }
            let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
            self.commit(&mut commits.run, false)?;
            commits.ended = number;
            Ok(())
        })
    }

    /// Makes all changes durable, then stores up to which number they are. `clean`: no further ones follow.
    fn commit(&self, run: &mut DataRunRecord, clean: bool) -> Result<(), ObjectError> {
        let upto = self.last.load(Ordering::SeqCst);
        self.store.sync_all()?;
        if self.is_lacking() || !clean && upto == run.committed {
            return Ok(());
        }
        let next = DataRunRecord { clean, committed: upto, ..*run };
        self.save(&next, true)?;
        *run = next;
        self.committed.store(upto, Ordering::Release);
        self.changed.lock().retain(|_, known| known.newest > upto);
        let mut marks = self.marks.lock();
        let mut batch = Batch::new();
        batch.set_releasing(true);
        for (object, _) in marks.extract_if(|_, number| *number <= upto) {
            batch.delete(DATA_MARKS, &object.to_key());
        }
        self.index()?.commit(&batch)?;
        Ok(())
    }

    /// Ends the run in order: everything is durable.
    ///
    /// # Errors
    /// Those of the store.
    pub fn end(&self) -> Result<(), ObjectError> {
        nacre_env::blocking(|| self.commit(&mut self.commits.lock().run, true))
    }

    /// True while changes that the run lacks may be replayed.
    pub fn is_lacking(&self) -> bool {
        self.lacking.load(Ordering::Acquire) != 0
    }

    /// Records that no more changes are replayed, before a new one.
    ///
    /// # Errors
    /// Those of the index.
    pub fn end_replay(&self) -> Result<(), ObjectError> {
        let mut commits = self.commits.lock();
        if !self.is_lacking() {
            return Ok(());
        }
        let next = DataRunRecord { lacking: 0, ..commits.run };
        // The end of the host takes this back with what was replayed.
        self.save(&next, false)?;
        let mut batch = Batch::new();
        batch.set_releasing(true);
        for client in self.replayed.lock().drain() {
            batch.delete(DATA_REPLAYED, &client.0.0);
        }
        self.index()?.commit(&batch)?;
        commits.run = next;
        self.lacking.store(0, Ordering::Release);
        Ok(())
    }

    /// True if the target has this change of a client: it is durable, or was replayed.
    pub fn has(&self, client: &ClientUuid, object: Fid, number: TransNo) -> bool {
        number.0 <= self.committed.load(Ordering::Acquire)
            || self.marks.lock().get(&object).is_some_and(|mark| number.0 <= *mark)
            || self.replayed.lock().get(client).is_some_and(|replayed| number.0 <= *replayed)
    }

    /// Records that a change of a client was replayed, and all before it.
    ///
    /// # Errors
    /// Those of the index.
    pub fn note_replayed(&self, client: &ClientUuid, number: TransNo) -> Result<(), ObjectError> {
        let mut batch = Batch::new();
        batch.set_releasing(true);
        let mark = DataMarkRecord { run: self.lacking.load(Ordering::Acquire), number: number.0 };
        batch.put(DATA_REPLAYED, &client.0, &mark.encode());
        self.index()?.commit(&batch)?;
        self.replayed.lock().insert(*client, number.0);
        Ok(())
    }
}
