//! Text of a foreign layout.

use nacre_layout::user::{FOREIGN_TYPES, Foreign};
use std::fmt::Write;

/// Returns the text for a file or directory with a foreign layout of this magic, whichever fields were
/// requested: it has its own. Bytes that are not UTF-8 are replaced.
pub fn foreign(layout: &Foreign, magic: u32, verbose: bool) -> String {
    let mut out = String::new();
    let Foreign { kind, flags, text } = layout;
    let name = FOREIGN_TYPES.iter().find(|(_, known)| known == kind).map_or("unknown", |(name, _)| name);
    let text_shown = String::from_utf8_lossy(text);
    if verbose {
        write!(
            out,
            "lfm_magic:         0x{magic:08X}\nlfm_length:          {}\n\
             lfm_type:          0x{kind:08X} ({name})\nlfm_flags:          0x{flags:08X}\n",
            text.len()
        )
        .expect(super::NO_FAILURE);
    }
    write!(out, "lfm_value:     '{text_shown}'\n\n").expect(super::NO_FAILURE);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_layout::user::MAGIC_FOREIGN;

    #[test]
    fn golden_foreign_layouts() {
        let layout = Foreign { kind: 0xda05, flags: 0xda08, text: b"PUUID:CUUID".to_vec() };
        assert_eq!(foreign(&layout, MAGIC_FOREIGN, false), "lfm_value:     'PUUID:CUUID'\n\n");
        let expected = "lfm_magic:         0x0BD70BD0\nlfm_length:          11\n\
            lfm_type:          0x0000DA05 (symlink)\nlfm_flags:          0x0000DA08\n\
            lfm_value:     'PUUID:CUUID'\n\n";
        assert_eq!(foreign(&layout, MAGIC_FOREIGN, true), expected);
        let unknown = Foreign { kind: 0x77, ..layout };
        assert!(foreign(&unknown, MAGIC_FOREIGN, true).contains("0x00000077 (unknown)\n"));
    }
}
