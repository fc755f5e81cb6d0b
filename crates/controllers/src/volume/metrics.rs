//! What the binder counts, under upstream's names: volumes and claims there are, and how long making and deleting them takes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use api::meta::Meta as _;
use client::Informer;
use client::metrics::{Counter, Metrics};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::matching::claim_class;

static OPERATION_BOUNDS: [f64; 13] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

/// Makings of volumes for claims and deletions of volumes that are under way. An operation lasts from its first attempt to
/// what it was for: a claim that is bound, a volume that is gone.
pub(super) struct Operations {
    metrics: Metrics,
    running: Mutex<HashMap<String, Operation>>,
    classes: Counter,
    class_errors: Counter,
}

struct Operation {
    plugin: String,
    name: &'static str,
    began: Instant,
}

impl Operations {
    pub(super) fn new(metrics: &Metrics) -> Operations {
        Operations {
            metrics: metrics.clone(),
            running: Mutex::default(),
            classes: metrics.counter(
                "retroactive_storageclass_total",
                "Total number of retroactive StorageClass assignments to persistent volume claim",
                &[],
            ),
            class_errors: metrics.counter(
                "retroactive_storageclass_errors_total",
                "Total number of failed retroactive StorageClass assignments to persistent volume claim",
                &[],
            ),
        }
    }

    /// `key` is a claim's or a volume's; what is under way already goes on.
    pub(super) fn began(&self, key: &str, plugin: &str, name: &'static str) {
        let operation = || Operation { plugin: plugin.to_owned(), name, began: Instant::now() };
        self.running.lock().entry(key.to_owned()).or_insert_with(operation);
    }

    /// An attempt failed; there will be another.
    pub(super) fn failed(&self, key: &str) {
        if let Some(operation) = self.running.lock().get(key) {
            let labels = operation.labels();
            for name in ["volume_operation_errors_total", "volume_operation_total_errors"] {
                self.metrics.counter(name, "Total volume operation errors", &labels).inc();
            }
        }
    }

    pub(super) fn ended(&self, key: &str) {
        let Some(operation) = self.running.lock().remove(key) else { return };
        let (name, help) = ("volume_operation_total_seconds", "Storage operation end to end duration in seconds");
        self.metrics
            .histogram(name, help, &OPERATION_BOUNDS, &operation.labels())
            .observe_duration(operation.began.elapsed());
    }

    pub(super) fn went(&self, key: &str, is_ok: bool) {
        if is_ok { self.ended(key) } else { self.failed(key) }
    }

    /// Nobody wants the result any more.
    pub(super) fn forget(&self, key: &str) {
        self.running.lock().remove(key);
    }

    /// A claim without a class was to be given the default one.
    pub(super) fn gave_class(&self, is_ok: bool) {
        self.classes.inc();
        if !is_ok {
            self.class_errors.inc();
        }
    }
}

impl Operation {
    fn labels(&self) -> [(&str, &str); 2] {
        [("plugin_name", &self.plugin), ("operation_name", self.name)]
    }
}

/// Counts volumes and claims whenever somebody asks.
pub(super) fn count_volumes(
    metrics: &Metrics,
    volumes: Informer<PersistentVolume>,
    claims: Informer<PersistentVolumeClaim>,
) {
    let gauges = metrics.downgrade();
    metrics.on_render(move || {
        if let Some(metrics) = gauges.upgrade() {
            Counts::of(&volumes.list(), &claims.list()).show(&metrics);
        }
    });
}

#[derive(Default)]
struct Counts {
    /// By plug-in and mode.
    volumes: BTreeMap<[String; 2], usize>,
    /// By class.
    bound: BTreeMap<[String; 1], usize>,
    unbound: BTreeMap<[String; 1], usize>,
    /// By namespace, class and class of attributes.
    bound_claims: BTreeMap<[String; 3], usize>,
    unbound_claims: BTreeMap<[String; 3], usize>,
}

impl Counts {
    fn of(volumes: &[Arc<PersistentVolume>], claims: &[Arc<PersistentVolumeClaim>]) -> Counts {
        let mut counts = Counts::default();
        for volume in volumes {
            let mode = volume.spec.as_ref().and_then(|spec| spec.volume_mode.clone());
            let kind = [plugin(volume), mode.unwrap_or_else(|| "Filesystem".into())];
            *counts.volumes.entry(kind).or_default() += 1;
            let is_bound = volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
            let by_class = if is_bound { &mut counts.bound } else { &mut counts.unbound };
            // As upstream, of the field only.
            let class = volume.spec.as_ref().and_then(|spec| spec.storage_class_name.clone());
            *by_class.entry([class.unwrap_or_default()]).or_default() += 1;
        }
        for claim in claims {
            let attributes = claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.clone());
            let kind = [
                claim.metadata.namespace().to_owned(),
                claim_class(claim).unwrap_or_default().to_owned(),
                attributes.unwrap_or_default(),
            ];
            let is_bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
            let by_kind = if is_bound { &mut counts.bound_claims } else { &mut counts.unbound_claims };
            *by_kind.entry(kind).or_default() += 1;
        }
        counts
    }

    fn show(self, metrics: &Metrics) {
        fn rows<const N: usize>(counts: BTreeMap<[String; N], usize>) -> impl Iterator<Item = ([String; N], f64)> {
            counts.into_iter().map(|(labels, count)| (labels, count as f64))
        }
        let labels = ["plugin_name", "volume_mode"];
        metrics.set_gauges("pv_collector_total_pv_count", "Persistent volumes", labels, rows(self.volumes));
        let labels = ["storage_class"];
        metrics.set_gauges("pv_collector_bound_pv_count", "Bound persistent volumes", labels, rows(self.bound));
        metrics.set_gauges("pv_collector_unbound_pv_count", "Unbound persistent volumes", labels, rows(self.unbound));
        let labels = ["namespace", "storage_class", "volume_attributes_class"];
        metrics.set_gauges("pv_collector_bound_pvc_count", "Bound claims", labels, rows(self.bound_claims));
        metrics.set_gauges("pv_collector_unbound_pvc_count", "Unbound claims", labels, rows(self.unbound_claims));
    }
}

/// What upstream calls the plug-in of a volume.
fn plugin(volume: &PersistentVolume) -> String {
    let Some(spec) = &volume.spec else { return "N/A".into() };
    match spec {
        spec if spec.host_path.is_some() => "kubernetes.io/host-path".into(),
        spec if spec.nfs.is_some() => "kubernetes.io/nfs".into(),
        spec if spec.fc.is_some() => "kubernetes.io/fc".into(),
        spec if spec.iscsi.is_some() => "kubernetes.io/iscsi".into(),
        spec => spec.csi.as_ref().map_or("N/A".into(), |csi| format!("kubernetes.io/csi:{}", csi.driver)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn shows(metrics: &Metrics, lines: &[&str]) {
        let text = metrics.render();
        for line in lines {
            assert!(text.contains(&format!("{line}\n")), "{line} not in\n{text}");
        }
    }

    #[test]
    fn volumes_and_claims_are_counted_by_kind() {
        let volume = |source: Value, class: &str, phase: &str| {
            let mut spec = source;
            spec["storageClassName"] = class.into();
            Arc::new(serde_json::from_value(json!({"spec": spec, "status": {"phase": phase}})).unwrap())
        };
        let claim = |spec: Value, phase: &str| {
            let claim = json!({"metadata": {"namespace": "n"}, "spec": spec, "status": {"phase": phase}});
            Arc::new(serde_json::from_value(claim).unwrap())
        };
        let volumes = [
            volume(json!({"hostPath": {"path": "/a"}}), "fast", "Bound"),
            volume(json!({"hostPath": {"path": "/b"}}), "fast", "Released"),
            volume(json!({"hostPath": {"path": "/c"}, "volumeMode": "Block"}), "", "Available"),
            volume(json!({"csi": {"driver": "d", "volumeHandle": "h"}}), "slow", "Bound"),
            volume(json!({"local": {"path": "/d"}}), "slow", "Bound"),
        ];
        let claims = [
            claim(json!({"storageClassName": "fast"}), "Bound"),
            claim(json!({"storageClassName": "fast", "volumeAttributesClassName": "gold"}), "Bound"),
            claim(json!({}), "Pending"),
        ];
        let metrics = Metrics::new();
        Counts::of(&volumes, &claims).show(&metrics);
        shows(
            &metrics,
            &[
                "pv_collector_total_pv_count{plugin_name=\"kubernetes.io/host-path\",volume_mode=\"Filesystem\"} 2",
                "pv_collector_total_pv_count{plugin_name=\"kubernetes.io/host-path\",volume_mode=\"Block\"} 1",
                "pv_collector_total_pv_count{plugin_name=\"kubernetes.io/csi:d\",volume_mode=\"Filesystem\"} 1",
                "pv_collector_total_pv_count{plugin_name=\"N/A\",volume_mode=\"Filesystem\"} 1",
                "pv_collector_bound_pv_count{storage_class=\"slow\"} 2",
                "pv_collector_bound_pv_count{storage_class=\"fast\"} 1",
                "pv_collector_unbound_pv_count{storage_class=\"fast\"} 1",
                "pv_collector_unbound_pv_count{storage_class=\"\"} 1",
                "pv_collector_bound_pvc_count{namespace=\"n\",storage_class=\"fast\",volume_attributes_class=\"\"} 1",
                "pv_collector_bound_pvc_count{namespace=\"n\",storage_class=\"fast\",volume_attributes_class=\"gold\"} 1",
                "pv_collector_unbound_pvc_count{namespace=\"n\",storage_class=\"\",volume_attributes_class=\"\"} 1",
            ],
        );
        Counts::default().show(&metrics);
        assert!(!metrics.render().contains("{"), "what is gone is not shown");
    }

    #[tokio::test(start_paused = true)]
    async fn an_operation_lasts_from_the_first_attempt_to_the_result() {
        let metrics = Metrics::new();
        let operations = Operations::new(&metrics);
        let second = std::time::Duration::from_secs(1);
        operations.began("n/claim", "p", "provision");
        tokio::time::advance(second).await;
        operations.went("n/claim", false);
        operations.began("n/claim", "p", "provision");
        tokio::time::advance(second).await;
        operations.went("n/claim", true);
        operations.went("n/claim", true);
        operations.began("volume", "p", "delete");
        operations.forget("volume");
        operations.ended("volume");
        operations.failed("unknown");
        operations.gave_class(true);
        operations.gave_class(false);
        shows(
            &metrics,
            &[
                "volume_operation_total_seconds_sum{operation_name=\"provision\",plugin_name=\"p\"} 2",
                "volume_operation_total_seconds_count{operation_name=\"provision\",plugin_name=\"p\"} 1",
                "volume_operation_errors_total{operation_name=\"provision\",plugin_name=\"p\"} 1",
                "volume_operation_total_errors{operation_name=\"provision\",plugin_name=\"p\"} 1",
                "retroactive_storageclass_total 2",
                "retroactive_storageclass_errors_total 1",
            ],
        );
        assert!(!metrics.render().contains("delete"));
    }
}
