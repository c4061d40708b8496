//! The audit log: one line of JSON for each event, in a file of bounded size next to the log of the process.

use crate::logger::{self, limit};
use limit::{Limit, Line};
use log::Level;
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_rpc::{AuditEvent, AuditKind, AuditSink};
use serde_json::{Value, json};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Address of changes made through the control socket of this process.
const LOCAL: &str = "local";
/// Longest reason written to a line, in bytes.
const REASON_MAX: usize = 300;

/// Audit log of a process: connections, changes and refusals of its peers.
#[derive(Debug)]
pub struct AuditLog {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: File,
    written: u64,
    limit: Limit,
}

impl AuditLog {
    /// Opens the audit log of the process named `name`, next to its log file `log`.
    ///
    /// # Errors
    /// If the file cannot be opened or created.
    pub fn open(log: &Path, name: &str) -> io::Result<AuditLog> {
        let path = log.with_file_name(format!("audit-{name}.log"));
        let (file, written) = logger::open(&path)?;
        Ok(AuditLog { path, state: Mutex::new(State { file, written, limit: Limit::default() }) })
    }

    fn write(&self, state: &mut State, mut line: Value) {
        let since = nacre_env::clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default();
        line["time"] = format!("{}.{:03}Z", nacre_env::utc(since.as_secs()), since.subsec_millis()).into();
        let result = logger::append(&self.path, &mut state.file, &mut state.written, &format!("{line}\n"));
        if let Err(error) = result {
            log::error!("the audit log {} cannot be written: {error}", self.path.display());
        }
    }
}

fn line_of(event: &AuditEvent<'_>) -> Value {
    let address = event.peer.map_or_else(|| LOCAL.to_owned(), |peer| peer.to_string());
    let mut line = json!({ "event": event.kind.name(), "address": address });
    if let Some(identity) = event.identity {
        line["key"] = identity.id.to_string().into();
        line["name"] = identity.name.clone().into();
        line["roles"] = identity.roles.to_string().into();
    }
    if let Some(target) = event.target {
        line["target"] = target.to_string().into();
    }
    if let Some(client) = event.client {
        line["client"] = client.to_string().into();
    }
    if !event.reason.is_empty() {
        let end = event.reason.floor_char_boundary(REASON_MAX);
        line["reason"] = event.reason.get(..end).unwrap_or_default().into();
    }
    line
}

impl AuditSink for AuditLog {
    fn note(&self, event: &AuditEvent<'_>) {
        let (now, name) = (Instant::now(), event.kind.name());
        let peer = event.peer.map_or_else(|| LOCAL.to_owned(), |peer| peer.ip().to_string());
        let mut state = self.state.lock();
        for left_out in state.limit.ended(now) {
            let line = json!({ "event": "left-out", "of": left_out.target, "lines": left_out.lines });
            self.write(&mut state, line);
        }
        let origin = (name, 0);
        let line = Line { level: Level::Info, target: name, origin, peer: &peer, message: event.reason };
        // Changes come from administrators and servers: the rate limit does not apply to them.
        if event.kind == AuditKind::Changed || state.limit.admit(now, &line) {
            self.write(&mut state, line_of(event));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::{Identity, KeyId, Roles, TargetId};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn events_are_lines_of_json_that_nobody_else_reads_and_one_peer_fills_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let audit = AuditLog::open(&dir.path().join("mdt0000.log"), "mdt0000").expect("opened");
        let identity = Identity::new("fs", KeyId(7), Roles::CLIENT, "a host");
        let event = AuditEvent {
            identity: Some(&identity),
            target: Some(TargetId::mdt(0)),
            reason: "it said \"\n\"",
            ..AuditEvent::new(AuditKind::Refused, ([10, 0, 0, 1], 988).into())
        };
        (0..1000).for_each(|_| audit.note(&event));
        audit.note(&AuditEvent::new(AuditKind::Connected, ([10, 0, 0, 1], 988).into()));
        audit.note(&AuditEvent::new(AuditKind::Refused, ([10, 0, 0, 2], 988).into()));
        let path = dir.path().join("audit-mdt0000.log");
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        let text = std::fs::read_to_string(&path).expect("read");
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(lines.len(), 12, "ten of the one, and two others");
        let first = &lines[0];
        assert_eq!(first["key"], "0000000000000007");
        assert_eq!((&first["name"], &first["roles"]), (&json!("a host"), &json!("client")));
        assert_eq!((&first["event"], &first["target"]), (&json!("refused"), &json!("MDT0000")));
        assert_eq!((&first["address"], &first["reason"]), (&json!("10.0.0.1:988"), &json!("it said \"\n\"")));
        let change = AuditEvent { reason: "parameter a=1", ..AuditEvent::local(AuditKind::Changed) };
        (0..20).for_each(|_| audit.note(&change));
        let text = std::fs::read_to_string(&path).expect("read");
        assert_eq!(
            text.matches(r#""address":"local","event":"changed","reason":"parameter a=1""#).count(),
            20
        );
        assert_eq!(
            (&lines[10]["event"], &lines[11]["address"]),
            (&json!("connected"), &json!("10.0.0.2:988"))
        );
    }
}
