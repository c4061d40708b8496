//! Ways to targets: a direct call for those in this process, TCP for others.

use super::targets::Services;
use crate::failure::{Failure, Result};
use nacre_rpc::tcp::{ClientIdentity, TcpMgs, TcpOss};
use nacre_rpc::{ClientConfig, LoMgs, LoOss, MgsEndpoint, NoCallbacks, OssEndpoint, OssService, Shape};
use nacre_types::{ClientUuid, Nid, Status, StatusResult, TargetId, TargetKind};
use nacre_wire::mgs::{FsConfig, MgsReply, MgsRequest, TargetConfig};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How long the management server is tried when a process starts. Other servers are tried for longer
/// ([`ClientConfig::first_connect_deadline`]): a metadata server that was killed with its clients first waits for them.
const FIRST_CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long a mount tries a management server that refuses connections: long enough for one that is just being started again,
/// short enough for somebody who mistyped its address. Servers try longer: they may be started together.
const REFUSED_LIMIT: Duration = Duration::from_secs(2);
/// How long a request to the management server waits while it is away. Whoever needs its answer asks again.
const MGS_AWAY_LIMIT: Duration = Duration::from_secs(10);

/// Makes endpoints.
pub struct Links {
    fsname: String,
    identity: ClientIdentity,
    rpc: ClientConfig,
    local_osts: BTreeMap<u16, Arc<dyn OssService>>,
    mgs: Arc<dyn MgsEndpoint>,
}

impl Links {
    /// Ways from a process with `services`, whose management server is there or at `mgs`. `is_mount`: it will serve nothing.
    /// `simulate`: a slow network to pretend.
    pub fn new(
        services: &Services,
        mgs: &[Nid],
        fsname: &str,
        client: ClientUuid,
        is_mount: bool,
        simulate: Option<Shape>,
    ) -> Result<Links> {
        let identity = ClientIdentity { client, fsname: fsname.to_owned() };
        if let Some(shape) = &simulate {
            log::warn!("figures of this mount are those of a {shape}");
        }
        let rpc = ClientConfig { shape: simulate, ..ClientConfig::default() };
        let mgs: Arc<dyn MgsEndpoint> = match services.mgs() {
            Some(service) => Arc::new(LoMgs::new(service)),
            None => {
                let rpc = ClientConfig {
                    shape: None,
                    first_connect_deadline: FIRST_CONNECT_LIMIT,
                    refused_deadline: is_mount.then_some(REFUSED_LIMIT),
                    deadline: Some(MGS_AWAY_LIMIT),
                    ..rpc.clone()
                };
                let remote = TcpMgs::new(mgs, &identity, &rpc).map_err(|status| {
                    Failure::new(format!("the management server's address cannot be used: {status}"))
                })?;
                Arc::new(remote)
            }
        };
        Ok(Links { fsname: fsname.to_owned(), identity, rpc, local_osts: services.osts(), mgs })
    }

    /// Who this process is to servers.
    pub fn identity(&self) -> &ClientIdentity {
        &self.identity
    }

    /// Options of connections.
    pub fn rpc(&self) -> &ClientConfig {
        &self.rpc
    }

    /// Way to the management server.
    pub fn mgs(&self) -> &Arc<dyn MgsEndpoint> {
        &self.mgs
    }

    /// The configuration, see [`MgsRequest::GetConfig`].
    pub fn config(&self, newer_than: u64, wait_ms: u32) -> StatusResult<FsConfig> {
        let request = MgsRequest::GetConfig { fsname: self.fsname.clone(), newer_than, wait_ms };
        config_in(self.mgs.call(&request)?)
    }

    /// Tells where a target is served; the configuration afterwards.
    pub fn register(&self, target: TargetId, nids: &[Nid], fs_uuid: &[u8; 16]) -> StatusResult<FsConfig> {
        let target = TargetConfig { target, nids: nids.to_vec(), active: true };
        let request = MgsRequest::RegisterTarget { fsname: self.fsname.clone(), fs_uuid: *fs_uuid, target };
        config_in(self.mgs.call(&request)?)
    }

    /// Ways to all OSTs that are in use. One that cannot be reached from here is left out and logged.
    pub fn osts(&self, config: &FsConfig) -> BTreeMap<u16, Arc<dyn OssEndpoint>> {
        let wanted = config.targets.iter().filter(|t| t.target.kind == TargetKind::Ost && t.active);
        wanted
            .filter_map(|target| match self.ost(target) {
                Ok(endpoint) => Some((target.target.index, endpoint)),
                Err(status) => {
                    log::warn!("{} cannot be reached from here: {status}", target.target);
                    None
                }
            })
            .chain(self.unregistered(config))
            .collect()
    }

    /// OSTs of this process before their first registration.
    fn unregistered<'a>(
        &'a self,
        config: &'a FsConfig,
    ) -> impl Iterator<Item = (u16, Arc<dyn OssEndpoint>)> + 'a {
        let known = |index: u16| config.targets.iter().any(|target| target.target == TargetId::ost(index));
        self.local_osts
            .iter()
            .filter(move |(index, _)| !known(**index))
            .filter_map(|(index, service)| Some((*index, self.local(service).ok()?)))
    }

    fn local(&self, service: &Arc<dyn OssService>) -> StatusResult<Arc<dyn OssEndpoint>> {
        let endpoint = LoOss::connect(service.clone(), self.identity.client, Arc::new(NoCallbacks))?;
        Ok(Arc::new(endpoint))
    }

    fn ost(&self, target: &TargetConfig) -> StatusResult<Arc<dyn OssEndpoint>> {
        let index = target.target.index;
        if let Some(service) = self.local_osts.get(&index) {
            return self.local(service);
        }
        Ok(Arc::new(TcpOss::new(index, &remote_nids(target), &self.identity, &self.rpc)?))
    }
}

/// The NIDs by which another process reaches a target.
pub fn remote_nids(target: &TargetConfig) -> Vec<Nid> {
    target.nids.iter().copied().filter(|nid| *nid != Nid::Lo).collect()
}

fn config_in(reply: MgsReply) -> StatusResult<FsConfig> {
    match reply {
        MgsReply::Config(config) => Ok(config),
        MgsReply::Done => Err(Status::EPROTO),
    }
}
