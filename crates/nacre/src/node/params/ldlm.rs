//! Parameters of locks: `ldlm.namespaces.*` of the targets that give them out, and of the mounts that have them.

use nacre_client::{Client, LockCounts};
use nacre_dlm::{LockService, ServerConfig};
use nacre_params::{Tree, value};
use nacre_types::{StatusResult, TargetId};
use std::sync::Arc;
use std::time::Duration;

/// Longest time that can be set, in seconds.
const SECONDS_MAX: i64 = 86_400;
/// Unused locks that a mount keeps per target if nobody says otherwise (`lru_size=0`).
const LRU_SIZE_DEFAULT: usize = 32 * 1024;

/// Enters the parameters of a target's locks below `below`.
pub fn enter(tree: &Tree, below: &str, locks: &Arc<LockService>) {
    type Count = fn(&LockService) -> u64;
    let counts: [(&str, Count); 3] = [
        ("lock_count", |locks| locks.lock_count() as u64),
        ("resource_count", |locks| locks.resource_count() as u64),
        ("lock_timeouts", |locks| locks.stats().evictions),
    ];
    for (leaf, count) in counts {
        let locks = locks.clone();
        tree.add_read(&format!("{below}.{leaf}"), move || Ok(count(&locks).to_string()));
    }
    let (get, set) = (locks.clone(), locks.clone());
    tree.add_both(
        &format!("{below}.contended_locks"),
        move || Ok(get.config().contention_events.to_string()),
        move |text| {
            let events = value::integer(text, 1, i64::from(u16::MAX))?.unsigned_abs() as usize;
            set.change_config(|config| config.contention_events = events);
            Ok(())
        },
    );
    enter_seconds(tree, &format!("{below}.contention_seconds"), locks, |config| {
        &mut config.contention_window
    });
    enter_seconds(tree, &format!("{below}.contention_hold_seconds"), locks, |config| {
        &mut config.contention_time
    });
}

/// Enters the time that a client has to answer a callback as the parameter `name`.
pub fn enter_timeout(tree: &Tree, name: &str, locks: &Arc<LockService>, max_s: i64) {
    let (get, set) = (locks.clone(), locks.clone());
    tree.add_both(
        name,
        move || Ok(get.config().callback_timeout.as_secs().to_string()),
        move |text| {
            let timeout = seconds(text, 1, max_s)?;
            set.change_config(|config| config.callback_timeout = timeout);
            Ok(())
        },
    );
}

/// Enters the parameters of a mount's locks at a target below `below`.
pub fn enter_mount(tree: &Tree, below: &str, client: &Arc<Client>, target: TargetId) {
    type Count = fn(&LockCounts) -> u64;
    let counts: [(&str, Count); 2] =
        [("lock_count", |counts| counts.locks as u64), ("lock_unused_count", |counts| counts.unused as u64)];
    for (leaf, count) in counts {
        let client = client.clone();
        tree.add_read(&format!("{below}.{leaf}"), move || {
            Ok(count(&client.lease.locks().counts(target)).to_string())
        });
    }
    let stats = client.clone();
    tree.add_read(&format!("{below}.lock_stats"), move || Ok(stats_of(&stats.lease.locks().counts(target))));
    let (get, set) = (client.clone(), client.clone());
    tree.add_both(
        &format!("{below}.lru_size"),
        move || Ok(get.lease.locks().lru_size(target).to_string()),
        move |text| {
            let locks = set.lease.locks();
            match text.trim() {
                "clear" => locks.drop_unused(target),
                text => {
                    let wanted = value::integer(text, 0, i64::from(u32::MAX))?.unsigned_abs() as usize;
                    locks.set_lru_size(target, if wanted == 0 { LRU_SIZE_DEFAULT } else { wanted });
                }
            }
            Ok(())
        },
    );
    let (get, set) = (client.clone(), client.clone());
    tree.add_both(
        &format!("{below}.lru_max_age"),
        move || Ok(get.lease.locks().lru_max_age(target).as_millis().to_string()),
        move |text| {
            let age_ms = value::integer(text, 1, SECONDS_MAX * 1000)?.unsigned_abs();
            set.lease.locks().set_lru_max_age(target, Duration::from_millis(age_ms));
            Ok(())
        },
    );
}

fn stats_of(counts: &LockCounts) -> String {
    let LockCounts { matched, enqueued, callbacks, cancelled, .. } = counts;
    format!("matched {matched}\nenqueued {enqueued}\ncallbacks {callbacks}\ncancelled {cancelled}\n")
}

type Choose = fn(&mut ServerConfig) -> &mut Duration;

fn enter_seconds(tree: &Tree, name: &str, locks: &Arc<LockService>, choose: Choose) {
    let (get, set) = (locks.clone(), locks.clone());
    tree.add_both(
        name,
        move || Ok(choose(&mut get.config()).as_secs().to_string()),
        move |text| {
            let time = seconds(text, 0, SECONDS_MAX)?;
            set.change_config(|config| *choose(config) = time);
            Ok(())
        },
    );
}

fn seconds(text: &str, min: i64, max: i64) -> StatusResult<Duration> {
    Ok(Duration::from_secs(value::integer(text, min, max)?.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_dlm::Expected;
    use nacre_types::Status;

    #[test]
    fn what_is_set_is_what_the_locks_go_by() {
        let config = ServerConfig::default();
        let locks = Arc::new(LockService::new("OST0000", config, Expected::new(), Duration::ZERO));
        let tree = Tree::new();
        enter(&tree, "ldlm.namespaces.x", &locks);
        enter_timeout(&tree, "obdfilter.x.ldlm_timeout", &locks, 600);
        let read = |leaf: &str| tree.read(&format!("ldlm.namespaces.x.{leaf}")).expect("it is there");
        assert_eq!((read("contended_locks"), read("contention_seconds")), ("16".into(), "4".into()));
        assert_eq!((read("lock_count"), read("lock_timeouts")), ("0".into(), "0".into()));
        assert_eq!(tree.write("ldlm.namespaces.x.contended_locks", "7"), Ok(()));
        assert_eq!(tree.write("ldlm.namespaces.x.contention_hold_seconds", "0"), Ok(()));
        assert_eq!(tree.write("obdfilter.x.ldlm_timeout", "90"), Ok(()));
        let set = locks.config();
        assert_eq!((set.contention_events, set.contention_time), (7, Duration::ZERO));
        assert_eq!(set.callback_timeout, Duration::from_secs(90));
        assert_eq!(tree.write("obdfilter.x.ldlm_timeout", "0"), Err(Status::ERANGE));
        assert_eq!(tree.write("ldlm.namespaces.x.lock_count", "1"), Err(Status::EACCES));
    }
}
