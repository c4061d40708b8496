//! Records on disk, superblocks, and logs of caches.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nacre_ondisk::untrusted::read(bytes));
