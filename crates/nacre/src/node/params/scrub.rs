//! Parameters of the checks of targets in use: `mdd.*.lfsck*`, `obdfilter.*.scrub*`.

use crate::walks::{WalkState, lfsck_text};
use nacre_mds::{Mds, Order};
use nacre_oss::{DataScrub, ObjectServer};
use nacre_params::{Entries, value};
use nacre_types::{Status, StatusResult};

/// Words of an order: `start [repair] [resume] [attended] [rate=N]`, or `stop`.
struct Words {
    repair: bool,
    resume: bool,
    is_attended: bool,
    rate: u64,
}

/// Parses an order; `None` to stop.
fn words_of(text: &str) -> StatusResult<Option<Words>> {
    let mut words = text.split_whitespace();
    match words.next() {
        Some("start") => {}
        Some("stop") => return Ok(None),
        _ => return Err(Status::EINVAL),
    }
    let mut order = Words { repair: false, resume: false, is_attended: false, rate: 0 };
    for word in words {
        match word.split_once('=') {
            None if word == "repair" => order.repair = true,
            None if word == "resume" => order.resume = true,
            None if word == "attended" => order.is_attended = true,
            Some(("rate", rate)) => order.rate = value::bytes(rate, 1)?,
            _ => return Err(Status::EINVAL),
        }
    }
    Ok(Some(order))
}

fn json(state: &WalkState) -> StatusResult<String> {
    serde_json::to_string(state).map_err(|_| Status::EIO)
}

/// Enters the parameters of the check of a metadata target.
pub fn enter_mdt(mdd: &Entries<'_, Mds>) {
    mdd.integer(
        "lfsck_speed_limit",
        0..=i64::MAX,
        |mds| mds.scrub.rate(),
        |mds, rate| mds.scrub.set_rate(rate.unsigned_abs()),
    );
    mdd.write("lfsck", |mds, text| {
        match words_of(text)? {
            Some(Words { repair, resume, is_attended, rate }) => {
                mds.scrub.start(Order { repair, rate, from_start: !resume, is_attended });
            }
            None => mds.scrub.stop(),
        }
        Ok(())
    });
    mdd.read("lfsck_state", |mds| json(&mds.scrub.attend().into()));
    mdd.show("lfsck_namespace", |mds| lfsck_text(&mds.scrub.status(), mds.scrub.rate(), false));
    mdd.show("lfsck_layout", |mds| lfsck_text(&mds.scrub.status(), mds.scrub.rate(), true));
}

fn scrub_of(server: &ObjectServer) -> StatusResult<&DataScrub> {
    server.scrub().ok_or(Status::EOPNOTSUPP)
}

/// Enters the parameters of the scrub of an object target. A store on a device has a continuous one of its own.
pub fn enter_ost(filter: &Entries<'_, ObjectServer>) {
    filter.write("scrub", |server, text| {
        let scrub = scrub_of(server)?;
        match words_of(text)? {
            Some(Words { resume, rate, is_attended, .. }) => scrub.order(rate, !resume, is_attended),
            None => scrub.cancel(),
        }
        Ok(())
    });
    filter.read("scrub_state", |server| json(&scrub_of(server)?.attend().into()));
    if filter.has(|server| server.store().abilities().device_store.is_none()) {
        filter.both(
            "scrub_bytes_per_second",
            |server| scrub_of(server).map(DataScrub::rate),
            |server, text| {
                scrub_of(server)?.set_rate(value::bytes(text, 1)?);
                Ok(())
            },
        );
    }
}
