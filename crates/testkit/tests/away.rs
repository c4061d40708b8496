//! An unreachable metadata server: queries about the file system are answered, operations on other servers
//! continue, and waits for the server can be interrupted and end when it is back.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nacre_testkit::cluster::Options;
use nacre_testkit::program::Outcome;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, Shape, Stopped, errno, program, text, wait};
use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;

/// Time limit for operations that must not wait. On an idle machine they take 1 to 4 s with a stopped server.
const SOON: Duration = Duration::from_secs(20);
/// Time limit for a restarted server to admit clients.
const LIMIT: Duration = Duration::from_secs(90);
/// Time for a request to reach the point where it waits: the condition is the passing of time itself.
const A_WHILE: Duration = Duration::from_millis(1500);

/// How a server becomes unreachable.
#[derive(Clone, Copy, Debug)]
enum Away {
    Killed,
    Stopped,
}

const WAYS: [(&str, u32, Away); 4] = [
    ("mdt0000", 0, Away::Killed),
    ("mdt0000", 0, Away::Stopped),
    ("mdt0001", 1, Away::Killed),
    ("mdt0001", 1, Away::Stopped),
];

fn start(shape: Shape, fsname: &str) -> Option<Cluster> {
    if !have(&["/dev/fuse", "fusermount3"]) || !have_root() {
        return None;
    }
    let options = Options { mdts: 2, osts: 2, listen: true, fsname: fsname.into(), ..Options::default() };
    Some(Cluster::start_with(shape, &options)).filter(|cluster| !cluster.is_foreign())
}

fn leave(cluster: &Cluster, role: &str, how: Away) -> Option<Stopped> {
    match how {
        Away::Killed => {
            cluster.kill(role);
            None
        }
        Away::Stopped => Some(Stopped::begin(cluster, cluster.pid(role))),
    }
}

/// Restarts or resumes it, and waits until every mount works in all of these directories.
fn come_back(cluster: &mut Cluster, stopped: Option<Stopped>, directories: &[PathBuf]) {
    drop(stopped);
    cluster.start_all();
    for directory in directories {
        let probe = directory.join("probe");
        wait::deadline(LIMIT, "everything is back", move || {
            fs::write(&probe, "probe").expect("written");
            fs::remove_file(&probe).expect("removed");
        });
    }
}

/// Creates a directory, and one on each of the two MDTs in it.
fn two(cluster: &Cluster, name: &str) -> [PathBuf; 2] {
    let top = cluster.directory(name);
    [0, 1].map(|mdt| {
        let path = top.join(format!("d{mdt}"));
        cluster.lfs(&["mkdir", "-i", &mdt.to_string(), text(&path)]).success();
        path
    })
}

/// Returns the same path through another mount.
fn through(other: &Path, cluster: &Cluster, path: &Path) -> PathBuf {
    other.join(path.strip_prefix(cluster.mount()).expect("below the mount"))
}

const ALL: [&str; 4] = ["MDT0000", "MDT0001", "OST0000", "OST0001"];

/// Checks that each target is listed, with figures or as unreachable.
fn check_figures(found: &Outcome, fsname: &str, away: &[&str]) {
    assert_eq!(found.code(), 0, "{found}");
    for target in ALL {
        let gone = found.stdout.lines().any(|line| line == format!("{target:<20}: inactive device"));
        let there = found.stdout.lines().any(|line| line.starts_with(&format!("{fsname}-{target}_UUID ")));
        assert_eq!((gone, there), (away.contains(&target), !away.contains(&target)), "{target}: {found}");
    }
}

/// Checks that each target is reported as active or as not responding.
fn check_states(found: &Outcome, fsname: &str, away: &[&str]) {
    assert_ne!(found.code(), 0, "{found}");
    for target in ALL {
        let name = format!("{fsname}-{target}-");
        let says =
            |text: &str, word: &str| text.lines().any(|line| line.contains(&name) && line.contains(word));
        let (bad, good) = (says(&found.stderr, "error: check"), says(&found.stdout, ": active."));
        assert_eq!((bad, good), (away.contains(&target), !away.contains(&target)), "{target}: {found}");
    }
}

fn contains(found: &Outcome, text: &str, count: usize) {
    assert_eq!((found.code(), found.stdout.matches(text).count()), (0, count), "{found}");
}

/// Runs all queries on a mount in parallel that must be answered while the targets `away` are unreachable.
fn ask_about(cluster: &Cluster, mount: &Path, below: &[PathBuf], away: &[&str]) {
    type Check<'a> = Box<dyn Fn(&Outcome) + Send + 'a>;
    let fsname = cluster.fsname();
    let ours = |words: &[&str]| {
        let mut command = cluster.command();
        command.args(words);
        command
    };
    let mount = text(mount);
    let plain = |program: &str| {
        let mut command = cluster.run().command(program);
        command.arg(mount);
        command
    };
    let figures = || -> Check<'_> { Box::new(|found| check_figures(found, fsname, away)) };
    let mut asked: Vec<(Command, Check<'_>)> = vec![
        (ours(&["lfs", "df", mount]), figures()),
        (ours(&["lfs", "df", "-i", mount]), figures()),
        (ours(&["lfs", "mdts", mount]), Box::new(|found| contains(found, fsname, 2))),
        (ours(&["lfs", "osts", mount]), Box::new(|found| contains(found, fsname, 2))),
        (ours(&["lfs", "check", "all", mount]), Box::new(|found| check_states(found, fsname, away))),
        (ours(&["lfs", "getname", mount]), Box::new(|found| contains(found, fsname, 1))),
        (ours(&["lfs", "path2fid", mount]), Box::new(|found| contains(found, "[0x200000007:0x1:0x0]", 1))),
        (ours(&["lctl", "dl"]), Box::new(|found| assert_eq!(found.code(), 0, "{found}"))),
        (plain("stat"), Box::new(|found| contains(found, "directory", 1))),
        (plain("df"), Box::new(|found| assert_eq!(found.code() == 0, away.len() < ALL.len(), "{found}"))),
    ];
    asked.extend(below.iter().map(|path| (ours(&["lfs", "df", text(path)]), figures())));
    std::thread::scope(|scope| {
        for (command, check) in asked {
            scope.spawn(move || {
                let began = Instant::now();
                let found = program::run_command(command, program::LIMIT);
                let took = began.elapsed();
                println!("{took:?}: {}", found.command);
                check(&found);
                // lctl queries all processes of the host, including those that other tests have stopped.
                let limit = if found.command.contains("lctl") { LIMIT } else { SOON };
                assert!(took < limit, "{} took {took:?} with {away:?} away", found.command);
            });
        }
    });
}

#[test]
fn what_is_asked_about_the_file_system_is_answered_while_an_mdt_is_away() {
    let Some(mut cluster) = start(Shape::Separate, "awaya") else { return };
    let dirs = two(&cluster, "top");
    dirs.iter().for_each(|dir| fs::create_dir(dir.join("sub")).expect("made"));
    // Permission to list it has to be requested from the MDT.
    fs::set_permissions(cluster.mount(), fs::Permissions::from_mode(0o711)).expect("changed");
    for mounts in [1, 2] {
        let other = (mounts == 2).then(|| cluster.add_mount());
        for (role, index, how) in WAYS {
            if let Some(other) = &other {
                // From here on the first mount has no valid cache of the root.
                fs::create_dir(other.join(format!("{role}{how:?}"))).expect("made");
            }
            let stopped = leave(&cluster, role, how);
            let target = role.to_uppercase();
            let first = cluster.mount().to_owned();
            for mount in [Some(&first), other.as_ref()].into_iter().flatten() {
                let below = dirs.each_ref().map(|dir| through(mount, &cluster, dir).join("sub"));
                println!("{mounts} mounts, {role} {how:?}");
                ask_about(&cluster, mount, &below, &[&target]);
            }
            assert!(index < 2);
            come_back(&mut cluster, stopped, &dirs);
        }
    }
    cluster.stop_and_check();
}

/// The servers and a mount in one process, and another mount.
#[test]
fn what_is_asked_about_the_file_system_is_answered_while_all_of_it_is_away() {
    for how in [Away::Killed, Away::Stopped] {
        let Some(mut cluster) = start(Shape::Embedded, "awayb") else { return };
        let dirs = two(&cluster, "top");
        let other = cluster.add_mount();
        fs::create_dir(cluster.mount().join("changed")).expect("made");
        let stopped = leave(&cluster, "node", how);
        ask_about(&cluster, &other, &[], &["MDT0000", "MDT0001", "OST0000", "OST0001"]);
        drop(stopped);
        cluster.start_all();
        let probe = through(&other, &cluster, &dirs[1]).join("probe");
        wait::deadline(LIMIT, "everything is back", move || fs::write(probe, "probe").expect("written"));
        cluster.stop_and_check();
    }
}

/// Returns programs that need the MDT of a directory. `other` is the directory through another mount, which
/// creates the names, so that the mount under test has nothing cached; `elsewhere` is a directory on another
/// MDT.
fn programs(other: &Path, directory: &Path, elsewhere: &Path, series: &str) -> Vec<Vec<String>> {
    let name = |what: &str| {
        fs::write(other.join(format!("{what}{series}")), "text").expect("written");
        text(&directory.join(format!("{what}{series}"))).to_owned()
    };
    let new = |path: &Path, what: &str| text(&path.join(format!("{what}{series}"))).to_owned();
    vec![
        vec!["stat".into(), name("stat")],
        vec!["cat".into(), name("cat")],
        vec!["ls".into(), text(directory).into()],
        vec!["rm".into(), "-f".into(), name("rm")],
        vec!["mv".into(), name("mv"), new(directory, "moved")],
        vec!["mv".into(), name("far"), new(elsewhere, "far")],
        vec!["mkdir".into(), new(directory, "mkdir")],
        vec!["touch".into(), new(directory, "touch")],
    ]
}

fn spawn(cluster: &Cluster, words: &[String]) -> (String, Child) {
    // The parent process may ignore these signals, and children inherit that.
    let mut command = cluster.run().command("env");
    command.arg("--default-signal=INT,TERM").args(words).stdin(Stdio::null()).stdout(Stdio::null());
    (words.join(" "), command.spawn().expect("it starts"))
}

fn wait_for(children: &mut [(String, Child)], limit: Duration) -> Vec<std::process::ExitStatus> {
    let began = Instant::now();
    let mut ends = Vec::new();
    for (words, child) in children {
        let left = limit.saturating_sub(began.elapsed());
        let end = wait::within(left, || child.try_wait().expect("our child"));
        ends.push(end.unwrap_or_else(|| panic!("{words}: not over after {limit:?}")));
    }
    ends
}

#[test]
fn what_waits_for_an_mdt_can_be_interrupted_and_goes_on_when_it_is_back() {
    use std::os::unix::process::ExitStatusExt;
    let Some(mut cluster) = start(Shape::Separate, "awayc") else { return };
    let dirs = two(&cluster, "top");
    let other = cluster.add_mount();
    for (role, index, how) in WAYS {
        let (here, there) = (&dirs[index as usize], &dirs[1 - index as usize]);
        let beyond = through(&other, &cluster, here);
        let series = |what: &str| programs(&beyond, here, there, &format!("-{role}-{how:?}-{what}"));
        let [ended, killed, patient] = ["int", "kill", "patient"].map(series);
        let stopped = leave(&cluster, role, how);
        let begin = |programs: &[Vec<String>]| -> Vec<(String, Child)> {
            programs.iter().map(|words| spawn(&cluster, words)).collect()
        };
        let all_wait = |children: &mut [(String, Child)]| {
            let early = wait::within(A_WHILE, || {
                children.iter_mut().find_map(|(words, child)| {
                    child.try_wait().expect("our child").map(|end| format!("{words}: {end}"))
                })
            });
            assert_eq!(early, None, "all wait for {role} ({how:?})");
        };
        let (mut ended, mut killed) = (begin(&ended), begin(&killed));
        all_wait(&mut ended);
        all_wait(&mut killed);
        // All at once: in the kernel changes of a directory wait for each other, and no signal ends that
        // wait.
        ended.iter().for_each(|(_, child)| cluster.signal(child.id(), Signal::INT));
        killed.iter().for_each(|(_, child)| cluster.signal(child.id(), Signal::KILL));
        for (mut children, signal) in [(ended, libc::SIGINT), (killed, libc::SIGKILL)] {
            let ends = wait_for(&mut children, SOON);
            assert!(ends.iter().all(|end| end.signal() == Some(signal)), "{ends:?}");
        }
        let limited = spawn(&cluster, &["timeout", "2", "ls", text(here)].map(String::from));
        assert_eq!(wait_for(&mut [limited], SOON)[0].code(), Some(124), "{role} {how:?}");
        let mut patient = begin(&patient);
        all_wait(&mut patient);
        drop(stopped);
        cluster.start_all();
        let ends = wait_for(&mut patient, LIMIT);
        assert!(ends.iter().all(|end| end.success()), "{role} {how:?}: {ends:?}");
        come_back(&mut cluster, None, &dirs);
        let names = nacre_testkit::names_in(here);
        let series = format!("-{role}-{how:?}-patient");
        for (name, is_there) in
            [("stat", true), ("rm", false), ("mv", false), ("moved", true), ("far", false), ("mkdir", true)]
        {
            assert_eq!(names.contains(&format!("{name}{series}")), is_there, "{name}: {names:?}");
        }
        assert!(there.join(format!("far{series}")).exists());
    }
    cluster.stop_and_check();
}

/// A user's work in the working directory, started by a line of input.
const WORK: &str = "read -r go
    test \"$(pwd -P)\" = \"$1\"
    echo data > new; test \"$(cat new)\" = data; test -z \"$(cat empty)\"
    mkdir sub; mv new sub/moved; ln sub/moved link; chmod 600 link; touch -d @5 link
    test \"$(stat -c '%h %Y' sub/moved)\" = '2 5'; test \"$(ls -A sub)\" = moved; ls -lA > /dev/null
    rm sub/moved link; rmdir sub; test \"$(ls -A)\" = empty";

/// Starts a program that works in a directory once it reads a line.
fn worker(cluster: &Cluster, directory: &Path) -> Child {
    let mut command = cluster.run().command("bash");
    command.args(["-euo", "pipefail", "-c", WORK, "bash"]).arg(directory).current_dir(directory);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("bash starts")
}

#[test]
fn what_lies_on_other_mdts_is_used_while_one_is_away() {
    let Some(mut cluster) = start(Shape::Separate, "awayd") else { return };
    let chosen = two(&cluster, "top");
    // Directories placed round-robin have no default of their own.
    let top = cluster.directory("turns");
    let mut in_turn: [Option<PathBuf>; 2] = [None, None];
    for number in 0..8 {
        let path = top.join(format!("t{number}"));
        fs::create_dir(&path).expect("made");
        let mdt = cluster.lfs(&["getdirstripe", "-i", text(&path)]).success().stdout;
        let mdt: usize = mdt.trim().parse().expect("a number");
        in_turn[mdt] = Some(path);
    }
    let in_turn = in_turn.map(|path| path.expect("each has its turn"));
    let all: Vec<PathBuf> = chosen.iter().chain(&in_turn).cloned().collect();
    all.iter().for_each(|path| fs::write(path.join("empty"), "").expect("written"));
    for (role, index, how) in WAYS {
        let there = 1 - index as usize;
        let mut used = Vec::new();
        for directory in [&chosen[there], &in_turn[there]] {
            // Its names, and those on the path to it, are cached and stay cached even if the kernel needs
            // memory.
            program::shell(directory, "stat . .. empty", [""; 0]).success();
            let path = directory.join("empty");
            let pinned = rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
            used.push((worker(&cluster, directory), path, pinned.expect("opened")));
        }
        let stopped = leave(&cluster, role, how);
        for (mut worker, path, _pinned) in used {
            let began = Instant::now();
            worker.stdin.take().expect("a pipe").write_all(b"go\n").expect("it listens");
            let name = text(&path).to_owned();
            let ends = wait_for(&mut [(name, worker)], SOON * 3);
            println!("{role} {how:?}: {:?}", began.elapsed());
            assert!(ends[0].success(), "{role} {how:?}: {}", path.display());
            let read = move || fs::read(path).expect("read");
            assert!(wait::deadline(SOON, "reading by the whole path", read).is_empty());
        }
        come_back(&mut cluster, stopped, &all);
    }
    cluster.stop_and_check();
}

/// Time within which a directory is created elsewhere: one ping that no server answers, and the create.
const ELSEWHERE: Duration = Duration::from_secs(2);

/// Returns the MDTs of a directory and its shards.
fn mdts_of(cluster: &Cluster, path: &Path) -> BTreeSet<u32> {
    let shown = cluster.lfs(&["getdirstripe", text(path)]).success().stdout;
    let shards = shown.lines().filter(|line| line.contains("[0x"));
    let shards: BTreeSet<u32> =
        shards.filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect();
    let first = || cluster.lfs(&["getdirstripe", "-i", text(path)]).success().stdout;
    if shards.is_empty() { BTreeSet::from([first().trim().parse().expect("a number")]) } else { shards }
}

#[test]
fn new_directories_are_placed_elsewhere_at_once_when_an_mdt_dies_or_stops() {
    if !have(&["/dev/fuse", "fusermount3"]) || !have_root() {
        return;
    }
    let options =
        Options { mdts: 3, osts: 1, listen: true, fsname: "awayp".to_owned(), ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    if cluster.is_foreign() {
        return;
    }
    let top = cluster.mount().join("top");
    cluster.lfs(&["mkdir", "-i", "0", text(&top)]).success();
    cluster
        .lfs(&["setdirstripe", "-D", "-c", "1", "-i", "-1", "--max-inherit-rr", "3", text(&top)])
        .success();
    let plain = |cluster: &Cluster, name: String| {
        let path = top.join(name);
        let began = Instant::now();
        fs::create_dir(&path).expect("made");
        let took = began.elapsed();
        (mdts_of(cluster, &path), took)
    };
    let used: BTreeSet<u32> =
        (0..6).flat_map(|number| plain(&cluster, format!("before{number}")).0).collect();
    assert_eq!(used, BTreeSet::from([0, 1, 2]), "each has its turn");
    for (role, index, how) in [("mdt0001", 1, Away::Killed), ("mdt0002", 2, Away::Stopped)] {
        let stopped = leave(&cluster, role, how);
        for number in 0..6 {
            let (mdts, took) = plain(&cluster, format!("{role}.{number}"));
            println!("{role} {how:?}: a directory on {mdts:?} after {took:?}");
            assert!(!mdts.contains(&index) && took < ELSEWHERE, "{role} {how:?}: {mdts:?} after {took:?}");
        }
        let path = top.join(format!("{role}.striped"));
        let began = Instant::now();
        cluster.lfs(&["mkdir", "-c", "-1", text(&path)]).success();
        let took = began.elapsed();
        let mdts = mdts_of(&cluster, &path);
        println!("{role} {how:?}: shards on {mdts:?} after {took:?}");
        assert!(mdts.len() == 2 && !mdts.contains(&index) && took < ELSEWHERE, "{mdts:?} after {took:?}");
        come_back(&mut cluster, stopped, std::slice::from_ref(&top));
        let there = top.join(format!("{role}.named"));
        cluster.lfs(&["mkdir", "-i", &index.to_string(), text(&there)]).success();
        assert_eq!(mdts_of(&cluster, &there), BTreeSet::from([index]), "it is back");
        // The mount notices that by itself, later; otherwise it would have one MDT for all while the next one is away.
        let mut tries = 0..;
        wait::until(SOON, "directories are placed on it again", || {
            let again = tries.next().map(|number| format!("{role}.again{number}")).expect("it does not end");
            plain(&cluster, again).0.contains(&index).then_some(())
        });
    }
    cluster.stop_and_check();
}

/// Longer than two such pings and the command that lets the create go on, shorter than a wait of one MDT for another.
const ANOTHER_TRY: Duration = Duration::from_secs(5);

/// Creates a directory and takes an MDT away while the MDT of the parent has stopped at `step`. Returns how long the create
/// takes from then on, and what holds the MDT.
fn create_while_it_leaves(
    cluster: &Cluster,
    path: &Path,
    step: &str,
    (role, how): (&str, Away),
) -> (Duration, Option<Stopped>) {
    let hold = |text: &str| {
        cluster.lctl(&["set_param", &format!("mdt.awayc-MDT0000.hold_request={text}")]).success()
    };
    let shown = || cluster.lctl(&["get_param", "-n", "mdt.awayc-MDT0000.hold_request"]).success().stdout;
    hold(step);
    std::thread::scope(|scope| {
        let maker = scope.spawn(|| fs::create_dir(path));
        wait::until(SOON, "the create is held", || shown().starts_with("held").then_some(()));
        let stopped = leave(cluster, role, how);
        let began = Instant::now();
        hold("none");
        maker.join().expect("no panic").expect("made");
        (began.elapsed(), stopped)
    })
}

#[test]
fn a_directory_is_created_at_once_if_its_mdt_dies_or_stops_after_it_was_chosen() {
    if !have(&["/dev/fuse", "fusermount3"]) || !have_root() {
        return;
    }
    let options =
        Options { mdts: 3, osts: 1, listen: true, fsname: "awayc".to_owned(), ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    if cluster.is_foreign() {
        return;
    }
    let (plain, striped) = (cluster.mount().join("plain"), cluster.mount().join("striped"));
    for (path, count) in [(&plain, "1"), (&striped, "3")] {
        cluster.lfs(&["mkdir", "-i", "0", text(path)]).success();
        cluster
            .lfs(&["setdirstripe", "-D", "-c", count, "-i", "-1", "--max-inherit-rr", "3", text(path)])
            .success();
    }
    for (role, index, how) in [("mdt0001", 1, Away::Killed), ("mdt0002", 2, Away::Stopped)] {
        for parent in [&plain, &striped] {
            for step in ["before Create", "locked Create"] {
                let name = |what: &str| parent.join(format!("{role}.{}.{what}", step.replace(' ', "-")));
                // The MDTs have their turns: the next one is to be the one that leaves.
                let mut tries = 0..;
                for last in [index, (index + 2) % 3] {
                    wait::until(SOON, "it is the turn of the MDT", || {
                        let path = name(&tries.next()?.to_string());
                        fs::create_dir(&path).expect("made");
                        mdts_of(&cluster, &path).contains(&last).then_some(())
                    });
                }
                let path = name("last");
                let (took, stopped) = create_while_it_leaves(&cluster, &path, step, (role, how));
                let elsewhere = step.starts_with("before").then(|| mdts_of(&cluster, &path));
                println!("{role} {how:?}, {step}: {path:?} after {took:?}, on {elsewhere:?}");
                assert!(took < ANOTHER_TRY, "{role} {how:?}, {step}: {path:?} after {took:?}");
                assert!(elsewhere.is_none_or(|mdts| !mdts.contains(&index)), "{role} {how:?}: {path:?}");
                come_back(&mut cluster, stopped, std::slice::from_ref(parent));
                fs::write(path.join("file"), "text").expect("written");
            }
        }
    }
    cluster.stop_and_check();
}

/// The reply to an open and the release of the file may pass each other if no process waits for either.
#[test]
fn opens_that_were_interrupted_do_not_stay_open() {
    let Some(mut cluster) = start(Shape::Separate, "awaye") else { return };
    let dirs = two(&cluster, "top");
    let other = cluster.add_mount();
    let is_open = |cluster: &Cluster, fid: &str| {
        let text = cluster.lctl(&["get_param", "-n", "mdt.awaye-*.exports.*.open_files"]).success().stdout;
        text.contains(fid)
    };
    for (role, index, how) in WAYS {
        let (here, beyond) = (&dirs[index as usize], through(&other, &cluster, &dirs[index as usize]));
        let path = here.join(format!("{role}{how:?}"));
        fs::write(through(&other, &cluster, &path), "text").expect("written");
        let fid = cluster.lfs(&["path2fid", text(&path)]).success().stdout.trim().to_owned();
        wait::until(wait::SOON, "it is closed", || (!is_open(&cluster, &fid)).then_some(()));
        let stopped = leave(&cluster, role, how);
        // The name is cached, so that the open itself waits.
        let words = ["cat", text(&path)].map(String::from);
        let mut children: Vec<_> = (0..16).map(|_| spawn(&cluster, &words)).collect();
        let early = wait::within(A_WHILE, || {
            children.iter_mut().find_map(|(_, child)| child.try_wait().expect("ours"))
        });
        assert_eq!(early, None, "they wait for {role} ({how:?})");
        children.iter().for_each(|(_, child)| cluster.signal(child.id(), Signal::KILL));
        wait_for(&mut children, SOON);
        come_back(&mut cluster, stopped, &dirs);
        wait::until(wait::SOON, "nobody has it open", || (!is_open(&cluster, &fid)).then_some(()));
        fs::remove_file(beyond.join(path.file_name().expect("a name"))).expect("removed");
    }
    cluster.stop_and_check();
}

/// Copies a directory with the holes of its files.
fn copy(from: &Path, to: &Path) {
    let arguments = ["-a", "--sparse=always", text(from), text(to)];
    program::run("cp", arguments).success();
}

/// Creates a file of four stripes of 64 KiB, on OST 1, OST 0, OST 1 and OST 0.
fn striped(cluster: &Cluster, path: &Path) -> Vec<u8> {
    cluster.lfs(&["setstripe", "-c", "2", "-i", "1", "-S", "64K", text(path)]).success();
    let bytes: Vec<u8> = (0..4 << 16).map(|at| (at / 99 % 251) as u8).collect();
    fs::write(path, &bytes).expect("written");
    bytes
}

/// Checks both mounts, right after the OST is back.
fn what_is_lost_is_an_error_and_the_rest_goes_on(
    cluster: &Cluster,
    dirs: &[PathBuf],
    other: &Path,
    bytes: &[u8],
) {
    let below = |dir: &PathBuf| other.join(dir.file_name().expect("a name"));
    for dir in dirs {
        let lost = [dir.join("new"), below(dir).join("theirs"), dir.join("moved"), below(dir).join("new")];
        for path in &lost {
            assert_eq!(errno(fs::read(path)), libc::EIO, "{}", path.display());
            let file = fs::OpenOptions::new().read(true).write(true).open(path).expect("opens");
            let mut half = [0; 100];
            file.read_exact_at(&mut half, 1 << 16).expect("the other OST has its part");
            assert_eq!(half, bytes[1 << 16..][..100]);
            let written = file.write_all_at(b"x", 10).and_then(|()| file.sync_all());
            assert_eq!(errno(written), libc::EIO, "it would stand among zeros");
            drop(file);
            cluster.lfs(&["migrate", "-c", "1", "-i", "0", text(path)]).fails_with(libc::EIO);
            assert_eq!(errno(fs::read(path)), libc::EIO, "a copy has no zeros in place of what is lost");
        }
        assert_eq!(fs::read(dir.join("old")).expect("read"), bytes);
        let sparse = fs::read(below(dir).join("sparse")).expect("read");
        assert!(sparse[..3 << 16].iter().all(|byte| *byte == 0) && sparse.ends_with(b"data"));
        // New objects do not reuse ids.
        for number in 0..40 {
            let path = dir.join(format!("after{number}"));
            fs::write(&path, number.to_string()).expect("written");
        }
        let path = dir.join("moved");
        fs::write(&path, b"anew").expect("written");
        assert_eq!(fs::read(below(dir).join("moved")).expect("read"), b"anew");
    }
}

/// OST 1 is restored from a copy of its directory that is older than some files on both MDTs, while the MDTs
/// keep running.
fn an_ost_is_restored_from_an_older_copy(name: &str, backend: &str) {
    let backend = backend.to_owned();
    let options = Options {
        mdts: 2,
        osts: 2,
        ost_backend: vec![backend],
        fsname: name.to_owned(),
        ..Options::default()
    };
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    let dirs: Vec<PathBuf> = (0..2).map(|mdt| cluster.mount().join(format!("m{mdt}"))).collect();
    for (mdt, dir) in dirs.iter().enumerate() {
        cluster.lfs(&["mkdir", "-i", &mdt.to_string(), text(dir)]).success();
        striped(&cluster, &dir.join("old"));
    }
    cluster.stop();
    let (ost, kept) = (cluster.data().join("ost0001"), cluster.run().directory().join("kept"));
    copy(&ost, &kept);
    cluster.start_all();
    let other = cluster.add_mount();
    let below = |dir: &PathBuf| other.join(dir.file_name().expect("a name"));
    let mut bytes = Vec::new();
    for dir in &dirs {
        bytes = striped(&cluster, &dir.join("new"));
        striped(&cluster, &below(dir).join("theirs"));
        striped(&cluster, &dir.join("moved"));
        cluster.lfs(&["migrate", "-c", "2", "-i", "1", "-S", "64K", text(&dir.join("moved"))]).success();
        // Its first object was never written.
        cluster.lfs(&["setstripe", "-c", "2", "-i", "1", "-S", "64K", text(&dir.join("sparse"))]).success();
        let sparse = fs::File::create(dir.join("sparse")).expect("made");
        sparse.write_all_at(b"data", 3 << 16).expect("written");
    }
    cluster.kill("ost0001");
    fs::remove_dir_all(&ost).expect("removed");
    copy(&kept, &ost);
    cluster.start_all();
    what_is_lost_is_an_error_and_the_rest_goes_on(&cluster, &dirs, &other, &bytes);
    cluster.stop();
    let found = cluster.nacre(&["check", text(cluster.data())]).fails_with(1).stdout;
    for path in ["m0/new", "m0/theirs", "m1/new", "m1/theirs"] {
        let named = |line: &&str| line.contains(&format!("(/{path})")) && line.contains("on OST0001");
        assert_eq!(found.lines().filter(named).count(), 1, "{path}: {found}");
    }
    assert_eq!(found.matches("is missing").count(), 4, "{found}");
    cluster.nacre(&["check", "--repair", text(cluster.data())]).fails_with(1);
    cluster.start_all();
    for dir in &dirs {
        assert_eq!(errno(fs::read(dir.join("new"))), libc::EIO, "nobody makes zeros of it");
        fs::remove_file(dir.join("new")).expect("removed");
        fs::remove_file(dir.join("theirs")).expect("removed");
        for number in 0..40 {
            let content = fs::read_to_string(dir.join(format!("after{number}"))).expect("read");
            assert_eq!(content, number.to_string());
        }
        assert_eq!(fs::read(dir.join("old")).expect("read"), bytes);
    }
    cluster.stop_and_check();
}

#[test]
fn data_that_an_older_copy_of_an_ost_lacks_is_an_error_and_is_named_by_check() {
    if have_root() {
        an_ost_is_restored_from_an_older_copy("oldfile", "file");
    }
}

#[test]
fn data_that_an_older_copy_of_a_device_lacks_is_an_error_and_is_named_by_check() {
    if have_root() {
        an_ost_is_restored_from_an_older_copy("oldblock", "block,size=1G");
    }
}
