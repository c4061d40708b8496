//! A device in memory that loses power and fails on request, for tests.

use super::{
    BLOCK, BlockDevice, DeviceInfo, DeviceStats, Engine, FETCH_BYTES, FETCH_PARTS, Fetch, ReadOp, WriteOp,
    check_range,
};
use nacre_env::sync::Mutex;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// Bytes that are written atomically.
const SECTOR: usize = 512;

/// A fault to inject.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The `n`th write from now fails with EIO after its first sectors; 0 is the next.
    TornWrite(u64),
    /// The `n`th flush from now fails with EIO, and nothing becomes durable.
    Flush(u64),
    /// Reads that touch this block fail with EIO, until it is written.
    UnreadableBlock(u64),
    /// From the `n`th write or flush on, everything fails with EIO, as without power.
    PowerAfter(u64),
    /// Discards are refused.
    NoDiscard,
}

type Sector = Box<[u8; SECTOR]>;

#[derive(Clone, Default)]
struct State {
    /// Content for reads, by sector; missing sectors are zeros.
    current: BTreeMap<u64, Sector>,
    /// Versions of each sector that was written since the last flush: at that time and after each write,
    /// oldest first.
    unsynced: BTreeMap<u64, Vec<Option<Sector>>>,
    faults: Vec<Fault>,
    writes: u64,
    flushes: u64,
    stats: DeviceStats,
    is_off: bool,
    untold_waits: u64,
}

/// See the [module documentation](self).
pub struct MemoryDevice {
    size: u64,
    state: Arc<Mutex<State>>,
}

fn eio() -> io::Error {
    io::Error::from(Errno::IO)
}

impl State {
    fn put(&mut self, sector: u64, data: Option<&[u8]>) {
        let new: Option<Sector> = data.map(|data| Box::new(data.try_into().expect("a sector")));
        let before = match &new {
            Some(new) => self.current.insert(sector, new.clone()),
            None => self.current.remove(&sector),
        };
        let versions = self.unsynced.entry(sector).or_insert_with(|| vec![before]);
        versions.push(new);
    }

    fn read(&mut self, size: u64, batch: &mut [ReadOp<'_>]) -> io::Result<()> {
        if self.is_off {
            return Err(eio());
        }
        for op in batch {
            check_range(size, op.offset, op.buffer.len())?;
            let blocks = op.offset / BLOCK..(op.offset + op.buffer.len() as u64) / BLOCK;
            let is_bad = |fault: &Fault| matches!(fault, Fault::UnreadableBlock(b) if blocks.contains(b));
            if self.faults.iter().any(is_bad) {
                return Err(eio());
            }
            for (at, piece) in op.buffer.chunks_mut(SECTOR).enumerate() {
                match self.current.get(&(op.offset / SECTOR as u64 + at as u64)) {
                    Some(sector) => piece.copy_from_slice(&sector[..]),
                    None => piece.fill(0),
                }
            }
            self.stats.reads += 1;
            self.stats.read_bytes += op.buffer.len() as u64;
        }
        Ok(())
    }

    /// Counts a modifying operation, and fails if the power was cut before it.
    fn power(&mut self) -> io::Result<()> {
        let done = self.writes + self.flushes;
        let gone = self.faults.iter().any(|fault| matches!(fault, Fault::PowerAfter(n) if done >= *n));
        self.is_off |= gone;
        if self.is_off { Err(eio()) } else { Ok(()) }
    }
}

/// Reads as soon as the read is begun: as early as a device may, so later changes are never visible by
/// chance.
struct MemoryFetch {
    size: u64,
    state: Arc<Mutex<State>>,
    memory: Vec<u8>,
    parts: [io::Result<usize>; FETCH_PARTS],
    /// Begun and not awaited: as slow as a device may be.
    is_under_way: [bool; FETCH_PARTS],
}

impl State {
    /// Notes a wait that a real device would impose on its caller.
    fn waits(&mut self) {
        self.untold_waits += u64::from(!nacre_env::blocking::is_blocking());
    }
}

impl Fetch for MemoryFetch {
    fn begin(&mut self, part: usize, ranges: &[(u64, usize)]) {
        let mut rest = &mut self.memory[part * FETCH_BYTES..(part + 1) * FETCH_BYTES];
        let mut batch = Vec::new();
        for &(offset, len) in ranges {
            let (buffer, behind) = rest.split_at_mut(len);
            batch.push(ReadOp { offset, buffer });
            rest = behind;
        }
        let len = ranges.iter().map(|(_, len)| len).sum();
        let mut state = self.state.lock();
        if std::mem::replace(&mut self.is_under_way[part], true) {
            state.waits();
        }
        self.parts[part] = state.read(self.size, &mut batch).map(|()| len);
    }

    fn is_there(&mut self, part: usize) -> bool {
        !self.is_under_way[part]
    }

    fn finish(&mut self, part: usize) -> io::Result<&[u8]> {
        if std::mem::take(&mut self.is_under_way[part]) {
            self.state.lock().waits();
        }
        let len = std::mem::replace(&mut self.parts[part], Ok(0))?;
        Ok(&self.memory[part * FETCH_BYTES..][..len])
    }
}

impl MemoryDevice {
    /// Creates a device of `size` bytes, all zeros.
    pub fn new(size: u64) -> MemoryDevice {
        MemoryDevice { size: size / BLOCK * BLOCK, state: Arc::default() }
    }

    /// Injects a fault; counts begin with this call.
    pub fn order(&self, fault: Fault) {
        let mut state = self.state.lock();
        let (writes, flushes) = (state.writes, state.flushes);
        state.faults.push(match fault {
            Fault::TornWrite(n) => Fault::TornWrite(writes + n),
            Fault::Flush(n) => Fault::Flush(flushes + n),
            Fault::PowerAfter(n) => Fault::PowerAfter(writes + flushes + n),
            other => other,
        });
    }

    /// Removes all faults.
    pub fn repair(&self) {
        let mut state = self.state.lock();
        state.faults.clear();
        state.is_off = false;
    }

    /// Flips one bit of the medium.
    pub fn flip_bit(&self, offset: u64, bit: u8) {
        let mut state = self.state.lock();
        let sector = state.current.entry(offset / SECTOR as u64).or_insert_with(|| Box::new([0; SECTOR]));
        sector[offset as usize % SECTOR] ^= 1 << (bit % 8);
    }

    /// Returns the device as a power cut at this moment may leave it: each sector written since the last
    /// flush holds the version that `choose` picks, given their number; the first is the durable one, the
    /// last the newest.
    pub fn after_power_cut(&self, choose: &mut dyn FnMut(usize) -> usize) -> MemoryDevice {
        let state = self.state.lock();
        let mut current = state.current.clone();
        for (sector, versions) in &state.unsynced {
            match &versions[choose(versions.len()).min(versions.len() - 1)] {
                Some(data) => current.insert(*sector, data.clone()),
                None => current.remove(sector),
            };
        }
        MemoryDevice { size: self.size, state: Arc::new(Mutex::new(State { current, ..State::default() })) }
    }

    /// Returns a copy without faults, which shares nothing with this one.
    pub fn copy(&self) -> MemoryDevice {
        let state = State { faults: Vec::new(), is_off: false, ..self.state.lock().clone() };
        MemoryDevice { size: self.size, state: Arc::new(Mutex::new(state)) }
    }

    /// Returns the bytes in use: those that were written and not discarded.
    pub fn used_bytes(&self) -> u64 {
        self.state.lock().current.len() as u64 * SECTOR as u64
    }

    /// Returns the number of waits for fetches, and for their memory, by threads that had not reported that
    /// they wait ([`nacre_env::blocking`]).
    pub fn untold_waits(&self) -> u64 {
        self.state.lock().untold_waits
    }

    /// Returns the number of writes and flushes so far.
    pub fn operations(&self) -> u64 {
        let state = self.state.lock();
        state.writes + state.flushes
    }
}

impl BlockDevice for MemoryDevice {
    fn read(&self, batch: &mut [ReadOp<'_>]) -> io::Result<()> {
        self.state.lock().read(self.size, batch)
    }

    fn fetcher(&self) -> Option<Box<dyn Fetch>> {
        self.state.lock().waits();
        let memory = vec![0; FETCH_PARTS * FETCH_BYTES];
        Some(Box::new(MemoryFetch {
            size: self.size,
            state: self.state.clone(),
            memory,
            parts: [const { Ok(0) }; FETCH_PARTS],
            is_under_way: [false; FETCH_PARTS],
        }))
    }

    fn write(&self, batch: &[WriteOp<'_>]) -> io::Result<()> {
        let mut state = self.state.lock();
        for op in batch {
            check_range(self.size, op.offset, op.data.len())?;
            state.power()?;
            let number = state.writes;
            state.writes += 1;
            let torn = state.faults.contains(&Fault::TornWrite(number));
            let sectors = op.data.len() / SECTOR;
            let kept = if torn { sectors.div_ceil(2) - 1 } else { sectors };
            for (at, piece) in op.data.chunks(SECTOR).enumerate().take(kept) {
                state.put(op.offset / SECTOR as u64 + at as u64, Some(piece));
            }
            if torn {
                return Err(eio());
            }
            let blocks = op.offset / BLOCK..(op.offset + op.data.len() as u64) / BLOCK;
            state.faults.retain(|fault| !matches!(fault, Fault::UnreadableBlock(b) if blocks.contains(b)));
            state.stats.writes += 1;
            state.stats.written_bytes += op.data.len() as u64;
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        state.power()?;
        let number = state.flushes;
        state.flushes += 1;
        state.stats.flushes += 1;
        if state.faults.contains(&Fault::Flush(number)) {
            return Err(eio());
        }
        state.unsynced.clear();
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        check_range(self.size, offset, len as usize)?;
        let mut state = self.state.lock();
        if state.is_off {
            return Err(eio());
        }
        if state.faults.contains(&Fault::NoDiscard) {
            return Err(io::Error::from(Errno::OPNOTSUPP));
        }
        for sector in offset / SECTOR as u64..(offset + len) / SECTOR as u64 {
            if state.current.contains_key(&sector) {
                state.put(sector, None);
            }
        }
        state.stats.discarded_bytes += len;
        Ok(())
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: "memory".to_owned(),
            is_raw: false,
            is_flash: true,
            is_allocated: false,
            engine: Engine::Memory,
        }
    }

    fn stats(&self) -> DeviceStats {
        self.state.lock().stats
    }
}
