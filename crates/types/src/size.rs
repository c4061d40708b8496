//! Suffixes of sizes.

/// Returns the factor of a suffix: k, M, G, T, P, E in either case for powers of 1024, optionally followed by
/// `B` or `iB`; `None` for all others, including an empty one.
pub fn suffix_factor(suffix: &str) -> Option<u64> {
    let mut letters = suffix.chars();
    let shift = match letters.next()?.to_ascii_lowercase() {
        'k' => 10,
        'm' => 20,
        'g' => 30,
        't' => 40,
        'p' => 50,
        'e' => 60,
        _ => return None,
    };
    matches!(letters.as_str(), "" | "b" | "B" | "iB").then_some(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::suffix_factor;

    #[test]
    fn suffixes_are_powers_of_1024() {
        for (text, shift) in [("k", 10), ("K", 10), ("MiB", 20), ("gB", 30), ("Tb", 40), ("P", 50), ("E", 60)]
        {
            assert_eq!(suffix_factor(text), Some(1 << shift), "{text}");
        }
        for wrong in ["", "B", "x", "kk", "Mi", "MIB", "ki B", "é"] {
            assert_eq!(suffix_factor(wrong), None, "{wrong}");
        }
    }
}
