//! OSTs as users write them for pools: an index, a name, or a list of either in brackets.
//!
//! ```text
//! [FSNAME-]OST0001[_UUID]      one, in hexadecimal
//! [FSNAME-]OST[0-a/2,c][_UUID] several: ranges with an optional step, in hexadecimal
//! 1    [0-3,8]    0-6/2        the same in decimal (0x.. is hexadecimal)
//! ```

use nacre_types::limits::TARGET_INDEX_MAX;

/// Parses the indexes of a word, in its order, each once.
///
/// # Errors
/// A short phrase with the reason.
pub fn parse(word: &str, fsname: &str) -> Result<Vec<u16>, String> {
    let bare = word.strip_suffix("_UUID").unwrap_or(word);
    let (radix, list) = match bare.strip_prefix("OST") {
        Some(list) => (16, list),
        None => match bare.split_once("-OST") {
            Some((name, list)) if name == fsname => (16, list),
            Some((name, _))
                if !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') =>
            {
                return Err(format!("OST {word} is not part of the '{fsname}' fs"));
            }
            _ => (10, bare),
        },
    };
    let list = match list.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').ok_or_else(|| format!("'{word}' lacks a ']'"))?,
        None => list,
    };
    indexes(list, radix).ok_or_else(|| format!("'{word}' is no OST: FSNAME-OST0001, OST[0-3], 1 or [0-3,5]"))
}

/// Parses the numbers of a list such as `0-6/2,9`, each once; `None` if it is malformed or exceeds the limit.
pub fn indexes(list: &str, radix: u32) -> Option<Vec<u16>> {
    let mut found: Vec<u16> = Vec::new();
    for index in listed(list, radix)? {
        if !found.contains(&index) {
            found.push(index);
        }
    }
    Some(found)
}

/// Like [`indexes`], with duplicates.
pub fn listed(list: &str, radix: u32) -> Option<Vec<u16>> {
    let mut found: Vec<u16> = Vec::new();
    for part in list.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, index(step, radix).filter(|step| *step > 0)?),
            None => (part, 1),
        };
        let (first, last) = match range.split_once('-') {
            Some((first, last)) => (index(first, radix)?, index(last, radix)?),
            None => (index(range, radix)?, index(range, radix)?),
        };
        if first > last {
            return None;
        }
        found.extend((first..=last).step_by(usize::from(step)));
    }
    Some(found)
}

fn index(text: &str, radix: u32) -> Option<u16> {
    let (digits, radix) = match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (text, radix),
    };
    if digits.starts_with('+') {
        return None;
    }
    u16::from_str_radix(digits, radix).ok().filter(|index| *index < TARGET_INDEX_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn osts_are_named_in_lustres_ways() {
        let list = |word: &str| parse(word, "testfs").expect(word);
        assert_eq!(list("testfs-OST0001"), [1]);
        assert_eq!(list("testfs-OST001f_UUID"), [31]);
        assert_eq!(list("OST000a"), [10]);
        assert_eq!(list("OST[0-3/2]"), [0, 2]);
        assert_eq!(list("testfs-OST[0000-0003]_UUID"), [0, 1, 2, 3]);
        assert_eq!(list("testfs-OST[8-b,2]"), [8, 9, 10, 11, 2]);
        assert_eq!(list("1"), [1]);
        assert_eq!(list("10"), [10]);
        assert_eq!(list("0x10"), [16]);
        assert_eq!(list("[0-3,2,8]"), [0, 1, 2, 3, 8]);
        assert_eq!(list("0-6/3"), [0, 3, 6]);
    }

    #[test]
    fn what_is_no_ost_is_refused() {
        for word in
            ["", "x", "OST", "OST[0-3", "OST0001]", "3-1", "0-3/0", "65504", "-1", "OSTxyz", "1,,2", "+1"]
        {
            assert!(parse(word, "testfs").is_err(), "{word}");
        }
        let other = parse("other-OST0001", "testfs").expect_err("another file system");
        assert_eq!(other, "OST other-OST0001 is not part of the 'testfs' fs");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(word in "[OSTost0-9a-f,/\\[\\]_x-]{0,30}") {
            if let Ok(found) = parse(&word, "testfs") {
                prop_assert!(!found.is_empty());
                let mut sorted = found.clone();
                sorted.sort_unstable();
                sorted.dedup();
                prop_assert_eq!(sorted.len(), found.len());
            }
        }
    }
}
