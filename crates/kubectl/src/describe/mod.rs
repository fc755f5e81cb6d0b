//! `kubectl describe`: an object for people, with what belongs to it and its events.
//!
//! `describe` picks a function by kind; unknown kinds are written out generically. All write through [`Writer`], which
//! lays tab-separated lines out when it is read.

mod autoscaler;
mod certificate;
mod generic;
mod network;
mod node;
mod pod;
mod policy;
mod service;
mod storage;
mod various;
mod volumes;
mod workload;

use api::sort::CompactSort as _;
use api::terminal::escaped;
use serde_json::Value;

use crate::context::Context;
use crate::duration;
use crate::failure::Result;
use crate::objects::{strings, text};
use crate::printers::TabWriter;
use crate::request::Request;
use crate::resources::{Info, all_items};

pub(crate) use workload::same_template;

/// A pod template of a revision, for `rollout history --revision` and `rollout undo`.
pub(crate) fn template_text(template: &Value, change_cause: &str) -> String {
    let mut w = Writer::default();
    let mut template = template.clone();
    if !change_cause.is_empty() {
        crate::objects::set_annotation(&mut template, crate::objects::CHANGE_CAUSE, change_cause.to_owned());
    }
    pod::template(&mut w, &template);
    // Upstream aligns nothing here.
    escaped(&w.pending).into_owned()
}

/// The text of one object.
pub(crate) async fn describe(cx: &Context, info: &Info, events: bool) -> Result<String> {
    let mut w = Writer::default();
    let object = &info.object;
    match (info.mapping.group.as_str(), info.mapping.kind.as_str()) {
        ("", "Pod") => pod::describe(object, &mut w),
        ("", "Service") => service::describe(cx, object, &mut w).await?,
        ("", "Node") => node::describe(cx, object, &mut w).await?,
        ("", "Namespace") => various::namespace(cx, object, &mut w).await?,
        ("", "ConfigMap") => various::config_map(object, &mut w),
        ("", "Secret") => various::secret(object, &mut w),
        ("", "ServiceAccount") => various::service_account(cx, object, &mut w).await?,
        ("", "PersistentVolume") => storage::volume(object, &mut w),
        ("", "PersistentVolumeClaim") => storage::claim(cx, object, &mut w).await?,
        ("", "ResourceQuota") => policy::quota(object, &mut w),
        ("", "LimitRange") => policy::limit_range(object, &mut w),
        ("", "Endpoints") => network::endpoints(object, &mut w),
        ("", "ReplicationController") => workload::replication_controller(cx, object, &mut w).await?,
        ("apps", "Deployment") => workload::deployment(cx, object, &mut w).await?,
        ("apps", "ReplicaSet") => workload::replica_set(cx, object, &mut w).await?,
        ("apps", "StatefulSet") => workload::stateful_set(cx, object, &mut w).await?,
        ("apps", "DaemonSet") => workload::daemon_set(cx, object, &mut w).await?,
        ("batch", "Job") => workload::job(object, &mut w),
        ("batch", "CronJob") => workload::cron_job(object, &mut w),
        ("autoscaling", "HorizontalPodAutoscaler") => autoscaler::describe(cx, object, &mut w).await,
        ("policy", "PodDisruptionBudget") => policy::disruption_budget(object, &mut w),
        ("scheduling.k8s.io", "PriorityClass") => policy::priority_class(object, &mut w),
        ("certificates.k8s.io", "CertificateSigningRequest") => certificate::describe(object, &mut w)?,
        ("storage.k8s.io", "StorageClass") => storage::class(object, &mut w),
        ("storage.k8s.io", "VolumeAttributesClass") => storage::attributes_class(object, &mut w),
        ("storage.k8s.io", "CSINode") => storage::csi_node(object, &mut w),
        ("discovery.k8s.io", "EndpointSlice") => network::endpoint_slice(object, &mut w),
        ("networking.k8s.io", "NetworkPolicy") => network::policy(object, &mut w),
        ("networking.k8s.io", "IngressClass") => network::ingress_class(object, &mut w),
        ("networking.k8s.io", "ServiceCIDR") => network::service_range(object, &mut w),
        ("networking.k8s.io", "IPAddress") => network::address(object, &mut w),
        ("networking.k8s.io", "Ingress") => various::ingress(cx, object, &mut w).await?,
        ("rbac.authorization.k8s.io", "Role" | "ClusterRole") => various::role(object, &mut w),
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => various::binding(object, &mut w),
        _ => generic::describe(object, &mut w),
    }
    let has_events = !matches!(
        info.mapping.kind.as_str(),
        "Role"
            | "ClusterRole"
            | "RoleBinding"
            | "ClusterRoleBinding"
            | "Namespace"
            | "Secret"
            | "ResourceQuota"
            | "LimitRange"
            | "NetworkPolicy"
    );
    if events && has_events {
        write_events(cx, info, &mut w).await?;
    }
    Ok(w.finish())
}

/// Collects lines; columns end where the writer is flushed.
#[derive(Default)]
pub(crate) struct Writer {
    done: String,
    pending: String,
}

impl Writer {
    pub(crate) fn line(&mut self, level: usize, line: impl AsRef<str>) {
        self.pending.extend(std::iter::repeat_n(' ', level * 2));
        self.pending.push_str(line.as_ref());
        self.pending.push('\n');
    }

    pub(crate) fn flush(&mut self) {
        let text = TabWriter::describe().format(&self.pending);
        self.done.push_str(&text);
        self.pending.clear();
    }

    fn finish(mut self) -> String {
        self.flush();
        self.done
    }
}

pub(crate) fn or_none(text: &str) -> &str {
    if text.is_empty() { "<none>" } else { text }
}

pub(crate) fn title_bool(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

/// A number or text, as Go prints it.
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        other => crate::printers::go_template::print_value(other),
    }
}

/// `a=b,c=d` on one line.
pub(crate) fn joined_labels(map: &Value) -> String {
    or_none(&crate::selector::from_map(map)).to_owned()
}

/// A label selector as people write it; `<none>` for one that selects everything.
pub(crate) fn selector_text(selector: &Value) -> String {
    let text = crate::selector::from_label_selector(selector).unwrap_or_else(|| "<error>".to_owned());
    or_none(&text).to_owned()
}

/// RFC 1123 with a numeric zone, in local time.
pub(crate) fn time(value: &Value) -> String {
    match value.as_str().and_then(|t| t.parse::<jiff::Timestamp>().ok()) {
        Some(t) => t.to_zoned(jiff::tz::TimeZone::system()).strftime("%a, %d %b %Y %H:%M:%S %z").to_string(),
        None => "Mon, 01 Jan 0001 00:00:00 +0000".to_owned(),
    }
}

/// The rows of a table of conditions, without its heading; `times` are the columns of times that the table has.
pub(crate) fn write_conditions(w: &mut Writer, conditions: &[Value], times: &[&str], separator: &str) {
    for condition in conditions {
        let mut cells = vec![text(condition, "/type").to_owned(), text(condition, "/status").to_owned()];
        cells.extend(times.iter().map(|field| time(&condition[*field])));
        cells.extend(["/reason", "/message"].map(|field| text(condition, field).to_owned()));
        w.line(1, cells.join(separator));
    }
}

pub(crate) fn write_labels(w: &mut Writer, title: &str, labels: &Value) {
    let Some(map) = labels.as_object().filter(|m| !m.is_empty()) else {
        return w.line(0, format!("{title}:\t<none>"));
    };
    for (i, (k, v)) in map.iter().enumerate() {
        let head = if i == 0 { format!("{title}:") } else { String::new() };
        w.line(0, format!("{head}\t{k}={}", v.as_str().unwrap_or("")));
    }
}

/// Longer annotations go on lines of their own.
const MAX_ANNOTATION: usize = 140;

pub(crate) fn write_annotations(w: &mut Writer, title: &str, annotations: &Value) {
    let entries: Vec<(&String, &Value)> =
        annotations.as_object().into_iter().flatten().filter(|(k, _)| *k != crate::objects::LAST_APPLIED).collect();
    if entries.is_empty() {
        return w.line(0, format!("{title}:\t<none>"));
    }
    for (i, (k, v)) in entries.into_iter().enumerate() {
        let head = if i == 0 { format!("{title}:\t") } else { "\t".to_owned() };
        let value = v.as_str().unwrap_or("");
        let value = value.strip_suffix('\n').unwrap_or(value);
        if value.len() + k.len() + 2 > MAX_ANNOTATION || value.contains('\n') {
            w.line(0, format!("{head}{k}:"));
            for part in value.split('\n') {
                let short: String = if part.chars().count() > MAX_ANNOTATION - 2 {
                    part.chars().take(MAX_ANNOTATION - 2).collect::<String>() + "..."
                } else {
                    part.to_owned()
                };
                w.line(0, format!("\t  {short}"));
            }
        } else {
            w.line(0, format!("{head}{k}: {value}"));
        }
    }
}

/// `Name:`, `Namespace:`, labels and annotations, as most kinds begin.
pub(crate) fn write_meta(w: &mut Writer, object: &Value) {
    w.line(0, format!("Name:\t{}", text(object, "/metadata/name")));
    if !text(object, "/metadata/namespace").is_empty() {
        w.line(0, format!("Namespace:\t{}", text(object, "/metadata/namespace")));
    }
    write_labels(w, "Labels", &object["metadata"]["labels"]);
    write_annotations(w, "Annotations", &object["metadata"]["annotations"]);
}

/// `ReplicaSet/web-5d8`, when something controls the object.
pub(crate) fn controller(object: &Value) -> Option<String> {
    let owner = object["metadata"]["ownerReferences"].as_array()?.iter().find(|o| o["controller"] == true)?;
    Some(format!("{}/{}", owner["kind"].as_str()?, owner["name"].as_str()?))
}

pub(crate) fn controlled_by<'a>(object: &Value, uid: &str, candidates: &'a [Value]) -> Vec<&'a Value> {
    let _ = object;
    candidates
        .iter()
        .filter(|c| {
            c["metadata"]["ownerReferences"]
                .as_array()
                .is_some_and(|o| o.iter().any(|o| o["controller"] == true && o["uid"] == uid))
        })
        .collect()
}

async fn write_events(cx: &Context, info: &Info, w: &mut Writer) -> Result<()> {
    let meta = &info.object["metadata"];
    let uid = if info.mapping.kind == "Node" { meta["name"].as_str() } else { meta["uid"].as_str() }.unwrap_or("");
    let mut selector = format!("involvedObject.name={}", info.name);
    if !info.namespace.is_empty() {
        selector.push_str(&format!(",involvedObject.namespace={}", info.namespace));
    }
    selector.push_str(&format!(",involvedObject.kind={}", info.mapping.kind));
    if info.mapping.kind != "Node" {
        selector.push_str(&format!(",involvedObject.uid={uid}"));
    }
    let namespace = if info.namespace.is_empty() { String::new() } else { format!("/namespaces/{}", info.namespace) };
    let path = format!("/api/v1{namespace}/events");
    let list = all_items(cx, || Request::get(path.clone()).query("fieldSelector", selector.clone())).await;
    let Ok(list) = list else { return Ok(()) };
    events(&list, w);
    Ok(())
}

pub(crate) fn events(list: &[Value], w: &mut Writer) {
    if list.is_empty() {
        return w.line(0, "Events:\t<none>");
    }
    w.flush();
    let mut sorted: Vec<&Value> = list.iter().collect();
    sorted.compact_sort_by_key(|e| event_time(e));
    w.line(0, "Events:\n  Type\tReason\tAge\tFrom\tMessage");
    w.line(1, "----\t------\t----\t----\t-------");
    let now = jiff::Timestamp::now();
    for e in sorted {
        let message = text(e, "/message").trim();
        let path = text(e, "/involvedObject/fieldPath");
        let message = if path.is_empty() { message.to_owned() } else { format!("{path}: {message}") };
        let source = match text(e, "/source/component") {
            "" => text(e, "/reportingComponent"),
            s => s,
        };
        w.line(1, format!("{}\t{}\t{}\t{source}\t{message}", text(e, "/type"), text(e, "/reason"), event_age(e, now)));
    }
}

pub(crate) fn event_time(e: &Value) -> String {
    for pointer in ["/series/lastObservedTime", "/lastTimestamp", "/eventTime", "/firstTimestamp"] {
        let t = text(e, pointer);
        if !t.is_empty() {
            return t.to_owned();
        }
    }
    String::new()
}

/// `3s`, or `3s (x4 over 5m)` for one that repeats.
pub(crate) fn event_age(e: &Value, now: jiff::Timestamp) -> String {
    let first = match e["eventTime"].as_str() {
        Some(t) => duration::age(Some(t), now),
        None => duration::age(e["firstTimestamp"].as_str(), now),
    };
    if e["series"].is_object() {
        return format!(
            "{} (x{} over {first})",
            duration::age(e["series"]["lastObservedTime"].as_str(), now),
            e["series"]["count"]
        );
    }
    match e["count"].as_i64() {
        Some(count) if count > 1 => {
            format!("{} (x{count} over {first})", duration::age(e["lastTimestamp"].as_str(), now))
        }
        _ => first,
    }
}
