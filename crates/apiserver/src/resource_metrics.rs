//! `metrics.k8s.io/v1beta1`, answered by this server itself from what kubelets count (`node_usage`). A registration that names a
//! service, such as a metrics-server's, is found before this and takes over.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use api::Status;
use api::quantity::{Format, Quantity};
use api::selector::{FieldSelector, Selector};
use api::time::rfc3339;
use http::{Response, StatusCode};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use registry::MetricsOf;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::accept::{encode, is_table};
use crate::body::Body;
use crate::body::response;
use crate::node_usage::{Rates, Usage, Window};
use crate::state::{Operation, State};

const API_VERSION: &str = "metrics.k8s.io/v1beta1";

/// All that is read of the object whose use was measured.
#[derive(Default, Deserialize)]
struct Known {
    metadata: ObjectMeta,
    spec: Option<KnownSpec>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct KnownSpec {
    node_name: Option<String>,
}

/// One measured node or pod.
struct Item {
    namespace: String,
    name: String,
    labels: Option<BTreeMap<String, String>>,
    end: Timestamp,
    rates: Rates,
}

impl Item {
    fn metadata(&self, now: Timestamp) -> Value {
        let mut metadata = json!({"name": self.name, "creationTimestamp": rfc3339(now)});
        if !self.namespace.is_empty() {
            metadata["namespace"] = json!(self.namespace);
        }
        if let Some(labels) = self.labels.as_ref().filter(|labels| !labels.is_empty()) {
            metadata["labels"] = json!(labels);
        }
        metadata
    }

    fn object(&self, of: MetricsOf, now: Timestamp) -> Value {
        let mut value = json!({
            "metadata": self.metadata(now),
            "timestamp": rfc3339(self.end),
            "window": window(self.rates.length),
        });
        match of {
            MetricsOf::Nodes => value["usage"] = usage(&self.rates.total()),
            MetricsOf::Pods => {
                let containers = self.rates.containers.iter();
                value["containers"] =
                    containers.map(|(name, used)| json!({"name": name, "usage": usage(used)})).collect();
            }
        }
        value
    }

    fn row(&self, now: Timestamp) -> Value {
        let total = self.rates.total();
        let object = json!({
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": self.metadata(now),
        });
        json!({"cells": [self.name, cpu(&total), memory(&total), window(self.rates.length)], "object": object})
    }
}

fn window(length: Duration) -> String {
    api::duration::format(Duration::from_millis(u64::try_from(length.as_millis()).unwrap_or(u64::MAX)))
}

fn cpu(usage: &Usage) -> String {
    format!("{}n", usage.cpu).parse::<Quantity>().unwrap_or_default().to_string()
}

fn memory(usage: &Usage) -> String {
    Quantity::new(i64::try_from(usage.memory).unwrap_or(i64::MAX), Format::BinarySI).to_string()
}

fn usage(usage: &Usage) -> Value {
    json!({"cpu": cpu(usage), "memory": memory(usage)})
}

pub(crate) async fn serve(operation: &Operation, of: MetricsOf) -> Result<Response<Body>, Status> {
    let info = &operation.info;
    let parse = |name: &str| info.query.get(name).unwrap_or_default();
    let labels = Selector::parse(parse("labelSelector")).map_err(|error| Status::bad_request(error.to_string()))?;
    let fields =
        FieldSelector::parse(parse("fieldSelector")).map_err(|error| Status::bad_request(error.to_string()))?;
    if let Some(term) =
        fields.terms().iter().find(|term| !matches!(&*term.field, "metadata.name" | "metadata.namespace"))
    {
        return Err(Status::bad_request(format!("field label not supported: {}", term.field)));
    }
    let mut items = measured(operation, of).await?;
    let now = operation.now;
    let value = if info.verb == registry::Verb::List {
        items.retain(|item| {
            let field = |name: &str| if name == "metadata.name" { item.name.clone() } else { item.namespace.clone() };
            labels.matches(item.labels.as_ref()) && fields.matches(field)
        });
        match is_table(&operation.accept) {
            true => table(&items, now),
            false => {
                let kind = match of {
                    MetricsOf::Nodes => "NodeMetricsList",
                    MetricsOf::Pods => "PodMetricsList",
                };
                let items: Vec<Value> = items.iter().map(|item| item.object(of, now)).collect();
                json!({"kind": kind, "apiVersion": API_VERSION, "metadata": {}, "items": items})
            }
        }
    } else {
        items.retain(|item| item.name == info.name);
        let Some(item) = items.first() else { return Err(operation.not_found(&info.name)) };
        match is_table(&operation.accept) {
            true => table(&items, now),
            false => {
                let mut value = item.object(of, now);
                value["kind"] = json!(&*operation.resource.kind);
                value["apiVersion"] = json!(API_VERSION);
                value
            }
        }
    };
    Ok(response(StatusCode::OK, operation.accept.content_type(), encode(&operation.accept, &value)?))
}

/// Everything measured in the namespace of the request, in the order of names. What has been deleted meanwhile is left out.
async fn measured(operation: &Operation, of: MetricsOf) -> Result<Vec<Item>, Status> {
    let state = &operation.state;
    let is_complete = |windows: &BTreeMap<String, Window>| match of {
        MetricsOf::Nodes => true,
        MetricsOf::Pods => !lacks_new_pod(state, &operation.info.namespace, operation.now, windows),
    };
    let windows = state.resource_metrics.windows(&state.cluster, is_complete).await;
    let mut items = Vec::new();
    for (node, window) in windows.iter() {
        let mut push = |namespace: &str, name: &str, rates: &Rates| {
            let known: Option<Known> = match of {
                MetricsOf::Nodes => state.objects().part::<Node, _>("", name)?,
                MetricsOf::Pods => state.objects().part::<Pod, _>(namespace, name)?,
            };
            let Some(known) = known else { return Ok::<_, Status>(()) };
            // A node speaks for its own pods only.
            let runs_here = known.spec.and_then(|spec| spec.node_name).as_ref() == Some(node);
            if of == MetricsOf::Pods && !runs_here {
                return Ok(());
            }
            items.push(Item {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                labels: known.metadata.labels,
                end: window.end,
                rates: rates.clone(),
            });
            Ok(())
        };
        match of {
            MetricsOf::Nodes => {
                if let Some(rates) = &window.node {
                    push("", node, rates)?;
                }
            }
            MetricsOf::Pods => {
                let wanted = &operation.info.namespace;
                for ((namespace, name), rates) in &window.pods {
                    if wanted.is_empty() || namespace == wanted {
                        push(namespace, name, rates)?;
                    }
                }
            }
        }
    }
    items.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    Ok(items)
}

/// For so long a pod that runs is new: whoever asks for it need not wait for the next round.
const NEW_POD_AGE: SignedDuration = SignedDuration::from_secs(30);

fn lacks_new_pod(state: &State, namespace: &str, now: Timestamp, windows: &BTreeMap<String, Window>) -> bool {
    let Some(cache) = state.caches.get("pods") else { return false };
    let wanted = Some(namespace).filter(|namespace| !namespace.is_empty());
    let names = windows.values().flat_map(|window| window.pods.keys());
    let names = names.filter(|(namespace, _)| wanted.is_none_or(|wanted| wanted == namespace));
    let measured: HashSet<(&str, &str)> = names.map(|(namespace, name)| (namespace.as_str(), name.as_str())).collect();
    let snapshot = cache.snapshot();
    let mut pods = snapshot.range(wanted, None);
    // Those that have ended are never measured, and there may be many: they are read where they stand.
    pods.any(|pod| !measured.contains(&(pod.namespace(), pod.name())) && is_new(&pod.stored, now))
}

/// Whether a pod, as it is stored, has begun to run a moment ago.
fn is_new(pod: &[u8], now: Timestamp) -> bool {
    let text = |field: &str| crate::json::find(pod, &["status", field]).map(|range| crate::json::text(&pod[range]));
    let started = text("startTime").and_then(|text| text.parse::<Timestamp>().ok());
    text("phase").is_some_and(|phase| phase == "Running")
        // Clocks differ, and a time that is yet to come would be new until then.
        && started.is_some_and(|started| now.duration_since(started).abs() < NEW_POD_AGE)
}

fn table(items: &[Item], now: Timestamp) -> Value {
    let column = |name: &str, format: &str, description: &str| json!({"name": name, "type": "string", "format": format, "description": description, "priority": 0});
    let columns = [
        column("Name", "name", "Name of what was measured."),
        column("cpu", "", "Cores in use, over the window."),
        column("memory", "", "Memory in use at its end."),
        column("Window", "duration", "How long was measured."),
    ];
    let rows: Vec<Value> = items.iter().map(|item| item.row(now)).collect();
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {}, "columnDefinitions": columns, "rows": rows,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_new_for_a_while() {
        let now = Timestamp::from_second(1000).unwrap();
        for (started, phase, expected) in [
            (1000, "Running", true),
            (975, "Running", true),
            (960, "Running", false),
            (1000, "Pending", false),
            (5000, "Running", false),
        ] {
            let time = Timestamp::from_second(started).unwrap().to_string();
            let pod = json!({"metadata": {}, "status": {"phase": phase, "startTime": time}}).to_string();
            assert_eq!(is_new(pod.as_bytes(), now), expected, "{started} {phase}");
        }
        assert!(!is_new(b"{\"metadata\":{},\"status\":{\"phase\":\"Running\"}}", now));
    }
}
