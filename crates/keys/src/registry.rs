//! Registry of what an authority has issued: one file per key and one per token, below the directory of the
//! authority.
//!
//! Files are replaced atomically, so that processes of this host may read them while the management server
//! changes them.

use crate::authority::random;
use crate::error::{KeyError, Result};
use crate::files;
use crate::token::{Fingerprint, Secret, SecretHash, Token, TokenId};
use nacre_types::{Identity, KeyId};
use ring::digest::{SHA256, digest};
use std::fmt::Write;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Directory of issued keys, in the directory of the authority.
const ISSUED: &str = "issued";
/// Directory of tokens, in the directory of the authority.
const TOKENS: &str = "tokens";
/// Keys that one token may enrol, at most.
pub const USES_MAX: u32 = 1 << 16;

/// What a token grants to the keys that it enrols.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// Roles, user, subtree and read-only flag of the keys; number, expiry and name are set for each key.
    pub identity: Identity,
    /// Expiry of the token in seconds since 1970.
    pub until_s: u64,
    /// Number of keys that it enrols, at most [`USES_MAX`].
    pub uses: u32,
    /// Life of the keys' certificates.
    pub lifetime: Duration,
}

/// A token as stored.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Record {
    grant: Grant,
    secret: SecretHash,
    /// Hashes (SHA-256) of the public keys that it has enrolled, with their numbers: a repeated request gets
    /// the same key number.
    enrolled: Vec<([u8; 32], KeyId)>,
}

impl Record {
    fn accepts(&self, secret: &Secret, now_s: u64) -> bool {
        self.secret.is_of(secret) && self.grant.until_s > now_s
    }
}

/// Where a key was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// On the host of the authority, by its owner. A target may change from one such key to another, as when
    /// processes are merged.
    Home,
    /// On another host, by a token.
    Token,
}

/// Marks a key that was created on the host of the authority.
const HOME: &str = "home";

/// The keys and tokens of one authority.
#[derive(Clone, Debug)]
pub struct Registry {
    dir: PathBuf,
}

impl Registry {
    /// Returns the registry of the authority in `dir`.
    pub fn of(dir: &Path) -> Registry {
        Registry { dir: dir.to_owned() }
    }

    /// Records an issued key, or its new expiry.
    ///
    /// # Durability
    /// Durable on return.
    ///
    /// # Errors
    /// `Io`.
    pub fn note(&self, identity: &Identity, origin: Origin) -> Result<()> {
        let dir = self.dir.join(ISSUED);
        files::make_dir(&dir)?;
        let origin = if origin == Origin::Home { HOME } else { "" };
        files::write_secret(&dir.join(identity.id.to_string()), format!("{identity}\n{origin}\n").as_bytes())
    }

    /// Returns where the key of this number was created; `None` if it was never issued.
    ///
    /// # Errors
    /// `Io`; `Damaged`.
    pub fn origin(&self, id: KeyId) -> Result<Option<Origin>> {
        Ok(self.issued(id)?.map(|(_, origin)| origin))
    }

    /// Returns the identity of the key of this number, as issued last.
    ///
    /// # Errors
    /// `Io`; `Damaged`.
    pub fn key(&self, id: KeyId) -> Result<Option<Identity>> {
        Ok(self.issued(id)?.map(|(identity, _)| identity))
    }

    fn issued(&self, id: KeyId) -> Result<Option<(Identity, Origin)>> {
        let path = self.dir.join(ISSUED).join(id.to_string());
        let Some(text) = read(&path)? else { return Ok(None) };
        let (line, rest) = text.split_once('\n').unwrap_or((&text, ""));
        let identity = line.parse::<Identity>().ok().filter(|identity| identity.id == id);
        let identity = identity.ok_or(KeyError::Damaged { path, what: "it names no key" })?;
        let origin = if rest.trim_end() == HOME { Origin::Home } else { Origin::Token };
        Ok(Some((identity, origin)))
    }

    /// Returns all keys, ordered by number. Files that cannot be read are logged and skipped.
    ///
    /// # Errors
    /// `Io`.
    pub fn keys(&self) -> Result<Vec<Identity>> {
        let mut keys = Vec::new();
        for name in names(&self.dir.join(ISSUED))? {
            let Ok(id) = name.parse() else { continue };
            match self.key(id) {
                Ok(key) => keys.extend(key),
                Err(error) => log::warn!("{error}"),
            }
        }
        keys.sort_by_key(|key| key.id);
        Ok(keys)
    }

    /// Creates a token, and removes expired ones.
    ///
    /// # Durability
    /// Durable on return.
    ///
    /// # Errors
    /// `Random`, `Io`.
    pub fn make_token(&self, authority: Fingerprint, grant: Grant, now_s: u64) -> Result<Token> {
        self.forget_ended(now_s)?;
        let token = Token::draw(authority)?;
        self.write(token.id, &Record { grant, secret: token.secret.hash(), enrolled: Vec::new() })?;
        Ok(token)
    }

    /// Returns true if the secret is that of a token that has not expired. A cheap check, to be made before
    /// any expensive work.
    ///
    /// # Errors
    /// `Io`, `Damaged`.
    pub fn accepts(&self, id: TokenId, secret: &Secret, now_s: u64) -> Result<bool> {
        Ok(self.token(id)?.is_some_and(|record| record.accepts(secret, now_s)))
    }

    /// Redeems a token for the public key in `public`; returns the identity of the new key. A repeated
    /// request for the same key gets the same identity. `None` for a token without uses left, and where
    /// [`Registry::accepts`] is false.
    ///
    /// Callers serialise redemptions.
    ///
    /// # Durability
    /// Durable on return: a use of a token is never lost.
    ///
    /// # Errors
    /// `Io`, `Damaged`, `Random`.
    pub fn redeem(
        &self,
        id: TokenId,
        secret: &Secret,
        public: &[u8],
        now_s: u64,
    ) -> Result<Option<(Identity, Duration)>> {
        let Some(mut record) = self.token(id)? else { return Ok(None) };
        if !record.accepts(secret, now_s) {
            return Ok(None);
        }
        let mut print = [0; 32];
        print.copy_from_slice(digest(&SHA256, public).as_ref());
        let known = record.enrolled.iter().find(|(known, _)| *known == print).map(|(_, id)| *id);
        let key = match known {
            Some(key) => key,
            None if record.enrolled.len() >= record.grant.uses as usize => return Ok(None),
            None => {
                let key = KeyId(u64::from_le_bytes(random()?));
                record.enrolled.push((print, key));
                self.write(id, &record)?;
                key
            }
        };
        Ok(Some((Identity { id: key, ..record.grant.identity }, record.grant.lifetime)))
    }

    fn forget_ended(&self, now_s: u64) -> Result<()> {
        for name in names(&self.dir.join(TOKENS))? {
            let id = u64::from_str_radix(&name, 16).map(TokenId);
            let Ok(id) = id else { continue };
            if self.token(id).is_ok_and(|record| record.is_none_or(|record| record.grant.until_s <= now_s)) {
                let path = self.token_path(id);
                fs::remove_file(&path).map_err(KeyError::io("remove", &path))?;
            }
        }
        Ok(())
    }

    fn token_path(&self, id: TokenId) -> PathBuf {
        self.dir.join(TOKENS).join(id.to_string())
    }

    fn token(&self, id: TokenId) -> Result<Option<Record>> {
        let path = self.token_path(id);
        let Some(text) = read(&path)? else { return Ok(None) };
        parse(&text).map(Some).ok_or(KeyError::Damaged { path, what: "it describes no token" })
    }

    fn write(&self, id: TokenId, record: &Record) -> Result<()> {
        files::make_dir(&self.dir.join(TOKENS))?;
        let mut text = format!("identity {}\n", record.grant.identity);
        let mut line = |key: &str, value: &dyn std::fmt::Display| {
            let _ = writeln!(text, "{key} {value}");
        };
        line("until", &record.grant.until_s);
        line("uses", &record.grant.uses);
        line("lifetime", &record.grant.lifetime.as_secs());
        line("secret", &Fingerprint(record.secret.0));
        for (public, key) in &record.enrolled {
            line("enrolled", &format_args!("{} {key}", Fingerprint(*public)));
        }
        files::write_secret(&self.token_path(id), text.as_bytes())
    }
}

/// Reads a file; `None` if it does not exist.
fn read(path: &Path) -> Result<Option<String>> {
    match files::read_secret(path) {
        Ok(bytes) => String::from_utf8(bytes)
            .map(Some)
            .map_err(|_| KeyError::Damaged { path: path.to_owned(), what: "it is not text" }),
        Err(KeyError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the names in a directory; none if it does not exist.
fn names(dir: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(KeyError::io("read", dir))?,
    };
    let names = entries.map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()));
    names.collect::<std::io::Result<_>>().map_err(KeyError::io("read", dir))
}

/// Parses a record, strictly: with any part that is not understood it is not a token.
fn parse(text: &str) -> Option<Record> {
    let mut lines = text.lines();
    let mut line = |key: &str| lines.next()?.strip_prefix(key)?.strip_prefix(' ');
    let identity = line("identity")?.parse().ok()?;
    let (until_s, uses) = (line("until")?.parse().ok()?, line("uses")?.parse().ok()?);
    let lifetime = Duration::from_secs(line("lifetime")?.parse().ok()?);
    let secret = SecretHash(bytes(line("secret")?)?);
    let enrolled = lines.map(|line| {
        let (public, key) = line.strip_prefix("enrolled ")?.split_once(' ')?;
        Some((bytes(public)?, key.parse().ok()?))
    });
    Some(Record {
        enrolled: enrolled.collect::<Option<_>>()?,
        grant: Grant { identity, until_s, uses, lifetime },
        secret,
    })
}

fn bytes(hex: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if hex.len() != 64 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(hex.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::Roles;

    fn registry() -> (tempfile::TempDir, Registry) {
        let dir = tempfile::tempdir().expect("a directory");
        let keys = dir.path().join("keys");
        files::make_dir(&keys).expect("made");
        (dir, Registry::of(&keys))
    }

    fn grant(uses: u32) -> Grant {
        let identity =
            Identity { uid: Some(7), read_only: true, ..Identity::new("fs", KeyId(0), Roles::CLIENT, "") };
        Grant { identity, until_s: 100, uses, lifetime: Duration::from_secs(9) }
    }

    #[test]
    fn a_token_enrols_as_many_keys_as_it_says_and_each_again() {
        let (_dir, registry) = registry();
        let token = registry.make_token(Fingerprint([1; 32]), grant(2), 10).expect("made");
        let redeem =
            |public: &[u8], now| registry.redeem(token.id, &token.secret, public, now).expect("read");
        let (one, lifetime) = redeem(b"one", 11).expect("enrolled");
        assert_eq!((one.uid, one.read_only, lifetime.as_secs()), (Some(7), true, 9));
        let (two, _) = redeem(b"two", 12).expect("enrolled");
        assert_ne!(one.id, two.id);
        assert_eq!(redeem(b"one", 13).expect("the same").0.id, one.id);
        assert_eq!(redeem(b"three", 14), None, "used up");
        assert_eq!(redeem(b"one", 100), None, "ended");
        let wrong = registry.redeem(token.id, &Secret([0; 16]), b"one", 11).expect("read");
        assert_eq!(wrong, None);
        let unknown = registry.redeem(TokenId(token.id.0 ^ 1), &token.secret, b"one", 11).expect("read");
        assert_eq!(unknown, None);
    }

    #[test]
    fn tokens_that_have_ended_are_forgotten() {
        let (_dir, registry) = registry();
        registry.make_token(Fingerprint([1; 32]), grant(1), 10).expect("made");
        let kept = registry.make_token(Fingerprint([1; 32]), grant(1), 99).expect("made");
        assert_eq!(names(&registry.dir.join(TOKENS)).expect("listed").len(), 2);
        let late = Grant { until_s: 500, ..grant(1) };
        registry.make_token(Fingerprint([1; 32]), late, 200).expect("made");
        assert_eq!(names(&registry.dir.join(TOKENS)).expect("listed").len(), 1);
        assert_eq!(registry.redeem(kept.id, &kept.secret, b"one", 50).expect("read"), None);
    }

    #[test]
    fn keys_are_listed_as_they_were_issued_last() {
        let (_dir, registry) = registry();
        assert_eq!(registry.keys().expect("listed"), []);
        let key = |id| Identity::new("fs", KeyId(id), Roles::CLIENT, "host");
        registry.note(&key(2), Origin::Token).expect("noted");
        registry.note(&key(1), Origin::Home).expect("noted");
        registry.note(&Identity { until_s: 5, ..key(2) }, Origin::Token).expect("noted");
        let origins = [1, 2, 3].map(|id| registry.origin(KeyId(id)).expect("read"));
        assert_eq!(origins, [Some(Origin::Home), Some(Origin::Token), None]);
        assert_eq!(registry.keys().expect("listed"), [key(1), Identity { until_s: 5, ..key(2) }]);
        assert_eq!(registry.key(KeyId(3)).expect("read"), None);
        fs::write(registry.dir.join(ISSUED).join(KeyId(1).to_string()), "nonsense").expect("written");
        assert!(matches!(registry.key(KeyId(1)), Err(KeyError::Damaged { .. })));
        assert_eq!(registry.keys().expect("listed").len(), 1);
    }

    #[test]
    fn any_text_that_is_changed_is_no_token_or_another_one() {
        let (_dir, registry) = registry();
        let token = registry.make_token(Fingerprint([1; 32]), grant(2), 10).expect("made");
        registry.redeem(token.id, &token.secret, b"one", 11).expect("read");
        let path = registry.token_path(token.id);
        let text = fs::read_to_string(&path).expect("read");
        for at in 0..text.len() {
            assert!(parse(&text[..at]).is_none() || text[at..].starts_with(['\n', 'e']), "cut at {at}");
        }
        assert!(parse(&format!("{text}more\n")).is_none());
    }
}
