//! Metrics under upstream's names: how long programming takes, how far behind it is, and what was asked of us.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use client::metrics::{Counter, Gauge, Histogram, Metrics};

/// 1 ms, doubling 14 times.
const SYNC: &[f64] =
    &[0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384];
/// Fine where it should be, coarse up to the five minutes where upstream stops.
const PROGRAMMING: &[f64] = &[
    0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0, 90.0,
    120.0, 180.0, 240.0, 300.0,
];

/// Of one address family.
struct OfFamily {
    duration: Histogram,
    full: Histogram,
    partial: Histogram,
    last: Gauge,
    queued: Gauge,
    programming: Histogram,
    failures: Counter,
    without_local: [Gauge; 2],
}

pub(crate) struct ProxyMetrics {
    registry: Metrics,
    families: Vec<OfFamily>,
    service_changes: Counter,
    service_pending: Gauge,
    endpoint_changes: Counter,
    endpoint_pending: Gauge,
    conntrack_duration: Histogram,
    conntrack_deleted: Counter,
}

impl ProxyMetrics {
    /// `failures` is the mode's own name for what went wrong.
    pub(crate) fn new(families: &[&str], failures: &'static str) -> Self {
        let registry = Metrics::new().with_process(api::version::GIT).with_features(api::features::all());
        let of_family = |family: &&str| {
            let labels = [("ip_family", *family)];
            let histogram = |name, help, bounds| registry.histogram(name, help, bounds, &labels);
            let gauge = |name, help| registry.gauge(name, help, &labels);
            let without_local = ["internal", "external"].map(|policy| {
                let labels = [("ip_family", *family), ("traffic_policy", policy)];
                let help = "Number of services with a Local traffic policy and no endpoints";
                registry.gauge("kubeproxy_sync_proxy_rules_no_local_endpoints_total", help, &labels)
            });
            OfFamily {
                duration: histogram(
                    "kubeproxy_sync_proxy_rules_duration_seconds",
                    "SyncProxyRules latency in seconds",
                    SYNC,
                ),
                full: histogram(
                    "kubeproxy_sync_full_proxy_rules_duration_seconds",
                    "SyncProxyRules latency in seconds for full resyncs",
                    SYNC,
                ),
                partial: histogram(
                    "kubeproxy_sync_partial_proxy_rules_duration_seconds",
                    "SyncProxyRules latency in seconds for partial resyncs",
                    SYNC,
                ),
                last: gauge(
                    "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
                    "The last time proxy rules were successfully synced",
                ),
                queued: gauge(
                    "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
                    "The last time a sync of proxy rules was queued",
                ),
                programming: histogram(
                    "kubeproxy_network_programming_duration_seconds",
                    "In Cluster Network Programming Latency in seconds",
                    PROGRAMMING,
                ),
                failures: registry.counter(failures, "Cumulative failures to program rules", &labels),
                without_local,
            }
        };
        let families = families.iter().map(of_family).collect();
        let counter = |name, help| registry.counter(name, help, &[]);
        let gauge = |name, help| registry.gauge(name, help, &[]);
        let conntrack = [("ip_family", "IPv4")];
        Self {
            families,
            service_changes: counter(
                "kubeproxy_sync_proxy_rules_service_changes_total",
                "Cumulative proxy rules Service changes",
            ),
            service_pending: gauge(
                "kubeproxy_sync_proxy_rules_service_changes_pending",
                "Pending proxy rules Service changes",
            ),
            endpoint_changes: counter(
                "kubeproxy_sync_proxy_rules_endpoint_changes_total",
                "Cumulative proxy rules Endpoint changes",
            ),
            endpoint_pending: gauge(
                "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
                "Pending proxy rules Endpoint changes",
            ),
            conntrack_duration: registry.histogram(
                "kubeproxy_conntrack_reconciler_sync_duration_seconds",
                "ReconcileConntrackFlowsLatency latency in seconds",
                SYNC,
                &conntrack,
            ),
            conntrack_deleted: registry.counter(
                "kubeproxy_conntrack_reconciler_deleted_entries_total",
                "Cumulative conntrack flows deleted by conntrack reconciler",
                &conntrack,
            ),
            registry,
        }
    }

    pub(crate) fn registry(&self) -> &Metrics {
        &self.registry
    }

    pub(crate) fn render(&self) -> String {
        self.registry.render()
    }

    pub(crate) fn service_changed(&self) {
        self.service_changes.inc();
        self.service_pending.add(1.0);
        self.queued();
    }

    pub(crate) fn endpoints_changed(&self) {
        self.endpoint_changes.inc();
        self.endpoint_pending.add(1.0);
        self.queued();
    }

    fn queued(&self) {
        self.families.iter().for_each(|family| family.queued.set(now()));
    }

    /// Everything that had changed when the sync began is about to be programmed.
    pub(crate) fn taken(&self) {
        self.service_pending.set(0.0);
        self.endpoint_pending.set(0.0);
    }

    pub(crate) fn synced(&self, is_full: bool, took: Duration) {
        for family in &self.families {
            let kind = if is_full { &family.full } else { &family.partial };
            [&family.duration, kind].iter().for_each(|histogram| histogram.observe_duration(took));
            family.last.set(now());
        }
    }

    pub(crate) fn failed(&self) {
        self.families.iter().for_each(|family| family.failures.inc());
    }

    /// From the change of an endpoint to its rule.
    pub(crate) fn programmed(&self, since: Duration) {
        self.families.iter().for_each(|family| family.programming.observe_duration(since));
    }

    pub(crate) fn forgot(&self, flows: usize, took: Duration) {
        self.conntrack_duration.observe_duration(took);
        self.conntrack_deleted.add(flows);
    }

    /// Ports that a Local policy leaves without endpoints: inside, outside.
    pub(crate) fn without_local(&self, counts: [usize; 2]) {
        for family in &self.families {
            family.without_local.iter().zip(counts).for_each(|(gauge, count)| gauge.set(count as f64));
        }
    }

    pub(crate) fn asked(&self, path: &str, code: u16) {
        let code = code.to_string();
        let (name, help) = match path {
            "/healthz" => ("kubeproxy_proxy_healthz_total", "Cumulative proxy healthz HTTP status"),
            _ => ("kubeproxy_proxy_livez_total", "Cumulative proxy livez HTTP status"),
        };
        self.registry.counter(name, help, &[("code", code.as_str())]).inc();
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
