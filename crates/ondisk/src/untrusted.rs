//! Every decoder of this crate on raw bytes: for tests with random input and for fuzzing.

use crate::block::{BLOCK_LABEL_LEN, BlockHeadRecord, BlockLabel, BlockMapRecord, BlockStoreRecord};
use crate::codec::crc32c;
use crate::nxd::{NXD_HEADER_LEN, NXD_SUPERBLOCK_LEN, NxdBatch, NxdMark, NxdSuperblock};
use crate::object::{AheadRecord, OBJECT_DIRECTORY_LEN, ObjectDirectoryHeader, ObjectRecord};
use crate::object::{ObjectStoreRecord, SequenceRecord, SumsRecord};
use crate::quota::{limit_key, split_limit_key, split_use_key, use_key};
use crate::superblock::{SUPERBLOCK_BYTES, Superblock};
use crate::{
    ChangeRecord, ChangeUserRecord, ChangesHeadRecord, ClientRecord, DataMarkRecord, DataRecord,
    DataRunRecord, DirentRecord, GraceRecord, InodeRecord, LimitRecord, LinkRecord, MdtRecord, OstMarkRecord,
    OwnerRecord, ReplyRecord, RunsRecord, ScrubRecord, UseRecord, XattrRecord, members, start,
};
use nacre_types::Fid;

/// Decodes and, if that succeeds, checks that the record has one form: versions that are read but not written do
/// not, so those records are compared (`versions`).
macro_rules! record {
    ($bytes:expr, $decode:expr, appends) => {
        if let Ok(record) = $decode($bytes) {
            let mut out = Vec::new();
            record.encode(&mut out);
            assert_eq!(out, $bytes, "{record:?}");
        }
    };
    ($bytes:expr, $decode:expr, versions) => {
        if let Ok(record) = $decode($bytes) {
            assert_eq!($decode(&record.encode()[..]).as_ref(), Ok(&record));
        }
    };
    ($bytes:expr, $decode:expr) => {
        if let Ok(record) = $decode($bytes) {
            assert_eq!(record.encode()[..], *$bytes, "{record:?}");
        }
    };
}

/// Decodes the bytes behind the first one, which selects the decoder. Formats with a checksum are also decoded
/// with the right one, as damage that it detects reaches no other check.
///
/// # Panics
/// If the encoding of a decoded record differs.
pub fn read(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else { return };
    match first {
        0..16 => read_mdt(*first, rest),
        16..32 => read_ost(*first, rest),
        32..48 => {
            read_whole(*first, rest);
            read_whole(*first, &sealed(*first, rest));
        }
        _ => {}
    }
}

fn read_mdt(kind: u8, bytes: &[u8]) {
    match kind {
        0 => record!(bytes, |bytes| InodeRecord::decode(Fid::ROOT, bytes), appends),
        1 => record!(bytes, DirentRecord::decode),
        2 => assert!(LinkRecord::decode(bytes).is_err() || bytes == LinkRecord::encode()),
        3 => record!(bytes, XattrRecord::decode, appends),
        4 => record!(bytes, MdtRecord::decode, versions),
        5 => record!(bytes, RunsRecord::decode),
        15 => record!(bytes, ScrubRecord::decode),
        6 => record!(bytes, OstMarkRecord::decode),
        7 => record!(bytes, ClientRecord::decode),
        8 => record!(bytes, ReplyRecord::decode, appends),
        9 => record!(bytes, ChangeRecord::decode, appends),
        10 => record!(bytes, ChangeUserRecord::decode),
        11 => record!(bytes, ChangesHeadRecord::decode),
        12 => record!(bytes, LimitRecord::decode),
        13 => record!(bytes, GraceRecord::decode),
        14 => {
            if let Some((pool, kind, id)) = split_limit_key(bytes) {
                assert_eq!(limit_key(pool, kind, id), bytes);
            }
        }
        _ => {}
    }
}

fn read_ost(kind: u8, bytes: &[u8]) {
    match kind {
        16 => record!(bytes, ObjectRecord::decode),
        17 => record!(bytes, SequenceRecord::decode),
        18 => record!(bytes, AheadRecord::decode),
        19 => record!(bytes, SumsRecord::decode),
        20 => record!(bytes, ObjectStoreRecord::decode),
        21 => record!(bytes, BlockHeadRecord::decode, appends),
        // Runs may be split, and holes be runs.
        22 => {
            if let Ok(map) = BlockMapRecord::decode(bytes) {
                let mut out = Vec::new();
                map.encode(&mut out);
                assert_eq!(BlockMapRecord::decode(&out).as_ref(), Ok(&map));
            }
        }
        23 => record!(bytes, BlockStoreRecord::decode),
        24 => record!(bytes, DataRecord::decode, appends),
        25 => record!(bytes, OwnerRecord::decode, versions),
        26 => record!(bytes, UseRecord::decode),
        27 => {
            if let Some((resource, id)) = split_use_key(bytes) {
                assert_eq!(use_key(resource, id), bytes);
            }
        }
        28 => record!(bytes, DataRunRecord::decode),
        29 => record!(bytes, DataMarkRecord::decode),
        _ => {}
    }
}

fn read_whole(kind: u8, bytes: &[u8]) {
    match kind {
        32 => record!(bytes, Superblock::decode),
        33 => record!(bytes, ObjectDirectoryHeader::decode),
        34 => record!(bytes, BlockLabel::decode),
        35 => record!(bytes, NxdSuperblock::decode, versions),
        36 => {
            record!(bytes, NxdBatch::decode, versions);
            let _ = NxdBatch::entries_of_damaged(bytes);
        }
        37 => record!(bytes, NxdMark::decode),
        38 | 39 => {
            let Ok(text) = std::str::from_utf8(bytes) else { return };
            if let Some(record) = start::decode(text) {
                assert_eq!(start::decode(&start::encode(&record)), Some(record));
            }
            if let Some(targets) = members::decode(text) {
                assert_eq!(members::decode(&members::encode(&targets)), Some(targets));
            }
        }
        _ => {}
    }
}

/// Returns the bytes with the right checksum, in the length of the format.
fn sealed(kind: u8, bytes: &[u8]) -> Vec<u8> {
    let len = match kind {
        32 => SUPERBLOCK_BYTES,
        33 => OBJECT_DIRECTORY_LEN,
        34 => BLOCK_LABEL_LEN,
        35 => NXD_SUPERBLOCK_LEN,
        36 => NXD_HEADER_LEN,
        37 => bytes.len(),
        _ => {
            let text = String::from_utf8_lossy(bytes);
            let body = text.rfind("crc32c ").map_or(&*text, |at| &text[..at]);
            return format!("{body}crc32c {:08x}\n", crc32c(body.as_bytes())).into_bytes();
        }
    };
    let mut bytes = bytes.to_vec();
    bytes.resize(len, 0);
    if let Some((body, crc)) = bytes.split_last_chunk_mut::<4>() {
        *crc = crc32c(body).to_le_bytes();
    }
    bytes
}

#[cfg(test)]
#[path = "../../../fuzz/mutate.rs"]
mod mutate;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{Before, Inline, Place};
    use crate::changelog::{ChangeOrigin, ChangeSource, ChangedName};
    use crate::nxd::NxdEntry;
    use crate::{OpenedRecord, start::StartRecord};
    use nacre_types::*;

    const FID: Fid = Fid::new(0x2_0000_0401, 5, 0);
    const UUID: [u8; 16] = *b"0123456789abcdef";
    const TIME: Timestamp = Timestamp { sec: 1_700_000_000, nsec: 5 };

    fn appended(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        encode(&mut out);
        out
    }

    fn inodes() -> [Vec<u8>; 2] {
        let kind = |kind: FileKind| Attr { mode: kind.mode_bits() | 0o640, fid: FID, ..Attr::default() };
        let mut file = InodeRecord { attr: kind(FileKind::Regular), parent: Fid::ROOT, ..Default::default() };
        (file.name, file.acl, file.body) = (b"file".to_vec(), vec![2, 0, 0, 0], vec![1, 2, 3]);
        file.attr.flags = AttrFlags::HAS_LAYOUT | AttrFlags::HAS_ACL;
        let mut dir = InodeRecord { attr: kind(FileKind::Directory), lmv: vec![7, 8], ..Default::default() };
        dir.default_lmv = vec![5];
        dir.attr.flags = AttrFlags::STRIPED | AttrFlags::HAS_DIR_DEFAULT;
        [file, dir].map(|record| appended(|out| record.encode(out)))
    }

    fn changes() -> [Vec<u8>; 2] {
        let at = |name| ChangedName { parent: FID, name };
        let origin = ChangeOrigin {
            uid: 1000,
            gid: 100,
            nid: "10.0.0.1:7988@tcp".parse().expect("a NID"),
            job: JobId::new(b"dd.0"),
        };
        let rename = ChangeRecord {
            at: Some(at(b"new")),
            source: Some(ChangeSource { fid: FID, at: at(b"old") }),
            origin: Some(origin),
            ..ChangeRecord::new(ChangeKind::Rename, FID)
        };
        let xattr = ChangeRecord {
            open: Some(3),
            xattr: Some(b"user.a"),
            ..ChangeRecord::new(ChangeKind::SetXattr, FID)
        };
        [rename, xattr].map(|record| appended(|out| record.encode(out)))
    }

    fn of_mdt() -> Vec<(u8, Vec<u8>)> {
        let mdt = MdtRecord {
            index: 3,
            hash_seed: 9,
            boot_count: 4,
            next_sequence: 0x2_0000_0401,
            clean: true,
            inodes: Some(5),
            data_apart: true,
        };
        let process = ProcessIdentity { machine: UUID, boot: UUID, namespaces: 3, pid: 4, started: 5 };
        let opened = OpenedRecord { fid: FID, handle: OpenHandle(3), flags: 4 };
        let user =
            ChangeUserRecord { name: "audit".to_owned(), mask: ChangeMask::LEAST, cleared: 5, active_s: 6 };
        let limits = [QuotaLimits { soft: 1, hard: 2 }; 2];
        let [file, dir] = inodes();
        let [rename, xattr] = changes();
        vec![
            (0, file),
            (0, dir),
            (1, DirentRecord { fid: FID, kind: FileKind::Directory }.encode().to_vec()),
            (2, LinkRecord::encode().to_vec()),
            (3, appended(|out| XattrRecord { value: b"value" }.encode(out))),
            (4, mdt.encode().to_vec()),
            (5, RunsRecord { boot_id: UUID, newest: vec![5, 1 << 32] }.encode()),
            (15, ScrubRecord { phase: 2, cursor: vec![7, 8] }.encode()),
            (6, OstMarkRecord { sequence: 1 << 32, last_used: 9 }.encode().to_vec()),
            (7, ClientRecord { connected: TIME, boot_count: 7, process: Some(process) }.encode()),
            (7, ClientRecord { connected: TIME, boot_count: 7, process: None }.encode()),
            (8, appended(|out| ReplyRecord { xid: Xid(8), opened: Some(opened), answer: b"a" }.encode(out))),
            (9, rename),
            (9, xattr),
            (10, user.encode()),
            (11, ChangesHeadRecord { last_user: 2, first: 3, limit: 4 }.encode().to_vec()),
            (12, LimitRecord { limits, grace_ends_s: [3, 6], is_default: true }.encode().to_vec()),
            (13, GraceRecord([[1, 2], [3, 4], [5, 6]]).encode().to_vec()),
            (14, limit_key("pool", QuotaKind::Group, Some(7))),
        ]
    }

    fn of_ost() -> Vec<(u8, Vec<u8>)> {
        let mut sums = SumsRecord::default();
        [(0, 7), (63, 0), (255, 9)].iter().for_each(|(block, sum)| sums.set(*block, *sum));
        let head = |inline| BlockHeadRecord { size: 5, blocks: 0, mtime: TIME, inline };
        let mut map = BlockMapRecord::default();
        map.places[1] = Place::Data(0x1000, 0xaabb_ccdd);
        map.places[2] = Place::Data(0x1001, 1);
        map.places[63] = Place::Reserved(7);
        map.before = vec![Before { generation: 9, index: 2, place: Place::Data(5, 6) }];
        let inline = Some(&b"bytes"[..]);
        let owners = Owners { uid: 1, gid: 2, projid: 3 };
        let id = QuotaId { kind: QuotaKind::Project, id: 4 };
        let place = ObjectPlace {
            file: FID,
            component: 1,
            start: 65_536,
            end: u64::MAX,
            stripe_size: 65_536,
            stripe_count: 2,
            stripe: 1,
        };
        vec![
            (16, ObjectRecord { slot: 5 }.encode().to_vec()),
            (17, SequenceRecord { last_reserved: 9 }.encode().to_vec()),
            (18, AheadRecord.encode().to_vec()),
            (19, sums.encode()),
            (20, ObjectStoreRecord { uuid: UUID, clean: true }.encode().to_vec()),
            (21, appended(|out| head(Inline::All(b"bytes".to_vec())).encode(out))),
            (22, appended(|out| map.encode(out))),
            (23, BlockStoreRecord { uuid: UUID, clean: true, generation: 3 }.encode().to_vec()),
            (24, appended(|out| DataRecord { size: 9, allocated: 0, mtime: TIME, inline }.encode(out))),
            (25, OwnerRecord { owners, counted: 5, is_active: true, place: None }.encode().to_vec()),
            (25, OwnerRecord { owners, counted: 5, is_active: true, place: Some(place) }.encode().to_vec()),
            (26, UseRecord { used: 5, slice: Some(6) }.encode().to_vec()),
            (27, use_key(QuotaResource::Inodes, id).to_vec()),
            (
                28,
                DataRunRecord { first: 5, committed: 4, lacking: 5, ..Default::default() }.encode().to_vec(),
            ),
            (29, DataMarkRecord { run: 5, number: 4 }.encode().to_vec()),
        ]
    }

    fn whole() -> Vec<(u8, Vec<u8>)> {
        let fsname = "nacre".to_owned();
        let superblock =
            Superblock { version: 1, fs_uuid: UUID, created: TIME, mdt_count: 1, ost_count: 4, fsname };
        let label = "nacre-OST0001".to_owned();
        let directory =
            ObjectDirectoryHeader { uuid: UUID, created: TIME, label: label.clone(), checksums: true };
        let device = BlockLabel { uuid: UUID, created: TIME, size: 1 << 30, block_size: 4096, label };
        let cache = NxdSuperblock {
            cache: UUID,
            store: UUID,
            size: 1 << 30,
            counter: 2,
            epoch: 3,
            tail: 4,
            durable: 6,
        };
        let entries = vec![
            NxdEntry::Data { object: FID, offset: 8192, len: 4096, at: 4096, crc: 1, mtime: TIME },
            NxdEntry::Forget { object: FID, offset: 1, end: u64::MAX },
        ];
        let batch = NxdBatch { cache: UUID, epoch: 3, position: 4, durable: 2, blocks: 2, entries };
        let device_path = "/dev/nvme0n1".to_owned();
        let mark =
            NxdMark { cache: UUID, store: UUID, is_dirty: true, changed: TIME, size: 9, device: device_path };
        let start = StartRecord {
            is_separate: true,
            listen: vec!["[::]:7000@tcp".to_owned()],
            mount: Some(b"/mnt/a\n%\xff b".to_vec()),
            options: "ro,nosuid".to_owned(),
            security: "authenticate".to_owned(),
            metrics: "127.0.0.1:9820".to_owned(),
        };
        vec![
            (32, superblock.encode().to_vec()),
            (33, directory.encode().to_vec()),
            (34, device.encode().to_vec()),
            (35, cache.encode().to_vec()),
            (36, batch.encode()),
            (37, mark.encode()),
            (38, start::encode(&start).into_bytes()),
            (39, members::encode(&[TargetId::mgt(), TargetId::mdt(0), TargetId::ost(1)]).into_bytes()),
        ]
    }

    #[test]
    fn reserved_bytes_of_superblocks_are_refused_whatever_the_checksum_says() {
        let used = |kind: u8, bytes: &[u8], at: usize| {
            let mut bytes = bytes.to_vec();
            bytes[at] = 1;
            sealed(kind, &bytes)
        };
        let all = whole();
        let [superblock, directory, device] = [0, 1, 2].map(|at| &all[at].1[..]);
        let at = SUPERBLOCK_BYTES - 5;
        let refused = Superblock::decode(&used(32, superblock, at));
        assert_eq!(refused.map_err(|error| error.to_string().contains("reserved")), Err(true));
        let refused = ObjectDirectoryHeader::decode(&used(33, directory, OBJECT_DIRECTORY_LEN - 5));
        assert_eq!(refused.map_err(|error| error.to_string().contains("reserved")), Err(true));
        let refused = BlockLabel::decode(&used(34, device, BLOCK_LABEL_LEN - 5));
        assert_eq!(refused.map_err(|error| error.to_string().contains("reserved")), Err(true));
    }

    #[test]
    fn mutated_records_never_panic_and_have_one_form() {
        let all = [of_mdt(), of_ost(), whole()].concat();
        let valid: Vec<Vec<u8>> = all.iter().map(|(kind, bytes)| [&[*kind], &bytes[..]].concat()).collect();
        mutate::exercise("ondisk", &valid, 1_000_000, read);
    }
}
