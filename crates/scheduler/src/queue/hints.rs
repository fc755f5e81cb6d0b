//! Asks the plug-ins that rejected a pod whether an event may help it, and measures how long their answers take.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use client::metrics::Histogram;
use parking_lot::Mutex;

use super::Advice;
use crate::framework::Event;
use crate::metrics::Metrics;
use crate::pod::PodInfo;

pub(super) struct Hints {
    advice: Arc<dyn Advice>,
    metrics: Metrics,
    /// By plug-in, event and answer: looked up for every waiting pod and event.
    times: Mutex<HashMap<(&'static str, &'static str, bool), Histogram>>,
}

impl Hints {
    pub(super) fn new(advice: Arc<dyn Advice>, metrics: Metrics) -> Hints {
        Hints { advice, metrics, times: Mutex::default() }
    }

    /// A pod that nobody rejected may be helped by anything.
    pub(super) fn may_help(&self, pod: &PodInfo, plugins: &BTreeSet<&'static str>, event: &Event) -> bool {
        plugins.is_empty() || plugins.iter().any(|plugin| self.ask(pod, plugin, event))
    }

    fn ask(&self, pod: &PodInfo, plugin: &'static str, event: &Event) -> bool {
        let began = Instant::now();
        // What nobody here can answer for (an extender) is worth a try after anything.
        let Some(helps) = self.advice.may_help(pod, plugin, event) else { return true };
        let time = began.elapsed();
        let mut times = self.times.lock();
        let histogram = times.entry((plugin, event.label(), helps)).or_insert_with(|| {
            let hint = if helps { "Queue" } else { "QueueSkip" };
            let labels = [("plugin", plugin), ("event", event.label()), ("hint", hint)];
            self.metrics.histogram("scheduler_queueing_hint_execution_duration_seconds", &labels)
        });
        histogram.observe_duration(time);
        helps
    }
}
