//! Selectors of services and workloads: pods that one of them selects are spread by default.

use std::collections::{BTreeMap, HashMap};

use api::selector::Selector;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::pod::{Group, OwnerKind};

type Labels = BTreeMap<String, String>;

#[derive(Debug, Default)]
pub(crate) struct Owners {
    /// Selectors of services by namespace and name.
    services: HashMap<String, BTreeMap<String, Labels>>,
    workloads: HashMap<(OwnerKind, String, String), Selector>,
    generation: u64,
}

impl Owners {
    /// Changes whenever any selector does.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Without a selector a service selects nothing, and is the same as gone.
    pub(crate) fn set_service(&mut self, namespace: &str, name: &str, selector: Option<&Labels>) {
        let services = self.services.entry(namespace.to_owned()).or_default();
        let before = match selector {
            Some(selector) => services.insert(name.to_owned(), selector.clone()),
            None => services.remove(name),
        };
        self.generation += u64::from(before.as_ref() != selector);
    }

    pub(crate) fn set_workload(&mut self, kind: OwnerKind, namespace: &str, name: &str, selector: Option<Selector>) {
        let key = (kind, namespace.to_owned(), name.to_owned());
        let changed = self.workloads.get(&key) != selector.as_ref();
        match selector {
            Some(selector) => self.workloads.insert(key, selector),
            None => self.workloads.remove(&key),
        };
        self.generation += u64::from(changed);
    }

    /// What services and the controller of a pod select together; everything if there are none (`DefaultSelector`, v1.36).
    pub(crate) fn selector_for(&self, group: &Group) -> Selector {
        let mut merged = Labels::new();
        for selector in self.services.get(&*group.namespace).into_iter().flat_map(BTreeMap::values) {
            if Selector::from_map(selector).matches(group.labels.as_ref()) {
                merged.extend(selector.clone());
            }
        }
        let selector = Selector::from_map(&merged);
        let workload = group
            .owner
            .as_ref()
            .and_then(|(kind, name)| self.workloads.get(&(*kind, group.namespace.to_string(), name.clone())));
        let requirements = workload.into_iter().flat_map(Selector::requirements).cloned();
        requirements.fold(selector, Selector::with)
    }
}

/// The selector of a workload, if it selects anything.
pub(crate) fn workload_selector(selector: Option<&LabelSelector>) -> Option<Selector> {
    Selector::from_label_selector(selector).ok().filter(|selector| !selector.matches_nothing())
}
