//! An object target whose clients share objects: what is held, what is locked for a request, who is asked, who is gone.

mod restart;
mod sharing;
mod simulated;
mod support;
