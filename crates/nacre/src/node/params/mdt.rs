//! Parameters of a metadata target: directories on several MDTs, source of users' groups, lifetime of
//! capabilities.

use nacre_mds::{Mds, MovingLimits};
use nacre_params::{Entries, value};
use std::ops::RangeInclusive;

/// Longest validity of an answer of the user database, in seconds: a day.
const IDENTITY_EXPIRE_MAX_S: i64 = 24 * 3600;

/// Enters the parameters of a metadata target.
pub fn enter(mdt: &Entries<'_, Mds>) {
    mdt.integer(
        "enable_remote_dir_gid",
        -1..=u32::MAX.into(),
        |mds| mds.placement.remote_dir_gid(),
        |mds, gid| mds.placement.set_remote_dir_gid(gid),
    );
    mdt.flag("no_create", |mds| mds.space.is_no_create(), |mds, on| mds.space.set_no_create(on));
    mdt.flag("dir_use", Mds::counts_directories, Mds::set_counts_directories);
    mdt.integer(
        "commit_on_sharing",
        0..=2,
        |mds| i64::from(mds.commit_on_sharing()),
        |mds, mode| mds.set_commit_on_sharing(mode as u8),
    );
    mdt.show("shared_commits", Mds::shared_commits);
    enter_moving(mdt);
    mdt.integer(
        "identity_expire",
        0..=IDENTITY_EXPIRE_MAX_S,
        |mds| mds.tenants.identity_expire_s(),
        |mds, seconds| mds.tenants.set_identity_expire_s(seconds as u64),
    );
    mdt.write("identity_flush", |mds, text| {
        // -1 flushes all of them.
        mds.tenants.flush_identities(u32::try_from(value::integer(text, -1, u32::MAX.into())?).ok());
        Ok(())
    });
    mdt.flag(
        "trust_client_groups",
        |mds| mds.tenants.trusts_client_groups(),
        |mds, on| mds.tenants.set_trusts_client_groups(on),
    );
    mdt.setting(
        "capability_expire_s",
        |mds| mds.capabilities.expire_s(),
        |mds, text| mds.capabilities.set_expire_s(value::integer(text, 0, i64::MAX)? as u64),
    );
}

/// Enters when directories are split automatically, and whether they may be at all.
fn enter_moving(mdt: &Entries<'_, Mds>) {
    type Get = fn(&MovingLimits) -> u64;
    type Set = fn(&mut MovingLimits, u64);
    let add = |leaf: &str, bounds: RangeInclusive<i64>, get: Get, set: Set| {
        mdt.integer(
            leaf,
            bounds,
            move |mds| get(&mds.moving.limits()),
            move |mds, value| mds.moving.change_limits(|limits| set(limits, value as u64)),
        );
    };
    add(
        "enable_dir_restripe",
        0..=1,
        |limits| limits.may_restripe.into(),
        |limits, on| {
            limits.may_restripe = on != 0;
        },
    );
    add("enable_dir_auto_split", 0..=1, |limits| limits.splits.into(), |limits, on| limits.splits = on != 0);
    add(
        "dir_split_count",
        1..=i64::MAX,
        |limits| limits.split_count,
        |limits, count| {
            limits.split_count = count;
        },
    );
    add("dir_split_delta", 1..=2000, |limits| limits.split_delta, |limits, delta| limits.split_delta = delta);
}
