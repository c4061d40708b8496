//! What the simulator has found, each as the smallest programs that show it, under many schedules.

use nacre_sim::{Fault, Node, Operation, Path, Place, Plan, Shape, Timed, run_plan};
use std::time::Duration;

/// Schedules of each test.
const SEEDS: u64 = 60;

fn is_right(shape: Shape, programs: &[Vec<Operation>]) {
    is_right_with(shape, programs, &[]);
}

fn is_right_with(shape: Shape, programs: &[Vec<Operation>], faults: &[Timed]) {
    for seed in 0..SEEDS {
        let faults = faults.to_vec();
        let jitter = Duration::from_micros([0, 50, 2000][seed as usize % 3]);
        let programs = programs.to_vec();
        let plan = Plan { seed, shape, programs, faults, jitter, bug: None };
        if let Some(problem) = run_plan(&plan).0.problem {
            panic!("{problem}\n{}", plan.describe());
        }
    }
}

fn path(number: u8) -> Path {
    Path(vec![number])
}

fn open(slot: u8, number: u8, truncate: bool) -> Operation {
    Operation::Open { slot, path: path(number), create: true, exclusive: false, truncate }
}

fn again(operations: &[Operation], times: usize) -> Vec<Operation> {
    vec![operations.to_vec(); times].concat()
}

#[test]
fn a_striped_directory_that_another_client_removes_at_once_was_made_nevertheless() {
    let shape = Shape { mdts: 2, osts: 1, clients: 2 };
    let make = Operation::Mkdir { path: path(0), place: Place::Striped };
    let remove = Operation::Rmdir { path: path(0) };
    is_right(shape, &[vec![make; 8], vec![remove; 16]]);
}

#[test]
fn a_truncate_and_a_write_of_several_objects_come_one_after_the_other() {
    let shape = Shape { mdts: 1, osts: 2, clients: 2 };
    let append = Operation::Append { slot: 2, len: 20_000 };
    let write = Operation::Write { slot: 2, offset: 100, len: 70_000, sync: false };
    let writes = vec![open(2, 1, true), open(0, 0, false), append, write];
    let cut = Operation::Truncate { path: path(1), size: 5000 };
    let read = Operation::Read { slot: 0, offset: 1, len: 40_000 };
    is_right(shape, &[writes, vec![open(0, 1, false), open(0, 1, false), read, cut]]);
}

#[test]
fn a_name_is_found_while_files_are_renamed_over_it() {
    let shape = Shape { mdts: 1, osts: 1, clients: 3 };
    // The size of a file that is open for writing is not known to its MDT: a lookup asks once more.
    let writer = again(&[open(1, 0, false), Operation::Close { slot: 1 }], 20);
    let rename = Operation::Rename { from: path(1), to: path(0) };
    let replace = again(&[open(0, 1, false), Operation::Close { slot: 0 }, rename], 12);
    is_right(shape, &[vec![Operation::Stat { path: path(0) }; 40], writer, replace]);
}

#[test]
fn a_truncate_succeeds_although_the_file_is_removed_right_after_it() {
    let shape = Shape { mdts: 1, osts: 1, clients: 2 };
    let make = |number| [open(0, number, false), Operation::Append { slot: 0, len: 4096 }];
    let close = Operation::Close { slot: 0 };
    let cut = Operation::Truncate { path: path(0), size: 70_000 };
    let cuts = again(&[&make(0)[..], &[close, cut]].concat(), 10);
    let removes = vec![Operation::Unlink { path: path(0) }; 40];
    is_right(shape, &[cuts, removes]);
}

/// Another MDT forgot the transaction that made the shard, as if its part were durable, before the part was redone.
#[test]
fn a_shard_is_there_after_the_host_of_its_mdt_has_lost_power() {
    let shape = Shape { mdts: 3, osts: 1, clients: 2 };
    let make = Operation::Mkdir { path: path(0), place: Place::Striped };
    let below = |number| Operation::Mkdir { path: Path(vec![0, number]), place: Place::Default };
    let stat = Operation::Stat { path: path(0) };
    let first = [vec![make, below(0), below(1)], vec![stat.clone(); 100]].concat();
    let power = Timed {
        at: Duration::from_millis(30),
        lasts: Duration::from_secs(2),
        fault: Fault::Power(Node::Mdt(1)),
    };
    is_right_with(shape, &[first, vec![stat; 100]], &[power]);
}

/// The MDT took the size of a close for newer than the truncation of another client.
#[test]
fn a_close_that_comes_late_does_not_bring_back_the_size_before_a_truncation() {
    let shape = Shape { mdts: 1, osts: 2, clients: 2 };
    let write = Operation::Write { slot: 0, offset: 0, len: 70_000, sync: false };
    let writer = vec![open(0, 0, false), write, Operation::Close { slot: 0 }, Operation::Sleep { ms: 9000 }];
    let stat = Operation::Stat { path: path(0) };
    let append = Operation::Append { slot: 0, len: 100 };
    let read = Operation::Read { slot: 0, offset: 0, len: 70_000 };
    let wait = Operation::Sleep { ms: 400 };
    let cut =
        vec![wait, open(0, 0, true), append, Operation::Close { slot: 0 }, stat, open(0, 0, false), read];
    let kill = Timed {
        at: Duration::from_millis(300),
        lasts: Duration::from_secs(6),
        fault: Fault::Kill(Node::Mdt(0)),
    };
    is_right_with(shape, &[writer.clone(), cut.clone()], &[kill]);
    is_right(shape, &[writer, cut]);
}
