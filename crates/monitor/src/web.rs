//! The pages of `nacre web`: one application without foreign parts, and its data as JSON.

use crate::history::History;
use crate::http::{self, Answer, Call, Site};
use crate::sample::Snapshot;
use crate::sampler::{Gather, Sampler};
use crate::view::View;
use hyper::header::{self, HeaderValue};
use hyper::{Method, StatusCode};
use nacre_env::sync::Mutex;
use serde::Serialize;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use subtle::ConstantTimeEq;

/// Interval of the figures.
const INTERVAL: Duration = Duration::from_secs(2);
/// Name of the cookie.
const COOKIE: &str = "nacre-web";
/// Nothing from elsewhere, no inline code, no frame around the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const FILES: &[(&str, &str, &str)] = &[
    ("/", "text/html; charset=utf-8", include_str!("web/index.html")),
    ("/app.js", "text/javascript; charset=utf-8", include_str!("web/app.js")),
    ("/style.css", "text/css; charset=utf-8", include_str!("web/style.css")),
    ("/icon.svg", "image/svg+xml", include_str!("web/icon.svg")),
];

/// The last snapshots, and what they showed.
#[derive(Default)]
struct State {
    last: Option<Arc<Snapshot>>,
    view: View,
    history: History,
}

/// Answer to a request for data.
#[derive(Serialize)]
struct Data<'a> {
    view: &'a View,
    history: &'a History,
}

/// The pages, for those who know the token.
pub struct WebSite {
    token: String,
    /// Value of the cookie.
    session: String,
    state: Arc<Mutex<State>>,
    // Keeps the thread alive.
    _sampler: Sampler,
}

impl WebSite {
    /// Starts to gather figures. `token` is what users log in with, and `session` the value of the cookie
    /// that they get: two random secrets.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(gather: Gather, token: String, session: String) -> io::Result<WebSite> {
        let state = Arc::new(Mutex::new(State::default()));
        let noted = state.clone();
        let sampler = Sampler::start(gather, Some(INTERVAL), move |snapshot| noted.lock().note(snapshot))?;
        Ok(WebSite { token, session, state, _sampler: sampler })
    }

    fn log_in(&self, call: &Call) -> Answer {
        if !bool::from(call.body.trim_ascii().ct_eq(self.token.as_bytes())) {
            return http::text(StatusCode::UNAUTHORIZED, "this is not the token\n");
        }
        let mut answer = http::text(StatusCode::OK, "welcome\n");
        let cookie = format!("{COOKIE}={}; HttpOnly; SameSite=Strict; Path=/", self.session);
        if let Ok(cookie) = HeaderValue::from_str(&cookie) {
            answer.headers_mut().insert(header::SET_COOKIE, cookie);
        }
        answer
    }

    fn is_logged_in(&self, call: &Call) -> bool {
        let cookies = call.headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut values = cookies
            .flat_map(|value| value.split(';'))
            .filter_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='));
        values.any(|value| bool::from(value.as_bytes().ct_eq(self.session.as_bytes())))
    }

    fn data(&self) -> Answer {
        let state = self.state.lock();
        let data = Data { view: &state.view, history: &state.history };
        match serde_json::to_string(&data) {
            Ok(text) => http::answer(StatusCode::OK, "application/json", text),
            Err(_) => http::text(StatusCode::INTERNAL_SERVER_ERROR, "the figures cannot be written\n"),
        }
    }
}

impl State {
    fn note(&mut self, snapshot: &Arc<Snapshot>) {
        self.view = View::of(self.last.as_deref(), snapshot);
        if self.last.is_some() {
            self.history.push(&self.view);
        }
        self.last = Some(snapshot.clone());
    }
}

impl Site for WebSite {
    async fn answer(&self, call: Call) -> Answer {
        let file = FILES.iter().find(|(path, ..)| *path == call.path);
        let mut answer = match (&call.method, call.path.as_str(), file) {
            (&Method::GET | &Method::HEAD, _, Some((_, kind, content))) => {
                http::answer(StatusCode::OK, kind, *content)
            }
            (&Method::POST, "/api/login", _) => self.log_in(&call),
            (_, path, _) if path.starts_with("/api/") && !self.is_logged_in(&call) => {
                http::text(StatusCode::UNAUTHORIZED, "log in with the token first\n")
            }
            (&Method::GET, "/api/state", _) => self.data(),
            _ => http::text(StatusCode::NOT_FOUND, "there is no such page\n"),
        };
        let headers = answer.headers_mut();
        headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
        headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
        headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
        answer
    }
}
