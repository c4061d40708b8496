//! Every parser of this crate on raw text: for tests with random input and for fuzzing.

use crate::known;
use crate::pattern::Pattern;
use crate::rule::is_job_format;
use crate::value;

/// Parses the text as `PATTERN=VALUE`, as `lctl set_param` gets it, and the value in each notation.
///
/// # Panics
/// If a name without special characters does not match itself.
pub fn read(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (name, text) = text.split_once('=').unwrap_or((text, ""));
    if let Ok(pattern) = Pattern::parse(name) {
        let is_plain = !name.contains(['*', '?', '[', '{']);
        assert!(pattern.matches(name) || !is_plain, "{name} does not match itself");
        let _ = (pattern.matches_above(text), pattern.with_any_instance());
    }
    let _ = (known::check(name, text), known::may_be_set(name), known::help(name));
    let _ = (value::truth(text), value::number(text), value::integer(text, i64::MIN, i64::MAX));
    let _ = (value::bytes(text, 1), value::bytes(text, u64::MAX), is_job_format(text));
}

#[cfg(test)]
#[path = "../../../fuzz/mutate.rs"]
mod mutate;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutated_settings_never_panic() {
        let valid = [
            "osc.nacre-OST0001-osc-5f1c.max_dirty_mb=64",
            "osc.*.max_dirty_mb=1.5G",
            "osc/*/m?x_{dirty,pages}_mb=64MiB",
            "*.nacre-OST000[!0-3]-*.{stats,{a,b}}=0",
            "mgc.10.0.0.1@tcp.import=1",
            "MGC10.0.0.1@tcp.uuid=on",
            "jobid_var=procname_uid",
            "jobid_name=%e.%u.%H",
            "llite.*.max_read_ahead_mb=50%",
            "ldlm.namespaces.*.lru_max_age=300Sec",
        ];
        mutate::exercise("params", &valid.map(|text| text.as_bytes().to_vec()), 50_000, read);
    }
}
