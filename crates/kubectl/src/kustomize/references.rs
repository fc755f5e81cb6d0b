//! Objects mention each other by name; when one is renamed, the mentions follow.

use serde_json::{Value, json};

use super::configurations::Place;
use super::{Resource, visit};
use crate::objects::{template_pointer, text};

/// (kind of the object named, path inside a pod's spec)
const IN_PODS: &[(&str, &[&str])] = &[
    ("ConfigMap", &["volumes", "configMap", "name"]),
    ("ConfigMap", &["volumes", "projected", "sources", "configMap", "name"]),
    ("ConfigMap", &["containers", "env", "valueFrom", "configMapKeyRef", "name"]),
    ("ConfigMap", &["containers", "envFrom", "configMapRef", "name"]),
    ("ConfigMap", &["initContainers", "env", "valueFrom", "configMapKeyRef", "name"]),
    ("ConfigMap", &["initContainers", "envFrom", "configMapRef", "name"]),
    ("Secret", &["volumes", "secret", "secretName"]),
    ("Secret", &["volumes", "projected", "sources", "secret", "name"]),
    ("Secret", &["containers", "env", "valueFrom", "secretKeyRef", "name"]),
    ("Secret", &["containers", "envFrom", "secretRef", "name"]),
    ("Secret", &["initContainers", "env", "valueFrom", "secretKeyRef", "name"]),
    ("Secret", &["initContainers", "envFrom", "secretRef", "name"]),
    ("Secret", &["imagePullSecrets", "name"]),
    ("ServiceAccount", &["serviceAccountName"]),
    ("PersistentVolumeClaim", &["volumes", "persistentVolumeClaim", "claimName"]),
    ("PriorityClass", &["priorityClassName"]),
];

/// (kind that mentions, kind that is named, path)
const ELSEWHERE: &[(&str, &str, &[&str])] = &[
    ("StatefulSet", "Service", &["spec", "serviceName"]),
    ("StatefulSet", "StorageClass", &["spec", "volumeClaimTemplates", "spec", "storageClassName"]),
    ("Ingress", "Service", &["spec", "rules", "http", "paths", "backend", "service", "name"]),
    ("Ingress", "Service", &["spec", "defaultBackend", "service", "name"]),
    ("Ingress", "Secret", &["spec", "tls", "secretName"]),
    ("Ingress", "IngressClass", &["spec", "ingressClassName"]),
    ("PersistentVolumeClaim", "PersistentVolume", &["spec", "volumeName"]),
    ("PersistentVolumeClaim", "StorageClass", &["spec", "storageClassName"]),
    ("PersistentVolume", "StorageClass", &["spec", "storageClassName"]),
    ("ServiceAccount", "Secret", &["secrets", "name"]),
    ("ServiceAccount", "Secret", &["imagePullSecrets", "name"]),
    ("MutatingWebhookConfiguration", "Service", &["webhooks", "clientConfig", "service", "name"]),
    ("ValidatingWebhookConfiguration", "Service", &["webhooks", "clientConfig", "service", "name"]),
    ("APIService", "Service", &["spec", "service", "name"]),
    ("Role", "ConfigMap", &["rules", "resourceNames"]),
    ("Role", "Secret", &["rules", "resourceNames"]),
    ("ClusterRole", "ConfigMap", &["rules", "resourceNames"]),
    ("ClusterRole", "Secret", &["rules", "resourceNames"]),
];

/// `more` are fields that a configuration adds, with the kind of the object each names.
pub(super) fn fix(resources: &mut [Resource], more: &[(String, Place)]) {
    let known: Vec<Resource> = resources.to_vec();
    // The newest name of an object that had this one; unchanged when it is nobody's former name.
    let follow = |kind: &str, name: &mut Value| {
        let Some(old) = name.as_str() else { return };
        let found = known.iter().find(|r| r.kind() == kind && r.former_names.iter().any(|former| former == old));
        if let Some(found) = found {
            *name = json!(found.name());
        }
    };
    for resource in resources.iter_mut() {
        let places: Vec<&(String, Place)> = more.iter().filter(|(_, place)| place.is_in(resource)).collect();
        for (named, place) in places {
            visit(&mut resource.object, &place.path(), &mut |name| follow(named, name));
        }
        let kind = resource.kind().to_owned();
        let object = &mut resource.object;
        if let Some(spec) = template_pointer(&kind).and_then(|p| object.pointer_mut(&format!("{p}/spec"))) {
            for (named, path) in IN_PODS {
                visit(spec, path, &mut |name| follow(named, name));
            }
        }
        for (_, named, path) in ELSEWHERE.iter().filter(|(mentions, ..)| *mentions == kind) {
            visit(object, path, &mut |name| follow(named, name));
        }
        match kind.as_str() {
            "HorizontalPodAutoscaler" => {
                let named = text(object, "/spec/scaleTargetRef/kind").to_owned();
                visit(object, &["spec", "scaleTargetRef", "name"], &mut |name| follow(&named, name));
            }
            "RoleBinding" | "ClusterRoleBinding" => {
                let named = text(object, "/roleRef/kind").to_owned();
                visit(object, &["roleRef", "name"], &mut |name| follow(&named, name));
                visit(object, &["subjects"], &mut |subject| {
                    if subject["kind"] == "ServiceAccount" {
                        follow("ServiceAccount", &mut subject["name"]);
                    }
                });
            }
            _ => {}
        }
    }
}
