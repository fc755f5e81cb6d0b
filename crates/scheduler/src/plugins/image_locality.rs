//! Prefers nodes that already have the pod's large images, unless few nodes have them (so that pods do not heap up).

use std::collections::HashMap;
use std::sync::Arc;

use crate::cache::Snapshot;
use crate::framework::{MAX_SCORE, Plugin, Prepared, Rejection};
use crate::node::NodeInfo;
use crate::pod::PodInfo;

const MIB: i64 = 1024 * 1024;
const MIN_SIZE: i64 = 23 * MIB;
const MAX_SIZE_PER_CONTAINER: i64 = 1000 * MIB;

pub(crate) struct ImageLocality;

impl Plugin for ImageLocality {
    fn name(&self) -> &'static str {
        "ImageLocality"
    }

    fn prepare(&self, pod: &PodInfo, snapshot: &Snapshot) -> Option<Box<dyn Prepared>> {
        let spec = pod.pod.spec.as_ref()?;
        let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        let images: Vec<String> = containers.filter_map(|c| c.image.as_deref()).map(with_tag).collect();
        let mut spread: HashMap<String, (i64, i64)> = HashMap::new();
        for node in &snapshot.nodes {
            for image in &images {
                if let Some(size) = size_on(node, image) {
                    let entry = spread.entry(image.clone()).or_insert((0, size));
                    entry.0 += 1;
                }
            }
        }
        if spread.is_empty() {
            return None;
        }
        Some(Box::new(Images { images, spread, nodes: snapshot.nodes.len() as i64 }))
    }
}

struct Images {
    images: Vec<String>,
    /// On how many nodes an image is, and how large.
    spread: HashMap<String, (i64, i64)>,
    nodes: i64,
}

impl Prepared for Images {
    fn filter(&self, _pod: &PodInfo, _node: &NodeInfo) -> Result<(), Rejection> {
        Ok(())
    }

    fn score(&self, _pod: &PodInfo, nodes: &[Arc<NodeInfo>]) -> Option<Vec<i64>> {
        let most = MAX_SIZE_PER_CONTAINER * self.images.len() as i64;
        let score = |node: &Arc<NodeInfo>| {
            let present = self.images.iter().filter(|image| size_on(node, image).is_some());
            let weighed = present.filter_map(|image| self.spread.get(image)).map(|(on, size)| size * on / self.nodes);
            MAX_SCORE * (weighed.sum::<i64>().clamp(MIN_SIZE, most.max(MIN_SIZE)) - MIN_SIZE) / (most - MIN_SIZE).max(1)
        };
        Some(nodes.iter().map(score).collect())
    }
}

fn size_on(node: &NodeInfo, image: &str) -> Option<i64> {
    let images = node.node.as_ref()?.status.as_ref()?.images.as_ref()?;
    images.iter().find(|held| held.names.iter().flatten().any(|name| name == image))?.size_bytes
}

/// Nodes report full names; a pod may leave the tag out.
fn with_tag(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    if last.contains(':') || image.contains('@') { image.to_owned() } else { format!("{image}:latest") }
}
