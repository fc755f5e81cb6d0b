//! The legacy `Policy`: predicates and priorities by their old names, mapped onto plug-ins.

use serde::Deserialize;
use serde_json::{Value, json};

use super::file::{Configuration, ConfigurationError, PluginConfig};
use super::{Extender, PluginRef, PluginSet, Plugins, SchedulerProfile};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Policy {
    kind: String,
    #[serde(rename = "apiVersion")]
    api_version: String,
    predicates: Option<Vec<Named>>,
    priorities: Option<Vec<Named>>,
    extenders: Vec<Extender>,
    #[serde(rename = "extenderConfigs")]
    extender_configs: Vec<Extender>,
    #[serde(rename = "hardPodAffinitySymmetricWeight")]
    hard_pod_affinity_symmetric_weight: Option<i64>,
    #[serde(rename = "alwaysCheckAllPredicates")]
    _always_check_all_predicates: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Named {
    name: String,
    weight: i64,
    argument: Value,
}

/// Predicates that hold whatever a policy says.
const MANDATORY: &[&str] = &["TaintToleration", "NodeUnschedulable"];

/// Old names of predicates and what filters in their place; nothing where the check is part of taints by now.
const PREDICATES: &[(&str, &[&str])] = &[
    ("GeneralPredicates", &["NodeName", "NodePorts", "NodeAffinity", "NodeResourcesFit"]),
    ("PodFitsResources", &["NodeResourcesFit"]),
    ("HostName", &["NodeName"]),
    ("PodFitsHost", &["NodeName"]),
    ("PodFitsHostPorts", &["NodePorts"]),
    ("PodFitsPorts", &["NodePorts"]),
    ("MatchNodeSelector", &["NodeAffinity"]),
    ("PodSelectorMatches", &["NodeAffinity"]),
    ("NoDiskConflict", &["VolumeRestrictions"]),
    ("NoVolumeZoneConflict", &["VolumeZone"]),
    ("CheckVolumeBinding", &["VolumeBinding"]),
    ("NoVolumeNodeConflict", &["VolumeBinding"]),
    ("MatchInterPodAffinity", &["InterPodAffinity"]),
    ("EvenPodsSpreadPred", &["PodTopologySpread"]),
    ("EvenPodsSpread", &["PodTopologySpread"]),
    ("PodToleratesNodeTaints", &["TaintToleration"]),
    ("PodToleratesNodeNoExecuteTaints", &["TaintToleration"]),
    ("CheckNodeUnschedulable", &["NodeUnschedulable"]),
    ("CheckNodeCondition", &["NodeUnschedulable"]),
    ("CheckNodeMemoryPressure", &[]),
    ("CheckNodeDiskPressure", &[]),
    ("CheckNodePIDPressure", &[]),
    ("MaxEBSVolumeCount", &["NodeVolumeLimits"]),
    ("MaxGCEPDVolumeCount", &["NodeVolumeLimits"]),
    ("MaxAzureDiskVolumeCount", &["NodeVolumeLimits"]),
    ("MaxCinderVolumeCount", &["NodeVolumeLimits"]),
    ("MaxCSIVolumeCountPred", &["NodeVolumeLimits"]),
];

/// Old names of priorities and what scores in their place.
const PRIORITIES: &[(&str, &[&str])] = &[
    ("EqualPriority", &[]),
    ("NodePreferAvoidPodsPriority", &[]),
    ("LeastRequestedPriority", &["NodeResourcesFit"]),
    ("MostRequestedPriority", &["NodeResourcesFit"]),
    ("RequestedToCapacityRatioPriority", &["NodeResourcesFit"]),
    ("BalancedResourceAllocation", &["NodeResourcesBalancedAllocation"]),
    ("SelectorSpreadPriority", &["PodTopologySpread"]),
    ("ServiceSpreadingPriority", &["PodTopologySpread"]),
    ("EvenPodsSpreadPriority", &["PodTopologySpread"]),
    ("InterPodAffinityPriority", &["InterPodAffinity"]),
    ("NodeAffinityPriority", &["NodeAffinity"]),
    ("TaintTolerationPriority", &["TaintToleration"]),
    ("ImageLocalityPriority", &["ImageLocality"]),
];

/// Reads a policy, as JSON or YAML, into a configuration with one profile.
pub(super) fn parse(text: &str) -> Result<Configuration, ConfigurationError> {
    let policy: Policy = yaml_serde::from_str(text).map_err(|error| ConfigurationError::Invalid(error.to_string()))?;
    if policy.kind != "Policy" || !matches!(policy.api_version.as_str(), "v1" | "") {
        let message = format!("no kind {:?} is registered for version {:?}", policy.kind, policy.api_version);
        return Err(ConfigurationError::Invalid(message));
    }
    let mut plugins = Plugins::default();
    if let Some(predicates) = &policy.predicates {
        plugins.filter = filters(predicates)?;
    }
    let mut plugin_config = Vec::new();
    if let Some(priorities) = &policy.priorities {
        plugins.score = scores(priorities, &mut plugin_config)?;
    }
    if let Some(weight) = policy.hard_pod_affinity_symmetric_weight {
        let args = json!({"hardPodAffinityWeight": weight});
        plugin_config.push(PluginConfig { name: "InterPodAffinity".into(), args });
    }
    let mut configuration = Configuration::default();
    configuration.profiles = vec![SchedulerProfile {
        scheduler_name: Some("default-scheduler".into()),
        plugins: Some(plugins),
        plugin_config,
        ..SchedulerProfile::default()
    }];
    configuration.extenders = policy.extenders.into_iter().chain(policy.extender_configs).collect();
    configuration.validate()?;
    Ok(configuration)
}

fn only(enabled: Vec<PluginRef>) -> PluginSet {
    PluginSet { enabled, disabled: vec![PluginRef { name: "*".into(), weight: None }] }
}

fn filters(predicates: &[Named]) -> Result<PluginSet, ConfigurationError> {
    let mut enabled: Vec<PluginRef> = Vec::new();
    let mut enable = |name: &str| {
        if !enabled.iter().any(|plugin| plugin.name == name) {
            enabled.push(PluginRef { name: name.into(), weight: None });
        }
    };
    MANDATORY.iter().for_each(|name| enable(name));
    for predicate in predicates {
        let name = &predicate.name;
        if !predicate.argument.is_null() {
            let message = format!("predicate {name:?}: arguments of predicates have no plugin that takes them");
            return Err(ConfigurationError::Invalid(message));
        }
        let Some((_, plugins)) = PREDICATES.iter().find(|(known, _)| known == name) else {
            return Err(ConfigurationError::Invalid(format!(
                "invalid predicate name {name:?} specified - no corresponding function found"
            )));
        };
        plugins.iter().for_each(|name| enable(name));
    }
    Ok(only(enabled))
}

fn scores(priorities: &[Named], config: &mut Vec<PluginConfig>) -> Result<PluginSet, ConfigurationError> {
    let mut enabled: Vec<PluginRef> = Vec::new();
    for Named { name, weight, argument } in priorities {
        let Some((_, plugins)) = PRIORITIES.iter().find(|(known, _)| known == name) else {
            return Err(ConfigurationError::Invalid(format!(
                "invalid priority name {name} specified - no corresponding function found"
            )));
        };
        if *weight <= 0 {
            let message = format!("priority {name} should have a positive weight applied to it or it has overflown");
            return Err(ConfigurationError::Invalid(message));
        }
        for plugin in *plugins {
            match enabled.iter_mut().find(|enabled| enabled.name == *plugin) {
                // Two priorities that one plug-in took over count together.
                Some(enabled) => enabled.weight = Some(enabled.weight.unwrap_or(0) + weight),
                None => enabled.push(PluginRef { name: (*plugin).into(), weight: Some(*weight) }),
            }
        }
        if let Some(strategy) = strategy(name, argument) {
            config.push(PluginConfig { name: "NodeResourcesFit".into(), args: json!({"scoringStrategy": strategy}) });
        }
    }
    Ok(only(enabled))
}

fn strategy(priority: &str, argument: &Value) -> Option<Value> {
    match priority {
        "MostRequestedPriority" => Some(json!({"type": "MostAllocated"})),
        "RequestedToCapacityRatioPriority" => {
            let given = &argument["requestedToCapacityRatioArguments"];
            Some(json!({
                "type": "RequestedToCapacityRatio",
                "resources": given["resources"].as_array().cloned().unwrap_or_default(),
                "requestedToCapacityRatio": {"shape": given["shape"].as_array().cloned().unwrap_or_default()},
            }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::build;
    use super::*;
    use crate::framework::Point;
    use crate::plugins::Context;
    use std::sync::Arc;

    #[test]
    fn old_names_become_plugins() {
        let text = r#"{"kind": "Policy", "apiVersion": "v1",
            "predicates": [{"name": "PodFitsHostPorts"}, {"name": "PodFitsResources"}, {"name": "NoDiskConflict"},
                {"name": "MatchNodeSelector"}, {"name": "HostName"}],
            "priorities": [{"name": "LeastRequestedPriority", "weight": 1}, {"name": "BalancedResourceAllocation", "weight": 1},
                {"name": "ServiceSpreadingPriority", "weight": 1}, {"name": "EqualPriority", "weight": 1}],
            "extenders": [{"urlPrefix": "http://localhost/", "filterVerb": "filter", "httpTimeout": 100000000}]}"#;
        let configuration = parse(text).unwrap();
        assert_eq!(configuration.extenders.len(), 1);
        let context = Context { catalogue: Arc::default(), client: None, volumes: None, ignored_resources: Vec::new() };
        let profiles = build(&configuration, &context).unwrap();
        let profile = profiles.of(&Default::default()).unwrap();
        let filters: Vec<_> = profile.at(Point::Filter).map(|plugin| plugin.name()).collect();
        assert_eq!(
            filters,
            [
                "TaintToleration",
                "NodeUnschedulable",
                "NodePorts",
                "NodeResourcesFit",
                "VolumeRestrictions",
                "NodeAffinity",
                "NodeName"
            ]
        );
        let scorers: Vec<_> = profile.scorers.iter().map(|scorer| scorer.plugin.name()).collect();
        assert_eq!(scorers, ["NodeResourcesFit", "NodeResourcesBalancedAllocation", "PodTopologySpread"]);
        for (text, expected) in [
            (r#"{"kind": "Policy", "predicates": [{"name": "X"}]}"#, "invalid predicate name \"X\""),
            (r#"{"kind": "Policy", "priorities": [{"name": "ImageLocalityPriority"}]}"#, "positive weight"),
        ] {
            assert!(parse(text).unwrap_err().to_string().contains(expected), "{text}");
        }
    }
}
