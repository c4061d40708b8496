//! Requests of restricted clients: effective credentials, and checks of claims for which other clients are
//! trusted.
//!
//! A client on a trusted host is trusted: it checks rights when a file is opened, and its later requests for
//! the file need no further check. A client whose key stands for a host's users or for one user is not
//! trusted that way. Each of its requests gets the credentials of the client's [`Standing`], and requests
//! that rest on an earlier check must present the open handle from that check.

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
    /// Builds a set without restrictions. `find_user` queries the user database.
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

    /// Restricts a client according to its proven identity.
    ///
    /// # Errors
    /// `EACCES` for a banned client.
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

    /// Sets the nodemaps. Clients that lose access to what they saw are evicted, other clients with changes
    /// drop their caches.
    pub fn set_nodemaps(&self, nodemaps: &Arc<Nodemaps>) {
        if **self.nodemaps.read() == **nodemaps {
            return;
        }
        *self.nodemaps.write() = nodemaps.clone();
        self.bound_all();
    }

    /// Returns true if the groups of users are taken from their hosts (`mdt.*.trust_client_groups`).
    pub fn trusts_client_groups(&self) -> bool {
        self.trusts_groups.load(Ordering::Relaxed)
    }

    /// Sets [`Tenants::trusts_client_groups`].
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
                    "MDT{:04x}: client {} at {} may not continue",
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

    /// Returns the lifetime of an answer of the user database in seconds (`mdt.*.identity_expire`).
    pub fn identity_expire_s(&self) -> u64 {
        self.users.expire_s()
    }

    /// Sets [`Tenants::identity_expire_s`].
    pub fn set_identity_expire_s(&self, seconds: u64) {
        self.users.set_expire_s(seconds);
    }

    /// Drops cached answers of the user database, for one user or all (`mdt.*.identity_flush`).
    pub fn flush_identities(&self, uid: Option<u32>) {
        self.users.flush(uid);
    }

    /// Runs a request of a restricted client; `serve` serves the resulting request.
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

    /// Returns a request without the claims that only trusted clients may make; `None` if it stays as it is.
    ///
    /// # Errors
    /// If nothing remains of the request.
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
                    // The client reports the result of a glimpse, which any other client can get too.
                    true => Ok(Some(MdsRequest::GetAttr { fid: *fid })),
                    false => Ok(None),
                }
            }
            MdsRequest::ReadDir { fid, .. } => {
                self.check_tenant(cred, fid, perm::READ)?;
                Ok(None)
            }
            // The paths may lead through private directories.
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

    /// Checks that a user has the rights in `mask` to an inode, or could obtain them by chmod.
    fn check_tenant(&self, cred: &Cred, fid: &Fid, mask: u8) -> StatusResult<()> {
        let record = self.leaves.records.inode(fid)?;
        if record.attr.uid == cred.uid { Ok(()) } else { check_access(&record, cred, mask) }
    }
}

/// Returns the close of a read-only client without the attributes that it would store.
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

/// Returns true for requests that a read-only client may not send.
fn changes(request: &MdsRequest<'_>) -> bool {
    match request {
        MdsRequest::Open { flags, .. } => {
            flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE | OpenFlags::CREATED)
        }
        MdsRequest::LayoutAccess { range, .. } => range.is_some(),
        MdsRequest::OpenLease { kind, .. } => *kind == Some(LeaseKind::Frozen),
        // Their updates are ignored.
        MdsRequest::Close { .. } | MdsRequest::UpdateData { .. } => false,
        MdsRequest::SetLock { .. } | MdsRequest::LockFile { .. } => false,
        request => request.is_modifying(),
    }
}

/// Maps the client's ids in a request to the file system's.
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

/// Maps the ids in an answer to the client's.
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
        // The entry is as long as before.
        let is_pushed = shown.push(&entry, u32::MAX);
        debug_assert!(is_pushed);
    }
    shown
}
