//! Messages between clients and servers, and between MDTs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nacre_wire::untrusted::read(bytes));
