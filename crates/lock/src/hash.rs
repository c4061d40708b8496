//! A fast hash for names of resources and handles of locks.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Hashes by multiplying words. No defence against chosen collisions: handles are chosen by clients, each for
/// its own map, and resources are existing files, so a client that provokes collisions slows down itself.
#[derive(Default)]
pub(crate) struct WordHasher(u64);

impl Hasher for WordHasher {
    fn finish(&self) -> u64 {
        // Hash tables use the lowest and the highest bits; multiplication mixes only upwards.
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0u8; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(23) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}

/// A map with [`WordHasher`]. Nothing may depend on the order of its entries.
pub(crate) type WordMap<K, V> = HashMap<K, V, BuildHasherDefault<WordHasher>>;
