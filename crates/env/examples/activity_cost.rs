//! Cost of recording operations and waits (`nacre_env::activity`), in nanoseconds: medians of 21 rounds.
//!
//! Run it with `cargo run --release -p nacre-env --example activity_cost`.

use nacre_env::activity::{self, Cause, Operation, Origin};
use nacre_env::clock::Instant;

const ROUNDS: usize = 21;
const STEPS: u32 = 200_000;

fn main() {
    let operation = Operation { target: None, name: "create", fid: None, lock: 0, origin: Origin::Own };
    show("an operation", || drop(activity::begin(operation)));
    show("an operation in another one", || {
        let _outer = activity::begin(operation);
        drop(activity::begin(operation));
    });
    show("a wait", || activity::waiting(Cause::Recovery, || ()));
    show("the operation of this thread", || {
        std::hint::black_box(activity::current());
    });
}

fn show(what: &str, step: impl Fn()) {
    let mut rounds: Vec<u128> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            (0..STEPS).for_each(|_| step());
            start.elapsed().as_nanos() / u128::from(STEPS)
        })
        .collect();
    rounds.sort_unstable();
    println!("{what:<32} {:>6} ns ({} to {})", rounds[ROUNDS / 2], rounds[0], rounds[ROUNDS - 1]);
}
