//! What a node refuses to run although it was bound to it. The reasons and texts are upstream's; a refused pod has
//! failed and is never tried again.

use std::collections::HashMap;
use std::sync::Arc;

use api::placement::tolerates;
use k8s_openapi::api::core::v1::{Pod, Taint};
use parking_lot::Mutex;

use crate::config::Settings;
use crate::kubelet::Kubelet;
use crate::node::status::Pressure;
use crate::resources::{self, ResourceList};
use crate::status::Ended;
use crate::{containers, eviction, qos, state};

/// The pods that run here or are about to, by uid: what others have to fit beside.
pub(crate) type Admitted = Mutex<HashMap<String, Arc<Pod>>>;

impl Kubelet {
    /// Lets a pod in, or says why not. One that has started before is in already.
    pub(crate) fn admit(&self, pod: &Arc<Pod>) -> Option<Ended> {
        let uid = state::uid(pod).to_string();
        let mut admitted = self.admitted.lock();
        let has_started = pod.status.as_ref().is_some_and(|status| status.start_time.is_some());
        if has_started || admitted.contains_key(&uid) {
            admitted.insert(uid, pod.clone());
            return None;
        }
        if self.shutdown.is_on() {
            let (reason, message) = ("NodeShutdown".into(), "Pod was rejected as the node is shutting down.".into());
            return Some(Ended { reason, message, disruption: None });
        }
        let pressure = *self.pressure.lock();
        let others: Vec<Arc<Pod>> = admitted.values().cloned().collect();
        let refused = reject(pod, &self.settings)
            .or_else(|| under_pressure(pod, pressure))
            .or_else(|| too_large(pod, &others, &self.allocatable))
            .or_else(|| {
                let cpus = self.cpu_manager.as_ref()?;
                cpus.admit(pod).err().map(|why| ("UnexpectedAdmissionError".to_string(), why))
            });
        if let Some((reason, cause)) = refused {
            return Some(Ended { reason, message: format!("Pod was rejected: {cause}"), disruption: None });
        }
        admitted.insert(uid, pod.clone());
        None
    }
}

/// A reason and its explanation.
type Refusal = (String, String);

fn reject(pod: &Pod, settings: &Settings) -> Option<Refusal> {
    if let Some(name) = containers::forbidden_sysctl(pod, &settings.allowed_unsafe_sysctls) {
        return Some(("SysctlForbidden".into(), format!("forbidden sysctl: {name:?} not allowlisted")));
    }
    let os = pod.spec.as_ref().and_then(|spec| spec.os.as_ref()).map(|os| os.name.as_str());
    if os.is_some_and(|os| os != "linux") {
        return Some(("PodOSNotSupported".into(), "Failed to admit pod as the OS field doesn't match node OS".into()));
    }
    None
}

/// A node under pressure takes in nobody who is not critical; one that is only short of memory takes those in who say
/// how much they need.
fn under_pressure(pod: &Pod, pressure: Pressure) -> Option<Refusal> {
    let conditions: Vec<&str> =
        [(pressure.memory, "MemoryPressure"), (pressure.disk, "DiskPressure"), (pressure.pids, "PIDPressure")]
            .into_iter()
            .filter_map(|(is_short, name)| is_short.then_some(name))
            .collect();
    if conditions.is_empty() || eviction::is_critical(pod) {
        return None;
    }
    if conditions == ["MemoryPressure"] && (qos::class(pod) != qos::Class::BestEffort || tolerates_memory_pressure(pod))
    {
        return None;
    }
    Some(("Evicted".into(), format!("The node had condition: [{}]. ", conditions.join(" "))))
}

fn tolerates_memory_pressure(pod: &Pod) -> bool {
    let (key, effect) = ("node.kubernetes.io/memory-pressure".into(), "NoSchedule".into());
    let taint = Taint { key, effect, ..Taint::default() };
    let mut tolerations = pod.spec.iter().flat_map(|spec| spec.tolerations.iter().flatten());
    tolerations.any(|toleration| tolerates(toleration, &taint))
}

/// The first resource of which the node has too little left.
fn too_large(pod: &Pod, others: &[Arc<Pod>], allocatable: &ResourceList) -> Option<Refusal> {
    let refusal = |name: &str, requested: i64, used: i64, capacity: i64| {
        let cause = format!(
            "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}"
        );
        (format!("OutOf{name}"), cause)
    };
    let amount = |name: &str, quantity: &api::quantity::Quantity| match name {
        "cpu" => quantity.milli_value(),
        _ => quantity.value(),
    };
    let capacity = |name: &str| allocatable.get(name).and_then(resources::parse).map_or(0, |q| amount(name, &q));
    if others.len() as i64 >= capacity("pods") {
        return Some(refusal("pods", 1, others.len() as i64, capacity("pods")));
    }
    ["cpu", "memory", "ephemeral-storage"].into_iter().find_map(|name| {
        let requested = amount(name, &resources::pod_request(pod, name));
        let used: i64 = others.iter().map(|other| amount(name, &resources::pod_request(other, name))).sum();
        (requested > 0 && used + requested > capacity(name)).then(|| refusal(name, requested, used, capacity(name)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::tests::{container_with, list};
    use k8s_openapi::api::core::v1::{PodSpec, Toleration};

    fn pod(requests: &str) -> Pod {
        let containers = vec![container_with("c", requests, "")];
        Pod { spec: Some(PodSpec { containers, ..Default::default() }), ..Default::default() }
    }

    #[test]
    fn pods_must_fit_beside_the_others() {
        let node = list("cpu=1,memory=1Gi,pods=2").unwrap();
        let others = |requests: &[&str]| requests.iter().map(|r| Arc::new(pod(r))).collect::<Vec<_>>();
        for (requests, beside, expected) in [
            ("cpu=500m", vec!["cpu=500m"], None),
            (
                "cpu=600m",
                vec!["cpu=500m"],
                Some(("OutOfcpu", "Node didn't have enough resource: cpu, requested: 600, used: 500, capacity: 1000")),
            ),
            ("", vec!["cpu=1"], None),
            (
                "",
                vec!["", ""],
                Some(("OutOfpods", "Node didn't have enough resource: pods, requested: 1, used: 2, capacity: 2")),
            ),
        ] {
            let refused = too_large(&pod(requests), &others(&beside), &node);
            assert_eq!(refused.as_ref().map(|(r, m)| (r.as_str(), m.as_str())), expected, "{requests}");
        }
    }

    #[test]
    fn pressure_keeps_pods_out() {
        let pressure = |memory, disk| Pressure { memory, disk, pids: false };
        let mut patient = pod("");
        patient.spec.as_mut().unwrap().tolerations =
            Some(vec![Toleration { operator: Some("Exists".into()), ..Default::default() }]);
        let mut critical = pod("");
        critical.spec.as_mut().unwrap().priority = Some(2_000_001_000);
        for (pod, pressure, refused) in [
            (pod(""), pressure(false, false), None),
            (pod(""), pressure(true, false), Some("The node had condition: [MemoryPressure]. ")),
            (pod("memory=1Mi"), pressure(true, false), None),
            (patient, pressure(true, false), None),
            (pod("memory=1Mi"), pressure(true, true), Some("The node had condition: [MemoryPressure DiskPressure]. ")),
            (critical, pressure(true, true), None),
        ] {
            assert_eq!(under_pressure(&pod, pressure).map(|(_, cause)| cause).as_deref(), refused);
        }
    }
}
