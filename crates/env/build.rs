//! Compiles the fault points in if `NACRE_FAULT_POINTS` is set: never in a release, see `src/fault.rs`.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(fault_points)");
    println!("cargo::rerun-if-env-changed=NACRE_FAULT_POINTS");
    if std::env::var_os("NACRE_FAULT_POINTS").is_some_and(|value| value == "1") {
        println!("cargo::rustc-cfg=fault_points");
    }
}
