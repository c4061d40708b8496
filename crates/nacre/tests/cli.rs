//! The commands as a shell sees them: output and exit codes. Nothing is mounted here.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};

const NACRE: &str = env!("CARGO_BIN_EXE_nacre");

fn run_program(program: &Path, args: &[&str]) -> Output {
    Command::new(program).args(args).output().expect("the binary runs")
}

fn nacre(args: &[&str]) -> Output {
    run_program(Path::new(NACRE), args)
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("not killed")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of these tests are text")
}

/// Fails unless there is exactly one line, which starts with the program's name.
fn assert_one_sentence(output: &Output, exit: i32, part: &str) {
    let message = stderr(output);
    assert_eq!(code(output), exit, "{message}");
    assert_eq!(message.trim_end().lines().count(), 1, "{message}");
    assert!(message.starts_with("nacre: ") && message.contains(part), "{message}");
}

/// Returns a formatted file system with two OSTs.
fn formatted() -> (tempfile::TempDir, String) {
    let scratch = tempfile::tempdir().expect("a directory");
    let dir = text(&scratch.path().join("fs")).to_owned();
    let output = nacre(&["format", &dir, "--fsname", "testfs"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    (scratch, dir)
}

#[test]
fn every_command_explains_itself() {
    for command in ["up", "status", "down", "mount", "umount", "check", "format"] {
        let output = nacre(&[command, "--help"]);
        assert_eq!(code(&output), 0, "{command}");
        assert!(stdout(&output).contains("Example: "), "{command}");
    }
    assert!(stdout(&nacre(&["--help"])).contains("nacre up /srv/fs"));
    assert_eq!(code(&nacre(&["--version"])), 0);
}

/// Returns the directory of a `nacre` with a shell in place of nacre-bench, which runs the script `bench` of
/// that directory.
fn next_to_a_shell(script: &str) -> tempfile::TempDir {
    // On the file system of the program, for a hard link to it.
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    fs::hard_link(NACRE, scratch.path().join("nacre")).expect("linked");
    symlink("/bin/sh", scratch.path().join("nacre-bench")).expect("linked");
    fs::write(scratch.path().join("bench"), script).expect("written");
    scratch
}

#[test]
fn measuring_is_handed_over_with_all_words_and_ends_with_its_exit_code() {
    let scratch = next_to_a_shell("printf '<%s>' \"$@\"; kill -s \"$1\" $$; exit 7");
    let run = |words: &[&str]| {
        let mut command = Command::new(scratch.path().join("nacre"));
        command.args(words).current_dir(&scratch).env("PATH", "").output().expect("the binary runs")
    };
    let output = run(&["bench", "0", "--help", "", "-n", "2", "--", "a b"]);
    assert_eq!((code(&output), stdout(&output).as_str()), (7, "<0><--help><><-n><2><--><a b>"));
    let killed = run(&["bench", "TERM"]);
    assert_eq!(killed.status.signal(), Some(libc::SIGTERM), "the same process");
}

#[test]
fn without_the_program_that_measures_one_sentence_says_how_to_get_it() {
    let scratch = next_to_a_shell("exit 7");
    let elsewhere = tempfile::tempdir().expect("a directory");
    let program = scratch.path().join("nacre-bench");
    fs::copy(&program, elsewhere.path().join("nacre-bench")).expect("copied");
    fs::remove_file(program).expect("removed");
    let run = |words: &[&str], path: &Path| {
        let mut command = Command::new(scratch.path().join("nacre"));
        command.args(words).current_dir(&scratch).env("PATH", path).output().expect("the binary runs")
    };
    for words in [&["bench", "io", "--help"][..], &["bench"], &["paf", "report", "x"], &["help", "paf"]] {
        let output = run(words, Path::new("/nowhere"));
        assert_one_sentence(&output, 1, "the program nacre-bench is missing");
        let said = stderr(&output);
        for part in [text(scratch.path()), "PATH", "cargo build --release --bin nacre-bench", "make install"]
        {
            assert!(said.contains(part), "{said}");
        }
    }
    assert_eq!(code(&run(&["bench"], elsewhere.path())), 7, "PATH comes next");
}

#[test]
fn the_help_lists_the_commands_that_measure() {
    let help = stdout(&nacre(&["--help"]));
    let lines = |name: &str| help.lines().filter(|line| line.trim_start().starts_with(name)).count();
    assert_eq!((lines("bench  "), lines("paf  ")), (1, 1), "{help}");
    assert!(help.contains("Measures this machine"), "{help}");
}

#[test]
fn wrong_calls_exit_with_2() {
    for args in [&["frobnicate"][..], &[], &["up"], &["down"], &["status", "--bogus"]] {
        assert_eq!(code(&nacre(args)), 2, "{args:?}");
    }
    assert_eq!(code(&nacre(&["up", "/x", "--mount", "/y", "--separate", "--one-process"])), 2);
}

#[test]
fn up_with_a_slip_of_the_pen_makes_nothing() {
    // The requirements of every mount are checked first.
    if fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
        return;
    }
    let scratch = tempfile::tempdir().expect("a directory");
    let path = |name: &str| text(&scratch.path().join(name)).to_owned();
    fs::write(scratch.path().join("file"), "x").expect("write");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("its address").port();
    let in_use = format!("127.0.0.1:{port}@tcp");
    let (fs_dir, mount, missing, file) = (path("fs"), path("mnt"), path("no/mnt"), path("file"));
    let cases: [(&[&str], i32, &str); 10] = [
        (&[], 2, "--mount"),
        (&["--mount", &missing], 1, "cannot be made"),
        (&["--mount", &file], 1, "is not a directory"),
        (&["--mount", &fs_dir], 2, "on itself"),
        (&["--mount", &mount, "--listen", "192.0.2.1@tcp"], 1, "192.0.2.1 is not an address of this host"),
        (&["--mount", &mount, "--listen", &in_use], 1, "is in use"),
        (&["--mount", &mount, "--separate", "--port", &port.to_string()], 1, "cannot be used"),
        (&["--mount", &mount, "--listen", "no-such-host.invalid@tcp"], 1, "no-such-host.invalid"),
        (&["--mount", &mount, "--flash", "9"], 2, "there is no OST 9"),
        (&["--mount", &mount, "-o", "bogus"], 2, "'bogus'"),
    ];
    for (options, exit, part) in cases {
        let output = nacre(&[&["up", &fs_dir, "--osts", "3"], options].concat());
        assert_one_sentence(&output, exit, part);
        assert_eq!(fs::read_dir(scratch.path()).expect("there").count(), 1, "{options:?} made something");
    }
}

#[test]
fn impossible_shapes_are_refused_before_anything_is_made() {
    let scratch = tempfile::tempdir().expect("a directory");
    let dir = scratch.path().join("fs");
    let cases = [
        (["--mdts", "32"], "1 to 31 MDTs"),
        (["--mdts", "0"], "1 to 31 MDTs"),
        (["--osts", "0"], "1 to 65504 OSTs"),
        (["--fsname", "much-too-long"], "1 to 8 letters"),
        (["--fsname", "a/b"], "1 to 8 letters"),
    ];
    for (option, part) in cases {
        let output = nacre(&["format", text(&dir), option[0], option[1]]);
        assert_one_sentence(&output, 2, part);
        assert!(!dir.exists(), "{option:?}");
    }
}

#[test]
fn directories_with_something_else_are_left_alone() {
    let scratch = tempfile::tempdir().expect("a directory");
    let file = scratch.path().join("thesis.tex");
    fs::write(&file, "text").expect("write");
    assert_one_sentence(&nacre(&["format", text(scratch.path())]), 1, "not empty");
    assert_one_sentence(&nacre(&["format", text(&file)]), 1, "not a directory");
    assert_one_sentence(&nacre(&["status", text(scratch.path())]), 1, "not empty");
    assert_eq!(fs::read(&file).expect("still there"), b"text");
}

#[test]
fn a_formatted_file_system_is_stopped_whole_and_not_made_twice() {
    let (_scratch, dir) = formatted();
    let output = nacre(&["status", &dir, "--json"]);
    assert_eq!(code(&output), 1);
    let status: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!((&status["fsname"], &status["state"]), (&"testfs".into(), &"stopped".into()));
    assert_eq!((&status["mdts"], &status["osts"]), (&1.into(), &2.into()));

    let output = nacre(&["down", &dir]);
    assert_eq!(code(&output), 0);
    assert!(stdout(&output).contains("was not running"), "{}", stdout(&output));

    let output = nacre(&["check", &dir, "--json"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let reports: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    let targets: Vec<&str> =
        reports.as_array().expect("a list").iter().filter_map(|report| report["target"].as_str()).collect();
    assert_eq!(targets, ["MGT", "MDT0000", "OST0000", "OST0001"]);

    assert_one_sentence(&nacre(&["format", &dir]), 1, "holds the file system 'testfs' already");
}

#[test]
fn other_formats_and_damage_are_named() {
    let (_scratch, dir) = formatted();
    let superblock = Path::new(&dir).join("superblock");
    let good = fs::read(&superblock).expect("read");
    let mut newer = good.clone();
    newer[8] = 200;
    fs::write(&superblock, &newer).expect("write");
    assert_one_sentence(&nacre(&["status", &dir]), 1, "newer");
    fs::write(&superblock, &good).expect("write");
    let mut damaged = good.clone();
    damaged[50] ^= 1;
    let copy = Path::new(&dir).join("superblock.copy");
    let config = Path::new(&dir).join("mgs/config");
    // The superblock and the configuration have two copies each.
    for (path, copy, bytes) in [
        (&superblock, &copy, damaged.as_slice()),
        (&copy, &superblock, &damaged),
        (&config, &Path::new(&dir).join("mgs/config.copy"), b"nonsense"),
    ] {
        let whole = fs::read(path).expect("read");
        fs::write(path, bytes).expect("write");
        let output = nacre(&["check", &dir]);
        assert_eq!(code(&output), 1);
        let named = format!("{} is damaged, its other copy is not", path.display());
        assert!(stdout(&output).contains(&named), "{}", stdout(&output));
        assert_eq!(fs::read(path).expect("read"), bytes, "a check changes nothing");
        let output = nacre(&["check", &dir, "--repair"]);
        assert!(stdout(&output).contains("1 problems found and repaired"), "{}", stdout(&output));
        assert_eq!((fs::read(path).expect("read"), fs::read(copy).expect("read")), (whole.clone(), whole));
        assert_eq!(code(&nacre(&["check", &dir])), 0);
    }
    for path in [&superblock, &copy] {
        fs::write(path, &damaged).expect("write");
    }
    assert_one_sentence(&nacre(&["check", &dir]), 1, "damaged");
    for path in [&superblock, &copy] {
        fs::write(path, &good).expect("write");
    }
    for name in ["mgs/config", "mgs/config.copy"] {
        fs::write(Path::new(&dir).join(name), "nonsense").expect("write");
    }
    let output = nacre(&["check", &dir]);
    assert_eq!(code(&output), 1);
    assert!(stdout(&output).contains("damaged at line 1"), "{}", stdout(&output));
}

#[test]
fn commands_on_nothing_say_how_to_begin() {
    let scratch = tempfile::tempdir().expect("a directory");
    let missing = scratch.path().join("none");
    for command in ["status", "down", "check"] {
        assert_one_sentence(&nacre(&[command, text(&missing)]), 1, "nacre up");
    }
    assert!(!missing.exists());
}

#[test]
fn mounts_that_cannot_be_are_refused() {
    let scratch = tempfile::tempdir().expect("a directory");
    let point = text(scratch.path());
    assert_one_sentence(&nacre(&["mount", "10.0.0.1:/nacre", point]), 2, "not a mount source");
    assert_one_sentence(&nacre(&["mount", "10.0.0.1@tcp:/toolongname", point]), 2, "not a file system name");
    assert_one_sentence(&nacre(&["mount", "0@lo:/nacre", point]), 2, "0@lo");
    assert_one_sentence(&nacre(&["mount", "10.0.0.1@tcp:/nacre", point, "-o", "bogus"]), 2, "'bogus'");
    let missing = format!("{point}/missing");
    assert_one_sentence(&nacre(&["mount", "10.0.0.1@tcp:/nacre", &missing]), 1, "does not exist");
    assert_one_sentence(&nacre(&["umount", point]), 1, "no NacreFS is mounted");
}

#[test]
fn installed_programs_are_stripped_and_have_their_debug_information_next_to_them() {
    if Command::new("objcopy").arg("--version").output().is_err() {
        return;
    }
    let scratch = tempfile::tempdir().expect("a directory");
    let (build, root) = (scratch.path().join("build"), scratch.path().join("root"));
    fs::create_dir(&build).expect("made");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install");
    // No Rust in the path, as for root.
    let install = || {
        let mut command = Command::new(&script);
        let command = command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.env("BUILD", &build).env("DESTDIR", &root).env("PREFIX", "/usr").output().expect("it runs")
    };
    let unbuilt = install();
    assert!(
        code(&unbuilt) == 1 && stderr(&unbuilt).contains("run 'make build' first"),
        "{}",
        stderr(&unbuilt)
    );
    for name in ["nacre", "nacre-bench"] {
        // Any program can stand in for the one that measures, which is not built here.
        fs::copy(NACRE, build.join(name)).expect("copied");
    }
    fs::write(build.join("libnacre_preload.so"), "").expect("written");
    let installed = install();
    assert_eq!(code(&installed), 0, "{}", stderr(&installed));
    let bin = root.join("usr/bin");
    for (name, debug) in [("nacre", "nacre.debug"), ("nacre-bench", "nacre-bench.debug")] {
        let bytes = fs::read(bin.join(name)).expect("installed");
        assert!(bytes.windows(14).any(|bytes| bytes == b".gnu_debuglink") && bin.join(debug).exists());
        assert!(bytes.len() as u64 <= fs::metadata(NACRE).expect("built").len(), "{name}");
    }
    assert_eq!(code(&run_program(&bin.join("lfs"), &["--version"])), 0);
    assert_eq!(fs::read_link(root.join("sbin/mount.nacre")).expect("a link"), Path::new("/usr/bin/nacre"));
}

#[test]
fn mount_helper_has_the_exit_codes_of_mount() {
    let scratch = tempfile::tempdir().expect("a directory");
    let helper = scratch.path().join("mount.nacre");
    symlink(NACRE, &helper).expect("a link");
    let point = text(scratch.path());
    assert_eq!(code(&run_program(&helper, &["-h"])), 0);
    assert_eq!(code(&run_program(&helper, &["only-one"])), 1);
    assert_eq!(code(&run_program(&helper, &["bad source", point])), 1);
    assert_eq!(code(&run_program(&helper, &["10.0.0.1@tcp:/nacre", point, "-f", "-o", "ro,_netdev"])), 0);
    assert_eq!(code(&run_program(&helper, &["10.0.0.1@tcp:/nacre", point, "-f", "-o", "bogus"])), 1);
    assert_eq!(code(&run_program(&helper, &["10.0.0.1@tcp:/nacre", point, "-fs", "-o", "bogus"])), 0);
    assert_eq!(code(&run_program(&helper, &["10.0.0.1@tcp:/nacre", &format!("{point}/none")])), 32);
}

#[test]
fn lfs_by_name_and_by_sub_command_are_the_same() {
    let scratch = tempfile::tempdir().expect("a directory");
    let lfs = scratch.path().join("lfs");
    symlink(NACRE, &lfs).expect("a link");
    let version = run_program(&lfs, &["--version"]);
    assert!(stdout(&version).starts_with("lfs "), "{}", stdout(&version));
    assert_eq!(nacre(&["lfs", "--version"]).stdout, version.stdout);
    let unknown = run_program(&lfs, &["foo"]);
    assert_eq!(code(&unknown), 1);
    assert_eq!(stderr(&unknown), "lfs: 'foo' is not a valid command. See 'lfs --list-commands'.\n");
    assert!(stdout(&run_program(&lfs, &["--list-commands"])).contains("setstripe"));
}

#[test]
fn lfs_usage_errors_exit_with_4_and_say_what_is_wrong_last() {
    let cases = [
        (&["setstripe", "-c", "5000", "q1"][..], "lfs setstripe setstripe: invalid stripe count '5000'\n"),
        (&["setstripe", "-S", "100000", "q1"], "lfs setstripe setstripe: invalid stripe size '100000'\n"),
        (&["setstripe", "--bogus", "q1"], "lfs setstripe: unrecognized option '--bogus'\n"),
        (&["setstripe"], "lfs setstripe setstripe: FILE must be specified\n"),
        (&["getstripe"], "error: getstripe: no filename|pathname\n"),
    ];
    for (args, sentence) in cases {
        let output = nacre(&[&["lfs"], args].concat());
        assert_eq!(code(&output), 4, "{args:?}");
        let hint = format!("See 'lfs {} --help'.\n", args[0]);
        assert_eq!(stderr(&output), hint + sentence);
        assert!(!Path::new("q1").exists(), "a wrong call makes no file");
    }
}

#[test]
fn lfs_on_other_file_systems_says_so() {
    let scratch = tempfile::tempdir().expect("a directory");
    let file = scratch.path().join("f");
    fs::write(&file, "x").expect("write");
    let file = text(&file);

    let output = nacre(&["lfs", "getstripe", file]);
    assert_eq!(code(&output), 25);
    let expected =
        format!("cb_getstripe: '{file}' not on a Lustre fs?: Inappropriate ioctl for device (25)\n");
    assert_eq!(stderr(&output), expected);

    let output = nacre(&["lfs", "getstripe", "nosuch"]);
    assert_eq!(code(&output), 2);
    assert_eq!(stderr(&output), "lfs: getstripe for 'nosuch' failed: No such file or directory\n");

    let fresh = text(scratch.path()).to_owned() + "/new";
    let output = nacre(&["lfs", "setstripe", "-c", "1", &fresh]);
    assert_eq!(code(&output), 25, "{}", stderr(&output));
    assert!(!Path::new(&fresh).exists(), "nothing is made on another file system");

    let output = nacre(&["lfs", "df", text(scratch.path())]);
    assert_eq!(code(&output), 95);
    assert!(stderr(&output).ends_with("Not a Lustre filesystem\n"), "{}", stderr(&output));
    assert_eq!(code(&nacre(&["lfs", "path2fid", file])), 25);
}

#[test]
fn lctl_tells_unknown_commands_and_addresses() {
    let output = nacre(&["lctl", "frobnicate"]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("'frobnicate' is not a valid command"), "{}", stderr(&output));
    assert_eq!(code(&nacre(&["lctl", "ping", "nonsense"])), 22);
    assert_eq!(code(&nacre(&["lctl", "get_param"])), 4);
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let nid =
        |listener: &std::net::TcpListener| format!("{}@tcp", listener.local_addr().expect("its address"));
    // The port accepts connections and never answers.
    let silent = nacre(&["lctl", "ping", &nid(&nobody), "1"]);
    assert!(code(&silent) == 5 && stderr(&silent).contains("timed out"), "{}", stderr(&silent));
    let address = nid(&nobody);
    drop(nobody);
    let refused = nacre(&["lctl", "ping", &address]);
    assert!(code(&refused) == 5 && stderr(&refused).contains("connection refused"), "{}", stderr(&refused));
}
