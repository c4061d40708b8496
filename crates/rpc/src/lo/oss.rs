//! An object target in this process. An eviction is the equivalent of a lost connection: the only way to lose
//! the target.

use crate::api::{Call, ClientCallbacks, Export, OssEndpoint, OssEvents, OssService};
use crate::stats::{CountedRpc, RpcStats};
use crate::tunables::Tunables;
use nacre_env::sync::{ReentrantMutex, RwLock};
use nacre_session::Recovery;
use nacre_types::{ClientUuid, Cred, Nid, Status, StatusResult};
use nacre_wire::oss::{Bulk, OssReply, OssRequest};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Evictions that one request survives by reconnecting.
const EVICTIONS_MAX: u32 = 3;

/// An object target in this process. Dropping it disconnects the client.
pub struct LoOss {
    service: Arc<dyn OssService>,
    /// Life of the client at the service that calls run in.
    life: RwLock<Arc<Life>>,
    /// Number of the life that calls run in, or of the one that is being restored.
    incarnation: AtomicU64,
    /// Held by the reconnecting thread; the life that it restores.
    reviving: ReentrantMutex<RefCell<Option<Arc<Life>>>>,
    callbacks: Arc<dyn ClientCallbacks>,
    events: Option<Arc<dyn OssEvents>>,
    system: Cred,
    tunables: Arc<Tunables>,
    stats: RpcStats,
}

/// A client from its connect until its disconnect or eviction.
struct Life {
    export: Arc<Export>,
    incarnation: u64,
}

impl LoOss {
    /// Creates an endpoint that calls `service`.
    ///
    /// # Errors
    /// The service's refusal of the connect.
    pub fn connect(
        service: Arc<dyn OssService>,
        client: ClientUuid,
        callbacks: Arc<dyn ClientCallbacks>,
    ) -> StatusResult<LoOss> {
        LoOss::build(service, client, callbacks, None)
    }

    /// Creates an endpoint with a receiver of events, which is also notified when the service drops the
    /// client.
    ///
    /// # Errors
    /// As [`LoOss::connect`].
    pub fn with_events(
        service: Arc<dyn OssService>,
        client: ClientUuid,
        events: Arc<dyn OssEvents>,
    ) -> StatusResult<LoOss> {
        LoOss::build(service, client, events.clone(), Some(events))
    }

    fn build(
        service: Arc<dyn OssService>,
        client: ClientUuid,
        callbacks: Arc<dyn ClientCallbacks>,
        events: Option<Arc<dyn OssEvents>>,
    ) -> StatusResult<LoOss> {
        let export = Arc::new(Export::new(client, Nid::Lo, None, callbacks.clone()));
        service.connect(&export)?;
        Ok(LoOss {
            service,
            life: RwLock::new(Arc::new(Life { export, incarnation: 1 })),
            incarnation: AtomicU64::new(1),
            reviving: ReentrantMutex::default(),
            callbacks,
            events,
            system: Cred::system(),
            tunables: Arc::default(),
            stats: RpcStats::default(),
        })
    }

    fn call_in(&self, life: &Life, request: &OssRequest, bulk: Bulk<'_>) -> StatusResult<OssReply> {
        let call = Call::new(&self.system).for_job(nacre_env::current_job());
        self.service.handle(&life.export, &call, request, bulk)
    }

    /// Runs a request in the life that it belongs to.
    fn run(&self, request: &OssRequest, mut bulk: Bulk<'_>) -> StatusResult<OssReply> {
        let counted = self.stats.prepare_request(request, &bulk);
        counted.iter().for_each(CountedRpc::sent);
        let mut life = self.life.read().clone();
        let mut status = Status::EVICTED;
        for _ in 0..=EVICTIONS_MAX {
            if belongs(request, &life) {
                match self.call_in(&life, request, again(&mut bulk)) {
                    Err(Status::EVICTED) => {}
                    result => return result,
                }
            } else if life.incarnation == self.incarnation() {
                return Err(Status::EVICTED);
            }
            // Requests of the earlier life fail once the next one exists; requests of the new life continue
            // in it.
            match self.revive(&life) {
                Ok(next) => life = next,
                Err(error) => status = error,
            }
        }
        Err(if status == Status::EVICTED { Status::EIO } else { status })
    }

    /// Returns the life after an eviction. The first caller connects and restores; others wait.
    #[cold]
    fn revive(&self, ended: &Life) -> StatusResult<Arc<Life>> {
        let reviving = nacre_env::blocking(|| self.reviving.lock());
        if let Some(life) = reviving.borrow().as_ref() {
            // Re-entered by the events receiver, through the endpoint that all callers use.
            return Ok(life.clone());
        }
        let current = self.life.read().clone();
        if current.incarnation != ended.incarnation {
            return Ok(current);
        }
        log::warn!("an object target in this process has dropped this client: connecting again");
        let client = current.export.client;
        let export = Arc::new(Export::new(client, Nid::Lo, None, self.callbacks.clone()));
        self.service.connect(&export)?;
        // From here on, requests accepted before belong to the past life.
        let incarnation = self.incarnation.fetch_add(1, Ordering::AcqRel) + 1;
        let life = Arc::new(Life { export, incarnation });
        *reviving.borrow_mut() = Some(life.clone());
        let told = match &self.events {
            Some(events) => events.reconnected(&Revived { target: self, life: &life }, Recovery::Evicted),
            None => Ok(()),
        };
        *reviving.borrow_mut() = None;
        if let Err(status) = told {
            self.service.disconnect(&life.export);
            return Err(status);
        }
        *self.life.write() = life.clone();
        Ok(life)
    }
}

/// Returns true if the request may run in this life.
fn belongs(request: &OssRequest, life: &Life) -> bool {
    match request {
        OssRequest::Write { incarnation, .. } => *incarnation == 0 || *incarnation == life.incarnation,
        _ => true,
    }
}

/// Reborrows the buffer for another attempt.
fn again<'a>(bulk: &'a mut Bulk<'_>) -> Bulk<'a> {
    match bulk {
        Bulk::None => Bulk::None,
        Bulk::Send(data) => Bulk::Send(data),
        Bulk::Receive(buffer) => Bulk::Receive(buffer),
    }
}

impl OssEndpoint for LoOss {
    fn call(&self, request: &OssRequest, bulk: Bulk<'_>) -> StatusResult<OssReply> {
        if !self.tunables.is_active() {
            return Err(Status::EIO);
        }
        self.run(request, bulk)
    }

    fn call_out_of_use(&self, request: &OssRequest) -> StatusResult<OssReply> {
        self.run(request, Bulk::None)
    }

    fn tunables(&self) -> Option<&Arc<Tunables>> {
        Some(&self.tunables)
    }

    fn rpc_stats(&self) -> Option<&RpcStats> {
        Some(&self.stats)
    }

    /// Returns a constant: client and server share one process.
    fn durability_epoch(&self) -> u64 {
        0
    }

    fn incarnation(&self) -> u64 {
        self.incarnation.load(Ordering::Acquire)
    }

    fn is_local(&self) -> bool {
        true
    }
}

impl Drop for LoOss {
    fn drop(&mut self) {
        self.service.disconnect(&self.life.get_mut().export);
    }
}

/// The target during the restore of a client's new life.
struct Revived<'a> {
    target: &'a LoOss,
    life: &'a Life,
}

impl OssEndpoint for Revived<'_> {
    fn call(&self, request: &OssRequest, bulk: Bulk<'_>) -> StatusResult<OssReply> {
        if !belongs(request, self.life) {
            return Err(Status::EVICTED);
        }
        self.target.call_in(self.life, request, bulk)
    }

    fn durability_epoch(&self) -> u64 {
        0
    }

    fn incarnation(&self) -> u64 {
        self.life.incarnation
    }

    fn is_local(&self) -> bool {
        true
    }
}
