//! Hosts that lose power, and disks that fail: a target on a disk of its own, of which exactly what had reached the disk
//! is kept.

use crate::program::shell;
use crate::{Cluster, Stopped};
use std::path::{Path, PathBuf};

/// Limits the size of the loop device `sys.argv[1]`, also in use: requests beyond it fail with `EIO`.
const LIMIT_SIZE: &str = r#"
import fcntl, struct, sys
LOOP_SET_STATUS64, LOOP_GET_STATUS64 = 0x4C04, 0x4C05
with open(sys.argv[1], "rb") as device:
    status = bytearray(232)
    fcntl.ioctl(device, LOOP_GET_STATUS64, status)
    struct.pack_into("=Q", status, 32, int(sys.argv[2]))
    fcntl.ioctl(device, LOOP_SET_STATUS64, status)
"#;

/// Unmounts `$2`, which the kernel holds a little longer than the process that was killed: it closes files of an `io_uring`
/// after the end of their process.
const UNMOUNT: &str = r#"until umount "$2"; do sleep 0.1; done"#;

/// The disk of one target: an ext4 file system in a file. The file has what the kernel has written to the disk, and what
/// is in the kernel's caches only is lost with the power.
pub struct PowerDisk {
    role: String,
    target: PathBuf,
    image: PathBuf,
    cuts: u32,
}

impl PowerDisk {
    /// Moves a target of a running cluster of separate processes to a disk of its own; it is restarted for that.
    ///
    /// # Panics
    ///
    /// If that fails; tests require `mkfs.ext4` and root first.
    pub fn under(cluster: &mut Cluster, role: &str) -> PowerDisk {
        let target = cluster.data().join(role);
        let image = cluster.run().directory().join(format!("{role}.disk"));
        cluster.kill(role);
        let script = r#"
            truncate -s 512M "$1"; mkfs.ext4 -q "$1"
            mv "$2" "$2.moved"; mkdir "$2"; mount -o loop "$1" "$2"
            cp -a "$2.moved/." "$2"; rm -r "$2.moved"; sync -f "$2"
        "#;
        shell(Path::new("/"), script, [&image, &target]).success();
        cluster.start_all();
        PowerDisk { role: role.to_owned(), target, image, cuts: 0 }
    }

    /// Cuts the power of the target's host while it runs, and starts it again with what was on the disk at that moment.
    ///
    /// # Panics
    ///
    /// If that fails.
    pub fn cut(&mut self, cluster: &mut Cluster) {
        self.cuts += 1;
        let after = self.image.with_extension(format!("cut{}", self.cuts));
        // While it is stopped it answers nothing that the copy does not have.
        let stopped = Stopped::begin(cluster, cluster.pid(&self.role));
        shell(Path::new("/"), r#"cp --sparse=always "$1" "$2""#, [&self.image, &after]).success();
        cluster.kill(&self.role);
        drop(stopped);
        let script = format!(r#"{UNMOUNT}; rm "$3"; mount -o loop "$1" "$2""#);
        shell(Path::new("/"), &script, [&after, &self.target, &self.image]).success();
        self.image = after;
        cluster.start_all();
    }

    /// Has the disk fail all requests while `meanwhile` runs. Then the target is started again with the disk, which has
    /// what was written to it before.
    ///
    /// # Panics
    ///
    /// If that fails.
    pub fn fail(&self, cluster: &mut Cluster, meanwhile: impl FnOnce()) {
        let script = r#"python3 -c "$2" "$(findmnt -no SOURCE "$1")" 4096"#;
        shell(Path::new("/"), script, [self.target.as_os_str(), LIMIT_SIZE.as_ref()]).success();
        meanwhile();
        cluster.kill(&self.role);
        // The kernel lets go of the device after the unmount, and two devices for one file are refused.
        let script = format!(
            r#"{UNMOUNT}; while [ -n "$(losetup -j "$1")" ]; do sleep 0.1; done; mount -o loop "$1" "$2""#
        );
        shell(Path::new("/"), &script, [&self.image, &self.target]).success();
        cluster.start_all();
    }
}
