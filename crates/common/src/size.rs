//! Sizes in the syntax of IOR.

/// Parses a number of bytes: digits with an optional suffix `k`, `m`, `g` or `t` (powers of 1024).
///
/// # Errors
///
/// A sentence for the user.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is no size: give a number, with k, m, g or t behind it if you like");
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// Formats a size like IOR: `4096 bytes`, or `4 KiB` for whole units.
pub fn show(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB")];
    match units.into_iter().find(|(shift, _)| bytes >= 1 << shift) {
        Some((shift, unit)) if bytes.is_multiple_of(1 << shift) => format!("{} {unit}", bytes >> shift),
        Some((shift, unit)) => format!("{:.2} {unit}", bytes as f64 / (1u64 << shift) as f64),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_letters_or_none() {
        assert_eq!(parse("47008"), Ok(47_008));
        assert_eq!(parse("64k"), Ok(65_536));
        assert_eq!(parse("1M"), Ok(1 << 20));
        assert_eq!(parse("2g"), Ok(2 << 30));
        for wrong in ["", "k", "-1", "1x", "99999999999t", "1.5m"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_shown_in_whole_units_from_mib_on() {
        assert_eq!(show(65_536), "65536 bytes");
        assert_eq!(show(4 << 20), "4 MiB");
        assert_eq!(show((1 << 20) + (1 << 19)), "1.50 MiB");
        assert_eq!(show(3 << 30), "3 GiB");
    }
}
