//! The commands on a running file system, as a user enters them.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use nacre_testkit::cluster::Options;
use nacre_testkit::identity::Identity;
use nacre_testkit::program::{LIMIT, run_command, shell};
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::run::Run;
use nacre_testkit::text;
use nacre_testkit::{Cluster, Ports, Shape, binary, mounts, on_every_shape};

/// A user that exists on every system: fusermount3 needs a name.
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
        let checked = cluster.nacre(&["check", &data, "--rate", "0"]).success().stdout;
        assert!(checked.contains("MDT0000"), "it is checked in use: {checked}");
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
        assert!(refused.stderr.contains("it is running already"), "{refused}");
        let refused = cluster.nacre(&["up", &data, "--one-process"]).fails_with(1);
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

    fn a_server_that_is_stopped_is_not_responding_and_one_that_was_killed_does_not_run(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let (data, mount) = (text(cluster.data()).to_owned(), text(cluster.mount()).to_owned());
        let server = if cluster.shape() == Shape::Embedded { "node" } else { "ost0000" };
        let pid = cluster.pid(server).to_string();
        shell(Path::new("/"), "kill -STOP \"$1\"", [Path::new(&pid)]).success();
        let status = cluster.nacre(&["status", &data]).fails_with(1).stdout;
        let up = cluster.nacre(&["up", &data]).fails_with(1);
        let down = cluster.nacre(&["down", &data]).fails_with(1);
        shell(Path::new("/"), "kill -CONT \"$1\"", [Path::new(&pid)]).success();
        for said in [&status, &up.stderr, &down.stderr] {
            assert!(said.contains("is not responding: it is stopped by a signal"), "{said}");
        }
        assert!(!status.contains("does not run"), "{status}");
        for path in [&data, &mount] {
            cluster.nacre(&["status", path]).success();
        }
        cluster.kill(server);
        let status = cluster.nacre(&["status", &data]).fails_with(1).stdout;
        assert!(!status.contains("not responding"), "{status}");
        cluster.start_all();
    }

    fn what_holds_a_mount_that_was_taken_away_is_named(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let (data, mount) = (text(cluster.data()).to_owned(), text(cluster.mount()).to_owned());
        let mut holder = cluster.run().command("sleep");
        let mut holder = holder.arg("1000").current_dir(cluster.mount()).spawn().expect("sleep starts");
        let named = format!("in use by sleep (pid {})", holder.id());
        let busy = cluster.nacre(&["down", &mount]).fails_with(1);
        assert!(busy.stderr.contains(&named), "{busy}");
        shell(Path::new("/"), "umount -l \"$1\"", [cluster.mount()]).success();
        let status = cluster.nacre(&["status", &data]).fails_with(1).stdout;
        let up = cluster.nacre(&["up", &data]).fails_with(1);
        holder.kill().expect("kill");
        holder.wait().expect("wait");
        assert!(status.contains(&named) && status.contains("is unmounted"), "{status}");
        assert!(up.stderr.contains(&named), "{up}");
        cluster.start_all();
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
        for options in dev,suid nodev,noexec; do
            mount -t nacre -o "$options" "$1" "$2"
            before=$(findmnt -no OPTIONS "$2")
            case $options in
                dev,suid) [[ $before != *nodev* && $before != *nosuid* ]] ;;
                *) [[ $before == *nosuid,nodev,noexec* ]] ;;
            esac
            mount -o remount,ro "$2"
            test "$(findmnt -no OPTIONS "$2")" = "ro${before#rw}"
            mount -o remount,rw "$2"
            test "$(findmnt -no OPTIONS "$2")" = "$before"
            umount "$2"
        done
        echo "$1 $2 nacre suid,retry=2 0 0" > "$2.fstab"
        mount -T "$2.fstab" "$2"
        [[ $(findmnt -no OPTIONS "$2") == *nodev* && $(findmnt -no OPTIONS "$2") != *nosuid* ]]
        umount "$2"
    "#;
    let mut command = cluster.run().command_with_mount_helpers("bash");
    command.args(["-euo", "pipefail", "-c", script, "bash"]).arg(cluster.source()).arg(&point);
    let outcome = run_command(command, LIMIT).success();
    assert_eq!(outcome.stdout, "text\n");
    assert_eq!(fs::read(cluster.mount().join("file")).expect("the other mount sees it"), b"text\n");
    below_a_directory(&cluster, &point);
    before_its_servers(&mut cluster, &point);
    cluster.stop_and_check();
}

/// Mounts a directory of the file system.
fn below_a_directory(cluster: &Cluster, point: &Path) {
    let whole = cluster.directory("project");
    fs::create_dir(whole.join("dir")).expect("made");
    fs::write(whole.join("dir/file"), "text").expect("written");
    fs::hard_link(whole.join("dir/file"), cluster.mount().join("outside")).expect("linked");
    std::os::unix::fs::symlink("project", cluster.mount().join("link")).expect("linked");
    let source = |directory: &str| format!("{}/{directory}", cluster.source());
    for (directory, reason) in [("none", "ENOENT"), ("link/dir", "ENOTDIR"), ("outside", "ENOTDIR")] {
        let refused = cluster.nacre(&["mount", &source(directory), text(point)]).fails_with(1);
        assert!(refused.stderr.contains(directory) && refused.stderr.contains(reason), "{refused}");
    }
    cluster.nacre(&["mount", &source("project/dir"), text(point)]).success();
    let [here, there] = [point, &whole.join("dir")].map(|path| fs::metadata(path).expect("stat"));
    assert_eq!((here.ino(), here.mode()), (there.ino(), there.mode()));
    assert_eq!(fs::read(point.join("file")).expect("read"), b"text");
    assert!(!point.join(".lustre").exists() && !point.join("outside").exists());
    for (made, seen) in [(point, &*whole.join("dir")), (&*whole.join("dir"), point)] {
        let name = if made == point { "here" } else { "there" };
        fs::create_dir(made.join(name)).expect("made");
        assert!(seen.join(name).is_dir(), "{name}");
        fs::rename(made.join(name), made.join("moved")).expect("renamed");
        assert!(!seen.join(name).exists() && seen.join("moved").is_dir(), "{name}");
        fs::remove_dir(made.join("moved")).expect("removed");
    }
    fs::set_permissions(whole.join("dir"), std::os::unix::fs::PermissionsExt::from_mode(0o711))
        .expect("chmod");
    assert_eq!(fs::metadata(point).expect("stat").mode() & 0o777, 0o711, "as the other mount has set it");
    let fid_of = |path: &Path| cluster.lfs(&["path2fid", text(path)]).success().stdout.trim().to_owned();
    assert_eq!(fid_of(point), fid_of(&whole.join("dir")));
    let path_of = |fid: &str| cluster.lfs(&["fid2path", text(point), fid]);
    assert_eq!(path_of(&fid_of(&point.join("file"))).success().stdout.trim(), text(&point.join("file")));
    path_of(&fid_of(&whole)).fails_with(libc::ENOENT);
    cluster.lfs(&["df", text(point)]).success();
    cluster.nacre(&["umount", text(point)]).success();
}

/// Mounts while the management server is down.
fn before_its_servers(cluster: &mut Cluster, point: &Path) {
    let source = cluster.source();
    cluster.kill("mgs");
    let mut command = cluster.run().command(binary::nacre());
    command.args(["mount", "-o", "retry=20", &source, text(point)]).stderr(Stdio::piped());
    let mut mounting = command.spawn().expect("it starts");
    let mut said = BufReader::new(mounting.stderr.take().expect("a pipe"));
    let mut line = String::new();
    said.read_line(&mut line).expect("read");
    assert!(line.contains("try 1 of 20 follows in 1 s"), "{line}");
    cluster.start_all();
    assert!(mounting.wait().expect("it ends").success());
    assert_eq!(fs::read(point.join("file")).expect("read"), b"text\n");
    cluster.nacre(&["umount", text(point)]).success();
}

/// A process in another mount namespace that sees a mount, and opens the files there that the test names.
struct Elsewhere {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Elsewhere {
    fn start(cluster: &Cluster) -> Elsewhere {
        // Unmounts copies of other tests' mounts, which would keep these busy.
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
        // It reads its input up to the end, which stops it.
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
    assert!(outcome.stderr.contains("1 of its files are still open, in use by bash (pid "), "{outcome}");
    cluster.nacre(&["down", "--force", &data]).success();
}

/// Runs a bash script with `nacre` as `$1` in the directory of a run of its own. `$2` and `$3` are the first
/// of eight reserved ports each.
fn as_a_user(script: &str) {
    let (run, ports) = (Run::new(), Ports::take());
    let mut command = run.command("bash");
    command.args(["-euo", "pipefail", "-c", script, "bash"]).arg(binary::nacre());
    command.args([0, 8].map(|more| (ports.first() + more).to_string())).current_dir(run.directory());
    run_command(command, LIMIT).success();
}

#[test]
fn up_alone_starts_a_file_system_as_it_was_started_last() {
    if !have(&["/dev/fuse", "ps"]) || !have_root() {
        return;
    }
    let script = r#"
        # Several addresses, one of IPv6, one by name; a shape, options.
        "$1" up data --mount mnt --osts 2 --fsname start --listen "127.0.0.3:$2@tcp" --listen "[::1]:$2@tcp" -o noexec
        mkdir other
        for address in "127.0.0.3:$2" "[::1]:$2"; do
            "$1" lctl ping "$address@tcp"
            "$1" mount "$address@tcp:/start" other
            echo "$address" > other/file
            test "$(cat mnt/file)" = "$address"
            "$1" umount other
        done
        "$1" down mnt
        "$1" up data
        findmnt -no OPTIONS mnt | grep -w noexec > there
        "$1" lctl list_nids | grep -F "[::1]:$2@tcp" > there
        "$1" lctl ping 0@lo
        pid=$(cat data/run/node.pid)
        test "$(ps -o comm= -p "$pid")" = nacre-node
        ps -o args= -p "$pid" | grep '^nacre serve --role node ' > there
        # What runs is not changed; what is changed is said once, and kept.
        if "$1" up data --listen none 2> said; then exit 7; fi
        grep -q "it is served on 127.0.0.3:$2@tcp, \[::1\]:$2@tcp: stop it" said
        "$1" down data
        "$1" up data --separate --listen "localhost:$3@tcp" 2> said
        test "$(wc -l < said)" = 1
        grep -q 'in separate processes (before: in one process)' said
        "$1" down data
        "$1" up data 2> said
        test ! -s said
        test "$(ps -o comm= -p "$(cat data/run/mdt0000.pid)")" = nacre-mdt0000
        "$1" lctl ping "localhost:$3@tcp"
        "$1" mount "localhost:$3@tcp:/start" other
        test -s other/file
        "$1" status other | grep '^log .*/mount-.*other.log$' > there
        "$1" umount other
        test -s mount-*other.log
        "$1" down mnt
        "$1" check mnt
    "#;
    as_a_user(script);
}

#[test]
fn two_file_systems_of_one_name_are_told_apart() {
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    let script = r#"
        "$1" up a --mount mnt-a --osts 1 --fsname same
        "$1" up b --mount mnt-b --osts 1 --fsname same 2> said
        grep -q "the file system in $PWD/a has the name 'same', too" said
        if "$1" lctl pool_new same.p 2> said; then exit 7; fi
        grep -qF "in $PWD/a and $PWD/b: choose one with" said
        "$1" lctl --fs mnt-b pool_new same.p
        test -z "$("$1" lctl --fs a pool_list same | grep -v '^Pools from')"
        "$1" lctl --fs b pool_list same | grep -x same.p > there
        "$1" lctl --fs a set_param debug=debug
        test "$("$1" lctl --fs mnt-a get_param -n debug)" = debug
        test "$("$1" lctl --fs b get_param -n debug)" = info
        "$1" down a && "$1" down b
    "#;
    as_a_user(script);
}

#[test]
fn separate_servers_in_front_end_together_and_with_a_signal() {
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    let script = r#"
        start() {
            "$1" up data --mount mnt --osts 1 --fsname front --separate --foreground >> log 2>&1 &
            pid=$!
            until "$1" status data > status 2>&1 && grep -q 'is running, mounted' status; do
                kill -0 $pid
            done
        }
        start "$1"
        echo text > mnt/file
        if "$1" up data --foreground 2> said; then exit 7; fi
        grep -q 'running already' said
        kill -TERM $pid
        wait $pid
        test -z "$(ls -A mnt)" && test "$("$1" status data | head -n 1)" = "file system 'front' is stopped"
        start "$1"
        test "$(cat mnt/file)" = text
        kill -KILL "$(cat data/run/ost0000.pid)"
        if wait $pid; then exit 7; fi
        grep -q 'ost0000 has ended' log
        test "$("$1" status data | head -n 1)" = "file system 'front' is stopped"
        "$1" check data
    "#;
    as_a_user(script);
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
    // The binary may be in a directory that only root can reach.
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
    // The device is open to all users where udev has set it up; elsewhere only root can open it.
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
