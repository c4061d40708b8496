//! Options after the path of a device of an OST: `[,size=BYTES][,force]`.

use crate::failure::{Failure, Result};
use std::fmt;

/// The option that permits to overwrite data.
pub const FORCE: &str = "force";

/// Parsed options; see the module's documentation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceWords {
    /// Size of a file to create, in bytes.
    pub size: Option<u64>,
    /// Overwrite existing data.
    pub force: bool,
}

impl DeviceWords {
    /// Parses the options, in any order. `wrong` builds the failure from a reason.
    ///
    /// # Errors
    /// If an option is unknown, given twice or not a number of bytes.
    pub fn parse<'a>(
        words: impl Iterator<Item = &'a str>,
        wrong: impl Fn(&str) -> Failure,
    ) -> Result<DeviceWords> {
        let mut read = DeviceWords::default();
        for word in words {
            match word.split_once('=') {
                Some(("size", value)) if read.size.is_none() => {
                    let bytes = nacre_params::value::bytes(value, 1);
                    read.size = Some(bytes.map_err(|_| wrong("the size is no number of bytes"))?);
                }
                None if word == FORCE && !read.force => read.force = true,
                _ => return Err(wrong(&format!("'{word}' is not known"))),
            }
        }
        Ok(read)
    }

    /// Returns true if no option is given.
    pub fn is_empty(&self) -> bool {
        *self == DeviceWords::default()
    }
}

impl fmt::Display for DeviceWords {
    /// Writes the options in command-line form, each with its comma.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(size) = self.size {
            write!(f, ",size={size}")?;
        }
        f.write_str(if self.force { ",force" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_in_any_order_and_once() {
        let parse = |text: &str| {
            DeviceWords::parse(text.split_terminator(','), |why| Failure::usage(format!("no: {why}")))
        };
        assert!(parse("").expect("nothing").is_empty());
        for (text, size, force) in [
            ("force", None, true),
            ("size=4096", Some(4096), false),
            ("force,size=64M", Some(64 << 20), true),
            ("size=1.5GiB,force", Some(3 << 29), true),
        ] {
            assert_eq!(parse(text).expect(text), DeviceWords { size, force }, "{text}");
        }
        for text in [
            "size",
            "size=",
            "size=1X",
            "size=-1",
            "size=99999999T",
            "size=1,size=1",
            "force,force",
            "x",
            " ",
        ] {
            parse(text).expect_err(text);
        }
    }
}
