//! A local file system in an image file, for the duration of a measurement.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::Error;

/// Type of the local file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Ext4,
    Xfs,
    Btrfs,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Ext4 => "ext4",
            Kind::Xfs => "xfs",
            Kind::Btrfs => "btrfs",
        }
    }

    /// Returns the mkfs command without the device.
    fn mkfs(self) -> &'static [&'static str] {
        match self {
            // Space reserved for root would be capacity that is never filled; inode tables are initialised at
            // once, not during a measurement.
            Kind::Ext4 => {
                &["mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0"]
            }
            Kind::Xfs => &["mkfs.xfs", "-q", "-f"],
            Kind::Btrfs => &["mkfs.btrfs", "-q", "-f"],
        }
    }

    /// Returns the Debian package of its mkfs.
    fn package(self) -> &'static str {
        match self {
            Kind::Ext4 => "e2fsprogs",
            Kind::Xfs => "xfsprogs",
            Kind::Btrfs => "btrfs-progs",
        }
    }
}

/// A file system mounted through a loop device; unmounted and removed on drop.
#[derive(Debug)]
pub(crate) struct Image {
    file: PathBuf,
    mount: PathBuf,
    is_mounted: bool,
}

impl Image {
    /// Creates a sparse file of `bytes` bytes in an existing directory and a file system in it, and mounts
    /// that.
    ///
    /// # Errors
    ///
    /// `Usage` if the machine lacks a requirement: root, loop devices or the mkfs.
    pub(crate) fn mount(directory: &Path, kind: Kind, bytes: u64) -> Result<Image, Error> {
        let name = kind.name();
        if !rustix::process::geteuid().is_root() {
            return Err(Error::Usage(format!("{name} in a file is mounted by root only: run as root")));
        }
        let file = directory.join(format!("{name}.image"));
        let mount = directory.join(name);
        let made = std::fs::File::create_new(&file).and_then(|file| file.set_len(bytes));
        made.map_err(Error::io("create", &file))?;
        let mut image = Image { file, mount, is_mounted: false };
        std::fs::create_dir(&image.mount).map_err(Error::io("create directory", &image.mount))?;
        let [mkfs, words @ ..] = kind.mkfs() else { return Ok(image) };
        let missing = || format!("{mkfs} is not installed: install {}", kind.package());
        call(Command::new(mkfs).args(words).arg(&image.file), &missing)?;
        let missing = || "mount is not installed: install mount".to_owned();
        let mut command = Command::new("mount");
        command.args(["-t", name, "-o", "loop,nosuid,nodev"]).arg(&image.file).arg(&image.mount);
        call(&mut command, &missing)?;
        image.is_mounted = true;
        Ok(image)
    }

    /// Returns the mount point.
    pub(crate) fn path(&self) -> &Path {
        &self.mount
    }
}

/// Runs a program to completion.
fn call(command: &mut Command, missing: &dyn Fn() -> String) -> Result<(), Error> {
    // Administration programs are often outside the PATH of ordinary users.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    let output = command.stdin(Stdio::null()).output().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::Usage(missing()),
        _ => Error::io("start", Path::new(command.get_program()))(error),
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let what = command.get_program().to_string_lossy().into_owned();
    Err(Error::Server { what, reason: said.lines().last().unwrap_or("it failed without a word").to_owned() })
}

impl Drop for Image {
    fn drop(&mut self) {
        if self.is_mounted {
            // The kernel frees the loop device with the mount, or when the last open file there is closed.
            let missing = || "umount is not installed: install mount".to_owned();
            let unmount =
                |words: &[&str]| call(Command::new("umount").args(words).arg(&self.mount), &missing);
            if let Err(error) = unmount(&[]).or_else(|_| unmount(&["-l"])) {
                eprintln!("bench: {} stays: {error}", self.mount.display());
                return;
            }
        }
        let _ = std::fs::remove_dir(&self.mount);
        if let Err(error) = std::fs::remove_file(&self.file) {
            eprintln!("bench: remove {}: {error}", self.file.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_a_file_system_of_its_own_and_leaves_nothing() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().expect("a directory");
        let image = Image::mount(dir.path(), Kind::Ext4, 64 << 20).expect("mounted by root");
        let device = |path: &Path| std::fs::metadata(path).expect("there").dev();
        assert_ne!(device(image.path()), device(dir.path()));
        assert_eq!(nacre_common::place::file_system(image.path()).expect("known"), "ext4");
        drop(image);
        assert_eq!(std::fs::read_dir(dir.path()).expect("there").count(), 0);
    }

    #[test]
    fn what_a_mkfs_refuses_is_said_and_leaves_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let error = Image::mount(dir.path(), Kind::Ext4, 4096).expect_err("too small");
        assert!(error.to_string().contains("mkfs.ext4"), "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).expect("there").count(), 0);
        let missing = call(&mut Command::new("/no/such/mkfs"), &|| "install it".to_owned());
        assert_eq!(missing.expect_err("missing").to_string(), "install it");
    }
}
