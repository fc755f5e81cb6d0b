//! Who a pod is among other pods: its labels, and which pods it wants near or far.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::cached::Pod;
use api::meta::Meta as _;
use api::selector::{Operator, Requirement, Selector};
use k8s_openapi::api::core::v1::{Affinity, PodAffinityTerm, TopologySpreadConstraint, WeightedPodAffinityTerm};
use serde::Serialize;

use super::catalogue::GroupId;

type Labels = BTreeMap<String, String>;

#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) id: GroupId,
    pub(crate) namespace: Arc<str>,
    pub(crate) labels: Option<Labels>,
    /// Required affinity and anti-affinity to other pods.
    pub(crate) near: Vec<Term>,
    pub(crate) far: Vec<Term>,
    /// Preferred affinity; anti-affinity has a negative weight.
    pub(crate) preferred: Vec<(i64, Term)>,
    /// None if the pod has no constraints of its own, so that defaults apply.
    pub(crate) spread: Option<Vec<Spread>>,
    /// Kind and name of the controller, as far as default spreading knows the kind.
    pub(crate) owner: Option<(OwnerKind, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum OwnerKind {
    ReplicationController,
    ReplicaSet,
    StatefulSet,
}

/// Pods within a topology, selected by namespace and labels.
#[derive(Debug, Clone)]
pub(crate) struct Term {
    pub(crate) topology_key: String,
    selector: Selector,
    pub(crate) namespaces: Vec<String>,
    pub(crate) namespace_selector: Option<Selector>,
}

/// One topology spread constraint.
#[derive(Debug, Clone)]
pub(crate) struct Spread {
    pub(crate) topology_key: String,
    pub(crate) max_skew: i64,
    pub(crate) min_domains: i64,
    pub(crate) is_hard: bool,
    pub(crate) honours_affinity: bool,
    pub(crate) honours_taints: bool,
    pub(crate) selector: Selector,
}

/// Everything that [`Group::new`] reads.
pub(crate) fn signature(pod: &Pod) -> String {
    #[derive(Serialize)]
    struct Signature<'a> {
        namespace: Option<&'a String>,
        labels: Option<&'a Labels>,
        near: Option<&'a k8s_openapi::api::core::v1::PodAffinity>,
        far: Option<&'a k8s_openapi::api::core::v1::PodAntiAffinity>,
        spread: Option<&'a Vec<TopologySpreadConstraint>>,
        owner: Option<(&'a str, &'a str)>,
    }
    let affinity = affinity(pod);
    let signature = Signature {
        namespace: pod.metadata.namespace.as_ref(),
        labels: pod.metadata.labels.as_ref(),
        near: affinity.and_then(|affinity| affinity.pod_affinity.as_ref()),
        far: affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref()),
        spread: pod.spec.as_ref().and_then(|spec| spec.topology_spread_constraints.as_ref()),
        owner: controller(pod),
    };
    serde_json::to_string(&signature).unwrap_or_default()
}

fn affinity(pod: &Pod) -> Option<&Affinity> {
    pod.spec.as_ref()?.affinity.as_ref()
}

fn controller(pod: &Pod) -> Option<(&str, &str)> {
    let owner = pod.metadata.controller()?;
    matches!(
        (owner.api_version.as_str(), owner.kind.as_str()),
        ("v1", "ReplicationController") | ("apps/v1", "ReplicaSet" | "StatefulSet")
    )
    .then_some((owner.kind.as_str(), owner.name.as_str()))
}

impl Group {
    pub(crate) fn new(id: GroupId, pod: &Pod) -> Group {
        let near = affinity(pod).and_then(|affinity| affinity.pod_affinity.as_ref());
        let far = affinity(pod).and_then(|affinity| affinity.pod_anti_affinity.as_ref());
        let terms = |terms: Option<&Vec<PodAffinityTerm>>| {
            terms.into_iter().flatten().map(|term| Term::new(term, pod)).collect()
        };
        let weighted = |terms: Option<&Vec<WeightedPodAffinityTerm>>, sign: i64| -> Vec<(i64, Term)> {
            let terms = terms.into_iter().flatten();
            terms.map(|term| (sign * i64::from(term.weight), Term::new(&term.pod_affinity_term, pod))).collect()
        };
        let mut preferred =
            weighted(near.and_then(|near| near.preferred_during_scheduling_ignored_during_execution.as_ref()), 1);
        preferred.extend(weighted(
            far.and_then(|far| far.preferred_during_scheduling_ignored_during_execution.as_ref()),
            -1,
        ));
        let labels = pod.metadata.labels.as_ref();
        let constraints = pod.spec.as_ref().and_then(|spec| spec.topology_spread_constraints.as_ref());
        Group {
            id,
            namespace: pod.metadata.namespace().into(),
            near: terms(near.and_then(|near| near.required_during_scheduling_ignored_during_execution.as_ref())),
            far: terms(far.and_then(|far| far.required_during_scheduling_ignored_during_execution.as_ref())),
            preferred,
            spread: constraints
                .filter(|constraints| !constraints.is_empty())
                .map(|constraints| constraints.iter().map(|constraint| Spread::new(constraint, labels)).collect()),
            owner: controller(pod).map(|(kind, name)| {
                let kind = match kind {
                    "ReplicaSet" => OwnerKind::ReplicaSet,
                    "StatefulSet" => OwnerKind::StatefulSet,
                    _ => OwnerKind::ReplicationController,
                };
                (kind, name.to_owned())
            }),
            labels: pod.metadata.labels.clone(),
        }
    }

    /// Whether the pod's own terms concern other pods.
    pub(crate) fn has_affinity(&self) -> bool {
        !(self.near.is_empty() && self.far.is_empty() && self.preferred.is_empty())
    }
}

impl Term {
    fn new(term: &PodAffinityTerm, owner: &Pod) -> Term {
        let parse = |selector| Selector::from_label_selector(selector).unwrap_or_else(|_| Selector::nothing());
        let mut namespaces = term.namespaces.clone().unwrap_or_default();
        if namespaces.is_empty() && term.namespace_selector.is_none() {
            namespaces.push(owner.metadata.namespace().to_owned());
        }
        Term {
            topology_key: term.topology_key.clone(),
            selector: parse(term.label_selector.as_ref()),
            namespaces,
            namespace_selector: term.namespace_selector.as_ref().map(|selector| parse(Some(selector))),
        }
    }

    /// Whether a waiting pod's term means placed pods of `group`. Unless it selects every namespace, it selects those that
    /// are known; `namespace` has the labels of the group's, if it is.
    pub(crate) fn selects_placed(&self, group: &Group, namespace: Option<&Labels>) -> bool {
        let by_selector =
            |selector: &Selector| selector.is_empty() || (namespace.is_some() && selector.matches(namespace));
        self.in_scope(group, by_selector)
    }

    /// Whether a placed pod's term means a waiting pod of `group`. A namespace that is not known has no labels.
    pub(crate) fn selects_waiting(&self, group: &Group, namespace: Option<&Labels>) -> bool {
        self.in_scope(group, |selector| selector.matches(namespace))
    }

    fn in_scope(&self, group: &Group, by_selector: impl Fn(&Selector) -> bool) -> bool {
        (self.namespaces.iter().any(|listed| **listed == *group.namespace)
            || self.namespace_selector.as_ref().is_some_and(by_selector))
            && self.selector.matches(group.labels.as_ref())
    }

    /// Whether it depends on the labels of namespaces.
    pub(crate) fn reads_namespaces(&self) -> bool {
        self.namespace_selector.as_ref().is_some_and(|selector| !selector.is_empty())
    }
}

impl Spread {
    pub(crate) fn new(constraint: &TopologySpreadConstraint, labels: Option<&Labels>) -> Spread {
        let mut selector =
            Selector::from_label_selector(constraint.label_selector.as_ref()).unwrap_or_else(|_| Selector::nothing());
        // Narrowed to the pod's own values. What selects nothing stays so.
        let keys = constraint.match_label_keys.iter().flatten().filter(|_| !selector.matches_nothing());
        let values: Vec<_> = keys.filter_map(|key| labels?.get_key_value(key)).collect();
        for (key, value) in values {
            selector =
                selector.with(Requirement { key: key.clone(), operator: Operator::In, values: vec![value.clone()] });
        }
        Spread {
            topology_key: constraint.topology_key.clone(),
            max_skew: constraint.max_skew.into(),
            min_domains: constraint.min_domains.unwrap_or(1).into(),
            is_hard: constraint.when_unsatisfiable == "DoNotSchedule",
            honours_affinity: constraint.node_affinity_policy.as_deref() != Some("Ignore"),
            honours_taints: constraint.node_taints_policy.as_deref() == Some("Honor"),
            selector,
        }
    }
}
