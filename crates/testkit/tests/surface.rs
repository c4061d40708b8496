//! View of other users of a host on a file system, its processes and its mounts: nothing is exposed that is
//! not meant for them.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nacre_testkit::cluster::Options;
use nacre_testkit::identity::Identity;
use nacre_testkit::program::run_command;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::run::Run;
use nacre_testkit::{Cluster, Shape, binary, text};

const LIMIT: Duration = Duration::from_secs(180);
/// An ordinary user with a name in the user database, which fusermount3 needs, and another user.
const ALICE: u32 = 65_534;
const BOB: u32 = 20_002;

fn can_mount() -> bool {
    have(&["/dev/fuse"]) && have_root()
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
}

/// Returns a line of `/proc/PID/status`.
fn status_of(pid: u32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}

fn separate(fsname: &str) -> Option<Cluster> {
    if !can_mount() {
        return None;
    }
    let options = Options { osts: 2, fsname: fsname.to_owned(), ..Options::default() };
    Some(Cluster::start_with(Shape::Separate, &options)).filter(|cluster| !cluster.is_foreign())
}

/// Returns the first line that a socket answers to another user.
fn ask_as(uid: u32, socket: &Path, question: &str) -> String {
    Identity::user(uid).act(|| {
        let mut stream = UnixStream::connect(socket).expect("the mode lets everybody in");
        // It may have hung up already.
        let _ = stream.write_all(question.as_bytes());
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).expect("an answer");
        line
    })
}

#[test]
fn control_sockets_refuse_other_users_when_somebody_has_loosened_their_modes() {
    let Some(mut cluster) = separate("surfsock") else { return };
    let run = cluster.data().join("run");
    let sockets: Vec<_> = fs::read_dir(&run)
        .expect("run directory")
        .map(|entry| entry.expect("entry").path())
        .filter(|path| fs::symlink_metadata(path).expect("there").file_type().is_socket())
        .collect();
    // Each process has one for commands, and one for `nacre debug`.
    assert_eq!(sockets.len(), 2 * cluster.processes().len(), "{sockets:?}");
    set_mode(&run, 0o755);
    for socket in &sockets {
        set_mode(socket, 0o666);
        for question in ["{\"request\":\"status\"}\n", "{\"request\":\"stop\",\"force\":true}\n", "\n"] {
            let answer = ask_as(BOB, socket, question);
            assert!(answer.contains("\"errno\":1,") && answer.contains("root may ask it"), "{answer}");
        }
    }
    let log = fs::read_to_string(run.join("ost0000.log")).expect("its log");
    assert!(log.contains(&format!("control connection of user {BOB}")), "{log}");
    set_mode(&run, 0o700);
    cluster.nacre(&["status", text(cluster.data())]).success();
    cluster.stop_and_check();
}

/// Collects all paths below a directory to which users other than the owner have some access. Certificates
/// are public.
fn open_to_others(dir: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry")) {
        let meta = entry.metadata().expect("there");
        let is_public = entry.path().extension().is_some_and(|extension| extension == "pem");
        if meta.mode() & 0o077 != 0 && !meta.is_symlink() && !is_public {
            found.push(format!("{:o} {}", meta.mode() & 0o7777, entry.path().display()));
        }
        if meta.is_dir() {
            open_to_others(&entry.path(), found);
        }
    }
}

#[test]
fn nothing_in_the_directory_is_open_to_others_whatever_the_umask() {
    if !can_mount() {
        return;
    }
    let shapes = [
        ("one", "--one-process"),
        ("sep", "--separate"),
        ("dev", "--separate --ost-backend block,size=256M --mdt-backend block,size=128M"),
    ];
    for (name, options) in shapes {
        let run = Run::new();
        let script = r#"
            umask 000
            "$1" up above/data --mount mnt --osts 2 --fsname "surf$2" $3
            "$1" down above/data
            [ -d above/data/keys ] || "$1" key init above/data
            "$1" up above/data
            head -c 3000000 /dev/urandom > mnt/file
            "$1" lfs setstripe -c 2 mnt/wide
            cp mnt/file mnt/wide
            "$1" target add above/data ost
            "$1" lctl --fs above/data set_param -P osc.*.max_rpcs_in_flight=9
        "#;
        let mut command = run.command("bash");
        command.args(["-euo", "pipefail", "-c", script, "bash"]).arg(binary::nacre()).args([name, options]);
        command.current_dir(run.directory());
        run_command(command, LIMIT).success();
        let data = run.directory().join("above/data");
        let modes = [&data, data.parent().expect("it has one"), &run.directory().join("mnt")];
        let look = |when: &str| {
            let mut found = Vec::new();
            open_to_others(&data, &mut found);
            assert_eq!(found, Vec::<String>::new(), "{options}, {when}");
        };
        look("running");
        assert_eq!(fs::metadata(modes[0]).expect("there").mode() & 0o777, 0o711);
        assert_eq!(fs::metadata(modes[1]).expect("there").mode() & 0o022, 0, "what lies above");
        let mut down = run.command(binary::nacre());
        down.args(["down", text(&data)]);
        run_command(down, LIMIT).success();
        look("stopped");
        assert_eq!(fs::metadata(modes[2]).expect("there").mode() & 0o022, 0, "the mount point");
    }
}

/// Runs a script as root in a home directory of [`ALICE`] with a program `nacre`, where `alice COMMAND` and
/// `bob COMMAND` run a command as these users. The script has a mount namespace of its own with a FUSE device
/// that users may open, as on hosts of users.
fn with_users(script: &str) {
    if !can_mount() || !have(&["fusermount3", "setpriv", "unshare"]) {
        return;
    }
    let run = Run::new();
    let home = run.make("home");
    chown(&home, Some(ALICE), Some(ALICE)).expect("chown");
    // The binary may be in a directory that only root can reach.
    fs::copy(binary::nacre(), home.join("nacre")).expect("copied");
    let functions = format!(
        r#"
        mknod -m 666 fuse c 10 229
        mount --bind fuse /dev/fuse
        alice() {{ setpriv --reuid={ALICE} --regid={ALICE} --clear-groups "$@"; }}
        bob() {{ setpriv --reuid={BOB} --regid={BOB} --clear-groups "$@"; }}
        "#
    );
    let mut command = run.command("unshare");
    command.args(["--mount", "bash", "-euo", "pipefail", "-c", &format!("{functions}{script}")]);
    command.env("HOME", &home).env("NACRE_LOG_DIR", &home).env_remove("XDG_RUNTIME_DIR");
    command.current_dir(&home);
    run_command(command, LIMIT).success();
}

#[test]
fn a_mount_of_a_user_shows_nothing_to_others() {
    with_users(&format!(
        r#"
        alice ./nacre up data --mount mnt --osts 1 --fsname surfuser
        alice bash -c 'echo open > mnt/file; chmod 0777 mnt; chmod 0666 mnt/file'
        test "$(alice cat mnt/file)" = open
        for words in 'cat mnt/file' 'stat mnt/file' 'ls mnt' 'touch mnt/new'; do
            if bob $words 2> said; then exit 1; fi
            grep -q 'Permission denied' said
        done
        grep " $PWD/mnt " /proc/self/mountinfo > line
        grep -q user_id={ALICE} line
        if grep allow_other line; then exit 1; fi
        alice ./nacre down data
        # Those of root are for everybody, and the servers decide.
        ./nacre up root --mount mnt --osts 1 --fsname surfroot
        echo open > mnt/file
        chmod 0600 mnt/file
        grep " $PWD/mnt " /proc/self/mountinfo | grep -q allow_other
        bob stat mnt/file
        if bob cat mnt/file; then exit 1; fi
        ./nacre down root
        "#
    ));
}

/// The user of a process with keys cannot read its memory and environment. Commands that must fail are
/// conditions of `if`: `!` does not end the shell.
const HIDDEN: &str = r#"
        hidden() {
            for file in environ mem maps fd/0 exe; do
                if alice cat /proc/$1/$file > /dev/null 2>&1; then exit 1; fi
            done
            grep -q 'Max core file size  *0  *0 ' /proc/$1/limits
        }
"#;

#[test]
fn keys_of_a_user_are_hidden_from_their_other_processes() {
    with_users(&format!(
        r#"{HIDDEN}
        alice ./nacre up data --mount mnt --osts 1 --fsname surfkey --separate --security open
        for process in data/run/*.pid; do alice cat /proc/$(cat $process)/environ > /dev/null; done
        alice ./nacre down data
        alice ./nacre up data --security encrypt
        test $(ls data/run/*.pid | wc -l) = 4
        for process in data/run/*.pid; do hidden $(cat $process); done
        alice ./nacre down data
        alice ./nacre format one --osts 1 --fsname surfone
        alice ./nacre key init one
        alice ./nacre up one --mount mnt
        hidden $(cat one/run/node.pid)
        alice ./nacre status one
        alice ./nacre down one
        "#
    ));
}

#[test]
fn commands_of_a_user_go_on_with_processes_that_hide_their_keys() {
    with_users(
        r#"
        alice ./nacre format data --osts 1 --fsname surfrun
        alice ./nacre key init data
        alice ./nacre up data --mount mnt --separate
        alice ./nacre status data
        alice ./nacre up data | grep -q 'already running'
        setpriv --reuid=65534 --regid=65534 --clear-groups bash -c 'echo text > mnt/file; exec sleep 100 < mnt/file' &
        until test "$(cat /proc/$!/comm)" = sleep; do kill -0 $!; done
        if alice ./nacre down data 2> said; then exit 1; fi
        grep -q "in use by sleep (pid $!)" said
        kill $!
        wait $! || true
        kill -9 $(cat data/run/ost0000.pid)
        if alice ./nacre status data; then exit 1; fi
        alice ./nacre up data
        test "$(alice cat mnt/file)" = text
        alice ./nacre down data
        alice ./nacre check data
        alice ./nacre up data
        alice ./nacre status mnt
        test "$(alice cat mnt/file)" = text
        alice ./nacre down mnt
        test -z "$(ls -A mnt)"
        "#,
    );
}

#[test]
fn servers_with_processes_of_their_own_are_confined() {
    let Some(mut cluster) = separate("surfbox") else { return };
    let check = |cluster: &Cluster, confined: bool| {
        for (role, pid) in cluster.processes() {
            let is_server = cluster.servers().contains(&role);
            let expected = if is_server && confined { ("2", "1") } else { ("0", "0") };
            let found = (status_of(pid, "Seccomp"), status_of(pid, "NoNewPrivs"));
            assert_eq!((&*found.0, &*found.1), expected, "{role}");
            // Every thread, not only the first.
            for thread in fs::read_dir(format!("/proc/{pid}/task")).expect("it runs") {
                let thread =
                    thread.expect("a thread").file_name().to_string_lossy().parse().expect("a number");
                assert_eq!(status_of(thread, "Seccomp"), expected.0, "a thread of {role}");
            }
            let log = fs::read_to_string(cluster.data().join(format!("run/{role}.log"))).expect("its log");
            let said = log.lines().filter(|line| line.contains("confined")).count();
            assert_eq!(said, usize::from(is_server), "{role}: {log}");
        }
    };
    check(&cluster, true);
    fs::write(cluster.mount().join("file"), "text").expect("written");
    cluster.stop();
    for log in fs::read_dir(cluster.data().join("run")).expect("there") {
        let path = log.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "log") {
            fs::remove_file(path).expect("removed");
        }
    }
    // Without the sandbox, as for a debugger; the shape is kept.
    let mut command = cluster.command();
    command.env("NACRE_SANDBOX", "off").args(["up", text(cluster.data())]);
    run_command(command, LIMIT).success();
    check(&cluster, false);
    assert_eq!(fs::read(cluster.mount().join("file")).expect("read"), b"text");
    cluster.stop_and_check();
}
