//! What a thread that serves requests needs from the operating system, and the seams between the product and the machine.
//!
//! - [`clock`], [`thread`] and [`sync`]: time, threads, locks and channels. Everything above this crate takes them from here, so
//!   that a simulation ([`sim`]) can put its own below.
//! - [`blocking`]: says "this thread is about to wait", so that the owner of the thread can let another one take its
//!   place. The RPC and store layers call it around waits and disk reads; they need not know who listens.
//! - [`interrupt`]: the request that a thread serves may be called off (a signal at the caller of a system call);
//!   waits poll [`interrupted`] and are kicked out of system calls by a signal.
//! - [`heap`]: memory that a busy time has left;
//! - [`job`]: for which job the thread works.
//! - [`cpu`]: pinning and counting of CPUs.
//! - [`process`]: who this process is, and whether another one of this host has ended;
//! - [`twice`]: small files that are kept twice;
//! - [`users`]: the user database of this host.
//!
//! Nothing here starts a runtime; the only thread that this crate starts by itself re-sends interrupt signals, and only
//! once the first interrupt was raised.

pub mod blocking;
pub mod clock;
pub mod cpu;
pub mod date;
pub mod heap;
pub mod interrupt;
pub mod job;
pub mod process;
pub mod sim;
pub mod sync;
pub mod thread;
pub mod twice;
pub mod users;

pub use blocking::{BlockingHook, HookGuard, blocking, install_hook};
pub use cpu::{cpu_count, current_cpu, online_cpus, pin_to_cpu, possible_cpu_count};
pub use date::utc;
pub use heap::Heap;
pub use interrupt::{InterruptTarget, interrupt_target, interrupted, is_late, until};
pub use job::{JobGuard, current_job, enter_job};
pub use process::{has_ended, own_process};
