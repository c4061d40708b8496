//! The handler of requests.

use std::time::Duration;

use crate::abi::InitFlags;
use crate::config::Transport;
use crate::notify::Notifier;
use crate::reply::Reply;
use crate::request::{InitRequest, Request};

/// A file system, as the kernel sees it.
///
/// Methods run on many threads of the session in parallel, and may wait for disk and network; a wait must be
/// wrapped in [`nacre_env::blocking`], so that another thread takes over the role of this one, and should end
/// with EINTR once [`nacre_env::interrupted`] returns true. A handler that panics answers EIO.
pub trait Handler: Send + Sync {
    /// The file system was mounted; called once, before [`Handler::init`]. `notifier` works from the end of
    /// `init` on.
    fn attached(&self, notifier: &Notifier) {
        let _ = notifier;
    }

    /// Negotiates with the kernel: `kernel` is its offer, and `negotiated` the planned answer. A handler may
    /// lower numbers, remove flags, and add flags that the kernel offers.
    fn init(&self, kernel: &InitRequest, negotiated: &mut InitConfig) {
        let _ = (kernel, negotiated);
    }

    /// Answers one request by calling a method of `reply`.
    fn handle(&self, request: &Request<'_>, reply: &mut Reply<'_>);

    /// Request `unique` was interrupted. Not needed by handlers that poll [`nacre_env::interrupted`], only by
    /// those that park requests in structures of their own. Called from another thread than the request's,
    /// possibly after its answer.
    fn interrupt(&self, unique: u64) {
        let _ = unique;
    }

    /// The file system was unmounted or the connection aborted: no request runs or will arrive. Called once.
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

/// Result of the negotiation with the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitConfig {
    /// Minor protocol version in use.
    pub minor: u32,
    /// Enabled features; never more than the kernel offered.
    pub flags: InitFlags,
    /// Largest WRITE and READ in bytes.
    pub max_write: u32,
    /// Largest kernel read-ahead in bytes (capped by the mount's read_ahead_kb as well).
    pub max_readahead: u32,
    /// Limit on background requests (read-ahead, asynchronous direct I/O) in flight.
    pub max_background: u16,
    /// Number of background requests from which on the kernel throttles read-ahead.
    pub congestion_threshold: u16,
    /// Granularity of the times of this file system in nanoseconds.
    pub time_granularity_ns: u32,
    /// Time after which the kernel answers ETIMEDOUT and aborts the connection (rounded to seconds); `None`:
    /// never.
    pub request_timeout: Option<Duration>,
    /// Transport of requests. Becomes `Dev` if the kernel does not offer io_uring or the handler removes the
    /// flag.
    pub transport: Transport,
}
