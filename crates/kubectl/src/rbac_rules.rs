//! Comparing RBAC rules: which single permissions one list of rules does not give (upstream's `validation.Covers`).

use api::sort::CompactSort as _;
use serde_json::{Value, json};

use crate::objects::strings;

/// The single permissions of `wanted` that no rule of `owned` gives.
pub(crate) fn uncovered(owned: &[Value], wanted: &[Value]) -> Vec<Value> {
    wanted.iter().flat_map(break_down).filter(|single| !owned.iter().any(|rule| covers(rule, single))).collect()
}

/// Single permissions with their verbs together again, in upstream's order.
pub(crate) fn compact(rules: &[Value]) -> Vec<Value> {
    let mut out: Vec<Value> = Vec::new();
    for single in rules.iter().flat_map(break_down) {
        let same =
            |other: &Value| ["apiGroups", "resources", "resourceNames"].iter().all(|key| other[*key] == single[*key]);
        let is_url = single["nonResourceURLs"].is_array();
        match out.iter_mut().find(|other| !is_url && !other["nonResourceURLs"].is_array() && same(other)) {
            Some(known) => {
                let verb = single["verbs"][0].clone();
                if let Some(verbs) = known["verbs"].as_array_mut().filter(|verbs| !verbs.contains(&verb)) {
                    verbs.push(verb);
                }
            }
            None => out.push(single),
        }
    }
    let words = |rule: &Value, key: &str| format!("[{}]", strings(&rule[key]).join(" "));
    out.compact_sort_by_cached_key(|rule| {
        ["verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs"].map(|key| words(rule, key))
    });
    out
}

/// One rule per group, resource, verb and name; URLs only combine with verbs.
fn break_down(rule: &Value) -> Vec<Value> {
    let mut out = Vec::new();
    for group in strings(&rule["apiGroups"]) {
        for resource in strings(&rule["resources"]) {
            for verb in strings(&rule["verbs"]) {
                let single = json!({"apiGroups": [group], "resources": [resource], "verbs": [verb]});
                let names = strings(&rule["resourceNames"]);
                if names.is_empty() {
                    out.push(single);
                    continue;
                }
                for name in names {
                    let mut named = single.clone();
                    named["resourceNames"] = json!([name]);
                    out.push(named);
                }
            }
        }
    }
    for url in strings(&rule["nonResourceURLs"]) {
        for verb in strings(&rule["verbs"]) {
            out.push(json!({"nonResourceURLs": [url], "verbs": [verb]}));
        }
    }
    out
}

fn covers(rule: &Value, single: &Value) -> bool {
    let has = |key: &str, wanted: &str| strings(&rule[key]).contains(&wanted);
    let each = |key: &str, given: &dyn Fn(&str) -> bool| strings(&single[key]).iter().all(|s| given(s));
    let names = strings(&rule["resourceNames"]);
    let resource = |wanted: &str| {
        has("resources", "*")
            || has("resources", wanted)
            || wanted.split_once('/').is_some_and(|(_, sub)| has("resources", &format!("*/{sub}")))
    };
    let url = |wanted: &str| {
        strings(&rule["nonResourceURLs"])
            .iter()
            .any(|owned| *owned == wanted || owned.strip_suffix('*').is_some_and(|start| wanted.starts_with(start)))
    };
    each("verbs", &|v| has("verbs", "*") || has("verbs", v))
        && each("apiGroups", &|g| has("apiGroups", "*") || has("apiGroups", g))
        && each("resources", &resource)
        && each("nonResourceURLs", &url)
        && (names.is_empty()
            || (!strings(&single["resourceNames"]).is_empty() && each("resourceNames", &|n| names.contains(&n))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(groups: &[&str], resources: &[&str], verbs: &[&str], names: &[&str]) -> Value {
        json!({"apiGroups": groups, "resources": resources, "verbs": verbs, "resourceNames": names})
    }

    #[test]
    fn what_is_missing_comes_singly() {
        for (owned, wanted, missing) in [
            (rule(&[""], &["pods"], &["get", "list"], &[]), rule(&[""], &["pods"], &["list"], &[]), 0),
            (rule(&[""], &["pods"], &["get"], &[]), rule(&[""], &["pods"], &["get", "list", "watch"], &[]), 2),
            (rule(&["*"], &["*"], &["*"], &[]), rule(&["apps"], &["deployments/scale"], &["update"], &[]), 0),
            (rule(&[""], &["*/log"], &["get"], &[]), rule(&[""], &["pods/log", "pods/exec"], &["get"], &[]), 1),
            (rule(&[""], &["pods"], &["get"], &["a"]), rule(&[""], &["pods"], &["get"], &[]), 1),
            (rule(&[""], &["pods"], &["get"], &[]), rule(&[""], &["pods"], &["get"], &["a"]), 0),
            (rule(&[""], &["pods"], &["get"], &["a"]), rule(&[""], &["pods"], &["get"], &["a", "b"]), 1),
        ] {
            assert_eq!(
                uncovered(std::slice::from_ref(&owned), std::slice::from_ref(&wanted)).len(),
                missing,
                "{owned} {wanted}"
            );
        }
        let urls = |list: &[&str]| json!({"nonResourceURLs": list, "verbs": ["get"]});
        assert_eq!(uncovered(&[urls(&["/healthz/*"])], &[urls(&["/healthz/ping", "/metrics"])]), [urls(&["/metrics"])]);
    }
}
