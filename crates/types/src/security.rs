//! Protection of connections to a server.

use std::fmt;
use std::str::FromStr;

/// Protection of the connections to one address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Security {
    /// Mutual authentication and encryption.
    #[default]
    Encrypt,
    /// Mutual authentication and integrity: other hosts on the network can read messages but not change them.
    Authenticate,
    /// No authentication: the server trusts the claims of a peer.
    Open,
}

/// All levels with their names.
const NAMES: [(Security, &str); 3] =
    [(Security::Encrypt, "encrypt"), (Security::Authenticate, "authenticate"), (Security::Open, "open")];

impl fmt::Display for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(known, _)| known == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

/// The text names no level of protection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SecurityError;

impl fmt::Display for SecurityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("connections are protected by 'encrypt', 'authenticate' or 'open'")
    }
}

impl std::error::Error for SecurityError {}

impl FromStr for Security {
    type Err = SecurityError;

    fn from_str(text: &str) -> Result<Security, SecurityError> {
        NAMES.iter().find(|(_, name)| *name == text).map(|(known, _)| *known).ok_or(SecurityError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protections_are_read_as_they_are_written() {
        for (security, name) in NAMES {
            assert_eq!((security.to_string().as_str(), name.parse()), (name, Ok(security)));
        }
        assert_eq!("".parse::<Security>(), Err(SecurityError));
    }
}
