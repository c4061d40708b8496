//! The models on a simulated clock.

use super::super::{BLOCK, MemoryDevice};
use super::*;

pub(super) const MIB: u64 = 1 << 20;

pub(super) fn spec(text: &str) -> MediaSpec {
    text.parse().unwrap_or_else(|()| panic!("{text} is not understood"))
}

/// Returns the seconds that transfers take, one after the other or several at a time.
pub(super) fn seconds(
    model: &mut dyn Model,
    at_once: usize,
    transfers: impl Iterator<Item = (Kind, u64, u64)>,
) -> f64 {
    let (mut now, mut ends) = (Duration::ZERO, Vec::new());
    let mut last = now;
    for (kind, offset, len) in transfers {
        if ends.len() == at_once {
            let next = (0..ends.len()).min_by_key(|at| ends[*at]).expect("some");
            now = now.max(ends.swap_remove(next));
        }
        let end = model.submit(now, kind, offset, len);
        last = last.max(end);
        ends.push(end);
    }
    last.as_secs_f64()
}

#[test]
fn media_are_written_as_they_are_read() {
    for text in ["disk", "flash", "throttle", "disk:queue=1", "flash:full=1:channels=2", "throttle:iops=10"] {
        let known = spec(text);
        assert_eq!(known.to_string().parse(), Ok(known), "{text}");
    }
    assert_eq!(spec("flash").to_string(), spec("flash:spare=7:block=1M:full=0:read=50us").to_string());
    for wrong in
        ["", "tape", "disk:seek", "disk:queue=0", "flash:channels=0", "flash:block=1000", "flash:full=2"]
    {
        assert!(wrong.parse::<MediaSpec>().is_err(), "{wrong}");
    }
}

#[test]
fn a_disk_is_fast_in_order_slow_at_random_and_better_with_a_choice() {
    let size = 1 << 40;
    let MediaSpec::Disk(disk) = spec("disk") else { panic!("a disk") };
    let in_order = (0..1024).map(|at| (Kind::Read, at * MIB, MIB));
    let streaming = 1024.0 / seconds(&mut Disk::new(disk, size), 1, in_order);
    assert!((140.0..=150.0).contains(&streaming), "{streaming:.1} MiB/s");
    let at_random = |at_once| {
        let mut random = fastrand::Rng::with_seed(1);
        let places = (0..2000).map(|_| (Kind::Read, random.u64(..size / BLOCK) * BLOCK, BLOCK));
        let places: Vec<_> = places.collect();
        2000.0 / seconds(&mut Disk::new(disk, size), at_once, places.into_iter())
    };
    let (one, many) = (at_random(1), at_random(32));
    assert!((70.0..=100.0).contains(&one), "{one:.1} transfers/s");
    assert!((3.0..=7.0).contains(&(many / one)), "{many:.1} transfers/s of 32 at a time");
    let ratio = streaming * MIB as f64 / (one * BLOCK as f64);
    assert!(ratio > 300.0, "{ratio:.0}");
}

#[test]
fn limits_hold_and_latency_overlaps() {
    let throttle = |text: &str| match spec(text) {
        MediaSpec::Throttle(spec) => Throttle { spec, free_at: Duration::ZERO },
        other => panic!("{other}"),
    };
    let some = |len| (0..1000).map(move |at| (Kind::Write, at * MIB, len));
    let took = seconds(&mut throttle("throttle:iops=500"), 8, some(BLOCK));
    assert!((took - 2.0).abs() < 0.01, "{took}");
    let took = seconds(&mut throttle("throttle:bandwidth=100M"), 8, some(MIB));
    assert!((took - 10.0).abs() < 0.01, "{took}");
    let took = seconds(&mut throttle("throttle:latency=1ms"), 1, some(BLOCK));
    assert!((took - 1.0).abs() < 0.01, "{took}");
    let took = seconds(&mut throttle("throttle:latency=1ms"), 10, some(BLOCK));
    assert!((took - 0.1).abs() < 0.01, "{took}");
}

#[test]
fn a_simulated_device_does_the_work_takes_the_time_and_says_what_it_is() {
    let inner = Arc::new(MemoryDevice::new(MIB));
    let device = SimulatedDevice::new(inner.clone());
    assert_eq!((device.media(), device.info()), (None, inner.info()));
    device.set_media(Some(spec("throttle:latency=20ms"))).expect("simulated");
    let begun = Instant::now();
    device.write(&[WriteOp { offset: 0, data: &[7; 4096] }]).expect("written");
    let mut buffer = [0; 4096];
    device.read(&mut [ReadOp { offset: 0, buffer: &mut buffer }]).expect("read");
    assert_eq!(buffer, [7; 4096]);
    device.flush().expect("flushed");
    device.discard(0, 4096).expect("discarded");
    assert!(begun.elapsed() >= Duration::from_millis(60));
    assert_eq!(inner.used_bytes(), 0);
    assert_eq!(device.size(), MIB);
    assert!(device.info().name.contains("simulated throttle"), "{}", device.info().name);
    assert!(device.flash_stats().is_none());
    device.set_media(Some(spec("flash"))).expect("simulated");
    assert!(device.info().is_flash && device.flash_stats() == Some(FlashStats::default()));
    device.set_media(None).expect("off");
    assert_eq!(device.info(), inner.info());
}

#[test]
fn flash_is_not_simulated_of_a_device_that_would_take_too_much_memory() {
    let device = SimulatedDevice::new(Arc::new(MemoryDevice::new(FLASH_MAX + MIB)));
    let refused = device.set_media(Some(spec("flash"))).expect_err("refused");
    assert_eq!(refused.raw_os_error(), Some(libc::EFBIG));
    assert_eq!(device.media(), None);
    device.set_media(Some(spec("disk"))).expect("a disk of any size");
}

#[test]
fn the_time_of_a_disk_can_be_worked_out_without_waiting_for_it() {
    let MediaSpec::Disk(disk) = spec("disk:seek=8ms:turn=8ms:bandwidth=100M") else { panic!("a disk") };
    let size = 1 << 30;
    let whole = disk.time_of(size, (0..16).map(|at| vec![(at * MIB, MIB)]));
    assert_eq!(whole, Duration::from_secs_f64(0.16), "16 MiB in one piece from where the head is");
    let apart = disk.time_of(size, (0..16).map(|at| vec![(at * 8 * MIB, MIB)]));
    assert!(apart > whole + Duration::from_millis(15 * 4), "15 times half a turn and a seek: {apart:?}");
    let together = disk.time_of(size, [(0..16).map(|at| (at * 8 * MIB, MIB)).collect()]);
    assert!(together < apart && together > whole, "of several at hand the nearest is first: {together:?}");
}
