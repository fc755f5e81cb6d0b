//! Arguments of plug-ins, with upstream's defaults and checks.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use api::placement::{NodeSelector, Preferences};
use k8s_openapi::api::core::v1::{NodeAffinity as Affinity, TopologySpreadConstraint};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::balanced_allocation::BalancedAllocation;
use super::default_preemption::DefaultPreemption;
use super::inter_pod_affinity::InterPodAffinity;
use super::node_affinity::NodeAffinity;
use super::node_resources::{Shape, Weighed};
use super::node_resources_fit::{NodeResourcesFit, Strategy};
use super::pod_topology_spread::PodTopologySpread;
use super::volume_binding::{self, VolumeBinding};
use crate::pod::Catalogue;

/// Arguments that do not make sense, with the path below the plug-in's `args`.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub(crate) struct ArgsError(String);

/// Reads arguments strictly; every kind of them may also say its `apiVersion` and `kind`.
fn read<T: DeserializeOwned + Default>(given: Option<&Value>) -> Result<T, ArgsError> {
    let Some(Value::Object(map)) = given else { return Ok(T::default()) };
    let mut map = map.clone();
    map.remove("apiVersion");
    map.remove("kind");
    serde_json::from_value(Value::Object(map)).map_err(|error| ArgsError(error.to_string()))
}

fn check(holds: bool, message: impl FnOnce() -> String) -> Result<(), ArgsError> {
    if holds { Ok(()) } else { Err(ArgsError(message())) }
}

pub(crate) fn node_affinity(given: Option<&Value>) -> Result<NodeAffinity, ArgsError> {
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", deny_unknown_fields, default)]
    struct Args {
        added_affinity: Option<Affinity>,
    }
    let added = read::<Args>(given)?.added_affinity.unwrap_or_default();
    let required = added.required_during_scheduling_ignored_during_execution;
    let preferred = added.preferred_during_scheduling_ignored_during_execution.filter(|terms| !terms.is_empty());
    Ok(NodeAffinity {
        added_required: required.as_ref().map(NodeSelector::new),
        added_preferred: preferred.as_deref().map(Preferences::new),
    })
}

#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
struct ResourceSpec {
    name: String,
    #[serde(default)]
    weight: i64,
}

fn weighed(resources: Vec<ResourceSpec>, catalogue: &Catalogue) -> Vec<Weighed> {
    if resources.is_empty() {
        return ["cpu", "memory"].map(|name| Weighed::new(name, 1, catalogue)).into();
    }
    resources.iter().map(|resource| Weighed::new(&resource.name, resource.weight.max(1), catalogue)).collect()
}

pub(crate) fn node_resources_fit(
    given: Option<&Value>,
    catalogue: &Arc<Catalogue>,
) -> Result<NodeResourcesFit, ArgsError> {
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", deny_unknown_fields, default)]
    struct Args {
        ignored_resources: Vec<String>,
        ignored_resource_groups: Vec<String>,
        scoring_strategy: Option<ScoringStrategy>,
    }
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", deny_unknown_fields, default)]
    struct ScoringStrategy {
        #[serde(rename = "type")]
        kind: Option<String>,
        resources: Vec<ResourceSpec>,
        requested_to_capacity_ratio: Option<Ratio>,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Ratio {
        #[serde(default)]
        shape: Vec<Point>,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Point {
        utilization: i64,
        score: i64,
    }
    let args: Args = read(given)?;
    for group in &args.ignored_resource_groups {
        check(!group.contains('/'), || format!("Invalid value: {group:?}: resource group name can't contain '/'"))?;
    }
    let scoring = args.scoring_strategy.unwrap_or_default();
    for (at, resource) in scoring.resources.iter().enumerate() {
        check((0..=100).contains(&resource.weight), || {
            format!(
                "scoringStrategy.resources[{at}].weight: Invalid value: {}: resource weight of {} not in valid range [1, 100]",
                resource.weight, resource.name
            )
        })?;
    }
    let ratio = scoring.requested_to_capacity_ratio;
    let kind = scoring.kind.as_deref().unwrap_or("LeastAllocated");
    check(kind == "RequestedToCapacityRatio" || ratio.is_none(), || {
        "scoringStrategy.requestedToCapacityRatio: Forbidden: must be nil when type is not RequestedToCapacityRatio"
            .into()
    })?;
    let strategy = match kind {
        "LeastAllocated" => Strategy::LeastAllocated,
        "MostAllocated" => Strategy::MostAllocated,
        "RequestedToCapacityRatio" => {
            let path = "scoringStrategy.requestedToCapacityRatio";
            let shape = ratio.map(|ratio| ratio.shape).ok_or_else(|| {
                ArgsError(format!("{path}: Required value: must be specified when type is RequestedToCapacityRatio"))
            })?;
            check(!shape.is_empty(), || format!("{path}.shape: Required value: at least one point must be specified"))?;
            for (at, point) in shape.iter().enumerate() {
                let (path, utilization, score) = (format!("{path}.shape[{at}]"), point.utilization, point.score);
                check(at == 0 || shape[at - 1].utilization < utilization, || {
                    format!(
                        "{path}.utilization: Invalid value: {utilization}: values must be sorted in increasing order"
                    )
                })?;
                check((0..=100).contains(&utilization), || {
                    format!("{path}.utilization: Invalid value: {utilization}: not in valid range [0, 100]")
                })?;
                check((0..=10).contains(&score), || {
                    format!("{path}.score: Invalid value: {score}: not in valid range [0, 10]")
                })?;
            }
            Strategy::RequestedToCapacityRatio(Shape::new(shape.iter().map(|point| (point.utilization, point.score))))
        }
        other => {
            return Err(ArgsError(format!(
                "scoringStrategy.type: Unsupported value: {other:?}: supported values: \"LeastAllocated\", \"MostAllocated\", \"RequestedToCapacityRatio\""
            )));
        }
    };
    Ok(NodeResourcesFit {
        strategy,
        resources: weighed(scoring.resources, catalogue),
        ignored: args.ignored_resources,
        ignored_groups: args.ignored_resource_groups,
        catalogue: catalogue.clone(),
    })
}

pub(crate) fn balanced_allocation(
    given: Option<&Value>,
    catalogue: &Catalogue,
) -> Result<BalancedAllocation, ArgsError> {
    #[derive(Deserialize, Default)]
    #[serde(deny_unknown_fields, default)]
    struct Args {
        resources: Vec<ResourceSpec>,
    }
    let args: Args = read(given)?;
    let mut seen = HashSet::new();
    for (at, resource) in args.resources.iter().enumerate() {
        check(seen.insert(&resource.name), || format!("resources[{at}].name: Duplicate value: {:?}", resource.name))?;
        check(resource.weight <= 1, || {
            format!("resources[{at}].weight: Invalid value: {}: must be 1", resource.weight)
        })?;
    }
    Ok(BalancedAllocation { resources: weighed(args.resources, catalogue) })
}

pub(crate) fn inter_pod_affinity(given: Option<&Value>) -> Result<InterPodAffinity, ArgsError> {
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", deny_unknown_fields, default)]
    struct Args {
        hard_pod_affinity_weight: Option<i64>,
        ignore_preferred_terms_of_existing_pods: bool,
    }
    let args: Args = read(given)?;
    let hard_weight = args.hard_pod_affinity_weight.unwrap_or(1);
    check((0..=100).contains(&hard_weight), || {
        format!("hardPodAffinityWeight: Invalid value: {hard_weight}: not in valid range [0, 100]")
    })?;
    let ignore_preferred_terms_of_existing_pods = args.ignore_preferred_terms_of_existing_pods;
    Ok(InterPodAffinity { hard_weight, ignore_preferred_terms_of_existing_pods })
}

pub(crate) fn pod_topology_spread(given: Option<&Value>) -> Result<PodTopologySpread, ArgsError> {
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", deny_unknown_fields, default)]
    struct Args {
        default_constraints: Vec<TopologySpreadConstraint>,
        defaulting_type: Option<String>,
    }
    let args: Args = read(given)?;
    for (at, constraint) in args.default_constraints.iter().enumerate() {
        let path = format!("defaultConstraints[{at}]");
        check(constraint.max_skew > 0, || {
            format!("{path}.maxSkew: Invalid value: {}: not in valid range (0, inf)", constraint.max_skew)
        })?;
        check(!constraint.topology_key.is_empty(), || format!("{path}.topologyKey: Required value: can not be empty"))?;
        check(matches!(constraint.when_unsatisfiable.as_str(), "DoNotSchedule" | "ScheduleAnyway"), || {
            format!(
                "{path}.whenUnsatisfiable: Unsupported value: {:?}: supported values: \"DoNotSchedule\", \"ScheduleAnyway\"",
                constraint.when_unsatisfiable
            )
        })?;
        check(constraint.label_selector.is_none(), || {
            format!(
                "{path}.labelSelector: Forbidden: constraint must not define a selector, as they deduced for each pod"
            )
        })?;
    }
    match args.defaulting_type.as_deref().unwrap_or("System") {
        "System" if args.default_constraints.is_empty() => Ok(PodTopologySpread::system_defaults()),
        "System" => {
            Err(ArgsError("defaultingType: Invalid value: \"System\": when .defaultConstraints are not empty".into()))
        }
        "List" => Ok(PodTopologySpread { defaults: args.default_constraints, is_system_default: false }),
        other => Err(ArgsError(format!(
            "defaultingType: Unsupported value: {other:?}: supported values: \"System\", \"List\""
        ))),
    }
}

pub(crate) fn default_preemption(given: Option<&Value>) -> Result<DefaultPreemption, ArgsError> {
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", deny_unknown_fields, default)]
    struct Args {
        min_candidate_nodes_percentage: Option<i64>,
        min_candidate_nodes_absolute: Option<i64>,
    }
    let args: Args = read(given)?;
    let percentage = args.min_candidate_nodes_percentage.unwrap_or(10);
    let absolute = args.min_candidate_nodes_absolute.unwrap_or(100);
    check((0..=100).contains(&percentage), || {
        format!("minCandidateNodesPercentage: Invalid value: {percentage}: not in valid range [0, 100]")
    })?;
    check(absolute >= 0, || {
        format!("minCandidateNodesAbsolute: Invalid value: {absolute}: not in valid range [0, inf)")
    })?;
    check(percentage > 0 || absolute > 0, || {
        "minCandidateNodesPercentage: Invalid value: 0: cannot be zero at the same time as minCandidateNodesAbsolute"
            .into()
    })?;
    Ok(DefaultPreemption { min_percentage: percentage as usize, min_absolute: absolute as usize })
}

pub(crate) fn volume_binding(
    given: Option<&Value>,
    api: Option<volume_binding::Api>,
) -> Result<VolumeBinding, ArgsError> {
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", deny_unknown_fields, default)]
    struct Args {
        bind_timeout_seconds: Option<i64>,
        shape: Option<Value>,
    }
    let args: Args = read(given)?;
    let seconds = args.bind_timeout_seconds.unwrap_or(600);
    check(seconds >= 0, || {
        format!(
            "bindTimeoutSeconds: Invalid value: {seconds}: invalid BindTimeoutSeconds, should not be a negative value"
        )
    })?;
    check(args.shape.is_none(), || {
        "shape: Invalid value: unexpected field `shape`, remove it or turn on the feature gate StorageCapacityScoring"
            .into()
    })?;
    Ok(VolumeBinding::new(Duration::from_secs(seconds.unsigned_abs()), api))
}
