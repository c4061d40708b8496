//! Requests to the management server: the file system's name, targets and parameters.

use nacre_layout::PoolName;
use nacre_types::nodemap::{Change, Nodemaps};
use nacre_types::{Identity, KeyId, Nid, TargetId};
use std::fmt;

/// A target of the file system and the NIDs of its server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetConfig {
    /// Kind and index of the target.
    pub target: TargetId,
    /// Its server's NIDs, in order of preference; at least one.
    pub nids: Vec<Nid>,
    /// False if an administrator has deactivated it.
    pub active: bool,
    /// Key of the server that registered it: no other server may register it elsewhere, and clients require
    /// proof of that key. `None` while the file system has no keys.
    pub key: Option<KeyId>,
}

/// Key with which metadata servers sign capabilities and object servers verify them. Sent only to servers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CapabilityKey {
    /// Number of the key, one more with each rotation.
    pub epoch: u32,
    /// Time of its creation, in seconds since 1970.
    pub made_s: u64,
    /// Secret part of the key.
    pub secret: [u8; 32],
}

impl fmt::Debug for CapabilityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CapabilityKey({})", self.epoch)
    }
}

/// Secret bytes, which logs do not show.
#[derive(Clone, PartialEq, Eq)]
pub struct Hidden(pub Vec<u8>);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden")
    }
}

/// A named set of OSTs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolConfig {
    /// Name of the pool, unique in the file system.
    pub name: PoolName,
    /// Indexes of its OSTs, in the order in which they were added, without duplicates.
    pub osts: Vec<u16>,
}

/// A change of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolChange {
    /// Create the pool, without OSTs; `EEXIST` if it exists.
    Create,
    /// Remove the pool; `ENOTEMPTY` while it has OSTs.
    Destroy,
    /// Add an OST; `ENODEV` if there is no such OST, `EEXIST` if the pool has it.
    Add {
        /// Index of the OST.
        ost: u16,
    },
    /// Remove an OST; `ENODEV` if the pool does not have it.
    Remove {
        /// Index of the OST.
        ost: u16,
    },
}

impl fmt::Display for PoolChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolChange::Create => f.write_str("made"),
            PoolChange::Destroy => f.write_str("destroyed"),
            PoolChange::Add { ost } => write!(f, "{} added", TargetId::ost(*ost)),
            PoolChange::Remove { ost } => write!(f, "{} removed", TargetId::ost(*ost)),
        }
    }
}

/// Configuration that all nodes of a file system share. Versioned as a whole.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FsConfig {
    /// Grows with every change.
    pub version: u64,
    /// File system name.
    pub fsname: String,
    /// Random identity, which distinguishes file systems of the same name.
    pub fs_uuid: [u8; 16],
    /// All targets but the MGT, ordered by kind and index.
    pub targets: Vec<TargetConfig>,
    /// Persistent parameters as (name, value), for example `lov.stripesize`; ordered by name.
    pub params: Vec<(String, String)>,
    /// OST pools, ordered by name.
    pub pools: Vec<PoolConfig>,
    /// Revoked keys, which servers refuse, in ascending order.
    pub revoked: Vec<KeyId>,
    /// Capability keys, the newest first; empty for clients, and without an authority.
    pub capability_keys: Vec<CapabilityKey>,
    /// Nodemaps, which restrict clients; empty in the copy for clients.
    pub nodemaps: Nodemaps,
}

impl FsConfig {
    /// Returns the configuration without the parts that clients may not see.
    pub fn without_secrets(mut self) -> FsConfig {
        self.capability_keys.clear();
        self.nodemaps = Nodemaps::default();
        self
    }
}

/// A key that the authority has issued, as administrators see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IssuedKey {
    /// Identity in its certificate.
    pub identity: Identity,
    /// True if it was revoked.
    pub is_revoked: bool,
}

/// Request to the management server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MgsRequest {
    /// Returns the configuration, at once if its version is above `newer_than`, else when it changes or after
    /// `wait_ms` (then the unchanged one). Reply: `Config`.
    GetConfig {
        /// File system name; `ENOENT` if the server serves another.
        fsname: String,
        /// Version that the caller has, 0 for none.
        newer_than: u64,
        /// Longest wait for a change, in milliseconds, at most 60,000.
        wait_ms: u32,
    },
    /// Registers a target with its server's NIDs. Reply: `Config`.
    RegisterTarget {
        /// File system name.
        fsname: String,
        /// Identity of the file system that the target was formatted for; `EINVAL` if it is another one.
        fs_uuid: [u8; 16],
        /// Target and its NIDs.
        target: TargetConfig,
    },
    /// Registers a target that was just formatted and was never registered. Like `RegisterTarget`, but
    /// refused with `EEXIST` if another server has that index, with `ENXIO` if a lower index is missing, with
    /// `ERANGE` for an index above the limit. Repeating it with the same NIDs succeeds. Reply: `Config`.
    AddTarget {
        /// File system name.
        fsname: String,
        /// Identity of the file system that the target was formatted for.
        fs_uuid: [u8; 16],
        /// Target and its NIDs.
        target: TargetConfig,
    },
    /// Sets a persistent parameter; an empty value removes it. Reply: `Config`.
    SetParam {
        /// Name of the parameter.
        name: String,
        /// New value.
        value: String,
    },
    /// Changes a pool. `ENOENT` if the pool does not exist and has to, `EINVAL` for an invalid name, and the
    /// errors of [`PoolChange`]. Reply: `Config`.
    ChangePool {
        /// Name of the pool.
        pool: PoolName,
        /// Change to apply.
        change: PoolChange,
    },
    /// Keeps the connection alive. Reply: `Done`.
    Ping,
    /// Enrols a key for a host or user without one, by a token. `EKEYREJECTED` for a token that is unknown,
    /// used up or expired, and for a wrong secret; repeating the request returns a certificate for the same
    /// key. Reply: `Certificate`.
    Enrol {
        /// Number of the token.
        token: u64,
        /// Secret of the token.
        secret: Hidden,
        /// Name of the host or process, shown in lists.
        name: String,
        /// Certificate signing request (PKCS #10, DER).
        csr: Vec<u8>,
    },
    /// Renews the certificate of the sender's key. `ENOKEY` without a key, `EKEYEXPIRED` for one that is not
    /// renewed. Reply: `Certificate`.
    Renew {
        /// Certificate signing request (PKCS #10, DER).
        csr: Vec<u8>,
    },
    /// Creates a token. `EOPNOTSUPP` without an authority, `EINVAL` for invalid rights. Reply: `Token`.
    CreateToken {
        /// Rights of enrolled keys: roles, user, subtree, read-only. Number, expiry and name are set when a
        /// key is enrolled.
        grants: Identity,
        /// Life of the token, in seconds.
        expires_s: u64,
        /// Largest number of keys that it enrols.
        uses: u32,
        /// Life of the keys that it enrols, in seconds; 0 for keys that are renewed before they expire.
        lifetime_s: u64,
    },
    /// Changes one nodemap, or all. `EINVAL` for invalid values, `ENOENT` for missing ones, `EEXIST` for
    /// existing ones, also in another nodemap, `ENOSPC` at a limit. Reply: `Config`.
    ChangeNodemap {
        /// Name of the nodemap.
        name: String,
        /// Change to apply.
        change: Change,
    },
    /// Lists all issued keys. Reply: `Keys`.
    ListKeys,
    /// Revokes a key: servers refuse it from then on and close its connections. `ENOENT` for one that was
    /// never issued. Reply: `Config`.
    RevokeKey {
        /// Number of the key.
        id: KeyId,
    },
}

impl MgsRequest {
    /// Describes an administrator's change as text without secrets, for the audit log; `None` for all other
    /// requests.
    pub fn change(&self) -> Option<String> {
        match self {
            MgsRequest::SetParam { name, value } => Some(format!("parameter {name}={value}")),
            MgsRequest::ChangePool { pool, change } => Some(format!("pool {}: {change}", pool.as_str())),
            MgsRequest::ChangeNodemap { name, change } => Some(format!("nodemap {name}: {change}")),
            MgsRequest::Enrol { token, name, .. } => {
                Some(format!("key of '{name}' enrolled by token {token:016x}"))
            }
            MgsRequest::CreateToken { grants, expires_s, uses, .. } => {
                Some(format!("token for role {}, {expires_s} s, {uses} uses", grants.roles))
            }
            MgsRequest::RevokeKey { id } => Some(format!("key {id} revoked")),
            MgsRequest::RegisterTarget { target, .. } | MgsRequest::AddTarget { target, .. } => {
                let nids: Vec<String> = target.nids.iter().map(Nid::to_string).collect();
                Some(format!("{} is served at {}", target.target, nids.join(",")))
            }
            MgsRequest::GetConfig { .. }
            | MgsRequest::Ping
            | MgsRequest::Renew { .. }
            | MgsRequest::ListKeys => None,
        }
    }
}

/// Reply to a request; the request's doc names the variant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MgsReply {
    /// Success without a result.
    Done,
    /// The configuration.
    Config {
        /// Configuration, without the parts that the peer may not see.
        config: FsConfig,
        /// Clock of the management server, in seconds since 1970: servers check the expiry of capabilities
        /// against it.
        now_s: u64,
    },
    /// A certificate.
    Certificate {
        /// Certificate of the requested key, in DER.
        certificate: Vec<u8>,
        /// Certificate of the authority, in DER.
        authority: Vec<u8>,
    },
    /// A token as text, to be shown once.
    Token(Hidden),
    /// Keys, ordered by number.
    Keys(Vec<IssuedKey>),
}
