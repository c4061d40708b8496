//! The data of a file: its contents since the last sync.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Contents of a file at one time. The number identifies it: equal numbers, equal bytes.
#[derive(Clone, Debug)]
struct Version {
    number: u64,
    bytes: Arc<Vec<u8>>,
}

/// See the [module documentation](self).
#[derive(Clone, Debug)]
pub(crate) struct Content {
    /// Contents since the last sync, in order; the last is the newest.
    versions: Vec<Version>,
    /// Data was lost: each byte, and the size, is that of one of the versions.
    is_open: bool,
    /// Largest size so far.
    largest: u64,
    /// Nothing is known: an MDT has lost the size or a part of the layout.
    is_any: bool,
    /// The size is one that the file has had: a report of an earlier one may have come late.
    is_loose: bool,
    /// Contents that a further loss can bring back, while one is open.
    before: Vec<Version>,
}

impl Default for Content {
    fn default() -> Content {
        Content {
            versions: vec![Version { number: 0, bytes: Arc::default() }],
            is_open: false,
            largest: 0,
            is_any: false,
            is_loose: false,
            before: Vec::new(),
        }
    }
}

impl Hash for Content {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.versions.iter().for_each(|version| version.number.hash(state));
        (self.is_open, self.is_any, self.is_loose).hash(state);
    }
}

/// Versions that are kept at most; older ones are forgotten from the middle, where they allow least.
const VERSIONS_MAX: usize = 64;

impl Content {
    fn newest(&self) -> &Version {
        self.versions.last().expect("there is always one")
    }

    /// Returns the size, if it is known.
    pub(crate) fn len(&self) -> Option<u64> {
        (!self.is_open).then(|| self.newest().bytes.len() as u64)
    }

    /// Changes the data; `change` describes the change in a number.
    fn change(&mut self, change: u64, edit: impl Fn(&mut Vec<u8>)) {
        if self.is_open {
            self.before.extend(self.versions.iter().cloned());
            self.before.truncate(VERSIONS_MAX);
            // Each possible content changes.
            for version in &mut self.versions {
                edit(Arc::make_mut(&mut version.bytes));
                version.number = version.number.wrapping_mul(31).wrapping_add(change);
                self.largest = self.largest.max(version.bytes.len() as u64);
            }
            return;
        }
        let mut new = self.newest().clone();
        edit(Arc::make_mut(&mut new.bytes));
        new.number = new.number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(change);
        self.largest = self.largest.max(new.bytes.len() as u64);
        if self.versions.len() == VERSIONS_MAX {
            self.versions.remove(VERSIONS_MAX / 2);
        }
        self.versions.push(new);
    }

    pub(crate) fn write(&mut self, offset: u64, len: u64, byte: u8) {
        let (from, to) = (offset as usize, (offset + len) as usize);
        self.change(offset << 24 ^ len << 8 ^ u64::from(byte), |bytes| {
            if bytes.len() < to {
                bytes.resize(to, 0);
            }
            bytes[from..to].fill(byte);
        });
    }

    pub(crate) fn append(&mut self, len: u64, byte: u8) {
        // Where the end is follows from the size.
        self.is_any |= self.is_loose;
        if self.is_open {
            // The end may be that of another version than the bytes.
            let longest = self.versions.iter().map(|version| version.bytes.len()).max().unwrap_or(0);
            for at in 0..self.versions.len() {
                let mut longer = self.versions[at].clone();
                if longer.bytes.len() < longest && self.versions.len() < VERSIONS_MAX {
                    Arc::make_mut(&mut longer.bytes).resize(longest, 0);
                    longer.number ^= 1 << 61;
                    self.versions.push(longer);
                }
            }
        }
        self.change(1 << 63 ^ len << 8 ^ u64::from(byte), |bytes| {
            bytes.resize(bytes.len() + len as usize, byte);
        });
    }

    pub(crate) fn resize(&mut self, size: u64) {
        self.change(1 << 62 ^ size, |bytes| bytes.resize(size as usize, 0));
    }

    /// Records that a change may have reached the file in part.
    pub(crate) fn maybe(&mut self, change: impl Fn(&mut Content)) {
        let mut changed = self.clone();
        change(&mut changed);
        self.largest = changed.largest;
        self.versions.extend(changed.versions);
        let excess = self.versions.len().saturating_sub(VERSIONS_MAX);
        self.versions.drain(1..=excess);
        // Which parts of it did is not known.
        (self.is_open, self.is_any) = (true, true);
    }

    /// Makes the newest content durable.
    pub(crate) fn sync(&mut self) {
        if !self.is_open {
            self.versions.drain(..self.versions.len() - 1);
        }
    }

    /// Loses what was not synced.
    pub(crate) fn lose(&mut self) {
        self.versions.append(&mut self.before);
        self.is_open |= self.versions.len() > 1;
    }

    /// Makes the size one of those that the file has had.
    pub(crate) fn loosen(&mut self) {
        self.is_loose = true;
    }

    /// Loses what was not synced, sizes and layouts included.
    pub(crate) fn lose_all(&mut self) {
        self.lose();
        self.is_any |= self.is_open;
    }

    /// Makes the content unknown.
    pub(crate) fn doubt(&mut self) {
        (self.is_open, self.is_any) = (true, true);
    }

    /// Returns true if the content is known and durable.
    pub(crate) fn is_sure(&self) -> bool {
        self.versions.len() == 1 && !self.is_open && !self.is_any
    }

    fn byte_is_possible(&self, at: usize, byte: u8) -> bool {
        self.versions.iter().any(|version| version.bytes.get(at).copied().unwrap_or(0) == byte)
    }

    /// Checks bytes that were read at `offset`, of `wanted`; what is possible shrinks to them.
    pub(crate) fn read(&mut self, offset: u64, wanted: u64, found: &[u8]) -> Result<(), String> {
        let from = offset as usize;
        if self.is_any {
            return Ok(());
        }
        if !self.is_open && self.is_loose {
            let expected = |at: usize| self.newest().bytes.get(from + at).copied().unwrap_or(0);
            return match found.iter().enumerate().find(|(at, byte)| **byte != expected(*at)) {
                Some((at, byte)) => {
                    Err(format!("byte {} is {byte} and should be {}", from + at, expected(at)))
                }
                None => Ok(()),
            };
        }
        if !self.is_open {
            let all = &self.newest().bytes;
            let start = from.min(all.len());
            let end = (from + wanted as usize).min(all.len()).max(start);
            return describe(&all[start..end], found);
        }
        // Objects of several servers lose their ends independently.
        if (from + found.len()) as u64 > self.largest.max(offset) {
            return Err(format!("{} bytes are more than the file ever had", found.len()));
        }
        match found.iter().enumerate().find(|(at, byte)| !self.byte_is_possible(from + at, **byte)) {
            Some((at, byte)) => {
                Err(format!("byte {} is {byte}, as in no version since the last sync", from + at))
            }
            None => {
                for version in &mut self.versions {
                    let bytes = Arc::make_mut(&mut version.bytes);
                    let end = bytes.len().min(from + found.len());
                    if from < end {
                        bytes[from..end].copy_from_slice(&found[..end - from]);
                    }
                }
                Ok(())
            }
        }
    }

    /// Checks a size; what is possible shrinks to it.
    pub(crate) fn check_size(&mut self, size: u64) -> Result<(), String> {
        let sizes = || self.versions.iter().map(|version| version.bytes.len() as u64);
        match self.len() {
            _ if self.is_any || self.is_loose && size <= self.largest => Ok(()),
            Some(len) if len == size => Ok(()),
            Some(len) => Err(format!("size {len} expected")),
            // Objects of several servers lose their ends independently.
            None if size <= self.largest => Ok(()),
            None => Err(format!("a size of {:?} expected", sizes().collect::<Vec<_>>())),
        }
    }
}

fn describe(expected: &[u8], found: &[u8]) -> Result<(), String> {
    if expected == found {
        return Ok(());
    }
    let at = expected.iter().zip(found).position(|(one, other)| one != other);
    Err(match at {
        Some(at) => format!("byte {at} of the answer is {} and should be {}", found[at], expected[at]),
        None => format!("{} bytes expected, not {}", expected.len(), found.len()),
    })
}
