//! A keyed MAC for records that are authenticated and not encrypted: POLYVAL of RFC 8452 over the data and its length, masked by a
//! pseudorandom function of the record's number. That is the construction of GMAC and of AES-GCM-SIV's inner hash, with keys apart.
//!
//! The hash is here because no library has it at the speed that makes leaving out encryption worth while: ring's GMAC takes one block
//! after the other (1.4 GB/s), and its AES-GCM 7.5; this has 11 to 19 where the CPU multiplies four blocks at a time. None of the
//! code branches on data or keys, or looks anything up by them.

use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::error::Unspecified;

/// Bytes of a tag.
pub(super) const TAG: usize = 16;
const BLOCK: usize = 16;
/// Powers of the key: so many blocks are reduced together.
const POWERS: usize = 32;
const STRIDE: usize = POWERS * BLOCK;
/// Bytes of a key: half for the hash, half for the mask.
pub(super) const KEY: usize = 32;

/// Makes and verifies tags of one direction of a connection.
pub(super) struct Mac {
    hash: Polyval,
    mask: LessSafeKey,
}

impl Mac {
    pub(super) fn new(key: &[u8; KEY]) -> Result<Mac, Unspecified> {
        let (hash, mask) = key.split_at(BLOCK);
        let hash = hash.first_chunk().map_or(0, |key| u128::from_le_bytes(*key));
        let mask = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, mask)?);
        Ok(Mac { hash: Polyval::new(hash), mask })
    }

    /// The tag of the record with this number, which is used once.
    pub(super) fn tag(&self, number: u64, data: &[u8]) -> Result<[u8; TAG], Unspecified> {
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&number.to_le_bytes());
        // AES-GCM's tag of nothing: the cipher of the nonce alone.
        let nonce = Nonce::assume_unique_for_key(nonce);
        let mask = self.mask.seal_in_place_separate_tag(nonce, Aad::empty(), &mut [])?;
        let mask: &[u8; TAG] = mask.as_ref().first_chunk().ok_or(Unspecified)?;
        let sum = self.hash.of(data) ^ u128::from_le_bytes(*mask);
        Ok(sum.to_le_bytes())
    }

    pub(super) fn verify(&self, number: u64, data: &[u8], tag: &[u8]) -> Result<(), Unspecified> {
        let tag: &[u8; TAG] = tag.try_into().map_err(|_| Unspecified)?;
        let difference = u128::from_le_bytes(self.tag(number, data)?) ^ u128::from_le_bytes(*tag);
        // One number is compared with zero, so the time says nothing about where they differ.
        if difference == 0 { Ok(()) } else { Err(Unspecified) }
    }
}

/// How blocks are multiplied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kernel {
    #[cfg(target_arch = "x86_64")]
    Wide,
    #[cfg(target_arch = "x86_64")]
    Narrow,
    Portable,
}

impl Kernel {
    fn best() -> Kernel {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("sse2") {
            let is_wide = is_x86_feature_detected!("vpclmulqdq") && is_x86_feature_detected!("avx512f");
            return if is_wide { Kernel::Wide } else { Kernel::Narrow };
        }
        Kernel::Portable
    }
}

struct Polyval {
    /// The highest first.
    powers: [u128; POWERS],
    kernel: Kernel,
}

impl Polyval {
    fn new(key: u128) -> Polyval {
        Polyval::with(key, Kernel::best())
    }

    fn with(key: u128, kernel: Kernel) -> Polyval {
        let mut powers = [key; POWERS];
        for at in (0..POWERS - 1).rev() {
            powers[at] = portable::multiply(powers[at + 1], key);
        }
        Polyval { powers, kernel }
    }

    /// Of the data, filled up with zeros, and a block with its length in bits.
    fn of(&self, data: &[u8]) -> u128 {
        let whole = data.len() / STRIDE * STRIDE;
        let (strides, rest) = data.split_at(whole);
        let sum = self.absorb_strides(0, strides);
        let (blocks, tail) = rest.split_at(rest.len() / BLOCK * BLOCK);
        // The rest is shorter than a stride, so there is room for its last block and the length.
        let mut end = [0; 2 * BLOCK];
        end[..tail.len()].copy_from_slice(tail);
        let length_at = if tail.is_empty() { 0 } else { BLOCK };
        end[length_at..length_at + 8].copy_from_slice(&(8 * data.len() as u64).to_le_bytes());
        let end = &end[..length_at + BLOCK];
        match blocks.len() + end.len() <= STRIDE {
            true => self.absorb(sum, blocks, end),
            false => self.absorb(self.absorb(sum, blocks, &[]), &[], end),
        }
    }

    fn absorb_strides(&self, mut sum: u128, data: &[u8]) -> u128 {
        #[cfg(target_arch = "x86_64")]
        if self.kernel == Kernel::Wide {
            // SAFETY: the kernel was chosen because the CPU has what it needs.
            return unsafe { x86::absorb_wide(&self.powers, sum, data) };
        }
        for stride in data.chunks_exact(STRIDE) {
            sum = self.absorb(sum, stride, &[]);
        }
        sum
    }

    /// Whole blocks, [`POWERS`] at most: those of the first slice, then those of the second.
    fn absorb(&self, sum: u128, first: &[u8], second: &[u8]) -> u128 {
        let powers = self.powers.get(POWERS - (first.len() + second.len()) / BLOCK..).unwrap_or_default();
        match self.kernel {
            Kernel::Portable => portable::absorb(powers, sum, first, second),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: both kernels were chosen because the CPU has what this needs.
            Kernel::Wide | Kernel::Narrow => unsafe { x86::absorb(powers, sum, first, second) },
        }
    }
}

fn blocks<'a>(first: &'a [u8], second: &'a [u8]) -> impl Iterator<Item = u128> + 'a {
    let whole =
        |bytes: &'a [u8]| bytes.as_chunks::<BLOCK>().0.iter().map(|block| u128::from_le_bytes(*block));
    whole(first).chain(whole(second))
}

/// On every CPU, slowly.
mod portable {
    /// The product of two halves, without carries.
    fn product(a: u64, b: u64) -> u128 {
        (0..64).fold(0, |sum, bit| sum ^ ((u128::from(a) << bit) & u128::from(b >> bit & 1).wrapping_neg()))
    }

    /// Montgomery's reduction of a product of 256 bits, by the polynomial x^128 + x^127 + x^126 + x^121 + 1.
    fn reduce(low: u128, high: u128) -> u128 {
        let fold = |value: u128| value.rotate_left(64) ^ product(value as u64, 0xc200_0000_0000_0000);
        fold(fold(low)) ^ high
    }

    fn wide_product(a: u128, b: u128) -> (u128, u128) {
        let ((a0, a1), (b0, b1)) = ((a as u64, (a >> 64) as u64), (b as u64, (b >> 64) as u64));
        let middle = product(a0, b1) ^ product(a1, b0);
        (product(a0, b0) ^ (middle << 64), product(a1, b1) ^ (middle >> 64))
    }

    pub(super) fn multiply(a: u128, b: u128) -> u128 {
        let (low, high) = wide_product(a, b);
        reduce(low, high)
    }

    pub(super) fn absorb(powers: &[u128], mut sum: u128, first: &[u8], second: &[u8]) -> u128 {
        let (mut low, mut high) = (0, 0);
        for (block, power) in super::blocks(first, second).zip(powers) {
            let (more_low, more_high) = wide_product(block ^ std::mem::take(&mut sum), *power);
            (low, high) = (low ^ more_low, high ^ more_high);
        }
        reduce(low, high)
    }
}

/// By the CPU's multiplication without carries.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    fn load(value: u128) -> __m128i {
        // SAFETY: both are 16 bytes for which every value is valid.
        unsafe { std::mem::transmute(value) }
    }

    fn store(value: __m128i) -> u128 {
        // SAFETY: as above.
        unsafe { std::mem::transmute(value) }
    }

    /// As the portable one; the middle of the product is still apart.
    #[target_feature(enable = "sse2,pclmulqdq")]
    fn reduce(low: __m128i, middle: __m128i, high: __m128i) -> __m128i {
        let polynomial = load(0xc200_0000_0000_0000 << 64);
        let fold = |value: __m128i| {
            _mm_xor_si128(_mm_shuffle_epi32::<0x4e>(value), _mm_clmulepi64_si128::<0x10>(value, polynomial))
        };
        let low = _mm_xor_si128(low, _mm_slli_si128::<8>(middle));
        let high = _mm_xor_si128(high, _mm_srli_si128::<8>(middle));
        _mm_xor_si128(fold(fold(low)), high)
    }

    #[target_feature(enable = "sse2,pclmulqdq")]
    pub(super) fn absorb(powers: &[u128], sum: u128, first: &[u8], second: &[u8]) -> u128 {
        let zero = load(0);
        let (mut low, mut middle, mut high) = (zero, zero, zero);
        let mut sum = load(sum);
        for (block, power) in super::blocks(first, second).zip(powers) {
            let (block, power) = (_mm_xor_si128(load(block), sum), load(*power));
            sum = zero;
            low = _mm_xor_si128(low, _mm_clmulepi64_si128::<0x00>(block, power));
            middle = _mm_xor_si128(middle, _mm_clmulepi64_si128::<0x01>(block, power));
            middle = _mm_xor_si128(middle, _mm_clmulepi64_si128::<0x10>(block, power));
            high = _mm_xor_si128(high, _mm_clmulepi64_si128::<0x11>(block, power));
        }
        store(reduce(low, middle, high))
    }

    /// Four blocks at a time.
    const LANES: usize = 4;
    const STEPS: usize = super::POWERS / LANES;

    /// The sum of the four lanes.
    #[target_feature(enable = "avx512f,sse2")]
    fn fold(value: __m512i) -> __m128i {
        let halves = _mm256_xor_si256(_mm512_castsi512_si256(value), _mm512_extracti64x4_epi64::<1>(value));
        _mm_xor_si128(_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves))
    }

    /// Whole strides.
    #[target_feature(enable = "avx512f,vpclmulqdq,sse2,pclmulqdq")]
    pub(super) fn absorb_wide(powers: &[u128; super::POWERS], sum: u128, data: &[u8]) -> u128 {
        let zero = _mm512_setzero_si512();
        let mut keys = [zero; STEPS];
        for (key, powers) in keys.iter_mut().zip(powers.as_chunks::<LANES>().0) {
            // SAFETY: the chunk has 64 bytes, and the load needs no alignment.
            *key = unsafe { _mm512_loadu_si512(powers.as_ptr().cast()) };
        }
        let mut sum = load(sum);
        for stride in data.as_chunks::<{ super::STRIDE }>().0 {
            let (mut low, mut middle, mut other, mut high) = (zero, zero, zero, zero);
            let mut first = _mm512_zextsi128_si512(sum);
            for (block, key) in stride.as_chunks::<{ LANES * super::BLOCK }>().0.iter().zip(&keys) {
                // SAFETY: as above.
                let block = unsafe { _mm512_loadu_si512(block.as_ptr().cast()) };
                let block = _mm512_xor_si512(block, first);
                first = zero;
                low = _mm512_xor_si512(low, _mm512_clmulepi64_epi128::<0x00>(block, *key));
                middle = _mm512_xor_si512(middle, _mm512_clmulepi64_epi128::<0x01>(block, *key));
                other = _mm512_xor_si512(other, _mm512_clmulepi64_epi128::<0x10>(block, *key));
                high = _mm512_xor_si512(high, _mm512_clmulepi64_epi128::<0x11>(block, *key));
            }
            sum = reduce(fold(low), fold(_mm512_xor_si512(middle, other)), fold(high));
        }
        store(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> u128 {
        u128::from_str_radix(text, 16).expect("a number").swap_bytes()
    }

    fn kernels() -> Vec<Kernel> {
        let mut kernels = vec![Kernel::Portable, Kernel::best()];
        #[cfg(target_arch = "x86_64")]
        if Kernel::best() == Kernel::Wide {
            kernels.push(Kernel::Narrow);
        }
        kernels
    }

    #[test]
    fn the_hash_is_that_of_the_standard() {
        // RFC 8452, appendix A.
        let key = number("25629347589242761d31f826ba4b757b");
        let data = [number("4f4f95668c83dfb6401762bb2d01a262"), number("d1a24ddd2721d006bbe45f20d3c9f362")];
        for kernel in kernels() {
            let hash = Polyval::with(key, kernel);
            let data: Vec<u8> = data.iter().flat_map(|block| block.to_le_bytes()).collect();
            let sum = hash.absorb(0, &data, &[]);
            assert_eq!(sum, number("f7a3b47b846119fae5b7866cf5e5b77e"), "{kernel:?}");
        }
    }

    /// Block by block, as the standard defines it.
    fn plainly(key: u128, data: &[u8]) -> u128 {
        let mut padded = data.to_vec();
        padded.resize(data.len().next_multiple_of(BLOCK), 0);
        padded.extend((8 * data.len() as u128).to_le_bytes());
        blocks(&padded, &[]).fold(0, |sum, block| portable::multiply(sum ^ block, key))
    }

    #[test]
    fn every_length_has_the_same_hash_on_every_cpu() {
        let key = number("00112233445566778899aabbccddeeff");
        let data: Vec<u8> = (0..9000_u32).map(|at| (at * 31 + at / 256) as u8).collect();
        let lengths =
            (0..3 * STRIDE + 40).step_by(7).chain([STRIDE - 16, STRIDE - 1, STRIDE, STRIDE + 1, 9000]);
        for len in lengths {
            let data = &data[data.len() - len..];
            let right = plainly(key, data);
            for kernel in kernels() {
                assert_eq!(Polyval::with(key, kernel).of(data), right, "{len} {kernel:?}");
            }
        }
    }

    #[test]
    fn a_tag_is_of_its_key_number_and_data_alone() {
        let mac = Mac::new(&[7; KEY]).expect("a key");
        let data: Vec<u8> = (0..2000_u32).map(|at| at as u8).collect();
        let tag = mac.tag(5, &data).expect("a tag");
        assert!(mac.verify(5, &data, &tag).is_ok());
        assert!(mac.verify(6, &data, &tag).is_err());
        assert!(mac.verify(5, &data[..1999], &tag).is_err());
        assert!(mac.verify(5, &data, &tag[..15]).is_err());
        assert!(Mac::new(&[8; KEY]).expect("a key").verify(5, &data, &tag).is_err());
        for at in [0, 1, 15, 16, 511, 512, 1999] {
            let mut other = data.clone();
            other[at] ^= 0x40;
            assert!(mac.verify(5, &other, &tag).is_err(), "{at}");
        }
        let zeros = [mac.tag(1, &[]), mac.tag(1, &[0]), mac.tag(1, &[0; 16]), mac.tag(1, &[0; 17])];
        let zeros: std::collections::HashSet<_> = zeros.map(|tag| tag.expect("a tag")).into();
        assert_eq!(zeros.len(), 4, "zeros at the end count");
    }
}
