//! What a StatefulSet does next, decided from itself, its revisions and its pods.
//!
//! With `OrderedReady` one pod changes at a time: lower ordinals come first when growing and updating waits for every pod to be
//! healthy; the highest ordinal goes first when shrinking. With `Parallel` creation and scaling do not wait, updates still do.

use std::sync::Arc;

use api::cached::Pod;
use api::meta::Meta as _;
use api::sort::CompactSort as _;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec, StatefulSetStatus};

use crate::history::REVISION_LABEL;
use crate::int_or_percent::{Round, resolve};
use crate::pods;

/// At most so many pods are made in one pass, as by ReplicaSets.
const BURST: usize = 500;

/// Names of the revision most pods are of and of the one they should become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Revisions<'a> {
    pub(super) current: &'a str,
    pub(super) update: &'a str,
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// Ordinal and whether it is made from the update revision.
    pub(super) create: Vec<(i32, bool)>,
    pub(super) delete: Vec<Arc<Pod>>,
    /// Ordinals whose pods wait for a node: without their claims, which somebody may have deleted, they would for ever.
    pub(super) claims: Vec<i32>,
    pub(super) status: StatefulSetStatus,
    pub(super) recheck: Option<std::time::Duration>,
}

pub(super) fn ordinal(set: &str, pod: &str) -> Option<i32> {
    pod.strip_prefix(set)?.strip_prefix('-').filter(|text| *text == "0" || !text.starts_with('0'))?.parse().ok()
}

pub(super) fn start(spec: &StatefulSetSpec) -> i32 {
    spec.ordinals.as_ref().and_then(|ordinals| ordinals.start).unwrap_or_default()
}

/// Whether an ordinal is within the replicas.
pub(super) fn is_wanted(spec: &StatefulSetSpec, number: i32) -> bool {
    let first = i64::from(start(spec));
    (first..first + i64::from(spec.replicas.unwrap_or(1))).contains(&i64::from(number))
}

fn revision(pod: &Pod) -> &str {
    pod.metadata.label(REVISION_LABEL).unwrap_or_default()
}

fn is_on_delete(spec: &StatefulSetSpec) -> bool {
    spec.update_strategy.as_ref().and_then(|strategy| strategy.type_.as_deref()) == Some("OnDelete")
}

/// How many pods of a set may be away while it is updated.
fn most_unavailable(spec: &StatefulSetSpec) -> Option<usize> {
    let rolling = spec.update_strategy.as_ref().and_then(|strategy| strategy.rolling_update.as_ref());
    let limit = rolling.and_then(|rolling| rolling.max_unavailable.as_ref())?;
    Some(usize::try_from(resolve(limit, spec.replicas.unwrap_or(1), Round::Up).max(1)).unwrap_or(1))
}

fn is_available(pod: &Pod, min_ready: i32, now: Timestamp) -> bool {
    pods::phase(pod) == "Running" && pods::is_available(pod, min_ready, now)
}

/// How available a set is: pods that may be away, and ordinals whose pod is missing, leaves or is not available.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Availability {
    pub(super) most_unavailable: usize,
    pub(super) unavailable: usize,
}

impl Availability {
    pub(super) fn of(set: &StatefulSet, pods: &[Arc<Pod>], now: Timestamp) -> Availability {
        let (name, spec) = (set.metadata.name(), set.spec.clone().unwrap_or_default());
        let min_ready = spec.min_ready_seconds.unwrap_or_default();
        let serves = |pod: &&Arc<Pod>| {
            let number = ordinal(name, pod.metadata.name());
            number.is_some_and(|number| is_wanted(&spec, number))
                && !pods::is_terminating(pod)
                && is_available(pod, min_ready, now)
        };
        let wanted = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or_default();
        Availability {
            most_unavailable: most_unavailable(&spec).unwrap_or(1),
            unavailable: wanted.saturating_sub(pods.iter().filter(serves).count()),
        }
    }
}

struct Pass<'a> {
    spec: &'a StatefulSetSpec,
    revisions: Revisions<'a>,
    ordered: bool,
    min_ready: i32,
    now: Timestamp,
    plan: Plan,
}

pub(super) fn plan(set: &StatefulSet, pods: &[Arc<Pod>], revisions: Revisions<'_>, now: Timestamp) -> Plan {
    let spec = set.spec.clone().unwrap_or_default();
    let mut pass = Pass {
        ordered: spec.pod_management_policy.as_deref() != Some("Parallel"),
        min_ready: spec.min_ready_seconds.unwrap_or_default(),
        revisions,
        now,
        plan: Plan::default(),
        spec: &spec,
    };
    let name = set.metadata.name();
    let (first, count) = (start(&spec), spec.replicas.unwrap_or(1));
    // So many that a whole burst may be missing among them. Only when none is missing do all have to be looked at.
    let looked_at = usize::try_from(count).unwrap_or_default().min(pods.len().saturating_add(BURST));
    let mut replicas: Vec<Option<Arc<Pod>>> = vec![None; looked_at];
    let mut condemned = Vec::new();
    for pod in pods {
        let Some(number) = ordinal(name, pod.metadata.name()) else { continue };
        if !is_wanted(&spec, number) {
            condemned.push((number, pod.clone()));
        } else if let Some(place) = usize::try_from(number - first).ok().and_then(|at| replicas.get_mut(at)) {
            *place = Some(pod.clone());
        }
    }
    condemned.compact_sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    pass.plan.status = pass.status(set, pods);
    pass.plan.recheck = pods
        .iter()
        .filter_map(|pod| pods::available_in(pod, pass.min_ready, now))
        .filter(|delay| pass.min_ready > 0 && !delay.is_zero())
        .min();
    if set.metadata.deletion_timestamp.is_none() {
        pass.act(&replicas, &condemned, first);
    }
    pass.plan
}

impl Pass<'_> {
    fn act(&mut self, replicas: &[Option<Arc<Pod>>], condemned: &[(i32, Arc<Pod>)], first: i32) {
        for (at, pod) in replicas.iter().enumerate() {
            // There are no ordinals after the largest number.
            let Some(number) = i32::try_from(at).ok().and_then(|at| first.checked_add(at)) else { break };
            let waits = match pod {
                None => {
                    self.plan.create.push((number, self.is_made_new(number, first)));
                    true
                }
                Some(pod) if pods::is_finished(pod) && !pods::is_terminating(pod) => {
                    // It comes back under the same name once it is gone.
                    self.plan.delete.push(pod.clone());
                    true
                }
                Some(pod) => {
                    if pods::phase(pod) == "Pending" && !pods::is_terminating(pod) {
                        self.plan.claims.push(number);
                    }
                    pods::is_terminating(pod) || !self.is_available(pod)
                }
            };
            if waits && self.ordered {
                return;
            }
        }
        let unhealthy = |pod: &Arc<Pod>| !pods::is_ready(pod) || pods::is_terminating(pod);
        let first_unhealthy = condemned.iter().rev().map(|(_, pod)| pod).find(|pod| unhealthy(pod));
        for (_, pod) in condemned {
            if self.ordered {
                let blocked = pods::is_terminating(pod)
                    || (!pods::is_ready(pod)
                        && first_unhealthy.is_some_and(|first| first.metadata.uid != pod.metadata.uid));
                if !blocked {
                    self.plan.delete.push(pod.clone());
                }
                return;
            }
            if !pods::is_terminating(pod) {
                self.plan.delete.push(pod.clone());
            }
        }
        if self.plan.create.is_empty() && self.plan.delete.is_empty() {
            self.update(replicas);
        }
    }

    /// Replaces pods of old revisions, highest ordinal first, down to the partition. One at a time each waits for those above
    /// it; with `maxUnavailable` that many may be away at once, whichever they are. One that is away already takes nothing
    /// more away: after a rollback it would otherwise be in its own way for ever.
    fn update(&mut self, replicas: &[Option<Arc<Pod>>]) {
        if is_on_delete(self.spec) {
            return;
        }
        let partition = usize::try_from(self.partition().unwrap_or_default()).unwrap_or_default();
        let is_away = |pod: &Pod| !self.is_available(pod) || pods::is_terminating(pod);
        let is_old = |pod: &Pod| revision(pod) != self.revisions.update && !pods::is_terminating(pod);
        let targets = replicas.iter().skip(partition).rev().map_while(Option::as_ref);
        let Some(budget) = most_unavailable(self.spec) else {
            let first = targets.clone().find(|pod| is_old(pod) || is_away(pod));
            self.plan.delete = first.filter(|pod| is_old(pod)).cloned().into_iter().collect();
            return;
        };
        let away = replicas.iter().flatten().filter(|pod| is_away(pod)).count();
        let mut left = budget.saturating_sub(away);
        let mut may_go = |pod: &Pod| {
            let free = is_away(pod);
            let goes = free || left > 0;
            left -= usize::from(goes && !free);
            goes
        };
        self.plan.delete = targets.filter(|pod| is_old(pod) && may_go(pod)).cloned().collect();
    }

    fn partition(&self) -> Option<i32> {
        self.spec.update_strategy.as_ref()?.rolling_update.as_ref()?.partition
    }

    fn is_available(&self, pod: &Pod) -> bool {
        is_available(pod, self.min_ready, self.now)
    }

    /// Whether a missing ordinal is made from the update revision.
    fn is_made_new(&self, number: i32, first: i32) -> bool {
        if self.revisions.current == self.revisions.update {
            return true;
        }
        if is_on_delete(self.spec) {
            return true;
        }
        match self.partition() {
            Some(partition) if partition > 0 => number >= first.saturating_add(partition),
            _ => number >= first.saturating_add(self.plan.status.current_replicas.unwrap_or_default()),
        }
    }

    fn status(&self, set: &StatefulSet, pods: &[Arc<Pod>]) -> StatefulSetStatus {
        let count = |matches: &dyn Fn(&Pod) -> bool| {
            i32::try_from(pods.iter().filter(|pod| matches(pod)).count()).unwrap_or(i32::MAX)
        };
        let nonzero = |number: i32| (number != 0).then_some(number);
        let created = |pod: &Pod| !pods::is_finished(pod);
        let old = set.status.clone().unwrap_or_default();
        let living = |pod: &Pod, wanted: &str| created(pod) && !pods::is_terminating(pod) && revision(pod) == wanted;
        let mut status = StatefulSetStatus {
            replicas: count(&created),
            ready_replicas: nonzero(count(&|pod| pods::phase(pod) == "Running" && pods::is_ready(pod))),
            available_replicas: Some(count(&|pod| self.is_available(pod))),
            current_replicas: nonzero(count(&|pod| living(pod, self.revisions.current))),
            updated_replicas: nonzero(count(&|pod| living(pod, self.revisions.update))),
            current_revision: Some(self.revisions.current.into()),
            update_revision: Some(self.revisions.update.into()),
            observed_generation: set.metadata.generation,
            collision_count: old.collision_count.or(Some(0)),
            conditions: old.conditions,
        };
        let wanted = self.spec.replicas.unwrap_or(1);
        let all = |number: Option<i32>| number.unwrap_or_default() == status.replicas;
        if !is_on_delete(self.spec)
            && status.replicas == wanted
            && all(status.updated_replicas)
            && all(status.ready_replicas)
        {
            // The rollout is complete: the update revision is the current one.
            status.current_replicas = status.updated_replicas;
            status.current_revision.clone_from(&status.update_revision);
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::{
        RollingUpdateStatefulSetStrategy, StatefulSetOrdinals, StatefulSetUpdateStrategy,
    };
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

    use super::*;
    use crate::pods::tests::{Builder, at};

    fn set(replicas: i32, policy: &str, partition: i32) -> StatefulSet {
        let rolling = RollingUpdateStatefulSetStrategy { partition: Some(partition), ..Default::default() };
        let mut set = StatefulSet {
            spec: Some(StatefulSetSpec {
                replicas: Some(replicas),
                pod_management_policy: Some(policy.into()),
                update_strategy: Some(StatefulSetUpdateStrategy {
                    type_: Some("RollingUpdate".into()),
                    rolling_update: Some(rolling),
                }),
                ..StatefulSetSpec::default()
            }),
            ..StatefulSet::default()
        };
        set.metadata.name = Some("db".into());
        set
    }

    /// `r` ready, `p` pending, `f` failed, `t` terminating; upper case is the update revision.
    fn pods(text: &str) -> Vec<Arc<Pod>> {
        let pod = |(number, state): (usize, char)| {
            let builder = Builder::new(&format!("db-{number}")).on("n");
            let builder = match state.to_ascii_lowercase() {
                'r' => builder.ready(at(0)),
                'f' => builder.phase("Failed"),
                't' => {
                    let mut builder = builder.ready(at(0));
                    builder.0.metadata.deletion_timestamp = builder.0.metadata.creation_timestamp.clone();
                    builder
                }
                _ => builder,
            };
            (state != '-').then(|| {
                builder.labelled(REVISION_LABEL, if state.is_ascii_uppercase() { "new" } else { "old" }).build()
            })
        };
        text.chars().enumerate().filter_map(pod).collect()
    }

    fn actions(set: &StatefulSet, text: &str) -> String {
        let plan = plan(set, &pods(text), Revisions { current: "old", update: "new" }, at(100));
        let create = plan.create.iter().map(|(number, new)| format!("+{number}{}", if *new { "new" } else { "old" }));
        let delete = plan.delete.iter().map(|pod| pod.metadata.name.clone().unwrap().replace("db", ""));
        create.chain(delete).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn security_sets_of_billions_are_made_bit_by_bit() {
        let revisions = Revisions { current: "old", update: "new" };
        for (policy, text, created) in [("Parallel", "", BURST), ("Parallel", "r-r", BURST), ("OrderedReady", "r", 1)] {
            let plan = plan(&set(i32::MAX, policy, 0), &pods(text), revisions, at(100));
            assert_eq!((plan.create.len(), plan.delete.len()), (created, 0), "{policy} {text}");
        }
        let mut last = set(3, "Parallel", i32::MAX);
        let ordinals = StatefulSetOrdinals { start: Some(i32::MAX - 1) };
        last.spec.as_mut().unwrap().ordinals = Some(ordinals);
        let made = plan(&last, &[], revisions, at(100)).create;
        assert_eq!(made.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [i32::MAX - 1, i32::MAX]);
        let is_wanted = |number| is_wanted(last.spec.as_ref().unwrap(), number);
        assert!(is_wanted(i32::MAX) && !is_wanted(0));
    }

    #[test]
    fn one_at_a_time_and_in_order() {
        for (replicas, policy, partition, text, expected) in [
            (3, "OrderedReady", 3, "", "+0old"),
            (3, "OrderedReady", 3, "p", ""),
            (3, "OrderedReady", 3, "r", "+1old"),
            (3, "OrderedReady", 3, "-rr", "+0old"),
            (3, "OrderedReady", 3, "rfr", "-1"),
            (3, "OrderedReady", 3, "rtr", ""),
            (3, "Parallel", 3, "", "+0old +1old +2old"),
            (3, "Parallel", 3, "p-p", "+1old"),
            (1, "OrderedReady", 1, "rrr", "-2"),
            (1, "OrderedReady", 1, "rrt", ""),
            (1, "OrderedReady", 1, "rpr", "-2"),
            (0, "Parallel", 0, "rrr", "-2 -1 -0"),
            (2, "OrderedReady", 2, "prr", ""),
        ] {
            assert_eq!(actions(&set(replicas, policy, partition), text), expected, "{replicas} {policy} {text}");
        }
    }

    #[test]
    fn updates_go_from_the_top_down_to_the_partition() {
        for (partition, text, expected) in [
            (0, "rrr", "-2"),
            (0, "rr-", "+2new"),
            (0, "rrP", ""),
            (0, "rrR", "-1"),
            (0, "RRR", ""),
            (2, "rrR", ""),
            (2, "rr-", "+2new"),
            (2, "r-R", "+1old"),
            (3, "rrr", ""),
            // A broken pod of the old revision is replaced at once.
            (0, "rrp", ""),
        ] {
            assert_eq!(actions(&set(3, "OrderedReady", partition), text), expected, "partition {partition} {text}");
        }
        assert_eq!(actions(&set(3, "Parallel", 0), "rrp"), "-2");
    }

    /// A broken pod of a revision that nobody wants any more, as a rollback leaves it.
    #[test]
    fn a_pod_that_is_away_already_is_not_in_its_own_way() {
        let at_most = |replicas: i32, most: i32| {
            let mut set = set(replicas, "Parallel", 0);
            let strategy = set.spec.as_mut().unwrap().update_strategy.as_mut().unwrap();
            strategy.rolling_update.as_mut().unwrap().max_unavailable = Some(IntOrString::Int(most));
            set
        };
        for (replicas, most, text, expected) in [
            (1, 1, "p", "-0"),
            (3, 1, "rrp", "-2"),
            (3, 1, "rpr", "-1"),
            (3, 1, "rrr", "-2"),
            (3, 1, "rrP", ""),
            (3, 2, "rrp", "-2 -1"),
            (3, 2, "rrP", "-1"),
            (3, 1, "ppp", "-2 -1 -0"),
            (3, 1, "rrt", ""),
        ] {
            assert_eq!(actions(&at_most(replicas, most), text), expected, "{replicas} {most} {text}");
        }
    }

    #[test]
    fn pods_that_wait_for_a_node_have_their_claims() {
        for (policy, text, expected) in [
            ("OrderedReady", "rp", vec![1]),
            ("OrderedReady", "pp", vec![0]),
            ("Parallel", "prp", vec![0, 2]),
            ("OrderedReady", "rrr", vec![]),
            ("Parallel", "tff", vec![]),
        ] {
            let revisions = Revisions { current: "old", update: "new" };
            assert_eq!(plan(&set(3, policy, 0), &pods(text), revisions, at(100)).claims, expected, "{policy} {text}");
        }
    }

    #[test]
    fn a_complete_rollout_moves_the_current_revision() {
        let status = |text| {
            plan(&set(3, "OrderedReady", 0), &pods(text), Revisions { current: "old", update: "new" }, at(100)).status
        };
        let half = status("rrR");
        assert_eq!(
            (half.current_replicas, half.updated_replicas, half.current_revision.as_deref()),
            (Some(2), Some(1), Some("old"))
        );
        let done = status("RRR");
        assert_eq!(
            (done.current_replicas, done.updated_replicas, done.current_revision.as_deref()),
            (Some(3), Some(3), Some("new"))
        );
    }

    #[test]
    fn ordinals_are_canonical() {
        for (pod, expected) in
            [("db-0", Some(0)), ("db-12", Some(12)), ("db-01", None), ("db-x", None), ("other-1", None), ("db", None)]
        {
            assert_eq!(ordinal("db", pod), expected, "{pod}");
        }
    }

    #[test]
    fn whoever_does_not_serve_is_unavailable() {
        let percent = |percent: &str| {
            let mut set = set(4, "OrderedReady", 0);
            let strategy = set.spec.as_mut().unwrap().update_strategy.as_mut().unwrap();
            strategy.rolling_update.as_mut().unwrap().max_unavailable = Some(IntOrString::String(percent.into()));
            set
        };
        for (set, text, most, away) in [
            (set(3, "OrderedReady", 0), "", 1, 3),
            (set(3, "OrderedReady", 0), "rRp", 1, 1),
            (set(3, "Parallel", 0), "rtf", 1, 2),
            // The last two are on their way out and do not count.
            (set(1, "OrderedReady", 0), "prr", 1, 1),
            (percent("50%"), "rrrr", 2, 0),
            (percent("1%"), "r-rr", 1, 1),
        ] {
            let seen = Availability::of(&set, &pods(text), at(100));
            assert_eq!(seen, Availability { most_unavailable: most, unavailable: away }, "{text}");
        }
    }
}
