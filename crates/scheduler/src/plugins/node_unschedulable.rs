//! A cordoned node takes no pod that does not tolerate it.

use api::placement::tolerates;
use k8s_openapi::api::core::v1::{Node, Taint};

use crate::cluster::View;
use crate::framework::{Event, Plugin, Point, Rejection};
use crate::pod::{Class, PodInfo};

pub(crate) struct NodeUnschedulable;

impl Plugin for NodeUnschedulable {
    fn name(&self) -> &'static str {
        "NodeUnschedulable"
    }

    fn points(&self) -> &'static [Point] {
        &[Point::Filter]
    }

    fn filter(&self, class: &Class, node: &View<'_>) -> Result<(), Rejection> {
        if !node.row.is_unschedulable() || tolerates_cordon(class) {
            return Ok(());
        }
        Err(Rejection::new(self.name(), "node(s) were unschedulable").unresolvable())
    }

    fn may_help(&self, _pod: &PodInfo, event: &Event) -> bool {
        let is_open = |node: &Node| node.spec.as_ref().and_then(|spec| spec.unschedulable) != Some(true);
        match event {
            Event::NodeAdded(node) => is_open(node),
            Event::NodeChanged { old, new, .. } => !is_open(old) && is_open(new),
            Event::SelfChanged { change, .. } => change.tolerations,
            _ => false,
        }
    }
}

fn tolerates_cordon(class: &Class) -> bool {
    let taint =
        Taint { key: "node.kubernetes.io/unschedulable".into(), effect: "NoSchedule".into(), ..Taint::default() };
    class.tolerations.iter().any(|toleration| tolerates(toleration, &taint))
}
