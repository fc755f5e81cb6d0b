//! Limits and budgets: quotas, limit ranges, disruption budgets, priorities.

use api::sort::CompactSort as _;
use serde_json::Value;

use super::{Writer, joined_labels, plain, selector_text, strings};
use crate::objects::text;

/// What a quota's scope means, in upstream's words.
/// What a quota counts, when not everything, each scope explained after a bullet.
pub(super) fn quota_scopes(quota: &Value, level: usize, bullet: &str, w: &mut Writer) {
    let mut scopes = strings(&quota["spec"]["scopes"]);
    if scopes.is_empty() {
        return;
    }
    scopes.compact_sort();
    w.line(level, format!("Scopes:\t{}", scopes.join(", ")));
    for help in scopes.into_iter().map(scope_text).filter(|t| !t.is_empty()) {
        w.line(level, format!("{bullet}{help}"));
    }
}

fn scope_text(scope: &str) -> &'static str {
    match scope {
        "Terminating" => {
            "Matches all pods that have an active deadline. These pods have a limited lifespan on a node before being actively terminated by the system."
        }
        "NotTerminating" => {
            "Matches all pods that do not have an active deadline. These pods usually include long running pods whose container command is not expected to terminate."
        }
        "BestEffort" => {
            "Matches all pods that do not have resource requirements set. These pods have a best effort quality of service."
        }
        "NotBestEffort" => {
            "Matches all pods that have at least one resource requirement set. These pods have a burstable or guaranteed quality of service."
        }
        _ => "",
    }
}

pub(super) fn quota(object: &Value, w: &mut Writer) {
    w.line(0, format!("Name:\t{}", text(object, "/metadata/name")));
    w.line(0, format!("Namespace:\t{}", text(object, "/metadata/namespace")));
    quota_scopes(object, 0, " * ", w);
    w.line(0, "Resource\tUsed\tHard");
    w.line(0, "--------\t----\t----");
    for (name, hard) in object["status"]["hard"].as_object().into_iter().flatten() {
        let used = match plain(&object["status"]["used"][name]) {
            used if used.is_empty() => "0".to_owned(),
            used => used,
        };
        w.line(0, format!("{name}\t{used}\t{}", plain(hard)));
    }
}

pub(super) fn limit_range(object: &Value, w: &mut Writer) {
    w.line(0, format!("Name:\t{}", text(object, "/metadata/name")));
    w.line(0, format!("Namespace:\t{}", text(object, "/metadata/namespace")));
    w.line(0, "Type\tResource\tMin\tMax\tDefault Request\tDefault Limit\tMax Limit/Request Ratio");
    w.line(0, "----\t--------\t---\t---\t---------------\t-------------\t-----------------------");
    limits(object, "", w);
}

/// A row per type and resource.
pub(super) fn limits(range: &Value, space: &str, w: &mut Writer) {
    const PARTS: [&str; 5] = ["min", "max", "defaultRequest", "default", "maxLimitRequestRatio"];
    for item in range["spec"]["limits"].as_array().into_iter().flatten() {
        let mut names: Vec<&String> = Vec::new();
        for name in PARTS.iter().flat_map(|part| item[*part].as_object().into_iter().flat_map(|m| m.keys())) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        for name in names {
            let cells = PARTS.map(|part| match plain(&item[part][name]) {
                cell if cell.is_empty() => "-".to_owned(),
                cell => cell,
            });
            w.line(0, format!("{space}{}\t{name}\t{}", text(item, "/type"), cells.join("\t")));
        }
    }
}

pub(super) fn disruption_budget(object: &Value, w: &mut Writer) {
    let (spec, status) = (&object["spec"], &object["status"]);
    w.line(0, format!("Name:\t{}", text(object, "/metadata/name")));
    w.line(0, format!("Namespace:\t{}", text(object, "/metadata/namespace")));
    if !spec["minAvailable"].is_null() {
        w.line(0, format!("Min available:\t{}", plain(&spec["minAvailable"])));
    } else if !spec["maxUnavailable"].is_null() {
        w.line(0, format!("Max unavailable:\t{}", plain(&spec["maxUnavailable"])));
    }
    let selector = if spec["selector"].is_null() { "<unset>".to_owned() } else { selector_text(&spec["selector"]) };
    w.line(0, format!("Selector:\t{selector}"));
    w.line(0, "Status:");
    for (title, key) in [
        ("Allowed disruptions", "disruptionsAllowed"),
        ("Current", "currentHealthy"),
        ("Desired", "desiredHealthy"),
        ("Total", "expectedPods"),
    ] {
        w.line(2, format!("{title}:\t{}", status[key].as_i64().unwrap_or(0)));
    }
}

pub(super) fn priority_class(object: &Value, w: &mut Writer) {
    w.line(0, format!("Name:\t{}", text(object, "/metadata/name")));
    w.line(0, format!("Value:\t{}", object["value"].as_i64().unwrap_or(0)));
    w.line(0, format!("GlobalDefault:\t{}", object["globalDefault"] == true));
    w.line(0, format!("PreemptionPolicy:\t{}", text(object, "/preemptionPolicy")));
    w.line(0, format!("Description:\t{}", text(object, "/description")));
    w.line(0, format!("Annotations:\t{}", joined_labels(&object["metadata"]["annotations"])));
}
