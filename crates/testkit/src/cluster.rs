//! File systems of real processes, started and stopped with the commands that users run.

mod launcher;
mod ports;
mod slot;

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::program::{self, Outcome};
use crate::requirements::{have, have_root};
use crate::run::Run;
use crate::{binary, mounts, wait};
use launcher::Launcher;
pub use ports::Ports;
use rustix::process::Signal;
use slot::Slot;

/// Timeout for the start or stop of a file system on a busy machine.
const LIMIT: Duration = Duration::from_secs(90);

/// Number of the port for figures among those of a file system: below the spare ones.
const METRICS_PORT: u16 = 16;

/// Distribution of the parts of a file system over processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One process: servers, client and mount.
    Embedded,
    /// A process per server and one for each mount, over TCP on loopback.
    Separate,
}

/// Properties of a file system.
#[derive(Debug, Clone)]
pub struct Options {
    /// Metadata targets.
    pub mdts: usize,
    /// Object storage targets.
    pub osts: usize,
    /// Embedded shape: the servers listen for other clients.
    pub listen: bool,
    /// Directory of the targets, if not in the run's own directory.
    pub data: Option<PathBuf>,
    /// Mount options, separated by commas.
    pub mount_options: Option<String>,
    /// Name of the file system. Tests of commands that reach all file systems of a host need a unique one.
    pub fsname: String,
    /// Back end of the OSTs, as for `nacre up --ost-backend`; `NACRE_TEST_OST_BACKEND` if empty.
    pub ost_backend: Vec<String>,
    /// Back end for data of files on MDTs, as for `nacre up --mdt-backend`; `NACRE_TEST_MDT_BACKEND` if
    /// empty.
    pub mdt_backend: Vec<String>,
    /// Size of a cache of small writes for each OST, as for `nacre up --ost-cache`; the cache is a file next
    /// to the data directory.
    pub ost_cache_size: Option<String>,
    /// Separate shape: `nacre up` chooses the ports, as it does if a user names none. Another process may
    /// take them before the servers listen, so this is only for tests of that choice.
    pub any_ports: bool,
    /// Protection of connections, as for `nacre up --security`; encrypted if `None`.
    pub security: Option<&'static str>,
    /// Serves figures for Prometheus, on [`Cluster::metrics_port`].
    pub metrics: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            mdts: 1,
            osts: 4,
            listen: false,
            data: None,
            mount_options: None,
            fsname: "nacre".to_owned(),
            ost_backend: Vec::new(),
            mdt_backend: Vec::new(),
            ost_cache_size: None,
            any_ports: false,
            security: None,
            metrics: false,
        }
    }
}

/// A running file system with at least one mount; stopped when dropped.
#[derive(Debug)]
pub struct Cluster {
    shape: Option<Shape>,
    options: Options,
    data: PathBuf,
    mount: PathBuf,
    more_mounts: Vec<PathBuf>,
    launcher: Launcher,
    run: Run,
    ports: Ports,
    spare_ports: AtomicU32,
    _slot: Slot,
}

impl Cluster {
    /// Starts a file system with four OSTs.
    ///
    /// # Panics
    ///
    /// If it does not start, with the ends of its logs.
    pub fn start(shape: Shape) -> Cluster {
        Cluster::start_with(shape, &Options::default())
    }

    /// Starts a file system that can be mounted more than once. Its name is `prefix` with a number, so that
    /// commands reach its parameters only, and not those of concurrent tests. `None` if the machine lacks a
    /// requirement, or the tests run on another file system.
    ///
    /// # Panics
    ///
    /// If it does not start, with the ends of its logs.
    #[track_caller]
    pub fn start_to_share(shape: Shape, prefix: &str) -> Option<Cluster> {
        static CLUSTERS: AtomicU32 = AtomicU32::new(0);
        if !have(&["/dev/fuse"]) || !have_root() {
            return None;
        }
        let fsname = format!("{prefix}{}", CLUSTERS.fetch_add(1, Ordering::Relaxed));
        let options = Options { listen: true, fsname, ..Options::default() };
        Some(Cluster::start_with(shape, &options)).filter(|cluster| !cluster.is_foreign())
    }

    /// Starts a file system with these options.
    ///
    /// # Panics
    ///
    /// If it does not start, with the ends of its logs.
    pub fn start_with(shape: Shape, options: &Options) -> Cluster {
        let slot = Slot::take();
        let run = Run::new();
        let mut cluster = Cluster {
            shape: Some(shape),
            options: options.clone(),
            data: options.data.clone().unwrap_or_else(|| run.directory().join("data")),
            mount: run.make("mnt"),
            more_mounts: Vec::new(),
            launcher: Launcher::start(&run),
            run,
            ports: Ports::take(),
            spare_ports: AtomicU32::new(0),
            _slot: slot,
        };
        match std::env::var_os("NACRE_TEST_DIRECTORY") {
            Some(directory) => cluster.become_foreign(Path::new(&directory)),
            None => {
                cluster.start_all();
                cluster.set_default_layout();
            }
        }
        cluster
    }

    /// Sets the default layout of `NACRE_TEST_LAYOUT`, which runs the tests with a layout other than users
    /// get.
    fn set_default_layout(&self) {
        if let Ok(options) = std::env::var("NACRE_TEST_LAYOUT") {
            let mount = self.mount.to_string_lossy();
            let words: Vec<&str> = options.split_whitespace().chain([&*mount]).collect();
            self.lfs(&[&["setstripe"], words.as_slice()].concat()).success();
        }
    }

    /// Sets the default layout of the file system: options of `lfs setstripe`. For tests of layouts that are
    /// not the default of users.
    ///
    /// # Panics
    ///
    /// If the command fails.
    pub fn set_default(&self, options: &[&str]) {
        let mount = self.mount.to_string_lossy();
        self.lfs(&[&["setstripe"], options, &[&mount]].concat()).success();
    }

    /// Uses a directory of another file system instead, to test the tests.
    fn become_foreign(&mut self, directory: &Path) {
        let name = self.run.directory().file_name().expect("runs have names");
        self.mount = directory.join(name);
        self.shape = None;
        fs::create_dir(&self.mount)
            .unwrap_or_else(|error| panic!("create {}: {error}", self.mount.display()));
    }

    /// Returns whether the directory is not on NacreFS (`NACRE_TEST_DIRECTORY`): then no process can be
    /// killed, and no target checked.
    pub fn is_foreign(&self) -> bool {
        self.shape.is_none()
    }

    /// Returns the shape; embedded for another file system.
    pub fn shape(&self) -> Shape {
        self.shape.unwrap_or(Shape::Embedded)
    }

    /// Returns the mount point.
    pub fn mount(&self) -> &Path {
        &self.mount
    }

    /// Returns the directory of the targets.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Returns the directory, processes and mounts of this file system.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// Creates a directory at the root of the mount with mode 0777.
    ///
    /// # Panics
    ///
    /// If that fails.
    pub fn directory(&self, name: &str) -> PathBuf {
        let path = self.mount.join(name);
        fs::create_dir(&path).unwrap_or_else(|error| panic!("create {}: {error}", path.display()));
        let open = fs::Permissions::from_mode(0o777);
        fs::set_permissions(&path, open).unwrap_or_else(|error| panic!("chmod {}: {error}", path.display()));
        path
    }

    /// Returns the source argument of `nacre mount` for another client of this file system.
    ///
    /// # Panics
    ///
    /// If the status command reports no address of the MGS.
    pub fn source(&self) -> String {
        if self.shape == Some(Shape::Embedded) {
            return format!("{}:/{}", self.address(), self.options.fsname);
        }
        let text =
            self.nacre(&["status".as_ref(), "--json".as_ref(), self.data.as_os_str()]).success().stdout;
        // Only the port number is needed; the test of the status command checks the rest.
        let after = text.split_once("\"MGT\"").map(|(_, after)| after).unwrap_or_default();
        let nid = after.split('"').find(|word| word.ends_with("@tcp"));
        let nid = nid.unwrap_or_else(|| panic!("no address of the MGT in {text}"));
        format!("{nid}:/{}", self.options.fsname)
    }

    /// Returns the address on which the embedded shape listens.
    fn address(&self) -> String {
        format!("127.0.0.1:{}@tcp", self.ports.first())
    }

    /// Returns a port that is reserved for this file system and that `start_all` assigns to no server.
    ///
    /// # Panics
    ///
    /// If none is left.
    pub fn spare_port(&self) -> u16 {
        let taken = self.spare_ports.fetch_add(1, Ordering::Relaxed);
        assert!(taken + 16 < u32::from(ports::LENGTH), "few targets are added");
        self.ports.first() + ports::LENGTH - 1 - taken as u16
    }

    /// Adds a target with these options, by the command that users run.
    #[track_caller]
    pub fn add_target(&self, kind: &str, options: &[&str]) -> Outcome {
        let mut command = self.command_to_add(kind);
        command.args(options);
        program::run_command(command, program::LIMIT)
    }

    /// Returns the command that adds a target.
    pub fn command_to_add(&self, kind: &str) -> Command {
        let mut command = self.command();
        command.args(["target", "add"]).arg(&self.data).arg(kind);
        if self.shape == Some(Shape::Separate) {
            command.args(["--port", &self.spare_port().to_string()]);
        }
        command
    }

    /// Returns the port that serves figures for Prometheus, if the options say so.
    pub fn metrics_port(&self) -> u16 {
        self.ports.first() + METRICS_PORT
    }

    /// Returns the name of the file system.
    pub fn fsname(&self) -> &str {
        &self.options.fsname
    }

    /// Adds a mount with a client process of its own. The embedded shape must listen.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn add_mount(&mut self) -> PathBuf {
        let point = self.run.make(&format!("mnt{}", self.more_mounts.len() + 1));
        self.nacre(&["mount".as_ref(), OsStr::new(&self.source()), point.as_os_str()]).success();
        assert!(mounts::at(&point).is_some(), "{} is not mounted", point.display());
        self.more_mounts.push(point.clone());
        point
    }

    /// Adds a mount after `before` has run. Its process is created before that: a process that is created
    /// while this one has open files on a stopped mount would wait for that mount.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn add_mount_after<T>(&mut self, before: impl FnOnce(&Cluster) -> T) -> (PathBuf, T) {
        let point = self.run.make(&format!("mnt{}", self.more_mounts.len() + 1));
        let mut command = self.run.command("sh");
        command.args(["-c", "read -r go && exec \"$0\" mount \"$1\" \"$2\""]);
        command.arg(binary::nacre()).arg(self.source()).arg(&point).stdin(Stdio::piped());
        let mut child = command.spawn().expect("sh starts");
        let result = before(self);
        let go = child.stdin.take().map(|mut input| input.write_all(b"go\n"));
        assert!(matches!(go, Some(Ok(()))), "{go:?}");
        self.await_mount(&point, child);
        (point, result)
    }

    /// Adds a mount, which waits for something that `meanwhile` does.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn add_mount_while<T>(&mut self, meanwhile: impl FnOnce(&Cluster) -> T) -> (PathBuf, T) {
        let point = self.run.make(&format!("mnt{}", self.more_mounts.len() + 1));
        let mut command = self.run.command(binary::nacre());
        command.arg("mount").arg(self.source()).arg(&point);
        let child = command.spawn().expect("nacre starts");
        let result = meanwhile(self);
        self.await_mount(&point, child);
        (point, result)
    }

    fn await_mount(&mut self, point: &Path, mut child: Child) {
        let ended = wait::until(LIMIT, "the mount is there", || child.try_wait().expect("our child"));
        assert!(ended.success(), "{ended}");
        self.more_mounts.push(point.to_owned());
    }

    /// Starts all parts that are not running, as `nacre up` does, and waits for the mount.
    ///
    /// # Panics
    ///
    /// If one does not start.
    pub fn start_all(&mut self) {
        let osts = self.options.osts.to_string();
        let mdts = self.options.mdts.to_string();
        assert!(self.options.osts + self.options.mdts < usize::from(ports::LENGTH), "ports for all servers");
        let (port, address) = (self.ports.first().to_string(), self.address());
        let mut words = vec![binary::nacre().as_os_str(), OsStr::new("up"), self.data.as_os_str()];
        words.extend([
            OsStr::new("--mount"),
            self.mount.as_os_str(),
            OsStr::new("--osts"),
            OsStr::new(&osts),
            OsStr::new("--mdts"),
            OsStr::new(&mdts),
            OsStr::new("--fsname"),
            OsStr::new(&self.options.fsname),
        ]);
        if self.shape == Some(Shape::Separate) {
            words.push(OsStr::new("--separate"));
            if !self.options.any_ports {
                words.extend([OsStr::new("--port"), OsStr::new(&port)]);
            }
        } else if self.options.listen {
            words.extend([OsStr::new("--listen"), OsStr::new(&address)]);
        }
        if let Some(security) = self.options.security {
            words.extend([OsStr::new("--security"), OsStr::new(security)]);
        }
        let metrics = self.metrics_port().to_string();
        if self.options.metrics {
            assert!(self.options.osts + self.options.mdts < usize::from(METRICS_PORT), "a port for figures");
            words.extend([OsStr::new("--metrics"), OsStr::new(&metrics)]);
        }
        if let Some(options) = &self.options.mount_options {
            words.extend([OsStr::new("-o"), OsStr::new(options)]);
        }
        let given = [
            ("--ost-backend", &self.options.ost_backend, "NACRE_TEST_OST_BACKEND"),
            ("--mdt-backend", &self.options.mdt_backend, "NACRE_TEST_MDT_BACKEND"),
        ];
        let backends: Vec<(&str, String)> = given
            .iter()
            .flat_map(|(option, backends, usual)| {
                let usual = std::env::var(usual).ok().filter(|_| backends.is_empty());
                backends.iter().cloned().chain(usual).map(|backend| (*option, backend)).collect::<Vec<_>>()
            })
            .collect();
        for (option, backend) in &backends {
            words.extend([OsStr::new(option), OsStr::new(backend)]);
        }
        let caches: Vec<String> = match &self.options.ost_cache_size {
            Some(size) => (0..self.options.osts)
                .map(|ost| format!("{},size={size}", self.cache_of(ost).display()))
                .collect(),
            None => Vec::new(),
        };
        for cache in &caches {
            words.extend([OsStr::new("--ost-cache"), OsStr::new(cache)]);
        }
        self.launcher.run(&words, LIMIT);
        let kind = mounts::at(&self.mount).map(|mount| mount.kind);
        assert_eq!(kind.as_deref(), Some("fuse.nacre"), "what is mounted on {}", self.mount.display());
    }

    /// Returns the device of an OST's cache of small writes.
    pub fn cache_of(&self, ost: usize) -> PathBuf {
        self.data.with_file_name(format!("cache{ost}"))
    }

    /// Returns the running processes by role: `node` for the embedded shape, else `mgs`, `mdt0000`,
    /// `ost0000`.. and `mount`; and a `mount` for each further mount.
    pub fn processes(&self) -> Vec<(String, u32)> {
        let mut found = Vec::new();
        for (pid, words) in self.run.processes() {
            let role = words.iter().position(|word| word == "--role").and_then(|index| words.get(index + 1));
            found.extend(role.map(|role| (role.clone(), pid)));
        }
        found
    }

    /// Returns the roles of the running servers, without mounts.
    pub fn servers(&self) -> Vec<String> {
        let roles = self.processes().into_iter().map(|(role, _)| role);
        roles.filter(|role| role != "mount").collect()
    }

    /// Returns the process id of the only process with this role.
    ///
    /// # Panics
    ///
    /// If there is none, or more than one, as with several mounts: [`Cluster::pid_of_mount`].
    pub fn pid(&self, role: &str) -> u32 {
        // A program that the process starts looks like the process itself until it runs exec.
        wait::until(LIMIT, &format!("one process is {role}"), || {
            let mut processes = self.processes().into_iter().filter(|(name, _)| name == role);
            let found = processes.next();
            assert!(found.is_some(), "no {role} runs");
            found.filter(|_| processes.next().is_none()).map(|(_, pid)| pid)
        })
    }

    /// Returns the process id of the mount at this path. Numbers do not tell which mount is the older one.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn pid_of_mount(&self, point: &Path) -> u32 {
        let words_of = ["--mount", crate::text(point)];
        let is_it = |words: &[String]| words.windows(2).any(|pair| pair == words_of);
        let found = self.run.processes().into_iter().find(|(_, words)| is_it(words));
        found.unwrap_or_else(|| panic!("no process serves {}", point.display())).0
    }

    /// Kills the process of this role, as a crash would, and waits until it has ended.
    ///
    /// # Panics
    ///
    /// If there is no such process, or it does not end.
    pub fn kill(&self, role: &str) {
        let pid = self.pid(role);
        self.signal(pid, Signal::KILL);
        self.end_of(|name| name == role);
        wait_gone(pid);
    }

    /// Kills all processes: a power cut that only the kernel survives.
    pub fn kill_all(&self) {
        // All signals are sent before any wait: no process should notice the end of another.
        let processes = self.processes();
        for (_, pid) in &processes {
            self.signal(*pid, Signal::KILL);
        }
        self.end_of(|_| true);
        processes.iter().for_each(|(_, pid)| wait_gone(*pid));
    }

    fn end_of(&self, chosen: impl Fn(&str) -> bool) {
        wait::until(LIMIT, "killed processes are gone", || {
            let mut left = self.processes().into_iter().filter(|(role, _)| chosen(role));
            left.next().is_none().then_some(())
        });
    }

    /// Sends a signal to a process of this file system; a process that has ended is not an error.
    pub fn signal(&self, pid: u32, signal: Signal) {
        program::signal(pid, signal);
    }

    /// Runs a command that unmounts. Repeats it for a while: until a process that another test has just
    /// forked runs exec, it has copies of the files that are open here, and the mount is busy.
    fn let_go(&self, arguments: &[&OsStr]) -> Outcome {
        let mut last = None;
        wait::within(wait::SOON, || {
            let outcome = last.insert(self.nacre(arguments));
            (!outcome.stderr.contains(" is busy")).then_some(())
        });
        last.expect("run at least once").success()
    }

    /// Unmounts and stops everything with the commands that users run.
    ///
    /// # Panics
    ///
    /// If a part keeps running, fails, or leaves its mount behind.
    pub fn stop(&mut self) {
        for point in std::mem::take(&mut self.more_mounts) {
            let outcome = self.let_go(&[OsStr::new("umount"), point.as_os_str()]);
            // A concurrent test program with a mount namespace of its own has copies of all mounts in it.
            let held =
                outcome.stderr.split_once("its process (pid ").and_then(|(_, rest)| rest.split_once(')'));
            if let Some(pid) = held.and_then(|(pid, _)| pid.parse().ok()) {
                self.signal(pid, Signal::KILL);
                wait_gone(pid);
            }
        }
        self.let_go(&[OsStr::new("down"), self.data.as_os_str()]);
        assert_eq!(self.processes(), [], "nothing runs any more");
        // Disks of targets stay.
        let ours = |entry: &mounts::Entry| entry.kind.starts_with("fuse");
        let left: Vec<_> = mounts::below(self.run.directory()).into_iter().filter(ours).collect();
        assert_eq!(left, [], "nothing is mounted any more");
    }

    /// Stops everything and checks the targets; does nothing on another file system.
    ///
    /// # Panics
    ///
    /// If a part does not stop, or the check finds a defect.
    pub fn stop_and_check(&mut self) {
        if !self.is_foreign() {
            self.stop();
            self.check();
        }
    }

    /// Drops the list of further mounts, which the test has ended.
    pub fn forget_mounts(&mut self) {
        self.more_mounts.clear();
    }

    /// Checks the targets; no part may be running.
    ///
    /// # Panics
    ///
    /// If the check finds a defect.
    pub fn check(&self) {
        self.nacre(&[OsStr::new("check"), self.data.as_os_str()]).success();
    }

    /// Runs `nacre` with these arguments.
    #[track_caller]
    pub fn nacre<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Outcome {
        let mut command = self.command();
        command.args(arguments);
        program::run_command(command, program::LIMIT)
    }

    /// Runs `lfs` with these arguments.
    #[track_caller]
    pub fn lfs<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Outcome {
        let mut command = self.command();
        command.arg("lfs").args(arguments);
        program::run_command(command, program::LIMIT)
    }

    /// Runs `lctl` with these arguments.
    #[track_caller]
    pub fn lctl<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Outcome {
        let mut command = self.command();
        command.arg("lctl").args(arguments);
        program::run_command(command, program::LIMIT)
    }

    /// Returns a command that runs `nacre` as part of this run.
    pub fn command(&self) -> Command {
        self.run.command(binary::nacre())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.is_foreign() {
            let _ = fs::remove_dir_all(&self.mount);
        }
    }
}

/// Waits until all threads of a killed process have ended. It loses its memory, with which it is found,
/// before its files and locks, and its first thread may end before the others.
fn wait_gone(pid: u32) {
    wait::until(LIMIT, "a killed process has let go of its files", || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok();
        let Some((_, rest)) = stat.as_deref().and_then(|text| text.rsplit_once(") ")) else {
            return Some(());
        };
        // State and number of threads: fields 3 and 20 of proc_pid_stat(5).
        let (state, threads) = (rest.split(' ').next(), rest.split(' ').nth(17));
        (state == Some("Z") && threads.is_none_or(|threads| matches!(threads, "0" | "1"))).then_some(())
    });
}
