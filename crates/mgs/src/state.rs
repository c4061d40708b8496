//! The rules of the configuration: effects of registrations and parameters, and the reasons to refuse them.
//! Pure.

use crate::params::Param;
use nacre_layout::PoolName;
use nacre_params::known;
use nacre_types::limits::{MDT_COUNT_MAX, TARGET_INDEX_MAX};
use nacre_types::{KeyId, Nid, Status, StatusResult, TargetId, TargetKind};
use nacre_wire::mgs::{CapabilityKey, FsConfig, PoolChange, PoolConfig, TargetConfig};

/// Most NIDs of one target.
pub const NIDS_MAX: usize = 32;

/// Returns the initial configuration of a file system, without targets.
pub fn new_config(fsname: &str, fs_uuid: [u8; 16]) -> FsConfig {
    FsConfig { version: 1, fsname: fsname.to_owned(), fs_uuid, ..FsConfig::default() }
}

/// Returns the configuration after the registration of a server for `target`; `None` if nothing changes.
///
/// A target that an administrator has marked inactive stays so when its server restarts.
///
/// # Errors
/// `WRONG_FSNAME` for a file system of another name, `EINVAL` for another file system UUID or an invalid
/// target, `EPERM` for a target that another server's key has registered, unless `may_take_over`.
pub fn plan_register(
    config: &FsConfig,
    fsname: &str,
    fs_uuid: &[u8; 16],
    target: &TargetConfig,
    may_take_over: bool,
) -> StatusResult<Option<FsConfig>> {
    if fsname != config.fsname {
        return Err(Status::WRONG_FSNAME);
    }
    let possible = target.target.kind != TargetKind::Mgt && target.target.index < TARGET_INDEX_MAX;
    if *fs_uuid != config.fs_uuid || !possible || target.nids.is_empty() || target.nids.len() > NIDS_MAX {
        return Err(Status::EINVAL);
    }
    let mut next = config.clone();
    match next.targets.iter_mut().find(|known| known.target == target.target) {
        Some(known) if known.key.is_some() && known.key != target.key && !may_take_over => {
            return Err(Status::EPERM);
        }
        Some(known) if known.nids == target.nids && known.key == target.key => return Ok(None),
        Some(known) => {
            known.nids.clone_from(&target.nids);
            known.key = target.key;
        }
        None => {
            next.targets.push(target.clone());
            next.targets.sort_by_key(|target| target.target);
        }
    }
    next.version += 1;
    Ok(Some(next))
}

/// Returns the configuration after the registration of a newly formatted target; `None` if its server
/// registered it before.
///
/// # Errors
/// As [`plan_register`]; `EEXIST` if the index is in use by another server, `ENXIO` if a lower index is
/// missing, `ERANGE` beyond the limit.
pub fn plan_add(
    config: &FsConfig,
    fsname: &str,
    fs_uuid: &[u8; 16],
    target: &TargetConfig,
) -> StatusResult<Option<FsConfig>> {
    let planned = plan_register(config, fsname, fs_uuid, target, false)?;
    let TargetId { kind, index } = target.target;
    if let Some(known) = config.targets.iter().find(|known| known.target == target.target) {
        // A target that only has `0@lo` is not reachable from other hosts: its index was reserved, it is not
        // in use.
        let is_other = planned.is_some() && known.nids != [Nid::Lo];
        return if is_other { Err(Status::EEXIST) } else { Ok(planned) };
    }
    if kind == TargetKind::Mdt && index >= MDT_COUNT_MAX {
        return Err(Status::ERANGE);
    }
    let below = config.targets.iter().filter(|known| known.target.kind == kind && known.target.index < index);
    if below.count() < usize::from(index) { Err(Status::ENXIO) } else { Ok(planned) }
}

/// Most pools of one file system: all must fit into a message. Estimate, far above any use.
pub const POOLS_MAX: usize = 4096;

/// Returns the configuration after a pool is created, changed or destroyed.
///
/// # Errors
/// `EINVAL` for an invalid name, `EEXIST` if the pool exists or contains the OST already, `ENOENT` without
/// the pool, `ENOTEMPTY` for the destruction of a pool with OSTs, `ENODEV` for an OST that is not in the file
/// system or the pool, `ENOSPC` beyond [`POOLS_MAX`].
pub fn plan_change_pool(config: &FsConfig, pool: &PoolName, change: PoolChange) -> StatusResult<FsConfig> {
    PoolName::for_pool(pool.as_str()).map_err(|_| Status::EINVAL)?;
    let known = config.pools.iter().position(|known| known.name == *pool);
    let mut next = config.clone();
    next.version += 1;
    if change == PoolChange::Create {
        if known.is_some() {
            return Err(Status::EEXIST);
        }
        if config.pools.len() >= POOLS_MAX {
            return Err(Status::ENOSPC);
        }
        next.pools.push(PoolConfig { name: *pool, osts: Vec::new() });
        next.pools.sort_by_key(|pool| pool.name);
        return Ok(next);
    }
    let place = known.ok_or(Status::ENOENT)?;
    let osts = &mut next.pools[place].osts;
    match change {
        PoolChange::Create => {}
        PoolChange::Destroy if !osts.is_empty() => return Err(Status::ENOTEMPTY),
        PoolChange::Destroy => drop(next.pools.remove(place)),
        PoolChange::Add { ost } => {
            if !config.targets.iter().any(|known| known.target == TargetId::ost(ost)) {
                return Err(Status::ENODEV);
            }
            if osts.contains(&ost) {
                return Err(Status::EEXIST);
            }
            osts.push(ost);
        }
        PoolChange::Remove { ost } => {
            let at = osts.iter().position(|known| *known == ost).ok_or(Status::ENODEV)?;
            osts.remove(at);
        }
    }
    Ok(next)
}

/// Returns the configuration with a key revoked; `None` if it already was.
pub fn plan_revoke(config: &FsConfig, id: KeyId) -> Option<FsConfig> {
    let place = config.revoked.binary_search(&id).err()?;
    let mut next = config.clone();
    next.revoked.insert(place, id);
    next.version += 1;
    Some(next)
}

/// Returns the configuration without the state of an authority; `None` if it has none.
pub fn plan_forget_keys(config: &FsConfig) -> Option<FsConfig> {
    let mut next = config.clone();
    next.targets.iter_mut().for_each(|target| target.key = None);
    next.revoked.clear();
    next.capability_keys.clear();
    if next == *config {
        return None;
    }
    next.version += 1;
    Some(next)
}

/// Seconds for which metadata servers sign capabilities with one key.
pub const CAPABILITY_KEY_LIFE_S: u64 = 24 * 60 * 60;
/// Keys kept: the newest signs; capabilities signed with its predecessor are honoured until they expire.
const CAPABILITY_KEYS_KEPT: usize = 2;

/// Returns whether a new capability key is due.
pub fn is_capability_key_due(config: &FsConfig, now_s: u64) -> bool {
    // A key made in the future is not current: the clock was set back.
    let is_current =
        |key: &CapabilityKey| key.made_s.saturating_add(CAPABILITY_KEY_LIFE_S) > now_s && key.made_s <= now_s;
    !config.capability_keys.first().is_some_and(is_current)
}

/// Returns the configuration with a new capability key.
pub fn plan_capability_key(config: &FsConfig, now_s: u64, secret: [u8; 32]) -> FsConfig {
    let mut next = config.clone();
    let epoch = next.capability_keys.first().map_or(1, |key| key.epoch.wrapping_add(1));
    next.capability_keys.insert(0, CapabilityKey { epoch, made_s: now_s, secret });
    next.capability_keys.truncate(CAPABILITY_KEYS_KEPT);
    next.version += 1;
    next
}

/// Longest name and longest value of a parameter in bytes.
pub const PARAM_TEXT_MAX: usize = 4096;

/// Returns the configuration after a parameter is set, or removed by an empty value; `None` if nothing
/// changes. Names that are not in the table are patterns for parameters of nodes: a value that none of them
/// accepts is refused.
///
/// # Errors
/// `ENOENT` for an unknown name, `EINVAL` or `ERANGE` for a value that is not accepted, `EINVAL` for a text
/// that cannot be stored.
pub fn plan_set_param(config: &FsConfig, name: &str, value: &str) -> StatusResult<Option<FsConfig>> {
    let param = Param::find(name);
    if param.is_none() && !known::may_be_set(name) {
        return Err(Status::ENOENT);
    }
    let fits = |text: &str| text.len() <= PARAM_TEXT_MAX && !text.contains(char::is_control);
    if !fits(name) || !fits(value) {
        return Err(Status::EINVAL);
    }
    let old = config.params.iter().position(|(known, _)| known == name);
    let mut next = config.clone();
    if value.is_empty() {
        match old {
            Some(index) => drop(next.params.remove(index)),
            None => return Ok(None),
        }
    } else {
        let value = match param {
            Some(param) => param.normal_form(value).ok_or(Status::EINVAL)?,
            None => {
                known::check(name, value).map_err(|refusal| refusal.status)?;
                value.trim().to_owned()
            }
        };
        match old {
            Some(index) if config.params[index].1 == value => return Ok(None),
            Some(index) => next.params[index].1 = value,
            None => {
                next.params.push((name.to_owned(), value));
                next.params.sort();
            }
        }
    }
    next.version += 1;
    Ok(Some(next))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: [u8; 16] = [7; 16];

    fn ost(index: u16, nid: &str) -> TargetConfig {
        let nid: Nid = nid.parse().expect("a NID of this test");
        TargetConfig { target: TargetId::ost(index), nids: vec![nid], active: true, key: None }
    }

    fn register(config: &FsConfig, target: &TargetConfig) -> StatusResult<Option<FsConfig>> {
        plan_register(config, "nacre", &UUID, target, false)
    }

    #[test]
    fn registering_adds_once_and_moves_a_target_that_has_a_new_address() {
        let config = new_config("nacre", UUID);
        let two = register(&config, &ost(1, "10.0.0.1@tcp")).expect("accepted").expect("changed");
        let three = register(&two, &ost(0, "10.0.0.1@tcp")).expect("accepted").expect("changed");
        assert_eq!(three.version, 3);
        assert_eq!(three.targets.iter().map(|t| t.target.index).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(register(&three, &ost(0, "10.0.0.1@tcp")), Ok(None));
        let moved = register(&three, &ost(0, "10.0.0.2@tcp")).expect("accepted").expect("changed");
        assert_eq!((moved.version, moved.targets.len()), (4, 2));
        assert_eq!(moved.targets[0].nids[0].to_string(), "10.0.0.2@tcp");
    }

    #[test]
    fn a_target_taken_out_of_use_stays_so_when_its_server_restarts() {
        let mut config = register(&new_config("nacre", UUID), &ost(0, "0@lo")).expect("ok").expect("changed");
        config.targets[0].active = false;
        let moved = register(&config, &ost(0, "10.0.0.2@tcp")).expect("ok").expect("changed");
        assert!(!moved.targets[0].active);
    }

    #[test]
    fn a_new_target_gets_the_next_index_and_no_other() {
        let config = new_config("nacre", UUID);
        let add = |config: &FsConfig, target: &TargetConfig| plan_add(config, "nacre", &UUID, target);
        assert_eq!(add(&config, &ost(1, "10.0.0.1@tcp")), Err(Status::ENXIO));
        let one = add(&config, &ost(0, "10.0.0.1@tcp")).expect("accepted").expect("changed");
        assert_eq!(add(&one, &ost(0, "10.0.0.1@tcp")), Ok(None), "the same again");
        assert_eq!(add(&one, &ost(0, "10.0.0.2@tcp")), Err(Status::EEXIST));
        let two = add(&one, &ost(1, "10.0.0.2@tcp")).expect("accepted").expect("changed");
        assert_eq!((two.version, two.targets.len()), (3, 2));
        assert_eq!(plan_add(&one, "other", &UUID, &ost(1, "0@lo")), Err(Status::WRONG_FSNAME));
        assert_eq!(plan_add(&one, "nacre", &[8; 16], &ost(1, "0@lo")), Err(Status::EINVAL));
        let reserved = add(&one, &ost(1, "0@lo")).expect("accepted").expect("changed");
        let served = add(&reserved, &ost(1, "10.0.0.2@tcp")).expect("accepted").expect("changed");
        assert_eq!(served.targets[1].nids[0].to_string(), "10.0.0.2@tcp");
        let mut many = two;
        for index in 0..MDT_COUNT_MAX {
            let target = TargetConfig { target: TargetId::mdt(index), ..ost(0, "10.0.0.3@tcp") };
            many = add(&many, &target).expect("accepted").expect("changed");
        }
        let beyond = TargetConfig { target: TargetId::mdt(MDT_COUNT_MAX), ..ost(0, "10.0.0.3@tcp") };
        assert_eq!(add(&many, &beyond), Err(Status::ERANGE));
    }

    #[test]
    fn a_target_stays_with_the_key_that_registered_it() {
        let with = |nid, key: u64| TargetConfig { key: Some(KeyId(key)), ..ost(0, nid) };
        let config = register(&new_config("nacre", UUID), &ost(0, "10.0.0.1@tcp")).expect("ok").expect("new");
        let bound = register(&config, &with("10.0.0.1@tcp", 1)).expect("ok").expect("the first key");
        assert_eq!(register(&bound, &with("10.0.0.1@tcp", 1)), Ok(None));
        let moved = register(&bound, &with("10.0.0.2@tcp", 1)).expect("ok").expect("its own server moves it");
        for stranger in [with("10.0.0.2@tcp", 2), with("10.0.0.3@tcp", 2), ost(0, "10.0.0.2@tcp")] {
            assert_eq!(register(&moved, &stranger), Err(Status::EPERM));
            assert!(plan_add(&moved, "nacre", &UUID, &stranger).is_err());
            let taken = plan_register(&moved, "nacre", &UUID, &stranger, true).expect("allowed");
            assert_eq!(taken.expect("changed").targets, [stranger]);
        }
    }

    #[test]
    fn keys_are_revoked_once() {
        let config = new_config("nacre", UUID);
        let one = plan_revoke(&config, KeyId(7)).expect("revoked");
        assert_eq!(plan_revoke(&one, KeyId(7)), None);
        let two = plan_revoke(&one, KeyId(3)).expect("revoked");
        assert_eq!((two.version, two.revoked.as_slice()), (3, &[KeyId(3), KeyId(7)][..]));
        let none = plan_forget_keys(&plan_capability_key(&two, 5, [1; 32])).expect("forgotten");
        assert_eq!(none, FsConfig { version: none.version, ..config });
        assert_eq!(plan_forget_keys(&none), None);
    }

    #[test]
    fn keys_of_capabilities_are_replaced_in_time_and_the_one_before_is_kept() {
        let config = new_config("nacre", UUID);
        assert!(is_capability_key_due(&config, 5));
        let one = plan_capability_key(&config, 5, [1; 32]);
        assert!(!is_capability_key_due(&one, 5 + CAPABILITY_KEY_LIFE_S - 1));
        assert!(is_capability_key_due(&one, 5 + CAPABILITY_KEY_LIFE_S) && is_capability_key_due(&one, 4));
        let three = plan_capability_key(&plan_capability_key(&one, 10, [2; 32]), 11, [3; 32]);
        assert_eq!(three.capability_keys.iter().map(|key| key.epoch).collect::<Vec<_>>(), [3, 2]);
        assert!(three.without_secrets().capability_keys.is_empty());
    }

    #[test]
    fn strangers_are_refused() {
        let config = new_config("nacre", UUID);
        let target = ost(0, "0@lo");
        assert_eq!(plan_register(&config, "other", &UUID, &target, false), Err(Status::WRONG_FSNAME));
        assert_eq!(plan_register(&config, "nacre", &[8; 16], &target, false), Err(Status::EINVAL));
        let no_nid = TargetConfig { nids: Vec::new(), ..target.clone() };
        assert_eq!(register(&config, &no_nid), Err(Status::EINVAL));
        assert_eq!(register(&config, &ost(TARGET_INDEX_MAX, "0@lo")), Err(Status::EINVAL));
        let mgt = TargetConfig { target: TargetId::mgt(), ..target };
        assert_eq!(register(&config, &mgt), Err(Status::EINVAL));
    }

    #[test]
    fn pools_are_made_filled_emptied_and_taken_away() {
        let mut config = new_config("nacre", UUID);
        for index in [0, 1] {
            config = register(&config, &ost(index, "0@lo")).expect("accepted").expect("changed");
        }
        let name = |text: &str| PoolName::new(text.as_bytes()).expect("a name");
        let flash = name("flash");
        let change = |config: &FsConfig, change| plan_change_pool(config, &flash, change);
        assert_eq!(change(&config, PoolChange::Add { ost: 0 }), Err(Status::ENOENT));
        assert_eq!(change(&config, PoolChange::Destroy), Err(Status::ENOENT));
        assert_eq!(plan_change_pool(&config, &name("a.b"), PoolChange::Create), Err(Status::EINVAL));
        assert_eq!(plan_change_pool(&config, &name("none"), PoolChange::Create), Err(Status::EINVAL));
        let made = change(&config, PoolChange::Create).expect("made");
        assert_eq!((made.version, change(&made, PoolChange::Create)), (4, Err(Status::EEXIST)));
        let one = change(&made, PoolChange::Add { ost: 1 }).expect("added");
        let both = change(&one, PoolChange::Add { ost: 0 }).expect("added");
        assert_eq!(both.pools[0].osts, [1, 0], "in the order in which they came");
        assert_eq!(change(&both, PoolChange::Add { ost: 0 }), Err(Status::EEXIST));
        assert_eq!(change(&both, PoolChange::Add { ost: 9 }), Err(Status::ENODEV));
        assert_eq!(change(&both, PoolChange::Destroy), Err(Status::ENOTEMPTY));
        let two = plan_change_pool(&both, &name("disk"), PoolChange::Create).expect("made");
        let names: Vec<&str> = two.pools.iter().map(|pool| pool.name.as_str()).collect();
        assert_eq!(names, ["disk", "flash"]);
        let shared = plan_change_pool(&two, &name("disk"), PoolChange::Add { ost: 1 }).expect("in both");
        let less = change(&shared, PoolChange::Remove { ost: 1 }).expect("removed");
        assert_eq!(change(&less, PoolChange::Remove { ost: 1 }), Err(Status::ENODEV));
        let empty = change(&less, PoolChange::Remove { ost: 0 }).expect("removed");
        let gone = change(&empty, PoolChange::Destroy).expect("destroyed");
        assert_eq!((gone.pools.len(), gone.pools[0].osts.as_slice()), (1, &[1][..]));
    }

    #[test]
    fn parameters_are_set_changed_and_removed() {
        let config = new_config("nacre", UUID);
        let set = plan_set_param(&config, "lov.stripesize", "1M").expect("ok").expect("changed");
        assert_eq!(set.params, [("lov.stripesize".to_owned(), "1048576".to_owned())]);
        assert_eq!(plan_set_param(&set, "lov.stripesize", "1024k"), Ok(None));
        let both = plan_set_param(&set, "lov.stripecount", "-1").expect("ok").expect("changed");
        assert_eq!(both.params[0].0, "lov.stripecount");
        let gone = plan_set_param(&both, "lov.stripesize", "").expect("ok").expect("changed");
        assert_eq!((gone.version, gone.params.len()), (4, 1));
        assert_eq!(plan_set_param(&gone, "lov.stripesize", ""), Ok(None));
        assert_eq!(plan_set_param(&config, "lov.nosuch", "1"), Err(Status::ENOENT));
        assert_eq!(plan_set_param(&config, "lov.stripesize", "1000"), Err(Status::EINVAL));
        for (name, value) in [("debug", "loud"), ("jobid_name", "%x"), ("osc.*.checksum_type", "md5")] {
            assert_eq!(plan_set_param(&config, name, value), Err(Status::EINVAL), "{name}={value}");
        }
    }
}
