//! State of the checks of targets in use, as parameters show it: for `nacre check`, for `nacre status`, and as text in
//! Lustre's form.

use nacre_mds::{Phase, ScrubStatus};
use nacre_oss::DataScrubStatus;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// A problem that a check in use has found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WalkFinding {
    /// Name of the kind.
    pub kind: String,
    /// Inode or object concerned.
    pub fid: String,
    /// Description, a sentence for an administrator.
    pub text: String,
    /// It was repaired.
    pub is_repaired: bool,
}

/// State of the check of one target.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WalkState {
    /// True while an order is carried out.
    pub is_ordered: bool,
    /// True if the last order was carried out to the end.
    pub is_complete: bool,
    /// Part of the walk: `inodes`, `leftovers`, `objects`, `data`.
    pub phase: String,
    /// Last inode or object.
    pub position: String,
    /// Inodes, names, records and objects looked at.
    pub checked: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Number of inodes of the target, if it is known.
    pub inodes: Option<u64>,
    /// What could not be looked at because another target did not answer.
    pub skipped: u64,
    /// Walks completed in this run.
    pub passes: u64,
    /// Problems found by the walk under way, or else by the last one.
    pub found: u64,
    /// Those of them that are repaired.
    pub repaired: u64,
    /// The latest of them.
    pub findings: Vec<WalkFinding>,
}

impl From<ScrubStatus> for WalkState {
    fn from(status: ScrubStatus) -> WalkState {
        let counts = if status.counts.is_empty() { &status.last_counts } else { &status.counts };
        let sum = counts.values().fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
        let finding = |it: &nacre_mds::Finding| WalkFinding {
            kind: it.kind.name().to_owned(),
            fid: it.fid.to_string(),
            text: it.text.clone(),
            is_repaired: it.is_repaired,
        };
        WalkState {
            is_ordered: status.is_ordered,
            is_complete: status.is_complete,
            phase: phase_name(status.phase).to_owned(),
            position: status.position.to_string(),
            checked: status.checked,
            bytes: 0,
            inodes: status.inodes,
            skipped: status.skipped,
            passes: status.passes,
            found: sum.0,
            repaired: sum.1,
            findings: status.findings.iter().map(finding).collect(),
        }
    }
}

impl From<DataScrubStatus> for WalkState {
    fn from(status: DataScrubStatus) -> WalkState {
        let finding = |(object, text): &(nacre_types::Fid, String)| WalkFinding {
            kind: nacre_mds::check::Kind::Data.name().to_owned(),
            fid: object.to_string(),
            text: text.clone(),
            is_repaired: false,
        };
        WalkState {
            is_ordered: status.is_ordered,
            is_complete: status.is_complete,
            phase: "data".to_owned(),
            position: status.position.to_string(),
            checked: status.objects,
            bytes: status.bytes,
            passes: status.passes,
            found: status.damaged.max(status.last_damaged),
            findings: status.findings.iter().map(finding).collect(),
            ..WalkState::default()
        }
    }
}

fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Inodes => "inodes",
        Phase::Leftovers => "leftovers",
        Phase::Objects => "objects",
    }
}

/// Returns the state in the form of Lustre's `lfsck_namespace` and `lfsck_layout`. `layout`: findings about objects,
/// else all others.
pub fn lfsck_text(status: &ScrubStatus, speed_limit: u64, layout: bool) -> String {
    let name = if layout { "lfsck_layout" } else { "lfsck_namespace" };
    let state = match (status.is_ordered, status.is_complete || status.passes > 0) {
        (true, _) if layout == (status.phase == Phase::Objects) => "scanning-phase2",
        (true, _) => "scanning-phase1",
        (false, true) => "completed",
        (false, false) => "init",
    };
    let mut text = format!(
        "name: {name}\nstatus: {state}\nspeed_limit: {speed_limit}\ncurrent_position: {} {}\nchecked: {}\n\
         skipped: {}\nsuccess_count: {}\n",
        phase_name(status.phase),
        status.position,
        status.checked,
        status.skipped,
        status.passes,
    );
    let counts = if status.counts.is_empty() { &status.last_counts } else { &status.counts };
    for (kind, (found, repaired)) in
        counts.iter().filter(|(kind, _)| kind.name().ends_with("object") == layout)
    {
        let _ = writeln!(text, "{}: {found}, repaired: {repaired}", kind.name());
    }
    text
}
