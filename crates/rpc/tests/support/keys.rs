//! Keys of a file system, for servers and clients of tests.

#![allow(dead_code, reason = "each test file uses a part")]

use crate::services::{Services, any_port, quick};
use nacre_keys::{Authority, ClientTls, Key, LIFETIME, Revoked, ServerTls};
use nacre_rpc::tcp::Server;
use nacre_rpc::{ClientConfig, ServerConfig};
use nacre_types::{Identity, KeyId, Roles};
use std::net::SocketAddr;
use std::sync::Arc;

/// Roles of a server of every kind of target.
pub const SERVER: Roles = Roles::MGS.union(Roles::MDS).union(Roles::OSS);
/// Number of the key that [`Keys::server`] proves.
pub const SERVER_KEY: KeyId = KeyId(1);
/// Number of the key that [`Keys::client`] proves.
pub const CLIENT_KEY: KeyId = KeyId(2);

/// An authority of file system `nacre`, and its revoked keys.
pub struct Keys {
    _dir: tempfile::TempDir,
    pub authority: Authority,
    pub revoked: Arc<Revoked>,
}

impl Keys {
    pub fn of(fsname: &str) -> Keys {
        let dir = tempfile::tempdir().expect("a directory");
        let authority = Authority::create(&dir.path().join("keys"), fsname).expect("an authority");
        Keys { _dir: dir, authority, revoked: Arc::default() }
    }

    pub fn new() -> Keys {
        Keys::of("nacre")
    }

    pub fn key(&self, id: KeyId, roles: Roles) -> Key {
        self.authority.make_key(&Identity::new("nacre", id, roles, "test"), LIFETIME).expect("a key")
    }

    pub fn server(&self, roles: Roles) -> ServerConfig {
        let tls =
            ServerTls::new(&self.key(SERVER_KEY, roles), false, self.revoked.clone()).expect("settings");
        ServerConfig { tls: Some(tls), fsname: "nacre".to_owned(), ..ServerConfig::default() }
    }

    pub fn client(&self, roles: Roles) -> ClientConfig {
        with_key(&self.key(CLIENT_KEY, roles))
    }
}

/// Returns the configuration of a client with this key.
pub fn with_key(key: &Key) -> ClientConfig {
    let tls = ClientTls::new("nacre", std::slice::from_ref(key)).expect("settings");
    ClientConfig { tls: Some(tls), ..quick() }
}

/// Starts a server with services that record requests; returns its address.
pub fn serve(config: ServerConfig) -> (Services, Server, SocketAddr) {
    let services = Services::default();
    let server = services.serve(any_port(), config);
    let addr = server.addrs()[0];
    (services, server, addr)
}
