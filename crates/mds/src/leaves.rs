//! The parts of a server without dependencies on other parts.

use crate::changelog::Changelog;
use crate::clients::Clients;
use crate::counting::Counting;
use crate::data::DataPart;
use crate::departed::Departed;
use crate::dir_use::DirUse;
use crate::flocks::FileLocks;
use crate::locks::LockTable;
use crate::moving::progress::Moving;
use crate::opens::OpenTable;
use crate::osts::OstSet;
use crate::quota::Quotas;
use crate::records::Records;
use crate::recovery::Recovery;
use crate::replaced::Replaced;
use crate::replay::Replays;
use crate::signal::StopSignal;
use crate::space::SpaceGuard;
use crate::transactions::state::Transactions;
use nacre_dlm::LockService;
use nacre_rpc::Hold;
use nacre_store::MetaStore;
use std::sync::Arc;

/// See the [module documentation](self).
pub(crate) struct Leaves {
    pub index: u16,
    pub store: Arc<MetaStore>,
    pub records: Arc<Records>,
    pub data: Arc<DataPart>,
    pub space: Arc<SpaceGuard>,
    pub osts: Arc<OstSet>,
    pub locks: Arc<LockTable>,
    pub mdlocks: Arc<LockService>,
    pub flocks: Arc<FileLocks>,
    pub opens: Arc<OpenTable>,
    pub clients: Arc<Clients>,
    pub recovery: Arc<Recovery>,
    pub replaced: Arc<Replaced>,
    pub departed: Arc<Departed>,
    pub replays: Arc<Replays>,
    pub transactions: Arc<Transactions>,
    pub moving: Arc<Moving>,
    pub changelog: Arc<Changelog>,
    pub quotas: Arc<Quotas>,
    pub dir_use: Arc<DirUse>,
    pub counting: Arc<Counting>,
    pub signal: Arc<StopSignal>,
    pub hold: Arc<Hold>,
}
