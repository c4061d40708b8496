//! Faults, decided before a run.

use crate::cluster::Shape;
use crate::model::Rules;
use fastrand::Rng;
use std::time::Duration;

/// A host, by what it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "each has the number of the target or client")]
pub enum Node {
    Mdt(u8),
    Ost(u8),
    Client(u8),
}

impl Node {
    fn server(random: &mut Rng, shape: Shape) -> Node {
        let number = random.u8(..shape.mdts + shape.osts);
        number.checked_sub(shape.mdts).map_or(Node::Mdt(number), Node::Ost)
    }

    fn any(random: &mut Rng, shape: Shape) -> Node {
        let number = random.u8(..shape.mdts + shape.osts + shape.clients);
        number.checked_sub(shape.mdts + shape.osts).map_or_else(|| Node::server(random, shape), Node::Client)
    }
}

/// What happens to hosts and the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// All connections to a server break, with what is in transit.
    Break(Node),
    /// Nothing from the first host reaches the second, and with `both` the reverse.
    Partition {
        /// Sender.
        from: Node,
        /// Receiver.
        to: Node,
        /// Both directions.
        both: bool,
    },
    /// A host reaches no other.
    Isolate(Node),
    /// The process of a server is killed, and started again at the end of the fault.
    Kill(Node),
    /// The host of a server loses power, and starts again at the end of the fault.
    Power(Node),
    /// The process is stopped and continued.
    Pause(Node),
    /// The process of a client is killed, within a call of its program or between two, with what it holds back, and does
    /// not return. Not client 0, which reads everything at the end.
    Die(u8),
    /// The wall clock of a process jumps by so many seconds.
    Clock(Node, i32),
    /// No further space on an OST.
    Full(u8),
    /// Writes and syncs of an OST fail.
    IoErrors(u8),
    /// An OST takes this time in milliseconds for each transfer.
    Slow(u8, u32),
}

/// A fault with its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timed {
    /// Begin, after the programs have begun.
    pub at: Duration,
    /// Its duration.
    pub lasts: Duration,
    /// What happens.
    pub fault: Fault,
}

/// Durations in milliseconds: shorter than any time-out, than pings, than the deadlines of locks, and longer.
const LASTS_MS: [u64; 6] = [20, 300, 2000, 6000, 15_000, 40_000];
/// Duration from which a host may count as dead.
const EVICTION: Duration = Duration::from_secs(5);
/// Returns true if a node that `is_meant` does not run during the fault, or others do not reach it.
pub(crate) fn takes_away(fault: &Fault, is_meant: impl Fn(&Node) -> bool) -> bool {
    match fault {
        Fault::Kill(node) | Fault::Power(node) | Fault::Isolate(node) | Fault::Pause(node) => is_meant(node),
        Fault::Partition { from, to, .. } => is_meant(from) || is_meant(to),
        _ => false,
    }
}

/// Duration from which an MDT may find no objects for a file.
const STARVED: Duration = Duration::from_secs(20);

impl Timed {
    /// Returns the death of a client within `span`.
    pub(crate) fn death(random: &mut Rng, shape: Shape, span: Duration) -> Timed {
        let fault = Fault::Die(random.u8(1..shape.clients));
        Timed { at: span.mul_f64(random.f64()), lasts: Duration::ZERO, fault }
    }

    /// Returns a fault that begins within `span`.
    pub(crate) fn random(random: &mut Rng, shape: Shape, span: Duration, power: bool) -> Timed {
        let at = span.mul_f64(random.f64());
        // Long ones are rare, as they leave little time for others.
        let lasts = LASTS_MS[random.usize(..LASTS_MS.len()).min(random.usize(..LASTS_MS.len()))];
        let server = Node::server(random, shape);
        let fault = match random.u8(..20) {
            0..3 => Fault::Break(server),
            3..5 => Fault::Partition { from: server, to: Node::any(random, shape), both: random.bool() },
            5 => Fault::Partition { from: Node::any(random, shape), to: server, both: random.bool() },
            6 => Fault::Isolate(Node::any(random, shape)),
            7..11 => Fault::Kill(server),
            11..14 if power => Fault::Power(server),
            11..14 => Fault::Kill(server),
            14 | 15 => Fault::Pause(Node::any(random, shape)),
            16 => Fault::Clock(Node::any(random, shape), random.i32(-4000..4000)),
            17 => Fault::Full(random.u8(..shape.osts)),
            18 => Fault::IoErrors(random.u8(..shape.osts)),
            _ => Fault::Slow(random.u8(..shape.osts), [1, 20, 300][random.usize(..3)]),
        };
        Timed { at, lasts: Duration::from_millis(lasts), fault }
    }
}

/// Returns true if a client may be evicted because of this fault.
pub(crate) fn evicts(timed: &Timed) -> bool {
    let cuts = matches!(timed.fault, Fault::Partition { .. } | Fault::Isolate(_) | Fault::Pause(_));
    cuts && timed.lasts >= EVICTION
}

/// Returns what these faults allow.
pub(crate) fn rules(faults: &[Timed]) -> Rules {
    let mut rules = Rules::default();
    let (mut loses_power, mut ost_loses_power, mut dies) = (false, false, false);
    for timed in faults {
        let Timed { lasts, fault, .. } = timed;
        rules.downtime |= *lasts >= EVICTION;
        rules.starves |= *lasts >= STARVED && takes_away(fault, |node| matches!(node, Node::Ost(_)));
        match fault {
            Fault::Power(Node::Mdt(_)) => loses_power = true,
            Fault::Power(_) => ost_loses_power = true,
            Fault::Partition { .. } | Fault::Isolate(_) | Fault::Pause(_) => rules.evictions |= evicts(timed),
            Fault::Full(_) => rules.full = true,
            Fault::IoErrors(_) => rules.io_errors = true,
            Fault::Die(_) => dies = true,
            Fault::Break(_) | Fault::Kill(_) | Fault::Clock(..) | Fault::Slow(..) => {}
        }
    }
    // Clients replay what targets lose, unless they are evicted or die meanwhile, or the target takes no data again.
    rules.mdt_power = loses_power && (rules.evictions || dies);
    rules.ost_power = ost_loses_power && (rules.evictions || dies || rules.full || rules.io_errors);
    rules
}
