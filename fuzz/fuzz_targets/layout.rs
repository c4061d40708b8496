//! Layouts of files and directories in the binary form of Lustre.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nacre_layout::untrusted::read(bytes));
