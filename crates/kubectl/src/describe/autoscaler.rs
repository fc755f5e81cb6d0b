//! Autoscalers, in their newest version whatever was asked for.

use serde_json::Value;

use super::{Writer, plain, time, write_meta};
use crate::context::Context;
use crate::objects::text;
use crate::request::Request;

pub(super) async fn describe(cx: &Context, given: &Value, w: &mut Writer) {
    let (namespace, name) = (text(given, "/metadata/namespace"), text(given, "/metadata/name"));
    let path = format!("/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers/{name}");
    let newest = if given["apiVersion"] == "autoscaling/v2" { None } else { Request::get(path).value(cx).await.ok() };
    let hpa = newest.as_ref().unwrap_or(given);
    let (spec, status) = (&hpa["spec"], &hpa["status"]);
    write_meta(w, hpa);
    w.line(0, format!("CreationTimestamp:\t{}", time(&hpa["metadata"]["creationTimestamp"])));
    let kind = text(spec, "/scaleTargetRef/kind");
    w.line(0, format!("Reference:\t{kind}/{}", text(spec, "/scaleTargetRef/name")));
    if hpa["apiVersion"] == "autoscaling/v1" {
        if let Some(target) = spec["targetCPUUtilizationPercentage"].as_i64() {
            w.line(0, format!("Target CPU utilization:\t{target}%"));
            let current = plain(&status["currentCPUUtilizationPercentage"]);
            let current = if current.is_empty() { "<unknown>" } else { &current };
            w.line(0, format!("Current CPU utilization:\t{current}%"));
        }
    } else {
        w.line(0, "Metrics:\t( current / target )");
        for (i, metric) in spec["metrics"].as_array().into_iter().flatten().enumerate() {
            w.line(1, metric_line(metric, &status["currentMetrics"][i]));
        }
    }
    let minimum = spec["minReplicas"].as_i64().map_or_else(|| "<unset>".to_owned(), |n| n.to_string());
    w.line(0, format!("Min replicas:\t{minimum}"));
    w.line(0, format!("Max replicas:\t{}", spec["maxReplicas"].as_i64().unwrap_or(0)));
    if spec["behavior"].is_object() {
        w.line(0, "Behavior:");
        behaviour(w, "Scale Up", &spec["behavior"]["scaleUp"]);
        behaviour(w, "Scale Down", &spec["behavior"]["scaleDown"]);
    }
    let count = |key: &str| status[key].as_i64().unwrap_or(0);
    w.line(0, format!("{kind} pods:\t{} current / {} desired", count("currentReplicas"), count("desiredReplicas")));
    if let Some(conditions) = status["conditions"].as_array().filter(|c| !c.is_empty()) {
        w.line(0, "Conditions:");
        w.line(1, "Type\tStatus\tReason\tMessage");
        w.line(1, "----\t------\t------\t-------");
        for c in conditions {
            let cell = |key: &str| text(c, key).to_owned();
            w.line(1, [cell("/type"), cell("/status"), cell("/reason"), cell("/message")].join("\t"));
        }
    }
}

fn metric_line(metric: &Value, current: &Value) -> String {
    let known = |value: &Value| match plain(value) {
        v if v.is_empty() => "<unknown>".to_owned(),
        v => v,
    };
    let percentage = |source: &Value, now: &Value, title: String| {
        let target = &source["target"];
        if !target["averageValue"].is_null() {
            return format!("{title}:\t{} / {}", known(&now["averageValue"]), plain(&target["averageValue"]));
        }
        let now = match now["averageUtilization"].as_i64() {
            Some(percent) => format!("{percent}% ({})", plain(&now["averageValue"])),
            None => "<unknown>".to_owned(),
        };
        let target = target["averageUtilization"].as_i64().map_or_else(|| "<auto>".to_owned(), |p| format!("{p}%"));
        format!("{title}  (as a percentage of request):\t{now} / {target}")
    };
    let of_value = |source: &Value, now: &Value, average: bool| {
        let (title, key) = if average { ("target average value", "averageValue") } else { ("target value", "value") };
        format!("({title}):\t{} / {}", known(&now[key]), plain(&source["target"][key]))
    };
    match text(metric, "/type") {
        "External" => {
            let source = &metric["external"];
            let average = !source["target"]["averageValue"].is_null();
            let name = text(source, "/metric/name");
            format!("\"{name}\" {}", of_value(source, &current["external"]["current"], average))
        }
        "Pods" => {
            let source = &metric["pods"];
            let now = known(&current["pods"]["current"]["averageValue"]);
            format!(
                "\"{}\" on pods:\t{now} / {}",
                text(source, "/metric/name"),
                plain(&source["target"]["averageValue"])
            )
        }
        "Object" => {
            let source = &metric["object"];
            let average = source["target"]["type"] == "AverageValue";
            let (kind, name) = (text(source, "/describedObject/kind"), text(source, "/describedObject/name"));
            let metric = text(source, "/metric/name");
            format!("\"{metric}\" on {kind}/{name} {}", of_value(source, &current["object"]["current"], average))
        }
        "Resource" => {
            let source = &metric["resource"];
            percentage(source, &current["resource"]["current"], format!("resource {} on pods", text(source, "/name")))
        }
        "ContainerResource" => {
            let source = &metric["containerResource"];
            let title =
                format!("resource {} of container \"{}\" on pods", text(source, "/name"), text(source, "/container"));
            percentage(source, &current["containerResource"]["current"], title)
        }
        other => format!("<unknown metric type \"{other}\">"),
    }
}

fn behaviour(w: &mut Writer, title: &str, rules: &Value) {
    if !rules.is_object() {
        return;
    }
    w.line(1, format!("{title}:"));
    if let Some(seconds) = rules["stabilizationWindowSeconds"].as_i64() {
        w.line(2, format!("Stabilization Window: {seconds} seconds"));
    }
    let Some(policies) = rules["policies"].as_array().filter(|p| !p.is_empty()) else { return };
    w.line(2, format!("Select Policy: {}", rules["selectPolicy"].as_str().unwrap_or("Max")));
    w.line(2, "Policies:");
    for p in policies {
        let number = |key: &str| p[key].as_i64().unwrap_or(0);
        let (value, period) = (number("value"), number("periodSeconds"));
        w.line(3, format!("- Type: {}\tValue: {value}\tPeriod: {period} seconds", text(p, "/type")));
    }
}
