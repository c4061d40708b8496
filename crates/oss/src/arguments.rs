//! Validation of requests from the network. A request is validated as a whole before it has any effect.

use crate::service::{DESTROY_MAX, PRECREATE_MAX};
use nacre_types::limits::{BULK_MAX, FILE_SIZE_MAX, TARGET_INDEX_MAX};
use nacre_types::{Fid, Status, StatusResult};

/// Checks that objects of this target can have this sequence.
///
/// Sequences of MDT0 carry the index of the OST; those of other MDTs are accepted unchecked.
pub(crate) fn check_sequence(sequence: u64, ost_index: u16) -> StatusResult<()> {
    if sequence == 0 {
        return Err(Status::EINVAL);
    }
    let is_elsewhere =
        Fid::new(sequence, 1, 0).is_idif() && Fid::ost_object(ost_index, 1).seq >> 16 != sequence >> 16;
    if is_elsewhere { Err(Status::WRONG_TARGET) } else { Ok(()) }
}

/// Checks that an object can be on this target.
pub(crate) fn check_object(object: Fid, ost_index: u16) -> StatusResult<()> {
    // Only a data part has several objects for one file, which differ in the version.
    let is_versioned = object.ver != 0 && ost_index < TARGET_INDEX_MAX;
    if object.oid == 0 || is_versioned {
        return Err(Status::EINVAL);
    }
    check_sequence(object.seq, ost_index)
}

/// Checks a byte range of an object. Returns `EFBIG` if it ends beyond the largest file size.
pub(crate) fn check_range(offset: u64, len: u64) -> StatusResult<()> {
    match offset.checked_add(len) {
        Some(end) if end <= FILE_SIZE_MAX => Ok(()),
        _ => Err(Status::EFBIG),
    }
}

/// Checks the amount of bulk data in one request.
pub(crate) fn check_bulk(len: usize) -> StatusResult<()> {
    if len <= BULK_MAX { Ok(()) } else { Err(Status::E2BIG) }
}

/// Checks a list of objects to destroy.
pub(crate) fn check_objects(objects: &[Fid], ost_index: u16) -> StatusResult<()> {
    if objects.len() > DESTROY_MAX {
        return Err(Status::E2BIG);
    }
    objects.iter().try_for_each(|&object| check_object(object, ost_index))
}

/// Checks a number of object ids to reserve.
pub(crate) fn check_count(count: u32) -> StatusResult<()> {
    if count <= PRECREATE_MAX { Ok(()) } else { Err(Status::E2BIG) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_other_targets_and_impossible_ones_are_refused() {
        assert_eq!(check_object(Fid::ost_object(3, 9), 3), Ok(()));
        assert_eq!(check_object(Fid::ost_object(3, 9), 4), Err(Status::WRONG_TARGET));
        assert_eq!(check_object(Fid::ost_object(0xffdf, 9), 0xffdf), Ok(()));
        assert_eq!(check_object(Fid::new(0x2_0000_0401, 9, 0), 4), Ok(()), "another MDT's sequence");
        for bad in [Fid::ZERO, Fid::ost_object(3, 0), Fid::new(Fid::ost_object(3, 1).seq, 1, 1)] {
            assert_eq!(check_object(bad, 3), Err(Status::EINVAL), "{bad}");
        }
        let second = Fid::new(0x2_0000_0401, 9, 1);
        assert_eq!(
            (check_object(second, TARGET_INDEX_MAX), check_object(second, 3)),
            (Ok(()), Err(Status::EINVAL))
        );
    }

    #[test]
    fn ranges_end_where_files_do() {
        assert_eq!(check_range(FILE_SIZE_MAX - 1, 1), Ok(()));
        assert_eq!(check_range(FILE_SIZE_MAX, 1), Err(Status::EFBIG));
        assert_eq!(check_range(u64::MAX, u64::MAX), Err(Status::EFBIG));
        assert_eq!(check_bulk(BULK_MAX), Ok(()));
        assert_eq!(check_bulk(BULK_MAX + 1), Err(Status::E2BIG));
    }
}
