//! Records as they are stored on disk: their bytes are specified, never a serializer's default.
//!
//! Little-endian, fixed widths, no padding; the first byte of every record is its format version; reserved
//! bytes are written as zero and otherwise refused, so that a later version can use them. Decoders accept
//! untrusted bytes and never panic. Byte tables: `docs/formats/mdt.md`. Tests pin the bytes of each record: a
//! change of them needs a new version number.

pub mod block;
pub mod changelog;
pub mod changes;
mod codec;
pub mod data;
pub mod dirent;
mod head;
pub mod inode;
pub mod mdt;
pub mod members;
pub mod nxd;
pub mod object;
pub mod quota;
pub mod server;
pub mod start;
pub mod superblock;
#[doc(hidden)]
pub mod untrusted;

pub use changelog::{ChangeRecord, ChangeUserRecord, ChangesHeadRecord};
pub use changes::{DataMarkRecord, DataRunRecord};
pub use codec::DecodeError;
pub use data::DataRecord;
pub use dirent::{DirentRecord, LinkRecord, XattrRecord};
pub use inode::InodeRecord;
pub use mdt::{MdtRecord, OstMarkRecord, RUNS_MAX, RunsRecord, ScrubRecord};
pub use quota::{GraceRecord, LimitRecord, OwnerRecord, UseRecord};
pub use server::{ClientRecord, OpenedRecord, ReplyRecord};
