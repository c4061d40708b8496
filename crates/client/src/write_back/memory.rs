//! How much data a client keeps in its own memory (`llite.*.max_cached_mb`): blocks read ahead, and windows
//! of held-back data.
//!
//! Each has limits of its own; this one is for both. Held-back data has priority: it displaces blocks that
//! were read ahead.

use crate::file::FileState;
use crate::write_back::WriteBack;
use nacre_types::StatusResult;
use std::fmt::Write;

const MIB: u64 = 1 << 20;

impl WriteBack {
    /// Drops data read ahead of a file that is closed, or whose lease ends.
    pub(crate) fn forget_ahead(&self, file: &FileState) {
        file.lock().ahead.clear();
        self.memory.shrink();
    }

    /// Returns how many bytes may be read ahead at the moment.
    pub(crate) fn read_ahead_room(&self) -> u64 {
        let left = self.tunables.cached_bytes_max().saturating_sub(self.pool.used_bytes());
        self.tunables.read_ahead_bytes().min(left)
    }

    /// Returns how many bytes may be held back at the moment. Drops data read ahead to make `wanted` bytes
    /// available.
    pub(crate) fn dirty_room(&self, wanted: u64) -> u64 {
        let (most, limit) = (self.tunables.cached_bytes_max(), self.settings.max_dirty());
        let needed = self.pool.used_bytes().saturating_add(wanted).min(limit);
        if self.memory.used() > most.saturating_sub(needed) {
            self.reclaim();
        }
        limit.min(most.saturating_sub(self.memory.used()))
    }

    /// Drops data read ahead.
    fn reclaim(&self) {
        if self.memory.used() > 0 {
            self.tunables.count_reclaim();
            self.nodes.open_files().iter().for_each(|file| self.forget_ahead(file));
        }
    }

    /// Sets how much data may be kept, in MiB. If more is kept at the moment, data read ahead is dropped at
    /// once, and held-back data as it is written.
    ///
    /// # Errors
    /// `ERANGE` for more than there is memory.
    pub fn set_max_cached_mb(&self, mb: u64) -> StatusResult<()> {
        self.tunables.set_max_cached_mb(mb)?;
        if self.cached_bytes() > self.tunables.cached_bytes_max() {
            self.reclaim();
        }
        Ok(())
    }

    /// Returns how many bytes are kept.
    pub fn cached_bytes(&self) -> u64 {
        self.memory.used() + self.pool.used_bytes()
    }

    /// Returns the text of `llite.*.max_cached_mb`.
    pub fn cached_report(&self) -> String {
        let (most, used) = (self.tunables.max_cached_mb(), self.cached_bytes().div_ceil(MIB));
        let rows = [
            // This mount and its endpoints of OSTs.
            ("users", 1 + self.requests.osts.iter().count() as u64),
            ("max_cached_mb", most),
            ("used_mb", used),
            ("unused_mb", most.saturating_sub(used)),
            ("reclaim_count", self.tunables.reclaims()),
            ("max_read_ahead_mb", self.tunables.max_read_ahead_mb()),
            ("used_read_ahead_mb", self.memory.used().div_ceil(MIB)),
        ];
        rows.iter().fold(String::new(), |mut text, (name, value)| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name}: {value}");
            text
        })
    }
}
