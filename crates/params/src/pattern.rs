//! Patterns for names of parameters.
//!
//! Components are separated by `.` or `/`. In a component `*` matches any text, `?` any character, `[abc]`
//! and `[a-c]` one of several (`[!a]` any other), `{one,two}` one of several texts. An address keeps its
//! dots: `10.0.0.1@tcp` is one component.

use nacre_types::{Status, StatusResult};

/// Most alternatives of a pattern.
const ALTERNATIVES_MAX: usize = 1024;
/// Most braces that are expanded, as braces with one choice add no alternative.
const EXPANSIONS_MAX: usize = 4 * ALTERNATIVES_MAX;
/// Longest pattern in bytes.
const LENGTH_MAX: usize = 4096;

/// A parsed pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pattern {
    alternatives: Vec<Vec<String>>,
}

impl Pattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// `EINVAL` if it is empty, has an empty component, or stands for too many alternatives; `ENAMETOOLONG`.
    pub fn parse(text: &str) -> StatusResult<Pattern> {
        if text.len() > LENGTH_MAX {
            return Err(Status::ENAMETOOLONG);
        }
        let mut texts = Vec::new();
        expand(text, &mut texts, &mut 0)?;
        let alternatives: Vec<Vec<String>> = texts.iter().map(|text| components(text)).collect();
        match alternatives.iter().flatten().any(String::is_empty) {
            true => Err(Status::EINVAL),
            false => Ok(Pattern { alternatives }),
        }
    }

    /// Returns whether the pattern matches the whole name, component by component.
    pub fn matches(&self, name: &str) -> bool {
        let names = components(name);
        self.alternatives.iter().any(|parts| parts.len() == names.len() && all_match(parts, &names))
    }

    /// Returns whether the pattern matches the name or one of its ancestors.
    pub fn matches_above(&self, name: &str) -> bool {
        let names = components(name);
        self.alternatives.iter().any(|parts| parts.len() <= names.len() && all_match(parts, &names))
    }

    /// Returns the number of components of each alternative.
    pub fn depths(&self) -> impl Iterator<Item = usize> + '_ {
        self.alternatives.iter().map(Vec::len)
    }

    /// Returns the components of each alternative.
    pub fn parts(&self) -> impl Iterator<Item = &[String]> {
        self.alternatives.iter().map(Vec::as_slice)
    }

    /// Inserts a wildcard instance: `osc.max_dirty_mb` becomes `osc.*.max_dirty_mb`. `None` if there is no
    /// place for one.
    pub fn with_any_instance(&self) -> Option<Pattern> {
        let alternatives: Vec<Vec<String>> = self
            .alternatives
            .iter()
            .filter(|parts| parts.len() == 2)
            .map(|parts| vec![parts[0].clone(), "*".to_owned(), parts[1].clone()])
            .collect();
        (!alternatives.is_empty()).then_some(Pattern { alternatives })
    }
}

fn all_match(parts: &[String], names: &[String]) -> bool {
    parts.iter().zip(names).all(|(part, name)| glob(part.as_bytes(), name.as_bytes()))
}

/// Expands `{a,b}` into alternatives.
fn expand(text: &str, out: &mut Vec<String>, expansions: &mut usize) -> StatusResult<()> {
    *expansions += 1;
    if *expansions > EXPANSIONS_MAX {
        return Err(Status::EINVAL);
    }
    let Some((open, close)) = braces(text) else {
        if out.len() == ALTERNATIVES_MAX {
            return Err(Status::EINVAL);
        }
        out.push(text.to_owned());
        return Ok(());
    };
    for choice in choices(&text[open + 1..close]) {
        expand(&format!("{}{choice}{}", &text[..open], &text[close + 1..]), out, expansions)?;
    }
    Ok(())
}

/// Finds the first matching pair of braces.
fn braces(text: &str) -> Option<(usize, usize)> {
    let open = text.find('{')?;
    let mut depth = 0;
    for (at, letter) in text[open..].char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 1 => return Some((open, open + at)),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Splits at commas outside inner braces.
fn choices(text: &str) -> Vec<&str> {
    let mut depth = 0;
    text.split(|letter| {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        letter == ',' && depth == 0
    })
    .collect()
}

/// Returns a name with `/` instead of dots between its components.
pub fn path_of(name: &str) -> String {
    components(name).join("/")
}

/// Splits a name into its components.
pub(crate) fn components(text: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for word in text.split('/') {
        let mut rest = word;
        loop {
            let end = match address(rest) {
                0 => rest.find('.').unwrap_or(rest.len()),
                length => length,
            };
            parts.push(rest[..end].to_owned());
            match rest[end..].strip_prefix('.') {
                Some(next) => rest = next,
                None => break,
            }
        }
    }
    parts
}

/// Returns the length of the address `A.B.C.D@NET` at the start of the text; 0 if there is none.
fn address(text: &str) -> usize {
    let Some((host, net)) = text.split_once('@') else { return 0 };
    // The instance of a connection to a management server is named `MGC` and the address.
    let numbers: Vec<&str> = host.strip_prefix("MGC").unwrap_or(host).split('.').collect();
    let is_number = |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if numbers.len() != 4 || !numbers.iter().all(is_number) {
        return 0;
    }
    host.len() + 1 + net.find('.').unwrap_or(net.len())
}

/// Matches one component. Backtracking to the last `*` alone is sufficient, and bounds the time by the
/// product of the lengths.
fn glob(mut pattern: &[u8], mut text: &[u8]) -> bool {
    let mut retry: Option<(&[u8], &[u8])> = None;
    loop {
        match pattern.split_first() {
            None if text.is_empty() => return true,
            Some((b'*', rest)) => {
                retry = Some((rest, text));
                pattern = rest;
                continue;
            }
            _ => {}
        }
        if let Some((after_pattern, after_text)) = one(pattern, text) {
            (pattern, text) = (after_pattern, after_text);
            continue;
        }
        match &mut retry {
            Some((after_star, from)) if !from.is_empty() => {
                *from = &from[1..];
                (pattern, text) = (after_star, from);
            }
            _ => return false,
        }
    }
}

/// Matches one character; returns the rest of the pattern and of the text.
fn one<'p, 't>(pattern: &'p [u8], text: &'t [u8]) -> Option<(&'p [u8], &'t [u8])> {
    let (&first, rest) = pattern.split_first()?;
    let (&letter, left) = text.split_first()?;
    match first {
        b'?' => Some((rest, left)),
        b'[' => match set(rest) {
            Some((members, rest)) => is_member(members, letter).then_some((rest, left)),
            None => (letter == b'[').then_some((rest, left)),
        },
        _ => (letter == first).then_some((rest, left)),
    }
}

/// Splits a bracket expression into its members and the rest after it. The first member may be `]`.
fn set(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let skip = if text.first() == Some(&b'!') { 2 } else { 1 };
    let close = skip + text.get(skip..)?.iter().position(|&byte| byte == b']')?;
    Some((&text[..close], &text[close + 1..]))
}

fn is_member(members: &[u8], letter: u8) -> bool {
    let (inverted, members) = match members.split_first() {
        Some((b'!', rest)) => (true, rest),
        _ => (false, members),
    };
    let mut rest = members;
    let mut found = false;
    while let Some((&low, after)) = rest.split_first() {
        match after {
            [b'-', high, more @ ..] => {
                found |= (low..=*high).contains(&letter);
                rest = more;
            }
            _ => {
                found |= low == letter;
                rest = after;
            }
        }
    }
    found != inverted
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &str, name: &str) -> bool {
        Pattern::parse(pattern).expect(pattern).matches(name)
    }

    #[test]
    fn patterns_stand_for_names_component_by_component() {
        let name = "osc.nacre-OST0001-osc-5f1c.max_dirty_mb";
        for pattern in [
            name,
            "osc.*.max_dirty_mb",
            "osc/*/max_dirty_mb",
            "*.*.*",
            "o?c.nacre-OST000[0-3]-*.max_*",
            "osc.*OST0001*.{max_dirty_mb,stats}",
            "{osc,mdc}.*.m*{ty,xx}_mb",
            "osc.*-OST000[!0]-*.max_dirty_mb",
        ] {
            assert!(matches(pattern, name), "{pattern}");
        }
        for pattern in
            ["osc", "osc.*", "osc.*.max_dirty", "osc.*.*.x", "mdc.*.max_dirty_mb", "osc.*[X-Z]*.max_dirty_mb"]
        {
            assert!(!matches(pattern, name), "{pattern}");
        }
        assert!(Pattern::parse("osc.*").expect("a pattern").matches_above(name));
        assert!(!Pattern::parse("osc.x*").expect("a pattern").matches_above(name));
    }

    #[test]
    fn addresses_keep_their_dots() {
        assert_eq!(components("mgc.10.0.0.1@tcp.import"), ["mgc", "10.0.0.1@tcp", "import"]);
        assert!(matches("mgc.10.0.0.1@tcp.*", "mgc.10.0.0.1@tcp.import"));
        assert!(matches("mgc.*.import", "mgc.10.0.0.1@tcp.import"));
        assert_eq!(path_of("mgc.10.0.0.1@tcp.import"), "mgc/10.0.0.1@tcp/import");
        assert_eq!(components("a.1.2.3@x.b"), ["a", "1", "2", "3@x", "b"]);
    }

    #[test]
    fn an_instance_may_be_left_out() {
        let short = Pattern::parse("osc.{max_dirty_mb,stats}").expect("a pattern");
        let long = short.with_any_instance().expect("two components");
        assert!(long.matches("osc.any.stats") && !long.matches("osc.stats"));
        assert_eq!(Pattern::parse("version").expect("a pattern").with_any_instance(), None);
    }

    #[test]
    fn nonsense_is_refused_and_takes_no_time() {
        let chain = "{a,b}".repeat(10) + &"{a}".repeat(1000);
        for bad in ["", ".", "a..b", "a.", "/a", "{a,}", &"{a,b}".repeat(20), &chain] {
            assert_eq!(Pattern::parse(bad), Err(Status::EINVAL), "{bad}");
        }
        assert_eq!(Pattern::parse(&"a".repeat(5000)), Err(Status::ENAMETOOLONG));
        assert!(matches("a{b", "a{b") && matches("[a", "[a"));
        assert!(!matches(&"*a".repeat(1000), &"a".repeat(999)));
        assert!(matches(&"*a".repeat(1000), "ab".repeat(1000).trim_end_matches('b')));
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(pattern in "[a-c.*?\\[\\]{},/!@0-9-]{0,24}", name in "[a-c.@0-9]{1,12}") {
            if let Ok(pattern) = Pattern::parse(&pattern) {
                let _ = pattern.matches(&name);
                let _ = pattern.matches_above(&name);
            }
        }

        #[test]
        fn a_name_without_special_characters_stands_for_itself(name in "[a-z0-9_-]{1,8}(\\.[a-z0-9_-]{1,8}){0,3}") {
            prop_assert!(matches(&name, &name));
            let braced = format!("{{{name},x}}");
            prop_assert!(matches(&braced, &name));
        }
    }
}
