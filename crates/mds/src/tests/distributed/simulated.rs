//! Several concurrent clients, under the scheduler of a simulation.

use super::*;
use nacre_env::sim::Outcome;
use nacre_env::thread;

const MDTS: u16 = 3;
const STEPS: usize = 30;

/// Runs concurrent clients, each on its own thread: they create, move, link and remove the same few names in
/// directories of all MDTs. Returns the remaining name space.
fn clients_at_once(seed: u64) -> Outcome<Tree> {
    sim::run(options(seed), || {
        let world = World::new(MDTS, seed);
        let dirs: Vec<Fid> = (0..MDTS).map(|mdt| world.fid(mdt)).collect();
        for (mdt, dir) in dirs.iter().enumerate() {
            world.make(Fid::ROOT, &format!("dir{mdt}"), *dir, true).expect("made");
        }
        thread::scope(|scope| {
            for number in 0..3 {
                let (world, dirs) = (&world, &dirs);
                scope.spawn(move || {
                    let client = Client::connect(world, number + 2);
                    let mut dice = Rng::with_seed(seed * 3 + u64::from(number));
                    (0..STEPS).for_each(|_| client.act(dirs, &mut dice));
                });
            }
        });
        world.recover();
        let tree = world.tree();
        world.check();
        tree
    })
}

/// A client connected to all MDTs.
struct Client<'a> {
    world: &'a World,
    exports: Vec<Arc<Export>>,
}

impl Client<'_> {
    fn connect(world: &World, number: u8) -> Client<'_> {
        let connect = |mdt| {
            let export = export(number, Nid::Lo).0;
            world.net.get(mdt).expect("alive").connect(&export).expect("connects");
            export
        };
        Client { world, exports: (0..MDTS).map(connect).collect() }
    }

    fn run(&self, mdt: u16, request: &MdsRequest<'_>) -> StatusResult<MdsReply> {
        let mds = self.world.net.get(mdt).expect("alive");
        let cred = Cred::system();
        mds.handle(&self.exports[usize::from(mdt)], &Call::new(&cred), request).map(|answer| answer.reply)
    }

    fn act(&self, dirs: &[Fid], dice: &mut Rng) {
        const NAMES: [&str; 3] = ["a", "b", "c"];
        let mut place = || (dirs[pick(dice, dirs.len())], NAMES[pick(dice, NAMES.len())]);
        let (from, to) = (place(), place());
        let (parent, name, mdt) = (from.0, from.1.as_bytes(), from.0.mdt_index());
        let outcome = match pick(dice, 5) {
            0 | 1 => {
                let (fid, new, mode) = (self.world.fid(mdt), NewFile::Node { rdev: 0 }, 0o100_644);
                let (open, exclusive) = (None, true);
                self.run(
                    mdt,
                    &MdsRequest::Create { parent, name, fid, new, mode, umask: 0o022, open, exclusive },
                )
            }
            2 => self.run(mdt, &single::rename(from, to)),
            3 => match self.run(mdt, &MdsRequest::Lookup { parent, name }) {
                Ok(MdsReply::Entry { attr: Some(attr), .. }) => {
                    let link = MdsRequest::Link { fid: attr.fid, parent: to.0, name: to.1.as_bytes() };
                    self.run(to.0.mdt_index(), &link)
                }
                other => other,
            },
            _ => self.run(mdt, &MdsRequest::Unlink { parent, name, directory: false }),
        };
        match outcome {
            Ok(_) | Err(Status::ENOENT | Status::EEXIST) => {}
            Err(status) => panic!("{from:?} {to:?}: {status:?}"),
        }
    }
}

#[test]
fn a_seed_gives_clients_at_once_the_same_steps_each_time() {
    let (first, again) = (clients_at_once(1), clients_at_once(1));
    let differs = first.steps.iter().zip(&again.steps).position(|(one, other)| one != other);
    if let Some(at) = differs {
        panic!("step {at}: {} and {}", first.steps[at], again.steps[at]);
    }
    assert_eq!(
        (first.steps.len(), first.time, &first.result),
        (again.steps.len(), again.time, &again.result)
    );
    assert!(first.steps.len() > 100, "{} steps", first.steps.len());
}

#[test]
fn what_several_clients_do_at_once_leaves_a_name_space_that_is_whole() {
    // For more seeds: NACRE_SEEDS=1000.
    let seeds = std::env::var("NACRE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(12);
    let trees: BTreeSet<String> =
        (0..seeds).map(|seed| format!("{:?}", clients_at_once(seed).result)).collect();
    assert!(trees.len() as u64 * 2 > seeds, "{} name spaces of {seeds} seeds", trees.len());
}

/// One thread does everything there except the background work of stores: their threads take their steps at
/// the same points, too.
#[test]
fn a_seed_gives_servers_that_die_the_same_steps_each_time() {
    let simulate = || sim::run(options(77), || run(77, 60, 6));
    let (first, again) = (simulate(), simulate());
    assert_eq!((first.result, first.steps, first.time), (again.result, again.steps, again.time));
}
