//! `nacre key`: keys of a file system: tokens that enrol them, list, revocation.

use super::{FileSystemArg, KeyCommand, KeyTokenArgs, TokenArgs};
use crate::failure::{Failure, Result};
use crate::instance::Instance;
use crate::keys::{self, Holder};
use crate::named::{self, Named};
use crate::node::MgsWay;
use crate::output::print_json;
use crate::process::RunDir;
use crate::{listen, mounts, registry};
use clap::ValueEnum;
use nacre_keys::Token;
use nacre_types::identity::is_subtree;
use nacre_types::nid::MountSource;
use nacre_types::{Identity, KeyId, Nid, Roles, Status};
use nacre_wire::mgs::{IssuedKey, MgsReply, MgsRequest};
use serde::Serialize;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Longest file with a token, in bytes.
const TOKEN_MAX: u64 = 4096;

/// Role of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KeyRole {
    /// Mounts, for all users but root.
    Client,
    /// Mounts, for root too, and commands that change the file system.
    Admin,
    /// Serves MDTs and OSTs.
    Server,
    /// Serves OSTs.
    Oss,
}

impl KeyRole {
    fn roles(self) -> Roles {
        match self {
            KeyRole::Client => Roles::CLIENT,
            KeyRole::Admin => Roles::CLIENT | Roles::ADMIN,
            KeyRole::Server => Roles::MDS | Roles::OSS,
            KeyRole::Oss => Roles::OSS,
        }
    }
}

/// Runs the command.
pub fn run(command: &KeyCommand) -> Result<i32> {
    match command {
        KeyCommand::Init { dir } => init(dir),
        KeyCommand::Token(args) => token(args),
        KeyCommand::List { of, json } => {
            let keys = issued(&way_to(of)?)?;
            print(&keys, *json)
        }
        KeyCommand::Show { id, of, json } => {
            let id = parse_id(id)?;
            let keys = issued(&way_to(of)?)?;
            let key: Vec<IssuedKey> = keys.into_iter().filter(|key| key.identity.id == id).collect();
            match key.is_empty() {
                true => Err(Failure::new(format!("no key {id} was issued: see 'nacre key list'"))),
                false => print(&key, *json),
            }
        }
        KeyCommand::Revoke { id, of } => {
            let id = parse_id(id)?;
            match way_to(of)?.call(&MgsRequest::RevokeKey { id }) {
                Ok(_) => println!("key {id} is revoked"),
                Err(Status::ENOENT) => {
                    return Err(Failure::new(format!("no key {id} was issued: see 'nacre key list'")));
                }
                Err(status) => return Err(refused(status)),
            }
            Ok(0)
        }
        KeyCommand::Rotate { dir } => rotate(dir),
        KeyCommand::ExportAuthority { of } => {
            print!("{}", way_to(of)?.authority()?);
            Ok(0)
        }
    }
}

fn init(dir: &Path) -> Result<i32> {
    let instance = Instance::open_existing(dir)?;
    let run = RunDir::new(instance.run_dir());
    if !run.running().is_empty() {
        println!("authority made, SHA-256 {}", keys::init(&instance)?);
        println!(
            "what runs is open until it is started again: 'nacre down {0}', then 'nacre up {0}'",
            dir.display()
        );
        return Ok(0);
    }
    let _locks = super::check::take_all(&instance, &run)?;
    println!("authority made, SHA-256 {}", keys::init(&instance)?);
    // Removes those of a lost authority.
    keys::forget(&instance)?;
    Ok(0)
}

fn rotate(dir: &Path) -> Result<i32> {
    let instance = Instance::open_existing(dir)?;
    let _locks = super::check::take_all(&instance, &RunDir::new(instance.run_dir()))?;
    println!("authority replaced, SHA-256 {}", keys::rotate(&instance)?);
    println!(
        "hosts and users that had a key need a token each: 'nacre key token', once the file system runs"
    );
    Ok(0)
}

fn token(args: &KeyTokenArgs) -> Result<i32> {
    let is_bounded = args.uid.is_some() || args.filesystem_root.is_some() || args.read_only;
    if is_bounded && args.role != KeyRole::Client {
        return Err(Failure::usage(
            "--uid, --filesystem-root and --read-only are for keys with --role client",
        ));
    }
    let root = args.filesystem_root.clone().filter(|root| root != "/");
    if root.as_deref().is_some_and(|root| !is_subtree(root)) {
        return Err(Failure::usage(
            "--filesystem-root takes an absolute path in the file system without '.', '..' and '//', such as /projects/a",
        ));
    }
    let way = way_to(&args.of)?;
    let grants = Identity {
        uid: args.uid,
        root,
        read_only: args.read_only,
        ..Identity::new(way.fsname(), KeyId(0), args.role.roles(), "")
    };
    let seconds = |time: &humantime::Duration| Duration::from(*time).as_secs();
    let request = MgsRequest::CreateToken {
        grants,
        expires_s: seconds(&args.expires),
        uses: args.uses,
        lifetime_s: args.key_expires.as_ref().map_or(0, seconds),
    };
    match way.call(&request) {
        Ok(MgsReply::Token(text)) => {
            println!("{}", String::from_utf8_lossy(&text.0));
            Ok(0)
        }
        Ok(_) => Err(refused(Status::EPROTO)),
        Err(Status::EINVAL) => Err(Failure::usage(
            "tokens last from a second to ten years, their keys from a minute on, and enrol 1 to 65536 keys",
        )),
        Err(status) => Err(refused(status)),
    }
}

fn refused(status: Status) -> Failure {
    Failure::new(match status {
        Status::EPERM | Status::ENOKEY => {
            "only the owner of the file system on its host, and keys with --role admin, may do that"
                .to_owned()
        }
        Status::EOPNOTSUPP => "the file system has no keys: 'nacre key init DIR' makes them".to_owned(),
        Status::ETIMEDOUT | Status::ECONNREFUSED => {
            "the management server does not answer: look with 'nacre status'".to_owned()
        }
        status => format!("the management server refused that: {status}"),
    })
}

fn parse_id(text: &str) -> Result<KeyId> {
    text.parse().map_err(|_| Failure::usage(format!("'{text}' is no number of a key: see 'nacre key list'")))
}

fn issued(way: &MgsWay) -> Result<Vec<IssuedKey>> {
    match way.call(&MgsRequest::ListKeys) {
        Ok(MgsReply::Keys(keys)) => Ok(keys),
        Ok(_) => Err(refused(Status::EPROTO)),
        Err(status) => Err(refused(status)),
    }
}

/// Returns a connection to the management server of a file system that is named by its directory, a mount
/// point, or an address.
fn way_to(of: &FileSystemArg) -> Result<MgsWay> {
    let Some(text) = &of.filesystem else { return way_to_only() };
    if text.contains(":/") && !Path::new(text).exists() {
        return MgsWay::new(&listen::resolve_source(text)?, None);
    }
    let path = Path::new(text);
    if let Named::Directory(instance) = named::find(path)? {
        return way_of(&instance);
    }
    match mounts::find_mount(path).map_err(Failure::because("read the mount table"))? {
        Some(mount) => MgsWay::new(&listen::resolve_source(&mount.source)?, None),
        None => Err(Failure::new(format!("{text} is no file system and no mount of one"))),
    }
}

/// Returns the one of the only file system whose directory is in use on this host.
fn way_to_only() -> Result<MgsWay> {
    let dirs = registry::running().into_iter().filter_map(|run| run.path.parent().map(Path::to_owned));
    let mut found: Vec<Instance> = dirs.filter_map(|dir| Instance::open(&dir).ok().flatten()).collect();
    found.sort_by(|a, b| a.dir.cmp(&b.dir));
    found.dedup_by(|a, b| a.dir == b.dir);
    match found.as_slice() {
        [one] => way_of(one),
        [] => {
            Err(Failure::usage("no file system runs here: name its directory, a mount point, or NID:/FSNAME"))
        }
        _ => Err(Failure::usage("several file systems run here: name the directory of one")),
    }
}

fn way_of(instance: &Instance) -> Result<MgsWay> {
    let source = MountSource::whole(super::target::mgs_of(instance)?, &instance.superblock.fsname);
    MgsWay::new(&source, Some(&instance.dir))
}

/// Enrols a key by the token of a command, if it has one, and returns its identity.
///
/// # Errors
/// If the token cannot be read, or as [`keys::enrol`].
pub fn enrol(args: &TokenArgs, mgs: &[Nid], fsname: &str, holder: Holder<'_>) -> Result<Option<Identity>> {
    let text = match (&args.token, &args.token_file) {
        (Some(word), _) if word == "-" => read_token(std::io::stdin(), "standard input")?,
        (Some(word), _) => word.clone(),
        (None, Some(path)) => {
            let name = path.display().to_string();
            read_token(fs::File::open(path).map_err(Failure::because(format!("open {name}")))?, &name)?
        }
        (None, None) => return Ok(None),
    };
    let token: Token =
        text.parse().map_err(|error: nacre_keys::KeyError| Failure::usage(error.to_string()))?;
    keys::enrol(&token, mgs, fsname, holder).map(Some)
}

fn read_token(source: impl Read, name: &str) -> Result<String> {
    let mut text = String::new();
    source.take(TOKEN_MAX).read_to_string(&mut text).map_err(Failure::because(format!("read {name}")))?;
    Ok(text.trim().to_owned())
}

/// A key in the form that is shown.
#[derive(Serialize)]
struct Shown {
    id: String,
    roles: String,
    state: &'static str,
    /// End in seconds since 1970; a key that is renewed ends later.
    until_s: u64,
    is_renewed: bool,
    uid: Option<u32>,
    root: Option<String>,
    read_only: bool,
    name: String,
}

impl Shown {
    fn of(key: &IssuedKey) -> Shown {
        let identity = &key.identity;
        let now =
            nacre_env::clock::wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let state = match key.is_revoked {
            true => "revoked",
            false if identity.until_s <= now => "expired",
            false => "valid",
        };
        Shown {
            id: identity.id.to_string(),
            roles: identity.roles.to_string(),
            state,
            until_s: identity.until_s,
            is_renewed: !identity.is_final,
            uid: identity.uid,
            root: identity.root.clone(),
            read_only: identity.read_only,
            name: identity.name.clone(),
        }
    }

    fn bounds(&self) -> String {
        let uid = self.uid.map(|uid| format!("uid {uid}"));
        let read_only = self.read_only.then(|| "read-only".to_owned());
        let all: Vec<String> = [uid, self.root.clone(), read_only].into_iter().flatten().collect();
        if all.is_empty() { "-".to_owned() } else { all.join(", ") }
    }
}

fn print(keys: &[IssuedKey], json: bool) -> Result<i32> {
    if json {
        print_json(&keys.iter().map(Shown::of).collect::<Vec<_>>())?;
        return Ok(0);
    }
    println!("{:<16}  {:<24}  {:<7}  {:<20}  {:<24}  NAME", "KEY", "ROLES", "STATE", "UNTIL", "BOUNDS");
    for key in keys.iter().map(Shown::of) {
        let until =
            humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + Duration::from_secs(key.until_s));
        let until = until.to_string();
        let bounds = key.bounds();
        println!("{}  {:<24}  {:<7}  {until:<20}  {bounds:<24}  {}", key.id, key.roles, key.state, key.name);
    }
    Ok(0)
}
