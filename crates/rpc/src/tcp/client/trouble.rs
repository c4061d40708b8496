//! The last failure to reach a target or to get an answer, for error reports.

use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_types::Nid;
use std::fmt::Display;

struct Last {
    nid: Nid,
    why: String,
    /// Times of the first and of the last occurrence.
    since: Instant,
    seen: Instant,
}

/// The current failure of a target, if any.
#[derive(Default)]
pub(crate) struct Trouble {
    last: Mutex<Option<Last>>,
}

impl Trouble {
    /// Records a failure at this address.
    pub(crate) fn note(&self, nid: Nid, why: impl Display) {
        let why = why.to_string();
        let seen = Instant::now();
        let mut last = self.last.lock();
        let since = last.as_ref().map_or(seen, |last| last.since);
        *last = Some(Last { nid, why, since, seen });
    }

    /// Clears the failure: a connection was set up.
    pub(crate) fn end(&self) {
        *self.last.lock() = None;
    }

    /// Returns address, reason and time.
    pub(crate) fn tell(&self) -> Option<String> {
        let last = self.last.lock();
        let Last { nid, why, since, seen } = last.as_ref()?;
        let (lasts, ago) = (since.elapsed().as_secs(), seen.elapsed().as_secs());
        Some(format!("{nid}: {why}, {ago} s ago; trouble for {lasts} s"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_env::sim;
    use std::time::Duration;

    #[test]
    fn trouble_names_the_address_the_reason_and_how_long_it_lasts() {
        sim::run(sim::Options { seed: 1, limit: Duration::from_secs(60) }, || {
            let trouble = Trouble::default();
            let nid = Nid::Tcp(([10, 0, 0, 7], 988).into());
            assert_eq!(trouble.tell(), None);
            trouble.note(nid, "connection reset");
            nacre_env::thread::sleep(Duration::from_secs(9));
            trouble.note(nid, "connection refused");
            nacre_env::thread::sleep(Duration::from_secs(2));
            let expected = format!("{nid}: connection refused, 2 s ago; trouble for 11 s");
            assert_eq!(trouble.tell(), Some(expected));
            trouble.end();
            assert_eq!(trouble.tell(), None);
        });
    }
}
