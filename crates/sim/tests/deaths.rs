//! Clients that die.

use nacre_sim::{Fault, Operation, Path, Plan, Shape, Timed, run_plan};
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
