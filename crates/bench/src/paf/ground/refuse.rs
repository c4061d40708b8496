//! Refusal of devices: never touched, with the reason and their content.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::error::Error;

/// Signatures of contents: offset, bytes, name.
const SIGNATURES: [(u64, &[u8], &str); 9] = [
    (0x438, &[0x53, 0xef], "an ext2, ext3 or ext4 file system"),
    (0, b"XFSB", "an xfs file system"),
    (0x1_0040, b"_BHRfS_M", "a btrfs file system"),
    (512, b"EFI PART", "a partition table (GPT)"),
    (512, b"LABELONE", "an LVM volume"),
    (0, b"LUKS\xba\xbe", "an encrypted volume (LUKS)"),
    (4086, b"SWAPSPACE2", "swap space"),
    (3, b"NTFS    ", "an NTFS file system"),
    (510, &[0x55, 0xaa], "a partition table or a boot sector"),
];

/// Returns the error for a device.
pub(super) fn device(path: &Path) -> Error {
    let shown = path.display();
    let holds = match File::open(path).ok().and_then(|file| signature(&file)) {
        Some(what) => format!("which holds {what}"),
        None => "and files cannot be made on it".to_owned(),
    };
    Error::Usage(format!(
        "{shown} is a device, {holds}: name a directory on a file system, or that of an object store; nothing was changed"
    ))
}

fn signature(file: &File) -> Option<&'static str> {
    let matches = |offset: u64, magic: &[u8]| {
        let mut bytes = vec![0; magic.len()];
        file.read_exact_at(&mut bytes, offset).is_ok() && bytes == magic
    };
    SIGNATURES.iter().find(|(offset, magic, _)| matches(*offset, magic)).map(|(_, _, what)| *what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_told_apart() {
        for (offset, magic, what) in SIGNATURES {
            let file = tempfile::tempfile().expect("a file");
            file.set_len(1 << 20).expect("sparse");
            assert_eq!(signature(&file), None);
            file.write_all_at(magic, offset).expect("written");
            assert_eq!(signature(&file), Some(what));
        }
        assert_eq!(signature(&tempfile::tempfile().expect("empty")), None);
    }
}
