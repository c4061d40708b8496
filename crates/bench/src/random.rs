//! Numbers that look random and are the same in every run with the same seed.

/// Marsaglia's xorshift64 (2003): repeatable, and cheap beside any system call.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// Of this seed; seeds that differ by little give sequences that have nothing in common.
    pub(crate) fn new(seed: u64) -> Random {
        // The finalizer of splitmix64 (Steele, Lea and Flood, 2014) spreads every bit of the seed; 0 would stay 0.
        let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Random((mixed ^ (mixed >> 31)).max(1))
    }

    /// The next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Any order of `items`, each as likely (Fisher and Yates).
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at as u64 + 1) as usize);
        }
    }

    /// So many bytes.
    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count + 8);
        while bytes.len() < count {
            bytes.extend(self.next().to_le_bytes());
        }
        bytes.truncate(count);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_repeat_with_the_seed_and_differ_without() {
        assert_eq!(Random::new(7).bytes(100), Random::new(7).bytes(100));
        assert_ne!(Random::new(7).bytes(100), Random::new(8).bytes(100));
        assert_eq!(Random::new(0).bytes(3).len(), 3);
    }

    #[test]
    fn shuffling_keeps_every_item() {
        let mut items: Vec<u32> = (0..100).collect();
        Random::new(1).shuffle(&mut items);
        assert!(items.iter().enumerate().any(|(at, &item)| at as u32 != item));
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<u32>>());
    }
}
