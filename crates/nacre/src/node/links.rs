//! Endpoints of targets: a direct call for targets in this process, TCP for others.

use super::targets::Services;
use crate::failure::{Failure, Result};
use crate::instance::random_uuid;
use crate::keys::Keys;
use nacre_env::sync::RwLock;
use nacre_keys::CapabilityKeys;
use nacre_rpc::tcp::{ClientIdentity, TcpMds, TcpMgs, TcpOss};
use nacre_rpc::{
    AuditSink, ClientConfig, LoMds, LoMgs, LoOss, MdsEndpoint, MdsService, MgsEndpoint, NoCallbacks,
    OssEndpoint, OssService, OstEventsFactory, Shape,
};
use nacre_types::{ClientUuid, KeyId, Nid, Status, StatusResult, TargetId, TargetKind};
use nacre_wire::mgs::{FsConfig, MgsReply, MgsRequest, TargetConfig};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Timeout for the first connection to the management server. Other servers have longer
/// ([`ClientConfig::first_connect_deadline`]): a metadata server that was killed together with its clients
/// first waits for them.
const FIRST_CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Timeout for a mount whose management server refuses connections: long enough for a server that is
/// restarting, short enough for a user who mistyped its address. Servers try longer: they may be started
/// together.
const REFUSED_LIMIT: Duration = Duration::from_secs(2);
/// Timeout of a request to an unreachable management server. A caller that needs its answer retries.
const MGS_AWAY_LIMIT: Duration = Duration::from_secs(10);

/// Timeout of a request from one metadata server to another that is unreachable; the operation then fails or
/// is deferred.
const MDT_AWAY_LIMIT: Duration = Duration::from_secs(5);

/// Options of a process's connections to others.
#[derive(Default)]
pub struct LinkOptions<'a> {
    /// A slow network to simulate.
    pub simulate: Option<Shape>,
    /// Keys that the process presents.
    pub keys: Option<&'a Keys>,
    /// Audit log of changes that it requests from its own management server.
    pub audit: Option<Arc<dyn AuditSink>>,
}

/// Factory of endpoints.
pub struct Links {
    fsname: String,
    identity: ClientIdentity,
    rpc: ClientConfig,
    local_osts: RwLock<BTreeMap<u16, Arc<dyn OssService>>>,
    mgs: Arc<dyn MgsEndpoint>,
    /// Key of this process, if it serves: a management server in the same process trusts it.
    key: Option<KeyId>,
    /// Capability keys of the services, which get the management server's time with its answers.
    capability_keys: Arc<CapabilityKeys>,
}

impl Links {
    /// Creates the links of a process with `services`, whose management server is in it or at `mgs`.
    /// `is_mount`: the process will serve nothing.
    pub fn new(
        services: &Services,
        mgs: &[Nid],
        fsname: &str,
        client: ClientUuid,
        is_mount: bool,
        options: LinkOptions<'_>,
    ) -> Result<Links> {
        let LinkOptions { simulate, keys, .. } = options;
        let identity = ClientIdentity { client, fsname: fsname.to_owned(), is_server: false };
        if let Some(shape) = &simulate {
            log::warn!("figures of this mount are those of a {shape}");
        }
        let rpc = ClientConfig { shape: simulate, tls: keys.map(Keys::client), ..ClientConfig::default() };
        let mgs: Arc<dyn MgsEndpoint> = match services.mgs() {
            Some(service) => Arc::new(LoMgs::new(service, options.audit)),
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
        let local_osts = RwLock::new(services.osts());
        let key = keys.and_then(Keys::server_id);
        let (fsname, capability_keys) = (fsname.to_owned(), services.capability_keys().clone());
        Ok(Links { fsname, identity, rpc, local_osts, mgs, key, capability_keys })
    }

    /// Returns the identity of this process at servers.
    pub fn identity(&self) -> &ClientIdentity {
        &self.identity
    }

    /// Returns the options of connections to a target, which presents the key that it belongs to.
    pub fn rpc_to(&self, key: Option<KeyId>) -> ClientConfig {
        ClientConfig { server_key: key, ..self.rpc.clone() }
    }

    /// Returns the endpoint of the management server.
    pub fn mgs(&self) -> &Arc<dyn MgsEndpoint> {
        &self.mgs
    }

    /// Requests the configuration, see [`MgsRequest::GetConfig`].
    pub fn config(&self, newer_than: u64, wait_ms: u32) -> StatusResult<FsConfig> {
        let request = MgsRequest::GetConfig { fsname: self.fsname.clone(), newer_than, wait_ms };
        self.ask_for_config(&request)
    }

    fn ask_for_config(&self, request: &MgsRequest) -> StatusResult<FsConfig> {
        match self.mgs.call(request)? {
            MgsReply::Config { config, now_s } => {
                self.capability_keys.clock().set(now_s);
                Ok(config)
            }
            MgsReply::Done | MgsReply::Certificate { .. } | MgsReply::Token(_) | MgsReply::Keys(_) => {
                Err(Status::EPROTO)
            }
        }
    }

    /// Registers the NIDs of a target; returns the configuration afterwards.
    pub fn register(&self, target: TargetId, nids: &[Nid], fs_uuid: &[u8; 16]) -> StatusResult<FsConfig> {
        let target = TargetConfig { target, nids: nids.to_vec(), active: true, key: self.key };
        let request = MgsRequest::RegisterTarget { fsname: self.fsname.clone(), fs_uuid: *fs_uuid, target };
        self.ask_for_config(&request)
    }

    /// Registers a new target that is served; returns the configuration afterwards.
    pub fn add(&self, target: TargetId, nids: &[Nid], fs_uuid: &[u8; 16]) -> StatusResult<FsConfig> {
        let target = TargetConfig { target, nids: nids.to_vec(), active: true, key: self.key };
        let request = MgsRequest::AddTarget { fsname: self.fsname.clone(), fs_uuid: *fs_uuid, target };
        self.ask_for_config(&request)
    }

    /// Replaces the OSTs of this process.
    pub fn set_local_osts(&self, osts: BTreeMap<u16, Arc<dyn OssService>>) {
        *self.local_osts.write() = osts;
    }

    /// Returns a metadata server's endpoints of all OSTs in use. Each is a client of its own to its OST: the
    /// state of this process's mount at the OST is separate.
    pub fn osts_of_server(&self, config: &FsConfig) -> Result<BTreeMap<u16, Arc<dyn OssEndpoint>>> {
        self.ost_targets(config)
            .into_iter()
            .map(|(index, target)| {
                let identity = ClientIdentity { client: ClientUuid(random_uuid()?), ..self.identity.clone() };
                Ok((index, self.reach(index, target, &identity, None)))
            })
            .filter_map(|way| match way {
                Ok((index, endpoint)) => endpoint.map(|endpoint| Ok((index, endpoint))),
                Err(failure) => Some(Err(failure)),
            })
            .collect()
    }

    /// Returns endpoints of the OSTs in use that the mount does not know yet; a second connection of one
    /// client to one OST would end the first. `events` receives callbacks of locks and recovery.
    pub fn osts_of_mount(
        &self,
        config: &FsConfig,
        is_known: impl Fn(u16) -> bool,
        events: &dyn OstEventsFactory,
    ) -> BTreeMap<u16, Arc<dyn OssEndpoint>> {
        self.ost_targets(config)
            .into_iter()
            .filter(|(index, _)| !is_known(*index))
            .filter_map(|(index, target)| {
                Some((index, self.reach(index, target, &self.identity, Some(events))?))
            })
            .collect()
    }

    /// Returns the mount's endpoints of the data on metadata targets, `local` if they are in this process.
    pub fn mdt_data_of_mount(
        &self,
        config: &FsConfig,
        local: &BTreeMap<u16, Arc<dyn OssService>>,
        events: &dyn OstEventsFactory,
    ) -> BTreeMap<u16, Arc<dyn OssEndpoint>> {
        let mdts = config.targets.iter().filter(|target| target.target.kind == TargetKind::Mdt);
        mdts.filter_map(|mdt| self.data_of_mdt(mdt, local, events)).collect()
    }

    /// Returns the mount's endpoint of the data on one of them.
    pub fn data_of_mdt(
        &self,
        mdt: &TargetConfig,
        local: &BTreeMap<u16, Arc<dyn OssService>>,
        events: &dyn OstEventsFactory,
    ) -> Option<(u16, Arc<dyn OssEndpoint>)> {
        let index = TargetId::mdt_data(mdt.target.index)?.index;
        let service = local.get(&index).cloned();
        Some((index, self.reach_at(index, service, Some(mdt), &self.identity, Some(events))?))
    }

    /// Returns the endpoint of one metadata server to another: `service` if that is in this process. `None`
    /// if it cannot be reached from here.
    pub fn mdt_of_server(
        &self,
        index: u16,
        service: Option<Arc<dyn MdsService>>,
        nids: &[Nid],
        key: Option<KeyId>,
    ) -> Result<Option<Arc<dyn MdsEndpoint>>> {
        let identity =
            ClientIdentity { client: ClientUuid(random_uuid()?), is_server: true, ..self.identity.clone() };
        if let Some(service) = service {
            let way = LoMds::connect_server(service, identity.client);
            return match way {
                Ok(way) => Ok(Some(Arc::new(way))),
                Err(status) => Err(Failure::new(format!("MDT{index:04x} cannot be reached: {status}"))),
            };
        }
        let rpc = ClientConfig { deadline: Some(MDT_AWAY_LIMIT), ..self.rpc_to(key) };
        match TcpMds::new(index, nids, &identity, &rpc, Arc::new(NoCallbacks)) {
            Ok(way) => Ok(Some(Arc::new(way))),
            Err(status) => {
                log::warn!("MDT{index:04x} cannot be reached from here: {status}");
                Ok(None)
            }
        }
    }

    /// Returns the OSTs in use, and those of this process before their first registration.
    fn ost_targets<'a>(&'a self, config: &'a FsConfig) -> BTreeMap<u16, Option<&'a TargetConfig>> {
        let osts = || config.targets.iter().filter(|target| target.target.kind == TargetKind::Ost);
        let registered = osts().filter(|target| target.active);
        let known = |index: u16| osts().any(|target| target.target.index == index);
        let local: Vec<u16> = self.local_osts.read().keys().copied().collect();
        let unregistered = local.into_iter().filter(|index| !known(*index)).map(|index| (index, None));
        registered.map(|target| (target.target.index, Some(target))).chain(unregistered).collect()
    }

    /// Returns an endpoint of an OST. One that cannot be reached from here is left out and logged.
    fn reach(
        &self,
        index: u16,
        target: Option<&TargetConfig>,
        identity: &ClientIdentity,
        events: Option<&dyn OstEventsFactory>,
    ) -> Option<Arc<dyn OssEndpoint>> {
        let service = self.local_osts.read().get(&index).cloned();
        self.reach_at(index, service, target, identity, events)
    }

    /// Like [`Links::reach`], with the service if it is in this process.
    fn reach_at(
        &self,
        index: u16,
        service: Option<Arc<dyn OssService>>,
        target: Option<&TargetConfig>,
        identity: &ClientIdentity,
        events: Option<&dyn OstEventsFactory>,
    ) -> Option<Arc<dyn OssEndpoint>> {
        let events = events.map(|factory| factory.events(index));
        let way = || -> StatusResult<Arc<dyn OssEndpoint>> {
            if let Some(service) = service {
                return Ok(Arc::new(match events {
                    Some(events) => LoOss::with_events(service, identity.client, events)?,
                    None => LoOss::connect(service, identity.client, Arc::new(NoCallbacks))?,
                }));
            }
            let target = target.ok_or(Status::ENODEV)?;
            let (nids, rpc) = (remote_nids(target), self.rpc_to(target.key));
            Ok(Arc::new(match events {
                Some(events) => TcpOss::with_events(index, &nids, identity, &rpc, events)?,
                None => TcpOss::new(index, &nids, identity, &rpc)?,
            }))
        };
        way()
            .inspect_err(|status| {
                log::warn!("{} cannot be reached from here: {status}", TargetId::ost(index))
            })
            .ok()
    }
}

/// Returns the NIDs by which another process reaches a target.
pub fn remote_nids(target: &TargetConfig) -> Vec<Nid> {
    target.nids.iter().copied().filter(|nid| *nid != Nid::Lo).collect()
}
