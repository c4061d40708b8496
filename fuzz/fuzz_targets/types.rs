//! Arguments of ioctls, ACLs, and texts of addresses, FIDs, nodemaps and so on.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nacre_types::untrusted::read(bytes));
