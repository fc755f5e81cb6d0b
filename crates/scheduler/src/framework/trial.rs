//! A node as it would be with some pods more or fewer, for judging only.

use std::sync::Arc;

use super::FailedAttempt;
use crate::cluster::{Cluster, NodeId, Usage, View};
use crate::pod::PodInfo;

#[derive(Clone)]
pub(crate) struct Trial {
    pub(crate) node: NodeId,
    usage: Usage,
    pods: Vec<Arc<PodInfo>>,
}

impl Trial {
    pub(crate) fn of(cluster: &Cluster, node: NodeId) -> Trial {
        let view = cluster.view(node);
        Trial { node, usage: view.usage.clone(), pods: view.pods.to_vec() }
    }

    pub(crate) fn view<'a>(&'a self, cluster: &'a Cluster) -> View<'a> {
        View { usage: &self.usage, pods: &self.pods, ..cluster.view(self.node) }
    }

    pub(crate) fn add(&mut self, attempt: &mut dyn FailedAttempt, pod: Arc<PodInfo>) {
        attempt.suppose(self.node, &pod, 1);
        self.usage.add(&pod);
        self.pods.push(pod);
    }

    pub(crate) fn remove(&mut self, attempt: &mut dyn FailedAttempt, pod: &PodInfo) {
        attempt.suppose(self.node, pod, -1);
        self.usage.remove(pod);
        self.pods.retain(|held| held.uid != pod.uid);
    }
}
