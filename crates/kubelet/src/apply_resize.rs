//! Resizes carried out and told.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use crate::admit::Admission;
use crate::error::{CgroupError, MemoryError, MemoryInUse, ResizeError, SyncError};
use crate::kubelet::Kubelet;
use crate::pass::Memory;
use crate::resize::{Change, Progress, changes, summary, with_granted};
use crate::resources;
use crate::state::{self, PodState};
use crate::volumes::blocking;

impl Kubelet {
    /// The pod with the resources it may use, which may not be those that it wishes.
    pub(crate) fn granted(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        let admitted = self.admitted.lock();
        admitted.get(state::uid(pod)).map_or_else(|| pod.clone(), |before| with_granted(pod, before))
    }

    /// Tells what became of a wish.
    pub(crate) fn note_resize(&self, wish: &Pod, admission: Admission, progress: &mut Progress) {
        let reference = client::reference(wish);
        if let Some(wait) = admission.wait.as_ref().filter(|wait| progress.wait.as_ref() != Some(*wait)) {
            let what = format!("Pod resize {}", wait.reason);
            let message = summary(&what, wish, Some(&wait.message));
            self.recorder.warning(&reference, &format!("Resize{}", wait.reason), message);
        }
        progress.wait = admission.wait;
        if admission.is_resized {
            (progress.is_on, progress.error) = (true, None);
            self.recorder.normal(&reference, "ResizeStarted", summary("Pod resize started", wish, None));
        }
    }

    /// What running containers still lack of what is granted. The end of a resize is that neither they nor the pod's own
    /// cgroup lack anything.
    pub(crate) fn pending_changes(&self, pod: &Pod, state: &PodState, memory: &mut Memory) -> Vec<Change> {
        let latest = self.status.latest(state::uid(pod));
        let status = latest.as_ref().or(pod.status.as_ref());
        let progress = &mut memory.resize;
        progress.given.retain(|id, _| state.containers.iter().any(|container| &container.id == id));
        let changes = changes(pod, state, progress, status);
        let is_pending = !changes.is_empty() || progress.is_pod_pending(pod);
        if !is_pending && progress.is_on {
            progress.error = None;
            let message = summary("Pod resize completed", pod, None);
            self.recorder.normal(&client::reference(pod), "ResizeCompleted", message);
        }
        progress.is_on = is_pending;
        changes
    }

    /// Changes containers while they run; tells whether it could.
    pub(crate) async fn resize(&self, pod: &Pod, updates: &[Change], memory: &mut Memory) -> bool {
        let Err(error) = self.update_containers(pod, updates, &mut memory.resize).await else { return true };
        let error = error.to_string();
        if memory.resize.error.as_ref() != Some(&error) {
            let message = summary("Pod resize error", pod, Some(&error));
            self.recorder.warning(&client::reference(pod), "ResizeError", message);
        }
        memory.resize.error = Some(error);
        false
    }

    async fn update_containers(
        &self,
        pod: &Pod,
        updates: &[Change],
        progress: &mut Progress,
    ) -> Result<(), ResizeError> {
        let less = progress.less_pod_memory(pod);
        if less.is_some() || updates.iter().any(|change| change.less_memory.is_some()) {
            self.check_memory(pod, less, updates).await?;
        }
        for change in updates {
            self.runtime.update_container(&change.id, change.update.clone()).await?;
            tracing::info!(pod = state::full_name(pod), container = change.name, "resources changed in place");
            progress.given.insert(change.id.clone(), change.resources.clone());
        }
        Ok(())
    }

    /// Takes back the room that the pod's own cgroup kept while its containers changed.
    pub(crate) async fn settle_resize(&self, pod: &Arc<Pod>, progress: &mut Progress) -> Result<(), SyncError> {
        let owned = pod.clone();
        let settled = self.change_cgroup(move |cgroups| cgroups.resize_pod(&owned, false)).await;
        settled.map_err(CgroupError::Resize)?;
        progress.given_to_pod = Some(resources::for_pod(pod));
        Ok(())
    }

    /// Less memory than is in use would end a container. `less` is the pod's new limit, where that is a lower one.
    async fn check_memory(&self, pod: &Pod, less: Option<i64>, updates: &[Change]) -> Result<(), MemoryError> {
        let pod_usage = match (less, self.cgroups.clone()) {
            (Some(_), Some(cgroups)) => {
                let owned = pod.clone();
                Some(blocking(move || cgroups.memory_usage(&owned)).await)
            }
            _ => None,
        };
        let of_pod = less.zip(pod_usage).and_then(|(limit, usage)| match usage {
            Err(_) => Some(MemoryInUse::PodUnknown),
            Ok(usage) if usage >= limit as u64 => Some(MemoryInUse::Pod { limit, usage }),
            Ok(_) => None,
        });
        let stats = self.runtime.container_stats().await?;
        let usage = |id: &str| {
            let stats = stats.iter().find(|stats| stats.attributes.as_ref().is_some_and(|a| a.id == id))?;
            let memory = stats.memory.as_ref()?;
            Some(memory.usage_bytes.as_ref().or(memory.working_set_bytes.as_ref())?.value)
        };
        let of_containers = updates.iter().filter_map(|change| {
            let (limit, name) = (change.less_memory?, change.name.clone());
            match usage(&change.id) {
                None => Some(MemoryInUse::ContainerUnknown(name)),
                Some(usage) if usage >= limit as u64 => Some(MemoryInUse::Container { name, limit, usage }),
                Some(_) => None,
            }
        });
        let refusals: Vec<MemoryInUse> = of_pod.into_iter().chain(of_containers).collect();
        if refusals.is_empty() { Ok(()) } else { Err(MemoryError::InUse(refusals)) }
    }
}
