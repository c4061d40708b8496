//! Which parameters exist at all, wherever they are.
//!
//! A management server keeps settings for nodes that it does not see; this is how it tells a slip of the pen from a
//! parameter. Values are checked where they take effect.

use crate::pattern::Pattern;

/// Parameters that can be set, by what they lie below; `*` stands for an instance.
const SETTABLE: &[(&str, &[&str])] = &[
    ("", &["jobid_name", "jobid_var"]),
    (
        "llite.*",
        &[
            "extents_stats",
            "extents_stats_per_process",
            "hybrid_io",
            "hybrid_io_read_threshold_bytes",
            "hybrid_io_write_threshold_bytes",
            "max_cached_mb",
            "max_read_ahead_async_active",
            "max_read_ahead_mb",
            "max_read_ahead_per_file_mb",
            "max_read_ahead_whole_mb",
            "offset_stats",
            "parallel_io",
            "read_ahead_stats",
            "statahead_batch_max",
            "statahead_max",
            "stats",
            "write_back",
            "write_back_age_ms",
            "write_back_idle_percent",
        ],
    ),
    ("lmv.*", &["qos_maxage", "qos_prio_free", "qos_threshold_rr"]),
    (
        "lod.*",
        &[
            "dom_stripesize",
            "dom_stripesize_max_kb",
            "dom_threshold_free_mb",
            "qos_maxage",
            "qos_prio_free",
            "qos_threshold_rr",
        ],
    ),
    ("lod.*.pool.*", &["spill_target", "spill_threshold_pct"]),
    ("mdd.*", &["append_pool", "append_stripe_count"]),
    (
        "mdt.*",
        &[
            "dir_split_count",
            "dir_split_delta",
            "dom_stats",
            "enable_dir_auto_split",
            "enable_dir_restripe",
            "enable_remote_dir_gid",
            "hold_request",
            "job_cleanup_interval",
            "job_stats",
            "ldlm_timeout",
            "md_stats",
            "no_create",
            "simulated_service",
        ],
    ),
    ("mdt.*.exports", &["clear"]),
    ("mdt.*.exports.*", &["stats"]),
    (
        "ldlm.namespaces.*",
        &["contended_locks", "contention_hold_seconds", "contention_seconds", "lru_max_age", "lru_size"],
    ),
    (
        "obdfilter.*",
        &[
            "brw_stats",
            "defrag_bytes_per_second",
            "defrag_enable",
            "defrag_idle_ms",
            "defrag_rest_seconds",
            "defrag_threshold_percent",
            "degraded",
            "hold_request",
            "job_cleanup_interval",
            "job_stats",
            "ldlm_timeout",
            "no_create",
            "read_ahead_bytes",
            "read_cache_enable",
            "readcache_max_filesize",
            "readcache_max_io_mb",
            "scrub_bytes_per_second",
            "stats",
            "trim_busy_rate",
            "trim_idle_ms",
            "trim_policy",
            "trim_quiet_iops",
            "trim_rate",
            "trim_start_percent",
            "trim_stats",
            "trim_urgent_percent",
            "writethrough_cache_enable",
            "writethrough_max_io_mb",
        ],
    ),
    (
        "osd-file.*",
        &[
            "nonrotational",
            "read_cache_enable",
            "readcache_max_filesize",
            "readcache_max_io_mb",
            "reserve_ahead_max_mb",
            "writethrough_cache_enable",
            "writethrough_max_io_mb",
        ],
    ),
    (
        "nxd.*",
        &[
            "full_wait_ms",
            "high_percent",
            "idle_bytes_per_second",
            "idle_ms",
            "low_percent",
            "mode",
            "stream_writes",
            "threshold",
        ],
    ),
    ("obdfilter.*.exports", &["clear"]),
    ("obdfilter.*.exports.*", &["brw_stats", "ldlm_stats", "stats"]),
    (
        "osc.*",
        &[
            "active",
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
    ("osp.*", &["active", "max_create_count"]),
];

/// Whether a pattern stands for some parameter that can be set, with or without its instance.
pub fn may_be_set(pattern: &str) -> bool {
    let Ok(pattern) = Pattern::parse(pattern) else { return false };
    let pattern = pattern.with_any_instance().unwrap_or(pattern);
    pattern.parts().any(|parts| {
        let Some((leaf, above)) = parts.split_last() else { return false };
        SETTABLE.iter().any(|(below, leaves)| {
            let below: Vec<&str> = below.split('.').filter(|part| !part.is_empty()).collect();
            // The instance is whatever the pattern says.
            let fits = |(part, known): (&String, &&str)| *known == "*" || stands_for(part, known);
            below.len() == above.len()
                && above.iter().zip(&below).all(fits)
                && leaves.iter().any(|known| stands_for(leaf, known))
        })
    })
}

/// Whether a component of a pattern stands for a name.
fn stands_for(part: &str, name: &str) -> bool {
    Pattern::parse(part).is_ok_and(|part| part.matches(name))
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
            "jobid_var",
            "lod.*.pool.flash.spill_target",
            "lmv.*.qos_maxage",
            "lod.x-MDT0000-mdtlov.qos_threshold_rr",
            "mdd.*.append_pool",
            "obdfilter.x.exports.clear",
            "mdt.*.exports.10.0.0.1@tcp.stats",
        ] {
            assert!(may_be_set(good), "{good}");
        }
        for bad in [
            "obdfilter.*.degradet",
            "osd.*.degraded",
            "degraded",
            "a.b.c.d",
            "ldlm.x.y.contended_locks",
            "",
            "llite.*.uuid",
            "mdt.*.exports.*.uuid",
        ] {
            assert!(!may_be_set(bad), "{bad}");
        }
    }
}
