//! Every call ends in time: a call waits no longer than faults last, and then for what a recovery or a revoked
//! lock takes when all hosts are up.

use crate::fault::{Fault, Node, Timed, takes_away};
use crate::history::{Call, Event};
use crate::linear::describe;
use crate::operation::Operation;
use crate::plan::Plan;
use std::time::Duration;

/// Longest time for which a client that leaves, or gives up its mount, waits for a server that it does not reach. If it
/// takes longer, others wait for the client as for one that has died.
const GOODBYE: Duration = Duration::from_millis(500);

/// Longest time of a call apart from faults: less than the deadline of a lock, which nothing may reach while all
/// clients answer.
const LONGEST: Duration = Duration::from_secs(8);

/// The same if a client has died: others wait for the deadlines of its locks on inodes and on data.
const LONGEST_AFTER_DEATH: Duration = Duration::from_secs(50);

/// The same for file locks, which an MDT does not revoke: it drops clients without contact after 60 s.
const LONGEST_LOCK_AFTER_DEATH: Duration = Duration::from_secs(70);

/// Time for which a server that was restarted awaits a client that has died.
const RECOVERY: Duration = Duration::from_secs(30);

/// Checks the calls of a run of this plan.
///
/// # Errors
/// A call that took too long.
pub(crate) fn check(programs: &[Vec<Event>], plan: &Plan) -> Result<(), String> {
    let faults = &plan.faults;
    let last = faults.iter().map(|fault| fault.at + fault.lasts).max().unwrap_or_default();
    let lasting: Duration = faults.iter().map(|fault| fault.lasts).sum();
    // After a longer fault clients are evicted, and others wait for that, one after the other.
    if lasting >= Duration::from_secs(3) {
        return Ok(());
    }
    let leaves = |program: &Vec<Operation>| program.contains(&Operation::Remount);
    let has_goodbye = |node: &Node| match node {
        Node::Client(number) => plan.programs.get(usize::from(*number)).is_some_and(leaves),
        Node::Mdt(_) | Node::Ost(_) => plan.programs.iter().any(leaves),
    };
    let misses_goodbye = |timed: &Timed| timed.lasts >= GOODBYE && takes_away(&timed.fault, has_goodbye);
    let has_deaths = faults.iter().any(|timed| matches!(timed.fault, Fault::Die(_)) || misses_goodbye(timed));
    let restarts = faults.iter().any(|timed| matches!(timed.fault, Fault::Kill(_) | Fault::Power(_)));
    let recovery = if restarts { RECOVERY } else { Duration::ZERO };
    let longest = |event: &Event| match event.call {
        _ if !has_deaths => LONGEST,
        Call::Lock { .. } => LONGEST_LOCK_AFTER_DEATH + recovery,
        _ => LONGEST_AFTER_DEATH + recovery,
    };
    let is_late = |event: &&Event| {
        !event.is_unanswered && event.times[1].saturating_sub(event.times[0].max(last)) > longest(event)
    };
    match programs.iter().flatten().find(is_late) {
        Some(event) => Err(format!("a call took too long: {}", describe(event))),
        None => Ok(()),
    }
}
