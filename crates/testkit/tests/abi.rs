//! Binary interface of Lustre on a mount: calls of programs that were built for Lustre, in the bytes that
//! they use.

use std::fs;
use std::path::Path;

use nacre_testkit::program::run;
use nacre_testkit::requirements::have;
use nacre_testkit::text;
use nacre_testkit::{Cluster, on_every_shape};

#[path = "abi/attributes.rs"]
mod attributes;
#[path = "abi/files.rs"]
mod files;
#[path = "abi/groups.rs"]
mod groups;
#[path = "abi/ioctls.rs"]
mod ioctls;

fn lfs(cluster: &Cluster, arguments: &[&str]) -> String {
    cluster.lfs(arguments).success().stdout.trim().to_owned()
}

/// Returns the value of an attribute, or the errno.
fn attribute(path: &Path, name: &str) -> Result<Vec<u8>, i32> {
    let mut value = vec![0; 65536];
    match rustix::fs::getxattr(path, name, &mut value[..]) {
        Ok(length) => {
            value.truncate(length);
            Ok(value)
        }
        Err(error) => Err(error.raw_os_error()),
    }
}

on_every_shape! {
    fn layouts_are_kept_by_programs_that_copy_attributes(cluster) {
        if !have(&["tar", "rsync", "cp"]) || cluster.is_foreign() {
            return;
        }
        let from = cluster.directory("from");
        lfs(cluster, &["setstripe", "-c", "3", "-S", "64K", text(&from)]);
        let inner = from.join("inner");
        fs::create_dir(&inner).expect("mkdir");
        let options = ["setstripe", "-E", "1M", "-c", "1", "-E", "-1", "-c", "2"];
        lfs(cluster, &[&options[..], &[text(&from.join("file"))]].concat());
        fs::write(from.join("file"), vec![7; 3 << 20]).expect("write");
        fs::write(from.join("plain"), "text").expect("write");
        let shape = |path: &Path| {
            let shown = lfs(cluster, &["getstripe", "-I1", "--component-count", "-c", "-S", "-E", text(path)]);
            shown.lines().filter(|line| !line.contains('/')).map(str::to_owned).collect::<Vec<_>>()
        };
        let archive = cluster.run().directory().join("archive.tar");
        let base = from.parent().expect("has one");
        let all = ["--xattrs", "--xattrs-include=*"];
        run("tar", [&all[..], &["-cf", text(&archive), "-C", text(base), "from"]].concat()).success();
        let to = cluster.directory("to");
        run("tar", [&all[..], &["-xf", text(&archive), "-C", text(&to)]].concat()).success();
        let restored = to.join("from");
        for name in ["file", "plain"] {
            assert_eq!(shape(&restored.join(name)), shape(&from.join(name)), "{name}");
            assert_eq!(fs::read(restored.join(name)).ok(), fs::read(from.join(name)).ok(), "{name}");
        }
        let default = |path: &Path| lfs(cluster, &["getstripe", "-d", "-c", text(path)]);
        for (program, arguments) in [("cp", vec!["-a"]), ("rsync", vec!["-aX"])] {
            let to = cluster.directory(program).join("copy");
            let source = if program == "rsync" { from.join("") } else { from.clone() };
            run(program, [arguments, vec![text(&source), text(&to)]].concat()).success();
            assert_eq!((default(&to), default(&to.join("inner"))), ("3".into(), "3".into()), "{program}");
            assert_eq!(fs::read(to.join("file")).ok(), fs::read(from.join("file")).ok(), "{program}");
        }
        // A file from another file system has none of these attributes: the file that it overwrites keeps its
        // own.
        let elsewhere = cluster.run().directory().join("elsewhere");
        fs::create_dir(&elsewhere).expect("mkdir");
        fs::write(elsewhere.join("plain"), "text").expect("write");
        let copy = cluster.mount().join("rsync").join("copy");
        run("rsync", ["-aX", text(&elsewhere.join("")), text(&copy)]).success();
        assert!(attribute(&copy.join("plain"), "trusted.lma").is_ok());
    }
}
