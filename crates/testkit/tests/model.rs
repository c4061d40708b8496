//! Random operations of several mounts over several MDTs that are killed meanwhile, compared with a model.
//!
//! There are three mounts with a worker each. A worker has a tree of its own, in which every result, and the
//! view of every mount, must match its model; and all workers share another tree. Meanwhile MDTs are killed
//! and restarted: as separate processes, or with everything else in their process. At the end the trees are
//! compared through every mount, and the targets are checked.
//!
//! A seed decides the operations of each worker in its own tree. A long campaign: `NACRE_MODEL_SEEDS=20
//! NACRE_MODEL_OPERATIONS=3000 scripts/test -p nacre-testkit --test model`; `NACRE_MODEL_SEED` is the first
//! seed. `NACRE_MODEL_RESTRIPES=1` changes the numbers of shards of directories meanwhile,
//! `NACRE_MODEL_MIGRATES=1` moves files and directories between MDTs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fastrand::Rng;
use nacre_testkit::cluster::Options;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, Shape, wait};

#[path = "model/dirs.rs"]
mod dirs;
#[path = "model/shared.rs"]
mod shared;
#[path = "model/tree.rs"]
mod tree;
#[path = "model/worker.rs"]
mod worker;

use dirs::Maker;
use shared::Shared;
use worker::{Outcome, Worker};

const MDTS: usize = 3;
const WORKERS: usize = 3;
/// Longest time in which no operation ends: a restart, and a busy machine.
const STALL: Duration = Duration::from_secs(120);
/// Directories in which all workers operate.
const STAYING: [&str; 3] = ["plain", "remote", "striped"];

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// State that workers and the thread that kills servers share.
#[derive(Default)]
struct Progress {
    done: AtomicUsize,
    failed: AtomicBool,
}

/// A running worker: its first mismatch, and its state.
type Working = JoinHandle<(Outcome, Worker)>;

fn work(mut worker: Worker, mut shared: Shared, seed: u64, steps: usize, progress: Arc<Progress>) -> Working {
    std::thread::spawn(move || {
        let mut random = Rng::with_seed(seed);
        for _ in 0..steps {
            if progress.failed.load(Ordering::Relaxed) {
                break;
            }
            let outcome = match random.usize(..3) {
                0 => worker.told(shared.step(&mut random)),
                _ => worker.step(),
            };
            if outcome.is_err() {
                progress.failed.store(true, Ordering::Relaxed);
                return (outcome, worker);
            }
            progress.done.fetch_add(1, Ordering::Relaxed);
        }
        (Ok(()), worker)
    })
}

/// A campaign with one seed.
struct Campaign {
    cluster: Cluster,
    mounts: Vec<PathBuf>,
    random: Rng,
    seed: u64,
}

impl Campaign {
    fn start(shape: Shape, fsname: &str, seed: u64) -> Option<Campaign> {
        if !have(&["/dev/fuse", "fusermount3"]) || !have_root() {
            return None;
        }
        let listen = shape == Shape::Embedded;
        let options =
            Options { mdts: MDTS, osts: 2, fsname: fsname.to_owned(), listen, ..Options::default() };
        let mut cluster = Cluster::start_with(shape, &options);
        if cluster.is_foreign() {
            return None;
        }
        // The mount in an embedded process dies with it; separate ones wait for its restart.
        let mut mounts = if listen { Vec::new() } else { vec![cluster.mount().to_owned()] };
        while mounts.len() < WORKERS {
            mounts.push(cluster.add_mount());
        }
        Some(Campaign { cluster, mounts, random: Rng::with_seed(seed ^ 0x5eed), seed })
    }

    fn lfs(&self, words: &[&str], path: &Path) {
        let path = path.to_str().expect("test directories have plain names");
        self.cluster.lfs(&[words, &[path]].concat()).success();
    }

    /// Creates the top directories: those of the workers on any MDT, striped, or with a default that stripes
    /// new subdirectories.
    fn prepare(&mut self) {
        let top = self.mounts[0].clone();
        for worker in 0..WORKERS {
            let path = top.join(format!("w{worker}"));
            let mdt = self.random.usize(..MDTS).to_string();
            match self.random.usize(..3) {
                0 => self.lfs(&["mkdir", "-i", &mdt], &path),
                1 => self.lfs(&["mkdir", "-c", "-1", "-i", &mdt], &path),
                _ => {
                    self.lfs(&["mkdir", "-i", &mdt], &path);
                    self.lfs(&["setdirstripe", "-D", "-c", "2", "-i", "-1", "-X", "3"], &path);
                }
            }
        }
        let shared = top.join("shared");
        self.lfs(&["mkdir", "-i", "0"], &shared);
        self.lfs(&["mkdir", "-i", "0"], &shared.join(STAYING[0]));
        self.lfs(&["mkdir", "-i", "1"], &shared.join(STAYING[1]));
        self.lfs(&["mkdir", "-c", "-1", "-i", "2"], &shared.join(STAYING[2]));
    }

    /// Returns the same path through every mount, that of the worker first.
    fn views(&self, worker: usize, name: &str) -> Vec<PathBuf> {
        let mut mounts = self.mounts.clone();
        mounts.rotate_left(worker);
        mounts.into_iter().map(|mount| mount.join(name)).collect()
    }

    fn begin(&self, operations: usize, progress: &Arc<Progress>) -> Vec<Working> {
        let restripes = number("NACRE_MODEL_RESTRIPES", 0_usize) != 0;
        let migrates = number("NACRE_MODEL_MIGRATES", 0_usize) != 0;
        let run = self.cluster.run().directory().to_owned();
        let maker = Maker { run, mdts: MDTS, restripes, migrates };
        let begin = |worker: usize| {
            let seed = self.seed * 1000 + worker as u64;
            let own = Worker::new(self.views(worker, &format!("w{worker}")), seed, maker.clone());
            let root = self.mounts[worker].join("shared");
            let shared = Shared::new(root, &STAYING, worker, maker.clone());
            work(own, shared, seed + 500, operations / WORKERS, progress.clone())
        };
        (0..WORKERS).map(begin).collect()
    }

    /// Kills one or two MDTs, or the process with all of them, each time after some operations.
    fn disturb(&mut self, working: &[Working], progress: &Progress) -> usize {
        let mut kills = 0;
        loop {
            let goal = progress.done.load(Ordering::Relaxed) + 60 + self.random.usize(..240);
            let is_over = || working.iter().all(JoinHandle::is_finished);
            let mut last = (progress.done.load(Ordering::Relaxed), Instant::now());
            loop {
                if is_over() {
                    return kills;
                }
                let done = progress.done.load(Ordering::Relaxed);
                if done >= goal {
                    break;
                }
                if done != last.0 {
                    last = (done, Instant::now());
                }
                assert!(last.1.elapsed() < STALL, "seed {}: no operation ends", self.seed);
                wait::within(Duration::from_millis(2), || is_over().then_some(()));
            }
            match self.cluster.shape() {
                Shape::Embedded => self.cluster.kill("node"),
                Shape::Separate => {
                    let first = self.random.usize(..MDTS);
                    self.cluster.kill(&format!("mdt{first:04}"));
                    if self.random.usize(..3) == 0 {
                        self.cluster.kill(&format!("mdt{:04}", (first + 1) % MDTS));
                    }
                }
            }
            kills += 1;
            // Workers that need none of the dead MDTs continue for a while.
            let goal = progress.done.load(Ordering::Relaxed) + self.random.usize(..30);
            let has_gone_on = || (progress.done.load(Ordering::Relaxed) >= goal).then_some(());
            wait::within(Duration::from_millis(200), has_gone_on);
            self.cluster.start_all();
        }
    }

    fn run(mut self, operations: usize) {
        let began = Instant::now();
        println!("seed {} of {operations} operations", self.seed);
        self.prepare();
        let progress = Arc::new(Progress::default());
        let working = self.begin(operations, &progress);
        let kills = self.disturb(&working, &progress);
        let ended = working.into_iter().map(|worker| worker.join().expect("a worker does not panic"));
        let ended: Vec<(Outcome, Worker)> = ended.collect();
        for (number, (outcome, mut worker)) in ended.into_iter().enumerate() {
            let outcome = outcome.and_then(|()| match progress.failed.load(Ordering::Relaxed) {
                true => Ok(()),
                false => worker.check_all(),
            });
            if let Err(message) = outcome {
                let history: Vec<String> = worker.history.into();
                panic!("seed {}, worker {number}: {message}\n{}", self.seed, history.join("\n"));
            }
        }
        if let Err(message) = shared::check(&self.views(0, "shared")) {
            panic!("seed {}: shared: {message}", self.seed);
        }
        self.cluster.stop_and_check();
        let seconds = began.elapsed().as_secs_f64();
        println!(
            "seed {}: {} operations, {kills} kills, {seconds:.1} s",
            self.seed,
            progress.done.load(Ordering::Relaxed)
        );
    }
}

fn campaign(shape: Shape, fsname: &str) {
    let first = number("NACRE_MODEL_SEED", 1);
    for seed in first..first + number("NACRE_MODEL_SEEDS", 1) {
        if let Some(campaign) = Campaign::start(shape, fsname, seed as u64) {
            campaign.run(number("NACRE_MODEL_OPERATIONS", 1800));
        }
    }
}

#[test]
fn three_mounts_agree_with_a_model_while_mdts_are_killed_as_processes() {
    campaign(Shape::Separate, "models");
}

#[test]
fn three_mounts_agree_with_a_model_while_the_process_with_all_servers_is_killed() {
    campaign(Shape::Embedded, "modele");
}
