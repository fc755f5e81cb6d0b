//! What an object counts for, under every name a quota may use.

use api::pod::resources::{Amounts, Side, in_quota_terms, of_container};
use api::quantity::{Format, Quantity as Amount};
use api::quota;
use api::sort::CompactSort as _;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::resource::v1::ResourceClaim;
use registry::{Object, Resource};

/// Core kinds that quotas also count by their plain plural, whatever they say.
const COUNTED: [&str; 4] = ["configmaps", "replicationcontrollers", "resourcequotas", "secrets"];

pub(super) fn usage_of(resource: &Resource, object: &dyn Object) -> Amounts {
    if let Some(pod) = object.downcast_ref::<Pod>() {
        return quota::of_pod(pod);
    }
    if let Some(service) = object.downcast_ref::<Service>() {
        return quota::of_service(service);
    }
    if let Some(claim) = object.downcast_ref::<PersistentVolumeClaim>() {
        return quota::of_volume_claim(claim);
    }
    if let Some(claim) = object.downcast_ref::<ResourceClaim>() {
        return quota::of_resource_claim(claim);
    }
    let one = Amount::new(1, Format::DecimalSI);
    let mut usage = Amounts::from([(format!("count/{}", resource.group_resource()), one.clone())]);
    if resource.group.is_empty() && COUNTED.contains(&&*resource.plural) {
        usage.insert(resource.plural.to_string(), one);
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
        without.compact_sort();
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
                "resourceclaims",
                json!({"spec": {"devices": {"requests": [{"name": "r", "exactly": {
                    "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2}}]}}})
            ),
            ["count/resourceclaims.resource.k8s.io=1", "gpu.deviceclass.resource.k8s.io/devices=2"]
        );
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
