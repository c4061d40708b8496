//! Third-party suites, and the exerciser of this crate, on a real mount.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nacre_testkit::exerciser::Exercise;
use nacre_testkit::program::{Outcome, run_command, shell};
use nacre_testkit::requirements::have;
use nacre_testkit::{Cluster, binary, mounts, on_every_shape};

/// Time limit for each suite.
const LIMIT: Duration = Duration::from_secs(600);

/// Returns a tool that `scripts/test-tools` installs; `None`, with a report, if it is missing.
fn tool(name: &str) -> Option<PathBuf> {
    let found = binary::tool(name);
    if found.is_none() {
        have(&[name]);
    }
    found
}

fn run_tool(cluster: &Cluster, tool: &Path, arguments: &[&str]) -> Outcome {
    let mut command = cluster.run().command_with_mount_helpers(tool);
    // Files that a tool leaves in its working directory are removed with the run.
    command.args(arguments).current_dir(cluster.run().directory());
    run_command(command, LIMIT)
}

fn write(cluster: &Cluster, name: &str, text: &str) -> String {
    let path = cluster.run().directory().join(name);
    fs::write(&path, text).expect("the run's directory is ours");
    path.to_str().expect("temporary directories have plain names").to_owned()
}

const PJDFSTEST: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}

[settings]
# Above the granularity of the clock that stamps files.
naptime = 0.012
allow_remount = REMOUNT
expected_failures = []

[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

/// Of 398 tests, 13 remount the file system read-only. They run separately: another test leaves a file open
/// for writing in the same process, so that they would fail on any file system. One test needs LINK_MAX,
/// which the C library does not know for every file system.
const PJDFSTEST_PASSED_MIN: usize = 384;
const PJDFSTEST_SKIPPED_MAX: usize = 14;
const PJDFSTEST_REMOUNTS: usize = 13;

/// Returns the failed, skipped and passed tests of a run; a panic lists the failures.
fn pjdfstest(cluster: &Cluster, path: &Path, remount: bool) -> Option<[usize; 3]> {
    let tool = tool("pjdfstest")?;
    let second = cluster.run().make(&format!("tmpfs-{remount}"));
    shell(Path::new("/"), "mount -t tmpfs nacre-test \"$1\"", [&second]).success();
    let config = write(cluster, "pjdfstest.toml", &PJDFSTEST.replace("REMOUNT", &remount.to_string()));
    let (path, second_text) = (path.to_str().expect("UTF-8"), second.to_str().expect("UTF-8"));
    let arguments = ["-c", &config, "-p", path, "-s", second_text, "erofs"];
    let arguments = if remount { &arguments[..] } else { &arguments[..6] };
    let outcome = run_tool(cluster, &tool, arguments);
    mounts::detach(&second).expect("unmount the second file system");
    let lines = || outcome.stdout.lines();
    let summary = lines().find(|line| line.starts_with("Summary:")).unwrap_or_default();
    let count = |what: &str| {
        let before = summary.split_once(what).map(|(before, _)| before)?;
        before.rsplit([' ', ',']).next()?.parse().ok()
    };
    let counts = [" failed", " skipped", " passed"].map(|what| count(what).unwrap_or(usize::MAX));
    let told: Vec<&str> = lines().filter(|line| line.contains("FAILED") || line.starts_with('\t')).collect();
    assert_eq!(counts[0], 0, "{summary}\n{}\n{}", told.join("\n"), outcome.stderr);
    Some(counts)
}

/// All operations of fsx; buffered reads and writes and maps.
const FSX: &str = r"
flen = 2097152
[opsize]
max = 131072
[weights]
close_open = 1
invalidate = 0
mapread = 10
mapwrite = 10
read = 10
write = 10
truncate = 5
fsync = 0.1
fdatasync = 0.1
posix_fallocate = 2
punch_hole = 3
sendfile = 2
posix_fadvise = 2
copy_file_range = 3
";

/// Runs fsx, with `NACRE_FSX_OPERATIONS` operations.
fn fsx(cluster: &Cluster, seed: u32) {
    let Some(tool) = tool("fsx") else { return };
    let operations = std::env::var("NACRE_FSX_OPERATIONS").unwrap_or_else(|_| "20000".to_owned());
    let config = write(cluster, "fsx.toml", FSX);
    let file = cluster.directory("fsx").join("file");
    let seed = seed.to_string();
    let file = file.to_str().expect("UTF-8");
    run_tool(cluster, &tool, &["-q", "-f", &config, "-N", &operations, "-S", &seed, file]).success();
}

fn fio(cluster: &Cluster, job: &str) {
    if !have(&["fio"]) {
        return;
    }
    let directory = cluster.directory("fio");
    let common = format!(
        "[global]\ndirectory={}\nverify=crc32c\nverify_fatal=1\ndo_verify=1\nnumjobs=4\ngroup_reporting\n\
         size=24m\nrandseed=7\nfallocate=none\nend_fsync=1\n",
        directory.display()
    );
    let config = write(cluster, "fio.job", &format!("{common}[job]\n{job}"));
    let outcome = run_tool(cluster, Path::new("fio"), &["--output-format=terse", &config]).success();
    assert!(!outcome.stderr.contains("verify"), "{outcome}");
    fs::remove_dir_all(&directory).expect("rm -r");
}

on_every_shape! {
    fn pjdfstest_passes(cluster) {
        // A short name: the addresses of sockets, which are two long names deeper, have at most 107 bytes.
        let path = cluster.directory("p");
        if let Some([_, skipped, passed]) = pjdfstest(cluster, &path, false) {
            assert!(skipped <= PJDFSTEST_SKIPPED_MAX && passed >= PJDFSTEST_PASSED_MIN, "{skipped}, {passed}");
        }
        if let Some(counts) = pjdfstest(cluster, &path, true) {
            assert_eq!(counts, [0, 0, PJDFSTEST_REMOUNTS]);
        }
        assert_eq!(fs::read_dir(&path).expect("directory").count(), 0, "nothing is left");
    }

    fn fsx_does_all_operations_with_maps(cluster) {
        fsx(cluster, 4711);
    }

    fn the_exerciser_mixes_direct_io_maps_and_holes(cluster) {
        let directory = cluster.directory("exercise");
        std::thread::scope(|scope| {
            for seed in [11, 12] {
                let path = directory.join(seed.to_string());
                scope.spawn(move || Exercise::new(seed, 25_000).run(&path));
            }
        });
    }

    fn the_exerciser_crosses_stripes_and_objects(cluster) {
        let directory = cluster.directory("exercise");
        let exercise = Exercise { size_max: 12 << 20, length_max: 3 << 20, ..Exercise::new(13, 2_000) };
        exercise.run(&directory.join("file"));
    }

    fn fio_verifies_sequential_buffered_writes(cluster) {
        fio(cluster, "rw=write\nbs=128k\nioengine=psync\n");
    }

    fn fio_verifies_random_buffered_writes(cluster) {
        fio(cluster, "rw=randwrite\nbs=4k-64k\nbs_unaligned=1\nioengine=psync\n");
    }

    fn fio_verifies_sequential_direct_writes(cluster) {
        fio(cluster, "rw=write\nbs=1m\ndirect=1\nioengine=libaio\niodepth=8\n");
    }

    fn fio_verifies_random_direct_writes(cluster) {
        fio(cluster, "rw=randwrite\nbs=4k\ndirect=1\nioengine=libaio\niodepth=8\n");
    }

    fn fio_verifies_maps(cluster) {
        fio(cluster, "rw=randwrite\nbs=4k\nioengine=mmap\n");
    }
}
