//! `create namespace|quota|poddisruptionbudget|priorityclass`

use serde_json::{Value, json};

use super::{GENERATOR, finish, known, name_argument};
use crate::cli::{Command, Flag};
use crate::context::Context;
use crate::failure::{Failure, Result};

pub(super) const NAMESPACE: Command = Command {
    name: "namespace",
    aliases: &["ns"],
    usage: "NAME [--dry-run=server|client|none]",
    about: "Create a namespace with the specified name",
    flags: &[GENERATOR],
    run: Some(|cx| Box::pin(namespace(cx))),
    ..Command::EMPTY
};
pub(super) const QUOTA: Command = Command {
    name: "quota",
    aliases: &["resourcequota"],
    usage: "NAME [--hard=key1=value1,key2=value2] [--scopes=Scope1,Scope2] [--dry-run=server|client|none]",
    about: "Create a quota with the specified name",
    flags: &[
        GENERATOR,
        &[
            Flag::string("hard", "Resource=quantity pairs, separated by commas."),
            Flag::string("scopes", "Scopes, separated by commas."),
        ],
    ],
    run: Some(|cx| Box::pin(quota(cx))),
    ..Command::EMPTY
};
pub(super) const POD_DISRUPTION_BUDGET: Command = Command {
    name: "poddisruptionbudget",
    aliases: &["pdb"],
    usage: "NAME --selector=SELECTOR --min-available=N [--dry-run=server|client|none]",
    about: "Create a pod disruption budget with the specified name",
    flags: &[
        GENERATOR,
        &[
            Flag::string("min-available", "Number or percentage of pods that must stay."),
            Flag::string("max-unavailable", "Number or percentage of pods that may go."),
            Flag::string("selector", "Label selector of the pods."),
        ],
    ],
    run: Some(|cx| Box::pin(budget(cx))),
    ..Command::EMPTY
};
pub(super) const PRIORITY_CLASS: Command = Command {
    name: "priorityclass",
    aliases: &["pc"],
    usage: "NAME --value=VALUE --global-default=BOOL [--dry-run=server|client|none]",
    about: "Create a priority class with the specified name",
    flags: &[
        GENERATOR,
        &[
            Flag::int("value", "0", "The priority."),
            Flag::bool("global-default", "Make this the default of pods without a class."),
            Flag::string("description", "When to use the class."),
            Flag::string("preemption-policy", "Never or PreemptLowerPriority.").default("PreemptLowerPriority"),
        ],
    ],
    run: Some(|cx| Box::pin(priority_class(cx))),
    ..Command::EMPTY
};

async fn namespace(cx: &Context) -> Result<()> {
    let name = name_argument(cx)?;
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}, "spec": {}, "status": {}});
    finish(cx, &known("v1", "namespaces", "Namespace", false), object, "").await
}

async fn quota(cx: &Context) -> Result<()> {
    let name = name_argument(cx)?;
    let mut spec = json!({});
    let hard = cx.flags.string("hard");
    if !hard.is_empty() {
        let pairs = crate::commands::set::quantities(&hard)?;
        spec["hard"] = Value::Object(pairs.into_iter().map(|(k, v)| (k, json!(v))).collect());
    }
    let scopes = cx.flags.string("scopes");
    if !scopes.is_empty() {
        let scopes: Vec<&str> = scopes.split(',').collect();
        if scopes.contains(&"") {
            return Err(Failure::message("invalid resource quota scope \"\""));
        }
        spec["scopes"] = json!(scopes);
    }
    let object =
        json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": spec, "status": {}});
    finish(cx, &known("v1", "resourcequotas", "ResourceQuota", true), object, "failed to create quota:").await
}

async fn budget(cx: &Context) -> Result<()> {
    let name = name_argument(cx)?;
    let (selector, min, max) =
        (cx.flags.string("selector"), cx.flags.string("min-available"), cx.flags.string("max-unavailable"));
    if selector.is_empty() {
        return Err(Failure::message("a selector must be specified"));
    }
    let (field, value, flag) = match (min.is_empty(), max.is_empty()) {
        (true, true) => return Err(Failure::message("one of min-available or max-unavailable must be specified")),
        (false, false) => {
            return Err(Failure::message("min-available and max-unavailable cannot be both specified"));
        }
        (false, true) => ("minAvailable", min, "min-available"),
        (true, false) => ("maxUnavailable", max, "max-unavailable"),
    };
    let number = match value.parse::<i64>() {
        Ok(n) => json!(n),
        Err(_) if api::validation::percent(&value).is_empty() => json!(value),
        Err(_) => return Err(Failure::message(format!("invalid format specified for {flag}"))),
    };
    let object = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name},
        "spec": {"selector": label_selector(&selector)?, field: number},
        "status": {"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0},
    });
    let mapping = known("policy/v1", "poddisruptionbudgets", "PodDisruptionBudget", true);
    finish(cx, &mapping, object, "failed to create poddisruptionbudgets:").await
}

/// `a=b,c in (d,e)` as a LabelSelector object.
pub(crate) fn label_selector(text: &str) -> Result<Value> {
    let (mut labels, mut expressions) = (serde_json::Map::new(), Vec::new());
    let invalid = || Failure::message(format!("couldn't parse the selector string \"{text}\""));
    let mut rest = text;
    while !rest.is_empty() {
        // A parenthesised set may contain commas.
        let end = match (rest.find(','), rest.find('(')) {
            (Some(comma), Some(open)) if open < comma => rest.find(')').map(|c| c + 1).ok_or_else(invalid)?,
            (Some(comma), _) => comma,
            (None, _) => rest.len(),
        };
        let term = rest[..end].trim();
        rest = rest[end..].trim_start_matches([',', ' ']);
        let set = |s: &str| -> Vec<String> {
            s.trim().trim_matches(['(', ')']).split(',').map(|v| v.trim().to_owned()).collect()
        };
        if let Some((k, s)) = term.split_once(" notin ") {
            expressions.push(json!({"key": k.trim(), "operator": "NotIn", "values": set(s)}));
        } else if let Some((k, s)) = term.split_once(" in ") {
            expressions.push(json!({"key": k.trim(), "operator": "In", "values": set(s)}));
        } else if let Some((k, v)) = term.split_once("!=") {
            expressions.push(json!({"key": k.trim(), "operator": "NotIn", "values": [v.trim()]}));
        } else if let Some((k, v)) = term.split_once("==").or_else(|| term.split_once('=')) {
            labels.insert(k.trim().to_owned(), json!(v.trim()));
        } else if let Some(k) = term.strip_prefix('!') {
            expressions.push(json!({"key": k.trim(), "operator": "DoesNotExist"}));
        } else {
            expressions.push(json!({"key": term, "operator": "Exists"}));
        }
    }
    let mut out = json!({});
    if !labels.is_empty() {
        out["matchLabels"] = Value::Object(labels);
    }
    if !expressions.is_empty() {
        out["matchExpressions"] = json!(expressions);
    }
    Ok(out)
}

async fn priority_class(cx: &Context) -> Result<()> {
    let name = name_argument(cx)?;
    let mut object = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
        "value": cx.flags.int("value"), "preemptionPolicy": cx.flags.string("preemption-policy"),
    });
    if cx.flags.bool("global-default") {
        object["globalDefault"] = json!(true);
    }
    let description = cx.flags.string("description");
    if !description.is_empty() {
        object["description"] = json!(description);
    }
    let mapping = known("scheduling.k8s.io/v1", "priorityclasses", "PriorityClass", false);
    finish(cx, &mapping, object, "failed to create priorityclass:").await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_parse() {
        for (text, expected) in [
            ("a=b", json!({"matchLabels": {"a": "b"}})),
            (
                "a=b,c in (d,e),!f,g",
                json!({"matchLabels": {"a": "b"}, "matchExpressions": [
                    {"key": "c", "operator": "In", "values": ["d", "e"]},
                    {"key": "f", "operator": "DoesNotExist"}, {"key": "g", "operator": "Exists"}]}),
            ),
        ] {
            assert_eq!(label_selector(text).unwrap(), expected, "{text}");
        }
    }
}
