//! Services of the operating system for threads that serve requests, and the seams between the product and
//! the machine.
//!
//! - [`clock`], [`thread`] and [`sync`]: time, threads, locks and channels. All crates above use these, so
//!   that a simulation ([`sim`]) can replace them.
//! - [`activity`]: running operations and their waits, slow operations, recent events.
//! - [`blocking`]: announces that this thread is about to block, so that the owner of the thread can start
//!   another one in its place. The RPC and store layers call it around waits and disk reads; they need not
//!   know the owner.
//! - [`interrupt`]: the request that a thread serves may be cancelled (a signal at the caller of a system
//!   call); waits poll [`interrupted`], and a signal ends system calls.
//! - [`fault`]: named fault points, in builds for tests alone.
//! - [`heap`]: return of freed memory to the system.
//! - [`job`]: the job that the thread works for.
//! - [`log_limit`]: at most one line of the log in a second about the same thing.
//! - [`cpu`]: pinning and counting of CPUs.
//! - [`process`]: the identity of this process, and whether another one of this host has ended.
//! - [`twice`]: small files that are stored twice.
//! - [`users`]: the user database of this host.
//!
//! The crate starts no runtime; its only own thread resends interrupt signals, and is started by the first
//! interrupt.

pub mod activity;
pub mod blocking;
pub mod clock;
pub mod cpu;
pub mod date;
pub mod fault;
pub mod heap;
pub mod interrupt;
pub mod job;
pub mod log_limit;
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
pub use interrupt::{InterruptTarget, interrupt_target, interrupted, is_late, time_limit, until};
pub use job::{JobGuard, current_job, enter_job};
pub use log_limit::LogLimit;
pub use process::{has_ended, own_process};
