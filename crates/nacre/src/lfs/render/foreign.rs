//! Text of a foreign layout. Source: reference 2.2 and B.1.

use super::Style;
use nacre_layout::user::{FOREIGN_TYPES, Foreign};
use std::fmt::Write;

/// Text for a file or directory with a foreign layout of this magic, which has no fields but its own: without the path, and the text in bytes that are no
/// UTF-8 replaced.
pub fn foreign(layout: &Foreign, magic: u32, style: &Style) -> String {
    let mut out = String::new();
    if !style.whole {
        return out;
    }
    let Foreign { kind, flags, text } = layout;
    let name = FOREIGN_TYPES.iter().find(|(_, known)| known == kind).map_or("unknown", |(name, _)| name);
    let text_shown = String::from_utf8_lossy(text);
    if style.verbose {
        write!(
            out,
            "lfm_magic:         0x{magic:08X}\nlfm_length:          {}\n\
             lfm_type:          0x{kind:08X} ({name})\nlfm_flags:          0x{flags:08X}\n",
            text.len()
        )
        .expect("writing to a string cannot fail");
    }
    writeln!(out, "lfm_value:     '{text_shown}'").expect("writing to a string cannot fail");
    if !style.yaml {
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_layout::user::MAGIC_FOREIGN;

    #[test]
    fn golden_foreign_layouts() {
        let layout = Foreign { kind: 0xda05, flags: 0xda08, text: b"PUUID:CUUID".to_vec() };
        let whole = Style { whole: true, ..Style::default() };
        assert_eq!(foreign(&layout, MAGIC_FOREIGN, &whole), "lfm_value:     'PUUID:CUUID'\n\n");
        let expected = "lfm_magic:         0x0BD70BD0\nlfm_length:          11\n\
            lfm_type:          0x0000DA05 (symlink)\nlfm_flags:          0x0000DA08\n\
            lfm_value:     'PUUID:CUUID'\n\n";
        assert_eq!(foreign(&layout, MAGIC_FOREIGN, &Style { verbose: true, ..whole.clone() }), expected);
        assert_eq!(
            foreign(&layout, MAGIC_FOREIGN, &Style::default()),
            "",
            "a field was asked for that it has not"
        );
    }
}
