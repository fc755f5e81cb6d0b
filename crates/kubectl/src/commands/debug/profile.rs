//! What a debugging profile changes: privileges of the container, namespaces of the pod, what a copy leaves behind.

use serde_json::{Value, json};

use crate::failure::{Failure, Result};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Profile {
    Legacy,
    General,
    Baseline,
    Restricted,
    Netadmin,
    Sysadmin,
}

/// What the debugging pod is to its target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Style {
    Ephemeral,
    Copy,
    Node,
}

/// Parts of the original that a copy keeps.
#[derive(Clone, Copy, Default)]
pub(super) struct Keep {
    pub(super) labels: bool,
    pub(super) annotations: bool,
    pub(super) liveness: bool,
    pub(super) readiness: bool,
    pub(super) startup: bool,
    pub(super) init_containers: bool,
}

impl Profile {
    pub(super) fn named(name: &str) -> Result<Profile> {
        Ok(match name {
            "legacy" => Profile::Legacy,
            "general" => Profile::General,
            "baseline" => Profile::Baseline,
            "restricted" => Profile::Restricted,
            "netadmin" => Profile::Netadmin,
            "sysadmin" => Profile::Sysadmin,
            other => return Err(Failure::message(format!("unknown profile: {other}"))),
        })
    }

    /// Changes `pod` and its container of that name.
    pub(super) fn apply(self, pod: &mut Value, container: &str, style: Style, keep: Keep) {
        self.grant(pod, container, style);
        match (style, self) {
            (Style::Node, Profile::Legacy | Profile::General | Profile::Sysadmin) => {
                mount_root(pod, container);
                use_host_namespaces(pod);
            }
            (Style::Node, Profile::Netadmin) => use_host_namespaces(pod),
            (Style::Copy, Profile::Legacy) => strip(pod, Keep { labels: false, ..everything() }),
            (Style::Copy, _) => {
                strip(pod, keep);
                if pod["spec"]["shareProcessNamespace"].is_null() {
                    pod["spec"]["shareProcessNamespace"] = json!(true);
                }
            }
            (Style::Ephemeral, _) | (Style::Node, Profile::Baseline | Profile::Restricted) => {}
        }
    }

    fn grant(self, pod: &mut Value, container: &str, style: Style) {
        let Some(container) = container_mut(pod, container) else { return };
        match self {
            Profile::Legacy => {}
            Profile::General if style == Style::Node => remove(container, "securityContext"),
            Profile::General => add_capabilities(container, &["SYS_PTRACE"]),
            Profile::Baseline => remove(container, "securityContext"),
            Profile::Restricted => {
                container["securityContext"] = json!({
                    "allowPrivilegeEscalation": false,
                    "capabilities": {"drop": ["ALL"]},
                    "runAsNonRoot": true,
                    "seccompProfile": {"type": "RuntimeDefault"},
                });
            }
            Profile::Netadmin => add_capabilities(container, &["NET_ADMIN", "NET_RAW"]),
            Profile::Sysadmin => object_at(container, "securityContext")["privileged"] = json!(true),
        }
    }
}

fn everything() -> Keep {
    Keep { labels: true, annotations: true, liveness: true, readiness: true, startup: true, init_containers: true }
}

/// The container of that name, in whichever list.
pub(super) fn container_mut<'a>(pod: &'a mut Value, name: &str) -> Option<&'a mut Value> {
    let spec = pod["spec"].as_object_mut()?;
    let list = ["initContainers", "containers", "ephemeralContainers"]
        .into_iter()
        .find(|list| spec.get(*list).and_then(Value::as_array).is_some_and(|l| l.iter().any(|c| c["name"] == name)))?;
    spec.get_mut(list)?.as_array_mut()?.iter_mut().find(|c| c["name"] == name)
}

fn remove(object: &mut Value, key: &str) {
    if let Some(map) = object.as_object_mut() {
        map.remove(key);
    }
}

fn object_at<'a>(object: &'a mut Value, key: &str) -> &'a mut Value {
    if !object[key].is_object() {
        object[key] = json!({});
    }
    &mut object[key]
}

fn push(object: &mut Value, key: &str, item: Value) {
    match object[key].as_array_mut() {
        Some(list) => list.push(item),
        None => object[key] = json!([item]),
    }
}

fn add_capabilities(container: &mut Value, names: &[&str]) {
    let capabilities = object_at(object_at(container, "securityContext"), "capabilities");
    for name in names {
        push(capabilities, "add", json!(name));
    }
}

fn mount_root(pod: &mut Value, container: &str) {
    push(&mut pod["spec"], "volumes", json!({"name": "host-root", "hostPath": {"path": "/"}}));
    if let Some(container) = container_mut(pod, container) {
        push(container, "volumeMounts", json!({"name": "host-root", "mountPath": "/host"}));
    }
}

fn use_host_namespaces(pod: &mut Value) {
    for key in ["hostNetwork", "hostPID", "hostIPC"] {
        pod["spec"][key] = json!(true);
    }
}

fn strip(pod: &mut Value, keep: Keep) {
    if !keep.labels {
        remove(&mut pod["metadata"], "labels");
    }
    if !keep.annotations {
        remove(&mut pod["metadata"], "annotations");
    }
    for container in pod["spec"]["containers"].as_array_mut().into_iter().flatten() {
        for (kept, probe) in
            [(keep.liveness, "livenessProbe"), (keep.readiness, "readinessProbe"), (keep.startup, "startupProbe")]
        {
            if !kept {
                remove(container, probe);
            }
        }
    }
    if !keep.init_containers {
        remove(&mut pod["spec"], "initContainers");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> Value {
        json!({
            "metadata": {"name": "p", "labels": {"a": "b"}, "annotations": {"c": "d"}},
            "spec": {
                "initContainers": [{"name": "i"}],
                "containers": [{"name": "c", "livenessProbe": {}, "securityContext": {"runAsUser": 1}}],
            },
        })
    }

    #[test]
    fn profiles_grant_what_they_say() {
        for (profile, style, pointer, expected) in [
            (
                Profile::General,
                Style::Ephemeral,
                "/spec/containers/0/securityContext/capabilities/add",
                json!(["SYS_PTRACE"]),
            ),
            (Profile::General, Style::Node, "/spec/hostPID", json!(true)),
            (Profile::General, Style::Node, "/spec/containers/0/volumeMounts/0/mountPath", json!("/host")),
            (Profile::General, Style::Node, "/spec/containers/0/securityContext", Value::Null),
            (Profile::General, Style::Copy, "/metadata/labels", Value::Null),
            (Profile::General, Style::Copy, "/spec/containers/0/livenessProbe", Value::Null),
            (Profile::General, Style::Copy, "/spec/shareProcessNamespace", json!(true)),
            (Profile::Legacy, Style::Copy, "/metadata/annotations/c", json!("d")),
            (Profile::Legacy, Style::Copy, "/metadata/labels", Value::Null),
            (Profile::Baseline, Style::Node, "/spec/hostPID", Value::Null),
            (Profile::Restricted, Style::Ephemeral, "/spec/containers/0/securityContext/runAsNonRoot", json!(true)),
            (Profile::Restricted, Style::Ephemeral, "/spec/containers/0/securityContext/runAsUser", Value::Null),
            (Profile::Netadmin, Style::Node, "/spec/hostNetwork", json!(true)),
            (Profile::Netadmin, Style::Node, "/spec/volumes", Value::Null),
            (Profile::Sysadmin, Style::Copy, "/spec/containers/0/securityContext/privileged", json!(true)),
        ] {
            let mut pod = pod();
            profile.apply(&mut pod, "c", style, Keep::default());
            let found = pod.pointer(pointer).cloned().unwrap_or(Value::Null);
            assert_eq!(found, expected, "{profile:?} {style:?} {pointer}");
        }
    }
}
