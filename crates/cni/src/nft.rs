//! Rules for packets, handed to the kernel as one `nft -f -` transaction: all of it, or nothing.
//!
//! `nft` is asked rather than the netlink family spoken directly: its text is what an operator reads back, and a
//! transaction of ours costs a few milliseconds.

use std::io::Write;
use std::process::{Command, Stdio};

/// Carries out one transaction. The error is what `nft` said.
pub fn apply(transaction: &str) -> Result<(), String> {
    run(&["-f", "-"], transaction).map(drop)
}

/// `nft -j <args>`: a listing as JSON text.
pub fn list(args: &[&str]) -> Result<String, String> {
    let mut all = vec!["-j"];
    all.extend(args);
    run(&all, "")
}

fn run(args: &[&str], input: &str) -> Result<String, String> {
    let mut child = Command::new("nft")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("nft: {error}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // nft stops reading at a syntax error; what it says about that is the better message.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(|error| format!("nft: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

/// A name for chains and comments that is short and safe whatever the parts contain.
pub fn short_hash(parts: &[&str]) -> String {
    use sha2::Digest;
    let mut hasher = sha2::Sha256::new();
    for part in parts {
        hasher.update(part.as_bytes());
        hasher.update([0]);
    }
    hasher.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
