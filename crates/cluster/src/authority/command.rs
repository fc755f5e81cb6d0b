//! `cox cert rotate-ca`: leads everybody from phase to phase.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use api::meta::Meta as _;
use api::sort::CompactCollect as _;
use client::ListParams;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;

use super::progress::{self, Progress};
use super::shared;
use crate::ca_rotation::{Phase, Rotation};
use crate::connection::connect;
use crate::join::{self, Membership};
use crate::lock::Lock;
use crate::options::Options;

const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// For this server to see that the exchange is over.
const END_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    options: Options,
    /// How long servers and nodes may take for each step; the command can be repeated
    #[arg(long, default_value = "10m")]
    timeout: SignedDuration,
    /// How long to wait between phases for pods, which see a new CA a little later than nodes
    #[arg(long, default_value = "90s")]
    settle: SignedDuration,
}

pub(crate) async fn rotate(args: Args) -> Result<()> {
    let options = &args.options;
    if let Some(member) = Membership::load(options)? {
        bail!("this machine is a node of {}: its server exchanges the authority", member.server);
    }
    let _lock = Lock::for_change(options)?;
    let dir = options.pki_dir();
    if !dir.join("ca.key").try_exists()? {
        bail!("there is no cluster at {}", options.data_dir.display());
    }
    if Lock::holder(&options.lock_file())?.is_none() {
        bail!("the cluster does not run: nodes could not be told ('cox up')");
    }
    let (timeout, settle) = (Duration::try_from(args.timeout)?, Duration::try_from(args.settle)?);
    let client = connect(&options.admin_kubeconfig())?;
    let (mut rotation, mut version) = match shared::load(&client, &dir).await? {
        Some(found) => found,
        // Servers were never told, or somebody deleted what they were told by.
        None => match Rotation::load(&dir)? {
            Some(rotation) => (rotation, None),
            None => (Rotation::begin(&dir)?, None),
        },
    };
    let new = rotation.subject()?;
    loop {
        // Another one for each phase: what this client trusts and shows is of the phase before.
        let client = connect(&options.admin_kubeconfig())?;
        // Whoever joined with keys of an earlier phase would sign with the old one.
        join::withdraw_offers(&client).await?;
        version = shared::save(&client, &dir, &rotation, version).await?;
        until_followed(options, rotation.phase, &new, timeout).await?;
        println!(" ✓ {}", describe(rotation.phase, &new));
        let Some(next) = rotation.phase.next() else { break };
        tokio::time::sleep(settle).await;
        rotation.phase = next;
    }
    shared::forget(&connect(&options.admin_kubeconfig())?).await?;
    let deadline = Instant::now() + END_TIMEOUT;
    while Rotation::load(&dir)?.is_some() && Instant::now() < deadline {
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
    Ok(())
}

fn describe(phase: Phase, new: &str) -> String {
    match phase {
        Phase::Trust => format!("{new} is trusted beside the old authority"),
        Phase::Sign => format!("{new} has signed everything anew"),
        Phase::Drop => format!("{new} is the only authority"),
    }
}

/// Waits until every server and every node has come to the end of a phase.
async fn until_followed(options: &Options, phase: Phase, new: &str, timeout: Duration) -> Result<()> {
    let deadline = Instant::now() + timeout;
    loop {
        // The server may be exchanging the certificates that both show.
        let listed = async {
            let client = connect(&options.admin_kubeconfig())?;
            client.all::<Node>().list(&ListParams::default()).await.context("listing the nodes")
        };
        let behind = match listed.await {
            Ok(nodes) => {
                let said = |node: &Node| (node.metadata.name().to_owned(), Progress::said_by(node));
                let nodes: BTreeMap<String, Progress> = nodes.items.iter().map(said).compact_collect();
                progress::behind(phase, new, &nodes).join(", ")
            }
            Err(error) if Instant::now() >= deadline => return Err(error),
            Err(_) => "the server".to_owned(),
        };
        if behind.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            bail!(
                "{behind} has not come along: 'cox cert rotate-ca' goes on when it has, or when its node is deleted; until then \
                 nobody is cut off"
            );
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_authority_is_exchanged_while_another_command_changes_the_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { data_dir: dir.path().into(), run_dir: dir.path().join("run"), name: "c".into() };
        let args = Args { options: options.clone(), timeout: SignedDuration::ZERO, settle: SignedDuration::ZERO };
        let held = Lock::for_change(&options).unwrap();
        let refused = rotate(args.clone()).await.unwrap_err().to_string();
        assert!(refused.contains("another command changes this cluster"), "{refused}");
        drop(held);
        assert!(rotate(args).await.unwrap_err().to_string().contains("there is no cluster"));
    }
}
