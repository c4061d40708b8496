//! `nacre up`: formats on first use, then starts what does not run yet.

use super::status::Overview;
use super::{FormatArgs, ShapeArgs, UpArgs};
use crate::backend::Backends;
use crate::control::{self, Answer, Request};
use crate::failure::{Failure, Result};
use crate::instance::{self, FormatOptions, Instance, target_name};
use crate::ost_cache::OstCaches;
use crate::process::{self, MOUNT, NODE, RunDir};
use crate::progress::Progress;
use crate::{mounts, node, ost_class, ports};
use nacre_types::limits::{MDT_COUNT_MAX, TARGET_INDEX_MAX};
use nacre_types::nid::check_fsname;
use nacre_types::{Nid, TargetId, TargetKind};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const FSNAME_DEFAULT: &str = "nacre";
const OSTS_DEFAULT: u16 = 2;

/// Runs the command.
pub fn run(args: &UpArgs) -> Result<i32> {
    check_machine()?;
    super::mount::MountOptions::parse(&args.options, false)?;
    let mut progress = Progress::new(args.json);
    let instance = open_or_format(args, &mut progress)?;
    let caches = OstCaches::parse(&args.shape.ost_cache, instance.superblock.ost_count)?;
    node::attach_caches(&instance, &caches)?;
    ost_class::keep(&instance, args.shape.flash.as_deref(), args.shape.disk.as_deref())?;
    let run = RunDir::new(instance.run_dir());
    let mount_point = instance::absolute(&args.mount)?;
    let is_separate = is_separate(&run, args)?;
    if args.foreground {
        check_not_running(&run)?;
        prepare_mount_point(&mount_point)?;
        return super::serve::foreground(&instance, &mount_point, args);
    }
    let started = if is_separate {
        start_separate(&instance, &run, &mount_point, args, &mut progress)?
    } else {
        start_node(&instance, &run, &mount_point, args, &mut progress)?
    };
    drop(progress);
    let overview = Overview::of(&instance);
    if args.json {
        overview.print_json()?;
    } else {
        println!("{}", summary(&overview, &started));
    }
    Ok(0)
}

/// What every mount needs.
fn check_machine() -> Result<()> {
    if !Path::new("/dev/fuse").exists() {
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
    let instance = Instance::format(&args.dir, &options, make, |text| progress.show(text))?;
    node::attach_caches(&instance, &caches)?;
    ost_class::keep(&instance, args.shape.flash.as_deref(), args.shape.disk.as_deref())?;
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

fn open_or_format(args: &UpArgs, progress: &mut Progress) -> Result<Instance> {
    let options = checked_shape(&args.shape)?;
    let found = Instance::open(&args.dir)?;
    let (osts, mdts) = found.as_ref().map_or((options.ost_count, options.mdt_count), |instance| {
        (instance.superblock.ost_count, instance.superblock.mdt_count)
    });
    let backends = backends(&args.shape, osts, mdts)?;
    let Some(instance) = found else {
        OstCaches::parse(&args.shape.ost_cache, osts)?.check_new()?;
        let make = |instance: &Instance, target| node::format_target_on(instance, target, &backends);
        return Instance::format(&args.dir, &options, make, |text| progress.show(text));
    };
    if instance.is_outlying() {
        return Err(Failure::new(format!(
            "{} holds targets of file system '{}' and no management server: start them with 'nacre target start'",
            args.dir.display(),
            instance.superblock.fsname
        )));
    }
    let made = &instance.superblock;
    let differs = |what: &str, is: String, wanted: String| {
        Err(Failure::new(format!(
            "{} was made with {what} {is}, not {wanted}: leave the option out, or use a new directory",
            args.dir.display()
        )))
    };
    if args.shape.fsname.as_ref().is_some_and(|name| *name != made.fsname) {
        return differs("the name", made.fsname.clone(), options.fsname);
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
    Backends::parse((&shape.ost_backend, osts), (&shape.mdt_backend, mdts))
}

/// Whether it is to run in separate processes: what runs of it already says so too, as it runs in one process or in several, not in both.
fn is_separate(run: &RunDir, args: &UpArgs) -> Result<bool> {
    let running = run.running();
    let has_node = running.iter().any(|name| name == NODE);
    let dir = run.path.parent().unwrap_or(&run.path).display();
    if args.separate && has_node {
        return Err(Failure::new(format!("it runs in one process: stop it with 'nacre down {dir}' first")));
    }
    let is_separate = args.separate || (!running.is_empty() && !has_node);
    if is_separate && args.foreground {
        return Err(Failure::new(format!(
            "it runs in separate processes: stop it with 'nacre down {dir}' first"
        )));
    }
    Ok(is_separate)
}

fn check_not_running(run: &RunDir) -> Result<()> {
    match run.pid(NODE) {
        Some(pid) => Err(Failure::new(format!("it is already running (pid {pid})"))),
        None => Ok(()),
    }
}

/// Makes sure that there is a free directory to mount on: makes a missing one, clears a dead mount of ours.
pub fn prepare_mount_point(path: &Path) -> Result<()> {
    if mounts::is_dead_mount_point(path) {
        return clear_dead(path);
    }
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => return Err(Failure::new(format!("{} is not a directory: mount on one", path.display()))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            fs::create_dir(path).map_err(|error| {
                Failure::new(format!("the mount point {} cannot be made: {error}", path.display()))
            })?;
        }
        // It died after the question above.
        Err(error) if error.raw_os_error().is_some_and(mounts::says_dead) => return clear_dead(path),
        Err(error) => return Err(Failure::because(format!("look at {}", path.display()))(error)),
    }
    let real = path.canonicalize().map_err(Failure::because(format!("look at {}", path.display())))?;
    if mounts::is_mount_point(&real).map_err(Failure::because("read the mount table"))? {
        return Err(Failure::new(format!(
            "{} is in use: something is mounted there already",
            path.display()
        )));
    }
    Ok(())
}

/// Unmounts what a process of ours left when it was killed. Anything else is not touched.
pub fn clear_dead(path: &Path) -> Result<()> {
    let ours = mounts::mounted_on(path).map_err(Failure::because("read the mount table"))?.is_some();
    if !ours {
        return Err(Failure::new(format!(
            "a mount on {} is dead and not one of NacreFS: unmount it first",
            path.display()
        )));
    }
    super::mount::detach(path, true)
}

/// Whether the running process has lost its mount (somebody unmounted it) and so was about to end; waits for that end.
///
/// # Errors
/// If it runs without a mount for longer than a clean stop takes.
pub(super) fn ends_by_itself(run: &RunDir, name: &str, mount_point: &Path) -> Result<bool> {
    const PATIENCE: Duration = Duration::from_secs(60);
    let start = Instant::now();
    let mut told = false;
    while run.pid(name).is_some() {
        // Asking is what tells a process that serves another mount point, or that is still starting.
        let answer = control::ask(&run.socket(name), &Request::Status);
        if let Ok(Answer::Status(status)) = &answer
            && let Some(mount) = &status.mount
            && mounts::is_mount_point(&mount.mount_point).map_err(Failure::because("read the mount table"))?
        {
            return Ok(false);
        }
        if start.elapsed() > PATIENCE {
            return Err(Failure::new(format!(
                "it runs without a mount on {}: stop it with 'nacre down' and start it again",
                mount_point.display()
            )));
        }
        if !told {
            log::debug!("waiting for a process that has lost its mount to end");
            told = true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(true)
}

/// Whether process `name` runs and has its mount on `mount_point`.
///
/// # Errors
/// If it has it elsewhere, or does not end without one.
fn is_mounted(run: &RunDir, name: &str, mount_point: &Path) -> Result<bool> {
    if run.pid(name).is_none() || ends_by_itself(run, name, mount_point)? {
        return Ok(false);
    }
    let answer = control::ask(&run.socket(name), &Request::Status);
    if let Ok(Answer::Status(status)) = answer
        && let Some(mount) = status.mount
        && mount.mount_point != real_path(mount_point)
    {
        return Err(Failure::new(format!(
            "it is already running and mounted on {}",
            mount.mount_point.display()
        )));
    }
    Ok(true)
}

fn start_node(
    instance: &Instance,
    run: &RunDir,
    mount_point: &Path,
    args: &UpArgs,
    progress: &mut Progress,
) -> Result<Vec<String>> {
    if is_mounted(run, NODE, mount_point)? {
        return Ok(Vec::new());
    }
    prepare_mount_point(mount_point)?;
    let mut words = serve_words(NODE, instance);
    words.extend(["--mount".into(), mount_point.into()]);
    if let Some(nid) = args.listen {
        words.extend(["--listen".into(), nid.to_string().into()]);
    }
    add_options(&mut words, &args.options);
    progress.show("starting");
    process::start(&words, &run.log(NODE), progress)?;
    Ok(vec![NODE.to_owned()])
}

fn start_separate(
    instance: &Instance,
    run: &RunDir,
    mount_point: &Path,
    args: &UpArgs,
    progress: &mut Progress,
) -> Result<Vec<String>> {
    let mut ports = ports::Ports::load(&run.path)?;
    let mut started = Vec::new();
    let mut targets = instance.targets();
    // Object servers first: the metadata server wants object ids from them.
    targets.sort_by_key(|target| match target.kind {
        TargetKind::Mgt => (0, target.index),
        TargetKind::Ost => (1, target.index),
        TargetKind::Mdt => (2, target.index),
    });
    // Who runs looks for the others where they were; those that were added may have been given another port than comes next.
    let made = 1 + usize::from(instance.superblock.mdt_count) + usize::from(instance.superblock.ost_count);
    let is_new = run.running().is_empty();
    for (index, target) in instance.targets().into_iter().enumerate() {
        let is_free = is_new && index < made || ports.nid(&target_name(target)).is_none();
        let wanted =
            args.port.filter(|_| is_free).map(|base| base.checked_add(index as u16).ok_or(base)).transpose();
        let wanted =
            wanted.map_err(|base| Failure::usage(format!("--port {base} leaves too few ports above it")))?;
        if run.pid(&target_name(target)).is_none() {
            ports.choose(&target_name(target), wanted)?;
        }
    }
    ports.save()?;
    let mgs = ports.nid("mgs").ok_or_else(|| Failure::new("the management server has no port"))?;
    for target in targets {
        let name = target_name(target);
        if run.pid(&name).is_some() {
            continue;
        }
        progress.show(&format!("starting {target}"));
        let nid: Nid = ports.nid(&name).ok_or_else(|| Failure::new(format!("{target} has no port")))?;
        let mut words = serve_words(&name, instance);
        words.extend(["--listen".into(), nid.to_string().into()]);
        words.extend(["--mgs".into(), mgs.to_string().into()]);
        process::start(&words, &run.log(&name), progress)?;
        started.push(name);
    }
    if !is_mounted(run, MOUNT, mount_point)? {
        prepare_mount_point(mount_point)?;
        let mut words = serve_words(MOUNT, instance);
        words.extend(["--mount".into(), mount_point.into()]);
        words.extend(["--mgs".into(), mgs.to_string().into()]);
        add_options(&mut words, &args.options);
        progress.show("mounting");
        process::start(&words, &run.log(MOUNT), progress)?;
        started.push(MOUNT.to_owned());
    }
    Ok(started)
}

pub(super) fn serve_words(role: &str, instance: &Instance) -> Vec<OsString> {
    let dir = instance.dir.clone().into_os_string();
    vec!["serve".into(), "--background".into(), "--role".into(), role.into(), "--dir".into(), dir]
}

fn add_options(words: &mut Vec<OsString>, options: &[String]) {
    for option in options {
        words.extend(["-o".into(), option.into()]);
    }
}

fn real_path(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_path_buf())
}

fn summary(overview: &Overview, started: &[String]) -> String {
    let state = match started {
        [] => "was already running",
        [one] if one == NODE => "is up",
        names if names.len() == overview.processes.len() => "is up",
        names => return format!("{}; started again: {}", overview.headline("is up"), names.join(", ")),
    };
    overview.headline(state)
}
