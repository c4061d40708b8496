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
#[path = "../../../../fuzz/mutate.rs"]
mod mutate;

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_keys::{Authority, ClientTls, LIFETIME, Revoked};
    use nacre_types::{ClientUuid, Identity, KeyId, ProcessIdentity, Roles, TargetId, Xid};
    use nacre_wire::connect::{ConnectFlags, VERSION_MAX, VERSION_MIN};
    use nacre_wire::frame::FrameKind;
    use std::sync::Arc;

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
        mutate::exercise("frame", &[frame, body], 40_000, read_frame);
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
        let valid = [1, 255].map(|pieces| [&[pieces], &hello.to_send[..]].concat());
        mutate::exercise("handshake", &valid, 20_000, |bytes| {
            let (first, rest) = bytes.split_first().unwrap_or((&0, &[]));
            read_handshake(&tls, rest, 1 + 16 * usize::from(*first));
        });
    }
}
