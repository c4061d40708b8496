//! Making directories where they belong: on the MDTs that somebody asked for, or where the default of the parent (or of the root,
//! which stands for the whole file system) puts them. See `docs/design/dne.md`.

use crate::caller::Caller;
use crate::client::Client;
use crate::node::Warrant;
use crate::ops::namespace::{Created, Found};
use crate::ops::striped::Striping;
use crate::place::{Chooser, DirQos, Room, Rooms, Wanted, spread};
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_layout::{DirDefault, DirFlags, DirHash};
use nacre_rpc::LinkState;
use nacre_types::{AttrFlags, Fid, Status, StatusResult, TargetId};
use nacre_wire::mds::{MdsRequest, NewFile};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

/// States of an MDT in which nothing new goes there: read-only, no creates, no space, no inodes.
const NOT_USABLE: u32 = 2 | 4 | 0x20 | 0x40;
/// Defaults that are kept.
const KEPT_MAX: usize = 4096;
/// How old what is known of the root's default may be while nothing says that it is still true: it would be asked for with every
/// directory that anybody makes while others change the root.
const ROOT_AGE_MAX: Duration = Duration::from_secs(1);
/// What `lustre.dmv` is for.
const DEFAULT: &[u8] = b"lustre.dmv";

/// What a client knows about places for directories.
pub(crate) struct Placement {
    qos: Mutex<DirQos>,
    chooser: Mutex<Chooser>,
    rooms: Mutex<Rooms>,
    defaults: Mutex<HashMap<Fid, Kept>>,
}

/// The default of a directory.
#[derive(Clone)]
struct Kept {
    default: Option<Arc<DirDefault>>,
    warrant: Warrant,
    at: Instant,
}

/// Where a directory goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    /// The MDTs of its shards, the first one its own.
    pub mdts: Vec<u16>,
    /// How its names are spread, if there are several; `None`: as usual.
    pub hash: Option<DirHash>,
    /// It is never split by itself.
    pub is_fixed: bool,
    /// The first one was chosen by space, so another one will do as well.
    is_balanced: bool,
}

/// A directory that is to be made: where, and on whose behalf.
struct Making<'a> {
    caller: &'a Caller,
    parent: Fid,
    name: &'a [u8],
    what: &'a Created<'a>,
    /// Somebody asked for certain MDTs, so that it takes the right to.
    is_chosen: bool,
}

impl Placement {
    pub fn new() -> Placement {
        Placement {
            qos: Mutex::default(),
            chooser: Mutex::new(Chooser::new(RandomState::new().hash_one(0))),
            rooms: Mutex::default(),
            defaults: Mutex::default(),
        }
    }

    /// What is known of a directory's default may not be true any more.
    pub fn forget(&self, fid: Fid) {
        self.defaults.lock().remove(&fid);
    }

    /// Room is asked for anew: there is an MDT more.
    pub fn forget_rooms(&self) {
        self.rooms.lock().ask_again();
    }

    fn kept(&self, fid: Fid) -> Option<Kept> {
        self.defaults.lock().get(&fid).cloned()
    }

    fn keep(&self, fid: Fid, kept: Kept) {
        let mut defaults = self.defaults.lock();
        if defaults.len() >= KEPT_MAX {
            defaults.clear();
        }
        defaults.insert(fid, kept);
    }
}

impl Client {
    /// How MDTs are chosen for new directories; `lmv.*.qos_*`.
    pub fn dir_qos(&self) -> DirQos {
        *self.placement.qos.lock()
    }

    /// Changes it.
    pub fn change_dir_qos(&self, change: impl FnOnce(&mut DirQos)) {
        change(&mut self.placement.qos.lock());
        self.placement.rooms.lock().ask_again();
    }

    /// Makes a directory as somebody asked for it. Counts as one lookup.
    ///
    /// # Errors
    /// As [`Client::create`]; `EPERM` without the right to choose MDTs; `EINVAL` if there is no such MDT.
    pub fn make_directory(
        &self,
        caller: &Caller,
        (parent, name): (Fid, &[u8]),
        what: &Created<'_>,
        wish: &DirDefault,
    ) -> StatusResult<Found> {
        self.check_mdts(wish)?;
        let making = Making { caller, parent, name, what, is_chosen: self.mdts.len() > 1 };
        self.make_by(&making, wish)
    }

    /// Spreads the names of a directory over as many MDTs as somebody asked for. It returns when that has begun.
    ///
    /// # Errors
    /// `EPERM` without the right to choose MDTs, and where it is turned off; `EINVAL` if there is no such MDT, or more shards than they
    /// may have; `EBUSY` while its names move; `EALREADY` if they lie so; `EAGAIN` if all other MDTs are away or take nothing new.
    pub fn restripe(&self, caller: &Caller, fid: Fid, wish: &DirDefault) -> StatusResult<()> {
        self.check_mdts(wish)?;
        let count = self.shard_count(wish);
        let named = u16::try_from(wish.index).ok();
        let first = wish.mdts.first().copied().or(named).unwrap_or(fid.mdt_index());
        let mdts = match &wish.mdts[..] {
            _ if count <= 1 => Vec::new(),
            [] => self.spread_from(first, count, wish)?,
            listed => listed.iter().copied().cycle().take(count).collect(),
        };
        let count = i32::try_from(mdts.len().max(1)).map_err(|_| Status::EINVAL)?;
        let index = first.into();
        let wish = DirDefault { count, index, mdts, ..wish.clone() }.encode();
        self.call(caller, fid, &MdsRequest::Restripe { fid, wish: &wish })?;
        self.learn_shards(fid).map(drop)
    }

    /// As how many shards somebody wants a directory to have.
    pub(crate) fn shard_count(&self, wish: &DirDefault) -> usize {
        count_of(wish, self.mdts.len()).max(wish.mdts.len())
    }

    /// MDTs for so many parts of a directory, from one on: those that take something new.
    ///
    /// # Errors
    /// `EAGAIN` if it would not be spread because others are away or take nothing new; what MDTs answer.
    pub(crate) fn spread_from(&self, first: u16, count: usize, wish: &DirDefault) -> StatusResult<Vec<u16>> {
        spread_parts(&self.connected_rooms()?, first, count, wish)
    }

    pub(crate) fn check_mdts(&self, wish: &DirDefault) -> StatusResult<()> {
        let named = if wish.index == -1 { None } else { Some(u16::try_from(wish.index)) };
        let named = named.transpose().map_err(|_| Status::EINVAL)?;
        for mdt in named.iter().chain(&wish.mdts) {
            if !self.has_mdt(*mdt)? {
                return Err(Status::EINVAL);
            }
        }
        Ok(())
    }

    /// Makes a directory where the default of its parent puts it.
    pub(crate) fn make_directory_by_default(
        &self,
        caller: &Caller,
        (parent, name): (Fid, &[u8]),
        what: &Created<'_>,
    ) -> StatusResult<Found> {
        let making = Making { caller, parent, name, what, is_chosen: false };
        match self.default_for(parent)? {
            Some(default) if default.places() => self.make_by(&making, &default),
            _ => self.create_on(caller, (parent, name), what, None),
        }
    }

    fn make_by(&self, making: &Making<'_>, wish: &DirDefault) -> StatusResult<Found> {
        // Each time one MDT less is left to choose from.
        for _ in 0..self.mdts.len() {
            let plan = self.plan(making, wish)?;
            let result = match plan.mdts[..] {
                [mdt] => self.make_on_one(making, wish, mdt),
                _ => self.make_striped(making, &plan),
            };
            match result {
                // It is full, or has gone away just now.
                Err(Status::ENOSPC | Status::ETIMEDOUT)
                    if plan.is_balanced && !self.has_room_now(plan.mdts[0])? => {}
                result => return result,
            }
        }
        Err(Status::ENOSPC)
    }

    fn make_on_one(&self, making: &Making<'_>, wish: &DirDefault, mdt: u16) -> StatusResult<Found> {
        let at = (making.parent, making.name);
        if !making.is_chosen {
            return self.create_on(making.caller, at, making.what, Some(mdt));
        }
        // Directories in it stay with it, whatever the root's default says.
        let (count, index) = match wish.places() && matches!(wish.count, 0 | 1) {
            true => (wish.count, mdt.into()),
            false => (0, -1),
        };
        let default = DirDefault { count, index, mdts: Vec::new(), ..wish.clone() }.encode();
        let what = Created { new: NewFile::ChosenDirectory { default: &default }, ..*making.what };
        self.create_on(making.caller, at, &what, Some(mdt))
    }

    fn make_striped(&self, making: &Making<'_>, plan: &Plan) -> StatusResult<Found> {
        let striping = Striping {
            hash: plan.hash.map_or(0, |hash| hash.number().into()),
            mdts: &plan.mdts,
            is_fixed: plan.is_fixed,
            is_chosen: making.is_chosen,
        };
        let Created { mode, umask, .. } = *making.what;
        self.create_striped(making.caller, (making.parent, making.name), (mode, umask), &striping)
    }

    /// What new directories in a directory get: what it says, otherwise what is left of what the root says.
    ///
    /// # Errors
    /// `ENODATA` if nobody says anything; what an MDT answers.
    pub fn dir_default(&self, fid: Fid) -> StatusResult<DirDefault> {
        self.default_for(fid)?.ok_or(Status::ENODATA)
    }

    /// What a directory that is made in `parent` is to follow: the parent's default, otherwise what is left of the root's.
    ///
    /// # Errors
    /// What an MDT answers; that the parent is gone is for the request itself to say.
    fn default_for(&self, parent: Fid) -> StatusResult<Option<DirDefault>> {
        match self.default_of(parent)? {
            Some(default) => Ok(Some(DirDefault::clone(&default))),
            None if parent == self.root() => Ok(None),
            None => {
                let Some(default) = self.default_of_root()? else { return Ok(None) };
                Ok(default.inherited_by(self.depth_of(parent)?))
            }
        }
    }

    /// The root's default for what is made elsewhere: that last heard while the root's MDT is away.
    fn default_of_root(&self) -> StatusResult<Option<Arc<DirDefault>>> {
        let heard = self.placement.kept(self.root());
        if let Some(heard) = &heard
            && !self.is_connected(self.root().mdt_index())
        {
            return Ok(heard.default.clone());
        }
        match self.soon(|| self.default_of(self.root())) {
            Err(Status::ETIMEDOUT) => match heard.filter(|_| !self.all_show_life()) {
                Some(heard) => Ok(heard.default),
                // It takes its time.
                None => self.default_of(self.root()),
            },
            result => result,
        }
    }

    /// The default of a directory itself. Costs nothing while what is known of its attributes is in force, and it has none or the
    /// same as before.
    pub(super) fn default_of(&self, fid: Fid) -> StatusResult<Option<Arc<DirDefault>>> {
        let kept = self.placement.kept(fid);
        if let Some(kept) = kept
            && (self.is_in_force(kept.warrant, fid) || fid == self.root() && kept.at.elapsed() < ROOT_AGE_MAX)
        {
            return Ok(kept.default);
        }
        let at = Instant::now();
        let hints = match self.hints(fid) {
            Some(hints) => Some(hints),
            None => {
                match self.ask_again(fid) {
                    Err(Status::ENOENT | Status::ESTALE) => return Ok(None),
                    result => result?,
                }
                self.nodes.hints(fid.inode_number())
            }
        };
        let (flags, warrant) =
            hints.map_or((AttrFlags::all(), Warrant::None), |hints| (hints.flags, hints.warrant));
        let default = match flags.contains(AttrFlags::HAS_DIR_DEFAULT) {
            true => self.fetch_default(fid)?,
            false => None,
        };
        self.placement.keep(fid, Kept { default: default.clone(), warrant, at });
        Ok(default)
    }

    fn fetch_default(&self, fid: Fid) -> StatusResult<Option<Arc<DirDefault>>> {
        let bytes = match self.call_system(fid, &MdsRequest::GetXattr { fid, name: DEFAULT }) {
            Ok(answer) => answer.bytes()?,
            Err(Status::ENODATA | Status::ENOENT | Status::ESTALE) => return Ok(None),
            Err(status) => return Err(status),
        };
        DirDefault::decode(&bytes).map(|default| Some(Arc::new(default))).map_err(|_| Status::EPROTO)
    }

    /// Learns the attributes of a directory anew, with a lock if there are other clients.
    fn ask_again(&self, fid: Fid) -> StatusResult<()> {
        if self.asks_with_locks() {
            return self.ask_with_locks(None, fid, None).map(drop);
        }
        let answer = self.call_system(fid, &MdsRequest::GetAttr { fid })?;
        let lease = answer.lease;
        self.note(&answer.attr()?, lease);
        Ok(())
    }

    /// Levels between a directory and the root. What was once learned stays so, also if a directory above it moves: it only says how far
    /// a default reaches.
    fn depth_of(&self, fid: Fid) -> StatusResult<u32> {
        let node = fid.inode_number();
        if let Some(depth) = self.nodes.depth(node) {
            return Ok(depth);
        }
        let depth = match self.soon(|| self.path_of(None, fid, 0)) {
            Ok(path) => path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).count() as u32,
            Err(status @ (Status::EINTR | Status::ESHUTDOWN)) => return Err(status),
            // It has no name any more, a path that is too long, or one over an MDT that is away; or this client may not know it.
            Err(_) => return Ok(u32::MAX),
        };
        self.nodes.note_depth(node, depth);
        Ok(depth)
    }

    fn plan(&self, making: &Making<'_>, wish: &DirDefault) -> StatusResult<Plan> {
        let all = self.mdts.len();
        let count = count_of(wish, all).max(wish.mdts.len());
        let listed = wish.mdts.iter().copied().filter(|mdt| usize::from(*mdt) < all);
        let listed: Vec<u16> = listed.collect();
        let named = u16::try_from(wish.index).ok().filter(|index| usize::from(*index) < all);
        let (first, is_balanced) = match listed.first().copied().or(named) {
            Some(first) => (first, false),
            // A directory is spread over MDTs already: what is made in it stays with its name.
            None if self.shard_lists.get(making.parent).is_some() => {
                (self.home(making.parent, making.name).mdt_index(), false)
            }
            None => (self.choose(making, wish)?, true),
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
            mdts = parts_on(&mdts, count, wish);
        }
        Ok(Plan { mdts, hash: wish.hash, is_fixed: wish.flags.contains(DirFlags::FIXED), is_balanced })
    }

    /// The MDT for a directory that may go anywhere.
    fn choose(&self, making: &Making<'_>, wish: &DirDefault) -> StatusResult<u16> {
        let parent = making.parent;
        let in_turn = !making.is_chosen && (wish.max_inherit_rr.0 != 0 || parent == self.root());
        let wanted = Wanted {
            parent: parent.mdt_index(),
            depth: if in_turn { 0 } else { self.depth_of(parent)? },
            moves: making.is_chosen,
            in_turn,
        };
        let qos = self.dir_qos();
        let mut rooms = self.rooms()?;
        for _ in 0..rooms.len() {
            let Some(mdt) = self.placement.chooser.lock().choose(&rooms, &wanted, &qos) else { break };
            if self.is_connected(mdt) {
                return Ok(mdt);
            }
            // The next directory may find it again.
            rooms.iter_mut().filter(|room| room.index == mdt).for_each(|room| room.usable = false);
        }
        Ok(wanted.parent)
    }

    /// False while an MDT has to be waited for.
    pub(super) fn is_connected(&self, mdt: u16) -> bool {
        let import = self.mdts.get(usize::from(mdt)).and_then(|mdt| mdt.endpoint.import());
        import.is_none_or(|import| matches!(import.state, LinkState::New | LinkState::Full | LinkState::Idle))
    }

    /// The room on each MDT; what has to be waited for cannot be used.
    fn connected_rooms(&self) -> StatusResult<Vec<Room>> {
        let mut rooms = self.rooms()?;
        rooms.iter_mut().for_each(|room| room.usable &= self.is_connected(room.index));
        Ok(rooms)
    }

    /// Asks again whether an MDT takes new inodes: otherwise it was another one that had no room, for the name.
    fn has_room_now(&self, mdt: u16) -> StatusResult<bool> {
        self.placement.rooms.lock().ask_again();
        Ok(self.rooms()?.iter().any(|room| room.index == mdt && room.usable))
    }

    /// The room on each MDT, not older than `qos_maxage` unless somebody asks for it at this moment.
    fn rooms(&self) -> StatusResult<Vec<Room>> {
        let maxage = self.dir_qos().maxage;
        let count = self.mdts.len();
        if let Some(known) = self.placement.rooms.lock().known(count, maxage, Instant::now()) {
            return Ok(known);
        }
        let targets: Vec<TargetId> = (0..count).map(|index| TargetId::mdt(index as u16)).collect();
        let states = self.statfs_of(&targets);
        if states.iter().any(|state| state.statfs == Err(Status::EINTR)) {
            self.placement.rooms.lock().ask_again();
            return Err(Status::EINTR);
        }
        let room = |state: &crate::ops::info::TargetState| match state.statfs {
            Ok(statfs) => Room {
                index: state.target.index,
                bytes: statfs.blocks_available.saturating_mul(statfs.block_size.into()),
                files: statfs.files_free,
                usable: statfs.state & NOT_USABLE == 0,
            },
            Err(_) => Room { index: state.target.index, bytes: 0, files: 0, usable: false },
        };
        let all: Vec<Room> = states.iter().map(room).collect();
        self.placement.rooms.lock().learn(&all);
        Ok(all)
    }
}

/// Parts of one directory that may lie on one MDT.
fn each_of(wish: &DirDefault) -> usize {
    match wish.flags.contains(DirFlags::OVERSTRIPED) {
        true => nacre_layout::dir_default::PER_MDT_MAX as usize,
        false => 1,
    }
}

/// The MDTs of `count` parts of a directory, from one on: those that can be used.
///
/// # Errors
/// `EAGAIN` if there would be one part, and more were asked for.
fn spread_parts(rooms: &[Room], first: u16, count: usize, wish: &DirDefault) -> StatusResult<Vec<u16>> {
    let mdts = parts_on(&spread(rooms, first), count, wish);
    if mdts.len() > 1 || count <= 1 { Ok(mdts) } else { Err(Status::EAGAIN) }
}

/// The MDTs of `count` parts: these in turn. Where some cannot be used there are fewer parts, as one has no more than it may.
fn parts_on(mdts: &[u16], count: usize, wish: &DirDefault) -> Vec<u16> {
    let parts = count.min(mdts.len() * each_of(wish));
    mdts.iter().copied().cycle().take(parts).collect()
}

/// So many shards, with so many MDTs.
fn count_of(wish: &DirDefault, mdts: usize) -> usize {
    let each = each_of(wish);
    match wish.count {
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
        let wish = |flags| DirDefault { flags, ..DirDefault::default() };
        let over = wish(DirFlags::OVERSTRIPED);
        assert_eq!(parts_on(&[1, 2], 5, &over), [1, 2, 1, 2, 1]);
        assert_eq!(parts_on(&[1], 6, &over), [1; 5]);
        assert_eq!(parts_on(&[1, 2], 3, &wish(DirFlags::empty())), [1, 2]);
    }

    #[test]
    fn a_directory_that_is_to_be_spread_is_not_made_whole_because_others_are_away() {
        let room = |index, usable| Room { index, bytes: 1, files: 1, usable };
        let (both, one) = ([room(0, true), room(1, true)], [room(0, true), room(1, false)]);
        let wish = |flags| DirDefault { flags, ..DirDefault::default() };
        let (plain, over) = (wish(DirFlags::empty()), wish(DirFlags::OVERSTRIPED));
        assert_eq!(spread_parts(&both, 1, 2, &plain), Ok(vec![1, 0]));
        assert_eq!(spread_parts(&one, 0, 2, &plain), Err(Status::EAGAIN));
        assert_eq!(spread_parts(&one, 0, 2, &over), Ok(vec![0, 0]));
        assert_eq!(spread_parts(&one, 0, 1, &plain), Ok(vec![0]));
    }
}
