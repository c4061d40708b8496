//! `nacre serve`: a process of a file system, in the background or in the foreground.

use super::ServeArgs;
use super::mount::{MountOptions, run_dir_of};
use crate::failure::{Failure, Result};
use crate::instance::{Instance, target_name};
use crate::listen::{self, Address};
use crate::logger;
use crate::node::{MountPlan, Node, Plan};
use crate::process::{Herald, MOUNT, NODE, RunDir, StopSignals, show_as};
use crate::sandbox::{self, Confinement};
use crate::service;
use crate::start::Start;
use log::LevelFilter;
use nacre_types::nid::MountSource;
use nacre_types::{Nid, TargetId};
use std::path::Path;

/// Runs the command and returns the exit code.
pub fn run(args: &ServeArgs) -> i32 {
    show_as(&args.role);
    let prepared = || {
        let (herald, plan) = (Herald::new(args.background)?, plan_of(args)?);
        // Before the first thread: the sandbox applies to threads.
        let confinement = sandbox::enter(&plan)?;
        Ok((StopSignals::take()?, herald, plan, confinement))
    };
    match prepared() {
        Ok((signals, herald, plan, confinement)) => {
            let log_confinement = || confinement.iter().for_each(Confinement::log);
            serve(plan, &herald, &signals, args.background, &log_confinement, || Ok(())).code
        }
        Err(failure) => {
            Herald::only_to_fail(args.background).failed(&failure);
            failure.exit
        }
    }
}

/// End of a process.
pub struct Served {
    /// Exit code.
    pub code: i32,
    /// Everything was running before.
    pub was_ready: bool,
}

/// Runs everything in this process and returns when it has ended. `on_ready` is called when everything runs;
/// if it fails, everything stops.
pub fn foreground(
    instance: &Instance,
    start: &Start,
    mount_point: &Path,
    on_ready: impl FnOnce() -> Result<()>,
) -> Result<Served> {
    show_as(NODE);
    let signals = StopSignals::take()?;
    let herald = Herald::new(false)?;
    let plan = Plan {
        name: NODE.to_owned(),
        run: RunDir::new(instance.run_dir()),
        fsname: instance.superblock.fsname.clone(),
        targets: instance.targets(),
        listen: listen::endpoints(&start.addresses())?,
        mgs: Vec::new(),
        mount: Some(local_mount(instance, mount_point, std::slice::from_ref(&start.options))?),
        instance: Some(instance.clone()),
        metrics: start.metrics.clone(),
    };
    Ok(serve(plan, &herald, &signals, false, &|| (), on_ready))
}

/// Mounts a file system of other hosts and returns when it is unmounted.
pub fn foreground_mount(source: &MountSource, mount_point: &Path, options: MountOptions) -> Result<i32> {
    show_as(MOUNT);
    let signals = StopSignals::take()?;
    let herald = Herald::new(false)?;
    let plan = remote_plan(source, mount_point, options)?;
    Ok(serve(plan, &herald, &signals, false, &|| (), || Ok(())).code)
}

fn serve(
    plan: Plan,
    herald: &Herald,
    signals: &StopSignals,
    background: bool,
    on_log: &dyn Fn(),
    on_ready: impl FnOnce() -> Result<()>,
) -> Served {
    let not_started = |failure: &Failure| {
        log::error!("not started: {failure}");
        herald.failed(failure);
        Served { code: failure.exit, was_ready: false }
    };
    if background {
        let path = plan.run.log(&plan.name);
        if let Err(error) = logger::to_file(&path, LevelFilter::Info) {
            return not_started(&Failure::new(format!(
                "the log {} cannot be written: {error}",
                path.display()
            )));
        }
    } else {
        logger::to_stderr(LevelFilter::Info);
    }
    raise_file_limit();
    let (name, fsname) = (plan.name.clone(), plan.fsname.clone());
    let mounted = plan.mount.as_ref().map(|mount| format!(", mounted on {}", mount.mount_point.display()));
    log::info!("{name} of file system '{fsname}' starts, version {}", env!("CARGO_PKG_VERSION"));
    on_log();
    let node = match Node::start(plan, herald) {
        Ok(running) => running,
        Err(failure) => return not_started(&failure),
    };
    signals.set_ready();
    if let Err(failure) = on_ready() {
        log::error!("{failure}");
    }
    if herald.ready() {
        log::info!("{name} is ready");
        if !background {
            service::ready(&format!("file system '{fsname}' is up{}", mounted.unwrap_or_default()));
        }
        signals.wait();
    } else {
        log::info!("{name} was called off while it started");
    }
    log::info!("{name} stops");
    if !background {
        service::stopping();
    }
    let stopped = node.stop();
    let code = match stopped {
        Ok(()) => {
            log::info!("{name} has stopped");
            0
        }
        Err(failure) => {
            log::error!("{failure}");
            failure.exit
        }
    };
    Served { code, was_ready: true }
}

/// Raises the limit of open files: object stores keep many open; the soft limit is low for programs that use
/// select(2), which this is not.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        log::warn!("the limit on open files stays at {:?}: {error}", limit.current);
    }
}

fn plan_of(args: &ServeArgs) -> Result<Plan> {
    if args.role == MOUNT && args.dir.is_none() {
        let source = args.source.as_deref().ok_or_else(|| Failure::usage("--source is needed"))?;
        let source = listen::resolve_source(source)?;
        let mount_point = args.mount.as_deref().ok_or_else(|| Failure::usage("--mount is needed"))?;
        return remote_plan(&source, mount_point, MountOptions::parse(&args.options, args.sloppy)?);
    }
    let dir = args.dir.as_deref().ok_or_else(|| Failure::usage("--dir is needed"))?;
    let instance = Instance::open_existing(dir)?;
    // One process of a directory is enough.
    let is_first = args.role == NODE || args.role == "mgs" || instance.is_outlying();
    if is_first && let Err(error) = instance.restore_copies() {
        log::warn!("cannot write the copy of the superblock in {}: {error}", instance.dir.display());
    }
    let targets = targets_of(&args.role, &instance)?;
    let mgs = nids_of(&args.mgs)?;
    let mount = match (&args.mount, args.role.as_str()) {
        (Some(mount_point), NODE) => Some(local_mount(&instance, mount_point, &args.options)?),
        (Some(mount_point), MOUNT) => {
            let source = MountSource::whole(mgs.clone(), &instance.superblock.fsname);
            Some(MountPlan::new(&source, mount_point, MountOptions::parse(&args.options, args.sloppy)?))
        }
        _ => None,
    };
    Ok(Plan {
        name: args.role.clone(),
        run: RunDir::new(instance.run_dir()),
        fsname: instance.superblock.fsname.clone(),
        listen: listen::endpoints(&args.listen)?,
        mgs,
        // A mount uses only the run directory of the directory.
        instance: (args.role != MOUNT).then(|| instance.clone()),
        targets,
        mount,
        metrics: args.metrics.clone(),
    })
}

/// Returns the NIDs of all these addresses, each once.
pub(super) fn nids_of(addresses: &[Address]) -> Result<Vec<Nid>> {
    let mut all = Vec::new();
    for address in addresses {
        for nid in address.nids()? {
            if !all.contains(&nid) {
                all.push(nid);
            }
        }
    }
    Ok(all)
}

fn targets_of(role: &str, instance: &Instance) -> Result<Vec<TargetId>> {
    match role {
        NODE => Ok(instance.targets()),
        MOUNT => Ok(Vec::new()),
        role => {
            let found = instance.targets().into_iter().find(|target| target_name(*target) == role);
            found.map(|target| vec![target]).ok_or_else(|| {
                Failure::usage(format!(
                    "{} has no target '{role}': see 'nacre status'",
                    instance.dir.display()
                ))
            })
        }
    }
}

fn local_mount(instance: &Instance, mount_point: &Path, options: &[String]) -> Result<MountPlan> {
    let source = MountSource::whole(vec![Nid::Lo], &instance.superblock.fsname);
    Ok(MountPlan::new(&source, mount_point, MountOptions::parse(options, false)?))
}

fn remote_plan(source: &MountSource, mount_point: &Path, options: MountOptions) -> Result<Plan> {
    Ok(Plan {
        name: MOUNT.to_owned(),
        run: run_dir_of(mount_point, None)?,
        instance: None,
        fsname: source.fsname.clone(),
        targets: Vec::new(),
        listen: Vec::new(),
        mgs: source.nids.clone(),
        metrics: options.metrics.clone(),
        mount: Some(MountPlan::new(source, mount_point, options)),
    })
}
