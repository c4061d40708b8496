//! The time that a simulated disk would take, computed from the extents of a file.
//!
//! Only a store on a device can make its callers wait for a simulated disk. For a file of a local file
//! system, the extents give the ranges of the disk that its transfers access, and the model of the disk their
//! duration. Writing and reading happen as well, so that the data exists and is checked, but their own time
//! does not count.

use nacre_store::object::block::device::model::{DiskSpec, MediaSpec};
use nacre_store::object::simulated::AnyMedium;

use crate::error::Error;
use nacre_common::extents::Extent;

/// Returns the disk of a medium, if its time follows from extents alone.
pub(super) fn disk_of(medium: AnyMedium) -> Option<DiskSpec> {
    match medium {
        AnyMedium::Device(MediaSpec::Disk(disk)) => Some(disk),
        _ => None,
    }
}

/// Returns the seconds for the first `bytes` of a file in sequential transfers of `xfer` bytes, on a disk of
/// `disk_bytes`.
///
/// # Errors
///
/// If the extents do not cover the file.
pub(super) fn seconds(
    disk: DiskSpec,
    disk_bytes: u64,
    extents: &[Extent],
    bytes: u64,
    xfer: u64,
    label: &str,
) -> Result<f64, Error> {
    let mut transfers = Vec::new();
    for offset in (0..bytes).step_by(xfer as usize) {
        let end = (offset + xfer).min(bytes);
        let pieces = pieces(extents, offset, end);
        if pieces.iter().map(|(_, length)| length).sum::<u64>() != end - offset {
            let reason = format!(
                "its file system does not say where all of the measured file lies (at offset {offset})"
            );
            return Err(Error::Server { what: label.to_owned(), reason });
        }
        transfers.push(pieces);
    }
    Ok(disk.time_of(disk_bytes, transfers).as_secs_f64())
}

/// Returns the ranges on the device of a range of a file, as offsets and lengths in bytes.
fn pieces(extents: &[Extent], start: u64, end: u64) -> Vec<(u64, u64)> {
    let of = |extent: &Extent| {
        let (from, to) = (start.max(extent.logical), end.min(extent.logical + extent.length));
        (from < to).then(|| (extent.physical + (from - extent.logical), to - from))
    };
    extents.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn disk() -> DiskSpec {
        let medium = crate::medium::parse("disk:seek=8ms:turn=8ms:bandwidth=100M").expect("a disk");
        disk_of(medium).expect("a disk")
    }

    #[test]
    fn a_file_in_pieces_takes_longer_than_one_in_one_piece() {
        let piece =
            |logical, physical| Extent { logical: logical * MIB, physical: physical * MIB, length: MIB };
        let whole = [Extent { logical: 0, physical: 0, length: 4 * MIB }];
        let apart = [piece(0, 0), piece(1, 500), piece(2, 100), piece(3, 900)];
        let time =
            |extents: &[Extent], xfer| seconds(disk(), 1 << 30, extents, 4 * MIB, xfer, "x").expect("known");
        assert!((time(&whole, MIB) - 0.04).abs() < 1e-9 && (time(&whole, 4 * MIB) - 0.04).abs() < 1e-9);
        assert!(time(&apart, MIB) > 0.04 + 3.0 * 0.008, "{}", time(&apart, MIB));
        assert!(time(&apart, 4 * MIB) < time(&apart, MIB), "a disk serves the nearest piece first");
        assert_eq!(pieces(&apart, MIB / 2, MIB + MIB / 2), [(MIB / 2, MIB / 2), (500 * MIB, MIB / 2)]);
    }

    #[test]
    fn a_part_that_lies_nowhere_is_an_error_and_flash_cannot_be_worked_out() {
        let some = [Extent { logical: 0, physical: 0, length: MIB }];
        let said = seconds(disk(), 1 << 30, &some, 2 * MIB, MIB, "here").expect_err("half").to_string();
        assert!(said.starts_with("here: ") && said.contains("at offset 1048576"), "{said}");
        assert_eq!(disk_of(crate::medium::parse("flash").expect("flash")), None);
    }
}
