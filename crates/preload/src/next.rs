//! Lookup of the functions that this library interposes.

use std::ffi::{CStr, c_int, c_void};

/// Returns the next function of this name in the order of the dynamic linker, as type `F`, which must be a
/// function pointer.
pub fn function<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) }
    // SAFETY: the name is a C string; the call has no other preconditions.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    // SAFETY: the sizes are equal, and callers name the type that the C library declares under this name;
    // null is excluded.
    (!found.is_null()).then(|| unsafe { std::mem::transmute_copy::<*mut c_void, F>(&found) })
}

/// Sets `ENOSYS` and returns -1, for a function that has no next one.
pub fn missing() -> c_int {
    set_errno(libc::ENOSYS);
    -1
}

/// Returns the errno of the calling thread.
pub fn errno() -> c_int {
    // SAFETY: the C library returns a valid pointer for the calling thread.
    unsafe { *libc::__errno_location() }
}

/// Sets the errno of the calling thread.
pub fn set_errno(value: c_int) {
    // SAFETY: as above; only this thread writes to its errno.
    unsafe { *libc::__errno_location() = value }
}
