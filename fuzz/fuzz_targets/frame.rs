//! The first frame of a connection: header, connect, and the answers to it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nacre_rpc::tcp::untrusted::read_frame(bytes));
