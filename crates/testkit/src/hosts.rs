//! Several hosts on one machine: network namespaces on a common bridge, each with mounts, keys and a boot of its own.

use crate::program::{self, Outcome};
use crate::run::Run;
use crate::{binary, wait};
use rustix::process::{Pid, Signal};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Name of the interface of a host.
const INTERFACE: &str = "eth0";

/// Gives a host the identity of a new boot: `$1` becomes its file.
const BOOT: &str = r#"
    cat /proc/sys/kernel/random/uuid > "$1" && mount --bind "$1" /proc/sys/kernel/random/boot_id
"#;

/// A network and its hosts; ended when dropped.
pub struct Hosts {
    /// Processes that hold the namespaces; the switch is the first.
    holders: Vec<Child>,
}

impl Hosts {
    /// Creates `count` hosts with the addresses `10.77.0.1` and up, numbered from 0.
    ///
    /// # Panics
    /// If the kernel creates no namespaces.
    pub fn new(run: &Run, count: usize) -> Hosts {
        let mut hosts = Hosts { holders: Vec::new() };
        hosts.add(run, "switch");
        hosts.set_up(0, "ip link add br0 type bridge && ip link set br0 up && ip link set lo up");
        for index in 0..count {
            hosts.add(run, &format!("host{index}"));
            let pid = hosts.holders[index + 1].id();
            hosts.set_up(
                0,
                &format!(
                    "ip link add p{index} type veth peer name {INTERFACE} netns {pid} && \
                     ip link set p{index} master br0 && ip link set p{index} up"
                ),
            );
            hosts.set_up(
                index + 1,
                &format!(
                    "ip link set lo up && ip addr add 10.77.0.{}/24 dev {INTERFACE} && ip link set {INTERFACE} up",
                    index + 1
                ),
            );
        }
        hosts
    }

    /// Starts the process that holds the namespaces of a host. Programs there find no file system of another
    /// host.
    fn add(&mut self, run: &Run, name: &str) {
        let registry = run.make(name);
        let boot = run.directory().join(format!("{name}.boot"));
        // Unmounts copies of other tests' mounts, which would keep these busy.
        let script = format!(
            r#"
            findmnt -rn -t fuse.nacre -o TARGET | xargs -r umount -l
            {BOOT}
            mkdir -p /run/nacre && chmod 700 "$2" && mount --bind "$2" /run/nacre && touch "$2/ready"
            exec sleep infinity
            "#
        );
        let mut command = run.command("unshare");
        command.args(["--net", "--mount", "sh", "-c", &script, "sh"]).arg(&boot).arg(&registry);
        let holder = command.stdin(Stdio::null()).spawn().expect("unshare runs");
        self.holders.push(holder);
        wait::until(wait::SOON, "the namespaces of a host", || registry.join("ready").exists().then_some(()));
    }

    fn set_up(&self, host: usize, script: &str) {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.holders[host].id().to_string(), "-n", "sh", "-c", script]);
        program::run_command(command, program::LIMIT).success();
    }

    /// Returns the number of hosts.
    pub fn count(&self) -> usize {
        self.holders.len() - 1
    }

    /// Returns the address of a host.
    pub fn address(&self, host: usize) -> String {
        format!("10.77.0.{}@tcp", host + 1)
    }

    /// Returns a command that runs a program on a host.
    pub fn command(&self, run: &Run, host: usize, program: impl AsRef<OsStr>) -> Command {
        let mut command = run.command("nsenter");
        command.args(["-t", &self.holders[host + 1].id().to_string(), "-n", "-m"]).arg(program);
        command.env("NACRE_KEYS", self.keys(run, host));
        command
    }

    /// Returns the directory of the client keys of a host.
    pub fn keys(&self, run: &Run, host: usize) -> PathBuf {
        run.directory().join(format!("keys{host}"))
    }

    /// Runs `nacre` on a host.
    pub fn nacre<A: AsRef<OsStr>>(&self, run: &Run, host: usize, arguments: &[A]) -> Outcome {
        let mut command = self.command(run, host, binary::nacre());
        command.args(arguments);
        program::run_command(command, program::LIMIT)
    }

    /// Returns a path of a host as this process finds it.
    pub fn path(&self, host: usize, path: &Path) -> PathBuf {
        let root = format!("/proc/{}/root", self.holders[host + 1].id());
        Path::new(&root).join(path.strip_prefix("/").expect("paths of hosts are absolute"))
    }

    /// Ends all programs of a host without notice and gives it a new boot; `meanwhile` runs between their last action
    /// and their end.
    ///
    /// # Panics
    /// If a program cannot be ended.
    pub fn lose_power(&self, run: &Run, host: usize, meanwhile: impl FnOnce()) {
        let holder = self.holders[host + 1].id();
        let mounts = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
        let own = mounts(holder);
        let of_host = |(pid, _): &(u32, Vec<String>)| *pid != holder && mounts(*pid) == own;
        let pids: Vec<u32> = run.processes().into_iter().filter(of_host).map(|(pid, _)| pid).collect();
        let signal_all = |signal| {
            for pid in &pids {
                let pid = Pid::from_raw(pid.cast_signed()).expect("not 0");
                rustix::process::kill_process(pid, signal).expect("it runs until it is killed here");
            }
        };
        signal_all(Signal::STOP);
        meanwhile();
        signal_all(Signal::KILL);
        pids.iter().for_each(|pid| wait::until_ended(wait::SOON, *pid));
        let boot = run.directory().join(format!("{host}.boot"));
        let mut command = self.command(run, host, "sh");
        command.args(["-c", &format!("umount -l /proc/sys/kernel/random/boot_id; {BOOT}"), "sh"]).arg(boot);
        program::run_command(command, program::LIMIT).success();
    }

    /// Runs a shell script on a host.
    pub fn shell(&self, run: &Run, host: usize, script: &str) -> Outcome {
        let mut command = self.command(run, host, "sh");
        command.args(["-c", script]);
        program::run_command(command, program::LIMIT)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for holder in &mut self.holders {
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}
