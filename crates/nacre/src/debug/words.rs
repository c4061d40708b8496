//! Operations and waits in words.

use super::{CauseShot, OperationShot};
use std::fmt::Write;

/// Describes an operation: `create in [fid] for program 17 of user 0`.
pub fn operation_words(operation: &OperationShot) -> String {
    let mut text = operation.name.clone();
    if let Some(target) = &operation.target {
        text = format!("{target}: {text}");
    }
    // Writing to a String cannot fail.
    if let Some(fid) = &operation.fid {
        let _ = write!(text, " of {fid}");
    }
    if operation.lock != 0 {
        let _ = write!(text, " of lock {:#x}", operation.lock);
    }
    match (operation.pid, &operation.client) {
        // Requests of the kernel itself have no process.
        (Some(0), _) => text.push_str(" for the kernel"),
        (Some(pid), _) => {
            let _ = write!(text, " for process {pid} of user {}", operation.uid.unwrap_or_default());
        }
        (None, Some(client)) => {
            let nid = operation.nid.as_deref().unwrap_or("?");
            let _ = write!(text, " for client {client} at {nid}");
            if operation.xid != 0 {
                let _ = write!(text, ", request {}", operation.xid);
            }
        }
        (None, None) => {}
    }
    text
}

/// Describes what a thread waits for.
pub fn wait_words(cause: &CauseShot) -> String {
    match cause {
        CauseShot::Reply { target, xid, .. } => format!("the reply of {target} to request {xid}"),
        CauseShot::Connection { target } => format!("a connection to {target}"),
        CauseShot::Slot { target } => {
            format!("the end of another request to {target}: as many as permitted are in flight")
        }
        CauseShot::Lock { target, resource, handle } => format!("lock {handle:#x} on {resource} of {target}"),
        CauseShot::OwnLock { handle, .. } => format!("locks of clients (own lock {handle:#x})"),
        CauseShot::Turn { fid, .. } => format!("inode {fid}, or a name in it, which another operation keeps"),
        CauseShot::Latch { .. } => "an inode that another operation uses".to_owned(),
        CauseShot::FileLock { fid, pid, .. } => {
            format!("a file lock on {fid}, which a program (process {pid}) holds")
        }
        CauseShot::Lease => "the release of the lease that lets a single client cache everything".to_owned(),
        CauseShot::Recovery => "the end of the recovery: clients of the last run are awaited".to_owned(),
        CauseShot::Transaction { coordinator, number } => format!("transaction {number} of {coordinator}"),
        CauseShot::Place { place } if place.contains("crates/store/") => format!("the disk ({place})"),
        CauseShot::Place { place } => place.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_env::activity::{Cause, Operation, Origin, STAGES};
    use nacre_types::{ClientUuid, Fid, TargetId};
    use std::time::Duration;

    #[test]
    fn operations_and_waits_name_targets_files_and_requests() {
        let origin =
            Origin::Client { client: ClientUuid([7; 16]), nid: "0@lo".parse().expect("a NID"), xid: 3 };
        let fid = Some(Fid::new(0x2_0000_0401, 1, 0));
        let operation =
            Operation { target: Some(TargetId::mdt(1)), name: "mds_getattr", fid, lock: 0, origin };
        let spent = [0; STAGES];
        let shot = OperationShot::new(1, &operation, Duration::from_secs(2), &spent);
        assert_eq!(
            operation_words(&shot),
            "MDT0001: mds_getattr of [0x200000401:0x1:0x0] for client 07070707-0707-0707-0707-070707070707 at 0@lo, request 3"
        );
        let origin = Origin::Program { pid: 5, uid: 6 };
        let operation = Operation { target: None, name: "CREATE", fid: None, lock: 0, origin };
        let shot = OperationShot::new(1, &operation, Duration::from_secs(2), &spent);
        assert_eq!(operation_words(&shot), "create for process 5 of user 6");
        let cause = Cause::Reply { target: TargetId::ost(2), client: ClientUuid([7; 16]), xid: 9 };
        assert_eq!(wait_words(&cause.into()), "the reply of OST0002 to request 9");
    }
}
