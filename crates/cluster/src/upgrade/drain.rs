//! Pods leave a machine before its program is replaced, where that is asked for: `kubectl drain` of this very program, as a
//! person would type it. Otherwise they run on.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use client::Patch;
use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use tokio::process::Command;
use tokio::time::Instant;

use crate::components::interrupted;
use crate::connection::connect;
use crate::options::Options;

const PROGRAM: &str = "/proc/self/exe";
/// For a cluster that was just upgraded to let its node be changed.
const RETURN_TIMEOUT: Duration = Duration::from_secs(60);
const RETURN_INTERVAL: Duration = Duration::from_secs(1);

/// The upgrade itself went well.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the new program runs, but 'kubectl uncordon {0}' is still to be done")]
pub(super) struct StillClosed(String);

/// Does `what` after the node's pods have left, for which they have `timeout`; without one they stay. A node that was closed to
/// pods before stays so.
pub(super) async fn without_pods(
    timeout: Option<Duration>,
    options: &Options,
    node: &str,
    what: impl Future<Output = Result<()>>,
) -> Result<()> {
    let Some(timeout) = timeout else { return what.await };
    let was_closed = is_closed(options, node).await?;
    let done = match drain(options, node, timeout).await {
        Ok(()) => to_its_end(what).await,
        Err(error) => Err(error.context("its pods do not leave")),
    };
    if was_closed {
        // Perhaps by a command like this one that was killed: nobody can tell, so a person is told.
        println!(" - {node:<14} was closed to pods before and stays so: 'kubectl uncordon {node}' opens it");
        return done;
    }
    match (open(options, node).await, done) {
        (Ok(()), done) => done,
        (Err(error), Ok(())) => Err(error.context(StillClosed(node.to_owned()))),
        (Err(_), Err(error)) => Err(error.context(format!("'kubectl uncordon {node}' is still to be done"))),
    }
}

/// A machine is not left half-way, and whoever interrupts meanwhile is heard afterwards: since drain has listened for signals,
/// they end nothing by themselves.
async fn to_its_end(what: impl Future<Output = Result<()>>) -> Result<()> {
    let mut what = std::pin::pin!(what);
    let stopped = tokio::select! {
        biased;
        done = &mut what => return done,
        stopped = interrupted() => stopped,
    };
    what.await?;
    stopped?;
    bail!("interrupted, after the program was replaced");
}

async fn is_closed(options: &Options, node: &str) -> Result<bool> {
    let found = connect(&options.admin_kubeconfig())?.all::<Node>().get(node).await;
    let found = found.with_context(|| format!("asking for node {node}"))?;
    Ok(found.spec.and_then(|spec| spec.unschedulable) == Some(true))
}

/// Pods that nothing would bring back are left alone, and are an error.
async fn drain(options: &Options, node: &str, timeout: Duration) -> Result<()> {
    let mut kubectl = Command::new(PROGRAM);
    kubectl.arg("kubectl").arg("--kubeconfig").arg(options.admin_kubeconfig());
    kubectl.args(["drain", node, "--ignore-daemonsets", "--delete-emptydir-data"]);
    kubectl.arg(format!("--timeout={}s", timeout.as_secs().max(1)));
    kubectl.stdin(Stdio::null()).kill_on_drop(true);
    let said = tokio::select! {
        said = kubectl.output() => said.context("starting kubectl drain")?,
        stopped = interrupted() => {
            stopped?;
            bail!("interrupted");
        }
    };
    if !said.status.success() {
        bail!("{}", String::from_utf8_lossy(&said.stderr).trim());
    }
    Ok(())
}

async fn open(options: &Options, node: &str) -> Result<()> {
    let deadline = Instant::now() + RETURN_TIMEOUT;
    let patch = Patch::merge(json!({"spec": {"unschedulable": null}}));
    loop {
        let opened = async {
            connect(&options.admin_kubeconfig())?.all::<Node>().patch(node, &patch).await?;
            anyhow::Ok(())
        };
        match opened.await {
            Err(error) if Instant::now() >= deadline => return Err(error),
            Err(_) => tokio::time::sleep(RETURN_INTERVAL).await,
            Ok(()) => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_ends_by_itself_ends_as_it_does() {
        to_its_end(async { Ok(()) }).await.unwrap();
        let error = to_its_end(async { Err(anyhow::anyhow!("no room")) }).await.unwrap_err();
        assert_eq!(error.to_string(), "no room");
    }
}
