//! Parameters of the locks that a target gives out: `ldlm.namespaces.*` of servers.

use nacre_dlm::{LockService, ServerConfig};
use nacre_params::{Tree, value};
use nacre_types::StatusResult;
use std::sync::Arc;
use std::time::Duration;

/// Longest time that can be set, in seconds.
const SECONDS_MAX: i64 = 86_400;

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
