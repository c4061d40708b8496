//! Random operations on one file, compared with a model in memory.
//!
//! The operations come from a seed, so that a failure is reproducible; the message contains the last ones.
//! All ways to access a file are mixed: read and write calls with and without O_DIRECT, memory maps,
//! truncation, holes, preallocation, copies within the file, and reopening.

use fastrand::Rng;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

/// Alignment of O_DIRECT in bytes.
const DIRECT: usize = 4096;

/// Parameters of the operations.
#[derive(Debug, Clone)]
pub struct Exercise {
    /// Seed of the random sequence.
    pub seed: u64,
    /// Number of operations.
    pub operations: usize,
    /// Largest size of the file in bytes.
    pub size_max: usize,
    /// Largest read or write in bytes.
    pub length_max: usize,
    /// Use shared memory maps.
    pub map: bool,
    /// Use a second descriptor with O_DIRECT.
    pub direct: bool,
    /// Further names of the file, such as paths on several mounts; each operation uses another one. It is
    /// opened before and closed after the operation, so that close-to-open consistency is sufficient, unless
    /// `stay_open`.
    pub aliases: Vec<PathBuf>,
    /// All names stay open, and stores to maps are not synced: a change through one name must be visible
    /// through the others at once.
    pub stay_open: bool,
}

impl Exercise {
    /// Returns `operations` operations of all kinds, on a file of up to 1 MiB.
    pub fn new(seed: u64, operations: usize) -> Exercise {
        Exercise {
            seed,
            operations,
            size_max: 1 << 20,
            length_max: 96 << 10,
            map: true,
            direct: true,
            aliases: Vec::new(),
            stay_open: false,
        }
    }

    /// Creates the file at `path`, runs the operations, and compares the whole file at the end.
    ///
    /// # Panics
    ///
    /// If the file differs from the model or a call fails, with the last operations.
    pub fn run(&self, path: &Path) {
        let mut state = State {
            plan: self,
            random: Rng::with_seed(self.seed),
            model: Vec::new(),
            handles: Vec::new(),
            current: 0,
            path: path.to_owned(),
            history: VecDeque::new(),
        };
        File::create_new(path).unwrap_or_else(|error| panic!("create {}: {error}", path.display()));
        for number in 0..self.operations {
            let operation = state.choose();
            state.history.push_back(format!("{number}: {operation:?}, size {}", state.model.len()));
            if state.history.len() > 24 {
                state.history.pop_front();
            }
            if let Err(message) = state.perform(&operation) {
                let history = Vec::from(state.history).join("\n");
                panic!("seed {}: {operation:?}: {message}; the last operations:\n{history}", self.seed);
            }
        }
        let content = std::fs::read(path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()));
        assert!(content == state.model, "seed {}: the file differs from the model at the end", self.seed);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    start: usize,
    length: usize,
}

impl Range {
    fn end(self) -> usize {
        self.start + self.length
    }

    fn aligned(self) -> Range {
        Range { start: self.start / DIRECT * DIRECT, length: self.length.next_multiple_of(DIRECT) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Operation {
    Read { range: Range, direct: bool },
    Write { range: Range, direct: bool },
    MapRead(Range),
    MapWrite(Range),
    Truncate(usize),
    Punch(Range),
    Zero(Range),
    Allocate(Range),
    Copy { from: Range, to: usize },
    Sync,
    Reopen,
    Size,
}

struct Handles {
    buffered: File,
    direct: Option<File>,
}

struct State<'a> {
    plan: &'a Exercise,
    random: Rng,
    model: Vec<u8>,
    /// Descriptors for each name, or for the only one.
    handles: Vec<Handles>,
    current: usize,
    path: PathBuf,
    history: VecDeque<String>,
}

impl State<'_> {
    fn choose(&mut self) -> Operation {
        let range = self.range();
        let direct = self.plan.direct && self.random.bool();
        let io_range = if direct { range.aligned() } else { range };
        match self.random.usize(..24) {
            0..6 => Operation::Read { range: io_range, direct },
            6..12 => Operation::Write { range: io_range, direct },
            12..14 if self.plan.map => Operation::MapRead(range),
            14..16 if self.plan.map => Operation::MapWrite(range),
            16 => Operation::Truncate(self.random.usize(..self.plan.size_max)),
            17 => Operation::Punch(range),
            18 => Operation::Zero(range),
            19 => Operation::Allocate(range),
            20 => Operation::Copy { from: range, to: self.random.usize(..self.plan.size_max) },
            21 => Operation::Sync,
            22 => Operation::Reopen,
            _ => Operation::Size,
        }
    }

    /// Returns a range that is within the largest size, also after alignment.
    fn range(&mut self) -> Range {
        let start = self.random.usize(..self.plan.size_max);
        let most = self.plan.length_max.min(self.plan.size_max.next_multiple_of(DIRECT) - start);
        Range { start, length: 1 + self.random.usize(..most) }
    }

    fn perform(&mut self, operation: &Operation) -> Result<(), String> {
        let names = self.plan.aliases.len() + 1;
        if self.handles.is_empty() || *operation == Operation::Reopen {
            self.handles.clear();
            let name = self.random.usize(..names);
            let wanted = if self.plan.stay_open { 0..names } else { name..name + 1 };
            for name in wanted {
                self.handles.push(self.open(name).map_err(|error| format!("open: {error}"))?);
            }
        }
        self.current = self.random.usize(..self.handles.len());
        let result = self.apply(operation).map_err(|error| format!("name {}: {error}", self.current));
        if names > 1 && !self.plan.stay_open {
            self.handles.clear();
        }
        result
    }

    fn open(&self, name: usize) -> io::Result<Handles> {
        let path = self.plan.aliases.get(name).unwrap_or(&self.path);
        let open = |flags| OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
        let direct = if self.plan.direct { Some(open(OFlags::DIRECT.bits() as i32)?) } else { None };
        Ok(Handles { buffered: open(0)?, direct })
    }

    fn apply(&mut self, operation: &Operation) -> io::Result<()> {
        match *operation {
            Operation::Read { range, direct } => self.read(range, direct),
            Operation::Write { range, direct } => {
                let mut block = Block::new(range.length);
                fill(&mut self.random, block.bytes());
                self.file(direct).write_all_at(block.bytes(), range.start as u64)?;
                self.store(range, block.bytes());
                Ok(())
            }
            Operation::MapRead(range) => self.map_read(range),
            Operation::MapWrite(range) => self.map_write(range),
            Operation::Truncate(size) => {
                self.file(false).set_len(size as u64)?;
                self.model.resize(size, 0);
                Ok(())
            }
            Operation::Punch(range) => {
                self.allocate(range, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE)?;
                self.blank(range);
                Ok(())
            }
            Operation::Zero(range) => self.unless_unsupported(range, FallocateFlags::ZERO_RANGE, true),
            Operation::Allocate(range) => self.unless_unsupported(range, FallocateFlags::empty(), false),
            Operation::Copy { from, to } => self.copy(from, to),
            Operation::Sync => self.file(false).sync_all(),
            Operation::Reopen | Operation::Size => self.compare_size(),
        }
    }

    fn handles(&self) -> &Handles {
        &self.handles[self.current]
    }

    fn file(&self, direct: bool) -> &File {
        match (&self.handles().direct, direct) {
            (Some(file), true) => file,
            _ => &self.handles().buffered,
        }
    }

    /// Applies a write to the model.
    fn store(&mut self, range: Range, bytes: &[u8]) {
        if self.model.len() < range.end() {
            self.model.resize(range.end(), 0);
        }
        self.model[range.start..range.end()].copy_from_slice(bytes);
    }

    /// Zeroes bytes of the model without a change of its size.
    fn blank(&mut self, range: Range) {
        let end = range.end().min(self.model.len());
        if range.start < end {
            self.model[range.start..end].fill(0);
        }
    }

    fn read(&self, range: Range, direct: bool) -> io::Result<()> {
        let mut block = Block::new(range.length);
        let mut length = 0;
        while length < range.length {
            let rest = &mut block.bytes()[length..];
            match self.file(direct).read_at(rest, (range.start + length) as u64)? {
                0 => break,
                count => length += count,
            }
            // The tail of the file is less than a block, and the next read would be unaligned.
            if direct && !length.is_multiple_of(DIRECT) {
                break;
            }
        }
        let expected = self.expected(range);
        same(&block.bytes()[..length], expected, range.start)
    }

    fn expected(&self, range: Range) -> &[u8] {
        let start = range.start.min(self.model.len());
        &self.model[start..range.end().min(self.model.len())]
    }

    fn map_read(&self, range: Range) -> io::Result<()> {
        let expected = self.expected(range);
        if expected.is_empty() {
            return Ok(());
        }
        self.compare_size()?;
        let map = Map::new(self.file(false), range.start + expected.len())?;
        same(&map.bytes()[range.start..], expected, range.start)
    }

    fn map_write(&mut self, range: Range) -> io::Result<()> {
        let end = range.end().min(self.model.len());
        if range.start >= end {
            return Ok(());
        }
        let mut bytes = vec![0; end - range.start];
        fill(&mut self.random, &mut bytes);
        self.compare_size()?;
        let mut map = Map::new(self.file(false), end)?;
        map.bytes_mut()[range.start..end].copy_from_slice(&bytes);
        if !self.plan.stay_open {
            map.sync()?;
        }
        self.model[range.start..end].copy_from_slice(&bytes);
        Ok(())
    }

    fn allocate(&self, range: Range, flags: FallocateFlags) -> io::Result<()> {
        rustix::fs::fallocate(self.file(false), flags, range.start as u64, range.length as u64)?;
        Ok(())
    }

    /// Preallocates or zeroes, which grows the file; accepts a file system that does not support it.
    fn unless_unsupported(&mut self, range: Range, flags: FallocateFlags, zero: bool) -> io::Result<()> {
        match self.allocate(range, flags) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::OPNOTSUPP) => return Ok(()),
            other => other?,
        }
        if self.model.len() < range.end() {
            self.model.resize(range.end(), 0);
        }
        if zero {
            self.blank(range);
        }
        Ok(())
    }

    fn copy(&mut self, from: Range, to: usize) -> io::Result<()> {
        let length = from.length.min(self.plan.size_max - to);
        let apart = from.start + length <= to || to + length <= from.start;
        let source = self.expected(Range { start: from.start, length }).to_vec();
        if !apart || source.is_empty() {
            return Ok(());
        }
        // The kernel limits a copy to its cached size.
        self.compare_size()?;
        let file = self.file(false);
        let (mut input, mut output) = (from.start as u64, to as u64);
        let mut left = source.len();
        while left > 0 {
            match rustix::fs::copy_file_range(file, Some(&mut input), file, Some(&mut output), left)? {
                0 => return Err(io::Error::other(format!("copy ended {left} bytes early"))),
                count => left -= count,
            }
        }
        self.store(Range { start: to, length: source.len() }, &source);
        Ok(())
    }

    fn compare_size(&self) -> io::Result<()> {
        let size = self.file(false).metadata()?.len();
        match size == self.model.len() as u64 {
            true => Ok(()),
            false => Err(io::Error::other(format!("size is {size} instead of {}", self.model.len()))),
        }
    }
}

fn same(found: &[u8], expected: &[u8], start: usize) -> io::Result<()> {
    if found == expected {
        return Ok(());
    }
    let (found_length, expected_length) = (found.len(), expected.len());
    if found_length != expected_length {
        let message = format!("got {found_length} bytes at {start} instead of {expected_length}");
        return Err(io::Error::other(message));
    }
    let first = found.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(0);
    let wrong = found.iter().zip(expected).filter(|(a, b)| a != b).count();
    let (got, want) = (found[first], expected[first]);
    let at = start + first;
    Err(io::Error::other(format!("byte {at} is {got:#x} instead of {want:#x}; {wrong} bytes differ")))
}

/// Memory that is aligned to pages.
struct Block {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Block {
    fn new(length: usize) -> Block {
        let memory = vec![0; length + DIRECT];
        let start = memory.as_ptr().align_offset(DIRECT);
        Block { memory, start, length }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }
}

/// A shared map of the first bytes of a file; unmapped when dropped.
pub struct Map {
    address: *mut std::ffi::c_void,
    length: usize,
}

impl Map {
    /// Maps the first `length` bytes, which must exist: a touch beyond the end of the file is a SIGBUS.
    ///
    /// # Errors
    ///
    /// ENODEV where files cannot be mapped, EINVAL for a length of 0.
    pub fn new(file: &File, length: usize) -> io::Result<Map> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new map at an address of the kernel's choice overlaps nothing.
        let address =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, file, 0) }?;
        Ok(Map { address, length })
    }

    /// Returns the current content of the map.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the map has `length` bytes for as long as `self` lives; tests write to it through `self`
        // only.
        unsafe { std::slice::from_raw_parts(self.address.cast(), self.length) }
    }

    /// Returns the content for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.address.cast(), self.length) }
    }

    /// Writes changes of the map to the file.
    ///
    /// # Errors
    ///
    /// EIO if the file system failed to store them.
    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: address and length are those of this map.
        Ok(unsafe { rustix::mm::msync(self.address, self.length, MsyncFlags::SYNC) }?)
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: address and length are those of this map, which is not used afterwards.
        let _ = unsafe { rustix::mm::munmap(self.address, self.length) };
    }
}

/// Fills with random bytes other than zero, so that data and holes can be distinguished.
pub fn fill(random: &mut Rng, bytes: &mut [u8]) {
    bytes.fill_with(|| random.u8(1..));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Run;

    #[test]
    fn a_correct_file_system_passes() {
        let run = Run::new();
        // The type of the file system does not matter: tmpfs and ext4 both support all operations.
        Exercise::new(1, 2_000).run(&run.directory().join("file"));
    }

    #[test]
    fn an_alias_is_another_name_of_the_file() {
        let run = Run::new();
        let path = run.directory().join("file");
        let alias = run.directory().join("alias");
        std::os::unix::fs::symlink(&path, &alias).expect("symlink");
        let exercise = Exercise { aliases: vec![alias], ..Exercise::new(2, 500) };
        exercise.run(&path);
    }

    #[test]
    #[should_panic(expected = "size is")]
    fn a_wrong_size_is_found_and_the_operations_are_told() {
        let run = Run::new();
        let path = run.directory().join("file");
        let exercise = Exercise::new(3, 0);
        exercise.run(&path);
        let mut state = State {
            plan: &exercise,
            random: Rng::with_seed(3),
            model: vec![1, 2, 3],
            handles: Vec::new(),
            current: 0,
            path,
            history: VecDeque::new(),
        };
        if let Err(message) = state.perform(&Operation::Size) {
            panic!("{message}");
        }
    }
}
