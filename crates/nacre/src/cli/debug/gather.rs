//! The processes of a file system on this host, and their answers.

use crate::cli::top::gathering_of;
use crate::control::{self, Answer, Request};
use crate::debug::Question;
use crate::debug::chain::Process;
use crate::failure::{Failure, Result};
use crate::instance::{Instance, target_name};
use crate::process::{MOUNT, NODE, RunDir, why_silent};
use crate::{mounts, named, node, registry};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// Parameters of a state dump.
const DUMPED: &[&str] = &[
    "ldlm.namespaces.*.lock_count",
    "ldlm.namespaces.*.lock_unused_count",
    "ldlm.namespaces.*.resource_count",
    "llite.*.max_cached_mb",
    "llite.*.inode_cache",
    "osc.*.cur_dirty_bytes",
    "osc.*.cur_grant_bytes",
    "*.*.recovery_status",
    "*.*.num_exports",
    "memused",
    "memused_max",
];

/// A process of a file system.
pub struct Found {
    run: RunDir,
    name: String,
    pid: Option<i32>,
    targets: Vec<String>,
    mount_point: Option<PathBuf>,
}

impl Found {
    /// Returns its name, with the directory of its mount.
    pub fn label(&self) -> String {
        match &self.mount_point {
            Some(mount) if self.name == MOUNT => format!("mount {}", mount.display()),
            _ => self.name.clone(),
        }
    }

    /// Asks it.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn ask(&self, request: &Request) -> io::Result<Answer> {
        control::ask_for(&self.run.debug_socket(&self.name), request, control::STATUS_LIMIT)
    }

    /// Returns why it does not answer.
    pub fn trouble(&self) -> String {
        self.pid.map_or_else(|| "it does not run: start it with 'nacre up'".to_owned(), why_silent)
    }

    /// Returns parameters that differ from their defaults, and those of a state dump.
    pub fn params(&self) -> BTreeMap<String, String> {
        let socket = self.run.socket(&self.name);
        let ask = |request: &Request| control::ask_for(&socket, request, control::STATUS_LIMIT);
        let mut params = BTreeMap::new();
        // A control socket that does not answer must not hide the rest of the state.
        let Ok(Answer::Changed { params: changed }) = ask(&Request::ChangedParams) else { return params };
        params.extend(
            changed.into_iter().map(|(name, value, usual)| (name, format!("{value} (default {usual})"))),
        );
        for pattern in DUMPED {
            let find = Request::FindParams { pattern: (*pattern).to_owned(), recursive: false };
            let Ok(Answer::Params { params: names }) = ask(&find) else { continue };
            for found in names.into_iter().filter(|found| found.readable && !found.directory) {
                if let Ok(Answer::Value { value }) = ask(&Request::ReadParam { name: found.name.clone() }) {
                    params.entry(found.name).or_insert(value);
                }
            }
        }
        params
    }
}

/// The processes of a file system on this host.
pub struct Gathered {
    found: Vec<Found>,
}

impl Gathered {
    /// Finds the processes of a file system: servers, and mounts of it.
    ///
    /// # Errors
    /// If there is none, or there are several and none is named.
    pub fn of(path: Option<&Path>) -> Result<Gathered> {
        let (_, run) = gathering_of(path)?;
        let instance = named::instance_of(&run);
        let fsname = match &instance {
            Some(instance) => instance.superblock.fsname.clone(),
            None => fsname_of(&run).unwrap_or_default(),
        };
        let mut found = of_run(&run, instance.as_ref());
        let others = registry::running().into_iter().filter(|other| other.path != run.path);
        for other in others.filter(|other| fsname_of(other).is_some_and(|name| name == fsname)) {
            found.extend(of_run(&other, named::instance_of(&other).as_ref()));
        }
        Ok(Gathered { found })
    }

    /// Finds all processes of this host.
    pub fn on_host() -> Gathered {
        let runs = registry::running();
        let found = runs.iter().flat_map(|run| of_run(run, named::instance_of(run).as_ref()));
        Gathered { found: found.collect() }
    }

    /// Returns the process with this name, mount point or process id.
    ///
    /// # Errors
    /// If there is none, or more than one.
    pub fn find(&self, name: &str) -> Result<&Found> {
        let is_it = |found: &&Found| {
            let is_mount = found.mount_point.as_deref().is_some_and(|mount| mount == Path::new(name));
            found.name == name || is_mount || found.pid.is_some_and(|pid| pid.to_string() == name)
        };
        let mut matching = self.found.iter().filter(is_it);
        match (matching.next(), matching.next()) {
            (Some(found), None) => Ok(found),
            (Some(_), Some(_)) => Err(Failure::usage(format!(
                "several processes are called '{name}': say the process id of one"
            ))),
            _ => {
                let names: Vec<String> = self.found.iter().map(Found::label).collect();
                Err(Failure::new(format!("there is no process '{name}', only: {}", names.join(", "))))
            }
        }
    }

    /// Asks all processes at the same time.
    pub fn ask(&self, question: Question) -> Vec<(&Found, io::Result<Answer>)> {
        let sockets: Vec<PathBuf> =
            self.found.iter().map(|found| found.run.debug_socket(&found.name)).collect();
        let answers = control::ask_each(&sockets, &Request::Debug { question });
        self.found.iter().zip(answers.into_iter().map(|(_, answer)| answer)).collect()
    }

    /// Returns the processes with their states.
    pub fn processes(&self) -> Vec<Process> {
        let of = |(found, answer): (&Found, io::Result<Answer>)| {
            let state = match answer {
                Ok(Answer::Debug(state)) => Some(*state),
                _ => None,
            };
            Process {
                name: found.label(),
                pid: found.pid.and_then(|pid| pid.try_into().ok()),
                targets: state.as_ref().map_or_else(|| found.targets.clone(), |state| state.targets.clone()),
                trouble: state.is_none().then(|| found.trouble()),
                state,
            }
        };
        self.ask(Question::State).into_iter().map(of).collect()
    }
}

/// Returns the file system of a mount that has no directory here, or of a directory.
fn fsname_of(run: &RunDir) -> Option<String> {
    if let Some(instance) = named::instance_of(run) {
        return Some(instance.superblock.fsname);
    }
    let mount_point = node::recorded_mount_point(run)?;
    let mounted = mounts::nacre_mounts().ok()?;
    mounted.iter().find(|mount| mount.mount_point == mount_point).map(|mount| mount.fsname().to_owned())
}

/// Returns the processes of a run directory: those that run, and those of targets that do not.
fn of_run(run: &RunDir, instance: Option<&Instance>) -> Vec<Found> {
    let running = run.running();
    let targets = instance.map_or_else(Vec::new, Instance::targets);
    let of_process = |name: &str| {
        let serves = targets.iter().filter(|target| name == NODE || target_name(**target) == name);
        serves.map(ToString::to_string).collect()
    };
    let mount_point = node::recorded_mount_point(run);
    let mut found: Vec<Found> = running
        .iter()
        .map(|name| Found {
            run: run.clone(),
            name: name.clone(),
            pid: run.pid(name),
            targets: of_process(name),
            mount_point: mount_point.clone().filter(|_| name == MOUNT || name == NODE),
        })
        .collect();
    if !running.iter().any(|name| name == NODE) {
        let absent = targets.iter().filter(|target| !running.contains(&target_name(**target)));
        found.extend(absent.map(|target| Found {
            run: run.clone(),
            name: target_name(*target),
            pid: None,
            targets: vec![target.to_string()],
            mount_point: None,
        }));
    }
    found
}
