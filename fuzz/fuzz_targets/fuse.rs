//! Requests of the kernel.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nacre_fuse::untrusted::read(bytes));
