//! `nacre top`: what a file system does at this moment, in a terminal.

use crate::failure::{Failure, Result};
use crate::gather::Gathering;
use crate::lfs::identity::{Kind, Names, project_name};
use crate::named::{self, Named};
use crate::process::{NODE, RunDir, StopSignals};
use crate::registry;
use nacre_env::sync::mpsc::RecvTimeoutError;
use nacre_monitor::{Snapshot, View};
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Shows targets, jobs and alerts of a file system of this host, again and again.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example: nacre top /srv/fs
         nacre top /srv/fs --once
         nacre top --json --interval 5 | jq .total.write")]
pub struct TopArgs {
    /// Directory or mount point of the file system [default: the one that runs here]
    dir: Option<PathBuf>,
    /// Seconds between two figures
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// Show the figures of one interval, and end
    #[arg(long)]
    once: bool,
    /// Print a line of JSON for each interval
    #[arg(long)]
    json: bool,
}

/// Size of a terminal that does not tell its own.
const SIZE: (usize, usize) = (100, 40);
/// Clears the rest of a line.
const TO_END_OF_LINE: &str = "\x1b[K";

/// Runs the command.
pub fn run(args: &TopArgs) -> Result<i32> {
    let signals = StopSignals::take()?;
    let (mut gathering, _) = gathering_of(args.dir.as_deref())?;
    signals.set_ready();
    let is_screen = !args.once && !args.json && io::stdout().is_terminal();
    let mut before: Option<Snapshot> = None;
    let mut names = Names::default();
    loop {
        let mut now = gathering.gather(None);
        name_owners(&mut now, &mut names);
        if before.is_some() {
            let view = View::of(before.as_ref(), &now);
            let shown = match args.json {
                true => serde_json::to_string(&view).map_err(Failure::because("write JSON"))? + "\n",
                false if is_screen => screen(&view, size()),
                false => text(&view),
            };
            let written = io::stdout().write_all(shown.as_bytes()).and_then(|()| io::stdout().flush());
            match written {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(0),
                written => written.map_err(Failure::because("write the figures"))?,
            }
            if args.once {
                return Ok(0);
            }
        }
        before = Some(now);
        match signals.wait_for(Duration::from_secs(args.interval)) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => return Ok(0),
        }
    }
}

/// Returns what gathers the figures of a file system of this host, and where its processes run.
///
/// # Errors
/// If there is none, or there are several and none is named.
pub fn gathering_of(path: Option<&Path>) -> Result<(Gathering, RunDir)> {
    let (run, instance) = match path.map(named::find).transpose()? {
        Some(Named::Directory(instance)) => (RunDir::new(instance.run_dir()), Some(instance)),
        Some(Named::Mount(run)) => (run.clone(), named::instance_of(&run)),
        None => {
            let running = registry::running();
            match running.as_slice() {
                [] => {
                    return Err(Failure::new("no NacreFS file system runs here: start one with 'nacre up'"));
                }
                [run] => (run.clone(), named::instance_of(run)),
                _ => return Err(Failure::usage("several file systems run here: name the directory of one")),
            }
        }
    };
    let fsname = instance.as_ref().map_or_else(String::new, |instance| instance.superblock.fsname.clone());
    let separate = instance.as_ref().filter(|_| !run.running().iter().any(|name| name == NODE));
    let gathering = Gathering::new(run.clone(), &fsname, separate);
    Ok((gathering, run))
}

/// Names the owners of a snapshot as this host knows them.
pub fn name_owners(snapshot: &mut Snapshot, names: &mut Names) {
    snapshot.name_owners(|kind, id| match kind {
        "user" => Some(names.of(Kind::User, id).to_owned()),
        "group" => Some(names.of(Kind::Group, id).to_owned()),
        "project" => Some(project_name(id)),
        _ => None,
    });
}

/// Returns columns and lines of the terminal.
fn size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => SIZE,
    }
}

/// Returns the text for a terminal of this size, over the one before.
fn screen(view: &View, (columns, lines): (usize, usize)) -> String {
    let text = text(view);
    let shown: Vec<String> = text
        .lines()
        .take(lines.saturating_sub(1))
        .map(|line| line.chars().take(columns).collect::<String>() + TO_END_OF_LINE)
        .collect();
    format!("\x1b[H{}\r\n\x1b[J", shown.join("\r\n"))
}

fn text(view: &View) -> String {
    let total = &view.total;
    let mut out = format!(
        "file system '{}': read {}/s, written {}/s, {} metadata operations/s, 99th percentile {} at OSTs, {} at MDTs\n",
        plain(&view.fsname),
        bytes(total.read),
        bytes(total.write),
        count(total.metadata),
        time(total.ost_p99_s),
        time(total.mdt_p99_s)
    );
    for alert in &view.alerts {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{}: {}. {}", alert.severity.to_uppercase(), plain(&alert.text), alert.action);
    }
    let _ = writeln!(
        out,
        "\n{:<9} {:<10} {:>5} {:>10} {:>12} {:>12} {:>9} {:>9} {:>5}",
        "TARGET", "STATE", "USE%", "AVAILABLE", "READ/S", "WRITTEN/S", "REQS/S", "MEAN", "BUSY"
    );
    for target in &view.targets {
        let usable = target.used + target.available;
        let used = if usable > 0.0 { 100.0 * target.used / usable } else { 0.0 };
        let _ = writeln!(
            out,
            "{:<9} {:<10} {used:>4.0}% {:>10} {:>12} {:>12} {:>9} {:>9} {:>5}",
            plain(&target.name),
            target.state,
            bytes(target.available),
            bytes(target.read),
            bytes(target.write),
            count(target.requests),
            time(target.mean_s),
            count(target.busy)
        );
    }
    rates(&mut out, "MOUNT", view.mounts.iter().map(|row| (&row.mount, row.requests, row.read, row.write)));
    rates(&mut out, "JOB", view.jobs.iter().map(|row| (&row.job, row.requests, row.read, row.write)));
    owners(&mut out, view);
    if !view.slow.is_empty() {
        let _ = writeln!(out, "\n{:<24} {:<9} {:>9} {:>9}", "SLOW OPERATION", "TARGET", "P99", "REQS/S");
        for slow in &view.slow {
            let (operation, target) = (plain(&slow.operation), plain(&slow.target));
            let _ = writeln!(
                out,
                "{operation:<24} {target:<9} {:>9} {:>9}",
                time(Some(slow.p99_s)),
                count(slow.rate)
            );
        }
    }
    for sentence in &view.moving {
        let _ = writeln!(out, "{}", plain(sentence));
    }
    out
}

fn rates<'a>(out: &mut String, title: &str, rows: impl Iterator<Item = (&'a String, f64, f64, f64)>) {
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return;
    }
    let _ = writeln!(out, "\n{title:<32} {:>9} {:>12} {:>12}", "REQS/S", "READ/S", "WRITTEN/S");
    for (name, requests, read, write) in rows {
        let _ = writeln!(
            out,
            "{:<32} {:>9} {:>12} {:>12}",
            plain(name),
            count(requests),
            bytes(read),
            bytes(write)
        );
    }
}

/// Adds the owners; `*` marks a use above a soft limit.
fn owners(out: &mut String, view: &View) {
    if view.owners.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "\n{:<32} {:>10} {:>10} {:>10} {:>9} {:>9} {:>9}",
        "OWNER", "SPACE", "SOFT", "HARD", "INODES", "SOFT", "HARD"
    );
    let limit = |limit: f64, show: fn(f64) -> String| if limit > 0.0 { show(limit) } else { "-".to_owned() };
    for owner in &view.owners {
        let mark = if owner.is_over() { "*" } else { "" };
        let _ = writeln!(
            out,
            "{:<32} {:>10} {:>10} {:>10} {:>9} {:>9} {:>9}",
            format!("{} {}{mark}", owner.kind, plain(&owner.name)),
            bytes(owner.used),
            limit(owner.soft, bytes),
            limit(owner.hard, bytes),
            format!("{:.0}", owner.inodes),
            limit(owner.inodes_soft, count),
            limit(owner.inodes_hard, count)
        );
    }
}

/// Returns a name without characters that a terminal acts on.
fn plain(name: &str) -> String {
    name.chars().map(|char| if char.is_control() { '?' } else { char }).collect()
}

fn bytes(value: f64) -> String {
    let (mut value, mut unit) = (value.max(0.0), 0);
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if unit == 0 { 0 } else { 1 };
    format!("{value:.digits$}{}", UNITS[unit])
}

fn count(value: f64) -> String {
    if value > 0.0 && value < 10.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

fn time(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds) if seconds < 1e-3 => format!("{:.0}us", seconds * 1e6),
        Some(seconds) if seconds < 1.0 => format!("{:.1}ms", seconds * 1e3),
        Some(seconds) => format!("{seconds:.1}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_fits_the_terminal_and_names_have_no_effect_on_it() {
        let mut view = View { fsname: "x\x1b[2J".to_owned(), ..View::default() };
        for number in 0..50 {
            view.mounts.push(nacre_monitor::MountView {
                mount: format!("/mnt/{number}\x07{}", "x".repeat(200)),
                ..Default::default()
            });
        }
        let screen = screen(&view, (60, 20));
        let body =
            screen.strip_prefix("\x1b[H").and_then(|rest| rest.strip_suffix("\r\n\x1b[J")).expect("a screen");
        let lines: Vec<&str> = body.split("\r\n").collect();
        assert_eq!(lines.len(), 19);
        for line in lines {
            let line = line.strip_suffix(TO_END_OF_LINE).expect("the rest is cleared");
            assert!(line.chars().count() <= 60 && !line.contains(char::is_control), "{line:?}");
        }
    }

    #[test]
    fn owners_are_shown_with_their_limits_and_a_mark_beyond_a_soft_one() {
        let owner = nacre_monitor::OwnerView {
            kind: "user".to_owned(),
            name: "bob".to_owned(),
            used: 3.0 * f64::from(1 << 30),
            soft: 2.0 * f64::from(1 << 30),
            inodes: 12.0,
            inodes_hard: 500.0,
            ..Default::default()
        };
        let text = text(&View { owners: vec![owner], ..View::default() });
        let row = text.lines().find(|line| line.starts_with("user")).expect("a row");
        let words: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(words, ["user", "bob*", "3.0GiB", "2.0GiB", "-", "12", "-", "500"]);
    }

    #[test]
    fn figures_have_units() {
        assert_eq!([bytes(0.0), bytes(1536.0), bytes(3e12)], ["0B", "1.5KiB", "2.7TiB"]);
        assert_eq!(
            [time(None), time(Some(5e-5)), time(Some(0.25)), time(Some(2.0))],
            ["-", "50us", "250.0ms", "2.0s"]
        );
        assert_eq!([count(0.0), count(0.25), count(1234.5)], ["0", "0.2", "1234"]);
    }
}
