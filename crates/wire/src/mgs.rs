//! Requests to the management server: the file system's name, targets and parameters.

use nacre_layout::PoolName;
use nacre_types::nodemap::{Change, Nodemaps};
use nacre_types::{Identity, KeyId, Nid, TargetId};
use std::fmt;

/// A target of the file system and where it is served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetConfig {
    /// Which target.
    pub target: TargetId,
    /// Its server's NIDs, in order of preference; at least one.
    pub nids: Vec<Nid>,
    /// False if an administrator has taken it out of use.
    pub active: bool,
    /// Key of the server that registered it: no other server may register it elsewhere, and clients ask that key for proof.
    /// `None` while the file system has no keys.
    pub key: Option<KeyId>,
}

/// A key that metadata servers sign capabilities with and object servers verify them by. Given to servers alone.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CapabilityKey {
    /// Number of the key, one more with each rotation.
    pub epoch: u32,
    /// When it was made, in seconds since 1970.
    pub made_s: u64,
    /// The secret.
    pub secret: [u8; 32],
}

impl fmt::Debug for CapabilityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CapabilityKey({})", self.epoch)
    }
}

/// Bytes that no log shows.
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
    /// Its name, unique in the file system.
    pub name: PoolName,
    /// Indexes of its OSTs, in the order in which they were added, none twice.
    pub osts: Vec<u16>,
}

/// A change of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolChange {
    /// It is made, without OSTs; `EEXIST` if there is one.
    Create,
    /// It goes; `ENOTEMPTY` while it has OSTs.
    Destroy,
    /// It gets an OST more; `ENODEV` if there is no such OST, `EEXIST` if the pool has it.
    Add {
        /// Which.
        ost: u16,
    },
    /// It loses an OST; `ENODEV` if it does not have it.
    Remove {
        /// Which.
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

/// What every node of a file system shares. Versioned as a whole.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FsConfig {
    /// Grows with every change.
    pub version: u64,
    /// File system name.
    pub fsname: String,
    /// Random identity, so that two file systems of one name are told apart.
    pub fs_uuid: [u8; 16],
    /// All targets but the MGT, ordered by kind and index.
    pub targets: Vec<TargetConfig>,
    /// Persistent parameters as (name, value), for example `lov.stripesize`; ordered by name.
    pub params: Vec<(String, String)>,
    /// OST pools, ordered by name.
    pub pools: Vec<PoolConfig>,
    /// Keys that are refused from now on, in ascending order.
    pub revoked: Vec<KeyId>,
    /// The keys of capabilities, the newest first; empty for clients, and without an authority.
    pub capability_keys: Vec<CapabilityKey>,
    /// What bounds clients; empty for them.
    pub nodemaps: Nodemaps,
}

impl FsConfig {
    /// The part that is for clients.
    pub fn without_secrets(mut self) -> FsConfig {
        self.capability_keys.clear();
        self.nodemaps = Nodemaps::default();
        self
    }
}

/// A key that the authority has issued, as administrators see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IssuedKey {
    /// What its certificate says.
    pub identity: Identity,
    /// It was revoked.
    pub is_revoked: bool,
}

/// One request to the management server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MgsRequest {
    /// The configuration, at once if its version is above `newer_than`, else when it changes or after `wait_ms`
    /// (then the unchanged one). Reply: `Config`.
    GetConfig {
        /// File system name; `ENOENT` if the server serves another.
        fsname: String,
        /// Version that the caller has, 0 for none.
        newer_than: u64,
        /// How long to wait for a change, in milliseconds, at most 60,000.
        wait_ms: u32,
    },
    /// A server tells that it serves a target. Reply: `Config`.
    RegisterTarget {
        /// File system name.
        fsname: String,
        /// Identity of the file system that the target was formatted for; refused with `EINVAL` if it is another.
        fs_uuid: [u8; 16],
        /// The target and its NIDs.
        target: TargetConfig,
    },
    /// A server tells that it serves a target that was just made and never registered. As `RegisterTarget`, but refused with
    /// `EEXIST` if another server has that index, with `ENXIO` if one below is not there yet, with `ERANGE` if there can be none.
    /// One that was told before, with the same NIDs, is fine. Reply: `Config`.
    AddTarget {
        /// File system name.
        fsname: String,
        /// Identity of the file system that the target was formatted for.
        fs_uuid: [u8; 16],
        /// The target and its NIDs.
        target: TargetConfig,
    },
    /// Sets a persistent parameter; an empty value removes it. Reply: `Config`.
    SetParam {
        /// Name.
        name: String,
        /// Value.
        value: String,
    },
    /// Changes a pool. `ENOENT` if there is none of this name where one is needed, `EINVAL` for a name that no pool can have,
    /// and what [`PoolChange`] says. Reply: `Config`.
    ChangePool {
        /// Its name.
        pool: PoolName,
        /// What is to be done.
        change: PoolChange,
    },
    /// Still here. Reply: `Done`.
    Ping,
    /// A host or user without a key enrols one by a token. `EKEYREJECTED` for a token that is unknown, used or expired, and for
    /// a wrong secret; the same request again gets a certificate for the same key. Reply: `Certificate`.
    Enrol {
        /// Which token.
        token: u64,
        /// Its secret.
        secret: Hidden,
        /// Host or process, for lists.
        name: String,
        /// Request for a certificate (PKCS #10, DER).
        csr: Vec<u8>,
    },
    /// The holder of a key asks for a certificate with a later end. `ENOKEY` without a key, `EKEYEXPIRED` for one that is not renewed.
    /// Reply: `Certificate`.
    Renew {
        /// Request for a certificate (PKCS #10, DER).
        csr: Vec<u8>,
    },
    /// Makes a token. `EOPNOTSUPP` without an authority, `EINVAL` for a token that cannot be. Reply: `Token`.
    CreateToken {
        /// What it enrols: roles, user, subtree, read-only. Number, end and name are those of the key that is enrolled.
        grants: Identity,
        /// Life of the token, in seconds.
        expires_s: u64,
        /// Keys that it enrols at most.
        uses: u32,
        /// Life of the keys that it enrols, in seconds; 0 for keys that are renewed before they end.
        lifetime_s: u64,
    },
    /// Changes a nodemap, or all. `EINVAL` for what no nodemap can have, `ENOENT` for what is not there, `EEXIST` for what is, also in another
    /// one, `ENOSPC` for more than there can be. Reply: `Config`.
    ChangeNodemap {
        /// Its name.
        name: String,
        /// What is to be done.
        change: Change,
    },
    /// All keys that were issued. Reply: `Keys`.
    ListKeys,
    /// Servers refuse this key from now on and close its connections. `ENOENT` for one that was never issued. Reply: `Config`.
    RevokeKey {
        /// Which.
        id: KeyId,
    },
}

impl MgsRequest {
    /// What an administrator's request changes, in words and without secrets, for the audit; `None` for requests of other kinds.
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

/// The answer to a request; the request's doc says which variant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MgsReply {
    /// Nothing to tell.
    Done,
    /// The configuration.
    Config {
        /// All of it that is for the peer.
        config: FsConfig,
        /// The management server's clock, in seconds since 1970: servers count the ends of capabilities by it.
        now_s: u64,
    },
    /// A certificate.
    Certificate {
        /// Of the key that was asked for, in DER.
        certificate: Vec<u8>,
        /// Of the authority, in DER.
        authority: Vec<u8>,
    },
    /// A token as text, to be shown once.
    Token(Hidden),
    /// Keys, ordered by number.
    Keys(Vec<IssuedKey>),
}
