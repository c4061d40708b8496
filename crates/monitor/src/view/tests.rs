use super::*;
use crate::sample::Sample;

fn snapshot(at_ms: u64, read: f64, counts: Vec<u64>, writes: u64) -> Snapshot {
    let mut sample = Sample::default();
    sample.put("nacre_target_size_bytes", &["OST0000"], 1000.0);
    sample.put("nacre_target_free_bytes", &["OST0000"], 100.0);
    sample.put("nacre_target_available_bytes", &["OST0000"], 20.0);
    sample.put("nacre_target_healthy", &["OST0000"], 1.0);
    sample.put("nacre_evictions", &["OST0000"], read / 1000.0);
    sample.put("nacre_pool_member", &["flash", "OST0000"], 1.0);
    sample.put_kind("nacre_ost_transferred_bytes", "OST0000", "read", read);
    sample.put_times(
        "nacre_request_duration_seconds",
        "OST0000",
        "ost_read",
        Times { counts, sum_s: read / 1000.0 },
    );
    let process = ProcessSample {
        name: "ost0000".to_owned(),
        targets: vec!["OST0000".to_owned()],
        sample,
        jobs: Vec::new(),
    };
    Snapshot {
        at_ms,
        fsname: "x".to_owned(),
        processes: vec![process],
        missing: vec![("mdt0000".to_owned(), vec!["MDT0000".to_owned()])],
        jobs: vec![JobTotals { job: "j".to_owned(), writes, ..JobTotals::default() }],
        ..Snapshot::default()
    }
}

fn counts(row: usize, count: u64) -> Vec<u64> {
    let mut counts = vec![0; TIME_BOUNDS_S.len() + 1];
    counts[row] = count;
    counts
}

#[test]
fn rates_are_those_between_two_snapshots() {
    let (before, now) = (snapshot(1000, 1000.0, counts(0, 10), 5), snapshot(3000, 5000.0, counts(0, 30), 9));
    let view = View::of(Some(&before), &now);
    let ost = view.targets.iter().find(|target| target.name == "OST0000").expect("it is there");
    assert_eq!((ost.read, ost.requests, ost.mean_s), (2000.0, 10.0, Some(0.2)));
    assert_eq!((view.total.read, view.jobs[0].requests, view.pools[0].size), (2000.0, 2.0, 1000.0));
    // Reserved space is neither used nor available.
    assert_eq!((ost.used, ost.available, view.total.used, view.pools[0].used), (900.0, 20.0, 900.0, 900.0));
    let none = View::of(None, &now);
    assert_eq!((none.total.read, none.jobs.len(), none.slow.len()), (0.0, 0, 0));
    // A new run of the process.
    let view = View::of(Some(&now), &snapshot(5000, 1000.0, counts(0, 10), 1));
    assert_eq!((view.total.read, view.targets[1].requests, view.jobs[0].requests), (500.0, 5.0, 0.5));
}

#[test]
fn what_is_down_full_or_growing_is_an_alert_with_what_to_do() {
    let before = snapshot(1000, 1000.0, counts(0, 10), 5);
    let mut now = snapshot(3000, 5000.0, counts(9, 30), 9);
    now.processes[0].sample.put("nacre_check_problems", &["OST0000"], 2.0);
    let view = View::of(Some(&before), &now);
    let texts: Vec<&str> = view.alerts.iter().map(|alert| alert.text.as_str()).collect();
    let expected = [
        "mdt0000 (MDT0000) does not answer",
        "OST0000 is damaged in 2 places",
        "OST0000 has 2.0 % of its space left",
        "OST0000 evicted a client",
    ];
    assert_eq!(texts, expected);
    assert_eq!(view.targets[0].state, "down");
    assert!(view.alerts.iter().all(|alert| alert.action.ends_with('.')));
    assert_eq!((view.slow.len(), view.slow[0].operation.as_str()), (1, "ost_read"));
    assert!(view.slow[0].p99_s > 1.0 && view.slow[0].p99_s <= 4.2, "{:?}", view.slow);
}

#[test]
fn quantiles_are_within_the_row_of_their_rank() {
    assert_eq!(quantile(&Times::default(), 0.99), None);
    let times = Times { counts: counts(1, 100), sum_s: 0.0 };
    let half = quantile(&times, 0.5).expect("events");
    assert!((half - 40e-6).abs() < 1e-9, "{half}");
    let long = Times { counts: counts(11, 1), sum_s: 0.0 };
    assert_eq!(quantile(&long, 0.5), Some(TIME_BOUNDS_S[10]));
}

#[test]
fn owners_have_names_limits_and_an_alert_beyond_a_soft_limit() {
    let mut now = snapshot(1000, 0.0, Vec::new(), 0);
    let sample = &mut now.processes[0].sample;
    for (kind, id, used) in [("project", "7", 5.0), ("user", "1000", 30.0), ("user", "1001", 40.0)] {
        sample.put("nacre_owner_used_bytes", &[kind, id], used);
        sample.put("nacre_owner_inodes", &[kind, id], 1.0);
    }
    sample.put("nacre_owner_soft_limit_bytes", &["user", "1000"], 20.0);
    sample.put("nacre_owner_soft_limit_bytes", &["user", "1001"], 50.0);
    now.name_owners(|kind, id| (kind == "user" && id == 1000).then(|| "bob".to_owned()));
    let view = View::of(None, &now);
    let shown: Vec<(&str, &str, f64, f64)> = view
        .owners
        .iter()
        .map(|owner| (owner.kind.as_str(), owner.name.as_str(), owner.used, owner.soft))
        .collect();
    assert_eq!(
        shown,
        [("user", "1001", 40.0, 50.0), ("user", "bob", 30.0, 20.0), ("project", "7", 5.0, 0.0)],
        "users before projects, those with most space first"
    );
    let about: Vec<&str> =
        view.alerts.iter().map(|alert| alert.text.as_str()).filter(|text| text.contains("soft")).collect();
    assert_eq!(about, ["The user bob is above a soft limit"]);
}
