//! Monitoring of a file system: figures of its processes, as OpenMetrics text and for the pages of `nacre web`.
//!
//! Each process describes itself in a [`ProcessSample`]: rows of the [`families`]. A [`Sampler`] gathers the
//! samples of all processes on a thread of its own, at most a few times a second, and shares each
//! [`Snapshot`] between all readers. The [`http`] server has one more thread, and touches neither the file
//! system nor its locks: a slow or hostile client can delay other clients of the server, and no request of
//! the file system.

pub mod families;
mod history;
pub mod http;
mod jobs;
mod metrics;
mod sample;
mod sampler;
mod text;
mod view;
mod web;

pub use jobs::{JobBook, JobTotals, REST};
pub use metrics::MetricsSite;
pub use sample::{ProcessSample, Row, Sample, Snapshot, TIME_BOUNDS_S, Times, Value};
pub use sampler::{Gather, Sampler};
pub use text::{Names, render};
pub use view::{Alert, JobView, MountView, OwnerView, PoolView, ProcessView, Slow, TargetView, Total, View};
pub use web::WebSite;
