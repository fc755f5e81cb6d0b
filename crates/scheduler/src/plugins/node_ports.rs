//! Two pods cannot have the same port of a node.

use crate::cluster::View;
use crate::framework::{Basis, Event, Plugin, Point, Rejection};
use crate::pod::{Class, PodInfo};

pub(crate) struct NodePorts;

impl Plugin for NodePorts {
    fn name(&self) -> &'static str {
        "NodePorts"
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreFilter, Point::Filter]
    }

    fn basis(&self) -> Basis {
        Basis::Usage
    }

    fn filter(&self, class: &Class, node: &View<'_>) -> Result<(), Rejection> {
        if class.host_ports.iter().any(|port| node.uses_port(port)) {
            return Err(Rejection::new(self.name(), "node(s) didn't have free ports for the requested pod ports"));
        }
        Ok(())
    }

    fn may_help(&self, pod: &PodInfo, event: &Event) -> bool {
        match event {
            Event::NodeAdded(_) => true,
            Event::PodDeleted(gone) => {
                let mut freed = gone.class.host_ports.iter();
                freed.any(|held| pod.class.host_ports.iter().any(|wanted| wanted.conflicts_with(held)))
            }
            _ => false,
        }
    }
}
