//! Graceful node shutdown: the pods of a machine that is about to go down end in good order, the important ones last.
//!
//! Flow: logind announces a shutdown on D-Bus (`watch`), which we hold up -> the node shows NotReady and takes in no pods ->
//! groups by priority (`groups`, pure) end one after the other -> the machine may go down. A shutdown that is called off
//! makes the node Ready again.

mod groups;
mod watch;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::config::Settings;
use crate::kubelet::Kubelet;
use crate::status::Ended;
use crate::worker::Workers;
use crate::{node, state};

pub use groups::Period;
pub(crate) use groups::of_two;

const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
/// Events of logind in flight; they come one at a time.
const EVENTS: usize = 4;

/// What others need to know: whether a shutdown is under way, and how the last one went.
pub(crate) struct Shutdown {
    is_on: AtomicBool,
    last: Mutex<Times>,
    path: PathBuf,
}

/// `graceful_node_shutdown_state`: when pods began to be ended, and when that was done.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Times {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) start_time: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) end_time: Option<Timestamp>,
}

impl Shutdown {
    pub(crate) fn open(root_dir: &Path) -> Self {
        let path = root_dir.join("graceful_node_shutdown_state");
        let last = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| error.to_string()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Times::default()),
            Err(error) => Err(error.to_string()),
        };
        let last = last.unwrap_or_else(|error| {
            // Only metrics show it.
            tracing::warn!(path = %path.display(), error, "times of the last shutdown not read");
            Times::default()
        });
        Shutdown { is_on: AtomicBool::new(false), last: Mutex::new(last), path }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// When pods were last ended for a shutdown.
    pub(crate) fn last(&self) -> Times {
        self.last.lock().clone()
    }

    fn note(&self, times: Times) {
        let written = serde_json::to_vec(&times).map_err(std::io::Error::from);
        if let Err(error) = written.and_then(|bytes| std::fs::write(&self.path, bytes)) {
            tracing::warn!(path = %self.path.display(), %error, "times of the shutdown not kept");
        }
        *self.last.lock() = times;
    }
}

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
        self.kubelet.shutdown.is_on.store(is_on, Ordering::Relaxed);
        self.kubelet.recorder.normal(
            &node::reference(&self.kubelet.settings.node_name),
            "NodeShutdown",
            message.to_string(),
        );
        self.changed.notify_one();
    }

    async fn end_pods(&self, periods: &[Period]) {
        let shutdown = &self.kubelet.shutdown;
        let start_time = Some(Timestamp::now());
        shutdown.note(Times { start_time, end_time: None });
        for (period, pods) in groups::group(periods, self.workers.active_pods()) {
            let mut ended = Vec::new();
            for pod in &pods {
                let uid = state::uid(pod);
                let own = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
                let grace = own.map_or(period.seconds, |own| own.min(period.seconds));
                tracing::info!(pod = state::full_name(pod), grace, "ending a pod for the shutdown");
                ended.extend(self.workers.ended(uid));
                let why = Ended {
                    reason: "Terminated".into(),
                    message: MESSAGE.into(),
                    disruption: Some("TerminationByKubelet"),
                };
                self.workers.end(uid, why, Some(grace));
            }
            let all = futures_util::future::join_all(ended.iter().map(CancellationToken::cancelled));
            let time = Duration::from_secs(period.seconds.max(0) as u64);
            if tokio::time::timeout(time, all).await.is_err() {
                tracing::warn!(priority = period.priority, "pods have used up the time of their priority");
            }
        }
        shutdown.note(Times { start_time, end_time: Some(Timestamp::now()) });
    }
}
