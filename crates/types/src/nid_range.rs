//! Ranges of addresses, as Lustre writes them.

use crate::identity::number;
use crate::nodemap::NodemapError;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A set of client addresses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum NidRange {
    /// IPv4 addresses with each byte in a range, both ends included.
    Bytes([(u8, u8); 4]),
    /// Addresses between two of the same kind, both included.
    Span(IpAddr, IpAddr),
    /// Addresses with the same first bits as this one.
    Prefix(IpAddr, u8),
}

fn bits_of(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => ip.into(),
    }
}

fn width_of(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

impl NidRange {
    /// True if the range contains an address.
    pub fn has(&self, ip: IpAddr) -> bool {
        match self {
            NidRange::Bytes(bytes) => match ip {
                IpAddr::V4(ip) => {
                    ip.octets().iter().zip(bytes).all(|(byte, (low, high))| (low..=high).contains(&byte))
                }
                IpAddr::V6(_) => false,
            },
            NidRange::Span(first, last) => first.is_ipv4() == ip.is_ipv4() && (first..=last).contains(&&ip),
            NidRange::Prefix(of, bits) => {
                let shift = u32::from(width_of(*of) - bits);
                let same = |of, ip| u128::checked_shr(bits_of(of) ^ bits_of(ip), shift).unwrap_or(0) == 0;
                of.is_ipv4() == ip.is_ipv4() && same(*of, ip)
            }
        }
    }

    /// Returns the number of addresses in the range, less one.
    pub fn size(&self) -> u128 {
        match self {
            NidRange::Bytes(bytes) => {
                bytes.iter().map(|(low, high)| u128::from(high - low) + 1).product::<u128>() - 1
            }
            NidRange::Span(first, last) => bits_of(*last) - bits_of(*first),
            NidRange::Prefix(of, bits) => {
                u128::checked_shl(1, u32::from(width_of(*of) - bits)).unwrap_or(0).wrapping_sub(1)
            }
        }
    }
}

impl fmt::Display for NidRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NidRange::Bytes(bytes) => {
                let byte = |(low, high): &(u8, u8)| match low == high {
                    true => low.to_string(),
                    false => format!("[{low}-{high}]"),
                };
                write!(f, "{}@tcp", bytes.iter().map(byte).collect::<Vec<_>>().join("."))
            }
            NidRange::Span(first, last) => write!(f, "{first}@tcp:{last}@tcp"),
            NidRange::Prefix(of, bits) if *bits == width_of(*of) => write!(f, "{of}@tcp"),
            NidRange::Prefix(of, bits) => write!(f, "{of}/{bits}@tcp"),
        }
    }
}

impl FromStr for NidRange {
    type Err = NodemapError;

    fn from_str(text: &str) -> Result<NidRange, NodemapError> {
        let bare = |nid: &str| {
            nid.strip_suffix("@tcp")
                .or(nid.strip_suffix("@tcp0"))
                .map(str::to_owned)
                .ok_or(NodemapError::Range)
        };
        let ip = |text: &str| text.parse::<IpAddr>().map_err(|_| NodemapError::Range);
        for between in ["@tcp:", "@tcp0:"] {
            if let Some((first, last)) = text.split_once(between) {
                let (first, last) = (ip(first)?, ip(&bare(last)?)?);
                let is_range = first.is_ipv4() == last.is_ipv4() && first <= last;
                return if is_range { Ok(NidRange::Span(first, last)) } else { Err(NodemapError::Range) };
            }
        }
        let address = bare(text)?;
        if let Some((of, bits)) = address.split_once('/') {
            let of = ip(of)?;
            let bits = number(bits).and_then(|bits| u8::try_from(bits).ok());
            let bits = bits.filter(|bits| *bits <= width_of(of)).ok_or(NodemapError::Range)?;
            return Ok(NidRange::Prefix(of, bits));
        }
        if let Ok(ip) = ip(&address) {
            return Ok(NidRange::Prefix(ip, width_of(ip)));
        }
        let mut bytes = [(0, 0); 4];
        let mut words = address.split('.');
        for place in &mut bytes {
            *place = words.next().and_then(byte_range).ok_or(NodemapError::Range)?;
        }
        match (bytes, words.next()) {
            (_, Some(_)) => Err(NodemapError::Range),
            // One address has one form, also if it is written as `10.0.00.1` or `10.0.0.[1-1]`.
            ([(a, _), (b, _), (c, _), (d, _)], None) if bytes.iter().all(|(low, high)| low == high) => {
                Ok(NidRange::Prefix([a, b, c, d].into(), 32))
            }
            (bytes, None) => Ok(NidRange::Bytes(bytes)),
        }
    }
}

/// Parses `7`, `[1-254]` or `*`.
fn byte_range(text: &str) -> Option<(u8, u8)> {
    let byte = |text: &str| number(text).and_then(|byte| u8::try_from(byte).ok());
    if text == "*" {
        return Some((0, 255));
    }
    match text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        None => byte(text).map(|byte| (byte, byte)),
        Some(range) => {
            let (low, high) = range.split_once('-')?;
            Some((byte(low)?, byte(high)?)).filter(|(low, high)| low <= high)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address of this test")
    }

    fn range(text: &str) -> NidRange {
        text.parse().expect("a range of this test")
    }

    #[test]
    fn one_address_is_equal_to_itself_in_all_notations() {
        let range = |text: &str| text.parse::<NidRange>().expect(text);
        for text in ["10.0.00.1@tcp", "10.0.0.[1-1]@tcp", "10.0.0.1/32@tcp0"] {
            assert_eq!(range(text), range("10.0.0.1@tcp"), "{text}");
        }
    }

    #[test]
    fn ranges_have_the_addresses_that_they_say() {
        for (text, within, outside) in [
            ("10.0.0.7@tcp", &["10.0.0.7"][..], &["10.0.0.8", "::7"][..]),
            ("10.0.[1-2].*@tcp", &["10.0.1.0", "10.0.2.255"], &["10.0.0.1", "10.0.3.1", "11.0.1.1"]),
            (
                "10.0.0.9@tcp:10.0.1.3@tcp",
                &["10.0.0.9", "10.0.0.255", "10.0.1.3"],
                &["10.0.0.8", "10.0.1.4", "::1"],
            ),
            ("10.1.0.0/16@tcp0", &["10.1.0.0", "10.1.255.255"], &["10.2.0.0", "::1"]),
            ("0.0.0.0/0@tcp", &["1.2.3.4", "255.255.255.255"], &["::1"]),
            ("::1@tcp", &["::1"], &["::2", "0.0.0.1"]),
            ("fd00::/8@tcp", &["fd00::1", "fdff::"], &["fc00::1"]),
            ("::/0@tcp", &["::1"], &["1.2.3.4"]),
        ] {
            let range = range(text);
            assert!(within.iter().all(|text| range.has(ip(text))), "{text}");
            assert!(!outside.iter().any(|text| range.has(ip(text))), "{text}");
            assert_eq!(range.to_string().parse(), Ok(range), "{text}");
        }
        for text in [
            "",
            "10.0.0.1",
            "10.0.0@tcp",
            "10.0.0.0.1@tcp",
            "10.0.0.256@tcp",
            "10.0.0.[2-1]@tcp",
            "10.0.0.[1-]@tcp",
            "10.0.0.+1@tcp",
            "10.0.0.0/33@tcp",
            "10.0.0.2@tcp:10.0.0.1@tcp",
            "10.0.0.2@tcp:::1@tcp",
            "0@lo",
            "10.0.0.1@o2ib",
        ] {
            assert_eq!(text.parse::<NidRange>(), Err(NodemapError::Range), "{text}");
        }
    }
}
