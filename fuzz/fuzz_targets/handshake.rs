//! What a client sends in a handshake of TLS.
#![no_main]

use nacre_keys::{Authority, LIFETIME, Revoked, ServerTls};
use nacre_types::{Identity, KeyId, Roles};
use std::sync::{Arc, LazyLock};

static SERVER: LazyLock<ServerTls> = LazyLock::new(|| {
    let dir = tempfile::tempdir().expect("a directory");
    let authority = Authority::create(&dir.path().join("keys"), "fs").expect("an authority");
    let identity = Identity::new("fs", KeyId(1), Roles::MGS, "fuzz");
    let key = authority.make_key(&identity, LIFETIME).expect("a key");
    ServerTls::new(&key, false, Arc::new(Revoked::default())).expect("settings")
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let (first, rest) = bytes.split_first().unwrap_or((&0, &[]));
    nacre_rpc::tcp::untrusted::read_handshake(&SERVER, rest, 1 + 16 * usize::from(*first));
});
