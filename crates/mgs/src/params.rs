//! The parameters that all nodes of a file system share.
//!
//! Names are Lustre's without the instance: `lov.stripesize` is Lustre's `lov.FS-clilov-*.stripesize` on a
//! client and `lod.FS-MDT0000-mdtlov.stripesize` on a server.

use nacre_layout::dir_hash::DirHash;
use nacre_types::limits::{STRIPE_COUNT_MAX, STRIPE_SIZE_DEFAULT, STRIPE_SIZE_MIN, TARGET_INDEX_MAX};

/// A parameter: its name, what it means, its default and its rule.
pub struct Param {
    /// Name as stored.
    pub name: &'static str,
    /// One line for people.
    pub help: &'static str,
    /// Value of a parameter that is not set.
    pub default: &'static str,
    /// Converts a user's text to the stored form; `None` if it is malformed or out of range.
    normal_form: fn(&str) -> Option<String>,
}

const STRIPE_SIZE_DEFAULT_TEXT: &str = "4194304";
const _: () = assert!(STRIPE_SIZE_DEFAULT == 4_194_304, "STRIPE_SIZE_DEFAULT_TEXT says the same in text");

/// All parameters, ordered by name.
pub const PARAMS: &[Param] = &[
    Param {
        name: "lov.mdt_hash",
        help: "how names are spread over the MDTs of directories that are made or split without saying how",
        default: "crush",
        normal_form: mdt_hash,
    },
    Param {
        name: "lov.stripecount",
        help: "stripes of a file whose directories say nothing; -1 for one on every OST",
        default: "1",
        normal_form: stripe_count,
    },
    Param {
        name: "lov.stripeoffset",
        help: "OST of the first stripe of such a file; -1 lets the server choose",
        default: "-1",
        normal_form: stripe_offset,
    },
    Param {
        name: "lov.stripesize",
        help: "bytes on one OST before the next; a multiple of 64 KiB below 4 GiB",
        default: STRIPE_SIZE_DEFAULT_TEXT,
        normal_form: stripe_size,
    },
];

impl Param {
    /// Returns the parameter with this name.
    pub fn find(name: &str) -> Option<&'static Param> {
        PARAMS.iter().find(|param| param.name == name)
    }

    /// Returns the parameter that a node shows under this name: `lov.stripesize`,
    /// `lov.nacre-clilov-*.stripesize` and `lod.*.stripesize` are the same one.
    pub fn shown_as(name: &str) -> Option<&'static Param> {
        let mut parts = name.split(['.', '/']);
        let (kind, leaf) = (parts.next()?, parts.next_back()?);
        let has_leaf = |param: &&Param| param.name.split_once('.').is_some_and(|(_, known)| known == leaf);
        PARAMS.iter().find(has_leaf).filter(|_| matches!(kind, "lov" | "lod"))
    }

    /// Converts a value to the stored form; `None` if it is malformed or out of range.
    pub fn normal_form(&self, value: &str) -> Option<String> {
        (self.normal_form)(value.trim())
    }
}

fn mdt_hash(value: &str) -> Option<String> {
    let hash = match value.parse() {
        Ok(number) => DirHash::from_number(number),
        Err(_) => DirHash::from_name(value),
    };
    hash.map(|hash| hash.name().to_owned())
}

fn stripe_count(value: &str) -> Option<String> {
    let count: i32 = value.parse().ok()?;
    (count == -1 || (1..=i32::from(STRIPE_COUNT_MAX)).contains(&count)).then(|| count.to_string())
}

fn stripe_offset(value: &str) -> Option<String> {
    let index: i32 = value.parse().ok()?;
    (-1..i32::from(TARGET_INDEX_MAX)).contains(&index).then(|| index.to_string())
}

fn stripe_size(value: &str) -> Option<String> {
    let bytes = parse_size(value)?;
    let good = bytes != 0 && bytes.is_multiple_of(u64::from(STRIPE_SIZE_MIN)) && bytes <= u64::from(u32::MAX);
    good.then(|| bytes.to_string())
}

/// Parses a number of bytes with an optional suffix k, M, G or T (powers of 1024).
fn parse_size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 10),
        b'm' | b'M' => (&text[..text.len() - 1], 20),
        b'g' | b'G' => (&text[..text.len() - 1], 30),
        b't' | b'T' => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().ok()?;
    number.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_faces_of_a_shared_parameter_are_one() {
        let shown = |name| Param::shown_as(name).map(|param| param.name);
        for name in
            ["lov.stripesize", "lov.nacre-clilov-*.stripesize", "lod.*.stripesize", "lod/*/stripesize"]
        {
            assert_eq!(shown(name), Some("lov.stripesize"), "{name}");
        }
        for name in ["lov", "lov.nosuch", "osc.*.stripesize", ""] {
            assert_eq!(shown(name), None, "{name}");
        }
    }

    #[test]
    fn values_are_brought_to_one_form_or_refused() {
        let form = |name, value: &str| Param::find(name).expect(name).normal_form(value);
        assert_eq!(form("lov.stripesize", "1M").as_deref(), Some("1048576"));
        assert_eq!(form("lov.stripesize", " 65536 ").as_deref(), Some("65536"));
        for bad in ["", "0", "100000", "4G", "x", "-1", "99999999999999999999", "99999999999T"] {
            assert_eq!(form("lov.stripesize", bad), None, "{bad}");
        }
        assert_eq!(form("lov.stripecount", "-1").as_deref(), Some("-1"));
        assert_eq!(form("lov.stripecount", "0"), None);
        assert_eq!(form("lov.stripecount", "2001"), None);
        assert_eq!(form("lov.stripeoffset", "3").as_deref(), Some("3"));
        assert_eq!(form("lov.mdt_hash", "crush2").as_deref(), Some("crush2"));
        assert_eq!(form("lov.mdt_hash", "2").as_deref(), Some("fnv_1a_64"));
        for bad in ["", "0", "5", "CRUSH", "65536"] {
            assert_eq!(form("lov.mdt_hash", bad), None, "{bad}");
        }
        assert!(Param::find("lov.nosuch").is_none());
    }

    #[test]
    fn the_table_is_ordered_and_its_defaults_obey_its_rules() {
        assert!(PARAMS.is_sorted_by(|a, b| a.name < b.name));
        for param in PARAMS {
            assert_eq!(param.normal_form(param.default).as_deref(), Some(param.default), "{}", param.name);
        }
    }
}
