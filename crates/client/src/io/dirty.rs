//! Written data that has not reached its objects yet.

use crate::client::Client;
use crate::file::FileState;
use nacre_types::StatusResult;

impl Client {
    /// Makes every byte of `[start, end)` that was written here reach its object. To be called before the objects are asked
    /// about that range; whoever needs the answer to stay true holds the range.
    ///
    /// # Errors
    /// `EINTR`; what an OST answers.
    pub(crate) fn settle(&self, _file: &FileState, _start: u64, _end: u64) -> StatusResult<()> {
        // Every write is on its OST when it returns.
        Ok(())
    }
}
