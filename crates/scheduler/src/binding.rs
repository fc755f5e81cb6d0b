//! The binding cycle: a pod with a node waits for its permit, is bound, and says so; or gives everything back.

use std::time::Instant;

use client::metrics::panics;
use trace::{Stage, Work};

use crate::cycle::Failure;
use crate::framework::{Diagnosis, Event, Permit, Placement, Point, SUCCESS};
use crate::metrics::Pending;
use crate::scheduler::{ACTOR, POD_BINDING, Scheduler, Try, release, traced_name};

impl Scheduler {
    /// Brings a pod to the node it was given. Whatever fails gives the node back, and the pod is tried again.
    pub(crate) async fn bind(&self, mut attempt: Try, placement: Placement, permit: Permit, call: Pending) {
        self.metrics.add("scheduler_goroutines", &[("operation", "binding")], 1.0);
        let work = Work::caused(&attempt.context, Stage::Bind, ACTOR, traced_name(&placement.pod));
        let binding = async {
            let bound = panics::catch_future("binding", self.try_bind(&attempt, &placement, permit, call)).await;
            bound.unwrap_or_else(|| Err(Failure::Error("the binding cycle panicked".into())))
        };
        let bound = work.with_detail(&placement.node).result(binding).await;
        self.metrics.add("scheduler_goroutines", &[("operation", "binding")], -1.0);
        let (pod, profile) = (&placement.pod, &attempt.profile);
        let Err(failure) = bound else {
            self.queue.done(&pod.uid);
            let message = format!("Successfully assigned {} to {}", pod.key, placement.node);
            self.recorder(profile).normal(&client::reference(&*pod.pod), "Scheduled", message);
            let began = Instant::now();
            for plugin in profile.at(Point::PostBind) {
                let asked = Instant::now();
                plugin.post_bind(&placement);
                self.metrics.plugin_ran(plugin.name(), Point::PostBind.name(), SUCCESS, asked.elapsed());
            }
            self.metrics.ran(Point::PostBind.name(), profile, SUCCESS, began.elapsed());
            return self.note_success(&attempt);
        };
        release(&mut self.core.lock().cluster, &self.metrics, &attempt, &placement);
        // What the pod held is free again, for others as well. A pod that was rejected must not be woken by itself.
        let freed = Event::PodDeleted(pod.clone());
        let is_rejected = failure.is_unschedulable();
        if !is_rejected {
            self.queue.happened(&freed);
        }
        attempt.queued.context = attempt.context.clone().waiting();
        self.give_up(attempt, failure.into()).await;
        if is_rejected {
            self.queue.happened(&freed);
        }
    }

    async fn try_bind(
        &self,
        attempt: &Try,
        placement: &Placement,
        permit: Permit,
        call: Pending,
    ) -> Result<(), Failure> {
        if let Permit::Wait(time) = permit {
            let began = Instant::now();
            let verdict = self.permits.wait(&placement.pod.uid, time).await;
            let result = if verdict.is_ok() { "Success" } else { "Unschedulable" };
            self.metrics.time("scheduler_permit_wait_duration_seconds", &[("result", result)], began.elapsed());
            verdict.map_err(|rejection| {
                let mut diagnosis = Diagnosis { nodes: 1, ..Diagnosis::default() };
                if let Some(node) = self.core.lock().cluster.node(&placement.node) {
                    diagnosis.add(node, &rejection);
                }
                Failure::Unfit(Box::new(diagnosis))
            })?;
        }
        let began = Instant::now();
        for plugin in attempt.profile.at(Point::PreBind) {
            let asked = Instant::now();
            let prepared = plugin.pre_bind(placement).await;
            self.metrics.plugin_ran(plugin.name(), Point::PreBind.name(), status(&prepared), asked.elapsed());
            prepared.map_err(|error| Failure::Error(format!("running PreBind plugin {:?}: {error}", plugin.name())))?;
        }
        self.metrics.ran(Point::PreBind.name(), &attempt.profile, SUCCESS, began.elapsed());
        drop(call);
        let binder = self.extenders.iter().find(|extender| extender.binds() && extender.is_interested(&placement.pod));
        if let Some(extender) = binder {
            return extender.bind(placement).await.map_err(|error| Failure::Error(error.to_string()));
        }
        for plugin in attempt.profile.at(Point::Bind) {
            if let Some(binding) = plugin.bind(placement) {
                let began = Instant::now();
                let bound = binding.await;
                let time = began.elapsed();
                self.metrics.plugin_ran(plugin.name(), Point::Bind.name(), status(&bound), time);
                self.metrics.ran(Point::Bind.name(), &attempt.profile, status(&bound), time);
                self.metrics.called(POD_BINDING, bound.is_ok(), time);
                return bound
                    .map_err(|error| Failure::Error(format!("running Bind plugin {:?}: {error}", plugin.name())));
            }
        }
        Err(Failure::Error("no bind plugin takes the pod".into()))
    }

    fn note_success(&self, attempt: &Try) {
        let queued = &attempt.queued;
        self.metrics.attempted("scheduled", &attempt.profile.name, attempt.began.elapsed());
        self.metrics.observe("scheduler_pod_scheduling_attempts", &[], queued.attempts.into());
        let attempts = if queued.attempts >= 15 { "15+".into() } else { queued.attempts.to_string() };
        let time = queued.since.elapsed();
        self.metrics.time("scheduler_pod_scheduling_sli_duration_seconds", &[("attempts", &attempts)], time);
        if queued.is_leftover {
            self.metrics.count("scheduler_pod_scheduled_after_flush_total", &[]);
        }
    }
}

fn status<T, E>(result: &Result<T, E>) -> &'static str {
    if result.is_ok() { SUCCESS } else { "Error" }
}
