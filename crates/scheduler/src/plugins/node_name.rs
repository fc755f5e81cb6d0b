//! A pod that names its node goes there or nowhere.

use crate::cluster::View;
use crate::framework::{Event, Plugin, Point, Rejection};
use crate::pod::{Class, PodInfo};

pub(crate) struct NodeName;

impl Plugin for NodeName {
    fn name(&self) -> &'static str {
        "NodeName"
    }

    fn points(&self) -> &'static [Point] {
        &[Point::Filter]
    }

    fn filter(&self, class: &Class, node: &View<'_>) -> Result<(), Rejection> {
        match &class.node_name {
            Some(wanted) if wanted != node.name() => {
                Err(Rejection::new(self.name(), "node(s) didn't match the requested node name").unresolvable())
            }
            _ => Ok(()),
        }
    }

    fn may_help(&self, _pod: &PodInfo, event: &Event) -> bool {
        matches!(event, Event::NodeAdded(_))
    }
}
