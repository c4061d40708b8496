//! Cost of capabilities: signing one, verifying one, and looking one up among those already verified.
//! Nanoseconds per call on one CPU, median of nine rounds.

use nacre_env::clock::Instant;
use nacre_keys::{CapabilityKeys, Verified};
use nacre_types::{Capability, Fid, KeyId, ObjectNeed, Rights};
use std::hint::black_box;
use std::time::UNIX_EPOCH;

const ROUNDS: usize = 9;
const OBJECTS: u32 = 100;
const REPEATS: u32 = 1000;

fn measure(what: &str, mut run: impl FnMut(&Fid)) {
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..REPEATS {
                for oid in 1..=OBJECTS {
                    run(&Fid::ost_object(0, oid));
                }
            }
            start.elapsed().as_nanos() as f64 / f64::from(OBJECTS * REPEATS)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("{what:<44} {:>6.0} ns ({:.0} to {:.0})", times[ROUNDS / 2], times[0], times[ROUNDS - 1]);
}

fn now_s() -> u64 {
    nacre_env::clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn main() {
    let keys = CapabilityKeys::default();
    keys.set([(2, 0, [2; 32]), (1, 0, [1; 32])]);
    let holder = KeyId(7);
    let signer = keys.signer(holder, Rights::READ, now_s() + 3600, now_s()).expect("there are keys");
    let signed: Vec<Capability> = (1..=OBJECTS).map(|oid| signer.sign(&Fid::ost_object(0, oid))).collect();
    let check = |object: &Fid, verified: &Verified| {
        let need = ObjectNeed { object: *object, any_of: Rights::READ };
        keys.check(holder, &need, signed.get(object.oid as usize - 1), now_s(), verified).expect("valid");
    };
    measure("sign", |object| {
        black_box(signer.sign(object));
    });
    measure("choose a key and sign", |object| {
        let signer = keys.signer(holder, Rights::READ, now_s() + 3600, now_s()).expect("there are keys");
        black_box(signer.sign(object));
    });
    let other = KeyId(8);
    let need = |object: &Fid| ObjectNeed { object: *object, any_of: Rights::READ };
    let verified = Verified::default();
    measure("refuse (verify in full)", |object| {
        let capability = signed.get(object.oid as usize - 1);
        let _ = black_box(keys.check(other, &need(object), capability, now_s(), &verified));
    });
    measure("accept what was verified", |object| check(object, &verified));
}
