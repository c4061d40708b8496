//! Changes that are not in the base yet, in ordered maps.

use super::Table;

/// Number of shards; fits the bit set of a batch.
pub(crate) const SHARDS: usize = 64;
/// Bytes at the start of a key that choose its shard: a FID, so that a directory's entries share one shard.
pub(crate) const SHARD_PREFIX_LEN: usize = 16;

/// The shard of a key. Only memory depends on it, so it may change between versions.
pub(crate) fn shard_of(table: Table, key: &[u8]) -> u8 {
    let mut words = [0u8; SHARD_PREFIX_LEN];
    let len = key.len().min(SHARD_PREFIX_LEN);
    words[..len].copy_from_slice(&key[..len]);
    let both = u128::from_le_bytes(words);
    let mixed = (both as u64 ^ (u64::from(table.0) << 56)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ ((both >> 64) as u64).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as u8
}
