//! Output formats `--printf`, `--ls` and `--json`.

use super::layout::Shape;
use super::mode::{kind_letter, mode_text};
use super::predicate::{Spread, Stamp};
use super::time::ctime;
use crate::lfs::identity::{Kind, Names};
use crate::lfs::json;
use nacre_layout::DirHash;
use nacre_types::{Attr, FileKind};
use serde_json::{Value, json};

/// Format of `--ls`.
pub const LS: &str = "%i\\t%k\\t%M\\t%n\\t%u\\t%g\\t%s\\t%t\\t%p\\n";

/// A part of a format.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    /// Literal bytes.
    Text(Vec<u8>),
    /// A field of an entry, one of [`FIELDS`].
    Value { field: &'static str, width: usize, left: bool, zeros: bool },
}

/// Fields after `%` and the width, longer ones first.
const FIELDS: &[&str] = &[
    "La", "LA", "Lc", "LF", "Lh", "Li", "Lo", "Lp", "LP", "LS", "A@", "C@", "T@", "W@", "a", "c", "t", "w",
    "b", "g", "G", "i", "k", "m", "M", "n", "p", "s", "u", "U", "y",
];

/// A parsed format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    pieces: Vec<Piece>,
}

/// Values of an entry that a format may print.
#[derive(Clone, Copy, Debug)]
pub struct Printed<'a> {
    /// Path as the walk reached it.
    pub path: &'a [u8],
    /// Attributes of the entry.
    pub attr: &'a Attr,
    /// Layout of the entry, if the format needs it.
    pub shape: &'a Shape,
    /// Distribution of a directory's names over MDTs, if the format needs it.
    pub spread: &'a Spread,
}

impl Printed<'_> {
    /// Returns a line of JSON: sizes are bytes, times seconds since 1970.
    pub fn json_line(&self) -> String {
        let Printed { attr, shape, spread, .. } = *self;
        let kind = match attr.kind() {
            FileKind::Fifo => "fifo",
            FileKind::CharDevice => "char_device",
            FileKind::Directory => "directory",
            FileKind::BlockDevice => "block_device",
            FileKind::Regular => "file",
            FileKind::Symlink => "symlink",
            FileKind::Socket => "socket",
        };
        let mut value = json!({
            "path": String::from_utf8_lossy(self.path),
            "type": kind,
            "fid": attr.fid.to_string(),
            "mdt_index": attr.fid.mdt_index(),
            "mode": format!("{:04o}", attr.mode & 0o7777),
            "links": attr.nlink,
            "uid": attr.uid,
            "gid": attr.gid,
            "projid": attr.projid,
            "size": attr.size,
            "allocated_bytes": attr.blocks.saturating_mul(512),
            "atime": attr.atime.sec,
            "mtime": attr.mtime.sec,
            "ctime": attr.ctime.sec,
            "btime": attr.btime.sec,
            "layout": match shape {
                Shape::None => Value::Null,
                Shape::Foreign(kind) => json!({ "foreign_type": kind }),
                Shape::Striped(view) => json::layout(view),
            },
        });
        if attr.is_dir() {
            value["hash"] = json::hash_name(spread.hash);
            value["shards_on_mdts"] = spread.mdts.clone().into();
        }
        format!("{value}\n")
    }
}

impl Format {
    /// Parses a format. Text that is not a directive is literal.
    pub fn parse(text: &str) -> Format {
        let (mut pieces, mut plain) = (Vec::new(), Vec::new());
        let bytes = text.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let (used, piece) = match rest {
                [b'%', b'%', ..] => (2, Ok(b'%')),
                [b'\\', b'n', ..] => (2, Ok(b'\n')),
                [b'\\', b't', ..] => (2, Ok(b'\t')),
                [b'\\', b'0', ..] => (2, Ok(0)),
                [b'\\', b'\\', ..] => (2, Ok(b'\\')),
                [b'%', ..] => match directive(rest) {
                    Some((used, piece)) => (used, Err(piece)),
                    None => (1, Ok(b'%')),
                },
                [byte, ..] => (1, Ok(*byte)),
                [] => break,
            };
            match piece {
                Ok(byte) => plain.push(byte),
                Err(piece) => {
                    if !plain.is_empty() {
                        pieces.push(Piece::Text(std::mem::take(&mut plain)));
                    }
                    pieces.push(piece);
                }
            }
            at += used;
        }
        if !plain.is_empty() {
            pieces.push(Piece::Text(plain));
        }
        Format { pieces }
    }

    fn asks(&self, fields: &[&str]) -> bool {
        self.pieces.iter().any(|piece| matches!(piece, Piece::Value { field, .. } if fields.contains(field)))
    }

    /// Returns true if it prints a field of the layout.
    pub fn needs_layout(&self) -> bool {
        self.asks(&["Lc", "Li", "Lo", "Lp", "LS"])
    }

    /// Returns true if it prints the distribution of directories' names over MDTs.
    pub fn needs_spread(&self) -> bool {
        self.asks(&["Lc", "Lo", "Lh"])
    }

    /// Returns true if it prints attributes for which writers of a file, and not the MDT, have the newest
    /// values.
    pub fn needs_data(&self) -> bool {
        self.asks(&["s", "b", "k", "a", "A@", "c", "C@", "t", "T@"])
    }

    /// Appends the output for an entry.
    pub fn print(&self, entry: &Printed<'_>, names: &mut Names, out: &mut Vec<u8>) {
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text),
                Piece::Value { field: "p", width, left, .. } => {
                    pad(entry.path, *width, *left, b' ', out);
                }
                Piece::Value { field, width, left, zeros } => {
                    let text = value_of(field, entry, names);
                    pad(text.as_bytes(), *width, *left, if *zeros { b'0' } else { b' ' }, out);
                }
            }
        }
    }
}

fn pad(text: &[u8], width: usize, left: bool, fill: u8, out: &mut Vec<u8>) {
    let missing = width.saturating_sub(text.len());
    if left {
        out.extend_from_slice(text);
        out.resize(out.len() + missing, b' ');
    } else {
        out.resize(out.len() + missing, fill);
        out.extend_from_slice(text);
    }
}

/// Largest width of a field.
const WIDTH_MAX: usize = 4096;

/// Parses a directive; returns its length and meaning.
fn directive(text: &[u8]) -> Option<(usize, Piece)> {
    let (mut at, mut left, mut zeros, mut width) = (1, false, false, 0usize);
    while let Some(flag @ (b'-' | b'0')) = text.get(at) {
        left |= *flag == b'-';
        zeros |= *flag == b'0';
        at += 1;
    }
    while let Some(digit) = text.get(at).filter(|byte| byte.is_ascii_digit()) {
        width = (width * 10 + usize::from(digit - b'0')).min(WIDTH_MAX);
        at += 1;
    }
    let field = FIELDS.iter().find(|field| text[at..].starts_with(field.as_bytes()))?;
    Some((at + field.len(), Piece::Value { field, width, left, zeros }))
}

fn value_of(field: &str, entry: &Printed<'_>, names: &mut Names) -> String {
    let Printed { attr, shape, spread, .. } = *entry;
    match field {
        "a" => ctime(Stamp::Access.of(attr).sec),
        "c" => ctime(Stamp::Change.of(attr).sec),
        "t" => ctime(Stamp::Modification.of(attr).sec),
        "w" => ctime(Stamp::Birth.of(attr).sec),
        "A@" => Stamp::Access.of(attr).sec.to_string(),
        "C@" => Stamp::Change.of(attr).sec.to_string(),
        "T@" => Stamp::Modification.of(attr).sec.to_string(),
        "W@" => Stamp::Birth.of(attr).sec.to_string(),
        "b" => attr.blocks.to_string(),
        "g" => names.of(Kind::Group, attr.gid).to_owned(),
        "G" => attr.gid.to_string(),
        "i" => attr.fid.inode_number().to_string(),
        "k" => attr.blocks.div_ceil(2).to_string(),
        "m" => format!("{:o}", attr.mode & 0o7777),
        "M" => mode_text(attr.kind(), attr.mode),
        "n" => attr.nlink.to_string(),
        "p" => String::from_utf8_lossy(entry.path).into_owned(),
        "s" => attr.size.to_string(),
        "u" => names.of(Kind::User, attr.uid).to_owned(),
        "U" => attr.uid.to_string(),
        "y" => kind_letter(attr.kind()).to_string(),
        // Files have no attributes with letters.
        "La" | "LA" => "---".to_owned(),
        "LF" => attr.fid.to_string().trim_matches(['[', ']']).to_owned(),
        "LP" => attr.projid.to_string(),
        "Lh" if attr.is_dir() => {
            // The flags are in the bits above the number.
            let hash = DirHash::from_number(spread.hash as u16);
            hash.map_or("none", DirHash::name).to_owned()
        }
        "Lh" => String::new(),
        "Lc" if attr.is_dir() => spread.mdts.len().to_string(),
        "Li" if attr.is_dir() => attr.fid.mdt_index().to_string(),
        "Lo" if attr.is_dir() && spread.mdts.is_empty() => format!("[{}]", attr.fid.mdt_index()),
        "Lo" if attr.is_dir() => listed(spread.mdts.iter().map(u32::to_string)),
        "Lp" | "LS" if attr.is_dir() => String::new(),
        "Lc" => shape.main().map_or_else(String::new, |part| part.layout.shown_count().to_string()),
        "Li" => shape.main().map_or_else(String::new, |part| part.layout.file_offset().to_string()),
        // One list for each component; positions of objects that do not exist are unknown.
        "Lo" => shape.parts().iter().map(|part| listed(part.places())).collect(),
        "Lp" => shape.main().and_then(|part| part.layout.pool.clone()).unwrap_or_default(),
        _ => shape.stripe_size().map_or_else(String::new, |size| size.to_string()),
    }
}

fn listed(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::{Fid, Timestamp};

    fn print(format: &str) -> String {
        let attr = Attr {
            fid: Fid::new(0x2_0000_0401, 7, 0),
            mode: 0o100640,
            uid: 0,
            gid: 0,
            projid: 9,
            nlink: 2,
            size: 4097,
            blocks: 17,
            mtime: Timestamp { sec: 99, nsec: 5 },
            ..Attr::default()
        };
        let mut out = Vec::new();
        let printed =
            Printed { path: b"./a b", attr: &attr, shape: &Shape::None, spread: &Spread::default() };
        Format::parse(format).print(&printed, &mut Names::default(), &mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn directives_and_escapes_are_replaced() {
        assert_eq!(print("%p %s %b %k %n %m %M %y\\n"), "./a b 4097 17 9 2 640 -rw-r----- f\n");
        assert_eq!(print("%u:%U %g:%G %T@ %LP %LF %La"), "root:0 root:0 99 9 0x200000401:0x7:0x0 ---");
        assert_eq!(print("100%% \\\\ \\t|"), "100% \\ \t|");
        assert_eq!(print("%Lc|%Li|%Lo|%Lp|%LS|%Lh"), "|||||", "without a layout there is nothing to say");
    }

    #[test]
    fn fields_have_a_width() {
        assert_eq!(print("[%8s][%-8s][%08s][%2s]"), "[    4097][4097    ][00004097][4097]");
        assert_eq!(print("[%7p]"), "[  ./a b]");
    }

    #[test]
    fn what_is_no_directive_stands_for_itself() {
        assert_eq!(print("%q %L %Lz % %5"), "%q %L %Lz % %5");
        assert_eq!(print("\\q\\"), "\\q\\");
    }

    #[test]
    fn only_what_is_printed_is_asked_for() {
        assert!(Format::parse("%p %Lc").needs_layout() && !Format::parse("%p %LF %LP").needs_layout());
        assert!(Format::parse(LS).needs_data() && !Format::parse("%p %u %w").needs_data());
    }
}
