//! What the record of an inode shows about itself, without other records.

use super::Kind;
use nacre_layout::{DirDefault, Layout, user};
use nacre_ondisk::InodeRecord;
use nacre_types::acl::Acl;
use nacre_types::{AttrFlags, FileKind, SizeSource};

/// Flags that say that a file has a layout.
const LAYOUT: AttrFlags = AttrFlags::HAS_LAYOUT.union(AttrFlags::HAS_OBJECTS);

/// Returns the faults of a record: kinds and descriptions.
pub(crate) fn faults_of(record: &InodeRecord) -> Vec<(Kind, String)> {
    let mut faults = Vec::new();
    let mut add = |kind, text: &str| faults.push((kind, text.to_owned()));
    if !record.acl.is_empty() && !matches!(Acl::parse_xattr(&record.acl), Ok(Some(_))) {
        add(Kind::Attributes, "its access ACL is damaged");
    }
    if record.attr.kind() == FileKind::Symlink {
        return faults;
    }
    if !record.default_lmv.is_empty() && DirDefault::decode(&record.default_lmv).is_err() {
        add(Kind::Attributes, "its default for new directories is damaged");
    }
    let flags = record.attr.flags;
    if record.body.is_empty() == flags.contains(AttrFlags::HAS_LAYOUT) {
        add(Kind::Layout, "its flags and its layout contradict each other");
    } else if flags.contains(AttrFlags::HAS_OBJECTS) {
        if let Err(error) = user::decode_layout(&record.body) {
            add(Kind::Layout, &format!("its layout is damaged: {error}"));
        }
    } else {
        if !record.body.is_empty() && !is_foreign(record) && user::decode_request(&record.body).is_err() {
            add(Kind::Layout, "its striping request is damaged");
        }
        // A file without a layout may have been created for a write that never happened.
        let may_be_unsure = record.attr.is_regular() && record.body.is_empty();
        if record.attr.size_source == SizeSource::Objects && !may_be_unsure {
            add(Kind::Attributes, "its size is said to be in objects, but it has none");
        }
    }
    faults
}

fn is_foreign(record: &InodeRecord) -> bool {
    match record.attr.is_dir() {
        true => user::decode_foreign_directory(&record.body).is_ok(),
        false => record.attr.is_regular() && user::decode_foreign(&record.body).is_ok(),
    }
}

/// Returns the layout of a file if it has objects; `None` also if the layout cannot be decoded.
pub(crate) fn layout_of(record: &InodeRecord) -> Option<Layout> {
    let has_objects = record.attr.is_regular() && record.attr.flags.contains(AttrFlags::HAS_OBJECTS);
    if has_objects { user::decode_layout(&record.body).ok() } else { None }
}

/// Corrects the faults that [`faults_of`] finds. `layout` is the layout of a file whose own is damaged, rebuilt from its
/// objects, with the size that follows from them.
pub(crate) fn correct(record: &mut InodeRecord, layout: Option<(&Layout, u64)>) {
    for (kind, _) in faults_of(record) {
        match kind {
            Kind::Attributes => correct_attributes(record),
            _ => correct_layout(record, layout),
        }
    }
}

fn correct_attributes(record: &mut InodeRecord) {
    if !matches!(Acl::parse_xattr(&record.acl), Ok(Some(_))) {
        record.acl.clear();
        record.attr.flags -= AttrFlags::HAS_ACL;
    }
    if DirDefault::decode(&record.default_lmv).is_err() {
        record.default_lmv.clear();
        record.attr.flags -= AttrFlags::HAS_DIR_DEFAULT;
    }
    if !record.attr.flags.contains(AttrFlags::HAS_OBJECTS) && !record.body.is_empty() {
        record.attr.size_source = SizeSource::Exact;
    }
}

fn correct_layout(record: &mut InodeRecord, layout: Option<(&Layout, u64)>) {
    record.attr.flags -= LAYOUT;
    let own = user::decode_layout(&record.body).ok().filter(|_| record.attr.is_regular());
    match own {
        Some(own) if own.has_objects() => record.attr.flags |= LAYOUT,
        _ if is_foreign(record) || user::decode_request(&record.body).is_ok() => {
            record.attr.flags |= AttrFlags::HAS_LAYOUT;
            record.attr.size_source = SizeSource::Exact;
        }
        _ => give_layout(record, layout),
    }
}

/// Replaces the layout and size of a file by what its objects say.
pub(crate) fn give_layout(record: &mut InodeRecord, layout: Option<(&Layout, u64)>) {
    record.body.clear();
    record.attr.flags -= LAYOUT;
    record.attr.size_source = SizeSource::Exact;
    if !record.attr.is_regular() {
        return;
    }
    (record.attr.size, record.attr.blocks) = (0, 0);
    if let Some((layout, size)) = layout {
        record.body = user::encode_layout(&record.attr.fid, layout);
        record.attr.flags |= LAYOUT;
        record.attr.size = size;
    }
}
