//! Values in the notations of Lustre's users.

use nacre_types::size::suffix_factor;
use nacre_types::{Status, StatusResult};

/// Parses a whole number within bounds.
///
/// # Errors
/// `EINVAL` if it is malformed, `ERANGE` out of bounds.
pub fn integer(text: &str, min: i64, max: i64) -> StatusResult<i64> {
    let number: i64 = text.trim().parse().map_err(|_| Status::EINVAL)?;
    if (min..=max).contains(&number) { Ok(number) } else { Err(Status::ERANGE) }
}

/// Parses a whole number that is not negative.
///
/// # Errors
/// `EINVAL` if it is malformed.
pub fn number(text: &str) -> StatusResult<u64> {
    text.trim().parse().map_err(|_| Status::EINVAL)
}

/// Checks that a number is at most `most`.
///
/// # Errors
/// `ERANGE` if it is larger.
pub fn up_to(number: u64, most: u32) -> StatusResult<u32> {
    u32::try_from(number).ok().filter(|number| *number <= most).ok_or(Status::ERANGE)
}

/// Parses a truth value: 0 or 1, y or n, on or off.
///
/// # Errors
/// `EINVAL` if it is none of these.
pub fn truth(text: &str) -> StatusResult<bool> {
    match text.trim() {
        "1" | "y" | "Y" | "yes" | "on" | "true" => Ok(true),
        "0" | "n" | "N" | "no" | "off" | "false" => Ok(false),
        _ => Err(Status::EINVAL),
    }
}

/// Parses a number of bytes: a number, perhaps with decimals, and a suffix k, M, G, T, P or E for powers of
/// 1024, which may be followed by `B` or `iB`. Without a suffix it counts in multiples of `unit` bytes.
///
/// # Errors
/// `EINVAL` if it is malformed, `ERANGE` beyond 2^63.
pub fn bytes(text: &str, unit: u64) -> StatusResult<u64> {
    let text = text.trim();
    let digits = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let factor = match suffix {
        "" => unit,
        "B" => 1,
        suffix => suffix_factor(suffix).ok_or(Status::EINVAL)?,
    };
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let parse = |text: &str| -> StatusResult<u64> {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if is_number { text.parse().map_err(|_| Status::ERANGE) } else { Err(Status::EINVAL) }
    };
    let whole = u128::from(parse(whole)?) * u128::from(factor);
    let places = u32::try_from(decimals.len()).ok().filter(|places| *places <= 9).ok_or(Status::EINVAL)?;
    let part = u128::from(parse(decimals)?) * u128::from(factor) / 10u128.pow(places);
    u64::try_from(whole + part).ok().filter(|bytes| *bytes <= 1 << 63).ok_or(Status::ERANGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_have_suffixes_or_count_in_the_unit_of_the_parameter() {
        const MIB: u64 = 1 << 20;
        for (text, expected) in [
            ("64", 64 * MIB),
            ("64M", 64 * MIB),
            ("64MiB", 64 * MIB),
            ("1.5G", 1536 * MIB),
            ("0.5", MIB / 2),
            ("512k", 512 << 10),
            ("4096B", 4096),
            (" 8 ", 8 * MIB),
            ("0", 0),
        ] {
            assert_eq!(bytes(text, MIB), Ok(expected), "{text}");
        }
        for bad in ["", "x", "-1", "M", "1Q", "1..2", ".5", "1.", "1 M x", "64BB5"] {
            assert_eq!(bytes(bad, MIB), Err(Status::EINVAL), "{bad}");
        }
        assert_eq!(bytes("99999999999999999999", 1), Err(Status::ERANGE));
        assert_eq!(bytes("99E", 1), Err(Status::ERANGE));
    }

    #[test]
    fn numbers_keep_their_bounds() {
        assert_eq!(integer(" 7\n", 0, 8), Ok(7));
        assert_eq!(integer("9", 0, 8), Err(Status::ERANGE));
        assert_eq!(integer("seven", 0, 8), Err(Status::EINVAL));
        assert_eq!((truth("on"), truth("0"), truth("2")), (Ok(true), Ok(false), Err(Status::EINVAL)));
    }

    proptest! {
        #[test]
        fn any_text_is_a_size_or_an_error(text in ".{0,16}", unit in 0u64..(1 << 40)) {
            let _ = bytes(&text, unit);
        }
    }
}
