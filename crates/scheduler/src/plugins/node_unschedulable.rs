//! A cordoned node takes no pod that does not tolerate it.

use k8s_openapi::api::core::v1::Taint;

use crate::framework::{Plugin, Rejection};
use crate::node::NodeInfo;
use crate::plugins::taint_toleration::tolerates;
use crate::pod::PodInfo;

pub(crate) struct NodeUnschedulable;

impl Plugin for NodeUnschedulable {
    fn name(&self) -> &'static str {
        "NodeUnschedulable"
    }

    fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Rejection> {
        let spec = node.node.as_ref().and_then(|node| node.spec.as_ref());
        if spec.and_then(|spec| spec.unschedulable) != Some(true) {
            return Ok(());
        }
        let taint =
            Taint { key: "node.kubernetes.io/unschedulable".into(), effect: "NoSchedule".into(), ..Taint::default() };
        if pod.tolerations().iter().any(|toleration| tolerates(toleration, &taint)) {
            return Ok(());
        }
        Err(Rejection::new(self.name(), "node(s) were unschedulable").unresolvable())
    }
}
