//! Programs on three mounts while servers are killed, stopped, cut off, filled, lose power and disks: nothing that was
//! acknowledged is lost, nothing hangs, and no read is wrong.
//!
//! `NACRE_CHAOS_SECONDS` and `NACRE_CHAOS_SEED` choose how long it runs and which faults there are.

#[path = "chaos/deck.rs"]
mod deck;
#[path = "chaos/faults.rs"]
mod faults;
#[path = "chaos/register.rs"]
mod register;
#[path = "chaos/workloads.rs"]
mod workloads;

use deck::{Deck, Progress};
use nacre_testkit::cluster::Options;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, Shape, binary, program, text, wait};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// OST of the workload that fills it, which loses power too, and whose disk fails.
const SMALL_OST: &str = "ost0002";
/// Registers of each kind.
const REGISTERS: usize = 3;
/// Time for all workloads to end.
const END: Duration = Duration::from_secs(300);

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Directories of the workloads, as seen by one mount.
#[derive(Clone)]
struct View(PathBuf);

impl View {
    fn registers(&self, kind: &str) -> Vec<PathBuf> {
        (0..REGISTERS).map(|which| self.0.join(format!("registers/{kind}{which}"))).collect()
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

/// Makes directories and files of the workloads.
fn prepare(cluster: &Cluster, view: &View) {
    let lfs = |words: &[&str], path: &Path| drop(cluster.lfs(&[words, &[text(path)]].concat()).success());
    // All but one workload stay off the OST that loses what was not synced.
    lfs(&["mkdir", "-c", "2"], &view.at("unique"));
    lfs(&["mkdir", "-i", "1"], &view.at("registers"));
    lfs(&["mkdir", "-i", "0"], &view.at("lines"));
    for name in ["build", "database", "exercise", "fsx"] {
        fs::create_dir(view.at(name)).expect("made");
    }
    for name in ["registers", "lines", "unique", "build", "database", "exercise", "fsx"] {
        lfs(&["setstripe", "-c", "2", "-S", "64k", "-p", "safe"], &view.at(name));
    }
    fs::create_dir(view.at("full")).expect("made");
    lfs(&["setstripe", "-c", "1", "-i", "2"], &view.at("full"));
    for path in [view.registers("r"), view.registers("n")].concat() {
        fs::write(path, 0_u64.to_le_bytes()).expect("written");
    }
    fs::write(view.at("lines/file"), "").expect("made");
    let sql = "CREATE TABLE t(id INTEGER PRIMARY KEY, x BLOB);";
    program::run("sqlite3", [view.at("database/db").as_os_str(), sql.as_ref()]).success();
}

/// Progress of all workloads.
struct All {
    registers: Vec<Progress>,
    names: Vec<Progress>,
    appends: Vec<Progress>,
    unique: Vec<Progress>,
    build: Progress,
    database: Progress,
    exercise: Progress,
    fsx: Option<(Progress, PathBuf)>,
    fill: Progress,
}

impl All {
    fn new(mounts: usize) -> All {
        let each =
            |name: &str| (0..mounts).map(|mount| Progress::new(format!("{name} of mount {mount}"))).collect();
        All {
            registers: each("registers"),
            names: each("replaced files"),
            appends: each("appends"),
            unique: each("unique names"),
            build: Progress::new("build"),
            database: Progress::new("database"),
            exercise: Progress::new("exerciser"),
            fsx: binary::tool("fsx").map(|tool| (Progress::new("fsx"), tool)),
            fill: Progress::new("filling"),
        }
    }

    /// Workloads whose steps take milliseconds.
    fn quick(&self) -> Vec<&Progress> {
        let lists = [&self.registers, &self.names, &self.appends, &self.unique];
        lists.into_iter().flatten().chain([&self.database, &self.fill]).collect()
    }

    /// The others: programs, and many operations.
    fn slow(&self) -> Vec<&Progress> {
        [&self.build, &self.exercise]
            .into_iter()
            .chain(self.fsx.iter().map(|(progress, _)| progress))
            .collect()
    }
}

/// Threads of the workloads with results.
struct Working<'scope> {
    registers: Vec<ScopedJoinHandle<'scope, Vec<(usize, register::Operation)>>>,
    names: Vec<ScopedJoinHandle<'scope, Vec<(usize, register::Operation)>>>,
    appends: Vec<ScopedJoinHandle<'scope, u64>>,
    unique: Vec<ScopedJoinHandle<'scope, workloads::Names>>,
    database: ScopedJoinHandle<'scope, u64>,
    others: Vec<ScopedJoinHandle<'scope, ()>>,
}

/// Starts the workloads, with a table of open files of their own: a command that this thread starts would close
/// copies of theirs, which waits for pages of a memory map that are being written to a killed server, and so for
/// the command that is to start the server again.
fn begin<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    deck: &'env Deck,
    all: &'env All,
    views: &'env [View],
) -> Working<'scope> {
    let start = move || {
        // SAFETY: this thread has opened no file, and gives none to the others.
        let unshared = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FILES) };
        unshared.expect("a table of open files");
        begin_all(scope, deck, all, views)
    };
    scope.spawn(start).join().expect("no panic")
}

fn begin_all<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    deck: &'env Deck,
    all: &'env All,
    views: &'env [View],
) -> Working<'scope> {
    let (first, second) = (&views[0], &views[1]);
    let databases: Vec<PathBuf> = views.iter().map(|view| view.at("database")).collect();
    let mut others = vec![
        scope.spawn(move || workloads::build(deck, &all.build, &second.at("build"))),
        scope.spawn(move || workloads::exercise(deck, &all.exercise, &first.at("exercise/file"), 5)),
        scope.spawn(move || workloads::fill(deck, &all.fill, &first.at("full"))),
    ];
    if let Some((progress, tool)) = &all.fsx {
        others.push(scope.spawn(move || workloads::fsx(deck, progress, tool, &second.at("fsx"))));
    }
    let numbered = || views.iter().zip(1_u64..);
    Working {
        registers: numbered()
            .zip(&all.registers)
            .map(|((view, id), progress)| {
                scope.spawn(move || workloads::registers(deck, progress, &view.registers("r"), id))
            })
            .collect(),
        names: numbered()
            .zip(&all.names)
            .map(|((view, id), progress)| {
                scope.spawn(move || workloads::names(deck, progress, &view.registers("n"), id))
            })
            .collect(),
        appends: numbered()
            .zip(&all.appends)
            .map(|((view, id), progress)| {
                scope.spawn(move || workloads::appends(deck, progress, &view.at("lines/file"), id))
            })
            .collect(),
        unique: views
            .iter()
            .zip(&all.unique)
            .map(|(view, progress)| {
                scope.spawn(move || workloads::unique(deck, progress, &view.at("unique")))
            })
            .collect(),
        database: scope.spawn(move || workloads::database(deck, &all.database, &databases)),
        others,
    }
}

impl Working<'_> {
    fn is_finished(&self) -> bool {
        self.registers.iter().chain(&self.names).all(|thread| thread.is_finished())
            && self.appends.iter().all(ScopedJoinHandle::is_finished)
            && self.unique.iter().all(ScopedJoinHandle::is_finished)
            && self.others.iter().all(ScopedJoinHandle::is_finished)
            && self.database.is_finished()
    }

    /// Checks the results of all workloads as another mount shows them; returns their numbers.
    fn check(self, start: Instant, view: &View) -> Result<String, String> {
        fn join<T>(threads: Vec<ScopedJoinHandle<'_, T>>) -> Vec<T> {
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        }
        let registers = workloads::check_registers(start, join(self.registers))?;
        let names = workloads::check_registers(start, join(self.names))?;
        let lines: Vec<(u64, u64)> = (1..).zip(join(self.appends)).collect();
        workloads::check_appends(&view.at("lines/file"), &lines)?;
        let unique = workloads::check_unique(&view.at("unique"), &join(self.unique))?;
        let rows = self.database.join().expect("no panic");
        workloads::check_database(&view.at("database"), rows)?;
        join(self.others);
        let lines: u64 = lines.iter().map(|(_, count)| count).sum();
        Ok(format!(
            "{registers} reads and writes of registers, {names} of replaced files, {lines} lines, {unique} names, \
             {rows} transactions"
        ))
    }
}

/// Prints what requests wait for.
fn explain(cluster: &Cluster) {
    println!("{}", cluster.nacre(&["debug", "waits", text(cluster.data())]));
}

#[test]
fn nothing_is_lost_hangs_or_is_wrong_while_servers_network_and_disks_fail() {
    if !(have(&["/dev/fuse", "nft", "ip", "sqlite3", "cc", "make", "mkfs.ext4", "python3"]) && have_root()) {
        return;
    }
    faults::enter_network();
    let (seconds, seed) = (number("NACRE_CHAOS_SECONDS", 100), number("NACRE_CHAOS_SEED", 1));
    let options = Options { mdts: 2, osts: 3, fsname: "chaos".to_owned(), ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    if cluster.is_foreign() {
        return;
    }
    let views: Vec<View> =
        [cluster.mount().to_owned(), cluster.add_mount(), cluster.add_mount()].map(View).into();
    for ost in ["OST0000", "OST0001"] {
        let pool = ["pool_add", "chaos.safe", &format!("chaos-{ost}")].map(str::to_owned);
        if ost == "OST0000" {
            cluster.lctl(&["pool_new", "chaos.safe"]).success();
        }
        cluster.lctl(&pool).success();
    }
    let mut disturber = faults::Disturber::new(&mut cluster, &["mdt0000", SMALL_OST], seed);
    prepare(&cluster, &views[0]);
    let (deck, all, start) = (Deck::default(), All::new(views.len()), Instant::now());
    let checked = std::thread::scope(|scope| {
        let working = begin(scope, &deck, &all, &views);
        // Caught, so that the threads end if this one panics.
        let disturbed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            while start.elapsed() < Duration::from_secs(seconds)
                && deck.await_progress(&all.quick(), &all.slow(), || explain(&cluster))
            {
                disturber.disturb(&mut cluster, &deck);
            }
        }));
        deck.end();
        let is_over = wait::within(END, || working.is_finished().then_some(()));
        disturbed.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        assert!(is_over.is_some(), "a workload hangs; seed {seed}: {:#?}", disturber.history);
        working.check(start, &views[2])
    });
    let faults = disturber.history.len();
    let steps: Vec<String> = all
        .quick()
        .into_iter()
        .chain(all.slow())
        .map(|progress| format!("{} {}", progress.name, progress.steps()))
        .collect();
    println!("seed {seed}, {faults} faults in {:?}: {checked:?}; {}", start.elapsed(), steps.join(", "));
    let problems = [deck.problems(), checked.err().into_iter().collect()].concat();
    assert!(problems.is_empty(), "seed {seed}: {problems:#?}\n{:#?}", disturber.history);
    assert!(faults > 3, "only {faults} faults");
    // A check would name files that were not synced when their OST lost power.
    fs::remove_dir_all(views[0].at("full")).expect("removed");
    cluster.stop_and_check();
}
