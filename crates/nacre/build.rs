//! Links the program at one fixed address in all its processes
//! (docs/decisions/0012-one-address-for-the-program.md): processes that share a CPU also share the state of
//! the branch predictor, which is indexed by address. With musl, `-C relocation-model=static` does that: `-no-pie` alone
//! would be linked with the start code of a program that relocates itself, which crashes.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |key: &str, value: &str| std::env::var(key).is_ok_and(|found| found == value);
    if is("CARGO_CFG_TARGET_OS", "linux") && !is("CARGO_CFG_TARGET_ENV", "musl") {
        // The code stays as position-independent as its libraries are; only its address is fixed.
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
}
