//! The processes of a file system, and its keys.

use super::{Change, Finding, Machine, Subject};
use crate::control::ProcessStatus;
use crate::keys;
use nacre_env::clock;
use nacre_keys::Key;
use nacre_types::Timestamp;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Open files below which a server or mount may run out of descriptors.
const FILES_MIN: u64 = 16 << 10;
/// Time before its expiry at which a certificate should have been renewed, in seconds.
const RENEWAL_LATE_S: u64 = 7 * 86_400;

/// Examines processes and keys.
pub fn examine(machine: &Machine, subject: &Subject) -> Vec<Finding> {
    let mut findings = state(subject);
    for process in &subject.overview.processes {
        findings.extend(program(machine, process));
        findings.extend(descriptors(machine, process));
        findings.extend(security(process));
        if process.checksum_errors > 0 {
            findings.push(
                Finding::warning(
                    "network",
                    format!(
                        "{} received {} frames with a wrong checksum; they were sent again",
                        process.name, process.checksum_errors
                    ),
                )
                .remedy("a network card or switch damages data: look at ethtool -S"),
            );
        }
    }
    if let Some(instance) = &subject.instance {
        findings.extend(keys_in(&instance.dir.join(keys::DIR)));
    }
    findings
}

/// Reports what `nacre status` reports.
fn state(subject: &Subject) -> Vec<Finding> {
    let overview = &subject.overview;
    let missing = overview
        .missing
        .iter()
        .map(|name| format!("{name} of file system '{}' does not run", overview.fsname));
    let mut findings: Vec<Finding> = match overview.processes.is_empty() {
        true => vec![
            Finding::note(
                "service",
                format!("file system '{}' does not run; its network was not examined", overview.fsname),
            )
            .remedy("nacre up DIR"),
        ],
        false => missing.map(|text| Finding::error("service", text).remedy("nacre up DIR")).collect(),
    };
    findings.extend(overview.silent.iter().map(|silent| Finding::error("service", silent.text())));
    findings.extend(overview.problems.iter().map(|problem| Finding::error("service", problem.clone())));
    if overview.is_well() {
        findings
            .push(Finding::ok("service", format!("all processes of '{}' run and answer", overview.fsname)));
    }
    findings
}

/// Examines whether a process still runs the installed program.
fn program(machine: &Machine, process: &ProcessStatus) -> Option<Finding> {
    let exe = std::fs::read_link(machine.path(&format!("/proc/{}/exe", process.pid))).ok()?;
    let path = exe.to_str()?.strip_suffix(" (deleted)")?;
    Some(
        Finding::warning(
            "version",
            format!("{} runs a program that was replaced since: {path}", process.name),
        )
        .remedy("restart it to use the new version: nacre down DIR; nacre up DIR"),
    )
}

fn descriptors(machine: &Machine, process: &ProcessStatus) -> Option<Finding> {
    let text = machine.read(&format!("/proc/{}/limits", process.pid))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let soft = line.split_whitespace().next()?;
    let limit: u64 = if soft == "unlimited" { u64::MAX } else { soft.parse().ok()? };
    let text = format!("{} may open {soft} files", process.name);
    Some(match limit < FILES_MIN {
        true => Finding::warning("limits", text)
            .remedy("raise it before 'nacre up': ulimit -n 65536, or LimitNOFILE=65536 in a unit"),
        false => Finding::ok("limits", text),
    })
}

fn security(process: &ProcessStatus) -> Vec<Finding> {
    let open = process.listening.iter().filter(|address| address.security == "open");
    open.map(|address| {
        Finding::warning(
            "keys",
            format!(
                "{} on {} needs no key: every host that reaches it is root",
                process.name, address.address
            ),
        )
        .remedy("nacre up DIR --security encrypt")
    })
    .collect()
}

/// Examines the files of keys: permissions and expiry.
fn keys_in(dir: &Path) -> Vec<Finding> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut findings = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "key") {
            continue;
        }
        let mode = entry.metadata().map_or(0, |found| found.permissions().mode());
        if mode & 0o077 != 0 {
            let text = format!("other users may read {} (mode {:o})", path.display(), mode & 0o7777);
            findings.push(Finding::error("keys", text).change(Change::Private { path: path.clone() }));
        }
        let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        findings.extend(Key::load(dir, name).ok().map(|key| expiry(&key, &path)));
    }
    findings
}

fn expiry(key: &Key, path: &Path) -> Finding {
    let now_s = u64::try_from(Timestamp::from(clock::wall()).sec).unwrap_or(0);
    let left_s = key.identity.until_s.saturating_sub(now_s);
    let text = format!("the certificate of {} is valid for {} days", path.display(), left_s / 86_400);
    match left_s {
        0 => Finding::error("keys", format!("the certificate of {} has expired", path.display()))
            .remedy("start the file system on the host of its management server, or enrol with a new token"),
        left if left < RENEWAL_LATE_S && !key.identity.is_final => {
            Finding::warning("keys", format!("{text}; it should have been renewed"))
                .remedy("the management server must be reachable: nacre status")
        }
        _ => Finding::ok("keys", text),
    }
}
