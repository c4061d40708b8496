//! Files that a rename has replaced. They stay for a moment without a name, so that a client that has looked the name
//! up can still open what it found: the name always leads to a file, so no open of it may fail.

use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_types::Fid;
use std::collections::HashMap;
use std::time::Duration;

/// How long a replaced file can be opened at least. A lookup and the open that follows take two round trips.
const KEPT: Duration = Duration::from_millis(500);
/// Replaced files at most, at about 50 bytes each; others are removed at once, so that fast renames do not fill the MDT.
const KEPT_MAX: usize = 4096;

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct Replaced {
    since: Mutex<HashMap<Fid, Instant>>,
}

impl Replaced {
    /// Notes a file that is about to lose its last name; false if it is to be removed at once.
    pub fn keep(&self, fid: Fid) -> bool {
        let mut since = self.since.lock();
        let has_room = since.len() < KEPT_MAX;
        if has_room {
            since.insert(fid, Instant::now());
        }
        has_room
    }

    /// Returns true if a rename has replaced the file a moment ago.
    pub fn contains(&self, fid: &Fid) -> bool {
        self.since.lock().contains_key(fid)
    }

    /// Removes and returns the files whose time is over. A transaction that failed may have left one that has its name.
    pub fn take_old(&self) -> Vec<Fid> {
        self.since.lock().extract_if(|_, since| since.elapsed() >= KEPT).map(|(fid, _)| fid).collect()
    }
}
