//! Mounting and unmounting.
//!
//! Root mounts with mount(2); other users through the set-uid helper fusermount3, which returns the device's
//! descriptor over a socket.

mod fusermount;
mod table;

use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::config::{MountOptions, SessionConfig};
use crate::device::Device;
use crate::error::Error;

pub(crate) use table::MountEntry;

/// Kind of an unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmount {
    /// Fails with [`Error::Busy`] while files are open.
    Clean,
    /// Detaches from the tree at once; ends when the last open file is closed.
    Lazy,
    /// Detaches at once, and requests in flight fail.
    Force,
}

/// An existing mount, with the way it was mounted.
#[derive(Debug)]
pub(crate) struct Mounted {
    path: PathBuf,
    by_helper: bool,
}

/// Mounts according to the configuration.
pub(crate) fn mount(config: &SessionConfig) -> Result<(Device, Mounted), Error> {
    check_options(config)?;
    let path = prepare_mount_point(&config.mount_point, &config.mount)?;
    let options = &config.mount;
    if is_root() && !options.force_fusermount {
        let device = Device::open()?;
        mount_directly(&path, options, config.protocol.max_write, &device)?;
        Ok((device, Mounted { path, by_helper: false }))
    } else {
        // The helper opens the device with this process's rights: a check beforehand gives a better message.
        drop(Device::open()?);
        let device = fusermount::mount(&path, &helper_options(options, config.protocol.max_write))?;
        Ok((device, Mounted { path, by_helper: true }))
    }
}

impl Mounted {
    /// Returns the mount point, with symbolic links resolved.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets the kernel's read-ahead to `bytes`. INIT can only lower the default of new mounts (128 KiB), so
    /// this uses sysfs, which needs root; returns false if it failed.
    pub fn set_read_ahead(&self, bytes: u32) -> bool {
        let Some((major, minor)) = self.device_number() else { return false };
        let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        match std::fs::write(&path, (bytes >> 10).to_string()) {
            Ok(()) => true,
            Err(error) => {
                log::debug!("{path} could not be set, read-ahead stays short: {error}");
                false
            }
        }
    }

    /// Returns the device number of the mount, found without a request to its daemon.
    fn device_number(&self) -> Option<(u32, u32)> {
        let flags = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
        let stat = rustix::fs::statx(CWD, &self.path, flags, StatxFlags::empty()).ok()?;
        Some((stat.stx_dev_major, stat.stx_dev_minor))
    }

    /// Returns true if it is still mounted without a daemon.
    pub fn is_dead(&self) -> bool {
        is_dead(&self.path) && MountEntry::at(&self.path).is_some()
    }

    /// Unmounts. Succeeds if it is already unmounted.
    pub fn unmount(&self, how: Unmount) -> Result<(), Error> {
        if self.by_helper && !is_root() {
            return fusermount::unmount(&self.path, how != Unmount::Clean);
        }
        let flags = match how {
            Unmount::Clean => UnmountFlags::empty(),
            Unmount::Lazy => UnmountFlags::DETACH,
            Unmount::Force => UnmountFlags::FORCE | UnmountFlags::DETACH,
        };
        unmount_directly(&self.path, flags)
    }
}

fn unmount_directly(path: &Path, flags: UnmountFlags) -> Result<(), Error> {
    match rustix::mount::unmount(path, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(Errno::BUSY) => Err(Error::Busy(path.to_owned())),
        Err(errno) => Err(Error::Unmount { path: path.to_owned(), source: errno.into() }),
    }
}

fn mount_directly(path: &Path, options: &MountOptions, max_read: u32, device: &Device) -> Result<(), Error> {
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},max_read={max_read}",
        device.fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw()
    );
    if options.allow_other.unwrap_or(true) {
        data.push_str(",allow_other");
    }
    if options.default_permissions {
        data.push_str(",default_permissions");
    }
    let mut flags = MountFlags::empty();
    for (wanted, flag) in [
        (options.read_only, MountFlags::RDONLY),
        (options.nodev, MountFlags::NODEV),
        (options.nosuid, MountFlags::NOSUID),
        (options.noexec, MountFlags::NOEXEC),
        (options.noatime, MountFlags::NOATIME),
    ] {
        if wanted {
            flags |= flag;
        }
    }
    let source = c_string("source", options.source.as_bytes())?;
    let kind = c_string("subtype", format!("fuse.{}", options.subtype).as_bytes())?;
    let data = c_string("mount options", data.as_bytes())?;
    rustix::mount::mount(source, path, kind, flags, Some(data.as_c_str())).map_err(|errno| match errno {
        Errno::NODEV => Error::NoDevice,
        _ => Error::Mount { path: path.to_owned(), source: errno.into() },
    })
}

/// Returns the option string for the helper. Commas and backslashes in values are escaped as it expects.
fn helper_options(options: &MountOptions, max_read: u32) -> String {
    let mut text =
        format!("fsname={},subtype={}", escape_option(&options.source), escape_option(&options.subtype));
    text.push_str(&format!(",max_read={max_read}"));
    for (wanted, word) in [
        (options.read_only, "ro"),
        (options.allow_other.unwrap_or(is_root()), "allow_other"),
        (options.default_permissions, "default_permissions"),
        (options.noexec, "noexec"),
        (options.noatime, "noatime"),
        (is_root() && !options.nodev, "dev"),
        (is_root() && !options.nosuid, "suid"),
    ] {
        if wanted {
            text.push(',');
            text.push_str(word);
        }
    }
    text
}

fn escape_option(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for letter in value.chars() {
        if matches!(letter, ',' | '\\') {
            escaped.push('\\');
        }
        escaped.push(letter);
    }
    escaped
}

fn check_options(config: &SessionConfig) -> Result<(), Error> {
    let max_write = config.protocol.max_write;
    if !(4096..=1 << 20).contains(&max_write) || !max_write.is_multiple_of(4096) {
        return Err(Error::Option {
            name: "max_write",
            reason: "must be a multiple of 4096 from 4096 to 1048576",
        });
    }
    let granularity = config.protocol.time_granularity_ns;
    if !(1..=1_000_000_000).contains(&granularity) {
        return Err(Error::Option { name: "time_granularity_ns", reason: "must be from 1 to 1000000000" });
    }
    if config.protocol.max_background == 0 {
        return Err(Error::Option { name: "max_background", reason: "must be at least 1" });
    }
    let threads = &config.threads;
    if threads.workers_per_cpu == 0 || threads.workers_per_cpu_max < threads.workers_per_cpu {
        return Err(Error::Option {
            name: "workers_per_cpu",
            reason: "must be from 1 to workers_per_cpu_max",
        });
    }
    if threads.readers == Some(0) {
        return Err(Error::Option { name: "readers", reason: "must be at least 1" });
    }
    let subtype = &config.mount.subtype;
    if subtype.is_empty()
        || !subtype.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    {
        return Err(Error::Option {
            name: "subtype",
            reason: "must be one word of letters, digits, - and _",
        });
    }
    if options_have_control_bytes(&config.mount.source) {
        return Err(Error::Option { name: "source", reason: "must not be empty or have control characters" });
    }
    Ok(())
}

fn options_have_control_bytes(source: &str) -> bool {
    source.is_empty() || source.bytes().any(|byte| byte < b' ')
}

/// Clears a dead mount of this subtype, and checks that the mount point is free.
fn prepare_mount_point(path: &Path, options: &MountOptions) -> Result<PathBuf, Error> {
    let path = resolve(path)?;
    if let Some(entry) = MountEntry::at(&path) {
        let ours = entry.kind == format!("fuse.{}", options.subtype);
        if !is_dead(&path) {
            // A mount over any FUSE mount would hide it; other file systems are common below a mount.
            if entry.kind.starts_with("fuse") {
                return Err(Error::InUse(path, entry.source));
            }
        } else if ours && options.clear_stale {
            clear_stale(&path, &entry)?;
        } else {
            return Err(Error::Stale(path, entry.source));
        }
    }
    let meta = std::fs::metadata(&path).map_err(|error| no_mount_point(&path, error))?;
    if !meta.is_dir() {
        return Err(Error::NotADirectory(path));
    }
    if !options.allow_non_empty {
        let mut entries = std::fs::read_dir(&path).map_err(Error::system("reading the mount point"))?;
        if entries.next().is_some() {
            return Err(Error::NotEmpty(path));
        }
    }
    Ok(path)
}

/// Returns the path without symbolic links. The last component may be a dead mount, which cannot be examined.
fn resolve(path: &Path) -> Result<PathBuf, Error> {
    match std::fs::canonicalize(path) {
        Ok(path) => Ok(path),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NOTCONN) => {
            let name = path.file_name().ok_or_else(|| Error::NoMountPoint(path.to_owned()))?;
            let parent = match path.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent,
                _ => Path::new("."),
            };
            let parent = std::fs::canonicalize(parent).map_err(|error| no_mount_point(path, error))?;
            Ok(parent.join(name))
        }
        Err(error) => Err(no_mount_point(path, error)),
    }
}

fn no_mount_point(path: &Path, error: io::Error) -> Error {
    match Errno::from_io_error(&error) {
        Some(Errno::NOENT) => Error::NoMountPoint(path.to_owned()),
        Some(Errno::NOTDIR) => Error::NotADirectory(path.to_owned()),
        _ => Error::System { action: "looking at the mount point", source: error },
    }
}

/// Returns true if the daemon of this FUSE mount is dead.
fn is_dead(path: &Path) -> bool {
    let error = std::fs::symlink_metadata(path).err();
    matches!(error.and_then(|error| Errno::from_io_error(&error)), Some(Errno::NOTCONN | Errno::CONNABORTED))
}

fn clear_stale(path: &Path, entry: &MountEntry) -> Result<(), Error> {
    log::warn!("clearing the dead mount of {} on {}", entry.source, path.display());
    let cleared = if is_root() {
        unmount_directly(path, UnmountFlags::DETACH)
    } else {
        fusermount::unmount(path, true)
    };
    cleared.map_err(|_| Error::Stale(path.to_owned(), entry.source.clone()))
}

fn c_string(name: &'static str, bytes: &[u8]) -> Result<CString, Error> {
    CString::new(bytes).map_err(|_| Error::Option { name, reason: "must not have a NUL byte" })
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(test)]
mod tests;
