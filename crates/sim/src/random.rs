//! Random bytes of the operating system, which in a simulation follow from its seed.
//!
//! The standard library draws the keys of its hash maps with `getrandom`, and the order of a map decides which
//! of several locks or requests comes first. This definition takes precedence over that of the C library, for
//! all programs that contain this crate.

use std::cell::Cell;

thread_local! {
    /// Generator of this thread, if it belongs to a run.
    static STATE: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Makes further random bytes of this thread follow from `seed`.
pub(crate) fn seed(seed: u64) {
    STATE.set(Some(seed));
}

/// Returns the next number of SplitMix64, which turns equal steps into independent numbers.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Fills a buffer as getrandom(2) does.
///
/// # Safety
/// `buffer` is valid for writes of `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut u8, length: usize, flags: libc::c_uint) -> isize {
    let simulated = nacre_env::sim::number_here().map(|(seed, thread)| seed ^ (u64::from(thread) << 32));
    let state = STATE.try_with(Cell::get).ok().flatten().or(simulated);
    let Some(mut state) = state else {
        // SAFETY: the arguments are those of this function, which has the same contract.
        return unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) as isize };
    };
    // SAFETY: the caller guarantees that the buffer is valid for writes of this length.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer, length) };
    for piece in bytes.chunks_mut(8) {
        piece.copy_from_slice(&next(&mut state).to_le_bytes()[..piece.len()]);
    }
    let _ = STATE.try_with(|own| own.set(Some(state)));
    length as isize
}
