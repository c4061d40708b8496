//! Memory and system calls.

use std::time::Instant;

/// Measures memcpy between two buffers of `size` bytes, in bytes per second.
pub(super) fn copy_bytes_per_second(size: usize, seconds: f64) -> f64 {
    let source = vec![1u8; size];
    let mut target = vec![0u8; size];
    let start = Instant::now();
    let mut copied = 0u64;
    while start.elapsed().as_secs_f64() < seconds {
        target.copy_from_slice(std::hint::black_box(&source));
        std::hint::black_box(&mut target);
        copied += size as u64;
    }
    copied as f64 / start.elapsed().as_secs_f64()
}

/// Measures how often per second the kernel can be entered and left.
pub(super) fn system_calls_per_second(seconds: f64) -> f64 {
    let start = Instant::now();
    let mut calls = 0u64;
    while start.elapsed().as_secs_f64() < seconds {
        for _ in 0..1000 {
            std::hint::black_box(rustix::process::getppid());
        }
        calls += 1000;
    }
    calls as f64 / start.elapsed().as_secs_f64()
}
