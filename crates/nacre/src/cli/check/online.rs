//! Check of a file system in use: its servers walk their targets, and this command orders it, follows it, and prints
//! what they find.

use super::CheckArgs;
use super::{Finding, TargetReport};
use crate::control::{self, Answer, Request};
use crate::failure::{EXIT_FAILURE, Failure, Result};
use crate::instance::Instance;
use crate::output::print_json;
use crate::process::RunDir;
use crate::progress::Progress;
use crate::walks::WalkState;
use nacre_mds::check::Kind;
use nacre_types::TargetKind;
use std::path::PathBuf;
use std::time::Duration;

/// Usual rate of a check in inodes per second, at which programs lose less than a tenth of what they get from a server.
const RATE: u64 = 2000;
/// Bytes that are read for each inode of the rate with `--data`.
const BYTES_PER_INODE: u64 = 32 << 10;
/// Interval at which the servers are asked for their progress. They stop if they are not asked for 15 s.
const INTERVAL: Duration = Duration::from_millis(300);

/// The walk of one target.
struct Walk {
    /// `MDT0000`.
    target: String,
    socket: PathBuf,
    /// Parameter that takes orders, and the one with the state.
    order: String,
    state: String,
    /// Last known state.
    last: WalkState,
}

/// Runs the command.
pub fn run(args: &CheckArgs, instance: &Instance, run: &RunDir) -> Result<i32> {
    let mut walks = find_walks(run, args.data);
    if walks.is_empty() {
        return Err(match run.running().first() {
            Some(name) => super::is_running(instance, name),
            None => Failure::new("no server of the file system runs here".to_owned()),
        });
    }
    let rate = args.rate.unwrap_or(RATE);
    let words = |walk: &Walk| {
        let rate = if walk.order.starts_with("mdd.") { rate } else { rate.saturating_mul(BYTES_PER_INODE) };
        let flags = [(args.repair, " repair"), (args.resume, " resume")];
        let flags: String = flags.iter().filter(|(is_set, _)| *is_set).map(|(_, word)| *word).collect();
        format!("start attended{flags} rate={rate}")
    };
    for walk in &walks {
        let value = words(walk);
        match ask(walk, &Request::WriteParam { name: walk.order.clone(), value })? {
            Answer::Done => {}
            other => return Err(Failure::new(format!("{} does not begin: {}", walk.target, reason(&other)))),
        }
    }
    let mut progress = Progress::new(args.json);
    loop {
        for walk in &mut walks {
            walk.last = read_state(walk)?;
        }
        if walks.iter().all(|walk| !walk.last.is_ordered) {
            break;
        }
        progress.show(&summary(&walks));
        nacre_env::thread::sleep(INTERVAL);
    }
    drop(progress);
    print(args, instance, &walks)
}

fn summary(walks: &[Walk]) -> String {
    let sum = |of: fn(&WalkState) -> u64| walks.iter().map(|walk| of(&walk.last)).sum::<u64>();
    let total = sum(|state| state.inodes.unwrap_or(0));
    let of_total = if total > 0 { format!(" of about {total} inodes") } else { String::new() };
    let bytes = sum(|state| state.bytes);
    let read = if bytes > 0 { format!(", {} MiB read", bytes >> 20) } else { String::new() };
    format!("checking: {}{of_total}{read}, {} problems", sum(|state| state.checked), sum(|state| state.found))
}

fn ask(walk: &Walk, request: &Request) -> Result<Answer> {
    control::ask(&walk.socket, request)
        .map_err(Failure::because(format!("ask the server of {}", walk.target)))
}

fn reason(answer: &Answer) -> String {
    match answer {
        Answer::Error { message, .. } => message.clone(),
        _ => "it answers something else".to_owned(),
    }
}

fn read_state(walk: &Walk) -> Result<WalkState> {
    match ask(walk, &Request::ReadParam { name: walk.state.clone() })? {
        Answer::Value { value } => {
            serde_json::from_str(&value).map_err(|error| Failure::new(format!("{}: {error}", walk.target)))
        }
        other => Err(Failure::new(format!("{}: {}", walk.target, reason(&other)))),
    }
}

/// Finds the targets that running processes of the directory serve.
fn find_walks(run: &RunDir, with_data: bool) -> Vec<Walk> {
    let mut patterns = vec![("mdd.*.lfsck_state", "lfsck")];
    if with_data {
        patterns.push(("obdfilter.*.scrub_state", "scrub"));
    }
    let mut walks = Vec::new();
    for name in run.running() {
        let socket = run.socket(&name);
        for (pattern, order) in &patterns {
            let request = Request::FindParams { pattern: (*pattern).to_owned(), recursive: false };
            let Ok(Answer::Params { params }) = control::ask(&socket, &request) else { continue };
            for found in params {
                let Some((below, _)) = found.name.rsplit_once('.') else { continue };
                let Some((_, target)) = below.rsplit_once('-') else { continue };
                walks.push(Walk {
                    target: target.to_owned(),
                    socket: socket.clone(),
                    order: format!("{below}.{order}"),
                    state: found.name.clone(),
                    last: WalkState::default(),
                });
            }
        }
    }
    walks.sort_by(|a, b| a.target.cmp(&b.target));
    walks
}

fn print(args: &CheckArgs, instance: &Instance, walks: &[Walk]) -> Result<i32> {
    let mut reports: Vec<TargetReport> = walks.iter().map(report_of).collect();
    for target in instance.targets().into_iter().filter(|target| target.kind == TargetKind::Mdt) {
        let name = target.to_string();
        if !reports.iter().any(|report| report.target == name) {
            let mut report =
                TargetReport { target: name, checked: "not running".to_owned(), ..TargetReport::default() };
            report.add(Kind::Store, None, "it does not run, and was not checked".to_owned());
            reports.push(report);
        }
    }
    let left: u64 = reports.iter().map(|report| report.problem_count.saturating_sub(report.repaired)).sum();
    match args.json {
        true => print_json(&reports)?,
        false => super::print_text(instance, &reports, left, args),
    }
    Ok(if left == 0 { 0 } else { EXIT_FAILURE })
}

fn report_of(walk: &Walk) -> TargetReport {
    let state = &walk.last;
    let skipped = if state.skipped > 0 { format!(", {} not reached", state.skipped) } else { String::new() };
    let checked = match state.bytes {
        0 => format!("{} inodes, names and objects in use{skipped}", state.checked),
        bytes => format!("{} objects, {} MiB read{skipped}", state.checked, bytes >> 20),
    };
    let finding = |it: &crate::walks::WalkFinding| Finding {
        kind: Kind::ALL.iter().copied().find(|kind| kind.name() == it.kind).unwrap_or(Kind::Store),
        fid: Some(it.fid.clone()),
        text: format!("{}: {}", it.fid, it.text),
    };
    let mut report = TargetReport {
        target: walk.target.clone(),
        checked,
        problems: state.findings.iter().map(finding).collect(),
        problem_count: state.found,
        repaired: state.repaired,
        ..TargetReport::default()
    };
    if !state.is_complete {
        let text = "the check has stopped before its end: continue it with --resume".to_owned();
        report.add(Kind::Store, None, text);
    }
    report
}
