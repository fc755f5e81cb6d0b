//! Prefers nodes on which cpu and memory would be used in like shares.

use std::sync::Arc;

use crate::framework::{MAX_SCORE, Plugin};
use crate::node::NodeInfo;
use crate::pod::PodInfo;

pub(crate) struct BalancedAllocation;

impl Plugin for BalancedAllocation {
    fn name(&self) -> &'static str {
        "NodeResourcesBalancedAllocation"
    }

    fn score(&self, pod: &PodInfo, nodes: &[Arc<NodeInfo>]) -> Option<Vec<i64>> {
        // A pod that asks for nothing cannot unbalance a node.
        if pod.requests.milli_cpu == 0 && pod.requests.memory == 0 {
            return None;
        }
        Some(nodes.iter().map(|node| balance(pod, node)).collect())
    }
}

fn balance(pod: &PodInfo, node: &NodeInfo) -> i64 {
    let share = |asked: i64, offered: i64| if offered == 0 { 1.0 } else { (asked as f64 / offered as f64).min(1.0) };
    let cpu = share(node.requested.milli_cpu + pod.requests.milli_cpu, node.allocatable.milli_cpu);
    let memory = share(node.requested.memory + pod.requests.memory, node.allocatable.memory);
    // With two resources the standard deviation is half their distance.
    ((1.0 - (cpu - memory).abs() / 2.0) * MAX_SCORE as f64) as i64
}
