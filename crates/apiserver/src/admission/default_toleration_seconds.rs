//! DefaultTolerationSeconds: pods stay on an unreachable or not-ready node for five minutes unless they say otherwise.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Toleration};

use super::{Admitted, Attributes, Plugin, Verb};
use crate::cluster::Cluster;

pub(super) struct DefaultTolerationSeconds;

const SECONDS: i64 = 300;
const KEYS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

impl Plugin for DefaultTolerationSeconds {
    fn admit<'a>(&'a self, _: &'a Arc<Cluster>, attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
        let applies = attributes.verb != Verb::Delete && attributes.subresource.is_empty() && attributes.is("", "pods");
        if let Some(spec) = attributes.object_mut::<Pod>().filter(|_| applies).and_then(|pod| pod.spec.as_mut()) {
            add(spec.tolerations.get_or_insert_default());
        }
        super::admitted()
    }
}

fn add(tolerations: &mut Vec<Toleration>) {
    for key in KEYS {
        let tolerated = tolerations.iter().any(|toleration| {
            toleration.key.as_deref().is_none_or(|found| found.is_empty() || found == key)
                && toleration.effect.as_deref().is_none_or(|effect| effect.is_empty() || effect == "NoExecute")
        });
        if !tolerated {
            tolerations.push(Toleration {
                key: Some(key.to_owned()),
                operator: Some("Exists".to_owned()),
                effect: Some("NoExecute".to_owned()),
                toleration_seconds: Some(SECONDS),
                ..Default::default()
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_tolerations_are_added_once() {
        let mut tolerations = vec![Toleration {
            key: Some(KEYS[0].to_owned()),
            operator: Some("Exists".to_owned()),
            ..Default::default()
        }];
        add(&mut tolerations);
        add(&mut tolerations);
        let keys: Vec<_> = tolerations.iter().map(|toleration| toleration.key.clone().unwrap()).collect();
        assert_eq!(keys, KEYS);
    }
}
