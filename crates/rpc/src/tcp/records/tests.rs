use super::*;
use crate::tcp::tls::Handshake;
use fastrand::Rng;
use nacre_keys::{Authority, ClientTls, LIFETIME, Revoked, ServerTls};
use nacre_types::{Identity, KeyId, Roles};
use std::io::IoSliceMut;

type End = (Sealer, Opener);

/// Returns both ends of a connection, client first.
fn ends(protection: Security) -> (End, End) {
    let dir = tempfile::tempdir().expect("a directory");
    let authority = Authority::create(&dir.path().join("keys"), "fs").expect("an authority");
    let key = |id, roles| {
        authority.make_key(&Identity::new("fs", KeyId(id), roles, "test"), LIFETIME).expect("a key")
    };
    let tls = ServerTls::new(&key(1, Roles::MGS), false, Arc::new(Revoked::default())).expect("settings");
    let mut server = Handshake::of_server(&tls, protection).expect("a side");
    let tls = ClientTls::new("fs", &[key(2, Roles::CLIENT)]).expect("settings");
    let mut client = Handshake::of_client(&tls, false, ([127, 0, 0, 1], 1).into()).expect("a side");
    loop {
        let client_done = client.advance().expect("no fault");
        server.take_in(&std::mem::take(&mut client.to_send)).expect("little");
        let server_done = server.advance().expect("no fault");
        client.take_in(&std::mem::take(&mut server.to_send)).expect("little");
        if client_done && server_done {
            break;
        }
    }
    let (client, server) = (client.secured().expect("agreed"), server.secured().expect("agreed"));
    assert!(client.peer.is_some() && server.peer.is_some());
    ((client.sealer, client.opener), (server.sealer, server.opener))
}

/// Returns the bytes that a sender puts on the wire, in pieces as a socket takes them.
fn sealed(sealer: &mut Sealer, parts: &[&[u8]], random: &mut Rng) -> Vec<u8> {
    let total: usize = parts.iter().map(|part| part.len()).sum();
    let (mut wire, mut sent) = (Vec::new(), 0);
    while sent < total {
        if !sealer.has_waiting() {
            sealer.seal(parts, sent).expect("sealed");
        }
        let waiting = sealer.waiting(parts).concat();
        let taken = 1 + random.usize(..waiting.len());
        wire.extend_from_slice(&waiting[..taken]);
        sent += sealer.note_sent(taken);
    }
    assert!(!sealer.has_waiting());
    wire
}

/// Fills `target` from the wire, which delivers a limited number of bytes at a time.
fn fill(
    opener: &mut Opener,
    wire: &mut &[u8],
    mut target: &mut [u8],
    stays: bool,
    random: &mut Rng,
) -> io::Result<()> {
    let mut receive = |pieces: &mut [IoSliceMut<'_>]| {
        let most = 1 + random.usize(..60_000);
        let (mut now, later) = wire.split_at(most.min(wire.len()));
        let mut got = 0;
        for piece in pieces {
            let len = piece.len().min(now.len());
            piece[..len].copy_from_slice(&now[..len]);
            (now, got) = (&now[len..], got + len);
        }
        let rest = now.len();
        *wire = &wire[got..];
        assert_eq!(rest + later.len(), wire.len());
        got
    };
    while !target.is_empty() {
        let mut opened = opener.take(target)?;
        if opened == 0 {
            let straight = if stays { opener.straight(target)? } else { None };
            let got = match straight {
                Some(mut pieces) => {
                    let got = receive(&mut pieces);
                    drop(pieces);
                    opened = opener.note_straight(target, got)?;
                    got
                }
                None => {
                    let got = receive(&mut [IoSliceMut::new(opener.room(target.len())?)]);
                    opener.note_received(got);
                    got
                }
            };
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        target = target.split_at_mut(opened).1;
    }
    Ok(())
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251 + seed) as u8).collect()
}

#[test]
fn frames_of_every_size_come_as_they_were_sent_however_they_are_cut() {
    for protection in [Security::Encrypt, Security::Authenticate] {
        let ((mut sealer, _), (_, mut opener)) = ends(protection);
        let mut random = Rng::with_seed(7);
        let lens = [0, 1, 100, 5000, 8191, 8192, 16_384, 20_000, 65_536, 131_072, 131_073, 300_000, 1 << 20];
        for round in 0..120 {
            let len = if round < lens.len() { lens[round] } else { random.usize(..500_000) };
            let (head, body) = (pattern(64, round), pattern(random.usize(..300), round));
            let data = pattern(len, round + 1);
            // Occasionally as several answers in one send.
            let mut parts: Vec<&[u8]> = vec![&head, &body, &data];
            if round % 3 == 0 {
                parts.extend_from_slice(&[&body, &head, &data]);
            }
            let wire = sealed(&mut sealer, &parts, &mut random);
            let mut wire = &wire[..];
            for part in parts {
                let mut back = vec![0xee; part.len()];
                let stays = part.len() > 64;
                fill(&mut opener, &mut wire, &mut back, stays, &mut random).expect("opened");
                assert!(back == part, "{protection:?} round {round} with {len}");
            }
            assert!(wire.is_empty(), "{protection:?} round {round}");
        }
    }
}

#[test]
fn what_is_changed_on_the_way_is_never_taken_for_data() {
    for protection in [Security::Encrypt, Security::Authenticate] {
        let mut random = Rng::with_seed(3);
        for round in 0..60 {
            let ((mut sealer, _), (_, mut opener)) = ends(protection);
            let data = pattern(if round % 2 == 0 { 200_000 } else { 3000 }, round);
            let mut wire = sealed(&mut sealer, &[&data], &mut random);
            match round % 4 {
                0 | 1 => {
                    let at = random.usize(..wire.len());
                    wire[at] ^= 1 << random.usize(..8);
                }
                2 => drop(wire.drain(..random.usize(..4000) + 1)),
                _ => {
                    // The stream twice, of which the second copy must not be accepted.
                    let again = wire.clone();
                    wire.extend_from_slice(&again);
                }
            }
            let (mut wire, mut back) = (&wire[..], vec![0; data.len()]);
            let first = fill(&mut opener, &mut wire, &mut back, true, &mut random);
            if first.is_ok() {
                assert!(round % 4 == 3 && back == data, "{protection:?} round {round}");
                assert!(fill(&mut opener, &mut wire, &mut back, true, &mut random).is_err());
            }
        }
    }
}

#[test]
fn records_of_one_connection_mean_nothing_to_another_nor_in_the_other_direction() {
    for protection in [Security::Encrypt, Security::Authenticate] {
        let ((mut one, mut back), (_, _)) = ends(protection);
        let ((_, _), (_, mut other)) = ends(protection);
        let mut random = Rng::with_seed(1);
        let wire = sealed(&mut one, &[&[7; 100]], &mut random);
        for opener in [&mut other, &mut back] {
            let mut target = [0; 100];
            assert!(fill(opener, &mut &wire[..], &mut target, false, &mut random).is_err());
        }
    }
}
