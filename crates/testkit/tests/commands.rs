//! The commands on a file system that runs, as a user types them.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use nacre_testkit::cluster::Options;
use nacre_testkit::identity::Identity;
use nacre_testkit::program::{LIMIT, run_command, shell};
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::run::Run;
use nacre_testkit::text;
use nacre_testkit::{Cluster, Shape, binary, mounts, on_every_shape};

/// A user who exists everywhere: fusermount3 wants to know the name.
const NOBODY: u32 = 65_534;

on_every_shape! {
    fn up_again_changes_nothing_and_down_again_is_fine(cluster) {
        if cluster.is_foreign() {
            return;
        }
        fs::write(cluster.mount().join("file"), "text").expect("write");
        let before = cluster.processes();
        cluster.start_all();
        assert_eq!(cluster.processes(), before, "what runs is left alone");
        let data = text(cluster.data()).to_owned();
        assert!(cluster.nacre(&["check", &data]).code() == 1, "a running file system is not checked");
        let status = cluster.nacre(&["status", &data]).success().stdout;
        for target in ["MDT0000", "OST0000", "OST0003"] {
            assert!(status.contains(target), "{status}");
        }
        cluster.nacre(&["down", &data]).success();
        cluster.nacre(&["down", &data]).success();
        assert_eq!(cluster.nacre(&["status", &data]).code(), 1, "status says that it does not run");
        assert_eq!(mounts::at(cluster.mount()), None);
        cluster.start_all();
        assert_eq!(fs::read(cluster.mount().join("file")).expect("read"), b"text");
    }

    fn up_starts_what_was_killed_in_the_shape_that_runs(cluster) {
        if cluster.is_foreign() || cluster.shape() == Shape::Embedded {
            return;
        }
        fs::write(cluster.mount().join("file"), "text").expect("write");
        cluster.kill("mdt0000");
        let (data, mount) = (text(cluster.data()).to_owned(), text(cluster.mount()).to_owned());
        let refused = cluster.nacre(&["up", &data, "--mount", &mount, "--foreground"]).fails_with(1);
        assert!(refused.stderr.contains("it runs in separate processes"), "{refused}");
        let up = cluster.nacre(&["up", &data, "--mount", &mount]).success();
        assert!(up.stdout.contains("started again: mdt0000"), "{up}");
        assert_eq!(fs::read(cluster.mount().join("file")).expect("read"), b"text");
    }

    fn up_mounts_what_was_unmounted_a_moment_ago(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let (data, mount) = (text(cluster.data()).to_owned(), text(cluster.mount()).to_owned());
        for round in 0..5 {
            let file = cluster.mount().join(format!("file-{round}"));
            fs::write(&file, "text").expect("write");
            shell(Path::new("/"), "umount \"$1\"", [cluster.mount()]).success();
            cluster.nacre(&["up", &data, "--mount", &mount]).success();
            assert_eq!(fs::read(&file).expect("read"), b"text", "round {round}");
        }
        let elsewhere = cluster.run().make("elsewhere");
        let refused = cluster.nacre(&["up", &data, "--mount", text(&elsewhere)]).fails_with(1);
        assert!(refused.stderr.contains("mounted on"), "{refused}");
    }

    fn a_busy_mount_is_not_taken_down(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let data = text(cluster.data()).to_owned();
        let open = fs::File::create(cluster.mount().join("file")).expect("create");
        let outcome = cluster.nacre(&["down", &data]).fails_with(1);
        assert!(outcome.stderr.contains("in use") || outcome.stderr.contains("busy"), "{outcome}");
        fs::write(cluster.mount().join("other"), "still works").expect("write");
        drop(open);
    }

    fn layouts_are_set_inherited_and_shown(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let root = cluster.directory("d");
        let lfs = |arguments: &[&str]| cluster.lfs(arguments).success().stdout.trim().to_owned();
        let file = root.join("file");
        lfs(&["setstripe", "-c", "2", "-S", "1M", "-i", "1", text(&file)]);
        assert_eq!(lfs(&["getstripe", "-c", text(&file)]), "2");
        assert_eq!(lfs(&["getstripe", "-S", text(&file)]), "1048576");
        assert_eq!(lfs(&["getstripe", "-i", text(&file)]), "1");
        fs::write(&file, vec![1u8; 3 << 20]).expect("write");
        let shown = lfs(&["getstripe", text(&file)]);
        for line in ["lmm_stripe_count:  2", "lmm_stripe_size:   1048576", "lmm_pattern:       raid0", "lmm_stripe_offset: 1"] {
            assert!(shown.contains(line), "{shown}");
        }
        assert!(shown.contains("obdidx"), "{shown}");
        lfs(&["setstripe", "-c", "3", text(&root)]);
        fs::create_dir(root.join("sub")).expect("mkdir");
        fs::write(root.join("sub/file"), "x").expect("write");
        assert_eq!(lfs(&["getstripe", "-c", text(&root.join("sub/file"))]), "3");
        cluster.lfs(&["setstripe", "-c", "2", text(&file)]).fails_with(libc::EEXIST);
        cluster.lfs(&["setstripe", "-S", "100", text(&root.join("new"))]).fails_with(4);
        cluster.lfs(&["getstripe", text(&root.join("none"))]).fails_with(libc::ENOENT);
    }

    fn fids_and_paths_lead_to_each_other(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let root = cluster.directory("d");
        fs::write(root.join("file"), "x").expect("write");
        let fid = cluster.lfs(&["path2fid", text(&root.join("file"))]).success().stdout.trim().to_owned();
        assert!(fid.starts_with("[0x") && fid.ends_with(']'), "{fid}");
        fs::rename(root.join("file"), root.join("moved")).expect("rename");
        let path = cluster.lfs(&["fid2path", text(cluster.mount()), &fid]).success().stdout;
        assert!(path.trim().ends_with("d/moved"), "{path}");
        fs::remove_file(root.join("moved")).expect("unlink");
        cluster.lfs(&["fid2path", text(cluster.mount()), &fid]).fails_with(libc::ENOENT);
    }

    fn space_and_targets_are_listed(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let mount = text(cluster.mount()).to_owned();
        let lines = |arguments: &[&str]| cluster.lfs(arguments).success().stdout;
        for arguments in [&["df", &mount][..], &["df", "-h", &mount], &["df", "-i", &mount]] {
            let shown = lines(arguments);
            for word in ["UUID", "nacre-MDT0000_UUID", "nacre-OST0003_UUID", "filesystem_summary:"] {
                assert!(shown.contains(word), "{shown}");
            }
        }
        let osts = lines(&["osts", &mount]);
        assert_eq!(osts.matches("ACTIVE").count(), 4, "{osts}");
        assert!(lines(&["mdts", &mount]).contains("nacre-MDT0000_UUID"));
        assert_eq!(lines(&["check", "all", &mount]).matches("active").count(), 5);
    }
}

#[test]
fn mount_and_umount_take_the_type_nacre() {
    if !have(&["/dev/fuse", "unshare", "mount"]) || !have_root() {
        return;
    }
    let mut cluster = Cluster::start(Shape::Separate);
    if cluster.is_foreign() {
        return;
    }
    let point = cluster.run().make("point");
    let script = r#"
        mount -t nacre "$1" "$2"
        echo text > "$2/file"
        cat "$2/file"
        mount -o remount,ro "$2"
        if echo no 2>/dev/null > "$2/other"; then exit 7; fi
        mount -o remount,rw "$2"
        umount "$2"
        # What is not named stays: also what is allowed, for which the table of mounts has no word.
        for options in dev,nosuid nodev,noexec; do
            mount -t nacre -o "$options" "$1" "$2"
            before=$(findmnt -no OPTIONS "$2")
            mount -o remount,ro "$2"
            test "$(findmnt -no OPTIONS "$2")" = "ro${before#rw}"
            mount -o remount,rw "$2"
            test "$(findmnt -no OPTIONS "$2")" = "$before"
            umount "$2"
        done
    "#;
    let mut command = cluster.run().command_with_mount_helpers("bash");
    command.args(["-euo", "pipefail", "-c", script, "bash"]).arg(cluster.source()).arg(&point);
    let outcome = run_command(command, LIMIT).success();
    assert_eq!(outcome.stdout, "text\n");
    assert_eq!(fs::read(cluster.mount().join("file")).expect("the other mount sees it"), b"text\n");
    cluster.stop_and_check();
}

/// A process in another mount namespace that sees a mount, and opens files there that it is told of.
struct Elsewhere {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Elsewhere {
    fn start(cluster: &Cluster) -> Elsewhere {
        // Copies of the mounts of other tests are not to outlive them.
        let script = r#"
            findmnt -rn -t fuse.nacre -o TARGET | { grep -vxF "$1" || true; } | xargs -r umount -l
            echo ready
            read -r file
            exec 3<"$file"
            echo open
            read -r _ || true
        "#;
        let mut command = cluster.run().command("unshare");
        command.args(["--mount", "bash", "-euo", "pipefail", "-c", script, "bash"]).arg(cluster.mount());
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("another mount namespace");
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut elsewhere = Elsewhere { child, answers };
        elsewhere.hears("ready\n");
        elsewhere
    }

    fn hears(&mut self, expected: &str) {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("read");
        assert_eq!(line, expected);
    }

    fn open(&mut self, file: &Path) {
        writeln!(self.child.stdin.as_ref().expect("a pipe"), "{}", text(file)).expect("write");
        self.hears("open\n");
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        // It reads its input to the end.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

#[test]
fn down_does_not_wait_for_copies_of_the_mount_in_other_mount_namespaces() {
    if !have(&["/dev/fuse", "unshare", "findmnt"]) || !have_root() {
        return;
    }
    for shape in [Shape::Embedded, Shape::Separate] {
        let mut cluster = Cluster::start(shape);
        if cluster.is_foreign() {
            return;
        }
        let _elsewhere = Elsewhere::start(&cluster);
        cluster.stop_and_check();
    }
}

#[test]
fn down_spares_files_that_are_open_in_another_mount_namespace_unless_forced() {
    if !have(&["/dev/fuse", "unshare", "findmnt"]) || !have_root() {
        return;
    }
    let cluster = Cluster::start(Shape::Embedded);
    if cluster.is_foreign() {
        return;
    }
    let file = cluster.mount().join("file");
    fs::write(&file, "text").expect("write");
    let mut elsewhere = Elsewhere::start(&cluster);
    elsewhere.open(&file);
    let data = text(cluster.data()).to_owned();
    let outcome = cluster.nacre(&["down", &data]).fails_with(1);
    assert!(outcome.stderr.contains("1 of its files are open in another mount namespace"), "{outcome}");
    cluster.nacre(&["down", "--force", &data]).success();
}

#[test]
fn a_file_system_outlives_the_terminal_that_started_it() {
    if !have(&["/dev/fuse", "script"]) || !have_root() {
        return;
    }
    let run = Run::new();
    // The session of script(1) ends with the command; its terminal is hung up.
    let script = r#"
        script --quiet --command "$1 up data --mount mnt --osts 2" /dev/null
        echo text > mnt/file
        test "$(cat mnt/file)" = text
        # The seventh field is the controlling terminal.
        test "$(awk '{ print $7 }' "/proc/$(cat data/run/node.pid)/stat")" = 0
        "$1" down data
    "#;
    let mut command = run.command("bash");
    command.args(["-euo", "pipefail", "-c", script, "bash"]).arg(binary::nacre());
    command.current_dir(run.directory());
    run_command(command, LIMIT).success();
}

#[test]
fn a_user_without_privileges_runs_a_file_system_of_their_own() {
    if !have(&["/dev/fuse", "fusermount3", "setpriv"]) || !have_root() {
        return;
    }
    let run = Run::new();
    let home = run.make("home");
    std::os::unix::fs::chown(&home, Some(NOBODY), Some(NOBODY)).expect("chown");
    // The binary may lie where only root can reach it.
    fs::copy(binary::nacre(), home.join("nacre")).expect("copy");
    let script = r#"
        ./nacre up data --mount mnt --osts 2
        echo mine > mnt/file
        test "$(cat mnt/file)" = mine
        test "$(stat -c %u mnt/file)" = "$(id -u)"
        mkdir mnt/d && mv mnt/file mnt/d/ && ln -s d/file mnt/link && cat mnt/link
        ./nacre status data
        ./nacre down data
        ./nacre check data
        test -z "$(ls -A mnt)"
    "#;
    let mut command = run.command("setpriv");
    command.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "bash",
        "-euo",
        "pipefail",
        "-c",
        script,
    ]);
    command.current_dir(&home).env("HOME", &home).env_remove("XDG_RUNTIME_DIR");
    // The device is open to everybody where udev has set it up; elsewhere only root opens it.
    let open =
        Identity::user(NOBODY).act(|| fs::File::options().read(true).write(true).open("/dev/fuse").is_ok());
    if !open {
        let device = fs::metadata("/dev/fuse").expect("it exists").permissions();
        fs::set_permissions("/dev/fuse", std::os::unix::fs::PermissionsExt::from_mode(0o666)).expect("chmod");
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run_command(command, LIMIT)));
        fs::set_permissions("/dev/fuse", device).expect("chmod back");
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic)).success();
        return;
    }
    run_command(command, LIMIT).success();
}

/// Fills a file system on a disk of so many MiB with files of `piece` bytes, and empties it.
fn fill_and_empty(mib: u64, osts: usize, piece: usize) {
    if !have(&["/dev/fuse", "mkfs.ext4"]) || !have_root() {
        return;
    }
    let run = Run::new();
    let disk = run.small_disk(mib);
    let options = Options { data: Some(disk.join("data")), osts, ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Embedded, &options);
    if cluster.is_foreign() {
        return;
    }
    let root = cluster.directory("d");
    let kept = vec![7u8; piece];
    fs::write(root.join("kept"), &kept).expect("there is room");
    fs::File::open(root.join("kept")).expect("open").sync_all().expect("fsync");
    let mut failed = None;
    for index in 0..400 {
        let path = root.join(format!("fill-{index}"));
        let result = fs::write(&path, vec![1u8; piece]).and_then(|()| fs::File::open(&path)?.sync_all());
        if let Err(error) = result {
            failed = Some(error);
            break;
        }
    }
    let error = failed.expect("the disk is full at some time");
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
    assert!(fs::read(root.join("kept")).expect("read") == kept);
    let names: Vec<_> =
        fs::read_dir(&root).expect("directory").map(|entry| entry.expect("entry").path()).collect();
    for path in names.iter().filter(|path| !path.ends_with("kept")) {
        fs::remove_file(path).unwrap_or_else(|error| panic!("a full disk can be emptied: {error}"));
    }
    nacre_testkit::wait::until(std::time::Duration::from_secs(60), "there is room again", || {
        let path = root.join("again");
        let result = fs::write(&path, vec![2u8; 5 * piece]).and_then(|()| fs::File::open(&path)?.sync_all());
        result.ok()
    });
    assert!(fs::read(root.join("kept")).expect("read") == kept);
    cluster.stop_and_check();
}

#[test]
fn a_full_disk_is_an_error_to_the_writer_and_loses_nothing() {
    fill_and_empty(700, 2, 4 << 20);
}

#[test]
fn a_disk_of_50_mib_is_enough_for_a_file_system() {
    fill_and_empty(50, 1, 1 << 20);
}

#[test]
fn a_disk_of_1_gib_has_800_mib_for_data_again_and_again() {
    if !have(&["/dev/fuse", "mkfs.ext4"]) || !have_root() {
        return;
    }
    let run = Run::new();
    let disk = run.small_disk(1024);
    let options = Options { data: Some(disk.join("data")), osts: 1, ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Embedded, &options);
    if cluster.is_foreign() {
        return;
    }
    let path = cluster.directory("d").join("large");
    let piece = vec![5u8; 8 << 20];
    for round in 0..3 {
        let write = || -> std::io::Result<()> {
            let mut file = fs::File::create(&path)?;
            for _ in 0..100 {
                file.write_all(&piece)?;
            }
            file.sync_all()
        };
        write().unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert_eq!(fs::metadata(&path).expect("stat").len(), 800 << 20);
        fs::remove_file(&path).expect("removed");
    }
    cluster.stop_and_check();
}

/// Writes in small pieces until the disk is full; gives how much was answered.
fn fill(path: &Path, seed: u8) -> u64 {
    let mut file = fs::File::create(path).expect("create");
    let mut written = 0;
    let error = loop {
        match file.write(&[seed; 8_000]) {
            Ok(bytes) => written += bytes as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
    file.sync_all().expect("nothing that was answered finds the disk full");
    written
}

#[test]
fn what_is_held_back_never_finds_the_disk_full() {
    if !have(&["/dev/fuse", "mkfs.ext4"]) || !have_root() {
        return;
    }
    for shape in [Shape::Embedded, Shape::Separate] {
        let run = Run::new();
        let disk = run.make("disk");
        let script = r#"truncate -s 900M "$1/image"; mkfs.ext4 -q "$1/image"; mount -o loop "$1/image" "$2""#;
        shell(Path::new("/"), script, [run.directory(), &disk]).success();
        let options = Options { data: Some(disk.join("data")), osts: 2, ..Options::default() };
        let mut cluster = Cluster::start_with(shape, &options);
        if cluster.is_foreign() {
            return;
        }
        let root = cluster.directory("d");
        let writers: Vec<_> = (1..=4)
            .map(|seed| {
                let path = root.join(seed.to_string());
                std::thread::spawn(move || (fill(&path, seed), path, seed))
            })
            .collect();
        for writer in writers {
            let (written, path, seed) = writer.join().expect("the writer does not panic");
            let found = fs::read(&path).expect("read");
            assert_eq!(found.len() as u64, written, "{path:?}");
            assert!(found.iter().all(|&byte| byte == seed), "{path:?}");
        }
        fs::remove_dir_all(&root).expect("a full disk can be emptied");
        cluster.stop_and_check();
    }
}

#[test]
fn nothing_is_left_behind_after_down() {
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    for shape in [Shape::Embedded, Shape::Separate] {
        let options = Options { any_ports: true, ..Options::default() };
        let mut cluster = Cluster::start_with(shape, &options);
        if cluster.is_foreign() {
            return;
        }
        fs::write(cluster.mount().join("file"), "text").expect("write");
        cluster.stop();
        let run_directory = cluster.data().join("run");
        let left: Vec<String> = fs::read_dir(&run_directory)
            .expect("run directory")
            .map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned())
            .filter(|name| name.ends_with(".sock"))
            .collect();
        assert_eq!(left, Vec::<String>::new(), "sockets are removed");
        let loops =
            Command::new("losetup").arg("-a").output().map(|output| output.stdout).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&loops).contains(text(cluster.data())));
        cluster.check();
    }
}
