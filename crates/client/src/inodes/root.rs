//! The root while an MDT that knows of it is unreachable. A program that only displays the state of the file
//! system opens its root and reads its attributes first (`df`, `lfs df`): it gets a reply soon, so that it
//! can report which servers are unreachable.

use crate::base::Base;
use crate::requests::Requests;
use crate::shards::Shards;
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_types::{Attr, Cred, Failure, FailureResult, Fid, Status, StatusResult};
use nacre_wire::mds::{MdsReply, MdsRequest};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long an MDT may take for a reply before it is checked whether it responds.
const TIMEOUT: Duration = Duration::from_secs(1);
/// How long it may take to respond: a reply that waits for no other party.
const SIGN_OF_LIFE: Duration = Duration::from_millis(500);

/// The root that the servers present to this client, and its last known attributes.
pub struct Root {
    requests: Arc<Requests>,
    shards: Arc<Shards>,
    attr: Mutex<Option<Attr>>,
    /// FID of that directory, if it is not the root of the file system.
    fid: OnceLock<Fid>,
}

/// Runs `work` with a short time-out.
///
/// # Errors
/// `ETIMEDOUT` after the time-out; those of `work`.
pub(crate) fn soon<R>(work: impl FnOnce() -> FailureResult<R>) -> FailureResult<R> {
    nacre_env::until(Instant::now() + TIMEOUT, work).map_err(timed_out)
}

impl Root {
    pub(crate) fn new(base: &Base) -> Root {
        Root {
            requests: base.requests.clone(),
            shards: base.shards.clone(),
            attr: Mutex::default(),
            fid: OnceLock::new(),
        }
    }

    /// Returns the attributes of the root and whether they may be cached; `ask` requests both. While an MDT
    /// that is needed is unreachable, returns the last known ones, which are not cached.
    ///
    /// # Errors
    /// Those of `ask`.
    pub(crate) fn stat(&self, ask: impl Fn() -> FailureResult<(Attr, bool)>) -> FailureResult<(Attr, bool)> {
        let answer = match soon(&ask) {
            Err(failure) if failure == Status::ETIMEDOUT => {
                let heard = *self.attr.lock();
                match heard.filter(|_| !self.is_near()) {
                    Some(attr) => return Ok((attr, false)),
                    // There are no earlier values, or the MDT responds and is only slow.
                    None => ask(),
                }
            }
            answer => answer,
        };
        if let Ok((attr, _)) = &answer {
            *self.attr.lock() = Some(*attr);
        }
        answer
    }

    /// Returns the directory that the servers present to this client as the root.
    pub fn fid(&self) -> Fid {
        self.fid.get().copied().unwrap_or(Fid::ROOT)
    }

    /// Requests which directory that is; to be called before any other request to the file system.
    ///
    /// # Errors
    /// `ENOENT` without such a directory, `EACCES` for a banned client; other errors of the MDT.
    pub fn find(&self) -> StatusResult<()> {
        self.requests.faults.edge("find the root", || {
            let ask = || self.requests.call_system(Fid::ROOT, &MdsRequest::GetAttr { fid: Fid::ROOT });
            let fid = match soon(ask)?.reply {
                MdsReply::Attr(attr) => attr.fid,
                MdsReply::Remote { fid, .. } => fid,
                _ => return Err(Status::EPROTO.into()),
            };
            if fid != Fid::ROOT {
                let _ = self.fid.set(fid);
            }
            Ok(())
        })
    }

    /// True if each MDT that has a part in the root answers a request that needs no waiting.
    pub(crate) fn is_near(&self) -> bool {
        std::iter::once(self.fid()).chain(self.shards.parts_of(self.fid())).all(|part| {
            let index = part.mdt_index();
            self.requests.is_connected(index)
                && self.requests.mdts.get(usize::from(index)).is_some_and(|mdt| {
                    let ping = || mdt.endpoint.call(&Cred::system(), &MdsRequest::Ping);
                    nacre_env::until(Instant::now() + SIGN_OF_LIFE, ping).is_ok()
                })
        })
    }
}

/// Maps `EINTR`: the caller was not interrupted, so it was the time-out.
fn timed_out(failure: Failure) -> Failure {
    if failure == Status::EINTR && !nacre_env::interrupted() { Status::ETIMEDOUT.into() } else { failure }
}
