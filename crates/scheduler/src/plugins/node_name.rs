//! A pod that names its node goes nowhere else.

use crate::framework::{Plugin, Rejection};
use crate::node::NodeInfo;
use crate::pod::PodInfo;

pub(crate) struct NodeName;

impl Plugin for NodeName {
    fn name(&self) -> &'static str {
        "NodeName"
    }

    fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Rejection> {
        match pod.node_name() {
            Some(wanted) if wanted != node.name => {
                Err(Rejection::new(self.name(), "node(s) didn't match the requested node name").unresolvable())
            }
            _ => Ok(()),
        }
    }
}
