//! LimitRanger: default requests and limits of a namespace, and the bounds within which they must lie.

use std::sync::Arc;

use std::collections::BTreeMap;

use api::quantity::Quantity as Amount;
use k8s_openapi::api::core::v1::{
    Container, LimitRange, LimitRangeItem, PersistentVolumeClaim, Pod, ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{Admitted, Attributes, Plugin, Verb};
use crate::state::State;

pub(super) struct LimitRanger;

type Amounts = BTreeMap<String, Quantity>;

impl Plugin for LimitRanger {
    fn name(&self) -> &'static str {
        "LimitRanger"
    }

    fn admit<'a>(&'a self, state: &'a Arc<State>, attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
        if attributes.creates("", "pods") {
            let ranges = ranges(state, attributes.namespace);
            if let Some(pod) = attributes.object_mut::<Pod>() {
                apply_defaults(&ranges, pod);
            }
        }
        super::admitted()
    }

    fn validate<'a>(&'a self, state: &'a Arc<State>, attributes: &'a Attributes<'_>) -> Admitted<'a> {
        let mut problems = Vec::new();
        if attributes.verb == Verb::Create && attributes.subresource.is_empty() {
            if let Some(pod) = attributes.object_ref::<Pod>() {
                for range in ranges(state, attributes.namespace) {
                    check_pod(&range, pod, &mut problems);
                }
            } else if let Some(claim) = attributes.object_ref::<PersistentVolumeClaim>() {
                for range in ranges(state, attributes.namespace) {
                    for item in items(&range, "PersistentVolumeClaim") {
                        let requests = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.clone());
                        check(
                            item,
                            "PersistentVolumeClaim",
                            &requests.unwrap_or_default(),
                            &Amounts::new(),
                            &mut problems,
                        );
                    }
                }
            }
        }
        let outcome = if problems.is_empty() {
            Ok(())
        } else if problems.len() == 1 {
            Err(attributes.forbidden(&problems[0]))
        } else {
            Err(attributes.forbidden(format!("[{}]", problems.join(", "))))
        };
        Box::pin(std::future::ready(outcome))
    }
}

fn ranges(state: &State, namespace: &str) -> Vec<LimitRange> {
    state.peek_all("limitranges", Some(namespace))
}

fn items<'a>(range: &'a LimitRange, kind: &'a str) -> impl Iterator<Item = &'a LimitRangeItem> {
    range.spec.iter().flat_map(|spec| &spec.limits).filter(move |item| item.type_ == kind)
}

fn apply_defaults(ranges: &[LimitRange], pod: &mut Pod) {
    let Some(spec) = pod.spec.as_mut() else { return };
    for item in ranges.iter().flat_map(|range| items(range, "Container")) {
        for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
            let resources = container.resources.get_or_insert_default();
            let fill = |target: &mut Option<Amounts>, defaults: &Option<Amounts>| {
                for (name, amount) in defaults.iter().flatten() {
                    target.get_or_insert_default().entry(name.clone()).or_insert_with(|| amount.clone());
                }
            };
            fill(&mut resources.limits, &item.default);
            fill(&mut resources.requests, &item.default_request);
        }
    }
}

fn parse(amount: &Quantity) -> Option<Amount> {
    Amount::parse(&amount.0).ok()
}

fn check_pod(range: &LimitRange, pod: &Pod, problems: &mut Vec<String>) {
    let Some(spec) = pod.spec.as_ref() else { return };
    let empty = ResourceRequirements::default();
    let containers: Vec<&Container> = spec.containers.iter().chain(spec.init_containers.iter().flatten()).collect();
    for item in items(range, "Container") {
        for container in &containers {
            let resources = container.resources.as_ref().unwrap_or(&empty);
            let requests = resources.requests.clone().unwrap_or_default();
            check(item, "Container", &requests, &resources.limits.clone().unwrap_or_default(), problems);
        }
    }
    for item in items(range, "Pod") {
        let total = |pick: fn(&ResourceRequirements) -> &Option<Amounts>| {
            let mut total: BTreeMap<String, Amount> = BTreeMap::new();
            for container in &spec.containers {
                for (name, amount) in container.resources.iter().flat_map(|resources| pick(resources).iter().flatten())
                {
                    if let Some(amount) = parse(amount) {
                        total.entry(name.clone()).or_default().add(&amount);
                    }
                }
            }
            total.into_iter().map(|(name, amount)| (name, Quantity(amount.to_string()))).collect::<Amounts>()
        };
        check(item, "Pod", &total(|resources| &resources.requests), &total(|resources| &resources.limits), problems);
    }
}

fn check(item: &LimitRangeItem, kind: &str, requests: &Amounts, limits: &Amounts, problems: &mut Vec<String>) {
    for (name, bound) in item.min.iter().flatten() {
        match (requests.get(name), parse(bound)) {
            (None, Some(_)) => {
                problems.push(format!("minimum {name} usage per {kind} is {}.  No request is specified", bound.0))
            }
            (Some(request), Some(min)) if parse(request).is_some_and(|request| request < min) => {
                problems.push(format!("minimum {name} usage per {kind} is {}, but request is {}", bound.0, request.0));
            }
            _ => {}
        }
    }
    for (name, bound) in item.max.iter().flatten() {
        let given = if kind == "PersistentVolumeClaim" { requests.get(name) } else { limits.get(name) };
        match (given, parse(bound)) {
            (None, Some(_)) => {
                problems.push(format!("maximum {name} usage per {kind} is {}.  No limit is specified", bound.0))
            }
            (Some(limit), Some(max)) if parse(limit).is_some_and(|limit| limit > max) => {
                let word = if kind == "PersistentVolumeClaim" { "request" } else { "limit" };
                problems.push(format!("maximum {name} usage per {kind} is {}, but {word} is {}", bound.0, limit.0));
            }
            _ => {}
        }
    }
    for (name, ratio) in item.max_limit_request_ratio.iter().flatten() {
        let numbers = (requests.get(name).and_then(parse), limits.get(name).and_then(parse), parse(ratio));
        if let (Some(request), Some(limit), Some(max)) = numbers {
            let (request, limit, max) =
                (request.milli_value() as f64, limit.milli_value() as f64, max.milli_value() as f64 / 1000.0);
            if request > 0.0 && limit / request > max {
                problems.push(format!(
                    "{name} max limit to request ratio per {kind} is {}, but provided ratio is {:.6}",
                    ratio.0,
                    limit / request
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amounts(pairs: &[(&str, &str)]) -> Option<Amounts> {
        Some(pairs.iter().map(|(name, amount)| ((*name).to_owned(), Quantity((*amount).to_owned()))).collect())
    }

    #[test]
    fn bounds_are_checked() {
        let item = LimitRangeItem {
            type_: "Container".into(),
            min: amounts(&[("cpu", "100m")]),
            max: amounts(&[("cpu", "1")]),
            ..Default::default()
        };
        for (request, limit, count) in [("200m", "500m", 0), ("50m", "500m", 1), ("200m", "2", 1), ("50m", "2", 2)] {
            let mut problems = Vec::new();
            check(
                &item,
                "Container",
                &amounts(&[("cpu", request)]).unwrap(),
                &amounts(&[("cpu", limit)]).unwrap(),
                &mut problems,
            );
            assert_eq!(problems.len(), count, "{problems:?}");
        }
    }
}
