//! A small HTTP server on one thread, with limits on everything that a client can use up.

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};

/// Connections at the same time; further ones wait in the queue of the kernel.
const CONNECTIONS_MAX: usize = 32;
/// Longest time for the header of a request.
const HEADER_TIME: Duration = Duration::from_secs(5);
/// Longest time of a connection, with the answer.
const CONNECTION_TIME: Duration = Duration::from_secs(20);
/// Longest request, in bytes, without its body.
const HEADER_BYTES: usize = 16 << 10;
/// Most header fields of a request.
const HEADERS_MAX: usize = 64;
/// Longest body of a request, in bytes.
const BODY_BYTES: usize = 4 << 10;
/// Pause after a failed accept, for example for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An answer.
pub type Answer = Response<Full<Bytes>>;

/// A request.
#[derive(Debug)]
pub struct Call {
    /// Method.
    pub method: Method,
    /// Path, with a leading slash.
    pub path: String,
    /// Header fields.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
    query: String,
}

impl Call {
    /// Returns a parameter of the query. Values are plain words: what is encoded stays encoded.
    pub fn parameter(&self, name: &str) -> Option<String> {
        let pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
    }
}

/// What a server serves.
pub trait Site: Send + Sync + 'static {
    /// Answers a request that names this server as its host.
    fn answer(&self, call: Call) -> impl Future<Output = Answer> + Send;
}

/// Returns an answer with a body.
pub fn answer(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

/// Returns an answer with plain text.
pub fn text(status: StatusCode, body: &'static str) -> Answer {
    answer(status, "text/plain; charset=utf-8", body)
}

/// A running server; stopped on drop.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    _stop: oneshot::Sender<Infallible>,
}

impl Server {
    /// Serves `site` on a thread named `name`. `names` are the names of this host that requests may use for it.
    ///
    /// # Errors
    /// If the thread or its runtime cannot be started.
    pub fn start(
        name: &str,
        listener: TcpListener,
        names: Vec<String>,
        site: impl Site,
    ) -> io::Result<Server> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let (stop, stopped) = oneshot::channel::<Infallible>();
        let shared = Arc::new(Shared { site, names });
        let serve = move || {
            runtime.block_on(async {
                let listener = match tokio::net::TcpListener::from_std(listener) {
                    Ok(listener) => listener,
                    Err(error) => return log::error!("{address} is not served: {error}"),
                };
                tokio::spawn(accept(listener, shared));
                // Nothing is ever sent: the sender is dropped. The runtime ends all tasks with itself.
                let _ = stopped.await;
            });
        };
        nacre_env::thread::Builder::new().name(name.to_owned()).spawn(serve)?;
        Ok(Server { address, _stop: stop })
    }

    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

struct Shared<S> {
    site: S,
    names: Vec<String>,
}

async fn accept<S: Site>(listener: tokio::net::TcpListener, shared: Arc<Shared<S>>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                log::debug!("no connection is accepted: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let shared = shared.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let shared = shared.clone();
                async move { Ok::<_, Infallible>(shared.answer(request).await) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIME)
                .max_buf_size(HEADER_BYTES)
                .max_headers(HEADERS_MAX)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            // A connection that fails is the client's.
            let _ = tokio::time::timeout(CONNECTION_TIME, connection).await;
            drop(place);
        });
    }
}

impl<S: Site> Shared<S> {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let (head, body) = request.into_parts();
        if !is_own(&head.headers, &self.names) {
            return text(
                StatusCode::FORBIDDEN,
                "this server is not named so: use its address, localhost, or the name that it was started with\n",
            );
        }
        if is_foreign(&head.headers) {
            return text(StatusCode::FORBIDDEN, "requests of pages of other servers are refused\n");
        }
        let Ok(body) = Limited::new(body, BODY_BYTES).collect().await else {
            return text(StatusCode::PAYLOAD_TOO_LARGE, "the request is too large\n");
        };
        let call = Call {
            method: head.method,
            path: head.uri.path().to_owned(),
            query: head.uri.query().unwrap_or_default().to_owned(),
            headers: head.headers,
            body: body.to_bytes(),
        };
        self.site.answer(call).await
    }
}

/// Returns whether the request names this host: by an address, as localhost or by one of `names`. Another name
/// that resolves to this host may be that of a page whose scripts want to read the answer (DNS rebinding).
fn is_own(headers: &HeaderMap, names: &[String]) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    let (Some(host), None) = (hosts.next().and_then(|host| host.to_str().ok()), hosts.next()) else {
        return false;
    };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    address.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || names.iter().any(|own| own.eq_ignore_ascii_case(name))
}

/// Returns whether a page of another server made the request.
fn is_foreign(headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).map(HeaderValue::as_bytes).unwrap_or_default();
    let is_other = |origin: &HeaderValue| {
        let origin = origin.as_bytes();
        origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://")) != Some(host)
    };
    let is_cross = |site: &HeaderValue| site != "same-origin" && site != "none";
    let site = headers.get("sec-fetch-site");
    // Following a link to the page is fine; its content is not readable for the other page.
    let navigates = headers.get("sec-fetch-mode").is_some_and(|mode| mode == "navigate")
        && headers.get("sec-fetch-dest").is_some_and(|dest| dest == "document");
    headers.get(header::ORIGIN).is_some_and(is_other) || (site.is_some_and(is_cross) && !navigates)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_env::clock::Instant;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    struct Echo;
    impl Site for Echo {
        async fn answer(&self, call: Call) -> Answer {
            answer(StatusCode::OK, "text/plain", format!("{} {}", call.path, call.body.len()))
        }
    }

    fn server() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        Server::start("http", listener, vec!["host1".to_owned()], Echo).expect("started")
    }

    fn ask(server: &Server, request: &str) -> String {
        let mut stream = TcpStream::connect(server.address()).expect("connected");
        let mut answer = String::new();
        // A refusal may come, and the connection be closed, before all is written.
        let _ = stream.write_all(request.as_bytes());
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    fn status(server: &Server, headers: &str) -> String {
        let answer = ask(server, &format!("GET /x HTTP/1.1\r\n{headers}\r\n"));
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    }

    #[test]
    fn requests_by_other_names_or_of_other_pages_are_refused() {
        let server = server();
        for fine in [
            "Host: 127.0.0.1:9820\r\n",
            "Host: [::1]:9820\r\n",
            "Host: localhost\r\n",
            "Host: HOST1:1\r\n",
            "Host: localhost:1\r\nOrigin: http://localhost:1\r\nSec-Fetch-Site: same-origin\r\n",
            "Host: localhost:1\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n",
        ] {
            assert_eq!(status(&server, fine), "200", "{fine}");
        }
        for foreign in [
            "",
            "Host: evil.example:9820\r\n",
            "Host: host1.evil.example\r\n",
            "Host: localhost\r\nHost: evil.example\r\n",
            "Host: localhost:1\r\nOrigin: http://evil.example\r\n",
            "Host: localhost:1\r\nOrigin: null\r\n",
            "Host: localhost:1\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n",
        ] {
            assert_eq!(status(&server, foreign), "403", "{foreign}");
        }
    }

    #[test]
    fn large_requests_are_refused() {
        let server = server();
        let host = "Host: localhost\r\n";
        assert_ne!(status(&server, &format!("{host}X: {}\r\n", "x".repeat(HEADER_BYTES * 2))), "200");
        assert_ne!(status(&server, &format!("{host}{}", "X: y\r\n".repeat(HEADERS_MAX + 1))), "200");
        let body = "x".repeat(BODY_BYTES + 1);
        let long =
            ask(&server, &format!("POST / HTTP/1.1\r\n{host}Content-Length: {}\r\n\r\n{body}", body.len()));
        assert!(long.starts_with("HTTP/1.1 413"), "{long}");
        let fits = ask(&server, &format!("POST / HTTP/1.1\r\n{host}Content-Length: 3\r\n\r\nabc"));
        assert!(fits.ends_with("/ 3"), "{fits}");
    }

    #[test]
    fn silent_clients_keep_others_waiting_only_for_a_while_and_never_for_ever() {
        let server = server();
        let silent: Vec<TcpStream> =
            (0..CONNECTIONS_MAX).map(|_| TcpStream::connect(server.address()).expect("connected")).collect();
        let start = Instant::now();
        assert_eq!(status(&server, "Host: localhost\r\n"), "200");
        let took = start.elapsed();
        assert!(took >= HEADER_TIME / 2 && took < HEADER_TIME * 2, "{took:?}");
        drop(silent);
    }
}
