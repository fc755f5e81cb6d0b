//! What is accepted and yet should be said differently (`warningsForPodSpecAndMeta` upstream).

use k8s_openapi::api::core::v1::{PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::unset::items;

const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Annotations that have become fields. `path` stands before `metadata`, with a dot if there is anything.
pub(crate) fn annotation_warnings(path: &str, meta: &ObjectMeta, spec: Option<&PodSpec>) -> Vec<String> {
    let Some(spec) = spec else { return Vec::new() };
    if spec.security_context.as_ref().is_some_and(|context| context.app_armor_profile.is_some()) {
        return Vec::new();
    }
    let containers = spec.containers.iter().chain(items(&spec.init_containers));
    let has_field = |name: &str| {
        containers.clone().find(|container| container.name == name).map(|container| {
            container.security_context.as_ref().is_some_and(|context| context.app_armor_profile.is_some())
        })
    };
    let annotations = meta.annotations.iter().flatten();
    annotations
        .filter(|(key, _)| key.strip_prefix(APP_ARMOR).and_then(has_field) == Some(false))
        .map(|(key, _)| {
            format!(
                r#"{path}metadata.annotations[{key}]: deprecated since v1.30; use the "appArmorProfile" field instead"#
            )
        })
        .collect()
}

/// Of a template that is new or has changed.
pub(crate) fn template_warnings(path: &str, new: &PodTemplateSpec, old: Option<&PodTemplateSpec>) -> Vec<String> {
    let Some(meta) = new.metadata.as_ref().filter(|_| old != Some(new)) else { return Vec::new() };
    annotation_warnings(&format!("{path}."), meta, new.spec.as_ref())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_annotation_that_has_become_a_field_is_named() {
        let template = |pod: serde_json::Value, container: serde_json::Value| -> PodTemplateSpec {
            let annotations = json!({"container.apparmor.security.beta.kubernetes.io/c": "unconfined", "a": "b"});
            let spec = json!({"securityContext": pod, "containers": [{"name": "c", "securityContext": container}]});
            serde_json::from_value(json!({"metadata": {"annotations": annotations}, "spec": spec})).unwrap()
        };
        let profile = json!({"appArmorProfile": {"type": "Unconfined"}});
        let bare = template(json!({}), json!({}));
        let expected = "spec.template.metadata.annotations[container.apparmor.security.beta.kubernetes.io/c]: \
                        deprecated since v1.30; use the \"appArmorProfile\" field instead";
        assert_eq!(template_warnings("spec.template", &bare, None), [expected]);
        assert_eq!(template_warnings("spec.template", &bare, Some(&bare)), Vec::<String>::new());
        for given in [template(profile.clone(), json!({})), template(json!({}), profile.clone())] {
            assert_eq!(template_warnings("spec.template", &given, None), Vec::<String>::new());
        }
    }
}
