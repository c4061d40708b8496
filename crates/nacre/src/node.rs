//! A process of a file system: its targets, its server and its mount, assembled.
//!
//! ```text
//!            kernel                                  other hosts
//!              | /dev/fuse or io_uring                  | TCP
//!        +-----v------------------------------+   +-----v-----+
//!        | mount: fuse::Session - Front       |   | Server    |
//!        |        client::Client              |   |           |
//!        +--|-------------|-------------|-----+   +--|--|--|--+
//!           | MgsEndpoint | MdsEndpoint | OssEndpoint|  |  |
//!        +--v---+      +--v---+      +--v---+        |  |  |
//!        | MGS  |      | MDT  |----->| OSTs |<-------+--+--+
//!        +------+      +------+      +------+
//! ```
//!
//! An endpoint is a direct call where the target is in this process, TCP where it is not ([`links`]); the
//! layers above and below are the same. So the three shapes are the same code with other lists: everything in
//! one process (`node`), one target (`mdt0000`), or no target and a mount (`mount`).
//!
//! Start: MGT, OSTs, MDTs, listen, register, mount. Stop: the reverse.

mod adding;
mod debug;
mod links;
mod metrics;
mod mounted;
mod newcomers;
mod params;
mod status;
mod targets;

use crate::audit::AuditLog;
use crate::control::ControlSocket;
use crate::debug::record;
use crate::failure::{Failure, Result};
use crate::http_address::HttpAddress;
use crate::instance::{Instance, random_uuid};
use crate::keys::Keys;
use crate::listen::Endpoint;
use crate::local_params;
use crate::process::{Herald, RunDir, RunLock};
use crate::public;
use links::{LinkOptions, Links};
use mounted::Mounted;
use nacre_env::Heap;
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_fuse::front::LockScope;
use nacre_rpc::tcp::Server;
use nacre_rpc::{AuditSink, ServerConfig};
use nacre_types::{ClientUuid, Nid, Security, TargetId};
use nacre_wire::mgs::FsConfig;
use params::Params;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;
use targets::Services;

pub use adding::{MgsWay, configuration_at};
pub use mounted::{MountPlan, recorded_mount_point};
pub use targets::{attach_caches, format_target_on, look_at_objects, open_objects, open_uncached};

/// Longest wait of one request for a newer configuration at the management server, in milliseconds.
const WATCH_WAIT_MS: u32 = 30_000;
/// Pause after an error of the management server, so that a failing one is not polled in a loop.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

/// Interval at which a process checks that commands can find it.
const REACH_INTERVAL: Duration = Duration::from_secs(10);

/// Specification of a process.
#[derive(Debug)]
pub struct Plan {
    /// `node`, `mgs`, `mdt0000`, `ost0000`, `mount`.
    pub name: String,
    /// Run directory of its pid file and control socket.
    pub run: RunDir,
    /// Directory with the targets; `None` for a mount of a file system on other hosts.
    pub instance: Option<Instance>,
    /// Name of the file system.
    pub fsname: String,
    /// Targets to serve.
    pub targets: Vec<TargetId>,
    /// Endpoints to serve the targets on; empty for this process only.
    pub listen: Vec<Endpoint>,
    /// NIDs of the management server, if it is not in this process.
    pub mgs: Vec<Nid>,
    /// The mount of the process, if it has one.
    pub mount: Option<MountPlan>,
    /// Address that serves its figures, if any.
    pub metrics: Option<HttpAddress>,
}

impl Plan {
    /// Returns which side decides about file locks unless the user chooses: the kernel, which is quicker, if
    /// no other host can mount.
    fn lock_scope(&self) -> LockScope {
        let alone = self.mgs.is_empty() && self.listen.is_empty();
        if alone { LockScope::Local } else { LockScope::Cluster }
    }

    /// Returns the NIDs of its targets when `server` serves them. In one process with several targets the
    /// direct transport (`0@lo`) comes first; other processes skip it.
    fn nids(&self, server: Option<&Server>) -> Vec<Nid> {
        let local = (self.targets.len() > 1).then_some(Nid::Lo);
        let bound = server.map_or(&[][..], Server::addrs);
        let remote = self.listen.iter().zip(bound).flat_map(|(endpoint, addr)| endpoint.nids(*addr));
        local.into_iter().chain(remote).collect()
    }
}

/// A running process.
pub struct Node {
    plan: Plan,
    started: Instant,
    services: Arc<Services>,
    /// Targets that the process serves at present.
    targets: Mutex<Vec<TargetId>>,
    links: Arc<Links>,
    params: Arc<Params>,
    server: Option<Server>,
    keys: Option<Keys>,
    mount: Mutex<Option<Mounted>>,
    /// Locked while the mount ends, which may take as long as a server is away.
    end_of_mount: Mutex<()>,
    /// Version of the configuration in use; locked while a newer one is applied.
    used: Mutex<u64>,
    reach: Mutex<Reach>,
    /// Server of its figures.
    figures: Mutex<Option<nacre_monitor::http::Server>>,
}

/// Sockets and registration by which commands of this host find the process.
struct Reach {
    lock: RunLock,
    socket: Option<ControlSocket>,
    /// Socket for users with read access only.
    public: Option<ControlSocket>,
    /// Socket for questions about the state of the process.
    debug: Option<ControlSocket>,
}

impl Node {
    /// Starts everything; on failure, stops what was started.
    ///
    /// # Errors
    /// One sentence that says what to do.
    pub fn start(plan: Plan, herald: &Herald) -> Result<Arc<Node>> {
        let lock = plan.run.lock(&plan.name)?;
        let figures = plan.metrics.as_ref().map(HttpAddress::bind).transpose()?;
        crate::registry::add(&plan.run)?;
        let client = ClientUuid(random_uuid()?);
        let services = Arc::new(Services::default());
        if !plan.listen.is_empty() {
            services.await_listening();
        }
        if let Some(instance) = &plan.instance {
            herald.progress("opening targets");
            services.open_mgt_and_osts(instance, &plan.targets)?;
        }
        let simulate = plan.mount.as_ref().and_then(|mount| mount.options.simulate);
        let is_mount = plan.targets.is_empty();
        let keys = Keys::of(&plan)?;
        let audit = audit_of(&plan, &services);
        let options = LinkOptions { simulate, keys: keys.as_ref(), audit: audit.clone() };
        let links = Links::new(&services, &plan.mgs, &plan.fsname, client, is_mount, options)?;
        let links = Arc::new(links);
        let config = links.config(0, 0).map_err(|status| no_config(&plan.mgs, &plan.fsname, status))?;
        use_keys(&plan, keys.as_ref(), &config)?;
        services.use_capability_keys(&config);
        if let Some(instance) = &plan.instance {
            check_identity(instance, &config)?;
            services.open_mdts(instance, &plan.targets, &config, &links)?;
        }
        services.set_nodemaps(&config.nodemaps);
        let server = listen(&services, &plan, keys.as_ref(), audit)?;
        services.on_listening();
        let config = adding::register_all(&plan, &links, &services, server.as_ref(), config)?;
        services.use_capability_keys(&config);
        let params = Arc::new(Params::new());
        let mount = match &plan.mount {
            Some(mount) => {
                herald.progress("mounting");
                let say = |text: &str| herald.slow(text);
                Some(Mounted::start(mount, &plan, &services, &links, &params, &config, &say)?)
            }
            None => None,
        };
        let version = config.version;
        params.use_configuration(&config);
        services.enter_params(&plan.targets, &params, &plan.fsname, &links);
        if let Some(mount) = &mount {
            mount.enter_params(&params, &links);
            params.use_local(local_params::of_mount(&plan.fsname));
        }
        let node = Arc::new(Node {
            started: Instant::now(),
            targets: Mutex::new(plan.targets.clone()),
            plan,
            services,
            links,
            params,
            server,
            keys,
            mount: Mutex::new(mount),
            end_of_mount: Mutex::default(),
            used: Mutex::new(version),
            reach: Mutex::new(Reach { lock, socket: None, public: None, debug: None }),
            figures: Mutex::new(None),
        });
        node.watch_configuration(version)?;
        node.become_reachable(figures)?;
        Ok(node)
    }

    /// Serves commands, other users and readers of figures.
    fn become_reachable(self: &Arc<Node>, figures: Option<TcpListener>) -> Result<()> {
        let socket = ControlSocket::serve(&self.plan.run.socket(&self.plan.name), self.clone())?;
        let (public, debug) = (self.serve_public(), self.serve_debug());
        {
            let mut reach = self.reach.lock();
            (reach.socket, reach.public, reach.debug) = (Some(socket), public, debug);
        }
        record::save_on_panic(self.plan.run.events(&self.plan.name));
        self.stay_reachable()?;
        figures.map_or(Ok(()), |listener| self.serve_figures(listener))
    }

    /// Answers questions about the state of the process; a failure affects nothing else.
    fn serve_debug(self: &Arc<Node>) -> Option<ControlSocket> {
        let door = Arc::new(debug::DebugDoor(Arc::downgrade(self)));
        let socket = ControlSocket::serve(&self.plan.run.debug_socket(&self.plan.name), door);
        let socket =
            socket.inspect_err(|failure| log::warn!("'nacre debug' does not reach this process: {failure}"));
        socket.ok()
    }

    /// Serves some parameters to other users; a failure affects nothing else.
    fn serve_public(self: &Arc<Node>) -> Option<ControlSocket> {
        public::serve(&self.plan.run, &self.plan.name, self.clone()).unwrap_or_else(|failure| {
            log::warn!("other users cannot read parameters: {failure}");
            None
        })
    }

    /// Keeps this process registered, also after a clean-up of the runtime directories.
    fn stay_reachable(self: &Arc<Node>) -> Result<()> {
        let node = Arc::downgrade(self);
        let look = move || {
            let mut heap = Heap::default();
            loop {
                nacre_env::thread::sleep(REACH_INTERVAL);
                heap.look(REACH_INTERVAL);
                let Some(node) = node.upgrade() else { return };
                if let Err(failure) = node.look_whether_reachable() {
                    log::warn!("commands do not find this process: {failure}");
                }
                node.look_after_keys();
            }
        };
        let thread = nacre_env::thread::Builder::new().name("reach".into()).spawn(look);
        thread.map(drop).map_err(Failure::because("start a thread"))
    }

    /// Renews keys that are due, and changes the key that signs capabilities in time.
    fn look_after_keys(&self) {
        if let Some(Err(failure)) = self.keys.as_ref().map(|keys| keys.renew(&**self.links.mgs())) {
            log::warn!("the key of this process is not renewed: {failure}");
        }
        if let Some(Err(status)) = self.services.mgs_here().map(|mgs| mgs.rotate_capability_keys()) {
            log::warn!("the key of capabilities is not renewed: {status}");
        }
    }

    fn look_whether_reachable(self: &Arc<Node>) -> Result<()> {
        let Plan { run, name, .. } = &self.plan;
        let mut reach = self.reach.lock();
        // Without a socket the process is stopping.
        let Some(has_socket) = reach.socket.as_ref().map(ControlSocket::is_there) else { return Ok(()) };
        if !run.is_held(name, &reach.lock) {
            reach.lock = run.lock(name)?;
            log::warn!("{} was removed while this process runs: made again", run.path.display());
        }
        if !has_socket {
            reach.socket = Some(ControlSocket::serve(&run.socket(name), self.clone())?);
        }
        if reach.debug.as_ref().is_some_and(|socket| !socket.is_there()) {
            reach.debug = self.serve_debug();
        }
        if reach.public.as_ref().is_some_and(|socket| !socket.is_there()) {
            reach.public = self.serve_public();
        }
        if let Some(mount) = self.mount.lock().as_ref() {
            mount.keep_record()?;
        }
        crate::registry::add(run)
    }

    /// Follows the configuration: targets that join are used as soon as the management server reports them.
    fn watch_configuration(self: &Arc<Node>, version: u64) -> Result<()> {
        let (node, links) = (Arc::downgrade(self), self.links.clone());
        nacre_env::thread::Builder::new()
            .name("configuration".into())
            .spawn(move || watch(&node, &links, version))
            .map_err(Failure::because("start a thread"))?;
        Ok(())
    }

    fn use_configuration(&self, config: &FsConfig) {
        let mut used = self.used.lock();
        if config.version <= *used {
            return;
        }
        *used = config.version;
        if let Some(keys) = &self.keys {
            keys.revoke(&config.revoked);
        }
        self.services.use_capability_keys(config);
        log::info!("configuration {} has {} targets", config.version, config.targets.len());
        let before = self.services.pools();
        if let Err(failure) = self.services.use_configuration(config, &self.links) {
            log::error!("{failure}");
        }
        if let Some(mount) = self.mount.lock().as_ref() {
            mount.use_configuration(config);
        }
        self.services.enter_osts(&self.params, &self.plan.fsname);
        self.params.use_configuration(config);
        self.params.apply_to_new_pools(&before, &config.pools);
    }

    /// Unmounts, and returns when servers have the data of the mount, or are given up. `force` does so although files are
    /// open. Meanwhile the process has no mount for others.
    ///
    /// # Errors
    /// If files are open; the process then continues.
    pub fn unmount(&self, force: bool) -> Result<()> {
        // Another caller, such as the end of the process, waits for all of it.
        let _only_one = self.end_of_mount.lock();
        if let Some(mounted) = self.mount.lock().as_ref() {
            mounted.unmount(force)?;
        }
        let mounted = self.mount.lock().take();
        mounted.into_iter().for_each(Mounted::end);
        Ok(())
    }

    /// Stops in order: the mount (forced if it still exists), the server, then the targets.
    ///
    /// # Errors
    /// The first target that could not be closed cleanly; the others are closed nevertheless.
    pub fn stop(&self) -> Result<()> {
        drop(self.figures.lock().take());
        let unmounted = self.unmount(true);
        self.services.end_waits();
        if let Some(server) = &self.server {
            server.stop();
        }
        let stopped = self.services.stop();
        {
            let mut reach = self.reach.lock();
            (reach.socket, reach.public, reach.debug) = (None, None, None);
        }
        unmounted.and(stopped)
    }
}

/// Body of the thread that waits for newer configurations until the node is dropped.
fn watch(node: &Weak<Node>, links: &Links, mut version: u64) {
    loop {
        let newer = links.config(version, WATCH_WAIT_MS);
        log::logger().flush();
        let Some(node) = node.upgrade() else { return };
        match newer {
            Ok(config) if config.version > version => {
                version = config.version;
                node.use_configuration(&config);
            }
            Ok(_) => {}
            Err(status) => {
                if status != nacre_types::Status::ESHUTDOWN {
                    log::warn!("the management server gave no configuration: {status}");
                }
                drop(node);
                nacre_env::thread::sleep(WATCH_PAUSE);
            }
        }
    }
}

fn no_config(mgs: &[Nid], fsname: &str, status: nacre_types::Status) -> Failure {
    let nids: Vec<String> = mgs.iter().map(ToString::to_string).collect();
    let nids = nids.join(", ");
    match status {
        nacre_types::Status::ENOENT | nacre_types::Status::WRONG_FSNAME => {
            Failure::new(format!("the server at {nids} has no file system named '{fsname}': check the name"))
        }
        nacre_types::Status::ETIMEDOUT | nacre_types::Status::ECONNREFUSED => Failure::new(format!(
            "no management server answers at {nids}: check the address and that it runs"
        )),
        nacre_types::Status::ENOKEY | nacre_types::Status::EKEYREJECTED => Failure::new(format!(
            "the servers of file system '{fsname}' at {nids} serve no peer without a key ({status}): have its administrator make a \
             token with 'nacre key token --role client', and mount with --token"
        )),
        nacre_types::Status::EKEYREVOKED | nacre_types::Status::EKEYEXPIRED => Failure::new(format!(
            "the key of this host for file system '{fsname}' is not accepted any more ({status}): have its administrator make a \
             token with 'nacre key token', and say it with --token"
        )),
        status => Failure::new(format!("the management server at {nids} gave no configuration: {status}")),
    }
}

/// Applies the list of revoked keys; a process without keys checks that the targets do not need them.
fn use_keys(plan: &Plan, keys: Option<&Keys>, config: &FsConfig) -> Result<()> {
    match keys {
        Some(keys) => {
            keys.revoke(&config.revoked);
            Ok(())
        }
        None => check_keys(plan, config),
    }
}

/// Refuses to start a file system whose targets were served with keys and whose keys are missing: it would be
/// open to every peer.
fn check_keys(plan: &Plan, config: &FsConfig) -> Result<()> {
    let had_keys = |target: &TargetId| {
        let is_meant = |known: TargetId| known == *target || *target == TargetId::mgt();
        config.targets.iter().any(|known| is_meant(known.target) && known.key.is_some())
    };
    let Some(instance) = plan.instance.as_ref().filter(|_| plan.targets.iter().any(had_keys)) else {
        return Ok(());
    };
    let dir = instance.dir.display();
    Err(Failure::new(format!(
        "the keys of the file system are missing: bring {dir}/keys back from a copy, or make others with 'nacre key init {dir}'"
    )))
}

fn check_identity(instance: &Instance, config: &FsConfig) -> Result<()> {
    if config.fs_uuid == instance.superblock.fs_uuid {
        return Ok(());
    }
    Err(Failure::new(format!(
        "the management server knows another file system named '{}' than the one in {}: check its address",
        config.fsname,
        instance.dir.display()
    )))
}

fn is_open(endpoint: &Endpoint) -> bool {
    endpoint.security == Security::Open
}

/// Returns the audit log of a process that serves others, or the configuration.
fn audit_of(plan: &Plan, services: &Services) -> Option<Arc<dyn AuditSink>> {
    if plan.listen.is_empty() && services.mgs_here().is_none() {
        return None;
    }
    match AuditLog::open(&plan.run.log(&plan.name), &plan.name) {
        Ok(audit) => Some(Arc::new(audit)),
        Err(error) => {
            log::error!("there is no audit log: {error}");
            None
        }
    }
}

fn listen(
    services: &Services,
    plan: &Plan,
    keys: Option<&Keys>,
    audit: Option<Arc<dyn AuditSink>>,
) -> Result<Option<Server>> {
    if plan.listen.is_empty() {
        return Ok(None);
    }
    // Each socket is tried alone first, so that the error names the one that fails.
    crate::listen::check(&plan.listen)?;
    let addrs: Vec<_> = plan.listen.iter().map(|endpoint| endpoint.bind).collect();
    let tls = keys.and_then(Keys::server);
    for endpoint in plan.listen.iter().filter(|endpoint| tls.is_none() || is_open(endpoint)) {
        log::warn!("every peer that reaches {} is served: the connections need no key", endpoint.bind);
    }
    let of = |endpoint: &Endpoint| (endpoint.bind.ip(), endpoint.security);
    // A wildcard socket accepts connections at each address.
    let everywhere = plan.listen.iter().find(|endpoint| endpoint.bind.ip().is_unspecified());
    let config = ServerConfig {
        fsname: plan.fsname.clone(),
        tls,
        protection: everywhere.map_or_else(Security::default, |endpoint| endpoint.security),
        protection_of: plan.listen.iter().filter(|one| !one.bind.ip().is_unspecified()).map(of).collect(),
        audit,
        ..ServerConfig::default()
    };
    let server = Server::bind(&addrs, services.offered(&plan.targets), config);
    server.map(Some).map_err(|error| Failure::new(error.to_string()))
}

/// Returns the path of the file in a run directory that records the mount point.
fn mount_record(run: &RunDir) -> PathBuf {
    run.path.join("mount-point")
}
