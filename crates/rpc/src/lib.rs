//! Calls between clients and servers: two transports behind one set of traits.
//!
//! `lo` is a direct call on the caller's thread; `tcp` sends frames. Both sides are synchronous: a call
//! returns with its answer, and a thread that has to wait says so through `nacre_env::blocking`, so that
//! another thread can take over its queue or connection. See `docs/protocol/`.

pub mod api;
mod audit;
pub mod config;
pub mod exports;
pub mod hold;
pub mod import;
pub mod lo;
pub mod shape;
pub mod stats;
pub mod tcp;
pub mod tunables;

pub use api::{
    Alone, Call, ClientCallbacks, Export, ExportChange, Helpers, IoCall, MdsEndpoint, MdsService, MdsWelcome,
    MgsEndpoint, MgsPeer, MgsService, NoCallbacks, OssEndpoint, OssEvents, OssService, OstEventsFactory,
    ReadCall, Received, ReplySlot, Started, run_all, run_all_by,
};
pub use audit::{AuditEvent, AuditKind, AuditSink};
pub use config::{ClientConfig, ServerConfig};
pub use exports::Exports;
pub use hold::{Hold, Moment};
pub use import::{ClockOffset, EndpointState, EndpointStats, ImportInfo, LinkState};
pub use lo::{LoMds, LoMgs, LoOss};
pub use nacre_session::Recovery;
pub use shape::{Loss, Shape};
pub use stats::{Direction, Pending, RpcStats};
pub use tunables::{ChecksumType, Tunable, Tunables};
