//! One minute of figures: decided from two counts, never asked for twice.

use std::collections::BTreeMap;
use std::time::Duration;
use std::time::Instant;

use api::sort::CompactCollect as _;

use super::ring::{Key, Of, What};
use crate::metrics::Totals;
use crate::node_usage::{Rates, Window};

/// What this process has counted so far.
#[derive(Clone, Debug)]
pub(crate) struct Counted {
    at: Instant,
    /// Seconds of CPU.
    cpu: f64,
    memory: f64,
    requests: Totals,
}

impl Default for Counted {
    fn default() -> Self {
        Self { at: Instant::now(), cpu: 0.0, memory: 0.0, requests: Totals::default() }
    }
}

impl Counted {
    pub(crate) fn now(requests: Totals) -> Self {
        let (cpu, memory) = ::metrics::process_usage();
        Self { at: Instant::now(), cpu, memory, requests }
    }
}

/// The figures of this process and of the API between two counts.
pub(crate) fn of_server(old: &Counted, new: &Counted) -> Vec<(Key, f32)> {
    let key = |what, name: &str| Key { what, of: Of::Component, namespace: "".into(), name: name.into() };
    let seconds = new.at.saturating_duration_since(old.at).max(Duration::from_millis(1)).as_secs_f64();
    let rate = |old: f64, new: f64| ((new - old).max(0.0) / seconds) as f32;
    let mut values = vec![
        (key(What::Cpu, "cox"), rate(old.cpu, new.cpu)),
        (key(What::Memory, "cox"), new.memory as f32),
        (key(What::Requests, "kube-apiserver"), rate(old.requests.all, new.requests.all)),
        (key(What::Errors, "kube-apiserver"), rate(old.requests.errors, new.requests.errors)),
        (key(What::Rejected, "kube-apiserver"), rate(old.requests.rejected, new.requests.rejected)),
    ];
    let latency = quantile(&old.requests.durations, &new.requests.durations, 0.99);
    values.extend(latency.map(|latency| (key(What::Latency, "kube-apiserver"), latency as f32)));
    values
}

/// The value that this part of what was observed between two counts does not exceed, within its bucket as if all of it
/// were spread evenly. What is above the last bound is that bound.
fn quantile(old: &[(f64, u64)], new: &[(f64, u64)], part: f64) -> Option<f64> {
    let before: BTreeMap<u64, u64> = old.iter().map(|(bound, count)| (bound.to_bits(), *count)).compact_collect();
    let counts: Vec<(f64, u64)> = new
        .iter()
        .map(|(bound, count)| (*bound, count.saturating_sub(before.get(&bound.to_bits()).copied().unwrap_or_default())))
        .collect();
    let total: u64 = counts.iter().fold(0, |total: u64, (_, count)| total.saturating_add(*count));
    let rank = total as f64 * part;
    let (mut lower, mut seen) = (0.0, 0.0);
    for (bound, count) in counts.iter().filter(|_| total > 0) {
        let count = *count as f64;
        if seen + count >= rank && count > 0.0 {
            return Some(if bound.is_finite() { lower + (bound - lower) * (rank - seen) / count } else { lower });
        }
        seen += count;
        lower = if bound.is_finite() { *bound } else { lower };
    }
    None
}

/// The figures of nodes and their pods. A node speaks for its own pods only: `runs_on` knows.
pub(crate) fn of_nodes(
    windows: &BTreeMap<String, Window>,
    runs_on: impl Fn(&str, &str, &str) -> bool,
) -> Vec<(Key, f32)> {
    let mut values = Vec::new();
    for (node, window) in windows {
        let mut push = |what, of, namespace: &str, name: &str, value: f64| {
            values.push((Key { what, of, namespace: namespace.into(), name: name.into() }, value as f32));
        };
        let mut push_rates = |of, namespace: &str, name: &str, rates: &Rates| {
            let usage = rates.total();
            push(What::Cpu, of, namespace, name, usage.cpu as f64 / 1e9);
            push(What::Memory, of, namespace, name, usage.memory as f64);
            if let Some((received, sent)) = rates.network {
                push(What::Received, of, namespace, name, received);
                push(What::Sent, of, namespace, name, sent);
            }
        };
        if let Some(rates) = &window.node {
            push_rates(Of::Node, "", node, rates);
        }
        let pods = window.pods.iter().filter(|((namespace, pod), _)| runs_on(node, namespace, pod));
        for ((namespace, pod), rates) in pods {
            push_rates(Of::Pod, namespace, pod, rates);
        }
        if let Some((used, size)) = window.disk {
            push(What::Disk, Of::Node, "", node, used as f64);
            push(What::DiskSize, Of::Node, "", node, size as f64);
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_usage::Usage;

    #[test]
    fn quantiles_are_those_of_the_minute() {
        let inf = f64::INFINITY;
        for (old, new, part, expected) in [
            (vec![], vec![(1.0, 0), (2.0, 0), (inf, 0)], 0.99, None),
            (vec![], vec![(1.0, 100), (2.0, 0), (inf, 0)], 0.5, Some(0.5)),
            (vec![(1.0, 100)], vec![(1.0, 100), (2.0, 10), (inf, 0)], 0.5, Some(1.5)),
            (vec![], vec![(1.0, 1), (2.0, 0), (inf, 99)], 0.99, Some(2.0)),
        ] {
            assert_eq!(quantile(&old, &new, part), expected, "{new:?}");
        }
    }

    #[test]
    fn rates_are_per_second() {
        let start = Instant::now();
        let old = Counted { at: start, cpu: 10.0, ..Counted::default() };
        let requests = Totals { all: 120.0, errors: 6.0, rejected: 0.0, durations: vec![(1.0, 114)] };
        let new = Counted { at: start + Duration::from_secs(60), cpu: 13.0, memory: 1e6, requests };
        let values: BTreeMap<(&str, String), f32> = of_server(&old, &new)
            .into_iter()
            .map(|(key, value)| ((key.what.as_str(), key.name.to_string()), value))
            .collect();
        let value = |what, name: &str| values[&(what, name.to_owned())];
        assert_eq!(value("cpu_cores", "cox"), 0.05);
        assert_eq!(value("memory_bytes", "cox"), 1e6);
        assert_eq!(value("requests_per_second", "kube-apiserver"), 2.0);
        assert_eq!(value("errors_per_second", "kube-apiserver"), 0.1);
        assert_eq!(value("request_p99_seconds", "kube-apiserver"), 0.99);
    }

    #[test]
    fn security_a_node_speaks_for_its_own_pods_only() {
        let usage = Usage { cpu: 500_000_000, memory: 7 };
        let pod = |name: &str| ("default".to_owned(), name.to_owned());
        let rates = |containers: &[&str], network| Rates {
            length: Duration::from_secs(60),
            containers: containers.iter().map(|name| ((*name).to_owned(), usage)).collect(),
            network,
        };
        let of_pod = rates(&["a", "b"], Some((5.0, 6.0)));
        let window = Window {
            end: jiff::Timestamp::UNIX_EPOCH,
            node: Some(rates(&[""], None)),
            pods: BTreeMap::from([(pod("own"), of_pod.clone()), (pod("others"), of_pod)]),
            disk: Some((40, 100)),
        };
        let windows = BTreeMap::from([("n1".to_owned(), window)]);
        let values = of_nodes(&windows, |node, _, pod| node == "n1" && pod == "own");
        let told: Vec<(&str, &str, &str, f32)> =
            values.iter().map(|(key, value)| (key.what.as_str(), key.of.as_str(), &*key.name, *value)).collect();
        assert_eq!(
            told,
            [
                ("cpu_cores", "node", "n1", 0.5),
                ("memory_bytes", "node", "n1", 7.0),
                ("cpu_cores", "pod", "own", 1.0),
                ("memory_bytes", "pod", "own", 14.0),
                ("network_receive_bytes_per_second", "pod", "own", 5.0),
                ("network_transmit_bytes_per_second", "pod", "own", 6.0),
                ("disk_used_bytes", "node", "n1", 40.0),
                ("disk_size_bytes", "node", "n1", 100.0),
            ]
        );
    }
}
