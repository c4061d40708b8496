//! Which parameters exist at all, wherever they are.
//!
//! A management server keeps settings for nodes that it does not see; this is how it tells a slip of the pen from a
//! parameter. Values are checked where they take effect.

use crate::pattern::Pattern;

/// Parameters that can be set, by kind.
const SETTABLE: &[(&str, &[&str])] = &[
    (
        "llite",
        &[
            "max_cached_mb",
            "max_read_ahead_async_active",
            "max_read_ahead_mb",
            "max_read_ahead_per_file_mb",
            "max_read_ahead_whole_mb",
            "read_ahead_stats",
            "statahead_batch_max",
            "statahead_max",
            "stats",
            "write_back",
            "write_back_age_ms",
            "parallel_io",
            "write_back_idle_percent",
        ],
    ),
    ("mdt", &["ldlm_timeout", "md_stats"]),
    (
        "ldlm.namespaces",
        &["contended_locks", "contention_hold_seconds", "contention_seconds", "lru_max_age", "lru_size"],
    ),
    ("obdfilter", &["brw_stats", "degraded", "ldlm_timeout", "no_create", "stats"]),
    (
        "osc",
        &[
            "checksum_type",
            "checksums",
            "conns_per_peer",
            "idle_timeout",
            "max_dirty_mb",
            "max_pages_per_rpc",
            "max_rpcs_in_flight",
            "resend_count",
            "rpc_stats",
            "short_io_bytes",
        ],
    ),
];

/// Whether a parameter of this kind can be set.
pub fn is_settable(kind: &str, leaf: &str) -> bool {
    SETTABLE.iter().any(|(known, leaves)| *known == kind && leaves.contains(&leaf))
}

/// Whether a pattern stands for some parameter that can be set, with or without its instance.
pub fn may_be_set(pattern: &str) -> bool {
    let Ok(pattern) = Pattern::parse(pattern) else { return false };
    let pattern = pattern.with_any_instance().unwrap_or(pattern);
    // The instance is whatever the pattern says: only kind and leaf are looked at.
    pattern.parts().any(|parts| {
        let (kind, leaf) = match parts {
            [kind, _, leaf] => (kind.clone(), leaf),
            [kind, below, _, leaf] => (format!("{kind}.{below}"), leaf),
            _ => return false,
        };
        SETTABLE.iter().any(|(known, leaves)| {
            leaves.iter().any(|known_leaf| {
                let of = Pattern::parse(&format!("{kind}.{leaf}"));
                of.is_ok_and(|of| of.matches(&format!("{known}.{known_leaf}")))
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_of_the_pen_are_told_from_parameters() {
        for good in [
            "obdfilter.*.degraded",
            "obdfilter.degraded",
            "obdfilter.x-OST0001.no_cr*",
            "*.*.*_stats",
            "osc.*.max_pages_per_rpc",
            "mdt.*.ldlm_timeout",
            "ldlm.namespaces.filter-*.contended_locks",
        ] {
            assert!(may_be_set(good), "{good}");
        }
        for bad in
            ["obdfilter.*.degradet", "osd.*.degraded", "degraded", "a.b.c.d", "ldlm.x.y.contended_locks", ""]
        {
            assert!(!may_be_set(bad), "{bad}");
        }
        assert!(is_settable("llite", "stats") && !is_settable("llite", "uuid"));
    }
}
