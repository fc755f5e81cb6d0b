//! TaintNodesByCondition: a new node takes no pods until it has shown that it is ready.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Taint};

use super::{Admitted, Attributes, Plugin};
use crate::cluster::Cluster;

pub(super) struct TaintNodesByCondition;

const NOT_READY: &str = "node.kubernetes.io/not-ready";

impl Plugin for TaintNodesByCondition {
    fn admit<'a>(&'a self, _: &'a Arc<Cluster>, attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
        let creates = attributes.creates("", "nodes");
        if let Some(node) = attributes.object_mut::<Node>().filter(|_| creates) {
            let taints = node.spec.get_or_insert_default().taints.get_or_insert_default();
            let present = taints.iter().any(|taint| taint.key == NOT_READY && taint.effect == "NoSchedule");
            if !present {
                taints.push(Taint { key: NOT_READY.to_owned(), effect: "NoSchedule".to_owned(), ..Default::default() });
            }
        }
        super::admitted()
    }
}
