//! The transport inside one process: a direct call on the caller's thread, without encoding or copies.

mod oss;

pub use oss::LoOss;

use crate::api::{
    Call, ClientCallbacks, Export, MdsEndpoint, MdsService, MgsEndpoint, MgsPeer, MgsService, NoCallbacks,
};
use crate::audit::{AuditEvent, AuditKind, AuditSink};
use nacre_types::{ClientUuid, Cred, Nid, StatusResult, TargetId};
use nacre_wire::mds::{LeaseGrant, MdsAnswer, MdsRequest};
use nacre_wire::mgs::{MgsReply, MgsRequest};
use std::sync::Arc;

/// A metadata target in this process. Dropping it disconnects the client.
pub struct LoMds {
    service: Arc<dyn MdsService>,
    export: Arc<Export>,
}

impl LoMds {
    /// Connects `client`. Its callbacks run on threads of the service.
    ///
    /// # Errors
    /// The service's refusal of the connect.
    pub fn connect(
        service: Arc<dyn MdsService>,
        client: ClientUuid,
        callbacks: Arc<dyn ClientCallbacks>,
    ) -> StatusResult<(LoMds, LeaseGrant)> {
        let export = Arc::new(Export::new(client, Nid::Lo, None, callbacks));
        let grant = service.connect(&export)?.lease;
        Ok((LoMds { service, export }, grant))
    }
}

impl LoMds {
    /// Connects one metadata server to another, without lease and callbacks.
    ///
    /// # Errors
    /// As [`LoMds::connect`].
    pub fn connect_server(service: Arc<dyn MdsService>, server: ClientUuid) -> StatusResult<LoMds> {
        let export = Arc::new(Export::new(server, Nid::Lo, None, Arc::new(NoCallbacks)).of_server());
        service.connect(&export)?;
        Ok(LoMds { service, export })
    }
}

impl MdsEndpoint for LoMds {
    fn call(&self, cred: &Cred, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        let job = nacre_env::current_job();
        // Requests that the service sends to other servers are not part of the caller's job.
        let _own = job.map(|_| nacre_env::enter_job(None));
        self.service.handle(&self.export, &Call::new(cred).for_job(job), request)
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

/// The management server in this process.
pub struct LoMgs {
    service: Arc<dyn MgsService>,
    audit: Option<Arc<dyn AuditSink>>,
}

impl LoMgs {
    /// Creates an endpoint that calls `service`, and reports changes to the audit.
    pub fn new(service: Arc<dyn MgsService>, audit: Option<Arc<dyn AuditSink>>) -> LoMgs {
        LoMgs { service, audit }
    }
}

impl MgsEndpoint for LoMgs {
    fn call(&self, request: &MgsRequest) -> StatusResult<MgsReply> {
        let reply = self.service.handle(MgsPeer::Local, request)?;
        if let (Some(audit), Some(change)) = (&self.audit, request.change()) {
            let target = Some(TargetId::mgt());
            audit.note(&AuditEvent { target, reason: &change, ..AuditEvent::local(AuditKind::Changed) });
        }
        Ok(reply)
    }
}
