//! The transport inside one process: a direct call on the caller's thread, nothing is encoded or copied.

use crate::api::{
    Call, ClientCallbacks, Export, MdsEndpoint, MdsService, MgsEndpoint, MgsService, OssEndpoint, OssService,
};
use crate::stats::RpcStats;
use crate::tunables::Tunables;
use nacre_types::{ClientUuid, Cred, Nid, StatusResult};
use nacre_wire::mds::{LeaseGrant, MdsAnswer, MdsRequest};
use nacre_wire::mgs::{MgsReply, MgsRequest};
use nacre_wire::oss::{Bulk, OssReply, OssRequest};
use std::sync::Arc;

/// A metadata target in this process. Dropping it disconnects the client.
pub struct LoMds {
    service: Arc<dyn MdsService>,
    export: Arc<Export>,
}

impl LoMds {
    /// Connects `client`. Its callbacks are called on threads of the service.
    ///
    /// # Errors
    /// Whatever the service refuses the connect with.
    pub fn connect(
        service: Arc<dyn MdsService>,
        client: ClientUuid,
        callbacks: Arc<dyn ClientCallbacks>,
    ) -> StatusResult<(LoMds, LeaseGrant)> {
        let export = Arc::new(Export::new(client, Nid::Lo, None, callbacks));
        let grant = service.connect(&export)?;
        Ok((LoMds { service, export }, grant))
    }
}

impl MdsEndpoint for LoMds {
    fn call(&self, cred: &Cred, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        self.service.handle(&self.export, &Call::new(cred), request)
    }

    fn post(&self, cred: &Cred, request: &MdsRequest<'_>) {
        if let Err(status) = self.call(cred, request) {
            log::warn!("request without waiting for its answer failed: {status}");
        }
    }

    fn is_local(&self) -> bool {
        true
    }
}

impl Drop for LoMds {
    fn drop(&mut self) {
        self.service.disconnect(self.export.client);
    }
}

/// An object target in this process.
pub struct LoOss {
    service: Arc<dyn OssService>,
    export: Arc<Export>,
    system: Cred,
    tunables: Arc<Tunables>,
    stats: RpcStats,
}

impl LoOss {
    /// An endpoint that calls `service`.
    ///
    /// # Errors
    /// Whatever the service refuses the connect with.
    pub fn connect(
        service: Arc<dyn OssService>,
        client: ClientUuid,
        callbacks: Arc<dyn ClientCallbacks>,
    ) -> StatusResult<LoOss> {
        let export = Arc::new(Export::new(client, Nid::Lo, None, callbacks));
        service.connect(&export)?;
        let (system, tunables, stats) = (Cred::system(), Arc::default(), RpcStats::default());
        Ok(LoOss { service, export, system, tunables, stats })
    }

    /// The same, with parameters on top of those that a client's endpoints share. Here they count only for who forms
    /// requests: nothing is sent or checked on the way.
    pub fn with_tunables(mut self, shared: Arc<Tunables>) -> LoOss {
        self.tunables = Arc::new(Tunables::over(shared));
        self
    }
}

impl OssEndpoint for LoOss {
    fn call(&self, request: &OssRequest, bulk: Bulk<'_>) -> StatusResult<OssReply> {
        let _counted = self.stats.begin_request(request, &bulk);
        self.service.handle(&self.export, &Call::new(&self.system), request, bulk)
    }

    fn tunables(&self) -> Option<&Arc<Tunables>> {
        Some(&self.tunables)
    }

    fn rpc_stats(&self) -> Option<&RpcStats> {
        Some(&self.stats)
    }

    /// Never changes: client and server live and die together.
    fn durability_epoch(&self) -> u64 {
        0
    }

    fn is_local(&self) -> bool {
        true
    }
}

impl Drop for LoOss {
    fn drop(&mut self) {
        self.service.disconnect(&self.export);
    }
}

/// The management server in this process.
pub struct LoMgs {
    service: Arc<dyn MgsService>,
}

impl LoMgs {
    /// An endpoint that calls `service`.
    pub fn new(service: Arc<dyn MgsService>) -> LoMgs {
        LoMgs { service }
    }
}

impl MgsEndpoint for LoMgs {
    fn call(&self, request: &MgsRequest) -> StatusResult<MgsReply> {
        self.service.handle(request)
    }
}
