//! Every decoder of this crate on raw bytes: for tests with random input and for fuzzing.

use crate::connect::{Connect, Connected, Refusal};
use crate::lock::{LockRequest, ServerMessage};
use crate::mds::{MdsAnswer, MdsReply, MdsRequest};
use crate::mgs::{MgsReply, MgsRequest};
use crate::oss::{OssCall, OssReply, OssRequest};
use crate::peer::{PeerReply, PeerRequest};
use crate::{Decode, Encode};
use nacre_layout::Layout;
use nacre_lock::Outcome;
use nacre_types::{Attr, Cred};
use std::fmt::Debug;

type Decoder = fn(&[u8]);

/// Decoders, by the names of their messages in the golden file.
const DECODERS: &[(&str, Decoder)] = &[
    ("mds-request", read_request),
    ("mds-reply", read_reply),
    ("mds-answer", |bytes| same::<MdsAnswer>(bytes)),
    ("oss-request", |bytes| same::<OssRequest>(bytes)),
    ("oss-reply", |bytes| same::<OssReply>(bytes)),
    ("oss-call", |bytes| same::<OssCall<OssRequest>>(bytes)),
    ("peer-request", |bytes| same::<PeerRequest>(bytes)),
    ("peer-reply", |bytes| same::<PeerReply>(bytes)),
    ("lock-request", |bytes| same::<LockRequest>(bytes)),
    ("lock-outcome", |bytes| same::<Outcome>(bytes)),
    ("server-message", |bytes| same::<ServerMessage>(bytes)),
    ("mgs-request", survives::<MgsRequest>),
    ("mgs-reply", survives::<MgsReply>),
    ("Connect", |bytes| same::<Connect>(bytes)),
    ("Connected", |bytes| same::<Connected>(bytes)),
    ("Refusal", |bytes| same::<Refusal>(bytes)),
    ("Attr", |bytes| same::<Attr>(bytes)),
    ("Layout", |bytes| same::<Layout>(bytes)),
    ("Cred", survives::<Cred>),
];

/// Decodes the bytes behind the first one, which selects the decoder.
///
/// # Panics
/// If an encoding of the decoded value differs from the bytes.
pub fn read(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else { return };
    if let Some((_, decode)) = DECODERS.get(usize::from(*first)) {
        decode(rest);
    }
}

/// A message has one form.
fn same<'a, T: Encode + Decode<'a> + Debug>(bytes: &'a [u8]) {
    if let Ok(value) = T::from_bytes(bytes) {
        assert_eq!(value.to_bytes(), bytes, "{value:?}");
    }
}

/// A message with texts or credentials may have several forms: identities and ranges of addresses are formatted
/// canonically, and unknown capabilities dropped. A longer text may exceed the limit.
fn survives<T: Encode + for<'a> Decode<'a> + PartialEq + Debug>(bytes: &[u8]) {
    if let Ok(value) = T::from_bytes(bytes)
        && let Ok(again) = T::from_bytes(&value.to_bytes())
    {
        assert_eq!(again, value);
    }
}

fn read_request(bytes: &[u8]) {
    match MdsRequest::from_bytes(bytes) {
        Ok(replay @ MdsRequest::Replay { .. }) => {
            assert_eq!(MdsRequest::from_bytes(&replay.to_bytes()).as_ref(), Ok(&replay));
        }
        _ => same::<MdsRequest<'_>>(bytes),
    }
}

/// Pages of directories are decoded as they are iterated.
fn read_reply(bytes: &[u8]) {
    same::<MdsReply>(bytes);
    if let Ok(MdsReply::Directory(page) | MdsReply::Shard { page, .. }) = MdsReply::from_bytes(bytes) {
        assert_eq!(page.entries().count(), page.places().count(), "{page:?}");
    }
}

#[cfg(test)]
#[path = "../../../fuzz/mutate.rs"]
mod mutate;

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages of the golden file.
    fn golden() -> Vec<Vec<u8>> {
        let message = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let decoder = DECODERS.iter().position(|(name, _)| *name == words[0] || *name == words[1]);
            let byte =
                |at| u8::from_str_radix(&words[2][at..at + 2], 16).expect("the golden file has hex digits");
            let bytes = (0..words[2].len()).step_by(2).map(byte);
            let first = decoder.unwrap_or_else(|| panic!("no decoder of {}", words[0])) as u8;
            [first].into_iter().chain(bytes).collect()
        };
        include_str!("../golden/version-4.txt").lines().map(message).collect()
    }

    #[test]
    fn mutated_messages_never_panic_and_have_one_form() {
        mutate::exercise("wire", &golden(), 600_000, read);
    }
}
