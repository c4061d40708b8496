//! Signing and verifying capabilities ([`nacre_types::Capability`]): an HMAC over object, rights, holder and
//! expiry with a key that metadata and object servers share.
//!
//! Keys are numbered and change once a day; the previous key stays valid. Verified capabilities are cached
//! per connected client, so that its next request with one costs a comparison.

use crate::clock::SharedClock;
use nacre_env::sync::{Mutex, RwLock};
use nacre_types::{CAPABILITY_TAG_BYTES, Capability, Fid, KeyId, ObjectNeed, Rights};
use ring::hmac;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Seconds from the arrival of a new key until capabilities are signed with it: servers learn of a change of
/// the configuration at different times.
const SPREAD_S: u64 = 60;
/// Slots of the cache of one client's verified capabilities; two in one slot replace each other.
const SLOTS: usize = 256;
/// Prefix of the signed message that no other use of such a key has.
const DOMAIN: &[u8; 4] = b"cap1";
/// Domain, object, rights, holder, epoch, expiry: with HMAC's padding one block of SHA-256.
const MESSAGE_BYTES: usize = 4 + 16 + 1 + 8 + 4 + 8;

struct SigningKey {
    epoch: u32,
    made_s: u64,
    key: hmac::Key,
}

/// The capability keys of a server, the newest first; empty if the file system has no authority.
#[derive(Default)]
pub struct CapabilityKeys {
    keys: RwLock<Vec<SigningKey>>,
    /// True if the set is not empty.
    are_known: AtomicBool,
    /// Clock of the management server: clocks of two servers' hosts may differ by more than the life of a
    /// capability.
    clock: SharedClock,
}

/// Why a capability does not grant access to an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CapabilityError {
    /// The request has no capability.
    Missing,
    /// The capability grants other rights, these.
    Rights(Rights),
    /// The capability expired this many seconds ago.
    Expired(u64),
    /// The capability is signed with a key of this epoch, which this server does not have yet or any more.
    Epoch(u32),
    /// The capability is signed for another object or client key, or not by a metadata server.
    Forged,
}

impl fmt::Display for CapabilityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CapabilityError::Missing => f.write_str("it brings no capability"),
            CapabilityError::Rights(rights) => write!(f, "its capability is for {rights:?} alone"),
            CapabilityError::Expired(ago) => {
                write!(f, "its capability has ended {ago} s ago")
            }
            CapabilityError::Epoch(epoch) => {
                write!(f, "its capability is of epoch {epoch}, which is not known")
            }
            CapabilityError::Forged => f.write_str("its capability is not for this object and key"),
        }
    }
}

impl std::error::Error for CapabilityError {}

impl CapabilityKeys {
    /// Replaces the keys; the newest is first: epoch, time in seconds since 1970, secret.
    pub fn set(&self, keys: impl IntoIterator<Item = (u32, u64, [u8; 32])>) {
        let known: Vec<SigningKey> = keys
            .into_iter()
            .map(|(epoch, made_s, secret)| SigningKey {
                epoch,
                made_s,
                key: hmac::Key::new(hmac::HMAC_SHA256, &secret),
            })
            .collect();
        self.are_known.store(!known.is_empty(), Ordering::Relaxed);
        *self.keys.write() = known;
    }

    /// Returns true if capabilities are signed and required.
    pub fn are_known(&self) -> bool {
        self.are_known.load(Ordering::Relaxed)
    }

    /// Returns the management server's clock.
    pub fn clock(&self) -> &SharedClock {
        &self.clock
    }

    /// Returns a signer of capabilities for `holder` that expire at `expires_s`; `None` without keys. A key
    /// so new that some servers may not have it yet signs only if there is no other.
    pub fn signer(&self, holder: KeyId, rights: Rights, expires_s: u64, now_s: u64) -> Option<Signer> {
        let keys = self.keys.read();
        let is_spread = |key: &&SigningKey| key.made_s.saturating_add(SPREAD_S) <= now_s;
        let chosen = keys.iter().find(is_spread).or(keys.last())?;
        Some(Signer { holder, rights, epoch: chosen.epoch, expires_s, key: chosen.key.clone() })
    }

    /// Checks that a capability grants `holder` the access it needs.
    ///
    /// # Errors
    /// The reason if it does not.
    pub fn check(
        &self,
        holder: KeyId,
        need: &ObjectNeed,
        capability: Option<&Capability>,
        now_s: u64,
        verified: &Verified,
    ) -> Result<(), CapabilityError> {
        let capability = capability.ok_or(CapabilityError::Missing)?;
        if !capability.allows(need.any_of) {
            return Err(CapabilityError::Rights(capability.rights));
        }
        if capability.expires_s <= now_s {
            return Err(CapabilityError::Expired(now_s - capability.expires_s));
        }
        let keys = self.keys.read();
        let key = keys.iter().find(|key| key.epoch == capability.epoch);
        let key = key.ok_or(CapabilityError::Epoch(capability.epoch))?;
        if verified.has(&need.object, capability) {
            return Ok(());
        }
        let tag = tag_of(&key.key, &need.object, holder, capability);
        if !are_equal(&tag, &capability.tag) {
            return Err(CapabilityError::Forged);
        }
        verified.note(&need.object, capability);
        Ok(())
    }
}

/// Signs capabilities for objects.
pub struct Signer {
    holder: KeyId,
    rights: Rights,
    epoch: u32,
    expires_s: u64,
    key: hmac::Key,
}

impl Signer {
    /// Returns the epoch of the signing key.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Signs the capability for an object.
    pub fn sign(&self, object: &Fid) -> Capability {
        let Signer { holder, rights, epoch, expires_s, .. } = *self;
        let mut signed = Capability { rights, epoch, expires_s, tag: [0; CAPABILITY_TAG_BYTES] };
        signed.tag = tag_of(&self.key, object, holder, &signed);
        signed
    }
}

fn tag_of(key: &hmac::Key, object: &Fid, holder: KeyId, said: &Capability) -> [u8; CAPABILITY_TAG_BYTES] {
    let mut message = [0; MESSAGE_BYTES];
    let parts: [&[u8]; 8] = [
        DOMAIN,
        &object.seq.to_le_bytes(),
        &object.oid.to_le_bytes(),
        &object.ver.to_le_bytes(),
        &[said.rights.bits()],
        &holder.0.to_le_bytes(),
        &said.epoch.to_le_bytes(),
        &said.expires_s.to_le_bytes(),
    ];
    let mut at = 0;
    for part in parts {
        message[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    let mut tag = [0; CAPABILITY_TAG_BYTES];
    tag.copy_from_slice(&hmac::sign(key, &message).as_ref()[..CAPABILITY_TAG_BYTES]);
    tag
}

/// Compares two tags in constant time, so that the duration does not reveal where they differ.
fn are_equal(one: &[u8; CAPABILITY_TAG_BYTES], other: &[u8; CAPABILITY_TAG_BYTES]) -> bool {
    let differing = u128::from_ne_bytes(*one) ^ u128::from_ne_bytes(*other);
    std::hint::black_box(differing) == 0
}

/// An object and the capability verified for it.
type Slot = Mutex<Option<(Fid, Capability)>>;

/// Cache of one client's verified capabilities. It has no entries of other clients, so response times reveal
/// nothing about them.
#[derive(Default)]
pub struct Verified {
    slots: OnceLock<Box<[Slot; SLOTS]>>,
}

impl Verified {
    fn slot(&self, capability: &Capability) -> &Slot {
        let slots = self.slots.get_or_init(|| Box::new([const { Mutex::new(None) }; SLOTS]));
        // Tags are evenly distributed.
        &slots[usize::from(capability.tag[0])]
    }

    fn has(&self, object: &Fid, capability: &Capability) -> bool {
        matches!(&*self.slot(capability).lock(), Some((known, same)) if known == object && same == capability)
    }

    fn note(&self, object: &Fid, capability: &Capability) {
        *self.slot(capability).lock() = Some((*object, *capability));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_790_000_000;
    const HOLDER: KeyId = KeyId(0xab);
    const OBJECT: Fid = Fid::ost_object(3, 9);

    fn keys(epochs: &[u32]) -> CapabilityKeys {
        let keys = CapabilityKeys::default();
        keys.set(epochs.iter().map(|&epoch| (epoch, NOW - 1000, [epoch as u8; 32])));
        keys
    }

    fn sign(keys: &CapabilityKeys, rights: Rights) -> Capability {
        keys.signer(HOLDER, rights, NOW + 600, NOW).expect("there are keys").sign(&OBJECT)
    }

    fn check(
        keys: &CapabilityKeys,
        holder: KeyId,
        object: Fid,
        any_of: Rights,
        capability: &Capability,
        now_s: u64,
    ) -> Result<(), CapabilityError> {
        let verified = Verified::default();
        let need = ObjectNeed { object, any_of };
        let first = keys.check(holder, &need, Some(capability), now_s, &verified);
        // The cache does not change the result.
        assert_eq!(keys.check(holder, &need, Some(capability), now_s, &verified), first);
        first
    }

    #[test]
    fn a_capability_is_good_for_its_object_key_rights_and_time_alone() {
        let keys = keys(&[2, 1]);
        let read = sign(&keys, Rights::ATTRIBUTES | Rights::READ);
        assert_eq!(check(&keys, HOLDER, OBJECT, Rights::READ, &read, NOW), Ok(()));
        assert_eq!(check(&keys, HOLDER, OBJECT, Rights::READ | Rights::WRITE, &read, NOW + 599), Ok(()));
        let refused = |holder, object, rights, now_s| {
            check(&keys, holder, object, rights, &read, now_s).expect_err("refused")
        };
        assert_eq!(refused(HOLDER, OBJECT, Rights::WRITE, NOW), CapabilityError::Rights(read.rights));
        assert_eq!(refused(HOLDER, OBJECT, Rights::READ, NOW + 600), CapabilityError::Expired(0));
        for object in [Fid::ost_object(3, 8), Fid::ost_object(2, 9), Fid { ver: 1, ..OBJECT }] {
            assert_eq!(refused(HOLDER, object, Rights::READ, NOW), CapabilityError::Forged);
        }
        assert_eq!(refused(KeyId(0xac), OBJECT, Rights::READ, NOW), CapabilityError::Forged);
        let need = ObjectNeed { object: OBJECT, any_of: Rights::READ };
        let none = keys.check(HOLDER, &need, None, NOW, &Verified::default());
        assert_eq!(none, Err(CapabilityError::Missing));
    }

    #[test]
    fn every_changed_bit_is_noticed() {
        let keys = keys(&[3, 2]);
        let good = sign(&keys, Rights::READ);
        for bit in 0..128 {
            let mut bad = good;
            bad.tag[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(check(&keys, HOLDER, OBJECT, Rights::READ, &bad, NOW), Err(CapabilityError::Forged));
        }
        for bit in 0..40 {
            let bad = Capability { expires_s: good.expires_s ^ 1 << bit, ..good };
            assert!(check(&keys, HOLDER, OBJECT, Rights::READ, &bad, NOW).is_err(), "bit {bit} of the end");
        }
        let other_epoch = Capability { epoch: 2, ..good };
        let more = Capability { rights: Rights::all(), ..good };
        for bad in [other_epoch, more] {
            assert_eq!(check(&keys, HOLDER, OBJECT, Rights::READ, &bad, NOW), Err(CapabilityError::Forged));
        }
    }

    #[test]
    fn what_the_key_before_has_signed_counts_until_that_goes() {
        let keys = keys(&[1]);
        let old = sign(&keys, Rights::READ);
        let secret = |epoch: u32| (epoch, NOW - 1000, [epoch as u8; 32]);
        let verified = Verified::default();
        let need = ObjectNeed { object: OBJECT, any_of: Rights::READ };
        for epochs in [&[1][..], &[2, 1]] {
            keys.set(epochs.iter().copied().map(secret));
            assert_eq!(keys.check(HOLDER, &need, Some(&old), NOW, &verified), Ok(()), "{epochs:?}");
        }
        keys.set([3, 2].map(secret));
        let gone = Err(CapabilityError::Epoch(1));
        assert_eq!(keys.check(HOLDER, &need, Some(&old), NOW, &verified), gone, "though it is remembered");
        keys.set([]);
        assert!(!keys.are_known() && keys.signer(HOLDER, Rights::READ, NOW, NOW).is_none());
    }

    #[test]
    fn a_new_key_signs_when_all_servers_have_had_time_to_learn_it() {
        let keys = CapabilityKeys::default();
        keys.set([(8, NOW, [8; 32]), (7, NOW - 86_400, [7; 32])]);
        let epoch = |keys: &CapabilityKeys, now_s| {
            keys.signer(HOLDER, Rights::READ, now_s + 600, now_s).expect("there are keys").epoch()
        };
        assert_eq!([NOW - 5, NOW, NOW + 59, NOW + 60].map(|now_s| epoch(&keys, now_s)), [7, 7, 7, 8]);
        keys.set([(1, NOW, [1; 32])]);
        assert_eq!(epoch(&keys, NOW), 1, "where there is no other it does at once");
    }

    #[test]
    fn many_capabilities_of_a_client_are_told_apart() {
        let keys = keys(&[1]);
        let signer = keys.signer(HOLDER, Rights::READ, NOW + 600, NOW).expect("there are keys");
        let verified = Verified::default();
        let all: Vec<_> =
            (1..2000).map(|oid| Fid::ost_object(0, oid)).map(|fid| (fid, signer.sign(&fid))).collect();
        for _ in 0..2 {
            for ((object, capability), (other, _)) in all.iter().zip(all.iter().skip(1)) {
                let check = |object: &Fid| {
                    let need = ObjectNeed { object: *object, any_of: Rights::READ };
                    keys.check(HOLDER, &need, Some(capability), NOW, &verified)
                };
                assert_eq!((check(object), check(other)), (Ok(()), Err(CapabilityError::Forged)));
            }
        }
    }

    #[test]
    fn no_log_shows_a_signature() {
        let shown = format!("{:?}", sign(&keys(&[1]), Rights::READ));
        assert_eq!(shown, "Capability(Rights(READ), epoch 1, until 1790000600)");
    }
}
