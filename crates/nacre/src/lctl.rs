//! `lctl`: Lustre's operator command for the parts that NacreFS has: devices and parameters of the processes
//! on this host, pools, nodemaps, and `ping`.

mod changelog;
mod debug;
mod lfsck;
mod nodemaps;
pub mod params;
mod pools;

use crate::control::{self, Answer, ProcessStatus, Request};
use crate::failure::{Failure, Result};
use crate::listen::Address;
use crate::named::{self, Named};
use crate::process::RunDir;
use crate::public;
use crate::registry;
use nacre_common::manual::{self, Page, Usage};
use nacre_env::clock::Instant;
use nacre_types::{Nid, Status};
use rustix::io::Errno;
use serde::Serialize;
use std::ffi::OsString;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

const USAGE: &str = "\
usage: lctl dl [--json]                         list devices: targets and mounts of this host
       lctl list_param [-F] [-p] [-R] [-D] [-M] [-r|-w] PATTERN...
                                                list names: -F marks kinds, -p separates by '/', -R all below, -D directories only,
                                                -M per process, -r/-w readable/settable only
       lctl get_param [-n|-N|-H|-y|--json] [-F] [-p] [-R] [-r|-w] PATTERN...
                                                show values: -n without names, -N names only, -H the name before every line,
                                                -y as YAML, --json as JSON (list_param too)
       lctl find_param [OPTIONS OF get_param] REGEX...
                                                the same for names that match an extended regular expression
       lctl help_param NAME...                  show the accepted values of settable parameters
       lctl set_param [-n] [-t[THREADS]] NAME=VALUE...
                                                set in the processes of this host; -t: by several threads
       lctl set_param -P [-n] [-d] NAME=VALUE...
                                                set on all nodes permanently; -d NAME removes the setting
       lctl set_param -C[FSNAME] [-n] [-d] NAME=VALUE...
                                                set in future mounts of FSNAME, or of all, on this host
       lctl set_param [-P|-C[FSNAME]] -F FILE   set what FILE lists: NAME=VALUE lines, or the output of llog_print
       lctl llog_print [FSNAME-]params          list permanent settings
       lctl conf_param [-d] FSNAME[-TARGET].KIND.NAME=VALUE...
                                                older form of set_param -P
       lctl --device FSNAME-OST-osc-NAME activate|deactivate
                                                start or stop using an OST from this mount or MDT
       lctl --device FSNAME-MDT0000 changelog_register [-u NAME] [-m MASK] [-n]
                                                register a reader of changes; -m: only these types, -n prints only
                                                its name
       lctl --device FSNAME-MDT0000 changelog_deregister cl1|NAME|-u NAME
                                                remove a reader of changes
       lctl lfsck_start [-M FSNAME-MDT0000 [-A]] [-n] [-r] [-s INODES]
                                                check MDTs in use and repair: -M: this one, -A: all of its file system;
                                                -n finds only, -r from the beginning, -s inodes per second
       lctl lfsck_stop [-M FSNAME-MDT0000 [-A]]
                                                stop it
       lctl lfsck_query [-M FSNAME-MDT0000 [-A]] [-t namespace|layout] [-w]
                                                show its state; -w waits for its end
       lctl pool_new [-n] FSNAME.POOL           create an OST pool; -n does not wait until this host knows it
       lctl pool_add|pool_remove [-n] FSNAME.POOL OST...
                                                add or remove OSTs: 1, OST0001, FSNAME-OST[0-3/2], [0-3,5]
       lctl pool_destroy [-n] FSNAME.POOL       remove an empty pool
       lctl pool_list FSNAME[.POOL]|PATH        list pools, or the OSTs of a pool
       lctl nodemap_activate 0|1                switch nodemaps on or off
       lctl nodemap_add|nodemap_del NAME        create or remove a nodemap
       lctl nodemap_add_range|nodemap_del_range --name NAME --range 10.0.[0-3].*@tcp|NID:NID|10.0.0.0/16@tcp
       lctl nodemap_add_key|nodemap_del_key --name NAME --key KEYID
                                                clients of a nodemap, by address and by key
       lctl nodemap_add_idmap|nodemap_del_idmap --name NAME --idtype uid|gid|projid --idmap CLIENT_ID:FS_ID
       lctl nodemap_modify --name NAME|default --property PROPERTY --value VALUE
                                                admin, trusted, deny_unknown, readonly_mount, banned, map_mode, squash_uid ...
       lctl nodemap_set_fileset --name NAME|default --fileset PATH
       lctl nodemap_info [list|all|NAME]        show nodemaps
       lctl nodemap_test_nid NID                show the nodemap of a client at NID
       lctl nodemap_test_id --nid NID [--key KEYID] --idtype uid|gid|projid --id ID
       lctl ping NID [TIMEOUT]                  test whether a server answers
       lctl list_nids                           list the addresses of this host's servers
       lctl debug_kernel|dk [FILE]              show or save recent events of this host's processes, and remove them
       lctl clear                               remove them
       lctl --fs DIR|MOUNT COMMAND...           select one of several file systems with the same name
Patterns have *, ?, [abc] and {one,two}; the instance may be left out. Run -P where the management server runs.
Example: lctl set_param 'obdfilter.*OST0001.no_create=1' && lctl get_param 'obdfilter.*.no_create'
";
const EXIT_USAGE: i32 = 4;
/// Timeout of `lctl ping`.
const PING_LIMIT: Duration = Duration::from_secs(10);

/// Commands, as `--list-commands` prints them.
const COMMANDS: &[&str] = &[
    "dl",
    "device_list",
    "get_param",
    "set_param",
    "conf_param",
    "changelog_register",
    "changelog_deregister",
    "list_param",
    "find_param",
    "help_param",
    "llog_print",
    "lfsck_start",
    "lfsck_stop",
    "lfsck_query",
    "pool_new",
    "pool_add",
    "pool_remove",
    "pool_destroy",
    "pool_list",
    "nodemap_activate",
    "nodemap_add",
    "nodemap_del",
    "nodemap_add_range",
    "nodemap_del_range",
    "nodemap_add_key",
    "nodemap_del_key",
    "nodemap_add_idmap",
    "nodemap_del_idmap",
    "nodemap_modify",
    "nodemap_set_fileset",
    "nodemap_info",
    "nodemap_test_nid",
    "nodemap_test_id",
    "ping",
    "list_nids",
    "debug_kernel",
    "dk",
    "clear",
    "version",
    "help",
];

/// Returns the grammar for completions: the commands.
pub fn grammar() -> clap::Command {
    let commands = COMMANDS.iter().map(|name| clap::Command::new(*name));
    let fs = clap::Arg::new("fs").long("fs").value_name("DIR").value_hint(clap::ValueHint::AnyPath);
    clap::Command::new("lctl").disable_help_subcommand(true).arg(fs).subcommands(commands)
}

/// Returns the manual page.
pub fn manual() -> Page {
    let usage = Usage {
        name: "lctl",
        section: manual::ADMINISTRATION,
        about: "devices, parameters, pools and nodemaps of NacreFS file systems on this host",
        synopsis: "COMMAND [ARGUMENTS]",
        parts: vec![
            ("DESCRIPTION", vec![("", USAGE.to_owned())]),
            (
                "EXIT STATUS",
                vec![("", "0 success, errno of the failure, 4 wrong call, 1 unknown command".to_owned())],
            ),
        ],
        related: "nacre(8), lfs(1)",
    };
    usage.page()
}

/// Result of a command.
type Outcome = Result<()>;

/// Returns the failure of a wrong call.
fn usage(text: impl Into<String>) -> Failure {
    Failure { exit: EXIT_USAGE, message: text.into() }
}

/// Returns a failure whose exit code is an errno.
fn refused(errno: Errno, text: impl Into<String>) -> Failure {
    Failure { exit: errno.raw_os_error(), message: text.into() }
}

/// Returns the failure for an errno that a process answered.
fn with_code(errno: i32, text: impl Into<String>) -> Failure {
    Failure { exit: errno, message: text.into() }
}

/// Runs `lctl ARGS` and returns the exit code.
pub fn main(args: &[OsString]) -> i32 {
    let words: Vec<String> = args.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    if words.is_empty() {
        return interactive();
    }
    run(&words)
}

fn interactive() -> i32 {
    let prompt = io::stdin().is_terminal();
    let mut code = 0;
    let mut lines = io::stdin().lock().lines();
    loop {
        if prompt {
            print!("lctl > ");
            let _ = io::stdout().flush();
        }
        let Some(Ok(line)) = lines.next() else { return code };
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        match words.first().map(String::as_str) {
            None => {}
            Some("exit" | "quit") => return code,
            Some(_) => code = run(&words),
        }
    }
}

fn run(words: &[String]) -> i32 {
    if let [option, path, rest @ ..] = words
        && option == "--fs"
    {
        return match choose(path) {
            Ok(()) if rest.is_empty() => interactive(),
            Ok(()) => run(rest),
            Err(failure) => {
                eprintln!("{failure}");
                failure.exit
            }
        };
    }
    let (name, args) = (words[0].as_str(), &words[1..]);
    let outcome = match name {
        "dl" | "device_list" => device_list(args),
        "list_param" => params::list(args),
        "get_param" => params::get(args),
        "find_param" => params::find_by_regex(args),
        "llog_print" => params::llog_print(args),
        "set_param" => params::set(args),
        "conf_param" => params::conf(args),
        "--device" => changelog::device(args),
        "lfsck_start" => lfsck::start(args),
        "lfsck_stop" => lfsck::stop(args),
        "lfsck_query" => lfsck::query(args),
        "pool_new" => pools::new(args),
        "pool_add" => pools::members(args, true),
        "pool_remove" => pools::members(args, false),
        "pool_destroy" => pools::destroy(args),
        "pool_list" => pools::list(args),
        command if command.starts_with("nodemap_") => nodemaps::run(command, args),
        "ping" => ping(args),
        "list_nids" => list_nids(args),
        "help_param" => params::help(args),
        "debug_kernel" | "dk" => debug::debug_kernel(args),
        "clear" => debug::clear(args),
        "--version" | "version" => {
            println!("lctl {}_nacre", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
        "--list-commands" => {
            println!("{}", COMMANDS.join(" "));
            Ok(())
        }
        "help" | "--help" | "-h" => {
            print!("{USAGE}");
            Ok(())
        }
        other => {
            Err(Failure::new(format!("lctl: '{other}' is not a valid command. See 'lctl --list-commands'.")))
        }
    };
    match outcome {
        Ok(()) => 0,
        Err(failure) => {
            if failure.exit == EXIT_USAGE {
                eprintln!("See 'lctl help'.");
            }
            if !failure.message.is_empty() {
                eprintln!("{failure}");
            }
            failure.exit
        }
    }
}

/// Returns the names that match a pattern in the processes of this host, with their control sockets.
fn find_names(pattern: &str) -> Vec<(std::path::PathBuf, String)> {
    params::names_of(pattern)
}

/// The file system that `--fs` names, to which all commands are limited.
static CHOSEN: OnceLock<RunDir> = OnceLock::new();

/// Returns the selected run directories: those of this host, or of one file system.
fn runs() -> Vec<RunDir> {
    CHOSEN.get().map_or_else(registry::running, |run| vec![run.clone()])
}

/// Selects a file system by its directory or mount point, for hosts with several of one name.
fn choose(path: &str) -> Outcome {
    let run = match named::find(Path::new(path))
        .map_err(|failure| refused(Errno::NODEV, format!("lctl --fs: {failure}")))?
    {
        Named::Directory(instance) => RunDir::new(instance.run_dir()),
        Named::Mount(run) => run,
    };
    CHOSEN.set(run).map_err(|_| usage("lctl: --fs is said once, before the command"))
}

/// Returns the control sockets of all selected processes.
fn sockets() -> Vec<PathBuf> {
    let of = |run: &RunDir| run.running().into_iter().map(|name| run.socket(&name)).collect::<Vec<_>>();
    let own = runs().iter().flat_map(of).collect::<Vec<_>>();
    // The public sockets of root's processes, unless one file system is selected.
    let public = if CHOSEN.get().is_none() { public::sockets() } else { Vec::new() };
    own.into_iter().chain(public).collect()
}

/// Returns all processes of this host that answer, and reports those that do not.
fn processes() -> Vec<(PathBuf, ProcessStatus)> {
    let (answered, silent) = ask_processes();
    report(&silent);
    answered
}

/// Returns the processes of this host that answer and are wanted. Those that do not answer are reported only
/// if none is found: one of them may be what was wanted.
pub fn find_processes(is_wanted: impl Fn(&ProcessStatus) -> bool) -> Vec<(PathBuf, ProcessStatus)> {
    let (mut found, silent) = ask_processes();
    found.retain(|(_, process)| is_wanted(process));
    if found.is_empty() {
        report(&silent);
    }
    found
}

/// Asks all selected processes; returns those that answer, and the sockets of those that do not.
fn ask_processes() -> (Vec<(PathBuf, ProcessStatus)>, Vec<PathBuf>) {
    let (mut answered, mut silent) = (Vec::new(), Vec::new());
    for (socket, answer) in control::ask_each(&sockets(), &Request::Status) {
        match answer {
            Ok(Answer::Status(status)) => answered.push((socket, *status)),
            Err(error) if control::is_silence(&error) => silent.push(socket),
            _ => {}
        }
    }
    (answered, silent)
}

fn report(silent: &[PathBuf]) {
    for socket in silent {
        eprintln!("lctl: the process of {} does not answer", socket.display());
    }
}

/// Parses the only option of commands that list: `--json`.
fn wants_json(command: &str, args: &[String]) -> Result<bool> {
    match args {
        [] => Ok(false),
        [word] if word == "--json" => Ok(true),
        [word, ..] => Err(usage(format!("lctl {command}: '{word}' is not known: it takes --json alone"))),
    }
}

/// Prints a value as JSON.
fn print_json(value: &impl Serialize) -> Outcome {
    let text = serde_json::to_string_pretty(value);
    println!("{}", text.map_err(|error| refused(Errno::IO, format!("lctl: cannot write JSON: {error}")))?);
    Ok(())
}

/// A row of `lctl dl`.
#[derive(Serialize)]
struct Device {
    index: usize,
    /// `UP`, or `IN` if it is inactive.
    state: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    name: String,
    uuid: String,
    references: u64,
}

/// Returns rows as Lustre prints them: number, state, type, name, UUID, references.
fn device_list(args: &[String]) -> Outcome {
    let json = wants_json("dl", args)?;
    let devices = devices();
    if json {
        return print_json(&devices);
    }
    for Device { index, state, kind, name, uuid, references } in &devices {
        println!("{index:>3} {state} {kind} {name} {uuid} {references}");
    }
    Ok(())
}

fn devices() -> Vec<Device> {
    let mut devices = Vec::new();
    for (socket, process) in processes() {
        let fsname = &process.fsname;
        let mut row = |state, kind, name: String, uuid: String, references| {
            devices.push(Device { index: devices.len(), state, kind, name, uuid, references });
        };
        for target in &process.targets {
            let references = target.clients.unwrap_or(0) + 1;
            let name = format!("{fsname}-{}", target.target);
            match target.target.get(..3) {
                Some("MGT") => row("UP", "mgs", "MGS".to_owned(), "MGS".to_owned(), references),
                Some("MDT") => row("UP", "mdt", name.clone(), format!("{name}_UUID"), references),
                _ => row("UP", "obdfilter", name.clone(), format!("{name}_UUID"), references),
            }
        }
        // Devices through which MDTs and the mount of this process reach OSTs.
        for kind in ["osp", "osc"] {
            for (name, value) in params::values_in(&socket, &format!("{kind}.*.active")) {
                let name = name.trim_start_matches(kind).trim_matches('.').trim_end_matches(".active");
                let asker = name.rsplit('-').next().unwrap_or(name);
                // Those of MDTs appear under both kinds.
                if kind == "osc" && asker.starts_with("MDT") {
                    continue;
                }
                let uuid = if kind == "osp" { format!("{fsname}-{asker}_UUID") } else { asker.to_owned() };
                row(if value == "0" { "IN" } else { "UP" }, kind, name.to_owned(), uuid, 1);
            }
        }
        // Devices through which the mount reaches the other servers.
        for kind in ["mdc", "mgc"] {
            for (name, _) in params::values_in(&socket, &format!("{kind}.*.state")) {
                let name = name.trim_start_matches(kind).trim_matches('.').trim_end_matches(".state");
                let asker = name.rsplit('-').next().unwrap_or(name);
                row("UP", kind, name.to_owned(), asker.to_owned(), 1);
            }
        }
        if let Some(mount) = &process.mount {
            let point = mount.mount_point.display().to_string();
            row("UP", "lov", format!("{fsname}-clilov"), point.clone(), 1);
            row("UP", "lmv", format!("{fsname}-clilmv"), point, 1);
        }
    }
    devices
}

fn list_nids(args: &[String]) -> Outcome {
    let json = wants_json("list_nids", args)?;
    let mut nids: Vec<String> =
        processes().into_iter().flat_map(|(_, p)| p.targets).flat_map(|target| target.nids).collect();
    nids.sort();
    nids.dedup();
    if json {
        return print_json(&nids);
    }
    nids.iter().for_each(|nid| println!("{nid}"));
    Ok(())
}

/// Returns the control socket of the process with the management server: of file system `fsname`, or of the
/// only one.
fn management(fsname: Option<&str>) -> Result<PathBuf> {
    let has_it = |process: &ProcessStatus| {
        process.targets.iter().any(|target| target.target == "MGT")
            && fsname.is_none_or(|wanted| wanted == process.fsname)
    };
    let found: Vec<PathBuf> = find_processes(has_it).into_iter().map(|(socket, _)| socket).collect();
    match found.as_slice() {
        [socket] => Ok(socket.clone()),
        [] => {
            Err(refused(Errno::NODEV, "lctl: no management server runs on this host: run this where it does"))
        }
        several => {
            let dirs = several.iter().filter_map(|socket| socket.parent()?.parent());
            let dirs: Vec<String> = dirs.map(|dir| dir.display().to_string()).collect();
            let what = fsname.map_or_else(String::new, |name| format!(" named '{name}'"));
            Err(refused(
                Errno::INVAL,
                format!(
                    "lctl: several file systems{what} run on this host, in {}: choose one with 'lctl --fs DIR ...'",
                    dirs.join(" and ")
                ),
            ))
        }
    }
}

fn ping(args: &[String]) -> Outcome {
    let [nid, rest @ ..] = args else {
        return Err(usage("lctl ping: a NID is needed"));
    };
    let limit = match rest.first() {
        None => PING_LIMIT,
        Some(text) => text
            .parse()
            .map(Duration::from_secs)
            .map_err(|_| usage(format!("lctl ping: '{text}' is no number of seconds")))?,
    };
    let failed = |text: String| refused(Errno::IO, format!("failed to ping {nid}: {text}"));
    if nid.parse() == Ok(Nid::Lo) {
        let start = Instant::now();
        let is_here = |process: &ProcessStatus| {
            process.targets.iter().any(|target| target.nids.iter().any(|known| known == nid))
        };
        if find_processes(is_here).is_empty() {
            return Err(failed("no process of this host has servers and a client".to_owned()));
        }
        answered(nid, start.elapsed());
        return Ok(());
    }
    let address: Address =
        nid.parse().map_err(|error| refused(Errno::INVAL, format!("lctl ping: {error}")))?;
    let nids = address.nids().map_err(|failure| failed(failure.message))?;
    let mut outcome = Err(failed("it has no address".to_owned()));
    for one in nids {
        match nacre_rpc::tcp::ping(one, limit) {
            Ok(time) => {
                answered(nid, time);
                return Ok(());
            }
            Err(status) => outcome = Err(failed(why_no_answer(status, limit))),
        }
    }
    outcome
}

fn answered(nid: &str, time: Duration) {
    println!("{nid} answered after {:.1} ms", time.as_secs_f64() * 1000.0);
}

fn why_no_answer(status: Status, limit: Duration) -> String {
    match status {
        Status::ECONNREFUSED => "connection refused: no server listens there".to_owned(),
        Status::ETIMEDOUT => {
            format!(
                "timed out: no answer within {} s, from the host or from a server that hangs",
                limit.as_secs()
            )
        }
        Status::EPROTO => "something answers there that is no NacreFS server".to_owned(),
        status => status.to_string(),
    }
}
