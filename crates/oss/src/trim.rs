//! Background work of a target: trim (discard) of free space on its medium, at low load and on explicit request, and
//! the scrub.

use crate::ObjectServer;
use crate::scrub::DataScrub;
use nacre_store::object::trim::{Load, Trimmer, trim_for};
use nacre_store::object::{ObjectError, Trimmed};
use std::io;
use std::time::Duration;

impl ObjectServer {
    /// Starts the thread that trims by policy (`obdfilter.*.trim_*`), unless it runs.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start_trimming(&self) -> io::Result<()> {
        if self.trimmer.get().is_some() {
            return Ok(());
        }
        // Captures the counters, not the server: the thread could own the last reference to the server and
        // join itself.
        let brw = self.brw.clone();
        let load = move || {
            let (in_progress, done) = brw.transfers();
            Load { in_progress, done }
        };
        let name = self.target_id().to_string();
        let trimmer = Trimmer::start(name, self.store().clone(), Box::new(load))?;
        // If two calls race, one trimmer is dropped, which stops its thread.
        let _ = self.trimmer.set(trimmer);
        Ok(())
    }

    /// Returns the thread that trims, if it was started.
    pub fn trimmer(&self) -> Option<&Trimmer> {
        self.trimmer.get()
    }

    /// Trims for about `limit`, starting at offset `from` of the medium.
    ///
    /// # Errors
    /// As [`trim_for`].
    pub fn trim(&self, from: u64, limit: Duration) -> Result<Trimmed, ObjectError> {
        match self.trimmer() {
            Some(trimmer) => trimmer.trim_for(from, limit),
            None => trim_for(&**self.store(), from, limit),
        }
    }

    /// Starts the scrub with a rate in bytes per second, unless it runs.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start_scrub(&self, rate: u64) -> io::Result<()> {
        if self.scrub.get().is_none() {
            // A store on a device reads its data continuously by itself.
            let rate = if self.store().abilities().device_store.is_some() { 0 } else { rate };
            let scrub = DataScrub::start(self.target_id(), self.store().clone(), rate)?;
            // If two calls race, the thread of one of them ends.
            let _ = self.scrub.set(scrub);
        }
        Ok(())
    }

    /// Returns the scrub, if it was started.
    pub fn scrub(&self) -> Option<&DataScrub> {
        self.scrub.get()
    }
}
