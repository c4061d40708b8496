//! The `nacre` command: its grammar, and the module of each sub-command.
//!
//! Exit codes: 0 success, 1 failure (or, from `status` and `check`, something is not as it should be), 2
//! wrong call.

mod changes;
mod check;
mod config;
mod debug;
mod doctor;
mod down;
mod drain;
mod du;
mod frag;
mod generate;
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
mod top;
mod trim;
mod uncache;
mod up;
mod web;

pub use debug::ask_all as ask_all_debug;
pub use mount::{MountOptions, OPTIONS_HELP, mount as mount_source, remount};

use crate::control::NewTarget;
use crate::failure::Failure;
use crate::http_address::HttpAddress;
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

const MOUNT_EXAMPLE: &str = "\
Example: nacre mount --token TOKEN 10.0.0.1@tcp:/nacre /mnt/nacre      the first time
         nacre mount 10.0.0.1@tcp:/nacre /mnt/nacre -o ro
         nacre mount 10.0.0.1@tcp:/nacre/project /mnt/project
Where NacreFS is installed also: mount -t nacre 10.0.0.1@tcp:/nacre /mnt/nacre, and lines in /etc/fstab";

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
    Check(check::CheckArgs),
    Doctor(doctor::DoctorArgs),
    Inspect(InspectArgs),
    Rebalance(RebalanceArgs),
    Format(FormatArgs),
    /// Adds targets to a file system, also while it is used, empties MDTs, and removes caches from OSTs
    #[command(after_help = TARGET_HELP)]
    Target {
        #[command(subcommand)]
        command: TargetCommand,
    },
    /// Keys of hosts and users: enrol them by tokens, list and revoke them
    #[command(after_help = KEY_HELP)]
    Key {
        #[command(subcommand)]
        command: KeyCommand,
    },
    /// Measures this machine, and file systems on it
    #[command(disable_help_flag = true)]
    Bench(MeasureArgs),
    Changes(changes::ChangesArgs),
    Du(du::DuArgs),
    Frag(FragArgs),
    Trim(trim::TrimArgs),
    Top(top::TopArgs),
    Debug(debug::DebugArgs),
    Web(web::WebArgs),
    /// Measures a file system while it is filled and fragmented step by step (populate and fragment)
    #[command(disable_help_flag = true)]
    Paf(MeasureArgs),
    #[command(hide = true)]
    Serve(ServeArgs),
    /// Creates manual pages and completions (used by 'make install')
    #[command(hide = true)]
    Generate {
        #[command(subcommand)]
        command: generate::GenerateCommand,
    },
}

impl Command {
    /// Returns true for commands that create files or directories of NacreFS, which must never be writable by
    /// others, whatever the umask of the caller. Files that others must not read get explicit modes.
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
    /// Creates the authority of a file system that has none
    ///
    /// New file systems have one. The processes of this host create their keys at their next start, and so do
    /// mounts by the same user. From then on every connection is encrypted, and needs a key.
    Init {
        /// Directory of the file system with its management server
        dir: PathBuf,
    },
    Token(KeyTokenArgs),
    /// Lists the issued keys
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
    /// Revokes a key: all servers refuse it and close its connections
    Revoke {
        /// Number of the key, as 'nacre key list' shows it
        id: String,
        #[command(flatten)]
        of: FileSystemArg,
    },
    /// Replaces the authority of a stopped file system, for example if its private key may be compromised
    ///
    /// All earlier keys become invalid. Processes and mounts of its owner on its host create new ones
    /// themselves; other hosts and users need a token each.
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

// Words are passed to the program that measures, which has help for them and reports errors in them.
#[derive(Debug, Args)]
struct MeasureArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// The file system that a command acts on.
#[derive(Debug, Clone, Args)]
struct FileSystemArg {
    /// Directory or mount point of the file system, or NID:/FSNAME [default: the one that runs here]
    #[arg(value_name = "FILESYSTEM")]
    filesystem: Option<String>,
}

/// Creates a token, which enrols the key of a host or user.
///
/// The token is a secret until it is used: give it only to that host or user. It is printed on standard
/// output, alone.
#[derive(Debug, Args)]
#[command(after_help = "\
Example: nacre key token                          a host that mounts
         nacre key token --uid 1000               user 1000, on any host, and nobody else
         nacre key token --filesystem-root /projects/a --read-only
         nacre key token --role admin --expires 10m")]
struct KeyTokenArgs {
    #[command(flatten)]
    of: FileSystemArg,
    /// Role of the key: client (mounts, all users but root), admin (mounts, root too, and commands such as
    /// this one), server (serves MDTs and OSTs), oss (serves OSTs)
    #[arg(long, default_value = "client", value_name = "ROLE")]
    role: KeyRole,
    /// Restrict the key to this user
    #[arg(long, value_name = "UID")]
    uid: Option<u32>,
    /// Directory of the file system that mounts with this key see as their root
    #[arg(long, value_name = "PATH")]
    filesystem_root: Option<String>,
    /// Mounts with this key are read-only
    #[arg(long)]
    read_only: bool,
    /// Time until the unused token expires: 30s, 10m, 1h, 7d
    #[arg(long, value_name = "TIME", default_value = "1h")]
    expires: humantime::Duration,
    /// Lifetime of the key, which is then not renewed; without it, the key is renewed for as long as it is
    /// used
    #[arg(long, value_name = "TIME")]
    key_expires: Option<humantime::Duration>,
    /// Keys that the token enrols, such as one for each host of a job
    #[arg(long, value_name = "N", default_value_t = 1)]
    uses: u32,
}

/// Shows how fragmented the objects of OSTs, or files of any file system, and free space are.
///
/// Fragmentation of files is the share of the transfers for reading them that contiguous files would not
/// need; that of free space is the share in extents too small for a transfer. Both are from 0 to 1.
#[derive(Debug, Args)]
#[command(after_help = "\
Example: nacre frag /srv/fs                all OSTs of a file system here, running or not; so does its mount point
         nacre frag /srv/fs/ost0001 --json
         nacre frag /home                  files of any local file system")]
struct FragArgs {
    /// Directory of a file system, its mount point, directory of an OST or of an MDT with a device, or any
    /// file or directory
    path: PathBuf,
    /// Size of a large transfer, the unit of the measure
    #[arg(long, value_name = "SIZE", default_value = "1M")]
    unit: String,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Starts a file system, creating it first if the directory is new, and mounts it.
///
/// One process does everything unless --separate is given. Running parts are left alone and missing ones are
/// started, so the command can be repeated after a crash. The options are stored: 'nacre up DIR' starts the
/// file system the same way again, and options given then replace the stored ones.
#[derive(Debug, Clone, Default, Args)]
#[command(after_help = "\
Example: nacre up /srv/fs --mount /mnt/nacre --osts 4
         nacre up /srv/fs                              as it was started last
         nacre up --config /etc/nacre/home.toml        as a file says
         nacre up /srv/fs --listen 10.0.0.1@tcp --listen host1-ib:7000@tcp
         nacre up ./data --mount ./mnt --separate      one process per server, over TCP on this host")]
struct UpArgs {
    /// Directory of the file system: new, empty, or made by nacre
    #[arg(required_unless_present = "config")]
    dir: Option<PathBuf>,
    /// File with these options, such as /etc/nacre/NAME.toml; those of the command line replace its options,
    /// and stored ones do not count
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Mount point, created if missing [default: where it was mounted before]
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
    #[command(flatten)]
    shape: ShapeArgs,
    /// One process per server and one for the mount
    #[arg(long)]
    separate: bool,
    /// Return to one process for everything, after --separate
    #[arg(long, conflicts_with = "separate")]
    one_process: bool,
    /// First of the consecutive TCP ports of the servers; free ones are chosen and kept otherwise (with
    /// --separate)
    #[arg(long, value_name = "PORT", conflicts_with = "one_process")]
    port: Option<u16>,
    /// Also serve other hosts on this address, for example 10.0.0.1@tcp, host1:7000@tcp, [::]@tcp for all;
    /// may be given several times; none: serve this host alone again
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<String>,
    /// Protection of connections: encrypt, authenticate (others can read the traffic and not change it) or
    /// open (every peer is served); for one address: --listen 10.0.0.1@tcp,authenticate [default: encrypt, or
    /// as before]
    #[arg(long, value_name = "HOW")]
    security: Option<Security>,
    /// Serve figures for Prometheus on this address: [HOST:]PORT, this host alone without HOST; none: not any
    /// more
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<String>,
    /// Mount options, as for 'nacre mount'
    #[arg(short = 'o', long = "options", value_name = "OPTIONS")]
    options: Vec<String>,
    /// Stay in the foreground and log to standard error, or with --separate to the logs of the processes; for
    /// service managers
    #[arg(long)]
    foreground: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Shows processes, targets, space and mounts; exit code 1 if a part does not run.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: nacre status /srv/fs\n         nacre status /mnt/nacre\n         nacre status --json"
)]
struct StatusArgs {
    /// Directory or mount point of the file system; all that run on this host otherwise
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
    /// Unmount although files are open; programs that use them get errors
    #[arg(long)]
    force: bool,
    /// Timeout for the end of each process, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,
}

/// Mounts a file system that other hosts serve.
#[derive(Debug, Args)]
#[command(after_help = format!("{}{MOUNT_EXAMPLE}", mount::OPTIONS_HELP))]
struct MountArgs {
    /// NID[:NID..]:/FSNAME[/DIRECTORY]: the management server, the file system's name, and the directory to
    /// mount
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

/// Creates targets on this host for a file system that runs on other hosts, and serves them.
///
/// It enrols a key by a token of 'nacre key token --role server', creates the targets, registers them, and
/// starts them. 'nacre up DIR' restarts them.
#[derive(Debug, Args)]
#[command(after_help = "\
Example: nacre join --token TOKEN host1@tcp:/nacre /srv/fs --listen 10.0.0.2@tcp --osts 2
         nacre join --token TOKEN host1@tcp:/nacre /srv/fs --listen 10.0.0.2@tcp --mdt --ost-backend block:/dev/sdb")]
struct JoinArgs {
    /// NID[:NID..]:/FSNAME: the management server, and the file system's name
    source: String,
    /// Directory for the targets: new, empty, or with other targets of this file system
    dir: PathBuf,
    #[command(flatten)]
    token: TokenArgs,
    /// Address to serve on, for example 10.0.0.2@tcp; the first target gets its port, the next ones the ports
    /// above; may be given several times
    #[arg(long, value_name = "ADDRESS", required = true)]
    listen: Vec<Address>,
    /// Add an MDT
    #[arg(long)]
    mdt: bool,
    /// Number of OSTs to add [default: 1, or 0 with --mdt]
    #[arg(long, value_name = "N")]
    osts: Option<u16>,
    /// Back end for objects of an OST: file, or block[:PATH][,size=BYTES][,force]; once for all, or once for
    /// each
    #[arg(long, value_name = "BACKEND")]
    ost_backend: Vec<String>,
    /// Back end for data of files on the MDT
    #[arg(long, value_name = "BACKEND", requires = "mdt")]
    mdt_backend: Option<String>,
    /// Serve figures of the targets in DIR for Prometheus on this address: [HOST:]PORT, this host alone without HOST;
    /// none: not any more; remembered
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<String>,
}

/// A token that enrols a key.
#[derive(Debug, Clone, Args)]
struct TokenArgs {
    /// Token of 'nacre key token'; - reads it from standard input. Other users of this host can read command
    /// lines
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
    /// Mount point
    mount_point: PathBuf,
}

/// Shows what is stored on the device of a stopped target, the extents of an object with their checksums, or
/// the log of an OST's cache. Changes nothing.
///
/// The device is opened read-only, and the index is read from a copy. Data in a cache of small writes is
/// shown only with --cache.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit code 0 if everything is well, 1 if damage was found.
Example: nacre inspect /srv/fs/ost0000
         nacre inspect /srv/fs/ost0000 --object [0x100000000:0x2:0x0] --checksums
         nacre inspect /srv/fs/ost0000 --cache
         nacre inspect /dev/nvme0n1                  the device of a cache")]
struct InspectArgs {
    /// Directory of an OST that keeps its objects on a device, or of an MDT that keeps data of files on one,
    /// or the device of a cache of small writes
    dir: PathBuf,
    /// Show the log of the OST's cache; the OST may have the back end 'file'
    #[arg(long, conflicts_with_all = ["object", "objects"])]
    cache: bool,
    /// FID of an object: show its record, its extents, and whether its data matches its checksums
    #[arg(long, value_name = "FID")]
    object: Vec<String>,
    /// List all objects
    #[arg(long)]
    objects: bool,
    /// Also show the checksum of each block of an object
    #[arg(long, requires = "object")]
    checksums: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Directory for the temporary copy of the index; $TMPDIR otherwise
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
}

/// Moves data of a mounted file system off OSTs that are fuller than the others.
///
/// Files stay in use; a file that is being written to is tried again later. The command may be interrupted
/// and restarted at any time: it continues with the remaining files.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit code 0 if everything was moved that was to be moved, 1 if files are left.
Example: nacre rebalance /mnt/nacre
         nacre rebalance /mnt/nacre --drain 1")]
struct RebalanceArgs {
    /// Mount point of the file system
    mount_point: PathBuf,
    /// Index of an OST to empty, which takes no new objects from then on (no_create); may be given several
    /// times
    #[arg(long, value_name = "OST")]
    drain: Vec<u16>,
    /// How much fuller than the average an OST may stay, in percent of its space
    #[arg(long, value_name = "PERCENT", default_value_t = 5)]
    within_percent: u8,
    /// Limit of the copy rate in MiB per second, 0 for no limit
    #[arg(long, value_name = "MIB", default_value_t = 32)]
    rate: u64,
    /// Make writers of large files, too, wait until these are copied
    #[arg(long)]
    block: bool,
    /// Only show what would be moved
    #[arg(long)]
    dry_run: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Creates a file system without starting it.
#[derive(Debug, Args)]
#[command(after_help = "Example: nacre format /srv/fs --osts 8")]
struct FormatArgs {
    /// Directory of the file system: new or empty
    dir: PathBuf,
    #[command(flatten)]
    shape: ShapeArgs,
}

/// Targets and back ends of a new file system.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
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
    /// OSTs on flash, such as 0-3,8: shown by 'lfs df -v'; detected from the device if not given, and stored
    #[arg(long, value_name = "OSTS")]
    flash: Option<String>,
    /// OSTs on rotating disks, likewise
    #[arg(long, value_name = "OSTS")]
    disk: Option<String>,
    /// Back end for objects of the OSTs of a new file system: file, file,checksums, or
    /// block[:PATH][,size=BYTES][,force] for a device or one large file; once for all OSTs, or once for each
    /// in their order [default: file]
    #[arg(long, value_name = "BACKEND")]
    ost_backend: Vec<String>,
    /// Back end for data of files on the MDTs of a new file system: meta for their metadata store, or
    /// block[:PATH][,size=BYTES][,force] for a device or one large file; once for all MDTs, or once for each
    /// in their order [default: meta]
    #[arg(long, value_name = "BACKEND")]
    mdt_backend: Vec<String>,
    /// Flash device as write-back cache for small writes of an OST: PATH[,size=BYTES][,force], or none; once
    /// for each OST in their order. It is stored, and may be given to existing OSTs
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

/// Creates a metadata or object target and adds it to the file system.
///
/// Mounts and servers use it from then on. If the command was interrupted, the same call continues it.
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
    /// Directory of the file system; with --mgs one for the target: new, empty, or with other targets of this
    /// file system
    dir: PathBuf,
    /// Kind of target to add
    kind: NewTarget,
    /// Fail unless the target gets this index
    #[arg(long, value_name = "N")]
    index: Option<u16>,
    /// Address of the management server, if it is on another host; may be given several times
    #[arg(long, value_name = "ADDRESS", requires = "listen")]
    mgs: Vec<Address>,
    /// Address to serve the target on; may be given several times
    #[arg(long, value_name = "ADDRESS", requires = "mgs")]
    listen: Vec<Address>,
    /// Name of the file system [default: nacre, or that of the directory]
    #[arg(long)]
    fsname: Option<String>,
    /// TCP port of the target where servers have processes of their own; a free one is chosen and stored
    /// otherwise
    #[arg(long, value_name = "PORT", conflicts_with = "mgs")]
    port: Option<u16>,
    #[command(flatten)]
    ost: crate::target_options::TargetOptions,
}

/// Starts the targets of a directory that were added with --mgs.
#[derive(Debug, Args)]
#[command(after_help = "Example: nacre target start /srv/mdt")]
struct TargetStartArgs {
    /// Directory of the targets
    dir: PathBuf,
    /// Serve their figures for Prometheus on this address: [HOST:]PORT, this host alone without HOST; none: not any more;
    /// remembered
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<String>,
}

/// Moves all inodes of an MDT to the other MDTs.
///
/// The MDT stays in use and takes no new inodes from then on. Open files are listed and stay, and so are
/// files with many names: run the command again for them. It may be interrupted and restarted at any time.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit code 0 if nothing is left there, 1 otherwise.
Example: nacre target drain /mnt/nacre MDT0001")]
struct TargetDrainArgs {
    /// Mount point of the file system
    mount_point: PathBuf,
    /// Name or index of the MDT
    target: String,
}

/// Removes the cache of small writes from a stopped OST.
///
/// The OST starts without the device from then on, and the device is free for other uses; a device that
/// cannot be opened or belongs to another store is left as it is and named. A cache with data that the OST
/// lacks is kept, unless that data is written back (--drain) or discarded (--force).
#[derive(Debug, Args)]
#[command(after_help = "\
Example: nacre target uncache /srv/fs OST0000
         nacre target uncache /srv/fs OST0000 --drain")]
struct TargetUncacheArgs {
    /// Directory of the file system, or of the target
    dir: PathBuf,
    /// Name or index of the OST
    ost: String,
    /// First write back the data that only the cache holds
    #[arg(long)]
    drain: bool,
    /// Write back what is readable, discard the rest, and list it
    #[arg(long)]
    force: bool,
}

/// Runs one background process of a file system (used by the other commands).
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Example, on a host of its own: nacre serve --role ost0001 --dir /srv/fs --listen 10.0.0.3@tcp --mgs 10.0.0.1@tcp")]
struct ServeArgs {
    /// Role of the process: node, mgs, mdt0000, ost0000 or mount
    #[arg(long)]
    role: String,
    /// Directory of the file system
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Source to mount, for a mount without a directory of the file system
    #[arg(long)]
    source: Option<String>,
    /// Mount point
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
    /// Ignore unknown mount options
    #[arg(long)]
    sloppy: bool,
    /// Serve the figures of this process on this address; of the whole directory with the management server, and without
    /// one in DIR
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<HttpAddress>,
    /// Detach from the session of the caller and report on standard output when everything runs
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
        Command::Du(args) => du::run(&args),
        Command::Frag(args) => frag::run(&args),
        Command::Trim(args) => trim::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Changes(args) => changes::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Debug(args) => debug::run(&args),
        Command::Web(args) => web::run(&args),
        Command::Paf(args) => Err(measure::hand_over("paf", &args.words)),
        Command::Bench(args) => Err(measure::hand_over("bench", &args.words)),
        Command::Serve(args) => return serve::run(&args),
        Command::Generate { command } => generate::run(&command),
    };
    match result {
        Ok(exit) => exit,
        Err(failure) => report(&failure),
    }
}

/// Prints a failure and returns its exit code.
pub fn report(failure: &Failure) -> i32 {
    if !failure.message.is_empty() {
        eprintln!("{}nacre: {failure}", crate::logger::error_prefix());
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
        // The program that measures checks its own arguments.
        let is_ours =
            |command: &&clap::Command| !command.is_hide_set() && !command.is_disable_help_flag_set();
        for command in Cli::command().get_subcommands().filter(is_ours) {
            let help = command.clone().render_long_help().to_string();
            assert!(help.contains("Example: "), "{}", command.get_name());
        }
    }
}
