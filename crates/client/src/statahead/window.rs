//! How much statahead fetches. Pure.

/// Entries of the first batch.
const WINDOW_MIN: u32 = 8;
/// Lookups that found nothing ready after which statahead stops for a directory: in a row, or in total while
/// there are fewer than four times as many that found something.
const MISSES_MAX: u32 = 32;

/// How much to fetch, adapted to how much of it was used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    /// Entries of the next batch.
    size: u32,
    hits: u32,
    misses: u32,
    pub misses_in_row: u32,
}

impl Window {
    pub const NEW: Window = Window { size: WINDOW_MIN, hits: 0, misses: 0, misses_in_row: 0 };

    pub fn on_hit(&mut self) {
        self.hits += 1;
        self.misses_in_row = 0;
    }

    /// Records a lookup that found nothing ready; returns how many entries to fetch, of which the first one
    /// is being looked up; 0 for none.
    pub fn on_miss(&mut self, limit: u32) -> u32 {
        let used = self.misses_in_row == 0 && self.misses > 0;
        self.misses += 1;
        self.misses_in_row += 1;
        let mostly_wrong = self.misses > MISSES_MAX && self.hits < self.misses.saturating_mul(4);
        if mostly_wrong || self.misses_in_row > MISSES_MAX {
            return 0;
        }
        if used {
            self.size = self.size.saturating_mul(2);
        } else if self.misses > 1 {
            self.size = WINDOW_MIN;
        }
        self.size = self.size.min(limit);
        self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_double_while_they_are_used() {
        let mut window = Window::NEW;
        let sizes: Vec<u32> = (0..6)
            .map(|_| {
                let size = window.on_miss(64);
                (1..size).for_each(|_| window.on_hit());
                size
            })
            .collect();
        assert_eq!(sizes, [8, 16, 32, 64, 64, 64]);
    }

    #[test]
    fn batches_that_nobody_uses_stay_small_and_end() {
        let mut window = Window::NEW;
        let sizes: Vec<u32> = (0..MISSES_MAX + 1).map(|_| window.on_miss(64)).collect();
        assert!(sizes[..MISSES_MAX as usize].iter().all(|&size| size == WINDOW_MIN));
        assert_eq!(sizes[MISSES_MAX as usize], 0);
    }

    #[test]
    fn a_reader_that_uses_few_of_each_batch_is_given_up() {
        let mut window = Window::NEW;
        let given_up = (0..1000).position(|_| {
            window.on_hit();
            window.on_miss(64) == 0
        });
        assert_eq!(given_up, Some(MISSES_MAX as usize));
    }
}
