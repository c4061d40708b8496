//! Keys from the authority to the handshake.

use crate::*;
use nacre_types::{Identity, KeyId, Roles};
use std::fs;
use std::os::unix::fs::PermissionsExt;

fn client(fsname: &str) -> Identity {
    Identity::new(fsname, KeyId(7), Roles::CLIENT, "host")
}

#[test]
fn a_key_is_read_as_it_was_written_and_not_by_others() {
    let dir = tempfile::tempdir().expect("a directory");
    let keys = dir.path().join("keys");
    let made = Authority::create(&keys, "fs").expect("an authority");
    assert!(Authority::create(&keys, "fs").is_err(), "there is one");
    let authority = Authority::load(&keys, "fs").expect("read");
    assert_eq!(made.fingerprint(), authority.fingerprint());
    let key = authority.make_key(&client("fs"), LIFETIME).expect("a key");
    key.save(&keys, "local").expect("written");
    key.save(&keys, "local").expect("replaced");
    let read = Key::load(&keys, "local").expect("read");
    assert_eq!(read.identity, key.identity);
    assert_eq!(fs::metadata(&keys).expect("stat").permissions().mode() & 0o777, 0o700);
    for name in ["authority.key", "local.key"] {
        let path = keys.join(name);
        assert_eq!(fs::metadata(&path).expect("stat").permissions().mode() & 0o777, 0o600, "{name}");
    }
    fs::set_permissions(keys.join("local.key"), fs::Permissions::from_mode(0o640)).expect("chmod");
    assert!(matches!(Key::load(&keys, "local"), Err(KeyError::Exposed { mode: 0o640, .. })));
    fs::set_permissions(keys.join("local.key"), fs::Permissions::from_mode(0o600)).expect("chmod");
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o750)).expect("chmod");
    assert!(matches!(Key::load(&keys, "local"), Err(KeyError::Exposed { mode: 0o750, .. })));
}

#[test]
fn a_key_with_the_certificate_of_another_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let keys = dir.path().join("keys");
    let authority = Authority::create(&keys, "fs").expect("an authority");
    for name in ["one", "other"] {
        authority.make_key(&client("fs"), LIFETIME).and_then(|key| key.save(&keys, name)).expect("a key");
    }
    fs::copy(keys.join("other.pem"), keys.join("one.pem")).expect("copied");
    assert!(matches!(Key::load(&keys, "one"), Err(KeyError::Certificate { .. })));
    fs::write(keys.join("one.pem"), "nothing").expect("written");
    assert!(matches!(Key::load(&keys, "one"), Err(KeyError::Damaged { .. })));
}

#[test]
fn a_request_gets_the_identity_that_the_authority_decides() {
    let dir = tempfile::tempdir().expect("a directory");
    let authority = Authority::create(&dir.path().join("keys"), "fs").expect("an authority");
    let request = Request::new().expect("a key pair");
    let csr = request.csr().expect("a request");
    let mut changed = csr.clone();
    *changed.last_mut().expect("bytes") ^= 1;
    assert!(Csr::read(&changed).is_err(), "its signature is wrong");
    let read = Csr::read(&csr).expect("a request");
    let certificate = authority.sign(&read, &client("fs"), LIFETIME).expect("signed");
    let other = Request::new().expect("a key pair");
    assert!(other.finish(&certificate, authority.certificate()).is_err(), "of another key pair");
    let key = request.finish(&certificate, authority.certificate()).expect("a key");
    assert_eq!(Identity { until_s: u64::MAX, ..key.identity }, client("fs"));
}

#[test]
fn any_bytes_are_no_request() {
    for len in 0..200 {
        let bytes: Vec<u8> = (0..len).map(|at| (at * 37 + len) as u8).collect();
        assert!(Csr::read(&bytes).is_err());
    }
    assert!(Csr::read(&vec![0x30; 1 << 20]).is_err());
}
