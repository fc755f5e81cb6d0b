//! What a Job does about pods that fail and when it counts as done early.

use std::collections::BTreeSet;

use api::field::{FieldError, FieldErrors, Path, quote};
use k8s_openapi::api::batch::v1::{
    JobSpec, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyOnPodConditionsPattern, PodFailurePolicyRule,
    SuccessPolicyRule,
};

use crate::unset::{items, or_empty, text};

const MAX_RULES: usize = 20;
const MAX_PATTERNS: usize = 20;
const MAX_EXIT_CODES: usize = 255;
const MAX_INDEXES_LENGTH: usize = 64 * 1024;

const ACTIONS: &[&str] = &["Count", "FailIndex", "FailJob", "Ignore"];
const OPERATORS: &[&str] = &["In", "NotIn"];
const STATUSES: &[&str] = &["False", "True", "Unknown"];

pub(super) fn validate(errors: &mut FieldErrors, path: &Path<'_>, spec: &JobSpec) {
    if let Some(policy) = &spec.pod_failure_policy {
        let path = path.child("podFailurePolicy.rules");
        at_most(errors, &path, policy.rules.len(), MAX_RULES);
        for (i, rule) in policy.rules.iter().enumerate() {
            failure_rule(errors, &path.index(i), spec, rule);
        }
    }
    if let Some(policy) = &spec.success_policy {
        let path = path.child("successPolicy");
        if or_empty(&spec.completion_mode) != "Indexed" {
            errors.invalid(path, policy, "requires indexed completion mode");
        } else {
            let path = path.child("rules");
            if policy.rules.is_empty() {
                errors.required(path, "at least one rules must be specified when the successPolicy is specified");
            }
            at_most(errors, &path, policy.rules.len(), MAX_RULES);
            for (i, rule) in policy.rules.iter().enumerate() {
                success_rule(errors, &path.index(i), spec.completions.unwrap_or(0), rule);
            }
        }
    }
    if let Some(policy) = text(&spec.pod_replacement_policy) {
        let supported: &[&str] = match spec.pod_failure_policy {
            Some(_) => &["Failed"],
            None => &["Failed", "TerminatingOrFailed"],
        };
        if !supported.contains(&policy) {
            errors.not_supported(path.child("podReplacementPolicy"), policy, supported);
        }
    }
}

fn at_most(errors: &mut FieldErrors, path: &Path<'_>, count: usize, max: usize) {
    if count > max {
        errors.too_many(path, count, max);
    }
}

/// A word that must be there and be one of these.
fn choice(errors: &mut FieldErrors, path: &Path<'_>, word: &str, supported: &[&str]) {
    if word.is_empty() {
        let listed: Vec<String> = supported.iter().map(|word| quote(word)).collect();
        errors.required(path, format!("valid values: [{}]", listed.join(" ")));
    } else if !supported.contains(&word) {
        errors.not_supported(path, word, supported);
    }
}

/// Refused as a whole: upstream shows no value.
pub(super) fn refuse(errors: &mut FieldErrors, path: &Path<'_>, detail: &str) {
    errors.push(FieldError { value: None, ..FieldError::invalid(path, "", detail) });
}

fn failure_rule(errors: &mut FieldErrors, path: &Path<'_>, spec: &JobSpec, rule: &PodFailurePolicyRule) {
    if rule.action == "FailIndex" && spec.backoff_limit_per_index.is_none() {
        errors.invalid(path.child("action"), &rule.action, "requires the backoffLimitPerIndex to be set");
    } else {
        choice(errors, &path.child("action"), &rule.action, ACTIONS);
    }
    if let Some(codes) = &rule.on_exit_codes {
        exit_codes(errors, &path.child("onExitCodes"), spec, codes);
    }
    let patterns = items(&rule.on_pod_conditions);
    let place = path.child("onPodConditions");
    at_most(errors, &place, patterns.len(), MAX_PATTERNS);
    for (i, pattern) in patterns.iter().enumerate() {
        condition(errors, &place.index(i), pattern);
    }
    match (rule.on_exit_codes.is_some(), !patterns.is_empty()) {
        (true, true) => refuse(errors, path, "specifying both OnExitCodes and OnPodConditions is not supported"),
        (false, false) => refuse(errors, path, "specifying one of OnExitCodes and OnPodConditions is required"),
        _ => {}
    }
}

fn condition(errors: &mut FieldErrors, path: &Path<'_>, pattern: &PodFailurePolicyOnPodConditionsPattern) {
    errors.invalid_each(path.child("type"), &pattern.type_, api::validation::qualified_name(&pattern.type_));
    choice(errors, &path.child("status"), or_empty(&pattern.status), STATUSES);
}

fn exit_codes(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    spec: &JobSpec,
    codes: &PodFailurePolicyOnExitCodesRequirement,
) {
    choice(errors, &path.child("operator"), &codes.operator, OPERATORS);
    if let Some(name) = &codes.container_name {
        let pod = spec.template.spec.as_ref();
        let mut containers = pod.into_iter().flat_map(|pod| pod.containers.iter().chain(items(&pod.init_containers)));
        if !containers.any(|container| container.name == *name) {
            let detail = "must be one of the container or initContainer names in the pod template";
            errors.invalid(path.child("containerName"), name, detail);
        }
    }
    let path = path.child("values");
    if codes.values.is_empty() {
        errors.invalid(path, &codes.values, "at least one value is required");
    }
    at_most(errors, &path, codes.values.len(), MAX_EXIT_CODES);
    let mut seen = BTreeSet::new();
    for (i, code) in codes.values.iter().enumerate() {
        if codes.operator == "In" && *code == 0 {
            errors.invalid(path.index(i), code, "must not be 0 for the In operator");
        }
        if !seen.insert(code) {
            errors.duplicate(path.index(i), code);
        }
    }
    if !codes.values.is_sorted() {
        errors.invalid(path, &codes.values, "must be ordered");
    }
}

fn success_rule(errors: &mut FieldErrors, path: &Path<'_>, completions: i32, rule: &SuccessPolicyRule) {
    if rule.succeeded_count.is_none() && rule.succeeded_indexes.is_none() {
        errors.required(path, "at least one of succeededCount or succeededIndexes must be specified");
    }
    let mut total = 0;
    if let Some(indexes) = &rule.succeeded_indexes {
        let path = path.child("succeededIndexes");
        if indexes.len() > MAX_INDEXES_LENGTH {
            errors.too_long(path, MAX_INDEXES_LENGTH);
        }
        match count_indexes(indexes, completions) {
            Ok(count) => total = count,
            Err(problem) => errors.invalid(path, indexes, format!("error parsing succeededIndexes: {problem}")),
        }
    }
    let Some(count) = rule.succeeded_count else { return };
    let path = path.child("succeededCount");
    if count < 0 {
        errors.invalid(path, count, "must be greater than or equal to 0");
    }
    if count > completions {
        let limit = format!("must be less than or equal to {completions} (the number of specified completions)");
        errors.invalid(path, count, limit);
    }
    if rule.succeeded_indexes.is_some() && count > total {
        let limit = format!(
            "must be less than or equal to {total} (the number of indexes in the specified succeededIndexes field)"
        );
        errors.invalid(path, count, limit);
    }
}

/// What is wrong with a text of indexes.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadIndexes {
    #[error("cannot convert string to integer for index: {}", quote(.0))]
    NoNumber(String),
    #[error("too large index: {}", quote(.0))]
    TooLarge(String),
    #[error("non-increasing order, previous: {before}, current: {now}")]
    Order { before: i32, now: i32 },
    #[error("the fragment {} violates the requirement that an index interval can have at most two parts separated by '-'", quote(.0))]
    Parts(String),
}

/// How many indexes `1,3-5,7` names; they only go up, and below the number of completions.
pub(super) fn count_indexes(text: &str, completions: i32) -> Result<i32, BadIndexes> {
    let (mut total, mut last) = (0, None);
    for interval in indexes(text, completions) {
        let (first, end) = interval?;
        if let Some(before) = last.filter(|last| *last >= first) {
            return Err(BadIndexes::Order { before, now: first });
        }
        total += end - first + 1;
        last = Some(end);
    }
    Ok(total)
}

/// The intervals in a text of indexes, each with its first and its last.
pub(super) fn indexes(text: &str, completions: i32) -> impl Iterator<Item = Result<(i32, i32), BadIndexes>> {
    let number = move |text: &str| match text.parse::<i32>() {
        Err(_) => Err(BadIndexes::NoNumber(text.to_owned())),
        Ok(number) if number >= completions => Err(BadIndexes::TooLarge(text.to_owned())),
        Ok(number) => Ok(number),
    };
    text.split(',').filter(move |_| !text.is_empty()).map(move |interval| {
        match *interval.split('-').collect::<Vec<_>>().as_slice() {
            [one] => number(one).map(|index| (index, index)),
            [first, end] => match (number(first)?, number(end)?) {
                (before, now) if before >= now => Err(BadIndexes::Order { before, now }),
                interval => Ok(interval),
            },
            _ => Err(BadIndexes::Parts(interval.to_owned())),
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn refused(spec: Value) -> String {
        let mut spec = spec;
        spec["template"] = json!({"spec": {"containers": [{"name": "c"}]}});
        let spec: JobSpec = serde_json::from_value(spec).unwrap();
        let mut errors = FieldErrors::default();
        validate(&mut errors, &Path::new("spec"), &spec);
        errors.to_string()
    }

    #[test]
    fn failure_rules() {
        let rule = |rule: Value| refused(json!({"podFailurePolicy": {"rules": [rule]}}));
        let at = "spec.podFailurePolicy.rules[0]";
        let codes = |operator: &str, values: &[i32]| json!({"operator": operator, "values": values});
        for (given, expected) in [
            (json!({"action": "FailJob", "onExitCodes": codes("In", &[1, 2])}), "[]".to_owned()),
            (
                json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}),
                "[]".to_owned(),
            ),
            (
                json!({"action": "Ignore"}),
                format!("{at}: Invalid value: specifying one of OnExitCodes and OnPodConditions is required"),
            ),
            (
                json!({"action": "FailIndex", "onExitCodes": codes("In", &[1])}),
                format!("{at}.action: Invalid value: \"FailIndex\": requires the backoffLimitPerIndex to be set"),
            ),
            (
                json!({"action": "FailJob", "onExitCodes": codes("In", &[0])}),
                format!("{at}.onExitCodes.values[0]: Invalid value: 0: must not be 0 for the In operator"),
            ),
            (
                json!({"action": "FailJob", "onExitCodes": codes("NotIn", &[2, 1])}),
                format!("{at}.onExitCodes.values: Invalid value: [2,1]: must be ordered"),
            ),
        ] {
            assert_eq!(rule(given.clone()), expected, "{given}");
        }
    }

    #[test]
    fn success_rules() {
        for (indexes, expected) in [
            ("0,2-4", Ok(4)),
            ("", Ok(0)),
            ("4-2", Err("non-increasing order, previous: 4, current: 2")),
            ("3,3", Err("non-increasing order, previous: 3, current: 3")),
            ("9", Err("too large index: \"9\"")),
            ("x", Err("cannot convert string to integer for index: \"x\"")),
        ] {
            assert_eq!(
                count_indexes(indexes, 5).map_err(|problem| problem.to_string()),
                expected.map_err(str::to_owned),
                "{indexes}"
            );
        }
        let rule = json!({"completionMode": "Indexed", "completions": 3, "successPolicy": {"rules": [{"succeededIndexes": "0-1", "succeededCount": 3}]}});
        assert!(refused(rule).contains("must be less than or equal to 2 (the number of indexes"));
    }
}
