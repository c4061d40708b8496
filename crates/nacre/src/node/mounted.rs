//! The mount of a process: a client over endpoints, and a FUSE session in front of it.

use super::links::{Links, remote_nids};
use super::newcomers::{Newcomers, Ways};
use super::params::Params;
use super::targets::{Services, default_hash};
use super::{Plan, mount_record};
use crate::cli::MountOptions;
use crate::control::{ClockStatus, MountStatus};
use crate::failure::{Failure, Result};
use crate::holders::{self, Device};
use crate::instance::write_private;
use crate::process::{RunDir, request_stop};
use nacre_client::{Caller, Client, ClientConfig, Lease, RemoteEvents};
use nacre_env::clock::Instant;
use nacre_env::sync::mpsc::RecvTimeoutError;
use nacre_fuse::front::{Front, FrontOptions, LockScope};
use nacre_fuse::{Error, Session, SessionConfig, Unmount};
use nacre_rpc::tcp::TcpMds;
use nacre_rpc::{ImportInfo, LinkState, LoMds, MdsEndpoint};
use nacre_types::nid::MountSource;
use nacre_types::{Fid, Status, StatusResult, TargetId, TargetKind};
use nacre_wire::mds::LeaseGrant;
use nacre_wire::mgs::{FsConfig, TargetConfig};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Timeout for the last closes to reach the metadata servers before the process ends without them.
const GOODBYE_LIMIT: Duration = Duration::from_secs(5);
/// Timeout for the disconnects from all object servers together; they would notice the end of the mount in
/// time.
const OST_GOODBYE_LIMIT: Duration = Duration::from_secs(1);
/// Timeout for written data to reach unresponsive servers at the end of the mount, and for servers to make the last
/// changes durable: a server that is started again may take that long.
const WRITE_OUT_LIMIT: Duration = Duration::from_secs(20);
/// Timeout for the return of grants, which servers would otherwise drop later.
const RETURN_LIMIT: Duration = Duration::from_millis(500);
/// Longest time to retry an unmount while the process itself or the kernel still holds a short reference to
/// the mount.
const UNMOUNT_TIMEOUT: Duration = Duration::from_millis(500);
const UNMOUNT_POLL: Duration = Duration::from_millis(20);
/// Longest wait of a start for a metadata server, and of an end for any server, without a message.
const QUIET_WAIT: Duration = Duration::from_secs(1);

/// Source, place and options of a mount.
#[derive(Debug, Clone)]
pub struct MountPlan {
    /// Existing directory to mount on.
    pub mount_point: PathBuf,
    /// Source, the first column of the mount table.
    pub source: String,
    /// Directory to mount, as [`nacre_types::nid::MountSource::directory`].
    pub directory: String,
    /// Mount options.
    pub options: MountOptions,
}

impl MountPlan {
    /// Plans a mount of `source`.
    pub fn new(source: &MountSource, mount_point: &Path, options: MountOptions) -> MountPlan {
        let (mount_point, directory) = (mount_point.to_path_buf(), source.directory.clone());
        MountPlan { mount_point, source: source.to_string(), directory, options }
    }
}

/// A mount with its FUSE session.
pub struct Mounted {
    session: Arc<Session>,
    client: Arc<Client>,
    front: Arc<Front>,
    /// Connects targets that join.
    newcomers: Arc<Newcomers>,
    record: PathBuf,
    device: Option<Device>,
}

/// Passes the parts of the configuration to a client that are not about targets.
fn tell(client: &Client, config: &FsConfig) {
    client.requests.set_pools(&config.pools);
    client.shards.set_default_hash(default_hash(config));
}

/// Returns the message of a mount whose connection a server does not accept yet.
fn waiting_for(server: &TargetConfig) -> String {
    format!(
        "waiting for {}: it lets clients in once those of its last run are back or given up, and others have \
         dropped their caches",
        server.target
    )
}

impl Mounted {
    /// Connects a client to all targets and mounts it. `say` receives the server that it waits for, if any.
    pub fn start(
        mount: &MountPlan,
        plan: &Plan,
        services: &Arc<Services>,
        links: &Arc<Links>,
        params: &Arc<Params>,
        config: &FsConfig,
        say: &(dyn Fn(&str) + Sync),
    ) -> Result<Mounted> {
        let lease = Lease::new();
        let mut mdts: Vec<Arc<dyn MdsEndpoint>> = Vec::new();
        let mut remote = Vec::new();
        let mut events = Vec::new();
        for target in config.targets.iter().filter(|target| target.target.kind == TargetKind::Mdt) {
            let index = target.target.index;
            if usize::from(index) != mdts.len() {
                let missing = format!("MDT{:04x} has not registered yet: start it first", mdts.len());
                return Err(Failure::new(missing));
            }
            let fail =
                |status| Failure::new(format!("{} does not let this client in: {status}", target.target));
            if let Some(service) = services.mdt(index) {
                let client = links.identity().client;
                let (endpoint, _) = LoMds::connect(service, client, lease.callbacks(index)).map_err(fail)?;
                mdts.push(Arc::new(endpoint));
                continue;
            }
            let listener = Arc::new(RemoteEvents::new(index, lease.callbacks(index), lease.locks().clone()));
            let slow = || say(&waiting_for(target));
            let connect = || connect(target, links, listener.clone());
            let endpoint = Arc::new(tell_if_slow(slow, connect).map_err(fail)?.0);
            mdts.push(endpoint.clone());
            remote.push(endpoint);
            events.push(listener);
        }
        if mdts.is_empty() {
            return Err(Failure::new("no metadata server has registered yet: start one first"));
        }
        let client_config = ClientConfig {
            relatime: mount.options.relatime,
            ..ClientConfig::new(&plan.fsname, links.identity().client)
        };
        let ost_events = lease.locks().events();
        let mut osts = links.osts_of_mount(config, |_| false, &*ost_events);
        osts.extend(links.mdt_data_of_mount(config, &services.mdt_data(), &*ost_events));
        let ways = Ways { mdts: remote, osts: osts.values().cloned().collect() };
        let client = Client::new(client_config, lease, mdts, osts)
            .map_err(|status| Failure::new(format!("the client could not start: {status}")))?;
        tell(&client, config);
        for listener in events {
            listener.attach(&client);
        }
        find_root(&client, &plan.fsname)?;
        if let Err(status) = client.placement.learn_root() {
            log::warn!("the root of {} does not show its attributes: {status}", plan.fsname);
        }
        let front = front(mount, plan.lock_scope(), &client)?;
        let session = Arc::new(mount_session(mount, &front)?);
        let device = holders::device_of(session.mount_point());
        let record = mount_record(&plan.run);
        write_private(&record, session.mount_point().as_os_str().as_bytes())?;
        stop_when_unmounted(&session)?;
        let newcomers = Newcomers::new(&client, services, links, params, ost_events, ways);
        client.requests.set_newcomers(newcomers.clone());
        Ok(Mounted { session, client, front, newcomers, record, device })
    }

    /// Enters the parameters of the mount.
    pub fn enter_params(&self, params: &Params, links: &Arc<Links>) {
        params.enter_mount(&self.client, &self.front, links);
    }

    /// Uses targets that have joined, and the current pools.
    pub fn use_configuration(&self, config: &FsConfig) {
        tell(&self.client, config);
        self.newcomers.bring_osts(config);
        self.newcomers.bring_mdts(config);
    }

    /// Returns the client of the mount.
    pub fn client(&self) -> Arc<Client> {
        self.client.clone()
    }

    /// Returns the part that connects targets that join.
    pub fn newcomers(&self) -> Arc<Newcomers> {
        self.newcomers.clone()
    }

    /// Unmounts. With `force` open files do not prevent it.
    ///
    /// # Errors
    /// If files are open, here or in another mount namespace, and `force` is off; the mount then continues.
    pub fn unmount(&self, force: bool) -> Result<()> {
        let deadline = Instant::now() + UNMOUNT_TIMEOUT;
        loop {
            match self.session.unmount(Unmount::Clean) {
                Ok(()) => return Ok(()),
                Err(Error::Busy(_)) if Instant::now() < deadline => nacre_env::thread::sleep(UNMOUNT_POLL),
                // An unused mount is detached: copies in other mount namespaces arise without any action of a
                // user.
                Err(error @ (Error::Busy(_) | Error::Elsewhere(_))) => {
                    match why_to_stay(&error, &self.client, self.device) {
                        Some(reason) if !force => return Err(Failure::new(reason)),
                        _ => {
                            let cut = self.session.unmount(Unmount::Force);
                            return cut.map_err(|error| Failure::new(error.to_string()));
                        }
                    }
                }
                Err(error) => {
                    log::warn!("{error}");
                    return Ok(());
                }
            }
        }
    }

    /// Writes out what the mount has changed and disconnects from the servers, after [`Mounted::unmount`].
    pub fn end(self) {
        tell_if_slow(
            || log::info!("the last changes are not durable yet{}", awaited(&self.unreachable())),
            || write_out(&self.client),
        );
        let ways = self.newcomers.stop();
        for mds in &ways.mdts {
            mds.disconnect(GOODBYE_LIMIT);
        }
        self.client.shutdown();
        let deadline = Instant::now() + OST_GOODBYE_LIMIT;
        for ost in &ways.osts {
            ost.disconnect(deadline.saturating_duration_since(Instant::now()));
        }
        let _ = std::fs::remove_file(&self.record);
    }

    /// Rewrites the record of the mount point, if it was removed.
    pub fn keep_record(&self) -> Result<()> {
        if self.record.exists() {
            return Ok(());
        }
        write_private(&self.record, self.session.mount_point().as_os_str().as_bytes())
    }

    /// Returns the client and its front door.
    pub fn parts(&self) -> (&Arc<Client>, &Arc<Front>) {
        (&self.client, &self.front)
    }

    /// Returns the directory of the mount.
    pub fn mount_point(&self) -> &Path {
        self.session.mount_point()
    }

    /// Returns the number of frames to and from its targets with a wrong checksum.
    pub fn checksum_errors(&self) -> u64 {
        self.imports().map(|(_, import)| import.damaged).sum()
    }

    /// Returns the connections to targets in other processes.
    pub fn imports(&self) -> impl Iterator<Item = (TargetId, ImportInfo)> {
        self.client.requests.targets().into_iter().filter_map(|target| {
            let import = match target.kind {
                TargetKind::Ost => self.client.requests.ost_endpoint(target.index)?.import(),
                _ => self.client.requests.mdt_endpoint(target.index)?.import(),
            };
            Some((target, import?))
        })
    }

    /// Returns the clocks of the servers that have answered a ping.
    pub fn clocks(&self) -> Vec<ClockStatus> {
        let of = |(target, import): (TargetId, ImportInfo)| {
            let clock = import.clock?;
            Some(ClockStatus {
                target: target.to_string(),
                nid: import.current.or_else(|| import.nids.first().copied())?.to_string(),
                ahead_us: clock.ahead_us,
                within_us: clock.within_us,
            })
        };
        self.imports().filter_map(of).collect()
    }

    /// Returns targets whose connection is broken and not restored; not those that an operator has
    /// deactivated.
    fn unreachable(&self) -> Vec<String> {
        let is_active = |target: &TargetId| {
            target.kind != TargetKind::Ost
                || self.client.requests.ost_endpoint(target.index).is_some_and(|ost| ost.is_active())
        };
        let is_lost = |import: &ImportInfo| {
            matches!(import.state, LinkState::Connecting | LinkState::Disconnected) && import.connects > 0
        };
        let lost = self.imports().filter(|(target, import)| is_active(target) && is_lost(import));
        lost.map(|(target, _)| target.to_string()).collect()
    }

    /// Returns the state for `nacre status`.
    pub fn status(&self, plan: &Plan) -> MountStatus {
        MountStatus {
            mount_point: self.session.mount_point().to_path_buf(),
            source: plan.mount.as_ref().map_or_else(String::new, |mount| mount.source.clone()),
            transport: self.session.transport().to_string(),
            device: self.device,
            unreachable: self.unreachable(),
        }
    }
}

/// Writes back the client's data and has it made durable, except for servers that stay unreachable.
fn write_out(client: &Arc<Client>) {
    let (done, wait) = nacre_env::sync::mpsc::channel::<()>();
    let writer = client.clone();
    let spawned = nacre_env::thread::Builder::new().name("write-out".into()).spawn(move || {
        writer.write_back.write_back_all();
        // The receiver waits no longer than the limits below.
        let _ = done.send(());
        // A failure is logged.
        let _ = writer.data.sync_own();
        let _ = done.send(());
        writer.write_back.return_grants(true);
        drop(done);
    });
    match spawned {
        Ok(_) => {
            if wait.recv_timeout(WRITE_OUT_LIMIT).is_err() {
                log::error!(
                    "{} bytes of written data did not reach their servers within {WRITE_OUT_LIMIT:?} and are lost",
                    client.write_back.write_back_stats().buffer_bytes
                );
                return;
            }
            if wait.recv_timeout(WRITE_OUT_LIMIT) == Err(RecvTimeoutError::Timeout) {
                log::warn!("servers did not make the last changes durable within {WRITE_OUT_LIMIT:?}");
                return;
            }
            let _ = wait.recv_timeout(RETURN_LIMIT);
        }
        Err(_) => {
            client.write_back.write_back_all();
            let _ = client.data.sync_own();
        }
    }
}

/// Returns the targets that the end of the mount waits for, as the end of a sentence.
fn awaited(unreachable: &[String]) -> String {
    match unreachable {
        [] => String::new(),
        targets => format!(": the mount waits for {}, {WRITE_OUT_LIMIT:?} at most", targets.join(" and ")),
    }
}

/// Returns the reason not to force the unmount after a clean one failed, if there is one.
fn why_to_stay(error: &Error, client: &Client, device: Option<Device>) -> Option<String> {
    let users = || holders::named(&device.map(holders::of_device).unwrap_or_default());
    match error {
        Error::Busy(path) => Some(format!(
            "{} is busy, {}: close files and leave directories in it, or add --force",
            path.display(),
            users()
        )),
        Error::Elsewhere(path) => match client.opens.open_count() {
            0 => None,
            open => Some(format!(
                "{} is unmounted here, but {open} of its files are still open, {}: close them there, or add --force",
                path.display(),
                users()
            )),
        },
        _ => None,
    }
}

/// Runs `work`; calls `slow` if it takes longer than a user expects.
fn tell_if_slow<R>(slow: impl FnOnce() + Send, work: impl FnOnce() -> R) -> R {
    let (done, wait) = nacre_env::sync::mpsc::channel::<()>();
    nacre_env::thread::scope(|scope| {
        scope.spawn(move || {
            if wait.recv_timeout(QUIET_WAIT) == Err(RecvTimeoutError::Timeout) {
                slow();
            }
        });
        let result = work();
        drop(done);
        result
    })
}

fn who_mounts() -> Caller {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Caller { uid, gid, pid: std::process::id() }
}

/// Makes the client resolve the directory that it presents as its root.
fn find_root(client: &Client, fsname: &str) -> Result<()> {
    match client.inodes.root.find() {
        Ok(()) => Ok(()),
        Err(status @ (Status::ENOENT | Status::ENOTDIR | Status::EACCES)) => Err(Failure::new(format!(
            "the directory of {fsname} that this client's key or nodemap shows as the root cannot be used ({status}): have its \
             administrator make it"
        ))),
        Err(status) => {
            log::warn!("the root of {fsname} is not known yet: {status}");
            Ok(())
        }
    }
}

fn front(mount: &MountPlan, locks: LockScope, client: &Arc<Client>) -> Result<Arc<Front>> {
    let no_directory =
        |status| Failure::new(format!("/{} in the file system cannot be mounted: {status}", mount.directory));
    let root = match mount.directory.as_str() {
        "" if client.inodes.root.fid() == Fid::ROOT => None,
        path => Some(client.names.find_directory(&who_mounts(), path).map_err(no_directory)?),
    };
    let options = FrontOptions {
        locks: mount.options.locks.unwrap_or(locks),
        kernel_checks: mount.options.default_permissions,
        root,
        ..FrontOptions::default()
    };
    Ok(Arc::new(Front::new(client.clone(), options)))
}

fn mount_session(mount: &MountPlan, front: &Arc<Front>) -> Result<Session> {
    let options = &mount.options;
    let mut config = SessionConfig::new(&mount.mount_point);
    config.transport = options.transport;
    config.mount.source.clone_from(&mount.source);
    config.mount.read_only = options.read_only;
    config.mount.allow_other = options.allow_other;
    config.mount.nodev = options.nodev;
    config.mount.nosuid = options.nosuid;
    config.mount.noexec = options.noexec;
    // As mount(8) does for every file system; the contents below are hidden until the unmount.
    config.mount.allow_non_empty = true;
    front.configure(&mut config);
    Session::mount(config, front.clone()).map_err(|error| Failure::new(error.to_string()))
}

/// Ends the process when another program unmounts.
fn stop_when_unmounted(session: &Arc<Session>) -> Result<()> {
    let session = session.clone();
    nacre_env::thread::Builder::new()
        .name("mount".into())
        .spawn(move || {
            if let Err(error) = session.join() {
                log::warn!("{error}");
            }
            log::info!("unmounted");
            request_stop();
        })
        .map(drop)
        .map_err(Failure::because("start a thread"))
}

/// Returns the mount point of the process of a run directory, also after the process was killed.
pub fn recorded_mount_point(run: &RunDir) -> Option<PathBuf> {
    let bytes = std::fs::read(mount_record(run)).ok()?;
    Some(PathBuf::from(std::ffi::OsString::from_vec(bytes)))
}

/// Returns the mount's endpoint of a metadata target in another process, and the lease.
pub(super) fn connect(
    target: &TargetConfig,
    links: &Links,
    events: Arc<RemoteEvents>,
) -> StatusResult<(TcpMds, LeaseGrant)> {
    let rpc = links.rpc_to(target.key);
    TcpMds::connect(target.target.index, &remote_nids(target), links.identity(), &rpc, events)
}
