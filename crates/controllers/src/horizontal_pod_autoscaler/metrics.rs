//! Samples from the three metrics APIs, which other servers, or this one, may serve.

use std::time::Duration;

use api::quantity::Quantity;
use client::Client;
use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v2::CrossVersionObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIGroup;
use serde::Deserialize;

use super::error::{Error, Result};
use super::replicas::{Sample, Samples};
use super::target::Resources;

const RESOURCE_METRICS: &str = "resource metrics API";
const CUSTOM_METRICS: &str = "custom metrics API";
const EXTERNAL_METRICS: &str = "external metrics API";
/// What a sample of the custom metrics API covers when it does not say.
const CUSTOM_WINDOW: Duration = Duration::from_secs(60);

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct List<T> {
    #[serde(default = "Vec::new")]
    items: Vec<T>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodMetrics {
    metadata: Name,
    timestamp: Timestamp,
    window: String,
    #[serde(default)]
    containers: Vec<ContainerMetrics>,
}

#[derive(Debug, Deserialize)]
struct Name {
    #[serde(default)]
    name: String,
}

#[derive(Debug, Deserialize)]
struct ContainerMetrics {
    name: String,
    #[serde(default)]
    usage: std::collections::BTreeMap<String, Quantity>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetricValue {
    #[serde(default)]
    described_object: Option<Name>,
    timestamp: Timestamp,
    #[serde(default, alias = "window")]
    window_seconds: Option<u64>,
    value: Quantity,
}

fn unable(api: &'static str) -> impl FnOnce(client::Error) -> Error {
    move |source| Error::Fetch { api, source }
}

/// What each pod that `selector` finds uses of a resource, in all its containers or in one.
pub(super) async fn of_resource(
    client: &Client,
    namespace: &str,
    selector: &str,
    resource: &str,
    container: Option<&str>,
) -> Result<Samples> {
    let path = ["apis", "metrics.k8s.io", "v1beta1", "namespaces", namespace, "pods"];
    let found: Result<List<PodMetrics>, client::Error> = client.get_at(&path, &[("labelSelector", selector)]).await;
    let found = found.map_err(unable(RESOURCE_METRICS))?.items;
    if found.is_empty() {
        return Err(Error::Empty(RESOURCE_METRICS));
    }
    let mut samples = Samples::new();
    for pod in &found {
        let window = api::duration::parse(&pod.window).unwrap_or_default();
        if let Some(value) = usage(pod, resource, container) {
            samples.insert(pod.metadata.name.clone(), Sample { value, timestamp: pod.timestamp, window });
        }
    }
    Ok(samples)
}

/// None for a pod of which the container was not measured, or one of all: the sum would be too low.
fn usage(pod: &PodMetrics, resource: &str, container: Option<&str>) -> Option<i64> {
    let counted = pod.containers.iter().filter(|one| container.is_none_or(|name| name == one.name));
    let mut values = counted.map(|one| one.usage.get(resource).map(Quantity::milli_value)).peekable();
    values.peek()?;
    values.try_fold(0_i64, |sum, value| Some(sum.saturating_add(value?)))
}

/// The version of the custom metrics API that is served.
async fn custom_version(client: &Client) -> Result<&'static str> {
    let group: APIGroup =
        client.get_at(&["apis", "custom.metrics.k8s.io"], &[]).await.map_err(unable(CUSTOM_METRICS))?;
    let serves = |version: &str| group.versions.iter().any(|served| served.version == version);
    Ok(if serves("v1beta2") || !serves("v1beta1") { "v1beta2" } else { "v1beta1" })
}

async fn custom(
    client: &Client,
    path: &[&str],
    selector: Option<&str>,
    metric_selector: &str,
) -> Result<Vec<MetricValue>> {
    let version = custom_version(client).await?;
    let mut whole = vec!["apis", "custom.metrics.k8s.io", version];
    whole.extend(path);
    let mut query = Vec::new();
    query.extend(selector.filter(|selector| !selector.is_empty()).map(|selector| ("labelSelector", selector)));
    if !metric_selector.is_empty() {
        query.push(("metricLabelSelector", metric_selector));
    }
    let found: Result<List<MetricValue>, client::Error> = client.get_at(&whole, &query).await;
    Ok(found.map_err(unable(CUSTOM_METRICS))?.items)
}

/// A metric of each pod that `selector` finds.
pub(super) async fn of_pods(
    client: &Client,
    namespace: &str,
    selector: &str,
    metric: &str,
    metric_selector: &str,
) -> Result<Samples> {
    let path = ["namespaces", namespace, "pods", "*", metric];
    let found = custom(client, &path, Some(selector), metric_selector).await?;
    if found.is_empty() {
        return Err(Error::Empty(CUSTOM_METRICS));
    }
    let sample = |value: MetricValue| {
        let window = value.window_seconds.map_or(CUSTOM_WINDOW, Duration::from_secs);
        let sample = Sample { value: value.value.milli_value(), timestamp: value.timestamp, window };
        Some((value.described_object?.name, sample))
    };
    Ok(found.into_iter().filter_map(sample).collect())
}

/// A metric of one object of the autoscaler's namespace, in thousandths. A reference does not lead out of it: one to a
/// Namespace means this one, whatever it is called there, and what has no namespace is not found (`GetObjectMetric`, v1.36).
pub(super) async fn of_object(
    client: &Client,
    resources: &Resources,
    namespace: &str,
    object: &CrossVersionObjectReference,
    metric: &str,
    metric_selector: &str,
) -> Result<i64> {
    let is_namespace = object.kind == "Namespace" && matches!(object.api_version.as_deref(), None | Some("" | "v1"));
    let asked = if is_namespace { namespace } else { &object.name };
    let found = if is_namespace {
        custom(client, &["namespaces", namespace, "metrics", metric], None, metric_selector).await?
    } else {
        let resource = resources.find(client, object.api_version.as_deref().unwrap_or_default(), &object.kind).await;
        let resource = resource.map_err(Error::doing(format!("unable to fetch metrics from {CUSTOM_METRICS}")))?;
        let group = &resource.gvr.group;
        let full = if group.is_empty() {
            resource.gvr.resource.to_string()
        } else {
            format!("{}.{group}", resource.gvr.resource)
        };
        custom(client, &["namespaces", namespace, &full, &object.name, metric], None, metric_selector).await?
    };
    let [value] = found.as_slice() else {
        return Err(Error::NotOne { api: CUSTOM_METRICS, found: found.len() });
    };
    // An adapter need not say of what it speaks.
    match value.described_object.as_ref().map(|described| &described.name) {
        Some(name) if !name.is_empty() && name != asked => {
            Err(Error::OfAnother { api: CUSTOM_METRICS, found: name.clone(), asked: asked.to_owned() })
        }
        _ => Ok(value.value.milli_value()),
    }
}

/// The sum of what a metric from outside the cluster says, in thousandths.
pub(super) async fn from_outside(client: &Client, namespace: &str, metric: &str, selector: &str) -> Result<i64> {
    let path = ["apis", "external.metrics.k8s.io", "v1beta1", "namespaces", namespace, metric];
    let found: Result<List<MetricValue>, client::Error> = client.get_at(&path, &[("labelSelector", selector)]).await;
    let found = found.map_err(unable(EXTERNAL_METRICS))?.items;
    if found.is_empty() {
        return Err(Error::Empty(EXTERNAL_METRICS));
    }
    Ok(found.iter().fold(0_i64, |sum, value| sum.saturating_add(value.value.milli_value())))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use futures_util::{StreamExt, stream};
    use http_body_util::{BodyExt, Full, StreamBody};

    use super::*;

    /// An adapter that answers every question so.
    fn adapter(answer: impl Fn() -> client::Body + Send + Sync + 'static) -> Client {
        answering(200, answer)
    }

    fn answering(code: u16, answer: impl Fn() -> client::Body + Send + Sync + 'static) -> Client {
        let handler: client::Handler = Arc::new(move |_| {
            let body = answer();
            Box::pin(async move { http::Response::builder().status(code).body(body).unwrap() })
        });
        Client::in_process(handler, api::UserInfo::default())
    }

    fn text(text: &'static str) -> client::Body {
        Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync()
    }

    async fn asked(client: &Client) -> [Result<(), String>; 3] {
        [
            of_resource(client, "d", "app=web", "cpu", None).await.map(drop).map_err(|error| error.to_string()),
            of_pods(client, "d", "app=web", "m", "").await.map(drop).map_err(|error| error.to_string()),
            from_outside(client, "d", "m", "").await.map(drop).map_err(|error| error.to_string()),
        ]
    }

    #[tokio::test]
    async fn security_an_adapter_that_answers_garbage_is_an_error_and_never_a_number() {
        for garbage in [
            "",
            "<html>",
            "null",
            "[]",
            "{}",
            r#"{"items": 7}"#,
            r#"{"items": []}"#,
            r#"{"items": [{}]}"#,
            r#"{"items": [{"timestamp": "now", "value": "1", "window": "1s", "metadata": {"name": "p"}}]}"#,
            r#"{"items": [{"timestamp": "2026-01-01T00:00:00Z", "value": "lots", "window": 1, "metadata": {"name": "p"}}]}"#,
            r#"{"items": [{"timestamp": "2026-01-01T00:00:00Z", "value": null, "window": -1, "metadata": {"name": "p"}}]}"#,
        ] {
            let client = adapter(move || text(garbage));
            for answer in asked(&client).await {
                let error = answer.unwrap_err();
                let is_told =
                    error.starts_with("unable to fetch metrics from ") || error.starts_with("no metrics returned");
                assert!(is_told, "{garbage}: {error}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn security_an_adapter_that_never_ends_is_given_up() {
        let begins = || {
            let first = stream::iter([Ok(http_body::Frame::data(Bytes::from_static(b"{\"items\": [")))]);
            StreamBody::new(first.chain(stream::pending())).boxed_unsync()
        };
        for code in [200, 500] {
            for answer in asked(&answering(code, begins)).await {
                assert!(answer.unwrap_err().starts_with("unable to fetch metrics from "), "{code}");
            }
        }
        let silent: client::Handler = Arc::new(|_| Box::pin(std::future::pending()));
        for answer in asked(&Client::in_process(silent, api::UserInfo::default())).await {
            assert!(answer.unwrap_err().starts_with("unable to fetch metrics from "), "nothing is ever answered");
        }
    }

    #[tokio::test]
    async fn security_an_adapter_that_sends_without_end_is_cut_off() {
        let endless = || {
            let piece = Bytes::from(vec![b' '; 1 << 20]);
            let pieces = stream::repeat_with(move || Ok(http_body::Frame::data(piece.clone())));
            StreamBody::new(pieces).boxed_unsync()
        };
        for code in [200, 500] {
            let answer = from_outside(&answering(code, endless), "d", "m", "").await;
            let error = answer.unwrap_err().to_string();
            assert!(error.starts_with("unable to fetch metrics from external metrics API"), "{code}: {error}");
        }
    }

    #[test]
    fn a_pod_counts_only_when_all_its_containers_were_measured() {
        let pod: PodMetrics = serde_json::from_str(
            r#"{"metadata":{"name":"p"},"timestamp":"2026-01-01T00:00:00Z","window":"15.5s","containers":[
                {"name":"a","usage":{"cpu":"250m","memory":"64Mi"}},{"name":"b","usage":{"cpu":"1"}}]}"#,
        )
        .unwrap();
        assert_eq!(usage(&pod, "cpu", None), Some(1250));
        assert_eq!(usage(&pod, "memory", None), None);
        assert_eq!(usage(&pod, "cpu", Some("a")), Some(250));
        assert_eq!(usage(&pod, "memory", Some("a")), Some(64 * 1024 * 1024 * 1000));
        // One pod that lacks the container does not keep the others from being counted.
        assert_eq!(usage(&pod, "cpu", Some("c")), None);
        let empty = PodMetrics { containers: Vec::new(), ..pod };
        assert_eq!((usage(&empty, "cpu", None), usage(&empty, "cpu", Some("a"))), (None, None));
    }

    #[tokio::test]
    async fn security_a_described_object_is_in_the_namespace_of_its_autoscaler() {
        for (api_version, kind, name, expected) in [
            (Some("v1"), "Service", "web", "/namespaces/own/services/web/m"),
            (Some("v1"), "Namespace", "others", "/namespaces/own/metrics/m"),
            (None, "Namespace", "others", "/namespaces/own/metrics/m"),
            (Some("v1"), "Node", "n", "/namespaces/own/nodes/n/m"),
        ] {
            let asked = Arc::new(parking_lot::Mutex::new(String::new()));
            let last = asked.clone();
            let handler: client::Handler = Arc::new(move |request: http::Request<Bytes>| {
                let path = request.uri().path().to_owned();
                let body = match path.as_str() {
                    "/apis/custom.metrics.k8s.io" => {
                        r#"{"name":"custom.metrics.k8s.io","versions":[{"groupVersion":"custom.metrics.k8s.io/v1beta2","version":"v1beta2"}]}"#
                    }
                    "/api/v1" => {
                        r#"{"groupVersion":"v1","resources":[
                            {"name":"services","singularName":"service","namespaced":true,"kind":"Service","verbs":["get"]},
                            {"name":"nodes","singularName":"node","namespaced":false,"kind":"Node","verbs":["get"]}]}"#
                    }
                    _ => r#"{"items":[{"timestamp":"2026-01-01T00:00:00Z","value":"1500m"}]}"#,
                };
                *last.lock() = path;
                Box::pin(async move { http::Response::new(text(body)) })
            });
            let client = Client::in_process(handler, api::UserInfo::default());
            let object = CrossVersionObjectReference {
                api_version: api_version.map(str::to_owned),
                kind: kind.to_owned(),
                name: name.to_owned(),
            };
            let found = of_object(&client, &Resources::default(), "own", &object, "m", "").await;
            assert_eq!(found.unwrap(), 1500, "{kind}");
            assert_eq!(*asked.lock(), format!("/apis/custom.metrics.k8s.io/v1beta2{expected}"), "{kind}");
        }
    }

    #[tokio::test]
    async fn security_an_adapter_is_believed_one_value_of_the_object_that_was_named() {
        let value = |name: &str| {
            format!(
                r#"{{"describedObject":{{"kind":"Namespace","name":"{name}"}},"timestamp":"2026-01-01T00:00:00Z","value":"2"}}"#
            )
        };
        let unnamed = r#"{"timestamp":"2026-01-01T00:00:00Z","value":"2"}"#.to_owned();
        let exactly_one = "the custom metrics API server returned {} results when we asked for exactly one";
        for (items, expected) in [
            (vec![value("own")], Ok(2000)),
            (vec![unnamed], Ok(2000)),
            (vec![], Err(exactly_one.replace("{}", "0"))),
            (vec![value("own"), value("own")], Err(exactly_one.replace("{}", "2"))),
            (
                vec![value("others")],
                Err(r#"the custom metrics API server spoke of "others" when we asked for "own""#.to_owned()),
            ),
        ] {
            let items = Bytes::from(format!(r#"{{"versions":[],"items":[{}]}}"#, items.join(",")));
            let client = adapter(move || Full::new(items.clone()).map_err(|never| match never {}).boxed_unsync());
            let object = CrossVersionObjectReference { kind: "Namespace".to_owned(), ..Default::default() };
            let found = of_object(&client, &Resources::default(), "own", &object, "m", "").await;
            let expected = expected.map_err(|why| format!("unable to fetch metrics from custom metrics API: {why}"));
            assert_eq!(found.map_err(|error| error.to_string()), expected);
        }
    }

    #[test]
    fn both_versions_of_custom_metrics_are_understood() {
        for text in [
            r#"{"describedObject":{"kind":"Pod","name":"p"},"metricName":"m","timestamp":"2026-01-01T00:00:00Z","window":30,"value":"1500m"}"#,
            r#"{"describedObject":{"kind":"Pod","name":"p"},"metric":{"name":"m"},"timestamp":"2026-01-01T00:00:00Z","windowSeconds":30,"value":"1500m"}"#,
        ] {
            let value: MetricValue = serde_json::from_str(text).unwrap();
            assert_eq!((value.value.milli_value(), value.window_seconds), (1500, Some(30)));
        }
    }
}
