//! The simulation finds bugs: each of these is planted, found by one of a few seeds, and found again by the
//! same seed with the same events.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Maximum number of seeds until a bug is found: as many as each run of all tests tries.
const SEEDS: u64 = 12;

/// Returns the events of a run, and the problem found in it.
fn find(bug: Bug, seed: u64) -> (String, Option<String>) {
    let mut told = String::new();
    let outcome = catch_unwind(AssertUnwindSafe(|| run_with(Some(bug), (seed, 60, 6), &mut told)));
    let found = outcome.err().map(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).expect("a message")
    });
    (told, found)
}

fn is_found_and_found_again(bug: Bug) {
    let found = (0..SEEDS).map(|seed| (seed, find(bug, seed))).find(|(_, (_, found))| found.is_some());
    let (seed, first) = found.unwrap_or_else(|| panic!("no seed below {SEEDS} finds that an MDT {bug:?}"));
    assert_eq!(find(bug, seed), first, "seed {seed} gives the same run again");
}

#[test]
fn a_participant_that_does_its_part_twice_is_found() {
    is_found_and_found_again(Bug::AppliesTwice);
}

#[test]
fn a_coordinator_that_does_not_store_what_it_decides_is_found() {
    is_found_and_found_again(Bug::ForgetsWhatItDecides);
}

#[test]
fn an_mdt_that_moves_names_and_does_not_tell_their_inodes_is_found() {
    is_found_and_found_again(Bug::TellsNoInodes);
}

#[test]
fn an_mdt_that_leaves_lost_what_it_has_lost_is_found() {
    is_found_and_found_again(Bug::DoesNothingAgain);
}
