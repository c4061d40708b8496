//! Parameters of a metadata target's changelog: `mdd.*.changelog_*`.

use nacre_mds::{Changelog, ChangelogSettings};
use nacre_params::Entries;
use nacre_types::changelog::change_user;
use nacre_types::{ChangeMask, Status};

/// Largest number of seconds of the limits.
const SECONDS_MAX: i64 = i32::MAX as i64;

/// Enters the parameters.
pub fn enter(mdd: &Entries<'_, Changelog>) {
    mdd.setting(
        "changelog_mask",
        |log| format!("{} \n", log.mask()),
        |log, text| {
            let mask = ChangeMask::parse(text, log.mask()).map_err(|_| Status::EINVAL)?;
            log.set_mask(mask);
            Ok(())
        },
    );
    mdd.show("changelog_current_mask", |log| format!("{} \n", log.current_mask()));
    mdd.show("changelog_users", users);
    mdd.show("changelog_size", |log| log.size());
    mdd.flag("changelog_gc", |log| log.settings().collects(), |log, on| log.settings().set_collects(on));
    type Get = fn(&ChangelogSettings) -> u64;
    type Set = fn(&ChangelogSettings, u64);
    let numbers: [(&str, i64, i64, Get, Set); 4] = [
        (
            "changelog_max_idle_time",
            1,
            SECONDS_MAX,
            ChangelogSettings::max_idle_time_s,
            ChangelogSettings::set_max_idle_time_s,
        ),
        (
            "changelog_max_idle_indexes",
            1,
            i64::MAX,
            ChangelogSettings::max_idle_indexes,
            ChangelogSettings::set_max_idle_indexes,
        ),
        (
            "changelog_min_gc_interval",
            1,
            SECONDS_MAX,
            ChangelogSettings::min_gc_interval_s,
            ChangelogSettings::set_min_gc_interval_s,
        ),
        ("changelog_max_mb", 0, 1 << 40, ChangelogSettings::max_mb, ChangelogSettings::set_max_mb),
    ];
    for (leaf, min, max, get, set) in numbers {
        mdd.integer(
            leaf,
            min..=max,
            move |log| get(log.settings()),
            move |log, value| set(log.settings(), value as u64),
        );
    }
}

/// Returns the users as Lustre shows them.
fn users(log: &Changelog) -> String {
    let (current, users) = log.users();
    let mut text = format!("current_index: {current}\n{:<24} {:>10} (idle) mask\n", "ID", "index");
    for user in users {
        let name = change_user(user.id, &user.name);
        text.push_str(&format!("{name:<24} {:>10} ({})", user.cleared, user.idle_s));
        if !user.mask.is_empty() {
            text.push_str(&format!(" mask={}", user.mask.names(",")));
        }
        text.push('\n');
    }
    text
}
