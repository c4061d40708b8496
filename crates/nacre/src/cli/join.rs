//! `nacre join`: adds targets on this host to a file system that runs on other hosts.

use super::target::{Place, add_elsewhere, ports_in};
use super::{JoinArgs, key};
use crate::control::NewTarget;
use crate::failure::{Failure, Result};
use crate::instance::{self, Instance};
use crate::keys::Holder;
use crate::listen::{self, Address};
use crate::start::{Start, StartOptions};
use crate::target_options::TargetOptions;
use nacre_types::TargetKind;
use nacre_types::nid::MountSource;

/// Runs the command.
pub fn run(args: &JoinArgs) -> Result<i32> {
    let words = MountSource::split(&args.source).map_err(|error| Failure::usage(error.to_string()))?;
    if !words.directory.is_empty() {
        return Err(Failure::usage(format!("{} names a directory: name the file system alone", args.source)));
    }
    let mgs = words.nids.iter().map(|word| word.parse().map_err(Failure::usage));
    let mgs = mgs.collect::<Result<Vec<Address>>>()?;
    let source = listen::resolve_source(&args.source)?;
    let dir = instance::absolute(&args.dir)?;
    // A wrong address is refused before anything is created.
    StartOptions { metrics: args.metrics.as_deref(), ..StartOptions::default() }
        .applied_to(&Start::default())?;
    let kinds = kinds(args);
    let target_options = target_options(args, &kinds)?;
    check_directory(&dir, &source.fsname)?;
    if let Some(identity) = key::enrol(&args.token, &source.nids, &source.fsname, Holder::Servers(&dir))? {
        eprintln!("key {} ({}) enrolled", identity.id, identity.roles);
    }
    for (kind, target_options) in kinds.into_iter().zip(&target_options) {
        let place = Place {
            listen: free_addresses(&args.listen, &dir)?,
            mgs: mgs.clone(),
            metrics: args.metrics.clone(),
        };
        add_elsewhere(&dir, kind, None, Some(&source.fsname), target_options, &place)?;
    }
    Ok(0)
}

/// Returns the kinds of the targets to add, in this order.
fn kinds(args: &JoinArgs) -> Vec<NewTarget> {
    let osts = args.osts.unwrap_or(if args.mdt { 0 } else { 1 });
    let osts = osts.max(u16::try_from(args.ost_backend.len()).unwrap_or(u16::MAX));
    let osts = std::iter::repeat_n(NewTarget::Ost, osts.into());
    osts.chain(args.mdt.then_some(NewTarget::Mdt)).collect()
}

fn target_options(args: &JoinArgs, kinds: &[NewTarget]) -> Result<Vec<TargetOptions>> {
    let osts = kinds.iter().filter(|kind| kind.kind() == TargetKind::Ost).count();
    if args.ost_backend.len() > 1 && args.ost_backend.len() != osts {
        return Err(Failure::usage(format!(
            "{osts} OSTs and {} times --ost-backend: say it once for all, or once for each",
            args.ost_backend.len()
        )));
    }
    let mut backends = args.ost_backend.iter().cycle();
    let requested = |kind: &NewTarget| match kind.kind() {
        TargetKind::Ost => {
            TargetOptions::of_backends(backends.next().cloned(), None).anywhere(TargetKind::Ost)
        }
        kind => TargetOptions::of_backends(None, args.mdt_backend.clone()).anywhere(kind),
    };
    kinds.iter().map(requested).collect()
}

/// Checks that the targets in the directory are of the same file system, without a management server.
fn check_directory(dir: &std::path::Path, fsname: &str) -> Result<()> {
    match Instance::open(dir)? {
        Some(instance) if !instance.is_outlying() || instance.superblock.fsname != fsname => {
            Err(Failure::new(format!(
                "{} holds the file system '{}': choose another directory",
                dir.display(),
                instance.superblock.fsname
            )))
        }
        _ => Ok(()),
    }
}

/// Returns the addresses with the first port, from the given one upwards, that no target of the directory
/// uses.
fn free_addresses(listen: &[Address], dir: &std::path::Path) -> Result<Vec<Address>> {
    let used = match Instance::open(dir)? {
        Some(instance) => ports_in(&instance)?,
        None => Vec::new(),
    };
    let port = (0..u16::MAX).find(|more| {
        listen
            .iter()
            .all(|address| address.port().checked_add(*more).is_some_and(|port| !used.contains(&port)))
    });
    let more = port.ok_or_else(|| Failure::usage("there is no port left: say another one with --listen"))?;
    Ok(listen.iter().map(|address| address.with_port(address.port() + more)).collect())
}
