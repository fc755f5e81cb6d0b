//! What the runtime knows about one pod: its sandboxes and containers, newest first.
//!
//! Flow: CRI lists and statuses -> here (`runtime::Runtime::pod_state`) -> `plan` and `status`.
//! Everything needed to go on after a restart of the kubelet is in labels and annotations that the
//! runtime keeps for us, so a new kubelet sees the same picture as the old one did.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hasher;

use api::meta::Meta as _;
use api::sort::CompactCollect as _;
use cri::v1;
use k8s_openapi::api::core::v1::{Container, ContainerPort, ContainerRestartRule, Pod, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub(crate) mod label {
    pub(crate) const POD_NAME: &str = "io.kubernetes.pod.name";
    pub(crate) const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
    pub(crate) const POD_UID: &str = "io.kubernetes.pod.uid";
    pub(crate) const CONTAINER_NAME: &str = "io.kubernetes.container.name";
}

pub(crate) mod annotation {
    pub(crate) const HASH: &str = "io.kubernetes.container.hash";
    pub(crate) const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
    pub(crate) const TERMINATION_PATH: &str = "io.kubernetes.container.terminationMessagePath";
    pub(crate) const TERMINATION_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
    pub(crate) const PORTS: &str = "io.kubernetes.container.ports";
    pub(crate) const POD_GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";
}

/// One pod as the runtime sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PodState {
    /// Newest first.
    pub(crate) sandboxes: Vec<Sandbox>,
    /// Newest first.
    pub(crate) containers: Vec<ContainerState>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sandbox {
    pub(crate) id: String,
    pub(crate) ready: bool,
    pub(crate) attempt: u32,
    pub(crate) created_at: i64,
    pub(crate) ips: Vec<String>,
    pub(crate) host_network: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    Created,
    Running,
    Exited,
    #[default]
    Unknown,
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Phase::Created => "created",
            Phase::Running => "running",
            Phase::Exited => "exited",
            Phase::Unknown => "unknown",
        })
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ContainerState {
    pub(crate) id: String,
    pub(crate) sandbox_id: String,
    pub(crate) name: String,
    pub(crate) phase: Phase,
    /// Unix nanoseconds, zero when it has not happened.
    pub(crate) created_at: i64,
    pub(crate) started_at: i64,
    pub(crate) finished_at: i64,
    pub(crate) exit_code: i32,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) image: String,
    pub(crate) image_ref: String,
    pub(crate) restart_count: i32,
    pub(crate) hash: String,
    pub(crate) log_path: String,
    pub(crate) user: Option<(i64, i64, Vec<i64>)>,
    pub(crate) resources: Option<v1::LinuxContainerResources>,
}

impl ContainerState {
    pub(crate) fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    /// An init container that ended badly, or whose end nobody saw.
    pub(crate) fn has_failed(&self) -> bool {
        match self.phase {
            Phase::Exited => self.exit_code != 0,
            Phase::Unknown => true,
            Phase::Created | Phase::Running => false,
        }
    }

    /// Joins what `ListContainers` and `ContainerStatus` say about one container.
    pub(crate) fn from_cri(listed: &v1::Container, status: v1::ContainerStatus) -> Self {
        let phase = match v1::ContainerState::try_from(status.state) {
            Ok(v1::ContainerState::ContainerCreated) => Phase::Created,
            Ok(v1::ContainerState::ContainerRunning) => Phase::Running,
            Ok(v1::ContainerState::ContainerExited) => Phase::Exited,
            Ok(v1::ContainerState::ContainerUnknown) | Err(_) => Phase::Unknown,
        };
        let restart_count = status
            .annotations
            .get(annotation::RESTART_COUNT)
            .and_then(|count| count.parse().ok())
            .unwrap_or_else(|| status.metadata.as_ref().map_or(0, |m| m.attempt as i32));
        ContainerState {
            name: status
                .labels
                .get(label::CONTAINER_NAME)
                .or_else(|| listed.labels.get(label::CONTAINER_NAME))
                .cloned()
                .unwrap_or_default(),
            sandbox_id: listed.pod_sandbox_id.clone(),
            phase,
            created_at: status.created_at,
            started_at: status.started_at,
            finished_at: status.finished_at,
            exit_code: status.exit_code,
            reason: status.reason,
            message: status.message,
            image: status.image.map(|image| image.image).unwrap_or_default(),
            image_ref: status.image_ref,
            restart_count,
            hash: status.annotations.get(annotation::HASH).cloned().unwrap_or_default(),
            log_path: status.log_path,
            user: status.user.and_then(|user| user.linux).map(|user| (user.uid, user.gid, user.supplemental_groups)),
            resources: status.resources.and_then(|resources| resources.linux),
            id: status.id,
        }
    }
}

impl PodState {
    /// The newest container of that name, of any sandbox.
    pub(crate) fn container(&self, name: &str) -> Option<&ContainerState> {
        self.containers.iter().find(|container| container.name == name)
    }

    /// The newest container of that name in the current sandbox.
    pub(crate) fn active(&self, name: &str) -> Option<&ContainerState> {
        let sandbox = self.sandboxes.first()?;
        self.containers.iter().find(|container| container.name == name && container.sandbox_id == sandbox.id)
    }

    /// Addresses of the current sandbox, if it is up.
    pub(crate) fn ips(&self) -> &[String] {
        match self.sandboxes.first() {
            Some(sandbox) if sandbox.ready => &sandbox.ips,
            _ => &[],
        }
    }

    pub(crate) fn is_any_running(&self) -> bool {
        self.containers.iter().any(ContainerState::is_running) || self.sandboxes.iter().any(|sandbox| sandbox.ready)
    }
}

/// Changes when the container must be made anew: its name or image differs. Resources are changed
/// in place and nothing else of a container may change.
pub(crate) fn container_hash(container: &Container) -> String {
    let mut hash = Fnv32::default();
    hash.write(container.name.as_bytes());
    hash.write(&[0]);
    hash.write(container.image.as_deref().unwrap_or_default().as_bytes());
    format!("{:x}", hash.finish())
}

/// FNV-1a, stable over releases unlike the standard library's hasher.
struct Fnv32(u32);

impl Default for Fnv32 {
    fn default() -> Self {
        Fnv32(0x811c_9dc5)
    }
}

impl Hasher for Fnv32 {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        }
    }

    fn finish(&self) -> u64 {
        u64::from(self.0)
    }
}

/// The labels by which a sandbox or container is found again.
pub(crate) fn pod_labels(pod: &Pod) -> HashMap<String, String> {
    let mut labels: HashMap<String, String> =
        pod.metadata.labels.iter().flatten().map(|(key, value)| (key.clone(), value.clone())).collect();
    labels.insert(label::POD_NAME.into(), name(pod).into());
    labels.insert(label::POD_NAMESPACE.into(), namespace(pod).into());
    labels.insert(label::POD_UID.into(), uid(pod).into());
    labels
}

pub(crate) fn container_labels(pod: &Pod, container: &str) -> HashMap<String, String> {
    HashMap::from([
        (label::POD_NAME.into(), name(pod).into()),
        (label::POD_NAMESPACE.into(), namespace(pod).into()),
        (label::POD_UID.into(), uid(pod).into()),
        (label::CONTAINER_NAME.into(), container.into()),
    ])
}

pub(crate) fn name(pod: &Pod) -> &str {
    pod.metadata.name()
}

pub(crate) fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace()
}

/// The identity the node knows a pod by. A mirror pod answers with the identity of its static pod.
pub(crate) fn uid(pod: &Pod) -> &str {
    pod.metadata.uid()
}

/// Revisions of one store have one order; zero where none is known.
pub(crate) fn version(metadata: &ObjectMeta) -> u64 {
    metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// What the kubelet is called in traces.
pub(crate) const ACTOR: &str = "kubelet";

/// The pod's name in traces.
pub(crate) fn traced_name(pod: &Pod) -> String {
    format!("pods/{}/{}", namespace(pod), name(pod))
}

/// `namespace/name`, for messages.
pub(crate) fn full_name(pod: &Pod) -> String {
    format!("{}/{}", namespace(pod), name(pod))
}

/// The log directory of a pod: `<namespace>_<name>_<uid>`.
pub(crate) fn log_dir_name(pod: &Pod) -> String {
    format!("{}_{}_{}", namespace(pod), name(pod), uid(pod))
}

/// What metrics call a container of a pod.
pub(crate) fn container_type(pod: &Pod, name: &str) -> &'static str {
    let Some(spec) = &pod.spec else { return "container" };
    let is_init = spec.init_containers.iter().flatten().any(|container| container.name == name);
    let is_ephemeral = spec.ephemeral_containers.iter().flatten().any(|container| container.name == name);
    match (is_init, is_ephemeral) {
        (true, _) => "init_container",
        (_, true) => "ephemeral_container",
        _ => "container",
    }
}

/// The ports of the node that a pod's containers and sidecars take.
pub(crate) fn host_ports(pod: &Pod) -> impl Iterator<Item = &ContainerPort> {
    let spec = pod.spec.iter();
    let sidecars = spec.clone().flat_map(|spec| spec.init_containers.iter().flatten());
    let sidecars = sidecars.filter(|container| container.restart_policy.as_deref() == Some("Always"));
    let containers = spec.flat_map(|spec| &spec.containers).chain(sidecars);
    containers.flat_map(|container| container.ports.iter().flatten()).filter(|port| port.host_port.unwrap_or(0) > 0)
}

/// Every container of a pod: init, main, ephemeral.
pub(crate) fn all_containers(pod: &Pod) -> Vec<Container> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    spec.init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
        .cloned()
        .chain(spec.ephemeral_containers.iter().flatten().map(from_ephemeral))
        .collect()
}

/// The volumes that a container of the pod names: for others nothing is done (`GetPodVolumeNames`, v1.36).
pub(crate) fn used_volumes(pod: &Pod) -> Vec<&Volume> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let mounts = containers.clone().flat_map(|container| container.volume_mounts.iter().flatten());
    let mounts = mounts.chain(ephemeral.clone().flat_map(|container| container.volume_mounts.iter().flatten()));
    let devices = containers.flat_map(|container| container.volume_devices.iter().flatten());
    let devices = devices.chain(ephemeral.flat_map(|container| container.volume_devices.iter().flatten()));
    let names: BTreeSet<&str> =
        mounts.map(|mount| mount.name.as_str()).chain(devices.map(|device| device.name.as_str())).compact_collect();
    spec.volumes.iter().flatten().filter(|volume| names.contains(volume.name.as_str())).collect()
}

/// An ephemeral container as the plain container it is run as.
pub(crate) fn from_ephemeral(ephemeral: &k8s_openapi::api::core::v1::EphemeralContainer) -> Container {
    let e = ephemeral.clone();
    Container {
        args: e.args,
        command: e.command,
        env: e.env,
        env_from: e.env_from,
        image: e.image,
        image_pull_policy: e.image_pull_policy,
        lifecycle: e.lifecycle,
        liveness_probe: e.liveness_probe,
        name: e.name,
        ports: e.ports,
        readiness_probe: e.readiness_probe,
        resize_policy: e.resize_policy,
        resources: e.resources,
        restart_policy: e.restart_policy,
        restart_policy_rules: e.restart_policy_rules,
        security_context: e.security_context,
        startup_probe: e.startup_probe,
        stdin: e.stdin,
        stdin_once: e.stdin_once,
        termination_message_path: e.termination_message_path,
        termination_message_policy: e.termination_message_policy,
        tty: e.tty,
        volume_devices: e.volume_devices,
        volume_mounts: e.volume_mounts,
        working_dir: e.working_dir,
    }
}

/// A sidecar: an init container that keeps running beside the main ones.
pub(crate) use api::pod::is_sidecar;

/// Whether a container that ended with `exit_code` is started again: its own rules first, then its
/// own policy, then the pod's.
pub(crate) fn restarts_after(container: &Container, pod_policy: &str, exit_code: i32) -> bool {
    if restart_rule(container, exit_code).is_some() {
        return true;
    }
    match container.restart_policy.as_deref().unwrap_or(pod_policy) {
        "Never" => false,
        "OnFailure" => exit_code != 0,
        _ => true,
    }
}

/// Whether that end starts the whole pod again.
pub(crate) fn restarts_all_after(container: &Container, exit_code: i32) -> bool {
    restart_rule(container, exit_code).is_some_and(|rule| rule.action == RESTART_ALL)
}

/// Whether any end of a container would.
pub(crate) fn may_restart_all(pod: &Pod) -> bool {
    let spec = pod.spec.iter();
    let mut containers = spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
    containers.any(|container| container.restart_policy_rules.iter().flatten().any(|rule| rule.action == RESTART_ALL))
}

const RESTART_ALL: &str = "RestartAllContainers";

/// The first rule that the exit code fits. Rules count only beside a policy of the container's own.
fn restart_rule(container: &Container, exit_code: i32) -> Option<&ContainerRestartRule> {
    container.restart_policy.as_ref()?;
    container.restart_policy_rules.iter().flatten().find(|rule| {
        rule.exit_codes.as_ref().is_some_and(|codes| {
            let listed = codes.values.iter().flatten().any(|value| *value == exit_code);
            match codes.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                _ => false,
            }
        })
    })
}

pub(crate) fn restart_policy(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()).unwrap_or("Always")
}

/// Annotations that carry what a new kubelet must know of a container it did not start.
pub(crate) fn container_annotations(pod: &Pod, container: &Container, restart_count: i32) -> HashMap<String, String> {
    let mut annotations = BTreeMap::from([
        (annotation::HASH, container_hash(container)),
        (annotation::RESTART_COUNT, restart_count.to_string()),
        (
            annotation::TERMINATION_PATH,
            container.termination_message_path.clone().unwrap_or_else(|| "/dev/termination-log".into()),
        ),
        (annotation::TERMINATION_POLICY, container.termination_message_policy.clone().unwrap_or_else(|| "File".into())),
    ]);
    if let Some(grace) = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds) {
        annotations.insert(annotation::POD_GRACE_PERIOD, grace.to_string());
    }
    if let Some(ports) = container.ports.as_ref().and_then(|ports| serde_json::to_string(ports).ok()) {
        annotations.insert(annotation::PORTS, ports);
    }
    annotations.into_iter().map(|(key, value)| (key.to_string(), value)).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ContainerRestartRuleOnExitCodes;

    /// A pod that is up, with these containers in these phases and with these exit codes.
    pub(crate) fn up(
        containers: &[(&str, Phase, i32)],
        complete: impl Fn(ContainerState) -> ContainerState,
    ) -> PodState {
        let seen = |(name, phase, exit_code): &(&str, Phase, i32)| ContainerState {
            id: format!("{name}-id"),
            name: (*name).into(),
            sandbox_id: "s".into(),
            phase: *phase,
            exit_code: *exit_code,
            ..Default::default()
        };
        let sandbox = Sandbox { id: "s".into(), ready: true, ips: vec!["10.0.0.2".into()], ..Default::default() };
        let containers = containers.iter().map(|container| complete(seen(container))).collect();
        PodState { sandboxes: vec![sandbox], containers }
    }

    #[test]
    fn restart_rules_come_before_policies() {
        let rule = |operator: &str, values: &[i32]| ContainerRestartRule {
            action: "Restart".into(),
            exit_codes: Some(ContainerRestartRuleOnExitCodes {
                operator: operator.into(),
                values: Some(values.to_vec()),
            }),
        };
        for (own, rules, pod_policy, exit_code, expected) in [
            (None, vec![], "Always", 0, true),
            (None, vec![], "OnFailure", 0, false),
            (None, vec![], "OnFailure", 1, true),
            (None, vec![], "Never", 1, false),
            (Some("Always"), vec![], "Never", 0, true),
            (Some("Never"), vec![rule("In", &[42])], "Always", 42, true),
            (Some("Never"), vec![rule("In", &[42])], "Always", 1, false),
            (Some("Never"), vec![rule("NotIn", &[42])], "Always", 1, true),
        ] {
            let container = Container {
                restart_policy: own.map(String::from),
                restart_policy_rules: Some(rules),
                ..Default::default()
            };
            assert_eq!(restarts_after(&container, pod_policy, exit_code), expected, "{own:?} {pod_policy} {exit_code}");
        }
    }

    #[test]
    fn the_first_fitting_rule_says_what_is_restarted() {
        let rule = |action: &str, value: i32| ContainerRestartRule {
            action: action.into(),
            exit_codes: Some(ContainerRestartRuleOnExitCodes { operator: "In".into(), values: Some(vec![value]) }),
        };
        for (own, rules, exit_code, expected) in [
            (Some("Never"), vec![rule("RestartAllContainers", 42)], 42, (true, true)),
            (Some("Never"), vec![rule("RestartAllContainers", 42)], 1, (false, false)),
            (Some("Always"), vec![rule("RestartAllContainers", 42)], 1, (true, false)),
            (Some("Never"), vec![rule("Restart", 42), rule("RestartAllContainers", 42)], 42, (true, false)),
            (Some("Never"), vec![rule("Restart", 1), rule("RestartAllContainers", 42)], 42, (true, true)),
        ] {
            let container = Container {
                restart_policy: own.map(String::from),
                restart_policy_rules: Some(rules.clone()),
                ..Default::default()
            };
            let found = (restarts_after(&container, "Never", exit_code), restarts_all_after(&container, exit_code));
            assert_eq!(found, expected, "{own:?} {rules:?} {exit_code}");
        }
    }

    #[test]
    fn hash_follows_image_and_name_only() {
        let a = Container { name: "a".into(), image: Some("nginx:1".into()), ..Default::default() };
        let b = Container { tty: Some(true), ..a.clone() };
        let c = Container { image: Some("nginx:2".into()), ..a.clone() };
        assert_eq!(container_hash(&a), container_hash(&b));
        assert_ne!(container_hash(&a), container_hash(&c));
    }

    #[test]
    fn volumes_that_no_container_names_are_not_used() {
        let named = |name: &str, list: &str, key: &str, value: &str| serde_json::json!({"name": name, list: [{"name": name, key: value}]});
        let pod: Pod = serde_json::from_value(serde_json::json!({"metadata": {}, "spec": {
            "initContainers": [named("a", "volumeMounts", "mountPath", "/a")],
            "containers": [named("b", "volumeMounts", "mountPath", "/b"), named("c", "volumeDevices", "devicePath", "/c")],
            "ephemeralContainers": [named("d", "volumeMounts", "mountPath", "/d")],
            "volumes": [{"name": "a"}, {"name": "b"}, {"name": "c"}, {"name": "d"}, {"name": "e"}],
        }}))
        .unwrap();
        let used: Vec<&str> = used_volumes(&pod).iter().map(|volume| volume.name.as_str()).collect();
        assert_eq!(used, ["a", "b", "c", "d"]);
    }
}
