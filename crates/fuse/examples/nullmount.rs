//! Mounts the null file system until an unmount or a signal, to measure the channel by hand.
//!
//! `nullmount DIR [--dev|--uring] [--readers N] [--pin] [--workers N] [--attr-timeout MS] [--cached]
//! [--fill]`

use std::sync::Arc;
use std::time::Duration;

use nacre_fuse::nullfs::{NullFs, NullOptions};
use nacre_fuse::{Session, SessionConfig, TransportChoice};

fn main() {
    let mut args = std::env::args().skip(1);
    let Some(path) = args.next() else {
        eprintln!(
            "usage: nullmount DIR [--dev|--uring] [--readers N] [--pin] [--workers N] [--attr-timeout MS] ..."
        );
        std::process::exit(2);
    };
    let mut config = SessionConfig::new(path);
    config.mount.source = "null".into();
    config.mount.subtype = "nacrenull".into();
    let files: [(&str, u64); 4] = [("big0", 4 << 30), ("big1", 4 << 30), ("w0", 0), ("w1", 0)];
    let mut options = NullOptions {
        directories: ["d0", "d1", "d2", "d3"].map(String::from).to_vec(),
        files: files.map(|(name, size)| (name.to_owned(), size)).to_vec(),
        ..NullOptions::default()
    };
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|text| text.parse().ok()).expect("a number follows");
        match arg.as_str() {
            "--dev" => config.transport = TransportChoice::Dev,
            "--uring" => config.transport = TransportChoice::Uring,
            "--readers" => config.threads.readers = Some(number() as usize),
            "--pin" => config.threads.pin_readers = true,
            "--workers" => config.threads.workers_per_cpu = number() as usize,
            "--attr-timeout" => options.attr_timeout = Duration::from_millis(number()),
            "--entry-timeout" => options.entry_timeout = Duration::from_millis(number()),
            "--cached" => options.direct_io = false,
            "--fill" => options.fill = Some(0x5a),
            "--fusermount" => config.mount.force_fusermount = true,
            other => panic!("unknown option {other}"),
        }
    }
    let session = match Session::mount(config, Arc::new(NullFs::new(options))) {
        Ok(session) => session,
        Err(error) => {
            eprintln!("nullmount: {error}");
            std::process::exit(1);
        }
    };
    println!("mounted on {} over {}", session.mount_point().display(), session.transport());
    if let Err(error) = session.join() {
        eprintln!("nullmount: {error}");
    }
}
