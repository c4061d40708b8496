//! Targets that join while a mount runs: when and how the mount connects to them.

use super::links::Links;
use super::mounted::connect;
use super::params::Params;
use super::targets::Services;
use nacre_client::{Client, RemoteEvents};
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex};
use nacre_rpc::tcp::TcpMds;
use nacre_rpc::{LoMds, MdsEndpoint, OssEndpoint, OstEventsFactory};
use nacre_types::{StatusResult, TargetId};
use nacre_wire::mgs::{FsConfig, TargetConfig};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Pause before a retry at an MDT that refuses the mount.
const RETRY: Duration = Duration::from_secs(1);

/// Endpoints of the mount, which it disconnects at its end.
#[derive(Default)]
pub struct Ways {
    /// Endpoints of MDTs in other processes.
    pub mdts: Vec<Arc<TcpMds>>,
    /// Endpoints of all OSTs.
    pub osts: Vec<Arc<dyn OssEndpoint>>,
}

#[derive(Default)]
struct State {
    /// Newest known configuration.
    config: FsConfig,
    /// A thread that connects MDTs is running.
    working: bool,
    stopped: bool,
    ways: Ways,
}

/// Connects targets that have joined to a mount. A dedicated thread connects MDTs one at a time: an
/// unresponsive one delays only operations that need it.
pub struct Newcomers {
    client: Weak<Client>,
    services: Weak<Services>,
    links: Arc<Links>,
    params: Arc<Params>,
    ost_events: Arc<dyn OstEventsFactory>,
    state: Mutex<State>,
    /// Wakes the thread from its pause when the mount stops.
    ended: Condvar,
    me: Weak<Newcomers>,
}

impl Newcomers {
    /// Returns the newcomers of a mount with these endpoints.
    pub fn new(
        client: &Arc<Client>,
        services: &Arc<Services>,
        links: &Arc<Links>,
        params: &Arc<Params>,
        ost_events: Arc<dyn OstEventsFactory>,
        ways: Ways,
    ) -> Arc<Newcomers> {
        Arc::new_cyclic(|me| Newcomers {
            client: Arc::downgrade(client),
            services: Arc::downgrade(services),
            links: links.clone(),
            params: params.clone(),
            ost_events,
            state: Mutex::new(State { ways, ..State::default() }),
            ended: Condvar::new(),
            me: me.clone(),
        })
    }

    /// Connects the OSTs that have joined.
    pub fn bring_osts(&self, config: &FsConfig) {
        let Some(client) = self.client.upgrade() else { return };
        let is_known = |index: u16| client.requests.ost_endpoint(index).is_some();
        for (index, endpoint) in self.links.osts_of_mount(config, is_known, &*self.ost_events) {
            self.add_ost(&client, index, endpoint);
        }
    }

    fn add_ost(&self, client: &Arc<Client>, index: u16, endpoint: Arc<dyn OssEndpoint>) {
        if client.requests.add_ost(index, endpoint.clone()) {
            self.state.lock().ways.osts.push(endpoint);
            log::info!("{} has joined", TargetId::ost(index));
            self.params.enter_way(client, TargetId::ost(index));
        }
    }

    /// Starts to connect the MDTs that have joined.
    pub fn bring_mdts(&self, config: &FsConfig) {
        let Some(client) = self.client.upgrade() else { return };
        let mut state = self.state.lock();
        if config.version > state.config.version {
            state.config = config.clone();
        }
        if state.working || state.stopped || next_mdt(&state.config, &client).is_none() {
            return;
        }
        let me = self.me.clone();
        let work = move || {
            while let Some(me) = me.upgrade() {
                if !me.bring_next_mdt() {
                    return;
                }
            }
        };
        match nacre_env::thread::Builder::new().name("mdt-join".into()).spawn(work) {
            Ok(_) => state.working = true,
            // The next caller tries again.
            Err(error) => log::error!("no thread to reach an MDT that has joined: {error}"),
        }
    }

    /// Tries to connect one MDT; returns false if none is left.
    fn bring_next_mdt(&self) -> bool {
        let Some(client) = self.client.upgrade() else { return false };
        let target = {
            let mut state = self.state.lock();
            match next_mdt(&state.config, &client).cloned().filter(|_| !state.stopped) {
                Some(target) => target,
                None => {
                    state.working = false;
                    return false;
                }
            }
        };
        if let Err(status) = self.bring_mdt(&client, &target) {
            log::warn!("{} has joined and does not let this client in: {status}", target.target);
            let mut state = self.state.lock();
            if !state.stopped {
                self.ended.wait_for(&mut state, RETRY);
            }
        }
        true
    }

    fn bring_mdt(&self, client: &Arc<Client>, mdt: &TargetConfig) -> StatusResult<()> {
        let index = mdt.target.index;
        let services = self.services.upgrade();
        // Data of its files can be requested as soon as any client knows of them.
        let data = services.as_ref().map(|services| services.mdt_data()).unwrap_or_default();
        if let Some((index, endpoint)) = self.links.data_of_mdt(mdt, &data, &*self.ost_events) {
            self.add_ost(client, index, endpoint);
        }
        client.requests.add_mdt(index, |callbacks| {
            if let Some(service) = services.and_then(|services| services.mdt(index)) {
                let (endpoint, grant) = LoMds::connect(service, self.links.identity().client, callbacks)?;
                return Ok((Arc::new(endpoint) as Arc<dyn MdsEndpoint>, grant));
            }
            let events = Arc::new(RemoteEvents::new(index, callbacks, client.lease.locks().clone()));
            events.attach(client);
            let (endpoint, grant) = connect(mdt, &self.links, events)?;
            let endpoint = Arc::new(endpoint);
            self.state.lock().ways.mdts.push(endpoint.clone());
            Ok((endpoint as Arc<dyn MdsEndpoint>, grant))
        })?;
        log::info!("{} has joined", mdt.target);
        self.params.enter_way(client, mdt.target);
        Ok(())
    }

    /// Waits until the mount knows an MDT; returns false if it does not at the deadline.
    pub fn await_mdt(&self, index: u16, deadline: Instant) -> bool {
        // A mount that has ended need not know it.
        self.client.upgrade().is_none_or(|client| client.requests.await_mdt(index, deadline))
    }

    /// Stops connecting targets. Returns the existing endpoints.
    pub fn stop(&self) -> Ways {
        let mut state = self.state.lock();
        state.stopped = true;
        self.ended.notify_all();
        std::mem::take(&mut state.ways)
    }
}

impl nacre_client::Newcomers for Newcomers {
    fn is_coming(&self, mdt_index: u16) -> bool {
        let config = match self.links.config(0, 0) {
            Ok(config) => config,
            Err(status) => {
                log::warn!("whether there is an MDT{mdt_index:04x} is not known: {status}");
                return false;
            }
        };
        self.bring_mdts(&config);
        config.targets.iter().any(|known| known.target == TargetId::mdt(mdt_index))
    }
}

/// Returns the first MDT that a client does not know; later ones follow.
fn next_mdt<'a>(config: &'a FsConfig, client: &Client) -> Option<&'a TargetConfig> {
    let next = TargetId::mdt(u16::try_from(client.requests.mdt_count()).ok()?);
    config.targets.iter().find(|known| known.target == next)
}
