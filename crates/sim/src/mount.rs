//! Clients, as a mount without FUSE assembles them.

use crate::host::{Host, Process};
use crate::planted::PlantedEvents;
use crate::target::{FSNAME, Map};
use nacre_client::{Caller, Client, ClientConfig, Lease, RemoteEvents};
use nacre_env::sim;
use nacre_rpc::tcp::{ClientIdentity, SimulatedNetwork, TcpMds, TcpOss};
use nacre_rpc::{MdsEndpoint, OssEndpoint};
use nacre_types::{ClientUuid, Nid, StatusResult, TargetId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Timeout for the last requests of a client at its end, as in a mount.
const GOODBYE_LIMIT: Duration = Duration::from_secs(5);

/// A client in a process of its own.
pub struct Mount {
    pub(crate) process: Process,
    /// The client.
    pub client: Arc<Client>,
    mdts: Vec<Arc<TcpMds>>,
    osts: Vec<Arc<dyn OssEndpoint>>,
    /// Its identity for servers.
    pub(crate) uuid: ClientUuid,
    is_dead: AtomicBool,
}

/// Returns root of this machine, whose capabilities can be read.
pub(crate) fn root() -> Caller {
    Caller { uid: 0, gid: 0, pid: std::process::id() }
}

impl Mount {
    /// Connects a client to all targets.
    ///
    /// # Errors
    /// Those of the metadata servers.
    pub(crate) fn start(host: &Host, map: &Map) -> StatusResult<Mount> {
        let process = host.start_process();
        process.run(|| Mount::connect(host, map, process))
    }

    fn connect(host: &Host, map: &Map, process: Process) -> StatusResult<Mount> {
        let identity = ClientIdentity { client: host.uuid(0), fsname: FSNAME.to_owned(), is_server: false };
        let lease = Lease::new();
        let (mut mdts, mut listeners) = (Vec::new(), Vec::new());
        for (index, nid) in (0..).zip(&map.mdts) {
            let events = Arc::new(RemoteEvents::new(index, lease.callbacks(index), lease.locks().clone()));
            let planted = Arc::new(PlantedEvents { inner: events.clone(), bug: map.bug });
            let (endpoint, _) = TcpMds::connect(index, &[*nid], &identity, &map.rpc(), planted)?;
            mdts.push(Arc::new(endpoint));
            listeners.push(events);
        }
        let events = lease.locks().events();
        let data =
            (0..).zip(&map.mdts).filter_map(|(index, nid)| Some((TargetId::mdt_data(index)?.index, nid)));
        let reach = |(index, nid): (u16, &Nid)| {
            let way = TcpOss::with_events(index, &[*nid], &identity, &map.rpc(), events.events(index))?;
            Ok((index, Arc::new(way) as Arc<dyn OssEndpoint>))
        };
        let osts: BTreeMap<u16, Arc<dyn OssEndpoint>> =
            (0..).zip(&map.osts).chain(data).map(reach).collect::<StatusResult<_>>()?;
        let ways = osts.values().cloned().collect();
        let config = ClientConfig::new(FSNAME, identity.client);
        let endpoints = mdts.iter().map(|mdt| mdt.clone() as Arc<dyn MdsEndpoint>).collect();
        let client = Client::new(config, lease, endpoints, osts)?;
        for events in listeners {
            events.attach(&client);
        }
        client.inodes.root.find()?;
        // As a mount does; a failure only costs a request later.
        let _ = client.placement.learn_root();
        let (uuid, is_dead) = (identity.client, AtomicBool::new(false));
        Ok(Mount { process, client, mdts, osts: ways, uuid, is_dead })
    }

    /// Ends the process without notice; what it has not written out is lost. Its threads end with [`Mount::stop`].
    pub(crate) fn die(&self, network: &SimulatedNetwork) {
        network.end_process(&self.process.identity);
        sim::end_process(self.process.number);
        self.is_dead.store(true, Ordering::Relaxed);
    }

    /// Writes everything out and disconnects, unless the client has died: then its threads end.
    pub fn stop(self) {
        let is_dead = self.is_dead.load(Ordering::Relaxed);
        let Mount { process, client, mdts, osts, .. } = self;
        let limit = |limit| if is_dead { Duration::ZERO } else { limit };
        process.run(|| {
            if !is_dead {
                client.write_back.write_back_all();
                let _ = client.data.sync_own();
                client.write_back.return_grants(true);
            }
            for mdt in &mdts {
                mdt.disconnect(limit(GOODBYE_LIMIT));
            }
            client.shutdown();
            for ost in &osts {
                ost.disconnect(limit(Duration::from_secs(1)));
            }
            drop((client, mdts, osts));
        });
    }
}
