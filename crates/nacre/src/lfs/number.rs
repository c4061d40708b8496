//! Numbers as Lustre's tools parse them.

use nacre_types::size::suffix_factor;

/// Bare stripe sizes below this are KiB.
const KIB_BELOW: u64 = 4096;

/// Parses a non-negative number in decimal, or with `0x` in hexadecimal.
pub fn parse_unsigned(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None if text.bytes().all(|b| b.is_ascii_digit()) => text.parse().ok(),
        None => None,
    }
}

/// Parses a number that may be negative.
pub fn parse_signed(text: &str) -> Option<i64> {
    match text.strip_prefix('-') {
        Some(digits) => parse_unsigned(digits).and_then(|n| i64::try_from(n).ok()).map(|n| -n),
        None => parse_unsigned(text).and_then(|n| i64::try_from(n).ok()),
    }
}

/// Parses a size in bytes with an optional suffix k K M G T P E (powers of 1024, an iB or B after it is
/// ignored); a bare number below 4096 is KiB.
pub fn parse_stripe_size(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_hexdigit() && c != 'x' && c != 'X').unwrap_or(text.len());
    // E is a hexadecimal digit: only numbers with 0x take hexadecimal digits.
    let end = match text.starts_with("0x") || text.starts_with("0X") {
        true => end,
        false => text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()),
    };
    let number = parse_unsigned(&text[..end]).filter(|_| end > 0)?;
    let factor = match &text[end..] {
        "" if number < KIB_BELOW => 1 << 10,
        "" | "b" | "B" => 1,
        suffix => suffix_factor(suffix)?,
    };
    number.checked_mul(factor)
}

/// Parses a number of bytes with an optional suffix as in [`parse_stripe_size`]; a bare number is bytes.
pub fn parse_bytes(text: &str) -> Option<u64> {
    match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => text.parse().ok(),
        false => parse_stripe_size(text).filter(|_| !text.starts_with("0x")).or_else(|| parse_unsigned(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_stripe_sizes_below_4096_are_kib() {
        assert_eq!(parse_stripe_size("64"), Some(65536));
        assert_eq!(parse_stripe_size("4095"), Some(4095 << 10));
        assert_eq!(parse_stripe_size("4096"), Some(4096));
        assert_eq!(parse_stripe_size("1048576"), Some(1 << 20));
        assert_eq!(parse_stripe_size("0x100000"), Some(1 << 20));
        assert_eq!(parse_stripe_size("0"), Some(0));
    }

    #[test]
    fn bare_numbers_of_bytes_are_bytes() {
        for (text, bytes) in [("0", 0), ("64", 64), ("64k", 65536), ("1M", 1 << 20), ("0x10", 16)] {
            assert_eq!(parse_bytes(text), Some(bytes), "{text}");
        }
        for bad in ["", "x", "-1", "1Q"] {
            assert_eq!(parse_bytes(bad), None, "{bad}");
        }
    }

    #[test]
    fn suffixes_are_powers_of_1024() {
        for (text, shift) in
            [("1k", 10), ("1K", 10), ("1M", 20), ("1g", 30), ("1T", 40), ("1P", 50), ("1E", 60)]
        {
            assert_eq!(parse_stripe_size(text), Some(1 << shift), "{text}");
        }
        assert_eq!(parse_stripe_size("4MiB"), Some(4 << 20));
        for bad in ["", "M", "abc", "1X", "-1", "1MM", "99E", "99999999999999999999", "1 M", "1\u{e9}"] {
            assert_eq!(parse_stripe_size(bad), None, "{bad}");
        }
    }

    #[test]
    fn signed_numbers_are_decimal_or_hexadecimal() {
        assert_eq!(parse_signed("-1"), Some(-1));
        assert_eq!(parse_signed("0x1f"), Some(31));
        for bad in ["", "-", "1x", "--1", "+1", "abc"] {
            assert_eq!(parse_signed(bad), None, "{bad}");
        }
    }
}
