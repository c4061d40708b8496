//! Quotas: whose space and inodes are counted, and what they may use.

use crate::Fid;
use std::fmt;

/// What an id of a quota stands for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum QuotaKind {
    /// A user.
    User = 0,
    /// A group.
    Group = 1,
    /// A project.
    Project = 2,
}

impl QuotaKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [QuotaKind; 3] = [QuotaKind::User, QuotaKind::Group, QuotaKind::Project];

    /// Returns the kind with a number.
    pub fn from_number(number: u32) -> Option<QuotaKind> {
        QuotaKind::ALL.get(number as usize).copied()
    }

    /// Returns the name that Lustre's tools print: `usr`, `grp` or `prj`.
    pub const fn name(self) -> &'static str {
        match self {
            QuotaKind::User => "usr",
            QuotaKind::Group => "grp",
            QuotaKind::Project => "prj",
        }
    }
}

/// An id with a quota.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QuotaId {
    /// What the number stands for.
    pub kind: QuotaKind,
    /// User, group or project id.
    pub id: u32,
}

impl fmt::Display for QuotaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.name(), self.id)
    }
}

/// What is limited.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum QuotaResource {
    /// Space in bytes.
    Space = 0,
    /// Number of inodes.
    Inodes = 1,
}

impl QuotaResource {
    /// All resources, in the order of their numbers.
    pub const ALL: [QuotaResource; 2] = [QuotaResource::Space, QuotaResource::Inodes];
}

/// Ids that a file's space and inode are charged to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Owners {
    /// User id of the owner.
    pub uid: u32,
    /// Group id of the file.
    pub gid: u32,
    /// Project id; 0 if none.
    pub projid: u32,
}

/// The file that an object belongs to, and the place of the object in its layout: what a rebuilt layout needs (Lustre:
/// `filter_fid` with `ost_layout`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ObjectPlace {
    /// FID of the file.
    pub file: Fid,
    /// Number of the component in the file; 0 in a plain layout.
    pub component: u32,
    /// Offset of the first byte of the component in the file.
    pub start: u64,
    /// One past the last byte of the component, `u64::MAX` for the end of the file.
    pub end: u64,
    /// Stripe size in bytes.
    pub stripe_size: u32,
    /// Number of stripes of the component.
    pub stripe_count: u16,
    /// Number of the object among them, from 0.
    pub stripe: u16,
}

impl Owners {
    /// Returns the ids with their kinds, in the order of [`QuotaKind::ALL`].
    pub const fn ids(&self) -> [QuotaId; 3] {
        [
            QuotaId { kind: QuotaKind::User, id: self.uid },
            QuotaId { kind: QuotaKind::Group, id: self.gid },
            QuotaId { kind: QuotaKind::Project, id: self.projid },
        ]
    }
}

impl From<&crate::Attr> for Owners {
    fn from(attr: &crate::Attr) -> Owners {
        Owners { uid: attr.uid, gid: attr.gid, projid: attr.projid }
    }
}

/// Limits of one resource; 0 for none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct QuotaLimits {
    /// Limit that may be exceeded for the grace time.
    pub soft: u64,
    /// Limit that is never exceeded.
    pub hard: u64,
}

impl QuotaLimits {
    /// Returns true if there is any limit.
    pub const fn is_limited(&self) -> bool {
        self.soft != 0 || self.hard != 0
    }

    /// Returns true if the soft limit is not above the hard one.
    pub const fn is_consistent(&self) -> bool {
        self.hard == 0 || self.soft <= self.hard
    }
}

/// Longest grace time in seconds, as in Lustre.
pub const GRACE_MAX_S: u64 = (1 << 48) - 1;
/// Grace time without an end ("notify"): a soft limit is only reported.
pub const GRACE_NOTIFY_S: u64 = GRACE_MAX_S;
/// Grace time of file systems in which none was set: a week.
pub const GRACE_DEFAULT_S: u64 = 7 * 24 * 3600;
