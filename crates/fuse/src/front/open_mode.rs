//! Decides which open files use the kernel's page cache.
//!
//! Without the page cache (direct), a large transfer costs a quarter of the CPU time, but each read(2) and
//! write(2) is a request. With it, small reads are served from memory and the kernel reads ahead, at about
//! 440 us of CPU time per MiB. `auto` goes direct for writers, and where the program asks for it:
//!
//! | open | mode |
//! | --- | --- |
//! | write-only | direct: the writes would be requests anyway |
//! | with `O_DIRECT` | direct, for asynchronous writes too |
//! | read-only | page cache |
//! | file of [`DIRECT_FROM`] bytes or more | direct |
//! | for writing, while there are other clients | direct |
//! | anything else, programs being executed | page cache |
//!
//! Large files that are only read use the page cache because the size of the reads is unknown at the open:
//! cold, reads of 4 KiB are 3 to 8 times as fast that way and reads of 1 MiB as fast; the second time both
//! come from memory. The exception, where it costs more, is a first read in large pieces of data in the
//! server's memory (decision 0008).
//!
//! A program that opens a new file for reading and writing may map it as well. Stores to a mapping and direct
//! writes of other bytes in the same page would race in the kernel, and one of them could get lost; the page
//! cache keeps both. In large files that is left to programs.
//!
//! Direct writes of one file that do not extend it run in parallel. Under an exclusive lease cached data
//! survives close and open; under a shared one every open starts with an empty cache, whose contents are then
//! under locks.

use crate::abi::OpenFlags;

/// Size in bytes from which on files are read and written directly.
pub const DIRECT_FROM: u64 = 8 << 20;

/// The mount option `cache`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheMode {
    /// By the table of the module.
    #[default]
    Auto,
    /// Everything through the page cache.
    Always,
    /// No page cache.
    Never,
}

/// Input of the decision for one open.
#[derive(Debug, Clone, Copy)]
pub struct OpenCase {
    /// Neither read nor executed.
    pub write_only: bool,
    /// Not written.
    pub read_only: bool,
    /// Opened with `O_DIRECT`.
    pub direct: bool,
    /// Open for execution; the kernel maps it.
    pub executed: bool,
    /// Size at the open in bytes.
    pub size: u64,
    /// The client's lease is exclusive.
    pub exclusive: bool,
    /// A close of a descriptor needs no request: locks are the kernel's.
    pub local_locks: bool,
}

/// Returns the kernel's options for the open file.
pub fn open_flags(mode: CacheMode, case: &OpenCase) -> OpenFlags {
    let direct = match mode {
        CacheMode::Never => !case.executed,
        CacheMode::Always => false,
        CacheMode::Auto => {
            let large = case.size >= DIRECT_FROM && !case.read_only;
            // Pages that other clients may request would stay locked for the whole write-through.
            let shared_writer = !case.read_only && !case.exclusive;
            !case.executed && (case.write_only || case.direct || large || shared_writer)
        }
    };
    let mut flags = if direct {
        OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES
    } else if case.exclusive {
        OpenFlags::KEEP_CACHE
    } else {
        OpenFlags::empty()
    };
    if case.local_locks {
        flags |= OpenFlags::NOFLUSH;
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ_SMALL: OpenCase = OpenCase {
        write_only: false,
        read_only: true,
        direct: false,
        executed: false,
        size: 100,
        exclusive: true,
        local_locks: true,
    };

    #[test]
    fn small_files_that_are_read_stay_in_the_page_cache_while_the_lease_is_exclusive() {
        assert_eq!(open_flags(CacheMode::Auto, &READ_SMALL), OpenFlags::KEEP_CACHE | OpenFlags::NOFLUSH);
        let shared = OpenCase { exclusive: false, ..READ_SMALL };
        assert_eq!(open_flags(CacheMode::Auto, &shared), OpenFlags::NOFLUSH);
    }

    #[test]
    fn large_files_that_are_only_read_go_through_the_page_cache() {
        let large = OpenCase { size: 1 << 40, ..READ_SMALL };
        assert!(!open_flags(CacheMode::Auto, &large).contains(OpenFlags::DIRECT_IO));
        let shared = OpenCase { exclusive: false, ..large };
        assert!(!open_flags(CacheMode::Auto, &shared).contains(OpenFlags::DIRECT_IO));
        let asked_for = OpenCase { direct: true, ..large };
        assert!(open_flags(CacheMode::Auto, &asked_for).contains(OpenFlags::DIRECT_IO));
    }

    #[test]
    fn programs_are_never_opened_around_the_page_cache() {
        let program = OpenCase { executed: true, size: 1 << 30, ..READ_SMALL };
        for mode in [CacheMode::Auto, CacheMode::Always, CacheMode::Never] {
            assert!(!open_flags(mode, &program).contains(OpenFlags::DIRECT_IO));
        }
    }

    #[test]
    fn files_that_are_written_with_others_or_large_go_around_the_page_cache() {
        let cases = [
            OpenCase { write_only: true, ..READ_SMALL },
            OpenCase { direct: true, ..READ_SMALL },
            OpenCase { size: DIRECT_FROM, read_only: false, ..READ_SMALL },
            OpenCase { read_only: false, exclusive: false, ..READ_SMALL },
        ];
        for case in cases {
            assert!(open_flags(CacheMode::Auto, &case).contains(OpenFlags::DIRECT_IO));
            assert!(!open_flags(CacheMode::Always, &case).contains(OpenFlags::DIRECT_IO));
        }
    }
}
