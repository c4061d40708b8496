//! Figures of this process for monitoring, and the server that shows them.

mod jobs;
mod mount;
mod targets;

use super::Node;
use crate::failure::{Failure, Result};
use crate::gather::Gathering;
use crate::instance::Instance;
use crate::logger;
use crate::process::NODE;
use nacre_monitor::http::Server;
use nacre_monitor::{JobBook, MetricsSite, ProcessSample, Sample, Sampler, Snapshot};
use nacre_types::{TargetId, TargetKind};
use std::net::TcpListener;
use std::sync::Arc;

impl Node {
    /// Returns the figures of this process.
    pub(super) fn sample(&self) -> ProcessSample {
        let mut sample = Sample::default();
        self.put_process(&mut sample);
        let known = self.params.targets();
        let mut totals = Vec::new();
        for (name, server) in known.osts() {
            targets::put_ost(&mut sample, short(&name), &server);
            totals.extend(jobs::of_ost(server.job_stats()));
        }
        for (name, mds) in known.mdts() {
            targets::put_mdt(&mut sample, short(&name), &mds);
            totals.extend(jobs::of_mdt(mds.stats.jobs()));
        }
        if self.services.mgs_here().is_some() {
            self.put_pools(&mut sample);
        }
        if let Some(mount) = self.mount.lock().as_ref() {
            mount::put(&mut sample, mount);
        }
        ProcessSample {
            name: self.plan.name.clone(),
            targets: self.targets.lock().iter().map(TargetId::to_string).collect(),
            sample,
            jobs: jobs::bounded(totals),
        }
    }

    fn put_process(&self, sample: &mut Sample) {
        sample.put("nacre_build_info", &[env!("CARGO_PKG_VERSION")], 1.0);
        sample.put("nacre_process_uptime_seconds", &[], self.started.elapsed().as_secs_f64());
        if let Some(usage) = Usage::read() {
            sample.put("nacre_process_resident_memory_bytes", &[], usage.resident_bytes as f64);
            sample.put("nacre_process_threads", &[], usage.threads as f64);
            sample.put("nacre_process_cpu_seconds", &[], usage.cpu_s);
        }
        if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
            sample.put("nacre_process_open_files", &[], files.count() as f64);
        }
        let damaged = self.services.checksum_errors()
            + self.mount.lock().as_ref().map_or(0, super::Mounted::checksum_errors);
        sample.put("nacre_frames_damaged", &[], damaged as f64);
        if let Some(end_s) = self.keys.as_ref().and_then(crate::keys::Keys::expires_s) {
            sample.put("nacre_key_expires_timestamp_seconds", &[], end_s as f64);
        }
        for (level, count) in logger::counts() {
            sample.put("nacre_log_messages", &[level], count as f64);
        }
    }

    fn put_pools(&self, sample: &mut Sample) {
        let Ok(config) = self.links.config(0, 0) else { return };
        for pool in &config.pools {
            for ost in &pool.osts {
                let target = TargetId::ost(*ost).to_string();
                sample.put("nacre_pool_member", &[&pool.name.to_string(), &target], 1.0);
            }
        }
    }

    /// Serves the figures: of the whole directory if the management server is here or in another directory, otherwise of
    /// this process.
    pub(super) fn serve_figures(self: &Arc<Node>, listener: TcpListener) -> Result<()> {
        let Some(address) = &self.plan.metrics else { return Ok(()) };
        let node = Arc::downgrade(self);
        let serves_all = self.plan.targets.iter().any(|target| target.kind == TargetKind::Mgt)
            || self.plan.instance.as_ref().is_some_and(Instance::is_outlying);
        let separate = self.plan.instance.as_ref().filter(|_| serves_all && self.plan.name != NODE);
        let mut gathering = Gathering::new(self.plan.run.clone(), &self.plan.fsname, separate);
        let mut own_jobs = JobBook::new(crate::gather::JOBS_SHOWN);
        let gather = move || {
            let Some(node) = node.upgrade() else { return Snapshot::default() };
            match serves_all {
                true => gathering.gather(Some(node.sample())),
                false => {
                    let mut own = node.sample();
                    let jobs = own_jobs.note(std::mem::take(&mut own.jobs));
                    Snapshot {
                        fsname: node.plan.fsname.clone(),
                        processes: vec![own],
                        jobs,
                        ..Snapshot::default()
                    }
                }
            }
        };
        let fail = || Failure::because(format!("serve figures on {address}"));
        let sampler = Sampler::start(Box::new(gather), None, |_| ()).map_err(fail())?;
        let server =
            Server::start("metrics", listener, address.names(), MetricsSite::new(sampler)).map_err(fail())?;
        log::info!("figures for Prometheus are on http://{}/metrics", server.address());
        *self.figures.lock() = Some(server);
        Ok(())
    }
}

/// Returns the name of a target without that of its file system.
fn short(name: &str) -> &str {
    name.rsplit_once('-').map_or(name, |(_, target)| target)
}

/// Resources that this process uses.
struct Usage {
    resident_bytes: u64,
    threads: u64,
    cpu_s: f64,
}

impl Usage {
    fn read() -> Option<Usage> {
        Usage::parse(
            &std::fs::read_to_string("/proc/self/stat").ok()?,
            rustix::param::page_size() as u64,
            rustix::param::clock_ticks_per_second(),
        )
    }

    /// Parses proc_pid_stat(5). The name of the program, in parentheses, may contain spaces and parentheses.
    fn parse(stat: &str, page_bytes: u64, ticks_per_s: u64) -> Option<Usage> {
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let ticks = field(14)?.checked_add(field(15)?)?;
        Some(Usage {
            resident_bytes: field(24)?.checked_mul(page_bytes)?,
            threads: field(20)?,
            cpu_s: ticks as f64 / ticks_per_s.max(1) as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_what_it_uses_whatever_its_name() {
        let usage = Usage::read().expect("Linux");
        assert!(usage.resident_bytes > 1 << 20 && usage.threads >= 1);
        let numbers: Vec<String> = (4..=52).map(|number| number.to_string()).collect();
        let stat = format!("1 (a ) b) S {}", numbers.join(" "));
        let usage = Usage::parse(&stat, 4096, 100).expect("well-formed");
        assert_eq!((usage.resident_bytes, usage.threads, usage.cpu_s), (24 * 4096, 20, 0.29));
        assert!(Usage::parse("1 (a) S 2", 4096, 100).is_none() && Usage::parse("", 4096, 100).is_none());
    }

    #[test]
    fn names_of_targets_lose_that_of_the_file_system() {
        assert_eq!((short("my-fs-OST0001"), short("MDT0000")), ("OST0001", "MDT0000"));
    }
}
