//! The simulation finds planted bugs, each within so many seeds.

use nacre_sim::{BUGS, Bug, Plan, Sizes, run_plan};

/// Seeds until a bug is found at most.
const SEEDS: u64 = 120;

/// Returns the first seed that finds the bug, and what is wrong.
fn find(bug: Bug) -> Option<(u64, String)> {
    (0..SEEDS).find_map(|seed| {
        let plan = Plan::of_seed(seed, Sizes { faults: 0, ..Sizes::default() }).plant(bug);
        Some((seed, run_plan(&plan).0.problem?))
    })
}

#[test]
fn every_planted_bug_is_found() {
    let mut missed = Vec::new();
    for bug in BUGS {
        match find(bug) {
            Some((seed, problem)) => {
                let shown: String = problem.chars().take(240).collect();
                println!("{bug:?}: seed {seed}: {}", shown.replace('\n', " "));
            }
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not found by {SEEDS} seeds: {missed:?}");
}
