//! Ingress: HTTP from outside to services, by host and path.

use std::collections::BTreeSet;

use api::field::{FieldErrors, Path};
use api::sort::CompactCollect as _;
use api::validation;
use jiff::Timestamp;
use k8s_openapi::api::networking::v1::{
    HTTPIngressPath, Ingress, IngressBackend, IngressLoadBalancerIngress, IngressSpec,
};
use serde_json::{Value, json};

use crate::column::Column;
use crate::unset::{items, text};
use crate::{Strategy, cells};

pub struct IngressStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::string("Class", "Which controller serves it."),
    Column::string("Hosts", "Hosts it answers for."),
    Column::string("Address", "Where it is reached."),
    Column::string("Ports", "Ports it listens on."),
    Column::AGE,
];

/// What named the class before there was a field.
const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";

impl Strategy for IngressStrategy {
    type Object = Ingress;
    const COUNTS_GENERATIONS: bool = true;

    fn warnings(&self, ingress: &Ingress, old: Option<&Ingress>) -> Vec<String> {
        let is_annotated = ingress.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(CLASS_ANNOTATION));
        let warning =
            || format!("annotation {CLASS_ANNOTATION:?} is deprecated, please use 'spec.ingressClassName' instead");
        (is_annotated && old.is_none()).then(warning).into_iter().collect()
    }

    fn validate_create(&self, ingress: &Ingress) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let spec = ingress.spec.clone().unwrap_or_default();
        validate_spec(&mut errors, &Path::new("spec"), &spec);
        let annotation = ingress.metadata.annotations.as_ref().and_then(|all| all.get(CLASS_ANNOTATION));
        if let (Some(annotation), Some(class)) = (annotation, &spec.ingress_class_name)
            && annotation != class
        {
            errors.invalid(
                "annotations.kubernetes.io/ingress.class",
                annotation,
                "must match `ingressClassName` when both are specified",
            );
        }
        errors
    }

    fn validate_update(&self, new: &Ingress, _: &Ingress) -> FieldErrors {
        let mut errors = FieldErrors::default();
        validate_spec(&mut errors, &Path::new("spec"), &new.spec.clone().unwrap_or_default());
        errors
    }

    fn validate_status_update(&self, new: &Ingress, old: &Ingress) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let path = Path::new("status.loadBalancer.ingress");
        let before: BTreeSet<&str> = points(old).iter().filter_map(|point| point.ip.as_deref()).compact_collect();
        for (i, point) in points(new).iter().enumerate() {
            if let Some(address) = text(&point.ip)
                && !before.contains(address)
            {
                crate::address::ip(&mut errors, &path.index(i).child("ip"), address);
            }
        }
        errors
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, ingress: &Ingress, now: Timestamp) -> Vec<Value> {
        const SHOWN: usize = 3;
        let spec = ingress.spec.clone().unwrap_or_default();
        let hosts: Vec<&str> = items(&spec.rules).iter().filter_map(|rule| text(&rule.host)).collect();
        let hosts = match hosts.len() {
            0 => "*".to_owned(),
            n if n > SHOWN => format!("{} + {} more...", hosts[..SHOWN].join(","), n - SHOWN),
            _ => hosts.join(","),
        };
        let addresses: Vec<&str> =
            points(ingress).iter().filter_map(|point| text(&point.ip).or(text(&point.hostname))).collect();
        vec![
            cells::name(&ingress.metadata),
            cells::or_none(&spec.ingress_class_name),
            json!(hosts),
            json!(addresses.join(",")),
            json!(if items(&spec.tls).is_empty() { "80" } else { "80, 443" }),
            cells::age(&ingress.metadata, now),
        ]
    }
}

/// Where the ingress is reached.
fn points(ingress: &Ingress) -> &[IngressLoadBalancerIngress] {
    let balancer = ingress.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    balancer.map(|balancer| items(&balancer.ingress)).unwrap_or_default()
}

fn validate_spec(errors: &mut FieldErrors, path: &Path<'_>, spec: &IngressSpec) {
    let rules = items(&spec.rules);
    if rules.is_empty() && spec.default_backend.is_none() {
        errors.invalid(path, rules, "either `defaultBackend` or `rules` must be specified");
    }
    if let Some(default) = &spec.default_backend {
        backend(errors, &path.child("defaultBackend"), default);
    }
    for (i, rule) in rules.iter().enumerate() {
        let path = path.child("rules");
        let path = path.index(i);
        if let Some(host) = text(&rule.host) {
            host_name(errors, &path.child("host"), host);
        }
        if let Some(http) = &rule.http {
            let path = path.child("http.paths");
            if http.paths.is_empty() {
                errors.required(path, "");
            }
            for (i, entry) in http.paths.iter().enumerate() {
                http_path(errors, &path.index(i), entry);
            }
        }
    }
    for (i, tls) in items(&spec.tls).iter().enumerate() {
        for (j, host) in items(&tls.hosts).iter().enumerate() {
            let messages = if host.contains('*') {
                validation::wildcard_dns1123_subdomain(host)
            } else {
                validation::dns1123_subdomain(host)
            };
            let path = path.child("tls");
            let path = path.index(i);
            errors.invalid_each(path.child("hosts").index(j), host, messages);
        }
        if let Some(secret) = text(&tls.secret_name) {
            let path = path.child("tls");
            errors.invalid_each(path.index(i).child("secretName"), secret, validation::dns1123_subdomain(secret));
        }
    }
    if let Some(class) = &spec.ingress_class_name {
        errors.invalid_each(path.child("ingressClassName"), class, validation::dns1123_subdomain(class));
    }
}

fn host_name(errors: &mut FieldErrors, path: &Path<'_>, host: &str) {
    if host.parse::<std::net::IpAddr>().is_ok() {
        errors.invalid(path, host, "must be a DNS name, not an IP address");
    }
    let messages = if host.contains('*') {
        validation::wildcard_dns1123_subdomain(host)
    } else {
        validation::dns1123_subdomain(host)
    };
    errors.invalid_each(path, host, messages);
}

fn http_path(errors: &mut FieldErrors, path: &Path<'_>, entry: &HTTPIngressPath) {
    let value = entry.path.as_deref().unwrap_or_default();
    match entry.path_type.as_str() {
        "" => {
            errors.required(path.child("pathType"), "pathType must be specified");
            return;
        }
        "Exact" | "Prefix" => {
            if !value.starts_with('/') {
                errors.invalid(path.child("path"), value, "must be an absolute path");
            }
            for sequence in ["//", "/./", "/../", "%2f", "%2F"] {
                if value.contains(sequence) {
                    errors.invalid(path.child("path"), value, format!("must not contain '{sequence}'"));
                }
            }
            for suffix in ["/..", "/."] {
                if value.ends_with(suffix) {
                    errors.invalid(path.child("path"), value, format!("cannot end with '{suffix}'"));
                }
            }
        }
        "ImplementationSpecific" => {
            if !value.is_empty() && !value.starts_with('/') {
                errors.invalid(path.child("path"), value, "must be an absolute path");
            }
        }
        other => {
            errors.not_supported(path.child("pathType"), other, &["Exact", "ImplementationSpecific", "Prefix"]);
        }
    }
    backend(errors, &path.child("backend"), &entry.backend);
}

fn backend(errors: &mut FieldErrors, path: &Path<'_>, backend: &IngressBackend) {
    match (&backend.service, &backend.resource) {
        (Some(_), Some(_)) => errors.invalid(path, "", "cannot set both resource and service backends"),
        (None, None) => errors.invalid(path, "", "resource or service backend is required"),
        (None, Some(resource)) => {
            let path = path.child("resource");
            if let Some(group) = &resource.api_group {
                errors.invalid_each(path.child("apiGroup"), group, validation::dns1123_subdomain(group));
            }
            for (field, value) in [("kind", &resource.kind), ("name", &resource.name)] {
                if value.is_empty() {
                    errors.required(path.child(field), format!("{field} is required"));
                } else {
                    errors.invalid_each(path.child(field), value, validation::path_segment_name(value));
                }
            }
        }
        (Some(service), None) => {
            if service.name.is_empty() {
                errors.required(path.child("service.name"), "");
            } else {
                errors.invalid_each(
                    path.child("service.name"),
                    &service.name,
                    validation::dns1123_label(&service.name),
                );
            }
            let port = service.port.clone().unwrap_or_default();
            match (text(&port.name), port.number.unwrap_or(0)) {
                (Some(_), number) if number != 0 => {
                    errors.invalid(path, "", "cannot set both port name & port number");
                }
                (Some(name), _) => {
                    errors.invalid_each(path.child("service.port.name"), name, validation::port_name(name));
                }
                (None, 0) => errors.required(path, "port name or number is required"),
                (None, number) => errors.invalid_each(
                    path.child("service.port.number"),
                    number,
                    validation::port_number(i64::from(number)),
                ),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_that_serves_has_a_kind_and_a_name() {
        for (resource, expected) in [
            (json!({"apiGroup": "a.io", "kind": "Bucket", "name": "b"}), "[]"),
            (
                json!({"apiGroup": "a.io", "kind": "Bucket", "name": ""}),
                "spec.defaultBackend.resource.name: Required value: name is required",
            ),
            (
                json!({"kind": "a/b", "name": "b"}),
                "spec.defaultBackend.resource.kind: Invalid value: \"a/b\": may not contain '/'",
            ),
        ] {
            let ingress: Ingress =
                serde_json::from_value(json!({"spec": {"defaultBackend": {"resource": resource}}})).unwrap();
            assert_eq!(IngressStrategy.validate_create(&ingress).to_string(), expected);
        }
    }

    #[test]
    fn the_annotation_that_became_a_field_is_named() {
        let ingress = |annotations: Value| -> Ingress {
            serde_json::from_value(json!({"metadata": {"name": "web", "annotations": annotations}})).unwrap()
        };
        let (old, new) = (ingress(json!({"kubernetes.io/ingress.class": "x"})), ingress(json!({})));
        let expected =
            "annotation \"kubernetes.io/ingress.class\" is deprecated, please use 'spec.ingressClassName' instead";
        assert_eq!(IngressStrategy.warnings(&old, None), [expected]);
        assert_eq!(IngressStrategy.warnings(&old, Some(&old)), Vec::<String>::new());
        assert_eq!(IngressStrategy.warnings(&new, None), Vec::<String>::new());
    }
}
