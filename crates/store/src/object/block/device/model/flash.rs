//! Flash: pages that are written once, blocks that are erased as a whole, and garbage collection.
//!
//! Pages of 4 KiB go to the open block one after the other, striped over all channels (a block here is one of
//! each channel, as drives stripe them). Rewriting a page invalidates its old place. When few erased blocks
//! are left, garbage collection takes the block with the fewest pages in use: those are copied, and it is
//! erased; callers wait for that like for anything else on the channels. The drive considers a page used
//! until it is rewritten or discarded: space that a file system freed without a discard is copied again and
//! again.

use super::{Kind, Model, number, parts, put, some_bytes};
use crate::object::block::device::BLOCK;
use crate::object::simulated::duration;
use std::fmt;
use std::time::Duration;

#[cfg(test)]
mod tests;

/// Marks the absence of a page.
const NONE: u32 = u32::MAX;
/// Number of erased blocks below which garbage collection starts: one each for new data and for copies, and
/// one in reserve.
const ERASED_MIN: usize = 3;

/// Times and sizes of flash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlashSpec {
    /// Channels that work in parallel.
    pub channels: u64,
    /// Time to read a page.
    pub read: Duration,
    /// Time to write a page.
    pub program: Duration,
    /// Time to erase a block of a channel.
    pub erase: Duration,
    /// Time of a command that reads or writes nothing, such as a discard.
    pub command: Duration,
    /// Bytes that are erased together, over all channels.
    pub block: u64,
    /// Over-provisioning, in percent of the device's size.
    pub spare: u64,
    /// All pages have been written before.
    pub is_full: bool,
}

impl FlashSpec {
    pub(super) fn parse(text: &str) -> Result<FlashSpec, ()> {
        let mut spec = FlashSpec {
            channels: 8,
            read: Duration::from_micros(50),
            program: Duration::from_micros(200),
            erase: Duration::from_millis(2),
            command: Duration::from_micros(20),
            block: 1 << 20,
            spare: 7,
            is_full: false,
        };
        parts(text, |name, value| match name {
            "channels" => put(&mut spec.channels, number(value, 256)),
            "read" => put(&mut spec.read, duration(value)),
            "program" => put(&mut spec.program, duration(value)),
            "erase" => put(&mut spec.erase, duration(value)),
            "command" => put(&mut spec.command, duration(value)),
            "block" => put(&mut spec.block, some_bytes(value).filter(|bytes| bytes.is_multiple_of(BLOCK))),
            "spare" => put(&mut spec.spare, number(value, 100)),
            "full" => {
                put(&mut spec.is_full, ["0", "1"].iter().position(|known| *known == value).map(|at| at == 1))
            }
            _ => None,
        })?;
        Ok(spec)
    }
}

impl fmt::Display for FlashSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |time: Duration| time.as_micros();
        write!(
            f,
            "flash:channels={}:read={}us:program={}us:erase={}us:command={}us:block={}:spare={}:full={}",
            self.channels,
            us(self.read),
            us(self.program),
            us(self.erase),
            us(self.command),
            self.block,
            self.spare,
            u8::from(self.is_full)
        )
    }
}

/// Counters of a flash model.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlashStats {
    /// Pages that callers wrote.
    pub written: u64,
    /// Pages that were copied by garbage collection.
    pub copied: u64,
    /// Blocks that were erased.
    pub erased: u64,
    /// Pages in use that were discarded.
    pub discarded: u64,
    /// Pages in use.
    pub used: u64,
}

impl FlashStats {
    /// Returns the write amplification since `before`: pages written in all for each one that a caller wrote.
    pub fn amplification(&self, before: &FlashStats) -> f64 {
        let (written, copied) = (self.written - before.written, self.copied - before.copied);
        if written == 0 { 1.0 } else { (written + copied) as f64 / written as f64 }
    }
}

/// A block that accepts pages.
#[derive(Clone, Copy)]
struct Open {
    block: usize,
    next: usize,
}

pub(super) struct Flash {
    spec: FlashSpec,
    pages_per_block: usize,
    /// Place of each page of the device.
    places: Vec<u32>,
    /// Page of the device at each place.
    holds: Vec<u32>,
    /// Pages in use of each block.
    in_use: Vec<u32>,
    erased: Vec<usize>,
    /// Open blocks for data of callers, and for copies.
    open: [Open; 2],
    /// Time at which each channel becomes idle.
    free_at: Vec<Duration>,
    stats: FlashStats,
}

impl Flash {
    pub(super) fn new(spec: FlashSpec, size: u64) -> Flash {
        let pages = (size / BLOCK) as usize;
        let pages_per_block = (spec.block / BLOCK).max(1) as usize;
        let spare = pages * spec.spare as usize / 100;
        let blocks = (pages + spare).div_ceil(pages_per_block) + ERASED_MIN + 1;
        let mut erased: Vec<usize> = (0..blocks).rev().collect();
        let mut open = || Open { block: erased.pop().unwrap_or(0), next: 0 };
        let open = [open(), open()];
        let mut flash = Flash {
            spec,
            pages_per_block,
            places: vec![NONE; pages],
            holds: vec![NONE; blocks * pages_per_block],
            in_use: vec![0; blocks],
            erased,
            open,
            free_at: vec![Duration::ZERO; spec.channels as usize],
            stats: FlashStats::default(),
        };
        if spec.is_full {
            (0..pages).for_each(|page| {
                flash.put(page, 0);
            });
            flash.stats = FlashStats { used: flash.stats.used, ..FlashStats::default() };
            flash.free_at.fill(Duration::ZERO);
        }
        flash
    }

    fn forget(&mut self, page: usize) -> bool {
        let place = std::mem::replace(&mut self.places[page], NONE);
        if place == NONE {
            return false;
        }
        self.holds[place as usize] = NONE;
        self.in_use[place as usize / self.pages_per_block] -= 1;
        self.stats.used -= 1;
        true
    }

    /// Assigns a page to the next place of an open block, and returns the channel of that place.
    fn put(&mut self, page: usize, which: usize) -> usize {
        self.forget(page);
        if self.open[which].next == self.pages_per_block {
            let block = self.erased.pop().expect("blocks are cleared before the last one is taken");
            self.open[which] = Open { block, next: 0 };
        }
        let Open { block, next } = self.open[which];
        self.open[which].next += 1;
        let place = block * self.pages_per_block + next;
        self.places[page] = place as u32;
        self.holds[place] = page as u32;
        self.in_use[block] += 1;
        self.stats.used += 1;
        place % self.free_at.len()
    }

    fn work(&mut self, channel: usize, now: Duration, time: Duration) -> Duration {
        self.free_at[channel] = self.free_at[channel].max(now) + time;
        self.free_at[channel]
    }

    /// Collects garbage until enough blocks are erased.
    fn clear(&mut self, now: Duration) {
        while self.erased.len() < ERASED_MIN {
            let is_open = |block: &usize| self.open.iter().any(|open| open.block == *block);
            let is_erased = |block: &usize| self.erased.contains(block);
            let blocks = (0..self.in_use.len()).filter(|block| !is_open(block) && !is_erased(block));
            let Some(victim) = blocks.min_by_key(|block| self.in_use[*block]) else { return };
            // Then the remaining places are in blocks that are open or erased.
            if self.in_use[victim] as usize == self.pages_per_block {
                return;
            }
            let first = victim * self.pages_per_block;
            for place in first..first + self.pages_per_block {
                let page = self.holds[place];
                if page == NONE {
                    continue;
                }
                self.work(place % self.free_at.len(), now, self.spec.read);
                let channel = self.put(page as usize, 1);
                self.work(channel, now, self.spec.program);
                self.stats.copied += 1;
            }
            (0..self.free_at.len()).for_each(|channel| {
                self.work(channel, now, self.spec.erase);
            });
            self.stats.erased += 1;
            self.erased.insert(0, victim);
        }
    }
}

impl Model for Flash {
    fn submit(&mut self, now: Duration, kind: Kind, offset: u64, len: u64) -> Duration {
        let pages = self.places.len();
        let (first, end) = ((offset / BLOCK) as usize, (offset.saturating_add(len).div_ceil(BLOCK)) as usize);
        let range = first.min(pages)..end.min(pages);
        let mut done = now + self.spec.command;
        match kind {
            Kind::Read => {
                for page in range {
                    let place = self.places[page];
                    if place != NONE {
                        let channel = place as usize % self.free_at.len();
                        done = done.max(self.work(channel, now, self.spec.read));
                    }
                }
            }
            Kind::Write => {
                for page in range {
                    self.clear(now);
                    let channel = self.put(page, 0);
                    self.stats.written += 1;
                    done = done.max(self.work(channel, now, self.spec.program));
                }
            }
            Kind::Discard => {
                let channel = first % self.free_at.len();
                for page in range {
                    self.stats.discarded += u64::from(self.forget(page));
                }
                done = self.work(channel, now, self.spec.command);
            }
        }
        done
    }

    fn flash(&self) -> Option<FlashStats> {
        Some(self.stats)
    }
}
