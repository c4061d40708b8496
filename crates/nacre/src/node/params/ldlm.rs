//! Parameters of locks: `ldlm.namespaces.*` of targets, which grant them, and of mounts, which hold them.

use nacre_client::{Client, LockCounts};
use nacre_dlm::{LockService, ServerConfig};
use nacre_params::{Entries, Tree, value};
use nacre_types::TargetId;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

/// Largest time that can be set, in seconds.
const SECONDS_MAX: i64 = 86_400;
/// Default number of unused locks that a mount keeps per target (`lru_size=0`).
const LRU_SIZE_DEFAULT: usize = 32 * 1024;

/// Enters the parameters of a target's locks below `below`.
pub fn enter(tree: &Tree, below: &str, locks: &Arc<LockService>) {
    let entries = tree.of(below, locks);
    entries.show("lock_count", LockService::lock_count);
    entries.show("resource_count", LockService::resource_count);
    entries.show("lock_timeouts", |locks| locks.stats().evictions);
    entries.integer(
        "contended_locks",
        1..=u16::MAX.into(),
        |locks| locks.config().contention_events,
        |locks, events| {
            locks.change_config(|config| config.contention_events = events.unsigned_abs() as usize)
        },
    );
    let bounds = || 0..=SECONDS_MAX;
    enter_seconds(&entries, "contention_seconds", bounds(), |config| &mut config.contention_window);
    enter_seconds(&entries, "contention_hold_seconds", bounds(), |config| &mut config.contention_time);
}

/// Enters the timeout of a client's answer to a callback.
pub fn enter_timeout(entries: &Entries<'_, LockService>, max_s: i64) {
    enter_seconds(entries, "ldlm_timeout", 1..=max_s, |config| &mut config.callback_timeout);
}

/// Enters the parameters of a mount's locks at a target.
pub fn enter_mount(entries: &Entries<'_, Client>, target: TargetId) {
    entries.show("lock_count", move |client| client.lease.locks().counts(target).locks);
    entries.show("lock_unused_count", move |client| client.lease.locks().counts(target).unused);
    entries.show("lock_stats", move |client| stats_of(&client.lease.locks().counts(target)));
    entries.setting(
        "lru_size",
        move |client| client.lease.locks().lru_size(target),
        move |client, text| {
            let locks = client.lease.locks();
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
    entries.integer(
        "lru_max_age",
        1..=SECONDS_MAX * 1000,
        move |client| client.lease.locks().lru_max_age(target).as_millis(),
        move |client, age_ms| {
            let age = Duration::from_millis(age_ms.unsigned_abs());
            client.lease.locks().set_lru_max_age(target, age);
        },
    );
}

fn stats_of(counts: &LockCounts) -> String {
    let LockCounts { matched, enqueued, callbacks, cancelled, .. } = counts;
    format!("matched {matched}\nenqueued {enqueued}\ncallbacks {callbacks}\ncancelled {cancelled}\n")
}

fn enter_seconds(
    entries: &Entries<'_, LockService>,
    leaf: &str,
    bounds: RangeInclusive<i64>,
    choose: fn(&mut ServerConfig) -> &mut Duration,
) {
    entries.integer(
        leaf,
        bounds,
        move |locks| choose(&mut locks.config()).as_secs(),
        move |locks, seconds| {
            let time = Duration::from_secs(seconds.unsigned_abs());
            locks.change_config(|config| *choose(config) = time);
        },
    );
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
        enter_timeout(&tree.of("obdfilter.x", &locks), 600);
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
