//! `lfs setstripe`: creates a file with a layout, or sets the layout of an empty file or the default of a
//! directory.
//!
//! All checks that need only the command line precede the first open, so that a bad argument leaves no file
//! behind.

mod components;
mod edit;
mod foreign;

use super::getopt::{OptionSpec, Parsed, Takes, long, opt};
use super::mounted::{self, Mounted};
use super::template::{self, Refusal};
use super::{Command, Failure, Outcome, Run, getopt};
use components::Builder;
use edit::Edit;
pub use foreign::of_options as foreign_of_options;
use nacre_layout::user::Foreign;
use nacre_layout::{LayoutRequest, LayoutSpec, user};
use nacre_types::Fid;
use rustix::io::Errno;
use std::ffi::OsString;
use std::io;
use std::path::Path;

/// Text of `--help` and of a wrong call.
const USAGE: &str = "\
usage: lfs setstripe [STRIPING] [--mode MODE] FILE|DIR...
       lfs setstripe -E END [STRIPING] [-E END [STRIPING]]... [--mode MODE] FILE|DIR...
       lfs setstripe --yaml TEMPLATE | --copy SOURCE [--mode MODE] FILE|DIR...
       lfs setstripe --component-add -E END [STRIPING]... FILE...
       lfs setstripe --component-del -I ID | --component-flags=^init FILE...
       lfs setstripe --foreign[=TYPE] [--flags HEX] --xattr TEXT [--mode MODE] FILE...
       lfs setstripe -d DIR...
  -c, --stripe-count COUNT   number of OSTs to stripe over: 0 default, -1 all
  -S, --stripe-size SIZE     bytes per stripe: 0 default, a multiple of 64 KiB below
                             4 GiB; suffixes k M G, numbers below 4096 are KiB
  -C, --overstripe-count COUNT
                             number of stripes, also more than OSTs; -1 to -32: 1 to 32 on each OST
  -o, --ost LIST             exactly these OSTs in this order: 1,2-4,0x7
  -i, --stripe-index INDEX   OST of the first stripe: -1 lets the server choose
  -E, --component-end END    adds a component that ends at END, with the striping options that follow;
                             multiples of 64 KiB in ascending order; -1 or eof: end of file
      --component-flags FLAGS
                             flags of the component: prefer, prefrd, prefwr, nosync, nocompr
  -z, --extension-size STEP  with -E: the component grows in steps of this size, a multiple of 64 MiB, while its OSTs
                             have space; then the next component, or a copy of it on other OSTs, continues
  -p, --pool NAME            pool of OSTs; inherit: pool of the directory, ignore: no pool
  -L, --layout raid0|mdt     with -E: striping over objects, or data of the first component on the MDT,
                             up to 1 GiB
  -d, --delete               remove the default layout of a directory
      --mode MODE            permissions of a new file, octal
      --copy SOURCE          use the layout of SOURCE
  -y, --yaml TEMPLATE        use the layout in TEMPLATE, the output of 'lfs getstripe -y'
      --foreign TYPE         foreign layout: a reference to another store instead of stripes; type none,
                             posix, pccrw, pccro, s3, symlink or a number
  -x, --xattr TEXT           content of the foreign layout
      --flags HEX            flags of the foreign layout
Example: lfs setstripe -c 4 -S 1M /mnt/nacre/wide
         lfs setstripe -E 4M -c 1 -E 1G -c 4 -E -1 -c -1 /mnt/nacre/progressive
         lfs setstripe -E 64K -L mdt -E -1 -c 1 /mnt/nacre/small
";

const OPTIONS: &[OptionSpec] = &[
    opt('c', "stripe-count", Takes::Value),
    opt('S', "stripe-size", Takes::Value),
    opt('i', "stripe-index", Takes::Value),
    long('i', "stripe-offset", Takes::Value),
    opt('p', "pool", Takes::Value),
    opt('L', "layout", Takes::Value),
    opt('d', "delete", Takes::Nothing),
    getopt::HELP,
    long('m', "mode", Takes::Value),
    long('Y', "copy", Takes::Value),
    opt('C', "overstripe-count", Takes::Value),
    opt('o', "ost", Takes::Value),
    long('o', "ost-list", Takes::Value),
    opt('E', "component-end", Takes::Value),
    opt('z', "extension-size", Takes::Value),
    long('z', "ext-size", Takes::Value),
    opt('I', "component-id", Takes::Value),
    opt('y', "yaml", Takes::Value),
    opt('x', "xattr", Takes::Value),
    long('1', "component-flags", Takes::Value),
    long('2', "component-add", Takes::Nothing),
    long('3', "component-del", Takes::Nothing),
    long('4', "component-set", Takes::Nothing),
    long('5', "foreign", Takes::MaybeValue),
    long('6', "flags", Takes::Value),
    // Options of Lustre that are refused by name.
    opt('N', "mirror-count", Takes::MaybeValue),
    opt('f', "file", Takes::Value),
    long('7', "ec", Takes::Value),
    long('8', "ec-expert", Takes::Value),
];

/// Options of unsupported kinds of layouts, and their purpose.
const UNSUPPORTED: &[(char, &str, &str)] = &[
    ('N', "-N", "mirrors"),
    ('f', "-f", "mirrors"),
    ('7', "--ec", "parity"),
    ('8', "--ec-expert", "parity"),
];

const NAME: &str = "lfs setstripe";
const MODE_DEFAULT: u32 = 0o644;

/// Parsed command line.
#[derive(Debug, PartialEq)]
pub struct Plan {
    requested: LayoutRequest,
    delete: bool,
    mode: u32,
    copy: Option<String>,
    template: Option<String>,
    edit: Option<Edit>,
    foreign: Option<Foreign>,
    /// File systems in the names of pools.
    pool_owners: Vec<String>,
    paths: Vec<OsString>,
}

/// Entry of `lfs setstripe` in the table of commands.
pub const COMMAND: Command = Command {
    name: "setstripe",
    summary: "create a file with a layout, or set a directory's default",
    usage: USAGE,
    run: Run::Parsed(OPTIONS, run),
};

/// Runs the command.
fn run(parsed: &Parsed) -> Outcome {
    let mut plan = plan(parsed)?;
    if let Some(source) = &plan.copy {
        plan.requested = copied(source)?;
    }
    if let Some(source) = &plan.template {
        plan.requested = from_template(source)?;
    }
    components::check(&plan.requested, &plan.paths.first().map_or("".into(), |path| path.to_string_lossy()))?;
    super::for_each(&plan.paths, |path| match &plan.edit {
        Some(edit) => edit::apply(edit, &plan, path),
        None => apply(&plan, path),
    })
}

fn usage(message: impl std::fmt::Display) -> Failure {
    Failure::usage(format!("{NAME} setstripe: {message}"), USAGE)
}

/// Checks the command line.
fn plan(parsed: &Parsed) -> Result<Plan, Failure> {
    if let Some((_, name, what)) = UNSUPPORTED.iter().find(|(key, _, _)| parsed.has(*key)) {
        return Err(Failure::unsupported(NAME, &format!("option '{name}' ({what})")));
    }
    let edit = edit::of_options(parsed)?;
    let foreign = foreign::of_options(parsed, "lfs setstripe setstripe", usage, &foreign::WITH)?;
    let makes_layout = edit.as_ref().is_none_or(|edit| *edit == Edit::Add);
    let mut builder = Builder::default();
    for (key, value) in parsed.options.iter().filter(|_| makes_layout) {
        builder.option(*key, value.as_deref().unwrap_or(""))?;
    }
    let mode = match parsed.value('m') {
        None => MODE_DEFAULT,
        Some(text) => u32::from_str_radix(text, 8)
            .ok()
            .filter(|mode| *mode <= 0o7777)
            .ok_or_else(|| usage(format!("invalid mode '{text}'")))?,
    };
    let delete = parsed.has('d');
    if delete && parsed.options.len() > 1 {
        return Err(usage("cannot specify -d with other options"));
    }
    for (key, name) in [('Y', "--copy"), ('y', "--yaml")] {
        if parsed.has(key) && (builder.is_striped() || (parsed.has('Y') && parsed.has('y'))) {
            return Err(usage(format!("cannot specify {name} with stripe options")));
        }
    }
    let requested = builder.finish()?;
    if parsed.operands.is_empty() {
        return Err(usage("FILE must be specified"));
    }
    let value = |key| parsed.value(key).map(str::to_owned);
    let (copy, template) = (value('Y'), value('y'));
    let (pool_owners, paths) = (super::pools::owners(parsed), parsed.operands.clone());
    Ok(Plan { requested, delete, mode, copy, template, edit, foreign, pool_owners, paths })
}

/// Returns the layout that options of `lfs migrate` request; `None` without such options.
///
/// # Errors
/// A wrong call, or a failure to read a source or template.
pub fn request_of_options(parsed: &Parsed) -> Result<Option<LayoutRequest>, Failure> {
    let mut builder = Builder::default();
    for (key, value) in &parsed.options {
        builder.option(*key, value.as_deref().unwrap_or(""))?;
    }
    let sources = [parsed.value('Y').map(|path| (path, true)), parsed.value('y').map(|path| (path, false))];
    let mut sources = sources.into_iter().flatten();
    let requested = match (sources.next(), builder.is_striped()) {
        (Some(_), true) => return Err(usage("cannot specify --copy or --yaml with stripe options")),
        (Some((path, true)), false) => copied(path)?,
        (Some((path, false)), false) => from_template(path)?,
        (None, true) => builder.finish()?,
        (None, false) => return Ok(None),
    };
    components::check(&requested, &parsed.operands.first().map_or("".into(), |path| path.to_string_lossy()))?;
    Ok(Some(requested))
}

/// Returns the layout of a new file like `source`.
fn copied(source: &str) -> Result<LayoutRequest, Failure> {
    let path = Path::new(source);
    let bytes = mounted::layout_of(path).map_err(|error| failed(path, &error))?;
    let Some(bytes) = bytes else {
        return Ok(LayoutRequest::default());
    };
    user::decode_request(&bytes).map_err(|error| {
        Failure::new(Errno::INVAL, format!("{NAME}: cannot copy the layout of '{source}': {error}"))
    })
}

/// Returns the layout that a YAML template describes.
fn from_template(source: &str) -> Result<LayoutRequest, Failure> {
    let text = std::fs::read_to_string(source)
        .map_err(|error| Failure::of(&error, format!("{NAME}: cannot read '{source}'")))?;
    template::parse(&text).map_err(|refusal| {
        let what = match refusal {
            Refusal::Malformed(..) => "cannot parse YAML file",
            Refusal::Impossible(..) => "cannot build layout from YAML file",
        };
        let end = format!("error: setstripe: can't create composite layout from template file {source}");
        Failure::new(Errno::INVAL, format!("{NAME}: {what} {source}: {refusal}\n{end}"))
    })
}

fn apply(plan: &Plan, path: &Path) -> Outcome {
    let directory = path.is_dir();
    let place = match directory {
        true => path,
        false => mounted::directory_of(path),
    };
    // First: on another file system no file may be created.
    let mount = Mounted::open(place).map_err(|error| failed(path, &error))?;
    if plan.delete {
        if !directory {
            return Err(failed(path, &io::Error::from(Errno::NOTDIR)));
        }
        return mounted::remove_layout(path).map_err(|error| failed(path, &error));
    }
    super::pools::check_owners(NAME, &mount, &plan.pool_owners)?;
    check_targets(NAME, &mount, &plan.requested)?;
    let value = match &plan.foreign {
        Some(foreign) => user::encode_foreign(foreign),
        None => user::encode_request(&Fid::ZERO, &plan.requested),
    };
    let result = match directory {
        true => mounted::set_layout(path, &value),
        false => mounted::create_with_layout(path, plan.mode, &value),
    };
    result.map_err(|error| failed(path, &error))
}

/// Checks that the requested OSTs and pools exist: for a missing pool the server would use all OSTs.
///
/// # Errors
/// `EINVAL`, with the message of `command`.
pub fn check_targets(command: &str, mount: &Mounted, requested: &LayoutRequest) -> Outcome {
    for spec in requested.specs() {
        if let Some(pool) = spec.real_pool() {
            let wanted = spec.first_ost.iter().chain(&spec.osts).copied();
            super::pools::check_requested(command, mount, pool, wanted)?;
        }
    }
    check_index(command, mount, requested)
}

/// Refuses a missing OST with the list of existing ones, which helps more than the server's errno.
fn check_index(command: &str, mount: &Mounted, requested: &LayoutRequest) -> Result<(), Failure> {
    let listed = |spec: &LayoutSpec| spec.first_ost.iter().chain(&spec.osts).copied().collect::<Vec<u16>>();
    let mut wanted = requested.specs().flat_map(listed).peekable();
    if wanted.peek().is_none() {
        return Ok(());
    }
    let osts = mount.osts().map_err(|error| failed(mount.path(), &error))?;
    let Some(index) = wanted.find(|index| !osts.iter().any(|row| row.target.index == *index)) else {
        return Ok(());
    };
    let fsname = mount.fsname();
    let last = osts.iter().map(|row| row.target.index).max().unwrap_or(0);
    Err(Failure::new(
        Errno::INVAL,
        format!(
            "{command}: OST index {index} does not exist in file system '{fsname}', the last one is {last}: Invalid argument (22)"
        ),
    ))
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    let errno = super::errno_of(error);
    let text = match errno {
        Errno::EXIST | Errno::ALREADY => "stripe already set".to_owned(),
        Errno::REMOTEIO => "inactive OST among your specified N OST(s)".to_owned(),
        _ => super::error_text(errno),
    };
    Failure::new(errno, format!("{NAME}: setstripe error for '{}': {text}", path.display()))
}

/// Checks a command line alone.
#[cfg(test)]
pub(super) fn checked(parsed: &Parsed) -> Outcome {
    components::check(&plan(parsed)?.requested, "file")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lfs::getopt::{parse, words_of};

    use nacre_layout::layout::STRIPE_COUNT_ALL;
    use nacre_layout::{ComponentFlags, Extent, Pattern};

    fn requested(line: &str) -> Result<Plan, Failure> {
        let plan = plan(&parse(&words_of(line.as_bytes()), OPTIONS).expect(line))?;
        components::check(&plan.requested, "q1")?;
        Ok(plan)
    }

    fn spec(line: &str) -> LayoutSpec {
        match requested(line).expect(line).requested {
            LayoutRequest::Plain(spec) => spec,
            composite => panic!("{composite:?}"),
        }
    }

    /// End, stripe count, stripe size and index of a component.
    type Shape = (u64, Option<u16>, Option<u32>, Option<u16>);

    fn parts(line: &str) -> Vec<Shape> {
        let LayoutRequest::Composite(parts) = requested(line).expect(line).requested else {
            panic!("{line}")
        };
        parts
            .iter()
            .map(|c| (c.extent.end, c.spec.stripe_count, c.spec.stripe_size, c.spec.first_ost))
            .collect()
    }

    fn refusal(line: &str) -> (i32, String) {
        let failure = requested(line).expect_err(line);
        (failure.exit, failure.message)
    }

    #[test]
    fn wishes_are_read_as_lustre_does() {
        let all = spec("-c 4 -S 64 -i 0x1 f");
        assert_eq!((all.stripe_count, all.stripe_size, all.first_ost), (Some(4), Some(65536), Some(1)));
        let all = spec("-c -1 -S 1M -i -1 f");
        assert_eq!(
            (all.stripe_count, all.stripe_size, all.first_ost),
            (Some(STRIPE_COUNT_ALL), Some(1 << 20), None)
        );
        assert!(spec("-c 0 -S 0 -i -1 f").is_empty());
        assert!(requested("-d d").expect("good").delete);
        assert_eq!(requested("--mode 600 a b").expect("good").mode, 0o600);
    }

    #[test]
    fn golden_refusals() {
        let usage_errors = [
            ("-c 5000 q1", "lfs setstripe setstripe: invalid stripe count '5000'"),
            ("-c -33 q1", "lfs setstripe setstripe: invalid stripe count '-33'"),
            ("-c abc q1", "lfs setstripe setstripe: invalid stripe count 'abc'"),
            ("-S 1000 q1", "lfs setstripe setstripe: invalid stripe size '1000'"),
            ("-S 100000 q1", "lfs setstripe setstripe: invalid stripe size '100000'"),
            ("-i -2 q1", "lfs setstripe setstripe: invalid stripe offset '-2'"),
            ("-E 100 q1", "lfs setstripe setstripe: invalid component end '100'"),
            ("-E 0 q1", "lfs setstripe setstripe: invalid component end '0'"),
            ("-E x -E -1 q1", "lfs setstripe setstripe: invalid component end 'x'"),
            ("-E 8E q1", "lfs setstripe setstripe: invalid component end '8E'"),
            ("-E 1M --comp-flags init q1", "lfs setstripe setstripe: invalid component flags 'init'"),
            ("-E 1M --comp-flags ^prefer q1", "lfs setstripe setstripe: invalid component flags '^prefer'"),
            ("-E 1M", "lfs setstripe setstripe: FILE must be specified"),
            ("", "lfs setstripe setstripe: FILE must be specified"),
            ("-c 1", "lfs setstripe setstripe: FILE must be specified"),
        ];
        for (line, message) in usage_errors {
            assert_eq!(refusal(line), (4, message.to_owned()), "{line}");
        }
        let errors = [
            (
                "-S 5G q1",
                22,
                "lfs setstripe: error: stripe size '5368709120' over 4GB limit: Invalid argument (22)",
            ),
            (
                "-p toolongpoolname123 q1",
                22,
                "lfs setstripe: Invalid Poolname 'toolongpoolname123': Invalid argument (22)",
            ),
            (
                "-E 4M -E 2M q1",
                22,
                "Set extent [4194304, 2097152) failed. Invalid argument\nerror: lfs setstripe: invalid layout",
            ),
            ("-E 1M -c 1 -E 2M -L mdt -E -1 q1", 22, "error: 'mdt' layout can be only the first one"),
            ("-E 2G -L mdt -E -1 q3", 27, "error: 'mdt' layout size is too big"),
            (
                "-E 4M -c 1 -S 8M -E -1 q1",
                1,
                "lfs setstripe: Invalid layout: The component end must be aligned by the stripe size\n\
                 lfs setstripe: lfs setstripe: cannot create composite file 'q1': Invalid argument (22)",
            ),
            (
                "-E 1M -L mdt -c 2 -E -1 q1",
                22,
                "Option 'stripe-count' can't be specified with Data-on-MDT component: 2",
            ),
            ("-E -1 -L mdt q1", 27, "error: 'mdt' layout size is too big"),
            ("-L foo q1", 22, "error: layout 'foo' is unknown, supported layouts are: 'mdt', 'raid0'"),
            (
                "-L mdt q2",
                22,
                "lfs setstripe: Invalid pattern: '-L mdt', must be specified with -E: Invalid argument (22)",
            ),
        ];
        for (line, exit, message) in errors {
            assert_eq!(refusal(line), (exit, message.to_owned()), "{line}");
        }
    }

    #[test]
    fn a_component_on_the_mdt_may_say_what_it_is_anyway() {
        for line in ["-E 1M -L mdt -S 1M -E -1 f", "-E 1M -L mdt -i 0 -E -1 f", "-E 1M -L mdt -c 0 -E -1 f"] {
            let LayoutRequest::Composite(parts) = requested(line).expect(line).requested else {
                panic!("{line}")
            };
            assert_eq!(parts[0].spec, LayoutSpec::ON_MDT, "{line}");
        }
        for (option, name, value) in [
            ("-S 64K", "stripe-size", "65536"),
            ("-i 1", "stripe-offset", "1"),
            ("-p flash", "pool", "'flash'"),
        ] {
            let message = format!("Option '{name}' can't be specified with Data-on-MDT component: {value}");
            assert_eq!(refusal(&format!("-E 1M -L mdt {option} -E -1 f")), (22, message), "{option}");
        }
    }

    #[test]
    fn layouts_of_later_versions_are_refused_by_name() {
        for line in ["--ec 4+2 f", "-N2 f"] {
            let (exit, message) = refusal(line);
            assert_eq!(exit, Errno::OPNOTSUPP.raw_os_error(), "{line}");
            assert!(message.contains("not supported yet"), "{message}");
        }
    }

    #[test]
    fn lists_of_osts_and_overstriping_are_read() {
        let list = spec("-o 3,1-2 -o 0x7 f");
        assert_eq!((list.osts, list.stripe_count, list.pattern), (vec![3, 1, 2, 7], Some(4), Pattern::Raid0));
        let twice = spec("-o 1,1 -c 2 f");
        assert_eq!((twice.osts, twice.pattern), (vec![1, 1], Pattern::Overstriped));
        let over = |line: &str| (spec(line).stripe_count, spec(line).pattern);
        assert_eq!(over("-C 9 f"), (Some(9), Pattern::Overstriped));
        assert_eq!(over("-C -2 f"), (Some(0xfffe), Pattern::Overstriped));
        assert_eq!(over("-C -32 f"), (Some(0xffe0), Pattern::Overstriped));
        assert_eq!(over("-C 9 -c 2 f"), (Some(2), Pattern::Raid0));
        let LayoutRequest::Composite(parts) = requested("-E 1M -o 1,0 -E -1 f").expect("good").requested
        else {
            panic!("composite")
        };
        assert_eq!((parts[0].spec.osts.as_slice(), parts[1].spec.osts.as_slice()), (&[1, 0][..], &[][..]));
        for line in ["-C -33 f", "-C 2001 f", "-C x f", "-o x f", "-o 1,,2 f", "-o 70000 f"] {
            assert_eq!(refusal(line).0, 4, "{line}");
        }
        assert_eq!(refusal("-o 0,1 -c 3 q1"), (4, "stripe_count(3) != nr_tgts(2)".to_owned()));
    }

    #[test]
    fn components_take_over_what_they_do_not_say() {
        const MIB: u64 = 1 << 20;
        let found = parts("-c 1 -E 4M -S 1M -i 2 -E 64M -c 2 -E eof -c -1 f");
        assert_eq!(
            found,
            [
                (4 * MIB, Some(1), Some(1 << 20), Some(2)),
                (64 * MIB, Some(2), Some(1 << 20), None),
                (Extent::EOF, Some(STRIPE_COUNT_ALL), Some(1 << 20), None),
            ]
        );
        let LayoutRequest::Composite(head) =
            requested("-E 1M -L mdt -E 64M -S 1M -E -1 f").expect("good").requested
        else {
            panic!("composite")
        };
        assert_eq!(head[0].spec, LayoutSpec::ON_MDT);
        assert!(
            head[1..].iter().all(|c| c.spec.stripe_size == Some(1 << 20) && c.spec.stripe_count.is_none())
        );
        let one = parts("-E 4095M -c 3 f");
        assert_eq!(one, [(4095 * MIB, Some(3), None, None)]);
        let line = "-E 4M -c 1 -E 64M -c 2 -E 256M -c 4 -E 1G -c 8 -E 10G -c 16 -E -1 -c -1 f";
        assert_eq!(
            parts(line).iter().map(|part| part.1).collect::<Vec<_>>(),
            [1, 2, 4, 8, 16, 0xffff].map(Some)
        );
        let LayoutRequest::Composite(flagged) =
            requested("-E 1M --comp-flags=prefer -E -1 f").expect("good").requested
        else {
            panic!("composite")
        };
        let prefer = ComponentFlags::PREFER_READ | ComponentFlags::PREFER_WRITE;
        assert_eq!([flagged[0].flags, flagged[1].flags], [prefer, ComponentFlags::default()]);
    }

    #[test]
    fn golden_refusals_of_components_that_grow() {
        let errors = [
            (
                "-E -1 -z 64K q1",
                22,
                "Set stripe size 65536 failed: Invalid argument\nerror: lfs setstripe: invalid layout",
            ),
            (
                "-E -1 -z 4T q1",
                22,
                "Set stripe size 4398046511104 failed: Invalid argument\nerror: lfs setstripe: invalid layout",
            ),
            (
                "-E 1M -L mdt -z 64M -E -1 q1",
                22,
                "lfs setstripe: '-z' cannot be specified with '-L mdt': Invalid argument (22)",
            ),
            (
                "-E -1 -z 64M -S 192K q1",
                1,
                "lfs setstripe: Invalid layout: The extension size must be a multiple of the stripe size\n\
                 lfs setstripe: lfs setstripe: cannot create composite file 'q1': Invalid argument (22)",
            ),
        ];
        for (line, exit, message) in errors {
            assert_eq!(refusal(line), (exit, message.to_owned()), "{line}");
        }
    }

    #[test]
    fn components_that_grow_are_followed_by_their_room() {
        const MIB: u64 = 1 << 20;
        let LayoutRequest::Composite(found) =
            requested("-E 1G -c 2 -z 64M -E -1 -S 1M -z 128M f").expect("good").requested
        else {
            panic!("composite")
        };
        let shown: Vec<(u64, u64, bool, Option<u32>)> = found
            .iter()
            .map(|c| (c.extent.start / MIB, c.extent.end / MIB, c.is_extension(), c.spec.stripe_size))
            .collect();
        let last = Extent::EOF / MIB;
        assert_eq!(
            shown,
            [
                (0, 0, false, None),
                (0, 1024, true, Some(65536)),
                (1024, 1024, false, Some(1 << 20)),
                (1024, last, true, Some(131_072)),
            ]
        );
        assert_eq!(found[2].spec.stripe_count, Some(2));
        assert!(spec("-z 64M f").is_empty() && parts("-E -1 -z 0 f").len() == 1);
    }

    #[test]
    fn edits_of_components_are_told_apart() {
        let edit = |line: &str| requested(line).expect(line).edit;
        assert_eq!(edit("-E 1M f"), None);
        assert_eq!(edit("--comp-add -E 4M -c 2 f"), Some(Edit::Add));
        assert_eq!(edit("--component-del -I 3 f"), Some(Edit::Delete(user::Selector::Id(3))));
        assert_eq!(
            edit("--comp-del --comp-flags=^init f"),
            Some(Edit::Delete(user::Selector::WithoutObjects))
        );
        assert_eq!(edit("--comp-set -I 1 --comp-flags=prefer f"), Some(Edit::SetFlags(1, (6, 0))));
        for line in [
            "--comp-add f",
            "--comp-add -E 1M -I 2 f",
            "--comp-del f",
            "--comp-del --comp-flags=init f",
            "--comp-set -I 1 f",
            "--comp-add --comp-del -I 1 f",
            "-I 1 f",
            "--comp-del -I x f",
        ] {
            assert_eq!(refusal(line).0, 4, "{line}");
        }
    }

    #[test]
    fn what_cannot_go_together_is_refused() {
        assert_eq!(refusal("-d -c 1 d").0, 4);
        assert_eq!(refusal("--copy a -c 1 d").0, 4);
        assert_eq!(refusal("--copy a --yaml b d").0, 4);
        assert_eq!(refusal("--yaml a -E -1 d").0, 4);
        assert_eq!(refusal("--mode 9 d").0, 4);
    }
}
