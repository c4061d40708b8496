//! Nodemaps: named sets of clients, by key and by address, with their id mappings and restrictions.
//!
//! As text, a nodemap is its name and words of [`Part`] and [`Property`]; default values are left out:
//!
//! ```text
//! remote admin=1 fileset=/projects/a range=10.1.[0-3].[1-254]@tcp key=00000000000000ab uid=1000:60000
//! ```

use crate::identity::{KeyId, escape, is_subtree, number, unescape};
use crate::nid::Nid;
pub use crate::nid_range::NidRange;
use bitflags::bitflags;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Name of the nodemap for clients that are in no other.
pub const DEFAULT: &str = "default";
/// Longest name in bytes; Lustre's `LUSTRE_NODEMAP_NAME_LENGTH`.
pub const NODEMAP_NAME_MAX: usize = 16;
/// Nodemaps of one file system; an estimate, far above any use.
pub const NODEMAPS_MAX: usize = 1024;
/// Ranges, keys and mappings of all nodemaps together: as many as fit into one message.
pub const PARTS_MAX: usize = 65536;
/// Default id of squashed users, groups and projects: `nobody` of most systems, and Lustre's default since
/// 2.15.
pub const SQUASHED: u32 = 65534;

bitflags! {
    /// Restrictions and rights of the clients of a nodemap.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct NodemapFlags: u8 {
        /// Root keeps its rights.
        const ADMIN = 1;
        /// Ids are not mapped.
        const TRUSTED = 2;
        /// Users without a mapping are refused instead of squashed.
        const DENY_UNKNOWN = 4;
        /// Clients may not change anything.
        const READ_ONLY = 8;
        /// Clients are not served at all.
        const BANNED = 16;
    }

    /// Kinds of ids that are mapped.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct MapMode: u8 {
        /// Users.
        const UID = 1;
        /// Groups.
        const GID = 2;
        /// Projects.
        const PROJID = 4;
    }
}

/// Names of flags in commands, as in Lustre's `lctl nodemap_modify`.
const FLAG_NAMES: [(NodemapFlags, &str); 5] = [
    (NodemapFlags::ADMIN, "admin"),
    (NodemapFlags::TRUSTED, "trusted"),
    (NodemapFlags::DENY_UNKNOWN, "deny_unknown"),
    (NodemapFlags::READ_ONLY, "readonly_mount"),
    (NodemapFlags::BANNED, "banned"),
];

/// Kind of an id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum IdKind {
    /// User.
    Uid = 0,
    /// Group.
    Gid = 1,
    /// Project.
    Projid = 2,
}

impl IdKind {
    /// All kinds.
    pub const ALL: [IdKind; 3] = [IdKind::Uid, IdKind::Gid, IdKind::Projid];

    fn mode(self) -> MapMode {
        match self {
            IdKind::Uid => MapMode::UID,
            IdKind::Gid => MapMode::GID,
            IdKind::Projid => MapMode::PROJID,
        }
    }
}

impl fmt::Display for IdKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IdKind::Uid => "uid",
            IdKind::Gid => "gid",
            IdKind::Projid => "projid",
        })
    }
}

/// Reason why a text or a change is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NodemapError {
    /// Not 1 to 16 letters, digits, `_` and `-`.
    #[error("a nodemap has a name of 1 to 16 letters, digits, '_' or '-'")]
    Name,
    /// Not a range of addresses.
    #[error("a range is NID, NID:NID, 10.0.0.0/24@tcp or 10.0.[0-3].[1-254]@tcp")]
    Range,
    /// Not a key number.
    #[error("a key is 16 hexadecimal digits, as 'nacre key list' shows them")]
    Key,
    /// Not a pair of ids.
    #[error("an idmap is CLIENT_ID:FILESYSTEM_ID, numbers below 4294967295")]
    Ids,
    /// Not a kind of id.
    #[error("ids are of type uid, gid or projid")]
    IdKind,
    /// Not a property, or not one of its values.
    #[error(
        "a property is admin, trusted, deny_unknown, readonly_mount or banned (0 or 1), squash_uid, squash_gid or \
         squash_projid (a number), or map_mode (all, both, or uid, gid, projid)"
    )]
    Property,
    /// Not an absolute path below the root.
    #[error("a fileset is an absolute path without '.' and '..'; an empty one removes it")]
    Fileset,
    /// Not a valid change.
    #[error("not a change of a nodemap")]
    Change,
}

impl FromStr for IdKind {
    type Err = NodemapError;

    fn from_str(text: &str) -> Result<IdKind, NodemapError> {
        IdKind::ALL.into_iter().find(|kind| kind.to_string() == text).ok_or(NodemapError::IdKind)
    }
}

impl fmt::Display for MapMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_all() {
            return f.write_str("all");
        }
        if *self == MapMode::UID | MapMode::GID {
            return f.write_str("both");
        }
        let kinds = IdKind::ALL.into_iter().filter(|kind| self.contains(kind.mode()));
        f.write_str(&kinds.map(|kind| kind.to_string()).collect::<Vec<_>>().join(","))
    }
}

impl FromStr for MapMode {
    type Err = NodemapError;

    fn from_str(text: &str) -> Result<MapMode, NodemapError> {
        match text {
            "all" => Ok(MapMode::all()),
            "both" => Ok(MapMode::UID | MapMode::GID),
            _ => text.split(',').try_fold(MapMode::empty(), |mode, kind| {
                kind.parse::<IdKind>().map(|kind| mode | kind.mode()).map_err(|_| NodemapError::Property)
            }),
        }
    }
}

/// An element that a nodemap may have many of. As text: `range=...`, `key=...`, `uid=CLIENT:FILESYSTEM`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Part {
    /// Addresses of clients.
    Range(NidRange),
    /// Key of a client.
    Key(KeyId),
    /// Id of its clients, and the corresponding id of the file system.
    Ids(IdKind, u32, u32),
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Range(range) => write!(f, "range={range}"),
            Part::Key(key) => write!(f, "key={key}"),
            Part::Ids(kind, client, fs) => write!(f, "{kind}={client}:{fs}"),
        }
    }
}

impl FromStr for Part {
    type Err = NodemapError;

    fn from_str(text: &str) -> Result<Part, NodemapError> {
        let (word, value) = text.split_once('=').ok_or(NodemapError::Change)?;
        match word {
            "range" => value.parse().map(Part::Range),
            "key" => value.parse().map(Part::Key).map_err(|_| NodemapError::Key),
            kind => {
                let (client, fs) = value.split_once(':').ok_or(NodemapError::Ids)?;
                Ok(Part::Ids(kind.parse()?, id(client)?, id(fs)?))
            }
        }
    }
}

fn id(text: &str) -> Result<u32, NodemapError> {
    let id = number(text).and_then(|id| u32::try_from(id).ok()).filter(|id| *id != u32::MAX);
    id.ok_or(NodemapError::Ids)
}

/// A setting that a nodemap has exactly once. As text: `admin=1`, `map_mode=both`, `fileset=/projects/a`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Property {
    /// A flag and its value.
    Flag(NodemapFlags, bool),
    /// Id for unmapped ids of a kind, and for root's.
    Squash(IdKind, u32),
    /// Kinds of ids that are mapped.
    Mode(MapMode),
    /// Subtree that its clients see as the root; `None`: all.
    Fileset(Option<String>),
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Property::Flag(flag, on) => {
                let name = FLAG_NAMES.iter().find(|(known, _)| known == flag).map_or("", |(_, name)| name);
                write!(f, "{name}={}", u8::from(*on))
            }
            Property::Squash(kind, to) => write!(f, "squash_{kind}={to}"),
            Property::Mode(mode) => write!(f, "map_mode={mode}"),
            Property::Fileset(path) => write!(f, "fileset={}", escape(path.as_deref().unwrap_or(""))),
        }
    }
}

impl FromStr for Property {
    type Err = NodemapError;

    fn from_str(text: &str) -> Result<Property, NodemapError> {
        let (word, value) = text.split_once('=').ok_or(NodemapError::Property)?;
        if let Some((flag, _)) = FLAG_NAMES.iter().find(|(_, name)| *name == word) {
            return match value {
                "0" => Ok(Property::Flag(*flag, false)),
                "1" => Ok(Property::Flag(*flag, true)),
                _ => Err(NodemapError::Property),
            };
        }
        match word {
            "map_mode" => value.parse().map(Property::Mode),
            "fileset" => {
                let path = unescape(value).ok_or(NodemapError::Fileset)?;
                match path.as_str() {
                    "" => Ok(Property::Fileset(None)),
                    path if is_subtree(path) => Ok(Property::Fileset(Some(path.to_owned()))),
                    _ => Err(NodemapError::Fileset),
                }
            }
            _ => {
                let kind = word.strip_prefix("squash_").ok_or(NodemapError::Property)?;
                let kind = kind.parse().map_err(|_| NodemapError::Property)?;
                Ok(Property::Squash(kind, id(value).map_err(|_| NodemapError::Property)?))
            }
        }
    }
}

/// Mapping of the ids of one kind, in both directions.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct IdMap {
    to_fs: BTreeMap<u32, u32>,
    to_client: BTreeMap<u32, u32>,
}

/// A named set of clients with its mappings and restrictions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Nodemap {
    name: String,
    flags: NodemapFlags,
    mode: MapMode,
    squash: [u32; 3],
    fileset: Option<String>,
    ranges: BTreeSet<NidRange>,
    keys: BTreeSet<KeyId>,
    ids: [IdMap; 3],
}

impl Nodemap {
    /// Creates a nodemap without clients that squashes all ids.
    ///
    /// # Errors
    /// [`NodemapError::Name`].
    pub fn new(name: &str) -> Result<Nodemap, NodemapError> {
        let is_good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if name.is_empty() || name.len() > NODEMAP_NAME_MAX || !name.bytes().all(is_good) {
            return Err(NodemapError::Name);
        }
        Ok(Nodemap {
            name: name.to_owned(),
            flags: NodemapFlags::empty(),
            mode: MapMode::all(),
            squash: [SQUASHED; 3],
            fileset: None,
            ranges: BTreeSet::new(),
            keys: BTreeSet::new(),
            ids: Default::default(),
        })
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns rights and restrictions of its clients.
    pub fn flags(&self) -> NodemapFlags {
        self.flags
    }

    /// Returns the subtree that its clients see as the root.
    pub fn fileset(&self) -> Option<&str> {
        self.fileset.as_deref()
    }

    /// Returns the id for unmapped ids.
    pub fn squash(&self, kind: IdKind) -> u32 {
        self.squash[kind as usize]
    }

    fn maps(&self, kind: IdKind) -> bool {
        !self.flags.contains(NodemapFlags::TRUSTED) && self.mode.contains(kind.mode())
    }

    /// True for an id that is never mapped: root if it keeps its rights, and project 0.
    fn is_fixed(&self, kind: IdKind, id: u32) -> bool {
        id == 0 && (kind == IdKind::Projid || self.flags.contains(NodemapFlags::ADMIN))
    }

    /// Returns the file system's id for a client's id; `None` if it is unmapped.
    pub fn to_fs(&self, kind: IdKind, client: u32) -> Option<u32> {
        if !self.maps(kind) || self.is_fixed(kind, client) {
            return Some(client);
        }
        self.ids[kind as usize].to_fs.get(&client).copied()
    }

    /// Returns the id that its clients see for an id of the file system.
    pub fn to_client(&self, kind: IdKind, fs: u32) -> u32 {
        if !self.maps(kind) || self.is_fixed(kind, fs) {
            return fs;
        }
        self.ids[kind as usize].to_client.get(&fs).copied().unwrap_or(self.squash(kind))
    }

    /// Iterates over ranges, keys and mappings.
    pub fn parts(&self) -> impl Iterator<Item = Part> + '_ {
        let ids = IdKind::ALL.into_iter().flat_map(|kind| {
            self.ids[kind as usize].to_fs.iter().map(move |(client, fs)| Part::Ids(kind, *client, *fs))
        });
        let ranges = self.ranges.iter().copied().map(Part::Range);
        ranges.chain(self.keys.iter().copied().map(Part::Key)).chain(ids)
    }

    /// Iterates over all properties.
    pub fn properties(&self) -> impl Iterator<Item = Property> + '_ {
        let flags = FLAG_NAMES.iter().map(|(flag, _)| Property::Flag(*flag, self.flags.contains(*flag)));
        let squash = IdKind::ALL.into_iter().map(|kind| Property::Squash(kind, self.squash(kind)));
        let rest = [Property::Mode(self.mode), Property::Fileset(self.fileset.clone())];
        flags.chain(squash).chain(rest)
    }

    /// Sets a property; false if it has that value already.
    pub fn set(&mut self, property: &Property) -> bool {
        let before = self.clone();
        match property {
            Property::Flag(flag, on) => self.flags.set(*flag, *on),
            Property::Squash(kind, to) => self.squash[*kind as usize] = *to,
            Property::Mode(mode) => self.mode = *mode,
            Property::Fileset(path) => self.fileset.clone_from(path),
        }
        *self != before
    }

    /// Adds a part; false if it exists, or one of its ids is mapped already.
    pub fn add(&mut self, part: &Part) -> bool {
        match part {
            Part::Range(range) => self.ranges.insert(*range),
            Part::Key(key) => self.keys.insert(*key),
            Part::Ids(kind, client, fs) => {
                let map = &mut self.ids[*kind as usize];
                let is_new = !map.to_fs.contains_key(client) && !map.to_client.contains_key(fs);
                if is_new {
                    map.to_fs.insert(*client, *fs);
                    map.to_client.insert(*fs, *client);
                }
                is_new
            }
        }
    }

    /// Removes a part; false if it does not exist.
    pub fn remove(&mut self, part: &Part) -> bool {
        match part {
            Part::Range(range) => self.ranges.remove(range),
            Part::Key(key) => self.keys.remove(key),
            Part::Ids(kind, client, fs) => {
                let map = &mut self.ids[*kind as usize];
                let is_there = map.to_fs.get(client) == Some(fs);
                if is_there {
                    map.to_fs.remove(client);
                    map.to_client.remove(fs);
                }
                is_there
            }
        }
    }

    /// True if the nodemap has this range or key, or maps one of these ids.
    pub fn has(&self, part: &Part) -> bool {
        match part {
            Part::Range(range) => self.ranges.contains(range),
            Part::Key(key) => self.keys.contains(key),
            Part::Ids(kind, client, fs) => {
                let map = &self.ids[*kind as usize];
                map.to_fs.contains_key(client) || map.to_client.contains_key(fs)
            }
        }
    }
}

impl fmt::Display for Nodemap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let new = Nodemap { name: self.name.clone(), ..Nodemap::new(DEFAULT).map_err(|_| fmt::Error)? };
        f.write_str(&self.name)?;
        for (own, usual) in self.properties().zip(new.properties()) {
            if own != usual {
                write!(f, " {own}")?;
            }
        }
        self.parts().try_for_each(|part| write!(f, " {part}"))
    }
}

impl FromStr for Nodemap {
    type Err = NodemapError;

    /// Parses strictly: unknown and duplicate words are errors.
    fn from_str(text: &str) -> Result<Nodemap, NodemapError> {
        let mut words = text.split(' ');
        let mut nodemap = Nodemap::new(words.next().unwrap_or_default())?;
        for word in words {
            let is_new = match word.parse::<Property>() {
                Ok(property) => nodemap.set(&property),
                Err(_) => nodemap.add(&word.parse()?),
            };
            if !is_new {
                return Err(NodemapError::Change);
            }
        }
        Ok(nodemap)
    }
}

/// A change of a nodemap, or of all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Activate or deactivate all nodemaps.
    Activate(bool),
    /// Create the nodemap.
    Create,
    /// Remove the nodemap.
    Destroy,
    /// Add a part to it.
    Add(Part),
    /// Remove a part from it.
    Remove(Part),
    /// Set a property of it.
    Set(Property),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Activate(on) => write!(f, "activate {}", u8::from(*on)),
            Change::Create => f.write_str("create"),
            Change::Destroy => f.write_str("destroy"),
            Change::Add(part) => write!(f, "add {part}"),
            Change::Remove(part) => write!(f, "remove {part}"),
            Change::Set(property) => write!(f, "set {property}"),
        }
    }
}

impl FromStr for Change {
    type Err = NodemapError;

    fn from_str(text: &str) -> Result<Change, NodemapError> {
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        match (word, rest) {
            ("activate", "0") => Ok(Change::Activate(false)),
            ("activate", "1") => Ok(Change::Activate(true)),
            ("create", "") => Ok(Change::Create),
            ("destroy", "") => Ok(Change::Destroy),
            ("add", part) => part.parse().map(Change::Add),
            ("remove", part) => part.parse().map(Change::Remove),
            ("set", property) => property.parse().map(Change::Set),
            _ => Err(NodemapError::Change),
        }
    }
}

/// All nodemaps of a file system.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Nodemaps {
    /// True if they are in force.
    pub active: bool,
    /// Nodemaps ordered by name. The one named [`DEFAULT`] is stored after its first change.
    pub maps: Vec<Arc<Nodemap>>,
}

impl Nodemaps {
    /// Returns the nodemap with this name.
    pub fn find(&self, name: &str) -> Option<&Arc<Nodemap>> {
        self.maps.iter().find(|map| map.name == name)
    }

    /// Returns the nodemap for clients that are in no other.
    ///
    /// # Panics
    /// Never: its name is valid.
    pub fn default_map(&self) -> Arc<Nodemap> {
        let new = || Arc::new(Nodemap::new(DEFAULT).expect("the name is a constant, and a good one"));
        self.find(DEFAULT).cloned().unwrap_or_else(new)
    }

    /// Returns the nodemap of a key.
    pub fn of_key(&self, key: KeyId) -> Option<&Arc<Nodemap>> {
        self.maps.iter().find(|map| map.keys.contains(&key))
    }

    /// Returns the nodemap of an address: the one with the smallest range that contains it.
    pub fn of_nid(&self, nid: Nid) -> Option<&Arc<Nodemap>> {
        let Nid::Tcp(address) = nid else { return None };
        let ip = address.ip().to_canonical();
        let ranges =
            |map: &Arc<Nodemap>| map.ranges.iter().filter(|range| range.has(ip)).map(NidRange::size).min();
        self.maps
            .iter()
            .filter_map(|map| Some((ranges(map)?, map)))
            .min_by_key(|(size, _)| *size)
            .map(|(_, map)| map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{IpAddr, Ipv4Addr};

    #[test]
    fn a_client_is_in_the_nodemap_of_its_key_or_of_the_smallest_range_with_its_address() {
        let map = |text: &str| Arc::new(text.parse::<Nodemap>().expect("a nodemap of this test"));
        let maps = vec![
            map("all range=10.0.0.0/8@tcp"),
            map("few range=10.1.0.[1-9]@tcp"),
            map("keyed key=00000000000000ab"),
        ];
        let maps = Nodemaps { active: true, maps };
        let of = |nid: &str| maps.of_nid(nid.parse().expect("a NID")).map(|map| map.name());
        assert_eq!(
            [of("10.1.0.9@tcp"), of("10.1.0.10@tcp"), of("11.0.0.1@tcp"), of("0@lo")],
            [Some("few"), Some("all"), None, None]
        );
        assert_eq!(of("[::ffff:10.1.0.9]:7988@tcp"), Some("few"), "the same address in another form");
        assert_eq!(maps.of_key(KeyId(0xab)).map(|map| map.name()), Some("keyed"));
        assert_eq!(maps.default_map().name(), DEFAULT);
    }

    #[test]
    fn ids_are_mapped_in_both_directions_and_others_are_squashed() {
        let mut map: Nodemap =
            "m uid=1000:60000 uid=1001:60001 gid=7:70 squash_uid=99".parse().expect("a nodemap");
        assert_eq!((map.to_fs(IdKind::Uid, 1000), map.to_client(IdKind::Uid, 60000)), (Some(60000), 1000));
        assert_eq!((map.to_fs(IdKind::Uid, 60000), map.to_client(IdKind::Uid, 1000)), (None, 99));
        assert_eq!((map.to_fs(IdKind::Uid, 0), map.to_client(IdKind::Uid, 0)), (None, 99));
        assert_eq!((map.to_fs(IdKind::Projid, 0), map.to_client(IdKind::Projid, 0)), (Some(0), 0));
        assert!(!map.add(&Part::Ids(IdKind::Uid, 1000, 5)) && !map.add(&Part::Ids(IdKind::Uid, 5, 60000)));
        assert!(!map.remove(&Part::Ids(IdKind::Uid, 1000, 60001)));
        map.set(&Property::Flag(NodemapFlags::ADMIN, true));
        assert_eq!((map.to_fs(IdKind::Uid, 0), map.to_client(IdKind::Uid, 0)), (Some(0), 0));
        map.set(&Property::Mode(MapMode::GID));
        assert_eq!((map.to_fs(IdKind::Uid, 5), map.to_fs(IdKind::Gid, 5)), (Some(5), None));
        map.set(&Property::Flag(NodemapFlags::TRUSTED, true));
        assert_eq!((map.to_fs(IdKind::Gid, 5), map.to_client(IdKind::Gid, 70)), (Some(5), 70));
    }

    fn nodemap() -> impl Strategy<Value = Nodemap> {
        let range = prop_oneof![
            any::<[(u8, u8); 4]>()
                .prop_map(|bytes| NidRange::Bytes(bytes.map(|(a, b)| (a.min(b), a.max(b))))),
            any::<(u32, u32)>().prop_map(|(a, b)| {
                let ip = |bits| IpAddr::V4(Ipv4Addr::from_bits(bits));
                NidRange::Span(ip(a.min(b)), ip(a.max(b)))
            }),
            (any::<u32>(), 0u8..=32).prop_map(|(ip, bits)| NidRange::Prefix(IpAddr::V4(ip.into()), bits)),
            (any::<u128>(), 0u8..=128).prop_map(|(ip, bits)| NidRange::Prefix(IpAddr::V6(ip.into()), bits)),
        ];
        let part = prop_oneof![
            range.prop_map(Part::Range),
            any::<u64>().prop_map(|key| Part::Key(KeyId(key))),
            (0usize..3, 0..u32::MAX, 0..u32::MAX).prop_map(|(kind, a, b)| Part::Ids(IdKind::ALL[kind], a, b)),
        ];
        let fileset = proptest::option::of("(/[a-z &=%ä]{1,5}){1,3}");
        (
            "[a-z0-9_-]{1,16}",
            0u8..32,
            1u8..8,
            any::<[u16; 3]>(),
            fileset,
            proptest::collection::vec(part, 0..8),
        )
            .prop_map(|(name, flags, mode, squash, fileset, parts)| {
                let mut map = Nodemap::new(&name).expect("a good name");
                (map.flags, map.mode) =
                    (NodemapFlags::from_bits_truncate(flags), MapMode::from_bits_truncate(mode));
                (map.squash, map.fileset) = (squash.map(u32::from), fileset);
                for part in parts {
                    map.add(&part);
                }
                map
            })
    }

    proptest! {
        #[test]
        fn nodemaps_are_read_as_they_were_written(map in nodemap()) {
            let parts = map.parts().flat_map(|part| [Change::Add(part.clone()), Change::Remove(part)]);
            for change in parts.chain(map.properties().map(Change::Set)) {
                prop_assert_eq!(change.to_string().parse(), Ok(change));
            }
            prop_assert_eq!(map.to_string().parse(), Ok(map));
        }

        #[test]
        fn any_text_gives_an_error_or_a_nodemap_that_is_written_and_read_again(text in "m( (range|key|uid|admin|fileset|map_mode)=[0-9a-f/:.@tcp,*-]{0,20}){0,3}") {
            if let Ok(map) = text.parse::<Nodemap>() {
                prop_assert_eq!(map.to_string().parse(), Ok(map));
            }
        }
    }

    #[test]
    fn what_makes_no_nodemap_is_refused() {
        for bad in [
            "",
            "a.b",
            "seventeen_letters",
            "m ",
            "m admin",
            "m admin=2",
            "m admin=1 admin=1",
            "m uid=1",
            "m uid=1:4294967295",
            "m uid=1:2 uid=1:3",
            "m uid=1:2 uid=3:2",
            "m uid=-1:2",
            "m key=ab",
            "m fileset=a",
            "m fileset=/",
            "m fileset=/a/../b",
            "m fileset=",
            "m map_mode=none",
            "m squash_pid=1",
            "m squash_uid=x",
            "m range=x",
            "m unknown=1",
        ] {
            assert!(bad.parse::<Nodemap>().is_err(), "{bad}");
        }
    }
}
