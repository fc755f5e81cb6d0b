//! Disruption budgets, read once when they are seen: who is covered, and how many may still go.

use std::collections::{BTreeMap, BTreeSet};

use api::selector::Selector;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use crate::pod::PodInfo;

#[derive(Debug, Default)]
pub(crate) struct Budgets {
    /// By namespace and name.
    budgets: BTreeMap<(String, String), Budget>,
    generation: u64,
}

#[derive(Debug)]
pub(crate) struct Budget {
    selector: Selector,
    /// Pods that are going already: they were counted when they were told to.
    disrupted: BTreeSet<String>,
    pub(crate) allowed: i32,
}

impl Budgets {
    pub(crate) fn set(&mut self, namespace: &str, name: &str, budget: Option<&PodDisruptionBudget>) {
        self.generation += 1;
        let key = (namespace.to_owned(), name.to_owned());
        match budget.and_then(Budget::read) {
            Some(budget) => self.budgets.insert(key, budget),
            None => self.budgets.remove(&key),
        };
    }

    /// Changes with every change of a budget.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.budgets.is_empty()
    }

    pub(crate) fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = (&(String, String), &Budget)> {
        let from = (namespace.to_owned(), String::new());
        let namespace = from.0.clone();
        self.budgets.range(from..).take_while(move |((other, _), _)| *other == namespace)
    }
}

impl Budget {
    /// None if it covers nobody.
    fn read(budget: &PodDisruptionBudget) -> Option<Budget> {
        let selector = budget.spec.as_ref()?.selector.as_ref()?;
        let selector = Selector::from_label_selector(Some(selector)).ok().filter(|selector| !selector.is_empty())?;
        let status = budget.status.as_ref();
        let disrupted = status.and_then(|status| status.disrupted_pods.as_ref());
        Some(Budget {
            selector,
            disrupted: disrupted.into_iter().flat_map(|pods| pods.keys().cloned()).collect(),
            allowed: status.and_then(|status| status.disruptions_allowed).unwrap_or(0),
        })
    }

    /// Whether it covers a pod of its namespace.
    pub(crate) fn covers(&self, pod: &PodInfo) -> bool {
        pod.group.labels.as_ref().is_some_and(|labels| !labels.is_empty())
            && !self.disrupted.contains(pod.name())
            && self.selector.matches(pod.group.labels.as_ref())
    }
}
