//! Settings of parameters.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nacre_params::untrusted::read(bytes));
