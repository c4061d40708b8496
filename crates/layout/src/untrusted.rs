//! Every decoder of this crate on raw bytes: for tests with random input and for fuzzing.

use crate::dir_default::DirDefault;
use crate::dir_layout::{DirLayout, DirShard, UserDir, hash_text};
use crate::user::*;
use nacre_types::Fid;
use std::fmt::Debug;

/// Decodes the bytes behind the first one, which selects the group of decoders.
///
/// # Panics
/// If a decoded value does not survive encoding.
pub fn read(bytes: &[u8]) {
    match bytes.split_first() {
        Some((0, rest)) => read_file(rest),
        Some((1, rest)) => read_foreign(rest),
        Some((2, rest)) => read_directory(rest),
        Some((3, rest)) => read_user_directory(rest),
        _ => {}
    }
}

/// Encoding resolves what may be omitted, as the first of listed OSTs; from then on nothing changes.
fn stable<T: PartialEq + Debug>(value: &T, again: impl Fn(&T) -> Result<T, UserMdError>) {
    let resolved = again(value).expect("it was decoded");
    assert_eq!(again(&resolved).as_ref(), Ok(&resolved), "{value:?}");
}

/// `lov_user_md` and `lov_comp_md`: layouts, and requests for them.
fn read_file(bytes: &[u8]) {
    let _ = has_objects(bytes);
    if let Ok(layout) = decode_layout(bytes) {
        assert!(layout.is_sound(), "{layout:?}");
        stable(&layout, |layout| decode_layout(&encode_layout(&Fid::ROOT, layout)));
    }
    if let Ok(spec) = decode_spec(bytes) {
        stable(&spec, |spec| decode_spec(&encode_spec(&Fid::ROOT, spec)));
    }
    if let Ok(requested) = decode_request(bytes) {
        assert_eq!(requested.check(), Ok(()));
        stable(&requested, |requested| decode_request(&encode_request(&Fid::ROOT, requested)));
    }
    // Starts of components are checked together with those of the file.
    let _ = decode_added(bytes);
    if let Ok(selector) = decode_selector(bytes) {
        assert_eq!(decode_selector(&encode_selector(selector)), Ok(selector));
    }
}

/// `lov_foreign_md` and `lmv_foreign_md`.
fn read_foreign(bytes: &[u8]) {
    if let Ok(foreign) = decode_foreign(bytes) {
        assert_eq!(encode_foreign(&foreign), bytes);
    }
    if let Ok(foreign) = decode_foreign_directory(bytes) {
        assert_eq!(encode_foreign_directory(&foreign), bytes);
    }
}

/// `lmv_mds_md`: lists of shards.
fn read_directory(bytes: &[u8]) {
    if let Ok(layout) = DirLayout::decode(bytes) {
        assert_eq!(DirLayout::decode(&layout.encode()).as_ref(), Ok(&layout));
    }
    if let Ok(shard) = DirShard::decode(&Fid::ROOT, bytes) {
        let _ = (shard.home(b"name", 5), shard.leaves_for(b"name"), shard.is_moving());
    }
}

/// `lmv_user_md`: defaults and what `lfs getdirstripe` shows.
fn read_user_directory(bytes: &[u8]) {
    if let Ok(default) = DirDefault::decode(bytes) {
        assert_eq!(DirDefault::decode(&default.encode()).as_ref(), Ok(&default));
    }
    if let Ok(dir) = UserDir::decode(bytes) {
        assert_eq!(UserDir::decode(&dir.encode()).as_ref(), Ok(&dir));
        let _ = hash_text(dir.hash);
    }
}

#[cfg(test)]
#[path = "../../../fuzz/mutate.rs"]
mod mutate;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ComponentFlags, ComponentSpec, DirFlags, DirHash, Extent, Inherit, Layout, LayoutRequest, LayoutSpec,
        Pattern, PoolName, StripeObject,
    };

    fn spec(pattern: Pattern, pool: Option<PoolName>, osts: Vec<u16>) -> LayoutSpec {
        let (stripe_size, stripe_count) = (Some(1 << 20), Some(2));
        LayoutSpec { stripe_size, stripe_count, first_ost: None, pool, pattern, osts }
    }

    fn component(start: u64, end: u64, flags: ComponentFlags, spec: LayoutSpec) -> ComponentSpec {
        ComponentSpec { extent: Extent { start, end }, flags, spec }
    }

    /// Plain, on a pool, on named OSTs, and composite ones: progressive, on an MDT first, mirrored, growing.
    fn requests() -> Vec<LayoutRequest> {
        let (none, pool) = (ComponentFlags::default(), PoolName::new(b"flash"));
        let plain = |count| LayoutSpec { stripe_count: Some(count), ..LayoutSpec::default() };
        let step = LayoutSpec { stripe_size: Some(64 << 20), ..LayoutSpec::default() };
        vec![
            LayoutRequest::Plain(spec(Pattern::Raid0, None, Vec::new())),
            LayoutRequest::Plain(spec(Pattern::Raid0, pool, Vec::new())),
            LayoutRequest::Plain(spec(Pattern::Overstriped, None, vec![1, 1])),
            LayoutRequest::Composite(vec![
                component(0, 1 << 20, none, LayoutSpec::ON_MDT),
                component(1 << 20, 1 << 26, none, plain(1)),
                component(1 << 26, Extent::EOF, none, spec(Pattern::Raid0, pool, Vec::new())),
            ]),
            LayoutRequest::Composite(vec![
                component(0, Extent::EOF, ComponentFlags::PREFER_READ, plain(1)),
                component(0, Extent::EOF, none, plain(2)),
            ]),
            LayoutRequest::Composite(vec![
                component(0, 64 << 20, none, plain(1)),
                component(64 << 20, Extent::EOF, ComponentFlags::EXTENSION, step),
            ]),
        ]
    }

    fn with_objects(requested: &LayoutRequest) -> Layout {
        let mut layout = requested.to_layout(&LayoutSpec::default());
        for at in 0..layout.components.len().min(2) {
            let component = &layout.components[at];
            if component.pattern != Pattern::Mdt && !component.flags.contains(ComponentFlags::EXTENSION) {
                let objects =
                    (0..component.stripe_count).map(|i| StripeObject::new(i, Fid::ost_object(i, 9)));
                let objects = objects.collect();
                layout.instantiate(at, objects);
            }
        }
        layout
    }

    fn files() -> Vec<Vec<u8>> {
        let of = |requested: &LayoutRequest| {
            let layout = with_objects(requested);
            [encode_request(&Fid::ROOT, requested), encode_layout(&Fid::ROOT, &layout)]
        };
        let selectors = [Selector::Id(2), Selector::WithoutObjects].map(encode_selector);
        requests().iter().flat_map(of).chain(selectors).collect()
    }

    fn directories() -> Vec<Vec<u8>> {
        let shards = |count| {
            (0..count).map(|mdt| Fid::new(Fid::first_sequence_of_mdt(mdt), 3 + u32::from(mdt), 0)).collect()
        };
        let still = DirLayout::new(DirHash::Crush, 0, shards(2));
        let moving = DirLayout {
            flags: DirFlags::MIGRATION | DirFlags::SPLIT,
            version: 7,
            migrate_offset: 2,
            migrate_hash: DirHash::Fnv1a64.number().into(),
            ..DirLayout::new(DirHash::Crush, 1, shards(4))
        };
        [still, moving].iter().flat_map(|layout| [layout.encode(), layout.encode_shard(1)]).collect()
    }

    fn user_directories() -> Vec<Vec<u8>> {
        let hash = Some(DirHash::Crush);
        let max_inherit = Inherit::usual(2, false);
        let flags = DirFlags::OVERSTRIPED | DirFlags::FIXED;
        let striped = DirDefault { count: 2, hash, max_inherit, ..DirDefault::default() };
        let listed = DirDefault { index: 1, count: 3, flags, mdts: vec![1, 1, 0], ..striped.clone() };
        let user = UserDir { mdt: 1, hash: 3, shards: vec![(Fid::ROOT, 0), (Fid::ROOT, 1)] };
        vec![striped.encode(), listed.encode(), user.encode()]
    }

    #[test]
    fn mutated_layouts_never_panic_and_survive_encoding() {
        let foreign = Foreign { kind: 4, flags: 5, text: b"bucket/object".to_vec() };
        let foreign = vec![encode_foreign(&foreign), encode_foreign_directory(&foreign)];
        let groups = [files(), foreign, directories(), user_directories()];
        let valid: Vec<Vec<u8>> = (0..)
            .zip(&groups)
            .flat_map(|(kind, group)| group.iter().map(move |bytes| [&[kind], &bytes[..]].concat()))
            .collect();
        mutate::exercise("layout", &valid, 800_000, read);
    }
}
