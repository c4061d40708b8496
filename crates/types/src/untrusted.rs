//! Every decoder of this crate for bytes and texts of users and peers: for tests with random input and for fuzzing.

use crate::acl::Acl;
use crate::changelog::{ChangeMask, parse_change_user};
use crate::ioctl::*;
use crate::lustre::*;
use crate::nid::{MountSource, Nid};
use crate::nid_range::NidRange;
use crate::nodemap::{Change, Nodemap, Part, Property};
use crate::{Fid, Identity, KeyId, Roles, Security, TargetId};
use std::fmt::{Debug, Display};
use std::str::FromStr;

/// Decoders of the arguments of ioctls and of attributes.
const DECODERS: &[fn(&[u8])] = &[
    payload::<MountInfo>,
    payload::<PathToFid>,
    payload::<FidToPath>,
    payload::<TargetList>,
    payload::<TargetStatfs>,
    payload::<PoolList>,
    payload::<PoolMembers>,
    payload::<Advise>,
    payload::<SizeOnMdt>,
    payload::<ScanDirectory>,
    payload::<FileCall>,
    payload::<RemoveFid>,
    payload::<MakeDirectory>,
    payload::<ProjectCall>,
    payload::<DirUse>,
    payload::<FilesOn>,
    payload::<MigrateFiles>,
    payload::<QuotaCall>,
    |bytes| _ = ObdIoctl::from_bytes(bytes),
    |bytes| _ = DataVersionCall::from_bytes(bytes),
    |bytes| _ = SwapCall::from_bytes(bytes),
    |bytes| _ = LadviseHeader::from_bytes(bytes),
    |bytes| _ = Ladvise::from_bytes(bytes),
    |bytes| _ = Acl::parse_xattr(bytes),
];

/// Decodes the bytes behind the first one, which selects the decoder; all parsers of text have number 255.
///
/// # Panics
/// If a decoded value does not survive encoding.
pub fn read(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else { return };
    match (DECODERS.get(usize::from(*first)), std::str::from_utf8(rest)) {
        (Some(decode), _) => decode(rest),
        (None, Ok(text)) if *first == 255 => read_text(text),
        _ => {}
    }
}

/// Structures may have unused bytes. The argument of an ioctl has the size of its structure.
fn payload<T: Payload>(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    bytes.resize(T::SIZE, 0);
    if let Some(value) = T::from_bytes(&bytes) {
        let again = value.to_bytes();
        assert_eq!(again.len(), T::SIZE);
        assert_eq!(T::from_bytes(&again).map(|value| value.to_bytes()), Some(again));
    }
}

fn read_text(text: &str) {
    same::<Fid>(text);
    same::<Nid>(text);
    same::<NidRange>(text);
    same::<TargetId>(text);
    same::<Security>(text);
    same::<Nodemap>(text);
    same::<Change>(text);
    same::<Part>(text);
    same::<Property>(text);
    same::<MountSource>(text);
    let _ = (text.parse::<Identity>(), text.parse::<Roles>(), text.parse::<KeyId>());
    let _ = (ChangeMask::parse(text, ChangeMask::DEFAULT), parse_change_user(text));
}

/// A parsed value survives formatting.
fn same<T: FromStr + Display + PartialEq + Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        assert_eq!(value.to_string().parse::<T>().ok().as_ref(), Some(&value), "{text}");
    }
}

#[cfg(test)]
#[path = "../../../fuzz/mutate.rs"]
mod mutate;

#[cfg(test)]
mod tests {
    use super::*;

    const TEXTS: &[&str] = &[
        "[0x200000401:0x5:0x0]",
        "10.0.0.1@tcp",
        "[fe80::1]:7000@tcp1",
        "host1@tcp:host2@tcp:/nacre",
        "10.0.[0-3].*@tcp",
        "nacre-OST0001",
        "MDT001f",
        "authenticate",
        "map admin=1 squash_uid=99 range=10.0.0.[1-9]@tcp idmap=uid:1000:2000",
        "add range=10.0.0.1@tcp",
        "set trusted=0",
        "activate 1",
        "+UNLNK -CLOSE",
        "cl1-audit",
        "nacre 7 client host uid 1000",
    ];

    #[test]
    fn mutated_arguments_and_texts_never_panic() {
        let acl = [&[2, 0, 0, 0][..], &[1, 0, 6, 0, 255, 255, 255, 255]].concat();
        let argument = |kind: u8| (0..64).map(|at| u8::from(at % 8 == 0)).rev().chain([kind]).rev().collect();
        let mut valid: Vec<Vec<u8>> = (0..DECODERS.len() as u8 - 1).map(argument).collect();
        valid.push([&[DECODERS.len() as u8 - 1], &acl[..]].concat());
        valid.extend(TEXTS.iter().map(|text| [&[255], text.as_bytes()].concat()));
        mutate::exercise("types", &valid, 600_000, read);
    }
}
