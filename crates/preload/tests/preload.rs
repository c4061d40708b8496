//! A program that looks for Lustre, with and without the library.

use std::fs;
use std::path::{Path, PathBuf};

use nacre_testkit::program::{LIMIT, run, run_command};
use nacre_testkit::requirements::have;
use nacre_testkit::{Cluster, Shape, in_shape};

/// Returns the path of the library, one directory above this test's executable. Cargo does not build it for
/// the test, as the test does not link it.
fn library() -> PathBuf {
    let own = std::env::current_exe().expect("this test is a file");
    let library = own.ancestors().nth(2).expect("in a directory of a directory").join("libnacre_preload.so");
    assert!(library.exists(), "{} is missing: cargo build --release -p nacre-preload", library.display());
    library
}

/// Returns the lines that the program prints about a file.
fn told(cluster: &Cluster, program: &Path, file: &Path, preload: Option<&Path>) -> Vec<String> {
    let mut command = cluster.run().command(program);
    command.args([cluster.mount(), file]);
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library);
    }
    run_command(command, LIMIT).success().stdout.lines().map(str::to_owned).collect()
}

fn make_pool(cluster: &Cluster) {
    cluster.lctl(&["pool_new", "-n", "nacre.flash"]).success();
    cluster.lctl(&["pool_add", "nacre.flash", "OST0002"]).success();
}

/// Returns the directories with parameters that processes have left behind.
fn left() -> Vec<PathBuf> {
    let entries = fs::read_dir("/tmp").expect("list").flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("nacre-params-"));
    named.map(|entry| entry.path()).collect()
}

#[test]
fn programs_under_the_library_take_a_mount_for_lustre() {
    if !have(&["cc"]) {
        return;
    }
    in_shape(Shape::Embedded, |cluster| {
        if cluster.is_foreign() {
            return;
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/preload/program.c");
        let program = cluster.run().directory().join("program");
        run("cc", ["-Wall", "-Werror", "-o"].map(Path::new).into_iter().chain([program.as_path(), &source]))
            .success();
        let file = cluster.mount().join("file");
        fs::write(&file, "content").expect("write");
        let fid = cluster.lfs(&[Path::new("path2fid"), &file]).success().stdout.trim().to_owned();
        make_pool(cluster);
        let killed = PathBuf::from("/tmp/nacre-params-4194305-killed");
        fs::create_dir_all(killed.join("lov")).expect("as if a program had been killed");
        let without = told(cluster, &program, &file, None);
        assert_eq!(
            without,
            [
                "elsewhere proc",
                "getmntent fuse.nacre 1",
                "getmntent_r fuse.nacre",
                "statfs 65735546",
                "fstatfs 65735546",
                "elsewhere 0",
                "flush -1 14",
                "elsewhere -1 25",
                "handle 81",
                "opened 1 7 content",
                "group -1 14",
                "directory -1 14",
                "no parameter",
                "no parameter",
                "no parameter",
                "no parameter",
                "no parameter",
            ]
        );
        let with = told(cluster, &program, &file, Some(&library()));
        let fid = format!("fid {fid}");
        assert_eq!(
            with,
            [
                "elsewhere proc",
                "getmntent lustre 1",
                "getmntent_r lustre",
                "statfs 0bd00bd0",
                "fstatfs 0bd00bd0",
                "elsewhere 0",
                "flush 0 0",
                "elsewhere -1 25",
                "handle 97",
                &fid,
                "opened 1 7 content",
                "group 0 0",
                "directory -1 25",
                "parameter 1 1 4",
                "parameter 1 1 1",
                "parameter 1 1 nacre-OST0002_UUID",
                "parameter 1 1 0: nacre-MDT0000_UUID ACTIVE",
                "no parameter",
            ]
        );
        assert!(!left().contains(&killed), "what one that was killed has left goes with the next");
    });
}
