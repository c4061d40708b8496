//! `nacre debug` over real mounts: the process that others wait for is named at the end of the chain.

use nacre_testkit::cluster::Options;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, Shape, Stopped, wait};
use serde_json::Value;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

/// Time limit for each step.
const LIMIT: Duration = Duration::from_secs(30);

/// Starts servers in processes of their own; `None` where that is not possible.
fn start(fsname: &str, mdts: usize) -> Option<Cluster> {
    if !(have(&["/dev/fuse", "fusermount3"]) && have_root()) {
        return None;
    }
    let options = Options { fsname: fsname.to_owned(), mdts, osts: 2, ..Options::default() };
    let cluster = Cluster::start_with(Shape::Separate, &options);
    (!cluster.is_foreign()).then_some(cluster)
}

/// Returns the requests that wait.
fn waits(cluster: &Cluster, older: &str) -> Vec<Value> {
    let data = cluster.data().to_str().expect("a name in UTF-8");
    let shown = cluster.nacre(&["debug", "waits", data, "--older", older, "--json"]).success().stdout;
    let value: Value = serde_json::from_str(&shown).expect("JSON");
    value["requests"].as_array().expect("a list").clone()
}

/// Waits for a request whose chain begins in one process and ends in another; returns the chain.
fn chain(cluster: &Cluster, begins: &str, operation: &str, ends: u32) -> Vec<Value> {
    let mut last = Vec::new();
    let found = wait::until(LIMIT, "the chain ends at the process", || {
        last = waits(cluster, "100ms");
        last.iter().find_map(|request| {
            let chain = request["chain"].as_array()?;
            let first = chain.first()?;
            let is_it = first["process"].as_str()?.starts_with(begins)
                && first["what"].as_str()?.starts_with(operation)
                && chain.last()?["pid"].as_u64()? == u64::from(ends);
            is_it.then(|| chain.clone())
        })
    });
    assert!(!found.is_empty(), "{last:#?}");
    found
}

fn words<'a>(link: &'a Value, field: &str) -> &'a str {
    link[field].as_str().unwrap_or_default()
}

#[test]
fn a_request_to_a_stopped_server_names_it_over_all_servers_between() {
    let Some(mut cluster) = start("dbgserv", 2) else { return };
    let mount = cluster.mount().to_owned();
    let remote = mount.join("remote");
    cluster.lfs(&["mkdir".as_ref(), "-i".as_ref(), "1".as_ref(), remote.as_os_str()]).success();
    // Looked up before: the request under test is the first one that needs MDT0001.
    assert!(fs::metadata(&remote).expect("there").is_dir());
    let (first, second, pid) = (cluster.pid("mdt0000"), cluster.pid("mdt0001"), cluster.pid("mount"));
    std::thread::scope(|scope| {
        let stopped = Stopped::begin(&cluster, second);
        // The name of the directory is on MDT0000, its inode on MDT0001.
        let removed = scope.spawn(|| fs::remove_dir(&remote));
        let chain = chain(&cluster, "mount", "rmdir", second);
        let pids: Vec<_> = chain.iter().filter_map(|link| link["pid"].as_u64()).collect();
        assert_eq!(pids, [pid, first, second].map(u64::from), "{chain:#?}");
        let end = chain.last().expect("a chain");
        assert!(words(end, "what").contains("stopped by a signal"), "{chain:#?}");
        let shown =
            cluster.nacre(&["debug".as_ref(), "waits".as_ref(), cluster.data().as_os_str()]).success().stdout;
        let line = format!("mdt0001 (pid {second}) does not answer: it is stopped");
        assert!(shown.contains(&line), "{shown}");
        drop(stopped);
        // An MDT waits some seconds for another one.
        let outcome = removed.join().expect("no panic");
        let is_late = |error: &std::io::Error| error.kind() == std::io::ErrorKind::TimedOut;
        assert!(outcome.as_ref().err().is_none_or(is_late), "{outcome:?}");
    });
    wait::until(LIMIT, "nothing waits any more", || waits(&cluster, "1s").is_empty().then_some(()));
    cluster.stop_and_check();
}

#[test]
fn a_request_for_a_lock_names_the_stopped_mount_that_holds_it() {
    let Some(mut cluster) = start("dbglock", 1) else { return };
    let other = cluster.add_mount();
    let pid_of = |mount: &Path| mount_pid(&cluster, mount);
    let holder = pid_of(&other);
    let path = cluster.mount().join("file");
    fs::write(&path, b"first").expect("write");
    // The other mount holds the lock on the data, also after the close. No file on it stays open here: commands
    // would wait for the stopped mount when they start.
    fs::write(other.join("file"), b"second").expect("write");
    let stopped = Stopped::begin(&cluster, holder);
    let mut command = cluster.run().command("dd");
    command.args(["if=/dev/zero", "bs=6", "count=1", "conv=notrunc,fsync", "status=none"]);
    let mut writer = command.arg(format!("of={}", path.display())).spawn().expect("dd starts");
    let chain = chain(&cluster, "mount", "", holder);
    let end = words(chain.last().expect("a chain"), "what").to_owned();
    assert!(end.contains("holds") && end.contains("stopped by a signal"), "{chain:#?}");
    drop(stopped);
    assert!(writer.wait().expect("ended").success());
    cluster.stop_and_check();
}

/// Returns the process id of a mount.
fn mount_pid(cluster: &Cluster, mount: &Path) -> u32 {
    let dump = cluster.nacre(&[
        "debug".as_ref(),
        "dump".as_ref(),
        mount.as_os_str(),
        cluster.data().as_os_str(),
        "--json".as_ref(),
    ]);
    let value: Value = serde_json::from_str(&dump.success().stdout).expect("JSON");
    value["state"]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a process id")
}

#[test]
fn a_wait_for_a_file_lock_names_the_program_that_holds_it() {
    let Some(mut cluster) = start("dbgflock", 1) else { return };
    let other = cluster.add_mount();
    let path = cluster.mount().join("file");
    fs::write(&path, b"").expect("write");
    let mut command = cluster.run().command("flock");
    let mut holder = command.arg("-F").arg(&path).args(["sleep", "1000"]).spawn().expect("flock starts");
    let second = other.join("file");
    let is_held = || {
        let outcome =
            nacre_testkit::program::run("flock", ["-n".as_ref(), second.as_os_str(), "true".as_ref()]);
        (outcome.code() != 0).then_some(())
    };
    wait::until(LIMIT, "the lock is held", is_held);
    let mut waiter = cluster.run().command("flock").arg(&second).arg("true").spawn().expect("flock starts");
    let found = wait::until(LIMIT, "the holder is named", || {
        waits(&cluster, "100ms").into_iter().find(|request| {
            let end = request["chain"].as_array().and_then(|chain| chain.last().cloned()).unwrap_or_default();
            words(&end, "what").contains(&format!("its program {} holds the file lock (sleep)", holder.id()))
        })
    });
    assert!(words(&found["chain"][0], "process").starts_with("mount"), "{found:#?}");
    holder.kill().and_then(|()| holder.wait()).expect("ended");
    assert!(waiter.wait().expect("ended").success());
    cluster.stop_and_check();
}

#[test]
fn slow_operations_say_where_their_time_went_and_events_are_kept_and_saved() {
    let Some(mut cluster) = start("dbgslow", 1) else { return };
    let data = cluster.data().to_str().expect("a name in UTF-8").to_owned();
    let mount = cluster.mount().to_owned();
    cluster.lctl(&["set_param", "-n", "slow_operation_ms=100"]).success();
    let ost = cluster.pid("ost0000");
    let path = mount.join("file");
    cluster.lfs(&["setstripe".as_ref(), "-i".as_ref(), "0".as_ref(), path.as_os_str()]).success();
    std::thread::scope(|scope| {
        let stopped = Stopped::begin(&cluster, ost);
        let written = scope.spawn(|| {
            let mut file = OpenOptions::new().write(true).open(&path)?;
            file.write_all(b"data").and_then(|()| file.sync_all())
        });
        let pid = u64::from(ost);
        wait::until(LIMIT, "a request waits for the OST", || {
            let all = waits(&cluster, "200ms");
            let ends = |request: &Value| {
                request["chain"]
                    .as_array()
                    .is_some_and(|chain| chain.last().is_some_and(|end| end["pid"].as_u64() == Some(pid)))
            };
            all.iter().any(ends).then_some(())
        });
        drop(stopped);
        written.join().expect("no panic").expect("written");
    });
    let slow = cluster.nacre(&["debug", "slow", &data, "--json"]).success().stdout;
    let rows: Value = serde_json::from_str(&slow).expect("JSON");
    let is_it = |row: &&Value| {
        row["process"].as_str().is_some_and(|name| name.starts_with("mount"))
            && row["slow"]["operation"]["stages"].as_array().is_some_and(|stages| !stages.is_empty())
    };
    let row = rows.as_array().expect("a list").iter().find(is_it);
    let row = row.unwrap_or_else(|| panic!("no slow operation of the mount: {slow}"));
    assert!(row["slow"]["operation"]["age_ms"].as_u64().is_some_and(|ms| ms >= 100), "{row}");

    let events = cluster.nacre(&["debug", "events", "mdt0000", &data]).success().stdout;
    assert!(events.contains("MDT0000: "), "{events}");
    let saved = cluster.nacre(&["debug", "events", "mdt0000", &data, "--save"]).success().stdout;
    let saved = Path::new(saved.trim()).to_owned();
    assert_eq!(fs::metadata(&saved).expect("saved").permissions().mode() & 0o777, 0o600);
    assert!(fs::read_to_string(&saved).expect("text").contains("threads:"));
    let dump = cluster.nacre(&["debug", "dump", "mdt0000", &data]).success().stdout;
    for part in ["lock server MDT0000", "slow_operation_ms=100", "thread ", "client "] {
        assert!(dump.contains(part), "{part}: {dump}");
    }
    assert!(!dump.contains("PRIVATE"), "{dump}");
    cluster.nacre(&["debug", "events", "mdt0000", &data, "--clear"]).success();
    assert!(
        cluster
            .nacre(&["debug", "dump", "nobody", &data])
            .fails_with(1)
            .stderr
            .contains("there is no process 'nobody'")
    );
    let socket = data.clone() + "/run/mdt0000.debug.sock";
    assert_eq!(fs::metadata(socket).expect("a socket").mode() & 0o777, 0o600);
    cluster.stop_and_check();
}

#[test]
fn a_program_for_use_has_no_fault_points() {
    let Some(mut cluster) = start("dbgfault", 1) else { return };
    let program = fs::read(nacre_testkit::binary::nacre()).expect("the program");
    let has = |text: &str| program.windows(text.len()).any(|part| part == text.as_bytes());
    assert!(has("slow_operation_ms") && !has("mds_reint_net_rep") && !has("ldlm_bl_callback_net"));
    let refused = cluster.lctl(&["set_param", "fail_loc=0x80000107"]);
    assert!(refused.code() != 0 && refused.stderr.contains("built without fault points"), "{refused:?}");
    assert!(cluster.nacre(&["debug", "faults"]).fails_with(1).stderr.contains("built without fault points"));
    cluster.stop_and_check();
}
