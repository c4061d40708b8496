//! The vocabulary of NacreFS: identifiers, attributes, credentials, errors and limits.
//!
//! Plain data and pure functions only: nothing does I/O, reads a clock or takes a lock, so all other crates
//! may depend on this one and it depends on none of them. Lustre's terms are used for Lustre's concepts (FID,
//! NID, OST, MDT, transno, xid).

pub mod acl;
pub mod attr;
pub mod capability;
pub mod changelog;
pub mod cred;
pub mod dir_counts;
pub mod failure;
pub mod fid;
pub mod identity;
pub mod ids;
pub mod ioctl;
pub mod job;
pub mod limits;
pub mod lustre;
pub mod name;
pub mod nid;
pub mod nid_range;
pub mod nodemap;
pub mod perm;
pub mod process;
pub mod quota;
mod security;
pub mod size;
pub mod standing;
pub mod status;
pub mod time;
#[doc(hidden)]
pub mod untrusted;

pub use attr::{Attr, AttrFlags, FileKind, SetAttr, SetAttrValid, SizeSource};
pub use capability::{CAPABILITY_TAG_BYTES, Capability, ObjectNeed, Rights};
pub use changelog::{ChangeKind, ChangeMask};
pub use cred::{Caps, Cred, FullCred, User};
pub use dir_counts::DirCounts;
pub use failure::{Context, Explain, Failure, FailureResult};
pub use fid::Fid;
pub use identity::{Identity, IdentityError, KeyId, Roles};
pub use ids::{ClientUuid, OpenHandle, TargetId, TargetKind, TransNo, Xid};
pub use job::JobId;
pub use nid::Nid;
pub use nodemap::{IdKind, Nodemap, Nodemaps};
pub use process::ProcessIdentity;
pub use quota::{ObjectPlace, Owners, QuotaId, QuotaKind, QuotaLimits, QuotaResource};
pub use security::{Security, SecurityError};
pub use standing::Standing;
pub use status::{Status, StatusResult};
pub use time::Timestamp;
