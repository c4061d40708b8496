//! Quotas: limits, use and grace times. Rights are checked by the master.

use nacre_client::{QuotaChange, QuotaReply, QuotaRequest, QuotaState};
use nacre_types::lustre::{QUOTA_BYTES, QUOTA_POOL_BYTES, QuotaCall, QuotaNumbers, QuotaTimes};
use nacre_types::quota::GRACE_MAX_S;
use nacre_types::{QuotaId, QuotaKind, QuotaLimits, Status, StatusResult, TargetId, TargetKind};

use crate::front::ioctl::Asked;
use crate::reply::Reply;

/// Unit of limits of space in bytes.
const KIB: u64 = 1024;

/// Answers [`nacre_types::lustre::QUOTACTL`].
pub(super) fn quota(asked: &Asked<'_>, reply: &mut Reply<'_>) -> StatusResult<()> {
    let mut call = QuotaCall::from_lustre(asked.call.data).ok_or(Status::EINVAL)?;
    if call.has_pool() {
        let memory = asked.memory()?;
        let address = memory.argument().checked_add(QUOTA_BYTES as u64).ok_or(Status::EFAULT)?;
        call.set_pool(&memory.read_text(address, QUOTA_POOL_BYTES)?);
    }
    reply.ioctl(0, &quota_call(asked, call)?.to_lustre());
    Ok(())
}

/// Answers the native call.
pub(in crate::front) fn quota_call(asked: &Asked<'_>, mut call: QuotaCall) -> StatusResult<QuotaCall> {
    let fsname = asked.client.config.mount_info().fsname;
    let target = target_of(&call, &fsname)?;
    let request = request_of(&call, target)?;
    match asked.client.quota(asked.caller, &request)? {
        QuotaReply::State(state) => {
            (call.id, call.numbers) = (state.id.id, numbers_of(&state));
            if let Some(target) = target {
                call.uuid = target.uuid(&fsname).into_bytes();
            }
        }
        QuotaReply::Grace { space_s, inodes_s } => {
            call.times = QuotaTimes { space_s, inodes_s, valid: QuotaTimes::SPACE | QuotaTimes::INODES };
        }
    }
    Ok(call)
}

/// Returns the target that is asked; `None` for the whole file system.
fn target_of(call: &QuotaCall, fsname: &str) -> StatusResult<Option<TargetId>> {
    let index = || u16::try_from(call.index).map_err(|_| Status::ENODEV);
    let is_of_target = matches!(call.command, QuotaCall::GET_INFO_TARGET | QuotaCall::GET_QUOTA_TARGET);
    match call.place {
        QuotaCall::OF_ALL if !is_of_target => Ok(None),
        QuotaCall::OF_MDT => Ok(Some(TargetId::mdt(index()?))),
        QuotaCall::OF_OST => Ok(Some(TargetId::ost(index()?))),
        QuotaCall::OF_ALL | QuotaCall::OF_UUID => {
            let name = std::str::from_utf8(&call.uuid).ok();
            let name =
                name.and_then(|name| name.strip_prefix(fsname)?.strip_prefix('-')?.strip_suffix("_UUID"));
            let target = name.and_then(|name| name.parse().ok());
            target.filter(|target: &TargetId| target.kind != TargetKind::Mgt).map(Some).ok_or(Status::ENODEV)
        }
        _ => Err(Status::EINVAL),
    }
}

/// Returns the request to the master.
fn request_of(call: &QuotaCall, target: Option<TargetId>) -> StatusResult<QuotaRequest> {
    let kind = QuotaKind::from_number(call.kind).ok_or(Status::EINVAL)?;
    let id = QuotaId { kind, id: call.id };
    if let Some(TargetId { kind, index }) = target {
        return match call.command {
            QuotaCall::GET_QUOTA
            | QuotaCall::GET_INFO
            | QuotaCall::GET_QUOTA_TARGET
            | QuotaCall::GET_INFO_TARGET => {
                Ok(QuotaRequest::Target { id, is_mdt: kind == TargetKind::Mdt, index })
            }
            _ => Err(Status::EINVAL),
        };
    }
    let pool = String::from_utf8(call.pool.clone()).map_err(|_| Status::EINVAL)?;
    if call.has_pool() && pool.is_empty() {
        return Err(Status::EINVAL);
    }
    let set = |is_default, change| Ok(QuotaRequest::Set { id, pool: pool.clone(), is_default, change });
    match call.command {
        QuotaCall::GET_QUOTA | QuotaCall::GET_QUOTA_POOL => {
            Ok(QuotaRequest::Get { id, pool, is_default: false })
        }
        QuotaCall::GET_DEFAULT | QuotaCall::GET_DEFAULT_POOL => {
            Ok(QuotaRequest::Get { id, pool, is_default: true })
        }
        QuotaCall::NEXT => Ok(QuotaRequest::Next { from: id, pool }),
        QuotaCall::SET_QUOTA | QuotaCall::SET_QUOTA_POOL => set(false, limits_in(&call.numbers)?),
        QuotaCall::SET_DEFAULT | QuotaCall::SET_DEFAULT_POOL => match limits_in(&call.numbers) {
            // The number of the defaults: there an id needs none of its own.
            Ok(limits) if call.id == 0 => set(true, limits),
            _ => set(false, QuotaChange::UseDefault),
        },
        QuotaCall::DELETE => set(false, QuotaChange::Delete),
        // The master distributes limits after every change, also after one that changes none.
        QuotaCall::RESET => set(false, QuotaChange::Limits { space: None, inodes: None }),
        QuotaCall::GET_INFO | QuotaCall::GET_INFO_POOL => Ok(QuotaRequest::Grace { kind }),
        QuotaCall::SET_INFO => grace_in(kind, &call.times),
        // Pools have the grace times of the file system.
        _ => Err(Status::EOPNOTSUPP),
    }
}

/// Returns the limits to set.
fn limits_in(numbers: &QuotaNumbers) -> StatusResult<QuotaChange> {
    let bytes = |kib: u64| kib.checked_mul(KIB).ok_or(Status::EINVAL);
    let is_valid = |bit| numbers.valid & bit != 0;
    let space = match is_valid(QuotaNumbers::SPACE_LIMITS) {
        true => {
            Some(QuotaLimits { soft: bytes(numbers.space_soft_kib)?, hard: bytes(numbers.space_hard_kib)? })
        }
        false => None,
    };
    let inodes = is_valid(QuotaNumbers::INODES_LIMITS)
        .then_some(QuotaLimits { soft: numbers.inodes_soft, hard: numbers.inodes_hard });
    match space.is_some() || inodes.is_some() {
        true => Ok(QuotaChange::Limits { space, inodes }),
        false => Err(Status::EINVAL),
    }
}

/// Returns the request that sets grace times.
fn grace_in(kind: QuotaKind, times: &QuotaTimes) -> StatusResult<QuotaRequest> {
    let any = QuotaTimes::SPACE | QuotaTimes::INODES;
    let time = |bits: u32, time_s: u64| match times.valid & any {
        0 => (time_s != 0).then_some(time_s),
        valid => (valid & bits != 0).then_some(time_s),
    };
    let (space_s, inodes_s) =
        (time(QuotaTimes::SPACE, times.space_s), time(QuotaTimes::INODES, times.inodes_s));
    let is_short = |time: &Option<u64>| time.is_none_or(|time| time <= GRACE_MAX_S);
    let is_any = space_s.is_some() || inodes_s.is_some();
    match is_any && is_short(&space_s) && is_short(&inodes_s) {
        true => Ok(QuotaRequest::SetGrace { kind, space_s, inodes_s }),
        false => Err(Status::EINVAL),
    }
}

/// Returns a state in the form for programs. A share without a limit has no valid limits.
fn numbers_of(state: &QuotaState) -> QuotaNumbers {
    let QuotaState { space, inodes, .. } = state;
    let flags = if state.is_default { QuotaNumbers::DEFAULT } else { 0 };
    let time = |ends_s: u64| ends_s.min(QuotaNumbers::TIME_MASK) | flags;
    let has_limits = |limits: &QuotaLimits| limits.hard != u64::MAX;
    let hard = |limits: &QuotaLimits| if has_limits(limits) { limits.hard } else { 0 };
    let bits = |is_set: bool, bits: u32| if is_set { bits } else { 0 };
    QuotaNumbers {
        space_hard_kib: hard(&space.limits).div_ceil(KIB),
        space_soft_kib: space.limits.soft.div_ceil(KIB),
        space_used: space.used,
        inodes_hard: hard(&inodes.limits),
        inodes_soft: inodes.limits.soft,
        inodes_used: inodes.used,
        space_time: time(space.grace_ends_s),
        inodes_time: time(inodes.grace_ends_s),
        valid: QuotaNumbers::SPACE_TIME
            | QuotaNumbers::INODES_TIME
            | bits(has_limits(&space.limits), QuotaNumbers::SPACE_LIMITS)
            | bits(has_limits(&inodes.limits), QuotaNumbers::INODES_LIMITS)
            | bits(state.is_complete, QuotaNumbers::SPACE | QuotaNumbers::INODES),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_client::QuotaResourceState;

    fn call(command: u32) -> QuotaCall {
        QuotaCall { command, kind: 1, id: 7, ..QuotaCall::default() }
    }

    fn request(call: &QuotaCall) -> StatusResult<QuotaRequest> {
        request_of(call, target_of(call, "nacre")?)
    }

    const ID: QuotaId = QuotaId { kind: QuotaKind::Group, id: 7 };

    fn get(pool: &str, is_default: bool) -> StatusResult<QuotaRequest> {
        Ok(QuotaRequest::Get { id: ID, pool: pool.to_owned(), is_default })
    }

    fn set(pool: &str, is_default: bool, change: QuotaChange) -> StatusResult<QuotaRequest> {
        Ok(QuotaRequest::Set { id: ID, pool: pool.to_owned(), is_default, change })
    }

    #[test]
    fn queries_are_of_the_file_system_or_of_a_pool() {
        assert_eq!(request(&call(QuotaCall::GET_QUOTA)), get("", false));
        assert_eq!(request(&call(QuotaCall::GET_DEFAULT)), get("", true));
        let in_pool = |command| request(&QuotaCall { pool: b"flash".to_vec(), ..call(command) });
        assert_eq!(in_pool(QuotaCall::GET_QUOTA_POOL), get("flash", false));
        assert_eq!(in_pool(QuotaCall::GET_DEFAULT_POOL), get("flash", true));
        assert_eq!(in_pool(QuotaCall::NEXT), Ok(QuotaRequest::Next { from: ID, pool: "flash".to_owned() }));
        assert_eq!(in_pool(QuotaCall::GET_INFO_POOL), Ok(QuotaRequest::Grace { kind: QuotaKind::Group }));
        assert_eq!(in_pool(QuotaCall::SET_INFO_POOL), Err(Status::EOPNOTSUPP));
        assert_eq!(request(&call(QuotaCall::GET_QUOTA_POOL)), Err(Status::EINVAL), "no pool");
        assert_eq!(request(&QuotaCall { kind: 3, ..call(QuotaCall::GET_QUOTA) }), Err(Status::EINVAL));
        assert_eq!(request(&call(0)), Err(Status::EOPNOTSUPP));
        assert_eq!(request(&QuotaCall { pool: vec![0xff], ..call(QuotaCall::NEXT) }), Err(Status::EINVAL));
    }

    #[test]
    fn a_target_is_named_by_index_or_uuid() {
        let at = |is_mdt, index| Ok(QuotaRequest::Target { id: ID, is_mdt, index });
        let of = |command, place, index, uuid: &str| {
            request(&QuotaCall { place, index, uuid: uuid.as_bytes().to_vec(), ..call(command) })
        };
        assert_eq!(of(QuotaCall::GET_QUOTA, QuotaCall::OF_MDT, 2, ""), at(true, 2));
        assert_eq!(of(QuotaCall::GET_QUOTA_TARGET, QuotaCall::OF_OST, 3, ""), at(false, 3));
        assert_eq!(of(QuotaCall::GET_QUOTA, QuotaCall::OF_UUID, 0, "nacre-OST001f_UUID"), at(false, 31));
        assert_eq!(of(QuotaCall::GET_QUOTA_TARGET, QuotaCall::OF_ALL, 0, "nacre-MDT0001_UUID"), at(true, 1));
        let no_device = Err(Status::ENODEV);
        assert_eq!(of(QuotaCall::GET_QUOTA, QuotaCall::OF_UUID, 0, "other-OST0001_UUID"), no_device);
        assert_eq!(of(QuotaCall::GET_INFO_TARGET, QuotaCall::OF_ALL, 0, ""), no_device);
        assert_eq!(of(QuotaCall::GET_QUOTA, QuotaCall::OF_UUID, 0, "nacre-MGT_UUID"), no_device);
        assert_eq!(of(QuotaCall::GET_QUOTA, QuotaCall::OF_OST, 0x1_0000, ""), no_device);
        assert_eq!(of(QuotaCall::GET_QUOTA, 4, 0, ""), Err(Status::EINVAL));
        assert_eq!(
            of(QuotaCall::SET_QUOTA, QuotaCall::OF_OST, 0, ""),
            Err(Status::EINVAL),
            "shares are given"
        );
    }

    #[test]
    fn limits_are_set_for_the_valid_resources() {
        let numbers = QuotaNumbers {
            space_hard_kib: 20,
            space_soft_kib: 10,
            inodes_hard: 4,
            inodes_soft: 3,
            ..QuotaNumbers::default()
        };
        let space = Some(QuotaLimits { soft: 10 << 10, hard: 20 << 10 });
        let inodes = Some(QuotaLimits { soft: 3, hard: 4 });
        let with = |command, valid| {
            let numbers = QuotaNumbers { valid, ..numbers };
            request(&QuotaCall { numbers, pool: b"p".to_vec(), ..call(command) })
        };
        let both = QuotaChange::Limits { space, inodes };
        assert_eq!(with(QuotaCall::SET_QUOTA_POOL, 5), set("p", false, both));
        let only_space = QuotaChange::Limits { space, inodes: None };
        assert_eq!(with(QuotaCall::SET_QUOTA, 1), set("p", false, only_space));
        let only_inodes = QuotaChange::Limits { space: None, inodes };
        assert_eq!(with(QuotaCall::SET_QUOTA, 4 | 16), set("p", false, only_inodes));
        assert_eq!(with(QuotaCall::SET_QUOTA, 2 | 8), Err(Status::EINVAL), "nothing to set");
        let huge = QuotaNumbers { space_hard_kib: 1 << 54, valid: 1, ..QuotaNumbers::default() };
        assert_eq!(request(&QuotaCall { numbers: huge, ..call(QuotaCall::SET_QUOTA) }), Err(Status::EINVAL));
    }

    #[test]
    fn an_id_takes_the_defaults_and_id_0_with_limits_stands_for_them() {
        let numbers = QuotaNumbers { inodes_hard: 4, valid: 4, ..QuotaNumbers::default() };
        let limits = QuotaChange::Limits { space: None, inodes: Some(QuotaLimits { soft: 0, hard: 4 }) };
        let one = QuotaCall { numbers, ..call(QuotaCall::SET_DEFAULT) };
        assert_eq!(request(&one), set("", false, QuotaChange::UseDefault));
        let is_default = |request| match request {
            Ok(QuotaRequest::Set { id, is_default, change, .. }) => Some((id.id, is_default, change)),
            _ => None,
        };
        assert_eq!(is_default(request(&QuotaCall { id: 0, ..one })), Some((0, true, limits)));
        let none = QuotaCall { id: 0, ..call(QuotaCall::SET_DEFAULT) };
        assert_eq!(is_default(request(&none)), Some((0, false, QuotaChange::UseDefault)));
        assert_eq!(request(&call(QuotaCall::DELETE)), set("", false, QuotaChange::Delete));
        let nothing = QuotaChange::Limits { space: None, inodes: None };
        assert_eq!(request(&call(QuotaCall::RESET)), set("", false, nothing));
    }

    #[test]
    fn grace_times_are_set_by_either_kind_of_bits_or_if_they_are_not_zero() {
        let with = |space_s, inodes_s, valid| {
            let times = QuotaTimes { space_s, inodes_s, valid };
            match request(&QuotaCall { times, ..call(QuotaCall::SET_INFO) }) {
                Ok(QuotaRequest::SetGrace { space_s, inodes_s, .. }) => Ok((space_s, inodes_s)),
                other => Err(other.err()),
            }
        };
        assert_eq!(with(5, 6, 0), Ok((Some(5), Some(6))));
        assert_eq!(with(0, 6, 0), Ok((None, Some(6))));
        assert_eq!((with(0, 6, 16), with(0, 6, 1)), (Ok((Some(0), None)), Ok((Some(0), None))));
        assert_eq!((with(5, 6, 2), with(5, 6, 0x30)), (Ok((None, Some(6))), Ok((Some(5), Some(6)))));
        let wrong = Err(Some(Status::EINVAL));
        assert_eq!((with(0, 0, 0), with(GRACE_MAX_S + 1, 1, 3)), (wrong, wrong));
    }

    #[test]
    fn replies_have_kib_and_mark_what_is_valid() {
        let resource = |used, soft, hard, grace_ends_s| QuotaResourceState {
            used,
            limits: QuotaLimits { soft, hard },
            grace_ends_s,
        };
        let state = QuotaState {
            id: ID,
            space: resource(5000, 1024, 2049, 77),
            inodes: resource(3, 1, 2, u64::MAX),
            is_default: true,
            is_complete: true,
        };
        let numbers = numbers_of(&state);
        assert_eq!((numbers.space_used, numbers.space_soft_kib, numbers.space_hard_kib), (5000, 1, 3));
        assert_eq!((numbers.inodes_used, numbers.inodes_soft, numbers.inodes_hard), (3, 1, 2));
        assert_eq!(numbers.space_time, QuotaNumbers::DEFAULT | 77);
        assert_eq!(numbers.inodes_time, QuotaNumbers::DEFAULT | GRACE_MAX_S);
        assert_eq!(numbers.valid, 63);
        let share = QuotaState {
            space: resource(5000, 0, u64::MAX, 0),
            is_default: false,
            is_complete: false,
            ..state
        };
        let numbers = numbers_of(&share);
        assert_eq!((numbers.space_hard_kib, numbers.space_time), (0, 0));
        assert_eq!(numbers.valid, 4 | 16 | 32);
    }
}
