//! The kernel's side, with iptables: upstream's chains under upstream's names, for hosts whose other tools expect them.
//!
//! A packet walks `KUBE-SERVICES` rule by rule until one matches, so its cost grows with the number of services; that is why
//! nftables is the default. A change rewrites the chains that differ, in one `iptables-restore` per family.

mod base;
mod fragment;
mod program;

pub(crate) use program::Program;

use base::{FAMILIES, Family};

use crate::error::Result;
use crate::tool::run;

/// What `iptables-restore` and `ip6tables-restore` are to read; empty for nothing to do.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Transaction([String; 2]);

impl Transaction {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(String::is_empty)
    }
}

/// Carries out a transaction; each family's part happens as a whole or not at all.
pub(crate) async fn apply(transaction: &Transaction) -> Result<()> {
    for (family, text) in FAMILIES.iter().zip(&transaction.0) {
        if !text.is_empty() {
            run(&format!("{}-restore", family.command), &["--wait", "5", "--noflush", "--counters"], text).await?;
        }
    }
    Ok(())
}

/// Takes our chains and the jumps to them out again; quiet when there are none.
pub(crate) async fn remove() -> Result<()> {
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
async fn saved(family: Family, table: &str) -> Result<String> {
    run(&format!("{}-save", family.command), &["-t", table], "").await
}
