//! Permissions on the command line (`u+rw,g=r`, `0644`) and in words (`-rw-r--r--`).

use nacre_types::FileKind;

/// Test of an entry's permissions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ModeTest {
    /// Equal to these bits.
    Exactly(u32),
    /// All of these bits are set (`-MODE`).
    All(u32),
    /// Any of these bits is set (`/MODE`); zero matches all files.
    Any(u32),
}

impl ModeTest {
    /// Parses `[/-]MODE`, octal or symbolic (starting from no bits).
    pub fn parse(text: &str) -> Option<ModeTest> {
        match text.as_bytes().first()? {
            b'-' => mode_of(&text[1..]).map(ModeTest::All),
            b'/' => mode_of(&text[1..]).map(ModeTest::Any),
            _ => mode_of(text).map(ModeTest::Exactly),
        }
    }

    /// Returns whether a file's mode passes.
    pub fn passes(self, mode: u32) -> bool {
        let mode = mode & 0o7777;
        match self {
            ModeTest::Exactly(bits) => mode == bits,
            ModeTest::All(bits) => mode & bits == bits,
            ModeTest::Any(bits) => bits == 0 || mode & bits != 0,
        }
    }
}

fn mode_of(text: &str) -> Option<u32> {
    if !text.is_empty() && text.bytes().all(|byte| matches!(byte, b'0'..=b'7')) {
        return u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
    }
    let mut mode = 0;
    for clause in text.split(',') {
        let at = clause.find(['+', '-', '='])?;
        let (who, mut rest) = clause.split_at(at);
        let mut mask = 0;
        for letter in who.bytes() {
            mask |= match letter {
                b'u' => 0o4700,
                b'g' => 0o2070,
                b'o' => 0o1007,
                b'a' => 0o7777,
                _ => return None,
            };
        }
        if who.is_empty() {
            mask = 0o7777;
        }
        while !rest.is_empty() {
            let (operator, tail) = rest.split_at(1);
            let end = tail.find(['+', '-', '=']).unwrap_or(tail.len());
            let bits = permissions(&tail[..end], mode)? & mask;
            mode = match operator {
                "+" => mode | bits,
                "-" => mode & !bits,
                _ => (mode & !(mask & 0o777)) | bits,
            };
            rest = &tail[end..];
        }
    }
    Some(mode)
}

/// Returns the bits of letters for all classes; `u`, `g` and `o` copy the bits of that class.
fn permissions(letters: &str, mode: u32) -> Option<u32> {
    let all = |bits: u32| bits << 6 | bits << 3 | bits;
    letters.bytes().try_fold(0, |bits, letter| {
        Some(
            bits | match letter {
                b'r' => 0o444,
                b'w' => 0o222,
                b'x' => 0o111,
                // Execution if any class has it already.
                b'X' => 0o111 * u32::from(mode & 0o111 != 0),
                b's' => 0o6000,
                b't' => 0o1000,
                b'u' => all(mode >> 6 & 7),
                b'g' => all(mode >> 3 & 7),
                b'o' => all(mode & 7),
                _ => return None,
            },
        )
    })
}

/// Returns the letter of a kind of file for `-type` and `%y`.
pub fn kind_letter(kind: FileKind) -> char {
    match kind {
        FileKind::Fifo => 'p',
        FileKind::CharDevice => 'c',
        FileKind::Directory => 'd',
        FileKind::BlockDevice => 'b',
        FileKind::Regular => 'f',
        FileKind::Symlink => 'l',
        FileKind::Socket => 's',
    }
}

/// Formats a mode as `ls -l` does.
pub fn mode_text(kind: FileKind, mode: u32) -> String {
    let first = if kind == FileKind::Regular { '-' } else { kind_letter(kind) };
    let mut text = String::from(first);
    for (shift, special, letters) in
        [(6, 0o4000, ['s', 'S']), (3, 0o2000, ['s', 'S']), (0, 0o1000, ['t', 'T'])]
    {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, mode & special != 0) {
            (true, true) => letters[0],
            (false, true) => letters[1],
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal_or_symbolic() {
        for (text, mode) in [
            ("644", 0o644),
            ("0", 0),
            ("4755", 0o4755),
            ("u=rw,g=r,o=r", 0o644),
            ("a+x", 0o111),
            ("+r", 0o444),
            ("u+rwx,g=u-w", 0o750),
            ("u+s", 0o4000),
            ("o+t", 0o1000),
            ("u=rwx,u-x", 0o600),
        ] {
            assert_eq!(ModeTest::parse(text), Some(ModeTest::Exactly(mode)), "{text}");
        }
        assert_eq!(ModeTest::parse("-u+w"), Some(ModeTest::All(0o200)));
        assert_eq!(ModeTest::parse("/222"), Some(ModeTest::Any(0o222)));
        for bad in ["", "-", "9", "77777", "u", "u?r", "z+r", "u+q"] {
            assert_eq!(ModeTest::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn tests_are_of_all_bits_of_any_or_of_none() {
        assert!(ModeTest::Exactly(0o644).passes(0o100644) && !ModeTest::Exactly(0o644).passes(0o100664));
        assert!(ModeTest::All(0o600).passes(0o644) && !ModeTest::All(0o602).passes(0o644));
        assert!(ModeTest::Any(0o022).passes(0o620) && !ModeTest::Any(0o022).passes(0o644));
        assert!(ModeTest::Any(0).passes(0o644), "no bits match everything");
    }

    #[test]
    fn modes_read_as_in_ls() {
        assert_eq!(mode_text(FileKind::Regular, 0o644), "-rw-r--r--");
        assert_eq!(mode_text(FileKind::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode_text(FileKind::Regular, 0o6644), "-rwSr-Sr--");
        assert_eq!(mode_text(FileKind::Symlink, 0o777), "lrwxrwxrwx");
    }
}
