//! Parameters of a mount's connection to an object target: `osc.*`.

use nacre_client::Client;
use nacre_params::{Entries, value};
use nacre_rpc::OssEndpoint;
use nacre_rpc::stats::{Pending, RpcStats};
use nacre_rpc::tunables::{ChecksumType, PAGE_BYTES, Tunable, Tunables};
use nacre_types::{Status, StatusResult};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
/// Largest `max_dirty_mb`, Lustre's limit.
const MAX_DIRTY_MB: u64 = 2047;

/// Form of a number.
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
    ("max_kept_age", Tunable::MaxKeptAge, Form::Number),
    ("max_kept_mb", Tunable::MaxKeptMb, Form::Number),
    ("max_pages_per_rpc", Tunable::MaxPagesPerRpc, Form::Pages),
    ("max_rpcs_in_flight", Tunable::MaxRpcsInFlight, Form::Number),
    ("resend_count", Tunable::ResendCount, Form::Number),
    ("short_io_bytes", Tunable::ShortIoBytes, Form::Bytes),
];

/// The checksum types in the order in which they are shown.
const CHECKSUMS: &[(&str, ChecksumType)] =
    &[("adler", ChecksumType::Adler), ("crc32c", ChecksumType::Crc32c)];

/// Enters the parameters of the connection to the OST `index`.
pub fn enter(osc: &Entries<'_, Client>, index: u16) {
    for &(leaf, tunable, form) in NUMBERS {
        osc.both(
            leaf,
            move |client| Ok(tunables(client, index)?.get(tunable)),
            move |client, text| set_number(&*tunables(client, index)?, tunable, form, text),
        );
    }
    osc.both(
        "checksum_type",
        move |client| Ok(checksum_types(tunables(client, index)?.get(Tunable::ChecksumType))),
        move |client, text| {
            let known = CHECKSUMS.iter().find(|(name, _)| *name == text.trim()).ok_or(Status::EINVAL)?;
            tunables(client, index)?.set(Tunable::ChecksumType, known.1 as u64)
        },
    );
    osc.both(
        "active",
        move |client| Ok(u8::from(way(client, index)?.is_active())),
        move |client, text| way(client, index)?.set_active(value::truth(text)?),
    );
    osc.setting(
        "max_dirty_mb",
        move |client| client.write_back.ost_write_back(index).max_dirty_bytes / MIB,
        move |client, text| {
            let bytes = value::bytes(text, MIB)?.div_ceil(MIB) * MIB;
            if !(1..=MAX_DIRTY_MB).contains(&(bytes / MIB)) {
                return Err(Status::ERANGE);
            }
            client.write_back.set_ost_max_dirty(index, bytes);
            Ok(())
        },
    );
    osc.show("cur_dirty_bytes", move |client| client.write_back.ost_write_back(index).dirty_bytes);
    osc.show("cur_grant_bytes", move |client| client.write_back.ost_write_back(index).grant_bytes);
    osc.changing(
        "rpc_stats",
        move |client| {
            let write_pages = client.write_back.ost_write_back(index).dirty_bytes / PAGE_BYTES;
            with_stats(client, index, |stats| stats.text(Pending { write_pages, ..Pending::default() }))
        },
        move |client, _| with_stats(client, index, RpcStats::clear),
    );
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

/// Lists all types, with the one in use in brackets.
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
