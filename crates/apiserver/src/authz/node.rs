//! The node authorizer: a kubelet reads what its own pods need, and writes its own objects.

use api::UserInfo;
use k8s_openapi::api::core::v1::Pod;

use super::rbac::allows;
use super::{Attributes, Opinion};
use crate::state::State;

const NODES: &str = "system:nodes";

pub(super) fn decide(state: &State, user: &UserInfo, attributes: &Attributes) -> Opinion {
    let Some(node) = user.name.strip_prefix("system:node:").filter(|_| user.in_group(NODES)) else {
        return Opinion::None;
    };
    if attributes.is_resource {
        let reads = matches!(&*attributes.verb, "get" | "list" | "watch");
        let own = |kind: Referenced| {
            if attributes.name.is_empty() || !reads || !attributes.subresource.is_empty() {
                return Opinion::None;
            }
            if uses(state, node, &attributes.namespace, &attributes.name, kind) {
                Opinion::Allow(String::new())
            } else {
                Opinion::None
            }
        };
        match (&*attributes.group, &*attributes.resource) {
            ("", "secrets") => return own(Referenced::Secret),
            ("", "configmaps") => return own(Referenced::ConfigMap),
            ("", "persistentvolumeclaims") if attributes.subresource.is_empty() => return own(Referenced::Claim),
            ("", "serviceaccounts") => {
                let token = attributes.subresource == "token" && attributes.verb == "create";
                let get = attributes.subresource.is_empty() && attributes.verb == "get";
                if (token || get)
                    && uses(state, node, &attributes.namespace, &attributes.name, Referenced::ServiceAccount)
                {
                    return Opinion::Allow(String::new());
                }
                return Opinion::None;
            }
            ("coordination.k8s.io", "leases") => {
                let lives_here = attributes.namespace == "kube-node-lease";
                let own = attributes.name == node || attributes.verb == "create";
                return if lives_here && own { Opinion::Allow(String::new()) } else { Opinion::None };
            }
            ("storage.k8s.io", "csinodes") if attributes.verb != "create" && attributes.name != node => {
                return Opinion::None;
            }
            _ => {}
        }
    }
    if super::bootstrap_policy::node_rules().iter().any(|rule| allows(rule, attributes)) {
        return Opinion::Allow(String::new());
    }
    Opinion::None
}

#[derive(Clone, Copy)]
enum Referenced {
    Secret,
    ConfigMap,
    Claim,
    ServiceAccount,
}

/// Whether a pod on this node refers to the object.
fn uses(state: &State, node: &str, namespace: &str, name: &str, kind: Referenced) -> bool {
    let Some(cache) = state.caches.get("pods") else { return false };
    let snapshot = cache.snapshot();
    snapshot.range(Some(namespace), None).any(|entry| {
        let assigned = crate::json::find(&entry.json, &["spec", "nodeName"]);
        if assigned.is_none_or(|range| crate::json::text(&entry.json[range]) != node) {
            return false;
        }
        serde_json::from_slice::<Pod>(&entry.json).is_ok_and(|pod| refers(&pod, name, kind))
    })
}

fn refers(pod: &Pod, name: &str, kind: Referenced) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let volumes = spec.volumes.iter().flatten();
    let containers = || {
        let main = spec.containers.iter();
        main.chain(spec.init_containers.iter().flatten())
    };
    match kind {
        Referenced::ServiceAccount => spec.service_account_name.as_deref() == Some(name),
        Referenced::Claim => {
            let generated = pod.metadata.name.clone().unwrap_or_default();
            volumes.into_iter().any(|volume| {
                volume.persistent_volume_claim.as_ref().is_some_and(|claim| claim.claim_name == name)
                    || (volume.ephemeral.is_some() && format!("{generated}-{}", volume.name) == name)
            })
        }
        Referenced::Secret => {
            spec.image_pull_secrets.iter().flatten().any(|secret| secret.name == name)
                || containers().any(|container| {
                    container.env.iter().flatten().any(|env| {
                        env.value_from
                            .as_ref()
                            .and_then(|from| from.secret_key_ref.as_ref())
                            .is_some_and(|key| key.name == name)
                    }) || container
                        .env_from
                        .iter()
                        .flatten()
                        .any(|from| from.secret_ref.as_ref().is_some_and(|secret| secret.name == name))
                })
                || volumes.into_iter().any(|volume| {
                    volume.secret.as_ref().and_then(|secret| secret.secret_name.as_deref()) == Some(name)
                        || volume
                            .projected
                            .iter()
                            .flat_map(|projected| projected.sources.iter().flatten())
                            .any(|source| source.secret.as_ref().is_some_and(|secret| secret.name == name))
                        || volume
                            .csi
                            .as_ref()
                            .and_then(|csi| csi.node_publish_secret_ref.as_ref())
                            .is_some_and(|secret| secret.name == name)
                })
        }
        Referenced::ConfigMap => {
            containers().any(|container| {
                container.env.iter().flatten().any(|env| {
                    env.value_from
                        .as_ref()
                        .and_then(|from| from.config_map_key_ref.as_ref())
                        .is_some_and(|key| key.name == name)
                }) || container
                    .env_from
                    .iter()
                    .flatten()
                    .any(|from| from.config_map_ref.as_ref().is_some_and(|map| map.name == name))
            }) || volumes.into_iter().any(|volume| {
                volume.config_map.as_ref().is_some_and(|map| map.name == name)
                    || volume
                        .projected
                        .iter()
                        .flat_map(|projected| projected.sources.iter().flatten())
                        .any(|source| source.config_map.as_ref().is_some_and(|map| map.name == name))
            })
        }
    }
}
