//! Parameters of the thread that tells what is below an object target of free space: `obdfilter.*.trim_*`.

use nacre_oss::ObjectServer;
use nacre_params::{Tree, value};
use nacre_store::object::trim::{TrimSettings, Trimmer};
use nacre_types::{Status, StatusResult};
use std::sync::Arc;
use std::time::Duration;

/// Longest time in milliseconds that there must have been little other work.
const IDLE_MAX_MS: i64 = 24 * 3600 * 1000;

/// How a setting is read and shown.
struct Setting {
    leaf: &'static str,
    show: fn(&TrimSettings) -> String,
    set: fn(&mut TrimSettings, &str) -> StatusResult<()>,
}

fn number(text: &str, max: i64) -> StatusResult<u32> {
    let number = value::integer(text, 0, max)?;
    u32::try_from(number).map_err(|_| Status::ERANGE)
}

const SETTINGS: [Setting; 7] = [
    Setting {
        leaf: "trim_policy",
        show: |settings| if settings.is_on { "on" } else { "off" }.to_owned(),
        set: |settings, text| {
            settings.is_on = match text.trim() {
                "on" => true,
                "off" => false,
                other => value::truth(other)?,
            };
            Ok(())
        },
    },
    Setting {
        leaf: "trim_rate",
        show: |settings| settings.rate.to_string(),
        set: |settings, text| match value::bytes(text, 1)? {
            rate if rate < TrimSettings::RATE_MIN => Err(Status::ERANGE),
            rate => {
                settings.rate = rate;
                Ok(())
            }
        },
    },
    Setting {
        leaf: "trim_busy_rate",
        show: |settings| settings.busy_rate.to_string(),
        set: |settings, text| match value::bytes(text, 1)? {
            rate if rate > 0 && rate < TrimSettings::RATE_MIN => Err(Status::ERANGE),
            rate => {
                settings.busy_rate = rate;
                Ok(())
            }
        },
    },
    Setting {
        leaf: "trim_start_percent",
        show: |settings| settings.start_percent.to_string(),
        set: |settings, text| number(text, 100).map(|percent| settings.start_percent = percent),
    },
    Setting {
        leaf: "trim_urgent_percent",
        show: |settings| settings.urgent_percent.to_string(),
        set: |settings, text| number(text, 100).map(|percent| settings.urgent_percent = percent),
    },
    Setting {
        leaf: "trim_idle_ms",
        show: |settings| settings.idle.as_millis().to_string(),
        set: |settings, text| {
            let ms = value::integer(text, 0, IDLE_MAX_MS)?;
            settings.idle = Duration::from_millis(ms.unsigned_abs());
            Ok(())
        },
    },
    Setting {
        leaf: "trim_quiet_iops",
        show: |settings| settings.quiet_iops.to_string(),
        set: |settings, text| number(text, 1_000_000).map(|iops| settings.quiet_iops = iops),
    },
];

fn trimmer(server: &ObjectServer) -> StatusResult<&Trimmer> {
    server.trimmer().ok_or(Status::ENODEV)
}

/// Enters those of the target whose parameters are below `below`, if it trims.
pub fn enter(tree: &Tree, below: &str, server: &Arc<ObjectServer>) {
    if server.trimmer().is_none() {
        return;
    }
    for Setting { leaf, show, set } in &SETTINGS {
        let (get, change) = (server.clone(), server.clone());
        tree.add_both(
            &format!("{below}.{leaf}"),
            move || Ok(show(&trimmer(&get)?.settings())),
            move |text| {
                let trimmer = trimmer(&change)?;
                let mut settings = trimmer.settings();
                set(&mut settings, text)?;
                trimmer.set_settings(settings);
                Ok(())
            },
        );
    }
    let (stats, clear) = (server.clone(), server.clone());
    tree.add_both(
        &format!("{below}.trim_stats"),
        move || Ok(trimmer(&stats)?.text()),
        move |_| {
            trimmer(&clear)?.clear();
            Ok(())
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_shown() {
        let mut settings = TrimSettings::default();
        let mut set = |leaf: &str, text: &str| {
            let setting = SETTINGS.iter().find(|setting| setting.leaf == leaf).expect("in the table");
            (setting.set)(&mut settings, text).map(|()| (setting.show)(&settings))
        };
        assert_eq!(set("trim_policy", "off").as_deref(), Ok("off"));
        assert_eq!(set("trim_policy", "1").as_deref(), Ok("on"));
        assert_eq!(set("trim_policy", "now"), Err(Status::EINVAL));
        assert_eq!(set("trim_rate", "64M").as_deref(), Ok("67108864"));
        assert_eq!(set("trim_rate", "0"), Err(Status::ERANGE));
        assert_eq!(set("trim_busy_rate", "0").as_deref(), Ok("0"));
        assert_eq!(set("trim_busy_rate", "1"), Err(Status::ERANGE));
        assert_eq!(set("trim_start_percent", "101"), Err(Status::ERANGE));
        assert_eq!(set("trim_urgent_percent", "100").as_deref(), Ok("100"));
        assert_eq!(set("trim_idle_ms", "20").as_deref(), Ok("20"));
        assert_eq!(set("trim_idle_ms", "soon"), Err(Status::EINVAL));
        assert_eq!(set("trim_quiet_iops", "5").as_deref(), Ok("5"));
    }
}
