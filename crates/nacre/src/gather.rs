//! Gathering of the figures of all processes of a directory, over their control sockets.

use crate::control::{self, Answer, Request};
use crate::instance::{Instance, target_name};
use crate::process::RunDir;
use nacre_monitor::{JobBook, ProcessSample, Snapshot};
use nacre_params::stats::now_ns;
use std::path::PathBuf;

/// Jobs with rows of their own; those of the others are summed up.
pub const JOBS_SHOWN: usize = 100;

/// Gathers the figures of a directory again and again.
pub struct Gathering {
    run: RunDir,
    fsname: String,
    /// Processes that should run, with their targets; empty if they are one process.
    expected: Vec<(String, Vec<String>)>,
    jobs: JobBook,
}

impl Gathering {
    /// Prepares the gathering for a file system that runs in `run`. `instance` is its directory, if its
    /// servers have processes of their own.
    pub fn new(run: RunDir, fsname: &str, instance: Option<&Instance>) -> Gathering {
        let of = |instance: &Instance| {
            instance.targets().into_iter().map(|id| (target_name(id), vec![id.to_string()])).collect()
        };
        let expected = instance.map_or_else(Vec::new, of);
        Gathering { run, fsname: fsname.to_owned(), expected, jobs: JobBook::new(JOBS_SHOWN) }
    }

    /// Asks all processes at the same time, except for `own`, the one that asks. One that does not answer
    /// costs 3 seconds, and is missing then.
    pub fn gather(&mut self, own: Option<ProcessSample>) -> Snapshot {
        let is_own = |name: &str| own.as_ref().is_some_and(|own| own.name == name);
        let others: Vec<String> = self.run.running().into_iter().filter(|name| !is_own(name)).collect();
        let sockets: Vec<PathBuf> = others.iter().map(|name| self.run.socket(name)).collect();
        let mut missing: Vec<(String, Vec<String>)> = Vec::new();
        let mut processes: Vec<ProcessSample> = own.into_iter().collect();
        for (name, (_, answer)) in others.iter().zip(control::ask_each(&sockets, &Request::Metrics)) {
            match answer {
                Ok(Answer::Metrics(sample)) => processes.push(*sample),
                _ => missing.push((name.clone(), Vec::new())),
            }
        }
        for (name, targets) in &self.expected {
            match missing.iter_mut().find(|(silent, _)| silent == name) {
                Some((_, of)) => of.clone_from(targets),
                None if processes.iter().any(|process| process.name == *name) => {}
                None => missing.push((name.clone(), targets.clone())),
            }
        }
        processes.sort_by(|a, b| a.name.cmp(&b.name));
        let jobs = processes.iter_mut().flat_map(|process| std::mem::take(&mut process.jobs));
        let jobs = self.jobs.note(jobs);
        Snapshot {
            at_ms: now_ns() / 1_000_000,
            fsname: self.fsname.clone(),
            processes,
            missing,
            jobs,
            ..Snapshot::default()
        }
    }
}
