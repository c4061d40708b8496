//! Roles that may send each request.

use super::{mds_requests, mgs_requests, oss_requests};
use nacre_types::Roles;
use std::fmt::Debug;

/// Each request and the roles that may send it, checked against the certificate alone. None: a connection
/// without a key may send it.
#[test]
fn every_request_is_open_to_the_roles_that_need_it_and_no_others() {
    fn line(service: &str, request: &dyn Debug, roles: Roles) -> String {
        let name: String = format!("{request:?}").chars().take_while(char::is_ascii_alphanumeric).collect();
        format!(
            "{service} {name}: {}",
            if roles.is_empty() { "anyone".to_owned() } else { roles.to_string() }
        )
    }
    let mut found: Vec<String> = Vec::new();
    found.extend(mds_requests().iter().map(|request| line("mds", request, request.roles())));
    found.extend(oss_requests().iter().map(|request| line("oss", request, request.roles())));
    found.extend(mgs_requests().iter().map(|request| line("mgs", request, request.roles())));
    found.sort();
    found.dedup();
    // Requests that both clients and metadata servers may send are left out.
    let others: Vec<&str> =
        found.iter().map(String::as_str).filter(|line| !line.ends_with(": mds+client")).collect();
    assert_eq!(
        others,
        [
            "mds Peer: mds",
            "mgs AddTarget: mgs+mds+oss",
            "mgs ChangeNodemap: admin",
            "mgs ChangePool: admin",
            "mgs CreateToken: admin",
            "mgs Enrol: anyone",
            "mgs GetConfig: mgs+mds+oss+client+admin",
            "mgs ListKeys: admin",
            "mgs Ping: mgs+mds+oss+client+admin",
            "mgs RegisterTarget: mgs+mds+oss",
            "mgs Renew: mgs+mds+oss+client+admin",
            "mgs RevokeKey: admin",
            "mgs SetParam: admin",
            "oss Destroy: mds",
            "oss DestroyOrphans: mds",
            "oss Evict: mds",
            "oss Precreate: mds",
        ]
    );
    let all_of = |service: &str| found.iter().filter(|line| line.starts_with(service)).count();
    assert!(all_of("mds ") > 40 && all_of("oss ") > 15 && all_of("mgs ") == 12, "{found:#?}");
}
