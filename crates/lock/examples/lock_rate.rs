//! CPU time of the common steps: `cargo run --release -p nacre-lock --example lock_rate`.
//!
//! Each line is the median of nine rounds, in nanoseconds per step, with the fastest and the slowest round.

use nacre_env::clock::Instant;
use nacre_lock::client::{Acquire, ClientConfig, LockClient};
use nacre_lock::server::{LockServer, ServerConfig};
use nacre_lock::{
    Enqueue, EnqueueFlags, Extent, InodeBits, LockGrant, LockHandle, Mode, Need, Outcome, Peer, ResourceId,
};
use nacre_types::ClientUuid;

const ROUNDS: usize = 9;
const STEPS: u64 = 100_000;

fn measure(name: &str, mut round: impl FnMut()) {
    let mut times: Vec<u128> = (0..ROUNDS)
        .map(|_| {
            let begin = Instant::now();
            round();
            begin.elapsed().as_nanos() / u128::from(STEPS)
        })
        .collect();
    times.sort();
    println!("{name:<60} {:>6} ns [{}-{}]", times[ROUNDS / 2], times[0], times[ROUNDS - 1]);
}

fn peer(number: u8) -> Peer {
    Peer { client: ClientUuid([number; 16]), generation: 1 }
}

fn request(handle: u64, object: u64, need: Need, no_expansion: bool) -> Enqueue {
    let flags = EnqueueFlags { no_expansion, ..EnqueueFlags::default() };
    let resource = ResourceId([1, object, 0, 0]);
    Enqueue { handle: LockHandle(handle), resource, need, optional: InodeBits::NONE, flags }
}

fn record(index: u64) -> Extent {
    Extent { start: index * 4096, last: index * 4096 + 4095 }
}

/// Creates a server with two clients. The first holds `locks` write locks of one page each on object 1.
fn server(locks: u64) -> LockServer {
    let (mut server, mut effects) = (LockServer::new(ServerConfig::default(), false), Vec::new());
    for number in 1..=2 {
        server.on_connect(Instant::now(), peer(number), &mut effects);
    }
    for index in 0..locks {
        let need = Need::extent(Mode::Pw, record(2 * index));
        let outcome = server.on_enqueue(
            Instant::now(),
            peer(1),
            &request(index + 1, 1, need, true),
            None,
            &mut effects,
        );
        assert!(matches!(outcome, Outcome::Granted(_)));
    }
    server
}

fn server_steps() {
    let (now, mut effects) = (Instant::now(), Vec::new());
    let mut alone = server(0);
    let mut handle = 0;
    measure("server: enqueue and cancel, new resource", || {
        for object in 0..STEPS {
            handle += 1;
            let need = Need::bits(Mode::Pr, InodeBits::ALL);
            alone.on_enqueue(now, peer(1), &request(handle, object, need, false), None, &mut effects);
            alone.on_cancel(now, peer(1), &[LockHandle(handle)], &mut effects);
        }
    });
    for locks in [1, 100, 10_000] {
        let mut crowded = server(locks);
        measure(&format!("server: enqueue and cancel of a page between {locks} locks"), || {
            for step in 0..STEPS {
                handle += 1;
                let need = Need::extent(Mode::Pw, record(2 * (step % locks) + 1));
                let asked = request(handle, 1, need, false);
                let outcome = crowded.on_enqueue(now, peer(2), &asked, None, &mut effects);
                assert!(matches!(outcome, Outcome::Granted(_)));
                crowded.on_cancel(now, peer(2), &[LockHandle(handle)], &mut effects);
            }
        });
    }
    let mut fought = server(0);
    let need = Need::extent(Mode::Pw, record(0));
    fought.on_enqueue(now, peer(1), &request(handle, 1, need, false), None, &mut effects);
    let mut holder = 1;
    measure("server: enqueue, callback, cancel, completion", || {
        for _ in 0..STEPS {
            let other = 3 - holder;
            fought.on_enqueue(now, peer(other), &request(handle + 1, 1, need, false), None, &mut effects);
            fought.on_cancel(now, peer(holder), &[LockHandle(handle)], &mut effects);
            assert_eq!(effects.len(), 2);
            effects.clear();
            (holder, handle) = (other, handle + 1);
        }
    });
}

fn client_steps() {
    let (now, mut effects) = (Instant::now(), Vec::new());
    for locks in [1, 1_000] {
        let mut client = LockClient::new(ClientConfig::default());
        client.on_connected(now, &mut effects);
        let resource = ResourceId([1, 1, 0, 0]);
        for index in 0..locks {
            let need = Need::extent(Mode::Pw, record(index));
            let flags = EnqueueFlags::default();
            let asked = client.acquire(now, &resource, &need, InodeBits::NONE, flags, &mut effects);
            let Acquire::Pending(handle) = asked else { panic!("not covered yet") };
            client.on_outcome(now, handle, &Outcome::Granted(LockGrant { need, lvb: None }), &mut effects);
            client.release(now, handle, &mut effects);
        }
        measure(&format!("client: match and release among {locks} locks of an object"), || {
            for step in 0..STEPS {
                let need = Need::extent(Mode::Pr, record(step % locks));
                let handle = client.match_lock(&resource, &need).expect("cached");
                client.release(now, handle, &mut effects);
            }
        });
    }
}

fn main() {
    server_steps();
    client_steps();
}
