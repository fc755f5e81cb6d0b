//! A pod fits where its requests do; among those, the emptiest node is best (`LeastAllocated`).

use std::sync::Arc;

use crate::framework::{MAX_SCORE, Plugin, Rejection};
use crate::node::NodeInfo;
use crate::pod::PodInfo;

pub(crate) struct NodeResourcesFit;

impl Plugin for NodeResourcesFit {
    fn name(&self) -> &'static str {
        "NodeResourcesFit"
    }

    fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Rejection> {
        let reasons = shortages(pod, node);
        if reasons.is_empty() {
            return Ok(());
        }
        let asked = &pod.requests;
        let unresolvable = asked.milli_cpu > node.allocatable.milli_cpu
            || asked.memory > node.allocatable.memory
            || asked.ephemeral_storage > node.allocatable.ephemeral_storage
            || asked.scalars.iter().any(|(name, amount)| *amount > scalar(&node.allocatable.scalars, name));
        Err(Rejection { plugin: self.name(), reasons, unresolvable })
    }

    fn score(&self, pod: &PodInfo, nodes: &[Arc<NodeInfo>]) -> Option<Vec<i64>> {
        Some(nodes.iter().map(|node| least_allocated(pod, node)).collect())
    }
}

fn shortages(pod: &PodInfo, node: &NodeInfo) -> Vec<String> {
    let mut reasons = Vec::new();
    if node.pods.len() as i64 + 1 > node.allowed_pods {
        reasons.push("Too many pods".to_owned());
    }
    let (asked, held, offered) = (&pod.requests, &node.requested, &node.allocatable);
    for (name, asked, held, offered) in [
        ("cpu", asked.milli_cpu, held.milli_cpu, offered.milli_cpu),
        ("memory", asked.memory, held.memory, offered.memory),
        ("ephemeral-storage", asked.ephemeral_storage, held.ephemeral_storage, offered.ephemeral_storage),
    ] {
        if asked > 0 && asked > offered - held {
            reasons.push(format!("Insufficient {name}"));
        }
    }
    for (name, amount) in &asked.scalars {
        if *amount > 0 && *amount > scalar(&offered.scalars, name) - scalar(&held.scalars, name) {
            reasons.push(format!("Insufficient {name}"));
        }
    }
    reasons
}

fn scalar(scalars: &std::collections::BTreeMap<String, i64>, name: &str) -> i64 {
    scalars.get(name).copied().unwrap_or(0)
}

fn least_allocated(pod: &PodInfo, node: &NodeInfo) -> i64 {
    let free_share = |asked: i64, offered: i64| {
        if offered == 0 || asked > offered { 0 } else { (offered - asked) * MAX_SCORE / offered }
    };
    let cpu = free_share(node.weight_cpu + pod.weight_cpu, node.allocatable.milli_cpu);
    let memory = free_share(node.weight_memory + pod.weight_memory, node.allocatable.memory);
    (cpu + memory) / 2
}
