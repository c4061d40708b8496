//! Addresses as users write them, `ADDRESS[:PORT]@tcp` with an IP address or a host name, and their meaning
//! on this host: sockets to listen on, and NIDs for other hosts.

use crate::failure::{Failure, Result};
use nacre_types::limits::PORT_DEFAULT;
use nacre_types::nid::MountSource;
use nacre_types::{Nid, Security, SecurityError};
use std::ffi::CStr;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::str::FromStr;

/// Word for "no other hosts".
pub const NONE: &str = "none";

/// An address to listen on or to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    host: Host,
    port: u16,
    /// Protection of its connections, if given: `10.0.0.1@tcp,authenticate`.
    security: Option<Security>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    Ip(IpAddr),
    Name(String),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Ip(ip) => Nid::Tcp(SocketAddr::new(*ip, self.port)).fmt(f),
            Host::Name(name) if self.port == PORT_DEFAULT => write!(f, "{name}@tcp"),
            Host::Name(name) => write!(f, "{name}:{}@tcp", self.port),
        }?;
        self.security.map_or(Ok(()), |security| write!(f, ",{security}"))
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Address, String> {
        if let Some((text, security)) = text.rsplit_once(',') {
            let security = Some(security.parse().map_err(|error: SecurityError| error.to_string())?);
            let address: Address = text.parse()?;
            return match address.security {
                None => Ok(Address { security, ..address }),
                Some(_) => Err(format!("{text} says its protection twice")),
            };
        }
        let security = None;
        let wrong = match text.parse::<Nid>() {
            Ok(Nid::Tcp(addr)) => {
                return Ok(Address { host: Host::Ip(addr.ip()), port: addr.port(), security });
            }
            Ok(Nid::Lo) => {
                return Err(format!(
                    "{text} is inside each process: give an address such as 10.0.0.1@tcp or host1@tcp"
                ));
            }
            Err(wrong) => wrong.to_string(),
        };
        let name = text.strip_suffix("@tcp").or_else(|| text.strip_suffix("@tcp0")).ok_or(wrong.clone())?;
        let (name, port) = match name.split_once(':') {
            Some((name, port)) => (name, port.parse().map_err(|_| wrong.clone())?),
            None => (name, PORT_DEFAULT),
        };
        // Digits and dots alone are a mistyped address, which some resolvers accept as another address.
        let is_name = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
            && name.bytes().any(|b| b.is_ascii_alphabetic());
        if is_name { Ok(Address { host: Host::Name(name.to_owned()), port, security }) } else { Err(wrong) }
    }
}

/// A socket to listen on, and the hosts that announce it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Address to bind; port 0 is any.
    pub bind: SocketAddr,
    /// Protection of its connections.
    pub security: Security,
    announced: Vec<IpAddr>,
}

impl Endpoint {
    /// Returns the NIDs for other hosts; `bound` is the address that `bind` got.
    pub fn nids(&self, bound: SocketAddr) -> impl Iterator<Item = Nid> + '_ {
        self.announced.iter().map(move |ip| Nid::Tcp(SocketAddr::new(*ip, bound.port())))
    }

    /// Returns the NIDs for processes of this host.
    pub fn nids_here(&self) -> Vec<Nid> {
        let ip = match self.bind.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
            ip => ip,
        };
        vec![Nid::Tcp(SocketAddr::new(ip, self.bind.port()))]
    }
}

impl Address {
    /// Returns an address for this host alone.
    pub fn loopback(port: u16) -> Address {
        Address { host: Host::Ip(IpAddr::V4(Ipv4Addr::LOCALHOST)), port, security: None }
    }

    /// Returns the address with another port.
    pub fn with_port(&self, port: u16) -> Address {
        Address { port, ..self.clone() }
    }

    /// Returns the address with this protection, unless it has its own.
    pub fn protected_by(&self, security: Security) -> Address {
        Address { security: self.security.or(Some(security)), ..self.clone() }
    }

    /// Returns the protection of its connections.
    pub fn security(&self) -> Security {
        self.security.unwrap_or_default()
    }

    /// Returns its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Resolves it to IP addresses: its own, or those of its name.
    fn addresses(&self) -> Result<Vec<SocketAddr>> {
        let name = match &self.host {
            Host::Ip(ip) => return Ok(vec![SocketAddr::new(*ip, self.port)]),
            Host::Name(name) => name,
        };
        let found = (name.as_str(), self.port).to_socket_addrs().map_err(|error| {
            Failure::new(format!("the host name '{name}' has no address: {}", without_code(&error)))
        })?;
        let mut addresses: Vec<SocketAddr> = Vec::new();
        for address in found {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        Ok(addresses)
    }

    /// Returns the NIDs to connect to.
    ///
    /// # Errors
    /// If a host name has no address.
    pub fn nids(&self) -> Result<Vec<Nid>> {
        Ok(self.addresses()?.into_iter().map(Nid::Tcp).collect())
    }

    /// Returns the sockets to listen on.
    ///
    /// # Errors
    /// If a host name has no address, or none of its addresses is one of this host.
    pub fn endpoints(&self) -> Result<Vec<Endpoint>> {
        let all = self.addresses()?;
        let Host::Name(name) = &self.host else {
            return all.into_iter().map(|bind| endpoint(bind, self.security(), &own_addresses()?)).collect();
        };
        let here: Vec<SocketAddr> =
            all.iter().copied().filter(|addr| TcpListener::bind((addr.ip(), 0)).is_ok()).collect();
        if here.is_empty() {
            let all: Vec<String> = all.iter().map(|addr| addr.ip().to_string()).collect();
            return Err(Failure::new(format!(
                "'{name}' is {}, which is not an address of this host: choose one that is",
                all.join(", ")
            )));
        }
        here.into_iter().map(|bind| endpoint(bind, self.security(), &own_addresses()?)).collect()
    }

    /// Returns a warning for administrators: a name that resolves to this address on this host only.
    pub fn doubt(&self) -> Option<String> {
        let Host::Name(name) = &self.host else { return None };
        let all = self.addresses().ok()?;
        let is_doubtful = name != "localhost" && all.iter().all(|addr| addr.ip().is_loopback());
        is_doubtful.then(|| {
            format!(
                "'{name}' is {} here, which no other host reaches: listen on an address of the network instead",
                all.first().map_or_else(String::new, |addr| addr.ip().to_string())
            )
        })
    }
}

/// Returns the sockets for all of these addresses, each once.
///
/// # Errors
/// As [`Address::endpoints`].
pub fn endpoints(addresses: &[Address]) -> Result<Vec<Endpoint>> {
    let mut all: Vec<Endpoint> = Vec::new();
    for address in addresses {
        for endpoint in address.endpoints()? {
            if !all.iter().any(|known| known.bind == endpoint.bind) {
                all.push(endpoint);
            }
        }
    }
    // A wildcard socket takes the port of the others.
    let covers = |wide: &Endpoint, other: &Endpoint| {
        let is_wide = wide.bind.ip().is_unspecified() && wide.bind.port() == other.bind.port();
        is_wide
            && wide.bind != other.bind
            && wide.bind.port() != 0
            && (wide.bind.is_ipv6() == other.bind.is_ipv6() || takes_both(wide))
    };
    let wide = all.clone();
    all.retain(|endpoint| !wide.iter().any(|other| covers(other, endpoint)));
    Ok(all)
}

/// Returns true if a socket of IPv6 also accepts connections of IPv4.
fn takes_both(endpoint: &Endpoint) -> bool {
    let only = std::fs::read_to_string("/proc/sys/net/ipv6/bindv6only").unwrap_or_default();
    endpoint.bind.is_ipv6() && only.trim() != "1"
}

/// Checks that all sockets can be bound; another process may still bind an address later.
///
/// # Errors
/// One sentence with the reason.
pub fn check(endpoints: &[Endpoint]) -> Result<()> {
    endpoints.iter().try_for_each(|endpoint| {
        TcpListener::bind(endpoint.bind).map(drop).map_err(|error| refused(endpoint.bind, &error))
    })
}

/// Returns the failure for an address that cannot be bound.
pub fn refused(addr: SocketAddr, error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            Failure::new(format!("port {} of {} is in use: choose another one", addr.port(), addr.ip()))
        }
        io::ErrorKind::AddrNotAvailable => {
            Failure::new(format!("{} is not an address of this host: choose one that is", addr.ip()))
        }
        io::ErrorKind::PermissionDenied => {
            Failure::new(format!("port {} needs root: choose one of 1024 or more", addr.port()))
        }
        _ => Failure::new(format!("cannot listen on {addr}: {}", without_code(error))),
    }
}

fn without_code(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    text.strip_prefix("failed to lookup address information: ").unwrap_or(text).to_owned()
}

/// Replaces the host names of a mount source by their addresses.
///
/// # Errors
/// If it is not a mount source, or a name has no address.
pub fn resolve_source(text: &str) -> Result<MountSource> {
    let words = MountSource::split(text).map_err(|error| Failure::usage(error.to_string()))?;
    let mut nids = Vec::new();
    for word in words.nids {
        match word.parse::<Nid>() {
            Ok(nid) => nids.push(nid),
            Err(_) => {
                let address: Address = word.parse().map_err(Failure::usage)?;
                nids.extend(address.nids()?);
            }
        }
    }
    Ok(MountSource { nids, fsname: words.fsname.to_owned(), directory: words.directory })
}

fn endpoint(bind: SocketAddr, security: Security, own: &[IpAddr]) -> Result<Endpoint> {
    if !bind.ip().is_unspecified() {
        return Ok(Endpoint { bind, security, announced: vec![bind.ip()] });
    }
    let only = Endpoint { bind, security, announced: Vec::new() };
    let fits = |ip: &IpAddr| ip.is_ipv4() == bind.is_ipv4() || takes_both(&only);
    let mut announced: Vec<IpAddr> = own.iter().copied().filter(fits).collect();
    if announced.iter().any(|ip| !ip.is_loopback()) {
        announced.retain(|ip| !ip.is_loopback());
    }
    match announced.is_empty() {
        true => {
            Err(Failure::new(format!("this host has no address for {}: give one that it has", bind.ip())))
        }
        false => Ok(Endpoint { announced, ..only }),
    }
}

/// Returns the addresses of this host's interfaces that are up, except link-local ones, in the order of the
/// kernel.
fn own_addresses() -> Result<Vec<IpAddr>> {
    let mut all = Vec::new();
    for (_, ip) in interfaces().map_err(Failure::because("list the addresses of this host"))? {
        let is_of_link = match ip {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        if !is_of_link && !all.contains(&ip) {
            all.push(ip);
        }
    }
    Ok(all)
}

/// Returns the interfaces of this host that are up, by name, each with one of its addresses, in the order of the
/// kernel.
///
/// # Errors
/// If the system does not list them.
pub fn interfaces() -> io::Result<Vec<(String, IpAddr)>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `first` is valid for writing; the list is released below.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut all = Vec::new();
    let mut at = first;
    while !at.is_null() {
        // SAFETY: the list is as getifaddrs returned it, and not released yet.
        let entry = unsafe { &*at };
        at = entry.ifa_next;
        if entry.ifa_addr.is_null() || entry.ifa_flags & libc::IFF_UP as libc::c_uint == 0 {
            continue;
        }
        // SAFETY: an address that is present starts with its family, which determines its structure.
        let ip = unsafe {
            match i32::from((*entry.ifa_addr).sa_family) {
                libc::AF_INET => {
                    let addr = entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned();
                    IpAddr::V4(Ipv4Addr::from(u32::from_be(addr.sin_addr.s_addr)))
                }
                libc::AF_INET6 => {
                    let addr = entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned();
                    IpAddr::V6(Ipv6Addr::from(addr.sin6_addr.s6_addr))
                }
                _ => continue,
            }
        };
        // SAFETY: each entry has a name, which ends with a zero byte.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        all.push((name.to_string_lossy().into_owned(), ip));
    }
    // SAFETY: `first` came from getifaddrs and nothing refers to the list any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        text.parse().expect(text)
    }

    #[test]
    fn addresses_are_numbers_or_names_and_print_back() {
        for text in ["10.0.0.1@tcp", "[::]@tcp", "[::1]:7000@tcp", "host1@tcp", "a-b.example.org:7000@tcp"] {
            assert_eq!(address(text).to_string(), text);
        }
        assert_eq!(address("host1@tcp0"), address("host1@tcp"));
        assert_eq!(address("::1@tcp"), address("[::1]@tcp"));
        let wrong =
            ["0@lo", "10.0.0.1", "10.0.0@tcp", "256.1.1.1@tcp", "@tcp", "a b@tcp", "host:x@tcp", "host@o2ib"];
        for text in wrong {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
        assert_eq!(address("host1@tcp").with_port(7000).to_string(), "host1:7000@tcp");
    }

    #[test]
    fn a_name_is_resolved_and_one_without_address_is_named() {
        let found = address("localhost:7000@tcp").endpoints().expect("localhost is here");
        assert!(
            found.iter().all(|endpoint| endpoint.bind.ip().is_loopback() && endpoint.bind.port() == 7000)
        );
        let failure = address("no-such-host.invalid@tcp").endpoints().expect_err("no such host");
        assert!(failure.message.contains("'no-such-host.invalid'"), "{failure}");
        let source = resolve_source("localhost:7000@tcp:10.0.0.1@tcp:/nacre").expect("two hosts");
        assert!(source.nids.contains(&"10.0.0.1@tcp".parse().expect("a NID")));
        assert!(source.nids.len() >= 2 && source.fsname == "nacre", "{source}");
    }

    #[test]
    fn an_address_for_everything_is_announced_as_those_of_the_host() {
        let own =
            ["127.0.0.1", "::1", "10.0.0.1", "fd00::1"].map(|ip| ip.parse::<IpAddr>().expect("an address"));
        let nids = |bind: &str, own: &[IpAddr]| -> Vec<String> {
            let bind: SocketAddr = bind.parse().expect("an address");
            let endpoint = endpoint(bind, Security::Encrypt, own).expect("addresses");
            endpoint.nids(bind).map(|nid| nid.to_string()).collect()
        };
        assert_eq!(nids("0.0.0.0:7000", &own), ["10.0.0.1:7000@tcp"]);
        assert_eq!(nids("0.0.0.0:7000", &own[..2]), ["127.0.0.1:7000@tcp"], "there is nothing else");
        assert!(nids("[::]:7000", &own).contains(&"[fd00::1]:7000@tcp".to_owned()));
        assert_eq!(nids("10.0.0.1:7000", &own), ["10.0.0.1:7000@tcp"]);
        let here = endpoint("[::]:7".parse().expect("an address"), Security::Encrypt, &own)
            .expect("addresses")
            .nids_here();
        assert_eq!(here, ["[::1]:7@tcp".parse::<Nid>().expect("a NID")]);
    }

    #[test]
    fn each_socket_is_opened_once() {
        let all = ["127.0.0.1:7@tcp", "0.0.0.0:7@tcp", "127.0.0.1:7@tcp", "127.0.0.1:8@tcp"].map(address);
        let binds: Vec<String> =
            endpoints(&all).expect("this host").iter().map(|endpoint| endpoint.bind.to_string()).collect();
        assert_eq!(binds, ["0.0.0.0:7", "127.0.0.1:8"]);
    }
}
