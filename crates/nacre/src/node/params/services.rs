//! Parameters for monitoring of a process and of its servers as a whole: `health_check`, `memused`,
//! `mds.MDS.*`, `ost.OSS.*`, `mgs.MGS.*`, `mgc.*`, `ldlm.services.*`.

use super::enter_import;
use crate::node::links::Links;
use nacre_client::Client;
use nacre_dlm::{LockService, RecoveryReport};
use nacre_env::sync::Mutex;
use nacre_mds::Mds;
use nacre_mgs::Mgs;
use nacre_oss::ObjectServer;
use nacre_params::stats::{now_ns, time_line};
use nacre_params::{Entries, EventStats, Tree};
use nacre_rpc::{ClientConfig, ImportInfo};
use nacre_types::Status;
use std::fmt::Write;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

/// Targets of a process, in the order in which they were entered.
#[derive(Default)]
pub struct Targets {
    osts: Mutex<Vec<(String, Arc<ObjectServer>)>>,
    mdts: Mutex<Vec<(String, Arc<Mds>)>>,
}

impl Targets {
    /// Returns the names of targets that lose new changes, or may.
    fn unhealthy(&self) -> Vec<String> {
        let osts = self.osts.lock();
        let mdts = self.mdts.lock();
        let osts = osts.iter().filter(|(_, server)| server.store().stats().sync_failures > 0);
        let mdts = mdts.iter().filter(|(_, mds)| mds.has_failed());
        osts.map(|(name, _)| name.clone()).chain(mdts.map(|(name, _)| name.clone())).collect()
    }

    /// Returns the object targets with their full names.
    pub fn osts(&self) -> Vec<(String, Arc<ObjectServer>)> {
        self.osts.lock().clone()
    }

    /// Returns the metadata targets with their full names.
    pub fn mdts(&self) -> Vec<(String, Arc<Mds>)> {
        self.mdts.lock().clone()
    }

    /// Returns the number of requests in which clients cancelled locks.
    fn cancels(&self) -> u64 {
        let osts: u64 = self.osts.lock().iter().map(|(_, server)| server.locks().cancels()).sum();
        let mdts: u64 = self.mdts.lock().iter().map(|(_, mds)| mds.mdlocks.cancels()).sum();
        osts + mdts
    }

    /// Adds an object target, and enters the counters of all object targets of this process.
    pub fn add_ost(self: &Arc<Targets>, tree: &Tree, name: &str, server: &Arc<ObjectServer>) {
        self.osts.lock().push((name.to_owned(), server.clone()));
        for (service, rows) in nacre_oss::SERVICES {
            tree.of("ost.OSS", self).show(&format!("{service}.stats"), move |targets| {
                let osts = targets.osts.lock();
                let all: Vec<&EventStats> = osts.iter().map(|(_, server)| server.services()).collect();
                EventStats::sum_text(&all, |name| rows.contains(&name))
            });
        }
        self.enter_cancels(tree);
    }

    /// Adds a metadata target likewise.
    pub fn add_mdt(self: &Arc<Targets>, tree: &Tree, name: &str, mds: &Arc<Mds>) {
        self.mdts.lock().push((name.to_owned(), mds.clone()));
        for (service, rows) in nacre_mds::SERVICES {
            tree.of("mds.MDS", self).show(&format!("{service}.stats"), move |targets| {
                let mdts = targets.mdts.lock();
                let all: Vec<&EventStats> = mdts.iter().map(|(_, mds)| mds.stats.services()).collect();
                EventStats::sum_text(&all, |name| rows.contains(&name))
            });
        }
        self.enter_cancels(tree);
    }

    fn enter_cancels(self: &Arc<Targets>, tree: &Tree) {
        tree.of("ldlm.services", self)
            .show("ldlm_canceld.stats", |targets| one_row("ldlm_cancel", targets.cancels()));
    }
}

/// Formats counters with one row, or none without samples.
fn one_row(name: &str, samples: u64) -> String {
    let mut text = time_line("snapshot_time", now_ns());
    if samples > 0 {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:<25} {samples} samples [reqs]");
    }
    text
}

/// Enters the parameters that every process has.
pub fn enter_process(tree: &Tree, targets: &Arc<Targets>) {
    let targets = targets.clone();
    tree.add_read("health_check", move || {
        let unhealthy = targets.unhealthy();
        if unhealthy.is_empty() {
            return Ok("healthy".to_owned());
        }
        let lines = unhealthy.iter().map(|name| format!("device {name} reported unhealthy\n"));
        Ok(lines.chain(["NOT HEALTHY\n".to_owned()]).collect())
    });
    for (name, field) in [("memused", "VmRSS:"), ("memused_max", "VmHWM:")] {
        tree.add_read(name, move || memory_bytes(field).map(|bytes| bytes.to_string()).ok_or(Status::EIO));
    }
    let silence = ClientConfig::default().dead_after.as_secs();
    tree.add_read("timeout", move || Ok(silence.to_string()));
}

/// Reads a field of this process's memory, in bytes.
fn memory_bytes(field: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Enters the parameters of this process's management server.
pub fn enter_mgs(tree: &Tree, fsname: &str, mgs: &Arc<Mgs>) {
    let entries = tree.of("mgs.MGS", mgs);
    entries.counters("mgs.stats", |mgs| mgs.stats().text(), |mgs| mgs.stats().clear());
    entries.show(&format!("live.{fsname}"), |mgs| {
        let config = mgs.config();
        let targets = config.targets.iter().map(|target| format!("{}-{}\n", config.fsname, target.target));
        format!("fsname: {}\ngen: {}\n", config.fsname, config.version) + &targets.collect::<String>()
    });
}

/// Enters the connection of a process to the management server.
pub fn enter_mgc(tree: &Tree, links: &Arc<Links>) {
    let import = links.mgs().import().unwrap_or_else(|| ImportInfo::local("MGS".to_owned()));
    let Some(nid) = import.nids.first() else { return };
    // Without the port, which would add components to the name.
    let nid = nid.to_string();
    let (host, net) = nid.split_once('@').unwrap_or((&nid, "lo"));
    let host = host.rsplit_once(':').filter(|(host, _)| !host.contains(':')).map_or(host, |(host, _)| host);
    let mgc = tree.of(&format!("mgc.MGC{host}@{net}"), links);
    mgc.show("uuid", |_| "MGS");
    enter_import(&mgc, |links| {
        Ok(links.mgs().import().unwrap_or_else(|| ImportInfo::local("MGS".to_owned())))
    });
}

/// Enters the counters of callbacks from servers to a mount.
pub fn enter_callbacks(tree: &Tree, client: &Arc<Client>) {
    tree.of("ldlm.services", client).show("ldlm_cbd.stats", |client| {
        let locks = client.lease.locks();
        let callbacks =
            client.requests.targets().into_iter().map(|target| locks.counts(target).callbacks).sum();
        one_row("ldlm_bl_callback", callbacks)
    });
}

/// Enters the recovery status: how clients of the previous run reconnected to an object target.
pub fn enter_recovery(entries: &Entries<'_, LockService>) {
    entries.show("recovery_status", |locks| recovery_text(locks.recovery_report()));
}

/// Enters the recovery status of a metadata target, with the changes that clients have replayed.
pub fn enter_mdt_recovery(entries: &Entries<'_, Mds>) {
    entries.show("recovery_status", |mds| {
        let (replayed, refused, last) = mds.replayed();
        let status = recovery_text(mds.mdlocks.recovery_report());
        let last = last.0;
        match status.starts_with("status: INACTIVE") {
            true => status,
            false => format!(
                "{status}replayed_requests: {replayed}\nrefused_requests: {refused}\nlast_transno: {last}\n"
            ),
        }
    });
}

/// Formats the report as Lustre's `recovery_status`.
fn recovery_text(report: Option<RecoveryReport>) -> String {
    let Some(report) = report else { return "status: INACTIVE\n".to_owned() };
    let RecoveryReport { began, took, remaining, expected, replaying, completed, given_up } = report;
    let connected = completed + replaying;
    let start = began.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    match took {
        Some(took) => format!(
            "status: COMPLETE\nrecovery_start: {start}\nrecovery_duration: {}\n\
             completed_clients: {completed}/{expected}\nevicted_clients: {given_up}\n",
            took.as_secs()
        ),
        None => format!(
            "status: RECOVERING\nrecovery_start: {start}\ntime_remaining: {}\n\
             connected_clients: {connected}/{expected}\ncompleted_clients: {completed}\nevicted_clients: {given_up}\n",
            remaining.as_secs()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn recoveries_have_the_form_that_monitoring_reads() {
        assert_eq!(recovery_text(None), "status: INACTIVE\n");
        let report = RecoveryReport {
            began: UNIX_EPOCH + Duration::from_secs(7),
            took: None,
            remaining: Duration::from_secs(20),
            expected: 3,
            replaying: 1,
            completed: 1,
            given_up: 1,
        };
        let text = recovery_text(Some(report));
        assert!(text.starts_with("status: RECOVERING\nrecovery_start: 7\ntime_remaining: 20\n"), "{text}");
        assert!(text.contains("connected_clients: 2/3\ncompleted_clients: 1\n"), "{text}");
        let text = recovery_text(Some(RecoveryReport { took: Some(Duration::from_secs(4)), ..report }));
        assert!(
            text.contains("recovery_duration: 4\ncompleted_clients: 1/3\nevicted_clients: 1\n"),
            "{text}"
        );
    }

    #[test]
    fn a_process_knows_its_memory() {
        let (now, most) = (memory_bytes("VmRSS:").expect("Linux"), memory_bytes("VmHWM:").expect("Linux"));
        assert!(now > 0 && most >= now / 2);
        assert_eq!(memory_bytes("VmNone:"), None);
    }
}
