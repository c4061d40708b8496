//! Lustre's attributes: visibility, permission to set them, and invalid values.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use fastrand::Rng;
use nacre_testkit::identity::Identity;
use nacre_testkit::{errno, on_every_shape};
use rustix::fs::{XattrFlags, listxattr, removexattr, setxattr};

use super::ioctls::{GETSTRIPE, ioctl};
use super::{attribute, lfs, text};

const LOV: &str = "lustre.lov";
const ANY: XattrFlags = XattrFlags::empty();

fn listed(path: &Path) -> Vec<String> {
    let mut names = vec![0; 4096];
    let length = listxattr(path, &mut names[..]).expect("list");
    let names = String::from_utf8(names[..length].to_vec()).expect("ASCII");
    let mut names: Vec<String> = names.split_terminator('\0').map(str::to_owned).collect();
    names.sort();
    names
}

on_every_shape! {
    fn administrators_see_and_set_what_others_do_not(cluster) {
        if cluster.is_foreign() {
            return;
        }
        cluster.set_default(&["-d"]);
        let root = cluster.directory("d");
        fs::set_permissions(&root, fs::Permissions::from_mode(0o777)).expect("chmod");
        let path = root.join("f");
        fs::write(&path, "text").expect("write");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("chmod");
        assert_eq!(listed(&path), [LOV]);
        let names = [LOV, "trusted.link", "trusted.lma", "trusted.lov"];
        let all = names.map(|name| attribute(&path, name).expect("get"));
        assert_eq!(all[0], all[3]);
        assert!(all[1].ends_with(b"f"));
        let value = all[0].clone();
        Identity::user(1000).act(|| {
            assert_eq!(listed(&path), [LOV]);
            assert_eq!(attribute(&path, LOV).as_ref(), Ok(&value));
            for name in ["trusted.lov", "trusted.lma", "trusted.link"] {
                assert_eq!(attribute(&path, name), Err(libc::ENODATA), "{name}");
                assert_eq!(errno(setxattr(&path, name, &value, ANY)), libc::EPERM, "{name}");
            }
            // Neither the owner nor permitted to write.
            assert_eq!(errno(setxattr(&path, LOV, &value, ANY)), libc::EACCES);
            let own = root.join("own");
            fs::write(&own, "").expect("write");
            setxattr(&own, LOV, &value, XattrFlags::CREATE).expect("the owner may");
            assert_eq!(errno(setxattr(&own, LOV, &value, XattrFlags::CREATE)), libc::EEXIST);
            setxattr(&own, LOV, &value, ANY).expect("ignored");
            removexattr(&own, LOV).expect("ignored");
            assert!(attribute(&own, LOV).is_ok());
        });
        for name in ["trusted.lma", "trusted.link", "trusted.hsm", "trusted.lmv"] {
            setxattr(&path, name, b"restored", ANY).expect("ignored");
            removexattr(&path, name).expect("ignored");
        }
        assert_eq!(attribute(&path, "trusted.lma").as_ref(), Ok(&all[2]));
        assert_eq!(errno(setxattr(&path, "lustre.lov.other", &value, ANY)), libc::EINVAL);
        lfs(cluster, &["setstripe", "-c", "2", text(&root)]);
        removexattr(&root, LOV).expect("remove");
        assert_eq!(attribute(&root, LOV), Err(libc::ENODATA));
    }

    fn directories_without_a_default_show_that_of_the_root(cluster) {
        if cluster.is_foreign() {
            return;
        }
        cluster.set_default(&["-c", "3", "-S", "128K"]);
        let inner = cluster.directory("d").join("inner");
        fs::create_dir(&inner).expect("mkdir");
        let of_root = attribute(cluster.mount(), LOV).expect("set");
        assert_eq!((attribute(&inner, LOV), listed(&inner)), (Ok(of_root.clone()), vec![]));
        assert_eq!(attribute(&inner, "trusted.lov"), Err(libc::ENODATA), "only what is its own");
        let mut shown = vec![0; of_root.len()];
        assert_eq!(ioctl(&File::open(&inner).expect("open"), GETSTRIPE, &mut shown), 0);
        assert_eq!(shown, of_root);
        assert_eq!(lfs(cluster, &["getstripe", "-d", "-c", text(&inner)]), "3");
        assert_eq!(lfs(cluster, &["getstripe", "-d", "-c", "--raw", text(&inner)]), "0");
        lfs(cluster, &["setstripe", "-c", "2", text(&inner)]);
        assert_ne!(attribute(&inner, LOV).as_ref(), Ok(&of_root));
        assert_eq!((lfs(cluster, &["getstripe", "-d", "-c", "--raw", text(&inner)]), listed(&inner)), ("2".into(), vec![LOV.into()]));
    }

    fn pins_to_pools_are_kept_and_removed(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let path = cluster.directory("d").join("f");
        fs::write(&path, "text").expect("write");
        const PIN: &str = "lustre.pin";
        assert_eq!(errno(removexattr(&path, PIN)), libc::ENODATA);
        setxattr(&path, PIN, b"flash", ANY).expect("set");
        assert_eq!(attribute(&path, PIN), Ok(b"flash".to_vec()));
        removexattr(&path, PIN).expect("remove");
        assert_eq!(attribute(&path, PIN), Err(libc::ENODATA));
    }

    fn values_that_make_no_sense_are_refused_and_change_nothing(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let root = cluster.directory("d");
        let path = root.join("good");
        lfs(cluster, &["setstripe", "-E", "1M", "-c", "1", "-E", "2M", "-c", "2", "-E", "-1", "-c", "3", text(&path)]);
        let good = attribute(&path, LOV).expect("get");
        let target = root.join("target");
        fs::create_dir(&target).expect("mkdir");
        let mut random = Rng::with_seed(11);
        let mut accepted = 0;
        for round in 0..600 {
            let mut value = good.clone();
            for _ in 0..=round % 5 {
                let at = random.usize(..value.len());
                value[at] = [0, 1, 0x10, 0x7f, 0xff][random.usize(..5)];
            }
            if round % 7 == 0 {
                value.truncate(random.usize(..value.len()));
            }
            match setxattr(&target, LOV, &value, ANY) {
                Ok(()) => {
                    accepted += 1;
                    // An accepted value can be shown, and a file created with it.
                    if !value.is_empty() {
                        lfs(cluster, &["getstripe", "-d", text(&target)]);
                    }
                    let _ = removexattr(&target, LOV);
                }
                Err(error) => {
                    let error = error.raw_os_error();
                    assert!([libc::EINVAL, libc::ERANGE].contains(&error), "{error}: {value:02x?}");
                    assert_eq!(listed(&target), [""; 0], "none of its own");
                }
            }
        }
        assert!(accepted > 0, "some changes make no difference");
        assert_eq!(errno(setxattr(&target, LOV, &[0xff; 65536], ANY)), libc::EINVAL);
        assert_eq!(attribute(&path, LOV), Ok(good));
    }

    fn foreign_layouts_are_kept_byte_for_byte_and_have_no_data(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let root = cluster.directory("d");
        let path = root.join("f");
        let options = ["setstripe", "--foreign=symlink", "--flags", "0xda08", "--xattr", "PUUID:CUUID"];
        lfs(cluster, &[&options[..], &[text(&path)]].concat());
        let value = attribute(&path, LOV).expect("get");
        assert_eq!(value[..16], [0xd0, 0x0b, 0xd7, 0x0b, 11, 0, 0, 0, 5, 0xda, 0, 0, 8, 0xda, 0, 0]);
        assert_eq!(&value[16..], b"PUUID:CUUID");
        let shown = |options: &[&str]| lfs(cluster, &[&["getstripe"], options, &[text(&path)]].concat());
        assert_eq!(shown(&[]), "lfm_value:     'PUUID:CUUID'");
        assert!(shown(&["-v"]).contains("lfm_type:          0x0000DA05 (symlink)\n"));
        assert_eq!(fs::read(&path).expect("read"), b"", "nothing is found");
        let file = fs::OpenOptions::new().write(true).open(&path).expect("open");
        assert_eq!(errno(std::os::unix::fs::FileExt::write_at(&file, b"x", 0)), libc::EBADF);
        assert_eq!(errno(file.set_len(1)), libc::EBADF);
        drop(file);
        assert_eq!(fs::metadata(&path).expect("stat").len(), 0);
        let again = cluster.lfs(&[&options[..], &[text(&path)]].concat()).fails_with(libc::EEXIST);
        assert!(again.stderr.contains("stripe already set"), "{}", again.stderr);
        assert_eq!(errno(setxattr(&root, LOV, &value, ANY)), libc::EINVAL, "not for directories");
        setxattr(&path, LOV, &value, ANY).expect("ignored");
        assert_eq!(lfs(cluster, &["find", text(&root), "--foreign"]), text(&path));
        let copy = root.join("copy");
        fs::write(&copy, "").expect("create");
        setxattr(&copy, LOV, &value, ANY).expect("copied with its attributes");
        assert_eq!(attribute(&copy, LOV), Ok(value));
        fs::remove_file(&path).expect("unlink");
        fs::remove_file(&copy).expect("unlink");
    }
}
