//! The kernel's own tools (`nft`, `iptables-restore` …): started with a text to read, done when they say so.

use std::process::Stdio;

use tokio::io::AsyncWriteExt;

use crate::error::{Error, Result};

/// Runs a tool to its end and returns what it printed. The error is what it complained about.
pub(crate) async fn run(program: &str, args: &[&str], input: &str) -> Result<String> {
    let unusable = |source| Error::Tool { program: program.to_owned(), source };
    let mut child = tokio::process::Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(unusable)?;
    let stdin = child.stdin.take();
    let feed = async {
        if let Some(mut stdin) = stdin {
            // It stops reading at a mistake; what it says about that is the better message.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
    };
    let ((), output) = tokio::join!(feed, child.wait_with_output());
    let output = output.map_err(unusable)?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(Error::Refused { program: program.to_owned(), said })
        }
    }
}
