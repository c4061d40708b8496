//! The options of `nacre bench ior`, which are those of IOR.

use std::path::PathBuf;

use super::plan::{Plan, Reorder};
use crate::error::Error;
use crate::striping::Striping;
use nacre_common::size;

/// `nacre bench ior`
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Example: nacre bench ior -N 2 -wr -C -F -i 3 -t 1m -b 1m -s 256 -a POSIX -e -o /mnt/nacre/file"
)]
pub struct IorArguments {
    /// The file, or the prefix of the names of the tasks' files
    #[arg(short = 'o', value_name = "FILE", default_value = "testFile")]
    pub(super) file: PathBuf,
    /// Tasks: processes that work at the same time
    #[arg(short = 'N', short_alias = 'P', long = "processes", value_name = "N", default_value_t = 1)]
    tasks: u64,
    /// Interface to the files; only POSIX is supported
    #[arg(short = 'a', value_name = "API", default_value = "POSIX")]
    api: String,
    /// Write
    #[arg(short = 'w')]
    write: bool,
    /// Read; without -w, -r, -W or -R both
    #[arg(short = 'r')]
    read: bool,
    /// Read after writing and compare; not timed
    #[arg(short = 'W')]
    pub(super) check_write: bool,
    /// Compare what is read
    #[arg(short = 'R')]
    pub(super) check_read: bool,
    /// Seed of the data that -W and -R compare with; files that were written with it can be checked by later runs
    #[arg(short = 'G', value_name = "SEED")]
    signature: Option<u64>,
    /// A file for each task
    #[arg(short = 'F')]
    file_per_task: bool,
    /// Repetitions
    #[arg(short = 'i', value_name = "N", default_value_t = 1)]
    pub(super) repetitions: u64,
    /// Bytes of a transfer
    #[arg(short = 't', value_name = "SIZE", default_value = "256k", value_parser = size::parse)]
    transfer: u64,
    /// Contiguous bytes of each task
    #[arg(short = 'b', value_name = "SIZE", default_value = "1m", value_parser = size::parse)]
    block: u64,
    /// Blocks of each task
    #[arg(short = 's', value_name = "N", default_value_t = 1)]
    segments: u64,
    /// Read what the next task wrote
    #[arg(short = 'C')]
    reorder: bool,
    /// Distance in ranks to the task whose data -C reads
    #[arg(short = 'Q', value_name = "N", default_value_t = 1)]
    distance: u64,
    /// Read what another task wrote, in a random permutation of the tasks
    #[arg(short = 'Z')]
    reorder_random: bool,
    /// Seed of -Z
    #[arg(short = 'X', value_name = "SEED", default_value_t = 0)]
    pub(super) reorder_seed: u64,
    /// Transfers of a block in a random order; in a common file, distributed over the tasks
    #[arg(short = 'z')]
    random: bool,
    /// Seed of -z
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    random_offset_seed: u64,
    /// fsync after writing, within the timed part
    #[arg(short = 'e')]
    pub(super) sync: bool,
    /// Write into existing files rather than removing them first
    #[arg(short = 'E')]
    pub(super) use_existing: bool,
    /// Keep the files
    #[arg(short = 'k')]
    pub(super) keep: bool,
    /// O_DIRECT
    #[arg(short = 'B', long = "posix.odirect")]
    pub(super) direct: bool,
    /// End each phase after this many seconds; reading ends where writing did
    #[arg(short = 'D', value_name = "SECONDS", default_value_t = 0)]
    pub(super) deadline_s: u64,
    /// Begin no repetition after this many minutes
    #[arg(short = 'T', value_name = "MINUTES", default_value_t = 0)]
    pub(super) minutes_max: u64,
    /// A file name of its own for each repetition
    #[arg(short = 'm')]
    pub(super) multi_file: bool,
    /// Wait for each other between open, transfers and close
    #[arg(short = 'g')]
    pub(super) barriers: bool,
    /// Seconds to wait before each repetition
    #[arg(short = 'd', value_name = "SECONDS", default_value_t = 0)]
    pub(super) delay_s: u64,
    /// Directives: lustreStripeCount=N, lustreStripeSize=SIZE, lustreStartOST=N, lustrePool=NAME, summaryFormat=default|JSON
    #[arg(short = 'O', value_name = "NAME=VALUE", value_delimiter = ',')]
    directives: Vec<String>,
    /// OSTs of a new file; -1 for all
    #[arg(long = "posix.lustre.stripecount", value_name = "N", allow_negative_numbers = true)]
    stripe_count: Option<String>,
    /// Stripe size of a new file
    #[arg(long = "posix.lustre.stripesize", value_name = "SIZE")]
    stripe_size: Option<String>,
    /// First OST of a new file
    #[arg(long = "posix.lustre.startost", value_name = "N", allow_negative_numbers = true)]
    start_ost: Option<String>,
    /// Pool of a new file's OSTs
    #[arg(long = "posix.lustre.pool", value_name = "NAME")]
    pool: Option<String>,
    /// Keep task i on the i-th CPU
    #[arg(long)]
    pub(super) pin: bool,
    /// Print JSON with every repetition instead of tables
    #[arg(long)]
    pub(super) json: bool,
}

/// Values of `-O` and its long forms.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Directives {
    pub(super) striping: Striping,
    pub(super) json: bool,
}

impl Directives {
    fn take(&mut self, name: &str, value: &str) -> Result<(), Error> {
        let wrong = || Error::Usage(format!("'{value}' cannot be {name}"));
        let number = || value.parse::<i32>().map_err(|_| wrong());
        let striping = &mut self.striping;
        match name.to_ascii_lowercase().as_str() {
            // 0 is the directory's default, the same as no option.
            "lustrestripecount" => match number()? {
                0 => striping.count = None,
                count @ (-1 | 1..) => striping.count = Some(count),
                _ => return Err(wrong()),
            },
            "lustrestripesize" => {
                let bytes = size::parse(value).map_err(Error::Usage)?;
                let bytes = u32::try_from(bytes).map_err(|_| wrong())?;
                striping.size = (bytes > 0).then_some(bytes);
            }
            "lustrestartost" => match number()? {
                -1 => striping.first = None,
                first => striping.first = Some(u16::try_from(first).map_err(|_| wrong())?),
            },
            "lustrepool" => striping.pool = Some(value.to_owned()),
            "summaryformat" if value.eq_ignore_ascii_case("json") => self.json = true,
            "summaryformat" if value.eq_ignore_ascii_case("default") => self.json = false,
            "summaryformat" => return Err(wrong()),
            _ => return Err(Error::Usage(format!("there is no directive '{name}'"))),
        }
        Ok(())
    }
}

impl IorArguments {
    pub(super) fn writes(&self) -> bool {
        self.write || !(self.read || self.check_write || self.check_read)
    }

    pub(super) fn reads(&self) -> bool {
        self.read || self.check_read || !(self.write || self.check_write)
    }

    /// Returns the seed of the data if it is compared, or if a seed was given.
    pub(super) fn data_seed(&self) -> Option<u64> {
        let compared = self.check_write || self.check_read;
        self.signature.or(compared.then_some(0))
    }

    pub(super) fn plan(&self) -> Result<Plan, Error> {
        if !self.api.eq_ignore_ascii_case("POSIX") {
            return Err(Error::Usage(format!(
                "files are reached by POSIX only, not by {}: leave -a out",
                self.api
            )));
        }
        Plan {
            transfer: self.transfer,
            block: self.block,
            segments: self.segments,
            tasks: self.tasks,
            file_per_task: self.file_per_task,
            random: self.random.then_some(self.random_offset_seed),
        }
        .checked()
    }

    pub(super) fn reorder(&self, plan: &Plan) -> Result<Reorder, Error> {
        let usage = |text: &str| Err(Error::Usage(text.to_owned()));
        if self.reorder && self.reorder_random {
            return usage("give -C or -Z, not both");
        }
        if self.random && !self.file_per_task && (self.reorder || self.reorder_random) {
            return usage("-z distributes a file again, so -C and -Z mean nothing: use them with -F");
        }
        Ok(match (self.reorder, self.reorder_random) {
            (true, _) => Reorder::Constant(self.distance % plan.tasks),
            (_, true) => Reorder::Random(self.reorder_seed),
            _ => Reorder::None,
        })
    }

    pub(super) fn directives(&self) -> Result<Directives, Error> {
        let mut directives = Directives::default();
        for directive in &self.directives {
            let Some((name, value)) = directive.split_once('=') else {
                return Err(Error::Usage(format!("-O wants NAME=VALUE, not '{directive}'")));
            };
            directives.take(name.trim(), value.trim())?;
        }
        let long = [
            ("lustreStripeCount", &self.stripe_count),
            ("lustreStripeSize", &self.stripe_size),
            ("lustreStartOST", &self.start_ost),
            ("lustrePool", &self.pool),
        ];
        for (name, value) in long {
            if let Some(value) = value {
                directives.take(name, value)?;
            }
        }
        Ok(directives)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        arguments: IorArguments,
    }

    fn parse(line: &str) -> IorArguments {
        Program::try_parse_from(line.split(' ')).map(|program| program.arguments).expect("understood")
    }

    #[test]
    fn the_command_line_of_the_talk_is_understood() {
        let ior = parse("IOR -wr -C -F -i 3 -t 1m -b 1m -s 16384 -a POSIX -o FILE");
        assert!(ior.writes() && ior.reads());
        let plan = ior.plan().expect("a plan");
        assert_eq!((plan.transfer, plan.block, plan.segments), (1 << 20, 1 << 20, 16_384));
        assert_eq!(plan.file_bytes(), 16 << 30);
        assert!(plan.file_per_task);
        assert_eq!(ior.reorder(&Plan { tasks: 4, ..plan }).expect("an order"), Reorder::Constant(1));
    }

    #[test]
    fn without_a_choice_files_are_written_and_read() {
        for (line, writes, reads) in
            [("ior", true, true), ("ior -w", true, false), ("ior -r", false, true), ("ior -R", false, true)]
        {
            let ior = parse(line);
            assert_eq!((ior.writes(), ior.reads()), (writes, reads), "{line}");
        }
        assert_eq!(parse("ior -w").data_seed(), None);
        assert_eq!(parse("ior -R").data_seed(), Some(0));
        assert_eq!(parse("ior -w -G 9").data_seed(), Some(9));
    }

    #[test]
    fn stripes_are_wished_by_directives_or_long_options() {
        let requested = Striping { count: Some(-1), size: Some(4 << 20), first: Some(1), pool: None };
        for line in [
            "ior -O lustreStripeCount=-1,lustreStripeSize=4m -O lustreStartOST=1",
            "ior --posix.lustre.stripecount=-1 --posix.lustre.stripesize 4m --posix.lustre.startost=1",
        ] {
            assert_eq!(parse(line).directives().expect("understood").striping, requested, "{line}");
        }
        assert!(parse("ior -O summaryFormat=JSON").directives().expect("understood").json);
        let nothing = parse("ior -O lustreStripeCount=0,lustreStripeSize=0,lustreStartOST=-1");
        assert!(nothing.directives().expect("understood").striping.is_empty());
        for wrong in [
            "lustreStripeCount=-2",
            "lustreStripeSize=x",
            "lustreStartOST=-5",
            "nothing=1",
            "lustreStripeCount",
        ] {
            assert!(parse(&format!("ior -O {wrong}")).directives().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let reorder = |line: &str| parse(line).plan().and_then(|plan| parse(line).reorder(&plan));
        assert!(reorder("ior -C -Z").is_err());
        assert!(reorder("ior -z -C").is_err());
        assert!(reorder("ior -z -C -F").is_ok());
        assert!(parse("ior -a MPIIO").plan().is_err());
        assert!(parse("ior -t 1m -b 1k").plan().is_err());
    }
}
