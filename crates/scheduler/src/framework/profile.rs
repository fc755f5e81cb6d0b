//! A profile: one scheduler name and the plug-ins that decide for its pods, point by point.

use std::sync::Arc;

use super::evaluations::{Evaluations, Filters};
use super::{Basis, Plugin, Point};

/// Plug-ins of one scheduler name, in the order in which they are asked.
pub(crate) struct Profile {
    pub(crate) name: String,
    /// Of all profiles of the process, which one: what is remembered for pods is kept apart by it.
    pub(crate) index: usize,
    /// How many nodes are looked at; None for the choice that all profiles share.
    pub(crate) percentage_of_nodes: Option<i32>,
    points: Vec<(Point, Vec<Arc<dyn Plugin>>)>,
    /// Filters that look at one node at a time, by what they look at.
    pub(crate) object_filters: Filters,
    pub(crate) usage_filters: Filters,
    pub(crate) scorers: Vec<Scorer>,
    /// Plug-ins whose states judge.
    pub(crate) stateful: Vec<Stateful>,
    pub(crate) evaluations: Evaluations,
}

/// A plug-in that may prepare a state, and what that state is asked for.
pub(crate) struct Stateful {
    pub(crate) plugin: Arc<dyn Plugin>,
    pub(crate) filters: bool,
    /// None if it does not score.
    pub(crate) weight: Option<i64>,
}

/// A plug-in and its weight, where it scores.
pub(crate) type Weighted = (Arc<dyn Plugin>, i64);

#[derive(Clone)]
pub(crate) struct Scorer {
    /// Its place among the scorers of the profile.
    pub(crate) at: usize,
    pub(crate) plugin: Arc<dyn Plugin>,
    pub(crate) weight: i64,
}

impl Profile {
    /// `enabled` lists plug-ins by point; score plug-ins have a weight.
    pub(crate) fn new(
        name: String,
        index: usize,
        percentage_of_nodes: Option<i32>,
        enabled: Vec<(Point, Vec<Weighted>)>,
    ) -> Profile {
        let at = |point: Point| {
            let found = enabled.iter().filter(move |(other, _)| *other == point);
            found.flat_map(|(_, plugins)| plugins.iter().map(|(plugin, _)| plugin.clone()))
        };
        let filters =
            |basis: Basis| Filters::new(at(Point::Filter).filter(move |plugin| plugin.basis() == basis).collect());
        let scorers = enabled.iter().filter(|(point, _)| *point == Point::Score).flat_map(|(_, plugins)| plugins);
        let weight_of = |plugin: &dyn Plugin| {
            let mut scorers = scorers.clone();
            scorers.find(|(scorer, _)| scorer.name() == plugin.name()).map(|(_, weight)| *weight)
        };
        let mut stateful: Vec<Stateful> = Vec::new();
        for plugin in at(Point::PreFilter).chain(at(Point::Filter)).chain(at(Point::PreScore)).chain(at(Point::Score)) {
            let is_known = stateful.iter().any(|known| known.plugin.name() == plugin.name());
            if plugin.basis() == Basis::Cluster && !is_known {
                let filters = at(Point::Filter).any(|filter| filter.name() == plugin.name());
                stateful.push(Stateful { filters, weight: weight_of(&*plugin), plugin });
            }
        }
        Profile {
            name,
            index,
            percentage_of_nodes,
            object_filters: filters(Basis::Object),
            usage_filters: filters(Basis::Usage),
            evaluations: Evaluations::new(stateful.len(), scorers.clone().count()),
            scorers: scorers
                .clone()
                .enumerate()
                .map(|(at, (plugin, weight))| Scorer { at, plugin: plugin.clone(), weight: *weight })
                .collect(),
            stateful,
            points: enabled
                .iter()
                .map(|(point, plugins)| (*point, plugins.iter().map(|(plugin, _)| plugin.clone()).collect()))
                .collect(),
        }
    }

    pub(crate) fn at(&self, point: Point) -> impl Iterator<Item = &Arc<dyn Plugin>> {
        self.points.iter().filter(move |(other, _)| *other == point).flat_map(|(_, plugins)| plugins)
    }

    pub(crate) fn has(&self, point: Point, plugin: &str) -> bool {
        self.at(point).any(|other| other.name() == plugin)
    }

    /// Any plug-in by name, wherever it is enabled.
    pub(crate) fn plugin(&self, name: &str) -> Option<&Arc<dyn Plugin>> {
        self.points.iter().flat_map(|(_, plugins)| plugins).find(|plugin| plugin.name() == name)
    }
}
