//! Objects as the caches of controllers and scheduler hold them.
//!
//! A pod's type takes 19 KB for the 3 KB that a pod is, because every optional field has its room in it, and most of
//! that is a spec which it shares with all other pods of its template. So pods of one template share one decoded spec;
//! what is a pod's own in it, the node and the random name of its token volume, is kept beside it. Of a status, too, most
//! is what many pods have alike; addresses, times and the ids of containers are a pod's own. Whoever decodes the same
//! version of a pod again in this process, for another cache, gets the same pod.
//!
//! Other kinds with a pod in them, or a list of many, are kept as text beside their metadata ([`Packed`]).
//!
//! Invariant: nothing is lost. [`Pod::complete`] and [`Packed::unpack`] are the object that was decoded, and nothing else
//! can be written back: what is here has no encoding.

mod decode;
mod packed;

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus as CompleteContainerStatus, Pod as CompletePod, PodCondition, PodIP, PodSpec, PodStatus,
    ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
pub use packed::Packed;

/// A pod. Clones share it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pod(Arc<Parts>);

/// The fields of a [`Pod`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parts {
    pub metadata: ObjectMeta,
    pub spec: Option<Spec>,
    pub status: Option<Status>,
}

/// A pod's spec, which reads like a [`PodSpec`] but for the name of the token volume.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spec {
    /// Shared by all pods that have the same.
    template: Arc<PodSpec>,
    /// Not in the template, whose own is never set.
    pub node_name: Option<String>,
    /// What the volume is called that the template calls [`TOKEN_VOLUME`].
    token_volume: Option<Box<str>>,
}

/// A pod's status, which reads like a [`PodStatus`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// Shared by all pods that have the same. The fields below are never set in it.
    common: Arc<PodStatus>,
    pub conditions: Option<Vec<Condition>>,
    pub container_statuses: Option<Vec<ContainerStatus>>,
    pub init_container_statuses: Option<Vec<ContainerStatus>>,
    pub pod_ip: Option<String>,
    pub pod_ips: Option<Vec<PodIP>>,
    pub start_time: Option<Time>,
}

/// A condition of a pod, which reads like a [`PodCondition`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Condition {
    /// Shared by all pods that have the same, and without a time of transition.
    common: Arc<PodCondition>,
    pub last_transition_time: Option<Time>,
}

/// What a pod says of a container. It does not pass for a [`CompleteContainerStatus`]: who takes one would miss the state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerStatus {
    /// Shared by all containers that have the same, and without an id and a state. Mounts have the token volume by the
    /// name that the template gives it.
    common: Arc<CompleteContainerStatus>,
    pub container_id: Option<String>,
    pub state: Option<State>,
}

/// A [`ContainerState`] that takes room for the one state that it is in.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    pub running: Option<ContainerStateRunning>,
    pub waiting: Option<Box<ContainerStateWaiting>>,
    pub terminated: Option<Box<ContainerStateTerminated>>,
}

/// Admission gives every pod a volume with its tokens, whose name is this and five random letters.
const TOKEN_VOLUME: &str = "kube-api-access-";

impl Deref for Pod {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl DerefMut for Pod {
    fn deref_mut(&mut self) -> &mut Parts {
        Arc::make_mut(&mut self.0)
    }
}

impl Deref for Spec {
    type Target = PodSpec;

    fn deref(&self) -> &PodSpec {
        &self.template
    }
}

impl DerefMut for Spec {
    fn deref_mut(&mut self) -> &mut PodSpec {
        Arc::make_mut(&mut self.template)
    }
}

impl Deref for Status {
    type Target = PodStatus;

    fn deref(&self) -> &PodStatus {
        &self.common
    }
}

impl DerefMut for Status {
    fn deref_mut(&mut self) -> &mut PodStatus {
        Arc::make_mut(&mut self.common)
    }
}

impl Deref for Condition {
    type Target = PodCondition;

    fn deref(&self) -> &PodCondition {
        &self.common
    }
}

impl DerefMut for Condition {
    fn deref_mut(&mut self) -> &mut PodCondition {
        Arc::make_mut(&mut self.common)
    }
}

impl k8s_openapi::Resource for Pod {
    const API_VERSION: &'static str = CompletePod::API_VERSION;
    const GROUP: &'static str = CompletePod::GROUP;
    const KIND: &'static str = CompletePod::KIND;
    const VERSION: &'static str = CompletePod::VERSION;
    const URL_PATH_SEGMENT: &'static str = CompletePod::URL_PATH_SEGMENT;
    type Scope = <CompletePod as k8s_openapi::Resource>::Scope;
}

impl k8s_openapi::Metadata for Pod {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.0.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut Arc::make_mut(&mut self.0).metadata
    }
}

impl Pod {
    /// The pod as the API has it.
    pub fn complete(&self) -> CompletePod {
        let token_volume = self.spec.as_ref().and_then(|spec| spec.token_volume.as_deref());
        CompletePod {
            metadata: self.metadata.clone(),
            spec: self.spec.as_ref().map(Spec::complete),
            status: self.status.as_ref().map(|status| status.complete(token_volume)),
        }
    }
}

impl Spec {
    fn complete(&self) -> PodSpec {
        let mut spec = PodSpec { node_name: self.node_name.clone(), ..(*self.template).clone() };
        if let Some(own) = &self.token_volume {
            let restore = |name: &mut String| restore(name, own);
            for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
                container.volume_mounts.iter_mut().flatten().for_each(|mount| restore(&mut mount.name));
            }
            for container in spec.ephemeral_containers.iter_mut().flatten() {
                container.volume_mounts.iter_mut().flatten().for_each(|mount| restore(&mut mount.name));
            }
            spec.volumes.iter_mut().flatten().for_each(|volume| restore(&mut volume.name));
        }
        spec
    }
}

/// Gives the token volume its own name again.
fn restore(name: &mut String, own: &str) {
    if name == TOKEN_VOLUME {
        own.clone_into(name);
    }
}

impl Status {
    fn complete(&self, token_volume: Option<&str>) -> PodStatus {
        let containers = |list: &Option<Vec<ContainerStatus>>| {
            list.as_ref().map(|list| list.iter().map(|container| container.complete(token_volume)).collect())
        };
        PodStatus {
            conditions: self.conditions.as_ref().map(|list| list.iter().map(Condition::complete).collect()),
            container_statuses: containers(&self.container_statuses),
            init_container_statuses: containers(&self.init_container_statuses),
            pod_ip: self.pod_ip.clone(),
            pod_ips: self.pod_ips.clone(),
            start_time: self.start_time.clone(),
            ..(*self.common).clone()
        }
    }
}

impl Condition {
    fn complete(&self) -> PodCondition {
        PodCondition { last_transition_time: self.last_transition_time.clone(), ..(*self.common).clone() }
    }
}

impl ContainerStatus {
    pub fn name(&self) -> &str {
        &self.common.name
    }

    pub fn restart_count(&self) -> i32 {
        self.common.restart_count
    }

    pub fn resources(&self) -> Option<&ResourceRequirements> {
        self.common.resources.as_ref()
    }

    pub fn allocated_resources(&self) -> Option<&BTreeMap<String, Quantity>> {
        self.common.allocated_resources.as_ref()
    }

    fn complete(&self, token_volume: Option<&str>) -> CompleteContainerStatus {
        let state = self.state.clone().map(|state| ContainerState {
            running: state.running,
            waiting: state.waiting.map(|waiting| *waiting),
            terminated: state.terminated.map(|terminated| *terminated),
        });
        let mut complete =
            CompleteContainerStatus { container_id: self.container_id.clone(), state, ..(*self.common).clone() };
        if let Some(own) = token_volume {
            complete.volume_mounts.iter_mut().flatten().for_each(|mount| restore(&mut mount.name, own));
        }
        complete
    }
}

/// A pod that nobody shares: for those who made it themselves.
impl From<CompletePod> for Pod {
    fn from(pod: CompletePod) -> Pod {
        let CompletePod { metadata, spec, status } = pod;
        Pod(Arc::new(Parts { metadata, spec: spec.map(Spec::from), status: status.map(Status::from) }))
    }
}

impl From<PodSpec> for Spec {
    fn from(mut spec: PodSpec) -> Spec {
        let node_name = spec.node_name.take();
        Spec { template: Arc::new(spec), node_name, token_volume: None }
    }
}

impl From<PodStatus> for Status {
    fn from(mut status: PodStatus) -> Status {
        let containers = |list: Option<Vec<CompleteContainerStatus>>| {
            list.map(|list| list.into_iter().map(ContainerStatus::from).collect())
        };
        Status {
            conditions: status.conditions.take().map(|list| list.into_iter().map(Condition::from).collect()),
            container_statuses: containers(status.container_statuses.take()),
            init_container_statuses: containers(status.init_container_statuses.take()),
            pod_ip: status.pod_ip.take(),
            pod_ips: status.pod_ips.take(),
            start_time: status.start_time.take(),
            common: Arc::new(status),
        }
    }
}

impl From<PodCondition> for Condition {
    fn from(mut condition: PodCondition) -> Condition {
        let last_transition_time = condition.last_transition_time.take();
        Condition { common: Arc::new(condition), last_transition_time }
    }
}

impl From<CompleteContainerStatus> for ContainerStatus {
    fn from(mut status: CompleteContainerStatus) -> ContainerStatus {
        let (container_id, state) = (status.container_id.take(), status.state.take().map(State::from));
        ContainerStatus { common: Arc::new(status), container_id, state }
    }
}

impl From<ContainerState> for State {
    fn from(state: ContainerState) -> State {
        let ContainerState { running, waiting, terminated } = state;
        State { running, waiting: waiting.map(Box::new), terminated: terminated.map(Box::new) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(name: &str, node: &str, token: &str) -> Value {
        let mounts = json!([
            { "name": format!("kube-api-access-{token}"), "readOnly": true, "mountPath": "/var/run/secrets" },
            { "name": "data", "mountPath": "/kube-api-access-abcde" },
        ]);
        json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {
                "name": name, "namespace": "n", "uid": format!("uid-{name}"), "resourceVersion": "7",
                "labels": { "app": "web" },
                "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r" }],
            },
            "spec": {
                "volumes": [
                    { "name": "data", "secret": { "secretName": "kube-api-access-aaaaa" } },
                    { "name": format!("kube-api-access-{token}"), "projected": { "sources": [] } },
                ],
                "initContainers": [{ "name": "i", "image": "i", "volumeMounts": mounts }],
                "containers": [{ "name": "c", "image": "i \"\\", "volumeMounts": mounts }, { "name": "d" }],
                "ephemeralContainers": [{ "name": "e", "volumeMounts": mounts }],
                "nodeName": node,
                "serviceAccountName": "default",
            },
            "status": {
                "phase": "Running", "hostIP": "192.168.0.1", "podIP": "10.0.0.1", "podIPs": [{ "ip": "10.0.0.1" }],
                "startTime": "2026-01-01T00:00:00Z",
                "conditions": [
                    { "type": "Ready", "status": "True", "lastProbeTime": null, "lastTransitionTime": "2026-01-01T00:00:01Z" },
                    { "type": "PodScheduled", "status": "True", "lastTransitionTime": null, "reason": "\"" },
                ],
                "initContainerStatuses": [container("i", token, json!({ "terminated": { "exitCode": 3, "reason": "Error" } }))],
                "containerStatuses": [
                    container("c", token, json!({ "running": { "startedAt": "2026-01-01T00:00:00Z" } })),
                    container("d", token, json!({ "waiting": { "reason": "ImagePullBackOff", "message": "m" } })),
                ],
            },
        })
    }

    fn container(name: &str, token: &str, state: Value) -> Value {
        let mounts = json!([
            { "name": format!("kube-api-access-{token}"), "mountPath": "/var/run/secrets", "readOnly": true },
            { "name": "data", "mountPath": "/data" },
        ]);
        json!({ "name": name, "image": "i", "imageID": "", "ready": true, "restartCount": 2, "started": true,
            "containerID": format!("cox://{name}{token}"), "state": state, "lastState": {}, "volumeMounts": mounts })
    }

    fn read(object: &Value) -> Pod {
        let text = object.to_string();
        let pod: Pod = crate::read::from_str(&text).unwrap();
        let complete: CompletePod = crate::read::from_str(&text).unwrap();
        assert_eq!(pod.complete(), complete, "{text}");
        assert_eq!(crate::codec::from_value::<Pod>(object).unwrap(), pod, "{text}");
        let pretty: Pod = crate::read::from_str(&serde_json::to_string_pretty(object).unwrap()).unwrap();
        assert_eq!(pretty.complete(), complete, "{text}");
        pod
    }

    fn template(pod: &Pod) -> &Arc<PodSpec> {
        &pod.spec.as_ref().unwrap().template
    }

    #[test]
    fn pods_of_one_template_share_their_spec() {
        let first = read(&pod("a", "n1", "abcde"));
        for other in [pod("b", "n1", "abcde"), pod("b", "n2", "x7k2p"), pod("c", "", "00000")] {
            assert!(Arc::ptr_eq(template(&first), template(&read(&other))), "{other}");
        }
        let mut unbound = pod("d", "", "abcde");
        unbound["spec"].as_object_mut().unwrap().remove("nodeName");
        let unbound = read(&unbound);
        assert!(Arc::ptr_eq(template(&first), template(&unbound)));
        assert_eq!((&unbound.spec.as_ref().unwrap().node_name, &template(&unbound).node_name), (&None, &None));
        assert_eq!(first.spec.as_ref().unwrap().node_name.as_deref(), Some("n1"));
        let mut other = pod("e", "n1", "abcde");
        other["spec"]["containers"][0]["image"] = json!("j");
        assert!(!Arc::ptr_eq(template(&first), template(&read(&other))));
    }

    #[test]
    fn pods_share_what_their_statuses_have_alike() {
        let first = read(&pod("a", "n1", "abcde"));
        let mut other = pod("b", "n2", "x7k2p");
        let status = &mut other["status"];
        status["podIP"] = json!("10.0.0.2");
        status["podIPs"] = json!([{ "ip": "10.0.0.2" }, { "ip": "fd00::2" }]);
        status["startTime"] = json!("2026-01-02T00:00:00Z");
        status["conditions"][0]["lastTransitionTime"] = json!("2026-01-02T00:00:01Z");
        status["containerStatuses"][0]["state"] = json!({ "terminated": { "exitCode": 0 } });
        let second = read(&other);
        let (first, second) = (first.status.as_ref().unwrap(), second.status.as_ref().unwrap());
        assert!(Arc::ptr_eq(&first.common, &second.common));
        let conditions = |status: &Status| status.conditions.clone().unwrap();
        for (one, other) in conditions(first).iter().zip(&conditions(second)) {
            assert!(Arc::ptr_eq(&one.common, &other.common), "{one:?}");
        }
        for (one, other) in [
            (&first.container_statuses, &second.container_statuses),
            (&first.init_container_statuses, &second.init_container_statuses),
        ] {
            for (one, other) in one.as_ref().unwrap().iter().zip(other.as_ref().unwrap()) {
                assert!(Arc::ptr_eq(&one.common, &other.common), "{one:?}");
            }
        }
        assert_eq!(first.phase.as_deref(), Some("Running"));
        let container = &second.container_statuses.as_ref().unwrap()[0];
        assert_eq!((container.name(), container.restart_count()), ("c", 2));
        assert_eq!(container.state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code, 0);
        // What is set in one pod is not set in the others.
        let mut changed = first.clone();
        changed.phase = Some("Failed".into());
        assert_eq!(first.phase.as_deref(), Some("Running"));
        // Without a spec that names the token volume, every name is a name like any other.
        let mut lone = pod("c", "n1", "abcde");
        lone.as_object_mut().unwrap().remove("spec");
        read(&lone);
    }

    #[test]
    fn a_version_of_a_pod_is_decoded_once() {
        let text = pod("once", "n1", "abcde");
        let first = read(&text);
        assert!(Arc::ptr_eq(&first.0, &read(&text).0));
        let mut next = text.clone();
        next["metadata"]["resourceVersion"] = json!("8");
        assert!(!Arc::ptr_eq(&first.0, &read(&next).0));
        // A cluster that was restored and went on differently has the same versions of other objects.
        let mut restored = text.clone();
        restored["status"]["phase"] = json!("Failed");
        assert_eq!(read(&restored).status.as_ref().unwrap().phase.as_deref(), Some("Failed"));
        let mut changed = first.clone();
        changed.metadata.name = Some("other".into());
        assert_eq!(first.metadata.name.as_deref(), Some("once"));
        let mut unversioned = text;
        unversioned["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        assert!(!Arc::ptr_eq(&read(&unversioned).0, &read(&unversioned).0));
    }

    #[test]
    fn nothing_is_lost_whatever_a_pod_looks_like() {
        for object in [
            json!({}),
            json!({ "metadata": null, "spec": null, "status": null }),
            json!({ "status": {} }),
            json!({ "status": { "conditions": null, "containerStatuses": [], "podIP": null, "podIPs": [], "startTime": null } }),
            json!({ "status": { "containerStatuses": [{ "name": "a" }], "reason": "Evicted", "message": "a \"b\"" } }),
            json!({ "status": { "ephemeralContainerStatuses": [container("e", "abcde", json!({}))] } }),
            json!({ "spec": { "containers": [] } }),
            json!({ "spec": { "containers": [], "nodeName": null } }),
            json!({ "spec": { "nodeName": "n", "containers": [] } }),
            json!({ "spec": { "containers": [{ "name": "a" }], "hostname": "h", "nodeName": "n\u{e4}\"" } }),
            // Names that only look like those of token volumes.
            json!({ "spec": { "containers": [], "volumes": [{ "name": "kube-api-access-abcde", "emptyDir": {} }] } }),
            json!({ "spec": { "containers": [], "volumes": [{ "name": "kube-api-access-", "projected": {} }] } }),
            json!({ "spec": { "containers": [], "volumes": [{ "name": "kube-api-access-abc/e", "projected": {} }] } }),
        ] {
            read(&object);
        }
        let first =
            json!({ "spec": { "nodeName": "n", "volumes": [] } }).to_string().replace("[]", "[],\"containers\":[]");
        let first: Pod = crate::read::from_str(&first).unwrap();
        assert_eq!(first.spec.as_ref().unwrap().node_name.as_deref(), Some("n"));
    }

    #[test]
    fn what_is_no_pod_is_refused() {
        for text in [
            "[]",
            "7",
            "{",
            "{\"spec\":7}",
            "{\"spec\":{\"nodeName\":7}}",
            "{\"metadata\":[7]}",
            "{\"status\":\"\"}",
            "{\"status\":{\"conditions\":7}}",
            "{\"status\":{\"conditions\":[7]}}",
            "{\"status\":{\"podIP\":7}}",
            "{\"status\":{\"containerStatuses\":{}}}",
            "{\"status\":{\"containerStatuses\":[{\"state\":7}]}}",
        ] {
            assert!(crate::read::from_str::<Pod>(text).is_err(), "{text}");
        }
    }
}
