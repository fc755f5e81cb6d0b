//! Commands whose reader has left end quietly.

use std::process::{Command, Stdio};

#[test]
fn a_command_whose_reader_left_says_nothing() {
    for line in [
        "--help",
        "--version",
        "systemd-unit",
        "check",
        "status --data-dir=/nonexistent/cox",
        "up --help",
        "kubectl --help",
        "kubectl version --client",
        "kubectl options",
        "kubectl __complete get",
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let child = Command::new(env!("CARGO_BIN_EXE_cox"))
            .args(line.split(' '))
            .stdin(Stdio::null())
            .stdout(writer)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let complaints = String::from_utf8_lossy(&child.stderr);
        assert!(!complaints.contains("panicked") && !complaints.contains("Broken pipe"), "{line}: {complaints}");
    }
}
