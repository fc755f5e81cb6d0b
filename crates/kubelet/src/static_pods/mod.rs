//! Static pods: pods from files or a URL that run without an API server, and mirror pods that show them in it.
//!
//! Flow: `source` (file, directory, URL) -> `manifest` (pure) -> workers, under an identity made from the manifest's
//! content, so that the same manifest is the same pod after a restart. A mirror pod is made in the API for each and made
//! again if deleted.

mod manifest;
mod source;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::meta::Meta as _;
use api::pod::MIRROR;
use client::{Client, DeleteParams, Informer};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use tokio::sync::{Mutex, Notify};
use tokio_util::sync::CancellationToken;

use crate::pod_source::SOURCE;
use crate::state;
use crate::worker::Workers;

pub(crate) use crate::pod_source::{is_mirror, is_static};
use source::Pods;
pub(crate) use source::Source;

const HASH: &str = "kubernetes.io/config.hash";
/// A directory listing is cheap, and file systems that do not tell of changes work too.
const INTERVAL: Duration = Duration::from_secs(1);

fn annotation<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod.metadata.annotation(name)
}

pub(crate) struct StaticPods {
    /// Kept here, so that a part that begins anew knows which pods are gone from a source.
    pub(crate) sources: Mutex<Vec<(Source, Known)>>,
    pub(crate) node: String,
    pub(crate) client: Client,
    pub(crate) workers: Arc<Workers>,
    /// Mirror pods are among the node's pods.
    pub(crate) pods: Informer<Pod>,
    /// A mirror pod changed.
    pub(crate) changed: Arc<Notify>,
    /// Every source was read once: until then, nobody knows which pods are in none.
    pub(crate) all_read: CancellationToken,
}

/// What is known of one source.
#[derive(Default)]
pub(crate) struct Known {
    /// None until it was read.
    pods: Option<Pods>,
    /// Told already; the same again is told to nobody.
    errors: Vec<String>,
}

/// Sources of which nothing is known yet.
pub(crate) fn unread(sources: Vec<Source>) -> Mutex<Vec<(Source, Known)>> {
    Mutex::new(sources.into_iter().map(|source| (source, Known::default())).collect())
}

impl StaticPods {
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut sources = self.sources.lock().await;
        loop {
            for (source, known) in sources.iter_mut() {
                self.look(source, known).await;
            }
            if sources.iter().all(|(_, known)| known.pods.is_some()) {
                self.all_read.cancel();
                self.drop_orphans().await;
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(INTERVAL), if !sources.is_empty() => {}
                () = self.changed.notified() => {}
                () = self.workers.left() => {}
            }
        }
    }

    /// Brings workers and mirrors in line with a source. While it cannot be read, its pods go on as they are.
    async fn look(&self, source: &mut Source, known: &mut Known) {
        let errors = match source.read(&self.node).await {
            Ok(Some(found)) => {
                let before = known.pods.iter().flat_map(HashMap::keys);
                before.filter(|uid| !found.pods.contains_key(*uid)).for_each(|uid| self.workers.removed(uid));
                known.pods = Some(found.pods);
                found.errors
            }
            Ok(None) => known.errors.clone(),
            Err(error) => vec![error.to_string()],
        };
        for error in errors.iter().filter(|error| !known.errors.contains(error)) {
            tracing::warn!(source = source.name(), error, "static pod not read");
        }
        known.errors = errors;
        for pod in known.pods.iter().flat_map(HashMap::values) {
            let mirror = self.ensure_mirror(pod).await;
            let is_known = self.workers.has(state::uid(pod));
            // A changed manifest is another pod, which starts when the one before it has ended.
            if is_known && mirror.is_some() || !is_known && !self.workers.has_name(&state::full_name(pod)) {
                self.workers.update(pod.clone(), mirror);
            }
        }
    }

    /// The mirror pod of a static pod, made if it is missing or of another version.
    async fn ensure_mirror(&self, pod: &Arc<Pod>) -> Option<Arc<Pod>> {
        let found = self.pods.get(&state::full_name(pod));
        if let Some(mirror) = &found {
            if annotation(mirror, MIRROR) == annotation(pod, HASH) && mirror.metadata.deletion_timestamp.is_none() {
                return found;
            }
            self.drop_mirror(mirror).await;
            return None;
        }
        if let Err(error) = self.create_mirror(pod).await {
            tracing::debug!(pod = state::full_name(pod), %error, "mirror pod not made, will retry");
        }
        None
    }

    async fn create_mirror(&self, pod: &Pod) -> Result<(), client::Error> {
        let mut mirror = pod.clone();
        let hash = annotation(pod, HASH).unwrap_or_default().to_string();
        mirror.metadata.uid = None;
        mirror.metadata.annotations.get_or_insert_default().insert(MIRROR.into(), hash);
        let node = self.client.all::<Node>().get(&self.node).await?;
        mirror.metadata.owner_references = Some(vec![OwnerReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: self.node.clone(),
            uid: node.metadata.uid.unwrap_or_default(),
            controller: Some(true),
            ..Default::default()
        }]);
        match self.client.namespaced::<Pod>(state::namespace(pod)).create(&mirror).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_already_exists() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Takes mirrors out of the API whose pods are in no source any more and have ended.
    async fn drop_orphans(&self) {
        for mirror in self.pods.list().iter().filter(|pod| is_mirror(pod)) {
            if annotation(mirror, HASH).is_none_or(|uid| !self.workers.has(uid)) {
                self.drop_mirror(mirror).await;
            }
        }
    }

    async fn drop_mirror(&self, mirror: &Pod) {
        let params = DeleteParams { uid: mirror.metadata.uid.clone(), ..DeleteParams::default().with_grace_period(0) };
        match self.client.namespaced::<Pod>(state::namespace(mirror)).delete(state::name(mirror), &params).await {
            Ok(()) => {}
            Err(error) if error.is_not_found() => {}
            Err(error) => tracing::debug!(pod = state::full_name(mirror), %error, "mirror pod not deleted, will retry"),
        }
    }
}
