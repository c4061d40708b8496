//! `nacre serve`: one process of a file system, in the background or in the foreground.

use super::mount::{MountOptions, run_dir_of};
use super::{ServeArgs, UpArgs};
use crate::failure::{Failure, Result};
use crate::instance::{Instance, target_name};
use crate::logger;
use crate::node::{MountPlan, Node, Plan};
use crate::process::{Herald, MOUNT, NODE, RunDir, StopSignals};
use log::LevelFilter;
use nacre_types::nid::MountSource;
use nacre_types::{Nid, TargetId};
use std::path::Path;

/// Runs the command and returns the exit code.
pub fn run(args: &ServeArgs) -> i32 {
    let prepared =
        StopSignals::take().and_then(|signals| Ok((signals, Herald::new(args.background)?, plan_of(args)?)));
    match prepared {
        Ok((signals, herald, plan)) => serve(plan, &herald, &signals, args.background),
        Err(failure) => {
            Herald::only_to_fail(args.background).failed(&failure);
            failure.exit
        }
    }
}

/// Runs everything in this process and stays.
pub fn foreground(instance: &Instance, mount_point: &Path, args: &UpArgs) -> Result<i32> {
    let signals = StopSignals::take()?;
    let herald = Herald::new(false)?;
    let plan = Plan {
        name: NODE.to_owned(),
        run: RunDir::new(instance.run_dir()),
        fsname: instance.superblock.fsname.clone(),
        targets: instance.targets(),
        listen: args.listen,
        mgs: Vec::new(),
        mount: Some(local_mount(instance, mount_point, &args.options)?),
        instance: Some(instance.clone()),
    };
    Ok(serve(plan, &herald, &signals, false))
}

/// Mounts what others serve and stays.
pub fn foreground_mount(source: &MountSource, mount_point: &Path, options: MountOptions) -> Result<i32> {
    let signals = StopSignals::take()?;
    let herald = Herald::new(false)?;
    let plan = remote_plan(source, mount_point, options)?;
    Ok(serve(plan, &herald, &signals, false))
}

fn serve(plan: Plan, herald: &Herald, signals: &StopSignals, background: bool) -> i32 {
    if background {
        let path = plan.run.log(&plan.name);
        if let Err(error) = logger::to_file(&path, LevelFilter::Info) {
            let failure = Failure::new(format!("the log {} cannot be written: {error}", path.display()));
            herald.failed(&failure);
            return failure.exit;
        }
    } else {
        logger::to_stderr(LevelFilter::Info);
    }
    raise_file_limit();
    let (name, fsname) = (plan.name.clone(), plan.fsname.clone());
    log::info!("{name} of file system '{fsname}' starts, version {}", env!("CARGO_PKG_VERSION"));
    let (node, socket) = match Node::start(plan, herald) {
        Ok(running) => running,
        Err(failure) => {
            log::error!("not started: {failure}");
            herald.failed(&failure);
            return failure.exit;
        }
    };
    signals.set_ready();
    if herald.ready() {
        log::info!("{name} is ready");
        signals.wait();
    } else {
        log::info!("{name} was called off while it started");
    }
    log::info!("{name} stops");
    let stopped = node.stop();
    drop(socket);
    match stopped {
        Ok(()) => {
            log::info!("{name} has stopped");
            0
        }
        Err(failure) => {
            log::error!("{failure}");
            failure.exit
        }
    }
}

/// Object stores keep many files open; the soft limit is low for programs that use select(2), which this is not.
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
        let source: MountSource = source.parse().map_err(|error| Failure::usage(format!("{error}")))?;
        let mount_point = args.mount.as_deref().ok_or_else(|| Failure::usage("--mount is needed"))?;
        return remote_plan(&source, mount_point, MountOptions::parse(&args.options, args.sloppy)?);
    }
    let dir = args.dir.as_deref().ok_or_else(|| Failure::usage("--dir is needed"))?;
    let instance = Instance::open_existing(dir)?;
    let targets = targets_of(&args.role, &instance)?;
    let mount = match (&args.mount, args.role.as_str()) {
        (Some(mount_point), NODE) => Some(local_mount(&instance, mount_point, &args.options)?),
        (Some(mount_point), MOUNT) => {
            let nids = args.mgs.into_iter().collect();
            let source = MountSource { nids, fsname: instance.superblock.fsname.clone() };
            Some(MountPlan {
                mount_point: mount_point.clone(),
                source: source.to_string(),
                options: MountOptions::parse(&args.options, args.sloppy)?,
            })
        }
        _ => None,
    };
    Ok(Plan {
        name: args.role.clone(),
        run: RunDir::new(instance.run_dir()),
        fsname: instance.superblock.fsname.clone(),
        listen: args.listen,
        mgs: args.mgs.into_iter().collect(),
        // A mount uses nothing of the directory but its run directory.
        instance: (args.role != MOUNT).then(|| instance.clone()),
        targets,
        mount,
    })
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
    let source = MountSource { nids: vec![Nid::Lo], fsname: instance.superblock.fsname.clone() };
    Ok(MountPlan {
        mount_point: mount_point.to_path_buf(),
        source: source.to_string(),
        options: MountOptions::parse(options, false)?,
    })
}

fn remote_plan(source: &MountSource, mount_point: &Path, options: MountOptions) -> Result<Plan> {
    Ok(Plan {
        name: MOUNT.to_owned(),
        run: run_dir_of(mount_point, None)?,
        instance: None,
        fsname: source.fsname.clone(),
        targets: Vec::new(),
        listen: None,
        mgs: source.nids.clone(),
        mount: Some(MountPlan {
            mount_point: mount_point.to_path_buf(),
            source: source.to_string(),
            options,
        }),
    })
}
