//! DefaultTolerationSeconds: pods stay on an unreachable or not-ready node for five minutes unless they say otherwise.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Toleration};

use super::{Admitted, Attributes, Plugin, Verb};
use crate::cluster::Cluster;

pub(super) struct DefaultTolerationSeconds;

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

impl Plugin for DefaultTolerationSeconds {
    fn admit<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
        let applies = attributes.verb != Verb::Delete && attributes.subresource.is_empty() && attributes.is("", "pods");
        if let Some(spec) = attributes.object_mut::<Pod>().filter(|_| applies).and_then(|pod| pod.spec.as_mut()) {
            let config = &cluster.config;
            let tolerations = spec.tolerations.get_or_insert_default();
            add(tolerations, NOT_READY, config.default_not_ready_toleration_seconds);
            add(tolerations, UNREACHABLE, config.default_unreachable_toleration_seconds);
        }
        super::admitted()
    }
}

fn add(tolerations: &mut Vec<Toleration>, key: &str, seconds: i64) {
    let tolerated = tolerations.iter().any(|toleration| {
        toleration.key.as_deref().is_none_or(|found| found.is_empty() || found == key)
            && toleration.effect.as_deref().is_none_or(|effect| effect.is_empty() || effect == "NoExecute")
    });
    if !tolerated {
        tolerations.push(Toleration {
            key: Some(key.to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some("NoExecute".to_owned()),
            toleration_seconds: Some(seconds),
            ..Default::default()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_tolerations_are_added_once() {
        let mut tolerations = vec![Toleration {
            key: Some(NOT_READY.to_owned()),
            operator: Some("Exists".to_owned()),
            ..Default::default()
        }];
        for _ in 0..2 {
            add(&mut tolerations, NOT_READY, 1);
            add(&mut tolerations, UNREACHABLE, 2);
        }
        let found: Vec<_> =
            tolerations.iter().map(|toleration| (toleration.key.as_deref(), toleration.toleration_seconds)).collect();
        assert_eq!(found, [(Some(NOT_READY), None), (Some(UNREACHABLE), Some(2))]);
    }
}
