//! The oracle: is there an order of all calls, each between its beginning and its end, in which every answer is
//! the one of a file system that does one call at a time?
//!
//! Depth-first search with memory of the states seen (Wing and Gong, Lowe). Calls of one program are in order,
//! so a position is how far each program is.

use crate::history::{Event, Timed};
use crate::model::Model;
use std::collections::HashSet;
use std::fmt::Write;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

/// States that are examined at most; a run whose order is not found by then counts as not decided.
const STATES_MAX: usize = 200_000;
/// Calls that a description shows.
const SHOWN: usize = 12;

struct Search<'a> {
    programs: &'a [Vec<Event>],
    incidents: &'a [Timed],
    seen: HashSet<u64>,
    states: usize,
    /// The longest order found, and why it cannot continue.
    best: (usize, String),
}

/// A state of the search.
#[derive(Clone)]
struct Node {
    model: Model,
    /// Number of ordered calls of each program.
    at: Vec<usize>,
    incidents: usize,
}

/// Checks a history.
///
/// # Errors
/// A description of the calls that no order explains.
pub(crate) fn check(programs: &[Vec<Event>], incidents: &[Timed], model: Model) -> Result<(), String> {
    let mut search =
        Search { programs, incidents, seen: HashSet::new(), states: 0, best: (0, String::new()) };
    let mut open = vec![Node { model, at: vec![0; programs.len()], incidents: 0 }];
    while let Some(node) = open.pop() {
        if search.is_complete(&node) {
            return Ok(());
        }
        search.states += 1;
        if search.states > STATES_MAX {
            return Err(format!("undecided after {STATES_MAX} states; so far: {}", search.best.1));
        }
        let mut next = search.successors(&node);
        // The call that ended first is tried first, as it usually took effect first.
        next.reverse();
        open.extend(next);
    }
    Err(search.best.1)
}

impl Search<'_> {
    fn is_complete(&self, node: &Node) -> bool {
        node.at.iter().zip(self.programs).all(|(at, events)| *at == events.len())
    }

    /// Returns true if no other call ran during this one.
    fn is_alone(&self, event: &Event) -> bool {
        let overlaps = |other: &Event| other.began < event.ended && event.began < other.ended;
        let others = self.programs.iter().enumerate().filter(|(worker, _)| *worker != event.worker);
        !others.flat_map(|(_, events)| events).any(overlaps)
    }

    fn successors(&mut self, node: &Node) -> Vec<Node> {
        let heads = || node.at.iter().zip(self.programs).filter_map(|(at, events)| events.get(*at));
        let first_end = heads().map(|event| event.ended).min().unwrap_or(u64::MAX);
        // An incident comes after all calls that ended before, and may precede those that were under way.
        let incident = self.incidents.get(node.incidents).filter(|(position, ..)| *position < first_end);
        let mut heads: Vec<&Event> = heads().filter(|event| event.began < first_end).collect();
        heads.sort_by_key(|event| event.ended);
        if let Some((position, ..)) = incident {
            heads.retain(|event| event.began < *position);
        }
        let mut next = Vec::new();
        let mut problems = String::new();
        for event in heads {
            if event.is_unanswered {
                let mut after = node.clone();
                after.at[event.worker] += 1;
                let without = after.clone();
                if after.model.apply_unanswered(event).is_ok() {
                    next.push(after);
                }
                next.push(without);
                continue;
            }
            // What a failed call has made may have been lost.
            let without = event.made.map(|_| Event { made: None, ..event.clone() });
            for event in std::iter::once(event).chain(&without) {
                let mut after = node.clone();
                match after.model.apply(event, self.is_alone(event)) {
                    Ok(()) => {
                        after.at[event.worker] += 1;
                        next.push(after);
                    }
                    Err(problem) => {
                        let _ = write!(problems, "\n  {}: {problem}", describe(event));
                    }
                }
            }
        }
        if let Some((_, time, incident)) = incident {
            let mut after = node.clone();
            after.model.incident(*incident, *time);
            after.incidents += 1;
            next.push(after);
        }
        if next.len() > 1 {
            let hasher = BuildHasherDefault::<DefaultHasher>::default();
            next.retain(|node| self.seen.insert(hasher.hash_one((&node.model, &node.at, node.incidents))));
        }
        self.note(node, &problems);
        next
    }

    fn note(&mut self, node: &Node, problems: &str) {
        let done: usize = node.at.iter().sum();
        if problems.is_empty() || done < self.best.0 {
            return;
        }
        let mut before: Vec<&Event> =
            node.at.iter().zip(self.programs).flat_map(|(at, events)| &events[..*at]).collect();
        before.sort_by_key(|event| event.ended);
        let shown = before[before.len().saturating_sub(SHOWN)..].iter().map(|event| describe(event));
        let text = format!(
            "after {done} calls no order explains these answers:{problems}\nbefore:\n  {}",
            shown.collect::<Vec<_>>().join("\n  ")
        );
        self.best = (done, text);
    }
}

/// Returns a call and its answer as text.
pub(crate) fn describe(event: &Event) -> String {
    let result = match &event.result {
        Ok(crate::history::Reply::Bytes(bytes)) => format!("{} bytes {}", bytes.len(), runs(bytes)),
        Ok(reply) => format!("{reply:?}"),
        Err(status) => format!("{status}"),
    };
    let [from, to] = event.times.map(|time| time.as_secs_f64());
    if event.is_unanswered {
        return format!(
            "program {} {from:.6}- [{}-] {:?} -> no answer",
            event.worker, event.began, event.call
        );
    }
    format!(
        "program {} {from:.6}-{to:.6} [{}-{}] {:?} -> {result}",
        event.worker, event.began, event.ended, event.call
    )
}

/// Returns bytes as runs of equal ones.
fn runs(bytes: &[u8]) -> String {
    let pieces = bytes.chunk_by(|one, other| one == other).map(|run| format!("{}x{}", run[0], run.len()));
    pieces.take(8).collect::<Vec<_>>().join(" ")
}
