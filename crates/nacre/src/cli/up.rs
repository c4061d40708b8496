//! `nacre up`: formats on first use, then starts the processes that do not run.

use super::launch::{self, Doors, Launch, Started};
use super::mount::MountOptions;
use super::status::Overview;
use super::{FormatArgs, ShapeArgs, UpArgs, config, mount_point};
use crate::backend::Backends;
use crate::created::ServiceState;
use crate::failure::{Failure, Result};
use crate::http_address::HttpAddress;
use crate::instance::{self, FormatOptions, Formatting, Instance};
use crate::keys;
use crate::listen::Address;
use crate::named;
use crate::node;
use crate::ost_cache::OstCaches;
use crate::ost_class::OstClasses;
use crate::process::{MOUNT, NODE, RunDir, StopSignals};
use crate::progress::Progress;
use crate::service;
use crate::start::{Start, StartOptions};
use nacre_types::limits::{MDT_COUNT_MAX, TARGET_INDEX_MAX};
use nacre_types::nid::check_fsname;
use nacre_types::{TargetId, TargetKind};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

const FSNAME_DEFAULT: &str = "nacre";
const OSTS_DEFAULT: u16 = 2;

/// Runs the command.
pub fn run(args: &UpArgs) -> Result<i32> {
    let with_file = args.config.as_deref().map(|path| config::complete(args, path)).transpose()?;
    let args = with_file.as_ref().unwrap_or(args);
    let dir = args.dir.as_deref().ok_or_else(|| {
        Failure::usage(
            "there is no directory: write dir = \"/srv/fs\" into the file, or give DIR to 'nacre up'",
        )
    })?;
    let found = Instance::open(dir)?;
    if let Some(instance) = found.as_ref().filter(|instance| instance.is_outlying()) {
        return up_outlying(args, instance);
    }
    check_machine()?;
    let args = &given_to(found.as_ref(), args);
    let before = found.as_ref().map(|instance| Start::load(&instance.dir)).transpose()?.flatten();
    let start_options = StartOptions {
        is_separate: args.separate.then_some(true).or_else(|| args.one_process.then_some(false)),
        listen: &args.listen,
        mount: args.mount.as_deref(),
        options: &args.options,
        security: args.security,
        metrics: args.metrics.as_deref(),
    };
    // A file is complete: what it lacks has its default.
    let base = before.clone().filter(|_| args.config.is_none()).unwrap_or_default();
    let start = start_options.applied_to(&base)?;
    let dir = instance::absolute(dir)?;
    let run = RunDir::new(dir.join("run"));
    let start = as_it_runs(&run, &start, before.as_ref(), args)?;
    let Some(mount_point) = start.mount.clone() else {
        return Err(Failure::usage(format!(
            "{} {}: say where to with --mount DIR",
            dir.display(),
            if args.config.is_some() { "has no mount point in the file" } else { "was not mounted before" }
        )));
    };
    MountOptions::parse(std::slice::from_ref(&start.options), false)?;
    let shape = checked_shape(&args.shape)?;
    let targets = found.as_ref().map_or_else(|| shape.targets(), Instance::targets);
    let mounter = if start.is_separate { MOUNT } else { NODE };
    if run.pid(mounter).is_none() {
        mount_point::check(&mount_point, found.is_none().then_some(&*dir))?;
    }
    let doors = Doors::choose(&run, &targets, &start, before.as_ref(), args.port)?;
    let doubts = start.listen.iter().filter_map(Address::doubt);
    for doubt in doubts.chain(start.metrics.as_ref().and_then(HttpAddress::doubt)) {
        eprintln!("nacre: {doubt}");
    }
    if let (None, Some(state)) = (&found, &service_state(args)) {
        state.check_new(&dir)?;
    }
    let mut progress = Progress::new(args.json);
    let (instance, formatting) = open_or_format(args, &dir, found, &mut progress)?;
    secure(&instance, &start, before.as_ref(), args.security.is_some())?;
    let up = Up { args, instance: &instance, start: &start, before: before.as_ref() };
    let code = up.start(
        &Launch { instance: &instance, start: &start, mount_point: &mount_point },
        &doors,
        &mut progress,
    );
    match (code, formatting) {
        (Err(failure), Some(formatting)) => Err(up.take_back(failure, &formatting)),
        (code, _) => code,
    }
}

/// Returns where the service remembers its file system; `None` for a start by hand.
fn service_state(args: &UpArgs) -> Option<ServiceState> {
    args.config.as_ref().and_then(|_| ServiceState::of_process())
}

/// Returns the options for a file system that may exist: those of a file that only apply to a new one are left out then, as
/// targets may have been added since.
fn given_to(found: Option<&Instance>, args: &UpArgs) -> UpArgs {
    let mut args = args.clone();
    if let (Some(instance), Some(path)) = (found, &args.config) {
        let targets = instance.targets();
        let count = |kind| targets.iter().filter(|target| target.kind == kind).count();
        let counts = [
            ("mdts", args.shape.mdts, count(TargetKind::Mdt)),
            ("osts", args.shape.osts, count(TargetKind::Ost)),
        ];
        for (key, wanted, is) in counts {
            if let Some(wanted) = wanted.filter(|wanted| usize::from(*wanted) > is) {
                eprintln!(
                    "nacre: {}: {key} = {wanted} applies to a new file system, this one has {is}: add targets with 'nacre target add'",
                    path.display()
                );
            }
        }
        let ShapeArgs { fsname, flash, disk, ost_cache, .. } = args.shape;
        args.shape = ShapeArgs { fsname, flash, disk, ost_cache, ..ShapeArgs::default() };
    }
    args
}

/// Starts the targets of a directory whose management server is on another host.
fn up_outlying(args: &UpArgs, instance: &Instance) -> Result<i32> {
    let is_plain = args.mount.is_none()
        && args.listen.is_empty()
        && args.port.is_none()
        && args.options.is_empty()
        && args.security.is_none()
        && !args.separate
        && !args.one_process
        && args.shape == ShapeArgs::default();
    if !is_plain {
        return Err(Failure::usage(format!(
            "{} holds targets of file system '{}' and no management server: 'nacre up {0}' starts them as they were added, \
             'nacre mount' mounts the file system",
            instance.dir.display(),
            instance.superblock.fsname
        )));
    }
    let (run, metrics) = (RunDir::new(instance.run_dir()), args.metrics.as_deref());
    if !args.foreground {
        return super::target::start_in(instance, metrics).map(|_| 0);
    }
    if !run.running().is_empty() {
        return Err(Failure::new(format!(
            "it is running already: stop it with 'nacre down {}' first",
            instance.dir.display()
        )));
    }
    let signals = take_signals()?;
    let children = super::target::start_in(instance, metrics).inspect_err(|_| {
        // The service manager would find them running at its next attempt. The failure of the start is the one to report.
        let _ = super::down::stop_all(&run, true, Duration::from_secs(10));
    })?;
    let headline = format!("the targets of file system '{}' here are up", instance.superblock.fsname);
    Ok(watched(&run, signals, children, &headline))
}

/// A call of the command, after all checks and formatting.
struct Up<'a> {
    args: &'a UpArgs,
    instance: &'a Instance,
    start: &'a Start,
    before: Option<&'a Start>,
}

impl Up<'_> {
    fn start(&self, launch: &Launch<'_>, doors: &Doors, progress: &mut Progress) -> Result<i32> {
        let run = RunDir::new(self.instance.run_dir());
        self.tell_of_namesakes(&run);
        let mut started = Started::default();
        let code = self.start_in(&run, launch, doors, &mut started, progress);
        if code.is_err() {
            launch::take_back(started);
        }
        code
    }

    fn start_in(
        &self,
        run: &RunDir,
        launch: &Launch<'_>,
        doors: &Doors,
        started: &mut Started,
        progress: &mut Progress,
    ) -> Result<i32> {
        if self.args.foreground && matches!(doors, Doors::One) {
            let served = launch.one_in_front(started, || self.keep())?;
            return match served.was_ready {
                true => Ok(served.code),
                // The failure was already reported.
                false => Err(Failure::told(served.code)),
            };
        }
        let signals = self.args.foreground.then(take_signals).transpose()?;
        launch.background(doors, started, progress)?;
        self.keep()?;
        if let Some(signals) = signals {
            let headline = Overview::of(self.instance).headline("is up");
            return Ok(watched(run, signals, std::mem::take(&mut started.children), &headline));
        }
        progress.clear();
        self.report(&started.children)
    }

    /// Lists other file systems of this host with the same name.
    fn tell_of_namesakes(&self, run: &RunDir) {
        let own = &self.instance.superblock;
        let is_namesake = |other: &Instance| {
            other.superblock.fsname == own.fsname && other.superblock.fs_uuid != own.fs_uuid
        };
        let dirs = crate::registry::running().into_iter().filter(|other| other.path != run.path);
        let others = dirs.filter_map(|other| named::instance_of(&other));
        if let Some(other) = others.into_iter().find(is_namesake) {
            eprintln!(
                "nacre: the file system in {} has the name '{}', too: lctl needs --fs to tell them apart; a new one gets another \
                 name with --fsname",
                other.dir.display(),
                own.fsname
            );
        }
    }

    /// Stores the options of the start, and reports changes.
    fn keep(&self) -> Result<()> {
        if let Some(text) = self.before.and_then(|before| self.start.changes(before).text()) {
            eprintln!("nacre: {text}");
        }
        if let Some(Err(failure)) = service_state(self.args).map(|state| state.remember(self.instance)) {
            eprintln!(
                "nacre: {}: a start while the disk of {} is not mounted would create a new file system",
                failure.message,
                self.instance.dir.display()
            );
        }
        self.start.save(self.instance)
    }

    fn report(&self, started: &[(String, Child)]) -> Result<i32> {
        let overview = Overview::of(self.instance);
        if self.args.json {
            overview.print_json()?;
        } else {
            println!("{}", summary(&overview, started));
            print!("{}", overview.full_targets());
        }
        match (overview.silent.first(), overview.problems.first()) {
            (Some(silent), _) => Err(Failure::new(silent.text())),
            (None, Some(problem)) => Err(Failure::new(problem.clone())),
            (None, None) => Ok(0),
        }
    }

    /// Removes a new file system that did not start: nothing was stored in it. It stays if other hosts may
    /// have used it meanwhile or devices belong to it.
    fn take_back(&self, failure: Failure, formatting: &Formatting) -> Failure {
        let run = RunDir::new(self.instance.run_dir());
        let has_devices =
            [&self.args.shape.ost_backend, &self.args.shape.mdt_backend, &self.args.shape.ost_cache]
                .iter()
                .any(|given| !given.is_empty());
        let stopped = super::down::stop_all(&run, true, Duration::from_secs(10));
        if !has_devices
            && self.start.listen.is_empty()
            && stopped.is_ok()
            && formatting.undo(self.instance).is_ok()
        {
            return failure;
        }
        let dir = self.instance.dir.display();
        let message =
            format!("{}; a file system was made in {dir}: 'nacre up {dir}' starts it", failure.message);
        Failure { message, ..failure }
    }
}

/// Takes the signals of a start of several processes: one that arrives during the start stops them after it, as they would
/// outlive this process otherwise.
fn take_signals() -> Result<StopSignals> {
    let signals = StopSignals::take()?;
    signals.set_ready();
    Ok(signals)
}

/// Stays in the foreground with processes that run, until a signal arrives or one of them ends.
fn watched(run: &RunDir, signals: StopSignals, children: Vec<(String, Child)>, headline: &str) -> i32 {
    crate::logger::to_stderr(log::LevelFilter::Info);
    log::info!("{headline}");
    service::ready(headline);
    launch::watch(run, signals, children)
}

/// Creates keys for a file system that other hosts will reach from now on. One that was reached without keys
/// stays as it is: its mounts on other hosts have none.
fn secure(instance: &Instance, start: &Start, before: Option<&Start>, is_said: bool) -> Result<()> {
    if !start.needs_keys() || keys::authority_of(&instance.dir).is_some() {
        return Ok(());
    }
    if is_said || !before.is_some_and(Start::is_reached) {
        return keys::init(instance).map(drop);
    }
    eprintln!(
        "nacre: every peer that reaches the servers is served, as the file system has no keys: 'nacre key init {}' makes them",
        instance.dir.display()
    );
    Ok(())
}

/// Returns the options for this start, given the running processes: these are left alone, so options that
/// they contradict are refused.
fn as_it_runs(run: &RunDir, start: &Start, before: Option<&Start>, args: &UpArgs) -> Result<Start> {
    let running = run.running();
    if running.is_empty() {
        return Ok(start.clone());
    }
    let has_node = running.iter().any(|name| name == NODE);
    let dir = run.path.parent().unwrap_or(&run.path).display();
    let stop_first =
        |what: &str| Err(Failure::new(format!("it {what}: stop it with 'nacre down {dir}' first")));
    if args.foreground {
        return stop_first("is running already");
    }
    if args.separate && has_node {
        return stop_first("runs in one process");
    }
    if args.one_process && !has_node {
        return stop_first("runs in separate processes");
    }
    let start = Start { is_separate: !has_node, ..start.clone() };
    let changes = before.map(|before| start.changes(before));
    if let Some((_, before)) = changes.as_ref().and_then(|changes| changes.listen.as_ref()) {
        return stop_first(&format!("is served {before}"));
    }
    let serves_figures = running.iter().any(|name| name == NODE || name == "mgs");
    if let Some((_, before)) =
        changes.as_ref().and_then(|changes| changes.metrics.as_ref()).filter(|_| serves_figures)
    {
        return stop_first(&format!("runs {before}"));
    }
    let has_mount = running.iter().any(|name| name == NODE || name == MOUNT);
    if let Some((_, before)) =
        changes.as_ref().and_then(|changes| changes.mount.as_ref()).filter(|_| has_mount)
    {
        return stop_first(&format!("is {before}"));
    }
    Ok(start)
}

/// Checks the requirements of every mount.
fn check_machine() -> Result<()> {
    let device = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    if let Err(error) = device.as_ref().map_err(std::io::Error::kind)
        && error == ErrorKind::PermissionDenied
    {
        return Err(Failure::new(
            "/dev/fuse may not be opened by this user: run as root, or give its mode 0666",
        ));
    }
    if device.is_err() {
        return Err(Failure::new(
            "there is no /dev/fuse: load the kernel module with 'modprobe fuse' (in a container, pass the device in with '--device /dev/fuse')",
        ));
    }
    if rustix::process::geteuid().is_root() || crate::path::find_program("fusermount3").is_some() {
        return Ok(());
    }
    Err(Failure::new(
        "fusermount3 is needed to mount without root: install the package fuse3, or run as root",
    ))
}

/// Runs `nacre format`.
pub fn format(args: &FormatArgs) -> Result<i32> {
    let options = checked_shape(&args.shape)?;
    if let Some(instance) = Instance::open(&args.dir)? {
        return Err(Failure::new(format!(
            "{} holds the file system '{}' already: nothing was changed",
            args.dir.display(),
            instance.superblock.fsname
        )));
    }
    let mut progress = Progress::new(false);
    let backends = backends(&args.shape, options.ost_count, options.mdt_count)?;
    let make = |instance: &Instance, target| node::format_target_on(instance, target, &backends);
    let caches = OstCaches::parse(&args.shape.ost_cache, options.ost_count)?;
    caches.check_new()?;
    let classes =
        OstClasses::parse(&options.targets(), args.shape.flash.as_deref(), args.shape.disk.as_deref())?;
    let instance = Instance::format(&args.dir, &options, make, |text| progress.show(text))?;
    node::attach_caches(&instance, &caches)?;
    classes.keep(&instance)?;
    drop(progress);
    println!(
        "file system '{}' with {} MDT and {} OSTs made in {}",
        options.fsname,
        options.mdt_count,
        options.ost_count,
        args.dir.display()
    );
    Ok(0)
}

fn checked_shape(shape: &ShapeArgs) -> Result<FormatOptions> {
    let options = FormatOptions {
        fsname: shape.fsname.clone().unwrap_or_else(|| FSNAME_DEFAULT.to_owned()),
        mdt_count: shape.mdts.unwrap_or(1),
        ost_count: shape.osts.unwrap_or(OSTS_DEFAULT),
        joins: None,
    };
    check_fsname(&options.fsname).map_err(|error| Failure::usage(error.to_string()))?;
    if !(1..=MDT_COUNT_MAX).contains(&options.mdt_count) {
        return Err(Failure::usage(format!("a file system has 1 to {MDT_COUNT_MAX} MDTs: change --mdts")));
    }
    if !(1..=TARGET_INDEX_MAX).contains(&options.ost_count) {
        return Err(Failure::usage(format!("a file system has 1 to {TARGET_INDEX_MAX} OSTs: change --osts")));
    }
    Ok(options)
}

/// Opens or formats the file system of the directory; with the means to undo a format.
fn open_or_format(
    args: &UpArgs,
    dir: &Path,
    found: Option<Instance>,
    progress: &mut Progress,
) -> Result<(Instance, Option<Formatting>)> {
    let options = checked_shape(&args.shape)?;
    let (osts, mdts) = found.as_ref().map_or((options.ost_count, options.mdt_count), |instance| {
        (instance.superblock.ost_count, instance.superblock.mdt_count)
    });
    let backends = backends(&args.shape, osts, mdts)?;
    let caches = OstCaches::parse(&args.shape.ost_cache, osts)?;
    let is_new = found.is_none();
    let targets = found.as_ref().map_or_else(|| options.targets(), Instance::targets);
    let classes = OstClasses::parse(&targets, args.shape.flash.as_deref(), args.shape.disk.as_deref())?;
    if is_new {
        caches.check_new()?;
    }
    let formatting = is_new.then(|| Formatting::of(dir)).transpose()?;
    let instance = match found {
        Some(instance) => created_with(args, instance, &backends, &options)?,
        None => {
            let make = |instance: &Instance, target| node::format_target_on(instance, target, &backends);
            Instance::format(dir, &options, make, |text| progress.show(text))?
        }
    };
    node::attach_caches(&instance, &caches)?;
    classes.keep(&instance)?;
    Ok((instance, formatting))
}

/// Returns an existing file system, unless the options contradict it.
fn created_with(
    args: &UpArgs,
    instance: Instance,
    backends: &Backends,
    options: &FormatOptions,
) -> Result<Instance> {
    if instance.is_outlying() {
        return Err(Failure::new(format!(
            "{} holds targets of file system '{}' and no management server: start them with 'nacre target start'",
            instance.dir.display(),
            instance.superblock.fsname
        )));
    }
    let made = &instance.superblock;
    let differs = |what: &str, is: String, wanted: String| {
        Err(Failure::new(format!(
            "{} was made with {what} {is}, not {wanted}: leave the option out, or use a new directory",
            instance.dir.display()
        )))
    };
    if args.shape.fsname.as_ref().is_some_and(|name| *name != made.fsname) {
        return differs("the name", made.fsname.clone(), options.fsname.clone());
    }
    if args.shape.osts.is_some_and(|count| count != made.ost_count) {
        return differs("--osts", made.ost_count.to_string(), options.ost_count.to_string());
    }
    for target in (0..made.ost_count).map(TargetId::ost).chain((0..made.mdt_count).map(TargetId::mdt)) {
        backends.check(&instance, target)?;
    }
    Ok(instance)
}

fn backends(shape: &ShapeArgs, osts: u16, mdts: u16) -> Result<Backends> {
    Backends::parse(&shape.ost_backend, osts, &shape.mdt_backend, mdts)
}

fn summary(overview: &Overview, started: &[(String, Child)]) -> String {
    let names: Vec<&str> = started.iter().map(|(name, _)| name.as_str()).collect();
    let is_well = overview.is_well();
    let state = match names.as_slice() {
        _ if !is_well => "does not run as a whole",
        [] => "was already running",
        [NODE] => "is up",
        names if names.len() == overview.processes.len() => "is up",
        names => return format!("{}; started again: {}", overview.headline("is up"), names.join(", ")),
    };
    overview.headline(state)
}
