//! Lists of percentages and sizes on the command line: `10..80`, `1M..64M`, `0,10,40..60`.

use nacre_common::size;

/// Step of the percentages of a range, and of the degrees of fragmentation.
pub(super) const STEP: u8 = 10;
/// Share of the capacity that may be filled, in percent, at most: the measured file has to fit in addition.
const CAPACITY_MAX: u8 = 90;
/// Degree of fragmentation in percent, at most.
const FRAGMENT_MAX: u8 = 90;
/// Size of a transfer in bytes, at most: a buffer of this size is held in memory.
const XFER_MAX: u64 = 1 << 30;
/// Unit of transfers in bytes: O_DIRECT accepts it on every device.
pub(super) const UNIT: u64 = 4096;

/// Splits a list into parts, each one value or the two ends of a range.
fn parts(text: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    text.split(',').map(|part| match part.split_once("..") {
        Some((first, last)) => (first.trim(), Some(last.trim_start_matches('=').trim())),
        None => (part.trim(), None),
    })
}

fn percents(option: &str, text: &str, most: u8) -> Result<Vec<u8>, String> {
    let number = |word: &str| match word.parse::<u8>() {
        Ok(value) if value <= most => Ok(value),
        _ => Err(format!(
            "--{option} '{text}': '{word}' is no percentage from 0 to {most}; write 10..80, or 10,40,80"
        )),
    };
    let mut all = Vec::new();
    for (first, last) in parts(text) {
        let first = number(first)?;
        let last = last.map(number).transpose()?;
        match last {
            Some(last) if last < first => {
                return Err(format!("--{option} '{text}': {first}..{last} ends before it begins"));
            }
            Some(last) => all.extend((first..=last).step_by(STEP.into())),
            None => all.push(first),
        }
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// Parses the levels to fill, in percent.
///
/// # Errors
///
/// A sentence for the user.
pub(super) fn capacities(text: &str) -> Result<Vec<u8>, String> {
    percents("capacity", text, CAPACITY_MAX)
}

/// Parses degrees of fragmentation, in percent.
///
/// # Errors
///
/// A sentence for the user.
pub(super) fn fragments(text: &str) -> Result<Vec<u8>, String> {
    let all = percents("fragment", text, FRAGMENT_MAX)?;
    match all.iter().find(|percent| !percent.is_multiple_of(STEP)) {
        Some(wrong) => Err(format!(
            "--fragment '{text}': {wrong} is no multiple of {STEP}: files are removed and rewritten {STEP} % at a time"
        )),
        None => Ok(all),
    }
}

/// Parses sizes of transfers in bytes; a range doubles.
///
/// # Errors
///
/// A sentence for the user.
pub(super) fn sizes(text: &str) -> Result<Vec<u64>, String> {
    let number = |word: &str| {
        let bytes = size::parse(word).map_err(|why| format!("--xfer '{text}': {why}"))?;
        match bytes {
            UNIT..=XFER_MAX if bytes.is_multiple_of(UNIT) => Ok(bytes),
            _ => Err(format!(
                "--xfer '{text}': {word} is no multiple of {UNIT} bytes between {UNIT} bytes and 1 GiB"
            )),
        }
    };
    let mut all = Vec::new();
    for (first, last) in parts(text) {
        let first = number(first)?;
        match last.map(number).transpose()? {
            Some(last) if last < first => {
                return Err(format!("--xfer '{text}': the range ends before it begins"));
            }
            Some(last) => {
                all.extend(std::iter::successors(Some(first), |bytes| Some(bytes * 2).filter(|&b| b <= last)))
            }
            None => all.push(first),
        }
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_go_in_tens_and_double() {
        assert_eq!(capacities("10..80"), Ok(vec![10, 20, 30, 40, 50, 60, 70, 80]));
        assert_eq!(capacities("0,40, 10..20"), Ok(vec![0, 10, 20, 40]));
        assert_eq!(fragments("0..=70").expect("the talk's").len(), 8);
        assert_eq!(sizes("1M..64M").expect("the talk's").len(), 7);
        assert_eq!(sizes("16M,1M,4M"), Ok(vec![1 << 20, 4 << 20, 16 << 20]));
        assert_eq!(sizes("4k"), Ok(vec![4096]));
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_a_sentence_that_names_it() {
        for (wrong, names) in
            [("100", "0 to 90"), ("", "''"), ("80..10", "before it begins"), ("x..y", "'x'")]
        {
            let said = capacities(wrong).expect_err(wrong);
            assert!(said.contains("--capacity") && said.contains(names), "{said}");
        }
        assert!(fragments("0,35").expect_err("no multiple").contains("multiple of 10"));
        assert!(fragments("-10").is_err() && fragments("300").is_err());
        for wrong in ["1000", "0", "2G", "64M..1M", "1M..", "one", "18446744073709551615t"] {
            assert!(sizes(wrong).expect_err(wrong).contains("--xfer"), "{wrong}");
        }
    }
}
