//! Parameters of a metadata target's placement of files: `lod.*.qos_*`, `lod.*.pool.POOL.spill_*`,
//! `mdd.*.append_*`.

use nacre_layout::PoolName;
use nacre_layout::layout::STRIPE_COUNT_ALL;
use nacre_mds::Mds;
use nacre_params::{Access, Entries, Family, Tree, value};
use nacre_types::limits::STRIPE_COUNT_MAX;
use nacre_types::{Status, StatusResult};
use std::sync::Arc;
use std::time::Duration;

/// Largest age of known OST space, in seconds: an hour, beyond which it would be useless.
const QOS_MAXAGE_MAX_S: i64 = 3600;
/// Parameters of a pool's spilling, and whether each can be set.
const SPILL_LEAVES: [(&str, bool); 4] =
    [("spill_hit", false), ("spill_is_active", false), ("spill_target", true), ("spill_threshold_pct", true)];

/// Enters the parameters of `lod`, the name of the part that places files.
pub fn enter(tree: &Tree, lod: &str, mds: &Arc<Mds>) {
    let entries = tree.of(lod, mds);
    entries.setting(
        "qos_threshold_rr",
        |mds| format!("{}%", mds.osts.qos().threshold_rr_pct),
        |mds, text| {
            let percent = percent(text)?;
            mds.osts.change_qos(|qos| qos.threshold_rr_pct = percent);
            Ok(())
        },
    );
    entries.setting(
        "qos_prio_free",
        |mds| format!("{}%", mds.osts.qos().prio_free_pct),
        |mds, text| {
            let percent = percent(text)?;
            mds.osts.change_qos(|qos| qos.prio_free_pct = percent);
            Ok(())
        },
    );
    entries.setting(
        "qos_maxage",
        |mds| format!("{} Sec", mds.osts.qos().statfs_age.as_secs()),
        |mds, text| {
            let age = seconds(text)?;
            mds.osts.change_qos(|qos| qos.statfs_age = age);
            Ok(())
        },
    );
    tree.add_family(&format!("{lod}.pool"), Arc::new(Spilling { mds: mds.clone() }));
}

/// Enters the parameters of files that are created for appending.
pub fn enter_append(mdd: &Entries<'_, Mds>) {
    mdd.setting(
        "append_stripe_count",
        |mds| match mds.layouts.append_layout().stripe_count {
            None => 0,
            Some(STRIPE_COUNT_ALL) => -1,
            Some(count) => i64::from(count),
        },
        |mds, text| {
            let count = match value::integer(text, -1, i64::from(STRIPE_COUNT_MAX))? {
                0 => None,
                -1 => Some(STRIPE_COUNT_ALL),
                count => Some(u16::try_from(count).map_err(|_| Status::ERANGE)?),
            };
            mds.layouts.change_append_layout(|layout| layout.stripe_count = count);
            Ok(())
        },
    );
    mdd.setting(
        "append_pool",
        |mds| mds.layouts.append_layout().pool.map_or_else(String::new, |pool| pool.to_string()),
        |mds, text| {
            let pool = match text.trim() {
                "" | "none" => None,
                name => Some(PoolName::for_pool(name).map_err(|_| Status::EINVAL)?),
            };
            mds.layouts.change_append_layout(|layout| layout.pool = pool);
            Ok(())
        },
    );
}

/// Parses a percentage, with or without the sign.
pub(super) fn percent(text: &str) -> StatusResult<u8> {
    let number = text.trim();
    let percent = value::integer(number.strip_suffix('%').unwrap_or(number), 0, 100)?;
    u8::try_from(percent).map_err(|_| Status::ERANGE)
}

/// Parses an age of known space.
pub(super) fn seconds(text: &str) -> StatusResult<Duration> {
    let number = text.trim().strip_suffix("Sec").unwrap_or(text);
    let seconds = value::integer(number, 0, QOS_MAXAGE_MAX_S)?;
    Ok(Duration::from_secs(seconds.unsigned_abs()))
}

struct Spilling {
    mds: Arc<Mds>,
}

impl Family for Spilling {
    fn names(&self) -> Vec<(String, Access)> {
        let leaf = |pool: &PoolName, (name, writable): (&str, bool)| {
            (format!("{pool}.{name}"), Access { readable: true, writable })
        };
        let pools = self.mds.osts.pools();
        pools.iter().flat_map(|pool| SPILL_LEAVES.map(|known| leaf(&pool.name, known))).collect()
    }

    fn read(&self, name: &str) -> StatusResult<String> {
        let (pool, leaf) = name.split_once('.').ok_or(Status::ENOENT)?;
        let spilling = self.mds.osts.spilling();
        match leaf {
            "spill_hit" => spilling.spill_hits(pool).map(|hits| hits.to_string()),
            "spill_is_active" => {
                self.mds.osts.spill_is_active(pool).map(|is_active| u8::from(is_active).to_string())
            }
            "spill_target" => spilling
                .spill_target(pool)
                .map(|target| target.map_or_else(String::new, |name| name.to_string())),
            "spill_threshold_pct" => spilling.spill_threshold_pct(pool).map(|percent| percent.to_string()),
            _ => Err(Status::ENOENT),
        }
    }

    fn write(&self, name: &str, text: &str) -> StatusResult<()> {
        let (pool, leaf) = name.split_once('.').ok_or(Status::ENOENT)?;
        let spilling = self.mds.osts.spilling();
        match leaf {
            "spill_target" => match text.trim() {
                "" | "none" => spilling.set_spill_target(pool, None),
                target => spilling.set_spill_target(pool, Some(target)),
            },
            "spill_threshold_pct" => spilling.set_spill_threshold_pct(pool, percent(text)?),
            "spill_hit" | "spill_is_active" => Err(Status::EACCES),
            _ => Err(Status::ENOENT),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_have_a_sign_or_none() {
        assert_eq!((percent("17%"), percent(" 90 "), percent("0")), (Ok(17), Ok(90), Ok(0)));
        assert!(percent("101").is_err() && percent("x").is_err() && percent("-1").is_err());
    }
}
