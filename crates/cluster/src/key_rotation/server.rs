//! A server's part in an exchange of keys: it has the file that it is told to have, and says so.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use client::{Client, Informer, ListParams, Patch};
use k8s_openapi::api::core::v1::{Node, Secret};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::NAMESPACE;
use super::shared::{self, ANNOTATION};
use crate::encryption;
use crate::options::Options;
use crate::turns::Turns;

/// For the API server to take a file up; it looks every second.
const LOAD_TIMEOUT: Duration = Duration::from_secs(30);

/// A server that runs.
#[derive(Clone)]
pub(crate) struct Server {
    pub options: Options,
    pub node: String,
    pub admin: Client,
    /// SHA-256 of the file that the API server goes by.
    pub in_force: watch::Receiver<[u8; 32]>,
}

impl Server {
    /// Takes part until `stop`.
    pub(crate) async fn follow(self, stop: CancellationToken) -> Result<()> {
        let named = ListParams::fields(format!("metadata.name={}", shared::NAME));
        let orders: Informer<Secret> = Informer::new(self.admin.namespaced(NAMESPACE), named);
        let (news, changes) = watch::channel(());
        orders.subscribe(move |_| news.send_replace(()));
        let mut turns = Turns::new(changes, stop.child_token());
        let following = async {
            orders.synced().await;
            loop {
                turns.begin();
                let followed = self.obey(orders.list().first()).await;
                if let Err(error) = &followed {
                    tracing::error!("the exchange of keys: {error:#}");
                }
                if !turns.next(followed.is_err()).await? {
                    return anyhow::Ok(());
                }
            }
        };
        tokio::select! {
            () = orders.run(stop.clone()) => Ok(()),
            ended = following => ended,
        }
    }

    async fn obey(&self, order: Option<&Arc<Secret>>) -> Result<()> {
        let Some(order) = order else { return Ok(()) };
        let text = shared::read(order, &self.options.pki_dir()).context("the keys that this server is to have")?;
        let mark = shared::mark(&text);
        let file = self.options.encryption_file();
        let sum = shared::sum(&text);
        let is_new = tokio::task::spawn_blocking(move || encryption::put_in_place(&file, &text)).await??;
        if is_new {
            tracing::info!("this server has other keys for what is encrypted");
        }
        until_in_force(self.in_force.clone(), sum).await?;
        let nodes = self.admin.all::<Node>();
        let node = nodes.get(&self.node).await.with_context(|| format!("asking for node {}", self.node))?;
        if shared::said_by(&node) != Some(mark.as_str()) {
            let annotations = json!({ANNOTATION: mark});
            let patch = Patch::merge(json!({"metadata": {"annotations": annotations}}));
            nodes.patch(&self.node, &patch).await.context("saying which keys this server has")?;
        }
        Ok(())
    }
}

/// Others rely on what is said: that the file is there is not enough.
async fn until_in_force(mut in_force: watch::Receiver<[u8; 32]>, wanted: [u8; 32]) -> Result<()> {
    let waiting = async { in_force.wait_for(|sum| *sum == wanted).await.map(drop) };
    match tokio::time::timeout(LOAD_TIMEOUT, waiting).await {
        Ok(waited) => waited.context("the API server has ended"),
        Err(_) => bail!("the API server does not take up its file of keys: its log says why"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_says_that_it_has_keys_only_once_they_are_in_force() {
        let (old, new) = (shared::sum(b"old"), shared::sum(b"new"));
        let (sender, in_force) = watch::channel(old);
        until_in_force(in_force.clone(), old).await.unwrap();
        let error = until_in_force(in_force.clone(), new).await.unwrap_err();
        assert!(error.to_string().contains("does not take up"), "{error}");
        let waiting = tokio::spawn(until_in_force(in_force.clone(), new));
        sender.send_replace(new);
        waiting.await.unwrap().unwrap();
        drop(sender);
        assert!(until_in_force(in_force, old).await.is_err());
    }
}
