//! Processes killed at each step of allocating a file's objects, migrating, swapping and rebalancing:
//! afterwards the file has its old or its new content, and no object is lost or leaked.
//!
//! A step is a request at a server, either before it has any effect, or after it has succeeded and before the
//! reply. Requests are held there (`hold_request`), so each test kills at exactly its step. The decisive
//! steps always run; all steps run with `NACRE_EVERY_STEP=1`, which takes minutes and prints the outcomes.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use fastrand::Rng;
use nacre_testkit::cluster::Options;
use nacre_testkit::exerciser::fill;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::text;
use nacre_testkit::{Cluster, Shape, wait};

const MIB: usize = 1 << 20;
/// Targets whose requests are held: prefix of the parameter, and role of the process.
const TARGETS: [(&str, &str); 3] = [("mdt", "mdt0000"), ("obdfilter", "ost0000"), ("obdfilter", "ost0001")];

const ON_MDT: &[&str] = &["-E", "1M", "-L", "mdt", "-E", "-1", "-c", "1"];

/// Time to wait for the destruction of objects.
const AFTERWARDS: Duration = Duration::from_secs(5);

/// The interrupted operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    Instantiate,
    /// A new file whose data is sent with the close.
    Small,
    /// A new file that outgrows the write-back cache.
    Outgrow,
    Migrate,
    /// The data is on the MDT, before or afterwards.
    MigrateMdt,
    Swap,
    Rebalance,
}

/// The process to kill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    /// The server that holds the request.
    Server,
    /// The process of the mount.
    Mount,
    /// The program that runs the operation.
    Program,
}

fn random_bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fill(&mut Rng::with_seed(seed), &mut bytes);
    bytes
}

struct Stage {
    cluster: Cluster,
    directory: PathBuf,
    /// Content of the two files; a swap exchanges them.
    contents: [Vec<u8>; 2],
    rounds: u64,
}

impl Stage {
    fn open(fsname: &str) -> Option<Stage> {
        if !have(&["/dev/fuse"]) || !have_root() {
            return None;
        }
        let options = Options { fsname: fsname.to_owned(), osts: 2, ..Options::default() };
        let cluster = Cluster::start_with(Shape::Separate, &options);
        if cluster.is_foreign() {
            return None;
        }
        let directory = cluster.directory("d");
        let contents = [random_bytes(1, MIB + 77), random_bytes(2, 100_000)];
        let stage = Stage { cluster, directory, contents, rounds: 0 };
        for index in 0..2 {
            fs::write(stage.path(index), &stage.contents[index]).expect("write");
        }
        Some(stage)
    }

    fn path(&self, index: usize) -> PathBuf {
        self.directory.join(["a", "b"][index])
    }

    fn lfs(&self, arguments: &[&str]) {
        self.cluster.lfs(arguments).success();
    }

    fn parameter(&self, (kind, role): (&str, &str)) -> String {
        // Other file systems on the host have targets of the same names.
        format!("{kind}.{}-{}.hold_request", self.cluster.fsname(), role.to_uppercase())
    }

    fn hold(&self, target: (&str, &str), what: &str) {
        self.cluster.lctl(&["set_param", "-n", &format!("{}={what}", self.parameter(target))]).success();
    }

    fn held(&self, target: (&str, &str)) -> Option<String> {
        let found = self.cluster.lctl(&["get_param", "-n", &self.parameter(target)]).success().stdout;
        found.trim().strip_prefix("held ").map(str::to_owned)
    }

    /// Prepares the files for an operation.
    fn prepare(&mut self, work: Work) {
        self.rounds += 1;
        let a = self.path(0);
        match work {
            Work::Instantiate => {
                let file = self.directory.join("new");
                let _ = fs::remove_file(&file);
                self.lfs(&["setstripe", "-E", "64K", "-c", "1", "-E", "-1", "-c", "2", text(&file)]);
                fs::write(&file, &self.contents[1][..1000]).expect("write");
            }
            Work::Small | Work::Outgrow => drop(fs::remove_file(self.made())),
            Work::Migrate => {}
            Work::MigrateMdt => self.lfs(&[&["migrate"], ON_MDT, &[text(&a)]].concat()),
            // One of them has data on the MDT.
            Work::Swap => {
                self.lfs(&["migrate", "-c", "2", "-S", "64K", text(&a)]);
                self.lfs(&[&["migrate"], ON_MDT, &[text(&self.path(1))]].concat());
            }
            Work::Rebalance => self.lfs(&["migrate", "-i", "0", "-c", "1", text(&a)]),
        }
    }

    fn start(&self, work: Work) -> Child {
        let (a, b, new) = (self.path(0), self.path(1), self.directory.join("new"));
        let mut command = self.cluster.command();
        let stripes = if self.rounds.is_multiple_of(2) { "1" } else { "2" };
        match work {
            Work::Instantiate => {
                command = self.cluster.run().command("dd");
                let source = format!("if={}", self.source().display());
                let target = format!("of={}", new.display());
                command.args(["bs=64K", "count=1", "seek=1", "conv=notrunc,fsync", &source, &target]);
            }
            Work::Small | Work::Outgrow => {
                command = self.cluster.run().command("dd");
                let source = format!("if={}", self.source().display());
                let (target, count) =
                    (format!("of={}", self.made().display()), format!("count={}", made_bytes(work) / 4096));
                command.args(["bs=4K", &count, &source, &target]);
            }
            Work::Migrate => {
                command.args(["lfs", "migrate", "-c", stripes, "-S", "64K", text(&a)]);
            }
            Work::MigrateMdt => {
                command.args(["lfs", "migrate", "-E", "256K", "-L", "mdt", "-E", "-1", "-c", "2", text(&a)]);
            }
            Work::Swap => {
                command.args(["lfs", "swap_layouts", text(&a), text(&b)]);
            }
            Work::Rebalance => {
                command.args(["rebalance", text(self.cluster.mount()), "--drain", "0", "--rate", "0"]);
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("starts")
    }

    /// Returns the path of a new file without an explicit layout.
    fn made(&self) -> PathBuf {
        self.directory.join("made")
    }

    /// Returns a file of 64 KiB on another file system.
    fn source(&self) -> PathBuf {
        let path = self.cluster.run().directory().join("source");
        if !path.exists() {
            let mut file = File::create(&path).expect("create");
            file.write_all(&self.contents[0][..65536]).expect("write");
        }
        path
    }

    /// Runs the operation and kills the victim at one step. Returns the held request; `None` if the operation
    /// ended before that step.
    fn kill_at(&mut self, work: Work, target: (&str, &str), step: &str, victim: Victim) -> Option<String> {
        self.prepare(work);
        self.hold(target, step);
        let mut child = self.start(work);
        let held =
            wait::until(wait::SOON, "the step is reached or the work is over", || match self.held(target) {
                Some(held) => Some(Some(held)),
                // Objects are destroyed after the program has ended.
                None => {
                    let ended = child.try_wait().expect("our child");
                    let limit = if step.ends_with("Destroy") { AFTERWARDS } else { Duration::ZERO };
                    ended.map(|_| wait::within(limit, || self.held(target)))
                }
            });
        if held.is_some() {
            match victim {
                Victim::Server => self.cluster.kill(target.1),
                Victim::Mount => self.cluster.kill("mount"),
                Victim::Program => child.kill().expect("kill"),
            }
        }
        if victim != Victim::Server || held.is_none() {
            self.hold(target, "none");
        }
        if victim != Victim::Program && held.is_some() {
            self.cluster.start_all();
        }
        wait::until(wait::SOON, "the program ends", || child.try_wait().expect("our child"));
        if matches!(work, Work::Small | Work::Outgrow) {
            self.verify_made(work, victim, held.as_deref());
        }
        self.verify(work, &format!("{work:?} {} {step} {victim:?} {held:?}", target.1));
        held
    }

    /// Checks the new file: acknowledged data survives the server; write-back data of a dead mount is lost
    /// or, if it was small, lost or there as a whole.
    fn verify_made(&self, work: Work, victim: Victim, held: Option<&str>) {
        let new = &self.contents[0][..made_bytes(work)];
        if victim == Victim::Server || held.is_none() {
            let is_there = || fs::read(self.made()).is_ok_and(|found| found == new).then_some(());
            return wait::until(wait::SOON, "all of the new file is there", is_there);
        }
        let found = fs::read(self.made()).unwrap_or_default();
        let is_part =
            found.len() <= new.len() && found.iter().zip(new).all(|(is, new)| is == new || *is == 0);
        let is_whole = found.is_empty() || found == new || work == Work::Outgrow || victim == Victim::Program;
        assert!(is_part && is_whole, "{work:?} {victim:?} {held:?}: {} bytes", found.len());
    }

    fn verify(&mut self, work: Work, what: &str) {
        if work == Work::Instantiate {
            let found =
                fs::read(self.directory.join("new")).unwrap_or_else(|error| panic!("{what}: {error}"));
            let old = &self.contents[1][..1000];
            let mut new = old.to_vec();
            new.resize(65536, 0);
            new.extend_from_slice(&self.contents[0][..65536]);
            // An unacknowledged write may be there in part; the missing bytes are zeros.
            let hole = &found[found.len().min(65536)..];
            let is_part =
                found.len() > 65536 && hole.iter().zip(&new[65536..]).all(|(is, new)| is == new || *is == 0);
            assert!(
                found[..1000] == *old && (found.len() == 1000 || is_part),
                "{what}: {} bytes",
                found.len()
            );
        }
        let found: Vec<Vec<u8>> = (0..2)
            .map(|index| fs::read(self.path(index)).unwrap_or_else(|error| panic!("{what}: {error}")))
            .collect();
        if work == Work::Swap && found[0] == self.contents[1] {
            self.contents.swap(0, 1);
        }
        assert!(found == self.contents, "{what}: {:?} bytes", found.iter().map(Vec::len).collect::<Vec<_>>());
        // It can still be changed, on all its objects.
        for index in 0..2 {
            let file = OpenOptions::new().write(true).open(self.path(index)).expect("open");
            file.write_all_at(&self.contents[index], 0).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
    }

    fn check(&mut self) {
        self.cluster.stop();
        self.cluster.check();
    }
}

/// Returns the length of the new file.
fn made_bytes(work: Work) -> usize {
    if work == Work::Small { 20 << 10 } else { 64 << 10 }
}

/// Decisive steps: the held request, and the victim.
const DECISIONS: [(Work, usize, &str, Victim); 19] = [
    (Work::Small, 0, "before CloseWrite", Victim::Server),
    (Work::Small, 0, "after CloseWrite", Victim::Server),
    (Work::Small, 0, "before CloseWrite", Victim::Mount),
    (Work::Small, 0, "after CloseWrite", Victim::Mount),
    (Work::Outgrow, 0, "before LayoutIntent", Victim::Server),
    (Work::Outgrow, 0, "after LayoutIntent", Victim::Server),
    (Work::Outgrow, 0, "after LayoutIntent", Victim::Mount),
    (Work::Instantiate, 0, "before LayoutIntent", Victim::Server),
    (Work::Instantiate, 0, "after LayoutIntent", Victim::Server),
    (Work::Instantiate, 0, "after LayoutIntent", Victim::Mount),
    (Work::Migrate, 0, "after SetXattr", Victim::Program),
    (Work::Migrate, 1, "after Write", Victim::Mount),
    (Work::Migrate, 0, "before SwapLayouts", Victim::Server),
    (Work::Migrate, 0, "after SwapLayouts", Victim::Server),
    (Work::MigrateMdt, 0, "after SwapLayouts", Victim::Mount),
    (Work::Swap, 0, "after SwapLayouts", Victim::Server),
    (Work::Swap, 1, "before DataVersion", Victim::Server),
    (Work::Rebalance, 0, "after SwapLayouts", Victim::Program),
    (Work::Rebalance, 1, "before Destroy", Victim::Server),
];

#[test]
fn whoever_dies_at_a_decisive_step_leaves_the_old_or_the_new_content() {
    let Some(mut stage) = Stage::open("stepd") else { return };
    for (work, target, step, victim) in DECISIONS {
        let held = stage.kill_at(work, TARGETS[target], step, victim);
        assert_eq!(held.as_deref(), Some(step), "{work:?}");
    }
    stage.check();
}

#[test]
fn times_of_a_written_file_stay_while_the_mdt_does_not_know_of_its_close() {
    const MDT: (&str, &str) = TARGETS[0];
    let Some(mut stage) = Stage::open("stepc") else { return };
    let shown = |path: &Path| {
        let of = fs::metadata(path).expect("it is there");
        ((of.mtime(), of.mtime_nsec()), (of.ctime(), of.ctime_nsec()), of.size(), of.blocks())
    };
    let written_and_held = |name: &str| {
        let path = stage.directory.join(name);
        stage.hold(MDT, "before Close");
        fs::write(&path, &stage.contents[0]).expect("write");
        wait::until(wait::SOON, "the close is held", || stage.held(MDT));
        path
    };
    let path = written_and_held("stat");
    let during = shown(&path);
    stage.hold(MDT, "none");
    wait::until(wait::SOON, "the MDT knows", || {
        let size = stage.cluster.lfs(&["getsom", "-s", text(&path)]).success().stdout;
        (size.trim() == during.2.to_string()).then_some(())
    });
    // A read makes the kernel request the attributes again.
    assert!(fs::read(&path).is_ok_and(|content| content == stage.contents[0]));
    assert_eq!(shown(&path), during);

    // Times that are set afterwards take precedence.
    let path = written_and_held("touch");
    let old = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000);
    std::thread::scope(|scope| {
        let setter = scope.spawn(|| {
            let file = File::open(&path).expect("open");
            file.set_times(fs::FileTimes::new().set_modified(old)).expect("set times");
        });
        // If the call does not wait for the close, it has ended by then.
        let _ = wait::within(Duration::from_millis(300), || setter.is_finished().then_some(()));
        stage.hold(MDT, "none");
        setter.join().expect("times can be set");
    });
    wait::until(wait::SOON, "nothing is on its way", || {
        stage
            .cluster
            .lctl(&["get_param", "-n", &format!("mdc.{}-*.import", stage.cluster.fsname())])
            .success()
            .stdout
            .contains("inflight: 0")
            .then_some(())
    });
    assert!(fs::read(&path).is_ok_and(|content| content == stage.contents[0]));
    assert_eq!(shown(&path).0, (1_000_000, 0));
    stage.check();
}

#[test]
fn whoever_dies_at_any_step_leaves_the_old_or_the_new_content() {
    if std::env::var_os("NACRE_EVERY_STEP").is_none() {
        return;
    }
    let Some(mut stage) = Stage::open("stepe") else { return };
    let mut steps = 0;
    let all = [
        Work::Instantiate,
        Work::Small,
        Work::Outgrow,
        Work::Migrate,
        Work::MigrateMdt,
        Work::Swap,
        Work::Rebalance,
    ];
    for work in all {
        for target in TARGETS {
            for moment in ["before", "after"] {
                for victim in [Victim::Server, Victim::Mount, Victim::Program] {
                    let numbers = (1..).map(|number| number.to_string());
                    let all = std::iter::once("Destroy".to_owned()).chain(numbers);
                    for which in all.filter(|which| which != "Destroy" || work == Work::Rebalance) {
                        let step = format!("{moment} {which}");
                        match stage.kill_at(work, target, &step, victim) {
                            Some(held) => {
                                println!("{work:?} {} {which}: {held}, {victim:?} killed", target.1)
                            }
                            None if which == "Destroy" => continue,
                            None => break,
                        }
                        steps += 1;
                    }
                    stage.check();
                    stage.cluster.start_all();
                }
            }
        }
    }
    println!("{steps} steps");
    stage.check();
}
