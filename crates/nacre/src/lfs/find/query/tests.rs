use super::super::args;
use super::*;
use crate::lfs::getopt::words_of;

/// A file system that has MDTs and OSTs of every index.
struct Any;

impl Targets for Any {
    fn index_of(&self, kind: TargetKind, name: &str) -> Option<u32> {
        name.strip_prefix(kind.label()).and_then(|digits| u32::from_str_radix(digits, 16).ok())
    }
}

const NOW: i64 = 1_000_000_000;

fn query(line: &str) -> Result<Query, String> {
    Query::new(args::parse(&words_of(line.as_bytes())).expect(line), NOW, &Any)
}

fn only(line: &str) -> String {
    let query = query(&format!("dir {line}")).expect(line);
    assert_eq!(query.tests.len(), 1, "{line}");
    format!("{:?}", query.tests[0].what)
}

#[test]
fn sizes_have_units() {
    let measure = |value: u64, unit: u64| format!("{:?}", Measure { sign: Sign::Is, value, unit });
    assert_eq!(only("-size 3"), format!("Size({})", measure(3 * 512, 512)));
    assert_eq!(only("-size 3c"), format!("Size({})", measure(3, 1)));
    assert_eq!(only("-s 3M"), format!("Size({})", measure(3 << 20, 1 << 20)));
    assert_eq!(only("-blocks 8k"), format!("Blocks({})", measure(8 << 10, 1 << 10)));
    assert_eq!(only("-S 1M"), format!("StripeSize({})", measure(1 << 20, 1 << 20)));
    assert!(only("-size +1G").contains("Over") && only("-size -1G").contains("Under"));
}

#[test]
fn targets_are_indexes_ranges_and_names() {
    assert_eq!(only("-ost 1,3-5,OST000a,0x10"), "Osts([1, 3, 4, 5, 10, 16])");
    assert_eq!(only("-i 2"), "Osts([2])");
    assert_eq!(only("-mdt MDT0002,0"), "Mdt([2, 0])");
    for bad in ["-ost x", "-ost 5-3", "-ost 70000", "-ost ,"] {
        query(&format!("dir {bad}")).expect_err(bad);
    }
}

#[test]
fn ages_reach_back_from_now() {
    assert!(only("-mtime +2").contains(&format!("moment: {}", NOW - 2 * 86400)));
}

#[test]
fn what_needs_more_than_a_listing_is_known_beforehand() {
    let needs = |line: &str| {
        let query = query(&format!("dir {line}")).expect(line);
        (query.needs_data(), query.needs_layout())
    };
    assert_eq!(needs("-name x -t f -uid 0 -projid 3 -mdt 0"), (false, false));
    assert_eq!(needs("-size 5"), (true, false));
    assert_eq!(needs("-size 5 --lazy"), (false, false));
    assert_eq!(needs("-mtime 1"), (true, false));
    assert_eq!(needs("-btime 1"), (false, false));
    assert_eq!(needs("-c 1"), (false, true));
    assert_eq!(needs("--comp-start 0"), (false, true));
    assert_eq!(needs("-printf %LS"), (false, true));
    assert_eq!(needs("--ls"), (true, false));
    assert_eq!((needs("--json"), needs("--json --lazy")), ((true, true), (false, true)));
}

#[test]
fn values_that_make_no_sense_are_refused_with_their_name() {
    for (line, message) in [
        ("-type x", "bad type 'x'"),
        ("-size x", "bad size 'x'"),
        ("-size 1Q", "bad size '1Q'"),
        ("-size 99999999999E", "bad size '99999999999E'"),
        ("-blocks -", "bad blocks size '-'"),
        ("-stripe-count x", "bad stripe_count 'x'"),
        ("-stripe-size x", "bad stripe_size 'x'"),
        ("-mtime x", "bad time 'x'"),
        ("-mtime 99999", "bad time '99999'"),
        ("-newermt never", "bad time 'never'"),
        ("-perm 9", "bad mode '9'"),
        ("-links x", "bad links 'x'"),
        ("-user no-such-user-x", "Group/User: no-such-user-x cannot be found."),
        ("-projid no-such-project", "Invalid project ID: no-such-project"),
        ("-layout raid7", "bad layout 'raid7'"),
        ("-pool sixteen_letters_", "Pool name sixteen_letters_ is too long (max is 15)"),
        ("--comp-flags bogus", "bad component flags 'bogus'"),
        ("--comp-end x", "bad component end 'x'"),
        ("--mirror-state xx", "bad mirror state 'xx'"),
        ("--mdt-hash md5", "bad hash type 'md5'"),
        ("--attrs bogus", "bad attrs 'bogus'"),
        ("--foreign=bogus", "bad foreign type 'bogus'"),
        ("--xattr (", "bad xattr expression '('"),
        ("--skip 101", "bad skip percent '101'"),
        ("--threads 0", "bad thread count '0'"),
        ("--maxdepth x", "bad maxdepth 'x'"),
        ("-newer /no/such/file", "cannot stat file '/no/such/file': No such file or directory"),
    ] {
        assert_eq!(query(&format!("dir {line}")).expect_err(line), message);
    }
}
