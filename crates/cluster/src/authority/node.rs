//! A machine that has joined: it trusts whom the cluster trusts, asks for certificates of whoever signs now, and says how far
//! it is.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use client::Client;
use k8s_openapi::api::core::v1::ConfigMap;
use tokio_util::sync::CancellationToken;

use super::progress::Progress;
use crate::join;
use crate::pki::{Certificate, Pki, write_private};

const FOLLOW_INTERVAL: Duration = Duration::from_secs(10);
/// After so many looks it is said again: a Node that was deleted and made again says nothing.
const SAY_AGAIN: u32 = 30;

/// Follows until `stop`.
pub(crate) async fn follow(client: Client, dir: PathBuf, node: String, stop: CancellationToken) -> Result<()> {
    let (mut said, mut looks) = (None, 0);
    loop {
        if looks == SAY_AGAIN {
            (said, looks) = (None, 0);
        }
        looks += 1;
        if let Err(error) = follow_once(&client, &dir, &node, &mut said).await {
            tracing::warn!("the cluster's authority: {error:#}");
        }
        tokio::select! {
            () = tokio::time::sleep(FOLLOW_INTERVAL) => {}
            () = stop.cancelled() => return Ok(()),
        }
    }
}

async fn follow_once(client: &Client, dir: &Path, node: &str, said: &mut Option<Progress>) -> Result<()> {
    let settings = client.namespaced::<ConfigMap>(join::SETTINGS_NAMESPACE).get(join::SETTINGS_NAME).await;
    let data = settings.context("reading the cluster's settings")?.data.unwrap_or_default();
    // A server of an earlier version says nothing of it.
    let Some(published) = data.get(join::AUTHORITY_KEY) else { return Ok(()) };
    let pki = Pki::open(dir);
    let authorities = Certificate::parse_all(published.as_bytes())?;
    let Some(signer) = authorities.first() else { bail!("the cluster publishes no authority") };
    if fs::read_to_string(pki.certificate("ca"))? != *published {
        write_private(&pki.certificate("ca"), published.as_bytes())?;
        tracing::info!(authorities = authorities.len(), "the cluster's authorities are others now");
    }
    let progress = Progress::of_files(dir, |name| name.ends_with("-current"))?;
    if progress.signed_by.iter().any(|issuer| *issuer != signer.subject) {
        kubelet::ask_renewal(dir).context("asking for new certificates")?;
    }
    if said.as_ref() != Some(&progress) {
        progress.say(client, node).await?;
        *said = Some(progress);
    }
    Ok(())
}
