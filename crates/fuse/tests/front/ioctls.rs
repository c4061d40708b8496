//! Native ioctls.

use super::support::on_servers;
use nacre_fuse::front::ioctl::call;
use nacre_types::ioctl::{FidToPath, MountInfo, PathToFid, TargetList, TargetStatfs};
use nacre_types::{Fid, TargetId, TargetKind};
use std::fs::{self, File};
use std::os::fd::AsFd;

#[test]
fn a_mount_tells_about_itself() {
    on_servers(3, |servers| {
        let mount = servers.mount();
        fs::create_dir(mount.path("dir")).expect("made");
        fs::write(mount.path("dir/file"), b"x").expect("written");
        let root = File::open(&mount.dir).expect("opened");
        let file = File::open(mount.path("dir/file")).expect("opened");

        let mut info = MountInfo::default();
        call(root.as_fd(), &mut info).expect("answered");
        assert_eq!(info.fsname, "nacre");
        let mut fid = PathToFid::default();
        call(root.as_fd(), &mut fid).expect("answered");
        assert_eq!(fid.fid, Fid::ROOT);
        call(file.as_fd(), &mut fid).expect("answered");
        let mut path = FidToPath { fid: fid.fid, ..FidToPath::default() };
        call(root.as_fd(), &mut path).expect("answered");
        assert_eq!(path.path, b"dir/file");
        let mut targets =
            TargetList { kind: TargetKind::Ost, from: 1, indexes: Vec::new(), inactive: Vec::new() };
        call(file.as_fd(), &mut targets).expect("answered");
        assert_eq!((targets.indexes, targets.inactive), (vec![1, 2], vec![]));
        let mut space = TargetStatfs::question(TargetId::ost(2));
        call(root.as_fd(), &mut space).expect("answered");
        assert!(space.blocks[0] > 0);
        let mut none = TargetStatfs::question(TargetId::ost(3));
        let error = call(root.as_fd(), &mut none).expect_err("no such target");
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    });
}

#[test]
fn other_file_systems_do_not_understand_them() {
    let file = File::open("/proc/self").expect("opened");
    let error = call(file.as_fd(), &mut MountInfo::default()).expect_err("not ours");
    assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
}
