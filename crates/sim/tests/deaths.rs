//! Clients that die.

use nacre_sim::{Fault, Operation, Path, Place, Plan, Shape, Timed, run_plan};
use std::collections::BTreeSet;
use std::time::Duration;

#[test]
fn files_that_a_dead_client_had_open_are_read_written_and_removed_by_others() {
    let open =
        Operation::Open { slot: 0, path: Path(vec![0]), create: true, exclusive: false, truncate: false };
    // On an OST.
    let write = |at: u64, len| Operation::Write { slot: 0, offset: (128 << 10) + at, len, sync: false };
    let pause = |ms| Operation::Sleep { ms };
    let synced = vec![open.clone(), write(0, 4096), Operation::Fsync { slot: 0 }];
    let writes = (1..200).flat_map(|number| [write(4096 * number, 8192), pause(1)]);
    let dies = synced.into_iter().chain(writes).collect::<Vec<_>>();
    let lives = vec![
        pause(600),
        open,
        Operation::Read { slot: 0, offset: 128 << 10, len: 1 << 20 },
        write(0, 7),
        Operation::Unlink { path: Path(vec![0]) },
    ];
    let at = Duration::from_millis(40);
    let faults = vec![Timed { at, lasts: Duration::ZERO, fault: Fault::Die(1) }];
    for seed in 0..20 {
        let shape = Shape { mdts: 1, osts: 2, clients: 2 };
        let programs = vec![lives.clone(), dies.clone()];
        let plan = Plan { seed, shape, programs, faults: faults.clone(), jitter: Duration::ZERO, bug: None };
        let (report, _) = run_plan(&plan);
        assert_eq!(report.problem, None, "{}", plan.describe());
        let written = report.history.iter().filter(|call| call.contains("len: 8192,")).count();
        assert!((1..150).contains(&written), "it dies on the way: {written}");
        let read = report.history.iter().find(|call| call.contains("Read {")).expect("a read");
        let found = read.split(" -> ").last().and_then(|found| found.split(' ').next()?.parse().ok());
        assert!(found.is_some_and(|found: usize| found >= 4096), "what was synced is there: {read}");
    }
}

/// Changes of names whose client dies before the answer, on one MDT and over two: others see all of a change or nothing.
#[test]
fn a_change_whose_client_dies_within_the_call_takes_effect_as_a_whole_or_not_at_all() {
    let path = |number| Path(vec![number]);
    let changes = vec![
        Operation::Mkdir { path: path(0), place: Place::Mdt(1) },
        Operation::Rename { from: path(0), to: path(1) },
        Operation::Rmdir { path: path(1) },
        Operation::Mkdir { path: path(2), place: Place::Striped },
        Operation::Open { slot: 0, path: path(0), create: true, exclusive: true, truncate: false },
        Operation::Link { from: path(0), to: path(1) },
        Operation::Unlink { path: path(0) },
        Operation::Close { slot: 0 },
        Operation::Rmdir { path: path(2) },
    ];
    let looks = [Operation::Stat { path: path(1) }, Operation::List { path: Path(Vec::new()) }];
    let lives: Vec<Operation> = std::iter::repeat_n(looks, 30).flatten().collect();
    let shape = Shape { mdts: 2, osts: 1, clients: 2 };
    let mut unanswered = BTreeSet::new();
    for seed in 0..60 {
        let at = Duration::from_micros(1000 + 400 * seed);
        let faults = vec![Timed { at, lasts: Duration::ZERO, fault: Fault::Die(1) }];
        let programs = vec![lives.clone(), changes.clone()];
        let plan = Plan { seed, shape, programs, faults, jitter: Duration::ZERO, bug: None };
        let (report, _) = run_plan(&plan);
        assert_eq!(report.problem, None, "{}", plan.describe());
        let cut_off = report.history.iter().filter(|call| call.ends_with("no answer"));
        unanswered.extend(cut_off.filter_map(|call| call.split(' ').nth(4).map(str::to_owned)));
    }
    for kind in ["Mkdir", "Rename", "Open", "Unlink"] {
        assert!(unanswered.contains(kind), "no client died within a {kind}: {unanswered:?}");
    }
}
