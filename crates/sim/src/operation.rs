//! Operations of programs, decided before a run.

use fastrand::Rng;
use nacre_client::LockMode;
use std::fmt;

/// Number of different names.
const NAMES: u8 = 4;
/// Deepest path in components.
const DEPTH_MAX: usize = 3;
/// Open files of a program at most.
pub(crate) const SLOTS: u8 = 3;
/// Different extended attributes.
const ATTRIBUTES: u8 = 2;
/// Parts of a file that are locked.
const PARTS: u8 = 3;

/// A path from the root: numbers of names.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Path(pub Vec<u8>);

impl Path {
    fn random(random: &mut Rng) -> Path {
        let depth = [1, 1, 2, 2, 2, DEPTH_MAX][random.usize(..6)];
        Path((0..depth).map(|_| random.u8(..NAMES)).collect())
    }

    /// Returns the path of a directory, possibly the root.
    fn directory(random: &mut Rng) -> Path {
        let depth = [0, 1, 1, 2][random.usize(..4)];
        Path((0..depth).map(|_| random.u8(..NAMES)).collect())
    }
}

/// Returns the name with this number.
pub(crate) fn name(number: u8) -> Vec<u8> {
    vec![b'a' + number % NAMES]
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|number| write!(f, "/{}", name(*number).escape_ascii()))?;
        if self.0.is_empty() { f.write_str("/") } else { Ok(()) }
    }
}

/// Where a new directory is placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Where the default of its parent places it.
    Default,
    /// On this MDT.
    Mdt(u8),
    /// With shards on all MDTs.
    Striped,
}

/// What a file lock covers, and what holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Region {
    /// The whole file, for the open file (`flock`).
    File,
    /// A part of the file and those that follow up to another one, for the program (`fcntl`).
    Parts(u8, u8),
}

/// All parts of a file.
pub(crate) const ALL_PARTS: Region = Region::Parts(0, PARTS - 1);

/// An operation of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(
    missing_docs,
    reason = "the names are those of the system calls and their arguments; Remount is in a new process; Relocate is \
              `lfs migrate`, Restripe is `lfs setdirstripe` of a directory that exists, Migrate is `lfs migrate -m`"
)]
pub enum Operation {
    Open { slot: u8, path: Path, create: bool, exclusive: bool, truncate: bool },
    Close { slot: u8 },
    Write { slot: u8, offset: u64, len: u32, sync: bool },
    Append { slot: u8, len: u32 },
    Read { slot: u8, offset: u64, len: u32 },
    Truncate { path: Path, size: u64 },
    Stat { path: Path },
    Mkdir { path: Path, place: Place },
    Rmdir { path: Path },
    Unlink { path: Path },
    Link { from: Path, to: Path },
    Rename { from: Path, to: Path },
    List { path: Path },
    SetXattr { path: Path, name: u8, value: u8 },
    GetXattr { path: Path, name: u8 },
    Fsync { slot: u8 },
    FsyncDir { path: Path },
    Sleep { ms: u32 },
    Lock { slot: u8, region: Region, mode: LockMode, wait: bool },
    Remount,
    Relocate { slot: u8, stripes: u8 },
    Restripe { path: Path, shards: u8 },
    Migrate { path: Path, mdt: u8, shards: u8 },
}

/// Returns an offset near one of the places where something changes: the end of what a client holds back, of
/// the part on the MDT, and of stripes.
fn offset(random: &mut Rng) -> u64 {
    let base = [0, 0, 0, 32 << 10, 64 << 10, 128 << 10][random.usize(..6)];
    base + [0, 1, 100, 4096, 5000][random.usize(..5)]
}

fn length(random: &mut Rng) -> u32 {
    [1, 100, 4096, 5000, 20_000, 70_000][random.usize(..6)]
}

/// What the programs of a run do most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Profile {
    /// Everything, in a tree of some depth.
    Mixed,
    /// Data of two files that all programs share.
    Data,
    /// Names in a few directories.
    Names,
}

impl Profile {
    pub(crate) const ALL: [Profile; 3] = [Profile::Mixed, Profile::Data, Profile::Names];

    fn path(self, random: &mut Rng) -> Path {
        match self {
            Profile::Mixed => Path::random(random),
            Profile::Data => Path(vec![random.u8(..2)]),
            Profile::Names => Path((0..random.usize(1..=2)).map(|_| random.u8(..3)).collect()),
        }
    }

    /// Returns how often each kind of operation occurs, in the order of [`Operation::of_kind`].
    fn weights(self) -> [u32; 18] {
        match self {
            Profile::Mixed => [7, 2, 6, 3, 4, 2, 3, 4, 1, 2, 2, 3, 1, 1, 1, 2, 1, 1],
            Profile::Data => [8, 3, 12, 5, 12, 5, 6, 0, 0, 2, 1, 1, 0, 0, 0, 5, 0, 2],
            Profile::Names => [8, 3, 1, 0, 1, 2, 4, 6, 3, 5, 3, 8, 3, 3, 4, 1, 2, 1],
        }
    }
}

impl Operation {
    /// Returns an operation on a file system with this number of MDTs.
    pub(crate) fn random(random: &mut Rng, mdts: u8, profile: Profile) -> Operation {
        let weights = profile.weights();
        let mut chosen = random.u32(..weights.iter().sum::<u32>());
        let kind = weights.iter().position(|weight| match chosen.checked_sub(*weight) {
            Some(left) => {
                chosen = left;
                false
            }
            None => true,
        });
        Operation::of_kind(kind.unwrap_or(0), random, mdts, profile)
    }

    fn of_kind(kind: usize, random: &mut Rng, mdts: u8, profile: Profile) -> Operation {
        let path = profile.path(random);
        let slot = random.u8(..SLOTS);
        match kind {
            0 => {
                let (create, exclusive) =
                    (random.u8(..6) > 0, random.u8(..4) == 0 && profile != Profile::Data);
                Operation::Open { slot, path, create, exclusive, truncate: random.u8(..8) == 0 }
            }
            1 => Operation::Close { slot },
            2 => {
                let (offset, len) = (offset(random), length(random));
                Operation::Write { slot, offset, len, sync: random.u8(..10) == 0 }
            }
            3 => Operation::Append { slot, len: length(random) },
            4 => Operation::Read { slot, offset: offset(random), len: length(random) * 2 },
            5 => Operation::Truncate { path, size: offset(random) },
            6 => Operation::Stat { path },
            7 => {
                let place = match random.u8(..6) {
                    0 | 1 => Place::Mdt(random.u8(..mdts)),
                    2 if mdts > 1 => Place::Striped,
                    _ => Place::Default,
                };
                Operation::Mkdir { path, place }
            }
            8 => Operation::Rmdir { path },
            9 => Operation::Unlink { path },
            10 => Operation::Link { from: path, to: profile.path(random) },
            11 => Operation::Rename { from: path, to: profile.path(random) },
            12 => Operation::List { path: Path::directory(random) },
            13 => Operation::SetXattr { path, name: random.u8(..ATTRIBUTES), value: random.u8(1..) },
            14 => Operation::GetXattr { path, name: random.u8(..ATTRIBUTES) },
            15 => Operation::Fsync { slot },
            16 => Operation::FsyncDir { path: Path::directory(random) },
            _ => Operation::Sleep { ms: [1, 50, 300, 1500][random.usize(..4)] },
        }
    }

    /// Returns a move of data or names.
    pub(crate) fn random_move(random: &mut Rng, mdts: u8) -> Operation {
        match random.u8(..4) {
            0 if mdts > 1 => {
                Operation::Restripe { path: Path(vec![random.u8(..NAMES)]), shards: random.u8(1..=mdts) }
            }
            1 if mdts > 1 => {
                let path = Path((0..random.usize(1..=2)).map(|_| random.u8(..NAMES)).collect());
                let shards = if random.u8(..3) == 0 { random.u8(1..=mdts) } else { 1 };
                Operation::Migrate { path, mdt: random.u8(..mdts), shards }
            }
            _ => Operation::Relocate { slot: random.u8(..SLOTS), stripes: random.u8(1..=2) },
        }
    }

    /// Returns an operation on a file lock.
    pub(crate) fn random_lock(random: &mut Rng) -> Operation {
        let first = random.u8(..PARTS);
        let region = match random.u8(..3) {
            0 => Region::File,
            _ => Region::Parts(first, random.u8(first..PARTS)),
        };
        let mode = [LockMode::Read, LockMode::Write, LockMode::Write, LockMode::Unlock][random.usize(..4)];
        Operation::Lock { slot: random.u8(..SLOTS), region, mode, wait: random.bool() }
    }
}
