//! Tests of this suite under simulation: the seed chooses the schedule of clients and target.

use nacre_env::sim::{self, Options};
use std::collections::BTreeSet;
use std::time::Duration;

use crate::{restart, sharing};

const TESTS: [(&str, fn()); 5] = [
    ("write", sharing::a_write_that_the_target_locks_calls_the_reader_back_and_waits_for_its_cancel),
    ("truncate", sharing::a_truncate_calls_back_only_what_it_cuts),
    ("glimpse", sharing::a_glimpse_sees_what_a_writer_has_not_written_out_yet),
    ("stop", sharing::a_target_that_stops_does_not_wait_for_those_who_wait_for_locks),
    ("recovery", restart::a_client_that_had_locks_brings_them_back_before_others_get_any),
];

fn simulate(seed: u64, test: fn()) -> sim::Outcome<()> {
    sim::run(Options { seed, limit: Duration::from_secs(3600) }, test)
}

#[test]
fn a_seed_gives_clients_and_their_target_the_same_steps_each_time() {
    for (name, test) in TESTS {
        let (first, again) = (simulate(1, test), simulate(1, test));
        assert_eq!(first.steps, again.steps, "{name}");
        assert_eq!(first.time, again.time, "{name}");
        assert!(!first.steps.is_empty(), "{name}: nothing happened at the same time");
    }
}

#[test]
fn locks_of_a_target_do_their_work_in_whatever_order_threads_run() {
    for (name, test) in TESTS {
        let orders: BTreeSet<Vec<u32>> =
            (0..12).map(|seed| simulate(seed, test).steps.iter().map(|step| step.thread).collect()).collect();
        assert!(orders.len() > 2, "{name}: {} orders of 12 seeds", orders.len());
    }
}
