//! LimitRanger: default requests and limits of a namespace, and the bounds within which they must lie.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::pod::resources::{Amounts, Side, of_container, of_pod, parse};
use api::quantity::Quantity as Amount;
use k8s_openapi::api::core::v1::{Container, LimitRange, LimitRangeItem, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{Admitted, Attributes, Plugin, Verb, admitted};
use crate::cluster::Cluster;
use crate::watch_cache::Unreadable;

pub(super) struct LimitRanger;

/// Says which values came from here.
const ANNOTATION: &str = "kubernetes.io/limit-ranger";

impl Plugin for LimitRanger {
    fn admit<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
        if concerns(attributes) {
            let ranges = match ranges(cluster, attributes.namespace) {
                Ok(ranges) => ranges,
                Err(unreadable) => return Err(unreadable.into()).into(),
            };
            if let Some(pod) = attributes.object_mut::<Pod>() {
                ranges.iter().for_each(|range| apply_defaults(range, pod));
            }
        }
        admitted()
    }

    fn validate<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a Attributes<'_>) -> Admitted<'a> {
        if !concerns(attributes) {
            return admitted();
        }
        let ranges = match ranges(cluster, attributes.namespace) {
            Ok(ranges) => ranges,
            Err(unreadable) => return Err(unreadable.into()).into(),
        };
        for range in ranges {
            let mut problems = Vec::new();
            if let Some(pod) = attributes.object_ref::<Pod>() {
                check_pod(&range, pod, &mut problems);
            } else if let Some(claim) = attributes.object_ref::<PersistentVolumeClaim>() {
                check_claim(&range, claim, &mut problems);
            }
            match problems.as_slice() {
                [] => {}
                [one] => return Err(attributes.forbidden(one)).into(),
                many => return Err(attributes.forbidden(format!("[{}]", many.join(", ")))).into(),
            }
        }
        admitted()
    }
}

/// New pods, resized ones, and claims. What is already being deleted is left alone.
fn concerns(attributes: &Attributes<'_>) -> bool {
    let applies = match (attributes.verb, attributes.subresource) {
        (Verb::Create, "") => attributes.is("", "pods") || attributes.is("", "persistentvolumeclaims"),
        (Verb::Update, "") => attributes.is("", "persistentvolumeclaims"),
        (Verb::Update, "resize") => attributes.is("", "pods"),
        _ => false,
    };
    applies && attributes.old.is_none_or(|old| old.meta().deletion_timestamp.is_none())
}

fn ranges(cluster: &Cluster, namespace: &str) -> Result<Vec<LimitRange>, Unreadable> {
    cluster.objects().list(Some(namespace))
}

fn items<'a>(range: &'a LimitRange, kind: &'a str) -> impl Iterator<Item = &'a LimitRangeItem> {
    range.spec.iter().flat_map(|spec| &spec.limits).filter(move |item| item.type_ == kind)
}

fn apply_defaults(range: &LimitRange, pod: &mut Pod) {
    let (mut limits, mut requests) = (BTreeMap::new(), BTreeMap::new());
    for item in items(range, "Container") {
        limits.extend(item.default.clone().unwrap_or_default());
        requests.extend(item.default_request.clone().unwrap_or_default());
    }
    if limits.is_empty() && requests.is_empty() {
        return;
    }
    let Some(spec) = pod.spec.as_mut() else { return };
    let mut notes = Vec::new();
    let ordinary = spec.containers.iter_mut().map(|container| ("container", container));
    let init = spec.init_containers.iter_mut().flatten().map(|container| ("init container", container));
    for (what, container) in ordinary.chain(init) {
        let resources = container.resources.get_or_insert_default();
        for (side, target, defaults) in
            [("request", &mut resources.requests, &requests), ("limit", &mut resources.limits, &limits)]
        {
            let set = fill(target, defaults);
            if !set.is_empty() {
                notes.push(format!("{} {side} for {what} {}", set.join(", "), container.name));
            }
        }
    }
    if !notes.is_empty() {
        let note = format!("LimitRanger plugin set: {}", notes.join("; "));
        pod.metadata.annotations.get_or_insert_default().insert(ANNOTATION.to_owned(), note);
    }
}

/// Sets what is missing; returns its names.
fn fill(target: &mut Option<BTreeMap<String, Quantity>>, defaults: &BTreeMap<String, Quantity>) -> Vec<String> {
    let present = target.get_or_insert_default();
    let missing: Vec<String> = defaults.keys().filter(|name| !present.contains_key(*name)).cloned().collect();
    for name in &missing {
        present.insert(name.clone(), defaults[name].clone());
    }
    if present.is_empty() {
        *target = None;
    }
    missing
}

fn check_pod(range: &LimitRange, pod: &Pod, problems: &mut Vec<String>) {
    let Some(spec) = pod.spec.as_ref() else { return };
    for item in range.spec.iter().flat_map(|spec| &spec.limits) {
        match item.type_.as_str() {
            "Container" => {
                let all: Vec<&Container> =
                    spec.containers.iter().chain(spec.init_containers.iter().flatten()).collect();
                for container in all {
                    let of = |side| of_container(container.resources.as_ref(), side);
                    check(item, &of(Side::Requests), &of(Side::Limits), problems);
                }
            }
            "Pod" => check(item, &of_pod(spec, Side::Requests), &of_pod(spec, Side::Limits), problems),
            _ => {}
        }
    }
}

fn check_claim(range: &LimitRange, claim: &PersistentVolumeClaim, problems: &mut Vec<String>) {
    let resources = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let requests = parse(resources.and_then(|resources| resources.requests.as_ref()));
    for item in items(range, "PersistentVolumeClaim") {
        let kind = &item.type_;
        for (name, bound) in parse(item.min.as_ref()) {
            problems.extend(minimum(kind, &name, &bound, requests.get(&name), None));
        }
        for (name, bound) in parse(item.max.as_ref()) {
            let problem = match requests.get(&name) {
                None => Some("No request is specified".to_owned()),
                Some(request) if *request > bound => Some(format!("but request is {request}")),
                Some(_) => None,
            };
            problems.extend(problem.map(|problem| {
                let mark = if problem.starts_with("but") { ", " } else { ".  " };
                format!("maximum {name} usage per {kind} is {bound}{mark}{problem}")
            }));
        }
    }
}

fn check(item: &LimitRangeItem, requests: &Amounts, limits: &Amounts, problems: &mut Vec<String>) {
    let kind = &item.type_;
    for (name, bound) in parse(item.min.as_ref()) {
        problems.extend(minimum(kind, &name, &bound, requests.get(&name), limits.get(&name)));
    }
    for (name, bound) in parse(item.max.as_ref()) {
        problems.extend(maximum(kind, &name, &bound, requests.get(&name), limits.get(&name)));
    }
    for (name, bound) in parse(item.max_limit_request_ratio.as_ref()) {
        problems.extend(ratio(kind, &name, &bound, requests.get(&name), limits.get(&name)));
    }
}

fn minimum(kind: &str, name: &str, bound: &Amount, request: Option<&Amount>, limit: Option<&Amount>) -> Option<String> {
    let text = format!("minimum {name} usage per {kind} is {bound}");
    match (request, limit) {
        (None, _) => Some(format!("{text}.  No request is specified")),
        (Some(request), _) if request < bound => Some(format!("{text}, but request is {request}")),
        (_, Some(limit)) if limit < bound => Some(format!("{text}, but limit is {limit}")),
        _ => None,
    }
}

fn maximum(kind: &str, name: &str, bound: &Amount, request: Option<&Amount>, limit: Option<&Amount>) -> Option<String> {
    let text = format!("maximum {name} usage per {kind} is {bound}");
    match (request, limit) {
        (_, None) => Some(format!("{text}.  No limit is specified")),
        (_, Some(limit)) if limit > bound => Some(format!("{text}, but limit is {limit}")),
        (Some(request), _) if request > bound => Some(format!("{text}, but request is {request}")),
        _ => None,
    }
}

fn ratio(kind: &str, name: &str, bound: &Amount, request: Option<&Amount>, limit: Option<&Amount>) -> Option<String> {
    let text = format!("{name} max limit to request ratio per {kind} is {bound}");
    let is_set = |amount: &&Amount| !amount.is_zero();
    let Some(request) = request.filter(is_set) else {
        return Some(format!("{text}, but no request is specified or request is 0"));
    };
    let Some(limit) = limit.filter(is_set) else {
        return Some(format!("{text}, but no limit is specified or limit is 0"));
    };
    let found = limit.as_f64() / request.as_f64();
    (found > bound.as_f64()).then(|| format!("{text}, but provided ratio is {found:.6}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn container(requests: Value, limits: Value) -> Value {
        json!({"name": "c", "resources": {"requests": requests, "limits": limits}})
    }

    #[test]
    fn bounds_are_checked() {
        let range =
            |item: Value| -> LimitRange { serde_json::from_value(json!({"spec": {"limits": [item]}})).unwrap() };
        let bounds = json!({"type": "Container", "min": {"cpu": "100m"}, "max": {"cpu": "1"}});
        let ratio = json!({"type": "Pod", "maxLimitRequestRatio": {"cpu": "2"}});
        for (item, container, problems) in [
            (&bounds, container(json!({"cpu": "200m"}), json!({"cpu": "500m"})), &[][..]),
            (
                &bounds,
                container(json!({"cpu": "50m"}), json!({"cpu": "500m"})),
                &["minimum cpu usage per Container is 100m, but request is 50m"],
            ),
            (
                &bounds,
                container(json!({"cpu": "200m"}), json!({"cpu": "2"})),
                &["maximum cpu usage per Container is 1, but limit is 2"],
            ),
            (
                &bounds,
                container(json!({}), json!({})),
                &[
                    "minimum cpu usage per Container is 100m.  No request is specified",
                    "maximum cpu usage per Container is 1.  No limit is specified",
                ],
            ),
            (&ratio, container(json!({"cpu": "1"}), json!({"cpu": "2"})), &[]),
            (
                &ratio,
                container(json!({"cpu": "1"}), json!({"cpu": "3"})),
                &["cpu max limit to request ratio per Pod is 2, but provided ratio is 3.000000"],
            ),
        ] {
            let pod: Pod = serde_json::from_value(json!({"spec": {"containers": [container]}})).unwrap();
            let mut found = Vec::new();
            check_pod(&range(item.clone()), &pod, &mut found);
            assert_eq!(found, problems, "{item} {container}");
        }
    }

    #[test]
    fn defaults_fill_what_is_missing_and_say_so() {
        let range: LimitRange = serde_json::from_value(json!({"spec": {"limits": [{"type": "Container",
            "default": {"cpu": "500m", "memory": "1Gi"}, "defaultRequest": {"cpu": "100m"}}]}}))
        .unwrap();
        let mut pod: Pod = serde_json::from_value(
            json!({"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "300m"}}}]}}),
        )
        .unwrap();
        apply_defaults(&range, &mut pod);
        let value = serde_json::to_value(&pod).unwrap();
        let resources = &value["spec"]["containers"][0]["resources"];
        assert_eq!(*resources, json!({"limits": {"cpu": "300m", "memory": "1Gi"}, "requests": {"cpu": "100m"}}));
        assert_eq!(
            value["metadata"]["annotations"][ANNOTATION],
            "LimitRanger plugin set: cpu request for container c; memory limit for container c"
        );
    }
}
