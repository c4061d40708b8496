//! Registration of targets at the management server, and addition of a target while the process runs.

use super::links::{LinkOptions, Links};
use super::targets::Services;
use super::{Node, Plan, no_config};
use crate::control::NewTarget;
use crate::failure::{Failure, Result};
use crate::instance::{self, Adding, Instance, random_uuid};
use crate::keys::Keys;
use crate::process::NODE;
use crate::target_options::TargetOptions;
use nacre_env::clock::Instant;
use nacre_rpc::tcp::Server;
use nacre_types::nid::MountSource;
use nacre_types::{ClientUuid, Nid, Status, StatusResult, TargetId, TargetKind};
use nacre_wire::mgs::{FsConfig, MgsReply, MgsRequest};
use std::path::Path;
use std::time::Duration;

/// Timeout for the mount of this process to learn of an added MDT.
const MOUNT_LIMIT: Duration = Duration::from_secs(20);

/// Registers the targets of this process at the management server; returns the configuration afterwards.
pub(super) fn register_all(
    plan: &Plan,
    links: &Links,
    services: &Services,
    server: Option<&Server>,
    config: FsConfig,
) -> Result<FsConfig> {
    let Some(instance) = &plan.instance else {
        return Ok(config);
    };
    let nids = plan.nids(server);
    let mut config = config;
    for target in plan.targets.iter().filter(|target| **target != TargetId::mgt()) {
        config = match instance::is_joining(instance, *target) {
            true => join(instance, *target, links, services, &nids)?,
            false => links.register(*target, &nids, &instance.superblock.fs_uuid).map_err(|status| {
                Failure::new(format!("the management server refused {target}: {status}"))
            })?,
        };
    }
    Ok(config)
}

/// Returns the configuration of a file system from the management server at `mgs`.
///
/// # Errors
/// If it does not answer or has no such file system.
pub fn configuration_at(mgs: &[Nid], fsname: &str, dir: Option<&Path>) -> Result<FsConfig> {
    MgsWay::new(&MountSource::whole(mgs.to_vec(), fsname), dir)?.configuration()
}

/// A command's connection to a management server.
pub struct MgsWay {
    source: MountSource,
    keys: Option<Keys>,
    links: Links,
}

impl MgsWay {
    /// Connects to the management server of a source; `dir`: a directory with targets of the file system,
    /// whose key is used.
    ///
    /// # Errors
    /// If there are keys that cannot be used.
    pub fn new(source: &MountSource, dir: Option<&Path>) -> Result<MgsWay> {
        let client = ClientUuid(random_uuid()?);
        let keys = match dir {
            Some(dir) => Keys::of_dir(dir, &source.fsname)?,
            None => Keys::local(&source.fsname)?,
        };
        let options = LinkOptions { keys: keys.as_ref(), ..LinkOptions::default() };
        let links = Links::new(&Services::default(), &source.nids, &source.fsname, client, true, options)?;
        Ok(MgsWay { source: source.clone(), keys, links })
    }

    /// Returns the name of the file system.
    pub fn fsname(&self) -> &str {
        &self.source.fsname
    }

    /// Returns the configuration of the file system.
    ///
    /// # Errors
    /// If it does not answer or has no such file system.
    pub fn configuration(&self) -> Result<FsConfig> {
        let MountSource { nids, fsname, .. } = &self.source;
        self.links.config(0, 0).map_err(|status| no_config(nids, fsname, status))
    }

    /// Sends one request.
    ///
    /// # Errors
    /// The status of the server.
    pub fn call(&self, request: &MgsRequest) -> StatusResult<MgsReply> {
        self.links.mgs().call(request)
    }

    /// Returns the certificate of the authority of this host's key, as PEM.
    ///
    /// # Errors
    /// If this host has no key.
    pub fn authority(&self) -> Result<String> {
        let keys = self.keys.as_ref().ok_or_else(|| {
            Failure::new(format!("this host has no key of file system '{}'", self.source.fsname))
        })?;
        keys.authority()
    }
}

/// Registers a target that this process serves as part of the file system. From then on clients may use it.
fn join(
    instance: &Instance,
    target: TargetId,
    links: &Links,
    services: &Services,
    nids: &[Nid],
) -> Result<FsConfig> {
    services.await_acquaintance(target)?;
    // If the answer is lost, the record identifies a registration under these NIDs as this target's.
    instance::note_joining(instance, target, nids)?;
    let config =
        links.add(target, nids, &instance.superblock.fs_uuid).map_err(|status| refused(target, status))?;
    instance::joined(instance, target)?;
    log::info!("{target} has joined the file system");
    Ok(config)
}

fn refused(target: TargetId, status: Status) -> Failure {
    Failure::new(match status {
        Status::EEXIST => format!(
            "another server has registered as {target}: if it was this one, start it at the address that it had, otherwise add the \
             target in another directory"
        ),
        Status::ENXIO => format!("a target below {target} has not registered yet: start it first"),
        status => format!("the management server refused {target}: {status}"),
    })
}

impl Node {
    /// Creates a further target in the directory of this process and serves it.
    ///
    /// # Errors
    /// One sentence; a repeated call continues with what was created.
    pub(super) fn add_target(
        &self,
        kind: NewTarget,
        index: Option<u16>,
        ost: &TargetOptions,
    ) -> Result<TargetId> {
        let Some(instance) = self.plan.instance.as_ref().filter(|_| self.plan.name == NODE) else {
            return Err(Failure::new(format!("{} serves one target and no more", self.plan.name)));
        };
        let mut adding = Adding::begin(instance)?;
        let config = self.links.config(0, 0).map_err(|status| {
            Failure::new(format!("the management server does not say which targets there are: {status}"))
        })?;
        let target = adding.plan(kind.kind(), index, &config)?;
        adding.create_with(target, ost)?;
        let config = self.serve(adding.instance(), target, &config).inspect_err(|_| {
            self.services.close(target);
            self.links.set_local_osts(self.services.osts());
            if let Err(failure) = self.services.introduce_mdts(&config, &self.links) {
                log::error!("{failure}");
            }
        })?;
        self.targets.lock().push(target);
        self.services.enter_params(&[target], &self.params, &self.plan.fsname, &self.links);
        self.use_configuration(&config);
        if target.kind == TargetKind::Mdt {
            let deadline = Instant::now() + MOUNT_LIMIT;
            let newcomers = self.mount.lock().as_ref().map(|mount| mount.newcomers());
            if newcomers.is_some_and(|newcomers| !newcomers.await_mdt(target.index, deadline)) {
                log::warn!("the mount of this process does not reach {target} yet");
            }
        }
        Ok(target)
    }

    /// Opens a target, offers it to peers and registers it.
    fn serve(&self, instance: &Instance, target: TargetId, config: &FsConfig) -> Result<FsConfig> {
        match target.kind {
            TargetKind::Mdt => self.services.open_mdts(instance, &[target], config, &self.links)?,
            _ => {
                self.services.open_mgt_and_osts(instance, &[target])?;
                self.links.set_local_osts(self.services.osts());
            }
        }
        self.services.set_nodemaps(&config.nodemaps);
        if let Some(server) = &self.server {
            server.add(self.services.offered(&[target]));
        }
        let nids = self.plan.nids(self.server.as_ref());
        join(instance, target, &self.links, &self.services, &nids)
    }
}
