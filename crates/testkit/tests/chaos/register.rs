//! Linearizability of a register whose written values are all different.
//!
//! Each value has a zone in time. If all of its operations are over before another one of them begins, it was the value
//! from the first end to the last beginning (forward zone); otherwise it may have been the value for a moment only, within
//! the time that all of its operations share (backward zone). There is an order of all operations exactly if no two
//! forward zones overlap and none contains a backward one (Gibbons and Korach, 1997).

use std::collections::BTreeMap;
use std::time::Instant;

/// What an operation did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Write,
    Read,
}

/// An operation, with the times between which it took effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    pub kind: Kind,
    pub value: u64,
    pub begin: Instant,
    pub end: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Zone {
    value: u64,
    /// First end of an operation.
    first: Instant,
    /// Last beginning of an operation.
    last: Instant,
}

impl Zone {
    fn is_forward(&self) -> bool {
        self.first < self.last
    }
}

/// Returns why no order of the operations explains their values; `None` if there is one. The register has the value 0
/// from `start` on.
pub fn contradiction(start: Instant, operations: &[Operation]) -> Option<String> {
    let initial = Operation { kind: Kind::Write, value: 0, begin: start, end: start };
    let mut zones: BTreeMap<u64, (Option<Operation>, Zone)> = BTreeMap::new();
    for operation in operations.iter().chain([&initial]) {
        let Operation { kind, value, begin, end } = *operation;
        let zone = Zone { value, first: end, last: begin };
        let (write, zone) = zones.entry(value).or_insert((None, zone));
        (zone.first, zone.last) = (zone.first.min(end), zone.last.max(begin));
        if kind == Kind::Write {
            *write = Some(*operation);
        }
    }
    for operation in operations.iter().filter(|operation| operation.kind == Kind::Read) {
        match zones[&operation.value].0 {
            None => return Some(format!("a read returned {:x}, which was never written", operation.value)),
            Some(write) if operation.end < write.begin => {
                return Some(format!("a read returned {:x} before it was written", operation.value));
            }
            Some(_) => {}
        }
    }
    let (mut forward, backward): (Vec<Zone>, Vec<Zone>) =
        zones.into_values().map(|(_, zone)| zone).partition(Zone::is_forward);
    forward.sort_by_key(|zone| zone.first);
    let overlap = forward.windows(2).find(|pair| pair[1].first < pair[0].last);
    if let Some([one, other]) = overlap {
        return Some(format!("the values {:x} and {:x} replace each other", one.value, other.value));
    }
    // Forward zones do not overlap, so only the last one that begins before a backward zone can contain it.
    let inside = backward.iter().find_map(|zone| {
        let before = forward.partition_point(|other| other.first < zone.last);
        let around = before.checked_sub(1).map(|index| forward[index])?;
        (zone.first < around.last).then_some((zone.value, around.value))
    });
    inside.map(|(value, around)| format!("{value:x} was the value while {around:x} was, before and after"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Operations as (kind, value, begin, end), from time 0 on.
    fn verdict(operations: &[(Kind, u64, u64, u64)]) -> Option<String> {
        let start = Instant::now();
        let at = |time| start + Duration::from_millis(time);
        let made = |&(kind, value, begin, end): &(Kind, u64, u64, u64)| Operation {
            kind,
            value,
            begin: at(begin),
            end: at(end),
        };
        contradiction(start, &operations.iter().map(made).collect::<Vec<_>>())
    }

    #[test]
    fn reads_during_a_write_return_the_old_value_or_the_new_one() {
        use Kind::{Read, Write};
        assert_eq!(
            verdict(&[(Write, 1, 10, 20), (Read, 0, 11, 12), (Read, 1, 13, 14), (Read, 1, 30, 31)]),
            None
        );
        assert_eq!(verdict(&[(Write, 1, 10, 20), (Write, 2, 10, 20), (Read, 1, 30, 31)]), None);
    }

    #[test]
    fn stale_reads_lost_writes_and_values_from_nowhere_are_contradictions() {
        use Kind::{Read, Write};
        assert!(verdict(&[(Write, 1, 10, 20), (Read, 0, 30, 31)]).is_some(), "stale");
        assert!(verdict(&[(Write, 1, 10, 20), (Read, 1, 13, 14), (Read, 0, 15, 16)]).is_some(), "back again");
        assert!(verdict(&[(Read, 7, 13, 14)]).is_some(), "from nowhere");
        assert!(verdict(&[(Read, 1, 5, 6), (Write, 1, 10, 20)]).is_some(), "from the future");
        let both =
            [(Write, 1, 10, 20), (Write, 2, 10, 20), (Read, 1, 30, 31), (Read, 2, 32, 33), (Read, 1, 34, 35)];
        assert!(verdict(&both).is_some(), "two values in turns");
    }
}
