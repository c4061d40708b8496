//! Everything here that reads what strangers send, by bytes: for tests with random input, and for fuzzing.

use crate::authority::Csr;
use crate::token::Token;
use crate::verify::identity_of;
use nacre_types::Identity;

/// Reads the bytes as a certificate, a request for one, a token and the text of an identity. What can be read is what it says: an identity
/// and a token come out of their text as they went in.
///
/// # Panics
/// Where that is not so.
pub fn read(bytes: &[u8]) {
    // Signs that need not be escaped make a text longer, which may be too long then.
    let same = |identity: &Identity| {
        identity.to_string().parse::<Identity>().map_or(true, |other| other == *identity)
    };
    if let Ok(identity) = identity_of(&bytes.into()) {
        assert!(same(&identity), "the text of {identity} is another one's");
    }
    drop(Csr::read(bytes));
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(identity) = text.parse::<Identity>() {
        assert!(same(&identity), "the text of {identity} is another one's");
    }
    if let Ok(token) = text.parse::<Token>() {
        assert_eq!(token.reveal(), text.trim(), "a token has one text");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Authority, Fingerprint, LIFETIME, Request};
    use nacre_types::{KeyId, Roles};

    /// What strangers might send, as it should be.
    fn seeds() -> Vec<Vec<u8>> {
        let dir = tempfile::tempdir().expect("a directory");
        let authority = Authority::create(&dir.path().join("keys"), "fs").expect("an authority");
        let mut identity = Identity::new("fs", KeyId(7), Roles::CLIENT, "host");
        identity.uid = Some(1000);
        let key = authority.make_key(&identity, LIFETIME).expect("a key");
        let token = Token::draw(Fingerprint::of(&key.authority)).expect("random");
        let request = Request::new().expect("a pair").csr().expect("a request");
        vec![
            key.certificate.to_vec(),
            key.authority.to_vec(),
            request,
            identity.to_string().into_bytes(),
            token.reveal().into_bytes(),
        ]
    }

    #[test]
    fn mutated_and_random_bytes_never_panic() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut draw = |below: usize| random.usize(..below);
        for seed in seeds() {
            read(&seed);
            for _ in 0..3000 {
                let mut bytes = seed.clone();
                for _ in 0..=draw(4) {
                    match draw(4) {
                        0 => bytes.truncate(draw(bytes.len().max(1)) + 1),
                        1 if !bytes.is_empty() => {
                            let at = draw(bytes.len());
                            bytes.insert(at, draw(256) as u8);
                        }
                        2 if !bytes.is_empty() => drop(bytes.remove(draw(bytes.len()))),
                        _ if !bytes.is_empty() => {
                            let at = draw(bytes.len());
                            bytes[at] = draw(256) as u8;
                        }
                        _ => bytes.push(draw(256) as u8),
                    }
                }
                read(&bytes);
            }
        }
        for _ in 0..3000 {
            let bytes: Vec<u8> = (0..draw(300)).map(|_| draw(256) as u8).collect();
            read(&bytes);
        }
    }
}
