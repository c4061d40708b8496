//! File systems of real processes.

mod grammar;
mod slot;

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::program::{self, Outcome};
use crate::run::Run;
use crate::{binary, mounts, wait};
use slot::Slot;

/// How long a file system may take to come up on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long a server may take to stop on request.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// How the parts of a file system are spread over processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One process: servers, client and mount.
    Embedded,
    /// A process per server and one for each mount, over TCP on loopback.
    Separate,
}

/// What a file system is made of.
#[derive(Debug, Clone)]
pub struct Options {
    /// Object storage targets.
    pub osts: usize,
    /// Embedded: other clients may connect, too.
    pub listen: bool,
    /// Directory for the data of the targets, when it is not to lie in the run's own.
    pub data: Option<PathBuf>,
    /// More arguments for the process that mounts.
    pub mount_arguments: Vec<String>,
}

impl Default for Options {
    fn default() -> Options {
        Options { osts: 4, listen: false, data: None, mount_arguments: Vec::new() }
    }
}

/// One process of a file system.
#[derive(Debug)]
pub struct Server {
    /// What it does: `up`, `mgs`, `mds`, `oss0`.., `mount0`..
    pub role: String,
    arguments: Vec<OsString>,
    child: Option<Child>,
    /// Where it mounts, if it does.
    point: Option<PathBuf>,
}

impl Server {
    /// Its process number while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }
}

/// A running file system with at least one mount; it ends with this value.
#[derive(Debug)]
pub struct Cluster {
    shape: Option<Shape>,
    data: PathBuf,
    mount: PathBuf,
    servers: Vec<Server>,
    address: String,
    // Ends processes and mounts; after the servers, whose children are waited for first.
    run: Run,
    _slot: Slot,
}

impl Cluster {
    /// A file system of four OSTs.
    ///
    /// # Panics
    ///
    /// When it does not come up, with the ends of its logs.
    pub fn start(shape: Shape) -> Cluster {
        Cluster::start_with(shape, &Options::default())
    }

    /// A file system as `options` say.
    ///
    /// # Panics
    ///
    /// When it does not come up, with the ends of its logs.
    pub fn start_with(shape: Shape, options: &Options) -> Cluster {
        let slot = Slot::take();
        let run = Run::new();
        if let Some(directory) = std::env::var_os("NACRE_TEST_DIRECTORY") {
            return Cluster::foreign(PathBuf::from(directory), run, slot);
        }
        let data = options.data.clone().unwrap_or_else(|| run.make("data"));
        let mount = run.make("mnt");
        let address = grammar::free_address();
        let servers = match shape {
            Shape::Embedded => vec![grammar::up(&data, &mount, &address, options)],
            Shape::Separate => {
                let mut servers = grammar::servers(&run, &data, &address, options);
                servers.push(grammar::mount("mount0", &mount, &address, options));
                servers
            }
        };
        let mut cluster = Cluster { shape: Some(shape), data, mount, servers, address, run, _slot: slot };
        cluster.start_all();
        cluster
    }

    /// A directory of some other file system, to test the tests.
    fn foreign(directory: PathBuf, run: Run, slot: Slot) -> Cluster {
        let name = run.directory().file_name().expect("runs have names");
        let mount = directory.join(name);
        fs::create_dir(&mount).unwrap_or_else(|error| panic!("create {}: {error}", mount.display()));
        let data = run.make("data");
        let (servers, address) = (Vec::new(), String::new());
        Cluster { shape: None, data, mount, servers, address, run, _slot: slot }
    }

    /// Whether this is no file system of ours (`NACRE_TEST_DIRECTORY`): then nothing can be killed or checked.
    pub fn is_foreign(&self) -> bool {
        self.shape.is_none()
    }

    /// The mount point.
    pub fn mount(&self) -> &Path {
        &self.mount
    }

    /// Where the targets keep their data.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The directory, processes and mounts of this file system.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// Where other clients find the MGS: a NID with a port, for `nacre mount`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A new directory at the root of the mount, open to everybody.
    ///
    /// # Panics
    ///
    /// When it cannot be made.
    pub fn directory(&self, name: &str) -> PathBuf {
        let path = self.mount.join(name);
        fs::create_dir(&path).unwrap_or_else(|error| panic!("create {}: {error}", path.display()));
        let open = fs::Permissions::from_mode(0o777);
        fs::set_permissions(&path, open).unwrap_or_else(|error| panic!("chmod {}: {error}", path.display()));
        path
    }

    /// Its processes.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The roles of its processes, those that mount left out.
    pub fn server_roles(&self) -> Vec<String> {
        let servers = self.servers.iter().filter(|server| server.role != "up" && server.point.is_none());
        servers.map(|server| server.role.clone()).collect()
    }

    /// Another mount by a client process of its own.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    pub fn add_mount(&mut self) -> PathBuf {
        let number = self.servers.iter().filter(|server| server.point.is_some()).count();
        let name = format!("mount{number}");
        let point = self.run.make(&format!("mnt{number}"));
        let server = grammar::mount(&name, &point, &self.address, &Options::default());
        self.servers.push(server);
        self.start_role(&name);
        point
    }

    /// Starts every process that does not run, in order, and waits for the mounts.
    ///
    /// # Panics
    ///
    /// When one ends early or does not mount.
    pub fn start_all(&mut self) {
        let roles: Vec<String> = self.servers.iter().map(|server| server.role.clone()).collect();
        for role in roles {
            self.start_role(&role);
        }
    }

    /// Starts one process again, exactly as it was started before; nothing happens when it runs.
    ///
    /// # Panics
    ///
    /// When it ends early or does not mount.
    pub fn start_role(&mut self, role: &str) {
        let log = self.run.directory().join(format!("{role}.log"));
        let mut command = self.run.command(binary::nacre());
        let server = self.server(role);
        if server.child.is_some() {
            return;
        }
        let file = File::options().create(true).append(true).open(&log).expect("the run's directory is ours");
        let error_file = file.try_clone().expect("descriptors are left");
        command.args(&server.arguments).stdin(Stdio::null()).stdout(file).stderr(error_file);
        command.env("RUST_BACKTRACE", "1");
        let child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", binary::nacre().display()));
        server.child = Some(child);
        if let Some(point) = server.point.clone() {
            self.wait_until_mounted(role, &point);
        }
    }

    fn wait_until_mounted(&mut self, role: &str, point: &Path) {
        let server = self.server(role);
        wait::until(START_LIMIT, &format!("{role} has mounted {}", point.display()), || {
            let child = server.child.as_mut().expect("it was started");
            if let Some(status) = child.try_wait().expect("our own child") {
                server.child = None;
                panic!("{role} ended with {status} instead of mounting");
            }
            let mounted = mounts::at(point).is_some_and(|mount| mount.kind.starts_with("fuse"));
            (mounted && fs::metadata(point).is_ok()).then_some(())
        });
    }

    /// Kills a process as a crash would, and waits until it is gone.
    ///
    /// # Panics
    ///
    /// When there is no such process.
    pub fn kill(&mut self, role: &str) {
        let server = self.server(role);
        if let Some(mut child) = server.child.take() {
            child.kill().unwrap_or_else(|error| panic!("kill {role}: {error}"));
            child.wait().unwrap_or_else(|error| panic!("wait for {role}: {error}"));
        }
    }

    /// Kills all processes, as if the plug had been pulled on everything but the kernel.
    pub fn kill_all(&mut self) {
        let roles: Vec<String> = self.servers.iter().map(|server| server.role.clone()).collect();
        // First the signals, then the waits: nobody should see the others go.
        for server in &mut self.servers {
            if let Some(child) = &mut server.child {
                let _ = child.kill();
            }
        }
        for role in roles {
            self.kill(&role);
        }
    }

    /// Asks a process to stop and returns how it ended; `None` when it does not run.
    ///
    /// # Panics
    ///
    /// When it goes on.
    pub fn stop_role(&mut self, role: &str) -> Option<ExitStatus> {
        let mut child = self.server(role).child.take()?;
        // SAFETY: kill touches no memory; the process is our own child and was not waited for.
        unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) };
        let status = wait::within(STOP_LIMIT, || child.try_wait().expect("our own child"));
        if status.is_none() {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{role} did not stop within {STOP_LIMIT:?}");
        }
        status
    }

    /// Asks all processes to stop, clients first.
    ///
    /// # Panics
    ///
    /// When one goes on, ends with an error, or leaves its mount.
    pub fn stop(&mut self) {
        let roles: Vec<String> = self.servers.iter().map(|server| server.role.clone()).collect();
        for role in roles.iter().rev() {
            if let Some(status) = self.stop_role(role) {
                assert!(status.success(), "{role} ended with {status}");
            }
        }
        for server in &self.servers {
            if let Some(point) = &server.point {
                assert_eq!(mounts::at(point), None, "{} is still mounted", point.display());
            }
        }
    }

    /// Stops everything and has the targets checked.
    ///
    /// # Panics
    ///
    /// When something does not stop, or the check finds anything.
    pub fn stop_and_check(&mut self) {
        if self.is_foreign() {
            return;
        }
        self.stop();
        self.check();
    }

    /// Has the targets checked; nothing may be running.
    ///
    /// # Panics
    ///
    /// When the check finds anything.
    pub fn check(&self) {
        for arguments in grammar::checks(&self.data) {
            self.nacre(&arguments).success();
        }
    }

    /// Runs the binary with these arguments.
    #[track_caller]
    pub fn nacre<A: AsRef<std::ffi::OsStr>>(&self, arguments: &[A]) -> Outcome {
        let mut command = self.command();
        command.args(arguments);
        program::run_command(command, program::LIMIT)
    }

    /// Runs `lfs` with these arguments.
    #[track_caller]
    pub fn lfs<A: AsRef<std::ffi::OsStr>>(&self, arguments: &[A]) -> Outcome {
        let mut command = self.command();
        command.arg("lfs").args(arguments);
        program::run_command(command, program::LIMIT)
    }

    /// A command that runs the binary as part of this run.
    pub fn command(&self) -> Command {
        self.run.command(binary::nacre())
    }

    fn server(&mut self, role: &str) -> &mut Server {
        let server = self.servers.iter_mut().find(|server| server.role == role);
        server.unwrap_or_else(|| panic!("no process has the role {role}"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.is_foreign() {
            let _ = fs::remove_dir_all(&self.mount);
        }
        self.kill_all();
    }
}
