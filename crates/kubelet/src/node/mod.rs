//! The Node object: registered at start, its status kept fresh, its lease renewed.
//!
//! Flow: machine facts (`machine`) + the runtime's conditions -> `status` (pure) -> PATCH nodes/status
//! when something changed, and every few minutes anyway; the Lease every ten seconds says "alive".

pub(crate) mod machine;
pub(crate) mod memory;
pub(crate) mod status;

use std::sync::Arc;
use std::time::Duration;

use client::{Client, Informer, Patch};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::config::Settings;
use crate::runtime::Runtime;
use crate::shutdown_state::Shutdown;
use crate::state::version;
use crate::volumes::{InUse, MANAGED};
use machine::Machine;

const LEASE_NAMESPACE: &str = "kube-node-lease";
/// Until the node is Ready for the first time, it looks this often.
const STARTING_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) struct NodeAgent {
    pub(crate) clock: client::Clock,
    pub(crate) client: Client,
    pub(crate) settings: Settings,
    pub(crate) runtime: Runtime,
    pub(crate) machine: Machine,
    /// The port the server really listens on.
    pub(crate) port: u16,
    /// Pressure the eviction manager sees: memory, disk, pids.
    pub(crate) pressure: Arc<Mutex<crate::thresholds::Pressure>>,
    pub(crate) shutdown: Arc<Shutdown>,
    pub(crate) changed: Arc<Notify>,
    pub(crate) in_use: Arc<InUse>,
    pub(crate) recorder: client::EventRecorder,
    /// What the API has of this node.
    pub(crate) own_node: Informer<Node>,
    /// Of the Node that was registered last, which owns the lease; empty if that is not ours to do.
    pub(crate) uid: Mutex<String>,
}

impl NodeAgent {
    /// Registers, then reports until stopped.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        if self.settings.register_node {
            let mut retry = client::backoff::Backoff::new(Duration::from_millis(100), Duration::from_secs(7));
            loop {
                match self.register().await {
                    Ok(()) => break,
                    Err(error) => {
                        tracing::warn!(node = self.settings.node_name, %error, "node not registered, will retry");
                        tokio::select! {
                            () = stop.cancelled() => return,
                            () = tokio::time::sleep(retry.next_delay()) => {}
                        }
                    }
                }
            }
        }
        tracing::info!(node = self.settings.node_name, "node registered");
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.report() => {}
            () = self.renew_lease() => {}
        }
    }

    /// Creates the Node, or takes over the one that is there.
    async fn register(&self) -> Result<(), client::Error> {
        let api = self.client.all::<Node>();
        let name = &self.settings.node_name;
        let status = self.status(&NodeStatus::default()).await;
        let node = Node {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                labels: Some(status::labels(&self.settings)),
                annotations: Some([(MANAGED.to_string(), "true".to_string())].into()),
                ..Default::default()
            },
            spec: Some(NodeSpec {
                taints: (!self.settings.register_with_taints.is_empty())
                    .then(|| self.settings.register_with_taints.clone()),
                pod_cidr: None,
                provider_id: self.settings.provider_id.clone(),
                ..Default::default()
            }),
            status: Some(status),
        };
        let made = match api.create(&node).await {
            Ok(made) => made,
            Err(error) if error.is_already_exists() => {
                let labels = Patch::strategic(json!({"metadata": {"labels": status::labels(&self.settings)}}));
                api.patch(name, &labels).await?
            }
            Err(error) => return Err(error),
        };
        *self.uid.lock() = made.metadata.uid.unwrap_or_default();
        Ok(())
    }

    async fn status(&self, old: &NodeStatus) -> NodeStatus {
        let runtime = self.runtime.status().await;
        let images = self.runtime.images().await;
        let pressure = *self.pressure.lock();
        status::node_status(&status::Facts {
            settings: &self.settings,
            machine: &self.machine,
            runtime: &runtime,
            runtime_version: format!("{}://{}", self.runtime.name, self.runtime.version),
            images: &images,
            port: self.port,
            pressure,
            is_shutting_down: self.shutdown.is_on(),
            volumes_in_use: self.in_use.to_tell(),
            old,
            now: Timestamp::from_second(self.clock.now().as_second()).unwrap_or_default(),
        })
    }

    async fn report(&self) {
        let api = self.client.all::<Node>();
        let name = &self.settings.node_name;
        let mut last_write: Option<tokio::time::Instant> = None;
        let mut reported: Option<NodeStatus> = None;
        let mut was_ready = false;
        // Whether the API has what was written last: an answer may have been lost.
        let mut is_certain = false;
        let mut written_version = 0;
        loop {
            let until = self.in_use.begun();
            let present = self.own_node.get(name);
            // A cache that does not know of the last write yet says nothing of what others wrote.
            let present_status = present.as_ref().filter(|node| version(&node.metadata) >= written_version);
            let present_status = present_status.and_then(|node| node.status.as_ref());
            let mut old = reported.clone().unwrap_or_default();
            if let Some(conditions) = present_status.and_then(|status| status.conditions.as_ref()) {
                old.conditions = Some(conditions.clone());
            }
            let new = self.status(&old).await;
            let is_ready = api::node::status_is_ready(&new);
            let is_deleted = was_ready && present.is_none();
            let is_overruled = present_status.is_some_and(|status| status::is_overruled(status, &new));
            let extended = present_status.map(status::extended).unwrap_or_default();
            let gone = present_status.map(|present| status::gone(present, &new)).unwrap_or_default();
            let due =
                is_deleted || last_write.is_none_or(|at| at.elapsed() >= self.settings.node_status_report_frequency);
            let used = new.volumes_in_use.clone().unwrap_or_default();
            let is_new = reported.as_ref().is_none_or(|reported| status::differs(reported, &new));
            if due || !is_certain || is_new || is_overruled || !extended.is_empty() {
                is_certain = false;
                let patch = Patch::strategic(json!({"status": status::patch(&new, &extended, &gone)}));
                match api.patch_status(name, &patch).await {
                    Ok(written) => {
                        written_version = version(&written.metadata);
                        last_write = Some(tokio::time::Instant::now());
                        if is_ready && !was_ready {
                            let message = format!("Node {name} status is now: NodeReady");
                            self.recorder.normal(&reference(name), "NodeReady", message);
                        }
                        was_ready = is_ready;
                        reported = Some(new);
                        is_certain = true;
                    }
                    Err(error) if error.is_not_found() && self.settings.register_node => {
                        if let Err(error) = self.register().await {
                            tracing::warn!(%error, "node not registered again");
                        }
                    }
                    Err(error) => tracing::warn!(%error, "node status not written, will retry"),
                }
            }
            let shown = reported.as_ref().filter(|_| is_certain).map(|reported| reported.volumes_in_use.as_deref());
            // Also where nothing had to be written: another pod has what the one before had.
            if shown.is_some_and(|shown| shown.unwrap_or_default() == used) {
                self.in_use.reported(&used, until);
            }
            let pause = if was_ready { self.settings.node_status_update_frequency } else { STARTING_INTERVAL };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.changed.notified() => {}
            }
        }
    }

    async fn renew_lease(&self) {
        let api = self.client.namespaced::<Lease>(LEASE_NAMESPACE);
        let name = &self.settings.node_name;
        let interval = self.settings.node_lease_duration / 4;
        let mut current: Option<Lease> = None;
        loop {
            let spec = |old: Option<LeaseSpec>| LeaseSpec {
                holder_identity: Some(name.clone()),
                lease_duration_seconds: Some(self.settings.node_lease_duration.as_secs() as i32),
                renew_time: Some(MicroTime(self.clock.now())),
                ..old.unwrap_or_default()
            };
            let result = match current.take() {
                Some(mut lease) => {
                    lease.spec = Some(spec(lease.spec.take()));
                    api.update(&lease).await
                }
                None => match api.get_opt(name).await {
                    Ok(Some(mut lease)) => {
                        lease.spec = Some(spec(lease.spec.take()));
                        api.update(&lease).await
                    }
                    Ok(None) => {
                        let uid = self.uid.lock().clone();
                        let owner = OwnerReference {
                            api_version: "v1".into(),
                            kind: "Node".into(),
                            name: name.clone(),
                            uid: uid.clone(),
                            ..Default::default()
                        };
                        api.create(&Lease {
                            metadata: ObjectMeta {
                                name: Some(name.clone()),
                                namespace: Some(LEASE_NAMESPACE.into()),
                                owner_references: (!uid.is_empty()).then(|| vec![owner]),
                                ..Default::default()
                            },
                            spec: Some(spec(None)),
                        })
                        .await
                    }
                    Err(error) => Err(error),
                },
            };
            let pause = match result {
                Ok(lease) => {
                    current = Some(lease);
                    interval
                }
                Err(error) => {
                    tracing::warn!(%error, "node lease not renewed, will retry");
                    Duration::from_secs(1)
                }
            };
            tokio::time::sleep(pause).await;
        }
    }
}

/// The node as events name it: as upstream's, by its name also where a uid belongs.
pub(crate) fn reference(name: &str) -> k8s_openapi::api::core::v1::ObjectReference {
    client::reference(&Node {
        metadata: ObjectMeta { name: Some(name.into()), uid: Some(name.into()), ..Default::default() },
        ..Default::default()
    })
}
