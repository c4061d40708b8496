//! Requests carry the job of their thread, over both transports.

#[path = "support/services.rs"]
mod services;

use nacre_env::enter_job;
use nacre_rpc::tcp::{TcpMds, TcpOss};
use nacre_rpc::{IoCall, LoMds, LoOss, MdsEndpoint, OssEndpoint, ServerConfig, run_all};
use nacre_types::{Cred, Fid, JobId};
use nacre_wire::mds::MdsRequest;
use nacre_wire::oss::{Bulk, OssRequest};
use services::*;
use std::sync::Arc;

fn job(name: &str) -> Option<JobId> {
    JobId::new(name.as_bytes())
}

/// Sends a request for a job, posts one for another job, and sends one without a job.
fn ask(mds: &dyn MdsEndpoint) {
    let cred = Cred::new(0, 0);
    {
        let _job = enter_job(job("asked"));
        mds.call(&cred, &MdsRequest::Statfs).expect("answered");
    }
    {
        let _job = enter_job(job("posted"));
        mds.post(&cred, &MdsRequest::Statfs);
    }
    mds.call(&cred, &MdsRequest::Statfs).expect("answered");
}

fn is_expected(services: &Services) -> bool {
    let mut jobs = services.mds.jobs.lock().unwrap().clone();
    jobs.sort();
    jobs == [None, job("asked"), job("posted")]
}

#[test]
fn metadata_requests_carry_their_job() {
    let services = Services::default();
    let (mds, _) = LoMds::connect(services.mds.clone(), identity(1).client, Arc::new(Events::default()))
        .expect("endpoint");
    ask(&mds);
    assert!(is_expected(&services), "{:?}", services.mds.jobs);
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let to = [nid(server.addrs()[0])];
    let (mds, _) =
        TcpMds::connect(0, &to, &identity(1), &quick(), Arc::new(Events::default())).expect("connect");
    ask(&mds);
    eventually("all have come", || is_expected(&services));
}

#[test]
fn object_requests_carry_their_job_also_when_several_run_at_once() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let tcp = TcpOss::new(0, &[nid(server.addrs()[0])], &identity(1), &quick()).expect("endpoint");
    let lo = LoOss::connect(services.oss.clone(), identity(2).client, Arc::new(Events::default()))
        .expect("endpoint");
    let endpoints: [&dyn OssEndpoint; 2] = [&tcp, &lo];
    for endpoint in endpoints {
        services.oss.jobs.lock().unwrap().clear();
        let request = || OssRequest::GetAttr { object: Fid::new(9, 2, 0), glimpse: false };
        let call = || IoCall { endpoint, request: request(), bulk: Bulk::None };
        {
            let _job = enter_job(job("several"));
            assert!(run_all(vec![call(), call(), call()]).iter().all(Result::is_ok));
        }
        endpoint.call(&request(), Bulk::None).expect("answered");
        let expected = [job("several"), job("several"), job("several"), None];
        assert_eq!(*services.oss.jobs.lock().unwrap(), expected);
    }
}
