//! Confines a server that has a process of its own to what it needs: its directory, the devices of its
//! targets, and files that the host lets everybody read. It bounds the damage if an attacker exploits a fault
//! of the process.
//!
//! - `no_new_privs`: a program that it starts gains no rights by set-uid.
//! - Landlock: files elsewhere cannot be opened, created or removed; signals and abstract sockets reach no
//!   other process.
//! - seccomp: system calls that no server needs fail with EPERM.
//!
//! All three apply to the calling thread and those that it starts, so the sandbox is set up before the first
//! thread. What the kernel lacks is left out and logged. Processes with a mount are not confined: they start
//! fusermount3, which is set-uid, and inspect the processes of their users. Processes with all targets are
//! not confined either: requests add further devices at run time.

use crate::failure::Result;
use crate::instance::Instance;
use crate::node::Plan;
use crate::process::NODE;
use crate::{public, registry};
use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus, Scope, path_beneath_rules,
};
use nacre_store::object::block::device_of;
use nacre_store::object::nxd::cache_of;
use rustix::io::Errno;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};
use std::path::{Path, PathBuf};

/// Environment variable that disables the sandbox with the value `off`, for debuggers and tracers of system
/// calls that start other programs.
const SWITCH: &str = "NACRE_SANDBOX";
/// Requested version of Landlock. Later versions also restrict connections to sockets in the file system,
/// which the libraries of directory services make to paths that vary between hosts.
const LANDLOCK: ABI = ABI::V7;

/// Read-only paths: the system's databases of users and names with the libraries that read them, and the
/// kernel's information.
const READ: &[&str] = &[
    "/etc",
    "/lib",
    "/lib64",
    "/proc",
    "/run/nscd",
    "/run/systemd/resolve",
    "/run/systemd/userdb",
    "/sys",
    "/usr",
    "/var/lib/sss",
];
/// Devices of the system that are opened at run time.
const SYSTEM_DEVICES: &[&str] = &["/dev/null", "/dev/random", "/dev/urandom"];

/// Denied system calls, which no server needs.
const DENIED: &[libc::c_long] = &[
    // Programs and other processes.
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // Mounts, namespaces, and access to files that bypasses paths.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_open_by_handle_at,
    // The kernel itself.
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_personality,
    // The host.
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_reboot,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
];

/// The same calls of the x32 ABI, which the filter sees as calls of x86-64 with this bit, and those with
/// numbers of their own: execve, ptrace, kexec_load, process_vm_readv, process_vm_writev, execveat.
#[cfg(target_arch = "x86_64")]
const X32_BIT: libc::c_long = 0x4000_0000;
#[cfg(target_arch = "x86_64")]
const X32_OWN: &[libc::c_long] = &[520, 521, 528, 539, 540, 545];

/// Degree to which a process is confined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confinement {
    /// Missing mechanisms, as phrases.
    missing: Vec<String>,
}

impl Confinement {
    /// Logs the result.
    pub fn log(&self) {
        if self.missing.is_empty() {
            log::info!(
                "confined to its directory and devices (Landlock), and to the system calls of servers (seccomp)"
            );
        } else {
            log::warn!("this process is not confined as it should be: {}", self.missing.join("; "));
        }
    }
}

/// Confines this process if it is a single server; returns `None` for any other process.
///
/// # Errors
/// If the directories in which commands look for processes cannot be created.
pub fn enter(plan: &Plan) -> Result<Option<Confinement>> {
    let Some(instance) = plan.instance.as_ref().filter(|_| plan.name != NODE && plan.mount.is_none()) else {
        return Ok(None);
    };
    if std::env::var_os(SWITCH).is_some_and(|value| value == "off") {
        return Ok(Some(Confinement { missing: vec![format!("{SWITCH}=off is in its environment")] }));
    }
    let reach = Reach::of(instance, plan)?;
    Ok(Some(confine(&reach)))
}

/// Parts of the file system that a process may use.
#[derive(Debug, Default)]
struct Reach {
    /// Directories with full access.
    own: Vec<PathBuf>,
    /// Devices, and files that serve as such.
    devices: Vec<PathBuf>,
    /// Directories with permission to list, in which the user's own directory is searched.
    listed: Vec<PathBuf>,
}

impl Reach {
    fn of(instance: &Instance, plan: &Plan) -> Result<Reach> {
        let (mut reach, base) = (Reach::default(), registry::make_base()?);
        reach.listed.extend(base.parent().map(Path::to_owned));
        reach.own.extend([instance.dir.clone(), plan.run.path.clone(), base]);
        reach.own.extend(public::make_base()?);
        for target in &plan.targets {
            // A link may lead to another disk.
            let (target, objects) = (instance.target_dir(*target), instance.objects_dir(*target));
            reach.devices.extend(device_of(&objects));
            // A damaged mark is reported when the target is opened.
            reach.devices.extend(cache_of(&target).ok().flatten());
            reach.own.extend([target, objects]);
        }
        Ok(reach)
    }
}

fn confine(reach: &Reach) -> Confinement {
    let mut missing = Vec::new();
    if let Err(error) = rustix::thread::set_no_new_privs(true) {
        missing.push(format!("no_new_privs: {error}"));
    }
    match restrict_files(reach) {
        Ok(RulesetStatus::FullyEnforced) => {}
        Ok(RulesetStatus::PartiallyEnforced) => {
            missing.push("Landlock of this kernel has not all rules (Linux 6.12 has)".to_owned());
        }
        Ok(RulesetStatus::NotEnforced) => {
            missing.push("this kernel has no Landlock, or it is switched off".to_owned());
        }
        Err(error) => missing.push(format!("Landlock: {error}")),
    }
    if let Err(error) = restrict_calls() {
        missing.push(format!("seccomp: {error}"));
    }
    Confinement { missing }
}

fn restrict_files(reach: &Reach) -> std::result::Result<RulesetStatus, landlock::RulesetError> {
    let all = AccessFs::from_all(LANDLOCK);
    // No program is started from its own directories.
    let own = all & !AccessFs::Execute;
    let device: BitFlags<AccessFs> =
        AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    let read: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::ReadDir;
    let system = SYSTEM_DEVICES.iter().map(Path::new);
    let devices = reach.devices.iter().map(PathBuf::as_path).chain(system);
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .scope(Scope::from_all(LANDLOCK))?
        .create()?
        .add_rules(path_beneath_rules(&reach.own, own))?
        .add_rules(path_beneath_rules(devices, device))?
        .add_rules(path_beneath_rules(READ, read))?
        .add_rules(path_beneath_rules(&reach.listed, AccessFs::ReadDir))?
        // For the names in backtraces.
        .add_rules(path_beneath_rules(["/proc/self/exe"], AccessFs::ReadFile))?
        .restrict_self()?;
    Ok(status.ruleset)
}

fn restrict_calls() -> std::result::Result<(), String> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| error.to_string())?;
    let calls = DENIED.iter().copied();
    #[cfg(target_arch = "x86_64")]
    let calls = calls
        .clone()
        .chain(calls.map(|call| call | X32_BIT))
        .chain(X32_OWN.iter().map(|call| call | X32_BIT));
    let rules = calls.map(|call| (call, Vec::new())).collect();
    let refused = SeccompAction::Errno(Errno::PERM.raw_os_error() as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch)
        .and_then(BpfProgram::try_from)
        .map_err(|error| error.to_string())?;
    seccompiler::apply_filter(&filter).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io;

    /// Runs `work` on a confined thread.
    fn confined<T: Send>(reach: &Reach, work: impl FnOnce(Confinement) -> T + Send) -> T {
        nacre_env::thread::scope(|scope| scope.spawn(|| work(confine(reach))).join().expect("no panic"))
    }

    #[test]
    fn a_confined_process_reaches_its_own_and_nothing_else() {
        let scratch = tempfile::tempdir().expect("a directory");
        let (own, other) = (scratch.path().join("own"), scratch.path().join("other"));
        for dir in [&own, &other] {
            fs::create_dir(dir).expect("made");
            fs::write(dir.join("file"), "text").expect("written");
        }
        let device = scratch.path().join("device");
        fs::write(&device, "blocks").expect("written");
        std::os::unix::fs::symlink(&other, own.join("out")).expect("linked");
        let reach = Reach {
            own: vec![own.clone(), scratch.path().join("missing")],
            devices: vec![device.clone()],
            listed: vec![],
        };
        confined(&reach, |confinement| {
            fs::create_dir(own.join("d")).expect("made");
            fs::rename(own.join("file"), own.join("d/file")).expect("moved between directories");
            fs::remove_file(own.join("d/file")).expect("removed");
            fs::OpenOptions::new().read(true).write(true).truncate(true).open(&device).expect("a device");
            for path in ["/etc/passwd", "/proc/self/status", "/dev/urandom", "/proc/self/exe"] {
                fs::File::open(path).unwrap_or_else(|error| panic!("{path}: {error}"));
            }
            if !confinement.missing.iter().any(|missing| missing.contains("Landlock")) {
                let denied = |result: io::Result<()>| {
                    assert_eq!(result.expect_err("denied").kind(), io::ErrorKind::PermissionDenied);
                };
                denied(fs::read(other.join("file")).map(drop));
                denied(fs::read(own.join("out/file")).map(drop));
                denied(fs::write(other.join("new"), ""));
                denied(fs::remove_file(other.join("file")));
                fs::hard_link(&device, own.join("link"))
                    .expect_err("a name in another directory has other rights");
                denied(fs::OpenOptions::new().append(true).open("/etc/passwd").map(drop));
                denied(fs::read_dir("/").map(drop));
            }
        });
        assert_eq!(fs::read(other.join("file")).expect("outside of the thread"), b"text");
    }

    #[test]
    fn calls_that_no_server_makes_are_refused() {
        let refused = confined(&Reach::default(), |_| {
            let calls = [
                libc::SYS_unshare,
                libc::SYS_ptrace,
                libc::SYS_setns,
                libc::SYS_bpf,
                libc::SYS_keyctl,
                libc::SYS_execve,
            ];
            calls.map(|call| {
                // SAFETY: with these arguments no call has an effect, even if the filter passed it.
                let result = unsafe { libc::syscall(call, 0, 0, 0, 0, 0) };
                (result, io::Error::last_os_error().raw_os_error())
            })
        });
        assert_eq!(refused, [(-1, Some(libc::EPERM)); 6]);
        let rings = confined(&Reach::default(), |_| io_uring_is_allowed());
        assert_eq!(rings, io_uring_is_allowed());
    }

    /// Returns the errno of a call with invalid arguments, which shows whether the filter passes it.
    fn io_uring_is_allowed() -> Option<i32> {
        // SAFETY: the null pointer is refused by the kernel.
        let result = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, 0) };
        assert_eq!(result, -1);
        io::Error::last_os_error().raw_os_error()
    }
}
