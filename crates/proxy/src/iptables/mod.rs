//! The kernel's side, with iptables: upstream's chains under upstream's names, for hosts whose other tools expect them.
//!
//! A packet walks `KUBE-SERVICES` rule by rule until one matches, so its cost grows with the number of services; that is why
//! nftables is the default. A change rewrites the chains that differ, in one `iptables-restore` per family.

mod base;
mod fragment;
mod program;

pub(crate) use program::Program;

use std::process::Stdio;

use tokio::io::AsyncWriteExt;

use base::{FAMILIES, Family};

/// What `iptables-restore` and `ip6tables-restore` are to read; empty for nothing to do.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Transaction([String; 2]);

impl Transaction {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(String::is_empty)
    }
}

/// Carries out a transaction; each family's part happens as a whole or not at all.
pub(crate) async fn apply(transaction: &Transaction) -> Result<(), String> {
    for (family, text) in FAMILIES.iter().zip(&transaction.0) {
        if !text.is_empty() {
            run(&format!("{}-restore", family.command), &["--wait", "5", "--noflush", "--counters"], text).await?;
        }
    }
    Ok(())
}

/// Takes our chains and the jumps to them out again; quiet when there are none.
pub(crate) async fn remove() -> Result<(), String> {
    for family in FAMILIES {
        let mut text = String::new();
        for table in base::TABLES {
            let saved = saved(family, table).await?;
            text.push_str(&base::removal(table, &saved));
        }
        if !text.is_empty() {
            run(&format!("{}-restore", family.command), &["--wait", "5", "--noflush"], &text).await?;
        }
    }
    Ok(())
}

/// What a table holds now, as `iptables-save` prints it.
async fn saved(family: Family, table: &str) -> Result<String, String> {
    run(&format!("{}-save", family.command), &["-t", table], "").await
}

async fn run(program: &str, args: &[&str], input: &str) -> Result<String, String> {
    let mut child = tokio::process::Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("{program}: {error}"))?;
    let stdin = child.stdin.take();
    let feed = async {
        if let Some(mut stdin) = stdin {
            // It stops reading at a mistake; what it says about that is the better message.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
    };
    let ((), output) = tokio::join!(feed, child.wait_with_output());
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}
