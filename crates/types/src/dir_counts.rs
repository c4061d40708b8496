//! Inodes and space below a directory.

/// Sums over everything below a directory, without the directory itself. A hard link counts once, at its first name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DirCounts {
    /// Number of regular files.
    pub files: u64,
    /// Number of directories.
    pub directories: u64,
    /// Number of other inodes: symbolic links, devices, pipes, sockets.
    pub others: u64,
    /// Sizes of regular files in bytes.
    pub bytes: u64,
    /// Space of all inodes but directories in units of 512 bytes.
    pub blocks: u64,
}

impl DirCounts {
    /// Adds other sums; a sum that does not fit becomes `u64::MAX`.
    pub fn add(&mut self, other: &DirCounts) {
        for (sum, more) in [
            (&mut self.files, other.files),
            (&mut self.directories, other.directories),
            (&mut self.others, other.others),
            (&mut self.bytes, other.bytes),
            (&mut self.blocks, other.blocks),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_end_at_the_largest_number() {
        let mut sum = DirCounts { files: 1, bytes: u64::MAX - 1, ..DirCounts::default() };
        sum.add(&DirCounts { files: 2, directories: 3, others: 4, bytes: 5, blocks: 6 });
        assert_eq!(sum, DirCounts { files: 3, directories: 3, others: 4, bytes: u64::MAX, blocks: 6 });
    }
}
