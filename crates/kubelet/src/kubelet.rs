//! Everything one node's workers share.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use client::{Client, Clock, EventRecorder, Informer};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, PodStatus, Service};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::backoff::Backoff;
use crate::cgroups::{CgroupChange, Cgroups};
use crate::config::Settings;
use crate::cpu_manager::CpuManager;
use crate::huge_pages::HugePages;
use crate::images::Images;
use crate::pass::Memory;
use crate::probes::Prober;
use crate::resize;
use crate::resources::ResourceList;
use crate::runtime::Runtime;
use crate::shutdown_state::Shutdown;
use crate::state::{self, PodState};
use crate::status::{self, Ended, Observed, pod_status};
use crate::status_writer::StatusWriter;
use crate::thresholds::Pressure;
use crate::volumes::Volumes;

pub(crate) struct Kubelet {
    pub(crate) settings: Settings,
    pub(crate) client: Client,
    pub(crate) runtime: Runtime,
    pub(crate) images: Images,
    pub(crate) volumes: Volumes,
    pub(crate) cgroups: Option<Cgroups>,
    pub(crate) cpu_manager: Option<CpuManager>,
    pub(crate) prober: Arc<Prober>,
    pub(crate) status: Arc<StatusWriter>,
    pub(crate) recorder: EventRecorder,
    pub(crate) restarts: Backoff,
    pub(crate) services: Informer<Service>,
    pub(crate) node: Informer<Node>,
    pub(crate) allocatable: ResourceList,
    /// The pods that were taken in, by UID, as they were granted.
    pub(crate) admitted: Mutex<HashMap<String, Arc<Pod>>>,
    /// Whose wish for more waits for room. Taken after `admitted`.
    pub(crate) deferred: Mutex<resize::Deferred>,
    /// Counts whenever a pod leaves room for others.
    pub(crate) freed: watch::Sender<u64>,
    /// What the eviction manager sees running short.
    pub(crate) pressure: Arc<Mutex<Pressure>>,
    pub(crate) shutdown: Arc<Shutdown>,
    pub(crate) node_memory: i64,
    pub(crate) huge_pages: HugePages,
    pub(crate) host_ips: Vec<String>,
    pub(crate) dns: crate::dns::Node,
    pub(crate) clock: Clock,
}

impl Kubelet {
    pub(crate) fn pod_dir(&self, pod: &Pod) -> PathBuf {
        self.volumes.pod_dir(state::uid(pod))
    }

    pub(crate) fn log_dir(&self, pod: &Pod) -> PathBuf {
        self.settings.pod_logs_dir.join(state::log_dir_name(pod))
    }

    /// Changes the cgroup of a pod, where pods have one; `change` says what it came to.
    pub(crate) async fn change_cgroup<F>(&self, change: F) -> io::Result<()>
    where
        F: FnOnce(&Cgroups) -> io::Result<CgroupChange> + Send + 'static,
    {
        let Some(cgroups) = self.cgroups.clone() else { return Ok(()) };
        let began = std::time::Instant::now();
        let changed = tokio::task::spawn_blocking(move || change(&cgroups)).await.map_err(io::Error::other)??;
        self.runtime.metrics.cgroup_changed(changed.name(), began.elapsed());
        Ok(())
    }

    /// Gives Burstable pods together the CPU that they request now. What fails is tried again at the next pass of any pod.
    pub(crate) async fn update_burstable(&self) {
        if let Err(error) = self.change_cgroup(Cgroups::update_burstable).await {
            tracing::warn!(%error, "CPU shares of Burstable pods not updated, will retry");
        }
    }

    /// Computes and hands over the status; returns it.
    pub(crate) fn report_status(
        &self,
        pod: &Pod,
        state: &PodState,
        memory: &Memory,
        is_terminating: bool,
        ended: Option<&Ended>,
    ) -> PodStatus {
        // The newest status of ours may not have come back through the watch yet.
        let mut current = pod.clone();
        if let Some(latest) = self.status.latest(state::uid(pod)) {
            let foreign = foreign_conditions(pod);
            current.status = Some(latest);
            if let Some(conditions) = current.status.as_mut().and_then(|status| status.conditions.as_mut()) {
                conditions.retain(|condition| status::is_ours(&condition.type_));
                conditions.extend(foreign);
            }
        }
        let status = pod_status(
            &current,
            &Observed {
                state,
                waiting: &memory.waiting,
                readiness: self.prober.as_ref(),
                resize: &memory.resize,
                host_ips: &self.host_ips,
                is_terminating,
                ended,
                runtime_name: &self.runtime.name,
                recursive_read_only: self.runtime.recursive_read_only,
                now: Timestamp::from_second(self.clock.now().as_second()).unwrap_or_default(),
            },
        );
        let mut context = trace::current();
        context.merge(self.prober.take_causes(state::uid(pod)));
        if api::pod::status_is_ready(&status) && !current.status.as_ref().is_some_and(api::pod::status_is_ready) {
            context.instant(trace::Stage::Ready, state::ACTOR, state::traced_name(pod));
        }
        context.run_now(|| self.status.set(state::uid(pod), memory.api_pod(pod), status.clone()));
        status
    }
}

/// Conditions that others write: the API's view of them is the newest.
fn foreign_conditions(pod: &Pod) -> Vec<k8s_openapi::api::core::v1::PodCondition> {
    pod.status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .filter(|condition| !status::is_ours(&condition.type_))
        .cloned()
        .collect()
}
