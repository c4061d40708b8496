use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

const TIMEOUT: Duration = Duration::from_secs(10);

fn client(number: u8) -> ClientUuid {
    ClientUuid([number; 16])
}

fn engine(known: &[ClientUuid], now: Instant) -> LeaseEngine {
    LeaseEngine::new(0, TIMEOUT, known, now + TIMEOUT)
}

#[test]
fn the_second_client_waits_until_the_first_has_dropped_its_caches() {
    let now = Instant::now();
    let mut lease = engine(&[], now);
    let mut effects = Vec::new();
    lease.on_connect(now, client(1), &mut effects);
    let grant = Grant { exclusive: true, epoch: 1 };
    assert_eq!(effects, [Effect::Granted { client: client(1), grant }]);
    effects.clear();
    lease.on_connect(now, client(2), &mut effects);
    let shared = Grant { exclusive: false, epoch: 2 };
    assert_eq!(effects, [Effect::Callback { client: client(1), grant: shared }]);
    assert_eq!(lease.grant_of(&client(2)), None);
    effects.clear();
    lease.on_released(now, client(1), 1, &mut effects);
    assert_eq!(effects, [], "a release of an older epoch does not count");
    lease.on_released(now, client(1), 2, &mut effects);
    let grant = Grant { exclusive: false, epoch: 3 };
    assert_eq!(effects, [Effect::Granted { client: client(2), grant }]);
}

#[test]
fn a_client_that_is_alone_drops_its_caches_when_it_is_asked_to_and_caches_again() {
    let now = Instant::now();
    let mut lease = engine(&[], now);
    let mut effects = Vec::new();
    lease.on_connect(now, client(1), &mut effects);
    effects.clear();
    lease.on_recall(now, client(1), &mut effects);
    let shared = Grant { exclusive: false, epoch: 2 };
    assert_eq!(effects, [Effect::Callback { client: client(1), grant: shared }]);
    lease.on_recall(now, client(1), &mut effects);
    assert_eq!(effects.len(), 1, "asked once");
    effects.clear();
    lease.on_released(now, client(1), 2, &mut effects);
    let grant = Grant { exclusive: true, epoch: 3 };
    assert_eq!(effects, [Effect::Callback { client: client(1), grant }]);
}

#[test]
fn a_client_that_does_not_release_is_evicted_and_the_next_one_is_alone() {
    let now = Instant::now();
    let mut lease = engine(&[], now);
    let mut effects = Vec::new();
    lease.on_connect(now, client(1), &mut effects);
    lease.on_connect(now, client(2), &mut effects);
    effects.clear();
    let mut tick = now;
    while effects.is_empty() || matches!(effects[..], [Effect::Callback { .. }]) {
        effects.clear();
        tick = lease.next_deadline().expect("it is awaited");
        lease.on_tick(tick, &mut effects);
    }
    assert_eq!((tick, &effects[..]), (now + TIMEOUT, &[Effect::Evict { client: client(1) }][..]));
    effects.clear();
    lease.on_fenced(now + TIMEOUT, client(1), &mut effects);
    let grant = Grant { exclusive: true, epoch: 3 };
    assert_eq!(effects, [Effect::Granted { client: client(2), grant }]);
}

#[test]
fn a_client_that_was_silent_before_is_awaited_for_a_moment_unless_it_is_heard_again() {
    let now = Instant::now();
    for is_heard in [false, true] {
        let (mut lease, mut effects) = (engine(&[], now), Vec::new());
        lease.on_connect(now, client(1), &mut effects);
        lease.on_silence(&client(1), true);
        assert_eq!(lease.next_deadline(), None, "it is alone");
        lease.on_connect(now, client(2), &mut effects);
        lease.on_silence(&client(1), true);
        assert_eq!(lease.next_deadline(), Some(now + SILENT_GRACE));
        effects.clear();
        lease.on_silence(&client(1), !is_heard);
        lease.on_tick(now + SILENT_GRACE, &mut effects);
        let evicted = if is_heard { vec![] } else { vec![Effect::Evict { client: client(1) }] };
        assert_eq!(effects, evicted);
    }
}

#[test]
fn a_client_that_answers_repeated_callbacks_is_awaited_up_to_a_bound() {
    let now = Instant::now();
    let mut lease = engine(&[], now);
    let mut effects = Vec::new();
    lease.on_connect(now, client(1), &mut effects);
    lease.on_connect(now, client(2), &mut effects);
    let shared = Grant { exclusive: false, epoch: 2 };
    let end = loop {
        effects.clear();
        let tick = lease.next_deadline().expect("it is awaited");
        lease.on_tick(tick, &mut effects);
        let [Effect::Callback { client: asked, grant }] = effects[..] else { break tick };
        assert_eq!((asked, grant), (client(1), shared), "the same callback again");
        lease.on_busy(tick, client(1), 1);
        lease.on_busy(tick, client(1), grant.epoch);
    };
    assert_eq!((end, &effects[..]), (now + BUSY_MAX, &[Effect::Evict { client: client(1) }][..]));
}

#[test]
fn a_client_that_was_busy_and_releases_is_called_back_no_more() {
    let now = Instant::now();
    let mut lease = engine(&[], now);
    let mut effects = Vec::new();
    lease.on_connect(now, client(1), &mut effects);
    lease.on_connect(now, client(2), &mut effects);
    lease.on_busy(now + TIMEOUT / 2, client(1), 2);
    lease.on_released(now + TIMEOUT, client(1), 2, &mut effects);
    assert_eq!(lease.next_deadline(), None);
    lease.on_busy(now + TIMEOUT, client(1), 2);
    assert_eq!(lease.next_deadline(), None, "a late report changes nothing");
}

#[test]
fn one_who_comes_back_while_it_is_fenced_is_somebody_new() {
    let now = Instant::now();
    let mut lease = engine(&[], now);
    let mut effects = Vec::new();
    lease.on_connect(now, client(1), &mut effects);
    lease.on_connect(now, client(2), &mut effects);
    lease.on_tick(now + TIMEOUT, &mut effects);
    effects.clear();
    lease.on_connect(now, client(1), &mut effects);
    lease.on_released(now, client(1), 2, &mut effects);
    lease.on_tick(now + TIMEOUT * 3, &mut effects);
    assert_eq!((&effects[..], lease.grant_of(&client(2))), (&[][..], None), "nobody gets in meanwhile");
    lease.on_fenced(now, client(1), &mut effects);
    assert!(
        matches!(effects[..], [
            Effect::Granted { client: first, grant: Grant { exclusive: false, .. } },
            Effect::Granted { client: second, .. }
        ] if first == client(2) && second == client(1)),
        "{effects:?}"
    );
    effects.clear();
    lease.on_fenced(now, client(1), &mut effects);
    assert_eq!(effects, [], "once is enough");
}

#[test]
fn another_time_to_release_counts_from_the_next_revocation() {
    let now = Instant::now();
    let mut lease = engine(&[], now);
    let mut effects = Vec::new();
    lease.on_connect(now, client(1), &mut effects);
    lease.set_release_timeout(TIMEOUT / 5);
    lease.on_connect(now, client(2), &mut effects);
    effects.clear();
    lease.on_tick(now + TIMEOUT / 5, &mut effects);
    assert_eq!(effects, [Effect::Evict { client: client(1) }]);
}

#[test]
fn the_last_client_gets_the_lease_exclusive_again() {
    let now = Instant::now();
    let mut lease = engine(&[], now);
    let mut effects = Vec::new();
    lease.on_connect(now, client(1), &mut effects);
    lease.on_connect(now, client(2), &mut effects);
    lease.on_released(now, client(1), 2, &mut effects);
    effects.clear();
    lease.on_disconnect(now, client(2), &mut effects);
    let grant = Grant { exclusive: true, epoch: 4 };
    assert_eq!(effects, [Effect::Callback { client: client(1), grant }]);
}

#[test]
fn after_a_restart_a_stranger_waits_for_the_one_that_was_alone() {
    let now = Instant::now();
    let mut lease = engine(&[client(1)], now);
    let mut effects = Vec::new();
    lease.on_connect(now, client(2), &mut effects);
    assert_eq!(effects, []);
    lease.on_connect(now, client(1), &mut effects);
    assert!(matches!(effects[0], Effect::Granted { grant: Grant { exclusive: true, .. }, .. }));
    let Effect::Callback { client: called, grant } = effects[1] else { panic!("{effects:?}") };
    assert_eq!((called, grant.exclusive), (client(1), false));
    effects.clear();
    lease.on_released(now, client(1), grant.epoch, &mut effects);
    assert!(matches!(effects[..], [Effect::Granted { client: c, .. }] if c == client(2)));
}

#[test]
fn after_a_restart_clients_that_shared_come_back_without_waiting() {
    let now = Instant::now();
    let mut lease = engine(&[client(1), client(2)], now);
    let mut effects = Vec::new();
    lease.on_connect(now, client(2), &mut effects);
    assert!(matches!(effects[..], [Effect::Granted { grant: Grant { exclusive: false, .. }, .. }]));
    effects.clear();
    lease.on_tick(now + TIMEOUT, &mut effects);
    assert_eq!(effects, [Effect::Evict { client: client(1) }]);
    effects.clear();
    lease.on_fenced(now + TIMEOUT, client(1), &mut effects);
    assert!(matches!(effects[..], [Effect::Callback { grant: Grant { exclusive: true, .. }, .. }]));
}

#[test]
fn clients_of_the_last_run_have_their_time_from_when_they_can_come() {
    let now = Instant::now();
    let mut lease = engine(&[client(1), client(2)], now);
    let mut effects = Vec::new();
    // The server takes longer to start than the recovery window.
    lease.expect_until(now + TIMEOUT * 100);
    lease.on_tick(now + TIMEOUT * 10, &mut effects);
    assert_eq!(effects, []);
    let listening = now + TIMEOUT * 10;
    lease.expect_until(listening + TIMEOUT);
    lease.on_connect(listening, client(2), &mut effects);
    assert!(matches!(effects[..], [Effect::Granted { .. }]));
    effects.clear();
    lease.on_tick(listening + TIMEOUT - Duration::from_millis(1), &mut effects);
    assert_eq!(effects, []);
    lease.on_tick(listening + TIMEOUT, &mut effects);
    assert_eq!(effects, [Effect::Evict { client: client(1) }]);
}

/// State of the clients, derived only from effects.
#[derive(Default)]
struct World {
    /// Admitted clients, which may cache (exclusive or not), with the newest grant.
    inside: HashMap<ClientUuid, Grant>,
    /// Clients whose lease was revoked and that have not answered.
    dropping: HashSet<ClientUuid>,
    /// Clients that were given up and are not fenced yet.
    fencing: Vec<ClientUuid>,
}

impl World {
    fn take(&mut self, effects: &mut Vec<Effect>) {
        for effect in effects.drain(..) {
            match effect {
                Effect::Granted { client, grant } => {
                    let known = self.inside.insert(client, grant).is_some();
                    assert!(known || self.fencing.is_empty(), "let in beside one who may still do harm");
                }
                Effect::Callback { client, grant } => {
                    let before = self.inside.insert(client, grant).expect("callbacks go to those inside");
                    if before.exclusive && !grant.exclusive {
                        self.dropping.insert(client);
                    }
                }
                Effect::Evict { client } => {
                    self.inside.remove(&client);
                    self.dropping.remove(&client);
                    self.fencing.push(client);
                }
            }
        }
    }

    fn fence(&mut self, lease: &mut LeaseEngine, now: Instant, effects: &mut Vec<Effect>) {
        while let Some(client) = self.fencing.pop() {
            lease.on_fenced(now, client, effects);
            self.take(effects);
        }
    }

    fn check(&self) {
        let exclusive = self.inside.values().filter(|grant| grant.exclusive).count();
        assert!(exclusive <= 1, "two clients are each alone");
        if exclusive == 1 || !self.dropping.is_empty() {
            assert_eq!(self.inside.len(), 1, "somebody was let in beside a client that still caches");
        }
    }
}

proptest! {
    #[test]
    fn nobody_is_let_in_beside_a_client_that_caches(
        known in proptest::collection::hash_set(0u8..4, 0..3),
        events in proptest::collection::vec((0u8..7, 0u8..4), 0..60),
    ) {
        let mut now = Instant::now();
        let known: Vec<ClientUuid> = known.into_iter().map(client).collect();
        let mut lease = engine(&known, now);
        let (mut world, mut effects) = (World::default(), Vec::new());
        for (event, number) in events {
            let who = client(number);
            match event {
                0 | 1 => lease.on_connect(now, who, &mut effects),
                2 => {
                    world.inside.remove(&who);
                    world.dropping.remove(&who);
                    lease.on_disconnect(now, who, &mut effects);
                }
                3 => {
                    if let Some(grant) = world.inside.get(&who).filter(|_| world.dropping.remove(&who)) {
                        lease.on_released(now, who, grant.epoch, &mut effects);
                    }
                }
                4 => world.fence(&mut lease, now, &mut effects),
                5 => {
                    if let Some(grant) = world.inside.get(&who) {
                        lease.on_busy(now, who, grant.epoch);
                    }
                }
                _ => {
                    now += TIMEOUT / 2;
                    lease.on_tick(now, &mut effects);
                }
            }
            world.take(&mut effects);
            world.check();
        }
        // Once all clients answer, all waiting clients are admitted.
        for _ in 0..3 {
            now += TIMEOUT;
            lease.on_tick(now, &mut effects);
            world.take(&mut effects);
            world.fence(&mut lease, now, &mut effects);
            world.check();
        }
        for number in 0..4 {
            lease.on_connect(now, client(number), &mut effects);
            world.take(&mut effects);
            for dropped in std::mem::take(&mut world.dropping) {
                let epoch = world.inside[&dropped].epoch;
                lease.on_released(now, dropped, epoch, &mut effects);
                world.take(&mut effects);
            }
            world.check();
        }
        prop_assert_eq!(world.inside.len(), 4);
    }
}
