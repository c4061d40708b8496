//! Targets: a server process on a host of its own, as a node of a cluster assembles it.

use crate::aliases::{Aliases, NotedMds};
use crate::disk::{Backend, Disk, Objects};
use crate::host::{Host, Process};
use crate::planted::{Bug, PlantedMds, PlantedOss};
use crate::watch::{WatchedDevice, WatchedOss};
use nacre_layout::LayoutRequest;
use nacre_mds::{Mds, MdsConfig};
use nacre_oss::{ObjectServer, OssConfig};
use nacre_rpc::tcp::{ClientIdentity, Network, Server, SimulatedNetwork, Targets, TcpMds, TcpOss};
use nacre_rpc::{
    ClientConfig, LoOss, MdsEndpoint, MdsService, NoCallbacks, OssEndpoint, OssService, ServerConfig,
};
use nacre_store::MetaStoreOptions;
use nacre_store::object::block::device::BlockDevice;
use nacre_store::object::simulated::Simulated;
use nacre_store::object::{BlockStore, BlockStoreOptions, FileStore, FileStoreOptions, ObjectStore};
use nacre_types::{Nid, TargetId, TargetKind};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Name of the file system.
pub(crate) const FSNAME: &str = "sim";
/// Timeout for requests of an object server to end at its stop.
const STOP_LIMIT: Duration = Duration::from_secs(20);
/// Timeout of a request of an MDT to another one that is unreachable, as in a node.
const PEER_LIMIT: Duration = Duration::from_secs(5);

/// Addresses of all targets.
#[derive(Clone)]
pub(crate) struct Map {
    pub(crate) network: Arc<SimulatedNetwork>,
    pub(crate) mdts: Vec<Nid>,
    pub(crate) osts: Vec<Nid>,
    /// A planted bug, if there is one.
    pub(crate) bug: Option<Bug>,
    /// FIDs of inodes that have moved.
    pub(crate) aliases: Arc<Aliases>,
    /// Time for clients of a previous run of an MDT to return.
    pub(crate) recovery_window: Duration,
}

impl Map {
    /// Returns the settings of connections.
    pub(crate) fn rpc(&self) -> ClientConfig {
        ClientConfig { network: Network::Simulated(self.network.clone()), ..ClientConfig::default() }
    }

    fn planted_mds(&self, mds: &Arc<Mds>) -> Arc<dyn MdsService> {
        match self.bug {
            Some(bug) => Arc::new(PlantedMds::new(mds.clone(), bug)),
            None => mds.clone(),
        }
    }

    fn planted_oss(&self, oss: &Arc<ObjectServer>) -> Arc<dyn OssService> {
        match self.bug {
            Some(bug) => Arc::new(PlantedOss::new(oss.clone(), bug)),
            None => oss.clone(),
        }
    }

    fn serve(&self, host: &Host, targets: Targets) -> Server {
        let network = Network::Simulated(self.network.clone());
        let config = ServerConfig { fsname: FSNAME.to_owned(), network, ..ServerConfig::default() };
        Server::bind(&[host.addr()], targets, config).expect("the address is free")
    }
}

/// What a target is created with.
pub(crate) struct NewTarget {
    /// Default layout of the root.
    pub(crate) layout: LayoutRequest,
    /// Bytes of a segment of its log, which has two.
    pub(crate) wal_segment_bytes: u64,
}

impl Default for NewTarget {
    fn default() -> NewTarget {
        NewTarget { layout: nacre_mds::first_layout(), wal_segment_bytes: WAL_SEGMENT_BYTES }
    }
}

/// Segment that is small enough for checkpoints in short runs.
const WAL_SEGMENT_BYTES: u64 = 512 << 10;

fn store_options() -> MetaStoreOptions {
    MetaStoreOptions {
        overlay_bytes: WAL_SEGMENT_BYTES / 4,
        wal_segment_bytes: WAL_SEGMENT_BYTES,
        map_bytes: 64 << 20,
        reserve_bytes: 0,
        ..MetaStoreOptions::small()
    }
}

pub(crate) fn mds_config(index: u16) -> MdsConfig {
    MdsConfig {
        index,
        reserve_bytes: Some(0),
        data_reserve_bytes: Some(0),
        cached_inodes: 64,
        store: store_options(),
        ..MdsConfig::default()
    }
}

fn file_options() -> FileStoreOptions {
    FileStoreOptions { spare_files: 4, reserve_bytes: Some(0), ..FileStoreOptions::default() }
}

fn block_options() -> BlockStoreOptions {
    BlockStoreOptions {
        reserve_bytes: Some(0),
        read_ahead_bytes: 0,
        index_reserve_bytes: Some(0),
        ..BlockStoreOptions::default()
    }
}

/// A target and its host.
pub(crate) struct Target {
    pub(crate) id: TargetId,
    pub(crate) backend: Backend,
    pub(crate) host: Host,
    pub(crate) disk: Disk,
    pub(crate) running: Option<Running>,
}

/// The process of a target.
pub(crate) struct Running {
    pub(crate) process: Process,
    server: Server,
    service: Service,
}

/// What the process serves, and its endpoints of other targets.
pub(crate) enum Service {
    Mdt { mds: Arc<Mds>, data: Arc<ObjectServer>, osts: Vec<Arc<dyn OssEndpoint>> },
    Ost { oss: Arc<ObjectServer> },
}

impl Target {
    /// Creates the target on an empty disk.
    pub(crate) fn format(&mut self, new: &NewTarget) {
        let wal_segment_bytes = new.wal_segment_bytes;
        let store: Box<dyn ObjectStore> = match self.id.kind {
            TargetKind::Mdt => {
                let store = MetaStoreOptions { wal_segment_bytes, ..store_options() };
                let root_layout = new.layout.clone();
                let config = MdsConfig { root_layout, store, ..mds_config(self.id.index) };
                return Mds::format(&self.disk.dir, &config).expect("formatted");
            }
            _ => self.open_objects(Some(wal_segment_bytes), false).expect("the store is made"),
        };
        store.close().expect("closed");
    }

    /// Opens the object store of an OST, or creates it, with this size of a segment of its log. `forgets`: its
    /// files lose what was synced.
    ///
    /// # Errors
    /// If it is damaged.
    pub(crate) fn open_objects(
        &self,
        create: Option<u64>,
        forgets: bool,
    ) -> Result<Box<dyn ObjectStore>, String> {
        let store = self.open_plain(create, forgets).map_err(|error| error.to_string())?;
        // A device has simulated service times of its own.
        Ok(if self.backend == Backend::File { Box::new(Simulated::new(store)) } else { store })
    }

    fn open_plain(
        &self,
        create: Option<u64>,
        forgets: bool,
    ) -> nacre_store::object::Result<Box<dyn ObjectStore>> {
        let dir = &self.disk.dir;
        let label = format!("{FSNAME}-{}", self.id);
        let wal_segment_bytes = create.unwrap_or(WAL_SEGMENT_BYTES);
        let index = Some(MetaStoreOptions { wal_segment_bytes, ..store_options() });
        let create = create.is_some();
        match &self.disk.objects {
            Objects::Files(files) => {
                files.forget_syncs(forgets);
                let options = FileStoreOptions { create, label, index, ..file_options() };
                Ok(Box::new(FileStore::open_in_memory(dir, options, files)?))
            }
            Objects::Device(device) => {
                let options = BlockStoreOptions { create, label, index, ..block_options() };
                let device: Arc<dyn BlockDevice> = match &self.disk.watcher {
                    Some(watcher) => {
                        Arc::new(WatchedDevice { inner: device.clone(), watcher: watcher.clone() })
                    }
                    None => device.clone(),
                };
                Ok(Box::new(BlockStore::open_with(dir, options, device)?))
            }
            Objects::Records => unreachable!("the data of an MDT is in its metadata store"),
        }
    }

    /// Starts the process of the target.
    ///
    /// # Errors
    /// If its store does not open.
    pub(crate) fn start(&mut self, map: &Map) -> Result<(), String> {
        let process = self.host.start_process();
        let opened = process.run(|| self.disk.log.clone().watch(|| self.open(map)));
        let (service, targets) = opened.map_err(|error| format!("{} does not start: {error}", self.id))?;
        let server = process.run(|| map.serve(&self.host, targets));
        process.run(|| service.on_listening());
        self.running = Some(Running { process, server, service });
        Ok(())
    }

    fn open(&self, map: &Map) -> Result<(Service, Targets), String> {
        match self.id.kind {
            TargetKind::Mdt => self.open_mdt(map),
            _ => {
                let forgets = map.bug == Some(Bug::FileSyncForgotten);
                let store: Arc<dyn ObjectStore> = Arc::from(self.open_objects(None, forgets)?);
                let oss = ObjectServer::open(store, self.id.index, &self.disk.dir, &OssConfig::default());
                let oss = Arc::new(oss.map_err(|error| error.to_string())?);
                oss.await_listening();
                let service = map.planted_oss(&oss);
                let service = match &self.disk.watcher {
                    Some(watcher) if self.backend == Backend::File => {
                        Arc::new(WatchedOss { inner: service, watcher: watcher.clone() })
                    }
                    _ => service,
                };
                let targets = Targets::new().with_ost(self.id.index, service);
                Ok((Service::Ost { oss }, targets))
            }
        }
    }

    fn identity(&self, purpose: u16, is_server: bool) -> ClientIdentity {
        ClientIdentity { client: self.host.uuid(purpose), fsname: FSNAME.to_owned(), is_server }
    }

    fn open_mdt(&self, map: &Map) -> Result<(Service, Targets), String> {
        let index = self.id.index;
        let reach = |(ost, nid): (u16, &Nid)| {
            let way = TcpOss::new(ost, &[*nid], &self.identity(ost, false), &map.rpc());
            (ost, Arc::new(way.expect("a valid NID")) as Arc<dyn OssEndpoint>)
        };
        let osts: Vec<_> = (0..).zip(&map.osts).map(reach).collect();
        let config = MdsConfig { recovery_window: map.recovery_window, ..mds_config(index) };
        let mds = Mds::open_with(&self.disk.dir, config, osts.clone(), None);
        let mds = mds.map_err(|error| error.to_string())?;
        mds.sessions.await_listening();
        let data = open_data(&mds, index, &self.disk.dir, self.host.uuid(u16::MAX));
        mds.set_newcomers(Box::new(|_| Ok(false)));
        let others = (0..).zip(&map.mdts).filter(|(other, _)| *other != index);
        let peers: BTreeMap<u16, Arc<dyn MdsEndpoint>> = others
            .map(|(other, nid): (u16, &Nid)| {
                let rpc = ClientConfig { deadline: Some(PEER_LIMIT), ..map.rpc() };
                let identity = self.identity(1000 + other, true);
                let way = TcpMds::new(other, &[*nid], &identity, &rpc, Arc::new(NoCallbacks));
                (other, Arc::new(way.expect("a valid NID")) as Arc<dyn MdsEndpoint>)
            })
            .collect();
        mds.set_peers(peers).expect("threads start");
        let data_index = TargetId::mdt_data(index).expect("a small index").index;
        let targets = Targets::new()
            .with_mdt(index, NotedMds::new(map.planted_mds(&mds), &map.aliases))
            .with_ost(data_index, map.planted_oss(&data));
        let osts = osts.into_iter().map(|(_, way)| way).collect();
        Ok((Service::Mdt { mds, data, osts }, targets))
    }

    pub(crate) fn mds(&self) -> Option<&Arc<Mds>> {
        match &self.running.as_ref()?.service {
            Service::Mdt { mds, .. } => Some(mds),
            Service::Ost { .. } => None,
        }
    }

    /// Returns the object service of an OST, or for data of an MDT.
    pub(crate) fn oss(&self) -> Option<&Arc<ObjectServer>> {
        match &self.running.as_ref()?.service {
            Service::Mdt { data, .. } => Some(data),
            Service::Ost { oss } => Some(oss),
        }
    }
}

/// Opens the service for data on an MDT.
fn open_data(
    mds: &Arc<Mds>,
    index: u16,
    dir: &std::path::Path,
    client: nacre_types::ClientUuid,
) -> Arc<ObjectServer> {
    let id = TargetId::mdt_data(index).expect("a small index");
    let data = ObjectServer::open(mds.data_store(), id.index, dir, &OssConfig::default());
    let data = Arc::new(data.expect("the data of the MDT opens"));
    data.admit_by(mds.book());
    data.await_listening();
    let way = LoOss::connect(data.clone(), client, Arc::new(NoCallbacks)).expect("a direct call");
    mds.osts.set(vec![(id.index, Arc::new(way))]).expect("threads start");
    mds.lead_recovery_of(data.locks());
    data.follow(mds.replay_gate());
    let told = Arc::downgrade(&data);
    mds.watch_data(Box::new(move |object, bytes| {
        if let Some(data) = told.upgrade() {
            data.note_written(object, bytes);
        }
    }));
    data
}

impl Service {
    fn on_listening(&self) {
        match self {
            Service::Mdt { mds, data, .. } => {
                mds.sessions.on_listening();
                data.on_listening();
            }
            Service::Ost { oss } => oss.on_listening(),
        }
    }
}

impl Running {
    /// Stops the process in order.
    ///
    /// # Errors
    /// The first target that could not be closed.
    pub(crate) fn stop(self) -> Result<(), String> {
        let Running { process, server, service } = self;
        process.run(|| {
            server.stop();
            match service {
                Service::Mdt { mds, data, osts } => {
                    let stopped = data.stop(STOP_LIMIT).map_err(|error| error.to_string());
                    let closed = mds.stop().map_err(|error| error.to_string());
                    for way in osts {
                        way.disconnect(Duration::from_secs(1));
                    }
                    stopped.and(closed)
                }
                Service::Ost { oss } => oss.stop(STOP_LIMIT).map_err(|error| error.to_string()),
            }
        })
    }
}
