//! Static pods: files in a directory that run without an API server, and mirror pods that show them in it.
//!
//! Flow: files -> [`StaticPods::read`] -> workers, under an identity made from the file's content, so that the same
//! file is the same pod after a restart. A mirror pod is made in the API for each and made again if deleted.

use std::collections::HashMap;
use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use client::{Client, DeleteParams, Informer};
use k8s_openapi::api::core::v1::{Node, Pod, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::state;
use crate::worker::Workers;

const SOURCE: &str = "kubernetes.io/config.source";
const HASH: &str = "kubernetes.io/config.hash";
const MIRROR: &str = "kubernetes.io/config.mirror";
/// A directory listing is cheap, and file systems that do not tell of changes work too.
const INTERVAL: Duration = Duration::from_secs(1);

pub(crate) fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, MIRROR).is_some()
}

/// Whether a pod came from a file or URL of this node rather than from the API.
pub(crate) fn is_static(pod: &Pod) -> bool {
    annotation(pod, SOURCE).is_some_and(|source| source != "api")
}

fn annotation<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

pub(crate) struct StaticPods {
    pub(crate) dir: PathBuf,
    pub(crate) node: String,
    pub(crate) client: Client,
    pub(crate) workers: Arc<Workers>,
    /// Mirror pods are among the node's pods.
    pub(crate) pods: Informer<Pod>,
    /// A mirror pod changed.
    pub(crate) changed: Arc<Notify>,
}

impl StaticPods {
    pub(crate) async fn run(&self, stop: CancellationToken) {
        let mut known: HashMap<String, Arc<Pod>> = HashMap::new();
        loop {
            let found = self.read();
            for (uid, pod) in &known {
                if !found.contains_key(uid) {
                    self.workers.removed(uid);
                    self.drop_mirror(pod, None).await;
                }
            }
            for (uid, pod) in &found {
                let mirror = self.ensure_mirror(pod).await;
                if !known.contains_key(uid) || mirror.is_some() {
                    self.workers.update(pod.clone(), mirror);
                }
            }
            known = found;
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(INTERVAL) => {}
                () = self.changed.notified() => {}
            }
        }
    }

    /// Pods in the directory by uid. A file that cannot be read is told once per look and skipped.
    fn read(&self) -> HashMap<String, Arc<Pod>> {
        let mut found = HashMap::new();
        for entry in std::fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_hidden = entry.file_name().to_string_lossy().starts_with('.');
            if is_hidden || !path.is_file() {
                continue;
            }
            match parse(&path, &self.node) {
                Ok(pod) => {
                    found.insert(state::uid(&pod).to_string(), Arc::new(pod));
                }
                Err(error) => tracing::warn!(path = %path.display(), %error, "static pod not read"),
            }
        }
        found
    }

    /// The mirror pod of a static pod, made if it is missing or of another version.
    async fn ensure_mirror(&self, pod: &Arc<Pod>) -> Option<Arc<Pod>> {
        let found = self.pods.get(&state::full_name(pod));
        if let Some(mirror) = &found {
            if annotation(mirror, MIRROR) == annotation(pod, HASH) && mirror.metadata.deletion_timestamp.is_none() {
                return found;
            }
            self.drop_mirror(pod, mirror.metadata.uid.clone()).await;
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

    async fn drop_mirror(&self, pod: &Pod, uid: Option<String>) {
        let params = DeleteParams { uid, ..DeleteParams::default().with_grace_period(0) };
        match self.client.namespaced::<Pod>(state::namespace(pod)).delete(state::name(pod), &params).await {
            Ok(()) => {}
            Err(error) if error.is_not_found() => {}
            Err(error) => tracing::debug!(pod = state::full_name(pod), %error, "mirror pod not deleted"),
        }
    }
}

/// Reads one file and makes it a pod of this node.
fn parse(path: &Path, node: &str) -> Result<Pod, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let value: serde_json::Value = yaml_serde::from_str(&text).map_err(|error| error.to_string())?;
    let mut pod: Pod = serde_json::from_value(value).map_err(|error| error.to_string())?;
    let name = pod.metadata.name.clone().filter(|name| !name.is_empty()).ok_or("a static pod needs a name")?;
    let spec = pod.spec.as_mut().ok_or("a static pod needs a spec")?;
    spec.node_name = Some(node.to_string());
    spec.tolerations.get_or_insert_default().push(Toleration {
        operator: Some("Exists".into()),
        effect: Some("NoExecute".into()),
        ..Default::default()
    });
    let hash = content_hash(&[node.as_bytes(), path.as_os_str().as_encoded_bytes(), text.as_bytes()]);
    pod.metadata.name = Some(format!("{name}-{node}"));
    pod.metadata.namespace.get_or_insert_with(|| "default".into());
    pod.metadata.uid = Some(hash.clone());
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(SOURCE.into(), "file".into());
    annotations.insert(HASH.into(), hash);
    Ok(pod)
}

/// 32 hexadecimal digits, as upstream's are.
fn content_hash(parts: &[&[u8]]) -> String {
    let mut halves = [0u64; 2];
    for (seed, half) in halves.iter_mut().enumerate() {
        let mut hash = Fnv64(0xcbf2_9ce4_8422_2325 ^ (seed as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for part in parts {
            hash.write(part);
            hash.write(&[0xff]);
        }
        *half = hash.finish();
    }
    format!("{:016x}{:016x}", halves[0], halves[1])
}

struct Fnv64(u64);

impl Hasher for Fnv64 {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_become_pods_of_this_node() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("web.yaml");
        let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: a, image: nginx}]}\n";
        std::fs::write(&path, text).unwrap();
        let pod = parse(&path, "n1").unwrap();
        assert_eq!(state::full_name(&pod), "default/web-n1");
        assert_eq!(pod.spec.as_ref().unwrap().node_name.as_deref(), Some("n1"));
        assert!(!is_mirror(&pod));
        assert_eq!(parse(&path, "n1").unwrap(), pod, "the same file is the same pod");
        std::fs::write(&path, text.replace("nginx", "nginx:2")).unwrap();
        assert_ne!(parse(&path, "n1").unwrap().metadata.uid, pod.metadata.uid);
        assert_ne!(parse(&path, "n2").unwrap().metadata.uid, pod.metadata.uid);
    }
}
