//! Parameters of the thread that reports free space of an object target to its medium: `obdfilter.*.trim_*`.

use nacre_oss::ObjectServer;
use nacre_params::{Entries, Field, Form, value};
use nacre_store::object::trim::{TrimSettings, Trimmer};
use nacre_types::{Status, StatusResult};
use std::time::Duration;

/// Longest idle time to require before a trim, in milliseconds.
const IDLE_MAX_MS: i64 = 24 * 3600 * 1000;

fn number(text: &str, max: i64) -> StatusResult<u32> {
    let number = value::integer(text, 0, max)?;
    u32::try_from(number).map_err(|_| Status::ERANGE)
}

const SETTINGS: &[Field<TrimSettings>] = &[
    (
        "trim_policy",
        Form::Other {
            show: |settings| if settings.is_on { "on" } else { "off" }.to_owned(),
            set: |settings, text| value::truth(text).map(|is_on| settings.is_on = is_on),
        },
    ),
    (
        "trim_rate",
        Form::Other {
            show: |settings| settings.rate.to_string(),
            set: |settings, text| rate(text, TrimSettings::RATE_MIN).map(|rate| settings.rate = rate),
        },
    ),
    (
        "trim_busy_rate",
        Form::Other {
            show: |settings| settings.busy_rate.to_string(),
            set: |settings, text| rate(text, 0).map(|rate| settings.busy_rate = rate),
        },
    ),
    (
        "trim_start_percent",
        Form::Other {
            show: |settings| settings.start_percent.to_string(),
            set: |settings, text| number(text, 100).map(|percent| settings.start_percent = percent),
        },
    ),
    (
        "trim_urgent_percent",
        Form::Other {
            show: |settings| settings.urgent_percent.to_string(),
            set: |settings, text| number(text, 100).map(|percent| settings.urgent_percent = percent),
        },
    ),
    (
        "trim_idle_ms",
        Form::Other {
            show: |settings| settings.idle.as_millis().to_string(),
            set: |settings, text| {
                let ms = value::integer(text, 0, IDLE_MAX_MS)?;
                settings.idle = Duration::from_millis(ms.unsigned_abs());
                Ok(())
            },
        },
    ),
    (
        "trim_quiet_iops",
        Form::Other {
            show: |settings| settings.quiet_iops.to_string(),
            set: |settings, text| number(text, 1_000_000).map(|iops| settings.quiet_iops = iops),
        },
    ),
];

/// Parses a rate in bytes per second: `least` or more.
fn rate(text: &str, least: u64) -> StatusResult<u64> {
    let rate = value::bytes(text, 1)?;
    if rate == least || rate >= TrimSettings::RATE_MIN { Ok(rate) } else { Err(Status::ERANGE) }
}

fn trimmer(server: &ObjectServer) -> StatusResult<&Trimmer> {
    server.trimmer().ok_or(Status::ENODEV)
}

/// Enters the parameters of the target, if it trims.
pub fn enter(target: &Entries<'_, ObjectServer>) {
    if !target.has(|server| server.trimmer().is_some()) {
        return;
    }
    target.fields(
        SETTINGS,
        |server| Ok(trimmer(server)?.settings()),
        |server, settings| {
            trimmer(server)?.set_settings(settings);
            Ok(())
        },
    );
    target.changing(
        "trim_stats",
        |server| Ok(trimmer(server)?.text()),
        |server, _| {
            trimmer(server)?.clear();
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
            let (_, form) = SETTINGS.iter().find(|(known, _)| *known == leaf).expect("in the table");
            form.set(&mut settings, text).map(|()| form.show(&mut settings))
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
