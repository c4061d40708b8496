//! `nacre target`: adds targets to a file system, and starts those that have a directory of their own.

use super::drain;
use super::launch::{self, serve_words};
use super::serve::nids_of;
use super::{TargetAddArgs, TargetCommand, TargetStartArgs};
use crate::control::{self, Answer, NewTarget, Request};
use crate::failure::{Failure, Result};
use crate::http_address::HttpAddress;
use crate::instance::{self, Adding, FormatOptions, Instance, Joins, is_joining, next_target, target_name};
use crate::keys;
use crate::listen::{self, Address};
use crate::new_target;
use crate::node;
use crate::process::{self, NODE, RunDir};
use crate::progress::Progress;
use crate::start::{METRICS_OPTION, Start, StartOptions};
use crate::target_options::TargetOptions;
use nacre_env::clock::Instant;
use nacre_mgs::Mgs;
use nacre_rpc::{MgsPeer, MgsService};
use nacre_store::object::ADDRESS;
use nacre_types::nid::check_fsname;
use nacre_types::{Nid, TargetId};
use nacre_wire::mgs::{FsConfig, MgsRequest, TargetConfig};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

const FSNAME_DEFAULT: &str = "nacre";
/// Timeout for a running file system to add a target.
const ADD_LIMIT: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(50);

/// Runs the command.
pub fn run(command: &TargetCommand) -> Result<i32> {
    match command {
        TargetCommand::Add(args) => add(args),
        TargetCommand::Start(args) => start(args),
        TargetCommand::Drain(args) => return drain::run(args),
        TargetCommand::Uncache(args) => super::uncache::run(args),
    }
    .map(|()| 0)
}

fn add(args: &TargetAddArgs) -> Result<()> {
    let target_options = &args.ost.anywhere(args.kind.kind())?;
    if !args.mgs.is_empty() {
        let place = Place { listen: args.listen.clone(), mgs: args.mgs.clone(), metrics: None };
        return add_elsewhere(
            &args.dir,
            args.kind,
            args.index,
            args.fsname.as_deref(),
            target_options,
            &place,
        );
    }
    let instance = Instance::open_existing(&args.dir)?;
    check_name(args.fsname.as_deref(), &instance)?;
    if instance.is_outlying() {
        return Err(Failure::usage(format!(
            "{} holds no management server: say where that is with --mgs, and an address for the new target with --listen",
            args.dir.display()
        )));
    }
    let run = RunDir::new(instance.run_dir());
    let is_node = run.pid(NODE).is_some();
    if is_node && args.port.is_some() {
        return Err(Failure::usage("--port is for file systems whose servers have processes of their own"));
    }
    if is_node {
        add_in_node(args, target_options, &instance, &run)
    } else if run.running().is_empty() {
        add_while_stopped(args, target_options, &instance, &run)
    } else {
        add_beside(args, target_options, &instance, &run)
    }
}

fn check_name(wanted: Option<&str>, instance: &Instance) -> Result<()> {
    let is = &instance.superblock.fsname;
    match wanted.filter(|wanted| wanted != is) {
        Some(wanted) => Err(Failure::new(format!(
            "{} belongs to file system '{is}', not to '{wanted}': nothing was changed",
            instance.dir.display()
        ))),
        None => Ok(()),
    }
}

/// Adds a target to a file system in one process, which creates and serves it.
fn add_in_node(
    args: &TargetAddArgs,
    target_options: &TargetOptions,
    instance: &Instance,
    run: &RunDir,
) -> Result<()> {
    let request = Request::AddTarget { kind: args.kind, index: args.index, ost: target_options.clone() };
    let mut progress = Progress::new(false);
    progress.show("adding a target");
    match control::ask_for(&run.socket(NODE), &request, ADD_LIMIT) {
        Ok(Answer::Added { target }) => {
            drop(progress);
            println!("{target} has joined file system '{}'", instance.superblock.fsname);
            Ok(())
        }
        Ok(Answer::Error { message, .. }) => Err(Failure::new(message)),
        Ok(_) | Err(_) => Err(Failure::new(format!(
            "the file system has ended or does not answer: look with 'nacre status {}', then add the target again",
            instance.dir.display()
        ))),
    }
}

/// Adds a target with a process of its own, as the other servers have.
fn add_beside(
    args: &TargetAddArgs,
    target_options: &TargetOptions,
    instance: &Instance,
    run: &RunDir,
) -> Result<()> {
    let dir = instance.dir.display();
    let start = Start::load(&instance.dir)?.unwrap_or_default();
    let mut ports = launch::ports_of(run, &start)?;
    if run.pid("mgs").is_none() {
        return Err(Failure::new(format!(
            "the management server of {dir} does not run: start it with 'nacre up' first"
        )));
    }
    let mut adding = Adding::begin(instance)?;
    let config = config_of(instance, &launch::mgs_here(&start, &ports)?)?;
    let mut progress = Progress::new(false);
    progress.show("formatting");
    let target = adding.plan(args.kind.kind(), args.index, &config)?;
    let name = target_name(target);
    if run.pid(&name).is_none() {
        ports.choose(&name, args.port)?;
        ports.save()?;
    }
    adding.create_with(target, target_options)?;
    serve(adding.instance(), target, launch::addresses(&start, &ports, &name)?, &mut progress)?;
    drop(progress);
    println!("{target} has joined file system '{}'", instance.superblock.fsname);
    Ok(())
}

/// Adds a target to a stopped file system: creates it and takes its index, so that it joins at the next
/// start.
fn add_while_stopped(
    args: &TargetAddArgs,
    target_options: &TargetOptions,
    instance: &Instance,
    run: &RunDir,
) -> Result<()> {
    let _locks = super::check::take_all(instance, run)?;
    let mut adding = Adding::begin(instance)?;
    let dir = instance.target_dir(TargetId::mgt());
    let mgs = Mgs::open(&dir).map_err(Failure::because("open the management target"))?;
    let target = adding.plan(args.kind.kind(), args.index, &mgs.config())?;
    adding.create_with(target, target_options)?;
    let request = MgsRequest::AddTarget {
        fsname: instance.superblock.fsname.clone(),
        fs_uuid: instance.superblock.fs_uuid,
        target: TargetConfig { target, nids: vec![Nid::Lo], active: true, key: None },
    };
    mgs.handle(MgsPeer::Local, &request)
        .map_err(|status| Failure::new(format!("the management target refused {target}: {status}")))?;
    println!(
        "{target} was added to file system '{}': it joins with the next 'nacre up'",
        instance.superblock.fsname
    );
    Ok(())
}

/// Adds a target whose management server is on another host, with a directory and a process on this one.
///
/// # Errors
/// One sentence; a repeated call continues with what was created.
pub fn add_elsewhere(
    dir: &Path,
    kind: NewTarget,
    index: Option<u16>,
    fsname: Option<&str>,
    target_options: &TargetOptions,
    place: &Place,
) -> Result<()> {
    let found = Instance::open(dir)?;
    let endpoints = place.endpoints()?;
    let mgs = nids_of(&place.mgs)?;
    let mut progress = Progress::new(false);
    let Some(instance) = found else {
        let fsname = fsname.unwrap_or(FSNAME_DEFAULT);
        check_fsname(fsname).map_err(|error| Failure::usage(error.to_string()))?;
        let config = node::configuration_at(&mgs, fsname, Some(dir))?;
        let known = config.targets.iter().map(|known| known.target);
        let target = next_target(kind.kind(), index, known)?;
        listen::check(&endpoints)?;
        let options = FormatOptions {
            fsname: fsname.to_owned(),
            mdt_count: 0,
            ost_count: 0,
            joins: Some(Joins { fs_uuid: config.fs_uuid, target }),
        };
        let instance = Instance::format(
            dir,
            &options,
            |at, target| new_target::make(at, target, target_options),
            |text| progress.show(text),
        )?;
        let adding = Adding::begin(&instance)?;
        return serve_elsewhere(&adding, target, place, progress);
    };
    check_name(fsname, &instance)?;
    let mut adding = Adding::begin(&instance)?;
    let config = config_of(&instance, &mgs)?;
    let target = adding.plan(kind.kind(), index, &config)?;
    if RunDir::new(instance.run_dir()).pid(&target_name(target)).is_none() {
        listen::check(&endpoints)?;
    }
    adding.create_with(target, target_options)?;
    serve_elsewhere(&adding, target, place, progress)
}

fn serve_elsewhere(adding: &Adding, target: TargetId, place: &Place, mut progress: Progress) -> Result<()> {
    let instance = adding.instance();
    instance::write_durably(&instance.target_dir(target), ADDRESS, place.text().as_bytes())?;
    keep_metrics(instance, place.metrics.as_deref())?;
    keys::enrol_here(instance)?;
    serve(instance, target, [place.words(), metrics_words(instance)?].concat(), &mut progress)?;
    drop(progress);
    println!("{target} has joined file system '{}'", instance.superblock.fsname);
    Ok(())
}

/// Returns the configuration of the management server at `mgs`, if it serves the file system of the
/// directory.
fn config_of(instance: &Instance, mgs: &[Nid]) -> Result<FsConfig> {
    let config = node::configuration_at(mgs, &instance.superblock.fsname, Some(&instance.dir))?;
    if config.fs_uuid == instance.superblock.fs_uuid {
        return Ok(config);
    }
    let mgs: Vec<String> = mgs.iter().map(Nid::to_string).collect();
    let mgs = mgs.join(", ");
    Err(Failure::new(format!(
        "the management server at {mgs} knows another file system named '{}' than the one in {}: nothing was changed",
        config.fsname,
        instance.dir.display()
    )))
}

/// Addresses of a target with a directory of its own, and of its management server.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Addresses that the target listens on.
    pub listen: Vec<Address>,
    /// Addresses of the management server.
    pub mgs: Vec<Address>,
    /// Address for the figures of the directory, or `none`, if it changes; stored with the directory.
    pub metrics: Option<String>,
}

impl Place {
    /// Returns the sockets to listen on. A target keeps its address, so the address must include a port.
    fn endpoints(&self) -> Result<Vec<listen::Endpoint>> {
        match self.listen.iter().find(|address| address.port() == 0) {
            Some(address) => Err(Failure::usage(format!(
                "{address} cannot be kept as a listening address: give an address such as 10.0.0.3@tcp or 10.0.0.3:7989@tcp"
            ))),
            None => listen::endpoints(&self.listen),
        }
    }

    /// Returns the lines of its file.
    fn text(&self) -> String {
        let lines = |word: &str, all: &[Address]| -> String {
            all.iter().map(|address| format!("{word} {address}\n")).collect()
        };
        lines("listen", &self.listen) + &lines("mgs", &self.mgs)
    }

    /// Parses its file; `None` unless it has an address of each kind.
    fn parse(text: &str) -> Option<Place> {
        let mut place = Place::default();
        for line in text.lines() {
            match line.split_once(' ')? {
                ("listen", address) => place.listen.push(address.trim().parse().ok()?),
                ("mgs", address) => place.mgs.push(address.trim().parse().ok()?),
                _ => return None,
            }
        }
        (!place.listen.is_empty() && !place.mgs.is_empty()).then_some(place)
    }

    /// Returns the arguments of `nacre serve`.
    fn words(&self) -> Vec<OsString> {
        let words = |option: &'static str, all: &[Address]| -> Vec<OsString> {
            all.iter().flat_map(|address| [option.into(), address.to_string().into()]).collect()
        };
        [words("--listen", &self.listen), words("--mgs", &self.mgs)].concat()
    }
}

/// Starts the process of a target, unless it runs, and waits until the target has joined. Returns the process that it
/// started.
fn serve(
    instance: &Instance,
    target: TargetId,
    addresses: Vec<OsString>,
    progress: &mut Progress,
) -> Result<Option<Child>> {
    let run = RunDir::new(instance.run_dir());
    let name = target_name(target);
    if run.pid(&name).is_none() {
        progress.show(&format!("starting {target}"));
        let mut words = serve_words(&name, instance);
        words.extend(addresses);
        return process::start(&words, &run.log(&name), progress).map(Some);
    }
    // The process may run already because an earlier command that waited for it was killed.
    let deadline = Instant::now() + ADD_LIMIT;
    while is_joining(instance, target) {
        if run.pid(&name).is_none() || Instant::now() >= deadline {
            return Err(Failure::new(format!("{target} has not joined: see {}", run.log(&name).display())));
        }
        nacre_env::thread::sleep(POLL);
    }
    Ok(None)
}

/// Returns the ports of the targets of a directory whose management server is on another host.
///
/// # Errors
/// If their addresses cannot be read.
pub fn ports_in(instance: &Instance) -> Result<Vec<u16>> {
    let mut ports = Vec::new();
    for target in instance.targets() {
        let place = place_of(&instance.target_dir(target))?.unwrap_or_default();
        ports.extend(place.listen.iter().map(Address::port));
    }
    Ok(ports)
}

/// Returns the NIDs of a directory's management server for processes of this host.
///
/// # Errors
/// If no other process can connect to it, or its addresses cannot be read.
pub fn mgs_of(instance: &Instance) -> Result<Vec<Nid>> {
    if instance.is_outlying() {
        for target in instance.targets() {
            if let Some(place) = place_of(&instance.target_dir(target))? {
                return nids_of(&place.mgs);
            }
        }
    }
    let start = Start::load(&instance.dir)?.unwrap_or_default();
    if !start.is_reached() {
        return Err(Failure::new(format!(
            "the file system in {} runs in one process that no other reaches, so that it needs no keys: 'nacre up --listen' has it \
             served to others",
            instance.dir.display()
        )));
    }
    if !start.is_separate {
        let endpoints = listen::endpoints(&start.addresses())?;
        return Ok(endpoints.iter().flat_map(listen::Endpoint::nids_here).collect());
    }
    launch::mgs_here(&start, &launch::ports_of(&RunDir::new(instance.run_dir()), &start)?)
}

fn start(args: &TargetStartArgs) -> Result<()> {
    start_in(&Instance::open_existing(&args.dir)?, args.metrics.as_deref()).map(drop)
}

/// Stores the address for the figures of a directory without a management server, or `none`, if one is given.
fn keep_metrics(instance: &Instance, metrics: Option<&str>) -> Result<()> {
    let before = Start::load(&instance.dir)?.unwrap_or_default();
    let start = StartOptions { metrics, ..StartOptions::default() }.applied_to(&before)?;
    if start == before {
        return Ok(());
    }
    if let Some(doubt) = start.metrics.as_ref().and_then(HttpAddress::doubt) {
        eprintln!("nacre: {doubt}");
    }
    start.save(instance)?;
    if !RunDir::new(instance.run_dir()).running().is_empty() {
        eprintln!(
            "nacre: --metrics applies from the next start: 'nacre down {0}', then 'nacre up {0}'",
            instance.dir.display()
        );
    }
    Ok(())
}

/// Returns the arguments of a process that starts in a directory without a management server, so that one of them serves
/// the figures of all.
fn metrics_words(instance: &Instance) -> Result<Vec<OsString>> {
    let run = RunDir::new(instance.run_dir());
    let is_served = run.running().iter().any(|name| run.has_option(name, METRICS_OPTION));
    let start = Start::load(&instance.dir)?.unwrap_or_default();
    Ok(if is_served { Vec::new() } else { start.metrics_words() })
}

/// Starts the targets of a directory whose management server is on another host, with another address for figures if one
/// is given. Returns the processes that it started, with their names.
///
/// # Errors
/// If there are none, or one does not start.
pub fn start_in(instance: &Instance, metrics: Option<&str>) -> Result<Vec<(String, Child)>> {
    let run = RunDir::new(instance.run_dir());
    keep_metrics(instance, metrics)?;
    let mut progress = Progress::new(false);
    let mut known = false;
    let mut children = Vec::new();
    for target in instance.targets() {
        let Some(place) = place_of(&instance.target_dir(target))? else { continue };
        known = true;
        if run.pid(&target_name(target)).is_some() {
            println!("{target} is running already");
            continue;
        }
        let child =
            serve(instance, target, [place.words(), metrics_words(instance)?].concat(), &mut progress)?;
        children.extend(child.map(|child| (target_name(target), child)));
        println!("{target} of file system '{}' is up", instance.superblock.fsname);
    }
    if known {
        return Ok(children);
    }
    Err(Failure::new(format!(
        "no target of {} has an address of its own: start the file system with 'nacre up'",
        instance.dir.display()
    )))
}

/// Reads the addresses of a target and of its management server, if they were stored.
fn place_of(dir: &Path) -> Result<Option<Place>> {
    let path: PathBuf = dir.join(ADDRESS);
    let text = instance::if_there(fs::read_to_string(&path))
        .map_err(Failure::because(format!("read {}", path.display())))?;
    let Some(text) = text else { return Ok(None) };
    let damaged = || {
        Failure::new(format!("{} is damaged: write lines 'listen ADDRESS' and 'mgs ADDRESS'", path.display()))
    };
    Place::parse(&text).map(Some).ok_or_else(damaged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_target_is_kept_as_text() {
        let scratch = tempfile::tempdir().expect("a directory");
        assert_eq!(place_of(scratch.path()).expect("none"), None);
        let text = "listen 10.0.0.3:7989@tcp\nlisten host3-ib@tcp\nmgs 10.0.0.1@tcp\n";
        fs::write(scratch.path().join(ADDRESS), text).expect("written");
        let place = place_of(scratch.path()).expect("readable").expect("there");
        assert_eq!((place.text().as_str(), place.listen.len(), place.mgs.len()), (text, 2, 1));
        assert_eq!(place.words().len(), 6);
        for damaged in ["listen here\n", "listen 10.0.0.3@tcp\n", "what\n"] {
            fs::write(scratch.path().join(ADDRESS), damaged).expect("written");
            assert!(place_of(scratch.path()).expect_err("damaged").message.contains("is damaged"));
        }
        let place = Place { listen: vec!["10.0.0.3:0@tcp".parse().expect("an address")], ..Place::default() };
        assert!(place.endpoints().is_err());
    }
}
