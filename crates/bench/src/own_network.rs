//! Comparisons that run in a network namespace of their own: the program starts itself again inside.

use anyhow::{Context, Result, ensure};
use netlink::Socket;
use std::process::Command;

use crate::Args;

/// Runs the comparison again inside, with a directory that goes with it. Namespaces and links end with the process.
pub(crate) fn again(args: &Args, comparison: &str) -> Result<()> {
    let dir = tempfile::tempdir_in(&args.dir)?;
    let mut again = Command::new("unshare");
    again.arg("--net").arg(std::env::current_exe()?).arg(comparison).arg("--inside").arg(dir.path());
    again.args(args.quick.then_some("--quick"));
    again.args(args.only.iter().flat_map(|only| ["--only", only]));
    let status = again.status().context("a network namespace of its own")?;
    ensure!(status.success(), "{status}");
    Ok(())
}

/// Sets a link up; returns its index.
pub(crate) fn up(socket: &Socket, name: &str) -> Result<u32> {
    let link = socket.link(name)?.with_context(|| format!("no {name}"))?;
    socket.set_up(link.index)?;
    Ok(link.index)
}
