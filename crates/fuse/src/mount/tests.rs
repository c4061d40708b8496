use super::*;

#[test]
fn commas_in_option_values_are_escaped_for_the_helper() {
    let options =
        MountOptions { source: r"a,b\c".into(), allow_other: Some(false), ..MountOptions::default() };
    let text = helper_options(&options, 4096);
    assert!(text.starts_with(r"fsname=a\,b\\c,subtype=nacre,max_read=4096"), "{text}");
    assert!(!text.contains("allow_other"));
}

#[test]
fn senseless_options_are_refused_by_name() {
    let refused = |change: &dyn Fn(&mut SessionConfig)| {
        let mut config = SessionConfig::new("/");
        change(&mut config);
        match check_options(&config) {
            Err(Error::Option { name, .. }) => name,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(&|config| config.protocol.max_write = 1000), "max_write");
    assert_eq!(refused(&|config| config.protocol.max_write = 2 << 20), "max_write");
    assert_eq!(refused(&|config| config.protocol.time_granularity_ns = 0), "time_granularity_ns");
    assert_eq!(refused(&|config| config.protocol.max_background = 0), "max_background");
    assert_eq!(refused(&|config| config.threads.readers = Some(0)), "readers");
    assert_eq!(refused(&|config| config.threads.workers_per_cpu = 0), "workers_per_cpu");
    assert_eq!(refused(&|config| config.threads.workers_per_cpu_max = 1), "workers_per_cpu");
    assert_eq!(refused(&|config| config.mount.subtype = "a,b".into()), "subtype");
    assert_eq!(refused(&|config| config.mount.source = String::new()), "source");
    assert!(check_options(&SessionConfig::new("/")).is_ok());
}

#[test]
fn unusable_mount_points_are_told_apart() {
    let scratch = tempfile::tempdir().expect("scratch directory");
    let options = MountOptions::default();
    let missing = scratch.path().join("missing");
    assert!(matches!(prepare_mount_point(&missing, &options), Err(Error::NoMountPoint(_))));
    let file = scratch.path().join("file");
    std::fs::write(&file, b"").expect("a file");
    assert!(matches!(prepare_mount_point(&file, &options), Err(Error::NotADirectory(_))));
    assert!(matches!(prepare_mount_point(&file.join("below"), &options), Err(Error::NotADirectory(_))));
    assert!(matches!(prepare_mount_point(scratch.path(), &options), Err(Error::NotEmpty(_))));
    let allowed = MountOptions { allow_non_empty: true, ..options };
    assert!(prepare_mount_point(scratch.path(), &allowed).is_ok());
}
