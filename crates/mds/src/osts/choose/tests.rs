use super::*;
use proptest::prelude::*;

const QOS: Qos = Qos { threshold_rr_pct: 17, statfs_age: Duration::ZERO, prio_free_pct: 90 };

fn ost(index: u16, available: u64) -> Candidate {
    Candidate {
        index,
        server: 0,
        available: Some(available),
        used: Some(0),
        full: false,
        down: false,
        away: false,
        degraded: false,
        inactive: false,
        ready: true,
    }
}

fn requested(count: u16) -> Wanted<'static> {
    Wanted { count, first: None, used: &[], pool: None }
}

fn choose(osts: &[Candidate], wanted: &Wanted<'_>) -> Vec<usize> {
    Chooser::new(1).choose(osts, wanted, &QOS, 0)
}

/// Returns how often each of `osts` is chosen in `rounds`, one second apart.
fn uses(osts: &[Candidate], count: u16, rounds: u64) -> Vec<u32> {
    let mut chooser = Chooser::new(3);
    let mut uses = vec![0; osts.len()];
    for round in 0..rounds {
        chooser
            .choose(osts, &requested(count), &QOS, round * 1000)
            .into_iter()
            .for_each(|place| uses[place] += 1);
    }
    uses
}

#[test]
fn about_equal_osts_are_used_in_turn() {
    let osts = [ost(0, 100), ost(1, 95), ost(2, 90)];
    assert_eq!(uses(&osts, 2, 30), [20, 20, 20]);
    assert_eq!(uses(&osts, 1, 30), [10, 10, 10]);
    let mut unknown = osts;
    unknown[1].available = None;
    assert_eq!(uses(&unknown, 1, 30), [10, 10, 10]);
}

#[test]
fn first_stripes_move_over_all_osts_whatever_the_stripe_count() {
    let osts: Vec<Candidate> = (0..4).map(|index| ost(index, 100)).collect();
    for count in 1..=4 {
        let mut chooser = Chooser::new(9);
        let mut firsts = [0; 4];
        (0..400).for_each(|_| firsts[chooser.choose(&osts, &requested(count), &QOS, 0)[0]] += 1);
        assert!(firsts.iter().all(|uses| (60..=140).contains(uses)), "{count}: {firsts:?}");
    }
}

#[test]
fn turns_of_pools_are_their_own_and_those_of_servers_alternate() {
    let mut osts: Vec<Candidate> = (0..6).map(|index| ost(index, 100)).collect();
    osts[..3].iter_mut().for_each(|ost| ost.server = 1);
    let order = choose(&osts, &requested(6));
    for pair in order.windows(2) {
        assert_ne!(osts[pair[0]].server, osts[pair[1]].server, "{order:?}");
    }
    let pool = PoolName::for_pool("flash").ok();
    let mut chooser = Chooser::new(5);
    let (mut all, mut of_pool) = ([0; 6], [0; 6]);
    for _ in 0..60 {
        all[chooser.choose(&osts, &requested(1), &QOS, 0)[0]] += 1;
        of_pool[chooser.choose(&osts, &Wanted { pool, ..requested(1) }, &QOS, 0)[0]] += 1;
    }
    assert_eq!((all, of_pool), ([10; 6], [10; 6]));
    chooser.retain_pools(|_| false);
    assert_eq!(chooser.rotations.len(), 1);
}

#[test]
fn unequal_osts_are_used_by_their_free_space_and_full_ones_never() {
    let mut osts = [ost(0, 100 << 20), ost(1, 300 << 20), ost(2, 900 << 20)];
    osts[2].full = true;
    let counts = uses(&osts, 1, 4000);
    assert!((800..1300).contains(&counts[0]) && counts[2] == 0, "{counts:?}");
    // Only spreading counts: about evenly.
    let mut chooser = Chooser::new(3);
    let mut spread = [0u32; 3];
    let qos = Qos { prio_free_pct: 0, ..QOS };
    (0..4000).for_each(|_| spread[chooser.choose(&osts, &requested(1), &qos, 0)[0]] += 1);
    assert!(spread[0] > counts[0] + 200, "{spread:?} against {counts:?}");
}

#[test]
fn the_wanted_first_ost_leads_and_no_ost_is_used_twice() {
    let osts = [ost(0, 1), ost(3, 1000), ost(7, 5)];
    let first = Wanted { first: Some(3), ..requested(3) };
    assert_eq!(choose(&osts, &first), [1, 2, 0]);
}

#[test]
fn the_wanted_first_ost_is_waited_for_unless_it_is_full_or_away() {
    let osts = [
        Candidate { ready: false, degraded: true, ..ost(0, 100) },
        Candidate { full: true, ..ost(1, 100) },
        Candidate { down: true, ..ost(2, 100) },
        ost(3, 100),
    ];
    let from = |first| choose(&osts, &Wanted { first: Some(first), ..requested(1) });
    assert_eq!([from(0), from(1), from(2)], [[0], [3], [3]]);
}

#[test]
fn components_use_other_osts_than_their_neighbours_while_there_are_enough() {
    let osts: Vec<Candidate> = (0..4).map(|index| ost(index, 100)).collect();
    let mut chooser = Chooser::new(2);
    for _ in 0..20 {
        let mut apart = chooser.choose(&osts, &Wanted { used: &[0, 3], ..requested(2) }, &QOS, 0);
        apart.sort_unstable();
        assert_eq!(apart, [1, 2]);
        assert_eq!(chooser.choose(&osts, &Wanted { used: &[0, 3], ..requested(3) }, &QOS, 0).len(), 3);
    }
    let first = Wanted { first: Some(3), used: &[3], ..requested(2) };
    assert_eq!(choose(&osts, &first), [3, 0]);
}

#[test]
fn what_is_degraded_or_not_ready_or_down_is_used_when_nothing_better_is_left() {
    let mut osts = [ost(0, 100), ost(1, 100), ost(2, 100)];
    osts[0].degraded = true;
    assert_eq!(uses(&osts, 1, 20), [0, 10, 10]);
    assert_eq!(choose(&osts, &requested(3)).len(), 3);
    osts[1].ready = false;
    assert_eq!(uses(&osts, 1, 20), [0, 0, 20]);
    osts[2].down = true;
    assert_eq!(
        choose(&osts, &requested(1)),
        [1],
        "one that has to be asked for ids comes before one that is degraded"
    );
    osts[1].full = true;
    assert_eq!(choose(&osts, &requested(2)), [0]);
    osts[0].full = true;
    assert_eq!(choose(&osts, &requested(1)), [2], "down, but the only one");
    osts[2].full = true;
    assert!(choose(&osts, &requested(1)).is_empty());
}

fn any_ost() -> impl Strategy<Value = (Option<u64>, u64, u8)> {
    (proptest::option::weighted(0.95, 0u64..1 << 50), 0u64..3, any::<u8>())
}

proptest! {
    #[test]
    fn choices_are_within_bounds_and_nobody_starves(
        made in proptest::collection::vec(any_ost(), 1..12),
        count in 1u16..14,
        seed: u64,
        prio in 0u8..=100,
        threshold in 0u8..=100,
    ) {
        let osts: Vec<Candidate> = made.iter().enumerate().map(|(at, (available, server, bits))| Candidate {
            index: at as u16 * 3,
            server: *server,
            full: bits & 0x81 == 0x81 || *available == Some(0),
            down: bits & 0x82 == 0x82,
            degraded: bits & 0x84 == 0x84,
            inactive: false,
            ready: bits & 0x88 != 0x88,
            ..ost(0, 0)
        }).zip(&made).map(|(ost, (available, ..))| Candidate { available: *available, ..ost }).collect();
        let mut chooser = Chooser::new(seed);
        let qos = Qos { threshold_rr_pct: threshold, prio_free_pct: prio, ..QOS };
        let good: Vec<usize> =
            (0..osts.len()).filter(|&at| !osts[at].full && !osts[at].down).collect();
        let rounds = 400u64;
        let mut uses = vec![0u32; osts.len()];
        for round in 0..rounds {
            let chosen = chooser.choose(&osts, &requested(count), &qos, round * 10);
            let mut places = chosen.clone();
            places.sort_unstable();
            places.dedup();
            prop_assert_eq!(places.len(), chosen.len(), "none twice");
            prop_assert!(chosen.iter().all(|&at| !osts[at].full), "none that is full");
            match good.is_empty() {
                true => prop_assert_eq!(chosen.is_empty(), osts.iter().all(|ost| ost.full)),
                false => {
                    prop_assert_eq!(chosen.len(), good.len().min(usize::from(count)), "no fewer than there can be");
                    prop_assert!(chosen.iter().all(|at| good.contains(at)), "none that is down");
                }
            }
            chosen.iter().for_each(|&at| uses[at] += 1);
        }
        // An OST with a tenth of the usable space, and nothing against it, is chosen now and then.
        let best: Vec<usize> = good.iter().copied().filter(|&at| !osts[at].degraded && osts[at].ready).collect();
        let all: u128 = good.iter().map(|&at| u128::from(osts[at].available.unwrap_or(0))).sum();
        for &at in &best {
            let share = u128::from(osts[at].available.unwrap_or(0)) * 10 >= all;
            prop_assert!(!share || uses[at] > 0, "{at} of {osts:?}: {uses:?}");
        }
    }
}
