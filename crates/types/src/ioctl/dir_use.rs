//! Inodes and space below a directory.

use super::{Payload, READ, number, u64_at};
use crate::DirCounts;

/// Returns the sums over everything below the directory that the ioctl is called on. Needs permission to read and
/// search it. `EOPNOTSUPP` if an MDT does not count (`mdt.*.dir_use`); `EAGAIN` if an MDT is unreachable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DirUse {
    /// Output: the sums.
    pub counts: DirCounts,
    /// Output: false while an MDT still counts its inodes, so that the sums may be too small.
    pub is_complete: bool,
}

/// Flag: the sums are complete.
const COMPLETE: u64 = 1;

impl Payload for DirUse {
    const COMMAND: u32 = number(READ, 39, Self::SIZE);
    const SIZE: usize = 48;

    fn to_bytes(&self) -> Vec<u8> {
        let DirCounts { files, directories, others, bytes, blocks } = self.counts;
        let flags = if self.is_complete { COMPLETE } else { 0 };
        let words = [files, directories, others, bytes, blocks, flags];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn from_bytes(bytes: &[u8]) -> Option<DirUse> {
        let word = |place: usize| u64_at(bytes, 8 * place);
        Some(DirUse {
            counts: DirCounts {
                files: word(0)?,
                directories: word(1)?,
                others: word(2)?,
                bytes: word(3)?,
                blocks: word(4)?,
            },
            is_complete: word(5)? & COMPLETE != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_come_back_as_they_were() {
        let counts = DirCounts { files: 1, directories: 2, others: 3, bytes: u64::MAX, blocks: 5 };
        for is_complete in [false, true] {
            let ask = DirUse { counts, is_complete };
            assert_eq!(ask.to_bytes().len(), DirUse::SIZE);
            assert_eq!(DirUse::from_bytes(&ask.to_bytes()), Some(ask));
            assert_eq!(DirUse::from_bytes(&ask.to_bytes()[..47]), None);
        }
    }
}
