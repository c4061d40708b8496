use super::*;

fn kernel(flags: InitFlags) -> InitRequest {
    InitRequest { major: 7, minor: 45, max_readahead: 128 << 10, flags }
}

fn negotiated(flags: InitFlags) -> InitConfig {
    InitConfig {
        minor: 45,
        flags,
        max_write: 1 << 20,
        max_readahead: 1 << 20,
        max_background: 64,
        congestion_threshold: 48,
        time_granularity_ns: 1,
        request_timeout: None,
        transport: Transport::Uring,
    }
}

#[test]
fn nothing_is_switched_on_that_the_kernel_lacks() {
    let offered = InitFlags::ASYNC_READ | InitFlags::BIG_WRITES;
    let mut config = negotiated(InitFlags::all());
    settle(&mut config, &kernel(offered), &ProtocolOptions::default());
    assert_eq!(config.flags, offered);
    assert_eq!(config.transport, Transport::Dev);
    assert_eq!(config.max_write, 128 << 10, "larger requests need MAX_PAGES");
    assert_eq!(config.max_readahead, 128 << 10);
}

#[test]
fn upper_flags_travel_only_with_the_extension() {
    let mut config = negotiated(InitFlags::OVER_IO_URING | InitFlags::MAX_PAGES);
    let offered = InitFlags::OVER_IO_URING | InitFlags::INIT_EXT | InitFlags::MAX_PAGES;
    settle(&mut config, &kernel(offered), &ProtocolOptions::default());
    let out = init_out(&config);
    assert_eq!(out.flags, (InitFlags::INIT_EXT | InitFlags::MAX_PAGES).bits() as u32);
    assert_eq!(out.flags2, 1 << 9);
    assert_eq!((out.max_write, out.max_pages), (1 << 20, 256));
}

#[test]
fn numbers_out_of_range_are_brought_back() {
    let mut config = InitConfig {
        max_write: 0,
        max_background: 0,
        congestion_threshold: 99,
        time_granularity_ns: u32::MAX,
        request_timeout: Some(Duration::from_millis(1)),
        ..negotiated(InitFlags::empty())
    };
    settle(&mut config, &kernel(InitFlags::all()), &ProtocolOptions::default());
    assert_eq!((config.max_write, config.max_background, config.congestion_threshold), (4096, 1, 1));
    assert_eq!(config.time_granularity_ns, 1_000_000_000);
    assert_eq!(init_out(&config).request_timeout, 1);
}

#[test]
fn dangerous_flags_are_never_asked_for() {
    let every = ProtocolOptions {
        posix_locks: true,
        export_support: true,
        writeback_cache: false,
        passthrough: true,
        kernel_acls: false,
        ..ProtocolOptions::default()
    };
    let flags = wanted_flags(&every);
    assert!(!flags.contains(InitFlags::POSIX_ACL));
    assert!(!flags.contains(InitFlags::WRITEBACK_CACHE));
    assert!(!flags.contains(InitFlags::AUTO_INVAL_DATA));
    assert!(flags.contains(InitFlags::EXPLICIT_INVAL_DATA));
    assert!(flags.contains(InitFlags::EXPORT_SUPPORT) && !flags.contains(InitFlags::NO_EXPORT_SUPPORT));
}
