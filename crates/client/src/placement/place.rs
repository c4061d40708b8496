//! Choice of MDTs for new directories: round-robin while they are about equally full, weighted by free space
//! and inodes otherwise. Pure. `docs/design/dne.md` describes it for users.
//!
//! - MDTs that are full, not connected, or do not answer a ping within a second are left out.
//! - While all are about equally full, a directory stays with its parent, unless it is to be placed
//!   round-robin.
//! - Otherwise an MDT is drawn at random: chances are in proportion to weights, which are free space times
//!   free inodes, less a penalty that an MDT gets when it is chosen and that decreases while others are. The
//!   directory stays with its parent if there is more free space than elsewhere; deeper in the tree less of
//!   it is enough, so that most directories on other MDTs are near the root.

use fastrand::Rng;
use nacre_env::clock::Instant;
use std::collections::BTreeMap;
use std::time::Duration;

/// State of an MDT for the choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Room {
    /// Index of the MDT.
    pub index: u16,
    /// Bytes free for ordinary users.
    pub bytes: u64,
    /// Free inodes.
    pub files: u64,
    /// True if the MDT responds, and takes new inodes.
    pub usable: bool,
}

impl Room {
    fn weight(&self) -> u128 {
        // Units in which sums and products stay far from overflow.
        u128::from(self.bytes >> 10) * u128::from(self.files)
    }
}

/// How MDTs are chosen, under Lustre's names (`lmv.*.qos_*`); may be changed at any time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirQos {
    /// Difference of free space, and of free inodes, in percent up to which MDTs count as equally full
    /// (`qos_threshold_rr`).
    pub threshold_rr_pct: u8,
    /// Weight of free space in the choice, against spreading evenly, in percent (`qos_prio_free`).
    pub prio_free_pct: u8,
    /// Age from which on space is requested again (`qos_maxage`).
    pub maxage: Duration,
}

impl Default for DirQos {
    fn default() -> DirQos {
        DirQos { threshold_rr_pct: 5, prio_free_pct: 90, maxage: Duration::from_secs(60) }
    }
}

/// A directory to be placed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// Index of the MDT of its parent.
    pub parent: u16,
    /// Levels between its parent and the root.
    pub depth: u32,
    /// True if the directory is to be placed on another MDT even without need, because the request demands
    /// it.
    pub moves: bool,
    /// True if directories of such a parent are placed round-robin, even if that makes some of them remote.
    pub in_turn: bool,
}

/// State kept from one choice to the next.
pub(crate) struct Chooser {
    /// Index of the MDT at which the next round-robin choice begins.
    next: u16,
    penalties: BTreeMap<u16, u128>,
    random: Rng,
}

impl Chooser {
    /// Creates the state without penalties; `seed` makes two of them differ.
    pub fn new(seed: u64) -> Chooser {
        Chooser { next: seed as u16, penalties: BTreeMap::new(), random: Rng::with_seed(seed) }
    }

    /// Returns the MDT for a directory, of `rooms` in the order of their indexes; `None` if none can be used.
    pub fn choose(&mut self, rooms: &[Room], wanted: &Wanted, qos: &DirQos) -> Option<u16> {
        let usable: Vec<Room> = rooms.iter().copied().filter(|room| room.usable).collect();
        let parent = usable.iter().find(|room| room.index == wanted.parent);
        if is_even(&usable, qos.threshold_rr_pct) {
            self.penalties.clear();
            let stays = parent.filter(|_| !wanted.moves && !wanted.in_turn);
            return stays.map(|room| room.index).or_else(|| self.next_of(&usable));
        }
        if let Some(parent) = parent.filter(|_| !wanted.in_turn)
            && has_enough(parent, &usable, wanted.depth)
        {
            return Some(parent.index);
        }
        self.draw(&usable, qos.prio_free_pct).or_else(|| self.next_of(&usable))
    }

    /// Returns the next MDT in the round-robin order.
    fn next_of(&mut self, usable: &[Room]) -> Option<u16> {
        let room = usable.iter().find(|room| room.index >= self.next).or(usable.first())?;
        self.next = room.index.wrapping_add(1);
        Some(room.index)
    }

    fn draw(&mut self, usable: &[Room], prio_free_pct: u8) -> Option<u16> {
        let others = usable.len().saturating_sub(1).max(1) as u128;
        let wide = u128::from(100u8.saturating_sub(prio_free_pct));
        let per_directory = |room: &Room| room.weight() * wide / (100 * others);
        let penalty =
            |chooser: &Chooser, room: &Room| chooser.penalties.get(&room.index).copied().unwrap_or(0);
        let weights: Vec<u128> =
            usable.iter().map(|room| room.weight().saturating_sub(penalty(self, room))).collect();
        let total: u128 = weights.iter().sum();
        if total == 0 {
            return None;
        }
        let mut point = self.random.u128(..total);
        let drawn = usable.iter().zip(&weights).find(|(_, weight)| {
            let inside = point < **weight;
            point = point.saturating_sub(**weight);
            inside
        })?;
        for room in usable {
            let of_one = per_directory(room);
            let added = match room.index == drawn.0.index {
                true => penalty(self, room) / 2 + of_one * usable.len() as u128,
                false => penalty(self, room),
            };
            self.penalties.insert(room.index, added.saturating_sub(of_one));
        }
        Some(drawn.0.index)
    }
}

/// Returns the MDTs for one directory, `first` first: the others follow in the order of their indexes. Those
/// that cannot be used are left out, except `first`.
pub(crate) fn spread(rooms: &[Room], first: u16) -> Vec<u16> {
    let start = rooms.iter().position(|room| room.index > first).unwrap_or(0);
    let others = rooms[start..].iter().chain(&rooms[..start]);
    let others = others.filter(|room| room.usable && room.index != first).map(|room| room.index);
    std::iter::once(first).chain(others).collect()
}

/// True if neither space nor inodes differ by more than this percentage.
fn is_even(usable: &[Room], within_pct: u8) -> bool {
    let is_even = |of: fn(&Room) -> u64| {
        let (min, max) = (usable.iter().map(of).min().unwrap_or(0), usable.iter().map(of).max().unwrap_or(0));
        u128::from(max) * u128::from(100u8.saturating_sub(within_pct)) <= u128::from(min) * 100
    };
    is_even(|room| room.bytes) && is_even(|room| room.files)
}

/// True if an MDT has so much more free space than the average that a directory may stay there: at least 16 /
/// (depth + 10) of the average, so more than the average at the root, less deep in the tree.
fn has_enough(room: &Room, usable: &[Room], depth: u32) -> bool {
    let total: u128 = usable.iter().map(Room::weight).sum();
    room.weight() * usable.len() as u128 * (u128::from(depth) + 10) >= total * 16
}

/// Last known free space on all MDTs.
#[derive(Default)]
pub(crate) struct Rooms {
    /// By index, one for each MDT that was known; empty before the first request.
    all: Vec<Room>,
    asked: Option<Instant>,
}

impl Rooms {
    /// Returns the known state, if it includes all `count` MDTs and was requested within `maxage`. Otherwise
    /// the caller has to request it; other threads continue with the known state meanwhile.
    pub fn known(&mut self, count: usize, maxage: Duration, now: Instant) -> Option<Vec<Room>> {
        let is_fresh = self.asked.is_some_and(|asked| now.saturating_duration_since(asked) < maxage);
        if is_fresh && !self.all.is_empty() && self.all.len() >= count {
            return Some(self.all.clone());
        }
        self.asked = Some(now);
        None
    }

    /// Enters replies. Another thread may have asked more MDTs since.
    pub fn learn(&mut self, all: &[Room]) {
        if all.len() >= self.all.len() {
            self.all = all.to_vec();
        }
    }

    /// Makes the next caller of [`Rooms::known`] request the state.
    pub fn ask_again(&mut self) {
        self.asked = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_without_an_mdt_that_has_joined_is_used_by_nobody() {
        let room = |index| Room { index, bytes: GIB, files: 1000, usable: true };
        let (mut rooms, now, maxage) = (Rooms::default(), Instant::now(), Duration::from_secs(5));
        assert!(rooms.known(2, maxage, now).is_none());
        rooms.learn(&[room(0), room(1)]);
        assert_eq!(rooms.known(2, maxage, now).map(|all| all.len()), Some(2));
        // An MDT has joined: a thread's request is unanswered when the next thread needs the state.
        rooms.ask_again();
        assert!(rooms.known(3, maxage, now).is_none());
        assert!(rooms.known(3, maxage, now).is_none());
        rooms.learn(&[room(0), room(1), room(2)]);
        // The reply to a request from before it joined comes last.
        rooms.learn(&[room(0), room(1)]);
        assert_eq!(rooms.known(3, maxage, now).map(|all| all.len()), Some(3));
        // A caller does not wait for another one that repeats the request because the state is too old.
        assert!(rooms.known(3, maxage, now + maxage).is_none());
        assert_eq!(rooms.known(3, maxage, now + maxage).map(|all| all.len()), Some(3));
    }

    const GIB: u64 = 1 << 30;
    const NEAR: Wanted = Wanted { parent: 1, depth: 5, moves: false, in_turn: false };
    const TURN: Wanted = Wanted { in_turn: true, ..NEAR };
    const ASKED: Wanted = Wanted { moves: true, ..NEAR };

    fn rooms(free: &[u64]) -> Vec<Room> {
        let room = |(index, gib): (usize, &u64)| Room {
            index: index as u16,
            bytes: gib * GIB,
            files: 1_000_000,
            usable: true,
        };
        free.iter().enumerate().map(room).collect()
    }

    fn counts(chooser: &mut Chooser, rooms: &[Room], wanted: &Wanted, times: usize) -> Vec<usize> {
        let mut counts = vec![0; rooms.len()];
        for _ in 0..times {
            counts[usize::from(chooser.choose(rooms, wanted, &DirQos::default()).expect("one"))] += 1;
        }
        counts
    }

    #[test]
    fn where_there_is_equal_room_directories_stay_or_go_in_turn() {
        let rooms = rooms(&[100, 98, 96, 100]);
        assert_eq!(counts(&mut Chooser::new(7), &rooms, &NEAR, 100), [0, 100, 0, 0]);
        assert_eq!(counts(&mut Chooser::new(7), &rooms, &TURN, 100), [25; 4]);
        assert_eq!(counts(&mut Chooser::new(7), &rooms, &ASKED, 100), [25; 4]);
        let mut chooser = Chooser::new(2);
        let turns = [(); 6].map(|()| chooser.choose(&rooms, &TURN, &DirQos::default()));
        assert_eq!(turns, [2, 3, 0, 1, 2, 3].map(Some));
    }

    #[test]
    fn fuller_mdts_get_fewer_directories() {
        let rooms = rooms(&[100, 10, 50, 100]);
        for wanted in [NEAR, TURN, ASKED] {
            let counts = counts(&mut Chooser::new(3), &rooms, &wanted, 2000);
            assert!(counts[1] < 150 && counts[2] > 2 * counts[1], "{counts:?}");
            assert!(counts[0] > counts[2] && counts[3] > counts[2], "{counts:?}");
        }
    }

    #[test]
    fn inodes_count_as_space_does() {
        let mut rooms = rooms(&[100, 100, 100]);
        rooms[0].files = 10;
        let counts = counts(&mut Chooser::new(3), &rooms, &TURN, 1000);
        assert!(counts[0] < 5 && counts[1] > 400 && counts[2] > 400, "{counts:?}");
    }

    #[test]
    fn a_directory_stays_where_there_is_more_room_than_elsewhere() {
        let rooms = rooms(&[50, 110, 100, 100]);
        assert_eq!(counts(&mut Chooser::new(9), &rooms, &NEAR, 100)[1], 100);
        let top = Wanted { depth: 0, ..NEAR };
        assert!(counts(&mut Chooser::new(9), &rooms, &top, 100)[1] < 60, "at the root it may go");
        let deep = Wanted { depth: 100, parent: 0, ..NEAR };
        assert_eq!(counts(&mut Chooser::new(9), &rooms, &deep, 100)[0], 100);
    }

    #[test]
    fn what_was_chosen_is_held_back() {
        let qos = DirQos { prio_free_pct: 0, ..DirQos::default() };
        let (rooms, mut chooser) = (rooms(&[100, 70]), Chooser::new(1));
        let chosen: Vec<_> = (0..40).map(|_| chooser.choose(&rooms, &TURN, &qos)).collect();
        let repeated = chosen.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert!(repeated < 10, "{chosen:?}");
    }

    #[test]
    fn full_and_lost_mdts_are_left_out() {
        let mut some = rooms(&[100, 100, 100]);
        some[1].usable = false;
        for wanted in [NEAR, TURN, ASKED] {
            let counts = counts(&mut Chooser::new(5), &some, &wanted, 60);
            assert_eq!((counts[1], counts[0] > 0, counts[2] > 0), (0, true, true), "{wanted:?}");
        }
        some.iter_mut().for_each(|room| room.usable = false);
        assert_eq!(Chooser::new(5).choose(&some, &TURN, &DirQos::default()), None);
        assert_eq!(Chooser::new(5).choose(&[], &TURN, &DirQos::default()), None);
    }

    #[test]
    fn the_thresholds_are_kept() {
        let rooms = rooms(&[100, 60]);
        let with = |threshold_rr_pct| DirQos { threshold_rr_pct, ..DirQos::default() };
        let wanted = Wanted { parent: 1, ..NEAR };
        let elsewhere = |qos: DirQos| {
            let mut chooser = Chooser::new(11);
            (0..100).filter(|_| chooser.choose(&rooms, &wanted, &qos) == Some(0)).count()
        };
        assert_eq!(elsewhere(with(40)), 0);
        assert!(elsewhere(with(39)) > 30);
    }

    #[test]
    fn shards_go_round_from_the_first_one() {
        let mut rooms = rooms(&[1, 1, 1, 1]);
        assert_eq!(spread(&rooms, 2), [2, 3, 0, 1]);
        assert_eq!(spread(&rooms, 3), [3, 0, 1, 2]);
        rooms[0].usable = false;
        assert_eq!(spread(&rooms, 2), [2, 3, 1]);
        assert_eq!(spread(&rooms, 0), [0, 1, 2, 3], "who was named is taken");
        assert_eq!(spread(&[], 0), [0]);
    }
}
