//! The root while an MDT that knows of it is away. Who only wants to know something about the file system opens its root and looks at
//! it first (`df`, `lfs df`): that is answered soon, so that it can be told what is away.

use crate::base::Base;
use crate::requests::Requests;
use crate::shards::Shards;
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_types::{Attr, Cred, Failure, FailureResult, Fid, Status, StatusResult};
use nacre_wire::mds::{MdsReply, MdsRequest};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long an MDT may take for an answer before it is asked whether it is there.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long it may take to say so: it waits for nobody.
const SIGN_OF_LIFE: Duration = Duration::from_millis(500);

/// The root that the servers show this client, and what was last heard of it.
pub struct Root {
    requests: Arc<Requests>,
    shards: Arc<Shards>,
    attr: Mutex<Option<Attr>>,
    /// That directory, if it is not the root of the file system.
    fid: OnceLock<Fid>,
}

/// Does `work`, and gives up soon.
///
/// # Errors
/// `ETIMEDOUT` if it was given up; those of `work`.
pub(crate) fn soon<R>(work: impl FnOnce() -> FailureResult<R>) -> FailureResult<R> {
    nacre_env::until(Instant::now() + PATIENCE, work).map_err(timed_out)
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

    /// Attributes of the root and whether they may be cached, with `ask` for both. Those last heard while an MDT that has to be
    /// asked is away, which are not cached.
    ///
    /// # Errors
    /// Those of `ask`.
    pub(crate) fn stat(&self, ask: impl Fn() -> FailureResult<(Attr, bool)>) -> FailureResult<(Attr, bool)> {
        let answer = match soon(&ask) {
            Err(failure) if failure == Status::ETIMEDOUT => {
                let heard = *self.attr.lock();
                match heard.filter(|_| !self.is_near()) {
                    Some(attr) => return Ok((attr, false)),
                    // It takes its time.
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

    /// The directory that the servers show this client as the root.
    pub fn fid(&self) -> Fid {
        self.fid.get().copied().unwrap_or(Fid::ROOT)
    }

    /// Asks which directory that is; to be called before anything else of the file system is.
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

    /// True if each MDT that has a part in the root answers a question that waits for nothing.
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

/// Nobody has interrupted the request, so it was the time that was over.
fn timed_out(failure: Failure) -> Failure {
    if failure == Status::EINTR && !nacre_env::interrupted() { Status::ETIMEDOUT.into() } else { failure }
}
