//! Unresponsive OSTs, and MDTs that are asked whether they respond before a directory is placed on them.

use crate::requests::Requests;
use crate::requests::fan_out::ask_all;
use crate::requests::targets::OstTable;
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_layout::Layout;
use nacre_types::{Cred, Status, StatusResult};
use nacre_wire::mds::MdsRequest;
use nacre_wire::oss::OssRequest;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long an OST may take to respond.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// The same for an OST that was unresponsive lately: a directory may be full of files on it.
const ANSWER_SOON: Duration = Duration::from_millis(20);
/// How long ago "lately" is at most.
const SILENT_AGE: Duration = Duration::from_secs(5);

/// Unresponsive OSTs, and when the last wait for each timed out.
#[derive(Default)]
pub(crate) struct Silent(Mutex<BTreeMap<u16, Instant>>);

impl Silent {
    /// True if some OST did not respond lately.
    pub fn has_any(&self) -> bool {
        !self.0.lock().is_empty()
    }

    /// True if this OST did not respond lately.
    pub fn has(&self, ost_index: u16) -> bool {
        self.0.lock().contains_key(&ost_index)
    }

    /// Checks whether the OSTs of a layout respond. True if one does not.
    pub fn has_one_of(&self, layout: &Layout, osts: &OstTable) -> bool {
        let mut all: Vec<u16> = layout.objects().map(|stripe| stripe.ost_index).collect();
        all.sort_unstable();
        all.dedup();
        // Every OST is checked, so that the state of all is known.
        all.into_iter().filter(|ost_index| self.ask(*ost_index, osts)).count() > 0
    }

    fn ask(&self, ost_index: u16, osts: &OstTable) -> bool {
        let Some(endpoint) = osts.get(ost_index).filter(|endpoint| endpoint.is_active()) else {
            return false;
        };
        let lately = self.0.lock().get(&ost_index).is_some_and(|at| at.elapsed() < SILENT_AGE);
        let limit = if lately { ANSWER_SOON } else { ANSWER_MAX };
        let asked = endpoint.call_within(&OssRequest::Ping, limit);
        let is_silent = asked.is_err_and(|status| status != Status::EINTR);
        let mut known = self.0.lock();
        match is_silent {
            false => drop(known.remove(&ost_index)),
            true if !lately => drop(known.insert(ost_index, Instant::now())),
            true => {}
        }
        is_silent
    }
}

/// Age of an MDT's answer up to which it counts as responsive: bounds the pings of a program that creates many
/// directories. A server that stops is not noticed for so long.
const HEARD_AGE: Duration = Duration::from_millis(5);
/// How long an MDT may take to respond. A wait for a stopped server notices its end once a second: this ends it at the
/// first time.
const SIGN_MAX: Duration = Duration::from_millis(800);
/// Time for which an MDT that did not answer gets no new directories without being asked again.
const REST: Duration = Duration::from_secs(1);

/// Whether MDTs have answered the last ping, and when.
#[derive(Default)]
pub(crate) struct Signs(Mutex<BTreeMap<u16, (bool, Instant)>>);

impl Signs {
    /// Returns what is known of an MDT; `None` if it is to be asked.
    fn known(&self, mdt: u16) -> Option<bool> {
        let (answered, at) = *self.0.lock().get(&mdt)?;
        (at.elapsed() < if answered { HEARD_AGE } else { REST }).then_some(answered)
    }

    fn note(&self, mdt: u16, answered: bool) {
        self.0.lock().insert(mdt, (answered, Instant::now()));
    }

    /// Notes that one of these MDTs did not answer another one: a single one gets no new directories for a while, several
    /// are asked again.
    pub(crate) fn note_silent(&self, mdts: &[u16]) {
        match mdts {
            [mdt] => self.note(*mdt, false),
            _ => self.0.lock().retain(|mdt, _| !mdts.contains(mdt)),
        }
    }

    /// Returns, for each of these MDTs, true if it has answered just now, or answers a ping within a second; false also
    /// if it is not connected. A connection to a server that has stopped looks intact until a request has waited for
    /// 10 s or longer.
    pub(crate) fn which_answer(&self, requests: &Requests, mdts: &[u16]) -> Vec<bool> {
        let known = |mdt: u16| {
            if !requests.is_connected(mdt) {
                return Some(false);
            }
            let is_local = requests.mdts.get(usize::from(mdt)).is_none_or(|mdt| mdt.endpoint.is_local());
            if is_local { Some(true) } else { self.known(mdt) }
        };
        let mut answers: Vec<Option<bool>> = mdts.iter().map(|mdt| known(*mdt)).collect();
        let asked: Vec<u16> =
            mdts.iter().zip(&answers).filter(|(_, known)| known.is_none()).map(|(mdt, _)| *mdt).collect();
        let pinged = match asked[..] {
            [] => Vec::new(),
            [mdt] => vec![ping(requests, mdt)],
            _ => ask_all(&asked, |mdt| ping(requests, *mdt)),
        };
        let mut outcomes = pinged.into_iter().zip(&asked);
        for answer in answers.iter_mut().filter(|known| known.is_none()) {
            let Some((outcome, mdt)) = outcomes.next() else { break };
            // An interrupted ping has no information about the MDT; the caller's next request reports it.
            let is_interrupted = outcome == Err(Status::EINTR) && nacre_env::interrupted();
            *answer = Some(outcome.is_ok() || is_interrupted);
            if !is_interrupted {
                self.note(*mdt, outcome.is_ok());
            }
        }
        answers.into_iter().map(|answer| answer.unwrap_or(false)).collect()
    }
}

fn ping(requests: &Requests, mdt: u16) -> StatusResult<()> {
    let endpoint = requests.mdt_endpoint(mdt).ok_or(Status::ENODEV)?;
    let ping = || endpoint.call(&Cred::system(), &MdsRequest::Ping).map(drop);
    nacre_env::until(Instant::now() + SIGN_MAX, ping)
}
