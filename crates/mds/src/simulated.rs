//! Simulated service times of an MDT's operations, for measurements: a fixed number is served at once, the
//! others wait in order of arrival.
//!
//! Where all MDTs share the CPUs of one machine, the effect of another MDT is visible only if an operation
//! takes much longer than its CPU time, as on dedicated servers. All results measured this way must be
//! labelled "simulated".

use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_store::object::simulated::duration;
use nacre_wire::mds::MdsRequest;
use nacre_wire::peer::PeerRequest;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest service time, so that the server stays usable.
const TIME_MAX: Duration = Duration::from_secs(1);
/// Maximum number of operations served at once.
const AT_ONCE_MAX: usize = 1024;

/// Service time and parallelism, written `time=2ms:at_once=1`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServiceTime {
    /// Service time of one operation.
    pub time: Duration,
    /// Number of operations served at once.
    pub at_once: usize,
}

impl fmt::Display for ServiceTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "time={}us:at_once={}", self.time.as_micros(), self.at_once)
    }
}

impl FromStr for ServiceTime {
    type Err = ();

    fn from_str(text: &str) -> Result<ServiceTime, ()> {
        let (mut time, mut at_once) = (None, None);
        for part in text.trim().split(':') {
            match part.split_once('=').ok_or(())? {
                ("time", value) if time.is_none() => time = Some(duration(value).ok_or(())?),
                ("at_once", value) if at_once.is_none() => at_once = value.parse::<usize>().ok(),
                _ => return Err(()),
            }
        }
        let service = ServiceTime { time: time.ok_or(())?, at_once: at_once.unwrap_or(1) };
        let is_sane = !service.time.is_zero()
            && service.time <= TIME_MAX
            && (1..=AT_ONCE_MAX).contains(&service.at_once);
        if is_sane { Ok(service) } else { Err(()) }
    }
}

/// See the [module documentation](self).
#[derive(Default)]
pub struct Simulation {
    is_on: AtomicBool,
    queue: Mutex<Option<Queue>>,
}

struct Queue {
    service: ServiceTime,
    /// Time at which each of the parallel servers is free.
    free_at: Vec<Instant>,
}

impl Queue {
    /// Returns the time at which an operation that arrives now ends.
    fn enter(&mut self, now: Instant) -> Instant {
        let time = self.service.time;
        let Some(free_at) = self.free_at.iter_mut().min() else { return now };
        *free_at = (*free_at).max(now) + time;
        *free_at
    }
}

impl Simulation {
    /// Returns the simulated service time; `None` if there is none.
    pub fn service(&self) -> Option<ServiceTime> {
        self.queue.lock().as_ref().map(|queue| queue.service)
    }

    /// Sets the service time for later operations.
    pub fn set_service(&self, service: Option<ServiceTime>) {
        let now = Instant::now();
        *self.queue.lock() = service.map(|service| Queue { service, free_at: vec![now; service.at_once] });
        self.is_on.store(service.is_some(), Ordering::Relaxed);
    }

    /// Waits for the service time of a request, if it is an operation.
    pub(crate) fn serve(&self, request: &MdsRequest<'_>) {
        if self.is_on.load(Ordering::Relaxed) && is_operation(request) {
            let now = Instant::now();
            let end = self.queue.lock().as_mut().map(|queue| queue.enter(now));
            if let Some(end) = end {
                nacre_env::blocking(|| nacre_env::thread::sleep(end.saturating_duration_since(now)));
            }
        }
    }
}

/// Returns true for operations that a program waits for. Answers to callbacks, pings and the background
/// messages of servers are none: no program waits for them, or else operations with a service time would wait
/// for theirs too.
fn is_operation(request: &MdsRequest<'_>) -> bool {
    match request {
        MdsRequest::Peer(request) => {
            matches!(
                request,
                PeerRequest::Prepare { .. } | PeerRequest::Apply { .. } | PeerRequest::Record { .. }
            )
        }
        MdsRequest::Ping
        | MdsRequest::Locks { .. }
        | MdsRequest::LeaseReleased { .. }
        | MdsRequest::LeaseBusy { .. } => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_times_are_written_as_they_are_read() {
        let service: ServiceTime = "time=2ms:at_once=4".parse().expect("a service time");
        assert_eq!(service, ServiceTime { time: Duration::from_millis(2), at_once: 4 });
        assert_eq!(service.to_string().parse(), Ok(service));
        assert_eq!("time=500us".parse::<ServiceTime>().map(|service| service.at_once), Ok(1));
        for wrong in [
            "",
            "off",
            "time=0us",
            "time=2s",
            "time=2000ms",
            "at_once=2",
            "time=1ms:at_once=0",
            "time=1ms:x=1",
        ] {
            assert_eq!(wrong.parse::<ServiceTime>(), Err(()), "{wrong}");
        }
    }

    #[test]
    fn operations_beyond_those_served_at_once_wait_for_the_first_to_end() {
        let now = Instant::now();
        let service = ServiceTime { time: Duration::from_millis(10), at_once: 2 };
        let mut queue = Queue { service, free_at: vec![now; 2] };
        let after = |ms| now + Duration::from_millis(ms);
        assert_eq!([queue.enter(now), queue.enter(now), queue.enter(now)], [after(10), after(10), after(20)]);
        // A late arrival does not wait, and unused time is lost.
        assert_eq!(queue.enter(after(50)), after(60));
    }

    #[test]
    fn only_operations_are_served_and_only_while_it_is_on() {
        let simulation = Simulation::default();
        let timed = |request: &MdsRequest<'_>| {
            let start = Instant::now();
            simulation.serve(request);
            start.elapsed()
        };
        let service = ServiceTime { time: Duration::from_millis(200), at_once: 1 };
        assert!(timed(&MdsRequest::Statfs) < service.time);
        simulation.set_service(Some(service));
        assert_eq!(simulation.service(), Some(service));
        assert!(timed(&MdsRequest::Ping) < service.time);
        assert!(timed(&MdsRequest::Statfs) >= service.time);
        simulation.set_service(None);
        assert!(timed(&MdsRequest::Statfs) < service.time);
    }
}
