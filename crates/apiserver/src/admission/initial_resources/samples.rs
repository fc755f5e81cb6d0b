//! What containers have used, by image: the memory from which new ones are estimated.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use api::image::repository;
use api::sort::CompactSort as _;
use parking_lot::Mutex;
use serde_json::Value;

/// Bounds of the memory: samples of one image, and images. The oldest go first.
const MAX_SAMPLES: usize = 2000;
const MAX_IMAGES: usize = 500;
/// Fewer samples than this say nothing yet.
pub(super) const THRESHOLD: usize = 30;
const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);
const MONTH: Duration = Duration::from_secs(30 * 24 * 3600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// In thousandths of a core.
    Cpu,
    /// In bytes.
    Memory,
}

#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) namespace: String,
    pub(super) cpu: u64,
    pub(super) memory: u64,
}

#[derive(Default)]
pub(super) struct Samples(Mutex<BTreeMap<String, VecDeque<Sample>>>);

impl Samples {
    pub(super) fn record(&self, image: &str, sample: Sample) {
        let mut images = self.0.lock();
        if !images.contains_key(image) && images.len() >= MAX_IMAGES {
            let newest = |samples: &VecDeque<Sample>| samples.back().map(|sample| sample.at);
            let stale = images.iter().min_by_key(|(_, samples)| newest(samples)).map(|(image, _)| image.clone());
            if let Some(image) = stale {
                images.remove(&image);
            }
        }
        let samples = images.entry(image.to_owned()).or_default();
        if samples.len() >= MAX_SAMPLES {
            samples.pop_front();
        }
        samples.push_back(sample);
    }

    /// What a container of this image is likely to need: from the narrowest past that says enough. First the same image
    /// in the same namespace, then anywhere, then the same image under other tags; a week, then a month.
    pub(super) fn estimate(
        &self,
        kind: Kind,
        image: &str,
        namespace: &str,
        percentile: u8,
        namespace_only: bool,
        now: Instant,
    ) -> Option<u64> {
        let anywhere: &[(bool, bool)] = &[(true, true), (true, false), (false, false)];
        let scopes = if namespace_only { &anywhere[..1] } else { anywhere };
        let images = self.0.lock();
        for (exact, same_namespace) in scopes {
            for age in [WEEK, MONTH] {
                let known = images.iter().filter(|(known, _)| {
                    if *exact { known.as_str() == image } else { repository(known) == repository(image) }
                });
                let mut values: Vec<u64> = known
                    .flat_map(|(_, samples)| samples)
                    .filter(|sample| now.saturating_duration_since(sample.at) <= age)
                    .filter(|sample| !same_namespace || sample.namespace == namespace)
                    .map(|sample| if kind == Kind::Cpu { sample.cpu } else { sample.memory })
                    .collect();
                if values.len() >= THRESHOLD {
                    values.compact_sort();
                    let rank = (values.len() * usize::from(percentile)).div_ceil(100).max(1);
                    return values.get(rank - 1).copied();
                }
            }
        }
        None
    }
}

/// One container's use, from a kubelet's `/stats/summary`.
pub(super) struct Used {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) container: String,
    pub(super) cpu: u64,
    pub(super) memory: u64,
}

pub(super) fn read_summary(summary: &Value) -> Vec<Used> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut found = Vec::new();
    for pod in list(&summary["pods"]) {
        for container in list(&pod["containers"]) {
            let nano_cores = container["cpu"]["usageNanoCores"].as_u64();
            let memory = container["memory"]["workingSetBytes"].as_u64();
            if let (Some(nano_cores), Some(memory)) = (nano_cores, memory) {
                found.push(Used {
                    namespace: text(&pod["podRef"]["namespace"]),
                    pod: text(&pod["podRef"]["name"]),
                    container: text(&container["name"]),
                    cpu: nano_cores.div_ceil(1_000_000),
                    memory,
                });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_come_from_the_narrowest_past_that_says_enough() {
        let samples = Samples::default();
        let now = Instant::now();
        let record = |image: &str, namespace: &str, count: u64, base: u64| {
            for i in 0..count {
                let sample = Sample { at: now, namespace: namespace.to_owned(), cpu: base + i, memory: 1 << 20 };
                samples.record(image, sample);
            }
        };
        record("web:1", "a", 100, 1);
        record("web:1", "b", 10, 1000);
        record("web:2", "b", 40, 5000);
        for (image, namespace, percentile, only, expected) in [
            ("web:1", "a", 90, false, Some(90)),
            ("web:1", "a", 100, false, Some(100)),
            // Too little in the namespace: all of them together.
            ("web:1", "b", 100, false, Some(1009)),
            ("web:1", "b", 100, true, None),
            // A tag never seen: the image under its other tags.
            ("web:3", "c", 100, false, Some(5039)),
            ("other:1", "a", 90, false, None),
        ] {
            let found = samples.estimate(Kind::Cpu, image, namespace, percentile, only, now);
            assert_eq!(found, expected, "{image} {namespace} {percentile} {only}");
        }
        assert_eq!(samples.estimate(Kind::Memory, "web:1", "a", 90, false, now), Some(1 << 20));
    }

    #[test]
    fn summaries_are_read() {
        let summary = serde_json::json!({"pods": [{"podRef": {"namespace": "n", "name": "p"}, "containers": [
            {"name": "c", "cpu": {"usageNanoCores": 1_500_000}, "memory": {"workingSetBytes": 42}},
            {"name": "new", "cpu": {}}]}]});
        let used = read_summary(&summary);
        assert_eq!(used.len(), 1);
        assert_eq!((used[0].container.as_str(), used[0].cpu, used[0].memory), ("c", 2, 42));
    }
}
