//! `kubectl expose`: a Service in front of pods that something else runs.

use serde_json::{Map, Value, json};

use super::create::{finish, known};
use super::flags;
use crate::cli::{Command, Flag, Words};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::resources::{self, Info, Options};

pub(crate) const COMMAND: Command = Command {
    name: "expose",
    usage: "(-f FILENAME | TYPE NAME) [--port=port] [--protocol=TCP|UDP|SCTP] [--target-port=number-or-name] [--name=name] [--external-ip=external-ip-of-service] [--type=type]",
    about: "Take a replication controller, service, deployment or pod and expose it as a new Kubernetes service",
    examples: "  kubectl expose deployment web --port=80 --target-port=8080\n  kubectl expose pod web --port=444 --name=frontend",
    flags: &[
        flags::FILENAME,
        flags::OUTPUT,
        flags::DRY_RUN,
        flags::SAVE_CONFIG,
        flags::RECORD,
        &[
            Flag::string("field-manager", "Name that owns the fields.").default("kubectl-expose"),
            Flag::string("protocol", "Protocol of the service; TCP unless the exposed object says otherwise."),
            Flag::string("port", "Port of the service; the exposed object's unless given."),
            Flag::string("type", "ClusterIP, NodePort, LoadBalancer or ExternalName."),
            Flag::string("load-balancer-ip", "Address for the load balancer."),
            Flag::string("selector", "Labels of the pods; the exposed object's unless given."),
            Flag::string("labels", "Labels of the service.").short('l'),
            Flag::string("target-port", "Name or number of the pods' port."),
            Flag::string("external-ip", "Additional address that reaches the service."),
            Flag::string("name", "Name of the service."),
            Flag::string("session-affinity", "None or ClientIP."),
            Flag::string("cluster-ip", "Address of the service; 'None' makes it headless."),
            Flag::string("overrides", "JSON to merge into the service."),
            Flag::string("override-type", "json, merge or strategic.").default("merge"),
        ],
    ],
    words: Words::ObjectsOf(&["pod", "service", "replicationcontroller", "deployment", "replicaset"]),
    run: Some(|cx| Box::pin(run(cx))),
    ..Command::EMPTY
};

async fn run(cx: &Context) -> Result<()> {
    let (infos, unread) = resources::infos(cx, &Options { foreign_selector: true, ..Options::default() }).await?;
    if infos.len() > 1 && !cx.flags.string("name").is_empty() {
        return Err(Failure::message("the --name flag cannot be used with multiple objects"));
    }
    // What cannot be read or exposed does not keep the others from it.
    let mut failures = Vec::new();
    for info in infos {
        failures.extend(expose(cx, &info).await.err());
    }
    failures.extend(unread);
    Failure::all(failures)
}

async fn expose(cx: &Context, info: &Info) -> Result<()> {
    let object = &info.object;
    let kind = object["kind"].as_str().unwrap_or("");
    if !["Deployment", "Pod", "ReplicaSet", "ReplicationController", "Service"].contains(&kind) {
        return Err(Failure::message(format!("cannot expose a {}", info.mapping.group_kind())));
    }
    let selector = match cx.flags.string("selector") {
        s if !s.is_empty() => pairs(&s)?,
        _ => selector_of(object).map_err(|e| {
            Failure::message(format!("couldn't retrieve selectors via --selector flag or introspection: {e}"))
        })?,
    };
    let name = match cx.flags.string("name") {
        n if !n.is_empty() => n,
        // Names of services are shorter than those of pods.
        _ => info.name.chars().take(63).collect(),
    };
    let labels = match cx.flags.string("labels") {
        l if !l.is_empty() => pairs(&l)?,
        _ => object["metadata"]["labels"].as_object().cloned().unwrap_or_default(),
    };
    let ports = ports(cx, object, kind)?;
    let mut spec = json!({"selector": selector, "ports": ports});
    for (flag, field) in [
        ("type", "type"),
        ("load-balancer-ip", "loadBalancerIP"),
        ("session-affinity", "sessionAffinity"),
        ("cluster-ip", "clusterIP"),
    ] {
        let value = cx.flags.string(flag);
        if !value.is_empty() {
            spec[field] = json!(value);
        }
    }
    let external = cx.flags.string("external-ip");
    if !external.is_empty() {
        spec["externalIPs"] = json!([external]);
    }
    if !["", "None", "ClientIP"].contains(&cx.flags.string("session-affinity").as_str()) {
        return Err(Failure::message(format!("unknown session affinity: {}", cx.flags.string("session-affinity"))));
    }
    let mut service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec,
                             "status": {"loadBalancer": {}}});
    if !labels.is_empty() {
        service["metadata"]["labels"] = Value::Object(labels);
    }
    apply_overrides(cx, &mut service)?;
    crate::objects::record(cx, &mut service);
    expose_created(cx, service).await
}

async fn expose_created(cx: &Context, mut service: Value) -> Result<()> {
    let mapping = known("v1", "services", "Service", true);
    let dry_run = cx.dry_run()?;
    if dry_run == crate::context::DryRun::Client {
        return finish(cx, &mapping, service, "").await;
    }
    if cx.flags.bool("save-config") {
        let text = crate::objects::as_generated(&service);
        crate::objects::set_annotation(&mut service, crate::objects::LAST_APPLIED, text);
    }
    // The answer is no longer the generator's type.
    let mut printer = cx.printer("exposed", dry_run)?;
    let (namespace, _) = cx.namespace()?;
    let created =
        crate::objects::create(cx, &mapping, &namespace, &service, dry_run, &cx.flags.string("field-manager")).await?;
    cx.print(&printer.print(&created)?)
}

/// `--overrides`, for `run` and `expose`.
pub(crate) fn apply_overrides(cx: &Context, object: &mut Value) -> Result<()> {
    let text = cx.flags.string("overrides");
    if text.is_empty() {
        return Ok(());
    }
    let patch: Value = crate::manifests::yaml(&text).map_err(Failure::of)?;
    let (group, kind) = (
        object["apiVersion"].as_str().and_then(|v| v.split_once('/')).map_or(String::new(), |(g, _)| g.to_owned()),
        object["kind"].as_str().unwrap_or("").to_owned(),
    );
    let result = match (cx.flags.string("override-type").as_str(), crate::three_way::schema(&group, &kind)) {
        ("json", _) => api::patch::json::apply(object, &patch),
        ("strategic", Some(schema)) => api::patch::strategic::apply(object, &patch, &schema),
        _ => api::patch::merge::apply(object, &patch),
    };
    result.map_err(|e| Failure::message(e.to_string()))
}

pub(crate) fn pairs(text: &str) -> Result<Map<String, Value>> {
    let mut map = Map::new();
    for pair in text.split(',').filter(|p| !p.is_empty()) {
        let (k, v) = pair.split_once('=').ok_or_else(|| Failure::message(format!("unexpected label spec: {pair}")))?;
        map.insert(k.to_owned(), json!(v));
    }
    Ok(map)
}

/// Why an object has no pods that a Service could select; in upstream's words.
#[derive(Debug, thiserror::Error)]
enum SelectorError {
    #[error("the pod has no labels and cannot be exposed")]
    NoLabels,
    #[error("the service has no pod selector set")]
    NoSelector,
    #[error("couldn't convert expressions - \"{0}\" to map-based selector format")]
    Expressions(String),
    #[error("cannot extract pod selector from {0}")]
    Kind(String),
    #[error("invalid {0}: no selectors, therefore cannot be exposed")]
    Empty(String),
}

/// The labels of the pods behind an object, as a plain map.
fn selector_of(object: &Value) -> Result<Map<String, Value>, SelectorError> {
    let kind = object["kind"].as_str().unwrap_or("");
    let map = match kind {
        "Pod" => {
            let labels = object["metadata"]["labels"].as_object();
            return match labels {
                Some(l) if !l.is_empty() => Ok(l.clone()),
                _ => Err(SelectorError::NoLabels),
            };
        }
        "Service" => {
            return match object["spec"]["selector"].as_object() {
                Some(s) if !s.is_empty() => Ok(s.clone()),
                _ => Err(SelectorError::NoSelector),
            };
        }
        "ReplicationController" => object["spec"]["selector"].as_object().cloned(),
        "Deployment" | "ReplicaSet" => {
            if object["spec"]["selector"]["matchExpressions"].as_array().is_some_and(|e| !e.is_empty()) {
                return Err(SelectorError::Expressions(crate::printers::json::compact(
                    &object["spec"]["selector"]["matchExpressions"],
                )));
            }
            object["spec"]["selector"]["matchLabels"].as_object().cloned()
        }
        _ => return Err(SelectorError::Kind(kind.to_owned())),
    };
    map.filter(|labels| !labels.is_empty()).ok_or_else(|| SelectorError::Empty(kind.to_lowercase()))
}

fn ports(cx: &Context, object: &Value, kind: &str) -> Result<Vec<Value>> {
    let protocols = protocols_of(object, kind);
    let wanted: Vec<String> = match cx.flags.string("port") {
        p if !p.is_empty() => p.split(',').map(str::to_owned).collect(),
        _ => {
            // Containers may declare the same port; a service takes it once.
            let mut seen = std::collections::HashSet::new();
            protocols.iter().map(|(port, _)| port.clone()).filter(|port| seen.insert(port.clone())).collect()
        }
    };
    if wanted.is_empty() && cx.flags.string("cluster-ip") != "None" {
        return Err(Failure::message("couldn't find port via --port flag or introspection"));
    }
    let mut out = Vec::new();
    for (i, text) in wanted.iter().enumerate() {
        let port: i64 =
            text.parse().map_err(|_| Failure::message(format!("strconv.Atoi: parsing \"{text}\": invalid syntax")))?;
        let protocol = match cx.flags.string("protocol") {
            p if !p.is_empty() => p,
            _ => protocols.iter().find(|(p, _)| p == text).map_or("TCP".to_owned(), |(_, proto)| proto.clone()),
        };
        let target = cx.flags.string("target-port");
        let target = if target.is_empty() {
            json!(port)
        } else {
            target.parse::<i64>().map(|n| json!(n)).unwrap_or(json!(target))
        };
        let mut entry = json!({"port": port, "protocol": protocol, "targetPort": target});
        if wanted.len() > 1 {
            entry["name"] = json!(format!("port-{}", i + 1));
        }
        out.push(entry);
    }
    Ok(out)
}

/// (port, protocol) pairs that the object itself declares.
fn protocols_of(object: &Value, kind: &str) -> Vec<(String, String)> {
    let mut out = Vec::new();
    if kind == "Service" {
        for p in object["spec"]["ports"].as_array().into_iter().flatten() {
            out.push((p["port"].to_string(), p["protocol"].as_str().unwrap_or("TCP").to_owned()));
        }
        return out;
    }
    let Some(pointer) = crate::objects::template_pointer(kind) else { return out };
    for c in object.pointer(&format!("{pointer}/spec/containers")).and_then(Value::as_array).into_iter().flatten() {
        for p in c["ports"].as_array().into_iter().flatten() {
            out.push((p["containerPort"].to_string(), p["protocol"].as_str().unwrap_or("TCP").to_owned()));
        }
    }
    out
}
