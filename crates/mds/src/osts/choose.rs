//! Choosing OSTs: in turn while they are about equally full, by free space otherwise. Source: reference 4.6.

use nacre_layout::LayoutSpec;
use nacre_layout::layout::STRIPE_COUNT_ALL;
use nacre_types::limits::STRIPE_COUNT_MAX;

/// What the choice needs to know of an OST.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Its index.
    pub index: u16,
    /// Free bytes for new data; `None` if not known yet.
    pub available: Option<u64>,
    /// Takes no new objects for lack of space or inodes.
    pub full: bool,
    /// Did not answer lately, or refuses new objects.
    pub down: bool,
}

impl Candidate {
    fn usable(&self) -> bool {
        !self.full && !self.down
    }
}

/// A pseudo-random number from a counter (splitmix64).
fn random(counter: u64) -> u64 {
    let mut z = counter.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// As [`choose`] for the wish `spec`, leaving out the OSTs `used` by other components of the file if there are enough others.
pub fn choose_apart(
    candidates: &[Candidate],
    spec: &LayoutSpec,
    used: &[u16],
    even_within_percent: u8,
    turn: u64,
) -> Vec<usize> {
    let wanted = match spec.stripe_count {
        Some(STRIPE_COUNT_ALL) => STRIPE_COUNT_MAX,
        Some(count) => count,
        None => 1,
    };
    let is_apart = |place: &usize| candidates[*place].usable() && !used.contains(&candidates[*place].index);
    if spec.first_ost.is_none() && !used.is_empty() {
        let apart: Vec<usize> = (0..candidates.len()).filter(is_apart).collect();
        if apart.len() >= usize::from(wanted) {
            let others: Vec<Candidate> = apart.iter().map(|place| candidates[*place]).collect();
            let chosen = choose(&others, wanted, None, even_within_percent, turn);
            return chosen.into_iter().map(|place| apart[place]).collect();
        }
    }
    choose(candidates, wanted, spec.first_ost, even_within_percent, turn)
}

/// Places in `candidates` (sorted by index) of up to `wanted` OSTs in stripe order; fewer if fewer are usable.
///
/// If nothing is usable but something is only down, that is chosen, so that the caller tries it. `turn` counts calls.
pub fn choose(
    candidates: &[Candidate],
    wanted: u16,
    first: Option<u16>,
    even_within_percent: u8,
    turn: u64,
) -> Vec<usize> {
    let mut usable: Vec<usize> = (0..candidates.len()).filter(|&i| candidates[i].usable()).collect();
    if usable.is_empty() {
        usable = (0..candidates.len()).filter(|&i| !candidates[i].full).collect();
    }
    let count = usize::from(wanted).min(usable.len());
    if let Some(first) = first {
        // From the wanted one on in the order of indexes.
        let start = usable.iter().position(|&i| candidates[i].index >= first).unwrap_or(0);
        return (0..count).map(|i| usable[(start + i) % usable.len()]).collect();
    }
    if count == 0 {
        return Vec::new();
    }
    let known: Option<Vec<u64>> = usable.iter().map(|&i| candidates[i].available).collect();
    match known {
        Some(space) if !is_even(&space, even_within_percent) => weighted(&usable, space, count, turn),
        _ => {
            let start = (turn as usize).wrapping_mul(count) % usable.len();
            (0..count).map(|i| usable[(start + i) % usable.len()]).collect()
        }
    }
}

fn is_even(space: &[u64], within_percent: u8) -> bool {
    let (min, max) = (space.iter().min().copied().unwrap_or(0), space.iter().max().copied().unwrap_or(0));
    let floor = u128::from(max) * u128::from(100u8.saturating_sub(within_percent));
    floor <= u128::from(min) * 100
}

/// Draws without putting back, each with a chance in proportion to its free space.
fn weighted(usable: &[usize], mut space: Vec<u64>, count: usize, turn: u64) -> Vec<usize> {
    let mut chosen = Vec::with_capacity(count);
    for draw in 0..count as u64 {
        let total: u128 = space.iter().map(|&bytes| u128::from(bytes)).sum();
        if total == 0 {
            break;
        }
        let mut point = (u128::from(random(turn.wrapping_mul(4096).wrapping_add(draw))) * total) >> 64;
        for (place, bytes) in space.iter_mut().enumerate() {
            if point < u128::from(*bytes) {
                chosen.push(usable[place]);
                *bytes = 0;
                break;
            }
            point -= u128::from(*bytes);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ost(index: u16, available: u64) -> Candidate {
        Candidate { index, available: Some(available), full: false, down: false }
    }

    #[test]
    fn about_equal_osts_are_used_in_turn() {
        let osts = [ost(0, 100), ost(1, 95), ost(2, 90)];
        let mut uses = [0; 3];
        for turn in 0..30 {
            for place in choose(&osts, 2, None, 17, turn) {
                uses[place] += 1;
            }
        }
        assert_eq!(uses, [20, 20, 20]);
    }

    #[test]
    fn unequal_osts_are_used_by_their_free_space_and_full_ones_never() {
        let mut osts = [ost(0, 100), ost(1, 300), ost(2, 900)];
        osts[2].full = true;
        let mut uses = [0u32; 3];
        for turn in 0..4000 {
            uses[choose(&osts, 1, None, 17, turn)[0]] += 1;
        }
        assert!((850..1150).contains(&uses[0]), "{uses:?}");
        assert_eq!(uses[2], 0);
    }

    #[test]
    fn the_wanted_first_ost_leads_and_no_ost_is_used_twice() {
        let osts = [ost(0, 1), ost(3, 1000), ost(7, 5)];
        assert_eq!(choose(&osts, 3, Some(3), 17, 9), [1, 2, 0]);
        for turn in 0..100 {
            let mut chosen = choose(&osts, 9, None, 17, turn);
            chosen.sort_unstable();
            chosen.dedup();
            assert!(chosen.len() == 3, "{chosen:?}");
        }
    }

    #[test]
    fn components_use_other_osts_than_their_neighbours_while_there_are_enough() {
        let osts = [ost(0, 100), ost(1, 100), ost(2, 100), ost(3, 100)];
        let wish = |count| LayoutSpec { stripe_count: Some(count), ..LayoutSpec::default() };
        for turn in 0..20 {
            let mut apart = choose_apart(&osts, &wish(2), &[0, 3], 17, turn);
            apart.sort_unstable();
            assert_eq!(apart, [1, 2]);
            assert_eq!(choose_apart(&osts, &wish(3), &[0, 3], 17, turn).len(), 3);
            assert_eq!(choose_apart(&osts, &wish(STRIPE_COUNT_ALL), &[0], 17, turn).len(), 4);
        }
        let first = LayoutSpec { first_ost: Some(3), ..wish(2) };
        assert_eq!(choose_apart(&osts, &first, &[3], 17, 0), [3, 0]);
    }

    #[test]
    fn osts_that_are_down_are_tried_only_when_nothing_else_is_left() {
        let mut osts = [ost(0, 100), ost(1, 100)];
        osts[0].down = true;
        assert_eq!(choose(&osts, 2, None, 17, 0), [1]);
        osts[1].full = true;
        assert_eq!(choose(&osts, 2, None, 17, 0), [0]);
        osts[0].full = true;
        assert!(choose(&osts, 2, None, 17, 0).is_empty());
    }
}
