//! Parameters of a mount's way to an object target: `osc.*`.

use nacre_client::{Client, OstWriteBack};
use nacre_params::{Tree, value};
use nacre_rpc::OssEndpoint;
use nacre_rpc::stats::{Pending, RpcStats};
use nacre_rpc::tunables::{ChecksumType, PAGE_BYTES, Tunable, Tunables};
use nacre_types::{Status, StatusResult};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
/// Largest `max_dirty_mb`. Source: reference 2.9.
const MAX_DIRTY_MB: u64 = 2047;

/// How a number is written.
#[derive(Clone, Copy)]
enum Form {
    Number,
    /// A count of pages, or a size with a suffix.
    Pages,
    /// A size in bytes; -1 for the default.
    Bytes,
}

const NUMBERS: &[(&str, Tunable, Form)] = &[
    ("checksums", Tunable::Checksums, Form::Number),
    ("conns_per_peer", Tunable::ConnsPerPeer, Form::Number),
    ("idle_timeout", Tunable::IdleTimeout, Form::Number),
    ("max_pages_per_rpc", Tunable::MaxPagesPerRpc, Form::Pages),
    ("max_rpcs_in_flight", Tunable::MaxRpcsInFlight, Form::Number),
    ("resend_count", Tunable::ResendCount, Form::Number),
    ("short_io_bytes", Tunable::ShortIoBytes, Form::Bytes),
];

/// The checksum types in the order in which they are shown.
const CHECKSUMS: &[(&str, ChecksumType)] =
    &[("adler", ChecksumType::Adler), ("crc32c", ChecksumType::Crc32c)];

/// Enters the parameters below `below`.
pub fn enter(tree: &Tree, below: &str, client: &Arc<Client>, index: u16) {
    for &(leaf, tunable, form) in NUMBERS {
        let (get, set) = (client.clone(), client.clone());
        tree.add_both(
            &format!("{below}.{leaf}"),
            move || Ok(tunables(&get, index)?.get(tunable).to_string()),
            move |text| set_number(&*tunables(&set, index)?, tunable, form, text),
        );
    }
    let (get, set) = (client.clone(), client.clone());
    tree.add_both(
        &format!("{below}.checksum_type"),
        move || Ok(checksum_types(tunables(&get, index)?.get(Tunable::ChecksumType))),
        move |text| {
            let known = CHECKSUMS.iter().find(|(name, _)| *name == text.trim()).ok_or(Status::EINVAL)?;
            tunables(&set, index)?.set(Tunable::ChecksumType, known.1 as u64)
        },
    );
    let (get, set) = (client.clone(), client.clone());
    tree.add_both(
        &format!("{below}.active"),
        move || Ok(u8::from(way(&get, index)?.is_active()).to_string()),
        move |text| way(&set, index)?.set_active(value::truth(text)?),
    );
    enter_write_back(tree, below, client, index);
    let (get, clear) = (client.clone(), client.clone());
    tree.add_both(
        &format!("{below}.rpc_stats"),
        move || {
            let write_pages = get.write_back.ost_write_back(index).dirty_bytes / PAGE_BYTES;
            with_stats(&get, index, |stats| stats.text(Pending { write_pages, ..Pending::default() }))
        },
        move |_| with_stats(&clear, index, RpcStats::clear),
    );
}

/// What may be held back of this target's data, and is.
fn enter_write_back(tree: &Tree, below: &str, client: &Arc<Client>, index: u16) {
    let (get, set) = (client.clone(), client.clone());
    tree.add_both(
        &format!("{below}.max_dirty_mb"),
        move || Ok((get.write_back.ost_write_back(index).max_dirty_bytes / MIB).to_string()),
        move |text| {
            let bytes = value::bytes(text, MIB)?.div_ceil(MIB) * MIB;
            if !(1..=MAX_DIRTY_MB).contains(&(bytes / MIB)) {
                return Err(Status::ERANGE);
            }
            set.write_back.set_ost_max_dirty(index, bytes);
            Ok(())
        },
    );
    type Choose = fn(&OstWriteBack) -> u64;
    let shown: [(&str, Choose); 2] =
        [("cur_dirty_bytes", |now| now.dirty_bytes), ("cur_grant_bytes", |now| now.grant_bytes)];
    for (leaf, choose) in shown {
        let client = client.clone();
        tree.add_read(&format!("{below}.{leaf}"), move || {
            Ok(choose(&client.write_back.ost_write_back(index)).to_string())
        });
    }
}

fn way(client: &Client, index: u16) -> StatusResult<&dyn OssEndpoint> {
    client.requests.ost_endpoint(index).ok_or(Status::ENODEV)
}

fn tunables(client: &Client, index: u16) -> StatusResult<Arc<Tunables>> {
    client.requests.ost_endpoint(index).and_then(|ost| ost.tunables().cloned()).ok_or(Status::ENODEV)
}

fn with_stats<R>(client: &Client, index: u16, act: impl FnOnce(&RpcStats) -> R) -> StatusResult<R> {
    client.requests.ost_endpoint(index).and_then(|ost| ost.rpc_stats().map(act)).ok_or(Status::ENODEV)
}

fn set_number(tunables: &Tunables, tunable: Tunable, form: Form, text: &str) -> StatusResult<()> {
    let number = match form {
        Form::Number => value::integer(text, 0, i64::MAX)? as u64,
        Form::Pages => {
            let bytes = value::bytes(text, PAGE_BYTES)?;
            if !bytes.is_multiple_of(PAGE_BYTES) {
                return Err(Status::EINVAL);
            }
            bytes / PAGE_BYTES
        }
        Form::Bytes if text.trim() == "-1" => {
            tunables.reset(tunable);
            return Ok(());
        }
        Form::Bytes => value::bytes(text, 1)?,
    };
    tunables.set(tunable, number)
}

/// All types, that in use in brackets.
fn checksum_types(current: u64) -> String {
    let show = |&(name, kind): &(&str, ChecksumType)| match kind as u64 == current {
        true => format!("[{name}]"),
        false => name.to_owned(),
    };
    CHECKSUMS.iter().map(show).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_counts_are_written_as_lustre_has_them() {
        let tunables = Tunables::default();
        let set = |tunable, form, text: &str| set_number(&tunables, tunable, form, text);
        assert_eq!(set(Tunable::MaxPagesPerRpc, Form::Pages, "4M"), Ok(()));
        assert_eq!(tunables.get(Tunable::MaxPagesPerRpc), 1024);
        assert_eq!(set(Tunable::MaxPagesPerRpc, Form::Pages, "64"), Ok(()));
        assert_eq!(tunables.get(Tunable::MaxPagesPerRpc), 64);
        assert_eq!(set(Tunable::MaxPagesPerRpc, Form::Pages, "1G"), Err(Status::ERANGE));
        assert_eq!(set(Tunable::MaxPagesPerRpc, Form::Pages, "5000B"), Err(Status::EINVAL));
        assert_eq!(set(Tunable::ShortIoBytes, Form::Bytes, "8k"), Ok(()));
        assert_eq!(tunables.get(Tunable::ShortIoBytes), 8192);
        assert_eq!(set(Tunable::ShortIoBytes, Form::Bytes, "-1"), Ok(()));
        assert_eq!(tunables.get(Tunable::ShortIoBytes), 16384);
        assert_eq!(set(Tunable::MaxRpcsInFlight, Form::Number, "1k"), Err(Status::EINVAL));
        assert_eq!(set(Tunable::MaxRpcsInFlight, Form::Number, "257"), Err(Status::ERANGE));
        assert_eq!(checksum_types(ChecksumType::Crc32c as u64), "adler [crc32c]");
    }
}
