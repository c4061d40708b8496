//! Parameters of directories on several metadata targets.

use nacre_mds::{Mds, MovingLimits};
use nacre_params::{Tree, value};
use std::sync::Arc;

/// Enters those of the metadata target whose parameters are below `mdt`.
pub fn enter(tree: &Tree, mdt: &str, mds: &Arc<Mds>) {
    let (get, set) = (mds.clone(), mds.clone());
    tree.add_both(
        &format!("{mdt}.enable_remote_dir_gid"),
        move || Ok(get.placement.remote_dir_gid().to_string()),
        move |text| {
            set.placement.set_remote_dir_gid(value::integer(text, -1, u32::MAX.into())?);
            Ok(())
        },
    );
    let (get, set) = (mds.clone(), mds.clone());
    tree.add_both(
        &format!("{mdt}.no_create"),
        move || Ok(u8::from(get.space.is_no_create()).to_string()),
        move |text| {
            set.space.set_no_create(value::truth(text)?);
            Ok(())
        },
    );
    enter_moving(tree, mdt, mds);
}

/// When directories get more shards by themselves, and whether they may at all.
fn enter_moving(tree: &Tree, mdt: &str, mds: &Arc<Mds>) {
    let add =
        |name: &str, get: fn(&MovingLimits) -> u64, set: fn(&mut MovingLimits, u64), range: (i64, i64)| {
            let (shown, changed) = (mds.clone(), mds.clone());
            tree.add_both(
                &format!("{mdt}.{name}"),
                move || Ok(get(&shown.moving.limits()).to_string()),
                move |text| {
                    let value = value::integer(text, range.0, range.1)? as u64;
                    changed.moving.change_limits(|limits| set(limits, value));
                    Ok(())
                },
            );
        };
    add(
        "enable_dir_restripe",
        |limits| limits.may_restripe.into(),
        |limits, on| limits.may_restripe = on != 0,
        (0, 1),
    );
    add("enable_dir_auto_split", |limits| limits.splits.into(), |limits, on| limits.splits = on != 0, (0, 1));
    add(
        "dir_split_count",
        |limits| limits.split_count,
        |limits, count| limits.split_count = count,
        (1, i64::MAX),
    );
    add(
        "dir_split_delta",
        |limits| limits.split_delta,
        |limits, delta| limits.split_delta = delta,
        (1, 2000),
    );
}
