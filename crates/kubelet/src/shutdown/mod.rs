//! Graceful node shutdown: the pods of a machine that is about to go down end in good order, the important ones last.
//!
//! Flow: logind announces a shutdown on D-Bus (`watch`), which we hold up -> the node shows NotReady and takes in no pods ->
//! groups by priority (`groups`, pure) end one after the other -> the machine may go down. A shutdown that is called off
//! makes the node Ready again.

mod groups;
mod watch;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::config::{Settings, ShutdownPeriod};
use crate::kubelet::Kubelet;
use crate::shutdown_state::Times;
use crate::status::Ended;
use crate::worker::Workers;
use crate::{node, state};

const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
/// Events of logind in flight; they come one at a time.
const EVENTS: usize = 4;

/// Waits for shutdowns and ends pods for them.
pub(crate) struct Manager {
    pub(crate) kubelet: Arc<Kubelet>,
    pub(crate) workers: Arc<Workers>,
    /// The node's conditions are to be shown now.
    pub(crate) changed: Arc<Notify>,
}

/// What the thread that listens to logind tells.
enum Event {
    /// We hold up shutdowns from now on, as long as this is open.
    Holding(OwnedFd),
    Begins,
    CalledOff,
}

impl Manager {
    /// Runs until stopped; returns at once when no grace period is configured.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let settings: &Settings = &self.kubelet.settings;
        let periods = settings.shutdown_periods.clone();
        if periods.is_empty() {
            return;
        }
        let wanted = Duration::from_secs(periods.iter().map(|period| period.seconds.max(0) as u64).sum());
        let (sender, mut events) = mpsc::channel(EVENTS);
        let watching = watch::run(settings.system_bus.clone(), wanted, sender, stop.clone());
        let acting = async {
            let mut held: Option<OwnedFd> = None;
            while let Some(event) = events.recv().await {
                match event {
                    Event::Holding(descriptor) => held = Some(descriptor),
                    Event::Begins => {
                        self.show(true, "Shutdown manager detected shutdown event");
                        self.end_pods(&periods).await;
                        tracing::info!("all pods had their time, the node may shut down");
                        held = None;
                    }
                    Event::CalledOff => self.show(false, "Shutdown manager detected shutdown cancellation"),
                }
            }
            drop(held);
        };
        let acting = async {
            tokio::select! {
                () = acting => {}
                () = stop.cancelled() => {}
            }
        };
        tokio::join!(watching, acting);
    }

    fn show(&self, is_on: bool, message: &str) {
        tracing::info!(message);
        self.kubelet.shutdown.set(is_on);
        self.kubelet.recorder.normal(
            &node::reference(&self.kubelet.settings.node_name),
            "NodeShutdown",
            message.to_string(),
        );
        self.changed.notify_one();
    }

    async fn end_pods(&self, periods: &[ShutdownPeriod]) {
        let shutdown = &self.kubelet.shutdown;
        let start_time = Some(self.kubelet.clock.now());
        shutdown.note(Times { start_time, end_time: None });
        for (period, pods) in groups::group(periods, self.workers.active_pods()) {
            let mut ended = Vec::new();
            for pod in &pods {
                let uid = state::uid(pod);
                let own = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
                let grace = own.map_or(period.seconds, |own| own.min(period.seconds));
                tracing::info!(pod = state::full_name(pod), grace, "ending a pod for the shutdown");
                ended.extend(self.workers.ended(uid));
                let why =
                    Ended { reason: "Terminated".into(), message: MESSAGE.into(), disruption: Some(MESSAGE.into()) };
                self.workers.end(uid, why, Some(grace));
            }
            let all = futures_util::future::join_all(ended.iter().map(CancellationToken::cancelled));
            let time = Duration::from_secs(period.seconds.max(0) as u64);
            if tokio::time::timeout(time, all).await.is_err() {
                tracing::warn!(priority = period.priority, "pods have used up the time of their priority");
            }
        }
        shutdown.note(Times { start_time, end_time: Some(self.kubelet.clock.now()) });
    }
}
