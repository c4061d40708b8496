//! All parameters that exist, on any kind of node.
//!
//! A management server stores settings for nodes that it cannot query. With this list it detects misspelt
//! names, and values that no node accepts.

use crate::jobs::INTERVAL_S_MAX;
use crate::pattern::Pattern;
use crate::rule::{
    GIB, JOB_VARIABLES, KIB, MIB, Rule, SIZE_MAX, U64_MAX, is_changelog_mask, is_hold, is_job_format,
    is_job_variable, is_log_mask, is_pool_or_none, is_service_time, is_short_io,
};
use nacre_types::Status;

/// Common prefix of parameters, and the rule of each below it; `*` stands for an instance.
type Group = (&'static str, &'static [(&'static str, Rule)]);

/// For parameters that can only be cleared, and for texts that only their owner can check.
const ANY: Rule = Rule::Anything;
const PERCENT: Rule = Rule::Percent;
const BYTES: Rule = Rule::Size { unit: 1, min: 0, max: SIZE_MAX, step: 1 };
const MEBIBYTES: Rule = Rule::Size { unit: MIB, min: 0, max: SIZE_MAX, step: 1 };
const COUNT: Rule = Rule::Number(0, i64::MAX);
const FLAG: Rule = Rule::Number(0, 1);
const U32: i64 = u32::MAX as i64;
const S32: i64 = i32::MAX as i64;
/// Time in seconds that a client may be given to answer.
const TIMEOUT: Rule = Rule::Number(1, 600);
/// Largest piece that is transferred through a page cache.
const CACHED_IO: Rule = Rule::Size { unit: MIB, min: 0, max: 64 * MIB, step: 1 };
const POOL: Rule = Rule::Form(is_pool_or_none, "the name of a pool, or none");
const HELD: Rule =
    Rule::Form(is_hold, "none, or before, locked or after and a number or the name of a request");

/// Parameters that can be set.
const SETTABLE: &[Group] = &[
    (
        "",
        &[
            (
                "debug",
                Rule::Form(
                    is_log_mask,
                    "words of Lustre's debug mask: error, warning, info, debug, trace and others",
                ),
            ),
            ("debug_mb", Rule::Number(1, 256)),
            (
                "jobid_name",
                Rule::Form(is_job_format, "a text with the codes %e, %u, %g, %p, %h, %H, %j, %? and %%"),
            ),
            ("jobid_var", Rule::Form(is_job_variable, JOB_VARIABLES)),
            ("slow_operation_ms", Rule::Number(0, U32)),
        ],
    ),
    (
        "llite.*",
        &[
            ("extents_stats", ANY),
            ("extents_stats_per_process", ANY),
            ("hybrid_io", Rule::Truth),
            ("hybrid_io_read_threshold_bytes", BYTES),
            ("hybrid_io_write_threshold_bytes", BYTES),
            ("max_cached_mb", MEBIBYTES),
            ("max_read_ahead_async_active", Rule::Number(0, 512)),
            ("max_read_ahead_mb", MEBIBYTES),
            ("max_read_ahead_per_file_mb", MEBIBYTES),
            ("max_read_ahead_whole_mb", MEBIBYTES),
            ("offset_stats", ANY),
            ("parallel_io", Rule::Words(&["auto", "off", "on"])),
            ("read_ahead_stats", ANY),
            ("statahead_batch_max", Rule::Number(0, 1024)),
            ("statahead_max", Rule::Number(0, 2048)),
            ("stats", ANY),
            ("write_back", Rule::Truth),
            ("write_back_age_ms", Rule::Number(1, 600_000)),
            ("write_back_idle_percent", Rule::Number(0, 101)),
        ],
    ),
    (
        "lmv.*",
        &[("qos_maxage", Rule::Seconds(3600)), ("qos_prio_free", PERCENT), ("qos_threshold_rr", PERCENT)],
    ),
    (
        "lod.*",
        &[
            ("dom_stripesize", Rule::Size { unit: 1, min: 0, max: GIB, step: 64 * KIB }),
            ("dom_stripesize_max_kb", Rule::Size { unit: KIB, min: 0, max: GIB, step: 64 * KIB }),
            ("dom_threshold_free_mb", MEBIBYTES),
            ("qos_maxage", Rule::Seconds(3600)),
            ("qos_prio_free", PERCENT),
            ("qos_threshold_rr", PERCENT),
        ],
    ),
    ("lod.*.pool.*", &[("spill_target", POOL), ("spill_threshold_pct", PERCENT)]),
    (
        "mdd.*",
        &[
            ("append_pool", POOL),
            ("append_stripe_count", Rule::Number(-1, 2000)),
            ("changelog_gc", Rule::Truth),
            (
                "changelog_mask",
                Rule::Form(
                    is_changelog_mask,
                    "names of changelog records like CREAT and UNLNK, ALL, or with + and -",
                ),
            ),
            ("changelog_max_idle_indexes", Rule::Number(1, i64::MAX)),
            ("changelog_max_idle_time", Rule::Number(1, S32)),
            ("changelog_max_mb", Rule::Number(0, 1 << 40)),
            ("changelog_min_gc_interval", Rule::Number(1, S32)),
            ("lfsck_speed_limit", Rule::Number(0, i64::MAX)),
        ],
    ),
    (
        "mdt.*",
        &[
            ("capability_expire_s", Rule::Number(30, 86_400)),
            ("commit_on_sharing", Rule::Number(0, 2)),
            ("dir_split_count", Rule::Number(1, i64::MAX)),
            ("dir_split_delta", Rule::Number(1, 2000)),
            ("dir_use", Rule::Truth),
            ("dom_stats", ANY),
            ("enable_dir_auto_split", FLAG),
            ("enable_dir_restripe", FLAG),
            ("enable_remote_dir_gid", Rule::Number(-1, U32)),
            ("hold_request", HELD),
            ("identity_expire", Rule::Number(0, 86400)),
            ("identity_flush", Rule::Number(-1, U32)),
            ("job_cleanup_interval", Rule::Number(0, INTERVAL_S_MAX as i64)),
            ("job_stats", ANY),
            ("ldlm_timeout", TIMEOUT),
            ("md_stats", ANY),
            ("no_create", Rule::Truth),
            (
                "simulated_service",
                Rule::Form(is_service_time, "off, or time=TIME and perhaps at_once=NUMBER"),
            ),
            ("trust_client_groups", Rule::Truth),
        ],
    ),
    ("mgs.*.mgs", &[("stats", ANY)]),
    ("mdt.*.exports", &[("clear", ANY)]),
    ("mdt.*.exports.*", &[("stats", ANY)]),
    (
        "ldlm.namespaces.*",
        &[
            ("contended_locks", Rule::Number(1, 65535)),
            ("contention_hold_seconds", Rule::Number(0, 86400)),
            ("contention_seconds", Rule::Number(0, 86400)),
            ("lru_max_age", Rule::Number(1, 86_400_000)),
            ("lru_size", Rule::NumberOr("clear", 0, U32)),
        ],
    ),
    (
        "obdfilter.*",
        &[
            ("brw_stats", ANY),
            ("defrag_bytes_per_second", BYTES),
            ("defrag_enable", Rule::Truth),
            ("defrag_idle_ms", COUNT),
            ("defrag_rest_seconds", COUNT),
            ("defrag_threshold_percent", Rule::Number(0, 100)),
            ("degraded", Rule::Truth),
            ("hold_request", HELD),
            ("job_cleanup_interval", Rule::Number(0, INTERVAL_S_MAX as i64)),
            ("job_stats", ANY),
            ("ldlm_timeout", TIMEOUT),
            ("no_create", Rule::Truth),
            ("read_ahead_bytes", Rule::SizeOr("0", 2 * MIB, GIB)),
            ("read_cache_enable", Rule::Truth),
            ("readcache_max_filesize", Rule::SizeOr(U64_MAX, 0, SIZE_MAX)),
            ("readcache_max_io_mb", CACHED_IO),
            ("scrub", ANY),
            ("scrub_bytes_per_second", BYTES),
            ("stats", ANY),
            ("trim_busy_rate", Rule::SizeOr("0", MIB, SIZE_MAX)),
            ("trim_idle_ms", Rule::Number(0, 86_400_000)),
            ("trim_policy", Rule::Truth),
            ("trim_quiet_iops", Rule::Number(0, 1_000_000)),
            ("trim_rate", Rule::Size { unit: 1, min: MIB, max: SIZE_MAX, step: 1 }),
            ("trim_start_percent", Rule::Number(0, 100)),
            ("trim_stats", ANY),
            ("trim_urgent_percent", Rule::Number(0, 100)),
            ("writethrough_cache_enable", Rule::Truth),
            ("writethrough_max_io_mb", CACHED_IO),
        ],
    ),
    (
        "osd-file.*",
        &[
            ("brw_stats", ANY),
            ("nonrotational", Rule::Truth),
            ("read_cache_enable", Rule::Truth),
            ("readcache_max_filesize", Rule::SizeOr(U64_MAX, 0, SIZE_MAX)),
            ("readcache_max_io_mb", CACHED_IO),
            ("reserve_ahead_max_mb", Rule::Size { unit: MIB, min: 0, max: GIB, step: MIB }),
            ("writethrough_cache_enable", Rule::Truth),
            ("writethrough_max_io_mb", CACHED_IO),
        ],
    ),
    (
        "nxd.*",
        &[
            ("full_wait_ms", COUNT),
            ("high_percent", Rule::Number(0, 95)),
            ("idle_bytes_per_second", BYTES),
            ("idle_ms", COUNT),
            ("low_percent", Rule::Number(0, 95)),
            ("mode", Rule::Words(&["on", "off", "drain"])),
            ("stream_writes", Rule::Number(0, U32)),
            ("threshold", Rule::Size { unit: 1, min: 0, max: 512 * KIB, step: 1 }),
        ],
    ),
    ("obdfilter.*.exports", &[("clear", ANY)]),
    ("obdfilter.*.exports.*", &[("brw_stats", ANY), ("ldlm_stats", ANY), ("stats", ANY)]),
    (
        "osc.*",
        &[
            ("active", Rule::Truth),
            ("checksum_type", Rule::Words(&["adler", "crc32c"])),
            ("checksums", FLAG),
            ("conns_per_peer", Rule::Number(1, 16)),
            ("idle_timeout", Rule::Number(0, 50)),
            ("max_dirty_mb", Rule::Size { unit: MIB, min: 1, max: 2047 * MIB, step: 1 }),
            ("max_kept_age", Rule::Number(1, 600)),
            ("max_kept_mb", Rule::Number(0, 2047)),
            ("max_pages_per_rpc", Rule::Size { unit: 4 * KIB, min: 64 * KIB, max: 4 * MIB, step: 4 * KIB }),
            ("max_rpcs_in_flight", Rule::Number(1, 256)),
            ("resend_count", Rule::Number(0, 1000)),
            ("rpc_stats", ANY),
            ("short_io_bytes", Rule::Form(is_short_io, "0, -1, or a size from 64 to 65536")),
        ],
    ),
    ("osp.*", &[("active", Rule::Truth), ("max_create_count", Rule::Number(0, 20_000))]),
];

/// Returns each settable parameter that a pattern may match, with or without its instance, and its rule.
fn rules_of(pattern: &str) -> Vec<(String, Rule)> {
    let Ok(pattern) = Pattern::parse(pattern) else { return Vec::new() };
    let pattern = pattern.with_any_instance().unwrap_or(pattern);
    let mut rules = Vec::new();
    for parts in pattern.parts() {
        let Some((leaf, above)) = parts.split_last() else { continue };
        for (below, leaves) in SETTABLE {
            let below: Vec<&str> = below.split('.').filter(|part| !part.is_empty()).collect();
            // A pattern for the instance matches any instance.
            let fits = |(part, known): (&String, &&str)| *known == "*" || stands_for(part, known);
            if below.len() == above.len() && above.iter().zip(&below).all(fits) {
                let meant = leaves.iter().filter(|(known, _)| stands_for(leaf, known));
                let name = |leaf: &&str| below.iter().chain([leaf]).copied().collect::<Vec<_>>().join(".");
                rules.extend(meant.map(|(leaf, rule)| (name(leaf), *rule)));
            }
        }
    }
    rules
}

/// Returns whether a pattern matches a settable parameter, with or without its instance.
pub fn may_be_set(pattern: &str) -> bool {
    !rules_of(pattern).is_empty()
}

/// Returns the settable parameters that a pattern may match, with a description of the values of each.
pub fn help(pattern: &str) -> Vec<(String, String)> {
    rules_of(pattern).into_iter().map(|(name, rule)| (name, rule.to_string())).collect()
}

/// Why a setting is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// `ENOENT` if no parameter matches, `EINVAL` for a malformed value, `ERANGE` for one out of range.
    pub status: Status,
    /// The reason, for people; empty if no parameter matches.
    pub reason: String,
}

/// Checks that at least one of the parameters that a pattern may match accepts a value. Limits that depend on
/// a node, such as its memory, are checked on that node.
///
/// # Errors
/// The first refusal, if all parameters refuse the value.
pub fn check(pattern: &str, value: &str) -> Result<(), Refusal> {
    let rules = rules_of(pattern);
    let mut first = Refusal { status: Status::ENOENT, reason: String::new() };
    for (_, rule) in rules {
        match rule.check(value) {
            Ok(()) => return Ok(()),
            Err(status) if first.reason.is_empty() => {
                first = Refusal { status, reason: format!("it takes {rule}") };
            }
            Err(_) => {}
        }
    }
    Err(first)
}

/// Returns whether a component of a pattern matches a name.
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
            "mdd.x-MDT0000.lfsck_speed_limit",
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

    #[test]
    fn a_value_that_no_node_takes_is_refused_with_the_reason() {
        let refused = |name: &str, value: &str| check(name, value).expect_err(value);
        for (name, value) in [
            ("osc.*.max_pages_per_rpc", "1M"),
            ("osc.max_pages_per_rpc", "1024"),
            ("osc.*.short_io_bytes", "-1"),
            ("osc.*.checksums", "0"),
            ("lod.*.qos_threshold_rr", "17%"),
            ("lod.*.qos_maxage", "5 Sec"),
            ("ldlm.namespaces.*.lru_size", "clear"),
            ("jobid_var", "SLURM_JOB_ID"),
            ("jobid_name", "%j%?none.%g"),
            ("debug", "+rpctrace -INODE"),
            ("debug", "-1"),
            ("mdd.*.append_pool", "none"),
            ("mdd.*.changelog_mask", "+OPEN -CLOSE"),
            // One of the matching parameters accepts the value.
            ("osc.*.{active,max_rpcs_in_flight}", "9"),
            ("obdfilter.*.stats", "clear"),
        ] {
            assert_eq!(check(name, value), Ok(()), "{name}={value}");
        }
        let refusal = refused("osc.*.max_pages_per_rpc", "5000");
        assert_eq!(refusal.status, Status::ERANGE);
        assert_eq!(refusal.reason, "it takes a size from 64K to 4M in whole 4K (a number counts 4K)");
        for (name, value) in
            [("jobid_name", "%x"), ("jobid_name", "%"), ("jobid_name", ""), ("debug", "loud"), ("debug", "")]
        {
            assert_eq!(refused(name, value).status, Status::EINVAL, "{name}={value}");
        }
        let refusal = refused("osc.*.max_rpcs_in_flight", "many");
        assert_eq!((refusal.status, &*refusal.reason), (Status::EINVAL, "it takes a number from 1 to 256"));
        for (name, value) in [
            ("osc.*.short_io_bytes", "63"),
            ("osc.*.short_io_bytes", "1M"),
            ("osc.*.checksum_type", "md5"),
            ("obdfilter.*.degraded", "2"),
            ("obdfilter.*.trim_rate", "0"),
            ("jobid_var", "a b"),
            ("mdt.*.hold_request", "whenever"),
            ("lod.*.dom_stripesize", "100000"),
        ] {
            refused(name, value);
        }
        assert_eq!(refused("osc.*.max_rpc", "1").status, Status::ENOENT);
        let help = help("osc.max_rpcs_in_flight");
        assert_eq!(help, [("osc.*.max_rpcs_in_flight".to_owned(), "a number from 1 to 256".to_owned())]);
    }
}
