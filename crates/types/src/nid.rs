//! Network identifiers: addresses of servers.
//!
//! Written `ADDRESS[:PORT]@NETWORK`, for example `10.0.0.1@tcp`, `127.0.0.1:7990@tcp`, `[::1]@tcp` or `0@lo`
//! for "in this process". A mount source is `NID[:NID..]:/FSNAME[/DIRECTORY]`.

use crate::limits::{FSNAME_MAX, PORT_DEFAULT};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Address of one endpoint of a server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Nid {
    /// The service runs in this process: a direct call.
    Lo,
    /// TCP address and port.
    Tcp(SocketAddr),
}

impl fmt::Display for Nid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Nid::Lo => f.write_str("0@lo"),
            Nid::Tcp(addr) if addr.port() == PORT_DEFAULT => match addr.ip() {
                IpAddr::V4(ip) => write!(f, "{ip}@tcp"),
                IpAddr::V6(ip) => write!(f, "[{ip}]@tcp"),
            },
            Nid::Tcp(addr) => write!(f, "{addr}@tcp"),
        }
    }
}

/// The text is not a NID or not a mount source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseNidError {
    /// Not of the form `ADDRESS[:PORT]@NETWORK`.
    #[error("'{0}' is not a NID: write ADDRESS[:PORT]@tcp, for example 10.0.0.1@tcp")]
    Nid(String),
    /// The part after `@` is not a network that this program supports.
    #[error("'{0}' names an unknown network: only tcp and lo are known")]
    Network(String),
    /// Not of the form `NID[:NID..]:/FSNAME[/DIRECTORY]`.
    #[error(
        "'{0}' is not a mount source: write NID[:NID..]:/FSNAME[/DIRECTORY], for example 10.0.0.1@tcp:/nacre"
    )]
    Source(String),
    /// The file system name is empty, too long, or has characters other than letters, digits, '_' and '-'.
    #[error("'{0}' is not a file system name: use 1 to 8 letters, digits, '_' or '-'")]
    Fsname(String),
}

impl FromStr for Nid {
    type Err = ParseNidError;

    fn from_str(text: &str) -> Result<Nid, ParseNidError> {
        let (address, network) = text.rsplit_once('@').ok_or_else(|| ParseNidError::Nid(text.to_owned()))?;
        match network {
            "lo" => Ok(Nid::Lo),
            "tcp" | "tcp0" => {
                let fail = || ParseNidError::Nid(text.to_owned());
                if let Ok(addr) = address.parse::<SocketAddr>() {
                    return Ok(Nid::Tcp(addr));
                }
                let bare = address.strip_prefix('[').and_then(|a| a.strip_suffix(']')).unwrap_or(address);
                let ip: IpAddr = bare.parse().map_err(|_| fail())?;
                Ok(Nid::Tcp(SocketAddr::new(ip, PORT_DEFAULT)))
            }
            _ => Err(ParseNidError::Network(text.to_owned())),
        }
    }
}

/// Checks a file system name: 1 to 8 letters, digits, `_` or `-`.
pub fn check_fsname(name: &str) -> Result<(), ParseNidError> {
    let good = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    if name.is_empty() || name.len() > FSNAME_MAX || !name.bytes().all(good) {
        return Err(ParseNidError::Fsname(name.to_owned()));
    }
    Ok(())
}

/// Source argument of `mount`: the management server's NIDs and the file system's name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountSource {
    /// NIDs of the management server, tried in order; at least one.
    pub nids: Vec<Nid>,
    /// Name of the file system.
    pub fsname: String,
    /// Directory to mount, as a path from the root of the file system without slashes at either end; empty:
    /// the root.
    pub directory: String,
}

/// The unresolved words of a mount source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceWords<'a> {
    /// NIDs or host names; at least one.
    pub nids: Vec<&'a str>,
    /// Name of the file system, already checked.
    pub fsname: &'a str,
    /// Directory to mount, as [`MountSource::directory`].
    pub directory: String,
}

impl fmt::Display for MountSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for nid in &self.nids {
            write!(f, "{nid}:")?;
        }
        write!(f, "/{}", self.fsname)?;
        if self.directory.is_empty() { Ok(()) } else { write!(f, "/{}", self.directory) }
    }
}

impl MountSource {
    /// Returns the source for the root of a file system.
    pub fn whole(nids: Vec<Nid>, fsname: &str) -> MountSource {
        MountSource { nids, fsname: fsname.to_owned(), directory: String::new() }
    }

    /// Splits a mount source into its words.
    ///
    /// # Errors
    /// If it is not `NID[:NID..]:/FSNAME[/DIRECTORY]`, or the directory has `.` or `..` in it.
    pub fn split(text: &str) -> Result<SourceWords<'_>, ParseNidError> {
        let fail = || ParseNidError::Source(text.to_owned());
        let (nids_text, below) = text.split_once(":/").ok_or_else(fail)?;
        let (fsname, directory) = below.split_once('/').unwrap_or((below, ""));
        check_fsname(fsname)?;
        let names: Vec<&str> = directory.split('/').filter(|name| !name.is_empty()).collect();
        if names.iter().any(|name| matches!(*name, "." | "..")) {
            return Err(fail());
        }
        let mut words = Vec::new();
        let mut rest = nids_text;
        while !rest.is_empty() {
            // A port or an IPv6 address contains colons, so a NID ends at the first colon after its '@'.
            let at = rest.find('@').ok_or_else(fail)?;
            let end = rest[at..].find(':').map_or(rest.len(), |i| at + i);
            words.push(&rest[..end]);
            rest = rest.get(end + 1..).unwrap_or("");
        }
        if words.is_empty() {
            return Err(fail());
        }
        Ok(SourceWords { nids: words, fsname, directory: names.join("/") })
    }
}

impl FromStr for MountSource {
    type Err = ParseNidError;

    fn from_str(text: &str) -> Result<MountSource, ParseNidError> {
        let words = MountSource::split(text)?;
        let nids = words.nids.into_iter().map(str::parse).collect::<Result<_, _>>()?;
        Ok(MountSource { nids, fsname: words.fsname.to_owned(), directory: words.directory })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nids_parse_and_print_back() {
        for text in ["0@lo", "10.0.0.1@tcp", "127.0.0.1:9000@tcp", "[::1]@tcp", "[::1]:9000@tcp"] {
            assert_eq!(text.parse::<Nid>().expect(text).to_string(), text);
        }
        assert!(matches!("10.0.0.1".parse::<Nid>(), Err(ParseNidError::Nid(_))));
        assert!(matches!("10.0.0.1@o2ib".parse::<Nid>(), Err(ParseNidError::Network(_))));
        assert!(matches!("host@tcp".parse::<Nid>(), Err(ParseNidError::Nid(_))));
    }

    #[test]
    fn mount_sources_hold_several_nids() {
        let source: MountSource = "10.0.0.1@tcp:[::1]:9000@tcp:/nacre".parse().expect("two NIDs");
        assert_eq!(source.nids.len(), 2);
        assert_eq!(source.to_string(), "10.0.0.1@tcp:[::1]:9000@tcp:/nacre");
        for (text, directory) in [("/fs", ""), ("/fs/", ""), ("/fs/a", "a"), ("/fs//a/b:/c/", "a/b:/c")] {
            let source: MountSource = format!("[::1]@tcp:{text}").parse().expect(text);
            assert_eq!((&*source.fsname, &*source.directory), ("fs", directory));
            assert_eq!(source.to_string().parse(), Ok(source));
        }
        let bad = ["10.0.0.1@tcp", ":/nacre", "10.0.0.1@tcp:/", "10.0.0.1@tcp:/toolongname", "x:/fs"];
        for bad in bad.into_iter().chain(["10.0.0.1@tcp:/fs/a/../b", "10.0.0.1@tcp://a"]) {
            assert!(bad.parse::<MountSource>().is_err(), "{bad}");
        }
    }
}
