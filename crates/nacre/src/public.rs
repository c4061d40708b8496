//! Parameters that every user of this host may read, like those that Lustre has in sysfs: each of root's
//! processes has a socket that answers requests for them and nothing else, within limits of connections,
//! bytes and time.
//!
//! Counters by client, by job or by operation, and parameters that reveal users' files, are for the owner
//! alone.

use crate::control::{Answer, Audience, ControlSocket, Handler, Request, is_dead};
use crate::failure::Result;
use crate::instance::make_dir;
use crate::process::RunDir;
use rustix::io::Errno;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Directory of the sockets.
const DIR: &str = "/run/nacre-public";

/// Parameters that a process has once.
const OF_PROCESSES: &[&str] =
    &["health_check", "jobid_name", "jobid_var", "memused", "memused_max", "timeout", "version"];

/// Further public parameters, by the last part of their names.
const LEAVES: &[&str] = &[
    "active",
    "activeobd",
    "blocksize",
    "checksum_type",
    "checksums",
    "contended_locks",
    "contention_seconds",
    "create_count",
    "cur_dirty_bytes",
    "cur_grant_bytes",
    "degraded",
    "filesfree",
    "filestotal",
    "fstype",
    "idle_timeout",
    "instance",
    "kbytesavail",
    "kbytesfree",
    "kbytestotal",
    "lock_count",
    "lock_timeouts",
    "lock_unused_count",
    "lru_max_age",
    "lru_size",
    "max_create_count",
    "max_dirty_mb",
    "max_pages_per_rpc",
    "max_read_ahead_mb",
    "max_read_ahead_per_file_mb",
    "max_read_ahead_whole_mb",
    "max_rpcs_in_flight",
    "no_create",
    "nonrotational",
    "num_exports",
    "numobd",
    "prealloc_last_id",
    "prealloc_last_seq",
    "prealloc_next_id",
    "prealloc_next_seq",
    "prealloc_status",
    "qos_maxage",
    "qos_prio_free",
    "qos_threshold_rr",
    "read_cache_enable",
    "resource_count",
    "short_io_bytes",
    "statahead_max",
    "stripecount",
    "stripeoffset",
    "stripesize",
    "tot_granted",
    "uuid",
    "writethrough_cache_enable",
];

/// Returns true if every user may read the parameter.
fn is_public(name: &str) -> bool {
    match name.rsplit_once('.') {
        None => OF_PROCESSES.contains(&name),
        // Parameters of exports contain the addresses of clients.
        Some((above, leaf)) => LEAVES.contains(&leaf) && !above.contains(".exports."),
    }
}

/// Answers requests for public parameters only.
struct Readers(Arc<dyn Handler>);

impl Handler for Readers {
    fn handle(&self, request: &Request) -> Answer {
        match request {
            Request::FindParams { .. } => match self.0.handle(request) {
                Answer::Params { mut params } => {
                    params.retain(|param| is_public(&param.name));
                    Answer::Params { params }
                }
                answer => answer,
            },
            Request::ReadParam { name } if is_public(name) => self.0.handle(request),
            Request::ReadParam { .. } => Answer::refusal(Errno::ACCESS, "Permission denied"),
            _ => Answer::refusal(Errno::PERM, "Operation not permitted"),
        }
    }
}

fn socket_of(run: &RunDir, name: &str) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    run.socket(name).hash(&mut hasher);
    Path::new(DIR).join(format!("{:016x}.sock", hasher.finish()))
}

/// Returns the existing sockets; none if users other than root can write to the directory.
fn entries() -> Vec<PathBuf> {
    let is_roots = fs::symlink_metadata(DIR)
        .is_ok_and(|found| found.is_dir() && found.uid() == 0 && found.mode() & 0o022 == 0);
    let entries = is_roots.then(|| fs::read_dir(DIR).ok()).flatten().into_iter().flatten();
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "sock")).collect()
}

/// Returns the directory of the sockets of root's processes, created if missing; `None` for other users.
///
/// # Errors
/// If it cannot be created.
pub fn make_base() -> Result<Option<PathBuf>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    make_dir(Path::new(DIR), 0o755)?;
    Ok(Some(PathBuf::from(DIR)))
}

/// Serves a process's public parameters to every user if the process is root's. Removes sockets that killed
/// processes have left.
///
/// # Errors
/// If the socket cannot be created.
pub fn serve(run: &RunDir, name: &str, handler: Arc<dyn Handler>) -> Result<Option<ControlSocket>> {
    if make_base()?.is_none() {
        return Ok(None);
    }
    for left in entries().into_iter().filter(|path| is_dead(path)) {
        // Another process may have removed it.
        let _ = fs::remove_file(left);
    }
    ControlSocket::serve_for(&socket_of(run, name), Audience::Everybody, Arc::new(Readers(handler))).map(Some)
}

/// Returns the sockets of root's processes, for commands of other users.
pub fn sockets() -> Vec<PathBuf> {
    if rustix::process::geteuid().is_root() { Vec::new() } else { entries() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::ParamName;

    struct All;

    impl Handler for All {
        fn handle(&self, request: &Request) -> Answer {
            match request {
                Request::FindParams { .. } => {
                    let names = ["obdfilter.x.kbytesfree", "obdfilter.x.stats", "mdt.x.exports.0@lo.uuid"];
                    let param = |name: &str| ParamName {
                        name: name.to_owned(),
                        directory: false,
                        readable: true,
                        writable: false,
                    };
                    Answer::Params { params: names.map(param).to_vec() }
                }
                Request::ReadParam { name } => Answer::Value { value: name.clone() },
                _ => Answer::Done,
            }
        }
    }

    #[test]
    fn everybody_reads_what_is_public_and_changes_nothing() {
        let readers = Readers(Arc::new(All));
        let found = readers.handle(&Request::FindParams { pattern: "*".into(), recursive: true });
        let Answer::Params { params } = found else { panic!("{found:?}") };
        assert_eq!(params.iter().map(|param| &*param.name).collect::<Vec<_>>(), ["obdfilter.x.kbytesfree"]);
        let read = |name: &str| readers.handle(&Request::ReadParam { name: name.into() });
        assert_eq!(read("health_check"), Answer::Value { value: "health_check".into() });
        for name in ["debug", "obdfilter.x.stats", "mdt.x.exports.0@lo.uuid", "stats"] {
            assert!(matches!(read(name), Answer::Error { errno: libc::EACCES, .. }), "{name}");
        }
        let write = Request::WriteParam { name: "obdfilter.x.degraded".into(), value: "1".into() };
        for request in [write, Request::Stop { force: true }, Request::Status, Request::LastingParams] {
            assert!(matches!(readers.handle(&request), Answer::Error { errno: libc::EPERM, .. }));
        }
    }
}
