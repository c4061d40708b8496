//! `/metrics`, for Prometheus.

use crate::http::{self, Answer, Call, Site};
use crate::sampler::Sampler;
use crate::text::Names;
use hyper::{Method, StatusCode};

/// Media type of the text.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves the text to everybody who reaches the address: it has no secrets.
pub struct MetricsSite {
    sampler: Sampler,
}

impl MetricsSite {
    /// Creates the site.
    pub fn new(sampler: Sampler) -> MetricsSite {
        MetricsSite { sampler }
    }

    async fn text(&self, call: &Call) -> Answer {
        let names = match call.parameter("names").as_deref() {
            None | Some("nacre") => Names::Own,
            Some("lustre") => Names::Lustre,
            Some(_) => {
                return http::text(StatusCode::BAD_REQUEST, "names is nacre or lustre\n");
            }
        };
        match self.sampler.text(call.parameter("process"), names).await {
            Some(text) => http::answer(StatusCode::OK, OPENMETRICS, text),
            None => http::text(StatusCode::NOT_FOUND, "no process of this name runs here\n"),
        }
    }
}

impl Site for MetricsSite {
    async fn answer(&self, call: Call) -> Answer {
        match (call.method == Method::GET || call.method == Method::HEAD, call.path.as_str()) {
            (false, _) => http::text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n"),
            (true, "/metrics") => self.text(&call).await,
            (true, "/") => http::text(StatusCode::OK, "NacreFS: see /metrics\n"),
            (true, _) => http::text(StatusCode::NOT_FOUND, "see /metrics\n"),
        }
    }
}
