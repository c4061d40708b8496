//! Identity of a peer: the contents of its certificate, and their form as a URI in it.

use bitflags::bitflags;
use std::fmt;
use std::str::FromStr;

bitflags! {
    /// Roles of an identity. A process with several services has the roles of all.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct Roles: u8 {
        /// Serves the configuration, and is the authority.
        const MGS = 1;
        /// Serves metadata targets; acts as the system at other servers.
        const MDS = 2;
        /// Serves object targets.
        const OSS = 4;
        /// Mounts the file system.
        const CLIENT = 8;
        /// Has the rights of root: no squash, changes of the configuration.
        const ADMIN = 16;
    }
}

/// Names of the roles in identities and commands.
const ROLE_NAMES: [(Roles, &str); 5] = [
    (Roles::MGS, "mgs"),
    (Roles::MDS, "mds"),
    (Roles::OSS, "oss"),
    (Roles::CLIENT, "client"),
    (Roles::ADMIN, "admin"),
];

impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> =
            ROLE_NAMES.iter().filter(|(role, _)| self.contains(*role)).map(|(_, name)| *name).collect();
        f.write_str(&names.join("+"))
    }
}

impl FromStr for Roles {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Roles, IdentityError> {
        let role = |name: &str| ROLE_NAMES.iter().find(|(_, known)| *known == name).map(|(role, _)| *role);
        text.split('+')
            .try_fold(Roles::empty(), |roles, name| Some(roles | role(name)?))
            .ok_or(IdentityError("roles"))
    }
}

/// Number of a key: random at its enrolment, kept when its certificate is renewed, and used to revoke it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub u64);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for KeyId {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<KeyId, IdentityError> {
        let is_plain = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u64::from_str_radix(text, 16).ok().filter(|_| is_plain);
        number.map(KeyId).ok_or(IdentityError("key id"))
    }
}

/// The invalid part of the text of an identity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IdentityError(pub &'static str);

impl fmt::Display for IdentityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not an identity of a NacreFS key: {}", self.0)
    }
}

impl std::error::Error for IdentityError {}

/// Longest text of an identity, in bytes.
const TEXT_MAX: usize = 8192;
/// Longest name of a host or process, in bytes.
const NAME_MAX: usize = 255;
/// Longest subtree, in bytes.
const ROOT_MAX: usize = 4095;

/// Contents of a certificate. As text:
/// `nacre://FSNAME/KEYID?roles=client&until=1790000000&uid=1000&root=/a&ro&final&name=HOST`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Identity {
    /// Name of the file system.
    pub fsname: String,
    /// Number of the key.
    pub id: KeyId,
    /// Roles of the holder; at least one.
    pub roles: Roles,
    /// Time of expiry, in seconds since 1970. A resumed session is not verified again, so it is checked
    /// separately.
    pub until_s: u64,
    /// The only user that the holder acts for; `None` for a host, which acts for all its users.
    pub uid: Option<u32>,
    /// Subtree that the holder sees as the root, as an absolute path; `None` for all.
    pub root: Option<String>,
    /// True if the holder may change nothing.
    pub read_only: bool,
    /// True if the key is not renewed, and ends with its first certificate.
    pub is_final: bool,
    /// Host or process, for logs and lists. An unverified claim of the holder.
    pub name: String,
}

impl Identity {
    /// Creates an identity with these roles that never expires and has no restrictions.
    pub fn new(fsname: &str, id: KeyId, roles: Roles, name: &str) -> Identity {
        let (fsname, name) = (fsname.to_owned(), name.to_owned());
        let (until_s, uid, root) = (u64::MAX, None, None);
        Identity { fsname, id, roles, until_s, uid, root, read_only: false, is_final: false, name }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nacre://{}/{}?roles={}", escape(&self.fsname), self.id, self.roles)?;
        if self.until_s != u64::MAX {
            write!(f, "&until={}", self.until_s)?;
        }
        if let Some(uid) = self.uid {
            write!(f, "&uid={uid}")?;
        }
        if let Some(root) = &self.root {
            write!(f, "&root={}", escape(root))?;
        }
        if self.read_only {
            f.write_str("&ro")?;
        }
        if self.is_final {
            f.write_str("&final")?;
        }
        if self.name.is_empty() { Ok(()) } else { write!(f, "&name={}", escape(&self.name)) }
    }
}

impl FromStr for Identity {
    type Err = IdentityError;

    /// Parses strictly: an unknown, duplicate or misspelt property is an error, so that a restriction is
    /// never overlooked.
    fn from_str(text: &str) -> Result<Identity, IdentityError> {
        let rest = text
            .strip_prefix("nacre://")
            .filter(|_| text.len() <= TEXT_MAX)
            .ok_or(IdentityError("scheme"))?;
        let (fsname, rest) = rest.split_once('/').ok_or(IdentityError("file system"))?;
        let (id, properties) = rest.split_once('?').ok_or(IdentityError("roles"))?;
        let fsname = unescape(fsname).filter(|name| !name.is_empty()).ok_or(IdentityError("file system"))?;
        let mut identity = Identity::new(&fsname, id.parse()?, Roles::empty(), "");
        let mut seen = Vec::new();
        for property in properties.split('&') {
            let (key, value) = property.split_once('=').unwrap_or((property, ""));
            if seen.contains(&key) {
                return Err(IdentityError("a property is doubled"));
            }
            seen.push(key);
            identity.set(key, value, property)?;
        }
        if identity.roles.is_empty() { Err(IdentityError("roles")) } else { Ok(identity) }
    }
}

impl Identity {
    fn set(&mut self, key: &str, value: &str, property: &str) -> Result<(), IdentityError> {
        match key {
            "roles" => self.roles = value.parse()?,
            "until" => self.until_s = number(value).ok_or(IdentityError("until"))?,
            "uid" => {
                let uid =
                    number(value).and_then(|uid| u32::try_from(uid).ok()).filter(|uid| *uid != u32::MAX);
                self.uid = Some(uid.ok_or(IdentityError("uid"))?);
            }
            "root" => {
                let root = unescape(value).filter(|root| is_subtree(root)).ok_or(IdentityError("root"))?;
                self.root = Some(root);
            }
            "ro" if property == "ro" => self.read_only = true,
            "final" if property == "final" => self.is_final = true,
            "name" => {
                let name =
                    unescape(value).filter(|name| name.len() <= NAME_MAX).ok_or(IdentityError("name"))?;
                self.name = name;
            }
            _ => return Err(IdentityError("an unknown property")),
        }
        Ok(())
    }
}

/// Parses a number of digits only: no sign.
pub(crate) fn number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

/// True for an absolute path without `.`, `..` and empty parts, other than the root.
pub fn is_subtree(path: &str) -> bool {
    let is_name = |name: &str| !matches!(name, "" | "." | "..") && !name.contains('\0');
    path.len() <= ROOT_MAX && path.strip_prefix('/').is_some_and(|rest| rest.split('/').all(is_name))
}

/// Percent-encodes bytes that are not plain in a URI, or in a word.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'/' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

pub(crate) fn unescape(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        match byte {
            b'%' => {
                let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
                out.push((high * 16 + low) as u8);
            }
            byte => out.push(byte),
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn identity() -> impl Strategy<Value = Identity> {
        let text = "[ -~ä]{0,20}";
        let root = proptest::option::of("(/[a-z &=%]{1,5}){1,3}");
        let numbers = (any::<u64>(), any::<u64>(), proptest::option::of(0..u32::MAX));
        ("[a-z0-9_]{1,8}", numbers, 1u8..32, root, any::<[bool; 2]>(), text).prop_map(
            |(fsname, (id, until_s, uid), roles, root, [read_only, is_final], name)| {
                let roles = Roles::from_bits_truncate(roles);
                Identity { fsname, id: KeyId(id), roles, until_s, uid, root, read_only, is_final, name }
            },
        )
    }

    proptest! {
        #[test]
        fn identities_are_read_as_they_were_written(identity in identity()) {
            prop_assert_eq!(identity.to_string().parse(), Ok(identity));
        }

        #[test]
        fn any_text_gives_an_error_or_an_identity_that_is_written_and_read_again(text in "nacre://[a-z/?=&%0-9+]{0,60}") {
            if let Ok(identity) = text.parse::<Identity>() {
                prop_assert_eq!(identity.to_string().parse(), Ok(identity));
            }
        }
    }

    #[test]
    fn what_bounds_an_identity_is_never_overlooked() {
        let good = "nacre://fs/00000000000000ab?roles=client&uid=7&root=/a/b&ro&name=h";
        let read = good.parse::<Identity>().expect("an identity");
        assert_eq!((read.uid, read.root.as_deref(), read.read_only), (Some(7), Some("/a/b"), true));
        for bad in [
            "",
            "http://fs/00000000000000ab?roles=client",
            "nacre:///00000000000000ab?roles=client",
            "nacre://fs/ab?roles=client",
            "nacre://fs/+0000000000000ab?roles=client",
            "nacre://fs/00000000000000ab",
            "nacre://fs/00000000000000ab?roles=",
            "nacre://fs/00000000000000ab?uid=1",
            "nacre://fs/00000000000000ab?roles=client+root",
            "nacre://fs/00000000000000ab?roles=client&uid=+1",
            "nacre://fs/00000000000000ab?roles=client&uid=4294967295",
            "nacre://fs/00000000000000ab?roles=client&uid=1&uid=0",
            "nacre://fs/00000000000000ab?roles=client&roles=admin",
            "nacre://fs/00000000000000ab?roles=client&until=-1",
            "nacre://fs/00000000000000ab?roles=client&UID=1",
            "nacre://fs/00000000000000ab?roles=client&root=a",
            "nacre://fs/00000000000000ab?roles=client&root=/",
            "nacre://fs/00000000000000ab?roles=client&root=/a/../b",
            "nacre://fs/00000000000000ab?roles=client&root=/a%00",
            "nacre://fs/00000000000000ab?roles=client&ro=no",
            "nacre://fs/00000000000000ab?roles=client&name=%zz",
            "nacre://fs/00000000000000ab?roles=client&",
        ] {
            assert!(bad.parse::<Identity>().is_err(), "{bad}");
        }
    }
}
