//! Parameters of an object target that keeps its objects on a device: what its store does by itself.

use nacre_oss::ObjectServer;
use nacre_params::{Tree, value};
use nacre_store::object::block::{DefragSettings, DefragStats};
use nacre_types::{Status, StatusResult};
use std::sync::Arc;

/// How a setting of the defragmenter is read and shown.
struct Setting {
    leaf: &'static str,
    show: fn(&DefragSettings) -> String,
    set: fn(&mut DefragSettings, &str) -> StatusResult<()>,
}

fn number(text: &str) -> StatusResult<u64> {
    text.trim().parse().map_err(|_| Status::EINVAL)
}

const SETTINGS: [Setting; 5] = [
    Setting {
        leaf: "defrag_enable",
        show: |settings| u8::from(settings.is_on).to_string(),
        set: |settings, text| value::truth(text).map(|is_on| settings.is_on = is_on),
    },
    Setting {
        leaf: "defrag_bytes_per_second",
        show: |settings| settings.bytes_per_second.to_string(),
        set: |settings, text| value::bytes(text, 1).map(|bytes| settings.bytes_per_second = bytes),
    },
    Setting {
        leaf: "defrag_threshold_percent",
        show: |settings| settings.threshold_percent.to_string(),
        set: |settings, text| match u8::try_from(number(text)?) {
            Ok(percent) if percent <= 100 => {
                settings.threshold_percent = percent;
                Ok(())
            }
            _ => Err(Status::ERANGE),
        },
    },
    Setting {
        leaf: "defrag_rest_seconds",
        show: |settings| settings.rest_seconds.to_string(),
        set: |settings, text| number(text).map(|seconds| settings.rest_seconds = seconds),
    },
    Setting {
        leaf: "defrag_idle_ms",
        show: |settings| settings.idle_ms.to_string(),
        set: |settings, text| number(text).map(|ms| settings.idle_ms = ms),
    },
];

/// Counters as `name value` lines.
fn lines(rows: &[(&str, u64)]) -> String {
    rows.iter().map(|(name, count)| format!("{name:<28}{count}\n")).collect()
}

fn defrag_counters(stats: &DefragStats) -> String {
    lines(&[
        ("passes", stats.passes),
        ("objects", stats.objects),
        ("parts", stats.parts),
        ("bytes", stats.bytes),
        ("extents_before", stats.extents_before),
        ("extents_after", stats.extents_after),
        ("disturbed", stats.disturbed),
        ("no_room", stats.no_room),
        ("failed", stats.failed),
        ("pauses", stats.pauses),
    ])
}

/// Enters those of the target whose parameters lie `below`, if its objects are on a device.
pub fn enter(tree: &Tree, below: &str, server: &Arc<ObjectServer>) {
    if server.store().device_store().is_none() {
        return;
    }
    for Setting { leaf, show, set } in &SETTINGS {
        let (get, change) = (server.clone(), server.clone());
        tree.add_both(
            &format!("{below}.{leaf}"),
            move || {
                let store = get.store().device_store().ok_or(Status::ENODEV)?;
                Ok(show(&store.defrag_settings()))
            },
            move |text| {
                let store = change.store().device_store().ok_or(Status::ENODEV)?;
                let mut settings = store.defrag_settings();
                set(&mut settings, text)?;
                store.set_defrag_settings(settings);
                Ok(())
            },
        );
    }
    let stats = server.clone();
    tree.add_read(&format!("{below}.defrag_stats"), move || {
        let store = stats.store().device_store().ok_or(Status::ENODEV)?;
        Ok(defrag_counters(&store.defrag_stats()))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_shown() {
        let mut settings = DefragSettings::USUAL;
        let mut set = |leaf: &str, text: &str| {
            let setting = SETTINGS.iter().find(|setting| setting.leaf == leaf).expect("in the table");
            (setting.set)(&mut settings, text).map(|()| (setting.show)(&settings))
        };
        assert_eq!(set("defrag_enable", "0").as_deref(), Ok("0"));
        assert_eq!(set("defrag_enable", "maybe"), Err(Status::EINVAL));
        assert_eq!(set("defrag_bytes_per_second", "64M").as_deref(), Ok("67108864"));
        assert_eq!(set("defrag_threshold_percent", "100").as_deref(), Ok("100"));
        assert_eq!(set("defrag_threshold_percent", "101"), Err(Status::ERANGE));
        assert_eq!(set("defrag_threshold_percent", "half"), Err(Status::EINVAL));
        assert_eq!(set("defrag_rest_seconds", "0").as_deref(), Ok("0"));
        assert_eq!(set("defrag_idle_ms", "-1"), Err(Status::EINVAL));
        assert!(!settings.is_on);
    }
}
