//! Requests to the HTTP servers of a file system.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Timeout of an answer.
const LIMIT: Duration = Duration::from_secs(30);

/// An answer of an HTTP server.
#[derive(Debug)]
pub struct Reply {
    /// Code of the status line.
    pub status: u16,
    /// Status line and header fields.
    pub head: String,
    /// Body.
    pub body: String,
}

/// Sends a request to a port of this host. `headers` are whole lines without their ends; `Host` is among them, or
/// the port's own is added. `None` if the server takes no connection.
///
/// # Panics
///
/// If the answer is not HTTP.
pub fn ask(port: u16, method: &str, path: &str, headers: &[&str], body: &str) -> Option<Reply> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
    let mut request = format!("{method} {path} HTTP/1.1\r\n");
    if !headers.iter().any(|header| header.to_ascii_lowercase().starts_with("host:")) {
        request += &format!("Host: localhost:{port}\r\n");
    }
    headers.iter().for_each(|header| request += &format!("{header}\r\n"));
    request += &format!("Content-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).expect("sent");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("an answer in UTF-8");
    let (head, body) = reply.split_once("\r\n\r\n").expect("an answer with a head");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status line");
    Some(Reply { status, head: head.to_owned(), body: body.to_owned() })
}

/// Gets a page that must be there.
///
/// # Panics
///
/// If it is not.
#[track_caller]
pub fn get(port: u16, path: &str) -> String {
    let reply = ask(port, "GET", path, &[], "").expect("the server takes connections");
    assert_eq!(reply.status, 200, "{path}: {}", reply.body);
    reply.body
}
