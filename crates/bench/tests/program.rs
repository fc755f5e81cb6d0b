//! The program as it is built for whoever compares: lints and the compiler see it without what only its unit tests use.

use std::process::Command;

#[test]
fn the_program_says_what_it_compares() {
    let output = Command::new(env!("CARGO_BIN_EXE_coxbench")).arg("--help").output().expect("coxbench starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("kubectl") && said.contains("faults"), "{output:?}");
}
