//! Power cuts in short workloads: all of one operation, a sample of longer ones. For more: `nacre-sim --enumerate 2`.

use nacre_sim::{Backend, Bug, Exploration, Tally, explore, workloads};
use std::process::Command;

fn enumerate(arguments: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_nacre-sim")).args(arguments).output();
    let output = output.expect("the program runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    println!("{arguments:?}: {text}");
}

#[test]
fn a_power_cut_anywhere_in_one_operation_leaves_what_was_promised() {
    enumerate(&["--enumerate", "1", "--quick"]);
}

#[test]
fn a_power_cut_anywhere_in_two_operations_leaves_what_was_promised() {
    enumerate(&["--enumerate", "2", "--quick", "--every", "24"]);
}

#[test]
fn a_power_cut_anywhere_in_three_operations_leaves_what_was_promised() {
    enumerate(&["--enumerate", "3", "--quick", "--every", "3000"]);
}

#[test]
fn a_power_cut_after_a_sync_of_two_mdts_leaves_everything() {
    enumerate(&["--enumerate", "2", "--quick", "--every", "64", "--mdts", "2"]);
}

/// Explores a workload of one operation with a planted bug.
fn explore_with(bug: Bug, data: Backend, mixtures: u64, text: &str) -> Tally {
    let exploration = Exploration { data, mdts: 1, holds: false, mixtures, end: None, bug: Some(bug) };
    let all = workloads(1, (0, 1));
    let workload = all.iter().find(|workload| workload.to_string() == text).expect("it is enumerated");
    explore(workload, &exploration)
}

#[track_caller]
fn is_found(tally: &Tally, symptom: &str) {
    let found = tally.violations.iter().any(|violation| violation.contains(symptom));
    assert!(found, "not found: {symptom}: {tally:#?}");
}

#[test]
fn a_log_that_is_not_flushed_is_found() {
    is_found(&explore_with(Bug::CommitSkipped, Backend::File, 0, "[/a/] Create /a/a;"), "is missing");
}

#[test]
fn objects_that_are_not_flushed_are_found() {
    for (bug, data) in [(Bug::SyncSkipped, Backend::Block), (Bug::FileSyncForgotten, Backend::File)] {
        let tally = explore_with(bug, data, 0, "[/a/ /a/a] Overwrite /a/a;");
        is_found(&tally, "which no version since its sync has");
    }
}

#[test]
fn a_rename_that_is_not_atomic_is_found() {
    let replace = "[/a/ /a/a /a/b] Rename /a/a /a/b;";
    is_found(&explore_with(Bug::RenameInTwoSteps, Backend::File, 4, replace), "is missing");
}
