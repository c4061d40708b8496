//! `nacre status`: what runs, where it is reached, how full it is.

use super::StatusArgs;
use crate::control::{self, Answer, ProcessStatus, Request, SpaceStatus};
use crate::failure::{EXIT_FAILURE, Failure, Result};
use crate::instance::{Instance, target_name};
use crate::process::{MOUNT, NODE, RunDir};
use crate::registry;
use nacre_types::TargetKind;
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;

/// Runs the command.
pub fn run(args: &StatusArgs) -> Result<i32> {
    let overviews: Vec<Overview> = match &args.dir {
        Some(dir) => vec![Overview::of(&Instance::open_existing(dir)?)],
        None => registry::running().iter().map(Overview::of_run_dir).collect(),
    };
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
    let all_run = overviews.iter().all(|overview| overview.missing.is_empty());
    Ok(if all_run { 0 } else { EXIT_FAILURE })
}

/// State of one file system directory, or of one mount without a directory.
#[derive(Debug, Serialize)]
pub struct Overview {
    /// Name.
    pub fsname: String,
    /// `running`, `partly` or `stopped`.
    pub state: &'static str,
    /// Directory, if there is one on this host.
    pub dir: Option<PathBuf>,
    /// Number of MDTs and OSTs in the directory, if there is one.
    pub mdts: Option<u16>,
    /// See `mdts`.
    pub osts: Option<u16>,
    /// Processes that run and answer.
    pub processes: Vec<ProcessStatus>,
    /// Processes that should run and do not, or do not answer.
    pub missing: Vec<String>,
    /// The command that starts them.
    #[serde(skip)]
    start: &'static str,
}

impl Overview {
    /// Looks at a directory's processes.
    pub fn of(instance: &Instance) -> Overview {
        let run = RunDir::new(instance.run_dir());
        let mut overview = Overview::of_run_dir(&run);
        let expected: Vec<String> = match overview.processes.iter().any(|process| process.name == NODE) {
            _ if instance.is_outlying() => instance.targets().into_iter().map(target_name).collect(),
            true => vec![NODE.to_owned()],
            // Nothing runs: then nothing says which shape it would have, and one process is the usual one.
            false if overview.processes.is_empty() && overview.missing.is_empty() => vec![NODE.to_owned()],
            false if overview.missing.iter().any(|name| name == NODE) => vec![NODE.to_owned()],
            false => instance.targets().into_iter().map(target_name).chain([MOUNT.to_owned()]).collect(),
        };
        overview.missing = expected
            .into_iter()
            .filter(|name| !overview.processes.iter().any(|process| process.name == *name))
            .collect();
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

    /// Looks at the processes of a run directory, whatever they are.
    pub fn of_run_dir(run: &RunDir) -> Overview {
        let mut processes = Vec::new();
        let mut missing = Vec::new();
        let mut names = run.running();
        names.sort_by_key(|name| (rank(name), name.clone()));
        for name in names {
            match control::ask(&run.socket(&name), &Request::Status) {
                Ok(Answer::Status(status)) => processes.push(status),
                _ => missing.push(name),
            }
        }
        let instance = run.path.parent().and_then(|dir| Instance::open(dir).ok().flatten());
        let fsname =
            processes.first().map_or_else(String::new, |process: &ProcessStatus| process.fsname.clone());
        let mut overview = Overview {
            fsname,
            state: "stopped",
            dir: instance.as_ref().map(|instance| instance.dir.clone()),
            mdts: instance.as_ref().map(|instance| count(instance, TargetKind::Mdt)),
            osts: instance.as_ref().map(|instance| count(instance, TargetKind::Ost)),
            processes,
            missing,
            start: "nacre up",
        };
        overview.state = state(&overview);
        overview
    }

    /// One line about the whole.
    pub fn headline(&self, state: &str) -> String {
        let mut text = format!("file system '{}' {state}", self.fsname);
        if let Some(mount) = self.processes.iter().find_map(|process| process.mount.as_ref()) {
            let _ = write!(text, ", mounted on {} over {}", mount.mount_point.display(), mount.transport);
        }
        text
    }

    /// Prints as JSON.
    ///
    /// # Errors
    /// If standard output is gone.
    pub fn print_json(&self) -> Result<()> {
        print_json(self)
    }

    fn table(&self) -> String {
        let mut out = self.headline(match self.state {
            "running" => "is running",
            "partly" => "is running in part",
            _ => "is stopped",
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
        if self.state != "stopped" {
            for name in &self.missing {
                let _ = writeln!(out, "{name:<9} does not run: start it with '{}' again", self.start);
            }
        }
        out
    }
}

/// Order in which processes are shown.
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
    match (overview.processes.is_empty(), overview.missing.is_empty()) {
        (true, _) => "stopped",
        (false, true) => "running",
        (false, false) => "partly",
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

/// `1m02s`, `3h04m`, `5d06h`.
fn duration(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m{:02}s", seconds % 60),
        3600..86_400 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

/// Powers of 1024 with one digit after the point.
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

fn print_json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(Failure::because("write JSON"))?;
    println!("{text}");
    Ok(())
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
