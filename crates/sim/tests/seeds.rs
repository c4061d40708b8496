//! Random plans, each in a process of its own. For more: `nacre-sim --seeds 0..100000`.

use std::process::Command;

#[test]
fn a_thousand_file_systems_with_faults_do_nothing_that_is_not_allowed() {
    let range = std::env::var("NACRE_SIM_SEEDS").unwrap_or_else(|_| "0..1000".to_owned());
    let program = env!("CARGO_BIN_EXE_nacre-sim");
    let output = Command::new(program).args(["--seeds", &range]).output().expect("the program runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    println!("{text}");
}

#[test]
fn a_seed_gives_the_same_run_in_another_process() {
    let run = || {
        let output = Command::new(env!("CARGO_BIN_EXE_nacre-sim")).args(["--seed", "7"]).output();
        let text = String::from_utf8(output.expect("the program runs").stdout).expect("text");
        text.rsplit_once("trace ").map(|(_, trace)| trace.to_owned()).expect("a trace")
    };
    assert_eq!(run(), run());
}
