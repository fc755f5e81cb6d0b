//! What a kustomization changes on every object: namespace, names, labels, annotations, replicas, images.

use serde_json::{Value, json};

use super::error::KustomizeError;
use super::{Resource, list, visit};
use crate::objects::{template_pointer, text};

const CLUSTER_SCOPED: &[&str] = &[
    "APIService",
    "CSIDriver",
    "CSINode",
    "CertificateSigningRequest",
    "ClusterRole",
    "ClusterRoleBinding",
    "ComponentStatus",
    "CustomResourceDefinition",
    "FlowSchema",
    "IngressClass",
    "MutatingWebhookConfiguration",
    "Namespace",
    "Node",
    "PersistentVolume",
    "PriorityClass",
    "PriorityLevelConfiguration",
    "RuntimeClass",
    "StorageClass",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ValidatingWebhookConfiguration",
    "VolumeAttachment",
];

/// `namespace`, then `namePrefix` and `nameSuffix`.
pub(super) fn names(settings: &Value, resources: &mut [Resource]) {
    let accounts: Vec<Resource> = resources.iter().filter(|r| r.kind() == "ServiceAccount").cloned().collect();
    if let Some(namespace) = settings["namespace"].as_str() {
        for resource in resources.iter_mut() {
            set_namespace(resource, namespace, &accounts);
        }
    }
    let (prefix, suffix) = (text(settings, "/namePrefix"), text(settings, "/nameSuffix"));
    for resource in resources.iter_mut() {
        if !["Namespace", "CustomResourceDefinition", "APIService"].contains(&resource.kind()) {
            resource.rename(format!("{prefix}{}{suffix}", resource.name()));
        }
    }
}

fn set_namespace(resource: &mut Resource, namespace: &str, accounts: &[Resource]) {
    match resource.kind() {
        "Namespace" => resource.rename(namespace.to_owned()),
        "RoleBinding" | "ClusterRoleBinding" => {
            for subject in resource.object["subjects"].as_array_mut().into_iter().flatten() {
                let ours = text(subject, "/name") == "default"
                    || accounts.iter().any(|account| account.was_called(text(subject, "/name")));
                if subject["kind"] == "ServiceAccount" && ours {
                    subject["namespace"] = json!(namespace);
                }
            }
        }
        "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => {
            let path = ["webhooks", "clientConfig", "service", "namespace"];
            visit(&mut resource.object, &path, &mut |v| *v = json!(namespace));
        }
        _ => {}
    }
    if !CLUSTER_SCOPED.contains(&resource.kind()) {
        resource.object["metadata"]["namespace"] = json!(namespace);
    }
}

/// `commonLabels`, and `labels` with what each says it includes.
pub(super) fn labels(settings: &Value, resources: &mut [Resource]) {
    let mut sets = vec![(&settings["commonLabels"], true, true)];
    for entry in list(&settings["labels"]) {
        let selectors = entry["includeSelectors"] == true;
        sets.push((&entry["pairs"], selectors, selectors || entry["includeTemplates"] == true));
    }
    for (pairs, selectors, templates) in sets {
        for (key, value) in pairs.as_object().into_iter().flatten() {
            for resource in resources.iter_mut() {
                let kind = resource.kind().to_owned();
                let object = &mut resource.object;
                object["metadata"]["labels"][key] = value.clone();
                if templates {
                    in_templates(&kind, object, &mut |meta| meta["labels"][key] = value.clone());
                }
                if selectors {
                    select(&kind, object, key, value);
                }
            }
        }
    }
}

/// The metadata of pod and job templates.
fn in_templates(kind: &str, object: &mut Value, change: &mut dyn FnMut(&mut Value)) {
    if kind == "CronJob" && object["spec"]["jobTemplate"].is_object() {
        change(&mut object["spec"]["jobTemplate"]["metadata"]);
    }
    if let Some(template) = template_pointer(kind).filter(|p| !p.is_empty()).and_then(|p| object.pointer_mut(p)) {
        change(&mut template["metadata"]);
    }
}

fn select(kind: &str, object: &mut Value, key: &str, value: &Value) {
    match kind {
        "Service" | "ReplicationController" if object["spec"]["selector"].is_object() => {
            object["spec"]["selector"][key] = value.clone();
        }
        "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" => {
            object["spec"]["selector"]["matchLabels"][key] = value.clone();
            let claims = ["spec", "volumeClaimTemplates", "metadata"];
            visit(object, &claims, &mut |meta| meta["labels"][key] = value.clone());
        }
        // These select nothing more unless they select something already.
        "Job" | "PodDisruptionBudget" => {
            visit(object, &["spec", "selector", "matchLabels"], &mut |m| m[key] = value.clone());
        }
        "NetworkPolicy" => {
            for path in [
                &["spec", "podSelector", "matchLabels"][..],
                &["spec", "ingress", "from", "podSelector", "matchLabels"],
                &["spec", "egress", "to", "podSelector", "matchLabels"],
            ] {
                visit(object, path, &mut |m| m[key] = value.clone());
            }
        }
        _ => {}
    }
}

/// `commonAnnotations`
pub(super) fn annotations(settings: &Value, resources: &mut [Resource]) {
    for (key, value) in settings["commonAnnotations"].as_object().into_iter().flatten() {
        for resource in resources.iter_mut() {
            let kind = resource.kind().to_owned();
            resource.object["metadata"]["annotations"][key] = value.clone();
            in_templates(&kind, &mut resource.object, &mut |meta| meta["annotations"][key] = value.clone());
        }
    }
}

pub(super) fn replicas(rules: &Value, resources: &mut [Resource]) -> Result<(), KustomizeError> {
    for rule in list(rules) {
        let name = text(rule, "/name");
        let mut found = false;
        for resource in resources.iter_mut().filter(|r| {
            ["Deployment", "ReplicaSet", "ReplicationController", "StatefulSet"].contains(&r.kind())
                && r.was_called(name)
        }) {
            resource.object["spec"]["replicas"] = rule["count"].clone();
            found = true;
        }
        if !found {
            return Err(KustomizeError::NoReplicas(name.to_owned()));
        }
    }
    Ok(())
}

pub(super) fn images(rules: &Value, resources: &mut [Resource]) {
    for rule in list(rules) {
        for resource in resources.iter_mut() {
            let Some(spec) = crate::objects::pod_spec_mut(&mut resource.object) else { continue };
            for containers in ["initContainers", "containers"] {
                visit(spec, &[containers, "image"], &mut |image| {
                    if let Some(new) = image.as_str().and_then(|old| new_image(rule, old)) {
                        *image = json!(new);
                    }
                });
            }
        }
    }
}

/// The image under a rule, if the rule is about it.
fn new_image(rule: &Value, image: &str) -> Option<String> {
    let (rest, digest) = image.split_once('@').map_or((image, ""), |(rest, digest)| (rest, digest));
    let (name, tag) = match rest.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, tag),
        _ => (rest, ""),
    };
    if rule["name"] != name {
        return None;
    }
    let word = |key: &str| rule[key].as_str().map(str::to_owned).or_else(|| rule[key].as_i64().map(|n| n.to_string()));
    let new_name = word("newName").filter(|n| !n.is_empty()).unwrap_or_else(|| name.to_owned());
    let mut out = new_name;
    match (word("newTag").filter(|t| !t.is_empty()), word("digest").filter(|d| !d.is_empty())) {
        (None, None) => {
            let tag = format!("{tag}{}", word("tagSuffix").unwrap_or_default());
            if !tag.is_empty() {
                out.push_str(&format!(":{tag}"));
            }
            if !digest.is_empty() {
                out.push_str(&format!("@{digest}"));
            }
        }
        (tag, digest) => {
            if let Some(tag) = tag {
                out.push_str(&format!(":{tag}{}", word("tagSuffix").unwrap_or_default()));
            }
            if let Some(digest) = digest {
                out.push_str(&format!("@{digest}"));
            }
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_change_by_name() {
        for (rule, image, expected) in [
            (json!({"name": "nginx", "newTag": "2"}), "nginx:1", Some("nginx:2")),
            (json!({"name": "nginx", "newTag": 2}), "nginx", Some("nginx:2")),
            (json!({"name": "nginx", "newName": "r:5000/n"}), "nginx:1", Some("r:5000/n:1")),
            (json!({"name": "r:5000/n", "newTag": "2"}), "r:5000/n", Some("r:5000/n:2")),
            (json!({"name": "nginx", "digest": "sha256:0"}), "nginx:1", Some("nginx@sha256:0")),
            (json!({"name": "nginx", "newTag": "2"}), "other:1", None),
        ] {
            assert_eq!(new_image(&rule, image).as_deref(), expected, "{rule} {image}");
        }
    }
}
