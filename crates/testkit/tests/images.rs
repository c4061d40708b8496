//! Kept images of file systems: what an earlier version has written, this one reads; what a newer version has written,
//! it refuses. `scripts/keep-image` creates an image.

use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::run::Run;
use nacre_testkit::{binary, program};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time limit for a command.
const LIMIT: Duration = Duration::from_secs(120);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the images.
fn images() -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join("crates/testkit/images")).expect("a directory");
    let mut images: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    images.sort();
    images
}

/// Unpacks an image into a new directory; returns the directory of the file system.
fn unpack(run: &Run, name: &str, image: &Path) -> PathBuf {
    let dir = run.make(name);
    program::shell(&dir, r#"xz -dc "$1" | tar -xf -"#, [image]).success();
    dir.join("fs")
}

fn nacre<A: AsRef<OsStr>>(run: &Run, arguments: &[A]) -> program::Outcome {
    let mut command = run.command(binary::nacre());
    command.args(arguments);
    program::run_command(command, LIMIT)
}

fn is_possible() -> bool {
    have(&["/dev/fuse", "fusermount3", "xz", "getfattr"]) && have_root()
}

#[test]
fn all_kept_images_are_read_changed_and_checked() {
    if !is_possible() {
        return;
    }
    let run = Run::new();
    let images = images();
    assert!(!images.is_empty(), "there are kept images");
    for (number, image) in images.iter().enumerate() {
        let fs_dir = unpack(&run, &format!("image{number}"), image);
        let mount = run.make(&format!("mnt{number}"));
        let up = ["up".as_ref(), fs_dir.as_os_str(), "--mount".as_ref(), mount.as_os_str()];
        nacre(&run, &up).success();
        let listed = program::run(root().join("scripts/list-image"), [&mount]).success().stdout;
        let expected = fs::read_to_string(fs_dir.join("EXPECTED")).expect("part of the image");
        assert!(listed == expected, "{}: {listed}\nexpected: {expected}", image.display());
        let quota = nacre(
            &run,
            &["lfs".as_ref(), "quota".as_ref(), "-u".as_ref(), "1000".as_ref(), mount.as_os_str()],
        );
        assert!(quota.success().stdout.contains("1048576"), "the limit of user 1000");
        fs::write(mount.join("shards/new"), b"new").expect("write");
        fs::remove_file(mount.join("striped/wide")).expect("remove");
        nacre(&run, &["down".as_ref(), mount.as_os_str()]).success();
        nacre(&run, &["check".as_ref(), fs_dir.as_os_str()]).success();
    }
}

#[test]
fn what_a_newer_program_has_written_is_refused_with_both_versions() {
    if !is_possible() {
        return;
    }
    let run = Run::new();
    let image = images().pop().expect("an image");
    let mount = run.make("mnt");
    // Versions in superblocks are behind the magic of 8 bytes.
    let newer = |file: &Path| match file.file_name().is_some_and(|name| name == "config") {
        true => {
            let config = fs::read_to_string(file).expect("text");
            config.replacen("nacre-config 1", "nacre-config 77", 1).into_bytes()
        }
        false => {
            let mut bytes = fs::read(file).expect("read");
            bytes[8..12].copy_from_slice(&77u32.to_le_bytes());
            bytes
        }
    };
    let files = ["superblock", "ost0000/superblock", "ost0002/superblock", "mgs/config"];
    for (number, file) in files.into_iter().enumerate() {
        let fs_dir = unpack(&run, &format!("newer{number}"), &image);
        let bytes = newer(&fs_dir.join(file));
        fs::write(fs_dir.join(format!("{file}.copy")), &bytes).expect("write");
        fs::write(fs_dir.join(file), &bytes).expect("write");
        let up = ["up".as_ref(), fs_dir.as_os_str(), "--mount".as_ref(), mount.as_os_str()];
        let refused = nacre(&run, &up);
        let said = &refused.stderr;
        let names_both =
            said.contains("77") && (said.contains("(1)") || said.contains("(2)") || said.contains("reads 1"));
        assert!(refused.code() != 0 && names_both && said.contains(": use "), "{file}: {refused:?}");
    }
}
