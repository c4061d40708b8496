//! `nacre mount` and `nacre umount`, also for `mount.nacre`.

use super::MountArgs;
use super::mount_point::{busy, detach};
use crate::control::{self, Answer, Request};
use crate::failure::{EXIT_USAGE, Failure, Result};
use crate::http_address::HttpAddress;
use crate::keys::Holder;
use crate::process::{self, MOUNT, RunDir};
use crate::progress::Progress;
use crate::{holders, instance, listen, mounts, node, registry};
use nacre_env::clock::Instant;
use nacre_fuse::TransportChoice;
use nacre_fuse::front::LockScope;
use nacre_rpc::Shape;
use nacre_types::Nid;
use nacre_types::nid::MountSource;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Help for the options.
pub const OPTIONS_HELP: &str = "\
Options: ro rw allow_other noallow_other dev nodev* suid nosuid* exec noexec noatime (*: the default)
  flock|localflock           file locks hold across mounts, or within this mount only
  simulate=NETWORK           simulated network between client and servers, for measurements:
                             simulate=bandwidth=1G:latency=200us (per endpoint, each way)
  default_permissions        the kernel checks permissions too: slower, but FIFOs, sockets and devices
                             are checked as well
  transport=auto|uring|dev   transport of the kernel's requests
  metrics=[HOST:]PORT        serve the figures of the mount for Prometheus
  retry=N                    retry up to N times, 1 to 30 s apart, for servers that start later
";

/// Wait for a mount's process to end without a message.
const QUIET_STOP: Duration = Duration::from_secs(3);
/// Longest wait for a mount's process to end: it waits for servers, each step with a limit of its own.
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// Longest time to retry a remount while closes of files are under way.
const BUSY_LIMIT: Duration = Duration::from_secs(1);
const BUSY_POLL: Duration = Duration::from_millis(10);
/// Delay of the first retry; each later one takes twice as long.
const RETRY_WAIT_MIN: Duration = Duration::from_secs(1);
const RETRY_WAIT_MAX: Duration = Duration::from_secs(30);

/// Options of a mount, as given with `-o`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// Read-only mount.
    pub read_only: bool,
    /// Other users may use the mount; `None`: yes for root, no for other users.
    pub allow_other: Option<bool>,
    /// Device nodes do not work. The default, because their permission bits are not checked without
    /// `default_permissions`.
    pub nodev: bool,
    /// Set-id bits have no effect.
    pub nosuid: bool,
    /// Programs cannot be executed.
    pub noexec: bool,
    /// The kernel checks permissions as well as the MDT.
    pub default_permissions: bool,
    /// Transport between kernel and process.
    pub transport: TransportChoice,
    /// Scope of file locks; `None`: the kernel alone if no other host can mount.
    pub locks: Option<LockScope>,
    /// Access times are updated (relatime).
    pub relatime: bool,
    /// A simulated slow network to the servers.
    pub simulate: Option<Shape>,
    /// Number of retries of a failed mount.
    pub retries: u32,
    /// Address that serves the figures of the mount.
    pub metrics: Option<HttpAddress>,
}

impl MountOptions {
    /// Parses comma-separated options. `sloppy` ignores unknown ones, as `mount -s` requests.
    ///
    /// # Errors
    /// The first unknown option.
    pub fn parse(lists: &[String], sloppy: bool) -> Result<MountOptions> {
        let options = MountOptions {
            read_only: false,
            allow_other: None,
            nodev: true,
            nosuid: true,
            noexec: false,
            default_permissions: false,
            transport: TransportChoice::Auto,
            locks: None,
            relatime: true,
            simulate: None,
            retries: 0,
            metrics: None,
        };
        options.changed_by(lists, sloppy)
    }

    fn changed_by(mut self, lists: &[String], sloppy: bool) -> Result<MountOptions> {
        for word in lists.iter().flat_map(|list| list.split(',')).filter(|word| !word.is_empty()) {
            if !self.apply(word) && !sloppy {
                return Err(Failure::usage(format!(
                    "unknown mount option '{word}': see 'nacre mount --help' for those that exist"
                )));
            }
        }
        Ok(self)
    }

    fn apply(&mut self, word: &str) -> bool {
        match word {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "allow_other" => self.allow_other = Some(true),
            "noallow_other" => self.allow_other = Some(false),
            "dev" => self.nodev = false,
            "nodev" => self.nodev = true,
            "suid" => self.nosuid = false,
            "nosuid" => self.nosuid = true,
            "exec" => self.noexec = false,
            "noexec" => self.noexec = true,
            "default_permissions" => self.default_permissions = true,
            "transport=auto" => self.transport = TransportChoice::Auto,
            "transport=uring" => self.transport = TransportChoice::Uring,
            "transport=dev" => self.transport = TransportChoice::Dev,
            "flock" => self.locks = Some(LockScope::Cluster),
            "localflock" => self.locks = Some(LockScope::Local),
            "relatime" | "atime" => self.relatime = true,
            "noatime" => self.relatime = false,
            // Options for mount(8), or always in force here.
            "defaults" | "auto" | "noauto" | "user" | "nouser" | "users" | "owner" | "group" | "_netdev"
            | "nofail" | "async" | "user_xattr" | "acl" | "nodiratime" | "diratime" | "lazystatfs" => {}
            word => match word.split_once('=') {
                // Commas separate mount options, so colons separate those of the network.
                Some(("simulate", fabric)) => match fabric.replace(':', ",").parse() {
                    Ok(shape) => self.simulate = Some(shape),
                    Err(_) => return false,
                },
                Some(("retry", times)) => match times.parse() {
                    Ok(times) => self.retries = times,
                    Err(_) => return false,
                },
                Some(("metrics", address)) => match address.parse() {
                    Ok(address) => self.metrics = Some(address),
                    Err(_) => return false,
                },
                Some(("comment", _)) => {}
                _ => return word.starts_with("x-"),
            },
        }
        true
    }
}

/// Runs the command.
pub fn run(args: &MountArgs) -> Result<i32> {
    let source = parse_source(&args.source)?;
    if let Some(identity) = super::key::enrol(&args.token, &source.nids, &source.fsname, Holder::Client)? {
        eprintln!("key {} enrolled for file system '{}'", identity.id, source.fsname);
    }
    if args.foreground {
        let options = MountOptions::parse(&args.options, false)?;
        let mount_point = checked_mount_point(&args.mount_point)?;
        return super::serve::foreground_mount(&source, &mount_point, options);
    }
    mount(&args.source, &args.mount_point, &args.options, false)?;
    Ok(0)
}

fn parse_source(text: &str) -> Result<MountSource> {
    let words = MountSource::split(text).map_err(|error| Failure::usage(error.to_string()))?;
    let is_inside = words.nids.iter().any(|word| word.parse() == Ok(Nid::Lo));
    if is_inside {
        return Err(Failure::usage(
            "0@lo is inside the process that serves it: give the address that was listened on, for example 127.0.0.1@tcp:/nacre",
        ));
    }
    listen::resolve_source(text)
}

/// Returns an existing directory without a mount on it; a dead NacreFS mount is removed first.
fn checked_mount_point(path: &Path) -> Result<PathBuf> {
    let absolute = instance::absolute(path)?;
    if !absolute.exists() && !mounts::is_dead_mount_point(&absolute) {
        return Err(Failure::new(format!(
            "the mount point {} does not exist: make the directory first",
            path.display()
        )));
    }
    super::mount_point::prepare(&absolute)?;
    absolute.canonicalize().map_err(Failure::because(format!("look at {}", path.display())))
}

/// Mounts `source` in the background; retries as often as the options say, for hosts that start before the
/// servers.
///
/// # Errors
/// If the source, the options or the mount point are wrong, or no server answers.
pub fn mount(source: &str, mount_point: &Path, options: &[String], sloppy: bool) -> Result<()> {
    let retries = MountOptions::parse(options, sloppy)?.retries;
    let mut wait = RETRY_WAIT_MIN;
    for retry in 1..=retries {
        match mount_once(source, mount_point, options, sloppy) {
            Err(failure) if failure.exit != EXIT_USAGE => {
                eprintln!("{failure}; try {retry} of {retries} follows in {} s", wait.as_secs());
            }
            outcome => return outcome,
        }
        nacre_env::thread::sleep(wait);
        wait = RETRY_WAIT_MAX.min(2 * wait);
    }
    mount_once(source, mount_point, options, sloppy)
}

fn mount_once(source: &str, mount_point: &Path, options: &[String], sloppy: bool) -> Result<()> {
    let source = parse_source(source)?;
    let mount_point = checked_mount_point(mount_point)?;
    let run = registry::mount_run_dir(&mount_point)?;
    instance::make_dir(&run.path, 0o700)?;
    // The process of a mount that was just unmounted is still disconnecting from the servers.
    if run.pid(MOUNT).is_some() {
        super::mount_point::ends_by_itself(&run, MOUNT, &mount_point)?;
    }
    let mut words: Vec<OsString> = ["serve", "--background", "--role", MOUNT].map(OsString::from).to_vec();
    words.extend(["--source".into(), source.to_string().into()]);
    words.extend(["--mount".into(), mount_point.clone().into()]);
    if sloppy {
        words.push("--sloppy".into());
    }
    for option in options {
        words.extend(["-o".into(), option.into()]);
    }
    process::start(&words, &run.log(MOUNT), &mut Progress::new(false)).map(drop)
}

/// Changes flags of a mount: `ro`, `rw`, `dev`, `suid`, `exec`, `noatime` and their opposites. Other options
/// keep their values.
///
/// # Errors
/// If it is not a NacreFS mount, or files are open for writing that `ro` would cut off.
pub fn remount(mount_point: &Path, options: &[String]) -> Result<()> {
    use rustix::fs::StatVfsMountFlags;
    use rustix::mount::MountFlags;
    let real = instance::canonical(mount_point)?;
    if mounts::mounted_on(&real).map_err(Failure::because("read the mount table"))?.is_none() {
        return Err(Failure::new(format!("no NacreFS is mounted on {}", mount_point.display())));
    }
    let now = rustix::fs::statvfs(&real)
        .map_err(Failure::because(format!("look at {}", mount_point.display())))?
        .f_flag;
    let before = MountOptions {
        read_only: now.contains(StatVfsMountFlags::RDONLY),
        nodev: now.contains(StatVfsMountFlags::NODEV),
        nosuid: now.contains(StatVfsMountFlags::NOSUID),
        noexec: now.contains(StatVfsMountFlags::NOEXEC),
        relatime: !now.contains(StatVfsMountFlags::NOATIME),
        ..MountOptions::parse(&[], true)?
    };
    // mount(8) adds the options of the kernel's table, which lists no option for a permitted feature.
    let options = before.changed_by(options, true)?;
    let flags = [
        (options.read_only, MountFlags::RDONLY),
        (options.nodev, MountFlags::NODEV),
        (options.nosuid, MountFlags::NOSUID),
        (options.noexec, MountFlags::NOEXEC),
        (!options.relatime, MountFlags::NOATIME),
    ];
    let flags =
        flags.into_iter().filter(|(on, _)| *on).fold(MountFlags::empty(), |all, (_, flag)| all | flag);
    let start = Instant::now();
    loop {
        match rustix::mount::mount_remount(&real, flags, "") {
            Ok(()) => return Ok(()),
            // Closes complete in the background; until then a removed file counts as open.
            Err(rustix::io::Errno::BUSY) if start.elapsed() < BUSY_LIMIT => {
                nacre_env::thread::sleep(BUSY_POLL)
            }
            Err(rustix::io::Errno::BUSY) => return Err(busy(mount_point)),
            Err(error) => return Err(Failure::because(format!("remount {}", mount_point.display()))(error)),
        }
    }
}

/// Unmounts: the process behind the mount does it and ends; without a process the mount itself is removed.
///
/// # Errors
/// If it is not a NacreFS mount, or busy.
pub fn unmount(mount_point: &Path) -> Result<()> {
    let absolute = instance::absolute(mount_point)?;
    let dead = mounts::is_dead_mount_point(&absolute);
    let real = if dead {
        absolute
    } else {
        absolute.canonicalize().map_err(Failure::because(format!("look at {}", mount_point.display())))?
    };
    let table = mounts::mounted_on(&real).map_err(Failure::because("read the mount table"))?;
    if table.is_none() {
        return Err(Failure::new(format!("no NacreFS is mounted on {}", mount_point.display())));
    }
    if dead {
        return detach(&real, true);
    }
    let device = holders::device_of(&real);
    detach(&real, false)?;
    // The process ends on its own; the wait for its end ensures that all data is written on return.
    let ours = |run: &RunDir| node::recorded_mount_point(run).is_some_and(|recorded| recorded == real);
    for run in registry::running().into_iter().filter(ours) {
        // Another one may have its name soon.
        let Some(process) = run.watch(MOUNT) else { continue };
        let pid = run.pid(MOUNT).unwrap_or_default();
        if process.wait_ended(QUIET_STOP) {
            continue;
        }
        if serves_a_mount(&run) {
            eprintln!(
                "{} is unmounted here; its process (pid {pid}) goes on until nobody in another mount namespace (a container, a \
                 service) has it any more: it is {}",
                real.display(),
                holders::named(&device.map(holders::of_device).unwrap_or_default())
            );
            continue;
        }
        eprintln!(
            "{} is unmounted; its process (pid {pid}) waits for servers that have yet to store its data: see {}",
            real.display(),
            run.log(MOUNT).display()
        );
        if !process.wait_ended(STOP_LIMIT) {
            return Err(Failure::new(format!(
                "the process of {} (pid {pid}) has not ended within {STOP_LIMIT:?}: {}",
                real.display(),
                process::why_silent(pid)
            )));
        }
    }
    Ok(())
}

/// Returns true for a process that has its mount still; one that stores the last data has none.
fn serves_a_mount(run: &RunDir) -> bool {
    let answer = control::ask_for(&run.socket(MOUNT), &Request::Status, control::STATUS_LIMIT);
    matches!(answer, Ok(Answer::Status(status)) if status.mount.is_some())
}

/// Returns the run directory with the socket and log of a mount process.
pub fn run_dir_of(mount_point: &Path, dir: Option<&Path>) -> Result<RunDir> {
    match dir {
        Some(dir) => Ok(RunDir::new(dir.join("run"))),
        None => registry::mount_run_dir(mount_point),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<MountOptions> {
        MountOptions::parse(&[text.to_owned()], false)
    }

    #[test]
    fn options_of_fstab_are_understood() {
        let options = parse("ro,nosuid,_netdev,x-systemd.automount,defaults,transport=dev").expect("known");
        assert!(options.read_only && options.nosuid && options.nodev && !options.default_permissions);
        assert_eq!((options.retries, parse("retry=5,comment=a=b").expect("known").retries), (0, 5));
        assert!(parse("retry=-1").is_err() && parse("retry").is_err());
        assert!(!parse("dev").expect("known").nodev);
        assert!(parse("dev").expect("known").nosuid && !parse("suid").expect("known").nosuid);
        assert!(parse("default_permissions").expect("known").default_permissions);
        assert_eq!(options.transport, TransportChoice::Dev);
        assert!(!parse("ro,rw").expect("the last counts").read_only);
        assert_eq!(parse("noallow_other").expect("known").allow_other, Some(false));
        assert_eq!(parse("localflock").expect("known").locks, Some(LockScope::Local));
        assert_eq!(parse("ro").expect("known").locks, None);
    }

    #[test]
    fn unknown_options_are_named_unless_sloppy() {
        let failure = parse("ro,bogus=1").expect_err("unknown");
        assert!(failure.message.contains("'bogus=1'"), "{failure}");
        assert_eq!(failure.exit, 2);
        assert!(MountOptions::parse(&["bogus".to_owned()], true).is_ok());
    }

    #[test]
    fn sources_inside_another_process_are_refused() {
        let failure = parse_source("0@lo:/nacre").expect_err("not from here");
        assert!(failure.message.contains("0@lo"), "{failure}");
        assert!(parse_source("10.0.0.1@tcp:/nacre").is_ok());
        assert!(parse_source("10.0.0.1:/nacre").is_err());
    }
}
