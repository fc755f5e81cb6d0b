//! `metrics.k8s.io/v1beta1`, answered by this server itself from what kubelets count (`node_usage`). A registration that names a
//! service, such as a metrics-server's, is found before this and takes over.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use api::Status;
use api::quantity::{Format, Quantity};
use api::selector::{FieldSelector, Selector};
use api::sort::CompactSort as _;
use api::time::rfc3339;
use bytes::Bytes;
use http::{Response, StatusCode};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use registry::MetricsOf;
use serde::Serialize;
use serde_json::{Value, json};

use crate::accept::{Accept, Encoding, encode_as, is_table};
use crate::body::Body;
use crate::body::response;
use crate::node_usage::{MAX_WINDOW, Question, Rates, Usage, Window, is_on};
use crate::state::{Operation, State};
use crate::watch_cache::Entry;

const API_VERSION: &str = "metrics.k8s.io/v1beta1";

/// One measured node or pod.
struct Item<'w> {
    /// As it is cached: only its name, labels and node matter.
    of: Arc<Entry>,
    end: Timestamp,
    rates: &'w Rates,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
    creation_timestamp: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<&'a BTreeMap<String, String>>,
}

#[derive(Serialize)]
struct Used {
    cpu: String,
    memory: String,
}

#[derive(Serialize)]
struct Container<'a> {
    name: &'a str,
    usage: Used,
}

/// A NodeMetrics or a PodMetrics. There are as many in a list as there are nodes or pods, so they are written as they are,
/// without a tree of values in between.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Object<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    api_version: Option<&'static str>,
    metadata: Metadata<'a>,
    timestamp: String,
    window: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Used>,
    #[serde(skip_serializing_if = "Option::is_none")]
    containers: Option<Vec<Container<'a>>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct List<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: BTreeMap<String, String>,
    items: Vec<Object<'a>>,
}

impl Item<'_> {
    fn metadata<'a>(&'a self, now: &'a str) -> Metadata<'a> {
        Metadata {
            name: self.of.name(),
            namespace: Some(self.of.namespace()).filter(|namespace| !namespace.is_empty()),
            creation_timestamp: now,
            labels: Some(self.of.labels()).filter(|labels| !labels.is_empty()),
        }
    }

    fn object<'a>(&'a self, of: MetricsOf, now: &'a str) -> Object<'a> {
        let (usage, containers) = match of {
            MetricsOf::Nodes => (Some(used(&self.rates.total())), None),
            MetricsOf::Pods => {
                let containers = self.rates.containers.iter();
                let container = |(name, usage): (&'a String, &'a Usage)| Container { name, usage: used(usage) };
                (None, Some(containers.map(container).collect()))
            }
        };
        Object {
            kind: None,
            api_version: None,
            metadata: self.metadata(now),
            timestamp: rfc3339(self.end),
            window: window(self.rates.length),
            usage,
            containers,
        }
    }

    fn row(&self, now: &str) -> Value {
        let total = self.rates.total();
        let object = json!({
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": self.metadata(now),
        });
        json!({"cells": [self.of.name(), cpu(&total), memory(&total), window(self.rates.length)], "object": object})
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

fn used(usage: &Usage) -> Used {
    Used { cpu: cpu(usage), memory: memory(usage) }
}

fn encoded(accept: &Accept, what: &impl Serialize) -> Result<Bytes, Status> {
    let value = match accept.encoding {
        Encoding::Json => Value::Null,
        Encoding::Yaml | Encoding::Protobuf => serde_json::to_value(what).map_err(Status::internal)?,
    };
    encode_as(accept, &value, what)
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
        let known = "only \"metadata.name\", \"metadata.namespace\"";
        return Err(Status::bad_request(format!("{:?} is not a known field selector: {known}", term.field)));
    }
    let state = &operation.state;
    // A node that became ready a moment ago is asked as well.
    state.caches.fresh().await?;
    let is_complete = |windows: &BTreeMap<String, Window>| match of {
        MetricsOf::Nodes => true,
        MetricsOf::Pods => !lacks_new_pod(state, &info.namespace, operation.now, windows),
    };
    let windows = state.resource_metrics.windows(&state.cluster, Question::CpuAndMemory, MAX_WINDOW, is_complete).await;
    let mut items = measured(state, of, &info.namespace, &windows)?;
    let (accept, now) = (&operation.accept, rfc3339(operation.now));
    let body = if info.verb == registry::Verb::List {
        items.retain(|item| {
            let field = |name: &str| if name == "metadata.name" { item.of.name() } else { item.of.namespace() };
            item.of.is_labelled(&labels) && fields.matches(field)
        });
        let kind = match of {
            MetricsOf::Nodes => "NodeMetricsList",
            MetricsOf::Pods => "PodMetricsList",
        };
        let objects = || items.iter().map(|item| item.object(of, &now)).collect();
        match is_table(accept) {
            true => encoded(accept, &table(&items, &now))?,
            false => {
                encoded(accept, &List { kind, api_version: API_VERSION, metadata: BTreeMap::new(), items: objects() })?
            }
        }
    } else {
        items.retain(|item| item.of.name() == info.name);
        let Some(item) = items.first() else { return Err(operation.not_found(&info.name)) };
        let (kind, api_version) = (Some(&*operation.resource.kind), Some(API_VERSION));
        match is_table(accept) {
            true => encoded(accept, &table(&items, &now))?,
            false => encoded(accept, &Object { kind, api_version, ..item.object(of, &now) })?,
        }
    };
    Ok(response(StatusCode::OK, accept.content_type(), body))
}

/// Everything measured in a namespace, or in all, in the order of names. What has been deleted meanwhile is left out.
fn measured<'w>(
    state: &State,
    of: MetricsOf,
    namespace: &str,
    windows: &'w BTreeMap<String, Window>,
) -> Result<Vec<Item<'w>>, Status> {
    let mut items = Vec::new();
    for (node, window) in windows {
        match of {
            MetricsOf::Nodes => {
                let Some(rates) = &window.node else { continue };
                let known = state.objects().entry::<Node>("", node)?;
                items.extend(known.map(|known| Item { of: known, end: window.end, rates }));
            }
            MetricsOf::Pods => {
                let wanted = window.pods.iter().filter(|((own, _), _)| namespace.is_empty() || own == namespace);
                for ((own, name), rates) in wanted {
                    let known = state.objects().entry::<Pod>(own, name)?;
                    // It was the node's when it was measured, and may be another's by now.
                    let known = known.filter(|known| is_on(known, node));
                    items.extend(known.map(|known| Item { of: known, end: window.end, rates }));
                }
            }
        }
    }
    items.compact_sort_by(|a, b| (a.of.namespace(), a.of.name()).cmp(&(b.of.namespace(), b.of.name())));
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

fn table(items: &[Item<'_>], now: &str) -> Value {
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
