//! `nacre status`: processes, their addresses, and the space of targets.

mod elsewhere;

use super::StatusArgs;
use crate::control::{self, Answer, ProcessStatus, Request, SpaceStatus};
use crate::failure::{EXIT_FAILURE, Result};
use crate::instance::{Instance, target_name};
use crate::named::{self, Named};
use crate::output::print_json;
use crate::process::{self, MOUNT, NODE, RunDir};
use crate::start::Start;
use crate::{holders, mounts, registry};
use elsewhere::Elsewhere;
use nacre_types::{TargetId, TargetKind};
use serde::Serialize;
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};

/// Runs the command.
pub fn run(args: &StatusArgs) -> Result<i32> {
    let mut overviews: Vec<Overview> = match &args.dir {
        Some(path) => vec![match named::find(path)? {
            Named::Directory(instance) => Overview::of(&instance),
            Named::Mount(run) => Overview::of_run_dir(&run),
        }],
        None => registry::running().iter().map(Overview::of_run_dir).collect(),
    };
    overviews.iter_mut().for_each(Overview::look_elsewhere);
    if args.json {
        match (&args.dir, overviews.as_slice()) {
            (Some(_), [one]) => one.print_json()?,
            _ => print_json(&overviews)?,
        }
    } else if overviews.is_empty() {
        println!("no NacreFS file system runs here");
    } else {
        let texts: Vec<String> = overviews.iter().map(Overview::table).collect();
        print!("{}", texts.join("\n"));
    }
    Ok(if overviews.iter().all(Overview::is_well) { 0 } else { EXIT_FAILURE })
}

/// State of one file system directory, or of one mount without a directory.
#[derive(Debug, Serialize)]
pub struct Overview {
    /// File system name.
    pub fsname: String,
    /// `running`, `partly`, `not responding` or `stopped`.
    pub state: &'static str,
    /// Directory on this host, if there is one.
    pub dir: Option<PathBuf>,
    /// Number of MDTs and OSTs in the directory, if there is one.
    pub mdts: Option<u16>,
    /// Number of OSTs; see `mdts`.
    pub osts: Option<u16>,
    /// Processes that run and answer.
    pub processes: Vec<ProcessStatus>,
    /// Names of processes that should run and do not.
    pub missing: Vec<String>,
    /// Processes that run and do not answer.
    pub silent: Vec<Silent>,
    /// Further problems, as sentences.
    pub problems: Vec<String>,
    /// Targets that other hosts serve.
    pub elsewhere: Vec<Elsewhere>,
    /// Command that starts the missing processes.
    #[serde(skip)]
    start: &'static str,
}

/// A process that runs and does not answer.
#[derive(Debug, Serialize)]
pub struct Silent {
    /// Name as in [`ProcessStatus`].
    pub name: String,
    /// Process id.
    pub pid: i32,
    /// Cause as far as the kernel shows it, and a remedy.
    pub why: String,
}

impl Silent {
    fn of(run: &RunDir, name: &str, error: &io::Error) -> Option<Silent> {
        // A process that has ended meanwhile counts as missing.
        let pid = run.pid(name)?;
        let why = match control::is_silence(error) {
            true => process::why_silent(pid),
            // It has no socket yet, or has removed it.
            false => "it is just starting or ending: look again in a moment".to_owned(),
        };
        Some(Silent { name: name.to_owned(), pid, why })
    }

    /// Returns one sentence about the process.
    pub fn text(&self) -> String {
        format!("{} (pid {}) is not responding: {}", self.name, self.pid, self.why)
    }
}

impl Overview {
    /// Returns true if all processes run and answer.
    pub fn is_well(&self) -> bool {
        self.missing.is_empty() && self.silent.is_empty() && self.problems.is_empty()
    }

    /// Queries the processes of a directory.
    pub fn of(instance: &Instance) -> Overview {
        let run = RunDir::new(instance.run_dir());
        let mut overview = Overview::of_run_dir(&run);
        let is_there = |name: &str| {
            overview.processes.iter().any(|process| process.name == name)
                || overview.silent.iter().any(|silent| silent.name == name)
        };
        let nothing_runs = overview.processes.is_empty() && overview.silent.is_empty();
        let is_separate = match nothing_runs {
            // It runs in the shape of its last start; one process is the default.
            true => Start::load(&instance.dir).ok().flatten().is_some_and(|start| start.is_separate),
            false => !is_there(NODE),
        };
        let targets = instance.targets().into_iter().map(target_name);
        let expected: Vec<String> = match is_separate {
            _ if instance.is_outlying() => targets.collect(),
            true => targets.chain([MOUNT.to_owned()]).collect(),
            false => vec![NODE.to_owned()],
        };
        overview.missing = expected.into_iter().filter(|name| !is_there(name)).collect();
        overview.state = state(&overview);
        overview.fsname.clone_from(&instance.superblock.fsname);
        if instance.is_outlying() {
            overview.start = "nacre target start";
        }
        overview.dir = Some(instance.dir.clone());
        overview.mdts = Some(count(instance, TargetKind::Mdt));
        overview.osts = Some(count(instance, TargetKind::Ost));
        overview
    }

    /// Asks the management server for the targets that other hosts serve.
    fn look_elsewhere(&mut self) {
        let instance = self.dir.as_deref().and_then(|dir| Instance::open(dir).ok().flatten());
        if let Some(instance) = instance.filter(|_| !self.processes.is_empty()) {
            self.elsewhere = elsewhere::of(&instance);
        }
    }

    /// Queries all processes of a run directory.
    pub fn of_run_dir(run: &RunDir) -> Overview {
        let mut names = run.running();
        names.sort_by_key(|name| (rank(name), name.clone()));
        let sockets: Vec<PathBuf> = names.iter().map(|name| run.socket(name)).collect();
        let (mut processes, mut silent) = (Vec::new(), Vec::new());
        for (name, (_, answer)) in names.iter().zip(control::ask_each(&sockets, &Request::Status)) {
            match answer {
                Ok(Answer::Status(status)) => processes.push(*status),
                Ok(_) => silent.extend(Silent::of(run, name, &io::ErrorKind::TimedOut.into())),
                Err(error) => silent.extend(Silent::of(run, name, &error)),
            }
        }
        let problems = processes.iter().filter_map(lost_mount).collect();
        let instance = run.path.parent().and_then(|dir| Instance::open(dir).ok().flatten());
        let fsname = processes.first().map(|process: &ProcessStatus| process.fsname.clone());
        let fsname = fsname
            .or_else(|| instance.as_ref().map(|instance| instance.superblock.fsname.clone()))
            .unwrap_or_default();
        let mut overview = Overview {
            fsname,
            state: "stopped",
            dir: instance.as_ref().map(|instance| instance.dir.clone()),
            mdts: instance.as_ref().map(|instance| count(instance, TargetKind::Mdt)),
            osts: instance.as_ref().map(|instance| count(instance, TargetKind::Ost)),
            processes,
            missing: Vec::new(),
            silent,
            problems,
            elsewhere: Vec::new(),
            start: "nacre up",
        };
        overview.state = state(&overview);
        overview
    }

    /// Returns one line about the whole file system.
    pub fn headline(&self, state: &str) -> String {
        let mut text = format!("file system '{}' {state}", self.fsname);
        if let Some(mount) = self.processes.iter().find_map(|process| process.mount.as_ref()) {
            let _ = write!(text, ", mounted on {} over {}", mount.mount_point.display(), mount.transport);
        }
        text
    }

    /// Returns a line for each target without free space, with a hint at what to free.
    pub fn full_targets(&self) -> String {
        let mut out = String::new();
        let targets = self.processes.iter().flat_map(|process| &process.targets);
        for target in
            targets.filter(|target| target.space.as_ref().is_some_and(|space| space.available_bytes == 0))
        {
            let id = target.target.parse::<TargetId>().ok();
            let place = self.dir.as_ref().zip(id).map_or_else(
                || "where it lies".to_owned(),
                |(dir, id)| format!("on the file system of {}", dir.join(target_name(id)).display()),
            );
            let _ = writeln!(
                out,
                "{} is full: files can be read and removed; remove some, or free space {place} (its log says how much)",
                target.target
            );
        }
        out
    }

    /// Prints as JSON.
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub fn print_json(&self) -> Result<()> {
        print_json(self)
    }

    fn table(&self) -> String {
        let mut out = self.headline(match self.state {
            "running" => "is running",
            "partly" => "is running in part",
            "stopped" => "is stopped",
            _ => "is not responding",
        });
        if let Some(dir) = &self.dir {
            let _ = write!(out, "\ndirectory {}", dir.display());
        }
        out.push('\n');
        if !self.processes.is_empty() {
            let _ = writeln!(
                out,
                "{:<9} {:>8} {:>9}  {:<8} {:<24} {:>9} {:>9} {:>5} {:>8}",
                "PROCESS", "PID", "UPTIME", "TARGET", "NID", "SIZE", "FREE", "USE%", "CLIENTS"
            );
        }
        for process in &self.processes {
            rows_of(&mut out, process);
        }
        for Elsewhere { target, nids, answers } in &self.elsewhere {
            let state = if *answers { "takes connections" } else { "does not answer" };
            let _ = writeln!(out, "{:<29}  {target:<8} {:<24} {state}", "on another host", nids.join(","));
        }
        for process in self.processes.iter().filter(|process| process.checksum_errors > 0) {
            let (name, count) = (&process.name, process.checksum_errors);
            let _ = writeln!(
                out,
                "{name:<9} {count} frames came damaged over the network and were sent again: look at \
                 'lctl get_param *.*.import *.*.exports.*.checksum_errors'"
            );
        }
        for target in self.processes.iter().flat_map(|process| &process.targets).filter(|it| it.problems > 0)
        {
            let _ = writeln!(
                out,
                "{}: {} problems found in use: 'nacre check' names them",
                target.target, target.problems
            );
        }
        out.push_str(&connections(&self.processes));
        out.push_str(&self.full_targets());
        if self.state != "stopped" {
            for name in &self.missing {
                let _ = writeln!(out, "{name:<9} does not run: start it with '{}' again", self.start);
            }
        }
        for silent in &self.silent {
            let _ = writeln!(out, "{:<9} {:>8} is not responding: {}", silent.name, silent.pid, silent.why);
        }
        // A wait is not a problem of the process: the peer that it waits for may be about to start.
        for problem in self.problems.iter().cloned().chain(self.processes.iter().filter_map(unreachable)) {
            let _ = writeln!(out, "{problem}");
        }
        logs(&mut out, &self.processes);
        out
    }
}

/// Returns lines about the addresses that processes listen on, with the protection of their connections.
fn connections(processes: &[ProcessStatus]) -> String {
    let with = |wanted: &str| {
        let of = |process: &ProcessStatus| {
            let addresses = process.listening.iter().filter(|listening| listening.security == wanted);
            let addresses: Vec<_> = addresses.map(|listening| listening.address.clone()).collect();
            (!addresses.is_empty()).then(|| format!("{} ({})", process.name, addresses.join(", ")))
        };
        processes.iter().filter_map(of).collect::<Vec<_>>().join(", ")
    };
    let mut out = String::new();
    for (security, what) in [
        ("encrypt", "encrypted, with a key"),
        ("authenticate", "authenticated, with a key, and can be read by others"),
    ] {
        let names = with(security);
        if !names.is_empty() {
            let _ = writeln!(out, "{what}: {names}");
        }
    }
    let open = with("open");
    if !open.is_empty() {
        let text = format!("OPEN, every peer is served: {open}; 'nacre key init' makes keys");
        let _ = writeln!(out, "{}", crate::output::warning(&text));
    }
    out
}

/// Returns the rank of a process in the output.
fn rank(name: &str) -> u8 {
    match name.get(..3) {
        Some("mgs") => 0,
        Some("mdt") => 1,
        Some("ost") => 2,
        _ => 3,
    }
}

fn count(instance: &Instance, kind: TargetKind) -> u16 {
    instance.targets().iter().filter(|target| target.kind == kind).count() as u16
}

fn state(overview: &Overview) -> &'static str {
    match (overview.processes.is_empty(), overview.silent.is_empty(), overview.missing.is_empty()) {
        (true, true, _) => "stopped",
        (true, false, _) => "not responding",
        (false, true, true) => "running",
        _ => "partly",
    }
}

/// Returns the sentence about targets to which a mount has lost the connection.
fn unreachable(process: &ProcessStatus) -> Option<String> {
    let mount = process.mount.as_ref().filter(|mount| !mount.unreachable.is_empty())?;
    let targets = mount.unreachable.join(", ");
    Some(format!("{0} waits for {targets}: see 'lfs check all {0}'", mount.mount_point.display()))
}

/// Returns the sentence about a lazily unmounted mount that is still in use.
fn lost_mount(process: &ProcessStatus) -> Option<String> {
    let mount = process.mount.as_ref()?;
    let device = mount.device?;
    if mounts::has_device(process.pid, device.0, device.1)? {
        return None;
    }
    Some(format!(
        "{} is unmounted, and {} (pid {}) continues as it is {}: end them, or use 'nacre down --force'",
        mount.mount_point.display(),
        process.name,
        process.pid,
        holders::named(&holders::of_device(device))
    ))
}

/// Appends the paths of the logs: once for a directory.
fn logs(out: &mut String, processes: &[ProcessStatus]) {
    let logs: Vec<&Path> = processes.iter().filter_map(|process| process.log.as_deref()).collect();
    match logs.as_slice() {
        [] => {}
        [one] => drop(writeln!(out, "log {}", one.display())),
        [first, rest @ ..] => {
            let dir = first.parent().unwrap_or(first);
            let is_in = |log: &&Path| log.parent() == Some(dir);
            let _ = writeln!(out, "logs {}/PROCESS.log", dir.display());
            for log in rest.iter().copied().filter(|log| !is_in(log)) {
                let _ = writeln!(out, "log {}", log.display());
            }
        }
    }
}

fn rows_of(out: &mut String, process: &ProcessStatus) {
    let mut head = format!("{:<9} {:>8} {:>9}", process.name, process.pid, duration(process.uptime_seconds));
    for target in &process.targets {
        let nids = target.nids.join(",");
        let clients = target.clients.map_or_else(|| "-".to_owned(), |clients| clients.to_string());
        let (size, free, percent) = target.space.as_ref().map_or_else(
            || ("-".to_owned(), "-".to_owned(), "-".to_owned()),
            |space| (size(space.total_bytes), size(space.available_bytes), format!("{}%", percent(space))),
        );
        let _ = writeln!(
            out,
            "{head}  {:<8} {nids:<24} {size:>9} {free:>9} {percent:>5} {clients:>8}",
            target.target
        );
        head = format!("{:<9} {:>8} {:>9}", "", "", "");
    }
    if let Some(mount) = &process.mount {
        let _ = writeln!(
            out,
            "{head}  mount    {} on {} over {}",
            mount.source,
            mount.mount_point.display(),
            mount.transport
        );
    } else if process.targets.is_empty() {
        let _ = writeln!(out, "{head}");
    }
}

fn percent(space: &SpaceStatus) -> u64 {
    let whole = u128::from(space.used_bytes) + u128::from(space.available_bytes);
    if whole == 0 { 0 } else { (u128::from(space.used_bytes) * 100).div_ceil(whole) as u64 }
}

/// Formats a duration: `1m02s`, `3h04m`, `5d06h`.
fn duration(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m{:02}s", seconds % 60),
        3600..86_400 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

/// Formats bytes in powers of 1024 with one digit after the point.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes}B") } else { format!("{value:.1}{}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_are_short() {
        assert_eq!(duration(59), "59s");
        assert_eq!(duration(62), "1m02s");
        assert_eq!(duration(3 * 3600 + 240), "3h04m");
        assert_eq!(duration(5 * 86_400 + 6 * 3600), "5d06h");
        assert_eq!(size(1023), "1023B");
        assert_eq!(size(3 << 29), "1.5GiB");
    }
}
