//! Every parser of this crate that reads input of untrusted peers, on raw bytes: for tests with random input
//! and for fuzzing.

use crate::authority::Csr;
use crate::token::Token;
use crate::verify::identity_of;
use nacre_types::Identity;

/// Parses the bytes as a certificate, a signing request, a token and the text of an identity. Checks the
/// round trip: a parsed identity survives formatting and parsing, a parsed token formats to its input.
///
/// # Panics
/// If the round trip fails.
pub fn read(bytes: &[u8]) {
    // Formatting escapes more characters than parsing requires, and the longer text may exceed the limit.
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
#[path = "../../../fuzz/mutate.rs"]
mod mutate;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Authority, Fingerprint, LIFETIME, Request};
    use nacre_types::{KeyId, Roles};

    /// Valid inputs.
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
    fn mutated_keys_and_tokens_never_panic() {
        mutate::exercise("keys", &seeds(), 60_000, read);
    }
}
