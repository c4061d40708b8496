//! A client with a key that sends damaged messages over intact connections: only the decoders and services of
//! a server can detect the damage.
//!
//! `cargo run --release -p nacre-rpc --example mutations DIR FSNAME ADDRESS TARGET FID SECONDS [SEED]`: DIR
//! is the directory of a file system with its authority (`DIR/keys`), from which the program issues itself a
//! client's key; TARGET is `mgs`, `mdt0`, `ost0` and so on at ADDRESS (IP:PORT); FID is that of a file, as
//! `lfs path2fid` shows it, and the objects of requests are drawn near it. Runs next to a workload that
//! verifies what it reads. Prints statistics of requests and answers, and fails if the server becomes
//! unreachable.

use nacre_env::clock::Instant;
use nacre_keys::{Authority, ClientTls, LIFETIME};
use nacre_types::{ClientUuid, Cred, Fid, Identity, KeyId, ProcessIdentity, Roles, Status, TargetId, Xid};
use nacre_wire::connect::{Connect, ConnectFlags, Features, VERSION_MAX, VERSION_MIN};
use nacre_wire::frame::{FrameFlags, FrameKind, HEADER_BYTES, Header};
use nacre_wire::{Decode, Encode, Reader};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

type Link = StreamOwned<ClientConnection, TcpStream>;

/// Time limit for an answer: some requests wait for others.
const TIMEOUT: Duration = Duration::from_millis(50);
/// Messages on one connection.
const PER_CONNECTION: usize = 2000;
const VALUES: [u64; 9] = [0, 1, 2, 0xff, 0xffff, 1 << 31, u32::MAX as u64, 1 << 63, u64::MAX];

/// Random numbers that depend on the seed alone.
struct Draw(fastrand::Rng);

impl Draw {
    fn new(seed: u64) -> Draw {
        Draw(fastrand::Rng::with_seed(seed))
    }

    fn next(&mut self) -> u64 {
        self.0.u64(..)
    }

    fn below(&mut self, end: usize) -> usize {
        self.0.usize(..end.max(1))
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

struct Campaign {
    address: SocketAddr,
    target: TargetId,
    fsname: String,
    tls: Arc<ClientConfig>,
    /// Valid bodies of requests to the target.
    bodies: Vec<Vec<u8>>,
    fid: Fid,
    draw: Draw,
    xid: u64,
    sent: u64,
    ended: u64,
    silent: u64,
    answers: BTreeMap<String, u64>,
}

impl Campaign {
    fn connect(&mut self) -> io::Result<Link> {
        let stream = TcpStream::connect_timeout(&self.address, Duration::from_secs(10))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let name = ServerName::try_from(ClientTls::session_name(self.address)).map_err(io::Error::other)?;
        let session = ClientConnection::new(self.tls.clone(), name).map_err(io::Error::other)?;
        let mut link = StreamOwned::new(session, stream);
        let connect = Connect {
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            features: Features::all().bits(),
            flags: ConnectFlags::empty(),
            client: ClientUuid([7; 16]),
            fsname: self.fsname.clone(),
            process: ProcessIdentity::default(),
            cpu: u32::MAX,
            instance: 0,
        };
        let mut header = Header::new(FrameKind::Connect, self.target, Xid(0));
        self.send(&mut link, &mut header, &connect.to_bytes(), &[])?;
        match self.answer(&mut link)? {
            Some(Status::OK) => link.sock.set_read_timeout(Some(TIMEOUT)).map(|()| link),
            other => Err(io::Error::other(format!("not let in: {other:?}"))),
        }
    }

    fn send(&self, link: &mut Link, header: &mut Header, body: &[u8], bulk: &[u8]) -> io::Result<()> {
        header.set_body(body).map_err(io::Error::other)?;
        header.bulk_len = bulk.len() as u32;
        link.write_all(&[&header.to_bytes()[..], body, bulk].concat())?;
        link.flush()
    }

    /// Returns the status of the next answer; `None` if none arrives in time.
    fn answer(&self, link: &mut Link) -> io::Result<Option<Status>> {
        let mut bytes = [0; HEADER_BYTES];
        match link.read_exact(&mut bytes) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
        let header = Header::from_bytes(&bytes).map_err(io::Error::other)?;
        link.read_exact(&mut vec![0; header.body_len as usize + header.bulk_len as usize])?;
        Ok(Some(header.status))
    }

    fn body(&mut self) -> Vec<u8> {
        let (at, other) = (self.draw.below(self.bodies.len()), self.draw.below(self.bodies.len()));
        let mut body = self.bodies[at].clone();
        // The objects of the examples do not exist.
        for _ in 0..self.draw.below(4) {
            let fid = match self.draw.below(4) {
                0 => Fid::ROOT,
                1 => Fid::ost_object(0, 1 + self.draw.below(200) as u32),
                _ => Fid { oid: self.draw.below(500) as u32, ..self.fid },
            };
            let (bytes, place) = (fid.to_bytes(), self.draw.below(body.len()));
            let end = body.len().min(place + bytes.len());
            body[place..end].copy_from_slice(&bytes[..end - place]);
        }
        match self.draw.below(12) {
            0..=2 => {}
            3..=5 => {
                for _ in 0..=self.draw.below(4) {
                    let (place, bit) = (self.draw.below(body.len()), self.draw.below(8));
                    body[place] ^= 1 << bit;
                }
            }
            6..=8 => {
                let value = VALUES[self.draw.below(VALUES.len())].to_le_bytes();
                let (place, width) = (self.draw.below(body.len()), 1 << self.draw.below(4));
                let end = body.len().min(place + width);
                body[place..end].copy_from_slice(&value[..end - place]);
            }
            9 => body.truncate(self.draw.below(body.len())),
            10 => {
                let more = self.draw.below(64);
                body.extend((0..more).map(|_| self.draw.next() as u8));
            }
            _ => {
                let tail = &self.bodies[other];
                let (cut, from) = (self.draw.below(body.len()), self.draw.below(tail.len()));
                body.truncate(cut);
                body.extend_from_slice(&tail[from..]);
            }
        }
        body
    }

    fn header(&mut self) -> Header {
        self.xid += 1;
        let mut header = Header::new(FrameKind::Request, self.target, Xid(self.xid));
        if self.draw.one_in(2) {
            header.tag = self.draw.below(16) as u16;
        }
        if self.draw.one_in(16) {
            header.tag = self.draw.next() as u16;
            header.flags = FrameFlags::from_bits_truncate(self.draw.next() as u16 as _);
            header.acked = Xid(self.draw.next() >> self.draw.below(64));
        }
        if self.draw.one_in(64) {
            let kinds = [FrameKind::Ping, FrameKind::Cancel, FrameKind::Reply, FrameKind::Callback];
            header.kind = kinds[self.draw.below(kinds.len())];
            header.xid = Xid(self.draw.next() >> self.draw.below(64));
        }
        header
    }

    /// Sends on one connection until it ends or has carried [`PER_CONNECTION`] messages.
    fn run(&mut self, link: &mut Link) -> io::Result<()> {
        for _ in 0..PER_CONNECTION {
            let (mut header, body) = (self.header(), self.body());
            let bulk_len = if self.draw.one_in(4) { self.draw.below(9000) } else { 0 };
            let bulk = vec![self.draw.next() as u8; bulk_len];
            self.send(link, &mut header, &body, &bulk)?;
            self.sent += 1;
            match self.answer(link)? {
                Some(status) => *self.answers.entry(status.to_string()).or_default() += 1,
                None => {
                    self.silent += 1;
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// Returns bodies of valid requests of a kind, from the examples of the protocol.
fn examples(kind: &str, prefix: &[u8]) -> Vec<Vec<u8>> {
    let text = include_str!("../../wire/golden/version-4.txt");
    let of_kind = text.lines().filter_map(|line| line.strip_prefix(kind)?.strip_prefix(' '));
    let bytes = |hex: &str| -> Vec<u8> {
        (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).expect("hex")).collect()
    };
    of_kind.map(|line| [prefix, &bytes(line.rsplit(' ').next().expect("a word"))].concat()).collect()
}

fn target_of(text: &str) -> TargetId {
    let number = |text: &str| text.parse().expect("mgs, mdt0, ost0 and so on");
    match (text.strip_prefix("mdt"), text.strip_prefix("ost")) {
        (Some(index), _) => TargetId::mdt(number(index)),
        (_, Some(index)) => TargetId::ost(number(index)),
        _ => TargetId::mgt(),
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [dir, fsname, address, target, fid, seconds, rest @ ..] = args.as_slice() else {
        panic!("DIR FSNAME ADDRESS TARGET FID SECONDS [SEED]");
    };
    let seed = rest.first().map_or(1, |seed| seed.parse().expect("a number"));
    let authority = Authority::load(&Path::new(dir).join("keys"), fsname).expect("an authority");
    let identity = Identity::new(fsname, KeyId(0xbad0_0000 + seed), Roles::CLIENT, "mutations");
    let key = authority.make_key(&identity, LIFETIME).expect("a key");
    let tls = ClientTls::new(fsname, &[key]).expect("settings").config(true);
    let target = target_of(target);
    let nobody = Cred::new(65_534, 65_534).to_bytes();
    let bodies = match target {
        target if target == TargetId::mgt() => examples("mgs-request", &[]),
        target if target == TargetId::mdt(target.index) => {
            [examples("mds-request", &nobody), examples("peer-request", &nobody)].concat()
        }
        _ => [examples("oss-request", &[]), examples("oss-call", &[])].concat(),
    };
    assert!(!bodies.is_empty() && Cred::decode(&mut Reader::new(&nobody)).is_ok());
    let (draw, answers, fid) = (Draw::new(seed), BTreeMap::new(), fid.parse().expect("a FID"));
    let (address, fsname) = (address.parse().expect("IP:PORT"), fsname.clone());
    let (xid, sent, ended, silent) = (0, 0, 0, 0);
    let mut campaign =
        Campaign { address, target, fsname, tls, bodies, fid, draw, xid, sent, ended, silent, answers };
    let end = Instant::now() + Duration::from_secs(seconds.parse().expect("seconds"));
    let mut refused_since = None;
    while Instant::now() < end {
        match campaign.connect() {
            Ok(mut link) => {
                refused_since = None;
                if campaign.run(&mut link).is_err() {
                    campaign.ended += 1;
                }
            }
            Err(error) => {
                let since = *refused_since.get_or_insert_with(Instant::now);
                assert!(since.elapsed() < Duration::from_secs(60), "the server is gone: {error}");
                nacre_env::thread::sleep(Duration::from_millis(100));
            }
        }
    }
    let Campaign { sent, ended, silent, answers, .. } = campaign;
    println!(
        "{target}: {sent} messages, {ended} connections ended by the server, {silent} without an answer in time"
    );
    for (status, count) in answers {
        println!("{count:10} {status}");
    }
}
