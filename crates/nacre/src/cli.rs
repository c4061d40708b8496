//! The `nacre` command: what it takes, and which module does it.
//!
//! Exit codes: 0 success, 1 failure (or, from `status` and `check`, something is not as it should be), 2 wrong call.

mod check;
mod down;
mod drain;
mod frag;
mod inspect;
mod join;
mod key;
mod launch;
mod measure;
mod mount;
mod mount_point;
mod rebalance;
mod serve;
mod status;
mod target;
mod trim;
mod uncache;
mod up;

pub use mount::{MountOptions, mount as mount_source, remount};

use crate::control::NewTarget;
use crate::failure::Failure;
use crate::listen::Address;
use clap::{Args, Parser, Subcommand};
use key::KeyRole;
use nacre_common::call;
use nacre_types::Security;
use std::ffi::OsString;
use std::path::PathBuf;

const AFTER_HELP: &str = "\
Also here: 'nacre lfs ...' (layouts and state of a mounted file system) and 'nacre lctl ...' (parameters),
the same as the commands lfs and lctl.

Example: a file system with four OSTs in a directory, mounted, used, and stopped
  nacre up /srv/fs --mount /mnt/nacre --osts 4
  lfs setstripe -c 4 /mnt/nacre && dd if=/dev/zero of=/mnt/nacre/file bs=1M count=64
  nacre status
  nacre down /mnt/nacre

Exit codes: 0 success, 1 failure, 2 wrong call.";

const KEY_HELP: &str = "\
Servers that other processes reach serve no peer without a key. The host of the file system has its keys; other hosts and users get one by a
token, which is used once:
  nacre key token                                   a token for a host that mounts; for its root, other users may be, too
  nacre mount --token TOKEN host1@tcp:/nacre /mnt   on that host; later mounts need no token
  nacre key token --uid 1000 --filesystem-root /projects/a     for one user, below one directory
  nacre key token --role server                     for a host that serves targets: 'nacre join'
  nacre key list; nacre key revoke 00f1e2d3c4b5a697
Example: nacre key token --role client --expires 10m";

const TARGET_HELP: &str = "\
Example: nacre target add /srv/fs mdt
         nacre target add /srv/mdt ost --mgs 10.0.0.1@tcp --fsname nacre --listen 10.0.0.3@tcp
         nacre target start /srv/mdt
         nacre target drain /mnt/nacre MDT0001
         nacre target uncache /srv/fs OST0000";

/// A parallel file system in user space, with Lustre's architecture and commands.
#[derive(Debug, Parser)]
#[command(name = "nacre", version, after_help = AFTER_HELP, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Up(UpArgs),
    Status(StatusArgs),
    Down(DownArgs),
    Mount(MountArgs),
    Join(JoinArgs),
    Umount(UmountArgs),
    Check(CheckArgs),
    Inspect(InspectArgs),
    Rebalance(RebalanceArgs),
    Format(FormatArgs),
    /// Adds targets to a file system, also while it is used, empties MDTs, and takes caches away from OSTs
    #[command(after_help = TARGET_HELP)]
    Target {
        #[command(subcommand)]
        command: TargetCommand,
    },
    /// Keys of hosts and users: made by tokens, listed, revoked
    #[command(after_help = KEY_HELP)]
    Key {
        #[command(subcommand)]
        command: KeyCommand,
    },
    /// Measures this machine, and file systems on it
    #[command(disable_help_flag = true)]
    Bench(MeasureArgs),
    Frag(FragArgs),
    Trim(TrimArgs),
    /// Measures a file system while it is filled and fragmented by degrees (populate and fragment)
    #[command(disable_help_flag = true)]
    Paf(MeasureArgs),
    #[command(hide = true)]
    Serve(ServeArgs),
}

impl Command {
    /// It makes files or directories of NacreFS itself, in which others may never write whatever the umask of its caller says. Those
    /// that only others may not read have modes of their own.
    fn makes_files(&self) -> bool {
        matches!(
            self,
            Command::Up(_)
                | Command::Format(_)
                | Command::Mount(_)
                | Command::Target { .. }
                | Command::Key { .. }
                | Command::Serve(_)
        )
    }
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Makes the authority of a file system that has none
    ///
    /// File systems that are made by this version have one. The processes of this host make their keys when they are started the next time,
    /// and so do mounts by the same user. From then on every connection is encrypted, and needs a key.
    Init {
        /// Directory of the file system with its management server
        dir: PathBuf,
    },
    Token(KeyTokenArgs),
    /// Lists the keys that were issued
    List {
        #[command(flatten)]
        of: FileSystemArg,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Shows one key
    Show {
        /// Number of the key, as 'nacre key list' shows it
        id: String,
        #[command(flatten)]
        of: FileSystemArg,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Has all servers refuse a key, and close its connections
    Revoke {
        /// Number of the key, as 'nacre key list' shows it
        id: String,
        #[command(flatten)]
        of: FileSystemArg,
    },
    /// Replaces the authority of a file system that does not run, as when a copy of its key may be in other hands
    ///
    /// All keys of the one before are worth nothing from then on. Processes and mounts of its owner on its host make new ones themselves;
    /// other hosts and users need a token each.
    Rotate {
        /// Directory of the file system with its management server
        dir: PathBuf,
    },
    /// Prints the certificate of the authority
    ExportAuthority {
        #[command(flatten)]
        of: FileSystemArg,
    },
}

// Words for the program that measures, which has help for them and says what is wrong with them.
#[derive(Debug, Args)]
struct MeasureArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Which file system a command is about.
#[derive(Debug, Clone, Args)]
struct FileSystemArg {
    /// Directory or mount point of the file system, or NID:/FSNAME [default: the one that runs here]
    #[arg(value_name = "FILESYSTEM")]
    filesystem: Option<String>,
}

/// Makes a token, which enrols the key of a host or user.
///
/// The token is a secret until it was used: give it to nobody but that host or user. It is printed on standard output, alone.
#[derive(Debug, Args)]
#[command(after_help = "\
Example: nacre key token                          a host that mounts
         nacre key token --uid 1000               user 1000, on any host, and nobody else
         nacre key token --filesystem-root /projects/a --read-only
         nacre key token --role admin --expires 10m")]
struct KeyTokenArgs {
    #[command(flatten)]
    of: FileSystemArg,
    /// What the key is for: client (mounts, all users but root), admin (mounts, root too, and commands such as this one), server
    /// (serves MDTs and OSTs), oss (serves OSTs)
    #[arg(long, default_value = "client", value_name = "ROLE")]
    role: KeyRole,
    /// The only user that the key acts as
    #[arg(long, value_name = "UID")]
    uid: Option<u32>,
    /// Directory of the file system that the key's mounts see as their root
    #[arg(long, value_name = "PATH")]
    filesystem_root: Option<String>,
    /// The key's mounts change nothing
    #[arg(long)]
    read_only: bool,
    /// When the token ends if it is not used: 30s, 10m, 1h, 7d
    #[arg(long, value_name = "TIME", default_value = "1h")]
    expires: humantime::Duration,
    /// Life of the key, which is not renewed then; without it, the key is renewed for as long as it is used
    #[arg(long, value_name = "TIME")]
    key_expires: Option<humantime::Duration>,
    /// Keys that it enrols, such as one for each host of a job
    #[arg(long, value_name = "N", default_value_t = 1)]
    uses: u32,
}

/// Shows how fragmented the objects of OSTs, or files of any file system, and free space are.
///
/// Fragmentation of files is the part of the transfers for reading them that would not be if each lay in one piece; that of
/// free space is the part of it that lies in pieces too small for a transfer. Both are from 0 to 1.
#[derive(Debug, Args)]
#[command(after_help = "\
Example: nacre frag /srv/fs                all OSTs of a file system here, running or not; so does its mount point
         nacre frag /srv/fs/ost0001 --json
         nacre frag /home                  files of any local file system")]
struct FragArgs {
    /// Directory of a file system, its mount point, directory of an OST or of an MDT with a device, or any file or directory
    path: PathBuf,
    /// Size of a large transfer, which fragmentation is a hindrance to
    #[arg(long, value_name = "SIZE", default_value = "1M")]
    unit: String,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Tells what is below OSTs of their free space: devices discard it, files give it back.
///
/// OSTs do so by themselves when little else is done (obdfilter.*.trim_policy). An OST of files has the file system below it do it
/// (as fstrim does), for which one must be root. OSTs that do not run are trimmed too.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit code 0 if all were told of, 1 if one does not want to know.
Example: nacre trim /srv/fs                all OSTs of a file system here; so does its mount point
         nacre trim /srv/fs/ost0001
         nacre trim nacre-OST0001 --json")]
struct TrimArgs {
    /// Directory of a file system, its mount point, directory or name (if it runs here) of an OST or of an MDT with a device
    #[arg(value_name = "TARGET|MOUNT|DIR")]
    what: PathBuf,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Starts a file system, making it first if the directory is new, and mounts it.
///
/// One process does everything unless --separate is given. What runs already is left alone, what is missing is started,
/// so it may be called again after a crash. How it was started is kept: 'nacre up DIR' does the same again, and what is said
/// otherwise is kept from then on.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Example: nacre up /srv/fs --mount /mnt/nacre --osts 4
         nacre up /srv/fs                              as it was started last
         nacre up /srv/fs --listen 10.0.0.1@tcp --listen host1-ib:7000@tcp
         nacre up ./data --mount ./mnt --separate      one process per server, over TCP on this host")]
struct UpArgs {
    /// Directory of the file system: new, empty, or made by nacre
    dir: PathBuf,
    /// Where to mount it; made if it is missing [default: where it was]
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
    #[command(flatten)]
    shape: ShapeArgs,
    /// One process per server and one for the mount
    #[arg(long)]
    separate: bool,
    /// One process for everything again, after --separate
    #[arg(long, conflicts_with = "separate")]
    one_process: bool,
    /// First TCP port of the servers, used upwards; free ones are chosen and kept otherwise (with --separate)
    #[arg(long, value_name = "PORT", conflicts_with = "one_process")]
    port: Option<u16>,
    /// Also serve other hosts on this address, for example 10.0.0.1@tcp, host1:7000@tcp, [::]@tcp for all; may be given several times;
    /// none: this host alone again
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<String>,
    /// Protection of connections: encrypt, authenticate (others can read and not change what is said) or open (every peer is
    /// served); for one address: --listen 10.0.0.1@tcp,authenticate [default: encrypt, or as it was]
    #[arg(long, value_name = "HOW")]
    security: Option<Security>,
    /// Mount options, as for 'nacre mount'
    #[arg(short = 'o', long = "options", value_name = "OPTIONS")]
    options: Vec<String>,
    /// Stay in the foreground and log to standard error, or with --separate to the logs of the processes; for service managers
    #[arg(long)]
    foreground: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Shows processes, targets, space and mounts; exit code 1 if something does not run.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: nacre status /srv/fs\n         nacre status /mnt/nacre\n         nacre status --json"
)]
struct StatusArgs {
    /// Directory or mount point of the file system; all that run here otherwise
    dir: Option<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Unmounts and stops a file system cleanly.
#[derive(Debug, Args)]
#[command(after_help = "Example: nacre down /srv/fs")]
struct DownArgs {
    /// Directory or mount point of the file system
    dir: PathBuf,
    /// Unmount although files are open; their programs get errors
    #[arg(long)]
    force: bool,
    /// Longest wait for each process to end, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,
}

/// Mounts a file system that is served elsewhere.
#[derive(Debug, Args)]
#[command(after_help = "\
Options: ro rw allow_other noallow_other dev nodev* suid nosuid* exec noexec noatime (*: the default)
  flock|localflock           file locks hold for all mounts, or for this one alone
  simulate=NETWORK           pretend a network between client and servers, for measurements:
                             simulate=bandwidth=1G:latency=200us (per endpoint, each way)
  default_permissions        the kernel checks permissions too: slower, but FIFOs, sockets and devices
                             are checked as well
  transport=auto|uring|dev   how the kernel's requests travel
  retry=N                    try N times more if it fails, 1 to 30 s apart, as when a host starts before its servers
Example: nacre mount --token TOKEN 10.0.0.1@tcp:/nacre /mnt/nacre      the first time
         nacre mount 10.0.0.1@tcp:/nacre /mnt/nacre -o ro
         nacre mount 10.0.0.1@tcp:/nacre/project /mnt/project
With 'make install' also: mount -t nacre 10.0.0.1@tcp:/nacre /mnt/nacre, and lines in /etc/fstab")]
struct MountArgs {
    /// NID[:NID..]:/FSNAME[/DIRECTORY]: where the management server is, the file system's name, and what to mount of it
    source: String,
    /// An existing directory
    mount_point: PathBuf,
    #[command(flatten)]
    token: TokenArgs,
    /// Comma-separated options
    #[arg(short = 'o', long = "options", value_name = "OPTIONS")]
    options: Vec<String>,
    /// Stay in the foreground and log to standard error
    #[arg(long)]
    foreground: bool,
}

/// Makes targets on this host part of a file system that runs elsewhere, and serves them.
///
/// It enrols a key by a token of 'nacre key token --role server', makes the targets, registers them, and starts them. 'nacre up DIR' starts
/// them again.
#[derive(Debug, Args)]
#[command(after_help = "\
Example: nacre join --token TOKEN host1@tcp:/nacre /srv/fs --listen 10.0.0.2@tcp --osts 2
         nacre join --token TOKEN host1@tcp:/nacre /srv/fs --listen 10.0.0.2@tcp --mdt --ost-backend block:/dev/sdb")]
struct JoinArgs {
    /// NID[:NID..]:/FSNAME: where the management server is, and the file system's name
    source: String,
    /// Directory for the targets: new, empty, or with others of this file system
    dir: PathBuf,
    #[command(flatten)]
    token: TokenArgs,
    /// Address to serve on, for example 10.0.0.2@tcp; the first target gets its port, the next ones the ports above; may be given several
    /// times
    #[arg(long, value_name = "ADDRESS", required = true)]
    listen: Vec<Address>,
    /// Add an MDT
    #[arg(long)]
    mdt: bool,
    /// Add so many OSTs [default: 1, or 0 with --mdt]
    #[arg(long, value_name = "N")]
    osts: Option<u16>,
    /// What an OST keeps objects in: file, or block[:PATH][,size=BYTES][,force]; once for all, or once for each
    #[arg(long, value_name = "BACKEND")]
    ost_backend: Vec<String>,
    /// What the MDT keeps data of files in
    #[arg(long, value_name = "BACKEND", requires = "mdt")]
    mdt_backend: Option<String>,
}

/// A token that enrols a key.
#[derive(Debug, Clone, Args)]
struct TokenArgs {
    /// Token of 'nacre key token'; - reads it from standard input. Other users of this host can read command lines
    #[arg(long, value_name = "TOKEN", conflicts_with = "token_file")]
    token: Option<String>,
    /// File with the token
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// Unmounts a file system.
#[derive(Debug, Args)]
#[command(after_help = "Example: nacre umount /mnt/nacre")]
struct UmountArgs {
    /// Where it is mounted
    mount_point: PathBuf,
}

/// Checks a stopped file system: every target, and every object against the layouts.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit code 0 if everything is well (or was repaired), 1 if damage is left.
Example: nacre check /srv/fs
         nacre check /srv/fs --repair --json")]
struct CheckArgs {
    /// Directory or mount point of the file system
    dir: PathBuf,
    /// Mend what can be mended
    #[arg(long)]
    repair: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Shows what is on the device of a stopped target, and where an object lies with its checksums, or the log of an OST's cache. Changes nothing.
///
/// The device is only read, and a copy of the index is looked at. What a cache of small writes holds is not seen, but by --cache.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit code 0 if everything is well, 1 if damage was found.
Example: nacre inspect /srv/fs/ost0000
         nacre inspect /srv/fs/ost0000 --object [0x100000000:0x2:0x0] --checksums
         nacre inspect /srv/fs/ost0000 --cache
         nacre inspect /dev/nvme0n1                  the device of a cache")]
struct InspectArgs {
    /// Directory of an OST that keeps its objects on a device, or of an MDT that keeps data of files on one, or the device of a cache of small writes
    dir: PathBuf,
    /// Show the log of the cache of the OST, which may be one of files
    #[arg(long, conflicts_with_all = ["object", "objects"])]
    cache: bool,
    /// An object: its record, where it lies, and whether its data matches its checksums
    #[arg(long, value_name = "FID")]
    object: Vec<String>,
    /// List all objects
    #[arg(long)]
    objects: bool,
    /// Also the checksum of each block of an object
    #[arg(long, requires = "object")]
    checksums: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Where the copy of the index is kept meanwhile; $TMPDIR otherwise
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
}

/// Moves data of a mounted file system off OSTs that are fuller than the others.
///
/// Files stay in use meanwhile; one that is being written to is tried again later. It may be ended at any time and started again: it
/// goes on with what is left.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit code 0 if everything was moved that was to be moved, 1 if files are left.
Example: nacre rebalance /mnt/nacre
         nacre rebalance /mnt/nacre --drain 1")]
struct RebalanceArgs {
    /// Where it is mounted
    mount_point: PathBuf,
    /// Index of an OST to empty, which takes no new objects from then on (no_create); may be given several times
    #[arg(long, value_name = "OST")]
    drain: Vec<u16>,
    /// How much fuller than all OSTs together one may stay, in percent of its space
    #[arg(long, value_name = "PERCENT", default_value_t = 5)]
    within_percent: u8,
    /// MiB per second at most, 0 for no limit
    #[arg(long, value_name = "MIB", default_value_t = 32)]
    rate: u64,
    /// Have writers of large files wait, too, while those are copied
    #[arg(long)]
    block: bool,
    /// Only say what would be moved
    #[arg(long)]
    dry_run: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Makes a file system without starting it.
#[derive(Debug, Args)]
#[command(after_help = "Example: nacre format /srv/fs --osts 8")]
struct FormatArgs {
    /// Directory of the file system: new or empty
    dir: PathBuf,
    #[command(flatten)]
    shape: ShapeArgs,
}

/// What a new file system is made of.
#[derive(Debug, Clone, Args)]
struct ShapeArgs {
    /// Name of a new file system: 1 to 8 letters, digits, '_' or '-' [default: nacre]
    #[arg(long)]
    fsname: Option<String>,
    /// Metadata targets of a new file system [default: 1]
    #[arg(long, value_name = "N")]
    mdts: Option<u16>,
    /// Object targets of a new file system [default: 2]
    #[arg(long, value_name = "N")]
    osts: Option<u16>,
    /// OSTs on flash, such as 0-3,8: shown by 'lfs df -v'; found out from the device if not said, and kept
    #[arg(long, value_name = "OSTS")]
    flash: Option<String>,
    /// OSTs on rotating disks, likewise
    #[arg(long, value_name = "OSTS")]
    disk: Option<String>,
    /// What OSTs of a new file system keep objects in: file, file,checksums, or block[:PATH][,size=BYTES][,force] for a device
    /// or one large file; once for all OSTs, or once for each in their order [default: file]
    #[arg(long, value_name = "BACKEND")]
    ost_backend: Vec<String>,
    /// What MDTs of a new file system keep data of files in: meta for their metadata store, or block[:PATH][,size=BYTES][,force]
    /// for a device or one large file; once for all MDTs, or once for each in their order [default: meta]
    #[arg(long, value_name = "BACKEND")]
    mdt_backend: Vec<String>,
    /// Flash device for small writes of an OST, written back to it later: PATH[,size=BYTES][,force], or none; once for each OST in
    /// their order. It is kept, and may be given to OSTs that are there
    #[arg(long, value_name = "CACHE")]
    ost_cache: Vec<String>,
}

#[derive(Debug, Subcommand)]
enum TargetCommand {
    Add(TargetAddArgs),
    Start(TargetStartArgs),
    Drain(TargetDrainArgs),
    Uncache(TargetUncacheArgs),
}

/// Makes a metadata or object target and has it join the file system.
///
/// Mounts and servers use it from then on. If it was broken off, the same call goes on with it.
#[derive(Debug, Args)]
#[command(after_help = "\
Example: a second MDT for a file system that 'nacre up' started
  nacre target add /srv/fs mdt
Example: an OST on a device of its own, with a cache of small writes on flash
  nacre target add /srv/fs ost --ost-backend block:/dev/sdx --ost-cache /dev/nvme0n1
Example: an MDT that keeps data of files on a device of its own
  nacre target add /srv/fs mdt --mdt-backend block:/dev/sdy
Example: on a host of its own, for a file system that is served elsewhere
  nacre target add /srv/mdt mdt --mgs 10.0.0.1@tcp --fsname nacre --listen 10.0.0.3@tcp")]
struct TargetAddArgs {
    /// Directory of the file system; with --mgs one for the target: new, empty, or with others of this file system
    dir: PathBuf,
    /// What to add
    kind: NewTarget,
    /// Refuse unless it gets this index
    #[arg(long, value_name = "N")]
    index: Option<u16>,
    /// Where the management server is, if it is elsewhere; may be given several times
    #[arg(long, value_name = "ADDRESS", requires = "listen")]
    mgs: Vec<Address>,
    /// Address to serve the target on; may be given several times
    #[arg(long, value_name = "ADDRESS", requires = "mgs")]
    listen: Vec<Address>,
    /// Name of the file system [default: nacre, or that of the directory]
    #[arg(long)]
    fsname: Option<String>,
    /// TCP port of the target where servers have processes of their own; a free one is chosen and kept otherwise
    #[arg(long, value_name = "PORT", conflicts_with = "mgs")]
    port: Option<u16>,
    #[command(flatten)]
    ost: crate::target_wishes::TargetWishes,
}

/// Starts the targets of a directory that were added with --mgs.
#[derive(Debug, Args)]
#[command(after_help = "Example: nacre target start /srv/mdt")]
struct TargetStartArgs {
    /// Directory of the targets
    dir: PathBuf,
}

/// Moves everything that lies on an MDT to the others.
///
/// It is in use meanwhile, and takes nothing new from then on. What is open is named and stays, and so are files with many names: run it again
/// for them. It may be ended at any time and started again.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit code 0 if nothing is left there, 1 otherwise.
Example: nacre target drain /mnt/nacre MDT0001")]
struct TargetDrainArgs {
    /// Where the file system is mounted
    mount_point: PathBuf,
    /// The MDT: its name or index
    target: String,
}

/// Takes the cache of small writes away from an OST that does not run.
///
/// It starts without the device from then on, and the device belongs to nobody, or is left as it is and named if it cannot be
/// opened or is another store's. A cache that still holds data which the OST lacks is
/// kept, unless that is written back (--drain) or given up (--force).
#[derive(Debug, Args)]
#[command(after_help = "\
Example: nacre target uncache /srv/fs OST0000
         nacre target uncache /srv/fs OST0000 --drain")]
struct TargetUncacheArgs {
    /// Directory of the file system, or of the target
    dir: PathBuf,
    /// The OST: its name or index
    ost: String,
    /// Write back first what only the cache holds
    #[arg(long)]
    drain: bool,
    /// Write back what can be, and give up the rest, which is named
    #[arg(long)]
    force: bool,
}

/// Runs one background process of a file system (used by the other commands).
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Example, on a host of its own: nacre serve --role ost0001 --dir /srv/fs --listen 10.0.0.3@tcp --mgs 10.0.0.1@tcp")]
struct ServeArgs {
    /// What it is: node, mgs, mdt0000, ost0000 or mount
    #[arg(long)]
    role: String,
    /// Directory of the file system
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Source to mount, for a mount without a directory
    #[arg(long)]
    source: Option<String>,
    /// Where to mount
    #[arg(long)]
    mount: Option<PathBuf>,
    /// Mount options
    #[arg(short = 'o')]
    options: Vec<String>,
    /// Addresses to listen on
    #[arg(long)]
    listen: Vec<Address>,
    /// Addresses of the management server
    #[arg(long)]
    mgs: Vec<Address>,
    /// Ignore mount options that are not known
    #[arg(long)]
    sloppy: bool,
    /// Leave the session of the caller and tell it on standard output when everything runs
    #[arg(long)]
    background: bool,
}

/// Runs `nacre ARGS` and returns the exit code.
pub fn main(args: Vec<OsString>) -> i32 {
    match args.first().and_then(|word| word.to_str()) {
        Some("lfs") => return crate::lfs::main(&args[1..]),
        Some("lctl") => return crate::lctl::main(&args[1..]),
        Some("help") if args.get(1).is_some_and(|word| measure::knows(word)) => {
            return report(&measure::hand_over("help", &args[1..]));
        }
        _ => {}
    }
    let program = std::iter::once(OsString::from("nacre"));
    let cli = match Cli::try_parse_from(program.chain(args)) {
        Ok(cli) => cli,
        Err(error) => return call::answer(&error),
    };
    if cli.command.makes_files() {
        let mask = rustix::process::umask(rustix::fs::Mode::empty());
        rustix::process::umask(mask | rustix::fs::Mode::WGRP | rustix::fs::Mode::WOTH);
    }
    let result = match cli.command {
        Command::Up(args) => up::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Down(args) => down::run(&args),
        Command::Mount(args) => mount::run(&args),
        Command::Join(args) => join::run(&args),
        Command::Umount(args) => mount::unmount(&args.mount_point).map(|()| 0),
        Command::Check(args) => check::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Rebalance(args) => rebalance::run(&args),
        Command::Format(args) => up::format(&args),
        Command::Target { command } => target::run(&command),
        Command::Key { command } => key::run(&command),
        Command::Frag(args) => frag::run(&args),
        Command::Trim(args) => trim::run(&args),
        Command::Paf(args) => Err(measure::hand_over("paf", &args.words)),
        Command::Bench(args) => Err(measure::hand_over("bench", &args.words)),
        Command::Serve(args) => return serve::run(&args),
    };
    match result {
        Ok(exit) => exit,
        Err(failure) => report(&failure),
    }
}

/// Prints a failure and gives its exit code.
pub fn report(failure: &Failure) -> i32 {
    if !failure.message.is_empty() {
        eprintln!("nacre: {failure}");
    }
    failure.exit
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_grammar_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_is_wrong_with_a_call_is_said_last() {
        let told = |words: &[&str]| {
            let error = Cli::try_parse_from([&["nacre"], words].concat()).expect_err("wrong");
            call::wrong_call(&error)
        };
        let expected = "See 'nacre frag --help'.\nerror: unexpected argument '--nosuch' found";
        assert_eq!(told(&["frag", "/x", "--nosuch"]).as_deref(), Some(expected));
        let missing = told(&["target", "drain"]).expect("an error");
        assert!(missing.starts_with("See 'nacre target drain --help'.\nerror: "), "{missing}");
        assert!(!missing.contains("Usage"), "{missing}");
        assert_eq!((told(&["--help"]), told(&[])), (None, None));
    }

    #[test]
    fn every_command_has_an_example() {
        // Those of the program that measures are looked at there.
        let is_ours =
            |command: &&clap::Command| !command.is_hide_set() && !command.is_disable_help_flag_set();
        for command in Cli::command().get_subcommands().filter(is_ours) {
            let help = command.clone().render_long_help().to_string();
            assert!(help.contains("Example: "), "{}", command.get_name());
        }
    }
}
