//! What happens to a pod that got no node: it says why, room is made for it if possible, and it waits.

use std::sync::Arc;
use std::time::Instant;

use api::cached::Pod;
use api::meta::Meta as _;
use client::{DeleteParams, Patch};
use jiff::Timestamp;
use serde_json::json;

use crate::cycle::Failure;
use crate::framework::Candidate;
use crate::metrics::Pending;
use crate::plugins::default_preemption;
use crate::pod::{self, PodInfo};
use crate::queue::{Ended, Queued};
use crate::scheduler::{POD_STATUS_PATCH, Scheduler, Try, Unplaced};

/// Notes of events are no longer than this.
const NOTE_LIMIT: usize = 1024;

impl Scheduler {
    pub(crate) async fn give_up(&self, attempt: Try, unplaced: Unplaced) {
        let Unplaced { mut failure, mut room } = unplaced;
        let call = self.metrics.pending_call(POD_STATUS_PATCH);
        let Try { queued, profile, began, .. } = attempt;
        let candidates = std::mem::take(&mut room.candidates);
        let choice = match crate::extender::preempt(&self.extenders, &queued.pod, candidates).await {
            Ok(candidates) => default_preemption::choose(candidates),
            Err(error) => {
                if let Failure::Unfit(diagnosis) = &mut failure {
                    diagnosis.post_filter = format!("preemption: {error}");
                }
                None
            }
        };
        let result = if failure.is_unschedulable() { "unschedulable" } else { "error" };
        self.metrics.attempted(result, &profile.name, began.elapsed());
        let ended = match &failure {
            Failure::Unfit(diagnosis) => Ended::Rejected(diagnosis.plugins()),
            // A new node is what every plug-in waits for.
            Failure::NoNodes => Ended::Rejected(["NodeName"].into()),
            Failure::Error(error) => {
                tracing::warn!(pod = queued.pod.key, error, "error scheduling pod; retrying");
                Ended::Failed
            }
        };
        // The pod as it is by now; it may be gone, or somebody else gave it a node.
        let current = self.pods.get(&queued.pod.key);
        let Some(current) = current.filter(|current| current.metadata.uid.as_deref() == Some(&*queued.pod.uid)) else {
            return self.queue.done(&queued.pod.uid);
        };
        if pod::node_name(&current).is_some() {
            return self.queue.done(&queued.pod.uid);
        }
        let info = self.pending(&current);
        self.nominate(&info, choice.as_ref(), room.gives_up);
        let message = failure.to_string();
        self.recorder(&profile).warning(&client::reference(&*current), "FailedScheduling", shorten(&message));
        let status = Written {
            reason: if failure.is_unschedulable() { "Unschedulable" } else { "SchedulerError" },
            message: &message,
            nominated: match &choice {
                Some(choice) => Some(&choice.node),
                None if room.gives_up => Some(""),
                None => None,
            },
        };
        match &choice {
            // Not tried again before the victims are told to leave: the room would still be taken.
            Some(choice) => {
                self.write_status(&current, status, call).await;
                let evicted = self.evict_all(&info, &profile.name, choice).await;
                // Without the room no event may come: it is tried again soon.
                self.wait_again(queued, info, if evicted { ended } else { Ended::Failed });
            }
            None => {
                self.wait_again(queued, info, ended);
                self.write_status(&current, status, call).await;
            }
        }
    }

    fn wait_again(&self, queued: Queued, info: Arc<PodInfo>, ended: Ended) {
        self.queue.failed(queued, info, ended);
    }

    /// Keeps room on the chosen node at once: the API will say so only later.
    fn nominate(&self, pod: &Arc<PodInfo>, choice: Option<&Candidate>, gives_up: bool) {
        let mut core = self.core.lock();
        match choice {
            Some(choice) => core.cluster.nominated.add(pod.clone(), &choice.node),
            None if gives_up => core.cluster.nominated.remove(&pod.uid),
            None => {}
        }
    }

    /// Writes condition and nomination, as far as they are not there already.
    async fn write_status(&self, pod: &Pod, written: Written<'_>, call: Pending) {
        let mut status = json!({});
        if !written.is_said(pod) {
            status["conditions"] = json!([{
                "type": "PodScheduled", "status": "False", "reason": written.reason, "message": written.message,
                "observedGeneration": pod.metadata.generation,
                "lastTransitionTime": transition_time(pod, "PodScheduled", "False", self.clock.now()),
            }]);
        }
        if let Some(nominated) = written.nominated.filter(|name| *name != pod::nominated_node(pod).unwrap_or_default())
        {
            status["nominatedNodeName"] = if nominated.is_empty() { json!(null) } else { nominated.into() };
        }
        if status == json!({}) {
            return;
        }
        let patch = Patch::strategic(json!({"metadata": {"uid": pod.metadata.uid}, "status": status}));
        let namespace = pod.metadata.namespace();
        match self.patch_status(namespace, pod.metadata.name(), &patch, call).await {
            Err(error) if !error.is_not_found() && !error.is_conflict() => {
                tracing::warn!(pod = pod::key(pod), %error, "condition not written");
            }
            _ => {}
        }
    }

    async fn patch_status(
        &self,
        namespace: &str,
        name: &str,
        patch: &Patch,
        call: Pending,
    ) -> Result<(), client::Error> {
        drop(call);
        let began = Instant::now();
        let patched = self.client.namespaced::<Pod>(namespace).patch_status(name, patch).await;
        self.metrics.called(POD_STATUS_PATCH, patched.is_ok(), began.elapsed());
        patched.map(drop)
    }

    /// Tells every victim to leave; false if one could not be told.
    async fn evict_all(&self, pod: &Arc<PodInfo>, scheduler: &str, choice: &Candidate) -> bool {
        let staying: Vec<_> = choice.victims.iter().filter(|victim| !victim.is_terminating).collect();
        if staying.is_empty() {
            return true;
        }
        self.metrics.observe("scheduler_preemption_victims", &[], choice.victims.len() as f64);
        // Pods of lower priority that the node was kept for had better look elsewhere.
        let outranked: Vec<Arc<PodInfo>> = {
            let core = self.core.lock();
            let nominated = core.cluster.nominated.on(&choice.node).iter();
            nominated.filter(|other| other.priority < pod.priority).cloned().collect()
        };
        for other in outranked {
            self.core.lock().cluster.nominated.remove(&other.uid);
            let patch =
                Patch::strategic(json!({"metadata": {"uid": *other.uid}, "status": {"nominatedNodeName": null}}));
            let call = self.metrics.pending_call(POD_STATUS_PATCH);
            if let Err(error) = self.patch_status(other.namespace(), other.name(), &patch, call).await {
                tracing::debug!(pod = other.key, %error, "nomination not cleared");
            }
        }
        let began = Instant::now();
        let evictions = staying.into_iter().map(|victim| self.evict(pod, scheduler, victim, &choice.node));
        let evicted = futures_util::future::join_all(evictions).await.into_iter().all(|evicted| evicted);
        let labels = [("result", if evicted { "success" } else { "error" })];
        self.metrics.time("scheduler_preemption_goroutines_duration_seconds", &labels, began.elapsed());
        self.metrics.count("scheduler_preemption_goroutines_execution_total", &labels);
        evicted
    }

    /// Takes a pod off its node in favour of another.
    async fn evict(&self, pod: &PodInfo, scheduler: &str, victim: &PodInfo, node: &str) -> bool {
        let recorder = self.recorders.iter().find(|(name, _)| name == scheduler).or(self.recorders.first());
        let preempted = crate::framework::Rejection::new("DefaultPreemption", "preempted");
        // A pod that still waits for its permit gives its node back without being deleted.
        let note = if self.permits.decide(&victim.uid, Err(preempted)) {
            " (in kube-scheduler memory)."
        } else {
            let pods = self.client.namespaced::<Pod>(victim.namespace());
            // As it is by now: who has to go may have been found out for an earlier pod.
            let current = self.pods.get(&victim.key).filter(|pod| pod.metadata.uid.as_deref() == Some(&*victim.uid));
            let current = current.as_ref().unwrap_or(&victim.pod);
            let message = format!("{scheduler}: preempting to accommodate a higher priority pod");
            let patch = Patch::strategic(json!({"metadata": {"uid": *victim.uid}, "status": {"conditions": [{
                "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": message,
                "observedGeneration": current.metadata.generation,
                "lastTransitionTime": transition_time(current, "DisruptionTarget", "True", self.clock.now()),
            }]}}));
            let evicted = async {
                pods.patch_status(victim.name(), &patch).await?;
                pods.delete(victim.name(), &DeleteParams::default().with_uid(victim.uid.to_string())).await
            };
            match evicted.await {
                Ok(()) => "",
                Err(error) if error.is_not_found() => return true,
                Err(error) => {
                    tracing::warn!(pod = victim.key, %error, "not preempted");
                    return false;
                }
            }
        };
        if let Some((_, recorder)) = recorder {
            let message = format!("Preempted by pod {} on node {node}{note}", pod.uid);
            recorder.normal(&client::reference(&*victim.pod), "Preempted", message);
        }
        true
    }
}

/// What a pod that got no node says of itself.
struct Written<'a> {
    reason: &'a str,
    message: &'a str,
    /// The node kept for it, empty to take that back, None to leave it.
    nominated: Option<&'a str>,
}

impl Written<'_> {
    fn is_said(&self, pod: &Pod) -> bool {
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.into_iter().any(|condition| {
            condition.type_ == "PodScheduled"
                && condition.status == "False"
                && condition.reason.as_deref() == Some(self.reason)
                && condition.message.as_deref() == Some(self.message)
        })
    }
}

/// When the condition came to have its status: now, unless it has it already.
fn transition_time(pod: &Pod, kind: &str, status: &str, now: Timestamp) -> String {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let held = conditions.into_iter().find(|condition| condition.type_ == kind && condition.status == status);
    let time = held.and_then(|condition| condition.last_transition_time.as_ref()).map(|time| time.0);
    api::time::rfc3339(time.unwrap_or(now))
}

fn shorten(message: &str) -> String {
    if message.len() <= NOTE_LIMIT {
        return message.to_owned();
    }
    let suffix = " ...";
    let end = (0..=NOTE_LIMIT - suffix.len()).rev().find(|at| message.is_char_boundary(*at)).unwrap_or(0);
    format!("{}{suffix}", &message[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_notes_are_cut() {
        assert_eq!(shorten("short"), "short");
        let cut = shorten(&"ä".repeat(1000));
        assert!(cut.len() <= NOTE_LIMIT && cut.ends_with("ä ..."));
    }
}
