//! Flash that is overwritten, with and without trim.

use super::super::MediaSpec;
use super::super::tests::{MIB, seconds, spec};
use super::*;

/// Returns a drive of 256 MiB, 64 KiB a block.
fn drive(full: bool) -> (Flash, u64) {
    let text = format!("flash:channels=4:block=64k:full={}", u8::from(full));
    let MediaSpec::Flash(flash) = spec(&text) else { panic!("flash") };
    (Flash::new(flash, 256 * MIB), 256 * MIB / BLOCK)
}

/// Writes pages at random places below `end`; returns writes per second and the amplification.
fn overwrite(flash: &mut Flash, end: u64, count: u64, random: &mut fastrand::Rng) -> (f64, f64) {
    let before = flash.stats;
    let begun = flash.free_at.iter().copied().max().unwrap_or_default();
    let places: Vec<_> = (0..count).map(|_| random.u64(..end) * BLOCK).collect();
    let mut now = begun;
    for offset in places {
        now = flash.submit(now, Kind::Write, offset, BLOCK);
    }
    let per_second = count as f64 / (now - begun).as_secs_f64();
    (per_second, flash.stats.amplification(&before))
}

#[test]
fn flash_that_is_not_told_what_is_free_writes_ever_more_and_recovers_when_it_is() {
    let (mut flash, pages) = drive(false);
    let mut random = fastrand::Rng::with_seed(7);
    // Half of a new drive.
    let (fresh, amplification) = overwrite(&mut flash, pages / 2, pages / 2, &mut random);
    assert!(amplification < 1.01, "{amplification:.2}");
    let (mut full, _) = drive(true);
    assert_eq!((full.stats.used, full.stats.written), (pages, 0));
    // The same half of a drive that was filled once; the other half is free, but not trimmed.
    overwrite(&mut full, pages / 2, pages, &mut random);
    let (slow, worn) = overwrite(&mut full, pages / 2, pages, &mut random);
    assert!(worn > 1.5, "{worn:.2}");
    assert!(slow < fresh / 1.3, "{slow:.0} of {fresh:.0} pages/s");
    // All of it: only the spare space is free.
    let (mut busy, _) = drive(true);
    overwrite(&mut busy, pages, 2 * pages, &mut random);
    let (slowest, most) = overwrite(&mut busy, pages, pages, &mut random);
    assert!(most > 3.0 && slowest < slow, "{most:.2}, {slowest:.0} pages/s");
    let last = full.submit(Duration::ZERO, Kind::Discard, 128 * MIB, 128 * MIB);
    assert!(last > Duration::ZERO);
    assert_eq!((full.stats.discarded, full.stats.used), (pages / 2, pages / 2));
    overwrite(&mut full, pages / 2, pages / 4, &mut random);
    let (again, recovered) = overwrite(&mut full, pages / 2, pages, &mut random);
    assert!(recovered < 1.2 && recovered < worn, "{recovered:.2} after {worn:.2}");
    assert!(again > slow * 1.2, "{again:.0} after {slow:.0} pages/s");
}

#[test]
fn flash_works_on_all_channels_at_a_time() {
    let rate = |channels: u64| {
        let MediaSpec::Flash(spec) = spec(&format!("flash:channels={channels}")) else { panic!("flash") };
        let mut flash = Flash::new(spec, 64 * MIB);
        let transfers = (0..64).map(|at| (Kind::Write, at * MIB, MIB));
        64.0 / seconds(&mut flash, 4, transfers)
    };
    let (one, eight) = (rate(1), rate(8));
    assert!((18.0..=20.0).contains(&one), "{one:.1} MiB/s");
    assert!((7.5..=8.1).contains(&(eight / one)), "{eight:.1} MiB/s");
}

#[test]
fn pages_and_blocks_of_flash_add_up_whatever_is_done() {
    let (mut flash, pages) = drive(false);
    let mut random = fastrand::Rng::with_seed(3);
    for round in 0..20_000 {
        let offset = random.u64(..pages) * BLOCK;
        let len = random.u64(1..=40) * BLOCK;
        let kind = match random.u8(..8) {
            0 => Kind::Discard,
            1 => Kind::Read,
            _ => Kind::Write,
        };
        flash.submit(Duration::from_millis(round), kind, offset, len);
    }
    let held = flash.holds.iter().filter(|page| **page != NONE).count() as u64;
    assert_eq!(held, flash.stats.used);
    assert_eq!(flash.in_use.iter().map(|count| u64::from(*count)).sum::<u64>(), held);
    for (page, place) in flash.places.iter().enumerate().filter(|(_, place)| **place != NONE) {
        assert_eq!(flash.holds[*place as usize], page as u32);
    }
    assert!(flash.erased.iter().all(|block| flash.in_use[*block] == 0));
    assert!(flash.stats.copied > 0 && flash.stats.erased > 0);
}
