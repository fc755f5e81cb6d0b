//! Two pods cannot have the same port of a node.

use crate::framework::{Plugin, Rejection};
use crate::node::NodeInfo;
use crate::pod::PodInfo;

pub(crate) struct NodePorts;

impl Plugin for NodePorts {
    fn name(&self) -> &'static str {
        "NodePorts"
    }

    fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Rejection> {
        if pod.host_ports.iter().any(|port| node.uses_port(port)) {
            return Err(Rejection::new(self.name(), "node(s) didn't have free ports for the requested pod ports"));
        }
        Ok(())
    }
}
