//! A service time that every operation of an MDT takes, for measurements: so many at once, the others in the order in which they
//! come. Where all MDTs share the CPUs of one machine, adding one shows only if an operation takes much longer than its CPU time,
//! as on servers of their own. Whatever is measured so is to be labelled "simulated".

use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_store::object::simulated::duration;
use nacre_wire::mds::MdsRequest;
use nacre_wire::peer::PeerRequest;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest service time, so that nothing stands still.
const TIME_MAX: Duration = Duration::from_secs(1);
/// Most operations at once.
const AT_ONCE_MAX: usize = 1024;

/// What an operation takes. Written `time=2ms:at_once=1`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServiceTime {
    /// Time of one operation.
    pub time: Duration,
    /// Operations that are served at the same time.
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
    /// When each of those that are served at once has ended.
    free_at: Vec<Instant>,
}

impl Queue {
    /// When an operation that comes now has ended.
    fn enter(&mut self, now: Instant) -> Instant {
        let time = self.service.time;
        let Some(free_at) = self.free_at.iter_mut().min() else { return now };
        *free_at = (*free_at).max(now) + time;
        *free_at
    }
}

impl Simulation {
    /// What operations take now; `None` if it is what they take.
    pub fn service(&self) -> Option<ServiceTime> {
        self.queue.lock().as_ref().map(|queue| queue.service)
    }

    /// Changes it for operations that come from now on.
    pub fn set_service(&self, service: Option<ServiceTime>) {
        let now = Instant::now();
        *self.queue.lock() = service.map(|service| Queue { service, free_at: vec![now; service.at_once] });
        self.is_on.store(service.is_some(), Ordering::Relaxed);
    }

    /// Waits as long as the operation would take, if it is one.
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

/// What a program waits for. Answers to callbacks, signs of life and what servers settle among each other later are none: nobody
/// waits for them, or others who wait for a service time would wait for theirs as well.
fn is_operation(request: &MdsRequest<'_>) -> bool {
    match request {
        MdsRequest::Peer(request) => {
            matches!(
                request,
                PeerRequest::Prepare { .. } | PeerRequest::Apply { .. } | PeerRequest::Record { .. }
            )
        }
        MdsRequest::Ping | MdsRequest::Locks { .. } | MdsRequest::LeaseReleased { .. } => false,
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
        // One who comes late waits for nobody, and time that nobody used is lost.
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
