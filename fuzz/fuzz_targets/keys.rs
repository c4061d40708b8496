//! Certificates, requests for them, tokens, and texts of identities.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nacre_keys::untrusted::read(bytes));
