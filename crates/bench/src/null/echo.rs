//! A server that answers small messages: the minimal cost of a request to a server.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use crate::error::Error;
use crate::piped::Piped;
use crate::worker::Myself;

/// Size of request and answer in bytes.
const MESSAGE_BYTES: usize = 128;

/// Runs the hidden sub-command: prints its address, serves every connection on a thread, and ends with
/// standard input.
///
/// # Errors
///
/// Without a loopback interface.
pub fn serve_echo() -> Result<(), Error> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(Error::io("listen on", "loopback"))?;
    let address = listener.local_addr().map_err(Error::io("name", "loopback"))?;
    println!("{address}");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || echo(stream));
        }
    });
    // Standard input ends with the parent process, or when the parent closes it.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    Ok(())
}

fn echo(mut stream: TcpStream) {
    let mut message = [0u8; MESSAGE_BYTES];
    let _ = stream.set_nodelay(true);
    while stream.read_exact(&mut message).is_ok() && stream.write_all(&message).is_ok() {}
}

thread_local! {
    static CONNECTION: RefCell<Option<TcpStream>> = const { RefCell::new(None) };
}

/// Does one round trip over this thread's own connection to `address`.
pub(super) fn call(address: SocketAddr) -> std::io::Result<()> {
    CONNECTION.with_borrow_mut(|connection| {
        let stream = match connection {
            Some(stream) => stream,
            None => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                connection.insert(stream)
            }
        };
        let mut message = [1u8; MESSAGE_BYTES];
        stream.write_all(&message)?;
        stream.read_exact(&mut message)
    })
}

/// An echo server in a process of its own, ended on drop.
pub struct EchoServer {
    process: Piped,
    address: SocketAddr,
}

impl EchoServer {
    /// Starts a server on a free port of the loopback interface.
    ///
    /// # Errors
    ///
    /// When the process does not start or does not print its address.
    pub fn start(myself: &Myself) -> Result<EchoServer, Error> {
        let mut process = Piped::start(&mut myself.command("echo-server"))?;
        match process.line().ok().and_then(|line| line.parse().ok()) {
            Some(address) => Ok(EchoServer { process, address }),
            None => {
                process.kill();
                let _ = process.wait();
                Err(Error::Server { what: "echo server".to_owned(), reason: "named no address".to_owned() })
            }
        }
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        self.process.kill();
        let _ = self.process.wait();
    }
}
