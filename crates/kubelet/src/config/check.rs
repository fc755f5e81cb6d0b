//! What no kubelet can do as it is told: numbers outside of their ranges, and settings that contradict each other, in
//! upstream's words (`ValidateKubeletConfiguration`, v1.36). What is read where it is used, such as thresholds of
//! eviction, is checked there.

use std::path::{Component, PathBuf};
use std::time::Duration;

use anyhow::ensure;

use super::Settings;

const RESTART_PERIODS: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(300);

impl Settings {
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let (low, high) = (self.image_gc_low, self.image_gc_high);
        for (name, percent) in [
            ("imageGCHighThresholdPercent (--image-gc-high-threshold)", high),
            ("imageGCLowThresholdPercent (--image-gc-low-threshold)", low),
        ] {
            ensure!(percent <= 100, "invalid configuration: {name} {percent} must be between 0 and 100, inclusive");
        }
        ensure!(
            low < high,
            "invalid configuration: imageGCLowThresholdPercent (--image-gc-low-threshold) {low} must be less than \
             imageGCHighThresholdPercent (--image-gc-high-threshold) {high}"
        );
        let (min_age, max_age) = (self.image_minimum_gc_age, self.image_maximum_gc_age);
        ensure!(
            max_age.is_zero() || max_age > min_age,
            "invalid configuration: imageMaximumGCAge {max_age:?} must be greater than imageMinimumGCAge {min_age:?}"
        );
        let images = self.node_status_max_images;
        ensure!(
            images >= -1,
            "invalid configuration: nodeStatusMaxImages (--node-status-max-images) {images} must be -1 or greater"
        );
        let score = self.oom_score_adj.unwrap_or_default();
        ensure!(
            (-1000..=1000).contains(&score),
            "invalid configuration: oomScoreAdj (--oom-score-adj) {score} must be between -1000 and 1000, inclusive"
        );
        let period = self.max_container_restart_period;
        ensure!(
            RESTART_PERIODS.contains(&period),
            "invalid configuration: CrashLoopBackOff.MaxContainerRestartPeriod (got: {} seconds) must be set between 1s \
             and 300s",
            period.as_secs_f64()
        );
        ensure!(
            self.cgroups_per_qos || !self.enforce_allocatable,
            "invalid configuration: cgroupsPerQOS (--cgroups-per-qos) must be set to true when \"pods\" contained in \
             enforceNodeAllocatable (--enforce-node-allocatable)"
        );
        self.check_logs()
    }

    fn check_logs(&self) -> anyhow::Result<()> {
        ensure!(
            self.container_log_monitor_interval >= Duration::from_secs(3),
            "invalid configuration: containerLogMonitorInterval must be a positive time duration greater than or equal \
             to 3s"
        );
        ensure!(self.container_log_max_files > 1, "invalid configuration: containerLogMaxFiles must be greater than 1");
        let dir = &self.pod_logs_dir;
        ensure!(dir.is_absolute(), "invalid configuration: pod logs path {dir:?} must be absolute path");
        // Components are what is left of a path without `//`, `/./` and a slash at the end.
        let clean: PathBuf = dir.components().collect();
        ensure!(
            clean.as_os_str() == dir.as_os_str() && dir.components().all(|part| part != Component::ParentDir),
            "invalid configuration: pod logs path {dir:?} must be normalized"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_done_is_refused_in_upstreams_words() {
        for (text, refusal) in [
            ("{}", None),
            ("imageGCHighThresholdPercent: 100\nimageGCLowThresholdPercent: 99", None),
            ("imageGCHighThresholdPercent: 101", Some("101 must be between 0 and 100, inclusive")),
            ("imageGCHighThresholdPercent: 70", Some("80 must be less than imageGCHighThresholdPercent")),
            ("imageMaximumGCAge: 3m", None),
            ("imageMaximumGCAge: 2m", Some("must be greater than imageMinimumGCAge")),
            ("nodeStatusMaxImages: -1", None),
            ("nodeStatusMaxImages: -2", Some("-2 must be -1 or greater")),
            ("oomScoreAdj: -1001", Some("-1001 must be between -1000 and 1000, inclusive")),
            ("crashLoopBackOff: {maxContainerRestartPeriod: 1s}", None),
            ("crashLoopBackOff: {maxContainerRestartPeriod: 500ms}", Some("(got: 0.5 seconds) must be set between")),
            ("crashLoopBackOff: {maxContainerRestartPeriod: 301s}", Some("(got: 301 seconds) must be set between")),
            ("cgroupsPerQOS: false", Some("cgroupsPerQOS (--cgroups-per-qos) must be set to true when \"pods\"")),
            ("cgroupsPerQOS: false\nenforceNodeAllocatable: []", None),
            ("containerLogMonitorInterval: 2s", Some("greater than or equal to 3s")),
            ("containerLogMaxFiles: 1", Some("containerLogMaxFiles must be greater than 1")),
            ("podLogsDir: logs", Some("\"logs\" must be absolute path")),
            ("podLogsDir: /var//log", Some("\"/var//log\" must be normalized")),
            ("podLogsDir: /var/log/../x", Some("\"/var/log/../x\" must be normalized")),
            ("eventRecordQPS: -1", Some("eventRecordQPS (--event-qps) -1 must not be a negative number")),
            ("kubeAPIQPS: -1", Some("kubeAPIQPS (--kube-api-qps) -1 must not be a negative number")),
            ("hairpinMode: promiscuous-bridge", None),
            ("hairpinMode: sometimes", Some("hairpinMode: \"sometimes\" is not supported")),
        ] {
            let configured = Settings::configured("n", yaml_serde::from_str(text).unwrap());
            let refused = configured.err().map(|error| format!("{error:#}"));
            match refusal {
                None => assert_eq!(refused, None, "{text}"),
                Some(words) => {
                    assert!(refused.as_ref().is_some_and(|told| told.contains(words)), "{text}: {refused:?}")
                }
            }
        }
    }

    #[test]
    fn logs_of_a_negative_size_are_not_rotated() {
        let size = |text: &str| {
            let config = serde_json::json!({"containerLogMaxSize": text});
            Settings::configured("n", config).unwrap().container_log_max_size
        };
        assert_eq!((size("5Mi"), size("-1")), (5 << 20, u64::MAX));
    }
}
