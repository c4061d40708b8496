//! Requests about inodes and space below directories.

use crate::codec::wire_struct;
use nacre_types::{DirCounts, Fid};

/// Directories in one [`DirUseRequest`], and in its reply: as many as in all lists of FIDs.
pub const DIR_USE_MAX: usize = 4096;

/// Asks for the sums over the inodes of an MDT whose first names are in these directories, and in those below them
/// that the MDT finds: directories whose inodes it has. `EOPNOTSUPP` if the MDT does not count.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirUseRequest {
    /// Directories of any MDT, at most [`DIR_USE_MAX`].
    pub dirs: Vec<Fid>,
    /// Zero, or the subdirectory of the first directory after which the MDT continues: the first directory itself is
    /// in the sums of an earlier reply.
    pub after: Fid,
    /// True to return the directories that are found, of which other MDTs may have inodes.
    pub lists: bool,
}

/// Reply to a [`DirUseRequest`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirUseReply {
    /// The sums.
    pub counts: DirCounts,
    /// False while the MDT counts its inodes.
    pub is_complete: bool,
    /// Directories that were found below the requested ones, at most [`DIR_USE_MAX`]; empty unless requested.
    pub dirs: Vec<Fid>,
    /// Number of directories that are done, first the requested ones, then those of `dirs`.
    pub done: u32,
    /// Zero, or the subdirectory of the next directory after which the sums are to be continued.
    pub after: Fid,
}

wire_struct!(DirCounts { files, directories, others, bytes, blocks });
wire_struct!(DirUseRequest { dirs, after, lists });
wire_struct!(DirUseReply { counts, is_complete, dirs, done, after });
