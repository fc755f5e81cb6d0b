//! What the autoscaler counts, under upstream's names.

use std::time::Duration;

use client::Informer;
use client::metrics::{Metrics, exponential};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;

static BOUNDS: [f64; 15] = exponential(0.001, 2.0);

const DESIRED: &str = "horizontal_pod_autoscaler_controller_desired_replicas";

/// Whose fault it is that something failed: what the autoscaler asks for is wrong, or it was not to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Spec,
    Internal,
}

impl Fault {
    fn label(fault: Option<Self>) -> &'static str {
        match fault {
            None => "none",
            Some(Self::Spec) => "spec",
            Some(Self::Internal) => "internal",
        }
    }
}

#[derive(Clone)]
pub(super) struct Monitor(Metrics);

impl Monitor {
    pub(super) fn new(metrics: &Metrics, scalers: &Informer<HorizontalPodAutoscaler>) -> Self {
        let (name, help) =
            ("horizontal_pod_autoscaler_controller_num_horizontal_pod_autoscalers", "Number of autoscalers");
        let (count, scalers) = (metrics.gauge(name, help, &[]), scalers.clone());
        metrics.on_render(move || count.set(scalers.list().len() as f64));
        Self(metrics.clone())
    }

    /// An autoscaler was looked at, and perhaps resized its target.
    pub(super) fn reconciled(&self, sizes: Option<(i32, i32)>, fault: Option<Fault>, time: Duration) {
        let labels = [("action", action(sizes)), ("error", Fault::label(fault))];
        self.observe(
            [
                ("horizontal_pod_autoscaler_controller_reconciliations_total", "Looks at autoscalers"),
                (
                    "horizontal_pod_autoscaler_controller_reconciliation_duration_seconds",
                    "How long a look at an autoscaler takes",
                ),
            ],
            &labels,
            time,
        );
    }

    /// A metric was asked what it makes of the present size.
    pub(super) fn computed(&self, kind: &str, sizes: Option<(i32, i32)>, fault: Option<Fault>, time: Duration) {
        let labels = [("action", action(sizes)), ("error", Fault::label(fault)), ("metric_type", kind)];
        self.observe(
            [
                ("horizontal_pod_autoscaler_controller_metric_computation_total", "Metrics that were asked for a size"),
                (
                    "horizontal_pod_autoscaler_controller_metric_computation_duration_seconds",
                    "How long it takes to ask a metric for a size",
                ),
            ],
            &labels,
            time,
        );
    }

    fn observe(&self, names: [(&'static str, &'static str); 2], labels: &[(&str, &str)], time: Duration) {
        let [(count, count_help), (duration, duration_help)] = names;
        self.0.counter(count, count_help, labels).inc();
        self.0.histogram(duration, duration_help, &BOUNDS, labels).observe_duration(time);
    }

    pub(super) fn desires(&self, namespace: &str, name: &str, replicas: i32) {
        let labels = [("namespace", namespace), ("hpa_name", name)];
        self.0.gauge(DESIRED, "Size that an autoscaler wants", &labels).set(f64::from(replicas));
    }

    pub(super) fn forget(&self, key: &str) {
        let (namespace, name) = key.split_once('/').unwrap_or_default();
        self.0.forget(DESIRED, &[("namespace", namespace), ("hpa_name", name)]);
    }
}

/// From one size to another.
fn action(sizes: Option<(i32, i32)>) -> &'static str {
    match sizes {
        Some((from, to)) if to > from => "scale_up",
        Some((from, to)) if to < from => "scale_down",
        _ => "none",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn series_have_upstreams_names_and_labels() {
        let handler: client::Handler = Arc::new(|_| Box::pin(std::future::pending()));
        let client = client::Client::in_process(handler, api::UserInfo::default());
        let scalers = client::InformerFactory::new(client).informer::<HorizontalPodAutoscaler>();
        let metrics = Metrics::new();
        let monitor = Monitor::new(&metrics, &scalers);
        monitor.reconciled(Some((1, 3)), None, Duration::from_millis(3));
        monitor.reconciled(None, Some(Fault::Spec), Duration::from_millis(3));
        monitor.computed("Resource", Some((3, 1)), None, Duration::from_millis(3));
        monitor.computed("External", None, Some(Fault::Internal), Duration::from_millis(3));
        monitor.desires("default", "web", 3);
        let text = metrics.render();
        let prefix = "horizontal_pod_autoscaler_controller_";
        for line in [
            r#"reconciliations_total{action="scale_up",error="none"} 1"#,
            r#"reconciliations_total{action="none",error="spec"} 1"#,
            r#"reconciliation_duration_seconds_count{action="scale_up",error="none"} 1"#,
            r#"metric_computation_total{action="scale_down",error="none",metric_type="Resource"} 1"#,
            r#"metric_computation_total{action="none",error="internal",metric_type="External"} 1"#,
            r#"metric_computation_duration_seconds_count{action="scale_down",error="none",metric_type="Resource"} 1"#,
            "num_horizontal_pod_autoscalers 0",
        ] {
            assert!(text.contains(&format!("{prefix}{line}\n")), "{line}: {text}");
        }
        assert!(text.contains(&format!("# HELP {prefix}reconciliations_total [BETA] ")), "{text}");
        assert!(text.contains(&format!("{DESIRED}{{")), "{text}");
        monitor.forget("default/web");
        assert!(!metrics.render().contains(&format!("{DESIRED}{{")));
    }
}
