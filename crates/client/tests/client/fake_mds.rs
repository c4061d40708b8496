//! An MDT in memory with as much as clients under test need, without durability.

use super::fake_oss::FakeOss;
use nacre_layout::{
    ComponentFlags, ComponentSpec, Extent, Layout, LayoutForm, LayoutRequest, LayoutSpec, StripeObject,
};
use nacre_lock::{InodeBits, LockHandle, Mode, Need, Wanted};
use nacre_rpc::{ClientCallbacks, MdsEndpoint};
use nacre_types::perm;
use nacre_types::{
    Attr, AttrFlags, Cred, Fid, FileKind, OpenHandle, SetAttr, SetAttrValid, SizeSource, Status,
    StatusResult, Timestamp, TransNo,
};
use nacre_wire::lock::{LockMessage, LockRequest};
use nacre_wire::mds::{
    ClosingData, DataUpdate, DirEntry, DirPage, HEAD_DATA_MAX, LeaseGrant, ListedLayout, LockMode, MdsAnswer,
    MdsReply, MdsRequest, NewFile, OpenFlags, Statfs,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

#[derive(Clone, Default)]
struct Inode {
    attr: Attr,
    parent: Fid,
    names: BTreeMap<Vec<u8>, Fid>,
    target: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    layout: Option<Arc<Layout>>,
    /// Open handles by client and number.
    opens: BTreeMap<(usize, u64), OpenFlags>,
    /// Locks on the layout that guarantee that no objects are added.
    layout_locks: BTreeSet<(usize, LockHandle)>,
}

impl Inode {
    fn writers(&self) -> usize {
        self.opens.values().filter(|flags| flags.contains(OpenFlags::WRITE)).count()
    }
}

#[derive(Default)]
struct State {
    inodes: BTreeMap<Fid, Inode>,
    clients: Vec<Arc<dyn ClientCallbacks>>,
    released: u64,
    /// Epochs of revocations that a client reported to be under way.
    busy: Vec<u64>,
    epoch: u64,
    transno: u64,
    next_object: u32,
    next_sequence: u64,
}

/// Called at an event; an error refuses it.
pub type Refusal = Box<dyn FnOnce() -> StatusResult<()> + Send>;

/// The MDT under test, shared by its clients' endpoints.
pub struct FakeMds {
    state: Mutex<State>,
    spec: LayoutSpec,
    osts: u16,
    /// The data part of this MDT, if the file system's default begins there.
    data: Option<Arc<FakeOss>>,
    pub commits: std::sync::atomic::AtomicU64,
    /// Number of names looked up and pages listed.
    pub lookups: std::sync::atomic::AtomicU64,
    pub pages: std::sync::atomic::AtomicU64,
    /// Number of layouts requested.
    pub layouts: std::sync::atomic::AtomicU64,
    /// Number of layouts instantiated.
    pub intents: std::sync::atomic::AtomicU64,
    /// True to refuse data with closes.
    pub refuses_data: std::sync::atomic::AtomicBool,
    /// Status with which the next create fails.
    pub fail_create: Mutex<Option<Status>>,
    /// Called when the next report of sizes and times arrives, before it is applied.
    pub at_update: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// Called when the next open arrives, before it is applied; an error refuses the open.
    pub at_open: Mutex<Option<Refusal>>,
    /// Called when the next file lock arrives, before it is applied; an error refuses it.
    pub at_lock: Mutex<Option<Refusal>>,
    /// Called when the next reply to an open is on its way.
    pub after_open: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// Called when the next reply with attributes that were asked for is on its way.
    pub after_attributes: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// Called when the next reply to a close with data is on its way.
    pub after_close: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// Called when a close arrives.
    pub at_close: Mutex<Option<Box<dyn Fn() + Send>>>,
    /// While there is a list, closes without a waiting caller are held in it.
    pub held_closes: Mutex<Option<Vec<HeldClose>>>,
}

/// A close on its way: client, file, handle, and the values it reports.
pub type HeldClose = (usize, Fid, OpenHandle, DataUpdate);

/// Endpoint of one client.
pub struct FakeEndpoint {
    mds: Arc<FakeMds>,
    client: usize,
}

fn attr_reply(inode: &Inode) -> StatusResult<MdsReply> {
    Ok(MdsReply::Attr(inode.attr))
}

impl FakeMds {
    pub fn new(spec: LayoutSpec, osts: u16, data: Option<Arc<FakeOss>>) -> Arc<FakeMds> {
        let mut root = Inode { parent: Fid::ROOT, ..Inode::default() };
        root.attr = Attr {
            fid: Fid::ROOT,
            mode: FileKind::Directory.mode_bits() | 0o755,
            nlink: 2,
            ..Attr::default()
        };
        let mut state = State { next_sequence: 0x2_0000_0400, ..State::default() };
        state.inodes.insert(Fid::ROOT, root);
        Arc::new(FakeMds {
            state: Mutex::new(state),
            spec,
            osts,
            data,
            commits: Default::default(),
            lookups: Default::default(),
            pages: Default::default(),
            layouts: Default::default(),
            intents: Default::default(),
            refuses_data: Default::default(),
            fail_create: Mutex::default(),
            at_update: Mutex::default(),
            at_open: Mutex::default(),
            at_lock: Mutex::default(),
            after_open: Mutex::default(),
            after_attributes: Mutex::default(),
            after_close: Mutex::default(),
            at_close: Mutex::default(),
            held_closes: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics inside")
    }

    /// Connects a new client. The second one revokes the exclusive lease of the first and waits until that
    /// has released it.
    pub fn connect(self: &Arc<FakeMds>, callbacks: Arc<dyn ClientCallbacks>) -> Arc<FakeEndpoint> {
        let (first, epoch, client) = {
            let mut state = self.lock();
            state.clients.push(callbacks);
            if state.clients.len() > 1 {
                state.epoch += 1;
            }
            (state.clients[0].clone(), state.epoch, state.clients.len() - 1)
        };
        if client == 1 {
            first.lease_changed(LeaseGrant { exclusive: false, epoch });
            let started = nacre_env::clock::Instant::now();
            while self.lock().released < epoch {
                assert!(started.elapsed().as_secs() < 10, "the first client does not let go");
                nacre_env::thread::yield_now();
            }
        }
        Arc::new(FakeEndpoint { mds: self.clone(), client })
    }

    /// Repeats the last revocation, as if it had not been answered.
    pub fn revoke_again(&self) {
        let (first, epoch) = {
            let state = self.lock();
            (state.clients[0].clone(), state.epoch)
        };
        first.lease_changed(LeaseGrant { exclusive: false, epoch });
    }

    /// Returns the epochs of revocations that the first client reported to be under way, and the last one that it has
    /// answered.
    pub fn answered(&self) -> (Vec<u64>, u64) {
        let state = self.lock();
        (state.busy.clone(), state.released)
    }

    /// Evicts every client so far: its handles are closed, and no request waits for it.
    pub fn evict_all(&self) {
        let mut state = self.lock();
        state.clients.clear();
        state.inodes.values_mut().for_each(|inode| inode.opens.clear());
    }

    /// Simulates a restart: forgets all opens until clients replay them. Files without a name stay until
    /// [`Self::end_recovery`].
    pub fn forget_opens(&self) {
        self.lock().inodes.values_mut().for_each(|inode| inode.opens.clear());
    }

    /// Ends the recovery: removes files without a name that are not open.
    pub fn end_recovery(&self) {
        self.lock().inodes.retain(|_, inode| inode.attr.nlink > 0 || !inode.opens.is_empty());
    }

    /// Returns how often a file is open.
    pub fn opens(&self, fid: Fid) -> usize {
        self.lock().inodes.get(&fid).map_or(0, |inode| inode.opens.len())
    }

    /// True if an object of a file is recorded as written.
    pub fn is_written(&self, fid: Fid) -> bool {
        self.lock().inodes[&fid].layout.as_ref().is_some_and(|layout| layout.is_written())
    }

    /// True if a file exists, with a name or without.
    pub fn has(&self, fid: Fid) -> bool {
        self.lock().inodes.contains_key(&fid)
    }

    /// Delivers the closes that were held, and later ones at once.
    pub fn let_closes_arrive(&self) {
        let held = self.held_closes.lock().expect("no panic inside").take();
        for (client, fid, handle, update) in held.unwrap_or_default() {
            let request = MdsRequest::Close { fid, handle, update, written: Vec::new() };
            self.run(client, &Cred::system(), &request).expect("a close works here");
        }
    }

    fn grant(state: &State) -> LeaseGrant {
        LeaseGrant { exclusive: state.clients.len() == 1, epoch: state.epoch }
    }

    /// Revokes the `COMPONENTS` locks of the other clients, and waits until they have cancelled them.
    fn call_back_components(&self, client: usize, fid: Fid) {
        let others = |state: &State| -> Vec<(usize, LockHandle)> {
            let held = state.inodes.get(&fid).map(|inode| inode.layout_locks.clone()).unwrap_or_default();
            held.into_iter().filter(|held| held.0 != client).collect()
        };
        let wanted = Wanted::by(&Need::bits(Mode::Ex, InodeBits::COMPONENTS));
        let called: Vec<_> = {
            let state = self.lock();
            others(&state).into_iter().map(|held| (state.clients[held.0].clone(), held.1)).collect()
        };
        for (callbacks, handle) in called {
            callbacks.lock_message(LockMessage::Blocking { handle, wanted });
        }
        let started = nacre_env::clock::Instant::now();
        while !others(&self.lock()).is_empty() {
            assert!(started.elapsed().as_secs() < 10, "a client does not let go");
            nacre_env::thread::yield_now();
        }
    }

    /// Returns the layout of a file without a requested one: on this MDT the first 64 KiB of it.
    fn fresh_layout(&self) -> Layout {
        const HEAD: u64 = 64 << 10;
        let part = |start, end, spec| ComponentSpec {
            extent: Extent { start, end },
            flags: ComponentFlags::default(),
            spec,
        };
        match self.data {
            None => self.spec.to_layout(),
            Some(_) => {
                let rest = part(HEAD, Extent::EOF, self.spec.clone());
                LayoutRequest::Composite(vec![part(0, HEAD, LayoutSpec::ON_MDT), rest])
                    .to_layout(&LayoutSpec::default())
            }
        }
    }

    /// Does what [`Self::instantiate`] does if files may begin on this MDT.
    fn instantiate_composite(
        &self,
        state: &mut State,
        fid: Fid,
        end: u64,
    ) -> StatusResult<Option<Arc<Layout>>> {
        let first = state.next_object;
        let inode = state.inodes.get_mut(&fid).ok_or(Status::ENOENT)?;
        let mut layout = inode.layout.as_deref().cloned().unwrap_or_else(|| self.fresh_layout());
        if !layout.is_to_change(end) {
            return Ok(inode.layout.clone());
        }
        self.intents.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if !layout.has_objects() && end > HEAD_DATA_MAX {
            layout.leave_out_head();
        }
        layout.place_on_mdt(fid);
        for place in layout.to_instantiate(end).collect::<Vec<_>>() {
            let count = layout.components[place].stripe_count.min(self.osts);
            let object = |i| StripeObject::new(i, Fid::ost_object(i, first + 1));
            layout.instantiate(place, (0..count).map(object).collect());
        }
        layout.generation += 1;
        state.next_object += 1;
        Ok(Self::keep_layout(inode, layout))
    }

    fn keep_layout(inode: &mut Inode, layout: Layout) -> Option<Arc<Layout>> {
        inode.layout = Some(Arc::new(layout));
        inode.attr.flags |= AttrFlags::HAS_OBJECTS;
        inode.attr.size_source = SizeSource::Objects;
        inode.layout.clone()
    }

    /// Returns the layout of a file.
    pub fn layout(&self, fid: Fid) -> Option<Arc<Layout>> {
        self.lock().inodes.get(&fid)?.layout.clone()
    }

    fn close_with_data(
        &self,
        state: &mut State,
        client: usize,
        (fid, handle): (Fid, u64),
        (update, data): (&DataUpdate, &ClosingData<'_>),
    ) -> StatusResult<MdsReply> {
        let is_alone = state.clients.len() == 1;
        let store = self.data.as_ref().ok_or(Status::EOPNOTSUPP)?;
        let inode = state.inodes.get_mut(&fid).ok_or(Status::ENOENT)?;
        let mut layout = inode.layout.as_deref().cloned().unwrap_or_else(|| self.fresh_layout());
        layout.place_on_mdt(fid);
        let is_sole = layout.objects().count() == 1 && layout.object_on_mdt().is_some();
        if !is_alone || !is_sole || self.refuses_data.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(Status::EAGAIN);
        }
        Self::keep_layout(inode, layout);
        store.put(data.object, data.offset, data.bytes);
        inode.opens.remove(&(client, handle)).ok_or(Status::EBADF)?;
        Self::update(inode, update, false);
        attr_reply(inode)
    }

    fn instantiate(&self, state: &mut State, fid: Fid, end: u64) -> StatusResult<Option<Arc<Layout>>> {
        if self.fresh_layout().form == LayoutForm::Composite {
            return self.instantiate_composite(state, fid, end);
        }
        let first = state.next_object;
        let inode = state.inodes.get_mut(&fid).ok_or(Status::ENOENT)?;
        if inode.layout.as_ref().is_some_and(|layout| layout.has_objects()) {
            return Ok(inode.layout.clone());
        }
        self.intents.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut layout = self.spec.to_layout();
        let component = &mut layout.components[0];
        let count = component.stripe_count.min(self.osts);
        component.objects = (0..count).map(|i| StripeObject::new(i, Fid::ost_object(i, first + 1))).collect();
        component.flags |= ComponentFlags::INIT;
        layout.generation = 1;
        let layout = Self::keep_layout(inode, layout);
        state.next_object += 1;
        Ok(layout)
    }

    fn create(&self, state: &mut State, client: usize, request: &MdsRequest<'_>) -> StatusResult<MdsReply> {
        let MdsRequest::Create { parent, name, fid, new, mode, open, exclusive, .. } = request else {
            return Err(Status::EPROTO);
        };
        let directory = state.inodes.get_mut(parent).ok_or(Status::ENOENT)?;
        if let Some(old) = directory.names.get(*name).copied() {
            if *exclusive {
                return Err(Status::EEXIST);
            }
            let parent = directory.attr;
            let (handle, flags) = open.ok_or(Status::EEXIST)?;
            let (attr, layout) = Self::open(state, client, old, handle.0, flags)?;
            return Ok(MdsReply::Created { attr, created: false, layout, parent });
        }
        let unnamed = *new == NewFile::Unnamed;
        if !unnamed {
            directory.names.insert(name.to_vec(), *fid);
        }
        let parent_attr = directory.attr;
        let mut inode = Inode { parent: *parent, ..Inode::default() };
        inode.attr = Attr { fid: *fid, mode: *mode, nlink: u32::from(!unnamed), ..Attr::default() };
        match new {
            NewFile::Symlink { target } => inode.target = target.to_vec(),
            NewFile::Node { rdev } => inode.attr.rdev = *rdev,
            NewFile::Directory | NewFile::Striped { .. } | NewFile::ChosenDirectory { .. } => {
                inode.attr.nlink = 2;
            }
            NewFile::Unnamed => {}
        }
        if let Some((handle, flags)) = open {
            inode.opens.insert((client, handle.0), *flags);
        }
        let attr = inode.attr;
        let layout = self.data.as_ref().map(|_| Arc::new(self.fresh_layout()));
        if layout.is_some() && inode.writers() > 0 {
            inode.attr.size_source = SizeSource::Objects;
        }
        state.inodes.insert(*fid, inode);
        Ok(MdsReply::Created { attr, created: true, layout, parent: parent_attr })
    }

    fn open(
        state: &mut State,
        client: usize,
        fid: Fid,
        handle: u64,
        flags: OpenFlags,
    ) -> StatusResult<(Attr, Option<Arc<Layout>>)> {
        let inode = state.inodes.get_mut(&fid).ok_or(Status::ENOENT)?;
        let has_objects = inode.attr.flags.contains(AttrFlags::HAS_OBJECTS);
        let before = inode.attr;
        if flags.contains(OpenFlags::WRITE) && has_objects {
            inode.attr.size_source = SizeSource::Objects;
        }
        if flags.contains(OpenFlags::TRUNCATE) {
            inode.attr.size = 0;
        }
        inode.opens.insert((client, handle), flags);
        Ok((before, inode.layout.clone()))
    }

    fn mark_written(inode: &mut Inode, written: &[Fid]) {
        if let Some(layout) = &mut inode.layout {
            Arc::make_mut(layout).mark_written(written);
        }
    }

    fn update(inode: &mut Inode, update: &DataUpdate, exact: bool) {
        if let Some((size, blocks)) = update.size_blocks {
            (inode.attr.size, inode.attr.blocks) = (size, blocks);
            if exact || inode.writers() == 0 {
                inode.attr.size_source = SizeSource::Exact;
            }
        }
        inode.attr.mtime = update.mtime.unwrap_or(inode.attr.mtime);
        inode.attr.ctime = inode.attr.ctime.max(update.mtime.unwrap_or_default());
        inode.attr.atime = update.atime.unwrap_or(inode.attr.atime);
    }

    fn set_attr(inode: &mut Inode, set: &SetAttr) {
        let valid = set.valid;
        if valid.contains(SetAttrValid::MODE) {
            inode.attr.mode = inode.attr.mode & nacre_types::attr::S_IFMT | set.mode & 0o7777;
        }
        if valid.contains(SetAttrValid::KILL_PRIV) {
            inode.attr.mode &= !0o6000;
        }
        if valid.contains(SetAttrValid::SIZE) {
            inode.attr.size = set.size;
            if inode.attr.flags.contains(AttrFlags::HAS_OBJECTS) || set.size > 0 {
                inode.attr.size_source = SizeSource::Objects;
            }
        }
        if valid.contains(SetAttrValid::MTIME) {
            inode.attr.mtime = set.mtime;
        }
        if valid.contains(SetAttrValid::MTIME_NOW) {
            inode.attr.mtime = Timestamp::new(2_000_000_000, 0);
        }
    }

    fn unlink(state: &mut State, parent: Fid, name: &[u8]) -> StatusResult<MdsReply> {
        let directory = state.inodes.get_mut(&parent).ok_or(Status::ENOENT)?;
        let fid = directory.names.remove(name).ok_or(Status::ENOENT)?;
        let inode = state.inodes.get_mut(&fid).ok_or(Status::ENOENT)?;
        inode.attr.nlink = if inode.attr.is_dir() { 0 } else { inode.attr.nlink - 1 };
        let attr = inode.attr;
        if attr.nlink == 0 && inode.opens.is_empty() {
            state.inodes.remove(&fid);
        }
        Ok(MdsReply::Removed { fid, attr: Some(attr) })
    }

    fn read_dir(state: &State, fid: Fid, cookie: u64, max_bytes: u32, plus: bool) -> StatusResult<MdsReply> {
        let inode = state.inodes.get(&fid).ok_or(Status::ENOENT)?;
        let mut page =
            DirPage { end: true, public: perm::searchable_by_all(&inode.attr), ..DirPage::default() };
        // Positions are ranks, backwards since no order may be relied on: good enough where no names change
        // between two pages.
        for (rank, (name, fid)) in inode.names.iter().rev().enumerate() {
            let position = rank as u64 + 4;
            let attr = state.inodes[fid].attr;
            let (kind, layout) = (attr.kind(), ListedLayout::None);
            let entry = DirEntry {
                cookie: position,
                fid: *fid,
                kind,
                name,
                attr: plus.then_some(attr),
                lock: LockHandle(0),
                layout,
            };
            if position > cookie && !page.push(&entry, max_bytes) {
                page.end = false;
                break;
            }
        }
        Ok(MdsReply::Directory(page))
    }

    fn run(&self, client: usize, cred: &Cred, request: &MdsRequest<'_>) -> StatusResult<MdsReply> {
        match request {
            MdsRequest::UpdateData { .. } => {
                let meanwhile = self.at_update.lock().expect("no panic inside").take();
                meanwhile.into_iter().for_each(|meanwhile| meanwhile());
            }
            MdsRequest::Close { .. } => {
                self.at_close.lock().expect("no panic inside").iter().for_each(|told| told());
            }
            _ => {}
        }
        let mut guard = self.lock();
        let state = &mut *guard;
        macro_rules! inode {
            ($fid:expr) => {
                state.inodes.get_mut($fid).ok_or(Status::ENOENT)?
            };
        }
        match request {
            MdsRequest::Ping => Ok(MdsReply::Lease(Self::grant(state))),
            MdsRequest::LeaseReleased { epoch } => {
                state.released = *epoch;
                Ok(MdsReply::Lease(Self::grant(state)))
            }
            MdsRequest::LeaseBusy { epoch } => {
                state.busy.push(*epoch);
                Ok(MdsReply::Done)
            }
            MdsRequest::AllocateSequence => {
                state.next_sequence += 1;
                Ok(MdsReply::Sequence(state.next_sequence))
            }
            MdsRequest::Statfs => Ok(MdsReply::Statfs(Statfs {
                block_size: 4096,
                files: 10,
                files_free: 9,
                ..Statfs::default()
            })),
            MdsRequest::Lookup { parent, name } => {
                self.lookups.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let directory = inode!(parent);
                let public = perm::searchable_by_all(&directory.attr);
                let found =
                    if *name == b".." { Some(directory.parent) } else { directory.names.get(*name).copied() };
                let attr = found.and_then(|fid| state.inodes.get(&fid)).map(|inode| inode.attr);
                Ok(MdsReply::Entry { attr, public })
            }
            MdsRequest::GetAttr { fid } => attr_reply(inode!(fid)),
            // Grants no locks, as an MDT may: then nothing is cached.
            MdsRequest::Intent { fid, name, .. } => {
                let inode = inode!(fid);
                let none = LockHandle(0);
                let (mut attr, mut public, mut names) = (Some(inode.attr), false, None);
                if let Some(name) = name {
                    self.lookups.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    (public, names) = (perm::searchable_by_all(&inode.attr), Some(inode.names.len() as u64));
                    let found = inode.names.get(*name).copied();
                    attr = found.and_then(|fid| state.inodes.get(&fid)).map(|inode| inode.attr);
                }
                Ok(MdsReply::Intent { attr, public, names, directory: none, inode: none })
            }
            MdsRequest::Access { fid, mask } => {
                let inode = inode!(fid);
                perm::access(&inode.attr, None, cred, *mask).or(Status::EACCES)?;
                attr_reply(inode)
            }
            MdsRequest::SetAttr { fid, set } => {
                let inode = inode!(fid);
                Self::set_attr(inode, set);
                attr_reply(inode)
            }
            MdsRequest::Create { .. } => match self.fail_create.lock().expect("no panic inside").take() {
                Some(status) => Err(status),
                None => self.create(state, client, request),
            },
            MdsRequest::Link { fid, parent, name } => {
                inode!(parent).names.insert(name.to_vec(), *fid);
                let inode = inode!(fid);
                inode.attr.nlink += 1;
                attr_reply(inode)
            }
            MdsRequest::Unlink { parent, name, .. } => Self::unlink(state, *parent, name),
            MdsRequest::Rename { from_parent, from_name, to_parent, to_name, .. } => {
                let fid = inode!(from_parent).names.remove(*from_name).ok_or(Status::ENOENT)?;
                let removed = match Self::unlink(state, *to_parent, to_name) {
                    Err(_) => MdsReply::Removed { fid: Fid::ZERO, attr: None },
                    Ok(reply) => reply,
                };
                inode!(to_parent).names.insert(to_name.to_vec(), fid);
                Ok(removed)
            }
            MdsRequest::Open { fid, handle, flags, .. } => {
                let (attr, layout) = Self::open(state, client, *fid, handle.0, *flags)?;
                Ok(MdsReply::Opened { attr, layout, data: None, lock: nacre_lock::LockHandle(0) })
            }
            MdsRequest::Close { fid, handle, update, written } => {
                let inode = inode!(fid);
                Self::mark_written(inode, written);
                inode.opens.remove(&(client, handle.0)).ok_or(Status::EBADF)?;
                Self::update(inode, update, false);
                if inode.attr.nlink == 0 && inode.opens.is_empty() {
                    state.inodes.remove(fid);
                    return Ok(MdsReply::Done);
                }
                attr_reply(inode)
            }
            MdsRequest::UpdateData { fid, update, exact, written } => {
                let inode = inode!(fid);
                Self::mark_written(inode, written);
                Self::update(inode, update, *exact);
                attr_reply(inode)
            }
            MdsRequest::CloseWrite { fid, handle, update, data } => {
                self.close_with_data(state, client, (*fid, handle.0), (update, data))
            }
            MdsRequest::LayoutIntent { fid, end, .. } => {
                self.instantiate(state, *fid, *end).map(MdsReply::Layout)
            }
            MdsRequest::LayoutAccess { fid, range, lock, .. } => {
                self.layouts.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if let Some((_, end)) = range {
                    drop(guard);
                    self.call_back_components(client, *fid);
                    guard = self.lock();
                    self.instantiate(&mut guard, *fid, *end)?;
                }
                let inode = guard.inodes.get_mut(fid).ok_or(Status::ENOENT)?;
                inode.layout_locks.insert((client, *lock));
                Ok(MdsReply::LockedLayout { layout: inode.layout.clone(), lock: *lock })
            }
            MdsRequest::Locks { request } => {
                let gone = match request {
                    LockRequest::Cancel { handles } => handles.clone(),
                    LockRequest::Convert { handle, .. } => vec![*handle],
                    _ => Vec::new(),
                };
                let is_gone = |held: &(usize, LockHandle)| held.0 == client && gone.contains(&held.1);
                state.inodes.values_mut().for_each(|inode| inode.layout_locks.retain(|held| !is_gone(held)));
                Ok(MdsReply::Done)
            }
            MdsRequest::GetLayout { fid } => Ok(MdsReply::Layout(inode!(fid).layout.clone())),
            MdsRequest::ReadDir { fid, cookie, max_bytes, plus, .. } => {
                self.pages.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                Self::read_dir(state, *fid, *cookie, *max_bytes, *plus)
            }
            MdsRequest::LookupMany { parent, names, .. } => {
                self.pages.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let directory = inode!(parent);
                let mut page = DirPage {
                    end: true,
                    public: perm::searchable_by_all(&directory.attr),
                    ..DirPage::default()
                };
                let found: Vec<_> = names
                    .split(|&byte| byte == 0)
                    .filter_map(|name| Some((name, *directory.names.get(name)?)))
                    .collect();
                for (name, fid) in found {
                    let attr = inode!(&fid).attr;
                    let (kind, layout) = (attr.kind(), ListedLayout::None);
                    let entry = DirEntry {
                        cookie: 4,
                        fid,
                        kind,
                        name,
                        attr: Some(attr),
                        lock: LockHandle(0),
                        layout,
                    };
                    assert!(page.push(&entry, 1 << 20));
                }
                Ok(MdsReply::Directory(page))
            }
            MdsRequest::ReadLink { fid } => Ok(MdsReply::Bytes(inode!(fid).target.clone())),
            MdsRequest::GetXattr { fid, name } => {
                inode!(fid).xattrs.get(*name).cloned().map(MdsReply::Bytes).ok_or(Status::ENODATA)
            }
            MdsRequest::SetXattr { fid, name, value, .. } => {
                let inode = inode!(fid);
                inode.xattrs.insert(name.to_vec(), value.to_vec());
                inode.attr.flags |= AttrFlags::HAS_XATTRS;
                attr_reply(inode)
            }
            MdsRequest::Commit { .. } => {
                self.commits.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                Ok(MdsReply::Done)
            }
            // Tests with several clients append one after the other.
            MdsRequest::LockFile { .. } => Ok(MdsReply::Done),
            _ => Err(Status::EOPNOTSUPP),
        }
    }
}

impl MdsEndpoint for FakeEndpoint {
    fn call(&self, cred: &Cred, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        let opens = match request {
            MdsRequest::Open { flags, .. } => !flags.contains(OpenFlags::REPLAY),
            MdsRequest::Create { open, .. } => open.is_some(),
            _ => false,
        };
        let meanwhile = match request {
            _ if opens => &self.mds.at_open,
            MdsRequest::LockFile { lock, .. } if lock.lock.mode != LockMode::Unlock => &self.mds.at_lock,
            _ => &Mutex::new(None),
        };
        let meanwhile = meanwhile.lock().expect("no panic inside").take();
        meanwhile.map_or(Ok(()), |meanwhile| meanwhile())?;
        let reply = self.mds.run(self.client, cred, request)?;
        let meanwhile = match request {
            _ if opens => &self.mds.after_open,
            MdsRequest::GetAttr { .. } => &self.mds.after_attributes,
            MdsRequest::CloseWrite { .. } => &self.mds.after_close,
            _ => &Mutex::new(None),
        };
        let meanwhile = meanwhile.lock().expect("no panic inside").take();
        meanwhile.into_iter().for_each(|meanwhile| meanwhile());
        let mut transno = TransNo(0);
        if request.is_modifying() {
            let mut state = self.mds.lock();
            state.transno += 1;
            transno = TransNo(state.transno);
        }
        Ok(MdsAnswer { transno, ..reply.into() })
    }

    fn post(&self, cred: &Cred, request: &MdsRequest<'_>) {
        if let (MdsRequest::Close { fid, handle, update, .. }, Some(held)) =
            (request, self.mds.held_closes.lock().expect("no panic inside").as_mut())
        {
            return held.push((self.client, *fid, *handle, *update));
        }
        self.call(cred, request).expect("a close that nobody waits for must work here");
    }

    fn wait_for_posts(&self) -> StatusResult<()> {
        self.mds.let_closes_arrive();
        Ok(())
    }
}
