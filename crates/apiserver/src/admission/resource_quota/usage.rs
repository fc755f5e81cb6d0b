//! What an object counts for, under every name a quota may use.

use api::pod::resources::{Amounts, Side, in_quota_terms, of_container};
use api::quantity::{Format, Quantity as Amount};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use registry::{Object, Resource};

const CLASS_SUFFIX: &str = ".storageclass.storage.k8s.io/";
const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";
/// Core kinds that quotas also count by their plain plural. Pods are one, but only while they live.
const COUNTED: [&str; 6] =
    ["configmaps", "persistentvolumeclaims", "replicationcontrollers", "resourcequotas", "secrets", "services"];

fn count(number: usize) -> Amount {
    Amount::new(number as i64, Format::DecimalSI)
}

pub(super) fn usage_of(resource: &Resource, object: &dyn Object) -> Amounts {
    let mut usage = Amounts::new();
    usage.insert(format!("count/{}", resource.group_resource()), count(1));
    if resource.group.is_empty() && COUNTED.contains(&&*resource.plural) {
        usage.insert(resource.plural.to_string(), count(1));
    }
    if let Some(pod) = object.downcast_ref::<Pod>() {
        usage.extend(api::pod::resources::quota_usage(pod));
    } else if let Some(service) = object.downcast_ref::<Service>() {
        usage.extend(of_service(service));
    } else if let Some(claim) = object.downcast_ref::<PersistentVolumeClaim>() {
        usage.extend(of_claim(claim));
    }
    usage
}

fn of_service(service: &Service) -> Amounts {
    let Some(spec) = &service.spec else { return Amounts::new() };
    let ports = spec.ports.as_deref().unwrap_or_default();
    let chosen = ports.iter().filter(|port| port.node_port.is_some_and(|port| port != 0)).count();
    let (node_ports, balancers) = match spec.type_.as_deref() {
        Some("NodePort") => (ports.len(), 0),
        // Node ports are not allocated yet: what counts is whether they will be.
        Some("LoadBalancer") if spec.allocate_load_balancer_node_ports == Some(false) => (chosen, 1),
        Some("LoadBalancer") => (ports.len(), 1),
        _ => (0, 0),
    };
    [("services.nodeports", node_ports), ("services.loadbalancers", balancers)]
        .map(|(name, number)| (name.to_owned(), count(number)))
        .into()
}

fn of_claim(claim: &PersistentVolumeClaim) -> Amounts {
    let Some(spec) = &claim.spec else { return Amounts::new() };
    let mut usage = Amounts::new();
    let annotated = claim.metadata.annotations.as_ref().and_then(|annotations| annotations.get(CLASS_ANNOTATION));
    let class = annotated.or(spec.storage_class_name.as_ref()).filter(|class| !class.is_empty());
    if let Some(class) = class {
        usage.insert(format!("{class}{CLASS_SUFFIX}persistentvolumeclaims"), count(1));
    }
    let requests = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let storage = requests.and_then(|requests| requests.get("storage"));
    if let Some(amount) = storage.and_then(|amount| Amount::parse(&amount.0).ok()) {
        if let Some(class) = class {
            usage.insert(format!("{class}{CLASS_SUFFIX}requests.storage"), amount.clone());
        }
        usage.insert("requests.storage".to_owned(), amount);
    }
    usage
}

/// Compute resources that a quota limits and a container does not state: `cpu for: a,b`. A quota on cpu or memory makes
/// stating it mandatory, unless the pod does so as a whole.
pub(super) fn missing<'a>(pod: &Pod, limited: impl Iterator<Item = &'a String>) -> Vec<String> {
    const REQUIRED: [&str; 6] = ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];
    let Some(spec) = pod.spec.as_ref().filter(|spec| spec.resources.is_none()) else { return Vec::new() };
    let mut lines = Vec::new();
    for key in limited.filter(|key| REQUIRED.contains(&key.as_str())) {
        let mut without: Vec<&str> = spec
            .containers
            .iter()
            .chain(spec.init_containers.iter().flatten())
            .filter(|container| {
                let of = |side| of_container(container.resources.as_ref(), side);
                !in_quota_terms(of(Side::Requests), of(Side::Limits)).contains_key(key)
            })
            .map(|container| container.name.as_str())
            .collect();
        without.sort_unstable();
        if !without.is_empty() {
            lines.push(format!("{key} for: {}", without.join(",")));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn objects_are_counted_under_all_their_names() {
        let rows = registry::table::resources();
        let usage = |plural: &str, object: Value| -> Vec<String> {
            let row = rows.iter().find(|row| row.plural == plural && row.conversion.is_none()).unwrap();
            let object = row.strategy.decode_value(object).unwrap();
            usage_of(row, &*object).iter().map(|(name, amount)| format!("{name}={amount}")).collect()
        };
        assert_eq!(usage("replicasets", json!({})), ["count/replicasets.apps=1"]);
        assert_eq!(
            usage(
                "pods",
                json!({"spec": {"containers": [{"name": "c", "resources": {
                    "requests": {"cpu": "100m", "example.com/gpu": "2"}, "limits": {"memory": "1Gi"}}}]}})
            ),
            [
                "count/pods=1",
                "cpu=100m",
                "limits.memory=1Gi",
                "pods=1",
                "requests.cpu=100m",
                "requests.example.com/gpu=2"
            ]
        );
        assert_eq!(usage("pods", json!({"spec": {"containers": []}, "status": {"phase": "Failed"}})), ["count/pods=1"]);
        let balanced = |allocate: bool| {
            json!({"spec": {"type": "LoadBalancer", "allocateLoadBalancerNodePorts": allocate,
                "ports": [{"port": 80}, {"port": 81, "nodePort": 30000}]}})
        };
        let expected = |ports: u8| {
            let ports = format!("services.nodeports={ports}");
            vec!["count/services=1".to_owned(), "services=1".into(), "services.loadbalancers=1".into(), ports]
        };
        assert_eq!(usage("services", balanced(true)), expected(2));
        assert_eq!(usage("services", balanced(false)), expected(1));
        assert_eq!(
            usage(
                "persistentvolumeclaims",
                json!({"spec": {"storageClassName": "gold", "resources": {"requests": {"storage": "1Gi"}}}})
            ),
            [
                "count/persistentvolumeclaims=1",
                "gold.storageclass.storage.k8s.io/persistentvolumeclaims=1",
                "gold.storageclass.storage.k8s.io/requests.storage=1Gi",
                "persistentvolumeclaims=1",
                "requests.storage=1Gi"
            ]
        );
    }
}
