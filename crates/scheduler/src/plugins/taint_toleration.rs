//! Taints keep pods away that do not tolerate them; `PreferNoSchedule` only makes a node less attractive.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Taint, Toleration};

use crate::framework::{Plugin, Rejection, normalize};
use crate::node::NodeInfo;
use crate::pod::PodInfo;

pub(crate) struct TaintToleration;

impl Plugin for TaintToleration {
    fn name(&self) -> &'static str {
        "TaintToleration"
    }

    fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Rejection> {
        match untolerated(pod, node) {
            None => Ok(()),
            Some(taint) => {
                let value = taint.value.as_deref().unwrap_or_default();
                let reason = format!("node(s) had untolerated taint(s) {{{}: {value}}}", taint.key);
                Err(Rejection::new(self.name(), reason).unresolvable())
            }
        }
    }

    fn score(&self, pod: &PodInfo, nodes: &[Arc<NodeInfo>]) -> Option<Vec<i64>> {
        let soft: Vec<&Toleration> = pod
            .tolerations()
            .iter()
            .filter(|toleration| matches!(toleration.effect.as_deref(), None | Some("" | "PreferNoSchedule")))
            .collect();
        let mut scores: Vec<i64> = nodes
            .iter()
            .map(|node| {
                let taints = node.taints().iter().filter(|taint| taint.effect == "PreferNoSchedule");
                taints.filter(|taint| !soft.iter().any(|toleration| tolerates(toleration, taint))).count() as i64
            })
            .collect();
        normalize(&mut scores, true);
        Some(scores)
    }

    fn weight(&self) -> i64 {
        3
    }
}

/// The first taint that keeps the pod from the node.
pub(crate) fn untolerated<'a>(pod: &PodInfo, node: &'a NodeInfo) -> Option<&'a Taint> {
    let mut hard = node.taints().iter().filter(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"));
    hard.find(|taint| !pod.tolerations().iter().any(|toleration| tolerates(toleration, taint)))
}

/// Whether a toleration covers a taint: an empty effect covers every effect, an empty key with `Exists` every key.
pub(crate) fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let key = toleration.key.as_deref().unwrap_or_default();
    if !(effect.is_empty() || effect == taint.effect) || !(key.is_empty() || key == taint.key) {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => {
            !key.is_empty()
                && toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
        }
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
