//! Taints keep pods away that do not tolerate them; `PreferNoSchedule` only makes a node less attractive.

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
    let mut hard = taints.iter().filter(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"));
    hard.any(|taint| !class.tolerations.iter().any(|toleration| tolerates(toleration, taint)))
}

/// Whether a toleration covers a taint: an empty effect covers every effect, an empty key every key.
pub(crate) fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let key = toleration.key.as_deref().unwrap_or_default();
    if !(effect.is_empty() || effect == taint.effect) || !(key.is_empty() || key == taint.key) {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default(),
        "Exists" => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tolerations_match_by_key_operator_value_and_effect() {
        let taint: Taint = serde_json::from_value(json!({"key": "k", "value": "v", "effect": "NoSchedule"})).unwrap();
        for (toleration, expected) in [
            (json!({"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}), true),
            (json!({"key": "k", "value": "v"}), true),
            (json!({"key": "k", "value": "w"}), false),
            (json!({"key": "k", "operator": "Exists"}), true),
            (json!({"operator": "Exists"}), true),
            (json!({"key": "k", "operator": "Exists", "effect": "NoExecute"}), false),
            (json!({"key": "x", "operator": "Exists"}), false),
            (json!({}), false),
        ] {
            let parsed: Toleration = serde_json::from_value(toleration.clone()).unwrap();
            assert_eq!(tolerates(&parsed, &taint), expected, "{toleration}");
        }
    }
}
