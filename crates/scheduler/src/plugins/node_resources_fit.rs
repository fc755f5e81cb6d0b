//! A pod fits where its requests do; among those nodes, a strategy says which is best.

use std::sync::Arc;

use api::pod::resources::is_extended;
use k8s_openapi::api::core::v1::Node;

use super::node_resources::{Shape, Weighed, share};
use crate::cluster::{Capacity, Usage, View};
use crate::framework::{Basis, Event, MAX_SCORE, Plugin, Point, Rejection, Scale};
use crate::pod::{Catalogue, Class, PodInfo};

pub(crate) struct NodeResourcesFit {
    pub(crate) strategy: Strategy,
    pub(crate) resources: Vec<Weighed>,
    /// Extended resources that somebody else takes care of, by name and by the part before the slash.
    pub(crate) ignored: Vec<String>,
    pub(crate) ignored_groups: Vec<String>,
    pub(crate) catalogue: Arc<Catalogue>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Strategy {
    LeastAllocated,
    MostAllocated,
    RequestedToCapacityRatio(Shape),
}

impl NodeResourcesFit {
    fn is_ignored(&self, name: &str) -> bool {
        let group = name.split('/').next().unwrap_or_default();
        let is_named =
            self.ignored.iter().any(|other| other == name) || self.ignored_groups.iter().any(|other| other == group);
        is_named && is_extended(name)
    }

    /// Calls `short` for each resource of which there is too little, with whether an empty node would have too little.
    fn shortages(
        &self,
        class: &Class,
        capacity: &Capacity,
        usage: &Usage,
        mut short: impl FnMut(&'static str, &str, bool),
    ) {
        if usage.pods + 1 > capacity.pods {
            short("Too many pods", "", false);
        }
        let asked = &class.requests.asked;
        for (text, asked, held, offered) in [
            ("Insufficient cpu", asked.milli_cpu, usage.milli_cpu, capacity.milli_cpu),
            ("Insufficient memory", asked.memory, usage.memory, capacity.memory),
            (
                "Insufficient ephemeral-storage",
                asked.ephemeral_storage,
                usage.ephemeral_storage,
                capacity.ephemeral_storage,
            ),
        ] {
            if asked > 0 && asked > offered.saturating_sub(held) {
                short(text, "", asked > offered);
            }
        }
        for scalar in asked.scalars.iter().filter(|scalar| scalar.amount > 0 && !self.is_ignored(&scalar.name)) {
            let offered = capacity.scalar(scalar.id);
            if scalar.amount > offered.saturating_sub(usage.scalar(scalar.id)) {
                short("Insufficient ", &scalar.name, scalar.amount > offered);
            }
        }
    }

    fn fits_empty(&self, class: &Class, node: &Node) -> bool {
        let mut fits = true;
        self.shortages(class, &Capacity::of(node, &self.catalogue), &Usage::default(), |_, _, _| fits = false);
        fits
    }

    fn offers_more(&self, class: &Class, old: &Node, new: &Node) -> bool {
        let (old, new) = (Capacity::of(old, &self.catalogue), Capacity::of(new, &self.catalogue));
        let asked = &class.requests.asked;
        new.pods > old.pods
            || asked.milli_cpu > 0 && new.milli_cpu > old.milli_cpu
            || asked.memory > 0 && new.memory > old.memory
            || asked.ephemeral_storage > 0 && new.ephemeral_storage > old.ephemeral_storage
            || asked.scalars.iter().any(|scalar| scalar.amount > 0 && new.scalar(scalar.id) > old.scalar(scalar.id))
    }
}

impl Plugin for NodeResourcesFit {
    fn name(&self) -> &'static str {
        "NodeResourcesFit"
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreFilter, Point::Filter, Point::PreScore, Point::Score]
    }

    fn basis(&self) -> Basis {
        Basis::Usage
    }

    fn filter(&self, class: &Class, node: &View<'_>) -> Result<(), Rejection> {
        let mut rejection: Option<Rejection> = None;
        self.shortages(class, node.capacity, node.usage, |text, name, is_unresolvable| {
            let reason = if name.is_empty() { text.into() } else { format!("{text}{name}").into() };
            let rejection = rejection.get_or_insert_with(|| Rejection {
                plugin: self.name(),
                reasons: Vec::new(),
                is_unresolvable: false,
            });
            rejection.reasons.push(reason);
            rejection.is_unresolvable |= is_unresolvable;
        });
        rejection.map_or(Ok(()), Err)
    }

    fn scale(&self, _class: &Class) -> Option<Scale> {
        Some(Scale::Absolute)
    }

    fn score(&self, class: &Class, node: &View<'_>) -> i64 {
        let (mut sum, mut weights) = (0, 0);
        for Weighed { resource, weight } in &self.resources {
            let Some(share) = share(*resource, class, node, false) else { continue };
            let (taken, offered) = (share.with_pod, share.offered);
            let score = match &self.strategy {
                Strategy::LeastAllocated if taken > offered => 0,
                Strategy::LeastAllocated => offered.saturating_sub(taken).saturating_mul(MAX_SCORE) / offered,
                Strategy::MostAllocated => taken.min(offered).saturating_mul(MAX_SCORE) / offered,
                Strategy::RequestedToCapacityRatio(shape) => {
                    let score = shape.at(if taken > offered { 100 } else { taken.saturating_mul(100) / offered });
                    if score <= 0 {
                        continue; // Such a resource does not take part in the mean either.
                    }
                    score
                }
            };
            sum += score * weight;
            weights += weight;
        }
        match (&self.strategy, weights) {
            (_, 0) => 0,
            (Strategy::RequestedToCapacityRatio(_), weights) => (sum as f64 / weights as f64).round() as i64,
            (_, weights) => sum / weights,
        }
    }

    fn may_help(&self, pod: &PodInfo, event: &Event) -> bool {
        match event {
            Event::PodDeleted(_) => true,
            Event::PodChanged { old, new, change } => {
                let (before, after) = (&old.held().asked, &new.held().asked);
                let asked = &pod.class.requests.asked;
                change.scaled_down
                    && (asked.milli_cpu > 0 && before.milli_cpu > after.milli_cpu
                        || asked.memory > 0 && before.memory > after.memory
                        || asked.ephemeral_storage > 0 && before.ephemeral_storage > after.ephemeral_storage
                        || asked.scalars.iter().any(|s| s.amount > 0 && before.scalar(s.id) > after.scalar(s.id)))
            }
            Event::SelfChanged { change, .. } => change.scaled_down,
            Event::NodeAdded(node) => self.fits_empty(&pod.class, node),
            Event::NodeChanged { old, new, change } => {
                change.allocatable && self.fits_empty(&pod.class, new) && self.offers_more(&pod.class, old, new)
            }
            _ => false,
        }
    }
}
