//! The TCP ports of servers on this host: chosen once, kept in `run/ports`, so that a restarted server is found where it
//! was.

use crate::failure::{Failure, Result};
use crate::instance::write_durably;
use nacre_types::Nid;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

const FILE: &str = "ports";
const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Ports by process name.
#[derive(Debug)]
pub struct Ports {
    dir: PathBuf,
    ports: BTreeMap<String, u16>,
}

impl Ports {
    /// Reads the ports of a run directory; none if nothing was chosen yet.
    ///
    /// # Errors
    /// If the file is there but cannot be read.
    pub fn load(run_dir: &Path) -> Result<Ports> {
        let path = run_dir.join(FILE);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(Failure::because(format!("read {}", path.display()))(error)),
        };
        Ok(Ports { dir: run_dir.to_path_buf(), ports: parse(&text) })
    }

    /// Chooses a port for a process that does not run: `wanted`, else the one that it had, else a free one.
    ///
    /// # Errors
    /// If the port is in use by somebody else.
    pub fn choose(&mut self, name: &str, wanted: Option<u16>) -> Result<()> {
        let port = match wanted.or_else(|| self.ports.get(name).copied()) {
            Some(port) => {
                TcpListener::bind(SocketAddr::new(HOST, port)).map_err(|error| {
                    Failure::new(format!(
                        "port {port} for {name} cannot be used: {error}; free it or choose others with --port"
                    ))
                })?;
                port
            }
            None => self.free_port()?,
        };
        self.ports.insert(name.to_owned(), port);
        Ok(())
    }

    /// A port that nobody listens on and that was not promised to another process.
    fn free_port(&self) -> Result<u16> {
        // Held until the choice is made, so that the system does not offer the same one twice.
        let mut held = Vec::new();
        loop {
            let fail = || Failure::because("find a free port");
            let listener = TcpListener::bind(SocketAddr::new(HOST, 0)).map_err(fail())?;
            let port = listener.local_addr().map_err(fail())?.port();
            if !self.ports.values().any(|&taken| taken == port) {
                return Ok(port);
            }
            held.push(listener);
        }
    }

    /// Where a process is reached.
    pub fn nid(&self, name: &str) -> Option<Nid> {
        self.ports.get(name).map(|&port| Nid::Tcp(SocketAddr::new(HOST, port)))
    }

    /// Writes the choice down.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&self) -> Result<()> {
        let text: String = self.ports.iter().map(|(name, port)| format!("{name} {port}\n")).collect();
        write_durably(&self.dir, FILE, text.as_bytes())
    }
}

/// Lines of name and port; others are left out, then a port is chosen anew.
fn parse(text: &str) -> BTreeMap<String, u16> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(n, p)| Some((n.to_owned(), p.parse().ok()?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_kept_and_never_given_twice() {
        let scratch = tempfile::tempdir().expect("a directory");
        let mut ports = Ports::load(scratch.path()).expect("nothing yet");
        for name in ["mgs", "mdt0000", "ost0000"] {
            ports.choose(name, None).expect("a free port");
        }
        ports.save().expect("save");
        let mut again = Ports::load(scratch.path()).expect("load");
        assert_eq!(again.ports, ports.ports);
        again.choose("mgs", None).expect("still free");
        assert_eq!(again.nid("mgs"), ports.nid("mgs"));
        let distinct: std::collections::BTreeSet<u16> = ports.ports.values().copied().collect();
        assert_eq!(distinct.len(), 3);
    }

    #[test]
    fn a_port_in_use_is_named() {
        let taken = TcpListener::bind((HOST, 0)).expect("a port");
        let port = taken.local_addr().expect("its address").port();
        let scratch = tempfile::tempdir().expect("a directory");
        let mut ports = Ports::load(scratch.path()).expect("nothing yet");
        let failure = ports.choose("mgs", Some(port)).expect_err("in use");
        assert!(failure.message.contains(&format!("port {port}")), "{failure}");
    }
}
