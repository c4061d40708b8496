//! Numbered names (`file0001`, `file0002`, `file0003`), recognized without a listing. Pure.
//!
//! The number may be anywhere in the name; the text around it stays the same. It grows by one, and keeps its
//! leading zeros.

/// Steps of one after which the next name is expected: by then three names were looked up. Lustre takes 2 to
/// 4.
const STEPS_MIN: u32 = 2;
/// Most digits of a number: all such numbers fit 64 bits.
const DIGITS_MAX: usize = 18;

/// Names that were found in a directory, as far as they are numbered.
#[derive(Default)]
pub(crate) struct Series {
    last: Vec<u8>,
    steps: u32,
}

/// The number in a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Number {
    start: usize,
    end: usize,
    value: u64,
}

/// Returns where `name` has its number if it is the one after `last`.
fn successor(last: &[u8], name: &[u8]) -> Option<Number> {
    let mut start = last.iter().zip(name).take_while(|(a, b)| a == b).count();
    while start > 0 && last[start - 1].is_ascii_digit() {
        start -= 1;
    }
    let (before, after) = (number_at(last, start)?, number_at(name, start)?);
    let width = before.end - before.start;
    let is_next = after.value == before.value + 1
        && last[before.end..] == name[after.end..]
        && (after.end - after.start == width || before.value.to_string().len() == width);
    is_next.then_some(after)
}

fn number_at(name: &[u8], start: usize) -> Option<Number> {
    let digits = name.get(start..)?.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits == 0 || digits > DIGITS_MAX {
        return None;
    }
    let value = name[start..start + digits].iter().fold(0, |value, byte| value * 10 + u64::from(byte - b'0'));
    Some(Number { start, end: start + digits, value })
}

impl Series {
    /// Records that a name was looked up and exists.
    pub fn on_found(&mut self, name: &[u8]) {
        match successor(&self.last, name) {
            Some(_) => self.steps = self.steps.saturating_add(1),
            None => self.steps = 0,
        }
        self.last.clear();
        self.last.extend_from_slice(name);
    }

    /// True if `name` is the expected next one.
    pub fn predicts(&self, name: &[u8]) -> bool {
        self.steps >= STEPS_MIN && successor(&self.last, name).is_some()
    }

    /// Returns `name`, which was expected, and those after it: `count` in all, each terminated by NUL.
    pub fn names(&self, name: &[u8], count: u32) -> Vec<u8> {
        let Some(number) = successor(&self.last, name) else { return Vec::new() };
        let width = number.end - number.start;
        let mut names = Vec::with_capacity((name.len() + 2) * count as usize);
        for value in number.value..number.value + u64::from(count) {
            names.extend_from_slice(&name[..number.start]);
            names.extend_from_slice(format!("{value:0width$}").as_bytes());
            names.extend_from_slice(&name[number.end..]);
            names.push(0);
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_third_name_of_a_series_predicts_the_fourth() {
        for names in [
            ["file0001", "file0002", "file0003", "file0004", "file0005"],
            ["8", "9", "10", "11", "12"],
            ["a98.b", "a99.b", "a100.b", "a101.b", "a102.b"],
            ["track01.mp3", "track02.mp3", "track03.mp3", "track04.mp3", "track05.mp3"],
            ["v2-098x", "v2-099x", "v2-100x", "v2-101x", "v2-102x"],
        ] {
            let mut series = Series::default();
            for (index, name) in names.iter().enumerate() {
                assert_eq!(series.predicts(name.as_bytes()), index >= 3, "{name}");
                if index == 3 {
                    let expected = format!("{}\0{}\0", names[3], names[4]);
                    assert_eq!(series.names(name.as_bytes(), 2), expected.as_bytes());
                }
                series.on_found(name.as_bytes());
            }
        }
    }

    #[test]
    fn other_names_are_no_series() {
        for (last, name) in [
            ("file1", "file1"),
            ("file2", "file1"),
            ("file1", "file3"),
            ("file1", "file2.c"),
            ("file09", "file010"),
            ("file", "file1"),
            ("", "1"),
            ("a1", "b2"),
            ("1234567890123456789", "1234567890123456790"),
        ] {
            assert_eq!(successor(last.as_bytes(), name.as_bytes()), None, "{last} {name}");
        }
    }

    proptest! {
        #[test]
        fn any_two_names_can_follow_each_other(
            last in prop::collection::vec(any::<u8>(), 0..20), name in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            successor(&last, &name);
        }

        #[test]
        fn numbers_are_continued_with_their_width(prefix in "[a-z.]{0,5}", start in 0u64..2000, width in 0usize..6) {
            let name = |number: u64| format!("{prefix}{number:0width$}.x");
            let mut series = Series::default();
            (0..3).for_each(|step| series.on_found(name(start + step).as_bytes()));
            prop_assert!(series.predicts(name(start + 3).as_bytes()));
            let expected: String = (3..70).map(|step| name(start + step) + "\0").collect();
            prop_assert_eq!(series.names(name(start + 3).as_bytes(), 67), expected.into_bytes());
        }
    }
}
