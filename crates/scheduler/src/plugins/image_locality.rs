//! Prefers nodes that already have the pod's large images, unless few nodes have them (so that pods do not heap up).

use std::collections::HashMap;

use crate::cluster::{Cluster, NodeId};
use crate::framework::{Basis, MAX_SCORE, Plugin, Point, Rejection, State};
use crate::pod::PodInfo;

const NAME: &str = "ImageLocality";
const MIB: i64 = 1024 * 1024;
const MIN_SIZE: i64 = 23 * MIB;
const MAX_SIZE_PER_CONTAINER: i64 = 1000 * MIB;

pub(crate) struct ImageLocality;

impl Plugin for ImageLocality {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::Score]
    }

    fn basis(&self) -> Basis {
        Basis::Cluster
    }

    fn prepare(&self, pod: &PodInfo, cluster: &mut Cluster) -> Result<Option<Box<dyn State>>, Rejection> {
        let present: Vec<_> = pod.class.images.iter().filter_map(|image| cluster.image(image)).collect();
        if present.is_empty() {
            return Ok(None);
        }
        let total = cluster.len() as f64;
        let mut sizes: HashMap<NodeId, i64> = HashMap::new();
        for image in present {
            let weighed = (image.size as f64 * (image.nodes.len() as f64 / total)) as i64;
            for node in &image.nodes {
                let size = sizes.entry(*node).or_default();
                *size = size.saturating_add(weighed);
            }
        }
        let most = MAX_SIZE_PER_CONTAINER * pod.class.containers as i64;
        // `min` and `max` one after the other: a pod without containers would have bounds that cross.
        let score = |size: i64| MAX_SCORE * (size.max(MIN_SIZE).min(most) - MIN_SIZE) / (most - MIN_SIZE);
        let scores = sizes.into_iter().map(|(node, size)| (node, score(size))).collect();
        Ok(Some(Box::new(Images { scores, generation: cluster.images_generation() })))
    }
}

struct Images {
    scores: HashMap<NodeId, i64>,
    /// Also changes with the number of nodes.
    generation: u64,
}

impl State for Images {
    fn refresh(&mut self, cluster: &mut Cluster) -> bool {
        self.generation == cluster.images_generation()
    }

    fn score(&self, _cluster: &Cluster, nodes: &[NodeId], scores: &mut Vec<i64>) -> bool {
        scores.clear();
        scores.extend(nodes.iter().map(|node| self.scores.get(node).copied().unwrap_or(0)));
        true
    }
}
