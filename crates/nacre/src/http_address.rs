//! Addresses of the HTTP servers, `[HOST:]PORT`.

use crate::failure::{Failure, Result};
use std::fmt;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::str::FromStr;

/// An address that serves figures or pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAddress {
    /// An IP address, or a name of this host.
    host: String,
    port: u16,
}

impl FromStr for HttpAddress {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<HttpAddress, String> {
        let wrong = || format!("'{text}' is no address: write PORT, ADDRESS:PORT or [ADDRESS]:PORT");
        let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
        let port = port.parse().map_err(|_| wrong())?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = match bare {
            Some(address) if address.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6()) => address,
            Some(_) => return Err(wrong()),
            None if host.is_empty() => "127.0.0.1",
            None => host,
        };
        let is_name =
            |host: &str| host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
        if bare.is_none() && !is_name(host) {
            return Err(wrong());
        }
        Ok(HttpAddress { host: host.to_owned(), port })
    }
}

impl fmt::Display for HttpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl HttpAddress {
    /// Listens on the address.
    ///
    /// # Errors
    /// If the name is unknown, or the address is not of this host or in use.
    pub fn bind(&self) -> Result<TcpListener> {
        let fail = || Failure::because(format!("listen on {self}: choose another address"));
        let addresses: Vec<SocketAddr> =
            (self.host.as_str(), self.port).to_socket_addrs().map_err(fail())?.collect();
        TcpListener::bind(addresses.as_slice()).map_err(fail())
    }

    /// Returns the names by which requests may reach the address, in addition to IP addresses.
    pub fn names(&self) -> Vec<String> {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        vec![self.host.clone(), host]
    }

    /// Returns a warning if other hosts reach the address.
    pub fn doubt(&self) -> Option<String> {
        let is_local = self.host == "localhost"
            || self.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        (!is_local).then(|| {
            format!(
                "everybody who reaches {self} can read the figures: names of jobs and mounts are among them"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_on_this_host_alone_unless_they_say_otherwise() {
        let shown = |text: &str| text.parse::<HttpAddress>().map(|address| address.to_string());
        assert_eq!(shown("9820").as_deref(), Ok("127.0.0.1:9820"));
        assert_eq!(shown(":9820").as_deref(), Ok("127.0.0.1:9820"));
        assert_eq!(shown("[::1]:9820").as_deref(), Ok("[::1]:9820"));
        assert_eq!(shown("host1.example:80").as_deref(), Ok("host1.example:80"));
        for wrong in ["", "x", "::1", "a b:1", "127.0.0.1:70000", "[host]:1", "host/x:1", "127.0.0.1"] {
            assert!(shown(wrong).is_err(), "{wrong}");
        }
        let doubt = |text: &str| text.parse::<HttpAddress>().expect("an address").doubt().is_some();
        assert_eq!(
            (doubt("9820"), doubt("[::1]:1"), doubt("0.0.0.0:1"), doubt("host1:1")),
            (false, false, true, true)
        );
    }

    #[test]
    fn an_address_in_use_is_named() {
        let address = |text: &str| text.parse::<HttpAddress>().expect("an address");
        let first = address("0").bind().expect("a free port");
        let in_use = first.local_addr().expect("bound").to_string();
        let failure = address(&in_use).bind().expect_err("in use");
        assert!(failure.message.contains(&in_use), "{failure}");
    }
}
