//! A NacreFS file system for the duration of a measurement.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nacre_common::partner;
use serde_json::Value;

use crate::error::Error;
use crate::machine::resident_bytes;

/// Selects the program that starts file systems.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct NacreProgram {
    /// The nacre binary; by default the one next to nacre-bench, or else in PATH
    #[arg(long, value_name = "PROGRAM")]
    nacre: Option<PathBuf>,
}

impl NacreProgram {
    /// Returns the path of the program.
    pub(crate) fn find(&self) -> Result<PathBuf, Error> {
        self.nacre.clone().map_or_else(|| partner::find(partner::NACRE).map_err(Error::Usage), Ok)
    }
}

/// Configuration of a file system for a measurement.
#[derive(Debug, Clone, Default)]
pub(crate) struct InstanceOptions {
    /// Number of object targets.
    pub(crate) osts: usize,
    /// Number of metadata targets; 0 means one.
    pub(crate) mdts: usize,
    /// One process per server and one for the mount.
    pub(crate) separate: bool,
    /// Servers require no keys: the bench sends requests to object servers directly, for objects that no MDT
    /// has.
    pub(crate) is_open: bool,
    /// Back end of its OSTs, as the argument of `nacre up --ost-backend`.
    pub(crate) ost_backend: Option<String>,
    /// Write caches of its OSTs in order, as arguments of `nacre up --ost-cache`; empty for none.
    pub(crate) ost_caches: Vec<String>,
    /// Mount options.
    pub(crate) mount_options: Vec<String>,
}

/// A file system that runs and is mounted; stopped and removed on drop.
#[derive(Debug)]
pub(crate) struct Instance {
    program: PathBuf,
    directory: PathBuf,
    mount: PathBuf,
    fsname: String,
    options: InstanceOptions,
    /// Further mounts, each with its client process, a child of this one.
    more: Vec<(PathBuf, Child)>,
}

/// Draws a name of eight letters that is unique in this process, and most probably on the host.
fn new_fsname() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("b{:05x}{:02x}", std::process::id() & 0xf_ffff, number & 0xff)
}

/// Timeout for a further mount to start.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(30);

impl Instance {
    /// Creates a file system with its targets in `directory/NAME`, which must not exist, and starts it.
    pub(crate) fn start(
        program: &Path,
        directory: &Path,
        name: &str,
        options: InstanceOptions,
    ) -> Result<Instance, Error> {
        let directory = directory.join(name);
        if directory.exists() {
            return Err(Error::Usage(format!(
                "{} exists: remove it or choose another --dir",
                directory.display()
            )));
        }
        std::fs::create_dir_all(&directory).map_err(Error::io("create directory", &directory))?;
        let mount = directory.join("mnt");
        let (program, fsname) = (program.to_owned(), new_fsname());
        let instance = Instance { program, directory, mount, fsname, options, more: Vec::new() };
        instance.up()?;
        Ok(instance)
    }

    /// Returns its name, which its parameters contain.
    pub(crate) fn fsname(&self) -> &str {
        &self.fsname
    }

    /// Starts the processes and mounts.
    pub(crate) fn up(&self) -> Result<(), Error> {
        let (data, osts) = (self.data(), self.options.osts.to_string());
        let mut words: Vec<&OsStr> = vec!["up".as_ref()];
        words.extend([data.as_os_str(), OsStr::new("--mount"), self.mount.as_os_str()]);
        words.extend([OsStr::new("--osts"), OsStr::new(&osts)]);
        let mdts = self.options.mdts.max(1).to_string();
        if self.options.mdts > 0 {
            words.extend([OsStr::new("--mdts"), OsStr::new(&mdts)]);
        }
        words.extend(self.options.separate.then_some(OsStr::new("--separate")));
        if self.options.is_open {
            words.extend([OsStr::new("--security"), OsStr::new("open")]);
        }
        words.extend([OsStr::new("--fsname"), OsStr::new(&self.fsname)]);
        if let Some(backend) = &self.options.ost_backend {
            words.extend([OsStr::new("--ost-backend"), OsStr::new(backend)]);
        }
        for cache in &self.options.ost_caches {
            words.extend([OsStr::new("--ost-cache"), OsStr::new(cache)]);
        }
        for option in &self.options.mount_options {
            words.extend([OsStr::new("-o"), OsStr::new(option)]);
        }
        self.call(&words).map(drop)
    }

    /// Unmounts and stops the processes; stored data stays.
    pub(crate) fn down(&self) -> Result<(), Error> {
        self.call(&["down".as_ref(), self.data().as_os_str()]).map(drop)
    }

    fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    /// Returns the mount point.
    pub(crate) fn mount(&self) -> &Path {
        &self.mount
    }

    /// Adds a mount by a client process of its own. Requires servers in processes of their own.
    pub(crate) fn add_mount(&mut self) -> Result<PathBuf, Error> {
        let point = self.directory.join(format!("mnt{}", self.more.len() + 1));
        std::fs::create_dir(&point).map_err(Error::io("create directory", &point))?;
        let source = self.source()?;
        let mut command = Command::new(&self.program);
        command.args(["mount".as_ref(), OsStr::new(&source), point.as_os_str(), "--foreground".as_ref()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(Error::io("start", &self.program))?;
        self.more.push((point.clone(), child));
        let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev());
        let below = device(&self.directory).map_err(Error::io("stat", &self.directory))?;
        let deadline = Instant::now() + MOUNT_TIMEOUT;
        while device(&point).is_ok_and(|device| device == below) {
            let ended = self.more.last_mut().is_some_and(|(_, child)| !matches!(child.try_wait(), Ok(None)));
            if ended || Instant::now() > deadline {
                let reason = if ended { "its process has ended" } else { "it does not come up" };
                let what = format!("nacre mount {source} {}", point.display());
                return Err(Error::Server { what, reason: reason.to_owned() });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(point)
    }

    /// Returns the source argument of `nacre mount`.
    fn source(&self) -> Result<String, Error> {
        Ok(format!("{}:/{}", self.address("MGT")?, self.fsname))
    }

    /// Returns the NID of a target such as `OST0000`. Requires servers in processes of their own.
    pub(crate) fn address(&self, target: &str) -> Result<String, Error> {
        let text = self.call(&["status".as_ref(), "--json".as_ref(), self.data().as_os_str()])?;
        // Only port numbers are needed from the file.
        let after = text.split_once(&format!("\"{target}\"")).map(|(_, after)| after).unwrap_or_default();
        let nid = after.split('"').find(|word| word.ends_with("@tcp"));
        nid.map(str::to_owned).ok_or_else(|| Error::Server {
            what: "nacre status".to_owned(),
            reason: format!("it names no address of {target}"),
        })
    }

    /// Runs `lfs`.
    pub(crate) fn lfs(&self, words: &[&OsStr]) -> Result<(), Error> {
        self.lfs_text(words).map(drop)
    }

    /// Runs `lfs` and returns its output.
    pub(crate) fn lfs_text(&self, words: &[&OsStr]) -> Result<String, Error> {
        let words: Vec<&OsStr> = std::iter::once(OsStr::new("lfs")).chain(words.iter().copied()).collect();
        self.call(&words)
    }

    fn unmount_more(&mut self) {
        for (point, mut child) in self.more.drain(..) {
            let unmounted = Command::new(&self.program).arg("umount").arg(&point).output();
            if !unmounted.is_ok_and(|output| output.status.success()) {
                eprintln!("bench: {} is not unmounted: its process is ended", point.display());
                let _ = child.kill();
            }
            let _ = child.wait();
        }
    }

    /// Creates a directory on the mount.
    pub(crate) fn work_directory(&self, name: &str) -> Result<PathBuf, Error> {
        let path = self.mount.join(name);
        std::fs::create_dir(&path).map_err(Error::io("create directory", &path))?;
        Ok(path)
    }

    /// Stripes new files in `directory` over `count` OSTs.
    pub(crate) fn stripe(&self, directory: &Path, count: usize) -> Result<(), Error> {
        self.setstripe(directory, &["-c", &count.to_string()])
    }

    /// Sets the layout of new files in `directory` by `lfs setstripe` with `options`.
    pub(crate) fn setstripe(&self, directory: &Path, options: &[&str]) -> Result<(), Error> {
        let mut words: Vec<&OsStr> = vec!["lfs".as_ref(), "setstripe".as_ref()];
        words.extend(options.iter().map(OsStr::new));
        words.push(directory.as_os_str());
        self.call(&words).map(drop)
    }

    /// Runs `lctl`.
    pub(crate) fn lctl(&self, words: &[&str]) -> Result<(), Error> {
        let words: Vec<&OsStr> =
            std::iter::once("lctl").chain(words.iter().copied()).map(OsStr::new).collect();
        self.call(&words).map(drop)
    }

    /// Returns the values of parameters `KIND.LEAF` of this file system.
    pub(crate) fn param(&self, kind: &str, leaf: &str) -> Result<String, Error> {
        let name = format!("{kind}.{}-*.{leaf}", self.fsname());
        self.call(&["lctl", "get_param", "-n", &name].map(OsStr::new))
    }

    /// Sets parameters of this file system by their full names.
    pub(crate) fn set_named_params(&self, settings: &[String]) -> Result<(), Error> {
        let words = ["set_param", "-n"].into_iter().chain(settings.iter().map(String::as_str));
        self.lctl(&words.collect::<Vec<_>>())
    }

    /// Sets parameters `KIND.LEAF=VALUE` of this file system.
    pub(crate) fn set_params(&self, settings: &[(&str, &str, String)]) -> Result<(), Error> {
        let fsname = &self.fsname;
        let settings: Vec<String> =
            settings.iter().map(|(kind, leaf, value)| format!("{kind}.{fsname}-*.{leaf}={value}")).collect();
        self.set_named_params(&settings)
    }

    /// Returns the ids of all its processes.
    pub(crate) fn processes(&self) -> Result<Vec<u32>, Error> {
        let mut all: Vec<u32> = self.servers()?.into_iter().map(|(_, pid)| pid).collect();
        all.extend(self.more.iter().map(|(_, child)| child.id()));
        Ok(all)
    }

    /// Returns the id of the process with this name, such as `mdt0000`. Requires servers in processes of their own.
    pub(crate) fn process(&self, name: &str) -> Result<u32, Error> {
        let found = self.servers()?.into_iter().find(|(server, _)| server == name);
        found.map(|(_, pid)| pid).ok_or_else(|| Error::Server {
            what: "nacre status".to_owned(),
            reason: format!("it names no process {name}"),
        })
    }

    /// Returns names and ids of the processes of its directory.
    fn servers(&self) -> Result<Vec<(String, u32)>, Error> {
        let text = self.call(&["status".as_ref(), "--json".as_ref(), self.data().as_os_str()])?;
        let status: Value = serde_json::from_str(&text)
            .map_err(|error| Error::Server { what: "nacre status".to_owned(), reason: error.to_string() })?;
        let server = |process: &Value| {
            Some((process["name"].as_str()?.to_owned(), u32::try_from(process["pid"].as_u64()?).ok()?))
        };
        Ok(status["processes"].as_array().into_iter().flatten().filter_map(server).collect())
    }

    /// Returns the resident memory of all its processes together, in bytes.
    pub(crate) fn resident_bytes(&self) -> Result<u64, Error> {
        Ok(self.processes()?.into_iter().filter_map(resident_bytes).sum())
    }

    fn call(&self, words: &[&OsStr]) -> Result<String, Error> {
        let output =
            Command::new(&self.program).args(words).output().map_err(Error::io("start", &self.program))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let what = words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(Error::Server { what: format!("nacre {what}"), reason })
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.unmount_more();
        if let Err(error) = self.down() {
            eprintln!("bench: {error}");
            return;
        }
        // The file system is down, so no mount is inside.
        if let Err(error) = std::fs::remove_dir_all(&self.directory) {
            eprintln!("bench: remove {}: {error}", self.directory.display());
        }
    }
}
