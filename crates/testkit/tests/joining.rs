//! Targets that join a file system in use.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nacre_testkit::cluster::Options;
use nacre_testkit::text;
use nacre_testkit::{Cluster, Shape, mounts, on_each_shape_with, program, wait};

fn lfs(cluster: &Cluster, arguments: &[&str]) -> String {
    cluster.lfs(arguments).success().stdout.trim().to_owned()
}

fn shared() -> Options {
    Options { mdts: 1, osts: 2, listen: true, ..Options::default() }
}

/// Returns the number of MDTs that a mount knows.
fn mdts(cluster: &Cluster, mount: &Path) -> usize {
    lfs(cluster, &["mdts", text(mount)]).lines().filter(|line| line.contains("-MDT")).count()
}

fn await_mdts(cluster: &Cluster, mount: &Path, count: usize) {
    wait::until(wait::SOON, "the mount knows all MDTs", || (mdts(cluster, mount) == count).then_some(()));
}

/// Runs one round of creates, renames and removals of files and directories.
fn use_once(dir: &Path, round: usize) -> std::io::Result<()> {
    let [made, moved] = ["made", "moved"].map(|name| dir.join(format!("{name}{round}")));
    fs::create_dir(&made)?;
    fs::write(made.join("file"), round.to_string())?;
    fs::rename(&made, &moved)?;
    let content = fs::read_to_string(moved.join("file"))?;
    assert_eq!(content, round.to_string());
    if round.is_multiple_of(2) {
        fs::remove_dir_all(&moved)?;
    }
    Ok(())
}

/// Runs `work` while every directory is in use; verifies that no operation fails and that the files to keep
/// are there.
fn while_used(dirs: &[PathBuf], work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    let rounds: Vec<AtomicUsize> = dirs.iter().map(|_| AtomicUsize::new(0)).collect();
    std::thread::scope(|scope| {
        for (dir, rounds) in dirs.iter().zip(&rounds) {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let round = rounds.fetch_add(1, Ordering::Relaxed);
                    use_once(dir, round).unwrap_or_else(|error| panic!("round {round}: {error}"));
                }
            });
        }
        let begun = || rounds.iter().all(|rounds| rounds.load(Ordering::Relaxed) > 3).then_some(());
        // Caught, so that the threads end if `work` panics.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait::until(wait::SOON, "all directories are used", begun);
            work();
        }));
        let seen: Vec<usize> = rounds.iter().map(|rounds| rounds.load(Ordering::Relaxed)).collect();
        let goes_on =
            || rounds.iter().zip(&seen).all(|(rounds, seen)| rounds.load(Ordering::Relaxed) > seen + 3);
        let went_on = wait::within(wait::SOON, || goes_on().then_some(()));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
        assert!(went_on.is_some(), "the directories are used after it, too");
    });
    for (dir, rounds) in dirs.iter().zip(rounds) {
        let expected = rounds.into_inner() / 2;
        assert_eq!(fs::read_dir(dir).expect("listed").count(), expected, "{}", dir.display());
    }
}

/// Uses a new MDT at once, through two mounts, either of which may not know it yet.
fn use_new_mdt(cluster: &Cluster, [first, second]: [&Path; 2], mdt: usize) {
    let name = format!("on{mdt}");
    let there = first.join(&name);
    cluster.lfs(&["mkdir", "-i", &mdt.to_string(), text(&there)]).success();
    assert_eq!(lfs(cluster, &["getdirstripe", "-i", text(&there)]), mdt.to_string());
    fs::write(there.join("file"), b"data").expect("written");
    assert_eq!(fs::read(second.join(&name).join("file")).expect("read"), b"data");
    fs::create_dir(second.join(&name).join("sub")).expect("made");
    // Operations over old and new MDTs: renames, links, directories striped over all.
    let old = first.join(format!("old{mdt}"));
    cluster.lfs(&["mkdir", "-i", "0", text(&old)]).success();
    fs::rename(there.join("file"), old.join("file")).expect("moved");
    fs::hard_link(old.join("file"), there.join("link")).expect("linked");
    fs::rename(old.join("file"), there.join("sub/file")).expect("moved back");
    fs::rename(&old, there.join("old")).expect("a directory moved");
    assert_eq!(fs::read(second.join(&name).join("sub/file")).expect("read"), b"data");
    await_mdts(cluster, first, mdt + 1);
    await_mdts(cluster, second, mdt + 1);
    let spread = second.join(format!("spread{mdt}"));
    let count = (mdt + 1).to_string();
    cluster.lfs(&["mkdir", "-c", &count, text(&spread)]).success();
    assert_eq!(lfs(cluster, &["getdirstripe", "-c", text(&spread)]), count);
    for number in 0..40 {
        fs::write(spread.join(format!("f{number}")), b"x").expect("written");
    }
    assert_eq!(fs::read_dir(first.join(format!("spread{mdt}"))).expect("listed").count(), 40);
    // The root's default places directories round-robin.
    let mut number = 0;
    wait::until(wait::SOON, "a directory is placed there", || {
        number += 1;
        let path = second.join(format!("turn{mdt}-{number}"));
        fs::create_dir(&path).expect("made");
        (lfs(cluster, &["getdirstripe", "-i", text(&path)]) == mdt.to_string()).then_some(())
    });
}

#[test]
fn mdts_join_while_two_mounts_make_files_and_are_used_at_once() {
    on_each_shape_with("joia", &shared(), |cluster, fsname| {
        let (first, second) = (cluster.mount().to_owned(), cluster.add_mount());
        let dirs = [cluster.directory("first"), second.join("second")];
        fs::create_dir(&dirs[1]).expect("made");
        while_used(&dirs, || {
            for mdt in 1..3 {
                let said = cluster.add_target("mdt", &[]).success().stdout;
                assert_eq!(said, format!("MDT000{mdt} has joined file system '{fsname}'\n"));
                use_new_mdt(cluster, [&first, &second], mdt);
            }
        });
        let shown = lfs(cluster, &["df", text(&second)]);
        assert!(shown.contains(&format!("{fsname}-MDT0002_UUID")), "{shown}");
        let devices = cluster.lctl(&["dl"]).success().stdout;
        assert!(devices.contains(&format!(" mdt {fsname}-MDT0002 ")), "{devices}");
        assert!(devices.contains(&format!(" mdc {fsname}-MDT0002-mdc-")), "{devices}");
        assert!(devices.contains(&format!(" lmv {fsname}-clilmv ")), "{devices}");
        let devices = cluster.lctl(&["dl", "--json"]).success().stdout;
        assert!(devices.contains(&format!(r#""name": "{fsname}-MDT0002""#)), "{devices}");
        for parameter in [
            format!("mdt.{fsname}-MDT0002.uuid"),
            format!("mdc.{fsname}-MDT0002-mdc-*.state"),
            format!("osp.{fsname}-OST0001-osc-MDT0002.active"),
        ] {
            cluster.lctl(&["get_param", &parameter]).success();
        }
        // They survive a restart, and the same command starts all targets.
        cluster.stop();
        cluster.start_all();
        assert_eq!(mdts(cluster, &first), 3);
        assert_eq!(fs::read(first.join("on2/sub/file")).expect("read"), b"data");
        assert_eq!(fs::read_dir(first.join("spread2")).expect("listed").count(), 40);
        assert_eq!(fs::read(first.join("on1/sub/file")).expect("read"), b"data");
    });
}

#[test]
fn an_ost_joins_and_new_files_use_it() {
    on_each_shape_with("joib", &shared(), |cluster, fsname| {
        let (first, second) = (cluster.mount().to_owned(), cluster.add_mount());
        let dirs = [cluster.directory("first")];
        // Persistent settings apply to targets that are added later, at the server and in every mount.
        for setting in ["obdfilter.*.job_cleanup_interval=37", "osc.*.max_rpcs_in_flight=9"] {
            cluster.lctl(&["--fs", text(&first), "set_param", "-P", setting]).success();
        }
        while_used(&dirs, || {
            let said = cluster.add_target("ost", &[]).success().stdout;
            assert_eq!(said, format!("OST0002 has joined file system '{fsname}'\n"));
        });
        let values = |name: &str| -> Vec<String> {
            let shown = cluster.lctl(&["get_param", "-n", name]).success().stdout;
            shown.lines().map(str::to_owned).collect()
        };
        wait::until(wait::SOON, "it has the parameters", || {
            let server = values(&format!("obdfilter.{fsname}-OST0002.job_cleanup_interval"));
            let mounts = values(&format!("osc.{fsname}-OST0002-*.max_rpcs_in_flight"));
            (server == ["37"] && !mounts.is_empty() && mounts.iter().all(|value| value == "9")).then_some(())
        });
        let path = first.join("wide");
        wait::until(wait::SOON, "the MDT gives objects on it", || {
            let _ = fs::remove_file(&path);
            cluster.lfs(&["setstripe", "-c", "3", text(&path)]).success();
            (lfs(cluster, &["getstripe", "-c", text(&path)]) == "3").then_some(())
        });
        let data: Vec<u8> = (0..9_000_000_u32).map(|byte| byte as u8).collect();
        fs::write(&path, &data).expect("written");
        assert!(fs::read(second.join("wide")).expect("read") == data);
        cluster.stop();
        cluster.start_all();
        assert!(fs::read(&path).expect("read") == data);
    });
}

/// Returns the content of a file, or nothing if it does not exist.
fn content(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Condition that holds from some step of adding MDT0001 on.
type Moment = fn(&Cluster) -> bool;

/// Steps of adding a target, in order.
const MOMENTS: [(&str, Moment); 6] = [
    ("it is named", |cluster| cluster.data().join("adding").exists()),
    ("its store is begun", |cluster| cluster.data().join("mdt0001/meta").exists()),
    ("it is formatted", |cluster| cluster.data().join("mdt0001/joining").exists()),
    ("it is listed", |cluster| content(&cluster.data().join("targets")).contains("MDT0001")),
    ("it tells its address", |cluster| !content(&cluster.data().join("mdt0001/joining")).is_empty()),
    ("it is registered", |cluster| content(&cluster.data().join("mgs/config")).contains("MDT0001")),
];

fn begin_to_add(cluster: &Cluster) -> Child {
    let mut command = cluster.command_to_add("mdt");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("it starts")
}

/// Kills the process that adds the target.
fn kill_adding(cluster: &Cluster, mut adding: Child) {
    if cluster.shape() == Shape::Embedded {
        cluster.kill("node");
    } else {
        adding.kill().expect("our child");
    }
    wait::until(wait::SOON, "the command has ended", || adding.try_wait().expect("our child"));
    // It may be about to exit.
    let server = |cluster: &Cluster| cluster.processes().into_iter().find(|(role, _)| role == "mdt0001");
    if let Some((_, pid)) = server(cluster) {
        let pid = rustix::process::Pid::from_raw(pid.cast_signed()).expect("a process");
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        wait::until(wait::SOON, "the server is gone", || server(cluster).is_none().then_some(()));
    }
}

/// Kills the process that adds an MDT at one of the steps.
fn kill_at(cluster: &mut Cluster, (step, moment): (&str, Moment)) {
    let mount = cluster.mount().to_owned();
    fs::write(mount.join("file"), b"data").expect("written");
    let mut adding = begin_to_add(cluster);
    wait::until(wait::SOON, step, || {
        (moment(cluster) || adding.try_wait().expect("our child").is_some()).then_some(())
    });
    kill_adding(cluster, adding);
    // The superblock's version says that the list of targets is valid.
    let superblock = fs::read(cluster.data().join("superblock")).expect("there");
    let is_listed = superblock[8] == 2 && content(&cluster.data().join("targets")).contains("MDT0001");
    cluster.start_all();
    assert_eq!(fs::read(mount.join("file")).expect("read"), b"data", "{step}");
    await_mdts(cluster, &mount, if is_listed { 2 } else { 1 });
    // A started addition is completed, and no target is added twice.
    let again = cluster.add_target("mdt", &["--index", "1"]);
    assert_eq!(again.code(), i32::from(is_listed), "{step}: {again}");
    await_mdts(cluster, &mount, 2);
    let there = mount.join("there");
    cluster.lfs(&["mkdir", "-i", "1", text(&there)]).success();
    fs::rename(mount.join("file"), there.join("file")).expect("moved");
    assert!(!cluster.data().join("adding").exists() && !cluster.data().join("mdt0001/joining").exists());
}

/// Defines a test for each step, so that they run in parallel.
macro_rules! killed_at {
    ($($name:ident = $step:literal),* $(,)?) => {
        $(#[test]
        fn $name() {
            let options = Options { osts: 1, ..shared() };
            on_each_shape_with(concat!("jok", $step), &options, |cluster, _| kill_at(cluster, MOMENTS[$step]));
        })*
    };
}

killed_at! {
    a_kill_when_the_target_is_named_leaves_the_old_file_system_or_the_new_one = 0,
    a_kill_when_its_store_is_begun_leaves_the_old_file_system_or_the_new_one = 1,
    a_kill_when_it_is_formatted_leaves_the_old_file_system_or_the_new_one = 2,
    a_kill_when_it_is_listed_leaves_the_old_file_system_or_the_new_one = 3,
    a_kill_when_it_tells_its_address_leaves_the_new_file_system = 4,
    a_kill_when_it_is_registered_leaves_the_new_file_system = 5,
}

#[test]
fn a_target_that_cannot_be_added_is_refused_in_a_sentence_and_nothing_changes() {
    on_each_shape_with("joic", &shared(), |cluster, fsname| {
        let refused = |options: &[&str], sentence: &str| {
            let said = cluster.add_target("mdt", options).fails_with(1).stderr;
            assert!(said.contains(sentence) && said.lines().count() == 1, "{said}");
        };
        refused(&["--index", "0"], "MDT0000 is there already: leave --index out to add MDT0001");
        refused(&["--index", "2"], "MDT0002 cannot be added before MDT0001");
        refused(&["--fsname", "other"], &format!("belongs to file system '{fsname}', not to 'other'"));
        let foreign = cluster.data().join("mdt0001");
        fs::create_dir(&foreign).expect("made");
        fs::write(foreign.join("thesis"), b"text").expect("written");
        refused(&[], "exists and is no target of this file system");
        assert_eq!(fs::read(foreign.join("thesis")).expect("still there"), b"text");
        fs::remove_dir_all(&foreign).expect("removed");
        // Two at the same time: one of them adds it.
        let outcomes = std::thread::scope(|scope| {
            let commands = [cluster.command_to_add("mdt"), cluster.command_to_add("mdt")];
            let add = |mut command: Command| {
                command.args(["--index", "1"]);
                scope.spawn(|| program::run_command(command, program::LIMIT))
            };
            commands.map(add).map(|thread| thread.join().expect("it ends"))
        });
        let failed: Vec<_> = outcomes.into_iter().filter(|outcome| outcome.code() != 0).collect();
        let [failed] = &failed[..] else { panic!("one of two fails: {failed:?}") };
        let said = &failed.stderr;
        assert!(
            said.contains("is there already")
                || said.contains("exists and is no target")
                || said.contains("another target is being added"),
            "{said}"
        );
        await_mdts(cluster, cluster.mount(), 2);
    });
}

#[test]
fn a_target_added_while_nothing_runs_joins_with_the_next_start() {
    on_each_shape_with("joid", &shared(), |cluster, fsname| {
        fs::write(cluster.mount().join("file"), b"data").expect("written");
        cluster.stop();
        let add = |kind: &str| {
            let words = ["target".as_ref(), "add".as_ref(), cluster.data().as_os_str(), kind.as_ref()];
            cluster.nacre(&words).success().stdout
        };
        let said = add("mdt");
        assert_eq!(
            said,
            format!("MDT0001 was added to file system '{fsname}': it joins with the next 'nacre up'\n")
        );
        add("ost");
        cluster.check();
        cluster.start_all();
        let mount = cluster.mount().to_owned();
        assert_eq!(mdts(cluster, &mount), 2);
        cluster.lfs(&["mkdir", "-i", "1", text(&mount.join("there"))]).success();
        fs::rename(mount.join("file"), mount.join("there/file")).expect("moved");
        assert!(lfs(cluster, &["osts", text(&mount)]).contains("OST0002"));
    });
}

/// A target in another directory; stopped when dropped.
struct Outlying<'a> {
    cluster: &'a Cluster,
    dir: PathBuf,
}

impl Outlying<'_> {
    fn words<'a>(&'a self, words: &[&'a str]) -> Vec<&'a str> {
        let [command, dir, rest @ ..] = words else { return Vec::new() };
        debug_assert_eq!(*dir, "DIR");
        command.split(' ').chain([text(&self.dir)]).chain(rest.iter().copied()).collect()
    }
}

#[test]
fn an_mdt_in_a_directory_of_its_own_registers_and_comes_back_where_it_was() {
    on_each_shape_with("joie", &shared(), |cluster, fsname| {
        let (first, second) = (cluster.mount().to_owned(), cluster.add_mount());
        let source = cluster.source();
        let mgs = source.split_once(":/").expect("a source").0;
        let listen = format!("127.0.0.1:{}@tcp", cluster.spare_port());
        let other = Outlying { cluster, dir: cluster.run().directory().join("elsewhere") };
        let run = |words: &[&str]| other.cluster.nacre(&other.words(words));
        let add = |fsname: &str, listen: &str| {
            run(&["target add", "DIR", "mdt", "--mgs", mgs, "--fsname", fsname, "--listen", listen])
        };
        let said = add("wrong", &listen).fails_with(1).stderr;
        // The client has no key for that name, so the server does not reveal the name of its file system.
        assert!(
            said.contains("file system 'wrong'") && said.contains("serve no peer without a key"),
            "{said}"
        );
        let said = add(fsname, mgs).fails_with(1).stderr;
        assert!(said.contains("is in use"), "{said}");
        assert!(!other.dir.exists(), "nothing is made for what is refused");
        fs::create_dir(&other.dir).expect("made");
        fs::write(other.dir.join("thesis"), b"text").expect("written");
        let said = add(fsname, &listen).fails_with(1).stderr;
        assert!(said.contains("is not empty"), "{said}");
        fs::remove_file(other.dir.join("thesis")).expect("removed");
        let dirs = [cluster.directory("used")];
        while_used(&dirs, || {
            let said = add(fsname, &listen).success().stdout;
            assert_eq!(said, format!("MDT0001 has joined file system '{fsname}'\n"));
            use_new_mdt(cluster, [&first, &second], 1);
        });
        // Another MDT in the directory of the file system, in addition to the remote one.
        cluster.add_target("mdt", &[]).success();
        use_new_mdt(cluster, [&first, &second], 2);
        // An OST in the directory of the remote MDT.
        let listen = format!("127.0.0.1:{}@tcp", cluster.spare_port());
        let said = run(&["target add", "DIR", "ost", "--mgs", mgs, "--listen", &listen]).success().stdout;
        assert_eq!(said, format!("OST0002 has joined file system '{fsname}'\n"));
        // Operations that need the target wait while it is down.
        run(&["down", "DIR"]).success();
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| fs::read(first.join("on1/sub/file")));
            run(&["target start", "DIR"]).success();
            let read = wait::within(wait::SOON, || reading.is_finished().then_some(()));
            assert!(read.is_some(), "it goes on");
            assert_eq!(reading.join().expect("it ends").expect("read"), b"data");
        });
        let status = run(&["status", "DIR"]).success().stdout;
        assert!(status.contains("MDT0001"), "{status}");
        // The file keeps the objects that the first MDT allocated.
        let moved = first.join("moved");
        cluster.lfs(&["setstripe", "-c", "1", "-i", "0", text(&moved)]).success();
        fs::write(&moved, vec![7; 3 << 20]).expect("written");
        cluster.lfs(&["migrate", "-m", "1", text(&moved)]).success();
        cluster.nacre(&["umount", text(&second)]).success();
        assert!(mounts::at(&second).is_none());
        cluster.nacre(&["down", text(cluster.data())]).success();
        run(&["down", "DIR"]).success();
        run(&["check", "DIR"]).success();
        let checked = cluster.nacre(&["check", "--repair", text(cluster.data())]).success().stdout;
        assert!(checked.contains("OST0000  1 objects") && checked.contains("no damage"), "{checked}");
        cluster.forget_mounts();
    });
}

#[test]
fn an_mdt_that_takes_no_new_directories_is_shown_and_left_out() {
    let options = Options { mdts: 3, ..shared() };
    on_each_shape_with("joif", &options, |cluster, fsname| {
        let mount = cluster.mount().to_owned();
        let set = |text: &str| drop(cluster.lctl(&["set_param", text]).success());
        set(&format!("lmv.{fsname}-clilmv-*.qos_maxage=0"));
        let mdt_of = |path: &Path| lfs(cluster, &["getdirstripe", "-i", text(path)]);
        let make = |name: &str| -> Vec<String> {
            let make = |number| {
                let path = mount.join(format!("{name}{number}"));
                fs::create_dir(&path).expect("made");
                mdt_of(&path)
            };
            (0..9).map(make).collect()
        };
        assert!(make("before").contains(&"1".to_owned()));
        set(&format!("mdt.{fsname}-MDT0001.no_create=1"));
        let shown = lfs(cluster, &["df", text(&mount)]);
        let row = shown.lines().find(|line| line.contains("-MDT0001_UUID")).expect("it is there");
        assert!(row.trim_end().ends_with("[MDT:1] N"), "{row}");
        assert!(!make("without").contains(&"1".to_owned()));
        let spread = mount.join("spread");
        cluster.lfs(&["mkdir", "-c", "-1", text(&spread)]).success();
        assert_eq!(lfs(cluster, &["getdirstripe", "-c", text(&spread)]), "2", "the others");
        for number in 0..6 {
            let path = mount.join(format!("any{number}"));
            cluster.lfs(&["mkdir", "-i", "-1", text(&path)]).success();
            assert_ne!(mdt_of(&path), "1");
        }
        // An explicit request for the MDT is obeyed.
        let asked = mount.join("asked");
        cluster.lfs(&["mkdir", "-i", "1", text(&asked)]).success();
        fs::write(asked.join("file"), b"data").expect("written");
        assert_eq!(mdt_of(&asked), "1");
        set(&format!("mdt.{fsname}-MDT0001.no_create=0"));
        assert!(make("after").contains(&"1".to_owned()));
    });
}
