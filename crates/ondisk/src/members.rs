//! The list of targets that a directory of a file system holds, for superblocks that do not count them: text,
//! readable with `cat`.
//!
//! ```text
//! nacre-targets 1
//! MDT0002
//! crc32c 0123abcd
//! ```
//!
//! The checksum is over all bytes before its line.

use crate::codec::crc32c;
use nacre_types::TargetId;
use std::fmt::Write;

const HEADER: &str = "nacre-targets 1";

/// Encodes the list as text.
pub fn encode(targets: &[TargetId]) -> String {
    let mut text = format!("{HEADER}\n");
    for target in targets {
        writeln!(text, "{target}").expect("writing to a string cannot fail");
    }
    let crc = crc32c(text.as_bytes());
    writeln!(text, "crc32c {crc:08x}").expect("writing to a string cannot fail");
    text
}

/// Decodes the text, in its order; `None` if it is malformed, was changed, or names a target twice.
pub fn decode(text: &str) -> Option<Vec<TargetId>> {
    let (body, last) = text.split_at(text.rfind("crc32c ")?);
    let crc = last.strip_prefix("crc32c ")?.strip_suffix('\n')?;
    let lines = body.strip_prefix(HEADER)?.strip_prefix('\n')?;
    if crc.len() != 8 || u32::from_str_radix(crc, 16).ok()? != crc32c(body.as_bytes()) {
        return None;
    }
    let targets = lines.lines().map(|line| line.parse().ok()).collect::<Option<Vec<TargetId>>>()?;
    let mut sorted = targets.clone();
    sorted.sort_unstable();
    sorted.dedup();
    (sorted.len() == targets.len()).then_some(targets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_text_round_trips_and_every_change_is_noticed() {
        let targets = [TargetId::mgt(), TargetId::mdt(0), TargetId::ost(0), TargetId::mdt(0x1f)];
        let text = encode(&targets);
        assert_eq!(text, "nacre-targets 1\nMGT\nMDT0000\nOST0000\nMDT001f\ncrc32c 2f407eec\n");
        assert_eq!(decode(&text), Some(targets.to_vec()));
        for at in 0..text.len() {
            assert_eq!(decode(&text[..at]), None, "cut at {at}");
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            if let Ok(changed) = String::from_utf8(bytes) {
                assert_eq!(decode(&changed), None, "changed at {at}");
            }
        }
        assert_eq!(decode(&encode(&[])), Some(Vec::new()));
        assert_eq!(decode(&encode(&[TargetId::mdt(1), TargetId::mdt(1)])), None);
    }
}
