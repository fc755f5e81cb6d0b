//! How much of a node is taken: what the two resource plug-ins have in common.

use crate::cluster::View;
use crate::framework::MAX_SCORE;
use crate::pod::{Catalogue, Class, ResourceId};

/// A resource that scores look at, and how much it counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Weighed {
    pub(crate) resource: Resource,
    pub(crate) weight: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resource {
    Cpu,
    Memory,
    EphemeralStorage,
    Scalar(ResourceId),
}

impl Weighed {
    pub(crate) fn new(name: &str, weight: i64, catalogue: &Catalogue) -> Weighed {
        let resource = match name {
            "cpu" => Resource::Cpu,
            "memory" => Resource::Memory,
            "ephemeral-storage" => Resource::EphemeralStorage,
            name => Resource::Scalar(catalogue.resource(name, 0).id),
        };
        Weighed { resource, weight }
    }
}

/// One resource of a node: what it offers, what is taken, and what would be taken with the pod.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    pub(crate) offered: i64,
    pub(crate) taken: i64,
    pub(crate) with_pod: i64,
}

/// None where the resource does not count: the node offers none, or the pod does not ask for a rare one.
/// `is_exact` leaves out what containers without requests weigh.
pub(crate) fn share(resource: Resource, class: &Class, node: &View<'_>, is_exact: bool) -> Option<Share> {
    let (requests, capacity, usage) = (&class.requests, node.capacity, node.usage);
    let (asked, offered, taken) = match resource {
        Resource::Cpu if is_exact => (requests.asked.milli_cpu, capacity.milli_cpu, usage.milli_cpu),
        Resource::Cpu => (requests.scored_cpu, capacity.milli_cpu, usage.weight_cpu),
        Resource::Memory if is_exact => (requests.asked.memory, capacity.memory, usage.memory),
        Resource::Memory => (requests.scored_memory, capacity.memory, usage.weight_memory),
        Resource::EphemeralStorage => {
            (requests.asked.ephemeral_storage, capacity.ephemeral_storage, usage.ephemeral_storage)
        }
        Resource::Scalar(id) => {
            let asked = requests.asked.scalar(id);
            if asked == 0 {
                return None;
            }
            (asked, capacity.scalar(id), usage.scalar(id))
        }
    };
    (offered != 0).then_some(Share { offered, taken, with_pod: taken.saturating_add(asked) })
}

/// What a class asks of one of the resources.
pub(crate) fn asked(resource: Resource, class: &Class) -> i64 {
    let asked = &class.requests.asked;
    match resource {
        Resource::Cpu => asked.milli_cpu,
        Resource::Memory => asked.memory,
        Resource::EphemeralStorage => asked.ephemeral_storage,
        Resource::Scalar(id) => asked.scalar(id),
    }
}

/// A function of straight pieces, through points of rising utilization.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shape {
    points: Vec<(i64, i64)>,
}

impl Shape {
    /// Configuration gives scores from 0 to 10.
    pub(crate) fn new(points: impl IntoIterator<Item = (i64, i64)>) -> Shape {
        Shape { points: points.into_iter().map(|(utilization, score)| (utilization, score * MAX_SCORE / 10)).collect() }
    }

    pub(crate) fn at(&self, utilization: i64) -> i64 {
        let Some(next) = self.points.iter().position(|(bound, _)| utilization <= *bound) else {
            return self.points.last().map_or(0, |(_, score)| *score);
        };
        let (bound, score) = self.points[next];
        let Some((start, first)) = next.checked_sub(1).map(|before| self.points[before]) else { return score };
        first + (score - first) * (utilization - start) / (bound - start)
    }
}
