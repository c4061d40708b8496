//! The options with which a file system directory was last started: text, readable with `cat`.
//!
//! ```text
//! nacre-start 1
//! shape separate
//! listen 10.0.0.1@tcp
//! mount /mnt/nacre
//! options ro,nosuid
//! security authenticate
//! metrics 127.0.0.1:9820
//! crc32c 0123abcd
//! ```
//!
//! `listen` lines are in the order of preference; `mount`, `options`, `security` and `metrics` are optional. Bytes of a
//! value outside printable ASCII, and `%`, are `%` and two hexadecimal digits. The checksum is over all bytes
//! before its line.

use crate::codec::crc32c;
use std::fmt::Write;

const HEADER: &str = "nacre-start 1";

/// Options of a start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartRecord {
    /// Each server runs in a process of its own.
    pub is_separate: bool,
    /// Addresses for other hosts, as users write them.
    pub listen: Vec<String>,
    /// Mount point: the bytes of an absolute path.
    pub mount: Option<Vec<u8>>,
    /// Mount options, separated by commas.
    pub options: String,
    /// Protection of connections, as users write it; empty for the default.
    pub security: String,
    /// Address that serves figures, as users write it; empty for none.
    pub metrics: String,
}

fn escaped(bytes: &[u8]) -> String {
    let mut out = String::new();
    for &byte in bytes {
        match byte {
            b' '..=b'~' if byte != b'%' => out.push(char::from(byte)),
            _ => write!(out, "%{byte:02x}").expect("writing to a string cannot fail"),
        }
    }
    out
}

fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        out.push(match byte {
            b'%' => {
                let (digits, after) = rest.split_first_chunk::<2>()?;
                rest = after;
                u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?
            }
            b' '..=b'~' => byte,
            _ => return None,
        });
    }
    Some(out)
}

/// Encodes the options as text.
pub fn encode(start: &StartRecord) -> String {
    let mut text = format!("{HEADER}\n");
    let mut line = |word: &str, value: &[u8]| {
        writeln!(text, "{word} {}", escaped(value)).expect("writing to a string cannot fail");
    };
    line("shape", if start.is_separate { b"separate" } else { b"one" });
    start.listen.iter().for_each(|address| line("listen", address.as_bytes()));
    if let Some(mount) = &start.mount {
        line("mount", mount);
    }
    if !start.options.is_empty() {
        line("options", start.options.as_bytes());
    }
    if !start.security.is_empty() {
        line("security", start.security.as_bytes());
    }
    if !start.metrics.is_empty() {
        line("metrics", start.metrics.as_bytes());
    }
    let crc = crc32c(text.as_bytes());
    writeln!(text, "crc32c {crc:08x}").expect("writing to a string cannot fail");
    text
}

/// Decodes the text; `None` if it is malformed or was changed.
pub fn decode(text: &str) -> Option<StartRecord> {
    let (body, last) = text.split_at(text.rfind("crc32c ")?);
    let crc = last.strip_prefix("crc32c ")?.strip_suffix('\n')?;
    let lines = body.strip_prefix(HEADER)?.strip_prefix('\n')?;
    // Compared as text: upper-case digits of the same value count as a change.
    if crc != format!("{:08x}", crc32c(body.as_bytes())) {
        return None;
    }
    let mut start = StartRecord::default();
    let mut shape = None;
    for line in lines.lines() {
        let (word, value) = line.split_once(' ')?;
        let value = unescaped(value)?;
        match word {
            "shape" if shape.is_none() => {
                shape = match value.as_slice() {
                    b"separate" => Some(true),
                    b"one" => Some(false),
                    _ => return None,
                }
            }
            "listen" => start.listen.push(String::from_utf8(value).ok()?),
            "mount" if start.mount.is_none() && value.starts_with(b"/") => start.mount = Some(value),
            "options" if start.options.is_empty() => start.options = String::from_utf8(value).ok()?,
            "metrics" if start.metrics.is_empty() => start.metrics = String::from_utf8(value).ok()?,
            "security" if start.security.is_empty() => start.security = String::from_utf8(value).ok()?,
            _ => return None,
        }
    }
    start.is_separate = shape?;
    Some(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_text_round_trips_and_every_change_is_noticed() {
        let start = StartRecord {
            is_separate: true,
            listen: vec!["host1@tcp".to_owned(), "[::]:7000@tcp".to_owned()],
            mount: Some(b"/mnt/a\n%\xff b".to_vec()),
            options: "ro,nosuid".to_owned(),
            security: "authenticate".to_owned(),
            metrics: "127.0.0.1:9820".to_owned(),
        };
        let text = encode(&start);
        assert_eq!(
            text,
            "nacre-start 1\nshape separate\nlisten host1@tcp\nlisten [::]:7000@tcp\nmount /mnt/a%0a%25%ff b\n\
             options ro,nosuid\nsecurity authenticate\nmetrics 127.0.0.1:9820\ncrc32c 40d5a5ac\n"
        );
        // Without figures the text is that of versions that had none.
        let plain = StartRecord { metrics: String::new(), ..start.clone() };
        assert!(encode(&plain).ends_with("security authenticate\ncrc32c 9155400e\n"));
        assert_eq!(decode(&text), Some(start));
        for at in 0..text.len() {
            assert_eq!(decode(&text[..at]), None, "cut at {at}");
            for bit in [1, 4, 0x20] {
                let mut bytes = text.clone().into_bytes();
                bytes[at] ^= bit;
                if let Ok(changed) = String::from_utf8(bytes) {
                    assert_eq!(decode(&changed), None, "changed at {at}");
                }
            }
        }
        assert_eq!(decode(&encode(&StartRecord::default())), Some(StartRecord::default()));
    }

    #[test]
    fn lines_that_make_no_sense_are_refused_whatever_the_checksum_says() {
        let with = |lines: &str| {
            let body = format!("{HEADER}\n{lines}");
            decode(&format!("{body}crc32c {:08x}\n", crc32c(body.as_bytes())))
        };
        assert!(with("shape one\n").is_some());
        for lines in [
            "",
            "shape two\n",
            "shape one\nshape one\n",
            "shape one\nmount relative\n",
            "shape one\nmount /a%4\n",
            "shape one\nlisten %ff\n",
            "shape one\nwhat ever\n",
            "shape one\nmount\n",
        ] {
            assert_eq!(with(lines), None, "{lines}");
        }
    }
}
