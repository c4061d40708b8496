//! Tokens, which enrol keys. A person or a script carries them from the management server to a host.

use crate::authority::random;
use crate::error::{KeyError, Result};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use std::fmt;
use std::str::FromStr;

/// Prefix of a token with the version of its format.
const PREFIX: &str = "nacre1-";
const FINGERPRINT_BYTES: usize = 32;
const ID_BYTES: usize = 8;
const SECRET_BYTES: usize = 16;

/// SHA-256 of an authority's certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fingerprint(pub [u8; FINGERPRINT_BYTES]);

impl Fingerprint {
    /// Computes the fingerprint of a certificate in DER.
    pub fn of(certificate: &[u8]) -> Fingerprint {
        Fingerprint(sha256(certificate))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
    hash
}

/// Number of a token at the management server. Not a secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TokenId(pub u64);

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Secret that only the holder of a token has. It is formatted only as part of its token.
#[derive(Clone, Copy)]
pub struct Secret(pub [u8; SECRET_BYTES]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Hash of a secret, as the management server stores it. The secret has 128 random bits, so a plain hash is
/// enough.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SecretHash(pub [u8; 32]);

impl Secret {
    /// Returns the hash to store.
    pub fn hash(&self) -> SecretHash {
        SecretHash(sha256(&self.0))
    }
}

impl SecretHash {
    /// Returns true for the hash of `secret`. The duration of the comparison reveals something of hashes
    /// only, and no secret follows from those.
    pub fn is_of(&self, secret: &Secret) -> bool {
        *self == secret.hash()
    }
}

/// A token; its text is secret.
#[derive(Clone, Copy, Debug)]
pub struct Token {
    /// Fingerprint of the authority that the server has to prove.
    pub authority: Fingerprint,
    /// Number of the token.
    pub id: TokenId,
    /// Secret of the token.
    pub secret: Secret,
}

impl Token {
    /// Draws a new token.
    ///
    /// # Errors
    /// `Random`.
    pub fn draw(authority: Fingerprint) -> Result<Token> {
        Ok(Token { authority, id: TokenId(u64::from_le_bytes(random()?)), secret: Secret(random()?) })
    }

    /// Returns the token's text, which only the enrolling side may get.
    pub fn reveal(&self) -> String {
        let mut bytes = Vec::with_capacity(FINGERPRINT_BYTES + ID_BYTES + SECRET_BYTES);
        bytes.extend_from_slice(&self.authority.0);
        bytes.extend_from_slice(&self.id.0.to_le_bytes());
        bytes.extend_from_slice(&self.secret.0);
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl FromStr for Token {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Token> {
        let text =
            text.trim().strip_prefix(PREFIX).ok_or(KeyError::Token("it does not begin with 'nacre1-'"))?;
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| KeyError::Token("a character is wrong"))?;
        let cut = KeyError::Token("a part is missing or too much");
        let (authority, rest) = bytes.split_first_chunk().ok_or(KeyError::Token("a part is missing"))?;
        let (id, secret) = rest.split_first_chunk().ok_or(KeyError::Token("a part is missing"))?;
        let secret = secret.try_into().map_err(|_| cut)?;
        Ok(Token {
            authority: Fingerprint(*authority),
            id: TokenId(u64::from_le_bytes(*id)),
            secret: Secret(secret),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_read_as_they_were_written_and_cut_ones_are_refused() {
        let token = Token::draw(Fingerprint([7; 32])).expect("random");
        let text = token.reveal();
        let read: Token = format!(" {text}\n").parse().expect("a token");
        assert_eq!((read.authority, read.id), (token.authority, token.id));
        assert!(token.secret.hash().is_of(&read.secret));
        for end in 0..text.len() {
            assert!(text[..end].parse::<Token>().is_err(), "{end}");
        }
        assert!(format!("{text}AAAA").parse::<Token>().is_err());
        assert!(!format!("{token:?}").contains(&text[60..]), "the secret is not shown");
    }

    #[test]
    fn another_secret_has_another_hash() {
        let [one, other] = [Secret([1; 16]), Secret([2; 16])];
        assert!(one.hash().is_of(&one) && !one.hash().is_of(&other));
    }
}
