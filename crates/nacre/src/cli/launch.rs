//! Start of the processes of a file system, in one of its shapes.

use super::mount_point::{is_mounted, prepare};
use super::serve;
use crate::failure::{Failure, Result};
use crate::instance::{Instance, target_name};
use crate::listen::{self, Address};
use crate::ports::Ports;
use crate::process::{self, MOUNT, NODE, RunDir, StopSignals};
use crate::progress::Progress;
use crate::service;
use crate::start::Start;
use nacre_env::sync::mpsc::channel;
use nacre_types::{TargetId, TargetKind};
use std::ffi::OsString;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

/// Timeout for the end of each process when a service manager stops all.
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// Longest delay of a signal after the end of a process that the same signal has ended.
const SIGNAL_TIMEOUT: Duration = Duration::from_millis(500);

/// Endpoints of the servers of a file system.
pub enum Doors {
    /// All servers in one process.
    One,
    /// One process and port for each server.
    Separate(Ports),
}

impl Doors {
    /// Chooses the ports of `targets`, without changing anything, and checks that they are free. `port`: the
    /// first one, if servers have processes of their own. Running processes keep their ports. A file system
    /// that was for this host alone (`before`) starts at the port of its first address: no other host knows
    /// its previous ports.
    ///
    /// # Errors
    /// If an address is not of this host or in use.
    pub fn choose(
        run: &RunDir,
        targets: &[TargetId],
        start: &Start,
        before: Option<&Start>,
        port: Option<u16>,
    ) -> Result<Doors> {
        if !start.is_separate {
            if run.pid(NODE).is_none() {
                listen::check(&listen::endpoints(&start.listen)?)?;
            }
            return Ok(Doors::One);
        }
        let mut ports = Ports::load(&run.path, hosts_of(start)?)?;
        // Running processes connect to the others at their old addresses.
        let is_new = run.running().is_empty();
        let is_unknown = ports.is_empty() || before.is_some_and(|before| before.listen.is_empty());
        let first = port.or_else(|| start.listen.first().map(Address::port).filter(|_| is_unknown));
        for (index, target) in targets.iter().enumerate() {
            let name = target_name(*target);
            let is_free = is_new || ports.port(&name).is_none();
            let wanted =
                first.filter(|_| is_free).map(|base| base.checked_add(index as u16).ok_or(base)).transpose();
            let wanted = wanted.map_err(|base| {
                Failure::usage(format!("port {base} leaves too few ports above it: choose another --port"))
            })?;
            if run.pid(&name).is_none() {
                ports.choose(&name, wanted)?;
            }
        }
        Ok(Doors::Separate(ports))
    }
}

/// Returns the IP addresses that servers with processes of their own listen on.
fn hosts_of(start: &Start) -> Result<Vec<IpAddr>> {
    if start.listen.iter().any(|address| Some(address.port()) != start.listen.first().map(Address::port)) {
        return Err(Failure::usage(
            "each server has one port on all addresses: give the same port, the first one, in each --listen",
        ));
    }
    // Any port: only the addresses matter.
    let endpoints = listen::endpoints(&start.addresses_at(1))?;
    Ok(endpoints.into_iter().map(|endpoint| endpoint.bind.ip()).collect())
}

/// Reads the ports of the servers of a directory; further ones must be free on the same addresses.
///
/// # Errors
/// If they cannot be read.
pub fn ports_of(run: &RunDir, start: &Start) -> Result<Ports> {
    Ports::load(&run.path, hosts_of(start)?)
}

/// Returns the arguments of `nacre serve` for one of several servers: its addresses, and those of the
/// management server.
///
/// # Errors
/// If one of them has no port.
pub fn addresses(start: &Start, ports: &Ports, name: &str) -> Result<Vec<OsString>> {
    let port_of = |name: &str| ports.port(name).ok_or_else(|| Failure::new(format!("{name} has no port")));
    let mut words: Vec<OsString> = Vec::new();
    if name != MOUNT {
        for address in start.addresses_at(port_of(name)?) {
            words.extend(["--listen".into(), address.to_string().into()]);
        }
    }
    for nid in mgs_here(start, ports)? {
        words.extend(["--mgs".into(), nid.to_string().into()]);
    }
    Ok(words)
}

/// Returns the NIDs of the management server for processes of this host.
///
/// # Errors
/// If it has no port.
pub fn mgs_here(start: &Start, ports: &Ports) -> Result<Vec<nacre_types::Nid>> {
    let port = ports.port("mgs").ok_or_else(|| Failure::new("the management server has no port"))?;
    let endpoints = listen::endpoints(&start.addresses_at(port))?;
    Ok(endpoints.iter().flat_map(listen::Endpoint::nids_here).collect())
}

/// A start of a file system.
pub struct Launch<'a> {
    /// Directory of the file system.
    pub instance: &'a Instance,
    /// Options of the start.
    pub start: &'a Start,
    /// Mount point, an absolute path.
    pub mount_point: &'a Path,
}

/// Results of a start, for its rollback.
#[derive(Default)]
pub struct Started {
    /// Processes that did not run before, with their names.
    pub children: Vec<(String, Child)>,
    /// The mount point, if it was created.
    pub made: Option<PathBuf>,
}

impl Launch<'_> {
    fn run(&self) -> RunDir {
        RunDir::new(self.instance.run_dir())
    }

    /// Starts all processes that do not run, in the background. The steps before a failure are in `started`.
    ///
    /// # Errors
    /// The failure that the process reported at its start.
    pub fn background(&self, doors: &Doors, started: &mut Started, progress: &mut Progress) -> Result<()> {
        match doors {
            Doors::One => self.one(started, progress),
            Doors::Separate(ports) => self.separate(ports, started, progress),
        }
    }

    fn one(&self, started: &mut Started, progress: &mut Progress) -> Result<()> {
        if is_mounted(&self.run(), NODE, self.mount_point)? {
            return Ok(());
        }
        let mut words = serve_words(NODE, self.instance);
        for address in &self.start.addresses() {
            words.extend(["--listen".into(), address.to_string().into()]);
        }
        words.extend(self.start.metrics_words());
        progress.show("starting");
        self.with_mount(NODE, words, started, progress)
    }

    fn separate(&self, ports: &Ports, started: &mut Started, progress: &mut Progress) -> Result<()> {
        let run = self.run();
        let mut targets = self.instance.targets();
        // Object servers first: the metadata server reserves object ids at them.
        targets.sort_by_key(|target| match target.kind {
            TargetKind::Mgt => (0, target.index),
            TargetKind::Ost => (1, target.index),
            TargetKind::Mdt => (2, target.index),
        });
        ports.save()?;
        for target in targets {
            let name = target_name(target);
            if run.runs(&name, process::BEGUN_LIMIT) {
                continue;
            }
            progress.show(&format!("starting {target}"));
            let mut words = serve_words(&name, self.instance);
            words.extend(addresses(self.start, ports, &name)?);
            if target.kind == TargetKind::Mgt {
                words.extend(self.start.metrics_words());
            }
            let child = process::start(&words, &run.log(&name), progress)?;
            started.children.push((name, child));
        }
        if is_mounted(&run, MOUNT, self.mount_point)? {
            return Ok(());
        }
        let mut words = serve_words(MOUNT, self.instance);
        words.extend(addresses(self.start, ports, MOUNT)?);
        progress.show("mounting");
        self.with_mount(MOUNT, words, started, progress)
    }

    /// Starts the process with the mount.
    fn with_mount(
        &self,
        name: &str,
        mut words: Vec<OsString>,
        started: &mut Started,
        progress: &mut Progress,
    ) -> Result<()> {
        if prepare(self.mount_point)? {
            started.made = Some(self.mount_point.to_path_buf());
        }
        words.extend(["--mount".into(), self.mount_point.into()]);
        if !self.start.options.is_empty() {
            words.extend(["-o".into(), self.start.options.clone().into()]);
        }
        let child = process::start(&words, &self.run().log(name), progress)?;
        started.children.push((name.to_owned(), child));
        Ok(())
    }

    /// Runs everything in this process and returns when it has ended.
    ///
    /// # Errors
    /// If it did not start.
    pub fn one_in_front(
        &self,
        started: &mut Started,
        on_ready: impl FnOnce() -> Result<()>,
    ) -> Result<serve::Served> {
        if prepare(self.mount_point)? {
            started.made = Some(self.mount_point.to_path_buf());
        }
        serve::foreground(self.instance, self.start, self.mount_point, on_ready)
    }
}

/// Waits until a signal arrives or one of these processes ends, then stops all, clients first; returns the
/// exit code. For service managers.
pub fn watch(run: &RunDir, signals: StopSignals, children: Vec<(String, Child)>) -> i32 {
    let (sender, events) = channel();
    let end = sender.clone();
    let threads = nacre_env::thread::Builder::new().name("wait-signal".into()).spawn(move || {
        signals.wait();
        let _ = end.send(None);
    });
    if let Err(error) = threads {
        log::error!("no thread to wait for signals: {error}");
    }
    for (name, mut child) in children {
        let sender = sender.clone();
        let waits = nacre_env::thread::Builder::new().name("wait-child".into()).spawn(move || {
            let status = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
            // The other processes end, too, when all are stopped.
            let _ = sender.send(Some((name, status)));
        });
        if let Err(error) = waits {
            log::error!("no thread to wait for a process: {error}");
        }
    }
    let mut ended = events.recv().ok().flatten();
    // Some service managers signal all processes: the order of the ends is then arbitrary.
    if ended.is_some() && matches!(events.recv_timeout(SIGNAL_TIMEOUT), Ok(None)) {
        ended = None;
    }
    if let Some((name, status)) = &ended {
        log::error!("{name} has ended ({status}), so all are ended: see {}", run.log(name).display());
    }
    if ended.is_none() {
        service::stopping();
    }
    // The mount goes first and by force: a service manager kills the processes in any case.
    match super::down::stop_all(run, true, STOP_LIMIT) {
        Ok(()) if ended.is_none() => 0,
        Ok(()) => crate::failure::EXIT_FAILURE,
        Err(failure) => {
            log::error!("{failure}");
            failure.exit
        }
    }
}

/// Returns the arguments that start a process of a directory in the background.
pub fn serve_words(role: &str, instance: &Instance) -> Vec<OsString> {
    let dir = instance.dir.clone().into_os_string();
    vec!["serve".into(), "--role".into(), role.into(), "--dir".into(), dir, "--background".into()]
}

/// Rolls a failed start back. A mount point that existed before is kept.
pub fn take_back(started: Started) {
    if let Some(made) = started.made {
        // Removes only an empty directory.
        let _ = fs::remove_dir(made);
    }
}
