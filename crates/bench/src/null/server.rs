//! Processes that serve a null file system.

use std::fmt;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use nacre_fuse::nullfs::{NullFs, NullOptions};
use nacre_fuse::{Session, SessionConfig, TransportChoice, Unmount};

use super::echo;
use crate::error::Error;
use crate::options::word;
use crate::piped::Piped;
use crate::worker::Myself;

/// Channel that serves the null file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Flavour {
    /// NacreFS's channel over /dev/fuse.
    Dev,
    /// NacreFS's channel over io_uring.
    Uring,
    /// NacreFS's channel over the transport that [`TransportChoice::Auto`] selects.
    Auto,
    /// The `fuser` crate over /dev/fuse.
    Fuser,
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&word(*self))
    }
}

/// The hidden sub-command `null-server`.
#[derive(Debug, clap::Args)]
pub struct ServeArguments {
    /// Existing directory
    mount_point: PathBuf,
    /// Transport of the channel
    #[arg(long, default_value_t = Flavour::Auto)]
    transport: Flavour,
    /// Make a round trip to this echo server for every request
    #[arg(long, value_name = "ADDRESS")]
    rpc: Option<SocketAddr>,
}

/// Serves a null file system until it is unmounted or standard input ends; prints `mounted` when it is
/// mounted.
///
/// # Errors
///
/// When it cannot be mounted.
pub fn serve(arguments: &ServeArguments) -> Result<(), Error> {
    let mut config = SessionConfig::new(&arguments.mount_point);
    config.transport = match arguments.transport {
        Flavour::Dev => TransportChoice::Dev,
        Flavour::Uring => TransportChoice::Uring,
        Flavour::Auto => TransportChoice::Auto,
        Flavour::Fuser => {
            let reason = "is the fuser_null example, a program of its own";
            return Err(Error::Usage(format!("--transport fuser {reason}")));
        }
    };
    config.threads.pin_readers = true;
    let mut options = NullOptions { negative_entries: true, ..NullOptions::default() };
    if let Some(address) = arguments.rpc {
        options.hook = Some(Arc::new(move |_| {
            if let Err(error) = echo::call(address) {
                log::warn!("the echo server does not answer: {error}");
            }
        }));
    }
    let session = Arc::new(Session::mount(config, Arc::new(NullFs::new(options)))?);
    println!("mounted {}", session.transport());
    let watched = Arc::clone(&session);
    std::thread::spawn(move || {
        // Standard input ends with the parent process, or when the parent closes it.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        let _ = watched.unmount(Unmount::Force);
    });
    session.join()?;
    Ok(())
}

/// A mounted null file system with its server process; unmounted and ended on drop.
pub struct NullMount {
    process: Piped,
    flavour: Flavour,
    point: PathBuf,
}

impl NullMount {
    /// Starts a server for `point` and waits until it is mounted. `rpc`: it calls this echo server for each
    /// request (not with fuser). `fuser`: the example program, if it is not in its usual place.
    ///
    /// # Errors
    ///
    /// When the transport does not exist here, with the server's message.
    pub fn start(
        myself: &Myself,
        flavour: Flavour,
        point: &Path,
        rpc: Option<SocketAddr>,
        fuser: Option<&Path>,
    ) -> Result<NullMount, Error> {
        let mut command = match flavour {
            Flavour::Fuser => fuser_command(myself, fuser, rpc)?,
            _ => {
                let mut command = myself.command("null-server");
                command.args(["--transport", &flavour.to_string()]);
                command.args(rpc.iter().flat_map(|address| ["--rpc".to_owned(), address.to_string()]));
                command
            }
        };
        let process = Piped::start(command.arg(point))?;
        let mut mount = NullMount { process, flavour, point: point.to_owned() };
        if mount.process.line().is_ok_and(|line| line.starts_with("mounted")) {
            return Ok(mount);
        }
        drop(mount);
        let reason = "did not mount, see its message above".to_owned();
        Err(Error::Server { what: format!("null file system, {flavour}"), reason })
    }

    /// Returns the mount point.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// Returns the id of the server process.
    pub fn process(&self) -> u32 {
        self.process.id()
    }

    /// Returns the channel that serves it.
    pub fn flavour(&self) -> Flavour {
        self.flavour
    }
}

/// Returns the command of the example, which is in `examples/` next to the executable (cargo's target
/// directory), or in the executable's own directory when that is `examples/`.
fn fuser_command(myself: &Myself, path: Option<&Path>, rpc: Option<SocketAddr>) -> Result<Command, Error> {
    if rpc.is_some() {
        return Err(Error::Usage("the fuser example makes no calls".to_owned()));
    }
    let beside = myself.program().parent().map(|directory| directory.join("examples/fuser_null"));
    let path = path.map(Path::to_owned).or(beside).filter(|path| path.exists());
    match path {
        Some(path) => Ok(Command::new(path)),
        None => Err(Error::Usage(
            "not built (cargo build --release -p nacre-bench --example fuser_null)".to_owned(),
        )),
    }
}

impl Drop for NullMount {
    fn drop(&mut self) {
        const TIMEOUT: Duration = Duration::from_secs(10);
        self.process.hang_up();
        if self.process.ends_within(TIMEOUT) {
            return;
        }
        self.process.kill();
        let _ = self.process.wait();
        let _ = Command::new("umount").arg("-l").arg(&self.point).status();
    }
}
