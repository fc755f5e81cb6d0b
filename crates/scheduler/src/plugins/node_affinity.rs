//! `nodeSelector` and required node affinity exclude nodes; preferred terms rank them.

use std::collections::BTreeSet;

use api::meta::Meta as _;
use api::placement::{NodeSelector, Preferences};
use k8s_openapi::api::core::v1::Node;

use crate::cluster::View;
use crate::framework::{Event, Plugin, Point, Rejection, Scale};
use crate::pod::{Class, PodInfo};

/// With what configuration adds to every pod's own affinity.
#[derive(Default)]
pub(crate) struct NodeAffinity {
    pub(crate) added_required: Option<NodeSelector>,
    pub(crate) added_preferred: Option<Preferences>,
}

impl Plugin for NodeAffinity {
    fn name(&self) -> &'static str {
        "NodeAffinity"
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreFilter, Point::Filter, Point::PreScore, Point::Score]
    }

    fn candidates<'a>(&self, class: &'a Class) -> Result<Option<&'a BTreeSet<String>>, Rejection> {
        match &class.named_nodes {
            Some(names) if names.is_empty() => {
                Err(Rejection::new(self.name(), "pod affinity terms conflict").unresolvable())
            }
            names => Ok(names.as_ref()),
        }
    }

    fn filter(&self, class: &Class, node: &View<'_>) -> Result<(), Rejection> {
        let (name, labels) = (node.name(), node.row.labels());
        if self.added_required.as_ref().is_some_and(|added| !added.matches(name, labels)) {
            return Err(
                Rejection::new(self.name(), "node(s) didn't match scheduler-enforced node affinity").unresolvable()
            );
        }
        if !class.admits(name, labels) {
            return Err(Rejection::new(self.name(), "node(s) didn't match Pod's node affinity/selector").unresolvable());
        }
        Ok(())
    }

    fn scale(&self, class: &Class) -> Option<Scale> {
        (class.preferred.is_some() || self.added_preferred.is_some()).then_some(Scale::ToLargest)
    }

    fn score(&self, class: &Class, node: &View<'_>) -> i64 {
        let terms = [&self.added_preferred, &class.preferred];
        terms.into_iter().flatten().map(|terms| terms.score(node.name(), node.row.labels())).sum()
    }

    fn may_help(&self, pod: &PodInfo, event: &Event) -> bool {
        let matches = |node: &Node| {
            let (name, labels) = (node.metadata.name(), node.metadata.labels.as_ref());
            self.added_required.as_ref().is_none_or(|added| added.matches(name, labels))
                && pod.class.admits(name, labels)
        };
        match event {
            Event::NodeAdded(node) => matches(node),
            Event::NodeChanged { old, new, change } => change.labels && matches(new) && !matches(old),
            _ => false,
        }
    }
}
