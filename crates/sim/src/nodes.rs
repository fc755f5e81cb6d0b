//! Nodes: registered once, kept alive by their leases.

use std::net::Ipv4Addr;
use std::time::Duration;

use client::{Client, Error, Patch, Written};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus, NodeSystemInfo};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference, Time};
use serde_json::json;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::Config;

/// Requests under way at a time.
const PARALLEL: usize = 32;
const LEASES: &str = "kube-node-lease";
/// Leases are renewed in groups this far apart, so that many nodes are an even load.
const RENEW_INTERVAL: Duration = Duration::from_millis(100);

/// A node as far as its lease needs it.
#[derive(Clone)]
pub(crate) struct Registered {
    name: String,
    uid: String,
}

/// Makes the nodes, or takes over those that are there.
pub(crate) async fn register(config: &Config) -> Result<Vec<Registered>, Error> {
    stream::iter(0..config.nodes)
        .map(|index| register_one(config, index))
        .buffer_unordered(PARALLEL)
        .try_collect()
        .await
}

async fn register_one(config: &Config, index: usize) -> Result<Registered, Error> {
    let api = config.client.all::<Node>();
    let node = node(config, index, Timestamp::now());
    let name = node.metadata.name.clone().unwrap_or_default();
    let node = match api.create(&node).await {
        Err(error) if error.is_already_exists() => {
            api.patch_status(&name, &Patch::strategic(json!({ "status": node.status }))).await?
        }
        created => created?,
    };
    let registered = Registered { name, uid: node.metadata.uid.unwrap_or_default() };
    renew_one(&config.client, &registered, config.lease_duration).await?;
    Ok(registered)
}

/// Renews every lease four times as often as it would run out.
pub(crate) async fn renew(config: &Config, nodes: Vec<Registered>, stop: CancellationToken) {
    if nodes.is_empty() {
        return stop.cancelled().await;
    }
    let period = config.lease_duration / 4;
    let turn = (period / u32::try_from(nodes.len()).unwrap_or(u32::MAX)).max(RENEW_INTERVAL);
    let turns = usize::try_from(period.as_nanos() / turn.as_nanos().max(1)).unwrap_or(usize::MAX).max(1);
    let mut ticks = tokio::time::interval(turn);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for number in (0..turns).cycle() {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let group = &nodes[nodes.len() * number / turns..nodes.len() * (number + 1) / turns];
        let renewals = stream::iter(group).for_each_concurrent(PARALLEL, |node| async move {
            if let Err(error) = renew_one(&config.client, node, config.lease_duration).await {
                tracing::warn!(node = node.name, %error, "lease not renewed");
            }
        });
        tokio::select! {
            () = stop.cancelled() => return,
            () = renewals => {}
        }
    }
}

async fn renew_one(client: &Client, node: &Registered, duration: Duration) -> Result<(), Error> {
    let api = client.namespaced::<Lease>(LEASES);
    let now = MicroTime(Timestamp::now());
    let patch = Patch::merge(json!({ "spec": { "renewTime": now } }));
    match api.patch_path::<Written>(&node.name, None, &patch).await {
        Err(error) if error.is_not_found() => {}
        renewed => return renewed.map(drop),
    }
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node.name.clone(),
        uid: node.uid.clone(),
        ..OwnerReference::default()
    };
    let lease = Lease {
        metadata: ObjectMeta {
            name: Some(node.name.clone()),
            namespace: Some(LEASES.into()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(node.name.clone()),
            lease_duration_seconds: i32::try_from(duration.as_secs()).ok(),
            renew_time: Some(now),
            ..LeaseSpec::default()
        }),
    };
    match api.create(&lease).await {
        Err(error) if error.is_already_exists() => Ok(()),
        created => created.map(drop),
    }
}

fn node(config: &Config, index: usize, now: Timestamp) -> Node {
    let name = format!("{}{index}", config.name_prefix);
    let mut labels = config.labels.clone();
    for (key, value) in
        [("kubernetes.io/hostname", name.as_str()), ("kubernetes.io/os", "linux"), ("kubernetes.io/arch", "amd64")]
    {
        labels.insert(key.into(), value.into());
    }
    if config.zones > 0 {
        labels.insert("topology.kubernetes.io/zone".into(), format!("zone-{}", index % config.zones));
    }
    let conditions = [
        ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ];
    let condition = |(kind, status, reason, message): (&str, &str, &str, &str)| NodeCondition {
        type_: kind.into(),
        status: status.into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
        last_heartbeat_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    };
    let address = address(config.first_node_address, index).to_string();
    let addresses = [("InternalIP", address), ("Hostname", name.clone())];
    Node {
        metadata: ObjectMeta { name: Some(name.clone()), labels: Some(labels), ..ObjectMeta::default() },
        spec: Some(NodeSpec {
            taints: (!config.taints.is_empty()).then(|| config.taints.clone()),
            provider_id: Some(format!("hollow://{name}")),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            capacity: Some(config.capacity.clone()),
            allocatable: Some(config.capacity.clone()),
            conditions: Some(conditions.map(condition).into()),
            addresses: Some(addresses.map(|(kind, address)| NodeAddress { type_: kind.into(), address }).into()),
            node_info: Some(NodeSystemInfo {
                machine_id: format!("{index:032x}"),
                system_uuid: format!("{index:032x}"),
                kernel_version: "hollow".into(),
                os_image: "hollow".into(),
                operating_system: "linux".into(),
                architecture: "amd64".into(),
                container_runtime_version: "hollow://1".into(),
                kubelet_version: "v1.36.0".into(),
                ..NodeSystemInfo::default()
            }),
            ..NodeStatus::default()
        }),
    }
}

/// The address of node `index`.
pub(crate) fn address(first: Ipv4Addr, index: usize) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(first).wrapping_add(u32::try_from(index).unwrap_or_default()))
}
