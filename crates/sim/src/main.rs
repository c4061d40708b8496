//! The program `nacre-sim`.

use nacre_sim::{Plan, Sizes, run_plan, trace_hash};
use std::time::Instant;

fn main() {
    let mut args = std::env::args().skip(1).filter_map(|arg| arg.parse::<u64>().ok());
    let (from, to) = (args.next().unwrap_or(1), args.next().unwrap_or(2));
    let mut failed = 0;
    for seed in from..to {
        let plan = Plan::of_seed(seed, Sizes::default());
        let begin = Instant::now();
        let (report, outcome) = run_plan(&plan);
        println!(
            "seed {seed}: {} calls, {} steps, {:?} in {:?}, hash {:x}, left {:?}",
            report.calls,
            outcome.steps.len(),
            outcome.time,
            begin.elapsed(),
            trace_hash(&outcome),
            outcome.left,
        );
        if std::env::var_os("NACRE_SIM_STEPS").is_some() {
            let mut counts = std::collections::BTreeMap::<String, usize>::new();
            for step in &outcome.steps {
                *counts.entry(step.at.to_string()).or_default() += 1;
            }
            let mut counts: Vec<_> = counts.into_iter().collect();
            counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
            counts.iter().take(25).for_each(|(at, count)| println!("{count:8} {at}"));
        }
        if let Some(problem) = report.problem {
            failed += 1;
            println!("FAILED {:?} {:?}", plan.shape, plan.faults);
            println!("{problem}");
        }
    }
    println!("{failed} failed");
}
