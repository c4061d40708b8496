//! Which shard of a striped directory holds a name: Lustre's hash functions, bit for bit.
//!
//! Servers, clients and the format on disk agree on them, so the meaning of a number never changes, and
//! oddities are kept.

/// Number of groups of names, each of which crush places separately.
const CRUSH_GROUPS: u64 = 4096;
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x100_0000_01b3;

/// Hash functions that distribute names over shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u16)]
pub enum DirHash {
    /// The sum of all bytes; similar names share a shard. For tests.
    AllChar = 1,
    /// FNV-1a with 64 bits. A different number of shards moves almost every name.
    Fnv1a64 = 2,
    /// CRUSH: few names move when shards are added or removed, and temporary and backup files are placed with
    /// their file. Some numbered names also count as temporary and all share one MDT. The default.
    #[default]
    Crush = 3,
    /// CRUSH with a stricter rule for temporary names.
    Crush2 = 4,
}

impl DirHash {
    /// All hash functions, in the order of their numbers.
    pub const ALL: [DirHash; 4] = [DirHash::AllChar, DirHash::Fnv1a64, DirHash::Crush, DirHash::Crush2];

    /// Returns Lustre's number.
    pub const fn number(self) -> u16 {
        self as u16
    }

    /// Returns the hash function with this number.
    pub fn from_number(number: u16) -> Option<DirHash> {
        DirHash::ALL.into_iter().find(|hash| hash.number() == number)
    }

    /// Returns Lustre's name.
    pub const fn name(self) -> &'static str {
        match self {
            DirHash::AllChar => "all_char",
            DirHash::Fnv1a64 => "fnv_1a_64",
            DirHash::Crush => "crush",
            DirHash::Crush2 => "crush2",
        }
    }

    /// Returns the hash function with this name.
    pub fn from_name(name: &str) -> Option<DirHash> {
        DirHash::ALL.into_iter().find(|hash| hash.name() == name)
    }

    /// Returns the shard of the name among `count`; 0 if there are fewer than two.
    pub fn shard(self, name: &[u8], count: u32) -> u32 {
        if count <= 1 {
            return 0;
        }
        match self {
            // The remainder is below `count`, so it fits.
            DirHash::AllChar => sum(name) % count,
            DirHash::Fnv1a64 => (fnv_1a_64(name) % u64::from(count)) as u32,
            DirHash::Crush => crush(stem(name, Rule::Crush), count),
            DirHash::Crush2 => crush(stem(name, Rule::Crush2), count),
        }
    }
}

fn sum(name: &[u8]) -> u32 {
    name.iter().fold(0u32, |sum, &byte| sum.wrapping_add(byte.into()))
}

fn fnv_1a_64(name: &[u8]) -> u64 {
    name.iter().fold(FNV_OFFSET, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME))
}

/// Returns the shard with the longest straw; of equal ones the first.
fn crush(name: &[u8], count: u32) -> u32 {
    let group = (fnv_1a_64(name) % CRUSH_GROUPS) as u32;
    let (mut longest, mut shard) = (0, 0);
    for index in 0..count {
        let straw = straw(group, index);
        if straw > longest {
            (longest, shard) = (straw, index);
        }
    }
    shard
}

/// Mixes two numbers as CRUSH does: Jenkins' 32-bit mix, three times.
fn straw(a: u32, b: u32) -> u32 {
    const SEED: u32 = 1_315_423_911;
    let (a, b, hash) = mix(a, b, SEED ^ a ^ b);
    let (_, _, hash) = mix(231_232, a, hash);
    mix(b, 1232, hash).2
}

fn mix(mut a: u32, mut b: u32, mut c: u32) -> (u32, u32, u32) {
    for (right, left, back) in [(13, 8, 13), (12, 16, 5), (3, 10, 15)] {
        a = a.wrapping_sub(b).wrapping_sub(c) ^ (c >> right);
        b = b.wrapping_sub(c).wrapping_sub(a) ^ (a << left);
        c = c.wrapping_sub(a).wrapping_sub(b) ^ (b >> back);
    }
    (a, b, c)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    Crush,
    Crush2,
}

/// Returns the part of a name that crush hashes: without the marks of temporary names (`.NAME.XXXXXX` of
/// rsync, `NAME.XXXXXXXX`) and backups (`NAME~`, `.bak`, `.sav`, `.orig`), so that such files are placed with
/// their file and a rename stays on one MDT.
fn stem(name: &[u8], rule: Rule) -> &[u8] {
    if name.first() == Some(&b'.') && is_temporary(&name[1..], 6, rule) {
        &name[1..name.len() - 7]
    } else if is_temporary(name, 8, rule) {
        &name[..name.len() - 9]
    } else {
        &name[..name.len() - backup_suffix(name)]
    }
}

/// Returns true if a name has a suffix of `len` random characters behind a dot, and a non-empty part before
/// it.
fn is_temporary(name: &[u8], len: usize, rule: Rule) -> bool {
    let Some((stem, suffix)) = name.len().checked_sub(len).map(|at| name.split_at(at)) else { return false };
    if stem.len() < 2 || stem.last() != Some(&b'.') {
        return false;
    }
    let count = |is: fn(u8) -> bool| suffix.iter().filter(|&&byte| is(byte)).count();
    let (lower, upper, digits) = (count(is_lower), count(is_upper), count(|byte| byte.is_ascii_digit()));
    if rule == Rule::Crush2 && lower + upper + digits < len {
        return false;
    }
    // Words and versions are not random. The first rule inverts the test of the first character.
    let is_numbered = digits >= len - 1 && suffix[0].is_ascii_digit() == (rule == Rule::Crush2);
    upper != len && lower != len && !is_numbered
}

/// Returns true for upper-case letters as in the kernel's tables: also those of Latin-1, whatever the bytes
/// mean to users.
fn is_upper(byte: u8) -> bool {
    matches!(byte, b'A'..=b'Z' | 0xc0..=0xde) && byte != 0xd7
}

fn is_lower(byte: u8) -> bool {
    matches!(byte, b'a'..=b'z' | 0xdf..=0xff) && byte != 0xf7
}

/// Returns the bytes at the end of the name that mark a backup.
fn backup_suffix(name: &[u8]) -> usize {
    let before = |from_end: usize| name.len().checked_sub(from_end).map(|at| name[at]);
    let ends = |suffix: &[u8]| {
        name.len() > suffix.len() && name[name.len() - suffix.len()..].eq_ignore_ascii_case(suffix)
    };
    if ends(b"~") && before(2) != Some(b'.') {
        1
    } else if ends(b".bak") || ends(b".sav") {
        4
    } else if ends(b".orig") {
        5
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Results of Lustre's own functions: of 5 shards by each hash, and of 2000 by both kinds of crush.
    const VECTORS: &[(&[u8], [u32; 4], [u32; 2])] = &[
        (b"a", [2, 1, 2, 2], [1322, 1322]),
        (b"foo", [4, 2, 1, 1], [704, 704]),
        (b"file.mdtest.12.12345", [0, 1, 3, 2], [560, 1734]),
        (b"output.6334.log", [1, 2, 3, 4], [428, 1948]),
        (b".data.bin.a1B2c3", [3, 1, 1, 1], [879, 879]),
        (b"data.bin", [4, 3, 1, 1], [879, 879]),
        (b"data.bin.aB3dE6gH", [2, 3, 1, 1], [879, 879]),
        (b"notes.txt~", [2, 4, 4, 4], [1731, 1731]),
        (b"notes.txt", [1, 4, 4, 4], [1731, 1731]),
        (b"notes.txt.bak", [4, 1, 4, 4], [1731, 1731]),
        (b"notes.txt.ORIG", [2, 4, 3, 4], [66, 1731]),
        (b"file.00000001", [2, 2, 0, 2], [430, 1773]),
        (b"file.v0000001", [2, 3, 4, 0], [521, 430]),
        (b"file.0000000v", [1, 2, 0, 4], [430, 1598]),
        (b".f.123456", [3, 3, 1, 2], [29, 737]),
        (b"f", [2, 0, 1, 1], [29, 29]),
        (b".data.bin.\xc3\xa9B2c3", [1, 4, 1, 4], [879, 1880]),
        (b"\xe6\x96\x87\xe4\xbb\xb6", [2, 1, 0, 0], [349, 349]),
    ];

    #[test]
    fn every_hash_places_names_where_lustre_does() {
        for (name, of_five, of_many) in VECTORS {
            let name_shown = name.escape_ascii();
            assert_eq!(DirHash::ALL.map(|hash| hash.shard(name, 5)), *of_five, "{name_shown}");
            let many = [DirHash::Crush, DirHash::Crush2].map(|hash| hash.shard(name, 2000));
            assert_eq!(many, *of_many, "{name_shown}");
        }
    }

    #[test]
    fn names_and_numbers_are_lustres() {
        let all = DirHash::ALL.map(|hash| (hash.number(), hash.name()));
        assert_eq!(all, [(1, "all_char"), (2, "fnv_1a_64"), (3, "crush"), (4, "crush2")]);
        for hash in DirHash::ALL {
            assert_eq!(DirHash::from_number(hash.number()), Some(hash));
            assert_eq!(DirHash::from_name(hash.name()), Some(hash));
        }
        assert_eq!((DirHash::from_number(0), DirHash::from_number(5)), (None, None));
        assert_eq!((DirHash::from_name("none"), DirHash::from_name("")), (None, None));
    }

    #[test]
    fn one_shard_has_all_names() {
        for hash in DirHash::ALL {
            assert_eq!([hash.shard(b"name", 0), hash.shard(b"name", 1)], [0, 0]);
        }
    }

    #[test]
    fn every_shard_gets_its_part_and_crush_moves_few_names_when_one_is_added() {
        const NAMES: u32 = 8000;
        let names: Vec<_> = (0..NAMES).map(|number| format!("f{number}").into_bytes()).collect();
        for hash in [DirHash::Fnv1a64, DirHash::Crush, DirHash::Crush2] {
            let mut counts = [0u32; 8];
            names.iter().for_each(|name| counts[hash.shard(name, 8) as usize] += 1);
            assert!(
                counts.iter().all(|count| (NAMES / 10..NAMES / 6).contains(count)),
                "{hash:?}: {counts:?}"
            );
        }
        let moved =
            |hash: DirHash| names.iter().filter(|name| hash.shard(name, 4) != hash.shard(name, 5)).count();
        let fifth = NAMES as usize / 5;
        assert!(moved(DirHash::Crush2) < fifth * 5 / 4, "{}", moved(DirHash::Crush2));
        assert!(moved(DirHash::Fnv1a64) > fifth * 3);
        let astray =
            |name: &&Vec<u8>| ![DirHash::Crush.shard(name, 4), 4].contains(&DirHash::Crush.shard(name, 5));
        assert_eq!(names.iter().find(astray), None, "a name moves to the new shard or not at all");
    }

    #[test]
    fn any_bytes_have_a_shard() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..20_000 {
            let len = random.usize(..24);
            let name: Vec<u8> = (0..len).map(|_| b"aZ9.~\xc3\xd7\xf7bako"[random.usize(..12)]).collect();
            let count = random.u32(1..=2000);
            assert!(
                DirHash::ALL.into_iter().all(|hash| hash.shard(&name, count) < count),
                "{name:?} {count}"
            );
        }
    }
}
