//! Counters and the result of a check.

use nacre_types::TransNo;

/// A snapshot of the store's counters; sums since the store was opened unless noted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetaStoreStats {
    /// Batches committed.
    pub commits: u64,
    /// Bytes appended to the log, headers included.
    pub wal_bytes: u64,
    /// Flushes of the log to stable storage.
    pub syncs: u64,
    /// Checkpoints that succeeded.
    pub checkpoints: u64,
    /// Checkpoints that failed and were or will be retried.
    pub checkpoint_failures: u64,
    /// Times that a commit had to wait because both halves of the memory or the log were full.
    pub stalls: u64,
    /// Bytes of recent changes in memory at this moment.
    pub overlay_bytes: u64,
    /// Entries in the base at this moment (without recent changes).
    pub base_entries: u64,
    /// Bytes that the base occupies in its file at this moment, free pages included.
    pub base_bytes: u64,
    /// Bytes of these in free pages, which new entries will use.
    pub base_free_bytes: u64,
    /// Batches replayed from the log when the store was opened.
    pub replayed: u64,
    /// Newest transaction.
    pub last_transno: TransNo,
    /// Newest durable transaction.
    pub last_committed: TransNo,
    /// Whether the disk is full: the reserve has been released, and only batches that free space are
    /// accepted.
    pub is_full: bool,
    /// Whether the store has failed and accepts no changes.
    pub has_failed: bool,
}

/// Result of [`MetaStore::verify`](super::MetaStore::verify).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Entries read in the base.
    pub entries: u64,
    /// Bytes of keys and values read.
    pub bytes: u64,
    /// Entries per table, in order of table number; tables without entries are left out.
    pub tables: Vec<(u8, u64)>,
    /// Log records whose checksums were read again.
    pub wal_records: u64,
    /// Damage found, the first [`VerifyReport::PROBLEMS_MAX`] of it.
    pub problems: Vec<VerifyProblem>,
    /// Number of all problems found, also those beyond `problems`.
    pub problem_count: u64,
}

impl VerifyReport {
    /// Longest list of problems kept.
    pub const PROBLEMS_MAX: usize = 100;

    /// Counts an entry of the base.
    pub(crate) fn note(&mut self, table: u8, bytes: usize) {
        self.entries += 1;
        self.bytes += bytes as u64;
        match self.tables.last_mut() {
            Some((last, count)) if *last == table => *count += 1,
            _ => self.tables.push((table, 1)),
        }
    }

    /// Whether no entry is lost or damaged, as far as problems were kept: the base can be rebuilt from its
    /// entries.
    pub fn keeps_entries(&self) -> bool {
        let is_harmless = |problem: &VerifyProblem| {
            matches!(
                problem,
                VerifyProblem::LostPages { .. }
                    | VerifyProblem::Bookkeeping { .. }
                    | VerifyProblem::Copy { .. }
            )
        };
        self.problem_count == self.problems.len() as u64 && self.problems.iter().all(is_harmless)
    }

    pub(crate) fn add(&mut self, problem: VerifyProblem) {
        self.problem_count += 1;
        if self.problems.len() < Self::PROBLEMS_MAX {
            self.problems.push(problem);
        }
    }
}

/// A damaged place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyProblem {
    /// An entry of the base whose checksum does not match.
    #[error("entry of table {table} with key {} does not match its checksum", Hex(key))]
    Entry {
        /// Number of the table.
        table: u8,
        /// Key of the entry.
        key: Vec<u8>,
    },
    /// A log record that does not match its checksum.
    #[error("log record at offset {offset} of segment {segment} is damaged")]
    Record {
        /// Number of the segment file.
        segment: u32,
        /// Byte offset in the file.
        offset: u64,
    },
    /// A page of the base that is inconsistent, alone or with others.
    #[error("page {page} of the base: {what}")]
    Page {
        /// Page number.
        page: u64,
        /// Description of the damage.
        what: &'static str,
    },
    /// A page of the base that locates others and can be derived from them: a meta page, or one of the free
    /// list.
    #[error("page {page} of the base: {what}; no entry is concerned")]
    Bookkeeping {
        /// Number of the page.
        page: u64,
        /// Description of the damage.
        what: &'static str,
    },
    /// Pages of the base that are neither in use nor free.
    #[error("{count} pages of the base, from page {first} on, are neither in use nor free")]
    LostPages {
        /// Number of the first page.
        first: u64,
        /// Number of pages.
        count: u64,
    },
    /// One of the two copies of a file.
    #[error("{} is damaged, its other copy is not", path.display())]
    Copy {
        /// Path of the damaged copy.
        path: std::path::PathBuf,
    },
    /// Any other reason that keeps a file of the store from being used.
    #[error("{0}")]
    File(String),
}

struct Hex<'a>(&'a [u8]);

impl std::fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
