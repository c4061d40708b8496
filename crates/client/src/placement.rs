//! Placement of new directories: on the MDTs that the request names, or as the default of the parent (or of
//! the root, which applies to the whole file system) specifies. See `docs/design/dne.md`.

pub(crate) mod place;

use crate::base::Base;
use crate::inodes::Inodes;
use crate::inodes::root::soon;
use crate::lease::Lease;
use crate::node::NodeTable;
use crate::placement::place::{Chooser, DirQos, Room, Rooms, Wanted, spread};
use crate::requests::Requests;
use crate::shards::Shards;
use crate::validity::Validity;
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_layout::{DirDefault, DirFlags, DirHash};
use nacre_types::{AttrFlags, Failure, FailureResult, Fid, Status, StatusResult, TargetId};
use nacre_wire::mds::MdsRequest;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

/// States of an MDT in which it takes no new inodes: read-only, no creates, no space, no inodes.
const NOT_USABLE: u32 = 2 | 4 | 0x20 | 0x40;
/// Defaults that are cached.
const CACHED_MAX: usize = 4096;
/// Age up to which the root's default is used without proof that it is still valid: otherwise each new
/// directory would cost a request for it while other clients change the root.
const ROOT_AGE_MAX: Duration = Duration::from_secs(1);
/// The xattr with the default of a directory.
const DEFAULT: &[u8] = b"lustre.dmv";

/// Cached default of a directory.
#[derive(Clone)]
struct CachedDefault {
    default: Option<Arc<DirDefault>>,
    validity: Validity,
    at: Instant,
}

/// Where a directory is created.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    /// The MDTs of its shards, of which the first one also has the directory itself.
    pub mdts: Vec<u16>,
    /// How its names are spread over several MDTs; `None` for the default.
    pub hash: Option<DirHash>,
    /// True if the directory is never split automatically.
    pub is_fixed: bool,
    /// True if the first MDT was chosen by free space, so that another one will do as well.
    pub is_balanced: bool,
}

/// Cached defaults and free space, for the placement of directories.
pub struct Placement {
    qos: Mutex<DirQos>,
    chooser: Mutex<Chooser>,
    rooms: Mutex<Rooms>,
    defaults: Mutex<HashMap<Fid, CachedDefault>>,
    requests: Arc<Requests>,
    inodes: Arc<Inodes>,
    shards: Arc<Shards>,
    nodes: Arc<NodeTable>,
    lease: Arc<Lease>,
}

impl Placement {
    pub(crate) fn new(base: &Base, inodes: Arc<Inodes>) -> Arc<Placement> {
        Arc::new(Placement {
            qos: Mutex::default(),
            chooser: Mutex::new(Chooser::new(RandomState::new().hash_one(0))),
            rooms: Mutex::default(),
            defaults: Mutex::default(),
            requests: base.requests.clone(),
            inodes,
            shards: base.shards.clone(),
            nodes: base.nodes.clone(),
            lease: base.lease.clone(),
        })
    }

    /// Drops the cached default of a directory, which may be outdated.
    pub fn forget(&self, fid: Fid) {
        self.defaults.lock().remove(&fid);
    }

    fn cached(&self, fid: Fid) -> Option<CachedDefault> {
        self.defaults.lock().get(&fid).cloned()
    }

    fn keep(&self, fid: Fid, kept: CachedDefault) {
        let mut defaults = self.defaults.lock();
        if defaults.len() >= CACHED_MAX {
            defaults.clear();
        }
        defaults.insert(fid, kept);
    }
}

impl Placement {
    /// Returns how MDTs are chosen for new directories; `lmv.*.qos_*`.
    pub fn dir_qos(&self) -> DirQos {
        *self.qos.lock()
    }

    /// Changes [`Placement::dir_qos`].
    pub fn change_dir_qos(&self, change: impl FnOnce(&mut DirQos)) {
        change(&mut self.qos.lock());
        self.rooms.lock().ask_again();
    }

    /// Returns how many shards a directory with this specification has.
    pub(crate) fn shard_count(&self, requested: &DirDefault) -> usize {
        count_of(requested, self.requests.mdts.len()).max(requested.mdts.len())
    }

    /// Returns the MDTs for this many parts of a directory, from `first` on: those that take new inodes.
    ///
    /// # Errors
    /// `EAGAIN` if it would not be spread because the other MDTs are unreachable or take no new inodes; the
    /// errors of MDTs.
    pub(crate) fn spread_from(
        &self,
        first: u16,
        count: usize,
        requested: &DirDefault,
    ) -> FailureResult<Vec<u16>> {
        Ok(spread_parts(&self.connected_rooms()?, first, count, requested)?)
    }

    pub(crate) fn check_mdts(&self, requested: &DirDefault) -> FailureResult<()> {
        let named = if requested.index == -1 { None } else { Some(u16::try_from(requested.index)) };
        let named = named.transpose().map_err(|_| Status::EINVAL)?;
        for mdt in named.iter().chain(&requested.mdts) {
            if !self.requests.has_mdt(*mdt)? {
                return Err(Status::EINVAL.into());
            }
        }
        Ok(())
    }

    /// Returns the default for new directories in a directory: its own, otherwise the rest of the root's.
    ///
    /// # Errors
    /// `ENODATA` if there is none; the error of an MDT.
    pub fn dir_default(&self, fid: Fid) -> StatusResult<DirDefault> {
        self.requests.faults.edge("get the default", || Ok(self.default_for(fid)?.ok_or(Status::ENODATA)?))
    }

    /// Returns the default for a directory that is created in `parent`: the parent's, otherwise the rest of
    /// the root's.
    ///
    /// # Errors
    /// The error of an MDT; a removed parent is reported by the create itself.
    pub(crate) fn default_for(&self, parent: Fid) -> FailureResult<Option<DirDefault>> {
        match self.default_of(parent)? {
            Some(default) => Ok(Some(DirDefault::clone(&default))),
            None if parent == self.inodes.root.fid() => Ok(None),
            None => {
                let Some(default) = self.default_of_root()? else { return Ok(None) };
                Ok(default.inherited_by(self.depth_of(parent)?))
            }
        }
    }

    /// Returns the root's default for directories created elsewhere: the last known one while the root's MDT
    /// is unreachable.
    fn default_of_root(&self) -> FailureResult<Option<Arc<DirDefault>>> {
        let heard = self.cached(self.inodes.root.fid());
        if let Some(heard) = &heard
            && !self.requests.is_connected(self.inodes.root.fid().mdt_index())
        {
            return Ok(heard.default.clone());
        }
        match soon(|| self.default_of(self.inodes.root.fid())) {
            Err(failure) if failure == Status::ETIMEDOUT => {
                match heard.filter(|_| !self.inodes.root.is_near()) {
                    Some(heard) => Ok(heard.default),
                    // There are no earlier values, or the MDT responds and is only slow.
                    None => self.default_of(self.inodes.root.fid()),
                }
            }
            result => result,
        }
    }

    /// Returns the default of a directory itself. Costs no request while its known attributes are valid, and
    /// it has none or the same as before.
    pub(super) fn default_of(&self, fid: Fid) -> FailureResult<Option<Arc<DirDefault>>> {
        let kept = self.cached(fid);
        if let Some(kept) = kept
            && (self.lease.is_in_force(kept.validity, fid)
                || fid == self.inodes.root.fid() && kept.at.elapsed() < ROOT_AGE_MAX)
        {
            return Ok(kept.default);
        }
        let at = Instant::now();
        let hints = match self.inodes.hints(fid) {
            Some(hints) => Some(hints),
            None => {
                match self.ask_again(fid) {
                    Err(failure) if matches!(failure.status(), Status::ENOENT | Status::ESTALE) => {
                        return Ok(None);
                    }
                    result => result?,
                }
                self.nodes.hints(fid.inode_number())
            }
        };
        let (flags, validity) =
            hints.map_or((AttrFlags::all(), Validity::None), |hints| (hints.flags, hints.validity));
        let default = match flags.contains(AttrFlags::HAS_DIR_DEFAULT) {
            true => self.fetch_default(fid)?,
            false => None,
        };
        self.keep(fid, CachedDefault { default: default.clone(), validity, at });
        Ok(default)
    }

    fn fetch_default(&self, fid: Fid) -> FailureResult<Option<Arc<DirDefault>>> {
        let bytes = match self.requests.call_system(fid, &MdsRequest::GetXattr { fid, name: DEFAULT }) {
            Ok(answer) => answer.bytes()?,
            Err(failure) if matches!(failure.status(), Status::ENODATA | Status::ENOENT | Status::ESTALE) => {
                return Ok(None);
            }
            Err(failure) => return Err(failure),
        };
        let default = DirDefault::decode(&bytes);
        default.map(|default| Some(Arc::new(default))).map_err(|_| Status::EPROTO.into())
    }

    /// Requests the attributes of a directory again, with a lock if there are other clients.
    fn ask_again(&self, fid: Fid) -> FailureResult<()> {
        if !self.lease.exclusive() {
            return self.inodes.ask_with_locks(None, fid, None).map(drop);
        }
        let answer = self.requests.call_system(fid, &MdsRequest::GetAttr { fid })?;
        let lease = answer.lease;
        self.nodes.learn(&answer.attr()?, lease);
        Ok(())
    }

    /// Returns the levels between a directory and the root. A known depth is kept even if a directory above
    /// it moves: it only decides how far a default reaches.
    fn depth_of(&self, fid: Fid) -> FailureResult<u32> {
        let node = fid.inode_number();
        if let Some(depth) = self.nodes.depth(node) {
            return Ok(depth);
        }
        let depth = match soon(|| self.inodes.path_of(None, fid, 0)) {
            Ok(path) => path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).count() as u32,
            Err(failure) if matches!(failure.status(), Status::EINTR | Status::ESHUTDOWN) => {
                return Err(failure);
            }
            // The directory has no name any more, a path that is too long, or one over an unreachable MDT; or
            // this client may not know it.
            Err(_) => return Ok(u32::MAX),
        };
        self.nodes.note_depth(node, depth);
        Ok(depth)
    }

    pub(crate) fn plan(
        &self,
        (parent, name): (Fid, &[u8]),
        is_chosen: bool,
        requested: &DirDefault,
    ) -> FailureResult<Plan> {
        let all = self.requests.mdts.len();
        let count = count_of(requested, all).max(requested.mdts.len());
        let listed = requested.mdts.iter().copied().filter(|mdt| usize::from(*mdt) < all);
        let listed: Vec<u16> = listed.collect();
        let named = u16::try_from(requested.index).ok().filter(|index| usize::from(*index) < all);
        let (first, is_balanced) = match listed.first().copied().or(named) {
            Some(first) => (first, false),
            // The parent is spread over MDTs already: directories in it are stored with their names.
            None if self.shards.lists.get(parent).is_some() => {
                (self.shards.home(parent, name).mdt_index(), false)
            }
            None => (self.choose(parent, is_chosen, requested)?, true),
        };
        let mut mdts = listed;
        if count <= 1 && mdts.len() <= 1 {
            mdts = vec![first];
        } else if mdts.len() < count {
            for mdt in spread(&self.connected_rooms()?, first) {
                if !mdts.contains(&mdt) {
                    mdts.push(mdt);
                }
            }
            mdts = parts_on(&mdts, count, requested);
        }
        Ok(Plan {
            mdts,
            hash: requested.hash,
            is_fixed: requested.flags.contains(DirFlags::FIXED),
            is_balanced,
        })
    }

    /// Chooses the MDT for a directory that may be placed on any.
    fn choose(&self, parent: Fid, is_chosen: bool, requested: &DirDefault) -> FailureResult<u16> {
        let in_turn = !is_chosen && (requested.max_inherit_rr.0 != 0 || parent == self.inodes.root.fid());
        let wanted = Wanted {
            parent: parent.mdt_index(),
            depth: if in_turn { 0 } else { self.depth_of(parent)? },
            moves: is_chosen,
            in_turn,
        };
        let qos = self.dir_qos();
        let first = self.chooser.lock().choose(&self.rooms()?, &wanted, &qos);
        let Some(first) = first else { return Ok(wanted.parent) };
        if self.requests.signs.which_answer(&self.requests, &[first]) == [true] {
            return Ok(first);
        }
        // The next directory may choose it again.
        let others = self.connected_rooms()?;
        Ok(self.chooser.lock().choose(&others, &wanted, &qos).unwrap_or(wanted.parent))
    }

    /// Returns the free space on each MDT; one that does not answer counts as unusable.
    fn connected_rooms(&self) -> FailureResult<Vec<Room>> {
        let mut rooms = self.rooms()?;
        let usable: Vec<u16> = rooms.iter().filter(|room| room.usable).map(|room| room.index).collect();
        let answers = self.requests.signs.which_answer(&self.requests, &usable);
        let mut answers = usable.iter().zip(answers);
        for room in rooms.iter_mut().filter(|room| room.usable) {
            room.usable = answers.next().is_some_and(|(_, answers)| answers);
        }
        Ok(rooms)
    }

    /// Requests again whether an MDT takes new inodes: if so, it was another one, that of the name, that had
    /// no space.
    pub(crate) fn has_room_now(&self, mdt: u16) -> FailureResult<bool> {
        self.rooms.lock().ask_again();
        Ok(self.rooms()?.iter().any(|room| room.index == mdt && room.usable))
    }

    /// Returns the free space on each MDT, not older than `qos_maxage` unless another thread is requesting it
    /// at the moment.
    fn rooms(&self) -> FailureResult<Vec<Room>> {
        let maxage = self.dir_qos().maxage;
        let count = self.requests.mdts.len();
        if let Some(known) = self.rooms.lock().known(count, maxage, Instant::now()) {
            return Ok(known);
        }
        let targets: Vec<TargetId> = (0..count).map(|index| TargetId::mdt(index as u16)).collect();
        let states = self.requests.statfs_of(&targets);
        if states.iter().any(|state| state.statfs == Err(Status::EINTR)) {
            self.rooms.lock().ask_again();
            return Err(Status::EINTR.into());
        }
        let room = |state: &crate::requests::statfs::TargetState| match state.statfs {
            Ok(statfs) => Room {
                index: state.target.index,
                bytes: statfs.blocks_available.saturating_mul(statfs.block_size.into()),
                files: statfs.files_free,
                usable: statfs.state & NOT_USABLE == 0,
            },
            Err(_) => Room { index: state.target.index, bytes: 0, files: 0, usable: false },
        };
        let all: Vec<Room> = states.iter().map(room).collect();
        self.rooms.lock().learn(&all);
        Ok(all)
    }

    /// Fetches attributes and default of the root, for later.
    ///
    /// # Errors
    /// Those of servers.
    pub fn learn_root(&self) -> StatusResult<()> {
        self.requests.faults.edge("learn the root", || {
            let root = self.inodes.root.fid();
            self.inodes.stat(root).map_err(Failure::logged)?;
            if self.requests.mdts.len() > 1 { self.default_of(root).map(drop) } else { Ok(()) }
        })
    }
}

/// Returns how many parts of one directory may be on one MDT.
fn each_of(requested: &DirDefault) -> usize {
    match requested.flags.contains(DirFlags::OVERSTRIPED) {
        true => nacre_layout::dir_default::PER_MDT_MAX as usize,
        false => 1,
    }
}

/// Returns the MDTs of `count` parts of a directory, from `first` on: those that can be used.
///
/// # Errors
/// `EAGAIN` if there would be one part, and more were asked for.
fn spread_parts(rooms: &[Room], first: u16, count: usize, requested: &DirDefault) -> StatusResult<Vec<u16>> {
    let mdts = parts_on(&spread(rooms, first), count, requested);
    if mdts.len() > 1 || count <= 1 { Ok(mdts) } else { Err(Status::EAGAIN) }
}

/// Returns the MDTs of `count` parts, round-robin. If some MDTs cannot be used there are fewer parts, as the
/// parts on one MDT are limited.
fn parts_on(mdts: &[u16], count: usize, requested: &DirDefault) -> Vec<u16> {
    let parts = count.min(mdts.len() * each_of(requested));
    mdts.iter().copied().cycle().take(parts).collect()
}

/// Returns the number of shards with this number of MDTs.
fn count_of(requested: &DirDefault, mdts: usize) -> usize {
    let each = each_of(requested);
    match requested.count {
        0 | 1 => 1,
        count if count < 0 => mdts * (count.unsigned_abs() as usize).min(each),
        count => (count as usize).min(mdts * each),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_shards_as_were_asked_for_and_as_mdts_allow() {
        let count = |count, over, mdts| {
            let flags = if over { DirFlags::OVERSTRIPED } else { DirFlags::empty() };
            count_of(&DirDefault { count, flags, ..DirDefault::default() }, mdts)
        };
        assert_eq!([0, 1, 2, 4, 9, -1].map(|n| count(n, false, 4)), [1, 1, 2, 4, 4, 4]);
        assert_eq!([2, 4, 9, 20, 21, -1, -2, -5].map(|n| count(n, true, 4)), [2, 4, 9, 20, 20, 4, 8, 20]);
        assert_eq!([2, -1].map(|n| count(n, false, 1)), [1, 1]);
    }

    #[test]
    fn no_mdt_gets_more_shards_than_it_may_while_others_are_away() {
        let requested = |flags| DirDefault { flags, ..DirDefault::default() };
        let over = requested(DirFlags::OVERSTRIPED);
        assert_eq!(parts_on(&[1, 2], 5, &over), [1, 2, 1, 2, 1]);
        assert_eq!(parts_on(&[1], 6, &over), [1; 5]);
        assert_eq!(parts_on(&[1, 2], 3, &requested(DirFlags::empty())), [1, 2]);
    }

    #[test]
    fn a_directory_that_is_to_be_spread_is_not_made_whole_because_others_are_away() {
        let room = |index, usable| Room { index, bytes: 1, files: 1, usable };
        let (both, one) = ([room(0, true), room(1, true)], [room(0, true), room(1, false)]);
        let requested = |flags| DirDefault { flags, ..DirDefault::default() };
        let (plain, over) = (requested(DirFlags::empty()), requested(DirFlags::OVERSTRIPED));
        assert_eq!(spread_parts(&both, 1, 2, &plain), Ok(vec![1, 0]));
        assert_eq!(spread_parts(&one, 0, 2, &plain), Err(Status::EAGAIN));
        assert_eq!(spread_parts(&one, 0, 2, &over), Ok(vec![0, 0]));
        assert_eq!(spread_parts(&one, 0, 1, &plain), Ok(vec![0]));
    }
}
