//! Property test: the server against a plain list of granted locks and waiting requests.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

const CLIENTS: u8 = 3;

#[derive(Clone, Debug)]
enum Step {
    Enqueue(Asked),
    /// Cancels the lock or request at this place of the list, modulo its length.
    Cancel(usize),
    Convert {
        place: usize,
        mode: Mode,
        bits: InodeBits,
    },
    Disconnect(u8),
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    /// 0 is the target itself, perhaps on behalf of a client.
    client: u8,
    on_behalf_of: Option<u8>,
    need: Need,
    optional: InodeBits,
    flags: EnqueueFlags,
}

/// A lock or request as its client knows it. The list is in the order of arrival.
#[derive(Clone, Debug)]
struct Entry {
    client: u8,
    on_behalf_of: Option<u8>,
    handle: u64,
    requested: Need,
    optional: InodeBits,
    granted: Option<Need>,
    called_back: bool,
}

impl Entry {
    /// True if this lock is held and conflicts with a request.
    fn holds_up(&self, need: &Need, on_behalf_of: Option<u8>) -> bool {
        let for_one = on_behalf_of.is_some()
            && (on_behalf_of == Some(self.client) || on_behalf_of == self.on_behalf_of);
        self.granted.is_some_and(|held| held.conflicts_with(need)) && !for_one
    }
}

#[derive(Default)]
struct Model {
    entries: Vec<Entry>,
    handles: u64,
}

impl Model {
    fn entry(&mut self, client: u8, handle: u64) -> &mut Entry {
        let same = |entry: &&mut Entry| entry.client == client && entry.handle == handle;
        self.entries.iter_mut().find(same).expect("effects name locks that are there")
    }

    fn is_waited_for(&self, client: u8) -> bool {
        self.entries.iter().any(|entry| entry.client == client && entry.called_back)
    }

    fn take_effects(&mut self, world: &mut World) {
        for effect in std::mem::take(&mut world.effects) {
            match effect {
                Effect::Completion { peer, handle, grant } => {
                    let entry = self.entry(peer.client.0[0], handle.0);
                    assert_eq!(entry.granted, None, "granted once");
                    entry.granted = Some(grant.need);
                }
                Effect::Callback { peer, handle, wanted, .. } => {
                    let entry = self.entry(peer.client.0[0], handle.0);
                    let held = entry.granted.expect("only granted locks are called back");
                    // A callback does not name the requested group.
                    let wants = wanted.conflicts_with(held.mode, &held.policy) || held.mode == Mode::Group;
                    assert!(wants, "{wanted:?} {held:?}");
                    entry.called_back = true;
                }
                other => panic!("not expected: {other:?}"),
            }
        }
    }

    fn run(&mut self, world: &mut World, step: &Step) {
        match step {
            Step::Enqueue(asked) => self.enqueue(world, asked),
            Step::Cancel(place) if !self.entries.is_empty() => {
                let entry = self.entries.remove(place % self.entries.len());
                world.cancel(entry.client, entry.handle);
            }
            Step::Convert { place, mode, bits } if !self.entries.is_empty() => {
                let place = place % self.entries.len();
                self.convert(world, place, *mode, *bits);
            }
            Step::Disconnect(client) => {
                self.entries.retain(|entry| entry.client != *client);
                world.server.on_disconnect(world.now, peer(*client).client, &mut world.effects);
                world.server.on_connect(world.now, peer(*client), &mut world.effects);
            }
            _ => {}
        }
        self.take_effects(world);
    }

    fn enqueue(&mut self, world: &mut World, asked: &Asked) {
        self.handles += 1;
        let Asked { client, on_behalf_of, need, optional, flags } = *asked;
        let (handle, requested) = (self.handles, aligned(need));
        let extents = matches!(need.policy, Policy::Extent(_));
        let optional = if extents { InodeBits::NONE } else { optional };
        let resource = if extents { FILE } else { INODE };
        let request = Enqueue { handle: LockHandle(handle), resource, need, optional, flags };
        let waits = |entry: &Entry| entry.granted.is_none() && entry.requested.conflicts_with(&requested);
        let joins = |entry: &Entry| {
            entry.granted.is_some_and(|held| held.mode == Mode::Group && held.group == need.group)
        };
        let group = need.mode == Mode::Group && self.entries.iter().any(joins);
        let held_up = self.entries.iter().any(|entry| entry.holds_up(&requested, on_behalf_of));
        let owes = on_behalf_of.is_some_and(|client| self.is_waited_for(client));
        let free = !held_up && (group || owes || !self.entries.iter().any(waits));
        let outcome = ask(world, client, on_behalf_of, &request);
        let mut entry =
            Entry { client, on_behalf_of, handle, requested, optional, granted: None, called_back: false };
        match outcome {
            Outcome::Granted(grant) => {
                assert!(free, "{requested:?} was not free");
                entry.granted = Some(grant.need);
            }
            Outcome::Waiting => assert!(!free && !flags.no_wait, "{requested:?} was free"),
            Outcome::Refused(Refusal::WouldBlock) => {
                assert!(!free && flags.no_wait, "{requested:?} was free");
                return;
            }
            other => panic!("not expected: {other:?}"),
        }
        self.entries.push(entry);
        assert_eq!(ask(world, client, on_behalf_of, &request), outcome, "repeated");
    }

    fn convert(&mut self, world: &mut World, place: usize, mode: Mode, bits: InodeBits) {
        let entry = &self.entries[place];
        let (client, handle) = (entry.client, LockHandle(entry.handle));
        let keep = match entry.requested.policy {
            Policy::Bits(_) => Policy::Bits(bits),
            extent => extent,
        };
        let result =
            world.server.on_convert(world.now, peer(client), handle, mode, &keep, &mut world.effects);
        let Some(held) = entry.granted else {
            return assert_eq!(result, Err(Refusal::Invalid));
        };
        // A stronger mode is taken for an old message.
        let mode = if mode.serves(held.mode) { held.mode } else { mode };
        if held.mode == Mode::Group || !held.mode.serves(mode) {
            return assert_eq!(result, Err(Refusal::Invalid));
        }
        assert_eq!(result, Ok(()));
        let policy = match held.policy {
            Policy::Bits(before) => Policy::Bits(before.intersection(bits)),
            extent => extent,
        };
        if policy == Policy::Bits(InodeBits::NONE) {
            self.entries.remove(place);
        } else if (Need { mode, policy, group: 0 }) != held {
            self.entries[place].granted = Some(Need { mode, policy, group: 0 });
            self.entries[place].called_back = false;
        }
    }

    fn check(&self, world: &World) {
        for (place, entry) in self.entries.iter().enumerate() {
            let known = world.server.granted(peer(entry.client), LockHandle(entry.handle));
            assert_eq!(known, entry.granted, "client and server agree");
            match entry.granted {
                Some(held) => self.check_granted(place, entry, &held),
                None => {
                    let mut others = self.entries.iter().enumerate();
                    let blocker = others.find(|(other, blocker)| match blocker.granted {
                        Some(_) => blocker.holds_up(&entry.requested, entry.on_behalf_of),
                        None => *other < place && blocker.requested.conflicts_with(&entry.requested),
                    });
                    assert!(blocker.is_some(), "nobody is in the way of {entry:?}");
                }
            }
        }
        assert_eq!(world.server.locks(), self.entries.len());
    }

    fn check_granted(&self, place: usize, entry: &Entry, held: &Need) {
        if let (Policy::Bits(bits), Policy::Bits(asked)) = (held.policy, entry.requested.policy) {
            assert!(asked.union(entry.optional).contains(bits), "nobody asked for {bits}");
        }
        for (other, second) in self.entries.iter().enumerate() {
            match second.granted {
                Some(beside) if other != place => {
                    let of_one = entry.on_behalf_of == Some(second.client)
                        || second.on_behalf_of == Some(entry.client)
                        || entry.on_behalf_of.is_some() && entry.on_behalf_of == second.on_behalf_of;
                    assert!(of_one || !held.conflicts_with(&beside), "{held:?} {beside:?}");
                }
                None if entry.client != 0 && entry.holds_up(&second.requested, second.on_behalf_of) => {
                    assert!(entry.called_back, "{entry:?} has not been called back for {second:?}");
                }
                _ => {}
            }
        }
    }
}

fn ask(world: &mut World, client: u8, on_behalf_of: Option<u8>, request: &Enqueue) -> Outcome {
    if client > 0 {
        return world.request(peer(client), *request);
    }
    let on_behalf_of = on_behalf_of.map(|number| peer(number).client);
    world.server.on_local_enqueue(world.now, request, on_behalf_of, None, &mut world.effects)
}

fn need() -> impl Strategy<Value = Need> {
    let mode = prop::sample::select(vec![Mode::Ex, Mode::Pw, Mode::Pr, Mode::Cw, Mode::Cr, Mode::Nl]);
    let extents =
        (mode.clone(), 0u64..24, 1u64..6, any::<bool>()).prop_map(|(mode, first, count, to_end)| {
            let last = if to_end { Extent::EOF } else { (first + count) * 4096 - 1 };
            Need::extent(mode, Extent { start: first * 4096, last })
        });
    let bits = (mode, 1u8..)
        .prop_map(|(mode, bits)| Need::bits(mode, InodeBits::from_bits(bits).expect("seven bits")));
    prop_oneof![4 => extents, 3 => bits, 1 => (1u64..3).prop_map(Need::group)]
}

fn step() -> impl Strategy<Value = Step> {
    let bits = any::<u8>().prop_map(|bits| InodeBits::from_bits(bits).expect("every bit has a meaning"));
    let flags = (prop::bool::weighted(0.2), prop::bool::weighted(0.1)).prop_map(|(no_expansion, no_wait)| {
        EnqueueFlags { no_expansion, no_wait, ..EnqueueFlags::default() }
    });
    let enqueue = (0..=CLIENTS, prop::option::of(1..=CLIENTS), need(), bits.clone(), flags).prop_map(
        |(client, on_behalf_of, need, optional, flags)| {
            let on_behalf_of = on_behalf_of.filter(|_| client == 0);
            Step::Enqueue(Asked { client, on_behalf_of, need, optional, flags })
        },
    );
    let convert = (any::<usize>(), prop::sample::select(Mode::ALL.to_vec()), bits)
        .prop_map(|(place, mode, bits)| Step::Convert { place, mode, bits });
    prop_oneof![
        12 => enqueue,
        8 => any::<usize>().prop_map(Step::Cancel),
        2 => convert,
        1 => (1..=CLIENTS).prop_map(Step::Disconnect),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_server_does_what_the_list_says(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::new(CLIENTS);
        let mut model = Model::default();
        for step in &steps {
            model.run(&mut world, step);
            model.check(&world);
        }
        // All held locks are released, repeatedly: every waiting request is granted.
        let waited: BTreeSet<(u8, u64)> = model
            .entries
            .iter()
            .filter(|entry| entry.granted.is_none())
            .map(|entry| (entry.client, entry.handle))
            .collect();
        let mut served = BTreeSet::new();
        while !model.entries.is_empty() {
            let place = model.entries.iter().position(|entry| entry.granted.is_some());
            let place = place.expect("somebody holds a lock while others wait");
            served.insert((model.entries[place].client, model.entries[place].handle));
            model.run(&mut world, &Step::Cancel(place));
            model.check(&world);
        }
        prop_assert!(waited.is_subset(&served));
        prop_assert_eq!(world.server.locks(), 0);
        // Contention is remembered for a while.
        world.pass(Duration::from_secs(60));
        prop_assert_eq!(world.server.resources(), 0);
        prop_assert_eq!(world.server.next_deadline(), None);
    }
}
