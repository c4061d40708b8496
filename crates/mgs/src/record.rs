//! The configuration as a text file: one line for each fact, so that it can be read with `cat` when no server
//! runs.
//!
//! ```text
//! nacre-config 1
//! version 3
//! fsname nacre
//! uuid 30313233343536373839616263646566
//! target MDT0000 active 0@lo
//! target OST0000 inactive 127.0.0.1:7991@tcp,10.0.0.1@tcp
//! param lov.stripesize 1048576
//! pool flash OST0001,OST0000
//! server OST0000 00000000000000ab
//! revoked 00000000000000cd
//! capability-key 2 1790000000 <64 hexadecimal digits>
//! nodemaps active
//! nodemap remote squash_uid=99 range=10.1.0.[1-9]@tcp uid=1000:60000
//! crc32c 0123abcd
//! ```
//!
//! The checksum is over all bytes before its line.

use nacre_layout::PoolName;
use nacre_types::nid::check_fsname;
use nacre_types::{KeyId, TargetId, TargetKind};
use nacre_wire::mgs::{CapabilityKey, FsConfig, PoolConfig, TargetConfig};
use std::fmt::Write;
use std::sync::Arc;

/// Version of the form of the text.
pub const VERSION: u32 = 1;
const HEADER: &str = "nacre-config 1";

/// Why a text is not a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordError {
    /// Line, from 1; 0 if the text as a whole is malformed.
    pub line: usize,
    /// The defect.
    pub what: &'static str,
}

/// Encodes the configuration as text.
pub fn encode(config: &FsConfig) -> String {
    let mut text = format!("{HEADER}\nversion {}\nfsname {}\nuuid ", config.version, config.fsname);
    for byte in config.fs_uuid {
        write!(text, "{byte:02x}").expect("writing to a string cannot fail");
    }
    text.push('\n');
    for target in &config.targets {
        let nids: Vec<String> = target.nids.iter().map(ToString::to_string).collect();
        let state = if target.active { "active" } else { "inactive" };
        writeln!(text, "target {} {state} {}", target.target, nids.join(","))
            .expect("writing to a string cannot fail");
    }
    for (name, value) in &config.params {
        writeln!(text, "param {name} {value}").expect("writing to a string cannot fail");
    }
    for PoolConfig { name, osts } in &config.pools {
        let osts: Vec<String> = osts.iter().map(|index| TargetId::ost(*index).to_string()).collect();
        writeln!(text, "pool {name} {}", osts.join(",")).expect("writing to a string cannot fail");
    }
    write_keys(config, &mut text);
    if config.nodemaps.active {
        text.push_str("nodemaps active\n");
    }
    for map in &config.nodemaps.maps {
        writeln!(text, "nodemap {map}").expect("writing to a string cannot fail");
    }
    let crc = crc32c(text.as_bytes());
    writeln!(text, "crc32c {crc:08x}").expect("writing to a string cannot fail");
    text
}

/// Appends the lines that only a file system with keys has. Programs without support for keys can read the
/// configuration of a file system without keys.
fn write_keys(config: &FsConfig, text: &mut String) {
    for target in &config.targets {
        if let Some(key) = target.key {
            writeln!(text, "server {} {key}", target.target).expect("writing to a string cannot fail");
        }
    }
    for id in &config.revoked {
        writeln!(text, "revoked {id}").expect("writing to a string cannot fail");
    }
    for CapabilityKey { epoch, made_s, secret } in &config.capability_keys {
        let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(text, "capability-key {epoch} {made_s} {secret}").expect("writing to a string cannot fail");
    }
}

/// Returns the version of a text's form; `None` if it is no configuration.
pub fn version_of(text: &str) -> Option<u32> {
    text.lines().next()?.strip_prefix("nacre-config ")?.parse().ok()
}

/// Decodes a stored text.
///
/// # Errors
/// The first malformed line, or a checksum that does not match.
pub fn decode(text: &str) -> Result<FsConfig, RecordError> {
    let fail = |line, what| RecordError { line, what };
    if text.lines().next() != Some(HEADER) {
        return Err(fail(1, "not a configuration of this format"));
    }
    let body = checked_body(text).ok_or(fail(0, "the checksum does not match"))?;
    let mut config = FsConfig::default();
    for (index, line) in body.lines().enumerate().skip(1) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let good = match word {
            "version" => rest.parse().map(|version| config.version = version).is_ok(),
            "fsname" => check_fsname(rest).map(|()| config.fsname = rest.to_owned()).is_ok(),
            "uuid" => parse_uuid(rest).map(|uuid| config.fs_uuid = uuid).is_some(),
            "target" => parse_target(rest).map(|target| config.targets.push(target)).is_some(),
            "pool" => parse_pool(rest).map(|pool| config.pools.push(pool)).is_some(),
            "server" => parse_server(rest, &mut config.targets).is_some(),
            "revoked" => rest.parse().map(|id| config.revoked.push(id)).is_ok(),
            "nodemaps" => {
                config.nodemaps.active = rest == "active";
                config.nodemaps.active
            }
            "nodemap" => rest.parse().map(|map| config.nodemaps.maps.push(Arc::new(map))).is_ok(),
            "capability-key" => {
                parse_capability_key(rest).map(|key| config.capability_keys.push(key)).is_some()
            }
            "param" => {
                rest.split_once(' ').map(|(n, v)| config.params.push((n.to_owned(), v.to_owned()))).is_some()
            }
            _ => false,
        };
        if !good {
            return Err(fail(index + 1, "not understood"));
        }
    }
    if config.version == 0 || config.fsname.is_empty() {
        return Err(fail(0, "version or name is missing"));
    }
    Ok(config)
}

/// Returns the text before the checksum line, if that is the last line and matches.
fn checked_body(text: &str) -> Option<&str> {
    let at = text.rfind("crc32c ")?;
    let (body, last) = text.split_at(at);
    let crc = last.strip_prefix("crc32c ")?.strip_suffix('\n')?;
    let crc = u32::from_str_radix(crc, 16).ok()?;
    (body.ends_with('\n') && crc == crc32c(body.as_bytes())).then_some(body)
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    parse_hex(text)
}

fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0u8; N];
    if text.len() != 2 * N || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(bytes)
}

/// Parses the key that serves a target.
fn parse_server(text: &str, targets: &mut [TargetConfig]) -> Option<()> {
    let (target, key) = text.split_once(' ')?;
    let target: TargetId = target.parse().ok()?;
    let known = targets.iter_mut().find(|known| known.target == target)?;
    known.key = Some(key.parse::<KeyId>().ok()?);
    Some(())
}

fn parse_capability_key(text: &str) -> Option<CapabilityKey> {
    let mut words = text.split(' ');
    let (epoch, made_s, secret, None) = (words.next()?, words.next()?, words.next()?, words.next()) else {
        return None;
    };
    Some(CapabilityKey {
        epoch: epoch.parse().ok()?,
        made_s: made_s.parse().ok()?,
        secret: parse_hex(secret)?,
    })
}

fn parse_target(text: &str) -> Option<TargetConfig> {
    let mut words = text.split(' ');
    let (target, state, nids, None) = (words.next()?, words.next()?, words.next()?, words.next()) else {
        return None;
    };
    let active = match state {
        "active" => true,
        "inactive" => false,
        _ => return None,
    };
    let nids = nids.split(',').map(str::parse).collect::<Result<Vec<_>, _>>().ok()?;
    Some(TargetConfig { target: target.parse().ok()?, nids, active, key: None })
}

fn parse_pool(text: &str) -> Option<PoolConfig> {
    let (name, osts) = text.split_once(' ')?;
    let index = |word: &str| {
        let target: TargetId = word.parse().ok()?;
        (target.kind == TargetKind::Ost).then_some(target.index)
    };
    let osts = osts.split(',').filter(|word| !word.is_empty()).map(index).collect::<Option<Vec<u16>>>()?;
    Some(PoolConfig { name: PoolName::for_pool(name).ok()?, osts })
}

fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::nodemap::Nodemaps;

    fn pool(name: &str, osts: &[u16]) -> PoolConfig {
        PoolConfig { name: PoolName::for_pool(name).expect("a name"), osts: osts.to_vec() }
    }

    fn example() -> FsConfig {
        let nids = |text: &str| text.split(',').map(|n| n.parse().expect("a NID")).collect();
        FsConfig {
            version: 3,
            fsname: "nacre".to_owned(),
            fs_uuid: *b"0123456789abcdef",
            targets: vec![
                TargetConfig { target: TargetId::mdt(0), nids: nids("0@lo"), active: true, key: None },
                TargetConfig {
                    target: TargetId::ost(0),
                    nids: nids("127.0.0.1:7991@tcp,10.0.0.1@tcp"),
                    active: false,
                    key: Some(KeyId(0xab)),
                },
            ],
            params: vec![("lov.stripesize".to_owned(), "1048576".to_owned())],
            pools: vec![pool("disk", &[]), pool("flash", &[1, 0])],
            revoked: vec![KeyId(0xcd)],
            capability_keys: vec![CapabilityKey { epoch: 2, made_s: 1_790_000_000, secret: [0x5a; 32] }],
            nodemaps: Nodemaps {
                active: true,
                maps: vec![Arc::new("remote admin=1 range=10.0.0.[1-9]@tcp uid=1:2".parse().expect("one"))],
            },
        }
    }

    #[test]
    fn golden_text_round_trips() {
        let text = encode(&example());
        let expected = "nacre-config 1\nversion 3\nfsname nacre\nuuid 30313233343536373839616263646566\n\
            target MDT0000 active 0@lo\ntarget OST0000 inactive 127.0.0.1:7991@tcp,10.0.0.1@tcp\n\
            param lov.stripesize 1048576\npool disk \npool flash OST0001,OST0000\n\
            server OST0000 00000000000000ab\nrevoked 00000000000000cd\ncapability-key 2 1790000000 5a5a";
        assert!(text.starts_with(expected), "{text}");
        assert!(
            text.contains("\nnodemaps active\nnodemap remote admin=1 range=10.0.0.[1-9]@tcp uid=1:2\n"),
            "{text}"
        );
        assert_eq!(decode(&text), Ok(example()));
    }

    #[test]
    fn any_changed_byte_and_any_cut_is_noticed() {
        let text = encode(&example());
        for at in 0..text.len() {
            assert!(decode(&text[..at]).is_err(), "cut at {at}");
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            if let Ok(changed) = String::from_utf8(bytes) {
                assert!(decode(&changed).is_err(), "changed at {at}");
            }
        }
    }

    #[test]
    fn lines_that_cannot_be_are_named() {
        let mut body = encode(&example());
        body.truncate(body.rfind("crc32c").expect("there is a checksum"));
        let with = |line: &str| {
            let body = format!("{body}{line}\n");
            format!("{body}crc32c {:08x}\n", crc32c(body.as_bytes()))
        };
        for bad in [
            "pool a",
            "pool none OST0000",
            "pool a MDT0000",
            "pool a 1",
            "target OST0000 active",
            "target X active 0@lo",
            "what",
            "uuid zz",
            "server OST0009 00000000000000ab",
            "server OST0000 ab",
            "revoked ab",
            "capability-key 2 1790000000 5a",
            "nodemaps",
            "nodemap a b",
            "version x",
        ] {
            assert_eq!(decode(&with(bad)), Err(RecordError { line: 15, what: "not understood" }), "{bad}");
        }
    }
}
