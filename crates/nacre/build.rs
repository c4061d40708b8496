//! Links the program to lie at one address in all its processes (decision 0012): processes that take turns on a CPU share what
//! the branch predictor has learnt, which goes by addresses.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        // The code itself stays as position-independent as its libraries are; only where it lies is fixed.
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
}
