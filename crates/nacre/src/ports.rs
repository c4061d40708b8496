//! TCP ports of servers on this host: chosen once and kept in `run/ports`, so that clients find a restarted
//! server.

use crate::failure::{Failure, Result};
use crate::instance::{if_there, write_durably};
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, getsockname, socket_with};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

const FILE: &str = "ports";
/// Lower bound of the ports to choose from: the ports of well-known services are below it.
const LASTING_FIRST: u16 = 10_000;
/// Ports that are tried until a conflict on another address becomes an error.
const PASSING_TRIES: usize = 100;

/// Ports by process name.
#[derive(Debug)]
pub struct Ports {
    dir: PathBuf,
    /// Addresses on which each process listens with its port.
    hosts: Vec<IpAddr>,
    ports: BTreeMap<String, u16>,
}

impl Ports {
    /// Reads the ports of a run directory; none if none were chosen. A port has to be free on all of `hosts`.
    ///
    /// # Errors
    /// If the file exists but cannot be read.
    pub fn load(run_dir: &Path, hosts: Vec<IpAddr>) -> Result<Ports> {
        let path = run_dir.join(FILE);
        let text = if_there(std::fs::read_to_string(&path))
            .map_err(Failure::because(format!("read {}", path.display())))?;
        Ok(Ports { dir: run_dir.to_path_buf(), hosts, ports: parse(&text.unwrap_or_default()) })
    }

    /// Chooses a port for a process that does not run: `wanted`, else its previous one, else a free one.
    ///
    /// # Errors
    /// If another process uses the port.
    pub fn choose(&mut self, name: &str, wanted: Option<u16>) -> Result<()> {
        let port = match wanted.or_else(|| self.ports.get(name).copied()) {
            Some(port) => {
                self.take(port).map_err(|error| {
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

    /// Returns a free port that is not assigned to another process: one outside the system's ephemeral range,
    /// so that it is still free when a server restarts.
    fn free_port(&self) -> Result<u16> {
        let table = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
        let mut lasting = lasting_ports(&table, RandomState::new().build_hasher().finish());
        let is_free = |port: &u16| !self.is_promised(*port) && self.take(*port).is_ok();
        lasting.find(is_free).map_or_else(|| self.passing_port(), Ok)
    }

    fn is_promised(&self, port: u16) -> bool {
        self.ports.values().any(|&taken| taken == port)
    }

    /// Returns any port that is free at present.
    fn passing_port(&self) -> Result<u16> {
        let fail = || Failure::because("find a free port");
        let first = self.hosts.first().copied().unwrap_or(IpAddr::from([127, 0, 0, 1]));
        // Held until the choice, so that the system does not offer the same port twice.
        let mut held = Vec::new();
        loop {
            let (socket, port) = bind(first, 0).map_err(fail())?;
            let others = self.hosts.iter().skip(1).try_for_each(|host| bind(*host, port).map(drop));
            if !self.is_promised(port) && others.is_ok() {
                return Ok(port);
            }
            held.push(socket);
            if held.len() > PASSING_TRIES {
                others.map_err(fail())?;
            }
        }
    }

    /// Checks that a port is free on all hosts.
    fn take(&self, port: u16) -> std::io::Result<()> {
        self.hosts.iter().try_for_each(|host| bind(*host, port).map(drop))
    }

    /// Returns the port of a process.
    pub fn port(&self, name: &str) -> Option<u16> {
        self.ports.get(name).copied()
    }

    /// Returns true if no port was chosen.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// Stores the choice.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&self) -> Result<()> {
        let text: String = self.ports.iter().map(|(name, port)| format!("{name} {port}\n")).collect();
        write_durably(&self.dir, FILE, text.as_bytes())
    }
}

/// Binds a port of an address of this host, any with 0, for the life of the socket.
///
/// It does not listen: a copy of the descriptor that a concurrent fork has inherited then does not block the
/// port after the release.
fn bind(host: IpAddr, port: u16) -> std::io::Result<(OwnedFd, u16)> {
    let family = if host.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &SocketAddr::new(host, port))?;
    let bound = SocketAddr::try_from(getsockname(&socket)?)?;
    Ok((socket, bound.port()))
}

/// Returns ports outside of the ephemeral range in `table` (`ip_local_port_range`). `random` determines the
/// first one, so that processes that choose at the same time start at different ports.
fn lasting_ports(table: &str, random: u64) -> impl Iterator<Item = u16> {
    // Linux's default range, if the file cannot be parsed.
    let first: u16 = table.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(32_768);
    let count = u64::from(first).saturating_sub(u64::from(LASTING_FIRST));
    // A small remainder is not worth the search.
    let tries = if count < 100 { 0 } else { 100 };
    (0..tries).filter_map(move |step| {
        u16::try_from(u64::from(LASTING_FIRST) + (random % count + step) % count).ok()
    })
}

/// Parses lines of name and port; malformed lines are skipped, and their ports chosen again.
fn parse(text: &str) -> BTreeMap<String, u16> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(n, p)| Some((n.to_owned(), p.parse().ok()?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const HOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn load(dir: &Path) -> Ports {
        Ports::load(dir, vec![HOST]).expect("nothing yet, or what was saved")
    }

    #[test]
    fn a_port_that_was_given_up_can_be_listened_on_while_a_process_that_starts_has_a_copy_of_its_socket() {
        let (socket, port) = bind(HOST, 0).expect("a port");
        let copy = socket.try_clone().expect("a descriptor");
        drop(socket);
        let listener = TcpListener::bind((HOST, port)).expect("nobody listens there");
        assert!(bind(HOST, port).is_err());
        drop((copy, listener));
    }

    #[test]
    fn ports_are_kept_and_never_given_twice() {
        let scratch = tempfile::tempdir().expect("a directory");
        let mut ports = load(scratch.path());
        for name in ["mgs", "mdt0000", "ost0000"] {
            ports.choose(name, None).expect("a free port");
        }
        ports.save().expect("save");
        let mut again = load(scratch.path());
        assert_eq!(again.ports, ports.ports);
        again.choose("mgs", None).expect("still free");
        assert_eq!(again.port("mgs"), ports.port("mgs"));
        let distinct: std::collections::BTreeSet<u16> = ports.ports.values().copied().collect();
        assert_eq!(distinct.len(), 3);
    }

    #[test]
    fn ports_that_connections_do_not_get_are_preferred() {
        for random in [0, 7, 22_767, u64::MAX] {
            let ports: Vec<u16> = lasting_ports("32768\t60999\n", random).collect();
            assert!(
                ports.len() == 100 && ports.iter().all(|port| (10_000..32_768).contains(port)),
                "{ports:?}"
            );
        }
        assert!(lasting_ports("", 5).eq(10_005..10_105));
        assert_eq!(lasting_ports("1024 65535", 5).count(), 0);
        assert_eq!(lasting_ports("10050 65535", 5).count(), 0);
        let scratch = tempfile::tempdir().expect("a directory");
        let ports = load(scratch.path());
        assert!(ports.passing_port().is_ok());
    }

    #[test]
    fn a_port_in_use_is_named() {
        let taken = TcpListener::bind((HOST, 0)).expect("a port");
        let port = taken.local_addr().expect("its address").port();
        let scratch = tempfile::tempdir().expect("a directory");
        let mut ports = load(scratch.path());
        let failure = ports.choose("mgs", Some(port)).expect_err("in use");
        assert!(failure.message.contains(&format!("port {port}")), "{failure}");
    }
}
