//! `cox why cluster`: what is wrong, or will be at this rate, by the figures of the last hours.
//!
//! Flow: fetch objects, history and metrics, these twice -> [`findings`] (pure) -> print, worst first.
//! Invariant: what only counts up is told by how much it moved between two looks: what was long ago is over. So is what a single
//! value of the history says.

use std::collections::BTreeMap;

use api::meta::Meta as _;
use api::sort::CompactCollect as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};

use super::{Cause, node};
use crate::history::{History, bytes, slope};

/// A file system that is full sooner than this is told of, and memory that is.
const SOON: f64 = 24.0 * 3600.0;
const MEMORY_SOON: f64 = 3600.0;
/// Minutes of the history that say what is so now, and those in which a disk has to grow to be full one day.
const NOW: u64 = 15;
const GROWING: u64 = 45;
/// And so is a certificate that ends sooner than this.
const CERTIFICATE_SOON: f64 = 7.0 * 24.0 * 3600.0;
/// The part of its periods in which a container may be held back.
const THROTTLED: f64 = 0.25;
/// Fewer periods say nothing. There are ten a second.
const PERIODS: f64 = 20.0;
/// The part of requests that may fail.
const FAILING: f64 = 0.05;
/// The part of a node's memory that may be in use.
const FULL: f64 = 0.95;

/// The part of a volume that should be free.
const VOLUME_FREE: f64 = 0.03;

/// What is looked at.
pub(super) struct Facts {
    pub(super) now: Timestamp,
    pub(super) nodes: Vec<Node>,
    pub(super) pods: Vec<Pod>,
    pub(super) history: History,
    pub(super) before: Look,
    pub(super) after: Look,
}

/// What the components count at one time.
#[derive(Default)]
pub(super) struct Look {
    /// `/metrics` of the API server.
    pub(super) api: String,
    /// By node its `/metrics` and its `/metrics/cadvisor`, of those that answered.
    pub(super) kubelets: BTreeMap<String, (String, String)>,
}

/// What is wrong or will be, worst first. Decides, never awaits.
pub(super) fn findings(facts: &Facts) -> Vec<(String, Cause)> {
    let mut found = Vec::new();
    found.extend(facts.nodes.iter().filter_map(|node| unwell(node, facts.now)));
    found.extend(facts.nodes.iter().filter_map(|node| disk(name(node), &facts.history)));
    found.extend(facts.nodes.iter().filter_map(|node| memory(node, &facts.history)));
    let mut reported = std::collections::BTreeSet::new();
    // Several nodes may have one claim's volume.
    let claims = facts.after.kubelets.values().flat_map(|(metrics, _)| volumes(metrics));
    found.extend(claims.filter(|(object, cause)| reported.insert((object.clone(), cause.summary.clone()))));
    found.extend(certificates(facts));
    found.extend(api(facts));
    found.extend(pods(&facts.pods));
    for (node, (_, after)) in &facts.after.kubelets {
        let before = facts.before.kubelets.get(node).map(|(_, before)| before.as_str());
        found.extend(before.into_iter().flat_map(|before| throttled(before, after)));
    }
    found
}

/// What these facts cannot tell.
pub(super) fn unseen(facts: &Facts) -> Vec<String> {
    let mut unseen = Vec::new();
    if !is_one_process(&facts.before.api, &facts.after.api) {
        unseen.push("what the API server counted meanwhile: another one answered, or it was started again".to_owned());
    }
    if facts.history.left_out > 0 {
        unseen.push(format!("{} series of nodes and pods: the history has no room for them", facts.history.left_out));
    }
    unseen
}

fn name(node: &Node) -> &str {
    node.metadata.name()
}

fn unwell(node: &Node, now: Timestamp) -> Option<(String, Cause)> {
    let cause = node::cause(node, now);
    let is_well = cause.summary.starts_with("nothing blocks it") || cause.summary.contains("cordoned");
    (!is_well).then(|| (format!("node/{}", name(node)), cause))
}

/// A disk that is full soon at the rate of the last hours, if it still grows.
fn disk(node: &str, history: &History) -> Option<(String, Cause)> {
    let used = history.points("disk_used_bytes", "node", "", node);
    let (_, size) = *history.points("disk_size_bytes", "node", "", node).last()?;
    let (_, last) = *used.last()?;
    let rate = slope(used)?.min(slope(history.lately_enough(used, GROWING))?);
    let left = if rate > 0.0 { (size - last).max(0.0) / rate } else { f64::INFINITY };
    if left > SOON {
        return None;
    }
    let cause = Cause::new(format!("its disk is full in {} at this rate", node::period(left as i64)))
        .because(format!("{} of {} in use, {} more each hour", bytes(last), bytes(size), bytes(rate * 3600.0)))
        .then("see what grows: cox kubectl get --raw /api/v1/nodes/".to_owned() + node + "/proxy/stats/summary")
        .then("remove images that nothing uses (cox image rm), or give the node more space");
    Some((format!("node/{node}"), cause))
}

fn memory(node: &Node, history: &History) -> Option<(String, Cause)> {
    let capacity = node.status.as_ref()?.capacity.as_ref()?.get("memory")?;
    let capacity = api::quantity::Quantity::parse(&capacity.0).ok()?.as_f64();
    let used = history.lately_enough(history.points("memory_bytes", "node", "", name(node)), NOW);
    let (_, last) = *used.last()?;
    let mean = used.iter().map(|(_, used)| used).sum::<f64>() / used.len() as f64;
    // In both halves: it went up and up, and not once.
    let (earlier, later) = used.split_at(used.len() / 2);
    let rate = slope(earlier).zip(slope(later)).map_or(0.0, |(earlier, later)| earlier.min(later));
    let left = if rate > 0.0 { (capacity - last).max(0.0) / rate } else { f64::INFINITY };
    let cause = if capacity <= 0.0 {
        return None;
    } else if mean >= capacity * FULL {
        Cause::new("its memory is nearly all in use").because(format!("{} of {}", bytes(mean), bytes(capacity)))
    } else if left < MEMORY_SOON && last > capacity / 2.0 {
        let evidence =
            format!("{} of {} in use, {} more each minute", bytes(last), bytes(capacity), bytes(rate * 60.0));
        Cause::new(format!("its memory is all in use in {} at this rate", node::period(left as i64))).because(evidence)
    } else {
        return None;
    };
    Some((format!("node/{}", name(node)), cause.then("cox top --by memory")))
}

/// Volumes of claims that are nearly full, in bytes or in files, and those that their drivers call abnormal.
fn volumes(metrics: &str) -> Vec<(String, Cause)> {
    let of = |what: &str| -> BTreeMap<(String, String), f64> {
        let series = format!("kubelet_volume_stats_{what}");
        let named = samples(metrics, &series).filter_map(|(labels, value)| {
            // They become parts of commands that people run, and a node may say anything.
            let is_name = |text: &&str| api::validation::dns1123_subdomain(text).is_empty();
            let of = |name| label(labels, name).filter(is_name).map(str::to_owned);
            Some(((of("namespace")?, of("persistentvolumeclaim")?), value))
        });
        named.collect()
    };
    let mut found = Vec::new();
    let reported = |(namespace, name): &(String, String), cause: Cause| (format!("pvc/{name} in {namespace}"), cause);
    let (sizes, abnormal) = (of("capacity_bytes"), of("health_status_abnormal"));
    for (claim, free) in of("available_bytes") {
        let size = sizes.get(&claim).copied().unwrap_or_default();
        if size > 0.0 && free / size < VOLUME_FREE {
            let cause = Cause::new("its volume is nearly full")
                .because(format!("{} of {} are free", bytes(free), bytes(size)))
                .then(format!("make it larger: cox kubectl edit pvc {} -n {}", claim.1, claim.0));
            found.push(reported(&claim, cause));
        }
    }
    let files = of("inodes");
    for (claim, free) in of("inodes_free") {
        let all = files.get(&claim).copied().unwrap_or_default();
        if all > 0.0 && free / all < VOLUME_FREE {
            let cause = Cause::new("its volume has hardly any files left to give")
                .because(format!("{free:.0} of {all:.0} inodes are free"))
                .then("remove small files, or make a volume with more inodes");
            found.push(reported(&claim, cause));
        }
    }
    for (claim, _) in abnormal.into_iter().filter(|(_, value)| *value > 0.0) {
        let cause = Cause::new("its driver says that its volume is not well")
            .then(format!("what does it say? cox kubectl describe pvc {} -n {}", claim.1, claim.0));
        found.push(reported(&claim, cause));
    }
    found
}

fn certificates(facts: &Facts) -> Vec<(String, Cause)> {
    let mut found = Vec::new();
    for (node, (metrics, _)) in &facts.after.kubelets {
        for (series, which) in [
            ("kubelet_certificate_manager_client_ttl_seconds", "it is a client with"),
            ("kubelet_certificate_manager_server_ttl_seconds", "it serves with"),
        ] {
            let left = samples(metrics, series).map(|(_, value)| value).next();
            if let Some(left) = left.filter(|left| *left < CERTIFICATE_SOON) {
                let cause = Cause::new(format!("the certificate that {which} ends in {}", node::period(left as i64)))
                    .because("kubelets renew theirs long before that")
                    .then("why not? cox logs kubelet")
                    .then("cox kubectl get certificatesigningrequests");
                found.push((format!("node/{node}"), cause));
            }
        }
    }
    let of_clients = "apiserver_client_certificate_expiration_seconds_bucket";
    let moved = moved_in_api(facts, of_clients);
    let count: f64 = moved.iter().filter(|(labels, _)| labels.contains("le=\"604800\"")).map(|(_, count)| count).sum();
    if count > 0.0 {
        let cause = Cause::new("clients use certificates that end within a week")
            .because(format!("{count:.0} requests came with one while this command looked"))
            .then("renew the certificates of kubeconfigs: 'cox up' does so for those that it made");
        found.push(("api".to_owned(), cause));
    }
    found
}

/// Requests that fail, and levels that turn requests away.
fn api(facts: &Facts) -> Vec<(String, Cause)> {
    let mut found = Vec::new();
    let sum = |what: &str| -> f64 {
        let points = facts.history.points(what, "component", "", "kube-apiserver");
        facts.history.lately(points, NOW).iter().map(|(_, value)| value).sum()
    };
    let (all, errors) = (sum("requests_per_second"), sum("errors_per_second"));
    if all > 0.0 && errors / all > FAILING {
        let cause = Cause::new("many requests fail")
            .because(format!("{:.0} of 100 were answered with 5xx in the last {NOW} minutes", 100.0 * errors / all))
            .then("cox logs apiserver")
            .then("cox kubectl get --raw '/readyz?verbose'");
        found.push(("api".to_owned(), cause));
    }
    let mut levels: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    let rejected = "apiserver_flowcontrol_rejected_requests_total";
    fn level(labels: &str) -> &str {
        label(labels, "priority_level").unwrap_or_default()
    }
    for (labels, count) in samples(&facts.after.api, rejected) {
        levels.entry(level(labels)).or_default().0 += count;
    }
    for (labels, count) in moved_in_api(facts, rejected) {
        levels.entry(level(labels)).or_default().1 += count;
    }
    let (lately, now) = (sum("rejections_per_second") > 0.0, levels.values().any(|(_, moved)| *moved > 0.0));
    // Where none of them is at it just now, each may have been a few minutes ago.
    let saturated = levels.iter().filter(|(_, (count, moved))| if now { *moved > 0.0 } else { lately && *count > 0.0 });
    for (level, (count, moved)) in saturated {
        let evidence = match now {
            true => format!("{moved:.0} requests got 429 while this command looked"),
            false => {
                format!("{count:.0} requests got 429 since the API server started, some in the last {NOW} minutes")
            }
        };
        let cause = Cause::new("this level of the API is saturated: requests are turned away")
            .because(evidence)
            .then("who asks so much? cox kubectl get --raw /debug/api_priority_and_fairness/dump_queues")
            .then(format!("give it more shares: cox kubectl edit prioritylevelconfiguration {level}"));
        found.push((format!("prioritylevelconfiguration/{level}"), cause));
    }
    found
}

/// Pods that start again and again, and those that fit nowhere; of each kind the first few.
fn pods(pods: &[Pod]) -> Vec<(String, Cause)> {
    const MOST: usize = 10;
    let named = |pod: &Pod| {
        let of = |text: &Option<String>| text.clone().unwrap_or_default();
        (of(&pod.metadata.namespace), of(&pod.metadata.name))
    };
    let crashing = pods.iter().filter_map(|pod| {
        let status = pod.status.as_ref()?;
        let mut statuses =
            status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
        let is_crashing = |reason: Option<&str>| reason == Some("CrashLoopBackOff");
        let container = statuses.find(|status| {
            let waiting = status.state.as_ref().and_then(|state| state.waiting.as_ref());
            is_crashing(waiting.and_then(|waiting| waiting.reason.as_deref()))
        })?;
        let (namespace, pod) = named(pod);
        let ended = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
        let mut cause = Cause::new("a container ends as soon as it starts");
        cause = cause.because(format!("{} was started {} times again", container.name, container.restart_count));
        if let Some(ended) = ended {
            cause = cause.because(format!("it ended with code {}", ended.exit_code));
        }
        let cause = cause.then(format!("cox kubectl logs {pod} -c {} -n {namespace} --previous", container.name));
        Some((format!("pod/{pod} in {namespace}"), cause))
    });
    let homeless = pods.iter().filter_map(|pod| {
        let conditions = pod.status.as_ref()?.conditions.as_ref()?;
        let unplaced = conditions.iter().find(|condition| {
            condition.type_ == "PodScheduled"
                && condition.status == "False"
                && condition.reason.as_deref() == Some("Unschedulable")
        })?;
        let (namespace, pod) = named(pod);
        let cause = Cause::new("no node takes it")
            .because(unplaced.message.clone().unwrap_or_default())
            .then(format!("cox why pod/{pod} -n {namespace}"));
        Some((format!("pod/{pod} in {namespace}"), cause))
    });
    crashing.take(MOST).chain(homeless.take(MOST)).collect()
}

/// Containers that are held back by their limit of CPU, between two looks.
fn throttled(before: &str, after: &str) -> Vec<(String, Cause)> {
    let of = |series| -> BTreeMap<[String; 3], f64> {
        let named = moved(before, after, series).into_iter().filter_map(|(labels, value)| {
            let of = |name| label(labels, name).map(str::to_owned);
            let key = [of("namespace")?, of("pod")?, of("container")?];
            key.iter().all(|part| !part.is_empty()).then_some((key, value))
        });
        named.collect()
    };
    let held = of("container_cpu_cfs_throttled_periods_total");
    let periods = of("container_cpu_cfs_periods_total");
    let found = periods.into_iter().filter_map(|(key, periods)| {
        let held = *held.get(&key)?;
        if periods < PERIODS || held / periods < THROTTLED {
            return None;
        }
        let [namespace, pod, container] = key;
        let cause = Cause::new("a container is held back by its limit of CPU")
            .because(format!("{container} is throttled in {:.0} of 100 periods", 100.0 * held / periods))
            .then("raise its limit of CPU, or leave it out: its request already says what it is sure to get");
        Some((format!("pod/{pod} in {namespace}"), cause))
    });
    found.collect()
}

/// By how much the samples of a counter moved, by their labels. What began anew counts from its beginning; of a first look that
/// has nothing at all nothing is known.
fn moved<'t>(before: &'t str, after: &'t str, series: &str) -> Vec<(&'t str, f64)> {
    if before.is_empty() {
        return Vec::new();
    }
    let old: BTreeMap<&str, f64> = samples(before, series).compact_collect();
    let grown = |(labels, new): (&'t str, f64)| {
        let old = old.get(labels).copied().filter(|old| *old <= new).unwrap_or_default();
        (labels, new - old)
    };
    samples(after, series).map(grown).collect()
}

/// The same of the API server. Two of them behind one address count each for themselves: of these nothing is known.
fn moved_in_api<'t>(facts: &'t Facts, series: &str) -> Vec<(&'t str, f64)> {
    let (before, after) = (&facts.before.api, &facts.after.api);
    if is_one_process(before, after) { moved(before, after, series) } else { Vec::new() }
}

/// Whether two texts are those of one process, as far as they say when it began.
fn is_one_process(before: &str, after: &str) -> bool {
    let began = |text| samples(text, "process_start_time_seconds").map(|(_, value)| value).next();
    began(before).zip(began(after)).is_none_or(|(before, after)| before == after)
}

/// Labels and value of each sample of a series in a text of metrics.
fn samples<'t>(text: &'t str, series: &str) -> impl Iterator<Item = (&'t str, f64)> {
    text.lines().filter_map(move |line| {
        let rest = line.strip_prefix(series)?;
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => rest.rsplit_once('}')?,
            None => ("", rest.strip_prefix(' ')?),
        };
        Some((labels, rest.split_whitespace().next()?.parse().ok()?))
    })
}

fn label<'t>(labels: &'t str, name: &str) -> Option<&'t str> {
    let start =
        labels.split_once(&format!("{name}=\"")).filter(|(before, _)| before.is_empty() || before.ends_with(','));
    start.and_then(|(_, rest)| rest.split('"').next())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn facts() -> Facts {
        let ready = json!({"metadata": {"name": "n1"}, "status": {"capacity": {"memory": "1000"},
            "conditions": [{"type": "Ready", "status": "True"}]}});
        Facts {
            now: Timestamp::UNIX_EPOCH,
            nodes: vec![serde_json::from_value(ready).unwrap()],
            pods: Vec::new(),
            history: History::default(),
            before: Look::default(),
            after: Look::default(),
        }
    }

    /// With one node, `n1`.
    fn look(api: &str, metrics: &str, cadvisor: &str) -> Look {
        let kubelets = BTreeMap::from([("n1".to_owned(), (metrics.to_owned(), cadvisor.to_owned()))]);
        Look { api: api.to_owned(), kubelets }
    }

    /// What, of what kind of thing, its name, and its values.
    type Told<'a> = (&'a str, &'a str, &'a str, Vec<(u64, f64)>);

    fn history(series: &[Told<'_>]) -> History {
        let series = series.iter().map(
            |(what, of, name, points)| json!({"what": what, "of": of, "namespace": "", "name": name, "points": points}),
        );
        serde_json::from_value(json!({"series": series.collect::<Vec<_>>()})).unwrap()
    }

    fn told(facts: &Facts) -> Vec<String> {
        findings(facts).into_iter().map(|(object, cause)| format!("{object}: {}", cause.summary)).collect()
    }

    #[test]
    fn a_calm_cluster_has_nothing_to_tell() {
        let mut calm = facts();
        let used = (0..60).map(|at| (at * 60, 40.0)).collect();
        calm.history = history(&[
            ("disk_used_bytes", "node", "n1", used),
            ("disk_size_bytes", "node", "n1", vec![(3540, 100.0)]),
            ("memory_bytes", "node", "n1", vec![(3540, 500.0)]),
            ("requests_per_second", "component", "kube-apiserver", vec![(3540, 10.0)]),
            ("errors_per_second", "component", "kube-apiserver", vec![(3540, 0.1)]),
        ]);
        calm.after = look("", "kubelet_certificate_manager_client_ttl_seconds +Inf\n", "");
        assert_eq!(told(&calm), Vec::<String>::new());
    }

    #[test]
    fn what_was_long_ago_is_over() {
        let mut calm = facts();
        // An image of half the disk was fetched in the first half hour, and a program used all memory for a minute.
        let disk = (0..120).map(|at| (at * 60, if at < 30 { 1000.0 + 100.0 * at as f64 } else { 4000.0 })).collect();
        let memory = (0..120).map(|at| (at * 60, if at == 119 { 999.0 } else { 300.0 })).collect();
        calm.history = history(&[
            ("disk_used_bytes", "node", "n1", disk),
            ("disk_size_bytes", "node", "n1", vec![(7140, 5000.0)]),
            ("memory_bytes", "node", "n1", memory),
            ("requests_per_second", "component", "kube-apiserver", vec![(60, 10.0), (7140, 1.0)]),
            ("errors_per_second", "component", "kube-apiserver", vec![(60, 9.0), (7140, 0.0)]),
            ("rejections_per_second", "component", "kube-apiserver", vec![(60, 9.0), (7140, 0.0)]),
        ]);
        let api = "apiserver_client_certificate_expiration_seconds_bucket{le=\"604800\"} 3\n\
                   apiserver_flowcontrol_rejected_requests_total{priority_level=\"small\"} 2\n";
        let cadvisor = "container_cpu_cfs_periods_total{container=\"c\",namespace=\"d\",pod=\"p\"} 1000\n\
                        container_cpu_cfs_throttled_periods_total{container=\"c\",namespace=\"d\",pod=\"p\"} 600\n";
        (calm.before, calm.after) = (look(api, "", cadvisor), look(api, "", &cadvisor.replace("1000", "1100")));
        assert_eq!(told(&calm), Vec::<String>::new());
        // Without a first look nothing is known to move.
        calm.before = Look::default();
        assert_eq!(told(&calm), Vec::<String>::new());
    }

    #[test]
    fn memory_that_fills_up_is_told_before_it_is_full() {
        let mut sick = facts();
        let used = (0..30).map(|at| (at * 60, 400.0 + 15.0 * at as f64)).collect();
        sick.history = history(&[("memory_bytes", "node", "n1", used)]);
        assert_eq!(told(&sick), ["node/n1: its memory is all in use in 11m at this rate"]);
    }

    #[test]
    fn what_is_seldom_measured_tells_as_much() {
        let mut sick = facts();
        // Ten minutes apart, as with 600 nodes.
        let used = (0..18).map(|at| (at * 600, 395.0 + 30.0 * at as f64)).collect();
        let disk = (0..18).map(|at| (at * 600, 2860.0 + (at * 60) as f64)).collect();
        sick.history = history(&[
            ("disk_used_bytes", "node", "n1", disk),
            ("disk_size_bytes", "node", "n1", vec![(10_200, 4003.0)]),
            ("memory_bytes", "node", "n1", used),
        ]);
        let expected = ["its disk is full in 20m at this rate", "its memory is all in use in 31m at this rate"];
        assert_eq!(told(&sick), expected.map(|summary| format!("node/n1: {summary}")));
        assert_eq!(unseen(&sick), Vec::<String>::new());
        sick.history = history(&[("memory_bytes", "node", "n1", vec![(60, 400.0), (120, 700.0)])]);
        sick.history.left_out = 7;
        assert_eq!((told(&sick).len(), unseen(&sick).len()), (0, 1));
    }

    #[test]
    fn counters_that_began_anew_count_from_their_beginning() {
        let before = "c_total{a=\"1\"} 10\nc_total{a=\"2\"} 10\n";
        let after = "c_total{a=\"1\"} 12\nc_total{a=\"2\"} 3\nc_total{a=\"3\"} 4\n";
        assert_eq!(moved(before, after, "c_total"), [("a=\"1\"", 2.0), ("a=\"2\"", 3.0), ("a=\"3\"", 4.0)]);
        assert!(moved("", after, "c_total").is_empty());
    }

    #[test]
    fn counters_of_two_servers_are_not_compared() {
        let api = |began: u32, count: u32| {
            format!(
                "apiserver_flowcontrol_rejected_requests_total{{priority_level=\"small\"}} {count}\n\
                 apiserver_client_certificate_expiration_seconds_bucket{{le=\"604800\"}} {count}\n\
                 process_start_time_seconds {began}\n"
            )
        };
        let mut two = facts();
        (two.before, two.after) = (look(&api(7, 1), "", ""), look(&api(7, 5), "", ""));
        assert_eq!((told(&two).len(), unseen(&two).len()), (2, 0));
        two.after = look(&api(9, 5), "", "");
        assert_eq!((told(&two).len(), unseen(&two).len()), (0, 1));
        // The first look got no answer: that is told where it is asked.
        two.before = Look::default();
        assert_eq!((told(&two).len(), unseen(&two).len()), (0, 0));
    }

    #[test]
    fn each_fault_is_told_with_its_next_step() {
        let mut sick = facts();
        // One byte a second, and 3600 left.
        let used = (0..60).map(|at| (at * 60, 2860.0 + (at * 60) as f64)).collect();
        sick.history = history(&[
            ("disk_used_bytes", "node", "n1", used),
            ("disk_size_bytes", "node", "n1", vec![(3540, 10_000.0)]),
            ("memory_bytes", "node", "n1", vec![(3480, 980.0), (3540, 990.0)]),
            ("requests_per_second", "component", "kube-apiserver", vec![(3540, 10.0)]),
            ("errors_per_second", "component", "kube-apiserver", vec![(3540, 2.0)]),
            ("rejections_per_second", "component", "kube-apiserver", vec![(3540, 1.0)]),
        ]);
        let api = "apiserver_client_certificate_expiration_seconds_bucket{le=\"604800\"} 3\n\
                    apiserver_flowcontrol_rejected_requests_total{flow_schema=\"a\",priority_level=\"small\",reason=\"queue-full\"} 2\n";
        let cadvisor = "container_cpu_cfs_periods_total{container=\"c\",namespace=\"d\",pod=\"p\"} 1000\n\
                        container_cpu_cfs_throttled_periods_total{container=\"c\",namespace=\"d\",pod=\"p\"} 600\n\
                        container_cpu_cfs_periods_total{container=\"calm\",namespace=\"d\",pod=\"p\"} 1000\n\
                        container_cpu_cfs_throttled_periods_total{container=\"calm\",namespace=\"d\",pod=\"p\"} 6\n";
        let claim = |what: &str, name: &str, value: u32| {
            format!("kubelet_volume_stats_{what}{{namespace=\"d\",persistentvolumeclaim=\"{name}\"}} {value}\n")
        };
        let metrics = "kubelet_certificate_manager_client_ttl_seconds 7200\n".to_owned()
            + &claim("capacity_bytes", "data", 1000)
            + &claim("available_bytes", "data", 20)
            + &claim("capacity_bytes", "roomy", 1000)
            + &claim("available_bytes", "roomy", 200)
            + &claim("inodes", "roomy", 100)
            + &claim("inodes_free", "roomy", 1)
            + &claim("health_status_abnormal", "roomy", 0)
            + &claim("health_status_abnormal", "data", 1);
        let shared = claim("capacity_bytes", "data", 1000)
            + &claim("available_bytes", "data", 20)
            + &claim("health_status_abnormal", "data;reboot", 1);
        sick.after = look(api, &metrics, cadvisor);
        sick.after.kubelets.insert("n2".into(), (shared, String::new()));
        sick.before = look("other 1\n", "", "other 1\n");
        let pod = |value: Value| serde_json::from_value::<Pod>(value).unwrap();
        sick.pods = vec![
            pod(json!({"metadata": {"name": "loop", "namespace": "d"}, "status": {"containerStatuses": [{
                "name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 7,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {"exitCode": 3}}}]}})),
            pod(json!({"metadata": {"name": "first", "namespace": "d"}, "status": {"initContainerStatuses": [{
                "name": "i", "image": "i", "imageID": "", "ready": false, "restartCount": 2,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}})),
            pod(json!({"metadata": {"name": "big", "namespace": "d"}, "status": {"conditions": [{
                "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}]}})),
        ];
        let expected = [
            "node/n1: its disk is full in 60m at this rate",
            "node/n1: its memory is nearly all in use",
            "pvc/data in d: its volume is nearly full",
            "pvc/roomy in d: its volume has hardly any files left to give",
            "pvc/data in d: its driver says that its volume is not well",
            "node/n1: the certificate that it is a client with ends in 2h",
            "api: clients use certificates that end within a week",
            "api: many requests fail",
            "prioritylevelconfiguration/small: this level of the API is saturated: requests are turned away",
            "pod/loop in d: a container ends as soon as it starts",
            "pod/first in d: a container ends as soon as it starts",
            "pod/big in d: no node takes it",
            "pod/p in d: a container is held back by its limit of CPU",
        ];
        assert_eq!(told(&sick), expected);
        assert!(findings(&sick).iter().all(|(_, cause)| !cause.next.is_empty()), "each has a next step");
    }
}
