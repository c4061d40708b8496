//! `nacre web`: pages about a file system of this host.

use super::top;
use crate::failure::{Failure, Result};
use crate::http_address::HttpAddress;
use crate::instance::{if_there, random, write_private};
use crate::lfs::identity::Names;
use crate::process::StopSignals;
use nacre_monitor::WebSite;
use nacre_monitor::http::Server;
use std::path::PathBuf;

/// Serves pages about a file system of this host: its state, space, throughput, jobs and alerts.
///
/// The pages show and change nothing. They need a token, which is new at every start: the printed link contains
/// it. On other hosts, use the link through 'ssh -L'.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example: nacre web /srv/fs
         nacre web /srv/fs --listen 9900
         ssh -L 9821:localhost:9821 host1              then open the link of 'nacre web' on host1")]
pub struct WebArgs {
    /// Directory or mount point of the file system [default: the one that runs here]
    dir: Option<PathBuf>,
    /// Address to listen on: [HOST:]PORT; this host alone without HOST
    #[arg(long, value_name = "ADDRESS", default_value = "9821")]
    listen: HttpAddress,
}

/// Runs the command until a signal ends it.
pub fn run(args: &WebArgs) -> Result<i32> {
    let signals = StopSignals::take()?;
    let (mut gathering, run) = top::gathering_of(args.dir.as_deref())?;
    let listener = args.listen.bind()?;
    if let Some(doubt) = args.listen.doubt() {
        eprintln!("nacre: {doubt}; HTTP does not encrypt the token");
    }
    let (token, session) = (secret()?, secret()?);
    let path = run.path.join("web.token");
    // A file that is there may have another mode.
    if_there(std::fs::remove_file(&path)).map_err(Failure::because(format!("replace {}", path.display())))?;
    write_private(&path, token.as_bytes())?;
    let mut names = Names::default();
    let gather = Box::new(move || {
        let mut snapshot = gathering.gather(None);
        top::name_owners(&mut snapshot, &mut names);
        snapshot
    });
    let fail = || Failure::because(format!("serve pages on {}", args.listen));
    let site = WebSite::start(gather, token.clone(), session).map_err(fail())?;
    let server = Server::start("web", listener, args.listen.names(), site).map_err(fail())?;
    println!(
        "http://{}/#token={token}\nthe token is also in {}; Ctrl-C ends the server",
        server.address(),
        path.display()
    );
    signals.set_ready();
    signals.wait();
    drop(server);
    // Without the server it is of no use; a later server has replaced the file.
    if std::fs::read(&path).is_ok_and(|kept| kept == token.as_bytes()) {
        let _ = std::fs::remove_file(&path);
    }
    Ok(0)
}

/// Draws a random secret of 256 bits.
fn secret() -> Result<String> {
    Ok(random::<32>()?.iter().map(|byte| format!("{byte:02x}")).collect())
}
