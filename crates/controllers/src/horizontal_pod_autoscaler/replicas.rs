//! How many replicas a metric asks for. Plain functions of samples, pods and the time.
//!
//! Pods without a sample never cause a decision of their own: when the others ask for fewer, they count as fully used; when the
//! others ask for more, as idle. If that turns the decision round, nothing changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::cached::Pod;
use api::meta::Meta as _;
use api::pod::resources::{self, Side};
use api::quantity::Quantity;
use jiff::Timestamp;

use super::error::{Error, Result};
use crate::pods;

/// How far a ratio may be from 1 without anything happening.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Tolerances {
    pub(super) down: f64,
    pub(super) up: f64,
}

impl Tolerances {
    pub(super) fn cover(self, ratio: f64) -> bool {
        (1.0 - self.down) <= ratio && ratio <= (1.0 + self.up)
    }
}

/// Times during which a pod's CPU says nothing about its load.
#[derive(Debug, Clone, Copy)]
pub(super) struct Start {
    /// After the start, samples count only from pods that are ready and were measured since.
    pub(super) cpu_initialization: Duration,
    /// A pod that was unready since this long after its start was never ready.
    pub(super) initial_readiness: Duration,
}

/// A shorter window counts as this long. Of a pod that has just started, this cluster's own API server tells more than
/// a metrics-server would, over as little as two seconds. Beside the longer windows of the others, which still hold the
/// load that it has taken from them, that load would count twice.
const SHORTEST_WINDOW: Duration = Duration::from_secs(15);
/// A shorter window says nothing about load at all: it is told where nobody had asked before. Zero is the window of servers
/// of others that do not tell how long it was.
const LEAST_WINDOW: Duration = Duration::from_secs(5);

/// What one pod uses, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sample {
    pub(super) value: i64,
    pub(super) timestamp: Timestamp,
    pub(super) window: Duration,
}

pub(super) type Samples = BTreeMap<String, Sample>;

/// What a metric asks for, and what was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Proposal {
    pub(super) replicas: i32,
    /// Percent of what the pods request; only where that was asked for.
    pub(super) utilization: Option<i32>,
    /// Thousandths per pod, or of the one value.
    pub(super) value: i64,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Groups<'a> {
    ready: usize,
    unready: BTreeSet<&'a str>,
    missing: BTreeSet<&'a str>,
    ignored: BTreeSet<&'a str>,
}

fn group<'a>(pods: &'a [Arc<Pod>], samples: &Samples, is_cpu: bool, start: Start, now: Timestamp) -> Groups<'a> {
    let mut groups = Groups::default();
    for pod in pods {
        let name = pod.metadata.name();
        if pods::is_terminating(pod) || pods::phase(pod) == "Failed" {
            groups.ignored.insert(name);
        } else if pods::phase(pod) == "Pending" {
            groups.unready.insert(name);
        } else {
            match samples.get(name) {
                None => _ = groups.missing.insert(name),
                Some(sample) if is_cpu && is_moment(sample.window) => _ = groups.missing.insert(name),
                Some(sample) if is_cpu && is_starting(pod, sample, start, now) => _ = groups.unready.insert(name),
                Some(_) => groups.ready += 1,
            }
        }
    }
    groups
}

fn is_moment(window: Duration) -> bool {
    !window.is_zero() && window < LEAST_WINDOW
}

/// Whether what `pod` uses now is the work of its start rather than load.
fn is_starting(pod: &Pod, sample: &Sample, start: Start, now: Timestamp) -> bool {
    let started = pod.status.as_ref().and_then(|status| status.start_time.as_ref()).map(|time| time.0);
    let (Some(condition), Some(started)) = (pods::condition(pod, "Ready"), started) else { return true };
    let is_unready = condition.status == "False";
    let Some(changed) = condition.last_transition_time.as_ref().map(|time| time.0) else { return is_unready };
    if now < later(started, start.cpu_initialization) {
        is_unready || sample.timestamp < later(changed, sample.window.max(SHORTEST_WINDOW))
    } else {
        is_unready && changed < later(started, start.initial_readiness)
    }
}

fn later(time: Timestamp, by: Duration) -> Timestamp {
    time.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// Thousandths of `resource` that each pod requests, in all containers that run beside each other or in one of them.
fn requests(pods: &[Arc<Pod>], resource: &str, container: Option<&str>) -> Result<BTreeMap<String, i64>> {
    let mut requests = BTreeMap::new();
    for pod in pods {
        let name = pod.metadata.name().to_owned();
        let Some(spec) = &pod.spec else { continue };
        let whole = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        let is_set_for_whole = whole.is_some_and(|whole| whole.keys().any(|name| resources::is_pod_level(name)));
        if is_set_for_whole && container.is_none() {
            let all = resources::with_overhead(spec, Side::Requests);
            let request = all.get(resource).map(Quantity::milli_value);
            let missing = || Error::NoPodRequest { resource: resource.to_owned(), pod: name.clone() };
            requests.insert(name.clone(), request.ok_or_else(missing)?);
            continue;
        }
        let sidecars = spec.init_containers.iter().flatten().filter(|container| api::pod::is_sidecar(container));
        let running = spec.containers.iter().chain(sidecars);
        let counted: Vec<_> = running.filter(|one| container.is_none_or(|name| name == one.name)).collect();
        if let (Some(container), true) = (container, counted.is_empty()) {
            return Err(Error::NoContainer { container: container.to_owned(), pod: name });
        }
        let mut sum = 0_i64;
        for one in counted {
            let request = one.resources.as_ref().and_then(|resources| resources.requests.as_ref()?.get(resource));
            let Some(request) = request else {
                return Err(Error::NoRequest { resource: resource.to_owned(), container: one.name.clone(), pod: name });
            };
            sum = sum.saturating_add(Quantity::try_from(request)?.milli_value());
        }
        requests.insert(name, sum);
    }
    Ok(requests)
}

/// What samples are measured against.
enum Scale {
    /// Percent of what each pod requests.
    Requests { of: BTreeMap<String, i64>, percent: i32 },
    /// Thousandths per pod.
    Value(i64),
}

struct Measured {
    ratio: f64,
    utilization: Option<i32>,
    value: i64,
}

impl Scale {
    fn measure(&self, samples: &Samples) -> Result<Measured> {
        let mean = |total: i128, count: usize| i64::try_from(total / count.max(1) as i128).unwrap_or(i64::MAX);
        match self {
            Scale::Requests { of, percent } => {
                let known = samples.iter().filter_map(|(name, sample)| Some((sample.value, *of.get(name)?)));
                let (mut used, mut requested, mut count) = (0_i128, 0_i128, 0);
                for (value, request) in known {
                    used += i128::from(value);
                    requested += i128::from(request);
                    count += 1;
                }
                if requested == 0 {
                    return Err(Error::NoKnownPods);
                }
                let utilization = (used * 100 / requested).clamp(i32::MIN.into(), i32::MAX.into()) as i32;
                let ratio = f64::from(utilization) / f64::from(*percent);
                Ok(Measured { ratio, utilization: Some(utilization), value: mean(used, count) })
            }
            Scale::Value(target) => {
                let total = samples.values().map(|sample| i128::from(sample.value)).sum();
                let value = mean(total, samples.len());
                Ok(Measured { ratio: value as f64 / *target as f64, utilization: None, value })
            }
        }
    }

    /// What a pod without a sample counts as while the others ask for fewer.
    fn fully_used(&self, pod: &str) -> i64 {
        match self {
            Scale::Requests { of, percent } => {
                let request = of.get(pod).copied().unwrap_or(0);
                request.saturating_mul(i64::from((*percent).max(100))) / 100
            }
            Scale::Value(target) => *target,
        }
    }
}

/// The pods of a target and what is known about them.
pub(super) struct Measurement<'a> {
    pub(super) pods: &'a [Arc<Pod>],
    pub(super) samples: Samples,
    pub(super) current: i32,
    pub(super) tolerances: Tolerances,
    pub(super) start: Start,
    pub(super) now: Timestamp,
}

impl Measurement<'_> {
    /// For a target in percent of requests.
    pub(super) fn utilization(self, resource: &str, container: Option<&str>, percent: i32) -> Result<Proposal> {
        let pods = self.pods;
        let scale = || Ok(Scale::Requests { of: requests(pods, resource, container)?, percent });
        self.propose(resource == "cpu", scale)
    }

    /// For a target in thousandths per pod; `resource` is empty for metrics that are none.
    pub(super) fn per_pod(self, resource: &str, target: i64) -> Result<Proposal> {
        self.propose(resource == "cpu", || Ok(Scale::Value(target)))
    }

    fn propose(mut self, is_cpu: bool, scale: impl FnOnce() -> Result<Scale>) -> Result<Proposal> {
        if self.pods.is_empty() {
            return Err(Error::NoPods);
        }
        let groups = group(self.pods, &self.samples, is_cpu, self.start, self.now);
        let left_out = [&groups.ignored, &groups.unready, &groups.missing];
        self.samples.retain(|name, _| !left_out.iter().any(|group| group.contains(name.as_str())));
        if self.samples.is_empty() {
            return Err(Error::NoSamples);
        }
        let scale = scale()?;
        let seen = scale.measure(&self.samples)?;
        let propose = |replicas| Proposal { replicas, utilization: seen.utilization, value: seen.value };
        let grows_with_unready = !groups.unready.is_empty() && seen.ratio > 1.0;
        if !grows_with_unready && groups.missing.is_empty() {
            let is_near = self.tolerances.cover(seen.ratio);
            return Ok(propose(if is_near { self.current } else { ceil(seen.ratio * groups.ready as f64) }));
        }
        let assumed = |value| Sample { value, timestamp: self.now, window: Duration::ZERO };
        // Where the others are just at the target, nothing is assumed: as idle, the missing would make it shrink.
        if seen.ratio != 1.0 {
            for pod in &groups.missing {
                let value = if seen.ratio < 1.0 { scale.fully_used(pod) } else { 0 };
                self.samples.insert((*pod).to_owned(), assumed(value));
            }
        }
        if grows_with_unready {
            self.samples.extend(groups.unready.iter().map(|pod| ((*pod).to_owned(), assumed(0))));
        }
        let ratio = scale.measure(&self.samples)?.ratio;
        let turned = (seen.ratio < 1.0 && ratio > 1.0) || (seen.ratio > 1.0 && ratio < 1.0);
        if self.tolerances.cover(ratio) || turned {
            return Ok(propose(self.current));
        }
        let replicas = ceil(ratio * self.samples.len() as f64);
        let against = (ratio < 1.0 && replicas > self.current) || (ratio > 1.0 && replicas < self.current);
        Ok(propose(if against { self.current } else { replicas }))
    }
}

/// For a target that one value for all pods has.
pub(super) fn whole(
    value: i64,
    target: i64,
    current: i32,
    tolerances: Tolerances,
    pods: &[Arc<Pod>],
) -> Result<Proposal> {
    let ratio = value as f64 / target as f64;
    let replicas = if current == 0 {
        ceil(ratio)
    } else if tolerances.cover(ratio) {
        current
    } else if pods.is_empty() {
        return Err(Error::NoReadyPods);
    } else {
        let ready = pods.iter().filter(|pod| pods::phase(pod) == "Running" && pods::is_ready(pod)).count();
        ceil(ratio * ready as f64)
    };
    Ok(Proposal { replicas, utilization: None, value })
}

/// For a target that each pod's share of one value has.
pub(super) fn shared(value: i64, target: i64, replicas: i32, tolerances: Tolerances) -> Proposal {
    let ratio = value as f64 / (target as f64 * f64::from(replicas));
    let wanted = if tolerances.cover(ratio) { replicas } else { ceil(value as f64 / target as f64) };
    // What is too large to be counted has no shares.
    let has_shares = replicas > 0 && value < i64::MAX;
    let share = if has_shares { (value as f64 / f64::from(replicas)).ceil() as i64 } else { value };
    Proposal { replicas: wanted, utilization: None, value: share }
}

/// Which of the sizes that the metrics ask for counts: the highest. Where some could not be asked, only if it is not lower
/// than what there is (`computeReplicasForMetrics`, v1.36).
pub(super) fn choose(sizes: &[Option<i32>], current: i32) -> Option<usize> {
    let mut best: Option<(usize, i32)> = None;
    for (at, size) in sizes.iter().enumerate() {
        if let Some(size) = *size
            && best.is_none_or(|(_, highest)| highest == 0 || size > highest)
        {
            best = Some((at, size));
        }
    }
    let are_all_known = sizes.iter().all(Option::is_some);
    best.filter(|(_, size)| are_all_known || *size >= current).map(|(at, _)| at)
}

/// Rounded up; numbers that are none, or too large, end at the bounds.
fn ceil(number: f64) -> i32 {
    number.ceil() as i32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::tests::{Builder, at};
    use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity as RawQuantity;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    const TENTH: Tolerances = Tolerances { down: 0.1, up: 0.1 };
    const START: Start =
        Start { cpu_initialization: Duration::from_secs(300), initial_readiness: Duration::from_secs(30) };
    const NOW: i64 = 10_000;

    /// `r` ready, `p` pending, `u` unready since its start, `f` failed, `s` started a moment ago, `d` being deleted.
    fn pods(states: &str) -> Vec<Arc<Pod>> {
        let pod = |(index, state): (usize, char)| {
            let mut pod = Builder::new(&format!("p{index}")).phase("Running").ready(at(1000)).build().as_ref().clone();
            let status = pod.status.get_or_insert_default();
            status.start_time = Some(Time(at(990)));
            match state {
                'p' => status.phase = Some("Pending".into()),
                'f' => status.phase = Some("Failed".into()),
                's' => status.start_time = Some(Time(at(NOW - 10))),
                _ => {}
            }
            if "us".contains(state) {
                let ready =
                    status.conditions.iter_mut().flatten().find(|condition| condition.type_ == "Ready").unwrap();
                ready.status = "False".into();
                ready.last_transition_time = status.start_time.clone();
            }
            if state == 'd' {
                pod.metadata.deletion_timestamp = Some(Time(at(NOW)));
            }
            let requests = [("cpu".to_owned(), RawQuantity("1".into()))].into();
            pod.spec.get_or_insert_default().containers = vec![Container {
                name: "c".into(),
                resources: Some(ResourceRequirements { requests: Some(requests), ..ResourceRequirements::default() }),
                ..Container::default()
            }];
            Arc::new(pod)
        };
        states.chars().enumerate().map(pod).collect()
    }

    fn measurement<'a>(pods: &'a [Arc<Pod>], values: &[Option<i64>], current: i32) -> Measurement<'a> {
        let sample = |value| Sample { value, timestamp: at(NOW), window: Duration::from_secs(30) };
        let samples = values.iter().enumerate().filter_map(|(i, value)| Some((format!("p{i}"), sample((*value)?))));
        Measurement { pods, samples: samples.collect(), current, tolerances: TENTH, start: START, now: at(NOW) }
    }

    #[test]
    fn utilization_of_requests() {
        for (what, states, values, percent, expected) in [
            ("up", "rrr", vec![Some(300), Some(500), Some(700)], 30, Ok((5, 50))),
            ("down", "rrrrr", vec![Some(100), Some(300), Some(500), Some(250), Some(250)], 50, Ok((3, 28))),
            ("near enough", "rrr", vec![Some(1010), Some(1030), Some(1020)], 100, Ok((3, 102))),
            ("unready count as idle", "rru", vec![Some(900), Some(900), Some(900)], 30, Ok((6, 90))),
            ("pending count as idle", "rrp", vec![Some(500), Some(700), None], 30, Ok((4, 60))),
            ("starting count as idle", "rrs", vec![Some(900), Some(900), Some(900)], 30, Ok((6, 90))),
            ("failed do not count", "rrf", vec![Some(500), Some(700), None], 30, Ok((4, 60))),
            ("idle pods stop the growth", "rrpp", vec![Some(500), Some(700), None, None], 50, Ok((4, 60))),
            ("missing ones hold back a shrink", "rrr", vec![Some(100), Some(450), None], 100, Ok((2, 27))),
            ("missing ones count as idle in growth", "rrr", vec![Some(1000), Some(1000), None], 50, Ok((4, 100))),
            ("missing ones change nothing at the target", "rrr", vec![Some(500), Some(500), None], 50, Ok((3, 50))),
            ("far less than nothing", "rr", vec![Some(i64::MIN), Some(i64::MIN)], 50, Ok((-85_899_345, i32::MIN))),
            ("all missing", "rr", vec![None, None], 50, Err(Error::NoSamples)),
            ("no pods", "", vec![], 50, Err(Error::NoPods)),
        ] {
            let pods = pods(states);
            let found = measurement(&pods, &values, states.len() as i32).utilization("cpu", None, percent);
            let found = found.map(|proposal| (proposal.replicas, proposal.utilization.unwrap()));
            let said = |error: Error| error.to_string();
            assert_eq!(found.map_err(said), expected.map_err(said), "{what}");
        }
    }

    /// Upstream's published cases (`replica_calculator_test.go`, v1.36) in which the target has another size than there are
    /// pods, or pods and samples do not fit together.
    #[test]
    fn pods_that_are_not_counted() {
        for (what, states, values, current, percent, expected) in [
            ("one ready pod is not enough", "ruu", &[400, 500, 700][..], 3, 30, Ok((3, 40))),
            ("nor with starting ones", "rss", &[400, 500, 700], 3, 30, Ok((3, 40))),
            ("pods that go", "rrdd", &[500, 700], 2, 30, Ok((4, 60))),
            ("pods that go and still run", "rrrrrdd", &[100, 300, 500, 250, 250], 5, 50, Ok((3, 28))),
            ("down without unready", "rrruu", &[100, 300, 500, 250, 250], 5, 50, Ok((2, 30))),
            ("down without starting", "rrrss", &[100, 300, 500, 250, 250], 5, 50, Ok((2, 30))),
            ("down without unscheduled", "rpppp", &[100], 5, 50, Ok((1, 10))),
            ("samples of unknown pods", "rrrr", &[4000, 9500, 3000, 7000, 3200, 2000], 4, 100, Ok((24, 587))),
            ("no growth by one of two", "rr", &[1900], 2, 100, Ok((2, 190))),
            ("no shrink by one of two", "rr", &[600], 2, 100, Ok((2, 60))),
            ("unready and missing, near", "urr", &[100, 450], 3, 50, Ok((3, 45))),
            ("starting and missing, near", "srr", &[100, 450], 3, 50, Ok((3, 45))),
            ("unready and missing, up", "urr", &[100, 2000], 3, 50, Ok((4, 200))),
            ("starting and missing, up", "srr", &[100, 2000], 3, 50, Ok((4, 200))),
            ("unready and missing, down", "urrr", &[100, 100, 100], 4, 50, Ok((3, 10))),
            ("a target above what is requested", "urrr", &[200, 100, 100], 4, 300, Ok((2, 10))),
            ("more pods than replicas in an update", "rrr", &[100, 100], 2, 50, Ok((2, 10))),
        ] {
            let pods = pods(states);
            let values: Vec<Option<i64>> = values.iter().copied().map(Some).collect();
            let found = measurement(&pods, &values, current).utilization("cpu", None, percent);
            let found = found.map(|proposal| (proposal.replicas, proposal.utilization.unwrap()));
            assert_eq!(found.map_err(|error: Error| error.to_string()), expected, "{what}");
        }
        let one = pods("r");
        let found = measurement(&one, &[None, Some(100)], 1).utilization("cpu", None, 100);
        assert!(matches!(found, Err(Error::NoKnownPods)), "samples of other pods only");
    }

    /// A pod takes a third of the load from another. Until both are measured over the same time, that third is in both.
    #[test]
    fn load_that_moves_to_a_new_pod_counts_once() {
        for (ready_for, window, expected) in [(3, 6, 2), (14, 8, 2), (15, 15, 3), (20, 30, 2), (30, 30, 3)] {
            let mut pods = pods("rr");
            let mut new = pods[1].as_ref().clone();
            let status = new.status.get_or_insert_default();
            status.start_time = Some(Time(at(NOW - ready_for - 1)));
            let ready = status.conditions.iter_mut().flatten().find(|condition| condition.type_ == "Ready").unwrap();
            ready.last_transition_time = Some(Time(at(NOW - ready_for)));
            pods[1] = Arc::new(new);
            let mut measured = measurement(&pods, &[Some(900), Some(300)], 2);
            measured.samples.get_mut("p1").unwrap().window = Duration::from_secs(window);
            let found = measured.utilization("cpu", None, 50).unwrap();
            assert_eq!(found.replicas, expected, "ready for {ready_for} s, measured for {window} s");
        }
    }

    /// Upstream's published cases (`TestGroupPods`, v1.36) of one pod that has a sample.
    #[test]
    fn samples_of_a_start_do_not_count() {
        for (what, is_cpu, status, started, changed, measured, window, is_counted) in [
            ("memory counts from the start", false, None, 1, 1, 0, 60, true),
            ("not known to be ready", true, None, 60, 60, 0, 30, false),
            ("measured since it is ready", true, Some("True"), 60, 30, 0, 30, true),
            ("measured in part before", true, Some("True"), 60, 30, 0, 60, false),
            ("not ready yet", true, Some("False"), 120, 114, 0, 30, false),
            ("an old sample, after the start", true, Some("True"), 600, 180, 120, 60, true),
            ("was ready, after the start", true, Some("False"), 600, 540, 0, 30, true),
            ("never ready, after the start", true, Some("False"), 600, 590, 0, 30, false),
        ] {
            let mut pod = pods("r")[0].as_ref().clone();
            let state = pod.status.get_or_insert_default();
            state.start_time = Some(Time(at(NOW - started)));
            match status {
                None => state.conditions = None,
                Some(status) => {
                    let ready = state.conditions.iter_mut().flatten().find(|one| one.type_ == "Ready").unwrap();
                    ready.status = status.into();
                    ready.last_transition_time = Some(Time(at(NOW - changed)));
                }
            }
            let sample = Sample { value: 1, timestamp: at(NOW - measured), window: Duration::from_secs(window) };
            let (pods, samples) = ([Arc::new(pod)], Samples::from([("p0".to_owned(), sample)]));
            let groups = group(&pods, &samples, is_cpu, START, at(NOW));
            assert_eq!((groups.ready, groups.unready.len()), if is_counted { (1, 0) } else { (0, 1) }, "{what}");
        }
    }

    #[test]
    fn nothing_is_decided_by_a_moment() {
        let pods = pods("rr");
        for (windows, expected) in [([30, 30], Some(4)), ([30, 1], Some(2)), ([1, 1], None), ([0, 0], Some(4))] {
            let mut measured = measurement(&pods, &[Some(900), Some(900)], 2);
            for (sample, window) in measured.samples.values_mut().zip(windows) {
                sample.window = Duration::from_secs(window);
            }
            let found = measured.utilization("cpu", None, 50).ok();
            assert_eq!(found.map(|found| found.replicas), expected, "{windows:?}");
        }
    }

    /// Upstream's published cases (`horizontal_test.go`, v1.36) of autoscalers with several metrics.
    #[test]
    fn the_highest_counts_and_nothing_shrinks_on_missing_data() {
        for (what, sizes, current, expected) in [
            ("the highest", &[Some(4), Some(6), Some(5)][..], 3, Some(1)),
            ("the first of equals", &[Some(4), Some(4)], 3, Some(0)),
            ("all ask for fewer", &[Some(1), Some(2)], 3, Some(1)),
            ("to zero", &[Some(0)], 3, Some(0)),
            ("growth with one invalid", &[None, Some(4)], 3, Some(1)),
            ("growth from zero with one invalid", &[None, Some(3)], 0, Some(1)),
            ("as many with one invalid", &[Some(3), None], 3, Some(0)),
            ("no shrink with one invalid", &[Some(2), None], 5, None),
            ("not to zero either", &[None, Some(0)], 5, None),
            ("both invalid", &[None, None], 3, None),
            ("nothing to ask", &[], 3, None),
        ] {
            assert_eq!(choose(sizes, current), expected, "{what}");
        }
    }

    #[test]
    fn tolerances_are_per_direction() {
        let three = pods("rrr");
        for (down, up, value, expected) in [
            (0.0, 0.0, 1010, 4),
            (0.1, 2.0, 1900, 3),
            (2.0, 0.08, 1090, 4),
            (0.36, 0.1, 660, 3),
            (0.02, 2.0, 660, 2),
            (0.0, 0.0, 1000, 3),
        ] {
            let tolerances = Tolerances { down, up };
            let measured = || Measurement { tolerances, ..measurement(&three, &[Some(value); 3], 3) };
            let found = measured().utilization("cpu", None, 100).unwrap();
            assert_eq!(found.replicas, expected, "{down} {up} {value}");
            assert_eq!(measured().per_pod("", 1000).unwrap().replicas, expected, "{down} {up} {value}");
            assert_eq!(whole(value, 1000, 3, tolerances, &three).unwrap().replicas, expected, "{down} {up} {value}");
        }
    }

    #[test]
    fn a_container_without_a_request_is_named() {
        let pods = pods("r");
        let found = measurement(&pods, &[Some(1)], 1).utilization("memory", None, 50);
        assert_eq!(found.unwrap_err().to_string(), "missing request for memory in container c of Pod p0");
    }

    #[test]
    fn what_pods_request() {
        let requests_of = |spec: serde_json::Value, container: Option<&str>| {
            let mut pod = pods("r")[0].as_ref().clone();
            let spec: PodSpec = serde_json::from_value(spec).unwrap();
            pod.spec = Some(spec.into());
            requests(&[Arc::new(pod)], "cpu", container).map(|found| found["p0"])
        };
        let asks = |name: &str, cpu: &str| serde_json::json!({"name": name, "resources": {"requests": {"cpu": cpu}}});
        let beside = |whole: serde_json::Value| {
            serde_json::json!({"containers": [asks("a", "100m"), {"name": "b"}], "overhead": {"cpu": "5m"},
                "resources": {"requests": whole}})
        };
        for (what, spec, container, expected) in [
            (
                "containers and sidecars",
                serde_json::json!({"containers": [asks("a", "100m")], "initContainers": [asks("once", "1"),
                    {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "20m"}}}]}),
                None,
                Ok(120),
            ),
            ("one of them", beside(serde_json::json!({"cpu": "1"})), Some("a"), Ok(100)),
            ("one that is not there", beside(serde_json::json!({})), Some("c"), Err("container c not found in Pod p0")),
            (
                "one without a request",
                beside(serde_json::json!({})),
                None,
                Err("missing request for cpu in container b of Pod p0"),
            ),
            ("the whole pod", beside(serde_json::json!({"cpu": "1"})), None, Ok(1005)),
            ("the whole pod, of memory", beside(serde_json::json!({"memory": "1Mi"})), None, Ok(105)),
            (
                "none at all",
                serde_json::json!({"containers": [{"name": "a"}], "resources": {"requests": {"memory": "1Mi"}}}),
                None,
                Err("missing pod-level request for cpu in Pod p0"),
            ),
        ] {
            let found = requests_of(spec, container).map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(str::to_owned), "{what}");
        }
    }

    #[test]
    fn missing_samples_are_told_before_missing_requests() {
        let pods = pods("r");
        let found = measurement(&pods, &[None], 1).utilization("memory", None, 50);
        assert!(matches!(found.unwrap_err(), Error::NoSamples));
    }

    #[test]
    fn values_per_pod() {
        for (what, states, values, target, expected) in [
            ("up", "rrr", vec![Some(20_000), Some(10_000), Some(30_000)], 15_000, (4, 20_000)),
            (
                "down",
                "rrrrr",
                vec![Some(12_000), Some(12_000), Some(12_000), Some(12_000), Some(12_000)],
                20_000,
                (3, 12_000),
            ),
            ("missing ones hold back a shrink", "rrr", vec![Some(10), Some(10), None], 100, (2, 10)),
            ("missing ones change nothing at the target", "rrr", vec![Some(10), Some(10), None], 10, (3, 10)),
            ("readiness does not matter", "rru", vec![Some(20), Some(20), Some(20)], 10, (6, 20)),
            ("nor how long a pod runs", "srs", vec![Some(50_000), Some(15_000), Some(30_000)], 15_000, (7, 31_666)),
        ] {
            let pods = pods(states);
            let found = measurement(&pods, &values, states.len() as i32).per_pod("", target).unwrap();
            assert_eq!((found.replicas, found.value), expected, "{what}");
        }
    }

    #[test]
    fn more_pods_than_replicas_in_an_update_change_nothing() {
        let three = pods("rrr");
        let found = measurement(&three, &[Some(10_000), Some(10_000), None], 2).per_pod("", 17_000).unwrap();
        assert_eq!((found.replicas, found.value), (2, 10_000));
    }

    #[test]
    fn one_value_for_all() {
        let three = pods("rrr");
        assert_eq!(whole(i64::MAX, 1, 3, TENTH, &three).unwrap().replicas, i32::MAX, "too large to count");
        assert_eq!(whole(i64::MAX, i64::MAX, 3, TENTH, &three).unwrap().replicas, 3, "and just as large a target");
        assert_eq!(whole(20_000, 15_000, 3, TENTH, &three).unwrap().replicas, 4);
        assert_eq!(whole(15_500, 15_000, 3, TENTH, &three).unwrap().replicas, 3);
        assert_eq!(whole(20_000, 15_000, 0, TENTH, &[]).unwrap().replicas, 2, "from zero");
        assert_eq!(whole(0, 15_000, 3, TENTH, &three).unwrap().replicas, 0);
        assert_eq!(whole(90_000, 15_000, 3, TENTH, &pods("rrp")).unwrap().replicas, 12, "only ready pods count");
        assert!(whole(90_000, 15_000, 3, TENTH, &[]).is_err());
    }

    #[test]
    fn shares_of_one_value() {
        for (value, target, replicas, expected) in [
            (8_600, 2_867, 3, (3, 2_867)),
            (8_600, 2_000, 3, (5, 2_867)),
            (0, 2_000, 3, (0, 0)),
            (8_600, 2_000, 0, (5, 8_600)),
            (i64::MAX, 1, 3, (i32::MAX, i64::MAX)),
            (i64::MAX, i64::MAX, 1, (1, i64::MAX)),
        ] {
            let found = shared(value, target, replicas, TENTH);
            assert_eq!((found.replicas, found.value), expected, "{value} {target} {replicas}");
        }
    }
}
