//! Samples of what nodes and containers have used, and the rates between two of them. The kubelet in this process is asked
//! by a call, others over connections that are kept. `node_summary` reads what they answer.
//!
//! Invariant: nothing is sampled unless somebody asks (the history does so once a minute or less often), and however many ask, each
//! node is asked once in [`SAMPLE_INTERVAL`], or a few times more while a pod has just started or more is asked for.
//! Invariant: a window is shorter than [`MIN_WINDOW`] only for what is known for less than that. A round that comes early
//! because of one new pod does not shorten the windows of the others.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::Status;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};
use jiff::Timestamp;
use tokio::sync::Mutex;

use crate::cluster::Cluster;
use crate::node_summary::{self, Counts, MAX_COUNT, NodeCounts, Used};
use crate::remote::Place;
use crate::watch_cache::Entry;

/// An answer this young is given again, and one that lacks a pod which has just started as long as it is this young.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(10);
const NEW_POD_INTERVAL: Duration = Duration::from_secs(2);
/// An older sample is no beginning of a window for who wants to know how things are now.
pub(crate) const MAX_WINDOW: Duration = Duration::from_secs(90);
/// As long as a metrics-server's: less says little about a load that comes and goes. Somewhat less than the 15 seconds
/// between two looks of an autoscaler, because those do not come to the millisecond.
const MIN_WINDOW: Duration = Duration::from_secs(14);
/// How long to measure when there is no earlier sample.
const FIRST_WINDOW: Duration = Duration::from_secs(1);
/// A node that takes longer is left out, and so are those that were not asked before a round is over: two rounds have to
/// fit into one request.
const NODE_TIMEOUT: Duration = Duration::from_secs(5);
/// One that was late is not waited for so long again for a while: all who ask would wait for it each time.
const LATE_TIMEOUT: Duration = Duration::from_secs(1);
const LATE_PAUSE: Duration = Duration::from_secs(60);
const SCRAPE_INTERVAL: Duration = Duration::from_secs(15);
/// Nodes asked at a time. With many, one look at the sockets finds many answers.
const PARALLEL: usize = 64;

/// Rate in nanoseconds per second, and bytes in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) cpu: u64,
    pub(crate) memory: u64,
}

#[derive(Debug, Clone)]
struct Point {
    taken: Instant,
    counts: Arc<Counts>,
}

#[derive(Debug)]
struct NodeSample {
    time: Timestamp,
    node: Point,
    /// By namespace and name.
    pods: HashMap<(String, String), Point>,
    /// Bytes in use and bytes that there are.
    disk: Option<(u64, u64)>,
}

/// All nodes that answered, by name.
type Samples = BTreeMap<String, NodeSample>;

/// What came of asking a node.
enum Answer {
    Told(Box<NodeSample>),
    Failed,
    Late,
}

/// Nodes that were late, and since when.
#[derive(Debug, Default)]
struct Late(BTreeMap<String, Instant>);

impl Late {
    /// How long a node is waited for.
    fn limit(&self, node: &str, now: Instant) -> Duration {
        let since = self.0.get(node).map(|since| now.saturating_duration_since(*since));
        if since.is_some_and(|since| since < LATE_PAUSE) { LATE_TIMEOUT } else { NODE_TIMEOUT }
    }

    /// After a round in which these answered, and these were late. After a pause a node gets all of its time once.
    fn advance(&mut self, samples: &Samples, late: Vec<String>, now: Instant) {
        let is_recent = |since: &Instant| now.saturating_duration_since(*since) < LATE_PAUSE;
        self.0.retain(|node, since| is_recent(since) && !samples.contains_key(node));
        for node in late {
            self.0.entry(node).or_insert(now);
        }
    }
}

/// What a node or a pod used in its window.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rates {
    pub(crate) length: Duration,
    /// By container. A node has one, without a name.
    pub(crate) containers: BTreeMap<String, Usage>,
    /// Bytes received and sent per second.
    pub(crate) network: Option<(f64, f64)>,
}

impl Rates {
    pub(crate) fn total(&self) -> Usage {
        let sum =
            |one: fn(&Usage) -> u64| self.containers.values().map(one).fold(0, u64::saturating_add).min(MAX_COUNT);
        Usage { cpu: sum(|usage| usage.cpu), memory: sum(|usage| usage.memory) }
    }
}

/// What a node says of itself and of its pods. Windows differ in length, and end together.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Window {
    pub(crate) end: Timestamp,
    pub(crate) node: Option<Rates>,
    /// By namespace and name.
    pub(crate) pods: BTreeMap<(String, String), Rates>,
    /// Bytes in use and bytes that there are.
    pub(crate) disk: Option<(u64, u64)>,
}

/// Where the windows of one node or pod begin.
#[derive(Debug)]
struct Track {
    /// The beginning of the present window; none as long as that is `next`.
    start: Option<Point>,
    /// The beginning of the window after it.
    next: Point,
    /// The last point with a network: most questions are not about it.
    heard: Option<Point>,
}

impl Track {
    fn new(first: Point) -> Self {
        Self { start: None, heard: Some(first.clone()).filter(|first| first.counts.network.is_some()), next: first }
    }

    /// Goes on to a new point, with what was used until then. A count that began anew begins a new track.
    fn advance(before: Option<Self>, new: Point) -> (Self, Option<Rates>) {
        let Some(Self { start, next, heard }) = before else { return (Self::new(new), None) };
        let age = |point: &Point| new.taken.saturating_duration_since(point.taken);
        let (start, next) = if age(&next) >= MIN_WINDOW {
            (Some(next), new.clone())
        } else {
            (start.filter(|start| age(start) <= MAX_WINDOW), next)
        };
        match rates(start.as_ref().unwrap_or(&next), &new) {
            Some(rates) => {
                let network = heard.as_ref().and_then(|heard| traffic(heard, &new));
                let heard = if new.counts.network.is_some() { Some(new) } else { heard };
                (Self { start, next, heard }, Some(Rates { network, ..rates }))
            }
            None => (Self::new(new), None),
        }
    }
}

/// Bytes received and sent per second.
fn traffic(old: &Point, new: &Point) -> Option<(f64, f64)> {
    let length = new.taken.checked_duration_since(old.taken).filter(|length| !length.is_zero())?;
    let (old, new) = old.counts.network.zip(new.counts.network)?;
    let per_second = |old: u64, new: u64| Some(new.checked_sub(old)? as f64 / length.as_secs_f64());
    Some((per_second(old.0, new.0)?, per_second(old.1, new.1)?))
}

/// Without the network. None if a pod has taken the place of another, or if a count began anew in between.
fn rates(old: &Point, new: &Point) -> Option<Rates> {
    let length = new.taken.checked_duration_since(old.taken).filter(|length| !length.is_zero())?;
    let (old, new) = (&old.counts, &new.counts);
    if old.uid != new.uid {
        return None;
    }
    // A pod of which a container was not measured yet would seem to use less than it does.
    let usage = new.used.iter().map(|(name, used)| Some((name.clone(), rate(old.used.get(name)?, used, length)?)));
    let containers: BTreeMap<String, Usage> = usage.collect::<Option<_>>()?;
    (!containers.is_empty()).then_some(Rates { length, containers, network: None })
}

#[derive(Debug)]
struct NodePast {
    node: Track,
    pods: HashMap<(String, String), Track>,
}

impl NodePast {
    fn advance(before: Option<Self>, sample: NodeSample) -> (Self, Window) {
        let (node, mut pods) = before.map_or_else(Default::default, |before| (Some(before.node), before.pods));
        let (node, node_rates) = Track::advance(node, sample.node);
        let (mut tracks, mut pod_rates) = (HashMap::with_capacity(sample.pods.len()), BTreeMap::new());
        for (key, point) in sample.pods {
            let (track, rates) = Track::advance(pods.remove(&key), point);
            pod_rates.extend(rates.map(|rates| (key.clone(), rates)));
            tracks.insert(key, track);
        }
        let window = Window { end: sample.time, node: node_rates, pods: pod_rates, disk: sample.disk };
        (Self { node, pods: tracks }, window)
    }
}

#[derive(Default)]
struct Past {
    /// When the latest round ended, and what it asked for.
    latest: Option<(Instant, Question)>,
    nodes: BTreeMap<String, NodePast>,
    windows: Arc<BTreeMap<String, Window>>,
    /// Of the longest of them.
    length: Duration,
    late: Late,
}

impl Past {
    /// What did not answer in this round is forgotten.
    fn advance(&mut self, samples: Samples) {
        let mut before = std::mem::take(&mut self.nodes);
        let mut windows = BTreeMap::new();
        for (name, sample) in samples {
            let (past, window) = NodePast::advance(before.remove(&name), sample);
            self.nodes.insert(name.clone(), past);
            windows.insert(name, window);
        }
        let rates = windows.values().flat_map(|window| window.node.iter().chain(window.pods.values()));
        self.length = rates.map(|rates| rates.length).max().unwrap_or_default();
        self.windows = Arc::new(windows);
    }
}

/// What a kubelet is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Question {
    /// All that `metrics.k8s.io` tells. That is the cheapest summary to make; upstream's kubelet does not know of
    /// `without_pressure` and tells more.
    CpuAndMemory,
    /// Network and disk as well, but nothing that has to be looked for in the folders of pods. Upstream's kubelet does not
    /// know of that and answers in full.
    AllButFiles,
}

impl Question {
    fn path(self) -> &'static str {
        match self {
            Self::CpuAndMemory => "/stats/summary?only_cpu_and_memory=true&without_pressure=true",
            Self::AllButFiles => "/stats/summary?without_files=true",
        }
    }

    /// Whether an answer to this one is also one to the other.
    fn covers(self, other: Self) -> bool {
        self == Self::AllButFiles || other == Self::CpuAndMemory
    }
}

/// How often nodes are asked for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rounds {
    /// What they said last is good enough.
    None,
    One,
    /// There is no beginning of a window.
    Two,
}

/// What is known of the latest round.
#[derive(Debug, Clone, Copy)]
struct Latest {
    age: Duration,
    /// Whether it asked for as much.
    covers: bool,
    /// Of the longest window that it ended.
    length: Duration,
}

impl Rounds {
    fn needed(latest: Option<Latest>, longest: Duration, is_complete: impl FnOnce() -> bool) -> Self {
        let Some(Latest { age, covers, length }) = latest else { return Self::Two };
        // A window that is too long for this one begins anew with the latest round.
        let is_short = length <= longest;
        let is_enough = covers && is_short;
        match age {
            age if is_enough && age < NEW_POD_INTERVAL => Self::None,
            age if is_enough && age < SAMPLE_INTERVAL && is_complete() => Self::None,
            age if age < longest && (is_short || age >= FIRST_WINDOW) => Self::One,
            _ => Self::Two,
        }
    }
}

#[derive(Default)]
pub(crate) struct Sampler(Mutex<Past>);

impl Sampler {
    /// What every node used of late, by name of node. A window may be as long as `longest`: who asks more seldom than that is
    /// told of a second.
    pub(crate) async fn windows(
        &self,
        cluster: &Arc<Cluster>,
        question: Question,
        longest: Duration,
        is_complete: impl Fn(&BTreeMap<String, Window>) -> bool,
    ) -> Arc<BTreeMap<String, Window>> {
        let mut past = self.0.lock().await;
        let length = past.length;
        let latest =
            past.latest.map(|(at, asked)| Latest { age: at.elapsed(), covers: asked.covers(question), length });
        let first = match Rounds::needed(latest, longest, || is_complete(&past.windows)) {
            Rounds::None => return past.windows.clone(),
            Rounds::One => None,
            Rounds::Two => {
                let first = past.late.round(cluster, question).await;
                tokio::time::sleep(FIRST_WINDOW).await;
                Some(first)
            }
        };
        let latest = past.late.round(cluster, question).await;
        // Nothing is changed before the last round is done: a caller that leaves earlier takes nothing from the others.
        if let Some(first) = first {
            past.advance(first);
        }
        past.advance(latest);
        past.latest = Some((Instant::now(), question));
        past.windows.clone()
    }
}

/// None if the count began anew in between.
fn rate(old: &Used, new: &Used, length: Duration) -> Option<Usage> {
    let used = u128::from(new.cpu.checked_sub(old.cpu)?);
    let cpu = used * 1_000_000_000 / length.as_nanos().max(1);
    Some(Usage { cpu: u64::try_from(cpu).unwrap_or(u64::MAX).min(MAX_COUNT), memory: new.memory })
}

impl Late {
    async fn round(&mut self, cluster: &Arc<Cluster>, question: Question) -> Samples {
        let (samples, late) = sample(cluster, question, self).await;
        self.advance(&samples, late, Instant::now());
        samples
    }
}

/// What nodes say, and who was late.
async fn sample(cluster: &Arc<Cluster>, question: Question, late: &Late) -> (Samples, Vec<String>) {
    let nodes: Vec<String> = match cluster.caches.get("minions") {
        Some(cache) => {
            let snapshot = cache.snapshot();
            // A node that its kubelet does not report is not asked: it would only be waited for.
            let ready =
                snapshot.range(None, None).filter(|entry| entry.read_part::<Place>().is_ok_and(|node| node.is_ready()));
            ready.map(|node| node.name().to_owned()).collect()
        }
        None => Vec::new(),
    };
    let now = Instant::now();
    let one = |node: String| {
        let limit = late.limit(&node, now);
        sample_one(cluster.clone(), node, question, limit)
    };
    let asked: Vec<_> = nodes.into_iter().map(one).collect();
    let answers = stream::iter(asked).buffer_unordered(PARALLEL).take_until(tokio::time::sleep(SCRAPE_INTERVAL));
    let answers: Vec<(String, Answer)> = answers.collect().await;
    let (mut samples, mut late) = (Samples::new(), Vec::new());
    for (node, answer) in answers {
        match answer {
            Answer::Told(sample) => drop(samples.insert(node, *sample)),
            Answer::Failed => {}
            Answer::Late => late.push(node),
        }
    }
    (samples, late)
}

fn sample_one(
    cluster: Arc<Cluster>,
    node: String,
    question: Question,
    limit: Duration,
) -> BoxFuture<'static, (String, Answer)> {
    Box::pin(async move {
        let answer = match tokio::time::timeout(limit, ask(&cluster, &node, question)).await {
            Ok(Ok(sample)) => Answer::Told(Box::new(sample)),
            Ok(Err(error)) => {
                tracing::debug!(node, error = error.message, "no usage from this node");
                Answer::Failed
            }
            Err(_) => {
                tracing::debug!(node, "this node took too long to say what it uses");
                Answer::Late
            }
        };
        (node, answer)
    })
}

async fn ask(cluster: &Arc<Cluster>, node: &str, question: Question) -> Result<NodeSample, Status> {
    let text = cluster.own()?.ask_kubelet(node, question.path()).await?;
    let (taken, time) = (Instant::now(), crate::stamp::now());
    let pods = cluster.caches.get("pods");
    let is_own = |namespace: &str, name: &str| {
        let pod = pods.as_ref().and_then(|pods| pods.get(&[namespace, "/", name].concat()));
        pod.is_some_and(|pod| is_on(&pod, node))
    };
    let counts = node_summary::read(&text, is_own).map_err(Status::internal)?;
    Ok(NodeSample::new(counts, taken, time))
}

/// Whether a pod is bound to a node.
pub(crate) fn is_on(pod: &Entry, node: &str) -> bool {
    let found = crate::json::find(&pod.stored, &["spec", "nodeName"]);
    found.is_some_and(|found| crate::json::text(&pod.stored[found]) == node)
}

impl NodeSample {
    fn new(counts: NodeCounts, taken: Instant, time: Timestamp) -> Self {
        let point = |counts| Point { taken, counts: Arc::new(counts) };
        let NodeCounts { node, pods, disk } = counts;
        Self {
            time,
            node: point(node),
            pods: pods.into_iter().map(|(key, counts)| (key, point(counts))).collect(),
            disk,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn container(name: &str, cpu: u64, memory: u64) -> Value {
        json!({"name": name, "cpu": {"usageCoreNanoSeconds": cpu}, "memory": {"workingSetBytes": memory}})
    }

    fn at(summary: Value, seconds: u64, start: Instant) -> NodeSample {
        let counts = node_summary::read(summary.to_string().as_bytes(), |_, _| true).unwrap();
        NodeSample::new(counts, start + Duration::from_secs(seconds), Timestamp::UNIX_EPOCH)
    }

    fn key() -> (String, String) {
        ("n".to_owned(), "p".to_owned())
    }

    #[test]
    fn rates_are_those_of_the_window() {
        let start = Instant::now();
        let summary = |uid: &str, cpu: u64, containers: Vec<Value>| {
            let network = json!({"rxBytes": cpu, "txBytes": 2 * cpu});
            let pod = json!({"podRef": {"namespace": "n", "name": "p", "uid": uid}, "containers": containers,
                "network": network});
            let mut node = container("", cpu, 7);
            (node["network"], node["fs"]) = (network, json!({"capacityBytes": 100, "availableBytes": 60}));
            json!({"node": node, "pods": [pod]})
        };
        for (what, new, expected) in [
            (
                "same pod",
                ("1", vec![container("a", 4_500, 2), container("b", 900, 3)]),
                Some(vec![("a", 2_000, 2), ("b", 0, 3)]),
            ),
            ("another pod of that name", ("2", vec![container("a", 4_500, 2)]), None),
            ("a container that is new", ("1", vec![container("a", 4_500, 2), container("c", 9, 3)]), None),
            ("a container that began anew", ("1", vec![container("a", 4, 2)]), None),
        ] {
            let old = at(summary("1", 1_000, vec![container("a", 500, 1), container("b", 900, 1)]), 0, start);
            let (past, first) = NodePast::advance(None, old);
            assert_eq!((first.node, first.pods.len()), (None, 0), "one count has no rate");
            let (_, found) = NodePast::advance(Some(past), at(summary(new.0, 5_000, new.1), 2, start));
            let node = found.node.unwrap();
            assert_eq!(node.total(), Usage { cpu: 2_000, memory: 7 }, "{what}");
            assert_eq!(node.length, Duration::from_secs(2));
            assert_eq!((node.network, found.disk), (Some((2_000.0, 4_000.0)), Some((40, 100))), "{what}");
            let pod = found.pods.get(&key());
            assert_eq!(pod.map(|pod| pod.network), expected.as_ref().map(|_| Some((2_000.0, 4_000.0))), "{what}");
            let pod = pod.map(|pod| pod.containers.iter().map(|(name, u)| (name.as_str(), u.cpu, u.memory)).collect());
            assert_eq!(pod, expected, "{what}");
        }
    }

    #[test]
    fn questions_about_less_leave_the_network_to_those_about_more() {
        use Question::{AllButFiles, CpuAndMemory};
        assert!(AllButFiles.covers(CpuAndMemory) && CpuAndMemory.covers(CpuAndMemory));
        assert!(!CpuAndMemory.covers(AllButFiles) && AllButFiles.covers(AllButFiles));
        let (start, mut past, mut told) = (Instant::now(), None, Vec::new());
        for (second, network) in [(0, Some(1000)), (15, None), (30, None), (60, Some(7000)), (75, None)] {
            let mut node = container("", second * 10, 7);
            if let Some(bytes) = network {
                node["network"] = json!({"rxBytes": bytes, "txBytes": 2 * bytes});
            }
            let (next, window) = NodePast::advance(past, at(json!({"node": node}), second, start));
            past = Some(next);
            told.push(window.node.and_then(|node| node.network));
        }
        assert_eq!(told, [None, None, None, Some((100.0, 200.0)), None]);
    }

    #[test]
    fn a_node_that_was_late_is_not_waited_for_so_long_again() {
        let (start, mut late) = (Instant::now(), Late::default());
        let after = |seconds| start + Duration::from_secs(seconds);
        let named = |node: &str| vec![node.to_owned()];
        assert_eq!(late.limit("a", start), NODE_TIMEOUT);
        late.advance(&Samples::new(), named("a"), start);
        assert_eq!((late.limit("a", after(15)), late.limit("b", after(15))), (LATE_TIMEOUT, NODE_TIMEOUT));
        // Late again: its pause goes on as it began.
        late.advance(&Samples::new(), named("a"), after(50));
        assert_eq!((late.limit("a", after(59)), late.limit("a", after(60))), (LATE_TIMEOUT, NODE_TIMEOUT));
        late.advance(&Samples::new(), named("a"), after(65));
        assert_eq!(late.limit("a", after(80)), LATE_TIMEOUT);
        // It answers.
        late.advance(&Samples::from([("a".to_owned(), at(json!({"node": {}}), 0, start))]), Vec::new(), after(81));
        assert_eq!((late.limit("a", after(82)), late.0.len()), (NODE_TIMEOUT, 0));
    }

    /// Rounds at these seconds, of pods that are there from a second on; what each round says of the length of each window.
    fn lengths(rounds: &[u64], pods: &[(&str, u64)]) -> Vec<Vec<Option<u64>>> {
        let (start, mut past) = (Instant::now(), Past::default());
        let mut found = Vec::new();
        for &round in rounds {
            let there = pods.iter().filter(|(_, since)| *since <= round);
            let pods_there: Vec<Value> = there
                .map(|(name, _)| {
                    json!({"podRef": {"namespace": "n", "name": name, "uid": name},
                        "containers": [container("c", round * 1_000_000, 1)]})
                })
                .collect();
            let summary = json!({"node": container("", round * 1_000_000, 1), "pods": pods_there});
            past.advance(Samples::from([("node".to_owned(), at(summary, round, start))]));
            let window = &past.windows["node"];
            let of_pods = pods.iter().map(|(name, _)| window.pods.get(&("n".to_owned(), (*name).to_owned())));
            let all = std::iter::once(window.node.as_ref()).chain(of_pods);
            found.push(all.map(|rates| rates.map(|rates| rates.length.as_secs())).collect());
            // Everybody uses a thousandth of a core all the time, however long it is measured.
            let mut rates = window.node.iter().chain(window.pods.values());
            assert!(rates.all(|rates| rates.total().cpu == 1_000_000), "{window:?}");
        }
        found
    }

    #[test]
    fn a_new_pod_does_not_shorten_the_windows_of_the_others() {
        let found = lengths(&[0, 10, 12, 14, 20, 30], &[("old", 0), ("new", 12)]);
        assert_eq!(
            found,
            [
                vec![None, None, None],
                vec![Some(10), Some(10), None],
                vec![Some(12), Some(12), None],
                // The new one is told at once, in a window of its own.
                vec![Some(14), Some(14), Some(2)],
                vec![Some(20), Some(20), Some(8)],
                vec![Some(16), Some(16), Some(18)],
            ]
        );
    }

    #[test]
    fn windows_stay_short_however_often_pods_start() {
        let rounds: Vec<u64> = (0..60).map(|round| 2 * round).collect();
        let found = lengths(&rounds, &[("old", 0)]);
        let longest = found.iter().flatten().flatten().max().copied().unwrap();
        assert!(longest < 2 * MIN_WINDOW.as_secs() + 2, "{longest}");
        let shortest = found.iter().skip(7).flatten().flatten().min().copied().unwrap();
        assert!(shortest >= MIN_WINDOW.as_secs(), "{shortest}");
    }

    #[test]
    fn a_start_that_is_too_old_is_given_up() {
        let found = lengths(&[0, 85, 92], &[("old", 0)]);
        assert_eq!(found[1..], [vec![Some(85), Some(85)], vec![Some(7), Some(7)]]);
        // Two rounds after a long time.
        let found = lengths(&[0, 200, 201], &[("old", 0)]);
        assert_eq!(found[2], [Some(1), Some(1)]);
    }

    /// The history of many nodes asks every few minutes.
    #[test]
    fn who_asks_seldom_is_told_of_all_that_was_between() {
        let found = lengths(&[0, 240, 480, 481], &[("old", 0)]);
        assert_eq!(found[1..3], [vec![Some(240), Some(240)], vec![Some(240), Some(240)]]);
        assert_eq!(found[3], [Some(1), Some(1)], "and nobody else");
        let seconds = Duration::from_secs;
        for (latest, longest, is_complete, expected) in [
            (None, 90, true, Rounds::Two),
            (Some((1, true, 15)), 90, false, Rounds::None),
            (Some((1, false, 15)), 90, true, Rounds::One),
            (Some((9, true, 15)), 90, true, Rounds::None),
            (Some((9, true, 15)), 90, false, Rounds::One),
            (Some((89, true, 15)), 90, true, Rounds::One),
            (Some((120, true, 15)), 90, true, Rounds::Two),
            (Some((120, true, 240)), 240, true, Rounds::One),
            (Some((241, false, 240)), 240, true, Rounds::Two),
            // The history has just asked.
            (Some((0, true, 240)), 90, true, Rounds::Two),
            (Some((1, true, 240)), 90, true, Rounds::One),
        ] {
            let of = |(age, covers, length)| Latest { age: seconds(age), covers, length: seconds(length) };
            let found = Rounds::needed(latest.map(of), seconds(longest), || is_complete);
            assert_eq!(found, expected, "{latest:?} {longest}");
        }
    }

    #[test]
    fn a_count_that_began_anew_begins_a_window() {
        let start = Instant::now();
        let pod = |cpu| {
            json!({"node": container("", 7, 7), "pods": [{"podRef": {"namespace": "n", "name": "p", "uid": "1"},
                "containers": [container("a", cpu, 1)]}]})
        };
        let mut past = None;
        let mut told = Vec::new();
        for (second, cpu) in [(0, 1_000), (10, 2_000), (20, 100), (22, 300), (24, 500)] {
            let (next, window) = NodePast::advance(past, at(pod(cpu), second, start));
            past = Some(next);
            told.push(window.pods.get(&key()).map(|pod| (pod.length.as_secs(), pod.total().cpu)));
        }
        assert_eq!(told, [None, Some((10, 100)), None, Some((2, 100)), Some((4, 100))]);
    }
}
