//! What a node refuses to run although it was bound to it. The reasons and texts are upstream's; a refused pod has
//! failed and is never tried again.

use std::collections::HashMap;
use std::sync::Arc;

use api::placement::{is_selected, tolerates, untolerated};
use k8s_openapi::api::core::v1::{ContainerPort, Node, Pod, Taint};

use crate::config::Settings;
use crate::cpu_manager::NotAssigned;
use crate::kubelet::Kubelet;
use crate::preemption::{self, Need, amount};
use crate::resize::{self, Wait};
use crate::resources::{self, ResourceList};
use crate::status::Ended;
use crate::thresholds::Pressure;
use crate::{containers, eviction, huge_pages, names, pod_fields, qos, state, static_pods};

const NODE_AFFINITY: &str = "NodeAffinity";
const TAINTS: &str = "TaintToleration";

impl Kubelet {
    /// Lets a pod in, or says why not. One that has started before is in already, and may be wished larger or smaller.
    pub(crate) async fn admit(&self, pod: &Arc<Pod>) -> Result<Admission, Ended> {
        let name = &self.settings.node_name;
        let known = self.node.get(name);
        let refused = self.admit_to(known.as_deref(), pod);
        // The scheduler may have seen labels and taints that did not get here yet.
        if refused.as_ref().is_err_and(|ended| [NODE_AFFINITY, TAINTS].contains(&ended.reason.as_str()))
            && let Ok(newest) = self.client.all::<Node>().get(name).await
        {
            return self.admit_to(Some(&newest), pod);
        }
        refused
    }

    /// Counts the pods that a kubelet before this one let in, before the first of them or another pod asks for room.
    pub(crate) fn count_started(&self, pods: &[Arc<Pod>]) {
        let now = self.clock.now();
        let mut admitted = self.admitted.lock();
        let mut deferred = self.deferred.lock();
        for (wish, granted) in started(pods) {
            let is_ending = wish.metadata.deletion_timestamp.is_some();
            if !is_ending && is_larger(wish, &granted) {
                deferred.note(wish, now);
            }
            admitted.insert(state::uid(wish).to_owned(), granted);
        }
        drop(deferred);
        self.note_burstable(&admitted);
    }

    /// A pod ends: nobody waits for its wish any more. What it was granted is its own until it is released.
    pub(crate) fn withdraw_wish(&self, uid: &str) {
        if self.deferred.lock().forget(uid) {
            self.freed.send_modify(|count| *count += 1);
        }
    }

    /// A pod holds no part of the node any more: others may have it.
    pub(crate) fn uncount(&self, uid: &str) {
        let mut admitted = self.admitted.lock();
        if admitted.remove(uid).is_some() {
            self.note_burstable(&admitted);
        }
        drop(admitted);
        self.deferred.lock().forget(uid);
        self.freed.send_modify(|count| *count += 1);
    }

    /// What Burstable pods request together has changed: their cgroup has to be updated.
    fn note_burstable(&self, admitted: &HashMap<String, Arc<Pod>>) {
        if let Some(cgroups) = &self.cgroups {
            let all = others(admitted, "", |uid| self.status.is_terminal(uid));
            cgroups.request_burstable(burstable_cpu(&all));
        }
    }

    fn admit_to(&self, node: Option<&Node>, pod: &Arc<Pod>) -> Result<Admission, Ended> {
        let uid = state::uid(pod).to_string();
        let mut admitted = self.admitted.lock();
        let has_started = has_started(pod);
        let before = admitted.get(&uid).map(|before| resize::with_granted(pod, before));
        if let Some(granted) = before.or_else(|| has_started.then(|| resize::with_reported(pod))) {
            let is_wished = Arc::ptr_eq(&granted, pod);
            let mut admission = Admission { pod: granted, wait: None, is_resized: false };
            let mut deferred = self.deferred.lock();
            if !is_wished {
                let others = others(&admitted, &uid, |other| self.status.is_terminal(other));
                let first = deferred.before(pod, self.clock.now());
                admission.wait = self.refuse_resize(pod, &admission.pod, others, &first);
                admission.is_resized = admission.wait.is_none();
                if admission.is_resized {
                    admission.pod = pod.clone();
                }
            }
            let waits = admission.wait.as_ref().is_some_and(|wait| wait.reason == resize::DEFERRED);
            let has_left = match waits {
                true => {
                    deferred.note(pod, self.clock.now());
                    false
                }
                false => deferred.forget(&uid),
            };
            drop(deferred);
            if admission.is_resized || has_left {
                self.freed.send_modify(|count| *count += 1);
            }
            let is_new = admitted.insert(uid, admission.pod.clone()).is_none();
            if is_new || admission.is_resized {
                self.note_burstable(&admitted);
            }
            return Ok(admission);
        }
        if self.shutdown.is_on() {
            let (reason, message) = ("NodeShutdown".into(), "Pod was rejected as the node is shutting down.".into());
            return Err(Ended { reason, message, disruption: None });
        }
        let pressure = *self.pressure.lock();
        let others = others(&admitted, &uid, |other| self.status.is_terminal(other));
        let refused = reject(pod, &self.settings)
            .or_else(|| pod_fields::refuse(pod, pod_fields::Host::look(&self.runtime.name)))
            .or_else(|| under_pressure(pod, pressure))
            .or_else(|| too_large(pod, &others, &self.allocatable))
            .or_else(|| misplaced(pod, &others, node))
            .or_else(|| {
                let cpus = self.cpu_manager.as_ref()?;
                admitted.keys().filter(|other| self.status.is_terminal(other)).for_each(|ended| cpus.release(ended));
                cpus.admit(pod).err().map(|why| (NotAssigned::REASON.to_string(), why.to_string()))
            });
        if let Some((reason, cause)) = refused {
            return Err(Ended { reason, message: format!("Pod was rejected: {cause}"), disruption: None });
        }
        admitted.insert(uid, pod.clone());
        self.note_burstable(&admitted);
        Ok(Admission { pod: pod.clone(), wait: None, is_resized: false })
    }

    /// Who has to go so that a critical pod has room that was refused for its size alone: nobody, if others have gone since; and
    /// what was short, first of all. None, where that does not help.
    pub(crate) fn in_its_way(&self, pod: &Pod, refused: &Ended) -> Option<(Vec<Arc<Pod>>, String)> {
        let resource = refused.reason.strip_prefix(TOO_LARGE).filter(|_| eviction::is_critical(pod))?.to_owned();
        let others = others(&self.admitted.lock(), state::uid(pod), |other| self.status.is_terminal(other));
        let node = self.node.get(&self.settings.node_name);
        if misplaced(pod, &others, node.as_deref()).is_some() {
            return None;
        }
        let shortages = shortages(pod, &others, &self.allocatable).into_iter();
        let needs = shortages
            .map(|it| Need { name: it.name, amount: it.used.saturating_add(it.requested).saturating_sub(it.capacity) });
        let victims = preemption::choose(pod, &others, &needs.collect::<Vec<_>>())?;
        Some((victims, resource))
    }

    /// Whether there may be more room than when these pods were chosen to give theirs.
    pub(crate) fn has_room_of(&self, victims: &[Arc<Pod>]) -> bool {
        has_room_of(&self.admitted.lock(), victims, |uid| self.status.is_terminal(uid))
    }

    /// Why a pod that runs cannot have what it wishes. `first` are the wishes that come before its own.
    fn refuse_resize(&self, wish: &Pod, granted: &Arc<Pod>, others: Vec<Arc<Pod>>, first: &[Arc<Pod>]) -> Option<Wait> {
        let cpu = |pod: &Pod| resources::pod_request(pod, "cpu");
        if self.cpu_manager.is_some() && qos::class(wish) == qos::Class::Guaranteed && cpu(wish) != cpu(granted) {
            let message = "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\"".into();
            return Some(Wait { reason: resize::INFEASIBLE, message });
        }
        let others = match is_larger(wish, granted) {
            true => with_wishes(others, granted, first, &self.allocatable),
            false => others,
        };
        let (_, message) = too_large(wish, &others, &self.allocatable)?;
        Some(Wait { reason: resize::DEFERRED, message })
    }
}

fn has_started(pod: &Pod) -> bool {
    pod.status.as_ref().is_some_and(|status| status.start_time.is_some())
}

/// The pods that hold a part of the node since before this kubelet, each with what it was granted, as its status says.
fn started(pods: &[Arc<Pod>]) -> impl Iterator<Item = (&Arc<Pod>, Arc<Pod>)> {
    let holds = |pod: &Pod| has_started(pod) && !static_pods::is_mirror(pod) && !api::pod::is_terminal(pod);
    pods.iter().filter(move |pod| holds(pod)).map(|pod| (pod, resize::with_reported(pod)))
}

fn is_larger(wish: &Pod, granted: &Pod) -> bool {
    ["cpu", "memory"].iter().any(|name| resources::pod_request(wish, name) > resources::pod_request(granted, name))
}

/// What the others hold once those of their wishes are granted that come first and fit.
fn with_wishes(
    mut others: Vec<Arc<Pod>>,
    granted: &Arc<Pod>,
    first: &[Arc<Pod>],
    allocatable: &ResourceList,
) -> Vec<Arc<Pod>> {
    for wish in first {
        let Some(at) = others.iter().position(|other| state::uid(other) == state::uid(wish)) else { continue };
        let mut beside = others.clone();
        beside[at] = granted.clone();
        if too_large(wish, &beside, allocatable).is_none() {
            others[at] = wish.clone();
        }
    }
    others
}

/// A pod that runs here.
pub(crate) struct Admission {
    /// With the resources that it may use.
    pub(crate) pod: Arc<Pod>,
    /// Why these are not the ones it wishes.
    pub(crate) wait: Option<Wait>,
    /// It just got others.
    pub(crate) is_resized: bool,
}

/// Whoever else holds a part of the node. One that has ended holds none, although its volumes may still be taken down: the
/// scheduler gives its place away as soon as it is told (`filterOutInactivePods`, v1.36).
fn others(admitted: &HashMap<String, Arc<Pod>>, uid: &str, is_terminal: impl Fn(&str) -> bool) -> Vec<Arc<Pod>> {
    let others = admitted.iter().filter(|(other, _)| other.as_str() != uid && !is_terminal(other));
    others.map(|(_, pod)| pod.clone()).collect()
}

/// Whether one of these pods, at least, holds no part of the node any more, whoever ended it; or there was nobody who had to go.
fn has_room_of(admitted: &HashMap<String, Arc<Pod>>, victims: &[Arc<Pod>], is_terminal: impl Fn(&str) -> bool) -> bool {
    let holds = |uid: &str| admitted.contains_key(uid) && !is_terminal(uid);
    victims.is_empty() || victims.iter().any(|victim| !holds(state::uid(victim)))
}

/// What the Burstable ones among pods request together, in thousandths of a CPU (`setCPUCgroupConfig`, v1.36).
fn burstable_cpu(pods: &[Arc<Pod>]) -> i64 {
    let burstable = pods.iter().filter(|pod| qos::class(&***pod) == qos::Class::Burstable);
    burstable.map(|pod| resources::pod_request(pod, "cpu").milli_value()).fold(0, i64::saturating_add)
}

/// A reason and its explanation.
type Refusal = (String, String);

fn reject(pod: &Pod, settings: &Settings) -> Option<Refusal> {
    if let Err(why) = names::check_spec(pod) {
        return Some(("UnexpectedAdmissionError".into(), why.to_string()));
    }
    if let Some(why) = containers::forbidden_sysctl(pod, &settings.allowed_unsafe_sysctls) {
        return Some(("SysctlForbidden".into(), format!("forbidden sysctl: {why}")));
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

/// How a refusal for the size of a pod begins.
const TOO_LARGE: &str = "OutOf";

/// A resource of which the node has too little left.
struct Shortage {
    name: String,
    requested: i64,
    used: i64,
    capacity: i64,
}

fn shortages(pod: &Pod, others: &[Arc<Pod>], allocatable: &ResourceList) -> Vec<Shortage> {
    let capacity = |name: &str| {
        let capacity = allocatable.get(name).and_then(resources::parse);
        capacity.map_or(0, |capacity| if name == "cpu" { capacity.milli_value() } else { capacity.value() })
    };
    let huge_pages = huge_pages::of_pod(pod);
    let names = ["pods", "cpu", "memory", "ephemeral-storage"].into_iter().chain(huge_pages.iter().map(String::as_str));
    let all = names.map(|name| {
        let used = others.iter().map(|other| amount(other, name)).fold(0, i64::saturating_add);
        Shortage { name: name.to_owned(), requested: amount(pod, name), used, capacity: capacity(name) }
    });
    all.filter(|it| it.requested > 0 && it.used.saturating_add(it.requested) > it.capacity).collect()
}

/// The first resource of which the node has too little left.
fn too_large(pod: &Pod, others: &[Arc<Pod>], allocatable: &ResourceList) -> Option<Refusal> {
    let Shortage { name, requested, used, capacity } = shortages(pod, others, allocatable).into_iter().next()?;
    let cause =
        format!("Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}");
    Some((format!("{TOO_LARGE}{name}"), cause))
}

/// The scheduler's rules that also bind whoever chose the node without asking it.
fn misplaced(pod: &Pod, others: &[Arc<Pod>], node: Option<&Node>) -> Option<Refusal> {
    let refusal = |rule: &str, cause: &str| Some((rule.to_string(), format!("Predicate {rule} failed: {cause}")));
    let spec = pod.spec.as_ref()?;
    if node.is_some_and(|node| !is_selected(spec, node)) {
        return refusal(NODE_AFFINITY, "node(s) didn't match Pod's node affinity/selector");
    }
    let is_taken =
        |wanted: &ContainerPort| others.iter().any(|other| state::host_ports(other).any(|p| collide(wanted, p)));
    if state::host_ports(pod).any(is_taken) {
        return refusal("NodePorts", "node(s) didn't have free ports for the requested pod ports");
    }
    let taints = node.and_then(|node| node.spec.as_ref()?.taints.as_deref()).unwrap_or_default();
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    if !static_pods::is_static(pod) && untolerated(taints, tolerations, &["NoExecute"]).is_some() {
        return refusal(TAINTS, "node(s) had taints that the pod didn't tolerate");
    }
    None
}

fn collide(one: &ContainerPort, other: &ContainerPort) -> bool {
    let protocol = |port: &ContainerPort| port.protocol.clone().unwrap_or_else(|| "TCP".into());
    let address = |port: &ContainerPort| port.host_ip.clone().filter(|ip| !ip.is_empty() && ip != "0.0.0.0");
    let overlap = match (address(one), address(other)) {
        (Some(one), Some(other)) => one == other,
        _ => true,
    };
    one.host_port == other.host_port && protocol(one) == protocol(other) && overlap
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::tests::{container_with, list};
    use k8s_openapi::api::core::v1::{PodSpec, Toleration};
    use serde_json::json;

    #[test]
    fn whoever_names_a_node_keeps_its_rules() {
        let pod = |spec| -> Pod { serde_json::from_value(json!({"spec": spec})).unwrap() };
        let on_port = |port| json!({"containers": [{"name": "c", "ports": [port]}]});
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n", "labels": {"disk": "ssd"}},
            "spec": {"taints": [{"key": "k", "effect": "NoExecute"}, {"key": "l", "effect": "NoSchedule"}]},
        }))
        .unwrap();
        let tolerant = json!([{"key": "k", "operator": "Exists"}]);
        let with = |mut spec: serde_json::Value, key: &str, value: serde_json::Value| {
            spec[key] = value;
            spec["tolerations"] = tolerant.clone();
            pod(spec)
        };
        let web = on_port(json!({"containerPort": 80, "hostPort": 8080, "hostIP": "10.0.0.1"}));
        let others = [Arc::new(pod(web))];
        for (pod, refused) in [
            (with(on_port(json!({"containerPort": 80})), "hostname", json!("h")), None),
            (pod(on_port(json!({"containerPort": 80}))), Some("TaintToleration")),
            (with(json!({"containers": []}), "nodeSelector", json!({"disk": "ssd"})), None),
            (with(json!({"containers": []}), "nodeSelector", json!({"disk": "hdd"})), Some("NodeAffinity")),
            (with(on_port(json!({"containerPort": 1, "hostPort": 8080})), "hostname", json!("h")), Some("NodePorts")),
            (with(on_port(json!({"containerPort": 1, "hostPort": 8081})), "hostname", json!("h")), None),
            (
                with(on_port(json!({"containerPort": 1, "hostPort": 8080, "protocol": "UDP"})), "hostname", json!("h")),
                None,
            ),
            (
                with(
                    on_port(json!({"containerPort": 1, "hostPort": 8080, "hostIP": "10.0.0.2"})),
                    "hostname",
                    json!("h"),
                ),
                None,
            ),
        ] {
            assert_eq!(misplaced(&pod, &others, Some(&node)).map(|(rule, _)| rule).as_deref(), refused, "{pod:?}");
        }
    }

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
                "cpu=9E",
                vec!["cpu=500m"],
                Some((
                    "OutOfcpu",
                    "Node didn't have enough resource: cpu, requested: 9223372036854775807, used: 500, capacity: 1000",
                )),
            ),
            (
                "memory=1Mi,hugepages-2Mi=2Mi",
                vec![],
                Some((
                    "OutOfhugepages-2Mi",
                    "Node didn't have enough resource: hugepages-2Mi, requested: 2097152, used: 0, capacity: 0",
                )),
            ),
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
    fn a_pod_that_has_ended_leaves_its_place_at_once() {
        let node = list("cpu=1,memory=1Gi,pods=9").unwrap();
        let admitted =
            HashMap::from([("ended".to_owned(), Arc::new(pod("cpu=1"))), ("runs".to_owned(), Arc::new(pod("cpu=1m")))]);
        let refused = |uid: &str, requests: &str, ended: &[&str]| {
            let others = others(&admitted, uid, |other| ended.contains(&other));
            too_large(&pod(requests), &others, &node).map(|(reason, _)| reason)
        };
        assert_eq!(refused("new", "cpu=900m", &[]).as_deref(), Some("OutOfcpu"));
        assert_eq!(refused("new", "cpu=900m", &["ended"]), None);
        assert_eq!(refused("new", "cpu=1", &["ended"]).as_deref(), Some("OutOfcpu"), "the other one still runs");
        assert_eq!(refused("runs", "cpu=1", &["ended"]), None, "no pod is beside itself");
    }

    /// Those who were chosen may have ended by themselves before anybody told them to.
    #[test]
    fn room_is_room_whoever_made_it() {
        let named = |uid: &str| {
            let mut pod = pod("cpu=1");
            pod.metadata.uid = Some(uid.into());
            Arc::new(pod)
        };
        let admitted: HashMap<_, _> = ["runs", "over"].map(|uid| (uid.to_owned(), named(uid))).into();
        for (victims, expected) in [
            (vec![], true),
            (vec!["gone"], true),
            (vec!["over"], true),
            (vec!["runs", "gone"], true),
            (vec!["runs"], false),
        ] {
            let chosen: Vec<_> = victims.iter().map(|uid| named(uid)).collect();
            assert_eq!(has_room_of(&admitted, &chosen, |uid| uid == "over"), expected, "{victims:?}");
        }
    }

    #[test]
    fn burstable_pods_are_weighed_together() {
        let with = |requests: &str, limits: &str| {
            let containers = vec![container_with("c", requests, limits)];
            Arc::new(Pod { spec: Some(PodSpec { containers, ..Default::default() }), ..Default::default() })
        };
        let best_effort = with("", "");
        let guaranteed = with("cpu=4,memory=1Gi", "cpu=4,memory=1Gi");
        assert_eq!(burstable_cpu(&[best_effort.clone(), guaranteed.clone()]), 0);
        let some = [with("cpu=1", ""), guaranteed, with("memory=1Gi", ""), with("", "cpu=500m"), best_effort];
        assert_eq!(burstable_cpu(&some), 1500);
        let huge = with("cpu=9E", "");
        assert_eq!(burstable_cpu(&[huge.clone(), huge]), i64::MAX);
    }

    #[test]
    fn room_goes_to_the_wish_that_comes_first() {
        let node = list("cpu=16,memory=16Gi,pods=9").unwrap();
        let named = |uid: &str, requests: &str| {
            let mut pod = pod(requests);
            pod.metadata.uid = Some(uid.into());
            Arc::new(pod)
        };
        let granted = ["a", "b", "c"].map(|uid| named(uid, "cpu=1"));
        let is_refused = |wish: &str, first: &[(&str, &str)]| {
            let first: Vec<_> = first.iter().map(|(uid, requests)| named(uid, requests)).collect();
            let others = vec![granted[1].clone(), granted[2].clone()];
            let others = with_wishes(others, &granted[0], &first, &node);
            too_large(&named("a", wish), &others, &node).is_some()
        };
        for (wish, first, expected) in [
            ("cpu=10", vec![], false),
            ("cpu=10", vec![("b", "cpu=10")], true),
            ("cpu=5", vec![("b", "cpu=10")], false),
            ("cpu=10", vec![("b", "cpu=20")], false),
            ("cpu=5", vec![("b", "cpu=10"), ("c", "cpu=10")], false),
            ("cpu=10", vec![("gone", "cpu=10")], false),
        ] {
            assert_eq!(is_refused(wish, &first), expected, "{wish} after {first:?}");
        }
        assert!(
            is_larger(&pod("cpu=2"), &pod("cpu=1")) && is_larger(&pod("cpu=1,memory=2Gi"), &pod("cpu=2,memory=1Gi"))
        );
        assert!(!is_larger(&pod("cpu=1"), &pod("cpu=2")));
    }

    #[test]
    fn pods_that_ran_before_a_restart_count_with_what_they_were_granted() {
        let node = list("cpu=16,memory=16Gi,pods=9").unwrap();
        let pod = |uid: &str, wish: &str, granted: &str, phase: &str, annotations: serde_json::Value| -> Arc<Pod> {
            let requests = |cpu: &str| json!({"requests": {"cpu": cpu}});
            let of_container =
                json!({"name": "c", "allocatedResources": {"cpu": granted}, "resources": requests(granted)});
            let pod = json!({
                "metadata": {"uid": uid, "annotations": annotations},
                "spec": {"containers": [{"name": "c", "resources": requests(wish)}]},
                "status": {
                    "phase": phase, "startTime": "2026-01-01T00:00:00Z", "containerStatuses": [of_container],
                },
            });
            let mut pod: Pod = serde_json::from_value(pod).unwrap();
            if phase.is_empty() {
                pod.status = None;
            }
            Arc::new(pod)
        };
        let none = json!({});
        let pods = [
            pod("wishes", "10", "1", "Running", none.clone()),
            pod("runs", "8", "8", "Running", none.clone()),
            pod("new", "8", "8", "", none.clone()),
            pod("over", "8", "8", "Succeeded", none),
            pod("mirror", "8", "8", "Running", json!({"kubernetes.io/config.mirror": "x"})),
        ];
        let counted: Vec<_> = started(&pods).collect();
        let shown: Vec<_> = counted
            .iter()
            .map(|(wish, granted)| (state::uid(wish), resources::pod_request(granted, "cpu").to_string()))
            .collect();
        assert_eq!(shown, [("wishes", "1".to_owned()), ("runs", "8".to_owned())]);
        assert!(is_larger(counted[0].0, &counted[0].1) && !is_larger(counted[1].0, &counted[1].1));
        let others = [counted[1].1.clone()];
        assert!(too_large(counted[0].0, &others, &node).is_some(), "no room beside the one that runs");
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
