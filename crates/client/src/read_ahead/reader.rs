//! The access pattern of one open file, and what to fetch because of it. Pure: a read goes in, a plan comes
//! out.
//!
//! Offsets and lengths are bytes, ranges half-open. Patterns, tried in this order:
//!
//! | pattern | seen when | fetched |
//! | --- | --- | --- |
//! | whole | second read of a file of at most [`Limits::whole_bytes`] | the rest of it, once |
//! | sequential | a read begins near the end of the last one, twice | a window behind the read |
//! | backward | a read ends where the last one began, twice | a window before the read |
//! | stride | distance and length of reads the same, twice | the next pieces, a window of wanted bytes |
//!
//! Any other sequence is random access: the window closes and fetched data is dropped.
//!
//! The window begins with the next read, one RPC at least, and doubles whenever a reader had to wait for a
//! fetch, up to the bytes read in the run so far, or by one RPC: a window that already hides the latency of
//! the servers would only take memory if it grew, and the data fetched in vain at the end of a run is bounded
//! by what was read in it.

use std::ops::Range;

/// Distance from the end of the last read at which a read still follows it; 8 pages, as in Lustre.
const LOOSE: u64 = 8 * 4096;
/// The same for reads from [`LARGE`] bytes on: the kernel sends pieces of large reads at once, and they
/// arrive in any order.
const LOOSE_LARGE: u64 = 2 << 20;
/// Smallest read that counts as a piece of a larger one.
const LARGE: u64 = 128 << 10;
/// Reads that follow one pattern before it is used.
const SURE: u32 = 2;
/// Pieces of a stride that are fetched ahead, at most.
const PIECES_MAX: u32 = 64;

/// Bounds of a window, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Size and alignment of one fetch; more than 0.
    pub rpc_bytes: u64,
    /// Largest window of one open file.
    pub window_bytes: u64,
    /// Files of this size or less are fetched whole.
    pub whole_bytes: u64,
}

/// The access pattern of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pattern {
    /// No known pattern (yet).
    #[default]
    Random,
    /// Ascending offsets, without gaps.
    Sequential,
    /// Descending offsets, without gaps.
    Backward,
    /// Pieces of the same length at the same distance.
    Stride,
    /// A small file that is read whole.
    Whole,
}

/// What to fetch because of a read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// The access pattern.
    pub pattern: Pattern,
    /// First range to fetch; empty for none.
    pub first: Range<u64>,
    /// Distance at which more ranges of the same length follow.
    pub step: u64,
    /// Number of ranges, including the first one.
    pub count: u32,
    /// True if the pattern has just ended: data fetched for it is useless.
    pub reset: bool,
    /// True if the plan reaches the end of the file.
    pub to_end: bool,
}

impl Plan {
    /// Returns the ranges to fetch.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        (0..u64::from(self.count)).map(|index| {
            let shift = index * self.step;
            self.first.start + shift..self.first.end + shift
        })
    }

    fn one(pattern: Pattern, range: Range<u64>) -> Plan {
        Plan { pattern, count: u32::from(!range.is_empty()), first: range, ..Plan::default() }
    }
}

/// State of the access pattern of one open file.
#[derive(Debug, Default)]
pub struct Reader {
    pattern: Pattern,
    /// Range of the last read.
    last: Range<u64>,
    /// Number of reads in a row that followed the pattern.
    run: u32,
    backward_run: u32,
    stride_run: u32,
    /// Distance between the starts of the last two reads.
    step: u64,
    /// Bytes to have fetched beyond a read; 0 if the window is closed.
    window: u64,
    /// Offset up to which data is fetched (backward: down to which).
    fetched: u64,
    /// Offset from which on there is no gap: reads larger than the window leave some.
    gapless: u64,
    /// Bytes read in this run.
    run_bytes: u64,
    /// True if a reader waited for a fetch since the window last grew.
    waited: bool,
    /// True if the file was fetched to its end already.
    whole: bool,
}

impl Reader {
    /// Records that a reader had to wait for a planned fetch.
    pub fn on_wait(&mut self) {
        self.waited = true;
    }

    /// Records that planned data was missing: the window starts small again.
    pub fn on_miss_inside(&mut self) {
        self.window = 0;
        self.whole = false;
    }

    /// True if the byte at `offset` should have been fetched.
    pub fn is_inside(&self, offset: u64) -> bool {
        match self.pattern {
            Pattern::Sequential => self.window > 0 && (self.gapless..self.fetched).contains(&offset),
            Pattern::Backward => self.window > 0 && (self.fetched..self.gapless).contains(&offset),
            Pattern::Random | Pattern::Stride | Pattern::Whole => false,
        }
    }

    /// Records a read of `[offset, offset + len)` in a file of `size` bytes, and returns the plan; `len` is
    /// more than 0.
    pub fn on_read(&mut self, offset: u64, len: u64, size: u64, limits: &Limits) -> Plan {
        let read = offset..offset.saturating_add(len).min(size).max(offset);
        let found = self.classify(&read);
        let reset = found == Pattern::Random && self.window > 0;
        if found != self.pattern {
            self.window = 0;
            self.whole = false;
        }
        self.pattern = found;
        self.run_bytes = if self.run > 1 { self.run_bytes } else { 0 } + (read.end - read.start);
        let mut plan = if self.run >= SURE && size <= limits.whole_bytes && found == Pattern::Sequential {
            self.plan_whole(&read, size)
        } else {
            match found {
                Pattern::Sequential if self.run >= SURE => self.plan_forward(&read, size, limits),
                Pattern::Backward => self.plan_backward(&read, limits),
                Pattern::Stride => self.plan_stride(&read, size, limits),
                _ => Plan { pattern: found, ..Plan::default() },
            }
        };
        plan.reset = reset;
        plan.to_end = plan.count > 0 && plan.ranges().last().is_some_and(|range| range.end == size);
        self.last = match found {
            // Pieces that arrive out of order do not move the position back.
            Pattern::Sequential => read.start..read.end.max(self.last.end),
            _ => read,
        };
        plan
    }

    fn classify(&mut self, read: &Range<u64>) -> Pattern {
        let (start, len) = (read.start, read.end - read.start);
        let loose = if len >= LARGE { LOOSE_LARGE } else { LOOSE };
        let backward = read.end == self.last.start && start < self.last.start;
        self.backward_run = if backward { self.backward_run + 1 } else { 0 };
        let step = start.wrapping_sub(self.last.start);
        let strided = start > self.last.end && step == self.step && len == self.last.end - self.last.start;
        self.stride_run = if strided { self.stride_run + 1 } else { 0 };
        self.step = step;
        let near = start.abs_diff(self.last.end) <= loose && (self.last.end > 0 || start == 0);
        if self.backward_run >= SURE {
            self.run = 0;
            return Pattern::Backward;
        }
        if backward {
            // One step back: the beginning of a backward run, or pieces of one read in the wrong order.
            return self.pattern;
        }
        if near {
            self.run += 1;
            return Pattern::Sequential;
        }
        self.run = 1;
        if self.stride_run >= SURE - 1 { Pattern::Stride } else { Pattern::Random }
    }

    /// Computes the new length of the window, for reads of `len` bytes.
    fn grow(&mut self, limits: &Limits, crossed: bool, len: u64) -> u64 {
        let whole =
            |bytes: u64| bytes.checked_next_multiple_of(limits.rpc_bytes).unwrap_or(limits.window_bytes);
        if self.window == 0 {
            self.window = whole(len.max(1));
        } else if crossed && std::mem::take(&mut self.waited) {
            let doubled = self.window.saturating_mul(2);
            self.window =
                doubled.min(whole(self.run_bytes)).max(self.window.saturating_add(limits.rpc_bytes));
        }
        self.window = self.window.min(limits.window_bytes);
        self.window
    }

    fn plan_whole(&mut self, read: &Range<u64>, size: u64) -> Plan {
        let again = std::mem::replace(&mut self.whole, true);
        let range = if again { 0..0 } else { read.end..size };
        if !again {
            (self.window, self.gapless, self.fetched) = (size.max(1), read.end, size);
        }
        Plan::one(Pattern::Whole, range)
    }

    fn plan_forward(&mut self, read: &Range<u64>, size: u64, limits: &Limits) -> Plan {
        let opening = self.window == 0;
        if opening {
            (self.gapless, self.fetched) = (read.end, read.end);
        }
        let crossed = read.end / limits.rpc_bytes > self.last.end / limits.rpc_bytes;
        let window = self.grow(limits, crossed, read.end - read.start);
        let wanted = read.end.saturating_add(window);
        // Whole RPCs, so that there is one wake-up for each and not one for each read.
        let target = if wanted >= size { size } else { wanted - wanted % limits.rpc_bytes };
        let from = self.fetched.max(read.end);
        if target <= from {
            return Plan { pattern: Pattern::Sequential, ..Plan::default() };
        }
        if from > self.fetched {
            self.gapless = from;
        }
        self.fetched = target;
        Plan::one(Pattern::Sequential, from..target)
    }

    fn plan_backward(&mut self, read: &Range<u64>, limits: &Limits) -> Plan {
        if self.window == 0 {
            (self.gapless, self.fetched) = (read.start, read.start);
        }
        let crossed = read.start / limits.rpc_bytes < self.last.start / limits.rpc_bytes;
        let wanted = read.start.saturating_sub(self.grow(limits, crossed, read.end - read.start));
        let target = wanted.next_multiple_of(limits.rpc_bytes).min(read.start);
        let target = if wanted == 0 { 0 } else { target };
        let until = self.fetched.min(read.start);
        if target >= until {
            return Plan { pattern: Pattern::Backward, ..Plan::default() };
        }
        if until < self.fetched {
            self.gapless = until;
        }
        self.fetched = target;
        Plan::one(Pattern::Backward, target..until)
    }

    fn plan_stride(&mut self, read: &Range<u64>, size: u64, limits: &Limits) -> Plan {
        let (step, len) = (self.step, read.end - read.start);
        if self.window == 0 {
            self.fetched = read.start.saturating_add(step);
        }
        let window = self.grow(limits, true, len);
        let pieces = (window / len.max(1)).clamp(1, u64::from(PIECES_MAX));
        let from = self.fetched.max(read.start.saturating_add(step));
        let until = read.start.saturating_add(step.saturating_mul(pieces + 1)).min(size);
        // Half a window at a time: one wake-up for several pieces.
        let mut count = until.saturating_sub(from).div_ceil(step.max(1));
        if count == 0 || (count < pieces.div_ceil(2) && until < size) {
            return Plan { pattern: Pattern::Stride, ..Plan::default() };
        }
        // A last piece that is cut by the end of the file is left to the reader.
        if from + (count - 1) * step + len > size {
            count -= 1;
        }
        self.fetched = from + count * step;
        Plan {
            pattern: Pattern::Stride,
            first: from..from + len,
            step,
            count: count as u32,
            ..Plan::default()
        }
    }
}

#[cfg(test)]
mod tests;
