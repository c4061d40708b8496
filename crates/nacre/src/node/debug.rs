//! State of a process for `nacre debug`, on a socket of its own: it is answered while requests to the control
//! socket wait.

use super::Node;
use crate::control::{Answer, Handler, Request};
use crate::debug::{
    BlockerShot, ClientShot, DebugState, ImportShot, LockServerShot, LockWaitShot, MdtShot, OperationShot,
    Question, SlowShot, ThreadShot, TransactionShot, WaitShot, millis, record,
};
use nacre_dlm::LockReport;
use nacre_env::activity::{self, ThreadState};
use nacre_lock::server::{Blocker, LockWait};
use nacre_lock::{Need, Peer, Policy};
use nacre_rpc::Export;
use nacre_types::{TargetId, TargetKind};
use rustix::io::Errno;
use std::sync::{Arc, Weak};
use std::time::{Duration, UNIX_EPOCH};

/// Longest wait for the mutex of the mount: an unmount may hold it for long.
const PATIENCE: Duration = Duration::from_millis(500);

/// Answers questions about the state of a process.
pub(super) struct DebugDoor(pub(super) Weak<Node>);

impl Handler for DebugDoor {
    fn handle(&self, request: &Request) -> Answer {
        let Request::Debug { question } = request else {
            return Answer::refusal(Errno::INVAL, "this socket answers questions of 'nacre debug' alone");
        };
        let Some(node) = self.0.upgrade() else {
            return Answer::refusal(Errno::SHUTDOWN, "the process is stopping");
        };
        match question {
            Question::State => Answer::Debug(Box::new(node.debug_state())),
            Question::Slow => Answer::Slow { operations: slow() },
            Question::Events => Answer::Events { lines: record::lines() },
            Question::Save => match record::save(&node.plan.run.events(&node.plan.name)) {
                Ok(path) => Answer::Saved { path },
                Err(failure) => Answer::refusal(Errno::IO, failure.message),
            },
            Question::Clear => {
                activity::events::clear();
                activity::clear_slow();
                Answer::Done
            }
        }
    }
}

impl Node {
    fn debug_state(&self) -> DebugState {
        let targets = self.targets.lock().clone();
        let mut state = DebugState {
            name: self.plan.name.clone(),
            pid: std::process::id(),
            fsname: self.plan.fsname.clone(),
            client: self.links.identity().client.to_string(),
            targets: targets.iter().map(TargetId::to_string).collect(),
            threads: threads(),
            ..DebugState::default()
        };
        if let Some(mount) = self.mount.try_lock_for(PATIENCE)
            && let Some(mount) = mount.as_ref()
        {
            state.mount_point = Some(mount.mount_point().to_path_buf());
            let of = |(target, import): (TargetId, nacre_rpc::ImportInfo)| ImportShot {
                target: target.to_string(),
                state: import.state.name().to_owned(),
                nid: import
                    .current
                    .or_else(|| import.nids.first().copied())
                    .map_or_else(String::new, |nid| nid.to_string()),
                in_flight: import.in_flight,
                resent: import.timeouts,
            };
            state.imports = mount.imports().map(of).collect();
        }
        for target in targets {
            self.add_target_state(target, &mut state);
        }
        state
    }

    fn add_target_state(&self, target: TargetId, state: &mut DebugState) {
        match target.kind {
            TargetKind::Mgt => {}
            TargetKind::Mdt => {
                if let Some(mds) = self.services.mds(target.index) {
                    let report = mds.report();
                    add_locks(state, target, report.locks.as_ref());
                    state.mdts.push(MdtShot {
                        target: target.to_string(),
                        lease_holders: report.lease_holders.iter().map(ToString::to_string).collect(),
                        clients: report.exports.iter().map(client_shot).collect(),
                        transactions: report.transactions.iter().map(transaction_shot).collect(),
                        unsettled: report.unsettled as u64,
                    });
                }
                let data = TargetId::mdt_data(target.index).zip(self.services.data_of_mdt(target.index));
                if let Some((data, server)) = data {
                    add_locks(state, data, LockReport::of(server.locks()).as_ref());
                }
            }
            TargetKind::Ost => {
                if let Some(server) = self.services.ost(target.index) {
                    add_locks(state, target, LockReport::of(server.locks()).as_ref());
                }
            }
        }
    }
}

fn add_locks(state: &mut DebugState, target: TargetId, report: Option<&LockReport>) {
    let Some(report) = report else {
        state.silent.push(target.to_string());
        return;
    };
    state.lock_servers.push(LockServerShot {
        server: report.server,
        target: target.to_string(),
        locks: report.locks as u64,
        resources: report.resources as u64,
        waits: report.waits.iter().map(wait_shot).collect(),
        holders: report.holders.iter().map(|(handle, holder)| (handle.0, holder.0)).collect(),
        clients: report.exports.iter().map(client_shot).collect(),
        awaited: report.awaited.iter().map(ToString::to_string).collect(),
    });
}

fn client_shot(export: &Arc<Export>) -> ClientShot {
    ClientShot {
        client: export.client.to_string(),
        nid: export.nid.to_string(),
        pid: export.process.map(|process| process.pid),
        is_server: export.is_server,
    }
}

fn transaction_shot(report: &nacre_mds::TransactionReport) -> TransactionShot {
    TransactionShot {
        coordinator: TargetId::mdt(report.id.mdt).to_string(),
        number: report.id.number,
        is_prepared: report.is_prepared,
        ticket: report.ticket,
        age_ms: millis(report.age),
    }
}

fn wait_shot(wait: &LockWait) -> LockWaitShot {
    LockWaitShot {
        client: peer_name(wait.peer),
        handle: wait.handle.0,
        resource: wait.resource.to_string(),
        need: need_words(&wait.need),
        blockers: wait.blockers.iter().map(blocker_shot).collect(),
    }
}

fn blocker_shot(blocker: &Blocker) -> BlockerShot {
    BlockerShot {
        client: peer_name(blocker.peer),
        handle: blocker.handle.0,
        need: need_words(&blocker.need),
        is_granted: blocker.is_granted,
        called_for_ms: blocker.called_for.map(millis),
        evicted_in_ms: blocker.evicted_in.map(millis),
    }
}

fn peer_name(peer: Peer) -> String {
    if peer.is_local() { String::new() } else { peer.client.to_string() }
}

fn need_words(need: &Need) -> String {
    let part = match need.policy {
        Policy::Extent(extent) if extent.last == nacre_lock::Extent::EOF => format!("from {}", extent.start),
        Policy::Extent(extent) => format!("{} to {}", extent.start, extent.last),
        Policy::Bits(bits) => format!("{bits:?}"),
    };
    format!("{:?} {part}", need.mode)
}

fn threads() -> Vec<ThreadShot> {
    let known = activity::threads();
    let mut shots: Vec<ThreadShot> =
        known.iter().map(|thread| thread_shot(thread.tid, &thread.name, Some(thread))).collect();
    // Threads that have served no request yet.
    let Ok(entries) = std::fs::read_dir("/proc/self/task") else { return shots };
    let tids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    for tid in tids.filter(|tid| !known.iter().any(|thread| thread.tid == *tid)) {
        let name = std::fs::read_to_string(format!("/proc/self/task/{tid}/comm")).unwrap_or_default();
        shots.push(thread_shot(tid, name.trim(), None));
    }
    shots
}

fn thread_shot(tid: i32, name: &str, known: Option<&ThreadState>) -> ThreadShot {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    let operations = known.map_or(&[][..], |thread| &thread.operations);
    let wait = known.and_then(|thread| thread.wait);
    ThreadShot {
        name: name.to_owned(),
        tid,
        state: state.unwrap_or('?'),
        operations: operations
            .iter()
            .map(|one| OperationShot::new(one.id.0, &one.operation, one.age, &one.spent))
            .collect(),
        wait: wait.map(|(cause, age)| WaitShot { cause: cause.into(), age_ms: millis(age) }),
        serves: known.map_or(0, |thread| thread.serves.0),
    }
}

fn slow() -> Vec<SlowShot> {
    let shot = |slow: &activity::SlowOperation| SlowShot {
        at_ms: millis(slow.at.duration_since(UNIX_EPOCH).unwrap_or_default()),
        operation: OperationShot::new(0, &slow.operation, slow.took, &slow.spent),
        result: slow.status.to_string(),
    };
    activity::slow().iter().map(shot).collect()
}
