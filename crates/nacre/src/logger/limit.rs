//! Rate limit of the log: lines of one kind about one peer, so that no peer can fill a disk with them or push
//! important lines out.
//!
//! A kind is the place in the program that a line comes from. Lines name their peer with the key `peer`
//! (`log::warn!(peer:% = address; ...)`); lines without it are counted together.

use log::Level;
use nacre_env::clock::Instant;
use std::collections::HashMap;
use std::time::Duration;

/// Length of a counting window, which starts with the first line.
const WINDOW: Duration = Duration::from_secs(60);
/// Lines of a kind about one peer in a window.
const PEER_MAX: u32 = 10;
/// Lines of a kind without a peer in a window: a process with many targets or clients logs some lines once
/// for each.
const KIND_MAX: u32 = 200;
/// Pairs of kind and peer that are counted at a time. Beyond them, a kind is counted for all further peers
/// together.
const KEYS_MAX: usize = 1024;
/// Longest sample of the suppressed lines, in bytes.
const SAMPLE_MAX: usize = 200;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Key {
    file: String,
    line: u32,
    peer: String,
}

#[derive(Debug)]
struct Window {
    ends: Instant,
    lines: u32,
    left_out: Option<LeftOut>,
}

/// Suppressed lines of one kind and peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeftOut {
    /// Level of the last of them.
    pub level: Level,
    /// Part of the program that logged them.
    pub target: String,
    /// Number of lines.
    pub lines: u64,
    /// Text of the last of them, truncated if it is long.
    pub sample: String,
}

impl LeftOut {
    /// Returns the line that the log shows about them.
    pub fn message(&self) -> String {
        let seconds = WINDOW.as_secs();
        format!("{} more lines within {seconds} s were left out; the last: {}", self.lines, self.sample)
    }
}

/// A line before the limit applies.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// Level of the line.
    pub level: Level,
    /// Part of the program that logs it.
    pub target: &'a str,
    /// Source file and line of the log statement.
    pub origin: (&'a str, u32),
    /// Peer that the line is about; empty for none.
    pub peer: &'a str,
    /// Text of the line.
    pub message: &'a str,
}

/// Counts lines. Pure: the caller supplies the time.
#[derive(Debug, Default)]
pub struct Limit {
    windows: HashMap<Key, Window>,
    first_end: Option<Instant>,
}

impl Limit {
    /// Returns whether a line may be written; a suppressed one is counted.
    pub fn admit(&mut self, now: Instant, line: &Line<'_>) -> bool {
        let (file, number) = line.origin;
        let mut key = Key { file: file.to_owned(), line: number, peer: line.peer.to_owned() };
        if self.windows.len() >= KEYS_MAX && !self.windows.contains_key(&key) {
            key.peer.clear();
        }
        let most = if key.peer.is_empty() { KIND_MAX } else { PEER_MAX };
        let window = self.windows.entry(key).or_insert_with(|| Window {
            ends: now + WINDOW,
            lines: 0,
            left_out: None,
        });
        self.first_end = Some(self.first_end.map_or(window.ends, |first| first.min(window.ends)));
        if window.lines < most {
            window.lines += 1;
            return true;
        }
        let lines = window.left_out.as_ref().map_or(0, |left_out| left_out.lines) + 1;
        let end = line.message.floor_char_boundary(SAMPLE_MAX);
        window.left_out = Some(LeftOut {
            level: line.level,
            target: line.target.to_owned(),
            lines,
            sample: line.message[..end].to_owned(),
        });
        false
    }

    /// Returns the suppressed lines of windows that have ended, and forgets these.
    pub fn ended(&mut self, now: Instant) -> Vec<LeftOut> {
        if self.first_end.is_none_or(|first| now < first) {
            return Vec::new();
        }
        let mut ended = Vec::new();
        self.windows.retain(|_, window| {
            let goes_on = now < window.ends;
            if !goes_on {
                ended.extend(window.left_out.take());
            }
            goes_on
        });
        self.first_end = self.windows.values().map(|window| window.ends).min();
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line<'a>(number: u32, peer: &'a str, message: &'a str) -> Line<'a> {
        Line { level: Level::Warn, target: "nacre_rpc", origin: ("a.rs", number), peer, message }
    }

    fn admitted(limit: &mut Limit, now: Instant, line: &Line<'_>, times: u32) -> u32 {
        (0..times).map(|_| u32::from(limit.admit(now, line))).sum()
    }

    #[test]
    fn a_peer_has_so_many_lines_of_each_kind_and_the_rest_is_counted() {
        let (mut limit, now) = (Limit::default(), Instant::now());
        assert_eq!(admitted(&mut limit, now, &line(1, "10.0.0.1", "refused"), 1000), PEER_MAX);
        assert_eq!(admitted(&mut limit, now, &line(1, "10.0.0.2", "refused"), 1), 1, "another peer");
        assert_eq!(admitted(&mut limit, now, &line(2, "10.0.0.1", "closed"), 1), 1, "another kind");
        assert_eq!(admitted(&mut limit, now, &line(3, "", "own"), 1000), KIND_MAX);
        assert_eq!(limit.ended(now + WINDOW / 2), []);
        let mut ended = limit.ended(now + WINDOW);
        ended.sort_by_key(|left_out| left_out.lines);
        let lines: Vec<_> = ended.iter().map(|left_out| (left_out.lines, left_out.sample.as_str())).collect();
        assert_eq!(lines, [(800, "own"), (990, "refused")]);
        assert_eq!(limit.ended(now + 2 * WINDOW), [], "said once");
        assert!(limit.admit(now + WINDOW, &line(1, "10.0.0.1", "refused")), "a new window");
    }

    #[test]
    fn more_peers_than_are_counted_share_the_lines_of_a_kind() {
        let (mut limit, now) = (Limit::default(), Instant::now());
        let peers: Vec<String> = (0..3 * KEYS_MAX).map(|number| format!("peer {number}")).collect();
        let count = peers.iter().filter(|peer| limit.admit(now, &line(1, peer, "refused"))).count();
        assert_eq!(count, KEYS_MAX + KIND_MAX as usize);
        assert_eq!(limit.windows.len(), KEYS_MAX + 1);
        assert_eq!(limit.ended(now + WINDOW).len(), 1);
        assert!(limit.windows.is_empty());
    }

    #[test]
    fn a_sample_is_cut_between_characters() {
        let (mut limit, now) = (Limit::default(), Instant::now());
        let message = "\u{e4}".repeat(SAMPLE_MAX);
        admitted(&mut limit, now, &line(1, "p", &message), PEER_MAX + 1);
        assert_eq!(limit.ended(now + WINDOW)[0].sample.chars().count(), SAMPLE_MAX / 2);
    }
}
