//! Taints keep pods away that do not tolerate them; `PreferNoSchedule` only makes a node less attractive.

use api::placement::{tolerates, untolerated};
use k8s_openapi::api::core::v1::{Node, Taint, Toleration};

use crate::cluster::View;
use crate::framework::{Event, Plugin, Point, Rejection, Scale};
use crate::pod::{Class, PodInfo};

pub(crate) struct TaintToleration;

impl Plugin for TaintToleration {
    fn name(&self) -> &'static str {
        "TaintToleration"
    }

    fn points(&self) -> &'static [Point] {
        &[Point::Filter, Point::PreScore, Point::Score]
    }

    fn filter(&self, class: &Class, node: &View<'_>) -> Result<(), Rejection> {
        if has_untolerated(class, node.row.taints()) {
            return Err(Rejection::new(self.name(), "node(s) had untolerated taint(s)").unresolvable());
        }
        Ok(())
    }

    fn scale(&self, _class: &Class) -> Option<Scale> {
        Some(Scale::ToLargestReversed)
    }

    /// How many soft taints the pod does not tolerate.
    fn score(&self, class: &Class, node: &View<'_>) -> i64 {
        let covers_soft =
            |toleration: &&Toleration| matches!(toleration.effect.as_deref(), None | Some("" | "PreferNoSchedule"));
        let soft = node.row.taints().iter().filter(|taint| taint.effect == "PreferNoSchedule");
        let tolerated = |taint: &Taint| class.tolerations.iter().filter(covers_soft).any(|t| tolerates(t, taint));
        soft.filter(|taint| !tolerated(taint)).count() as i64
    }

    fn may_help(&self, pod: &PodInfo, event: &Event) -> bool {
        let repels = |node: &Node| has_untolerated(&pod.class, taints(node));
        match event {
            Event::NodeAdded(node) => !repels(node),
            Event::NodeChanged { old, new, change } => change.taints && repels(old) && !repels(new),
            Event::SelfChanged { change, .. } => change.tolerations,
            _ => false,
        }
    }
}

fn taints(node: &Node) -> &[Taint] {
    node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default()
}

/// Whether one of the taints keeps the pod away.
pub(crate) fn has_untolerated(class: &Class, taints: &[Taint]) -> bool {
    untolerated(taints, &class.tolerations, &["NoSchedule", "NoExecute"]).is_some()
}
