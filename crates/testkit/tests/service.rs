//! `nacre up` as a service: its configuration, what the service manager and the journal get, and the unit.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use nacre_testkit::program::{run_command, shell, signal};
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::run::Run;
use nacre_testkit::{binary, text, wait};
use rustix::process::Signal;

const LIMIT: Duration = Duration::from_secs(120);

fn can_mount() -> bool {
    have(&["/dev/fuse"]) && have_root()
}

/// A service manager with one service.
struct Manager {
    run: Run,
    socket: UnixDatagram,
}

impl Manager {
    fn new() -> Manager {
        let run = Run::new();
        let socket = UnixDatagram::bind(run.directory().join("notify")).expect("a new socket");
        socket.set_read_timeout(Some(LIMIT)).expect("a timeout");
        Manager { run, socket }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.run.directory().join(name)
    }

    /// Writes a configuration for a file system in `fs`, mounted on `mnt`.
    fn configuration(&self, more: &str) -> PathBuf {
        let (dir, mount) = (self.path("fs"), self.path("mnt"));
        let file = self.path("home.toml");
        let text = format!("dir = \"{}\"\nmount = \"{}\"\n{more}\n", text(&dir), text(&mount));
        fs::write(&file, text).expect("written");
        file
    }

    /// Starts `nacre up` in the foreground with standard error to the journal, a file.
    fn start(&self, file: &Path) -> Child {
        let journal =
            fs::File::options().create(true).append(true).open(self.path("journal")).expect("opened");
        let found = rustix::fs::fstat(&journal).expect("a file");
        let mut command = self.run.command(binary::nacre());
        command.args(["up", "--foreground", "--config"]).arg(file).stdin(Stdio::null());
        command.env("NOTIFY_SOCKET", self.path("notify"));
        command.env("JOURNAL_STREAM", format!("{}:{}", found.st_dev, found.st_ino));
        command.stdout(Stdio::null()).stderr(journal).spawn().expect("it starts")
    }

    fn journal(&self) -> String {
        fs::read_to_string(self.path("journal")).expect("readable")
    }

    /// Waits for a message with this assignment and returns its status.
    fn expect(&self, assignment: &str) -> String {
        let mut seen = Vec::new();
        loop {
            let mut buffer = [0; 4096];
            let size = self.socket.recv(&mut buffer).unwrap_or_else(|error| {
                panic!("{assignment} was not reported ({error}); {seen:?}\n{}", self.journal())
            });
            let message = String::from_utf8_lossy(&buffer[..size]).into_owned();
            let status = message.lines().find_map(|line| line.strip_prefix("STATUS=")).map(str::to_owned);
            if message.lines().any(|line| line == assignment) {
                return status.unwrap_or_default();
            }
            seen.push(message);
        }
    }
}

fn ended(child: &mut Child) -> i32 {
    let status = wait::until(LIMIT, "the service has ended", || child.try_wait().expect("our child"));
    status.code().unwrap_or(-1)
}

fn a_service_reports_its_start_and_end(more: &str) {
    if !can_mount() {
        return;
    }
    let manager = Manager::new();
    let file = manager.configuration(more);
    let mount = manager.path("mnt");
    for round in 0..2 {
        let mut child = manager.start(&file);
        let status = manager.expect("READY=1");
        assert!(status.contains("is up") && status.contains(text(&mount)), "{status}");
        if round == 0 {
            fs::write(mount.join("file"), "text").expect("mounted when it is ready");
        }
        assert_eq!(fs::read_to_string(mount.join("file")).expect("kept"), "text");
        signal(child.id(), Signal::TERM);
        assert_eq!(manager.expect("STOPPING=1"), "stopping");
        assert_eq!(ended(&mut child), 0, "{}", manager.journal());
        assert!(!mount.join("file").exists(), "it is unmounted");
    }
    let journal = manager.journal();
    assert!(journal.lines().any(|line| line.starts_with("<6>nacre: ")), "{journal}");
    // The journal has the time already; lines begin with their priority.
    assert!(journal.lines().all(|line| line.starts_with('<') && !line.contains("Z INFO")), "{journal}");
}

#[test]
fn a_service_of_one_process_is_ready_when_it_is_mounted_and_stops_cleanly() {
    a_service_reports_its_start_and_end("fsname = \"svcone\"");
}

#[test]
fn a_service_of_separate_processes_is_ready_when_it_is_mounted_and_stops_cleanly() {
    a_service_reports_its_start_and_end("fsname = \"svcsep\"\nseparate = true\nosts = 1");
}

#[test]
fn a_service_whose_disk_is_not_mounted_creates_no_new_file_system() {
    if !can_mount() {
        return;
    }
    let manager = Manager::new();
    let file = manager.configuration("fsname = \"svcdisk\"");
    let (dir, state) = (manager.path("fs"), manager.run.make("state"));
    let start = || {
        let mut command = manager.run.command(binary::nacre());
        command.args(["up", "--config", text(&file)]).env("STATE_DIRECTORY", &state);
        run_command(command, LIMIT)
    };
    let down = || {
        let mut command = manager.run.command(binary::nacre());
        command.args(["down", text(&dir)]);
        run_command(command, LIMIT).success()
    };
    start().success();
    fs::write(manager.path("mnt").join("file"), "text").expect("written");
    down();
    // The disk is away: its mount point is empty, or is not there.
    let disk = manager.path("disk");
    fs::rename(&dir, &disk).expect("moved");
    for is_there in [false, true] {
        if is_there {
            fs::create_dir(&dir).expect("created");
        }
        let refused = start().fails_with(1);
        let expected = format!(
            "{} is empty, but this service has had the file system 'svcdisk' there: mount its disk first, or remove {}",
            dir.display(),
            state.join("file-system").display()
        );
        assert!(refused.stderr.contains(&expected), "{refused}");
        assert_eq!(fs::read_dir(&dir).map(Iterator::count).unwrap_or(0), 0, "nothing was created");
    }
    fs::remove_dir(&dir).expect("empty");
    fs::rename(&disk, &dir).expect("moved");
    start().success();
    assert_eq!(fs::read_to_string(manager.path("mnt").join("file")).expect("kept"), "text");
    down();
    // What an administrator does for a new one.
    fs::remove_dir_all(&dir).expect("removed");
    fs::remove_file(state.join("file-system")).expect("it is there");
    start().success();
    assert!(!manager.path("mnt").join("file").exists(), "it is a new one");
    down();
}

#[test]
fn a_service_that_cannot_start_reports_why_as_an_error() {
    let manager = Manager::new();
    let file = manager.configuration("osts = 0");
    let mut child = manager.start(&file);
    assert_eq!(ended(&mut child), 2);
    let expected = format!("<3>nacre: {}, line 3: osts: 0 is not from 1 to ", file.display());
    assert!(manager.journal().starts_with(&expected), "{}", manager.journal());
}

#[test]
fn a_file_describes_the_start_as_a_whole_and_allows_added_targets() {
    if !can_mount() {
        return;
    }
    let manager = Manager::new();
    let nacre = |words: &[&str]| {
        let mut command = manager.run.command(binary::nacre());
        command.args(words);
        run_command(command, LIMIT)
    };
    let dir = manager.path("fs");
    let file = manager.configuration(
        "fsname = \"svcfile\"\nosts = 2\nlisten = \"127.0.0.9:7951@tcp\"\noptions = \"noatime\"",
    );
    let up = ["up", "--config", text(&file)];
    nacre(&up).success();
    nacre(&["target", "add", text(&dir), "ost"]).success();
    nacre(&["down", text(&dir)]).success();
    let start = fs::read_to_string(dir.join("start")).expect("stored");
    assert!(start.contains("127.0.0.9:7951@tcp") && start.contains("noatime"), "{start}");
    // The third OST does not contradict the file. Addresses that are not in the file any more are gone.
    manager.configuration("fsname = \"svcfile\"\nosts = 2");
    let again = nacre(&up).success();
    assert!(again.stderr.contains("for this host alone (before: on 127.0.0.9:7951@tcp)"), "{again}");
    let start = fs::read_to_string(dir.join("start")).expect("stored");
    assert!(!start.contains("7951") && !start.contains("noatime"), "{start}");
    nacre(&["down", text(&dir)]).success();
    manager.configuration("fsname = \"svcfile\"\nosts = 9");
    let more = nacre(&up).success();
    assert!(more.stderr.contains("osts = 9 applies to a new file system, this one has 3"), "{more}");
    nacre(&["down", text(&dir)]).success();
    manager.configuration("fsname = \"other\"");
    assert!(nacre(&up).fails_with(1).stderr.contains("was made with the name svcfile, not other"));
}

#[test]
fn targets_that_joined_another_host_run_in_the_foreground() {
    if !can_mount() {
        return;
    }
    let manager = Manager::new();
    let nacre = |words: &[&str]| {
        let mut command = manager.run.command(binary::nacre());
        command.args(words);
        run_command(command, LIMIT).success()
    };
    let (dir, far) = (manager.path("fs"), manager.path("far"));
    let mount = manager.path("mnt");
    nacre(&[
        "up",
        text(&dir),
        "--mount",
        text(&mount),
        "--fsname",
        "svcfar",
        "--listen",
        "127.0.0.10:7952@tcp",
    ]);
    let token = nacre(&["key", "token", "--role", "server", text(&dir)]).stdout;
    let join = ["join", "--token", token.trim(), "127.0.0.10:7952@tcp:/svcfar", text(&far), "--listen"];
    nacre(&[&join[..], &["127.0.0.11:7953@tcp"]].concat());
    nacre(&["down", text(&far)]);
    let file = manager.path("far.toml");
    fs::write(&file, format!("dir = \"{}\"\n", text(&far))).expect("written");
    let mut child = manager.start(&file);
    let status = manager.expect("READY=1");
    assert_eq!(status, "the targets of file system 'svcfar' here are up");
    fs::write(mount.join("file"), "text").expect("all targets answer");
    signal(child.id(), Signal::TERM);
    manager.expect("STOPPING=1");
    assert_eq!(ended(&mut child), 0, "{}", manager.journal());
    nacre(&["down", text(&dir)]);
}

#[test]
fn lines_have_their_time_where_standard_error_is_not_the_journal() {
    if !can_mount() {
        return;
    }
    let manager = Manager::new();
    let file = manager.configuration("fsname = \"svcterm\"");
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    let mut command = manager.run.command(binary::nacre());
    command.args(["up", "--foreground", "--config"]).arg(&file).stdin(Stdio::null());
    // As inherited by a process whose standard error was redirected.
    let child = command.env("JOURNAL_STREAM", "1:2").env("NOTIFY_SOCKET", manager.path("notify"));
    let mut child = child.stdout(Stdio::null()).stderr(Stdio::from(writer)).spawn().expect("it starts");
    drop(command);
    manager.expect("READY=1");
    signal(child.id(), Signal::TERM);
    assert_eq!(ended(&mut child), 0);
    let text = std::io::read_to_string(fs::File::from(reader)).expect("readable");
    assert!(text.lines().next().is_some_and(|line| line.contains("Z INFO  nacre: node of")), "{text}");
}

#[test]
fn systemd_accepts_the_unit() {
    if !have(&["systemd-analyze"]) {
        return;
    }
    let run = Run::new();
    let (bin, unit) =
        (binary::nacre().parent().expect("in a directory"), run.directory().join("nacre@home.service"));
    let source = fs::read_to_string(binary::workspace().join("packaging/nacre@.service.in")).expect("there");
    fs::write(&unit, source.replace("@BINDIR@", text(bin))).expect("written");
    let script = r#"systemd-analyze verify --man=no "$1""#;
    let verified = shell(run.directory(), script, [text(&unit)]).success();
    assert_eq!(verified.stderr.lines().filter(|line| line.contains("nacre@")).count(), 0, "{verified}");
}
