//! From whatever a person named to pods and their containers.

use std::time::Duration;

use api::sort::CompactSort as _;
use serde_json::Value;

use crate::context::Context;
use crate::discovery::known;
use crate::failure::{Failure, Result};
use crate::objects::text;
use crate::request::Request;
use crate::resources::{all_items, items};
use crate::selector;
use crate::watch::Watch;

pub(crate) async fn by_selector(cx: &Context, namespace: &str, selector: &str) -> Result<Vec<Value>> {
    let path = known("v1", "pods", "Pod", true).path(namespace);
    all_items(cx, || Request::get(path.clone()).query("labelSelector", selector)).await
}

/// The pods behind `pod/x`, `deployment/x`, `service/x`…, those most likely to answer first: one at least, for which it
/// waits as long as given. `purpose` says in errors what they are wanted for.
pub(crate) async fn of_object(
    cx: &Context,
    namespace: &str,
    word: &str,
    purpose: &str,
    timeout: Duration,
) -> Result<Vec<Value>> {
    let (kind, name) = word.split_once('/').unwrap_or(("pod", word));
    let mapping = cx.discovery()?.resolve(cx, kind).await?;
    let object = Request::get(mapping.object_path(namespace, name)).value(cx).await?;
    if mapping.kind == "Pod" {
        return Ok(vec![object]);
    }
    let selector = pod_selector(&object).ok_or_else(|| {
        let ours = !mapping.group.contains('.') || mapping.group.ends_with(".k8s.io");
        let (package, kind) = if ours { (&*mapping.version, &*mapping.kind) } else { ("unstructured", "Unstructured") };
        Failure::message(format!("cannot {purpose} *{package}.{kind}: selector for *{package}.{kind} not implemented"))
    })?;
    let path = known("v1", "pods", "Pod", true).path(namespace);
    let list = Request::get(path.clone()).query("labelSelector", selector.clone()).value(cx).await?;
    let mut pods = items(&list);
    if pods.is_empty() {
        let open = || Request::get(path.clone()).query("labelSelector", selector.clone());
        let mut watch = Watch::open(cx, open, text(&list, "/metadata/resourceVersion").to_owned());
        let first = tokio::time::timeout(timeout, watch.next()).await;
        first.map_err(|_| Failure::message("timed out waiting for the condition"))??;
        pods = by_selector(cx, namespace, &selector).await?;
    }
    pods.compact_sort_by_key(rank);
    Ok(pods)
}

/// The label query for the pods of a workload or service.
pub(crate) fn pod_selector(object: &Value) -> Option<String> {
    match object["kind"].as_str()? {
        "Service" | "ReplicationController" => {
            Some(selector::from_map(&object["spec"]["selector"])).filter(|s| !s.is_empty())
        }
        "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" | "Job" => {
            selector::from_label_selector(&object["spec"]["selector"])
        }
        _ => None,
    }
}

/// Smaller is better: assigned, running, ready (upstream's ByLogging/ActivePods).
fn rank(pod: &Value) -> (bool, u8, bool, String) {
    let phase = match text(pod, "/status/phase") {
        "Running" => 0,
        "Pending" => 1,
        _ => 2,
    };
    (text(pod, "/spec/nodeName").is_empty(), phase, !is_ready(pod), text(pod, "/metadata/name").to_owned())
}

pub(crate) fn is_ready(pod: &Value) -> bool {
    pod["status"]["conditions"]
        .as_array()
        .is_some_and(|c| c.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
}

/// Init, regular and ephemeral containers, in that order.
pub(crate) fn container_names(pod: &Value) -> Vec<String> {
    ["initContainers", "containers", "ephemeralContainers"]
        .iter()
        .flat_map(|list| pod["spec"][*list].as_array().into_iter().flatten())
        .filter_map(|c| Some(c["name"].as_str()?.to_owned()))
        .collect()
}

/// The wanted container, else the annotated default, else the first (saying so when there are several).
pub(crate) fn choose_container(cx: &Context, pod: &Value, wanted: &str) -> Result<String> {
    let name = text(pod, "/metadata/name");
    let all = container_names(pod);
    if !wanted.is_empty() {
        if all.iter().any(|c| c == wanted) {
            return Ok(wanted.to_owned());
        }
        return Err(Failure::message(format!(
            "container {wanted} is not valid for pod {name} out of: {}",
            listed(pod)
        )));
    }
    if let Some(default) = pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"].as_str()
        && all.iter().any(|c| c == default)
    {
        return Ok(default.to_owned());
    }
    let containers = pod["spec"]["containers"].as_array().map(Vec::as_slice).unwrap_or(&[]);
    let first = containers
        .first()
        .and_then(|c| c["name"].as_str())
        .ok_or_else(|| Failure::message(format!("no container found in pod {name}")))?;
    let quiet = cx.flags.has_flag("quiet") && cx.flags.bool("quiet");
    if all.len() > 1 && !quiet {
        cx.eprintln(format!("Defaulted container \"{first}\" out of: {}", listed(pod)));
    }
    Ok(first.to_owned())
}

fn listed(pod: &Value) -> String {
    let mut out = Vec::new();
    for (list, suffix) in [("containers", ""), ("initContainers", " (init)"), ("ephemeralContainers", " (ephem)")] {
        for c in pod["spec"][list].as_array().into_iter().flatten() {
            out.push(format!("{}{suffix}", c["name"].as_str().unwrap_or("")));
        }
    }
    out.join(", ")
}
