//! Named fault points: places where a test makes a message, a commit or a disk fail, by `lctl set_param fail_loc=`.
//!
//! They exist only in programs that are built with `NACRE_FAULT_POINTS=1`. In all others the functions here are
//! constants, and neither the names nor the state of the points are part of the program.
//!
//! `fail_loc` is a number: the point in the lower 16 bits, and [flags](engine) for how often it fails. `fail_val` is
//! a number that the flags and points use.

use nacre_types::{Status, StatusResult};

#[cfg(any(test, fault_points))]
pub mod engine;

/// True in a program with fault points.
pub const ENABLED: bool = cfg!(fault_points);

macro_rules! points {
    ($($point:ident = $number:literal, $name:literal, $what:literal;)*) => {
        /// A place where a fault can be made.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u16)]
        #[allow(missing_docs)]
        pub enum Point { $($point = $number,)* }

        /// All points, with their names and effects.
        #[cfg(any(test, fault_points))]
        pub const POINTS: &[(Point, &str, &str)] = &[$((Point::$point, $name, $what),)*];
    };
}

points! {
    MdsReintNet = 0x107, "mds_reint_net", "an MDT loses the connection before it executes a change";
    MdsReintNetRep = 0x119, "mds_reint_net_rep", "an MDT loses the connection after a change, before its reply";
    MdsAllReplyNet = 0x122, "mds_all_reply_net", "an MDT loses the connection before any reply";
    MdsAllRequestNet = 0x123, "mds_all_request_net", "an MDT loses the connection before any request";
    MdsBeforeCommit = 0x1a0, "mds_before_commit", "a commit of an MDT fails with EIO, and changes nothing";
    MdsBeforeCommitCrash = 0x1a1, "mds_before_commit_crash", "an MDT ends before a commit";
    MdsAfterCommitCrash = 0x1a2, "mds_after_commit_crash", "an MDT ends after a commit, before its reply";
    MdsCommitDelay = 0x1a3, "mds_commit_delay", "a commit of an MDT waits fail_val seconds";
    MdsEnospc = 0x1a4, "mds_enospc", "a change that a client requests of an MDT fails with ENOSPC";
    MdsLocked = 0x1a5, "mds_locked_delay", "an MDT waits fail_val seconds with the locks of a request";
    MdsPrepared = 0x1a6, "mds_prepared_crash", "an MDT ends after it has prepared its part of a transaction";
    MdsDecided = 0x1a7, "mds_decided_crash", "an MDT ends after it has decided a transaction";
    OstAllReplyNet = 0x211, "ost_all_reply_net", "an OST loses the connection before any reply";
    OstAllRequestNet = 0x212, "ost_all_request_net", "an OST loses the connection before any request";
    OstEnospc = 0x215, "ost_enospc", "a write to an OST fails with ENOSPC";
    OstErofs = 0x216, "ost_erofs", "a write to an OST fails with EROFS";
    OstRead = 0x2a0, "ost_read", "a read from an OST fails with EIO";
    OstWrite = 0x2a1, "ost_write", "a write to an OST fails with EIO before it changes anything";
    OstWrittenCrash = 0x2a2, "ost_written_crash", "an OST ends after a write, before its reply";
    OstDelay = 0x2a3, "ost_delay", "an OST waits fail_val seconds before a request";
    OstDestroy = 0x2a4, "ost_destroy", "the removal of objects fails with EIO";
    LdlmBlCallback = 0x305, "ldlm_bl_callback_net", "a blocking callback is lost";
    LdlmCpCallback = 0x306, "ldlm_cp_callback_net", "a completion callback is lost";
    LdlmGlCallback = 0x307, "ldlm_gl_callback_net", "a glimpse callback is lost";
    ClientRevoke = 0x4a0, "client_revoke_delay", "a client waits fail_val seconds before it writes back a revoked lock";
    ClientSend = 0x4a1, "client_send_net", "a client loses the connection instead of sending a request";
    ClientSendDelay = 0x4a2, "client_send_delay", "a client waits fail_val seconds before it sends a request";
    ClientWriteBack = 0x4a3, "client_write_back", "write-back of a window fails with EIO";
    RpcConnect = 0x5a0, "rpc_connect_net", "a server loses the connection during a connect";
    RpcBulk = 0x5a1, "rpc_bulk_damaged", "a server finds the data of a request damaged";
    StoreLogWrite = 0x6a0, "store_log_write", "an append to the log of a metadata store fails with EIO";
    StoreLogSync = 0x6a1, "store_log_sync", "a sync of the log of a metadata store fails with EIO";
    StoreCheckpoint = 0x6a2, "store_checkpoint_delay", "a checkpoint of a metadata store waits fail_val seconds";
    OstSync = 0x2a5, "ost_sync", "a sync of objects fails with EIO";
}

/// Returns true if the point is to fail at this time.
#[cfg(not(fault_points))]
#[inline(always)]
pub const fn is_hit(_: Point) -> bool {
    false
}

/// Returns true if the point is to fail at this time.
#[cfg(fault_points)]
pub fn is_hit(point: Point) -> bool {
    engine::STATE.is_hit(point as u16)
}

/// Fails with `status` if the point is to fail.
///
/// # Errors
/// `status`.
#[inline(always)]
pub fn fail(point: Point, status: Status) -> StatusResult<()> {
    if is_hit(point) { Err(status) } else { Ok(()) }
}

/// Waits `fail_val` seconds, at least one, if the point is to fail. An interrupt ends the wait.
#[inline(always)]
pub fn delay(point: Point) {
    #[cfg(fault_points)]
    if is_hit(point) {
        engine::wait();
    }
    #[cfg(not(fault_points))]
    let _ = point;
}

/// Ends the process like a kill if the point is to fail.
#[inline(always)]
pub fn crash(point: Point) {
    if is_hit(point) {
        // SAFETY: the signal ends this process; nothing of it is used any more.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
}

/// Answer of a program without fault points.
pub const ABSENT: &str =
    "this program is built without fault points: build one with NACRE_FAULT_POINTS=1 for tests";

/// Returns number, name and effect of all points.
#[cfg(fault_points)]
pub fn list() -> impl Iterator<Item = (u16, &'static str, &'static str)> {
    POINTS.iter().map(|(point, name, what)| (*point as u16, *name, *what))
}

/// Returns number, name and effect of all points: there are none.
#[cfg(not(fault_points))]
pub fn list() -> impl Iterator<Item = (u16, &'static str, &'static str)> {
    std::iter::empty()
}

/// Returns `fail_loc` and `fail_val`.
#[cfg(fault_points)]
pub fn get() -> Option<(u32, u32)> {
    Some((engine::STATE.loc(), engine::STATE.val()))
}

/// Returns `fail_loc` and `fail_val`: there are none.
#[cfg(not(fault_points))]
pub const fn get() -> Option<(u32, u32)> {
    None
}

/// Sets `fail_loc` as users write it: a number, or names with flags such as `mds_reint_net|once`.
///
/// # Errors
/// `EINVAL` for an unknown point; `EOPNOTSUPP` in a program without fault points.
#[cfg(fault_points)]
pub fn set_loc(text: &str) -> StatusResult<()> {
    engine::STATE.set_loc(engine::parse_loc(text).ok_or(Status::EINVAL)?);
    Ok(())
}

/// Refuses to set `fail_loc`.
///
/// # Errors
/// `EOPNOTSUPP`.
#[cfg(not(fault_points))]
pub fn set_loc(_: &str) -> StatusResult<()> {
    Err(Status::EOPNOTSUPP)
}

/// Sets `fail_val`.
///
/// # Errors
/// `EOPNOTSUPP` in a program without fault points.
pub fn set_val(val: u32) -> StatusResult<()> {
    #[cfg(fault_points)]
    engine::STATE.set_val(val);
    let _ = val;
    if ENABLED { Ok(()) } else { Err(Status::EOPNOTSUPP) }
}
