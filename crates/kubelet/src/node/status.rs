//! The status a node shows. Pure.

use std::collections::{BTreeMap, BTreeSet};

use api::pod::resources::is_extended;
use api::quantity::{Format, Quantity};
use api::sort::{CompactCollect as _, CompactSort as _};
use cri::v1;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeRuntimeHandler,
    NodeRuntimeHandlerFeatures, NodeStatus, NodeSwapStatus, NodeSystemInfo,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::machine::Machine;
use crate::config::Settings;
use crate::huge_pages;
use crate::resources::{self, ResourceList};
use crate::runtime::CallError;
use crate::thresholds::{self, Pressure};

pub(crate) struct Facts<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) machine: &'a Machine,
    pub(crate) runtime: &'a Result<v1::StatusResponse, CallError>,
    pub(crate) runtime_version: String,
    /// The list shown last stays when the runtime does not answer.
    pub(crate) images: &'a Result<Vec<v1::Image>, CallError>,
    pub(crate) port: u16,
    pub(crate) pressure: Pressure,
    pub(crate) is_shutting_down: bool,
    /// None if what the API shows is to stay.
    pub(crate) volumes_in_use: Option<Vec<String>>,
    pub(crate) old: &'a NodeStatus,
    pub(crate) now: Timestamp,
}

pub(crate) fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

pub(crate) fn labels(settings: &Settings) -> BTreeMap<String, String> {
    let mut labels = settings.node_labels.clone();
    for (key, value) in [
        ("kubernetes.io/hostname", settings.node_name.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", arch()),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", arch()),
    ] {
        labels.insert(key.into(), value.into());
    }
    labels
}

pub(crate) fn capacity(settings: &Settings, machine: &Machine) -> ResourceList {
    let quantity = |text: String| ApiQuantity(text);
    let by_core = (settings.pods_per_core > 0).then(|| settings.pods_per_core.saturating_mul(machine.cpus as u32));
    let pods = by_core.map_or(settings.max_pods, |count| count.min(settings.max_pods));
    let mut list = BTreeMap::from([
        ("cpu".to_string(), quantity(machine.cpus.to_string())),
        ("memory".to_string(), quantity(format!("{}Ki", machine.memory >> 10))),
        ("ephemeral-storage".to_string(), quantity(format!("{}Ki", machine.disk >> 10))),
        ("pods".to_string(), quantity(pods.to_string())),
    ]);
    for (size, count) in &machine.huge_pages {
        list.insert(huge_pages::resource(*size), quantity(huge_pages::amount(*size, *count).to_string()));
    }
    list
}

/// Capacity without what is reserved and what eviction keeps free. Memory in huge pages is no other memory.
pub(crate) fn allocatable(settings: &Settings, machine: &Machine) -> ResourceList {
    let mut list = capacity(settings, machine);
    let mut take = |name: &str, amount: Quantity| {
        let Some(entry) = list.get_mut(name) else { return };
        let Ok(mut left) = entry.0.parse::<Quantity>() else { return };
        left.sub(&amount);
        if left.is_negative() {
            left = Quantity::default();
        }
        *entry = ApiQuantity(left.to_string());
    };
    for (name, amount) in &settings.reserved {
        if let Ok(amount) = amount.parse() {
            take(name, amount);
        }
    }
    let kept = thresholds::kept_free(settings, "memory", machine.memory);
    take("memory", Quantity::new(kept as i64, Format::BinarySI));
    for (size, count) in &machine.huge_pages {
        take("memory", huge_pages::amount(*size, *count));
    }
    if let Some(entry) = list.get_mut("ephemeral-storage") {
        let reserved = settings.reserved.get("ephemeral-storage").and_then(|amount| amount.parse::<Quantity>().ok());
        let reserved = reserved.map_or(0, |amount| amount.value().max(0) as u64);
        let kept = thresholds::kept_free(settings, "ephemeral-storage", machine.disk);
        *entry = ApiQuantity(machine.disk.saturating_sub(kept).saturating_sub(reserved).to_string());
    }
    list
}

pub(crate) fn node_status(facts: &Facts<'_>) -> NodeStatus {
    let machine = facts.machine;
    let mut addresses: Vec<NodeAddress> =
        machine.ips.iter().map(|ip| NodeAddress { type_: "InternalIP".into(), address: ip.to_string() }).collect();
    addresses.push(NodeAddress { type_: "Hostname".into(), address: facts.settings.node_name.clone() });
    let images = match facts.images {
        Ok(images) => Some(largest(images, facts.settings.node_status_max_images)),
        Err(_) => facts.old.images.clone(),
    };
    let handlers = facts.runtime.as_ref().map(|status| status.runtime_handlers.as_slice()).unwrap_or_default();
    NodeStatus {
        capacity: Some(capacity(facts.settings, machine)),
        allocatable: Some(allocatable(facts.settings, machine)),
        addresses: Some(addresses),
        conditions: Some(conditions(facts)),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint { port: i32::from(facts.port) }),
        }),
        images,
        node_info: Some(NodeSystemInfo {
            architecture: arch().into(),
            boot_id: machine.boot_id.clone(),
            container_runtime_version: facts.runtime_version.clone(),
            kernel_version: machine.kernel.clone(),
            kube_proxy_version: String::new(),
            kubelet_version: api::version::KUBERNETES.into(),
            machine_id: machine.machine_id.clone(),
            operating_system: "linux".into(),
            os_image: machine.os_image.clone(),
            system_uuid: machine.system_uuid.clone(),
            swap: swap(machine),
        }),
        runtime_handlers: (!handlers.is_empty()).then(|| {
            handlers
                .iter()
                .map(|handler| NodeRuntimeHandler {
                    name: Some(handler.name.clone()),
                    features: handler.features.as_ref().map(|features| NodeRuntimeHandlerFeatures {
                        recursive_read_only_mounts: Some(features.recursive_read_only_mounts),
                        user_namespaces: Some(features.user_namespaces),
                    }),
                })
                .collect()
        }),
        // Sent when it is empty as well: a list that is left out stays.
        volumes_in_use: facts.volumes_in_use.clone(),
        ..Default::default()
    }
}

/// Nothing where there is none.
fn swap(machine: &Machine) -> Option<NodeSwapStatus> {
    let bytes = i64::try_from(machine.swap).unwrap_or(i64::MAX);
    (bytes > 0).then_some(NodeSwapStatus { capacity: Some(bytes) })
}

/// The images that a node shows, the largest first.
fn largest(images: &[v1::Image], max: i32) -> Vec<ContainerImage> {
    let mut shown: Vec<ContainerImage> = images
        .iter()
        .map(|image| ContainerImage {
            names: Some(image.repo_digests.iter().chain(&image.repo_tags).take(5).cloned().collect()),
            size_bytes: Some(image.size as i64),
        })
        .filter(|image| image.names.as_ref().is_some_and(|names| !names.is_empty()))
        .collect();
    shown.compact_sort_by_key(|image| std::cmp::Reverse(image.size_bytes));
    shown.truncate(usize::try_from(max).unwrap_or(usize::MAX));
    shown
}

/// Why the node is not Ready, if it is not.
fn not_ready(runtime: &Result<v1::StatusResponse, CallError>, is_shutting_down: bool) -> Option<String> {
    let mut problems = match runtime {
        Ok(status) => runtime_problems(status),
        Err(error) => vec![format!("container runtime is down: {error}")],
    };
    problems.extend(is_shutting_down.then(|| "node is shutting down".to_string()));
    match problems.as_slice() {
        [] => None,
        [one] => Some(one.clone()),
        several => Some(format!("[{}]", several.join(", "))),
    }
}

fn runtime_problems(status: &v1::StatusResponse) -> Vec<String> {
    let conditions = status.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let missing = |kind: &str, what: &str| match conditions.iter().find(|condition| condition.r#type == kind) {
        Some(condition) if condition.status => None,
        Some(condition) => {
            Some(format!("{what}: {kind}=false reason:{} message:{}", condition.reason, condition.message))
        }
        None => Some(format!("{what}: {kind} is not reported")),
    };
    [
        missing("RuntimeReady", "container runtime not ready"),
        missing("NetworkReady", "container runtime network not ready"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn conditions(facts: &Facts<'_>) -> Vec<NodeCondition> {
    let problem = not_ready(facts.runtime, facts.is_shutting_down);
    let rows: [(&str, bool, &str, String); 4] = [
        if facts.pressure.memory {
            ("MemoryPressure", true, "KubeletHasInsufficientMemory", "kubelet has insufficient memory available".into())
        } else {
            ("MemoryPressure", false, "KubeletHasSufficientMemory", "kubelet has sufficient memory available".into())
        },
        if facts.pressure.disk {
            ("DiskPressure", true, "KubeletHasDiskPressure", "kubelet has disk pressure".into())
        } else {
            ("DiskPressure", false, "KubeletHasNoDiskPressure", "kubelet has no disk pressure".into())
        },
        if facts.pressure.pids {
            ("PIDPressure", true, "KubeletHasInsufficientPID", "kubelet has insufficient PID available".into())
        } else {
            ("PIDPressure", false, "KubeletHasSufficientPID", "kubelet has sufficient PID available".into())
        },
        match problem {
            None => ("Ready", true, "KubeletReady", "kubelet is posting ready status".into()),
            Some(problem) => ("Ready", false, "KubeletNotReady", problem),
        },
    ];
    rows.into_iter()
        .map(|(kind, is_true, reason, message)| {
            let status = if is_true { "True" } else { "False" };
            let before = facts.old.conditions.iter().flatten().find(|condition| condition.type_ == kind);
            let since = before
                .filter(|condition| condition.status == status)
                .and_then(|condition| condition.last_transition_time.clone());
            NodeCondition {
                type_: kind.into(),
                status: status.into(),
                reason: Some(reason.into()),
                message: Some(message),
                last_heartbeat_time: Some(Time(facts.now)),
                last_transition_time: since.or(Some(Time(facts.now))),
            }
        })
        .collect()
}

/// Whether two statuses differ in more than their heartbeat.
pub(crate) fn differs(old: &NodeStatus, new: &NodeStatus) -> bool {
    let still = |status: &NodeStatus| {
        let mut status = status.clone();
        for condition in status.conditions.iter_mut().flatten() {
            condition.last_heartbeat_time = None;
            condition.last_transition_time = None;
        }
        status
    };
    still(old) != still(new)
}

/// Whether others have written something else of the conditions that are the node's to tell: where nothing is heard of it for a while,
/// the node controller calls them unknown.
pub(crate) fn is_overruled(present: &NodeStatus, own: &NodeStatus) -> bool {
    own.conditions.iter().flatten().any(|own| {
        let present = present.conditions.iter().flatten().find(|present| present.type_ == own.type_);
        present.is_none_or(|present| present.status != own.status)
    })
}

/// What has to change in `allocatable` so that pods can have all of what others wrote into the Node's capacity, and nothing that
/// is not there any more (`MachineInfo`, v1.36): an amount, or none for a name that goes.
pub(crate) fn extended(present: &NodeStatus) -> BTreeMap<String, Option<ApiQuantity>> {
    let nothing = ResourceList::new();
    let capacity = present.capacity.as_ref().unwrap_or(&nothing);
    let allocatable = present.allocatable.as_ref().unwrap_or(&nothing);
    let mut changes = BTreeMap::new();
    for (name, amount) in capacity.iter().filter(|(name, _)| is_extended(name)) {
        if allocatable.get(name).and_then(resources::parse) != resources::parse(amount) {
            changes.insert(name.clone(), Some(amount.clone()));
        }
    }
    for name in allocatable.keys().filter(|name| is_extended(name) && !capacity.contains_key(*name)) {
        changes.insert(name.clone(), None);
    }
    changes
}

/// Sizes of huge pages that are shown, and that the node does not have (`reconcileHugePageResource`, v1.36).
pub(crate) fn gone(present: &NodeStatus, own: &NodeStatus) -> BTreeSet<String> {
    let lists = [present.capacity.as_ref(), present.allocatable.as_ref()];
    let shown = lists.into_iter().flatten().flat_map(|list| list.keys()).filter(|name| huge_pages::is_resource(name));
    let has = |name: &&String| own.capacity.as_ref().is_some_and(|list| list.contains_key(*name));
    shown.filter(|name| !has(name)).cloned().compact_collect()
}

/// The status as a strategic merge patch, with what changes of [`extended`] resources, and without what is [`gone`]; lists with a
/// merge key are replaced as a whole.
pub(crate) fn patch(
    status: &NodeStatus,
    extended: &BTreeMap<String, Option<ApiQuantity>>,
    gone: &BTreeSet<String>,
) -> Value {
    let mut value = api::codec::to_value(status).unwrap_or_else(|_| json!({}));
    for list in ["capacity", "allocatable"] {
        if let Some(list) = value.get_mut(list).and_then(Value::as_object_mut) {
            list.extend(gone.iter().map(|name| (name.clone(), Value::Null)));
        }
    }
    if let Some(allocatable) = value.get_mut("allocatable").and_then(Value::as_object_mut) {
        allocatable.extend(extended.iter().map(|(name, amount)| (name.clone(), json!(amount))));
    }
    if let Some(addresses) = value.get_mut("addresses").and_then(Value::as_array_mut) {
        addresses.insert(0, json!({"$patch": "replace"}));
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime(ready: bool, network: bool) -> Result<v1::StatusResponse, CallError> {
        let condition = |kind: &str, status| v1::RuntimeCondition {
            r#type: kind.into(),
            status,
            reason: "R".into(),
            message: "m".into(),
        };
        Ok(v1::StatusResponse {
            status: Some(v1::RuntimeStatus {
                conditions: vec![condition("RuntimeReady", ready), condition("NetworkReady", network)],
            }),
            ..Default::default()
        })
    }

    #[test]
    fn readiness_follows_the_runtime() {
        let network = "container runtime network not ready: NetworkReady=false reason:R message:m";
        let down = "container runtime is down: rpc error: code = Unavailable desc = no socket";
        let both = format!("[{network}, node is shutting down]");
        for (runtime, is_shutting_down, expected) in [
            (runtime(true, true), false, None),
            (runtime(true, true), true, Some("node is shutting down")),
            (runtime(true, false), false, Some(network)),
            (runtime(true, false), true, Some(both.as_str())),
            (Err(cri::tonic::Status::unavailable("no socket").into()), false, Some(down)),
        ] {
            assert_eq!(not_ready(&runtime, is_shutting_down).as_deref(), expected);
        }
    }

    #[test]
    fn allocatable_is_less_than_capacity() {
        let mut settings = Settings::new("n");
        settings.reserved.insert("cpu".into(), "500m".into());
        settings.reserved.insert("ephemeral-storage".into(), "100".into());
        let machine = Machine { cpus: 2, memory: 1 << 30, disk: 1000, ..Default::default() };
        let list = allocatable(&settings, &machine);
        for (name, expected) in [("cpu", "1500m"), ("memory", "924Mi"), ("pods", "110"), ("ephemeral-storage", "800")] {
            let got: Quantity = list[name].0.parse().unwrap();
            assert_eq!(got, expected.parse().unwrap(), "{name}");
        }
    }

    #[test]
    fn huge_pages_are_no_other_memory() {
        let mut settings = Settings::new("n");
        settings.reserved.insert("hugepages-2Mi".into(), "64Mi".into());
        let huge_pages = BTreeMap::from([(2 << 20, 128), (1 << 30, 0)]);
        let machine = Machine { cpus: 2, memory: 1 << 30, huge_pages, ..Default::default() };
        let shown = |list: ResourceList| {
            ["memory", "hugepages-2Mi", "hugepages-1Gi"].map(|name| list[name].0.parse::<Quantity>().unwrap())
        };
        let amounts = |texts: [&str; 3]| texts.map(|text| text.parse::<Quantity>().unwrap());
        assert_eq!(shown(capacity(&settings, &machine)), amounts(["1Gi", "256Mi", "0"]));
        assert_eq!(shown(allocatable(&settings, &machine)), amounts(["668Mi", "192Mi", "0"]));
        let without = Machine { huge_pages: BTreeMap::new(), ..machine };
        assert!(!capacity(&settings, &without).contains_key("hugepages-2Mi"), "the kernel has none");
        let more = Machine { huge_pages: BTreeMap::from([(1 << 30, 9)]), ..without };
        assert_eq!(allocatable(&settings, &more)["memory"].0, "0");
    }

    #[test]
    fn swap_is_shown_where_there_is_some() {
        for (bytes, expected) in [(0, None), (1 << 30, Some(1 << 30))] {
            let machine = Machine { swap: bytes, ..Default::default() };
            assert_eq!(swap(&machine).and_then(|swap| swap.capacity), expected);
        }
    }

    #[test]
    fn sizes_that_the_node_has_no_more_go() {
        let status = |list: &str| NodeStatus {
            capacity: resources::tests::list(list),
            allocatable: resources::tests::list(list),
            ..Default::default()
        };
        let own = status("cpu=1,hugepages-2Mi=0");
        let gone = gone(&status("cpu=1,hugepages-2Mi=2Mi,hugepages-1Gi=1Gi,example.com/x=1"), &own);
        assert_eq!(gone, BTreeSet::from(["hugepages-1Gi".to_owned()]));
        let written = patch(&own, &BTreeMap::new(), &gone);
        let expected = json!({"cpu": "1", "hugepages-2Mi": "0", "hugepages-1Gi": null});
        assert_eq!((&written["capacity"], &written["allocatable"]), (&expected, &expected));
    }

    #[test]
    fn what_others_say_of_the_node_is_noticed() {
        let status = |conditions: &[(&str, &str)]| {
            let condition = |(kind, status): &(&str, &str)| NodeCondition {
                type_: (*kind).into(),
                status: (*status).into(),
                ..Default::default()
            };
            NodeStatus { conditions: Some(conditions.iter().map(condition).collect()), ..Default::default() }
        };
        let own = [("Ready", "True"), ("DiskPressure", "False")];
        let cases: [(&[(&str, &str)], bool); 5] = [
            (&own, false),
            (&[("NetworkUnavailable", "True"), ("DiskPressure", "False"), ("Ready", "True")], false),
            (&[("Ready", "Unknown"), ("DiskPressure", "Unknown")], true),
            (&[("Ready", "True")], true),
            (&[], true),
        ];
        for (present, expected) in cases {
            assert_eq!(is_overruled(&status(present), &status(&own)), expected, "{present:?}");
        }
    }

    #[test]
    fn what_others_count_can_be_used() {
        let lists = |capacity: &str, allocatable: &str| NodeStatus {
            capacity: resources::tests::list(capacity),
            allocatable: resources::tests::list(allocatable),
            ..Default::default()
        };
        for (capacity, allocatable, expected) in [
            ("cpu=2", "cpu=1", json!({})),
            ("cpu=2,example.com/dongle=4", "cpu=1", json!({"example.com/dongle": "4"})),
            ("example.com/dongle=1k", "example.com/dongle=1000", json!({})),
            ("example.com/dongle=6", "example.com/dongle=4", json!({"example.com/dongle": "6"})),
            ("cpu=2", "cpu=1,example.com/dongle=4", json!({"example.com/dongle": null})),
            ("", "hugepages-64Ki=0", json!({})),
        ] {
            let changes = extended(&lists(capacity, allocatable));
            let own = NodeStatus { allocatable: resources::tests::list("cpu=1"), ..Default::default() };
            assert_eq!(json!(changes), expected, "{capacity} {allocatable}");
            let written = patch(&own, &changes, &BTreeSet::new());
            assert_eq!(written["allocatable"]["cpu"], "1");
            assert_eq!(written["allocatable"].as_object().unwrap().len(), 1 + changes.len());
        }
    }
}
