//! Telling the medium below a target what is free: the thread that does so when little else is done, and orders.

use crate::ObjectServer;
use nacre_store::object::trim::{Load, Trimmer, trim_for};
use nacre_store::object::{ObjectError, Trimmed};
use std::io;
use std::time::Duration;

impl ObjectServer {
    /// Starts the thread that trims by policy (`obdfilter.*.trim_*`), unless it runs.
    ///
    /// # Errors
    /// If there cannot be a thread.
    pub fn start_trimming(&self) -> io::Result<()> {
        if self.trimmer.get().is_some() {
            return Ok(());
        }
        // Not the server: then the thread could be the last to hold it, and wait for itself.
        let brw = self.brw.clone();
        let load = move || {
            let (in_progress, done) = brw.transfers();
            Load { in_progress, done }
        };
        let name = self.target_id().to_string();
        let trimmer = Trimmer::start(name, self.store().clone(), Box::new(load))?;
        // Of two who start at once one is dropped, which ends it.
        let _ = self.trimmer.set(trimmer);
        Ok(())
    }

    /// The thread that trims, if it was started.
    pub fn trimmer(&self) -> Option<&Trimmer> {
        self.trimmer.get()
    }

    /// Trims for about as long as `limit`, from a place of the medium on; 0 is the beginning.
    ///
    /// # Errors
    /// As [`trim_for`].
    pub fn trim(&self, from: u64, limit: Duration) -> Result<Trimmed, ObjectError> {
        match self.trimmer() {
            Some(trimmer) => trimmer.trim_for(from, limit),
            None => trim_for(&**self.store(), from, limit),
        }
    }
}
