//! ResourceQuota: charges what a new object uses to the quotas of its namespace, before it is stored.
//!
//! The charge is a compare-and-swap on the quota's status, so concurrent creates can never spend the same room twice.
//! The quota controller later corrects what failed or deleted objects leave behind.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::Status;
use api::quantity::Quantity as Amount;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, Pod, ResourceQuota as Quota, ScopedResourceSelectorRequirement, Service,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{Admitted, Attributes, Plugin, Verb};
use crate::registry::Resource;
use crate::state::{State, own_operation};
use crate::verbs::{Target, modify};

pub(super) struct ResourceQuota;

type Usage = BTreeMap<String, Amount>;

impl Plugin for ResourceQuota {
    fn name(&self) -> &'static str {
        "ResourceQuota"
    }

    fn validate<'a>(&'a self, state: &'a Arc<State>, attributes: &'a Attributes<'_>) -> Admitted<'a> {
        let applies = attributes.verb == Verb::Create
            && attributes.subresource.is_empty()
            && attributes.resource.is_namespaced()
            && !attributes.namespace.is_empty();
        // Most namespaces have no quota; this look must cost nothing.
        let quotas: Vec<Quota> =
            if applies { state.peek_all("resourcequotas", Some(attributes.namespace)) } else { Vec::new() };
        if quotas.is_empty() {
            return super::admitted();
        }
        Box::pin(async move {
            let usage = usage_of(attributes);
            for quota in quotas.iter().filter(|quota| in_scope(quota, attributes)) {
                charge(state, attributes, quota, &usage).await?;
            }
            Ok(())
        })
    }
}

async fn charge(state: &Arc<State>, attributes: &Attributes<'_>, quota: &Quota, usage: &Usage) -> Result<(), Status> {
    let name = quota.metadata.name.clone().unwrap_or_default();
    let hard = quota.status.as_ref().and_then(|status| status.hard.clone()).unwrap_or_default();
    let charged: Usage = usage
        .iter()
        .filter(|(key, _)| hard.contains_key(*key))
        .map(|(key, amount)| (key.clone(), amount.clone()))
        .collect();
    // A quota on a compute resource makes stating it mandatory.
    if let Some(pod) = attributes.object_ref::<Pod>() {
        let missing = missing_resources(pod, &hard);
        if !missing.is_empty() {
            return Err(attributes.forbidden(format!("failed quota: {name}: must specify {}", missing.join("; "))));
        }
    }
    if charged.is_empty() {
        return Ok(());
    }
    let Some(resource) = state.registry.find("", "v1", "resourcequotas").cloned() else { return Ok(()) };
    let check = |quota: &Quota| -> Result<Quota, String> { spend(quota, &name, &charged) };
    if attributes.dry_run {
        return check(quota).map(drop).map_err(|problem| attributes.forbidden(problem));
    }
    let operation = own_operation(state, "update", &resource, attributes.namespace, &name, "status");
    let refused = parking_lot::Mutex::new(None);
    let outcome = modify(&operation, Target::Status, |_, old| {
        let old = old.downcast_ref::<Quota>().ok_or_else(|| Status::internal("not a quota"))?;
        match check(old) {
            Ok(new) => Ok(Box::new(new)),
            Err(problem) => {
                *refused.lock() = Some(problem.clone());
                Err(Status::internal(problem))
            }
        }
    })
    .await;
    match (outcome, refused.into_inner()) {
        (_, Some(problem)) => Err(attributes.forbidden(problem)),
        (Ok(_), None) => Ok(()),
        (Err(status), None) if status.is_not_found() => Ok(()),
        (Err(status), None) => Err(status),
    }
}

/// The quota with the charge added, or why it does not fit.
fn spend(quota: &Quota, name: &str, charged: &Usage) -> Result<Quota, String> {
    let mut new = quota.clone();
    new.metadata.resource_version = None;
    let status = new.status.get_or_insert_default();
    let hard = status.hard.clone().unwrap_or_default();
    let used = status.used.get_or_insert_default();
    let unknown: Vec<&str> = charged.keys().filter(|key| !used.contains_key(*key)).map(String::as_str).collect();
    if !unknown.is_empty() {
        return Err(format!("status unknown for quota: {name}, resources: {}", unknown.join(",")));
    }
    let (mut requested, mut spent, mut limited) = (Vec::new(), Vec::new(), Vec::new());
    for (key, amount) in charged {
        let parse = |map: &BTreeMap<String, Quantity>| {
            map.get(key).and_then(|value| Amount::parse(&value.0).ok()).unwrap_or_default()
        };
        let (before, limit) = (parse(used), parse(&hard));
        let mut after = before.clone();
        after.add(amount);
        if after > limit {
            requested.push(format!("{key}={amount}"));
            spent.push(format!("{key}={before}"));
            limited.push(format!("{key}={limit}"));
        }
        used.insert(key.clone(), Quantity(after.to_string()));
    }
    if requested.is_empty() {
        return Ok(new);
    }
    Err(format!(
        "exceeded quota: {name}, requested: {}, used: {}, limited: {}",
        requested.join(","),
        spent.join(","),
        limited.join(",")
    ))
}

fn one() -> Amount {
    Amount::new(1, api::quantity::Format::DecimalSI)
}

/// What the object counts for, under every name a quota may use.
fn usage_of(attributes: &Attributes<'_>) -> Usage {
    let mut usage = Usage::new();
    let resource: &Resource = attributes.resource;
    usage.insert(format!("count/{}", resource.group_resource()), one());
    const COUNTED: [&str; 7] = [
        "configmaps",
        "persistentvolumeclaims",
        "pods",
        "replicationcontrollers",
        "resourcequotas",
        "secrets",
        "services",
    ];
    if resource.group.is_empty() && COUNTED.contains(&&*resource.plural) {
        usage.insert(resource.plural.to_string(), one());
    }
    if let Some(pod) = attributes.object_ref::<Pod>() {
        usage.extend(pod_usage(pod));
    }
    if let Some(spec) = attributes.object_ref::<Service>().and_then(|service| service.spec.as_ref()) {
        let kind = spec.type_.as_deref().unwrap_or_default();
        let ports = spec.ports.as_ref().map_or(0, Vec::len) as i64;
        if matches!(kind, "NodePort" | "LoadBalancer") {
            usage.insert("services.nodeports".to_owned(), Amount::new(ports, api::quantity::Format::DecimalSI));
        }
        if kind == "LoadBalancer" {
            usage.insert("services.loadbalancers".to_owned(), one());
        }
    }
    if let Some(spec) = attributes.object_ref::<PersistentVolumeClaim>().and_then(|claim| claim.spec.as_ref()) {
        let storage = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref()?.get("storage"));
        if let Some(amount) = storage.and_then(|amount| Amount::parse(&amount.0).ok()) {
            usage.insert("requests.storage".to_owned(), amount.clone());
            if let Some(class) = &spec.storage_class_name {
                usage.insert(format!("{class}.storageclass.storage.k8s.io/requests.storage"), amount);
                usage.insert(format!("{class}.storageclass.storage.k8s.io/persistentvolumeclaims"), one());
            }
        }
    }
    usage
}

/// Sums containers; an init container counts where it needs more than all of them together.
fn pod_usage(pod: &Pod) -> Usage {
    let Some(spec) = &pod.spec else { return Usage::new() };
    let mut usage = Usage::new();
    for (limits, prefix) in [(false, "requests."), (true, "limits.")] {
        let pick = |container: &k8s_openapi::api::core::v1::Container| -> Usage {
            let resources = container.resources.as_ref();
            let amounts = resources
                .and_then(|resources| if limits { resources.limits.as_ref() } else { resources.requests.as_ref() });
            amounts
                .into_iter()
                .flatten()
                .filter_map(|(name, amount)| Some((name.clone(), Amount::parse(&amount.0).ok()?)))
                .collect()
        };
        let mut total = Usage::new();
        for container in &spec.containers {
            for (name, amount) in pick(container) {
                total.entry(name).or_default().add(&amount);
            }
        }
        for container in spec.init_containers.iter().flatten() {
            for (name, amount) in pick(container) {
                let slot = total.entry(name).or_default();
                *slot = std::mem::take(slot).max(amount);
            }
        }
        for (name, amount) in total {
            if !limits && !name.contains('/') {
                usage.insert(name.clone(), amount.clone());
            }
            usage.insert(format!("{prefix}{name}"), amount);
        }
    }
    usage
}

/// Compute resources that a quota limits and a container does not state.
fn missing_resources(pod: &Pod, hard: &BTreeMap<String, Quantity>) -> Vec<String> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let mut missing = Vec::new();
    for key in hard.keys() {
        let (limits, name) = match key.as_str() {
            "cpu" | "memory" => (false, key.as_str()),
            "requests.cpu" | "requests.memory" => (false, &key["requests.".len()..]),
            "limits.cpu" | "limits.memory" => (true, &key["limits.".len()..]),
            _ => continue,
        };
        let without: Vec<&str> = spec
            .containers
            .iter()
            .chain(spec.init_containers.iter().flatten())
            .filter(|container| {
                let resources = container.resources.as_ref();
                let amounts = resources
                    .and_then(|resources| if limits { resources.limits.as_ref() } else { resources.requests.as_ref() });
                !amounts.is_some_and(|amounts| amounts.contains_key(name))
            })
            .map(|container| container.name.as_str())
            .collect();
        if !without.is_empty() {
            missing.push(format!("{key} for: {}", without.join(",")));
        }
    }
    missing
}

/// Whether a quota's scopes select the object.
fn in_scope(quota: &Quota, attributes: &Attributes<'_>) -> bool {
    let Some(spec) = &quota.spec else { return true };
    let scopes = spec.scopes.iter().flatten().map(|scope| ScopedResourceSelectorRequirement {
        scope_name: scope.clone(),
        operator: "Exists".to_owned(),
        values: None,
    });
    let selectors =
        spec.scope_selector.iter().flat_map(|selector| selector.match_expressions.iter().flatten().cloned());
    let all: Vec<_> = scopes.chain(selectors).collect();
    if all.is_empty() {
        return true;
    }
    // Scopes speak about pods only.
    let Some(pod) = attributes.object_ref::<Pod>() else { return false };
    all.iter().all(|requirement| pod_in_scope(pod, requirement))
}

fn pod_in_scope(pod: &Pod, requirement: &ScopedResourceSelectorRequirement) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let terminating = spec.active_deadline_seconds.is_some_and(|seconds| seconds >= 0);
    let best_effort = || {
        let compute = |usage: &Usage| {
            usage
                .keys()
                .any(|key| matches!(key.as_str(), "requests.cpu" | "requests.memory" | "limits.cpu" | "limits.memory"))
        };
        !compute(&pod_usage(pod))
    };
    match requirement.scope_name.as_str() {
        "Terminating" => terminating,
        "NotTerminating" => !terminating,
        "BestEffort" => best_effort(),
        "NotBestEffort" => !best_effort(),
        "PriorityClass" => {
            let class = spec.priority_class_name.as_deref().unwrap_or_default();
            let listed = requirement.values.iter().flatten().any(|value| value == class);
            match requirement.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => !class.is_empty(),
                "DoesNotExist" => class.is_empty(),
                _ => false,
            }
        }
        "CrossNamespacePodAffinity" => {
            let affinity = spec.affinity.as_ref();
            let terms = affinity.into_iter().flat_map(|affinity| {
                let near = affinity
                    .pod_affinity
                    .iter()
                    .flat_map(|near| near.required_during_scheduling_ignored_during_execution.iter().flatten());
                let far = affinity
                    .pod_anti_affinity
                    .iter()
                    .flat_map(|far| far.required_during_scheduling_ignored_during_execution.iter().flatten());
                near.chain(far)
            });
            terms.into_iter().any(|term| {
                term.namespace_selector.is_some() || term.namespaces.as_ref().is_some_and(|list| !list.is_empty())
            })
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ResourceQuotaStatus;

    #[test]
    fn spending_stops_at_the_limit() {
        let amounts = |value: &str| Some([("pods".to_owned(), Quantity(value.to_owned()))].into());
        let mut quota = Quota {
            status: Some(ResourceQuotaStatus { hard: amounts("2"), used: amounts("0") }),
            ..Default::default()
        };
        let charge: Usage = [("pods".to_owned(), one())].into();
        for _ in 0..2 {
            quota = spend(&quota, "q", &charge).unwrap();
        }
        let refused = spend(&quota, "q", &charge).unwrap_err();
        assert_eq!(refused, "exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2");
    }
}
