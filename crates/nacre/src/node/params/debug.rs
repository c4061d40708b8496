//! Parameters of reports about a process: the ring of recent events, the log of slow operations, fault points.

use nacre_env::activity::{self, events};
use nacre_env::fault;
use nacre_params::Tree;
use nacre_types::{Status, StatusResult};
use std::time::Duration;

/// Enters the parameters.
pub fn enter(tree: &Tree) {
    let set_mb = |text: &str| {
        events::set_mb(usize::try_from(number(text, 1, events::MB_MAX as u64)?).map_err(|_| Status::ERANGE)?);
        Ok(())
    };
    tree.add_both("debug_mb", || Ok(events::mb().to_string()), set_mb);
    let set_slow = |text: &str| {
        activity::set_slow_after(Duration::from_millis(number(text, 0, u32::MAX.into())?));
        Ok(())
    };
    tree.add_both("slow_operation_ms", || Ok(activity::slow_after().as_millis().to_string()), set_slow);
    if !fault::ENABLED {
        return;
    }
    let loc = || fault::get().map(|(loc, _)| format!("{loc:#x}")).ok_or(Status::EOPNOTSUPP);
    tree.add_both("fail_loc", loc, fault::set_loc);
    let val = || fault::get().map(|(_, val)| val.to_string()).ok_or(Status::EOPNOTSUPP);
    let set_val = |text: &str| {
        fault::set_val(u32::try_from(number(text, 0, u32::MAX.into())?).map_err(|_| Status::ERANGE)?)
    };
    tree.add_both("fail_val", val, set_val);
}

fn number(text: &str, min: u64, max: u64) -> StatusResult<u64> {
    let number = text.trim().parse::<u64>().map_err(|_| Status::EINVAL)?;
    if (min..=max).contains(&number) { Ok(number) } else { Err(Status::ERANGE) }
}
