//! Capabilities for the objects of files: the MDT sends them with the layout to clients that have to prove
//! their rights.
//!
//! The rights of a capability are those of the client's open handles, as long as these are open, regardless
//! of later changes of the permissions. The right to size and times is always included, as the MDT returns
//! these to every caller that may stat the file.

use crate::layouts::Layouts;
use crate::leaves::Leaves;
use crate::plan::check_access;
use crate::suspend::Caller;
use nacre_keys::CapabilityKeys;
use nacre_layout::Layout;
use nacre_rpc::Export;
use nacre_types::{Capability, Fid, Identity, ObjectNeed, Rights, Roles, Status, StatusResult, perm};
use nacre_wire::mds::{CAPABILITIES_MAX, FileCapabilities, MdsAnswer, MdsReply, MdsRequest};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Lifetime of a capability in seconds, unless configured.
const EXPIRE_S: u64 = 600;
/// Range of lifetimes in seconds: from the shortest that leaves a client time for a renewal, to the lifetime
/// of a key.
const EXPIRE_S_RANGE: std::ops::RangeInclusive<u64> = 30..=86_400;

/// See the [module documentation](self).
pub struct Capabilities {
    leaves: Arc<Leaves>,
    keys: OnceLock<Arc<CapabilityKeys>>,
    expire_s: AtomicU64,
    layouts: Arc<Layouts>,
}

/// Returns the identity of a client that needs capabilities at object servers.
fn holder(export: &Export) -> Option<&Identity> {
    export.identity.as_deref().filter(|identity| !identity.roles.contains(Roles::MDS))
}

impl Capabilities {
    pub(crate) fn new(leaves: &Arc<Leaves>, layouts: &Arc<Layouts>) -> Capabilities {
        Capabilities {
            leaves: leaves.clone(),
            keys: OnceLock::new(),
            expire_s: AtomicU64::new(EXPIRE_S),
            layouts: layouts.clone(),
        }
    }

    /// Sets the keys that sign capabilities; only the first call has an effect.
    pub fn sign_with(&self, keys: Arc<CapabilityKeys>) {
        let _ = self.keys.set(keys);
    }

    /// Returns the lifetime of capabilities in seconds (`mdt.*.capability_expire_s`).
    pub fn expire_s(&self) -> u64 {
        self.expire_s.load(Ordering::Relaxed)
    }

    /// Sets the lifetime of capabilities signed from this call on, in seconds.
    ///
    /// # Errors
    /// `ERANGE` for less than half a minute and more than a day.
    pub fn set_expire_s(&self, expire_s: u64) -> StatusResult<()> {
        if !EXPIRE_S_RANGE.contains(&expire_s) {
            return Err(Status::ERANGE);
        }
        self.expire_s.store(expire_s, Ordering::Relaxed);
        Ok(())
    }

    /// Adds capabilities to an answer with a layout.
    pub(crate) fn add_to(&self, export: &Export, request: &MdsRequest<'_>, answer: &mut MdsAnswer) {
        if answer.capabilities.is_some() || !self.are_given_to(export) {
            return;
        }
        let (fid, layout) = match (&answer.reply, request) {
            (
                MdsReply::Created { attr, layout: Some(layout), .. }
                | MdsReply::Opened { attr, layout: Some(layout), .. },
                _,
            ) => (attr.fid, layout),
            (
                MdsReply::Layout(Some(layout)) | MdsReply::LockedLayout { layout: Some(layout), .. },
                MdsRequest::GetLayout { fid }
                | MdsRequest::LayoutIntent { fid, .. }
                | MdsRequest::LayoutAccess { fid, .. },
            ) => (*fid, layout),
            _ => return,
        };
        let rights = self.leaves.opens.rights(&fid, &export.client);
        answer.capabilities = self.sign(export, fid, layout, rights);
    }

    /// Checks that a client which needs capabilities got one to write to each of these objects.
    ///
    /// # Errors
    /// `EACCES` if it did not.
    pub(crate) fn check_proof(
        &self,
        export: &Export,
        proof: Option<&FileCapabilities>,
        objects: impl Iterator<Item = Fid>,
    ) -> StatusResult<()> {
        let (Some(holder), Some(keys)) = (holder(export), self.keys.get().filter(|keys| keys.are_known()))
        else {
            return Ok(());
        };
        let now_s = keys.clock().now_s();
        for object in objects {
            let signed = proof.and_then(|given| {
                let (_, tag) = given.objects.iter().find(|(signed, _)| *signed == object)?;
                Some(Capability {
                    rights: given.rights,
                    epoch: given.epoch,
                    expires_s: given.expires_s,
                    tag: *tag,
                })
            });
            let need = ObjectNeed { object, any_of: Rights::WRITE };
            keys.check(holder.id, &need, signed.as_ref(), now_s, &export.verified).map_err(|error| {
                log::warn!("replay of client {}: object {object}: {error}", export.client);
                Status::EACCES
            })?;
        }
        Ok(())
    }

    fn are_given_to(&self, export: &Export) -> bool {
        holder(export).is_some() && self.keys.get().is_some_and(|keys| keys.are_known())
    }

    /// Returns capabilities for the current objects of a file. Takes no lock that another thread may hold for
    /// long: the client may be writing out data that the holder of such a lock waits for.
    pub(crate) fn of(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        wanted: Rights,
    ) -> StatusResult<Option<Box<FileCapabilities>>> {
        let record = self.leaves.records.inode(fid)?;
        let mut rights = self.leaves.opens.rights(fid, &caller.client);
        for (right, mask) in [(Rights::READ, perm::READ), (Rights::WRITE, perm::WRITE)] {
            if wanted.contains(right) && !rights.contains(right) {
                match check_access(&record, caller.cred(), mask) {
                    Ok(()) => rights |= right,
                    Err(Status::EACCES) => {}
                    Err(status) => return Err(status),
                }
            }
        }
        let layout = self.layouts.layout_of(&record)?.filter(|_| self.are_given_to(caller.export));
        let capabilities = layout.and_then(|layout| self.sign(caller.export, *fid, &layout, rights));
        Ok(capabilities)
    }

    /// Signs a capability; `None` if the file has no objects.
    fn sign(
        &self,
        export: &Export,
        fid: Fid,
        layout: &Layout,
        rights: Rights,
    ) -> Option<Box<FileCapabilities>> {
        if !layout.has_objects() {
            return None;
        }
        let holder = holder(export)?;
        let mut rights = rights | Rights::ATTRIBUTES;
        rights.set(Rights::WRITE, rights.contains(Rights::WRITE) && !holder.read_only);
        let keys = self.keys.get()?;
        let (now_s, life_s) = (keys.clock().now_s(), self.expire_s());
        let expires_s = now_s + life_s;
        let signer = keys.signer(holder.id, rights, expires_s, now_s)?;
        let objects = layout.objects().take(CAPABILITIES_MAX);
        let objects = objects.map(|object| (object.object, signer.sign(&object.object).tag)).collect();
        let (epoch, life_s) = (signer.epoch(), u32::try_from(life_s).unwrap_or(u32::MAX));
        Some(Box::new(FileCapabilities { fid, rights, epoch, expires_s, life_s, objects }))
    }
}
