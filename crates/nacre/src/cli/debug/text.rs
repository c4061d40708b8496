//! Answers of `nacre debug` as text.

use crate::debug::chain::{Process, Stuck, time};
use crate::debug::{DebugState, SlowShot, operation_words, wait_words};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Requests that wait, and processes that do not answer. Writing to a String cannot fail.
pub fn waits(processes: &[Process], stuck: &[Stuck]) -> String {
    let mut out = String::new();
    for process in processes {
        if let Some(trouble) = &process.trouble {
            let pid = process.pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
            let _ = writeln!(out, "{}{pid} does not answer: {trouble}", process.name);
        }
    }
    if stuck.is_empty() {
        let _ = writeln!(out, "no request waits for that long");
    }
    for one in stuck {
        let _ = writeln!(out, "{}", time(one.age_ms));
        for (depth, link) in one.chain.iter().enumerate() {
            let indent = "  ".repeat(depth + 1);
            let _ = writeln!(out, "{indent}{}: {}", link.process, link.what);
            if let Some(cause) = &link.waits_for {
                let _ = writeln!(out, "{indent}  waits {} for {cause}", time(link.waits_ms));
            }
        }
        if let Some(operation) = one.operation.as_ref().filter(|operation| !operation.stages.is_empty()) {
            let _ = writeln!(out, "  time so far: {}", stages(&operation.stages, operation.age_ms));
        }
    }
    out
}

/// Returns the shares of a duration, the longest first.
fn stages(stages: &[(String, u64)], whole_ms: u64) -> String {
    let mut shares: Vec<(&str, u64)> = stages.iter().map(|(name, ms)| (name.as_str(), *ms)).collect();
    let waited: u64 = shares.iter().map(|(_, ms)| ms).sum();
    shares.push(("running", whole_ms.saturating_sub(waited)));
    shares.sort_by_key(|(_, ms)| std::cmp::Reverse(*ms));
    let shown = shares.iter().filter(|(_, ms)| *ms > 0).map(|(name, ms)| format!("{name} {ms} ms"));
    shown.collect::<Vec<_>>().join(", ")
}

/// Operations that took long.
pub fn slow(rows: &[(String, SlowShot)]) -> String {
    let mut out = String::new();
    if rows.is_empty() {
        let _ = writeln!(out, "no operation took longer than slow_operation_ms");
    }
    for (process, slow) in rows {
        let at = nacre_env::utc(slow.at_ms / 1000);
        let words = operation_words(&slow.operation);
        let _ = writeln!(out, "{at} {process} {} {words}: {}", time(slow.operation.age_ms), slow.result);
        let _ = writeln!(out, "  {}", stages(&slow.operation.stages, slow.operation.age_ms));
    }
    out
}

/// The state of a process.
pub fn dump(state: &DebugState, params: &BTreeMap<String, String>) -> String {
    let mut out = format!(
        "process {} (pid {}) of file system '{}', client {}\n",
        state.name, state.pid, state.fsname, state.client
    );
    if let Some(mount) = &state.mount_point {
        let _ = writeln!(out, "mounted on {}", mount.display());
    }
    for import in &state.imports {
        let _ = writeln!(
            out,
            "connection to {} at {}: {}, {} requests in flight, {} resent",
            import.target, import.nid, import.state, import.in_flight, import.resent
        );
    }
    for server in &state.lock_servers {
        let _ = writeln!(
            out,
            "lock server {}: {} locks on {} resources, {} requests wait, {} clients, {} awaited",
            server.target,
            server.locks,
            server.resources,
            server.waits.len(),
            server.clients.len(),
            server.awaited.len()
        );
    }
    state.silent.iter().for_each(|target| {
        let _ = writeln!(out, "lock server {target} does not answer");
    });
    for mdt in &state.mdts {
        let _ = writeln!(
            out,
            "{}: {} clients, {} transactions over several MDTs undecided, {} not durable",
            mdt.target,
            mdt.clients.len(),
            mdt.transactions.len(),
            mdt.unsettled
        );
        for client in &mdt.clients {
            let kind = if client.is_server { "MDT" } else { "client" };
            let lease = if mdt.lease_holders.contains(&client.client) { ", holds the lease" } else { "" };
            let _ = writeln!(out, "  {kind} {} at {}{lease}", client.client, client.nid);
        }
    }
    for (name, value) in params {
        match value.trim_end().split_once('\n') {
            None => drop(writeln!(out, "{name}={}", value.trim_end())),
            Some(_) => drop(writeln!(out, "{name}=\n{}", value.trim_end())),
        }
    }
    for thread in &state.threads {
        let _ = writeln!(out, "thread {} {} {}", thread.tid, thread.state, thread.name);
        for operation in &thread.operations {
            let _ = writeln!(out, "  {} for {}", operation_words(operation), time(operation.age_ms));
        }
        if let Some(wait) = &thread.wait {
            let _ = writeln!(out, "  waits {} for {}", time(wait.age_ms), wait_words(&wait.cause));
        }
    }
    out
}
