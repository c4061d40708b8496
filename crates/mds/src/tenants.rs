//! Requests of bounded clients: effective credentials, and checks of claims that a trusted client makes on its own account.
//!
//! A client library is trusted where its host is: it checks rights when a file is opened, and what it says later of the file, of its
//! own account, needs no more. Of a client with a key that stands for a host's users or for one user, this MDT believes none of that.
//! Every request gets the credentials that the [`Standing`] of the client gives it, and those that rest on an earlier check must show
//! the handle that came of it.

use crate::filesets::Filesets;
use crate::leaves::Leaves;
use crate::lookups::Lookups;
use crate::plan::check_access;
use crate::sessions::Sessions;
use crate::tx::now;
use crate::users::Users;
use nacre_env::sync::RwLock;
use nacre_rpc::{Call, Export};
use nacre_types::acl::Acl;
use nacre_types::nodemap::Nodemaps;
use nacre_types::perm::{self, Verdict};
use nacre_types::{
    Attr, Caps, Cred, Fid, IdKind, SetAttr, SetAttrValid, Standing, Status, StatusResult, User,
};
use nacre_wire::mds::{
    DataUpdate, DirPage, LeaseKind, MdsAnswer, MdsReply, MdsRequest, OpenFlags, XattrFlags,
};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the [module documentation](self).
pub struct Tenants {
    leaves: Arc<Leaves>,
    nodemaps: RwLock<Arc<Nodemaps>>,
    trusts_groups: AtomicBool,
    users: Users,
    lookups: Arc<Lookups>,
    filesets: Arc<Filesets>,
    sessions: Arc<Sessions>,
}

impl Tenants {
    /// All clients are what they say. `find_user` asks the user database.
    pub(crate) fn new(
        leaves: &Arc<Leaves>,
        find_user: fn(u32) -> io::Result<Option<User>>,
        lookups: &Arc<Lookups>,
        filesets: &Arc<Filesets>,
        sessions: &Arc<Sessions>,
    ) -> Tenants {
        Tenants {
            leaves: leaves.clone(),
            nodemaps: RwLock::default(),
            trusts_groups: AtomicBool::new(false),
            users: Users::new(find_user),
            lookups: lookups.clone(),
            filesets: filesets.clone(),
            sessions: sessions.clone(),
        }
    }

    /// Bounds a client by what it has proved.
    ///
    /// # Errors
    /// `EACCES` for one that is banned.
    pub(crate) fn admit(&self, export: &Export) -> StatusResult<()> {
        let nodemaps = self.nodemaps.read().clone();
        export.bound(&nodemaps, self.trusts_client_groups());
        if let Some(root) = export.standing().as_ref().and_then(|standing| standing.root()) {
            self.filesets.look_again(root);
        }
        match export.standing().is_some_and(|standing| standing.is_banned()) {
            true => {
                log::warn!(
                    "MDT{:04x}: client {} at {} is banned",
                    self.leaves.index,
                    export.client,
                    export.nid
                );
                Err(Status::EACCES)
            }
            false => Ok(()),
        }
    }

    /// Bounds clients by these nodemaps from now on. Those that may not see any more what they saw are evicted, others to which
    /// something changes drop what they cache.
    pub fn set_nodemaps(&self, nodemaps: &Arc<Nodemaps>) {
        if **self.nodemaps.read() == **nodemaps {
            return;
        }
        *self.nodemaps.write() = nodemaps.clone();
        self.bound_all();
    }

    /// True if what hosts say of their users' groups is believed (`mdt.*.trust_client_groups`).
    pub fn trusts_client_groups(&self) -> bool {
        self.trusts_groups.load(Ordering::Relaxed)
    }

    /// Changes [`Tenants::trusts_client_groups`].
    pub fn set_trusts_client_groups(&self, trusts: bool) {
        if self.trusts_groups.swap(trusts, Ordering::Relaxed) != trusts {
            self.bound_all();
        }
    }

    fn bound_all(&self) {
        let nodemaps = self.nodemaps.read().clone();
        for export in self.leaves.clients.exports() {
            let before = export.bound(&nodemaps, self.trusts_client_groups());
            let now = export.standing();
            let root = |standing: &Option<Arc<Standing>>| {
                standing.as_ref().and_then(|standing| standing.root().map(str::to_owned))
            };
            let is_banned = now.as_ref().is_some_and(|standing| standing.is_banned());
            if is_banned || root(&before) != root(&now) {
                log::warn!(
                    "MDT{:04x}: client {} at {} may not go on",
                    self.leaves.index,
                    export.client,
                    export.nid
                );
                self.sessions.evict_late(&export.client);
            } else if before != now {
                self.sessions.recall(&export.client);
            }
        }
    }

    /// How long what the user database says counts, in seconds (`mdt.*.identity_expire`).
    pub fn identity_expire_s(&self) -> u64 {
        self.users.expire_s()
    }

    /// Changes [`Tenants::identity_expire_s`].
    pub fn set_identity_expire_s(&self, seconds: u64) {
        self.users.set_expire_s(seconds);
    }

    /// Forgets what the user database has said of a user, or of all (`mdt.*.identity_flush`).
    pub fn flush_identities(&self, uid: Option<u32>) {
        self.users.flush(uid);
    }

    /// Runs a request of a client that is bounded; `serve` serves what becomes of it.
    pub(crate) fn serve(
        &self,
        export: &Export,
        call: &Call<'_>,
        request: &MdsRequest<'_>,
        standing: &Standing,
        serve: impl FnOnce(&Call<'_>, &MdsRequest<'_>) -> StatusResult<MdsAnswer>,
    ) -> StatusResult<MdsAnswer> {
        if standing.is_banned() {
            return Err(Status::EACCES);
        }
        let cred = standing.cred(call.cred, &|uid| self.users.find(uid))?;
        let call = Call { cred: &cred, ..*call };
        if standing.is_read_only() && changes(request) {
            return Err(Status::EROFS);
        }
        let mut acl = Vec::new();
        let mapped = mapped(standing, request, &mut acl)?;
        let request = mapped.as_ref().unwrap_or(request);
        if let Some(root) = self.filesets.own_root(standing, request)? {
            return Ok(shown_to(standing, self.lookups.get_root(&root)?));
        }
        let below = self.filesets.below_root(export, standing, request)?;
        let request = below.as_ref().unwrap_or(request);
        let without = if standing.is_read_only() { without_changes(request) } else { None };
        let request = without.as_ref().unwrap_or(request);
        let asked = if standing.is_trusted() { None } else { self.believed(export, &cred, request)? };
        let request = asked.as_ref().unwrap_or(request);
        let mut answer = serve(&call, request)?;
        if let (MdsRequest::GetXattr { name, .. }, MdsReply::Bytes(value)) = (request, &mut answer.reply)
            && is_acl(name)
            && let Some(acl) = Acl::parse_xattr(value)?
        {
            *value = acl.with_ids(|kind, id| Ok(standing.to_client(kind, id)))?.to_xattr();
        }
        Ok(shown_to(standing, answer))
    }

    /// A request without what its client would have to be trusted for; `None`: as it is.
    ///
    /// # Errors
    /// If nothing is left of it.
    fn believed<'a>(
        &self,
        export: &Export,
        cred: &Cred,
        request: &MdsRequest<'a>,
    ) -> StatusResult<Option<MdsRequest<'a>>> {
        let client = &export.client;
        let writes = |fid: &Fid, handle| {
            self.leaves
                .opens
                .flags_of(fid, client, handle)
                .is_some_and(|flags| flags.contains(OpenFlags::WRITE))
        };
        match request {
            MdsRequest::SetAttr { fid, set } => {
                let mut set = *set;
                if !writes(fid, None) {
                    set.valid -= SetAttrValid::OPEN_FOR_WRITE;
                }
                if set.valid.contains(SetAttrValid::SIZE)
                    && perm::capable(cred, Caps::FSETID) != Verdict::Granted
                {
                    set.valid |= SetAttrValid::KILL_PRIV;
                }
                Ok(Some(MdsRequest::SetAttr { fid: *fid, set }))
            }
            MdsRequest::Close { fid, handle, update, .. } if !writes(fid, Some(*handle)) => {
                let update =
                    DataUpdate { atime: update.atime.map(|atime| atime.min(now())), ..DataUpdate::default() };
                Ok(Some(MdsRequest::Close { fid: *fid, handle: *handle, update, written: Vec::new() }))
            }
            MdsRequest::CloseWrite { fid, handle, .. } if !writes(fid, Some(*handle)) => Err(Status::EBADF),
            MdsRequest::UpdateData { fid, .. } if !writes(fid, None) => {
                match self.check_tenant(cred, fid, perm::WRITE).is_err() {
                    // It has found out what size the data has; so does everybody else.
                    true => Ok(Some(MdsRequest::GetAttr { fid: *fid })),
                    false => Ok(None),
                }
            }
            MdsRequest::ReadDir { fid, .. } => {
                self.check_tenant(cred, fid, perm::READ)?;
                Ok(None)
            }
            // They may lead through private directories.
            MdsRequest::FidToLink { .. } | MdsRequest::FidToPath { .. } => {
                perm::capable(cred, Caps::DAC_READ_SEARCH).or(Status::EPERM)?;
                Ok(None)
            }
            MdsRequest::SetLock { fid, .. }
            | MdsRequest::LockFile { fid, .. }
            | MdsRequest::ReplayFileLocks { fid, .. }
            | MdsRequest::GetLock { fid, .. } => {
                let is_file = self.leaves.records.inode(fid)?.attr.is_regular();
                match is_file && self.leaves.opens.flags_of(fid, client, None).is_none() {
                    true => Err(Status::EBADF),
                    false => Ok(None),
                }
            }
            _ => Ok(None),
        }
    }

    /// Whether somebody has the rights in `mask` to an inode, or could give them to himself.
    fn check_tenant(&self, cred: &Cred, fid: &Fid, mask: u8) -> StatusResult<()> {
        let record = self.leaves.records.inode(fid)?;
        if record.attr.uid == cred.uid { Ok(()) } else { check_access(&record, cred, mask) }
    }
}

/// The close of a read-only client, without the attributes that it would store.
fn without_changes<'a>(request: &MdsRequest<'a>) -> Option<MdsRequest<'a>> {
    match request {
        MdsRequest::Close { fid, handle, .. } => {
            let (update, written) = (DataUpdate::default(), Vec::new());
            Some(MdsRequest::Close { fid: *fid, handle: *handle, update, written })
        }
        MdsRequest::UpdateData { fid, .. } => Some(MdsRequest::GetAttr { fid: *fid }),
        _ => None,
    }
}

/// True for requests that a read-only client may not send.
fn changes(request: &MdsRequest<'_>) -> bool {
    match request {
        MdsRequest::Open { flags, .. } => {
            flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE | OpenFlags::CREATED)
        }
        MdsRequest::LayoutAccess { range, .. } => range.is_some(),
        MdsRequest::OpenLease { kind, .. } => *kind == Some(LeaseKind::Frozen),
        // What they say is not taken.
        MdsRequest::Close { .. } | MdsRequest::UpdateData { .. } => false,
        MdsRequest::SetLock { .. } | MdsRequest::LockFile { .. } => false,
        request => request.is_modifying(),
    }
}

/// A request with the file system's ids where it has some of the client's.
fn mapped<'a>(
    standing: &Standing,
    request: &MdsRequest<'a>,
    acl: &'a mut Vec<u8>,
) -> StatusResult<Option<MdsRequest<'a>>> {
    if !standing.maps_ids() {
        return Ok(None);
    }
    match request {
        MdsRequest::SetAttr { fid, set } => {
            let mut set: SetAttr = *set;
            for (is_set, kind, id) in [
                (SetAttrValid::UID, IdKind::Uid, &mut set.uid),
                (SetAttrValid::GID, IdKind::Gid, &mut set.gid),
                (SetAttrValid::PROJID, IdKind::Projid, &mut set.projid),
            ] {
                if set.valid.contains(is_set) {
                    *id = standing.to_fs(kind, *id)?;
                }
            }
            Ok(Some(MdsRequest::SetAttr { fid: *fid, set }))
        }
        MdsRequest::SetXattr { fid, name, value, flags } if is_acl(name) => {
            let Some(parsed) = Acl::parse_xattr(value)? else { return Ok(None) };
            *acl = parsed.with_ids(|kind, id| standing.to_fs(kind, id))?.to_xattr();
            let (fid, name, flags): (Fid, _, XattrFlags) = (*fid, *name, *flags);
            Ok(Some(MdsRequest::SetXattr { fid, name, value: acl, flags }))
        }
        _ => Ok(None),
    }
}

fn is_acl(name: &[u8]) -> bool {
    matches!(name, b"system.posix_acl_access" | b"system.posix_acl_default")
}

/// An answer with the client's ids.
pub(crate) fn shown_to(standing: &Standing, mut answer: MdsAnswer) -> MdsAnswer {
    if !standing.maps_ids() {
        return answer;
    }
    let show = |attr: &mut Attr| {
        attr.uid = standing.to_client(IdKind::Uid, attr.uid);
        attr.gid = standing.to_client(IdKind::Gid, attr.gid);
        attr.projid = standing.to_client(IdKind::Projid, attr.projid);
    };
    match &mut answer.reply {
        MdsReply::Created { attr, parent, .. } => {
            show(attr);
            show(parent);
        }
        MdsReply::Attr(attr) | MdsReply::Opened { attr, .. } => show(attr),
        MdsReply::Entry { attr, .. } | MdsReply::Removed { attr, .. } | MdsReply::Intent { attr, .. } => {
            attr.iter_mut().for_each(show);
        }
        MdsReply::Directory(page) | MdsReply::Shard { page, .. } => *page = shown_page(page, &show),
        _ => {}
    }
    answer
}

fn shown_page(page: &DirPage, show: &dyn Fn(&mut Attr)) -> DirPage {
    let bytes = Vec::with_capacity(page.bytes.len());
    let mut shown = DirPage { bytes, end: page.end, public: page.public, lock: page.lock };
    for mut entry in page.entries() {
        entry.attr.iter_mut().for_each(show);
        // As long as it was before.
        let is_pushed = shown.push(&entry, u32::MAX);
        debug_assert!(is_pushed);
    }
    shown
}
