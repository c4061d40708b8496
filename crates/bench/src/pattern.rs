//! Data that identifies its position: every byte of a file follows from a seed, the file's number and the
//! byte's offset, so that a reader can check what it gets without further information.

/// Returns the eight bytes that begin at `word * 8`.
fn word(seed: u64, file: u64, word: u64) -> [u8; 8] {
    // Two odd multipliers (the golden ratio and one of splitmix64's) and a shift: neighbours differ in most bits, and the
    // arithmetic is cheaper than the copy of the data.
    let mixed = (word ^ seed.rotate_left(32) ^ (file << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9).to_le_bytes()
}

/// Calls `visit` with each piece of `buffer` within one word, and its expected content, until it returns
/// false.
fn pieces(buffer_len: usize, offset: u64, mut visit: impl FnMut(std::ops::Range<usize>, u64, usize) -> bool) {
    let mut at = 0;
    while at < buffer_len {
        let place = offset + at as u64;
        let within = (place % 8) as usize;
        let end = buffer_len.min(at + 8 - within);
        if !visit(at..end, place / 8, within) {
            return;
        }
        at = end;
    }
}

/// Fills `buffer` with the content at `offset`.
pub(crate) fn fill(buffer: &mut [u8], seed: u64, file: u64, offset: u64) {
    pieces(buffer.len(), offset, |range, number, within| {
        let length = range.len();
        buffer[range].copy_from_slice(&word(seed, file, number)[within..within + length]);
        true
    });
}

/// Returns the offset in the file of the first byte of `buffer`, read from `offset`, that differs from the
/// expected content.
pub(crate) fn mismatch(buffer: &[u8], seed: u64, file: u64, offset: u64) -> Option<u64> {
    let mut wrong = None;
    pieces(buffer.len(), offset, |range, number, within| {
        let expected = word(seed, file, number);
        let found = &buffer[range.clone()];
        let differs = found.iter().zip(&expected[within..]).position(|(one, other)| one != other);
        wrong = differs.map(|at| offset + (range.start + at) as u64);
        wrong.is_none()
    });
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_any_size_make_up_the_same_file() {
        let mut whole = vec![0; 1000];
        fill(&mut whole, 7, 3, 0);
        let mut pieced = Vec::new();
        for length in [1usize, 7, 8, 9, 64, 911] {
            let mut piece = vec![0; length];
            fill(&mut piece, 7, 3, pieced.len() as u64);
            pieced.extend(piece);
        }
        assert_eq!(pieced, whole);
    }

    #[test]
    fn a_wrong_byte_is_found_where_it_is() {
        let mut bytes = vec![0; 100];
        fill(&mut bytes, 1, 0, 4093);
        assert_eq!(mismatch(&bytes, 1, 0, 4093), None);
        bytes[33] ^= 4;
        assert_eq!(mismatch(&bytes, 1, 0, 4093), Some(4093 + 33));
    }

    #[test]
    fn seed_file_and_offset_all_matter() {
        let mut bytes = vec![0; 64];
        fill(&mut bytes, 1, 2, 4096);
        for (seed, file, offset) in [(2, 2, 4096), (1, 3, 4096), (1, 2, 8192)] {
            assert!(mismatch(&bytes, seed, file, offset).is_some());
        }
        assert_ne!(bytes, vec![0; 64]);
    }
}
