//! The names of a listed directory, and in which order they are looked up. Pure.

/// Names recorded of one directory: with names of 16 bytes 8 MiB.
const NAMES_MAX: usize = 1 << 18;
/// Bytes of all names of one directory.
const BYTES_MAX: usize = 8 << 20;
/// Distance up to which a name counts as the next one: programs leave some out (hidden ones, those of another
/// suffix).
const JUMP_MAX: usize = 8;

/// How a name follows the previously looked up one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Follows {
    /// In the order of the listing.
    Listing,
    /// In the order of their bytes.
    Sorted,
    /// Neither, or it is the first one.
    Unknown,
}

struct Listed {
    /// Offset of its first byte; the name ends where the next one begins.
    start: u32,
    /// Position before the name.
    before: u64,
}

/// The name that was looked up last.
#[derive(Clone, Copy)]
struct At {
    listed: usize,
    /// Its place among the sorted names, if that was searched for.
    rank: Option<usize>,
}

/// Names in the order of their listing.
#[derive(Default)]
pub(crate) struct ListedNames {
    bytes: Vec<u8>,
    listed: Vec<Listed>,
    /// Indexes into `listed` in the order of the names, sorted when names are first looked up in another
    /// order than listed.
    sorted: Vec<u32>,
    at: Option<At>,
    /// Position before the last name.
    last: u64,
}

impl ListedNames {
    /// Adds the next name of the listing, behind position `before`. A listing that restarts replaces the old
    /// one.
    pub fn push(&mut self, name: &[u8], before: u64) {
        if before < self.last {
            *self = ListedNames::default();
        }
        self.last = before;
        if self.listed.len() >= NAMES_MAX || self.bytes.len() + name.len() > BYTES_MAX {
            return;
        }
        self.listed.push(Listed { start: self.bytes.len() as u32, before });
        self.bytes.extend_from_slice(name);
        self.sorted.clear();
        if let Some(at) = &mut self.at {
            at.rank = None;
        }
    }

    fn name(&self, number: usize) -> Option<&[u8]> {
        let start = self.listed.get(number)?.start as usize;
        let end = self.listed.get(number + 1).map_or(self.bytes.len(), |next| next.start as usize);
        self.bytes.get(start..end)
    }

    fn sorted_name(&self, rank: usize) -> Option<&[u8]> {
        self.name(*self.sorted.get(rank)? as usize)
    }

    /// Records that `name` is looked up; `None` if it was not listed.
    pub fn on_asked(&mut self, name: &[u8]) -> Option<Follows> {
        let next = self.at.map_or(0, |at| at.listed + 1);
        if let Some(listed) = (next..next + JUMP_MAX).find(|&number| self.name(number) == Some(name)) {
            self.at = Some(At { listed, rank: None });
            return Some(Follows::Listing);
        }
        if self.sorted.is_empty() {
            let mut sorted: Vec<u32> = (0..self.listed.len() as u32).collect();
            sorted.sort_unstable_by_key(|&number| self.name(number as usize));
            self.sorted = sorted;
        }
        let last = match self.at {
            Some(At { rank: Some(rank), .. }) => Some(rank),
            Some(At { listed, .. }) => self.rank_of(self.name(listed)?),
            None => None,
        };
        let near = last
            .and_then(|last| (last + 1..=last + JUMP_MAX).find(|&rank| self.sorted_name(rank) == Some(name)));
        let rank = near.or_else(|| self.rank_of(name))?;
        self.at = Some(At { listed: self.sorted[rank] as usize, rank: Some(rank) });
        Some(if near.is_some() { Follows::Sorted } else { Follows::Unknown })
    }

    fn rank_of(&self, name: &[u8]) -> Option<usize> {
        self.sorted.binary_search_by_key(&Some(name), |&number| self.name(number as usize)).ok()
    }

    /// Returns the position before the name that was looked up last.
    pub fn position(&self) -> Option<u64> {
        self.at.and_then(|at| self.listed.get(at.listed)).map(|listed| listed.before)
    }

    /// Returns the name that was looked up last and those behind it in the order of their bytes: up to
    /// `count`, each terminated by NUL.
    pub fn sorted_names(&self, count: u32) -> Vec<u8> {
        let Some(rank) = self.at.and_then(|at| at.rank) else { return Vec::new() };
        let mut names = Vec::new();
        for name in (rank..rank + count as usize).map_while(|rank| self.sorted_name(rank)) {
            names.extend_from_slice(name);
            names.push(0);
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(names: &[&str]) -> ListedNames {
        let mut all = ListedNames::default();
        for (number, name) in names.iter().enumerate() {
            all.push(name.as_bytes(), number as u64 * 10);
        }
        all
    }

    #[test]
    fn the_order_of_the_listing_is_recognized_with_gaps() {
        let mut names = listed(&["d", ".x", "a", "c", "b"]);
        for (name, position) in [("d", 0), ("a", 20), ("c", 30), ("b", 40)] {
            assert_eq!(names.on_asked(name.as_bytes()), Some(Follows::Listing));
            assert_eq!(names.position(), Some(position));
        }
        assert_eq!(names.on_asked(b"z"), None);
    }

    #[test]
    fn sorted_order_is_recognized_with_the_second_name() {
        let all: Vec<String> = (0..100).map(|number| format!("{:02}", 99 - number)).collect();
        let mut names = listed(&all.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(names.on_asked(b"09"), Some(Follows::Unknown));
        assert_eq!(names.on_asked(b"10"), Some(Follows::Sorted));
        assert_eq!(names.sorted_names(3), b"10\x0011\x0012\0");
        assert_eq!(names.on_asked(b"13"), Some(Follows::Sorted));
        assert_eq!(names.on_asked(b"98"), Some(Follows::Unknown));
        assert_eq!(names.sorted_names(9), b"98\x0099\0", "the end");
        assert_eq!(names.on_asked(b"none"), None);
        assert_eq!(names.on_asked(b"99"), Some(Follows::Sorted));
    }

    #[test]
    fn a_listing_that_begins_anew_replaces_the_old_one() {
        let mut names = listed(&["a", "b", "c"]);
        names.push(b"d", 30);
        assert_eq!(names.on_asked(b"d"), Some(Follows::Listing));
        names.push(b"b", 10);
        assert_eq!(names.on_asked(b"a"), None);
        assert_eq!(names.on_asked(b"b"), Some(Follows::Listing));
    }

    #[test]
    fn names_are_bounded() {
        let mut names = ListedNames::default();
        for number in 0..(BYTES_MAX as u64 / 250 + 10) {
            names.push(&[b'x'; 250], number);
        }
        assert!(names.bytes.len() <= BYTES_MAX);
    }
}
