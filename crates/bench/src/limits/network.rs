//! Loopback sockets, with the two ends on the same CPU, on different CPUs, or where the scheduler places
//! them.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::error::Error;

/// Size of a small message: about that of a request without names.
const MESSAGE_BYTES: usize = 128;

/// Kind of sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// TCP over loopback, without Nagle's delay.
    Tcp,
    /// Unix stream sockets.
    Unix,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Tcp => "loopback TCP",
            Kind::Unix => "Unix socket",
        })
    }
}

/// CPUs of the two ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Both on the first CPU.
    SameCpu,
    /// On the first and the last CPU.
    CrossCpu,
    /// Where the scheduler places them.
    Free,
}

impl Placement {
    /// All placements, in the order of the table.
    pub const ALL: [Placement; 3] = [Placement::SameCpu, Placement::CrossCpu, Placement::Free];

    fn cpus(self) -> [Option<usize>; 2] {
        let cpus = nacre_env::online_cpus();
        let (first, last) = (cpus.first().copied(), cpus.last().copied());
        match self {
            Placement::SameCpu => [first, first],
            Placement::CrossCpu => [first, last],
            Placement::Free => [None, None],
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Placement::SameCpu => "same CPU",
            Placement::CrossCpu => "other CPU",
            Placement::Free => "free",
        })
    }
}

trait Socket: Read + Write + Send + 'static {
    fn close(&self) -> io::Result<()>;
    fn another(&self) -> io::Result<Box<dyn Socket>>;
}

impl Socket for TcpStream {
    fn close(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Both)
    }
    fn another(&self) -> io::Result<Box<dyn Socket>> {
        Ok(Box::new(self.try_clone()?))
    }
}

impl Socket for UnixStream {
    fn close(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Both)
    }
    fn another(&self) -> io::Result<Box<dyn Socket>> {
        Ok(Box::new(self.try_clone()?))
    }
}

fn pair(kind: Kind) -> io::Result<(Box<dyn Socket>, Box<dyn Socket>)> {
    match kind {
        Kind::Unix => UnixStream::pair().map(|(a, b)| (Box::new(a) as _, Box::new(b) as _)),
        Kind::Tcp => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let client = TcpStream::connect(listener.local_addr()?)?;
            let (server, _) = listener.accept()?;
            client.set_nodelay(true)?;
            server.set_nodelay(true)?;
            Ok((Box::new(client), Box::new(server)))
        }
    }
}

fn pin(cpu: Option<usize>) {
    if let Some(cpu) = cpu {
        nacre_env::pin_to_cpu(cpu).expect("CPUs come from our own affinity mask");
    }
}

/// Measures round trips of small messages per second over one connection, each end a thread that blocks in
/// read.
///
/// # Errors
///
/// Errors of sockets, e.g. without a loopback interface.
pub fn round_trips_per_second(kind: Kind, placement: Placement, seconds: f64) -> Result<f64, Error> {
    let (mut client, mut server) = pair(kind).map_err(Error::io("connect", "loopback"))?;
    let [client_cpu, server_cpu] = placement.cpus();
    let echo = std::thread::spawn(move || {
        pin(server_cpu);
        let mut message = [0u8; MESSAGE_BYTES];
        while server.read_exact(&mut message).is_ok() && server.write_all(&message).is_ok() {}
    });
    let caller = std::thread::spawn(move || {
        pin(client_cpu);
        let mut message = [7u8; MESSAGE_BYTES];
        let mut trips = 0u64;
        let start = Instant::now();
        while start.elapsed().as_secs_f64() < seconds {
            client.write_all(&message)?;
            client.read_exact(&mut message)?;
            trips += 1;
        }
        let elapsed = start.elapsed().as_secs_f64();
        client.close()?;
        Ok::<f64, io::Error>(trips as f64 / elapsed)
    });
    let rate = caller.join().expect("the caller does not panic").map_err(Error::io("ping", "loopback"));
    echo.join().expect("the echo does not panic");
    rate
}

/// Measures the bytes per second of `streams` connections together, in messages of 1 MiB, with one writing
/// and one reading thread each.
///
/// # Errors
///
/// Errors of sockets, e.g. without a loopback interface.
pub fn stream_bytes_per_second(kind: Kind, streams: usize, seconds: f64) -> Result<f64, Error> {
    let received = Arc::new(AtomicU64::new(0));
    let mut threads = Vec::new();
    let mut handles = Vec::new();
    for _ in 0..streams.max(1) {
        let (mut client, mut server) = pair(kind).map_err(Error::io("connect", "loopback"))?;
        handles.push(client.another().map_err(Error::io("duplicate", "loopback"))?);
        let received = Arc::clone(&received);
        threads.push(std::thread::spawn(move || {
            let block = vec![1u8; 1 << 20];
            while client.write_all(&block).is_ok() {}
        }));
        threads.push(std::thread::spawn(move || {
            let mut block = vec![0u8; 1 << 20];
            while server.read_exact(&mut block).is_ok() {
                received.fetch_add(block.len() as u64, Ordering::Relaxed);
            }
        }));
    }
    // The first tenth fills socket buffers and grows TCP's window; it is left out.
    std::thread::sleep(Duration::from_secs_f64(seconds * 0.1));
    let (start, before) = (Instant::now(), received.load(Ordering::Relaxed));
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let bytes = received.load(Ordering::Relaxed) - before;
    let rate = bytes as f64 / start.elapsed().as_secs_f64();
    for handle in handles {
        // Wakes both ends; an error means that an end is closed already.
        let _ = handle.close();
    }
    for thread in threads {
        thread.join().expect("a streaming thread does not panic");
    }
    Ok(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_and_streams_move_data_and_end() {
        for kind in [Kind::Tcp, Kind::Unix] {
            for place in Placement::ALL {
                let rate = round_trips_per_second(kind, place, 0.02).expect("loopback works");
                assert!(rate > 0.0, "{kind} {place}: {rate}");
            }
            let rate = stream_bytes_per_second(kind, 2, 0.05).expect("loopback works");
            assert!(rate > 0.0, "{kind}: {rate}");
        }
    }
}
