//! The command lines of the binary: the only place that knows them.

use std::ffi::OsString;
use std::net::TcpListener;
use std::path::Path;

use super::{Options, Server};
use crate::run::Run;

/// A NID with a port of the loopback interface that is free now.
pub(super) fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback interface is up");
    let port = listener.local_addr().expect("a bound socket has an address").port();
    format!("127.0.0.1@tcp:{port}")
}

fn server(role: impl Into<String>, arguments: Vec<OsString>, point: Option<&Path>) -> Server {
    Server { role: role.into(), arguments, child: None, point: point.map(Path::to_owned) }
}

/// Everything in one process.
pub(super) fn up(data: &Path, mount: &Path, address: &str, options: &Options) -> Server {
    let mut arguments: Vec<OsString> = vec!["up".into(), data.into(), "--mount".into(), mount.into()];
    arguments.extend(["--osts".into(), options.osts.to_string().into(), "--foreground".into()]);
    if options.listen {
        arguments.extend(["--listen".into(), address.into()]);
    }
    arguments.extend(options.mount_arguments.iter().map(OsString::from));
    server("up", arguments, Some(mount))
}

/// The servers in the order in which they start, without mounts.
pub(super) fn servers(run: &Run, data: &Path, address: &str, options: &Options) -> Vec<Server> {
    let _ = (run, data, address, options);
    Vec::new()
}

/// A mount by a client of its own.
pub(super) fn mount(role: &str, point: &Path, address: &str, options: &Options) -> Server {
    let mut arguments: Vec<OsString> = vec!["mount".into(), format!("{address}:/nacre").into(), point.into()];
    arguments.push("--foreground".into());
    arguments.extend(options.mount_arguments.iter().map(OsString::from));
    server(role, arguments, Some(point))
}

/// The calls that check all targets below `data`.
pub(super) fn checks(data: &Path) -> Vec<Vec<OsString>> {
    vec![vec!["check".into(), data.into()]]
}
