//! `lfs migrate -A`: a stripe count that follows the size of the file.

use super::wrong;
use crate::lfs::Failure;
use crate::lfs::getopt::Parsed;
use crate::lfs::mounted::Mounted;
use crate::lfs::number::parse_unsigned;
use nacre_layout::{LayoutRequest, LayoutSpec};
use nacre_types::TargetKind;
use nacre_types::limits::STRIPE_COUNT_MAX;
use std::io;

/// Divisor of the free space of the smallest OST: the limit of an object's size unless `-K` is given.
const CAP: u64 = 100;
/// Free space in KiB below which OSTs are left out unless `-M` is given.
const MIN_FREE_KIB: u64 = 256 << 10;
/// Options that conflict with `-A`.
const INSTEAD: [(char, &str); 8] = [
    ('c', "-c"),
    ('C', "-C"),
    ('o', "-o"),
    ('E', "-E"),
    ('L', "-L"),
    ('Y', "--copy"),
    ('y', "--yaml"),
    ('R', "--restripe"),
];

/// See the [module documentation](self).
#[derive(Debug, PartialEq)]
pub struct Auto {
    /// Other requested fields: stripe size, pool, first OST.
    pub spec: LayoutSpec,
    cap: u64,
    min_free_kib: u64,
    max_free_kib: u64,
}

/// Parses the options; `requested` comes from those that may be combined with `-A`.
pub fn of_options(parsed: &Parsed, requested: Option<LayoutRequest>) -> Result<Auto, Failure> {
    if let Some((_, name)) = INSTEAD.iter().find(|(key, _)| parsed.has(*key)) {
        return Err(wrong(&format!("cannot specify --auto-stripe with {name}")));
    }
    let number = |key: char, default: u64| match parsed.value(key) {
        None => Ok(default),
        Some(text) => parse_unsigned(text)
            .filter(|number| *number > 0)
            .ok_or_else(|| wrong(&format!("invalid value '{text}' of '-{key}'"))),
    };
    let spec = match requested {
        Some(LayoutRequest::Plain(spec)) => spec,
        _ => LayoutSpec::default(),
    };
    let (cap, min_free_kib) = (number('K', CAP)?, number('M', MIN_FREE_KIB)?);
    Ok(Auto { spec, cap, min_free_kib, max_free_kib: number('X', u64::MAX)? })
}

/// Returns true if an option requires `-A` and it is missing.
pub fn is_missing(parsed: &Parsed) -> bool {
    !parsed.has('A') && ['K', 'M', 'X'].into_iter().any(|key| parsed.has(key))
}

impl Auto {
    /// Returns the layout for a file that uses `bytes` of space.
    ///
    /// # Errors
    /// Those of reading the space of OSTs.
    pub fn requested(&self, mount: &Mounted, bytes: u64) -> io::Result<LayoutRequest> {
        let members = match self.spec.real_pool() {
            Some(pool) => mount.pool_members(pool.as_str())?,
            None => None,
        };
        let rows = mount.targets_with_space()?;
        let free_kib = rows.iter().filter_map(|row| {
            let is_ost = row.target.kind == TargetKind::Ost;
            let is_member = members.as_ref().is_none_or(|members| members.contains(&row.target.index));
            let space = row.space.filter(|_| is_ost && is_member)?;
            Some(space.blocks_available.saturating_mul(u64::from(space.block_size)) >> 10)
        });
        let count = self.stripe_count(bytes, free_kib);
        Ok(LayoutRequest::Plain(LayoutSpec { stripe_count: Some(count), ..self.spec.clone() }))
    }

    /// Returns the stripe count: one more than the square root of the size in GiB, more if objects would be
    /// too large, and at most the number of OSTs.
    fn stripe_count(&self, bytes: u64, free_kib: impl Iterator<Item = u64>) -> u16 {
        let considered: Vec<u64> = free_kib.filter(|free| *free >= self.min_free_kib).collect();
        let smallest = considered.iter().copied().min().unwrap_or(0).min(self.max_free_kib);
        let object_max = (smallest / self.cap).max(1);
        let (kib, gib) = (bytes.div_ceil(1 << 10), bytes >> 30);
        let by_size = if gib <= 1 { 1 } else { gib.isqrt() + 1 };
        let count = if kib / by_size > object_max { kib.div_ceil(object_max) } else { by_size };
        let most = (considered.len() as u64).clamp(1, u64::from(STRIPE_COUNT_MAX));
        count.min(most) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_grow_with_the_root_of_the_size_and_keep_objects_small() {
        let auto = Auto {
            spec: LayoutSpec::default(),
            cap: CAP,
            min_free_kib: MIN_FREE_KIB,
            max_free_kib: u64::MAX,
        };
        let count = |gib: u64, osts: usize, free_gib: u64| {
            auto.stripe_count(gib << 30, std::iter::repeat_n(free_gib << 20, osts))
        };
        assert_eq!([count(0, 99, 9000), count(1, 99, 9000), count(4, 99, 9000)], [1, 1, 3]);
        assert_eq!([count(100, 99, 9000), count(10_000, 200, 9_000_000)], [11, 101]);
        assert_eq!((count(100, 4, 9000), count(100, 0, 0)), (4, 1));
        // 1/100 of 500 GiB is 5 GiB, the limit of an object.
        assert_eq!(count(100, 99, 500), 20);
        let few = auto.stripe_count(9 << 30, [100 << 10, 9 << 30, 9 << 30].into_iter());
        assert_eq!(few, 2, "one is too full to count");
        let bounded = Auto { max_free_kib: 100 << 20, ..auto };
        assert_eq!(bounded.stripe_count(9 << 30, [9 << 40; 20].into_iter()), 9);
    }
}
