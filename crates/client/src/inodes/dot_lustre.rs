//! `.lustre` in the root, for administrators: `.lustre/fid/FID` is any inode by its FID, `.lustre/lost+found/MDTxxxx` the
//! directory of an MDT for inodes that have lost their names ([`Fid::lost_and_found`]), if a repair has found any. The
//! directories above exist in this client alone: no MDT has them, and no listing of the root shows them.

use crate::caller::Caller;
use crate::inodes::{Absent, Found, Inodes, Keep};
use crate::node::node_of;
use crate::pages::ListedEntry;
use nacre_types::{Attr, Failure, FailureResult, Fid, FileKind, Status, StatusResult, perm};
use nacre_wire::mds::MdsRequest;

/// Name of the first directory in the root, and of the second one in it.
const DOT_LUSTRE_NAME: &[u8] = b".lustre";
const BY_FID_NAME: &[u8] = b"fid";
const LOST_NAME: &[u8] = b"lost+found";
/// FIDs of the directories, which are Lustre's: of a sequence that is never allocated.
const DOT_LUSTRE: Fid = Fid::new(0x2_0000_0002, 1, 0);
const BY_FID: Fid = Fid::new(0x2_0000_0002, 2, 0);
const LOST: Fid = Fid::new(0x2_0000_0002, 3, 0);
/// A name that does not exist, and may exist the next time.
const ABSENT: Absent = Absent { public: false, keep: false };

/// True for the directories that no MDT has.
fn is_virtual(fid: Fid) -> bool {
    matches!(fid, DOT_LUSTRE | BY_FID | LOST)
}

/// True for names that no program may create, move or remove.
fn is_reserved(parent: Fid, name: &[u8]) -> bool {
    is_virtual(parent) || parent == Fid::ROOT && name == DOT_LUSTRE_NAME
}

/// Returns the attributes of a directory that administrators may search.
fn attr_of(fid: Fid) -> Attr {
    let mode = FileKind::Directory.mode_bits() | 0o100;
    let nlink = if fid == DOT_LUSTRE { 4 } else { 2 };
    Attr { fid, mode, nlink, size: 4096, blocks: 8, ..Attr::default() }
}

/// Returns the attributes of a directory that no MDT has.
pub(crate) fn virtual_attr(fid: Fid) -> Option<Attr> {
    is_virtual(fid).then(|| attr_of(fid))
}

/// Checks whether names may be created, moved or removed in a directory.
///
/// # Errors
/// `EPERM` in a directory that no MDT has, and for its name in the root.
pub(crate) fn check_may_name(parent: Fid, name: &[u8]) -> StatusResult<()> {
    if is_reserved(parent, name) { Err(Status::EPERM) } else { Ok(()) }
}

/// Looks up a name that no MDT knows; `None` if it is one for an MDT.
///
/// # Errors
/// `EACCES` for a caller that may not read and search everything; the error of an MDT.
pub(crate) fn lookup(
    inodes: &Inodes,
    caller: &Caller,
    parent: Fid,
    name: &[u8],
) -> FailureResult<Option<Result<Found, Absent>>> {
    if !is_reserved(parent, name) {
        return Ok(None);
    }
    if is_virtual(parent) && !caller.may_search_all() {
        return Err(Status::EACCES.into());
    }
    let found = match (parent, name) {
        (Fid::ROOT, _) => inodes.found(attr_of(DOT_LUSTRE), 0, false),
        (DOT_LUSTRE, b"..") => inodes.lookup_self(Fid::ROOT).map_err(Failure::logged),
        (DOT_LUSTRE, BY_FID_NAME) => inodes.found(attr_of(BY_FID), 0, false),
        (DOT_LUSTRE, LOST_NAME) => inodes.found(attr_of(LOST), 0, false),
        (BY_FID | LOST, b"..") => inodes.found(attr_of(DOT_LUSTRE), 0, false),
        (LOST, name) => match mdt_of(name) {
            Some(mdt) => lookup_fid(inodes, Fid::lost_and_found(mdt)),
            None => return Ok(Some(Err(ABSENT))),
        },
        (BY_FID, name) => match std::str::from_utf8(name).ok().and_then(|text| text.parse().ok()) {
            Some(fid) => lookup_fid(inodes, fid),
            None => return Ok(Some(Err(ABSENT))),
        },
        _ => return Ok(Some(Err(ABSENT))),
    };
    let is_absence = |failure: &Failure| {
        matches!(failure.status(), Status::ENOENT | Status::ESTALE | Status::EOVERFLOW | Status::WRONG_TARGET)
    };
    match found {
        Ok(found) => Ok(Some(Ok(found))),
        Err(failure) if is_absence(&failure) => Ok(Some(Err(ABSENT))),
        Err(failure) => Err(failure),
    }
}

/// Returns the index in the name of an MDT, `MDT0001`.
fn mdt_of(name: &[u8]) -> Option<u16> {
    let digits = std::str::from_utf8(name).ok()?.strip_prefix("MDT")?;
    let index = u16::from_str_radix(digits, 16).ok()?;
    (name == format!("MDT{index:04x}").as_bytes()).then_some(index)
}

fn lookup_fid(inodes: &Inodes, fid: Fid) -> FailureResult<Found> {
    let answer = inodes.requests.call_system(fid, &MdsRequest::GetAttr { fid })?;
    let lease = answer.lease;
    // The name is this client's, so no MDT could revoke it.
    inodes.found(answer.attr()?, lease, false)
}

/// Checks rights to a directory that no MDT has; `None` for an inode of an MDT.
pub(crate) fn access(caller: &Caller, fid: Fid, mask: u8) -> Option<StatusResult<()>> {
    is_virtual(fid).then(|| match caller.may_search_all() && mask & perm::WRITE == 0 {
        true => Ok(()),
        false => Err(Status::EACCES),
    })
}

/// Lists a directory that no MDT has, behind position `offset`.
///
/// # Errors
/// `EOVERFLOW` never, as its FIDs are known.
pub(crate) fn list(
    inodes: &Inodes,
    fid: Fid,
    offset: u64,
    take: &mut dyn FnMut(&ListedEntry<'_>) -> bool,
) -> StatusResult<()> {
    let above = if fid == DOT_LUSTRE { Fid::ROOT } else { DOT_LUSTRE };
    let mut inner: Vec<(Vec<u8>, Fid)> = vec![(b".".to_vec(), fid), (b"..".to_vec(), above)];
    match fid {
        DOT_LUSTRE => inner.extend([(BY_FID_NAME.to_vec(), BY_FID), (LOST_NAME.to_vec(), LOST)]),
        LOST => {
            for mdt in 0..inodes.requests.mdts.len() as u16 {
                let fid = Fid::lost_and_found(mdt);
                if lookup_fid(inodes, fid).is_ok() {
                    inner.push((format!("MDT{mdt:04x}").into_bytes(), fid));
                }
            }
        }
        _ => {}
    }
    let names = inner.iter().map(|(name, fid)| (&name[..], *fid));
    for (next, (name, fid)) in (1u64..).zip(names).skip_while(|(next, _)| *next <= offset) {
        let entry = ListedEntry {
            name,
            node: node_of(fid)?,
            kind: FileKind::Directory,
            next,
            attr: None,
            public: false,
            keep: Keep::default(),
        };
        if !take(&entry) {
            break;
        }
    }
    Ok(())
}
