//! Service: one stable address in front of many pods.
//!
//! Cluster IPs and node ports are given out by the allocators before validation; here is what they leave to us.

use std::collections::{BTreeMap, BTreeSet};

use api::field::{FieldErrors, Path};
use api::sort::CompactCollect as _;
use api::validation as rules;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{LoadBalancerIngress, Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use super::pod_spec::validation::one_of;
use crate::address::{cidr, ip, not_special, ordinary};
use crate::column::Column;
use crate::unset::{items, items_mut, or_empty, set_text, text};
use crate::{Call, NameRule, SelectableField, Strategy, cells, metadata};

pub struct ServiceStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::string("Type", "How the service is reached."),
    Column::string("Cluster-IP", "The address inside the cluster."),
    Column::string("External-IP", "Addresses from outside the cluster."),
    Column::string("Port(s)", "The ports the service offers."),
    Column::AGE,
    cells::SELECTOR,
];

const AFFINITY_SECONDS: i32 = 3 * 60 * 60;
const TYPES: &[&str] = &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];

impl Strategy for ServiceStrategy {
    type Object = Service;

    fn apply_defaults(&self, service: &mut Service) {
        let spec = service.spec.get_or_insert_default();
        set_text(&mut spec.session_affinity, "None");
        if spec.session_affinity.as_deref() == Some("None") {
            spec.session_affinity_config = None;
        } else if spec.session_affinity.as_deref() == Some("ClientIP") {
            let client = spec.session_affinity_config.get_or_insert_default().client_ip.get_or_insert_default();
            client.timeout_seconds.get_or_insert(AFFINITY_SECONDS);
        }
        set_text(&mut spec.type_, "ClusterIP");
        for port in items_mut(&mut spec.ports) {
            set_text(&mut port.protocol, "TCP");
            let unset = match &port.target_port {
                None | Some(IntOrString::Int(0)) => true,
                Some(IntOrString::String(name)) => name.is_empty(),
                Some(IntOrString::Int(_)) => false,
            };
            if unset {
                port.target_port = Some(IntOrString::Int(port.port));
            }
        }
        let kind = spec.type_.as_deref().unwrap_or_default();
        if is_external(spec) {
            set_text(&mut spec.external_traffic_policy, "Cluster");
        }
        if matches!(kind, "ClusterIP" | "NodePort" | "LoadBalancer") && spec.internal_traffic_policy.is_none() {
            spec.internal_traffic_policy = Some("Cluster".to_owned());
        }
        if spec.type_.as_deref() == Some("LoadBalancer") {
            spec.allocate_load_balancer_node_ports.get_or_insert(true);
        }
        for ingress in service
            .status
            .as_mut()
            .and_then(|status| status.load_balancer.as_mut())
            .map(|balancer| items_mut(&mut balancer.ingress))
            .unwrap_or_default()
        {
            if text(&ingress.ip).is_some() {
                set_text(&mut ingress.ip_mode, "VIP");
            }
        }
    }

    fn prepare_for_update(&self, _: &Call<'_>, new: &mut Service, old: &Service) {
        let (Some(new), Some(old)) = (&mut new.spec, &old.spec) else { return };
        // A client that knows one address only means all of them (`normalizeClusterIPs`, v1.36).
        let wanted = text(&new.cluster_ip).map(str::to_owned);
        if wanted.is_some() && new.cluster_ip != old.cluster_ip && items(&new.cluster_ips) == items(&old.cluster_ips) {
            new.cluster_ips = wanted.map(|address| vec![address]);
        }
        // A client that knows nothing of addresses does not mean to drop them.
        if or_empty(&new.type_) != "ExternalName" && or_empty(&old.type_) != "ExternalName" {
            if text(&new.cluster_ip).is_none() && items(&new.cluster_ips).is_empty() {
                new.cluster_ip.clone_from(&old.cluster_ip);
                new.cluster_ips.clone_from(&old.cluster_ips);
            }
            if new.ip_families.is_none() && same_policy(new, old) {
                new.ip_families.clone_from(&old.ip_families);
            }
            if new.ip_family_policy.is_none() {
                new.ip_family_policy.clone_from(&old.ip_family_policy);
            }
        }
        // Going to a type without node ports gives them back; staying keeps those not mentioned.
        if has_node_ports(new) && has_node_ports(old) {
            // The body need not be valid yet: there may be a hundred thousand ports.
            let before = items(&old.ports).iter().rev();
            let before: BTreeMap<_, Option<i32>> = before
                .map(|port| ((port.port, port.protocol.clone(), port.name.clone()), port.node_port))
                .compact_collect();
            for port in items_mut(&mut new.ports).iter_mut().filter(|port| port.node_port.unwrap_or(0) == 0) {
                let same = before.get(&(port.port, port.protocol.clone(), port.name.clone()));
                port.node_port = same.copied().flatten();
            }
        } else if !has_node_ports(new) {
            for (port, before) in items_mut(&mut new.ports).iter_mut().zip(items(&old.ports)) {
                if port.node_port == before.node_port {
                    port.node_port = None;
                }
            }
        }
        if !is_external(new) && is_external(old) && new.external_traffic_policy == old.external_traffic_policy {
            new.external_traffic_policy = None;
        }
        if !needs_health_check(new)
            && needs_health_check(old)
            && new.health_check_node_port == old.health_check_node_port
        {
            new.health_check_node_port = None;
        }
        if or_empty(&new.type_) != "LoadBalancer" && or_empty(&old.type_) == "LoadBalancer" {
            if new.allocate_load_balancer_node_ports == old.allocate_load_balancer_node_ports {
                new.allocate_load_balancer_node_ports = None;
            }
            if new.load_balancer_class == old.load_balancer_class {
                new.load_balancer_class = None;
            }
        }
        if or_empty(&new.type_) == "ExternalName" && or_empty(&old.type_) != "ExternalName" {
            if new.cluster_ip == old.cluster_ip {
                new.cluster_ip = None;
                new.cluster_ips = None;
            }
            new.ip_families = None;
            new.ip_family_policy = None;
            new.internal_traffic_policy = None;
        }
    }

    fn validate_create(&self, service: &Service) -> FieldErrors {
        let mut errors = FieldErrors::default();
        validate(&mut errors, service, None);
        errors
    }

    fn validate_update(&self, new: &Service, old: &Service) -> FieldErrors {
        let mut errors = FieldErrors::default();
        if let (Some(new), Some(old)) = (&new.spec, &old.spec) {
            let addressed = |spec: &ServiceSpec| or_empty(&spec.type_) != "ExternalName";
            if addressed(new) && addressed(old) {
                let first = |spec: &ServiceSpec| items(&spec.cluster_ips).first().cloned();
                if first(old).is_some() && first(new) != first(old) {
                    errors.invalid("spec.clusterIPs[0]", items(&new.cluster_ips), "may not change once set");
                }
            }
            if or_empty(&new.type_) == "LoadBalancer"
                && or_empty(&old.type_) == "LoadBalancer"
                && new.load_balancer_class != old.load_balancer_class
            {
                errors.invalid("spec.loadBalancerClass", &new.load_balancer_class, "may not change once set");
            }
        }
        validate(&mut errors, new, Some(old));
        errors
    }

    fn validate_status_update(&self, new: &Service, old: &Service) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let path = Path::new("status.loadBalancer.ingress");
        let before: BTreeSet<&str> = ingress(old).iter().filter_map(|point| point.ip.as_deref()).compact_collect();
        for (i, point) in ingress(new).iter().enumerate() {
            if let Some(address) = text(&point.ip)
                && !before.contains(address)
            {
                ip(&mut errors, &path.index(i).child("ip"), address);
            }
        }
        errors
    }

    fn name_rule(&self) -> NameRule {
        NameRule::Label
    }

    fn selectable_fields(&self) -> &'static [SelectableField] {
        const {
            &[
                SelectableField::new("spec.clusterIP", &["spec", "clusterIP"]),
                SelectableField::new("spec.type", &["spec", "type"]),
            ]
        }
    }

    fn warnings(&self, service: &Service, _: Option<&Service>) -> Vec<String> {
        const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
        let spec = service.spec.clone().unwrap_or_default();
        let annotations = service.metadata.annotations.as_ref();
        let has_hints = annotations.is_some_and(|annotations| annotations.contains_key(HINTS));
        let is_elsewhere = or_empty(&spec.type_) == "ExternalName";
        let is_headless = or_empty(&spec.type_) == "ClusterIP" && spec.cluster_ip.as_deref() == Some("None");
        let (is_external, is_sticky) =
            (!items(&spec.external_ips).is_empty(), or_empty(&spec.session_affinity) != "None");
        let warnings = [
            (
                has_hints,
                "annotation service.kubernetes.io/topology-aware-hints is deprecated, please use service.kubernetes.io/topology-mode instead",
            ),
            (
                is_headless && text(&spec.load_balancer_ip).is_some(),
                "spec.loadBalancerIP is ignored for headless services",
            ),
            (is_headless && is_external, "spec.externalIPs is ignored for headless services"),
            (is_headless && is_sticky, "spec.SessionAffinity is ignored for headless services"),
            (
                is_external && !is_headless && !is_elsewhere,
                "spec.externalIPs is deprecated and may no longer be implemented in some clusters",
            ),
            (is_external && is_elsewhere, r#"spec.externalIPs is ignored when spec.type is "ExternalName""#),
            (
                !is_elsewhere && text(&spec.external_name).is_some(),
                r#"spec.externalName is ignored when spec.type is not "ExternalName""#,
            ),
            (
                text(&spec.traffic_distribution) == Some("PreferClose"),
                r#"spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone""#,
            ),
        ];
        warnings.into_iter().filter(|(applies, _)| *applies).map(|(_, warning)| warning.to_owned()).collect()
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, service: &Service, now: Timestamp) -> Vec<Value> {
        let spec = service.spec.clone().unwrap_or_default();
        let address = items(&spec.cluster_ips).first().cloned().or_else(|| spec.cluster_ip.clone());
        let ports: Vec<String> = items(&spec.ports)
            .iter()
            .map(|port| match port.node_port.unwrap_or(0) {
                0 => format!("{}/{}", port.port, or_empty(&port.protocol)),
                node_port => format!("{}:{node_port}/{}", port.port, or_empty(&port.protocol)),
            })
            .collect();
        vec![
            cells::name(&service.metadata),
            json!(or_empty(&spec.type_)),
            cells::or_none(&address),
            json!(external_address(service, &spec)),
            cells::joined(&ports),
            cells::age(&service.metadata, now),
            cells::labels(spec.selector.as_ref()),
        ]
    }
}

/// Where the load balancer is reached.
fn ingress(service: &Service) -> &[LoadBalancerIngress] {
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    balancer.map(|balancer| items(&balancer.ingress)).unwrap_or_default()
}

fn external_address(service: &Service, spec: &ServiceSpec) -> String {
    let external = items(&spec.external_ips);
    match or_empty(&spec.type_) {
        "ExternalName" => or_empty(&spec.external_name).to_owned(),
        "LoadBalancer" => {
            let mut addresses: Vec<String> = ingress(service)
                .iter()
                .filter_map(|ingress| text(&ingress.ip).or(text(&ingress.hostname)).map(str::to_owned))
                .collect();
            addresses.extend_from_slice(external);
            if addresses.is_empty() { "<pending>".to_owned() } else { addresses.join(",") }
        }
        "ClusterIP" | "NodePort" if external.is_empty() => "<none>".to_owned(),
        "ClusterIP" | "NodePort" => external.join(","),
        _ => "<unknown>".to_owned(),
    }
}

/// Whether the service is reached from outside: it then has an external traffic policy.
fn is_external(spec: &ServiceSpec) -> bool {
    match or_empty(&spec.type_) {
        "NodePort" | "LoadBalancer" => true,
        "ClusterIP" => !items(&spec.external_ips).is_empty(),
        _ => false,
    }
}

/// Whether a load balancer asks the nodes of the service which of them have endpoints.
fn needs_health_check(spec: &ServiceSpec) -> bool {
    or_empty(&spec.type_) == "LoadBalancer" && or_empty(&spec.external_traffic_policy) == "Local"
}

fn has_node_ports(spec: &ServiceSpec) -> bool {
    match or_empty(&spec.type_) {
        "NodePort" => true,
        "LoadBalancer" => spec.allocate_load_balancer_node_ports != Some(false),
        _ => false,
    }
}

fn same_policy(new: &ServiceSpec, old: &ServiceSpec) -> bool {
    new.ip_family_policy.is_none() || new.ip_family_policy == old.ip_family_policy
}

/// With `old`, what that has is not asked about again: more may have been accepted once.
fn validate(errors: &mut FieldErrors, service: &Service, old: Option<&Service>) {
    let Some(spec) = &service.spec else { return };
    let none = ServiceSpec::default();
    let old_spec = old.and_then(|old| old.spec.as_ref()).unwrap_or(&none);
    let path = Path::new("spec");
    validate_spec(errors, &path, spec);
    addresses(errors, &path, spec, old_spec);
    policies(errors, &path, spec);
    source_ranges(errors, service, old, spec, old_spec);
}

/// From where a load balancer may be used: the field, else the annotation that was there before it.
fn source_ranges(
    errors: &mut FieldErrors,
    service: &Service,
    old: Option<&Service>,
    spec: &ServiceSpec,
    old_spec: &ServiceSpec,
) {
    const ANNOTATION: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
    const ONLY: &str = "may only be used when `type` is 'LoadBalancer'";
    let is_balanced = or_empty(&spec.type_) == "LoadBalancer";
    let annotation = |service: &Service| service.metadata.annotations.as_ref()?.get(ANNOTATION).cloned();
    let ranges = items(&spec.load_balancer_source_ranges);
    if !ranges.is_empty() {
        if !is_balanced {
            errors.forbidden("spec.LoadBalancerSourceRanges", ONLY);
        }
        let path = Path::new("spec.LoadBalancerSourceRanges");
        let before = items(&old_spec.load_balancer_source_ranges).iter().map(|range| range.trim());
        let before: BTreeSet<&str> = before.compact_collect();
        for (i, range) in ranges.iter().map(|range| range.trim()).enumerate() {
            if !before.contains(range) {
                cidr(errors, &path.index(i), range);
            }
        }
    } else if let Some(text) = annotation(service) {
        let path = Path::new("metadata.annotations");
        if !is_balanced {
            errors.forbidden(path.key(ANNOTATION), ONLY);
        }
        if !text.trim().is_empty() && old.and_then(annotation).as_ref() != Some(&text) {
            for range in text.split(',') {
                cidr(errors, &path.key(ANNOTATION), range.trim());
            }
        }
    }
}

fn validate_spec(errors: &mut FieldErrors, path: &Path<'_>, spec: &ServiceSpec) {
    let kind = or_empty(&spec.type_);
    let headless = spec.cluster_ip.as_deref() == Some("None");
    let ports = items(&spec.ports);
    if ports.is_empty() && !headless && kind != "ExternalName" {
        errors.required(path.child("ports"), "");
    }
    match kind {
        "LoadBalancer" if headless => {
            errors.invalid(path.child("clusterIPs[0]"), "None", "may not be set to 'None' for LoadBalancer services")
        }
        "NodePort" if headless => {
            errors.invalid(path.child("clusterIPs[0]"), "None", "may not be set to 'None' for NodePort services");
        }
        "ExternalName" => {
            if text(&spec.cluster_ip).is_some() {
                errors.forbidden(path.child("clusterIPs"), "may not be set for ExternalName services");
            }
            for (name, is_set) in [
                ("ipFamilies", !items(&spec.ip_families).is_empty()),
                ("ipFamilyPolicy", spec.ip_family_policy.is_some()),
            ] {
                if is_set {
                    errors.forbidden(path.child(name), "may not be set for ExternalName services");
                }
            }
            let name = or_empty(&spec.external_name);
            let name = name.strip_suffix('.').unwrap_or(name);
            if name.is_empty() {
                errors.required(path.child("externalName"), "");
            } else {
                errors.invalid_each(path.child("externalName"), name, rules::dns1123_subdomain(name));
            }
        }
        _ => {}
    }
    let mut names = BTreeSet::new();
    let mut taken = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let path = path.child("ports");
        let path = path.index(i);
        service_port(errors, &path, port, ports.len() > 1, &mut names);
        if port.node_port.unwrap_or(0) != 0 && !matches!(kind, "NodePort" | "LoadBalancer") {
            errors.forbidden(path.child("nodePort"), format!("may not be used when `type` is '{kind}'"));
        }
        if !taken.insert((port.port, &port.protocol)) {
            let mut shown = serde_json::Map::new();
            shown.insert("port".to_owned(), json!(port.port));
            shown.insert("protocol".to_owned(), json!(port.protocol));
            errors.duplicate(path, shown);
        }
    }
    metadata::labels(errors, &path.child("selector"), spec.selector.as_ref());
    one_of(errors, &path.child("sessionAffinity"), &spec.session_affinity, &["ClientIP", "None"]);
    if let Some(timeout) =
        spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref()?.timeout_seconds)
        && !(1..=86_400).contains(&timeout)
    {
        errors.invalid(
            path.child("sessionAffinityConfig.clientIP.timeoutSeconds"),
            timeout,
            "must be greater than 0 and less than 86400",
        );
    }
    if !TYPES.contains(&kind) {
        errors.not_supported(path.child("type"), kind, TYPES);
    }
}

fn service_port(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    port: &ServicePort,
    named: bool,
    names: &mut BTreeSet<String>,
) {
    match text(&port.name) {
        None if named => errors.required(path.child("name"), ""),
        None => {}
        Some(name) => {
            errors.invalid_each(path.child("name"), name, rules::dns1123_label(name));
            if !names.insert(name.to_owned()) {
                errors.duplicate(path.child("name"), name);
            }
        }
    }
    errors.invalid_each(path.child("port"), port.port, rules::port_number(i64::from(port.port)));
    one_of(errors, &path.child("protocol"), &port.protocol, &["SCTP", "TCP", "UDP"]);
    if let Some(target) = &port.target_port {
        super::pod_spec::probes::port(errors, &path.child("targetPort"), target);
    }
    if let Some(protocol) = &port.app_protocol {
        errors.invalid_each(path.child("appProtocol"), protocol, rules::qualified_name(protocol));
    }
}

fn addresses(errors: &mut FieldErrors, path: &Path<'_>, spec: &ServiceSpec, old: &ServiceSpec) {
    let given = items(&spec.cluster_ips);
    let path_of = |name| path.child(name);
    if or_empty(&spec.type_) != "ExternalName" {
        match (text(&spec.cluster_ip), given) {
            (Some(first), [other, ..]) if first != other => {
                errors.invalid(path_of("clusterIPs"), given, "first value must match `clusterIP`");
            }
            (None, [_, ..]) => {
                errors.invalid(path_of("clusterIPs"), given, "must be empty when `clusterIP` is not specified");
            }
            _ => {}
        }
        for (i, address) in given.iter().enumerate() {
            if address == "None" {
                if given.len() > 1 {
                    errors.invalid(path_of("clusterIPs"), given, "'None' must be the first and only value");
                }
            } else if !items(&old.cluster_ips).contains(address) {
                ip(errors, &path_of("clusterIPs").index(i), address);
            }
        }
        if given.len() > 2 {
            errors.invalid(path_of("clusterIPs"), given, "may only hold up to 2 values");
        }
    }
    let mut seen = BTreeSet::new();
    for (i, family) in items(&spec.ip_families).iter().enumerate() {
        let families = path.child("ipFamilies");
        if !matches!(family.as_str(), "IPv4" | "IPv6") {
            errors.not_supported(families.index(i), family, &["IPv4", "IPv6"]);
        }
        if !seen.insert(family.as_str()) {
            errors.duplicate(families.index(i), family);
        }
    }
    if let Some(policy) = text(&spec.ip_family_policy)
        && !matches!(policy, "PreferDualStack" | "RequireDualStack" | "SingleStack")
    {
        errors.not_supported(
            path.child("ipFamilyPolicy"),
            policy,
            &["PreferDualStack", "RequireDualStack", "SingleStack"],
        );
    }
    let before: BTreeSet<&String> = items(&old.external_ips).iter().compact_collect();
    for (i, address) in items(&spec.external_ips).iter().enumerate() {
        let path = path.child("externalIPs");
        if before.contains(address) {
            not_special(errors, &path.index(i), address);
        } else {
            ordinary(errors, &path.index(i), address);
        }
    }
}

fn policies(errors: &mut FieldErrors, path: &Path<'_>, spec: &ServiceSpec) {
    let kind = or_empty(&spec.type_);
    let external_path = path.child("externalTrafficPolicy");
    if is_external(spec) {
        one_of(errors, &external_path, &spec.external_traffic_policy, &["Cluster", "Local"]);
    } else if let Some(policy) = text(&spec.external_traffic_policy) {
        errors.invalid(external_path, policy, "may only be set for externally-accessible services");
    }
    if let Some(port) = spec.health_check_node_port.filter(|&port| port != 0)
        && !needs_health_check(spec)
    {
        errors.invalid(
            path.child("healthCheckNodePort"),
            port,
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
        );
    }
    if kind != "ExternalName" {
        one_of(errors, &path.child("internalTrafficPolicy"), &spec.internal_traffic_policy, &["Cluster", "Local"]);
    }
    if let Some(class) = spec.load_balancer_class.as_ref().filter(|_| kind == "LoadBalancer") {
        errors.invalid_each(path.child("loadBalancerClass"), class, rules::qualified_name(class));
    }
    if kind != "LoadBalancer" {
        if spec.allocate_load_balancer_node_ports.is_some() {
            errors.forbidden(
                path.child("allocateLoadBalancerNodePorts"),
                "may only be used when `type` is 'LoadBalancer'",
            );
        }
        if spec.load_balancer_class.is_some() {
            errors.forbidden(path.child("loadBalancerClass"), "may only be used when `type` is 'LoadBalancer'");
        }
    }
    if let Some(distribution) = text(&spec.traffic_distribution)
        && !matches!(distribution, "PreferClose" | "PreferSameZone" | "PreferSameNode")
    {
        errors.not_supported(
            path.child("trafficDistribution"),
            distribution,
            &["PreferClose", "PreferSameNode", "PreferSameZone"],
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(spec: Value) -> Service {
        let mut object: Service = serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": spec})).unwrap();
        ServiceStrategy.apply_defaults(&mut object);
        object
    }

    #[test]
    fn defaults_are_upstreams() {
        let object = service(json!({"ports": [{"port": 80}], "selector": {"app": "web"}}));
        assert_eq!(
            serde_json::to_value(object.spec).unwrap(),
            json!({
                "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}], "selector": {"app": "web"},
                "type": "ClusterIP", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster",
            })
        );
    }

    #[test]
    fn what_has_no_effect_is_said() {
        let external = json!(["192.0.2.1"]);
        for (spec, expected) in [
            (json!({"ports": [{"port": 80}]}), vec![]),
            (
                json!({"ports": [{"port": 80}], "externalIPs": external}),
                vec!["spec.externalIPs is deprecated and may no longer be implemented in some clusters"],
            ),
            (
                json!({"clusterIP": "None", "externalIPs": external, "sessionAffinity": "ClientIP", "externalName": "a.b"}),
                vec![
                    "spec.externalIPs is ignored for headless services",
                    "spec.SessionAffinity is ignored for headless services",
                    r#"spec.externalName is ignored when spec.type is not "ExternalName""#,
                ],
            ),
            (
                json!({"type": "ExternalName", "externalName": "a.b", "externalIPs": external}),
                vec![r#"spec.externalIPs is ignored when spec.type is "ExternalName""#],
            ),
            (
                json!({"ports": [{"port": 80}], "trafficDistribution": "PreferClose"}),
                vec![r#"spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone""#],
            ),
        ] {
            assert_eq!(ServiceStrategy.warnings(&service(spec.clone()), None), expected, "{spec}");
        }
    }

    #[test]
    fn validation_speaks_like_upstream() {
        for (spec, expected) in [
            (json!({"ports": [{"port": 80}]}), "[]"),
            (json!({}), "spec.ports: Required value"),
            (json!({"clusterIP": "None"}), "[]"),
            (
                json!({"type": "X", "ports": [{"port": 80}]}),
                "spec.type: Unsupported value: \"X\": supported values: \"ClusterIP\", \"ExternalName\", \"LoadBalancer\", \"NodePort\"",
            ),
            (json!({"ports": [{"port": 80}, {"port": 81, "name": "b"}]}), "spec.ports[0].name: Required value"),
            (json!({"type": "ExternalName"}), "spec.externalName: Required value"),
            (
                json!({"ports": [{"port": 80, "nodePort": 30000}]}),
                "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'",
            ),
            (
                json!({"type": "ExternalName", "externalName": "a.b", "ipFamilyPolicy": "SingleStack"}),
                "spec.ipFamilyPolicy: Forbidden: may not be set for ExternalName services",
            ),
            (
                json!({"type": "LoadBalancer", "ports": [{"port": 80}], "loadBalancerClass": "/a"}),
                "spec.loadBalancerClass: Invalid value: \"/a\": prefix part must be non-empty",
            ),
        ] {
            let errors = ServiceStrategy.validate_create(&service(spec));
            let errors: Vec<String> =
                errors.iter().map(ToString::to_string).filter(|e| !e.contains("internalTrafficPolicy")).collect();
            let shown = if errors.len() == 1 { errors[0].clone() } else { format!("[{}]", errors.join(", ")) };
            assert_eq!(shown, expected);
        }
    }

    #[test]
    fn new_addresses_mean_the_same_to_everybody_and_old_ones_stay() {
        let base = json!({"type": "LoadBalancer", "ports": [{"port": 80}], "externalTrafficPolicy": "Cluster"});
        let with = |field: &str, value: &str| {
            let mut spec = base.clone();
            spec[field] = json!([value]);
            service(spec)
        };
        for (field, value, expected) in [
            ("externalIPs", "192.0.2.1", "[]"),
            (
                "externalIPs",
                "192.0.2.01",
                "spec.externalIPs[0]: Invalid value: \"192.0.2.01\": must not have leading 0s",
            ),
            (
                "externalIPs",
                "::ffff:192.0.2.1",
                "spec.externalIPs[0]: Invalid value: \"::ffff:192.0.2.1\": must not be an IPv4-mapped IPv6 address",
            ),
            ("loadBalancerSourceRanges", " 192.0.2.0/24 ", "[]"),
            (
                "loadBalancerSourceRanges",
                "192.0.2.1/24",
                "spec.LoadBalancerSourceRanges[0]: Invalid value: \"192.0.2.1/24\": must not have bits set beyond the prefix length",
            ),
        ] {
            let new = with(field, value);
            assert_eq!(ServiceStrategy.validate_create(&new).to_string(), expected);
            assert_eq!(ServiceStrategy.validate_update(&new, &new).to_string(), "[]");
            assert_eq!(ServiceStrategy.validate_update(&new, &service(base.clone())).to_string(), expected);
        }
        let status = |ip: &str| {
            let mut object = service(base.clone());
            object.status = serde_json::from_value(json!({"loadBalancer": {"ingress": [{"ip": ip}]}})).unwrap();
            object
        };
        let expected = "status.loadBalancer.ingress[0].ip: Invalid value: \"192.0.2.01\": must not have leading 0s";
        let (good, bad) = (status("192.0.2.1"), status("192.0.2.01"));
        assert_eq!(ServiceStrategy.validate_status_update(&bad, &good).to_string(), expected);
        assert_eq!(ServiceStrategy.validate_status_update(&bad, &bad).to_string(), "[]");
    }

    /// What is sent has as many ports as a body has room for: they are looked at before they are refused.
    #[test]
    fn security_ports_find_what_they_were_without_a_search() {
        let user = api::UserInfo::anonymous();
        let call = Call { user: &user, now: Timestamp::UNIX_EPOCH };
        let port =
            |at: u32| json!({"name": format!("p{at}"), "port": at % 65_535 + 1, "nodePort": at % 2_000 + 30_000});
        let ports: Vec<Value> = (0..20_000).map(port).collect();
        let old = service(json!({"type": "NodePort", "ports": ports}));
        let others: Vec<Value> = (0..80_000).map(|at| json!({"name": format!("q{at}"), "port": 1})).collect();
        let asked = [others, vec![json!({"name": "p7", "port": 8})]].concat();
        let mut new = service(json!({"type": "NodePort", "ports": asked}));
        ServiceStrategy.prepare_for_update(&call, &mut new, &old);
        let found = items(&new.spec.as_ref().unwrap().ports).iter().filter_map(|port| port.node_port);
        assert_eq!(found.collect::<Vec<i32>>(), [30_007]);
    }

    #[test]
    fn security_long_lists_of_addresses_are_looked_through_once() {
        let address = |at: u32| std::net::Ipv4Addr::from(0xc000_0000 + at).to_string();
        let addresses: Vec<String> = (1..100_000).map(address).collect();
        let ranges: Vec<String> = addresses.iter().map(|address| format!("{address}/32")).collect();
        let service = service(json!({"type": "LoadBalancer", "externalTrafficPolicy": "Cluster",
            "ports": [{"port": 80}], "externalIPs": addresses, "loadBalancerSourceRanges": ranges}));
        assert_eq!(ServiceStrategy.validate_update(&service, &service).to_string(), "[]");
    }

    #[test]
    fn deprecated_distributions_are_named() {
        let warned = |distribution: &str| {
            let service = service(json!({"ports": [{"port": 80}], "trafficDistribution": distribution}));
            ServiceStrategy.warnings(&service, None)
        };
        let expected = r#"spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone""#;
        assert_eq!(warned("PreferClose"), [expected]);
        assert!(warned("PreferSameZone").is_empty());
    }

    #[test]
    fn updates_keep_addresses_and_node_ports() {
        let old = service(json!({"type": "NodePort", "clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9"],
            "ports": [{"port": 80, "nodePort": 30000}]}));
        let mut new = service(json!({"type": "NodePort", "ports": [{"port": 80}]}));
        let user = api::UserInfo::anonymous();
        let call = Call { user: &user, now: Timestamp::UNIX_EPOCH };
        ServiceStrategy.prepare_for_update(&call, &mut new, &old);
        assert_eq!(new.spec, old.spec);
        // A port for health checks that is only carried along goes with what needed it; one that is asked for is an error.
        let local = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30001,
            "ports": [{"port": 80}]});
        for (port, expected) in [(30001, None), (30002, Some(30002))] {
            let mut new = service(json!({"type": "ClusterIP", "healthCheckNodePort": port, "ports": [{"port": 80}]}));
            ServiceStrategy.prepare_for_update(&call, &mut new, &service(local.clone()));
            assert_eq!(new.spec.unwrap().health_check_node_port, expected);
        }
        let moved = service(
            json!({"clusterIP": "10.43.0.8", "clusterIPs": ["10.43.0.8"], "type": "NodePort", "ports": [{"port": 80}]}),
        );
        assert_eq!(
            ServiceStrategy.validate_update(&moved, &old).to_string(),
            "spec.clusterIPs[0]: Invalid value: [\"10.43.0.8\"]: may not change once set"
        );
        let mut moved = old.clone();
        moved.spec.as_mut().unwrap().cluster_ip = Some("10.43.0.8".into());
        ServiceStrategy.prepare_for_update(&call, &mut moved, &old);
        assert_eq!(
            ServiceStrategy.validate_update(&moved, &old).to_string(),
            "spec.clusterIPs[0]: Invalid value: [\"10.43.0.8\"]: may not change once set"
        );
    }
}
