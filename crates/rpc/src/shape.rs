//! A slow fabric on one machine, for tests and benches.
//!
//! Nothing is sent later than without it: each request gets the time at which its answer could have arrived
//! over a fabric with the given latency and bandwidth, and its caller sleeps until then if the answer was
//! sooner. So the wait costs no CPU time, the real work of the machine overlaps with it, and a machine slower
//! than the fabric shows its own speed.

use fastrand::Rng;
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_types::{Status, StatusResult};
use std::fmt::{Display, Formatter, Result};
use std::num::NonZeroU64;
use std::time::Duration;

/// How a request is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// Its connection ends.
    Cut,
    /// Its connection carries nothing from then on, without an error.
    Silence,
}

/// A simulated fabric: properties of each endpoint. Both directions are independent, and so are endpoints.
/// Connection setup is not slowed down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// One-way delay of a byte.
    pub latency: Duration,
    /// Bytes per second each way; 0 for no limit.
    pub bytes_per_second: u64,
    /// CPU time that a client's thread spends for each KiB that it sends or receives, in nanoseconds, in
    /// addition to the real cost.
    pub cpu_ns_per_kib: u32,
    /// Lost requests per million.
    pub loss_ppm: u32,
    /// Kind of loss.
    pub loss: Loss,
    /// Seed of the losses; the same seed and the same requests give the same losses.
    pub seed: u64,
}

impl Default for Shape {
    /// Returns a shape without effect.
    fn default() -> Shape {
        Shape {
            latency: Duration::ZERO,
            bytes_per_second: 0,
            cpu_ns_per_kib: 0,
            loss_ppm: 0,
            loss: Loss::Cut,
            seed: 1,
        }
    }
}

impl Shape {
    /// Returns the label for figures measured over this fabric.
    pub fn describe(&self) -> String {
        self.to_string()
    }
}

/// Returns the value of a word of a shape and the factor of its suffix.
fn number(word: &str, suffixes: &[(&str, f64)]) -> StatusResult<f64> {
    let (digits, factor) = suffixes
        .iter()
        .find_map(|(suffix, factor)| word.strip_suffix(suffix).map(|digits| (digits, *factor)))
        .unwrap_or((word, 1.0));
    let value: f64 = digits.parse().map_err(|_| Status::EINVAL)?;
    // A larger value is a mistake and would overflow elsewhere.
    if (0.0..=1e15).contains(&value) { Ok(value * factor) } else { Err(Status::ERANGE) }
}

impl std::str::FromStr for Shape {
    type Err = Status;

    /// Reads `bandwidth=1G,latency=200us,cpu=20,loss=100,silence,seed=7`: bytes per second (K, M, G are
    /// powers of 1000), one-way latency (us, ms, s), nanoseconds per KiB, lost requests per million; each may
    /// be left out.
    ///
    /// # Errors
    /// `EINVAL` for another form, `ERANGE` for numbers out of range.
    fn from_str(text: &str) -> StatusResult<Shape> {
        let mut shape = Shape::default();
        for word in text.split(',').map(str::trim) {
            match word.split_once('=') {
                Some(("bandwidth", value)) => {
                    shape.bytes_per_second = number(value, &[("K", 1e3), ("M", 1e6), ("G", 1e9)])? as u64;
                }
                Some(("latency", value)) => {
                    let seconds = number(value, &[("us", 1e-6), ("ms", 1e-3), ("s", 1.0)])?;
                    if seconds > 60.0 {
                        return Err(Status::ERANGE);
                    }
                    shape.latency = Duration::from_secs_f64(seconds);
                }
                Some(("cpu", value)) => shape.cpu_ns_per_kib = value.parse().map_err(|_| Status::EINVAL)?,
                Some(("loss", value)) => {
                    shape.loss_ppm = value.parse().map_err(|_| Status::EINVAL)?;
                    if shape.loss_ppm > 1_000_000 {
                        return Err(Status::ERANGE);
                    }
                }
                Some(("seed", value)) => shape.seed = value.parse().map_err(|_| Status::EINVAL)?,
                None if word == "silence" => shape.loss = Loss::Silence,
                None if word == "cut" => shape.loss = Loss::Cut,
                _ => return Err(Status::EINVAL),
            }
        }
        Ok(shape)
    }
}

impl Display for Shape {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str("simulated fabric: ")?;
        match self.bytes_per_second {
            0 => f.write_str("unlimited bandwidth")?,
            bandwidth => write!(f, "{:.2} GB/s", bandwidth as f64 / 1e9)?,
        }
        write!(f, " and {:.3} ms each way per endpoint", self.latency.as_secs_f64() * 1e3)?;
        if self.cpu_ns_per_kib > 0 {
            write!(f, ", {} ns of CPU time per KiB", self.cpu_ns_per_kib)?;
        }
        if self.loss_ppm > 0 {
            let how = match self.loss {
                Loss::Cut => "cut",
                Loss::Silence => "silent",
            };
            write!(f, ", {} of a million requests lost ({how}, seed {})", self.loss_ppm, self.seed)?;
        }
        Ok(())
    }
}

/// The simulated fabric of one endpoint.
#[derive(Debug)]
pub(crate) struct Fabric {
    shape: Shape,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When the last byte so far has left, to the server and back.
    free_at: [Instant; 2],
    random: Rng,
}

impl Fabric {
    /// Creates the fabric of endpoint `number`.
    pub(crate) fn new(shape: Shape, number: usize) -> Fabric {
        let now = Instant::now();
        // A seed per endpoint: endpoints lose different requests.
        let random = Rng::with_seed(shape.seed ^ ((number as u64) << 32));
        Fabric { shape, state: Mutex::new(State { free_at: [now, now], random }) }
    }

    /// Returns when the answer to a request sent at `now` can arrive; `sent` and `answered` in bytes. An
    /// answer leaves when its request has arrived.
    pub(crate) fn schedule(&self, now: Instant, sent: usize, answered: usize) -> Instant {
        let mut state = self.state.lock();
        let mut at = now;
        for (free_at, bytes) in state.free_at.iter_mut().zip([sent, answered]) {
            *free_at = at.max(*free_at) + self.duration(bytes);
            at = *free_at + self.shape.latency;
        }
        at
    }

    fn duration(&self, bytes: usize) -> Duration {
        match self.shape.bytes_per_second {
            0 => Duration::ZERO,
            rate => Duration::from_nanos((bytes as u128 * 1_000_000_000 / u128::from(rate)) as u64),
        }
    }

    /// Returns whether and how the next request is lost.
    pub(crate) fn loses_next(&self) -> Option<Loss> {
        if self.shape.loss_ppm == 0 {
            return None;
        }
        let drawn = self.state.lock().random.u32(..1_000_000);
        (drawn < self.shape.loss_ppm).then_some(self.shape.loss)
    }

    /// Spends the fabric's CPU time for this number of bytes.
    pub(crate) fn spend(&self, bytes: usize) {
        let cost = bytes as u64 * u64::from(self.shape.cpu_ns_per_kib) / 1024;
        if cost == 0 {
            return;
        }
        let end = Instant::now() + Duration::from_nanos(cost);
        while Instant::now() < end {
            std::hint::spin_loop();
        }
    }
}

/// Slack of the sleeping thread's timers, in nanoseconds.
const TIMER_SLACK_NS: Option<NonZeroU64> = NonZeroU64::new(1000);

/// Sleeps until `at`, or until `called_off`, polled at intervals, returns true. Kernel timers may be 50
/// microseconds late to save power; threads that sleep here reduce that slack.
pub(crate) fn sleep_until(at: Instant, called_off: impl Fn() -> bool) {
    thread_local! {
        static PUNCTUAL: bool = rustix::thread::set_current_timer_slack(TIMER_SLACK_NS).is_ok();
    }
    let left = || at.saturating_duration_since(Instant::now());
    if !left().is_zero() {
        // If the kernel refuses, sleeps are a little longer.
        PUNCTUAL.with(|_| ());
    }
    while !left().is_zero() && !called_off() {
        nacre_env::thread::sleep(left().min(crate::tcp::TICK));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> Shape {
        Shape { latency: Duration::from_millis(1), bytes_per_second: 1_000_000, ..Shape::default() }
    }

    #[test]
    fn requests_queue_for_bandwidth_and_not_for_latency() {
        let fabric = Fabric::new(shape(), 0);
        let now = Instant::now();
        let ms = |at: Instant| (at - now).as_millis();
        // 1000 bytes take 1 ms. The way there: 1 + 1, back: 10 + 1.
        assert_eq!(ms(fabric.schedule(now, 1000, 10_000)), 13);
        // The second request arrives at 3 ms, but the way back is busy until 12 ms.
        assert_eq!(ms(fabric.schedule(now, 1000, 10_000)), 23);
        // Another endpoint is another fabric.
        assert_eq!(ms(Fabric::new(shape(), 1).schedule(now, 1000, 10_000)), 13);
    }

    #[test]
    fn directions_do_not_hold_each_other_up() {
        let fabric = Fabric::new(shape(), 0);
        let now = Instant::now();
        fabric.schedule(now, 0, 50_000);
        let write = fabric.schedule(now, 10_000, 0) - now;
        assert!(write >= Duration::from_millis(11), "its own bytes take time");
        let sent = fabric.state.lock().free_at[0] - now;
        assert_eq!(sent.as_millis(), 10, "the read before it does not delay them");
    }

    #[test]
    fn losses_follow_the_seed() {
        let lossy = Shape { loss_ppm: 100_000, seed: 7, ..shape() };
        let losses = |shape, number| {
            let fabric = Fabric::new(shape, number);
            (0..1000).map(|_| fabric.loses_next().is_some()).collect::<Vec<bool>>()
        };
        assert_eq!(losses(lossy, 0), losses(lossy, 0));
        assert_ne!(losses(lossy, 0), losses(lossy, 1));
        assert_ne!(losses(lossy, 0), losses(Shape { seed: 8, ..lossy }, 0));
        let count = losses(lossy, 0).iter().filter(|lost| **lost).count();
        assert!((50..200).contains(&count), "{count} of 1000");
        assert!(!losses(shape(), 0).contains(&true));
    }

    #[test]
    fn a_shape_can_be_written_as_text() {
        let read = |text: &str| text.parse::<Shape>();
        let wanted = Shape {
            latency: Duration::from_micros(200),
            bytes_per_second: 1_500_000_000,
            cpu_ns_per_kib: 20,
            loss_ppm: 100,
            loss: Loss::Silence,
            seed: 7,
        };
        assert_eq!(read("bandwidth=1.5G,latency=0.2ms,cpu=20, loss=100,silence,seed=7"), Ok(wanted));
        assert_eq!(read("latency=1s").map(|shape| shape.latency), Ok(Duration::from_secs(1)));
        for bad in ["", "fast", "bandwidth=", "bandwidth=x", "latency=nan", "seed=-1", "cpu=1.5"] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
        for large in ["bandwidth=-1", "latency=61s", "loss=1000001", "bandwidth=1e300"] {
            assert_eq!(read(large), Err(Status::ERANGE), "{large:?}");
        }
    }

    #[test]
    fn a_description_says_that_it_is_simulated() {
        let text = Shape { bytes_per_second: 1_000_000_000, ..shape() }.describe();
        assert_eq!(text, "simulated fabric: 1.00 GB/s and 1.000 ms each way per endpoint");
        let text = Shape { loss_ppm: 5, cpu_ns_per_kib: 9, ..Shape::default() }.describe();
        assert!(
            text.starts_with("simulated") && text.contains("5 of a million") && text.contains("9 ns"),
            "{text}"
        );
    }
}
