//! What one open file's reads look like, and what to fetch because of it. Pure: a read goes in, a plan comes out.
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
//! Anything else is random access: the window closes and what was fetched goes.
//!
//! The window begins with the next read, one RPC at least, and doubles whenever a reader had to wait for what was fetched, up
//! to what was read in the run so far, or by one RPC: a window that already hides the way to the servers would only take
//! memory if it grew, and what is fetched for nothing at the end of a run is bounded by what was read in it.

use std::ops::Range;

/// Reads this far from the end of the last one still follow it (reference 4.13: 8 pages).
const LOOSE: u64 = 8 * 4096;
/// The kernel sends pieces of large reads at once, and they arrive in any order: the same for reads from
/// [`LARGE`] bytes on.
const LOOSE_LARGE: u64 = 2 << 20;
/// Smallest read that is taken for a piece of a larger one.
const LARGE: u64 = 128 << 10;
/// Reads of one pattern from which on it is believed.
const SURE: u32 = 2;
/// Pieces of a stride that are fetched ahead at most.
const PIECES_MAX: u32 = 64;

/// Bounds of a window, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Size and alignment of what is fetched at once; more than 0.
    pub rpc_bytes: u64,
    /// Window of one open file at most.
    pub window_bytes: u64,
    /// Files of this size or less are fetched whole.
    pub whole_bytes: u64,
}

/// What a read belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pattern {
    /// Not known (yet).
    #[default]
    Random,
    /// One after the other.
    Sequential,
    /// One before the other.
    Backward,
    /// Same pieces at the same distance.
    Stride,
    /// A small file.
    Whole,
}

/// What to do about a read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// What the reads look like.
    pub pattern: Pattern,
    /// First range to fetch; empty: nothing.
    pub first: Range<u64>,
    /// More ranges of the same length follow at this distance.
    pub step: u64,
    /// How many ranges, the first one included.
    pub count: u32,
    /// The pattern has just been given up: what was fetched for it is of no use.
    pub reset: bool,
    /// The plan goes up to the end of the file.
    pub to_end: bool,
}

impl Plan {
    /// The ranges to fetch.
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

/// The state of one open file.
#[derive(Debug, Default)]
pub struct Reader {
    pattern: Pattern,
    /// The last read.
    last: Range<u64>,
    /// Reads that followed the pattern, one after the other.
    run: u32,
    backward_run: u32,
    stride_run: u32,
    /// Distance of the last two reads' beginnings.
    step: u64,
    /// Bytes to have fetched beyond a read; 0: closed.
    window: u64,
    /// Fetched up to here (backward: down to here).
    fetched: u64,
    /// Since when without a gap: reads larger than the window leave some.
    gapless: u64,
    /// Bytes read in this run.
    run_bytes: u64,
    /// Somebody waited for a fetch since the window grew last.
    waited: bool,
    /// The file was fetched to its end already.
    whole: bool,
}

impl Reader {
    /// A reader had to wait for what this state had planned.
    pub fn on_wait(&mut self) {
        self.waited = true;
    }

    /// What should have been there was not: it starts again with a small window.
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

    /// `[offset, offset + len)` is read of a file of `size` bytes; `len` is more than 0.
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
            // Pieces that arrive out of order do not take the position back.
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
            // One step back: the beginning of a run that way, or pieces of one read that changed places.
            return self.pattern;
        }
        if near {
            self.run += 1;
            return Pattern::Sequential;
        }
        self.run = 1;
        if self.stride_run >= SURE - 1 { Pattern::Stride } else { Pattern::Random }
    }

    /// The window's length from now on, for reads of `len` bytes.
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
        // A last piece that the end of the file cuts is left to the reader.
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
