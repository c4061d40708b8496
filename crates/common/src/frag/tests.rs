use super::*;
use fastrand::Rng;

const MIB: u64 = 1 << 20;
const UNIT: Unit = Unit { bytes: MIB };

/// Extents of these lengths, contiguous in a file and apart on the device.
fn scattered(lengths: &[u64]) -> Vec<Extent> {
    let mut logical = 0;
    let place = |(index, &length): (usize, &u64)| {
        let extent = Extent { logical, physical: (index as u64) << 40, length };
        logical += length;
        extent
    };
    lengths.iter().enumerate().map(place).collect()
}

fn figure(files: &[Vec<Extent>]) -> f64 {
    let mut figures = FileFigures::default();
    files.iter().for_each(|file| figures.add("f", file, UNIT));
    figures.fragmentation
}

#[test]
fn files_in_one_piece_are_not_fragmented_whatever_their_size() {
    assert_eq!(figure(&[]), 0.0);
    assert_eq!(figure(&[scattered(&[4096]), scattered(&[10 * MIB + 1]), scattered(&[MIB])]), 0.0);
}

#[test]
fn a_file_cut_into_halves_of_units_takes_twice_the_transfers() {
    assert_eq!(figure(&[scattered(&[MIB / 2; 16])]), 0.5);
    let pages = figure(&[scattered(&[4096; 256])]);
    assert_eq!(pages, 1.0 - 1.0 / 256.0);
}

#[test]
fn cuts_at_the_ends_of_units_and_holes_cost_nothing() {
    assert_eq!(figure(&[scattered(&[MIB, 2 * MIB, MIB])]), 0.0);
    let mut sparse = scattered(&[4096; 3]);
    for (index, extent) in sparse.iter_mut().enumerate() {
        extent.logical = index as u64 * MIB;
    }
    assert_eq!(figure(&[sparse]), 0.0);
}

#[test]
fn free_space_counts_by_bytes_that_no_whole_unit_can_use() {
    let free = |lengths: &[u64]| FreeFigures::of(&scattered(lengths), UNIT);
    assert_eq!(free(&[]).fragmentation, 0.0);
    assert_eq!(free(&[8 * MIB]).fragmentation, 0.0);
    assert_eq!(free(&[MIB / 2; 8]).fragmentation, 1.0);
    assert_eq!(free(&[MIB, MIB / 2, MIB / 2]).fragmentation, 0.5);
    let crumbs: Vec<u64> = std::iter::once(1 << 40).chain([4096; 1000]).collect();
    let figures = free(&crumbs);
    assert!(figures.fragmentation < 1e-5);
    assert_eq!((figures.extents, figures.largest), (1001, 1 << 40));
}

#[test]
fn histograms_have_a_bucket_for_each_power_of_two_that_occurs() {
    let figures = FreeFigures::of(&scattered(&[4096, 8191, 8192, MIB]), UNIT);
    let bucket = |from, count, bytes| Bucket { from, count, bytes };
    assert_eq!(figures.extent_sizes.0, [bucket(4096, 2, 12_287), bucket(8192, 1, 8192), bucket(MIB, 1, MIB)]);
}

#[test]
fn the_files_with_most_extents_come_first_and_no_more_than_five() {
    let mut figures = FileFigures::default();
    for count in 1..20 {
        figures.add(&format!("f{count}"), &scattered(&vec![4096; count]), UNIT);
    }
    let names: Vec<&str> = figures.worst.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["f19", "f18", "f17", "f16", "f15"]);
    assert_eq!(figures.files, 19);
}

#[test]
fn figures_stay_between_0_and_1_for_any_extents() {
    let mut random = Rng::with_seed(11);
    for _ in 0..500 {
        let count = random.usize(..50);
        let lengths: Vec<u64> = (0..count).map(|_| (random.u64(..2048) + 1) * 4096).collect();
        let unit = Unit { bytes: 4096 << random.u64(..12) };
        let mut figures = FileFigures::default();
        figures.add("f", &scattered(&lengths), unit);
        let free = FreeFigures::of(&scattered(&lengths), unit).fragmentation;
        assert!((0.0..=1.0).contains(&figures.fragmentation) && (0.0..=1.0).contains(&free), "{lengths:?}");
        assert!(figures.transfers_least <= figures.transfers);
    }
}

#[test]
fn units_are_sizes() {
    assert_eq!(Unit::parse("1M").map(|unit| unit.bytes), Ok(MIB));
    assert!(Unit::parse("100").expect_err("small").contains("512"));
    assert!(Unit::parse("big").is_err());
}

#[test]
fn a_directory_is_reported_with_what_its_file_system_tells() {
    let scratch = tempfile::tempdir().expect("a directory");
    std::fs::write(scratch.path().join("a"), vec![1; 100_000]).expect("written");
    let subject = Subject { name: "here".into(), path: scratch.path().into(), kind: "file" };
    let report = look(&subject, UNIT).expect("readable");
    assert!(report.files.is_some() != report.files_unknown.is_some());
    assert!(report.free.is_some() != report.free_unknown.is_some());
    if let Some(files) = &report.files {
        assert_eq!(files.files, 1);
        assert!(files.bytes >= 100_000);
    }
    let text = text(&report);
    assert!(text.contains("here") && text.contains("free"), "{text}");
    let nothing = Subject { path: scratch.path().join("none"), ..subject.clone() };
    assert!(look(&nothing, UNIT).is_err());
    let device = Subject { path: "/dev/null".into(), ..subject };
    assert!(look(&device, UNIT).expect_err("no file").to_string().contains("neither a file nor a directory"));
}
