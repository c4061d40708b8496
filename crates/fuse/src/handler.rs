//! What answers requests.

use std::time::Duration;

use crate::abi::InitFlags;
use crate::config::Transport;
use crate::notify::Notifier;
use crate::reply::Reply;
use crate::request::{InitRequest, Request};

/// A file system, as the kernel sees it.
///
/// Methods run on the session's threads, many at a time, and may wait for disk and network; a wait must be wrapped in
/// [`nacre_env::blocking`], so that another thread takes over the role of this one, and should end with EINTR once
/// [`nacre_env::interrupted`] says so. A handler that panics answers EIO.
pub trait Handler: Send + Sync {
    /// The file system was mounted; called once, before [`Handler::init`]. `notifier` works from the end of `init` on.
    fn attached(&self, notifier: &Notifier) {
        let _ = notifier;
    }

    /// The kernel says what it can do (`kernel`), and `negotiated` what will be answered: a handler may lower numbers
    /// and take flags away, and add flags that the kernel offers.
    fn init(&self, kernel: &InitRequest, negotiated: &mut InitConfig) {
        let _ = (kernel, negotiated);
    }

    /// Answers one request by calling a method of `reply`.
    fn handle(&self, request: &Request<'_>, reply: &mut Reply<'_>);

    /// Request `unique` was called off. Handlers that poll [`nacre_env::interrupted`] need nothing here; it is meant for
    /// those that park requests in structures of their own. Called from another thread than the request's, possibly
    /// after its answer.
    fn interrupt(&self, unique: u64) {
        let _ = unique;
    }

    /// The file system was unmounted or the connection was cut: no request runs or will come. Called once.
    fn destroy(&self) {}
}

impl<H: Handler + ?Sized> Handler for std::sync::Arc<H> {
    fn attached(&self, notifier: &Notifier) {
        (**self).attached(notifier);
    }
    fn init(&self, kernel: &InitRequest, negotiated: &mut InitConfig) {
        (**self).init(kernel, negotiated);
    }
    fn handle(&self, request: &Request<'_>, reply: &mut Reply<'_>) {
        (**self).handle(request, reply);
    }
    fn interrupt(&self, unique: u64) {
        (**self).interrupt(unique);
    }
    fn destroy(&self) {
        (**self).destroy();
    }
}

/// The outcome of the negotiation with the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitConfig {
    /// Minor protocol version in use.
    pub minor: u32,
    /// What is switched on; never more than the kernel offered.
    pub flags: InitFlags,
    /// Largest WRITE and READ in bytes.
    pub max_write: u32,
    /// Largest kernel read-ahead in bytes (capped by the mount's read_ahead_kb as well).
    pub max_readahead: u32,
    /// Background requests (read-ahead, asynchronous direct I/O) under way at most.
    pub max_background: u16,
    /// Background requests from which on the kernel holds read-ahead back.
    pub congestion_threshold: u16,
    /// Granularity of the times of this file system in nanoseconds.
    pub time_granularity_ns: u32,
    /// The kernel answers ETIMEDOUT and cuts the connection when a request takes longer (seconds granularity);
    /// `None`: never.
    pub request_timeout: Option<Duration>,
    /// How requests will travel. Becomes `Dev` if the kernel does not offer io_uring or the flag is taken away.
    pub transport: Transport,
}
