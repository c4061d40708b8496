//! `nacre`: the file system and its tools in one program. The name that it is called by selects the tool:
//! `nacre`, `lfs`, `lctl` or `mount.nacre`; `nacre lfs ...` and `nacre lctl ...` work too.
//!
//! | module | what |
//! |---|---|
//! | `cli` | the `nacre` command, one module per sub-command |
//! | `node` | a process: targets, server and mount, assembled |
//! | `instance` | the directory of a file system |
//! | `process`, `control`, `registry`, `ports` | background processes, and how commands find and query them |
//! | `debug` | what processes do and wait for |
//! | `sandbox` | confinement of server processes |
//! | `service` | reports to a service manager |
//! | `lfs`, `lctl`, `mount_helper` | Lustre's commands and what mount(8) calls |

// First: the other modules use its macros.
#[macro_use]
mod output;
mod audit;
mod backend;
mod changelog;
mod cli;
mod control;
mod created;
mod debug;
mod device_words;
mod failure;
mod gather;
mod holders;
mod http_address;
mod instance;
mod keys;
mod lctl;
mod lfs;
mod listen;
mod local_params;
mod logger;
mod mount_helper;
mod mounts;
mod named;
mod new_target;
mod node;
mod ost_cache;
mod ost_class;
mod ost_list;
mod path;
mod ports;
mod process;
mod progress;
mod public;
mod regex;
mod registry;
mod sandbox;
mod service;
mod start;
mod target_options;
mod walks;

use std::ffi::OsString;
use std::path::Path;

fn main() {
    let mut args: Vec<OsString> = std::env::args_os().collect();
    let called = args.first().map(|name| Path::new(name).file_name().unwrap_or_default().to_owned());
    if !args.is_empty() {
        args.remove(0);
    }
    let code = match called.as_deref().and_then(|name| name.to_str()) {
        Some("lfs") => lfs::main(&args),
        Some("lctl") => lctl::main(&args),
        Some("mount.nacre" | "mount.fuse.nacre") => mount_helper::main(&args),
        _ => cli::main(args),
    };
    std::process::exit(code);
}
