//! Shrinking: a plan that fails loses operations and faults as long as it fails (delta debugging).

use crate::plan::Plan;
use crate::run_plan;

/// Runs that one shrinking makes at most.
const RUNS_MAX: usize = 400;

/// A part of a plan that can be left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Fault(usize),
    Operation(usize, usize),
}

/// Returns a smaller plan that fails, if there is one, and what is wrong with it. Another failure than the first
/// one counts as well: it is a bug, too.
pub fn shrink(plan: &Plan, problem: String) -> (Plan, String) {
    let mut best = (plan.clone(), problem);
    let mut runs = 0;
    let faults = (0..plan.faults.len()).map(Part::Fault);
    let operations = plan.programs.iter().enumerate();
    let operations =
        operations.flat_map(|(program, all)| (0..all.len()).map(move |at| Part::Operation(program, at)));
    let mut kept: Vec<Part> = faults.chain(operations).collect();
    let mut pieces = 2;
    while pieces <= kept.len() && runs < RUNS_MAX {
        let size = kept.len().div_ceil(pieces);
        let mut removed = false;
        let mut at = 0;
        while at < kept.len() && runs < RUNS_MAX {
            let end = (at + size).min(kept.len());
            let smaller: Vec<Part> = kept[..at].iter().chain(&kept[end..]).copied().collect();
            runs += 1;
            let candidate = select(plan, &smaller);
            match run_plan(&candidate).0.problem {
                Some(problem) => {
                    best = (candidate, problem);
                    (kept, removed) = (smaller, true);
                }
                None => at = end,
            }
        }
        if !removed && size == 1 {
            break;
        }
        pieces = if removed { pieces.max(2) } else { pieces * 2 };
        pieces = pieces.min(kept.len().max(1));
    }
    best
}

/// Returns the plan with these parts only.
fn select(plan: &Plan, parts: &[Part]) -> Plan {
    let keep = |part: Part| parts.contains(&part);
    let programs = plan.programs.iter().enumerate().map(|(program, all)| {
        let kept = all.iter().enumerate().filter(|(at, _)| keep(Part::Operation(program, *at)));
        kept.map(|(_, operation)| operation.clone()).collect()
    });
    let faults = plan.faults.iter().enumerate().filter(|(at, _)| keep(Part::Fault(*at)));
    Plan { programs: programs.collect(), faults: faults.map(|(_, fault)| *fault).collect(), ..plan.clone() }
}
