//! A server's handling of the bytes of an unknown peer, without a socket: for tests with random input, and
//! for fuzzing.

use super::tls::Handshake;
use nacre_keys::ServerTls;
use nacre_types::Security;
use nacre_wire::connect::{Connect, Connected, Refusal};
use nacre_wire::frame::{HEADER_BYTES, Header};
use nacre_wire::lock::ServerMessage;
use nacre_wire::{Decode, Encode};

/// Parses the bytes as a first frame and its parts.
///
/// # Panics
/// If an encoding of the parsed value differs from the bytes.
pub fn read_frame(bytes: &[u8]) {
    if let Some((head, body)) = bytes.split_first_chunk::<HEADER_BYTES>()
        && let Ok(header) = Header::from_bytes(head)
    {
        assert_eq!(header.to_bytes(), *head, "a header has one form");
        let _ = header.check_body(body);
    }
    if let Ok(connect) = Connect::from_bytes(bytes) {
        assert_eq!(connect.to_bytes(), bytes, "a connect has one form");
    }
    // What a client parses from an unknown server.
    let _ = (Connected::from_bytes(bytes), Refusal::from_bytes(bytes), ServerMessage::from_bytes(bytes));
}

/// Handles the bytes as a client's handshake, `at_a_time` at a time.
pub fn read_handshake(tls: &ServerTls, bytes: &[u8], at_a_time: usize) {
    for protection in [Security::Encrypt, Security::Authenticate] {
        let Ok(mut handshake) = Handshake::of_server(tls, protection) else { return };
        for piece in bytes.chunks(at_a_time.max(1)) {
            // An error ends the handshake.
            if handshake.take_in(piece).is_err() || handshake.advance().is_err() {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_keys::{Authority, ClientTls, LIFETIME, Revoked};
    use nacre_types::{ClientUuid, Identity, KeyId, ProcessIdentity, Roles, TargetId, Xid};
    use nacre_wire::connect::{ConnectFlags, VERSION_MAX, VERSION_MIN};
    use nacre_wire::frame::FrameKind;
    use std::sync::Arc;

    fn mutated(random: &mut fastrand::Rng, seed: &[u8]) -> Vec<u8> {
        let mut bytes = seed.to_vec();
        for _ in 0..=random.usize(..4) {
            let at = random.usize(..bytes.len().max(1));
            match random.u8(..4) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, random.u8(..)),
                2 => bytes.extend_from_within(at..),
                _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.u8(..)),
            }
        }
        bytes
    }

    #[test]
    fn mutated_frames_never_panic() {
        let connect = Connect {
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            features: u64::MAX,
            flags: ConnectFlags::CONTROL,
            client: ClientUuid([7; 16]),
            fsname: "nacre".to_owned(),
            process: ProcessIdentity::default(),
            cpu: 1,
            instance: 9,
        };
        let body = connect.to_bytes();
        let mut header = Header::new(FrameKind::Connect, TargetId::mdt(0), Xid(0));
        header.set_body(&body).expect("short");
        let frame = [&header.to_bytes()[..], &body].concat();
        let mut random = fastrand::Rng::with_seed(1);
        for seed in [frame, body] {
            read_frame(&seed);
            (0..20_000).for_each(|_| read_frame(&mutated(&mut random, &seed)));
        }
    }

    #[test]
    fn mutated_handshakes_never_panic() {
        let dir = tempfile::tempdir().expect("a directory");
        let authority = Authority::create(&dir.path().join("keys"), "fs").expect("an authority");
        let key = |id, roles| {
            authority.make_key(&Identity::new("fs", KeyId(id), roles, "test"), LIFETIME).expect("a key")
        };
        let tls = ServerTls::new(&key(1, Roles::MGS), false, Arc::new(Revoked::default())).expect("settings");
        let client = ClientTls::new("fs", &[key(2, Roles::CLIENT)]).expect("settings");
        let mut hello = Handshake::of_client(&client, false, ([127, 0, 0, 1], 1).into()).expect("a side");
        assert!(!hello.advance().expect("begun"));
        let mut random = fastrand::Rng::with_seed(1);
        for round in 0..3000 {
            let bytes = mutated(&mut random, &hello.to_send);
            read_handshake(&tls, &bytes, [1, 7, 4096][round % 3]);
        }
    }
}
