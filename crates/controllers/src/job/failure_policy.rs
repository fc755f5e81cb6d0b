//! `podFailurePolicy`: what a failed pod means for its Job.

use api::cached::{ContainerStatus, Pod};
use api::meta::Meta as _;
use k8s_openapi::api::batch::v1::{PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyRule};

/// What the first matching rule says about a failed pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Counts towards the backoff limit.
    Count,
    Ignore,
    FailIndex,
    /// Ends the Job, with this message.
    FailJob(String),
}

/// The pod must have failed.
pub(super) fn judge(policy: Option<&PodFailurePolicy>, pod: &Pod) -> Verdict {
    match first_match(policy, pod) {
        Some((rule, message)) => match rule.action.as_str() {
            "Ignore" => Verdict::Ignore,
            "FailIndex" => Verdict::FailIndex,
            "FailJob" => Verdict::FailJob(message),
            _ => Verdict::Count,
        },
        None => Verdict::Count,
    }
}

/// The action of the rule that decides about a failed pod, if any does.
pub(super) fn action<'a>(policy: Option<&'a PodFailurePolicy>, pod: &Pod) -> Option<&'a str> {
    first_match(policy, pod).map(|(rule, _)| rule.action.as_str())
}

fn first_match<'a>(policy: Option<&'a PodFailurePolicy>, pod: &Pod) -> Option<(&'a PodFailurePolicyRule, String)> {
    let rules = policy.map(|policy| policy.rules.as_slice()).unwrap_or_default();
    rules.iter().enumerate().find_map(|(number, rule)| Some((rule, matches(rule, number, pod)?)))
}

fn matches(rule: &PodFailurePolicyRule, number: usize, pod: &Pod) -> Option<String> {
    let (namespace, name) = (pod.metadata.namespace(), pod.metadata.name());
    let status = pod.status.as_ref()?;
    let action = &rule.action;
    if let Some(codes) = &rule.on_exit_codes {
        let statuses =
            status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
        let (container, code) =
            statuses.filter_map(|container| exit_code(container, codes).map(|code| (container, code))).next()?;
        return Some(format!(
            "Container {} for pod {namespace}/{name} failed with exit code {code} matching {action} rule at index {number}",
            container.name()
        ));
    }
    let condition = status.conditions.iter().flatten().find(|condition| {
        rule.on_pod_conditions.iter().flatten().any(|pattern| {
            pattern.type_ == condition.type_ && pattern.status.as_deref().unwrap_or("True") == condition.status
        })
    })?;
    Some(format!("Pod {namespace}/{name} has condition {} matching {action} rule at index {number}", condition.type_))
}

fn exit_code(container: &ContainerStatus, wanted: &PodFailurePolicyOnExitCodesRequirement) -> Option<i32> {
    let terminated = container.state.as_ref()?.terminated.as_ref()?;
    let code = terminated.exit_code;
    let named = wanted.container_name.as_ref().is_none_or(|name| name == container.name());
    let listed = wanted.values.contains(&code);
    // Success is never a reason, whatever the list says.
    (named && code != 0 && listed == (wanted.operator == "In")).then_some(code)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::batch::v1::PodFailurePolicyOnPodConditionsPattern;
    use k8s_openapi::api::core::v1::{
        ContainerState, ContainerStateTerminated, ContainerStatus as CompleteContainerStatus, PodCondition,
    };

    use super::*;
    use crate::pods::tests::Builder;

    fn failed(code: i32, condition: Option<&str>) -> Pod {
        let mut pod = Builder::new("p").phase("Failed").0;
        let status = pod.status.get_or_insert_default();
        let terminated = ContainerStateTerminated { exit_code: code, ..Default::default() };
        status.container_statuses = Some(vec![CompleteContainerStatus {
            name: "main".into(),
            state: Some(ContainerState { terminated: Some(terminated), ..Default::default() }),
            ..Default::default()
        }]);
        status.conditions = condition
            .map(|kind| vec![PodCondition { type_: kind.into(), status: "True".into(), ..Default::default() }]);
        pod.into()
    }

    #[test]
    fn the_first_matching_rule_decides() {
        let codes = |operator: &str, values: &[i32], action: &str| PodFailurePolicyRule {
            action: action.into(),
            on_exit_codes: Some(PodFailurePolicyOnExitCodesRequirement {
                operator: operator.into(),
                values: values.to_vec(),
                container_name: None,
            }),
            on_pod_conditions: None,
        };
        let disruption = PodFailurePolicyRule {
            action: "Ignore".into(),
            on_exit_codes: None,
            on_pod_conditions: Some(vec![PodFailurePolicyOnPodConditionsPattern {
                type_: "DisruptionTarget".into(),
                status: Some("True".into()),
            }]),
        };
        let policy = PodFailurePolicy {
            rules: vec![disruption, codes("In", &[42], "FailJob"), codes("NotIn", &[1], "FailIndex")],
        };
        for (pod, expected) in [
            (failed(42, Some("DisruptionTarget")), Verdict::Ignore),
            (
                failed(42, None),
                Verdict::FailJob(
                    "Container main for pod default/p failed with exit code 42 matching FailJob rule at index 1".into(),
                ),
            ),
            (failed(7, None), Verdict::FailIndex),
            (failed(1, None), Verdict::Count),
            (failed(0, None), Verdict::Count),
        ] {
            assert_eq!(judge(Some(&policy), &pod), expected);
        }
        assert_eq!(judge(None, &failed(42, None)), Verdict::Count);
        assert_eq!(action(Some(&policy), &failed(7, None)), Some("FailIndex"));
        assert_eq!(action(Some(&policy), &failed(1, None)), None, "no rule decides");
    }
}
