//! Superblock and log of the metadata store.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nacre_store::meta::untrusted::read(bytes));
